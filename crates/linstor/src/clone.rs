//! Clones of resource definitions: the one answer that is an object, with its entries inside.

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use cluster::command::{Command, NewDefinition};
use cluster::name::{GroupName, ResourceName};
use cluster::objects::DefinitionFlag;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::answer::{Call, Changed, Found, Read};
use crate::ask::{App, Body, Modify, Path, layers, unsupported};
use crate::code::{Kind, Operation};
use crate::definitions::find;
use crate::routes::{Routes, Says};

pub fn routes() -> Routes {
    const CLONE: &str = "/v1/resource-definitions/{resource}/clone";
    Routes::new()
        .user(Method::POST, CLONE, clone)
        .says(Says::Json)
        .get(&format!("{CLONE}/{{clone}}"), status)
}

#[derive(Deserialize, JsonSchema)]
struct Clone {
    name: Option<String>,
    external_name: Option<String>,
    use_zfs_clone: Option<bool>,
    layer_list: Option<Vec<String>>,
    volume_passphrases: Option<Vec<String>>,
    resource_group: Option<String>,
    #[serde(flatten)]
    props: Modify,
}

/// Begins a clone. It is answered when the data are safe in a snapshot, or it was refused: both times
/// with an object, in which clients look for what was said.
async fn clone(
    State(app): State<App>,
    Path(source): Path<String>,
    Body(body): Body<Clone>,
) -> Response {
    let asked = body.name.clone().unwrap_or_default();
    let answer = begin(&app, &source, body).await.unwrap_or_else(|refused| refused);
    // A name may have been derived from an external one.
    let made = answer.entries.first().filter(|_| answer.status() == StatusCode::CREATED);
    let clone = made.and_then(|first| first.obj_refs.get("RscDfn").cloned()).unwrap_or(asked);
    answer.inside(json!({
        "location": format!("/v1/resource-definitions/{source}/clone/{clone}"),
        "source_name": source,
        "clone_name": clone,
    }))
}

async fn begin(app: &App, source: &str, body: Clone) -> Changed {
    let passphrases = body.volume_passphrases.is_some_and(|list| !list.is_empty());
    unsupported(&[
        ("use_zfs_clone", body.use_zfs_clone == Some(true), "clones depend on nothing"),
        ("volume_passphrases", passphrases, "a clone is opened by the passphrases of its source"),
    ])?;
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let name = ResourceName::new(source)?;
    let external_name = given(body.external_name);
    let new = given(body.name).filter(|_| external_name.is_none());
    let group = given(body.resource_group).map(|group| GroupName::new(&group)).transpose()?;
    let to = NewDefinition {
        name: new.map(|new| ResourceName::new(&new)).transpose()?,
        external_name,
        group,
        layers: layers(body.layer_list)?,
        ..NewDefinition::default()
    };
    let call = Call::new(Operation::Create, Kind::Definition, format!("{name} is being cloned"));
    let command = Command::CloneDefinition { name, to, props: body.props.into() };
    Ok(call.run(app, command).await)
}

/// How far a clone is; where it came from does not matter.
async fn status(State(app): State<App>, Path((_, clone)): Path<(String, String)>) -> Read {
    let state = app.state();
    let definition = find(&state, &clone)?;
    let status = if definition.flags.contains(&DefinitionFlag::Failed) {
        "FAILED"
    } else if definition.flags.contains(&DefinitionFlag::Cloning) {
        "CLONING"
    } else {
        "COMPLETE"
    };
    Ok(Found(json!({ "status": status })))
}
