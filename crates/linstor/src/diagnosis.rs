//! SOS reports: what helps to find out what is wrong with a cluster, in one archive. Of the controller
//! there is what the API itself shows, of each node what its agent collects; no secrets are among either.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use cluster::name::{NodeName, ResourceName};
use cluster::objects::Millis;
use cluster::question::{Question, Reply};
use flate2::Compression;
use flate2::write::GzEncoder;
use tower::ServiceExt as _;

use crate::access::{Access, Role};
use crate::agents::{Trouble, ask, known};
use crate::answer::{Answer, Changed};
use crate::ask::{App, Asked};
use crate::code::{Kind, number};
use crate::control::{timestamp, written};
use crate::controller::Failure;
use crate::routes::{Routes, Says};

/// How long an agent may take: its programs have 15 seconds each, side by side.
const PATIENCE: Duration = Duration::from_secs(40);
/// Largest answer of a call that goes into a report, in bytes.
const SHOWN: usize = 256 << 20;
/// What is asked.
const QUERY: &[&str] = &["nodes", "rscs", "exclude", "since", "include-ctrl"];

/// What the API shows, by the file that it is put into.
const CALLS: &[(&str, &str)] = &[
    ("version.json", "/v1/controller/version"),
    ("config.json", "/v1/controller/config"),
    ("properties.json", "/v1/controller/properties"),
    ("nodes.json", "/v1/nodes"),
    ("node-connections.json", "/v1/node-connections"),
    ("storage-pools.json", "/v1/view/storage-pools"),
    ("resource-groups.json", "/v1/resource-groups"),
    ("resource-definitions.json", "/v1/resource-definitions?with_volume_definitions=true"),
    ("resources.json", "/v1/view/resources"),
    ("snapshots.json", "/v1/view/snapshots"),
    ("error-reports.json", "/v1/error-reports?withContent=true"),
    ("audit.json", "/v1/ashlar/audit?limit=10000"),
];

pub fn routes() -> Routes {
    // A look, but one that has programs run on every node, and tells of logs.
    Routes::new()
        .call(Method::GET, "/v1/sos-report", Role::Admin, create)
        .asks(QUERY)
        .at_once()
        .call(Method::GET, "/v1/sos-report/download", Role::Admin, download)
        .asks(QUERY)
        .at_once()
        .says(Says::File)
}

/// Keeps it on the controller's host.
async fn create(
    State(app): State<App>,
    Extension(access): Extension<Arc<dyn Access>>,
    asked: Asked,
) -> Changed {
    let (name, archive) = report(&app, access, &asked).await?;
    let path = app.keep_report(name, archive).await?;
    Ok(written("the SOS report is", &path))
}

/// Sends it.
async fn download(
    State(app): State<App>,
    Extension(access): Extension<Arc<dyn Access>>,
    asked: Asked,
) -> Result<Response, Answer> {
    let (name, archive) = report(&app, access, &asked).await?;
    let head = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename={name}")),
    ];
    Ok((head, archive).into_response())
}

/// The nodes that are asked.
fn nodes(app: &App, asked: &Asked) -> Result<Vec<NodeName>, Answer> {
    let named = |key| -> Result<Vec<NodeName>, Answer> {
        asked.all(key).into_iter().map(|name| known(app, name).map_err(Answer::from)).collect()
    };
    let (only, without) = (named("nodes")?, named("exclude")?);
    let resources: Vec<ResourceName> =
        asked.all("rscs").into_iter().map(ResourceName::new).collect::<Result<_, _>>()?;
    let state = app.state();
    let has_one =
        |node: &NodeName| resources.iter().any(|name| state.model.resource(name, node).is_some());
    let holding = state.model.nodes().filter(|node| node.kind.holds_resources());
    let wanted = holding.map(|node| &node.name).filter(|node| {
        (only.is_empty() && resources.is_empty() || only.contains(node) || has_one(node))
            && !without.contains(node)
    });
    Ok(wanted.cloned().collect())
}

/// Collects a report: its name, and the archive.
async fn report(
    app: &App,
    access: Arc<dyn Access>,
    asked: &Asked,
) -> Result<(String, Vec<u8>), Answer> {
    let nodes = nodes(app, asked)?;
    let since = asked.number("since").map(Millis);
    let asking: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            let app = app.clone();
            tokio::spawn(async move {
                let said = ask(&app, &node, Question::Diagnosis { since }, PATIENCE).await;
                (node, said)
            })
        })
        .collect();
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    if asked.all("include-ctrl").is_empty() || asked.flag("include-ctrl") {
        let router = crate::routes().into_parts().0;
        let router = router.layer(Extension(access)).with_state(app.clone());
        for (file, call) in CALLS {
            files.push((format!("controller/{file}"), shown(&router, call).await));
        }
        files.push(("controller/journal.txt".to_owned(), app.journal(since).await.into_bytes()));
    }
    for asked in asking {
        // A task that ends otherwise has panicked, or the process is going down.
        let Ok((node, said)) = asked.await else { continue };
        match said {
            Ok(Reply::Diagnosis { files: of_node }) => {
                // Names of files come from the node: they are not to lead anywhere.
                let plain = |name: &str| !name.contains('/') && !name.starts_with('.');
                let of_node = of_node.into_iter().filter(|(name, _)| plain(name));
                let put = |(name, text): (String, String)| {
                    (format!("nodes/{node}/{name}"), text.into_bytes())
                };
                files.extend(of_node.map(put));
            }
            Ok(other) => files.push(missing(&node, &Trouble::unfit(&node, &other))),
            Err(trouble) => files.push(missing(&node, &trouble)),
        }
    }
    let name = format!("sos_{}", timestamp());
    let file = format!("{name}.tar.gz");
    let packed = tokio::task::spawn_blocking(move || archive(&name, &files)).await;
    let packed = packed.map_err(|_| Failure::Stopping)?.map_err(|error| {
        let (text, cause) = ("the SOS report could not be put together", error.to_string());
        Answer::refused(Kind::Controller, number::UNSUPPORTED, text, &cause, "ask again")
    })?;
    Ok((file, packed))
}

/// Says why nothing is there of a node.
fn missing(node: &NodeName, trouble: &Trouble) -> (String, Vec<u8>) {
    (format!("nodes/{node}/missing.txt"), format!("{trouble}\n").into_bytes())
}

/// What a call shows.
async fn shown(router: &Router, call: &str) -> Vec<u8> {
    let request = Request::get(call).body(Body::empty());
    let Ok(request) = request else { return Vec::new() };
    let response = match router.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let status = response.status();
    match axum::body::to_bytes(response.into_body(), SHOWN).await {
        Ok(text) if status == StatusCode::OK => text.to_vec(),
        Ok(text) => format!("{status}\n{}\n", String::from_utf8_lossy(&text)).into_bytes(),
        Err(error) => format!("not read: {error}\n").into_bytes(),
    }
}

/// A tar archive, compressed, of files below a folder.
fn archive(folder: &str, files: &[(String, Vec<u8>)]) -> io::Result<Vec<u8>> {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        archive.append_data(&mut header, format!("{folder}/{name}"), &content[..])?;
    }
    archive.into_inner()?.finish()
}
