//! Storage pools and their definitions.

use axum::extract::State;
use axum::http::Method;
use cluster::change::Key;
use cluster::command::Command;
use cluster::name::{NodeName, PoolName, SharedSpaceName};
use cluster::objects::{Pool, PoolDefinition, Props, Provider};
use cluster::refusal::Code;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{Call, Changed, Entry, Found, Read, without_empty};
use crate::ask::{App, Asked, Body, Modify, Path, provider};
use crate::code::{Kind, Operation, Severity, code, number};
use crate::controller;
use crate::nodes::unknown;
use crate::routes::{PAGE, Routes};

pub fn routes() -> Routes {
    const DEFINITION: &str = "/v1/storage-pool-definitions/{pool}";
    const POOL: &str = "/v1/nodes/{node}/storage-pools/{pool}";
    Routes::new()
        .get("/v1/storage-pool-definitions", definitions)
        .asks(PAGE)
        .admin(Method::POST, "/v1/storage-pool-definitions", create_definition)
        .get(DEFINITION, definition)
        .admin(Method::PUT, DEFINITION, modify_definition)
        .admin(Method::DELETE, DEFINITION, delete_definition)
        .get("/v1/view/storage-pools", view)
        .asks(&["nodes", "storage_pools", "props", "limit", "offset"])
        .get("/v1/nodes/{node}/storage-pools", of_node)
        .asks(&["storage_pools", "limit", "offset"])
        .admin(Method::POST, "/v1/nodes/{node}/storage-pools", create)
        .get(POOL, one)
        .admin(Method::PUT, POOL, modify)
        .admin(Method::DELETE, POOL, delete)
        .get("/v1/space-report", space_report)
}

/// A pool as clients see it.
pub fn show(state: &controller::State, pool: &Pool) -> Value {
    let provider = pool.provider;
    let known = state.observed.pool(&pool.node, &pool.name);
    let kib = |bytes: vocab::Bytes| i64::try_from(bytes.0 / 1024).unwrap_or(i64::MAX);
    let diskless = provider == Provider::Diskless;
    let free = if diskless { Some(i64::MAX) } else { known.map(|known| kib(known.free)) };
    let total = if diskless { Some(i64::MAX) } else { known.map(|known| kib(known.total)) };
    let space = match &pool.shared_space {
        Some(space) => space.to_string(),
        None => format!("{};{}", pool.node, pool.name),
    };
    let mut reports = Vec::new();
    let report = |number, text: String, next: &str| {
        let code = code(Severity::Warning, Operation::Read, Kind::Pool, number);
        json!(Entry::new(code, text).because("", next))
    };
    if !diskless && !state.observed.is_connected(&pool.node) {
        let text = format!("node {} is not connected: the capacity may be old", pool.node);
        reports.push(report(number::AWAY, text, "look whether its agent runs"));
    }
    if let Some(error) = known.and_then(|known| known.error.as_ref()) {
        let text = format!("storage pool {} of node {}: {error}", pool.name, pool.node);
        reports.push(report(number::STORAGE_ERROR, text, "look at the storage of the node"));
    }
    if let Some(alarm) = known.and_then(|known| known.alarm(provider)) {
        let text = format!("storage pool {} of node {}: {alarm}", pool.name, pool.node);
        reports.push(report(number::STORAGE_ERROR, text, "see how its volumes and snapshots grow"));
    }
    let without = known.is_some_and(|known| known.no_snapshots.is_some());
    let snapshots = provider.has_snapshots() && !without;
    let mut traits = serde_json::Map::new();
    traits.insert("SupportsSnapshots".to_owned(), json!(snapshots.to_string()));
    if !diskless {
        let thin = if provider.is_thin() { "Thin" } else { "Fat" };
        traits.insert("Provisioning".to_owned(), json!(thin));
    }
    without_empty(json!({
        "storage_pool_name": pool.name.as_str(),
        "node_name": pool.node.as_str(),
        "provider_kind": provider.word(),
        "props": pool.props,
        "static_traits": traits,
        "free_capacity": free,
        "total_capacity": total,
        "free_space_mgr_name": space,
        "uuid": pool.uuid.to_string(),
        "reports": reports,
        "supports_snapshots": snapshots,
        "shared_space": pool.shared_space.as_ref().map(SharedSpaceName::as_str),
        "external_locking": pool.external_locking,
    }))
}

fn show_definition(definition: &PoolDefinition) -> Value {
    without_empty(json!({
        "storage_pool_name": definition.name.as_str(),
        "props": definition.props,
        "uuid": definition.uuid.to_string(),
    }))
}

async fn view(State(app): State<App>, asked: Asked) -> Found {
    let state = app.state();
    let pools = state.model.pools().filter(|pool| {
        asked.wants("nodes", pool.node.as_str())
            && asked.wants("storage_pools", pool.name.as_str())
            && asked.wants_props(&pool.props)
    });
    Found(asked.page(pools.map(|pool| show(&state, pool)).collect()))
}

/// Used and free space by pool, as text.
async fn space_report(State(app): State<App>) -> Found {
    let state = app.state();
    let line = |node: &str, pool: &str, kind: &str, used: &str, free: &str, total: &str| {
        format!("{node:<20} {pool:<20} {kind:<12} {used:>16} {free:>16} {total:>16}\n")
    };
    let mut text = line("node", "pool", "kind", "used KiB", "free KiB", "total KiB");
    for pool in state.model.pools().filter(|pool| pool.provider != Provider::Diskless) {
        let kib = |bytes: u64| (bytes / 1024).to_string();
        let (node, name, kind) = (pool.node.as_str(), pool.name.as_str(), pool.provider.word());
        text += &match state.observed.pool(&pool.node, &pool.name) {
            Some(known) => {
                let used = kib(known.total.0.saturating_sub(known.free.0));
                line(node, name, kind, &used, &kib(known.free.0), &kib(known.total.0))
            }
            // Nobody has reported it yet.
            None => line(node, name, kind, "-", "-", "-"),
        };
    }
    Found(json!({ "reportText": text }))
}

