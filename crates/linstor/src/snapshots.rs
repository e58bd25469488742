//! Snapshots, and what is restored from them.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::Method;
use cluster::change::Key;
use cluster::command::Command;
use cluster::model::Model;
use cluster::name::{NodeName, PoolName, ResourceName, SnapshotName};
use cluster::objects::{Definition, Props, RollbackPhase, SnapshotDefinition};
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{Answer, Call, Found, Read, without_empty};
use crate::ask::{App, Asked, Body, Modify, Path, names, unsupported};
use crate::code::{Kind, Operation, number};
use crate::definitions::find;
use crate::nodes::unknown;
use crate::routes::{PAGE, Routes};

pub fn routes() -> Routes {
    const D: &str = "/v1/resource-definitions/{resource}";
    let snapshot = format!("{D}/snapshots/{{snapshot}}");
    let volumes = format!("{D}/snapshot-restore-volume-definition/{{snapshot}}");
    let resources = format!("{D}/snapshot-restore-resource/{{snapshot}}");
    Routes::new()
        .get("/v1/view/snapshots", view)
        .asks(&["nodes", "resources", "limit", "offset"])
        .user(Method::POST, "/v1/actions/snapshot/multi", create_several)
        .get(&format!("{D}/snapshots"), list)
        .asks(PAGE)
        .user(Method::POST, &format!("{D}/snapshots"), create)
        .get(&snapshot, one)
        .user(Method::PUT, &snapshot, modify)
        .user(Method::DELETE, &snapshot, delete)
        .asks(&["nodes"])
        .user(Method::POST, &volumes, restore_volumes)
        .user(Method::POST, &resources, restore_resources)
        .user(Method::POST, &format!("{D}/snapshot-rollback/{{snapshot}}"), rollback)
        // What it answers is whether the nodes went back.
        .at_once()
}

fn show(model: &Model, snapshot: &SnapshotDefinition) -> Value {
    let nodes: Vec<&str> = snapshot.nodes.keys().map(NodeName::as_str).collect();
    let mut flags: Vec<&str> = snapshot.flags.iter().map(|flag| flag.word()).collect();
    let rollback = model.definition(&snapshot.resource).and_then(Definition::rolling_back);
    if rollback.is_some_and(|rollback| rollback.kept() == Some(&snapshot.name)) {
        flags.push("SAFETY_SNAPSHOT");
    }
    let volumes: Vec<Value> = snapshot
        .sizes
        .iter()
        .map(|(number, size)| json!({ "volume_number": number.0, "size_kib": size.0 / 1024 }))
        .collect();
    let on_nodes = snapshot.nodes.iter().map(|(node, on_node)| {
        let volumes = on_node.pools.iter().map(|(number, pool)| {
            let props = json!({ "StorPoolName": pool.as_str() });
            let uuid = on_node.uuid.to_string();
            json!({ "vlm_nr": number.0, "uuid": uuid, "volume_props": props })
        });
        let flags: &[&str] = if on_node.deleting { &["DELETE"] } else { &[] };
        json!({
            "snapshot_name": snapshot.name.as_str(),
            "node_name": node.as_str(),
            "create_timestamp": on_node.created.0,
            "flags": flags,
            "uuid": on_node.uuid.to_string(),
            "resource_props": on_node.pools.values().next().map(|pool| json!({ "StorPoolName": pool.as_str() })),
            "snapshot_volumes": volumes.collect::<Vec<_>>(),
        })
    });
    without_empty(json!({
        "name": snapshot.name.as_str(),
        "resource_name": snapshot.resource.as_str(),
        "nodes": nodes,
        "props": crate::backups::props(snapshot),
        "snapshot_definition_props": crate::backups::props(snapshot),
        "resource_definition_props": snapshot.frozen_props,
        "flags": flags,
        "volume_definitions": volumes,
        "uuid": snapshot.uuid.to_string(),
        "snapshots": on_nodes.collect::<Vec<_>>(),
    }))
}

async fn view(State(app): State<App>, asked: Asked) -> Found {
    let state = app.state();
    let snapshots = state.model.snapshots().filter(|snapshot| {
        asked.wants("resources", snapshot.resource.as_str())
            && (asked.all("nodes").is_empty()
                || snapshot.nodes.keys().any(|node| asked.wants("nodes", node.as_str())))
    });
    Found(asked.page(snapshots.map(|snapshot| show(&state.model, snapshot)).collect()))
}

