//! The key-value store and external files.

use axum::extract::State;
use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cluster::change::Key;
use cluster::command::Command;
use cluster::name::{FilePath, ResourceName, StoreName};
use cluster::objects::{ExternalFile, Props};
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{Call, Changed, Found, Read};
use crate::ask::{App, Asked, Body, Modify, Path};
use crate::code::{Kind, Operation};
use crate::nodes::unknown;
use crate::routes::Routes;

pub fn routes() -> Routes {
    const STORE: &str = "/v1/key-value-store/{instance}";
    const FILE: &str = "/v1/files/{file}";
    const OF_RESOURCE: &str = "/v1/resource-definitions/{resource}/files/{file}";
    // A file ends up on nodes, below folders that their agents name.
    Routes::new()
        .get("/v1/key-value-store", stores)
        .get(STORE, store)
        .user(Method::PUT, STORE, modify_store)
        .user(Method::DELETE, STORE, delete_store)
        .get("/v1/files", files)
        .asks(&["content", "limit", "offset"])
        .get(FILE, file)
        .admin(Method::PUT, FILE, put_file)
        .admin(Method::DELETE, FILE, delete_file)
        .admin(Method::POST, OF_RESOURCE, deploy_file)
        .admin(Method::DELETE, OF_RESOURCE, withdraw_file)
}

fn show_store(name: &StoreName, props: &Props) -> Value {
    json!({ "name": name.as_str(), "props": props })
}

async fn stores(State(app): State<App>) -> Found {
    let state = app.state();
    Found(state.model.stores().map(|(name, props)| show_store(name, props)).collect())
}

async fn store(State(app): State<App>, Path(name): Path<String>) -> Read {
    let state = app.state();
    let name = StoreName::new(&name)?;
    match state.model.store(&name) {
        Some(props) => Ok(Found(json!([show_store(&name, props)]))),
        None => Err(unknown(Code::UnknownStore, &Key::Store(name)).into()),
    }
}

async fn modify_store(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<Modify>,
) -> Changed {
    let name = StoreName::new(&name)?;
    let call = Call::one(Operation::Modify, Kind::Store, &name);
    Ok(call.run(&app, Command::ModifyStore { name, edit: body.into() }).await)
}

async fn delete_store(State(app): State<App>, Path(name): Path<String>) -> Changed {
    let name = StoreName::new(&name)?;
    let call = Call::one(Operation::Delete, Kind::Store, &name);
    Ok(call.run(&app, Command::DeleteStore { name }).await)
}

fn show_file(file: &ExternalFile, content: bool) -> Value {
    match content {
        true => json!({ "path": file.path.as_str(), "content": BASE64.encode(&file.content) }),
        false => json!({ "path": file.path.as_str() }),
    }
}

async fn files(State(app): State<App>, asked: Asked) -> Found {
    let state = app.state();
    let content = asked.flag("content");
    Found(asked.page(state.model.files().map(|file| show_file(file, content)).collect()))
}

async fn file(State(app): State<App>, Path(path): Path<String>) -> Read {
    let state = app.state();
    let path = FilePath::new(&path)?;
    match state.model.file(&path) {
        Some(file) => Ok(Found(show_file(file, true))),
        None => Err(unknown(Code::UnknownFile, &Key::File(path)).into()),
    }
}

#[derive(Deserialize, JsonSchema)]
struct NewFile {
    content: Option<String>,
    alt_suffixes: Option<Vec<String>>,
}

async fn put_file(
    State(app): State<App>,
    Path(path): Path<String>,
    Body(body): Body<NewFile>,
) -> Changed {
    let path = FilePath::new(&path)?;
    let suffixes = body.alt_suffixes.is_some_and(|list| !list.is_empty());
    crate::ask::unsupported(&[("alt_suffixes", suffixes, "a file has one path here")])?;
    // Left out is not empty: a file that is there would be emptied by a mistake.
    let content = body.content.ok_or_else(|| {
        Refusal::new(Code::InvalidRequest, format!("{path} is given no content"))
            .cause("the field `content` is missing")
            .correction("give it in base64; an empty text for an empty file")
    })?;
    let content = BASE64.decode(&content).map_err(|error| {
        Refusal::new(Code::InvalidRequest, format!("the content of {path} can not be read"))
            .cause(format!("it is not base64: {error}"))
            .correction("encode it")
    })?;
    let call = Call::one(Operation::Modify, Kind::File, &path);
    Ok(call.run(&app, Command::PutFile { path, content }).await)
}

async fn delete_file(State(app): State<App>, Path(path): Path<String>) -> Changed {
    let path = FilePath::new(&path)?;
    let call = Call::one(Operation::Delete, Kind::File, &path);
    Ok(call.run(&app, Command::DeleteFile { path }).await)
}

async fn deploy_file(
    State(app): State<App>,
    Path((name, path)): Path<(String, String)>,
) -> Changed {
    deploy(&app, &name, &path, true).await
}

async fn withdraw_file(
    State(app): State<App>,
    Path((name, path)): Path<(String, String)>,
) -> Changed {
    deploy(&app, &name, &path, false).await
}

async fn deploy(app: &App, name: &str, path: &str, deploy: bool) -> Changed {
    let (name, path) = (ResourceName::new(name)?, FilePath::new(path)?);
    let said = match deploy {
        true => format!("external file {path} is put where {name} is"),
        false => format!("external file {path} is not put where {name} is any more"),
    };
    let call = Call::new(Operation::Modify, Kind::File, said).about("RscDfn", &name);
    Ok(call.run(app, Command::DeployFile { path, name, deploy }).await)
}
