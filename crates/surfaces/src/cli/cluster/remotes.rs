//! Remotes: buckets in which backups are kept, and other clusters.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::error::Error;
use super::super::secret::Ask;
use super::Session;
use super::args::{ClusterOptions, RemoteCommand};
use super::http::{Change, part, query};
use super::table::{Cell, Row};

const S3: &str = "/v1/remotes/s3";
const CLUSTERS: &str = "/v1/remotes/linstor";
const KEY: Ask = Ask::Known("secret key");
const TOKEN: Ask = Ask::Known("token of the other cluster");
const PASSPHRASE: Ask = Ask::Known("master passphrase of the other cluster");

pub(super) fn run(session: &mut Session<'_>, command: &RemoteCommand) -> Result<(), Error> {
    match command {
        RemoteCommand::List => {
            let all: Remotes = session.get("remotes", "/v1/remotes")?;
            let remotes: Vec<Remote> =
                all.s3_remotes.into_iter().chain(all.linstor_remotes).collect();
            session.list(&remotes)
        }
        RemoteCommand::Create { name, bucket, cluster, passphrase } => {
            let what = format!("remote {name}");
            let (path, body) = if cluster.url.is_some() {
                let mut body = of_cluster(session, &what, cluster, *passphrase)?;
                body["remote_name"] = Value::from(name.as_str());
                (CLUSTERS, body)
            } else {
                let [key] = session.passphrases(&what, [KEY])?;
                let body = json!({
                    "remote_name": name, "endpoint": bucket.endpoint, "bucket": bucket.bucket,
                    "region": bucket.region, "access_key": bucket.access_key,
                    "secret_key": key.expose(), "use_path_style": bucket.path_style,
                });
                (S3, body)
            };
            let change = Change::Post(path.to_owned(), body);
            session.change(&format!("{what}: create"), &change, None).map(drop)
        }
        RemoteCommand::Modify {
            name,
            endpoint,
            bucket,
            region,
            access_key,
            path_style,
            cluster,
            passphrase,
        } => {
            let what = format!("remote {name}");
            let is_cluster = cluster.url.is_some() || cluster.cluster_id.is_some() || *passphrase;
            let (path, body) = if is_cluster {
                (CLUSTERS, of_cluster(session, &what, cluster, *passphrase)?)
            } else {
                let mut body = json!({
                    "endpoint": endpoint, "bucket": bucket, "region": region,
                    "use_path_style": path_style,
                });
                if let Some(access_key) = access_key {
                    let [key] = session.passphrases(&what, [KEY])?;
                    body["access_key"] = Value::from(access_key.as_str());
                    body["secret_key"] = Value::from(key.expose());
                }
                (S3, body)
            };
            let change = Change::Put(format!("{path}/{}", part(name)), body);
            session.change(&format!("{what}: modify"), &change, None).map(drop)
        }
        RemoteCommand::Delete { name } => {
            let names = [name.clone()];
            let path = format!("/v1/remotes{}", query("remote_name", &names));
            let what = format!("remote {name}: delete");
            session.change(&what, &Change::Delete(path), None).map(drop)
        }
    }
}

/// What is said of another cluster. What is secret of it is asked for.
fn of_cluster(
    session: &mut Session<'_>,
    what: &str,
    cluster: &ClusterOptions,
    passphrase: bool,
) -> Result<Value, Error> {
    let mut url = cluster.url.clone();
    if url.as_ref().is_some_and(|url| url.contains('@')) {
        let why =
            "whoever is on this host can read the token in its URL: leave it out there, and give \
                   `--token`, which asks for it"
                .to_owned();
        return Err(Error::Object { object: what.to_owned(), why });
    }
    let asked = [(cluster.token, TOKEN), (passphrase, PASSPHRASE)];
    let asked: Vec<Ask> = asked.into_iter().filter_map(|(is, ask)| is.then_some(ask)).collect();
    let secrets = if asked.is_empty() { Vec::new() } else { session.secrets(what, &asked)? };
    let mut body = json!({ "cluster_id": cluster.cluster_id });
    for (ask, secret) in asked.into_iter().zip(secrets) {
        if ask == PASSPHRASE {
            body["passphrase"] = Value::from(secret.expose());
        } else if let Some(url) = &mut url {
            let host = url.find("://").map_or(0, |at| at + 3);
            url.insert_str(host, &format!("{}@", secret.expose()));
        }
    }
    body["url"] = Value::from(url);
    Ok(body)
}

/// All remotes, by what they are.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Remotes {
    s3_remotes: Vec<Remote>,
    linstor_remotes: Vec<Remote>,
}

/// A remote in a list.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Remote {
    #[serde(rename(deserialize = "remote_name"))]
    remote: String,
    endpoint: String,
    bucket: String,
    region: String,
    #[serde(rename(deserialize = "use_path_style"))]
    path_style: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    url: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    cluster_id: String,
    flags: Vec<String>,
}

impl Row for Remote {
    const COLUMNS: &'static [&'static str] =
        &["REMOTE", "ENDPOINT", "BUCKET", "REGION", "STYLE", "CLUSTER"];
    fn cells(&self) -> Vec<Cell> {
        let (endpoint, style) = match (self.url.is_empty(), self.path_style) {
            (false, _) => (&self.url, ""),
            (true, true) => (&self.endpoint, "path"),
            (true, false) => (&self.endpoint, "host"),
        };
        vec![
            self.remote.clone().into(),
            endpoint.clone().into(),
            self.bucket.clone().into(),
            self.region.clone().into(),
            style.to_owned().into(),
            self.cluster_id.clone().into(),
        ]
    }
}