async fn list(State(app): State<App>, Path(name): Path<String>, asked: Asked) -> Read {
    let state = app.state();
    let definition = find(&state, &name)?;
    let snapshots = state.model.snapshots_of(&definition.name);
    Ok(Found(asked.page(snapshots.map(|snapshot| show(&state.model, snapshot)).collect())))
}

async fn one(State(app): State<App>, Path((name, snapshot)): Path<(String, String)>) -> Read {
    let state = app.state();
    let name = find(&state, &name)?.name.clone();
    let snapshot = SnapshotName::new(&snapshot)?;
    match state.model.snapshot(&name, &snapshot) {
        Some(snapshot) => Ok(Found(show(&state.model, snapshot))),
        None => Err(unknown(Code::UnknownSnapshot, &Key::Snapshot(name, snapshot)).into()),
    }
}

#[derive(Deserialize, JsonSchema)]
struct NewSnapshot {
    name: String,
    resource_name: Option<String>,
    nodes: Option<Vec<String>>,
    props: Option<Props>,
}

type Named = (ResourceName, SnapshotName, Vec<NodeName>);

impl NewSnapshot {
    fn named(self, resource: &str) -> Result<(Named, Props), Refusal> {
        let nodes = names(self.nodes, NodeName::new)?.unwrap_or_default();
        let named = (ResourceName::new(resource)?, SnapshotName::new(&self.name)?, nodes);
        Ok((named, self.props.unwrap_or_default()))
    }
}

async fn create(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<NewSnapshot>,
) -> Result<Answer, Answer> {
    let (named, props) = body.named(&name)?;
    Ok(take(&app, vec![named], props).await)
}

#[derive(Deserialize, JsonSchema)]
struct Several {
    snapshots: Vec<NewSnapshot>,
}

async fn create_several(
    State(app): State<App>,
    Body(body): Body<Several>,
) -> Result<Answer, Answer> {
    let mut all = Vec::new();
    let mut common: Option<Props> = None;
    for snapshot in body.snapshots {
        let resource = snapshot.resource_name.clone().unwrap_or_default();
        let (named, props) = snapshot.named(&resource)?;
        if common.as_ref().is_some_and(|common| *common != props) {
            let text = "snapshots that are made together have the same properties";
            return Err(Refusal::new(Code::InvalidRequest, text)
                .cause("they are one command")
                .correction("set them afterwards")
                .into());
        }
        common = Some(props);
        all.push(named);
    }
    if all.is_empty() {
        let refusal = Refusal::new(Code::InvalidRequest, "no snapshot is named");
        return Err(refusal.cause("the list is empty").correction("name one").into());
    }
    Ok(take(&app, all, common.unwrap_or_default()).await)
}

/// Makes snapshots, and says whether they are good once that is known.
async fn take(app: &App, snapshots: Vec<Named>, props: Props) -> Answer {
    let names: Vec<String> =
        snapshots.iter().map(|(rd, snap, _)| format!("{snap} of {rd}")).collect();
    let said = format!("snapshot {} created", names.join(", "));
    let mut call = Call::new(Operation::Create, Kind::Snapshot, said);
    if let Some((name, snapshot, _)) = snapshots.first() {
        call = call.about("RscDfn", name).about("Snapshot", snapshot);
    }
    let made: Vec<_> = snapshots.iter().map(|(rd, snap, _)| (rd.clone(), snap.clone())).collect();
    let mut answer = call.run(app, Command::CreateSnapshots { snapshots, props }).await;
    if answer.status() != answer.success || answer.is_foretold() {
        return answer;
    }
    let state = app.state();
    for (name, snapshot) in made {
        let found = state.model.snapshot(&name, &snapshot);
        if !found.is_some_and(|found| found.is_successful() || found.is_pending()) {
            let key = Key::Snapshot(name, snapshot);
            let text = format!("{key} failed");
            let cause = "a node went away, or resumed I/O, before all of it was made";
            let next = "look at the nodes, delete it, and try again";
            let refused = Answer::refused(Kind::Snapshot, number::UNSUPPORTED, &text, cause, next);
            answer.entries = refused.entries;
        }
    }
    answer
}

async fn modify(
    State(app): State<App>,
    Path((name, snapshot)): Path<(String, String)>,
    Body(body): Body<Modify>,
) -> Result<Answer, Answer> {
    let (name, snapshot) = (ResourceName::new(&name)?, SnapshotName::new(&snapshot)?);
    let said = format!("snapshot {snapshot} of {name} modified");
    let call = Call::new(Operation::Modify, Kind::Snapshot, said).about("RscDfn", &name);
    let call = call.about("Snapshot", &snapshot);
    Ok(call.run(&app, Command::ModifySnapshot { name, snapshot, props: body.into() }).await)
}

