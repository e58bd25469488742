//! Remotes: buckets in which backups are kept, and other clusters. What is secret of them is never told again.

use axum::extract::State;
use axum::http::Method;
use cluster::command::{BucketEdit, ClusterEdit, Command};
use cluster::name::RemoteName;
use cluster::refusal::{Code, Refusal};
use cluster::shipping::{Bucket, OtherCluster, Place, Remote};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use vocab::options::Secret;

use crate::answer::{Answer, Call, Changed, Found, without_empty};
use crate::ask::{App, Asked, Body, Path};
use crate::code::{Kind, Operation};
use crate::routes::Routes;

pub fn routes() -> Routes {
    Routes::new()
        .get("/v1/remotes", list)
        .admin(Method::DELETE, "/v1/remotes", delete)
        .asks(&["remote_name"])
        .get("/v1/remotes/s3", list_s3)
        .admin(Method::POST, "/v1/remotes/s3", create)
        .admin(Method::PUT, "/v1/remotes/s3/{remote}", modify)
        .get("/v1/remotes/linstor", list_clusters)
        .admin(Method::POST, "/v1/remotes/linstor", create_cluster)
        .admin(Method::PUT, "/v1/remotes/linstor/{remote}", modify_cluster)
}

/// What clients are told of a remote.
fn show(remote: &Remote) -> Value {
    let flags: &[&str] = if remote.deleting { &["DELETE"] } else { &[] };
    match &remote.place {
        Place::Bucket(bucket) => json!({
            "remote_name": remote.name.as_str(),
            "endpoint": bucket.endpoint,
            "bucket": bucket.bucket,
            "region": bucket.region,
            "use_path_style": bucket.path_style,
            "flags": flags,
        }),
        Place::Cluster(cluster) => without_empty(json!({
            "remote_name": remote.name.as_str(),
            "url": cluster.url,
            "cluster_id": cluster.id,
            "flags": flags,
        })),
    }
}

/// Those that are buckets, and those that are clusters.
fn all(app: &App) -> (Vec<Value>, Vec<Value>) {
    let state = app.state();
    let (buckets, clusters): (Vec<&Remote>, Vec<&Remote>) =
        state.model.remotes().partition(|remote| remote.bucket().is_some());
    let shown = |remotes: Vec<&Remote>| remotes.into_iter().map(show).collect();
    (shown(buckets), shown(clusters))
}

async fn list(State(app): State<App>) -> Found {
    let (s3, clusters) = all(&app);
    Found(json!({ "s3_remotes": s3, "linstor_remotes": clusters, "ebs_remotes": [] }))
}

async fn list_s3(State(app): State<App>) -> Found {
    Found(Value::Array(all(&app).0))
}