async fn of_node(State(app): State<App>, Path(node): Path<String>, asked: Asked) -> Read {
    let state = app.state();
    let node = NodeName::new(&node)?;
    if state.model.node(&node).is_none() {
        return Err(unknown(Code::UnknownNode, &Key::Node(node)).into());
    }
    let pools = state.model.pools_of(&node);
    let pools = pools.filter(|pool| asked.wants("storage_pools", pool.name.as_str()));
    Ok(Found(asked.page(pools.map(|pool| show(&state, pool)).collect())))
}

async fn one(State(app): State<App>, Path((node, name)): Path<(String, String)>) -> Read {
    let state = app.state();
    let (node, name) = (NodeName::new(&node)?, PoolName::new(&name)?);
    match state.model.pool(&node, &name) {
        Some(pool) => Ok(Found(show(&state, pool))),
        None => Err(unknown(Code::UnknownPool, &Key::Pool(node, name)).into()),
    }
}

#[derive(Deserialize, JsonSchema)]
struct NewPool {
    storage_pool_name: String,
    provider_kind: String,
    #[serde(default)]
    props: Props,
    shared_space: Option<String>,
    external_locking: Option<bool>,
}

async fn create(
    State(app): State<App>,
    Path(node): Path<String>,
    Body(body): Body<NewPool>,
) -> Changed {
    let (node, name) = (NodeName::new(&node)?, PoolName::new(&body.storage_pool_name)?);
    let provider = provider(&body.provider_kind)?;
    let space = body.shared_space.filter(|space| !space.is_empty());
    let shared_space = space.map(|space| SharedSpaceName::new(&space)).transpose()?;
    let external_locking = body.external_locking.unwrap_or(false);
    let said = format!("storage pool {name} of node {node} created");
    let call = Call::new(Operation::Create, Kind::Pool, said);
    let call = call.about("Node", &node).about("StorPool", &name).about("StorPoolDfn", &name);
    let command = Command::CreatePool {
        node: node.clone(),
        name: name.clone(),
        provider,
        props: body.props,
        shared_space,
        external_locking,
    };
    let mut answer = call.run(&app, command).await;
    let state = app.state();
    if let Some(error) = state.observed.pool(&node, &name).and_then(|p| p.error.as_ref()) {
        // It is kept, as in LINSTOR; whoever looks at the status alone must not take it for usable.
        let code = code(Severity::Error, Operation::Create, Kind::Pool, number::POOL_CONFIG);
        let text = format!("storage pool {name} of node {node} can not be used yet");
        let next = "make what it names there, or delete the pool";
        answer.entries.push(Entry::new(code, text).because(error, next));
    }
    Ok(answer)
}

async fn modify(
    State(app): State<App>,
    Path((node, name)): Path<(String, String)>,
    Body(body): Body<Modify>,
) -> Changed {
    let (node, name) = (NodeName::new(&node)?, PoolName::new(&name)?);
    let said = format!("storage pool {name} of node {node} modified");
    let call = Call::new(Operation::Modify, Kind::Pool, said).about("Node", &node);
    let call = call.about("StorPool", &name);
    Ok(call.run(&app, Command::ModifyPool { node, name, props: body.into() }).await)
}

async fn delete(State(app): State<App>, Path((node, name)): Path<(String, String)>) -> Changed {
    let (node, name) = (NodeName::new(&node)?, PoolName::new(&name)?);
    let said = format!("storage pool {name} of node {node} deleted");
    let call = Call::new(Operation::Delete, Kind::Pool, said).about("Node", &node);
    Ok(call.about("StorPool", &name).run(&app, Command::DeletePool { node, name }).await)
}

async fn definitions(State(app): State<App>, asked: Asked) -> Found {
    let state = app.state();
    Found(asked.page(state.model.pool_definitions().map(show_definition).collect()))
}

async fn definition(State(app): State<App>, Path(name): Path<String>) -> Read {
    let state = app.state();
    let name = PoolName::new(&name)?;
    match state.model.pool_definition(&name) {
        Some(definition) => Ok(Found(show_definition(definition))),
        None => Err(unknown(Code::UnknownPoolDefinition, &Key::PoolDefinition(name)).into()),
    }
}

#[derive(Deserialize, JsonSchema)]
struct NewDefinition {
    storage_pool_name: String,
    #[serde(default)]
    props: Props,
}

async fn create_definition(State(app): State<App>, Body(body): Body<NewDefinition>) -> Changed {
    let name = PoolName::new(&body.storage_pool_name)?;
    let call = Call::one(Operation::Create, Kind::PoolDefinition, &name);
    Ok(call.run(&app, Command::CreatePoolDefinition { name, props: body.props }).await)
}

async fn modify_definition(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<Modify>,
) -> Changed {
    let name = PoolName::new(&name)?;
    let call = Call::one(Operation::Modify, Kind::PoolDefinition, &name);
    Ok(call.run(&app, Command::ModifyPoolDefinition { name, props: body.into() }).await)
}

async fn delete_definition(State(app): State<App>, Path(name): Path<String>) -> Changed {
    let name = PoolName::new(&name)?;
    let call = Call::one(Operation::Delete, Kind::PoolDefinition, &name);
    Ok(call.run(&app, Command::DeletePoolDefinition { name }).await)
}