async fn delete(
    State(app): State<App>,
    Path((name, snapshot)): Path<(String, String)>,
    asked: Asked,
) -> Result<Answer, Answer> {
    let (name, snapshot) = (ResourceName::new(&name)?, SnapshotName::new(&snapshot)?);
    let nodes: Result<Vec<NodeName>, Refusal> =
        asked.all("nodes").into_iter().map(NodeName::new).collect();
    let said = format!("snapshot {snapshot} of {name} is deleted");
    let call = Call::new(Operation::Delete, Kind::Snapshot, said).about("RscDfn", &name);
    let call = call.about("Snapshot", &snapshot);
    Ok(call.run(&app, Command::DeleteSnapshot { name, snapshot, nodes: nodes? }).await)
}

#[derive(Deserialize, JsonSchema)]
struct Restore {
    to_resource: String,
    nodes: Option<Vec<String>>,
    stor_pool_rename: Option<BTreeMap<String, String>>,
}

impl Restore {
    /// The resource definition, its snapshot, and where to.
    fn names(
        &self,
        name: &str,
        snapshot: &str,
    ) -> Result<(ResourceName, SnapshotName, ResourceName), Refusal> {
        let to = ResourceName::new(&self.to_resource)?;
        Ok((ResourceName::new(name)?, SnapshotName::new(snapshot)?, to))
    }
}

async fn restore_volumes(
    State(app): State<App>,
    Path((name, snapshot)): Path<(String, String)>,
    Body(body): Body<Restore>,
) -> Result<Answer, Answer> {
    let (name, snapshot, to) = body.names(&name, &snapshot)?;
    let said = format!("volume definitions of {to} restored from snapshot {snapshot} of {name}");
    let call = Call::new(Operation::Create, Kind::Snapshot, said).ok().about("RscDfn", &to);
    Ok(call.run(&app, Command::RestoreVolumeDefinitions { name, snapshot, to }).await)
}

async fn restore_resources(
    State(app): State<App>,
    Path((name, snapshot)): Path<(String, String)>,
    Body(body): Body<Restore>,
) -> Result<Answer, Answer> {
    let (name, snapshot, to) = body.names(&name, &snapshot)?;
    let nodes = names(body.nodes, NodeName::new)?.unwrap_or_default();
    let renamed = body.stor_pool_rename.unwrap_or_default();
    let pools: Result<BTreeMap<PoolName, PoolName>, Refusal> =
        renamed.iter().map(|(from, to)| Ok((PoolName::new(from)?, PoolName::new(to)?))).collect();
    let said = format!("{to} restored from snapshot {snapshot} of {name}");
    let call = Call::new(Operation::Create, Kind::Snapshot, said).ok().about("RscDfn", &to);
    let command = Command::RestoreResources { name, snapshot, to, nodes, pools: pools? };
    Ok(call.run(&app, command).await)
}

#[derive(Deserialize, JsonSchema)]
struct RollBack {
    zfs_rollback_strategy: Option<String>,
}

/// Rolls back, and says whether that was done once it is known.
async fn rollback(
    State(app): State<App>,
    Path((name, snapshot)): Path<(String, String)>,
    Body(body): Body<RollBack>,
) -> Result<Answer, Answer> {
    let strategy = body.zfs_rollback_strategy.is_some_and(|strategy| !strategy.is_empty());
    unsupported(&[("zfs_rollback_strategy", strategy, "newer snapshots always stay")])?;
    let (name, snapshot) = (ResourceName::new(&name)?, SnapshotName::new(&snapshot)?);
    let said = format!("{name} is rolled back to snapshot {snapshot}");
    let call = Call::new(Operation::Modify, Kind::Snapshot, said).about("RscDfn", &name);
    let call = call.about("Snapshot", &snapshot);
    let command = Command::RollBack { name: name.clone(), snapshot: snapshot.clone() };
    let mut answer = call.run(&app, command).await;
    let state = app.state();
    let last = state.model.definition(&name).and_then(|found| found.rollback.as_ref());
    if let Some(RollbackPhase::GivenUp(why)) = last.map(|last| &last.phase) {
        if answer.status() == answer.success {
            let text = format!("the rollback of {name} to snapshot {snapshot} was given up");
            let next = "the data are what they were; see to the cause, and try again";
            let refused = Answer::refused(Kind::Snapshot, number::UNSUPPORTED, &text, why, next);
            answer.entries = refused.entries;
        }
    }
    Ok(answer)
}