async fn list_clusters(State(app): State<App>) -> Found {
    Found(Value::Array(all(&app).1))
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct S3Remote {
    remote_name: Option<String>,
    endpoint: Option<String>,
    bucket: Option<String>,
    region: Option<String>,
    access_key: Option<String>,
    secret_key: Option<String>,
    use_path_style: Option<bool>,
}

/// A key, as it is kept; none if it was not given.
fn sealed(app: &App, key: Option<String>) -> Result<Option<String>, Answer> {
    let Some(key) = key.filter(|key| !key.is_empty()) else { return Ok(None) };
    Ok(app.seal(&[Secret::from(key)])?.pop())
}

fn missing(field: &str) -> Refusal {
    Refusal::new(Code::InvalidBackup, "the remote can not be created")
        .cause(format!("`{field}` is missing"))
        .correction("give endpoint, bucket, region, access_key and secret_key")
}

async fn create(State(app): State<App>, Body(body): Body<S3Remote>) -> Changed {
    let name = RemoteName::new(&body.remote_name.unwrap_or_default())?;
    let bucket = Bucket {
        endpoint: body.endpoint.ok_or_else(|| missing("endpoint"))?,
        bucket: body.bucket.ok_or_else(|| missing("bucket"))?,
        region: body.region.ok_or_else(|| missing("region"))?,
        path_style: body.use_path_style.unwrap_or(false),
        access_key: sealed(&app, body.access_key)?.ok_or_else(|| missing("access_key"))?,
        secret_key: sealed(&app, body.secret_key)?.ok_or_else(|| missing("secret_key"))?,
    };
    let call = Call::one(Operation::Create, Kind::Remote, &name);
    Ok(call.run(&app, Command::CreateRemote { name, bucket }).await)
}

async fn modify(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<S3Remote>,
) -> Changed {
    let name = RemoteName::new(&name)?;
    let bucket = BucketEdit {
        endpoint: body.endpoint,
        bucket: body.bucket,
        region: body.region,
        path_style: body.use_path_style,
        access_key: sealed(&app, body.access_key)?,
        secret_key: sealed(&app, body.secret_key)?,
    };
    let call = Call::one(Operation::Modify, Kind::Remote, &name);
    Ok(call.run(&app, Command::ModifyRemote { name, bucket }).await)
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct LinstorRemote {
    remote_name: Option<String>,
    url: Option<String>,
    passphrase: Option<String>,
    cluster_id: Option<String>,
}

/// Ports of REST APIs, by the scheme.
const PORTS: [(&str, &str); 2] = [("http", "3370"), ("https", "3371")];

/// The address of a REST API, and the token that was given with it, as the name of a user would be.
/// Without a scheme it is called by http, and without a port at the one that LINSTOR has.
fn address(url: &str) -> Result<(String, Option<String>), Refusal> {
    let refuse = |cause: &str| {
        Err(Refusal::new(Code::InvalidBackup, "the remote can not be so")
            .cause(cause)
            .correction("give a URL such as https://cluster.example.com:3371"))
    };
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let Some((scheme, port)) = PORTS.iter().find(|(known, _)| known.eq_ignore_ascii_case(scheme))
    else {
        return refuse("other clusters are called by http or https");
    };
    let rest = rest.trim_end_matches('/');
    let (user, host) = match rest.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, rest),
    };
    if host.is_empty() || host.starts_with(':') {
        return refuse("it has no host");
    }
    if host.contains('/') {
        return refuse("its REST API is not below a path");
    }
    if user.is_some_and(|user| user.is_empty() || user.contains([':', '/', '%'])) {
        return refuse("before the host can only be a token, as in https://TOKEN@HOST");
    }
    let has_port = host.rsplit_once(':').is_some_and(|(before, port)| {
        // Not the last part of an address of IPv6.
        !port.contains(']') && (!before.contains(':') || before.ends_with(']'))
    });
    let port = if has_port { String::new() } else { format!(":{port}") };
    Ok((format!("{scheme}://{host}{port}"), user.map(str::to_owned)))
}

async fn create_cluster(State(app): State<App>, Body(body): Body<LinstorRemote>) -> Changed {
    let name = RemoteName::new(&body.remote_name.unwrap_or_default())?;
    let Some(url) = body.url.filter(|url| !url.is_empty()) else {
        return Err(Refusal::new(Code::InvalidBackup, "the remote can not be created")
            .cause("`url` is missing")
            .correction("give the URL of the other cluster's REST API")
            .into());
    };
    let (url, token) = address(&url)?;
    let cluster = OtherCluster {
        url,
        id: body.cluster_id.filter(|id| !id.is_empty()),
        token: sealed(&app, token)?,
        passphrase: sealed(&app, body.passphrase)?,
    };
    let call = Call::one(Operation::Create, Kind::Remote, &name).ok();
    Ok(call.run(&app, Command::CreateClusterRemote { name, cluster }).await)
}

async fn modify_cluster(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<LinstorRemote>,
) -> Changed {
    let name = RemoteName::new(&name)?;
    let url = match body.url.filter(|url| !url.is_empty()) {
        Some(url) => {
            let (url, token) = address(&url)?;
            Some((url, sealed(&app, token)?))
        }
        None => None,
    };
    let passphrase = match body.passphrase {
        // An empty one takes it away.
        Some(text) if text.is_empty() => Some(text),
        other => sealed(&app, other)?,
    };
    let cluster = ClusterEdit { url, id: body.cluster_id, passphrase };
    let call = Call::one(Operation::Modify, Kind::Remote, &name);
    Ok(call.run(&app, Command::ModifyClusterRemote { name, cluster }).await)
}

async fn delete(State(app): State<App>, asked: Asked) -> Changed {
    let name = RemoteName::new(asked.all("remote_name").first().copied().unwrap_or_default())?;
    let call = Call::one(Operation::Delete, Kind::Remote, &name);
    Ok(call.run(&app, Command::DeleteRemote { name }).await)
}
