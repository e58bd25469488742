//! Remotes, in which backups are kept.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::error::Error;
use super::super::secret::Ask;
use super::Session;
use super::args::RemoteCommand;
use super::http::{Change, part, query};
use super::table::{Cell, Row};

const S3: &str = "/v1/remotes/s3";
const KEY: Ask = Ask::Known("secret key");

pub(super) fn run(session: &mut Session<'_>, command: &RemoteCommand) -> Result<(), Error> {
    match command {
        RemoteCommand::List => {
            let remotes: Vec<Remote> = session.get("remotes", S3)?;
            session.list(&remotes)
        }
        RemoteCommand::Create { name, endpoint, bucket, region, access_key, path_style } => {
            let what = format!("remote {name}");
            let [key] = session.passphrases(&what, [KEY])?;
            let body = json!({
                "remote_name": name, "endpoint": endpoint, "bucket": bucket, "region": region,
                "access_key": access_key, "secret_key": key.expose(), "use_path_style": path_style,
            });
            let change = Change::Post(S3.to_owned(), body);
            session.change(&format!("{what}: create"), &change, None).map(drop)
        }
        RemoteCommand::Modify { name, endpoint, bucket, region, access_key, path_style } => {
            let what = format!("remote {name}");
            let mut body = json!({
                "endpoint": endpoint, "bucket": bucket, "region": region,
                "use_path_style": path_style,
            });
            if let Some(access_key) = access_key {
                let [key] = session.passphrases(&what, [KEY])?;
                body["access_key"] = Value::from(access_key.as_str());
                body["secret_key"] = Value::from(key.expose());
            }
            let change = Change::Put(format!("{S3}/{}", part(name)), body);
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
    flags: Vec<String>,
}

impl Row for Remote {
    const COLUMNS: &'static [&'static str] = &["REMOTE", "ENDPOINT", "BUCKET", "REGION", "STYLE"];
    fn cells(&self) -> Vec<Cell> {
        let style = if self.path_style { "path" } else { "host" };
        vec![
            self.remote.clone().into(),
            self.endpoint.clone().into(),
            self.bucket.clone().into(),
            self.region.clone().into(),
            style.to_owned().into(),
        ]
    }
}
