//! Physical storage: disks of nodes that nobody uses, and pools that are made of them. Both are asked of
//! agents, now: nothing of it is kept.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::http::{Method, StatusCode};
use cluster::command::Command;
use cluster::disks::{DevicePool, Disk};
use cluster::name::{NodeName, PoolName, SharedSpaceName};
use cluster::objects::{Pool, Props};
use cluster::question::{Question, Reply};
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access;
use crate::agents::{Trouble, ask, known};
use crate::answer::{Answer, Call, Changed, Entry, Found, Read, without_empty};
use crate::ask::{App, Asked, Body, Path, provider, unsupported};
use crate::code::{Kind, Operation, Severity, code};
use crate::routes::{PAGE, Routes};

/// How long an agent may look for disks.
const LOOK: Duration = Duration::from_secs(30);
/// How long it may take to make a pool: its commands have deadlines, but there may be many. LINSTOR's
/// clients wait for five minutes.
const MAKE: Duration = Duration::from_secs(270);
/// Where a pool's driver is told that it is.
const PLACE: &str = "StorDriver/StorPoolName";

pub fn routes() -> Routes {
    const N: &str = "/v1/physical-storage/{node}";
    Routes::new()
        .get("/v1/physical-storage", list)
        .asks(PAGE)
        .get(N, of_node)
        // What a disk would come to only its node can tell, by doing it.
        .admin(Method::POST, N, create)
        .at_once()
}

async fn disks(app: &App, node: &NodeName) -> Result<Vec<Disk>, Answer> {
    let failed = |trouble: Trouble| {
        let kind = Kind::PhysicalStorage;
        Answer::from(trouble.entry(Severity::Error, Operation::Read, kind, node))
    };
    match ask(app, node, Question::Disks {}, LOOK).await.map_err(failed)? {
        Reply::Disks { disks } => Ok(disks),
        other => Err(failed(Trouble::unfit(node, &other))),
    }
}

fn shown(disk: &Disk) -> Value {
    json!({ "device": disk.device, "model": disk.model, "serial": disk.serial, "wwn": disk.wwn })
}

/// A size in bytes, as a number of JSON's that every client can read.
fn bytes(disk: &Disk) -> i64 {
    i64::try_from(disk.size.0).unwrap_or(i64::MAX)
}

/// Disks of one size and kind together, of all nodes that are connected. A node that is and does not tell
/// is an error: a list without it would say that it has none.
async fn list(State(app): State<App>, asked: Asked) -> Read {
    let nodes: Vec<NodeName> = {
        let state = app.state();
        let holding = state.model.nodes().filter(|node| node.kind.holds_resources());
        let names = holding.map(|node| node.name.clone());
        names.filter(|node| state.observed.is_connected(node)).collect()
    };
    let asking: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            let app = app.clone();
            tokio::spawn(async move {
                let disks = disks(&app, &node).await;
                (node, disks)
            })
        })
        .collect();
    let mut groups: BTreeMap<(i64, bool), BTreeMap<String, Vec<Value>>> = BTreeMap::new();
    for asked in asking {
        // A task that ends otherwise has panicked, or the process is going down.
        let Ok((node, disks)) = asked.await else { continue };
        for disk in disks? {
            let group = groups.entry((bytes(&disk), disk.rotational)).or_default();
            group.entry(node.to_string()).or_default().push(shown(&disk));
        }
    }
    let groups = groups.into_iter().map(|((size, rotational), nodes)| {
        without_empty(json!({ "size": size, "rotational": rotational, "nodes": nodes }))
    });
    Ok(Found(asked.page(groups.collect())))
}

async fn of_node(State(app): State<App>, Path(node): Path<String>) -> Read {
    let node = known(&app, &node)?;
    let disks = disks(&app, &node).await?;
    let shown = disks.iter().map(|disk| {
        let mut shown = shown(disk);
        shown["size"] = json!(bytes(disk));
        shown["rotational"] = json!(disk.rotational);
        without_empty(shown)
    });
    Ok(Found(shown.collect()))
}

#[derive(Deserialize, JsonSchema)]
struct NewDevicePool {
    provider_kind: String,
    device_paths: Vec<String>,
    pool_name: Option<String>,
    raid_level: Option<String>,
    vdo_enable: Option<bool>,
    vdo_slab_size_kib: Option<i64>,
    vdo_logical_size_kib: Option<i64>,
    with_storage_pool: Option<NewPool>,
    sed: Option<bool>,
    pv_create_arguments: Option<Vec<String>>,
    vg_create_arguments: Option<Vec<String>>,
    lv_create_arguments: Option<Vec<String>>,
    zpool_create_arguments: Option<Vec<String>>,
}

/// The storage pool that it becomes.
#[derive(Deserialize, JsonSchema)]
struct NewPool {
    name: String,
    #[serde(default)]
    props: Option<Props>,
    shared_space: Option<String>,
    external_locking: Option<bool>,
}

