//! Remotes, where backups are kept. Their keys are never told again.

use axum::extract::State;
use axum::http::Method;
use cluster::command::{BucketEdit, Command};
use cluster::name::RemoteName;
use cluster::refusal::{Code, Refusal};
use cluster::shipping::{Bucket, Remote};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use vocab::options::Secret;

use crate::answer::{Answer, Call, Changed, Found};
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
}

fn show(remote: &Remote) -> Value {
    let flags: &[&str] = if remote.deleting { &["DELETE"] } else { &[] };
    json!({
        "remote_name": remote.name.as_str(),
        "endpoint": remote.bucket.endpoint,
        "bucket": remote.bucket.bucket,
        "region": remote.bucket.region,
        "use_path_style": remote.bucket.path_style,
        "flags": flags,
    })
}

async fn list(State(app): State<App>) -> Found {
    let s3: Vec<Value> = app.state().model.remotes().map(show).collect();
    Found(json!({ "s3_remotes": s3, "linstor_remotes": [], "ebs_remotes": [] }))
}

async fn list_s3(State(app): State<App>) -> Found {
    Found(app.state().model.remotes().map(show).collect())
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

async fn delete(State(app): State<App>, asked: Asked) -> Changed {
    let name = RemoteName::new(asked.all("remote_name").first().copied().unwrap_or_default())?;
    let call = Call::one(Operation::Delete, Kind::Remote, &name);
    Ok(call.run(&app, Command::DeleteRemote { name }).await)
}
