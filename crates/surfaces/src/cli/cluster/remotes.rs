//! Remotes: buckets in which backups are kept, and other clusters.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::error::Error;
use super::super::secret::Ask;
use super::Session;
use super::args::RemoteCommand;
use super::http::{Change, part, query};
use super::table::{Cell, Row};

const S3: &str = "/v1/remotes/s3";
const CLUSTERS: &str = "/v1/remotes/linstor";
const KEY: Ask = Ask::Known("secret key");
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
            let (path, body) = if let Some(url) = &cluster.url {
                let mut body = json!({
                    "remote_name": name, "url": url, "cluster_id": cluster.cluster_id,
                });
                if *passphrase {
                    let [passphrase] = session.passphrases(&what, [PASSPHRASE])?;
                    body["passphrase"] = Value::from(passphrase.expose());
                }
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
            let of_cluster = cluster.url.is_some() || cluster.cluster_id.is_some() || *passphrase;
            let (path, body) = if of_cluster {
                let mut body = json!({ "url": cluster.url, "cluster_id": cluster.cluster_id });
                if *passphrase {
                    let [passphrase] = session.passphrases(&what, [PASSPHRASE])?;
                    body["passphrase"] = Value::from(passphrase.expose());
                }
                (CLUSTERS, body)
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