impl NewDevicePool {
    /// Refuses what nothing acts on.
    fn check(&self) -> Result<(), Refusal> {
        let size = |size: Option<i64>| size.is_some_and(|size| size != 0);
        let given = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
        let raid = self.raid_level.as_ref();
        let raid =
            raid.is_some_and(|level| !level.is_empty() && !level.eq_ignore_ascii_case("JBOD"));
        let (vdo, own) = (
            "there is no VDO here",
            "what LVM and ZFS are told is fixed; make the pool on the node for anything else",
        );
        unsupported(&[
            (
                "raid_level",
                raid,
                "disks are put one behind the other (JBOD); replicas are elsewhere",
            ),
            ("vdo_enable", self.vdo_enable == Some(true), vdo),
            ("vdo_slab_size_kib", size(self.vdo_slab_size_kib), vdo),
            ("vdo_logical_size_kib", size(self.vdo_logical_size_kib), vdo),
            ("sed", self.sed == Some(true), "disks do not encrypt here; volumes can (LUKS)"),
            ("pv_create_arguments", given(&self.pv_create_arguments), own),
            ("vg_create_arguments", given(&self.vg_create_arguments), own),
            ("lv_create_arguments", given(&self.lv_create_arguments), own),
            ("zpool_create_arguments", given(&self.zpool_create_arguments), own),
        ])
    }
}

/// The command that makes a storage pool of a device pool.
fn register(node: &NodeName, pool: &DevicePool, new: NewPool) -> Result<Command, Refusal> {
    let mut props = new.props.unwrap_or_default();
    if let Some(key) = props.keys().find(|key| key.starts_with("StorDriver/")) {
        return Err(Refusal::new(Code::InvalidProperty, format!("{key} can not be given here"))
            .cause("where the storage pool is follows from what is made")
            .correction("leave it out"));
    }
    props.insert(PLACE.to_owned(), pool.place());
    let space = new.shared_space.filter(|space| !space.is_empty());
    Ok(Command::CreatePool {
        node: node.clone(),
        name: PoolName::new(&new.name)?,
        provider: pool.provider,
        props,
        shared_space: space.map(|space| SharedSpaceName::new(&space)).transpose()?,
        external_locking: new.external_locking.unwrap_or(false),
    })
}

async fn create(
    State(app): State<App>,
    Path(node): Path<String>,
    Body(body): Body<NewDevicePool>,
) -> Changed {
    let node = known(&app, &node)?;
    body.check()?;
    let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    let name = given(&body.pool_name)
        .or_else(|| body.with_storage_pool.as_ref().map(|pool| pool.name.clone()))
        .ok_or_else(|| {
            Refusal::new(Code::InvalidRequest, "the pool that is to be made has no name")
                .cause("neither `pool_name` nor a storage pool is named")
                .correction("give one of them")
        })?;
    let pool = DevicePool::new(provider(&body.provider_kind)?, &name, body.device_paths)?;
    let command = body.with_storage_pool.map(|new| register(&node, &pool, new)).transpose()?;
    if let Some(command) = &command {
        // What is refused anyway is refused before anything is done to a disk.
        let call = Call::new(Operation::Create, Kind::Pool, "");
        let foretold = app.foretell(vec![command.clone()]).await;
        foretold.map_err(|failure| Answer::from(call.failed(&failure)))?;
    }
    // It goes on when the client goes away: nobody would register what was made.
    let making =
        access::within(access::call(), async move { make(&app, &node, pool, command).await });
    let entries = tokio::spawn(making).await.unwrap_or_default();
    if entries.is_empty() {
        return Err(crate::controller::Failure::Stopping.into());
    }
    Ok(Answer { success: StatusCode::CREATED, entries })
}

/// Has a pool made and registered, or neither.
async fn make(
    app: &App,
    node: &NodeName,
    pool: DevicePool,
    command: Option<Command>,
) -> Vec<Entry> {
    let failed = |trouble: Trouble| {
        trouble.entry(Severity::Error, Operation::Create, Kind::PhysicalStorage, node)
    };
    if let Err(trouble) = ask(app, node, Question::MakePool(pool.clone()), MAKE).await {
        return vec![failed(trouble)];
    }
    let made = Call::new(
        Operation::Create,
        Kind::PhysicalStorage,
        format!("{pool} on node {node} created"),
    );
    let mut entries = vec![made.about("Node", node).succeeded()];
    let Some(command) = command else { return entries };
    let Command::CreatePool { name, .. } = &command else { return entries };
    let name = name.clone();
    let said = format!("storage pool {name} of node {node} created");
    let call = Call::new(Operation::Create, Kind::Pool, said);
    let call = call.about("Node", node).about("StorPool", &name).about("StorPoolDfn", &name);
    let registered = call.run(app, command).await;
    // One of that name may be another's, who was faster.
    let is_ours = |known: &Pool| known.props.get(PLACE) == Some(&pool.place());
    let is_there = app.state().model.pool(node, &name).is_some_and(is_ours);
    entries.extend(registered.entries);
    if is_there {
        return entries;
    }
    // What was said to be created is not there any more, if all goes well.
    entries.remove(0);
    match ask(app, node, Question::UnmakePool(pool.clone()), MAKE).await {
        Ok(_) => {
            let code = code(Severity::Info, Operation::Create, Kind::PhysicalStorage, 10_007);
            let text = format!("{pool} on node {node} was made, and removed again");
            entries.push(Entry::new(code, text).about("Node", node));
        }
        Err(trouble) => entries.push(failed(trouble)),
    }
    entries
}
