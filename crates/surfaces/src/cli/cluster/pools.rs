//! Storage pools.

use serde::Serialize;
use serde_json::json;
use vocab::Bytes;

use super::super::each::EachInTurn;
use super::super::error::Error;
use super::args::PoolCommand;
use super::http::{Change, part, query};
use super::table::{Cell, Row, Tone};
use super::view::Pool;
use super::{Session, nodes};

/// What the pool's driver is told where it is.
const PLACE: &str = "StorDriver/StorPoolName";

pub(super) fn run(session: &mut Session<'_>, command: &PoolCommand) -> Result<(), Error> {
    match command {
        PoolCommand::List { on } => {
            let path = format!("/v1/view/storage-pools{}", query("nodes", on));
            let pools: Vec<Pool> = session.get("storage pools", &path)?;
            let rows: Vec<PoolRow> =
                pools.iter().filter(|pool| is_storage(pool)).map(PoolRow::of).collect();
            session.list(&rows)
        }
        PoolCommand::Create { name, provider, source, on } => {
            let on = match on.is_empty() {
                true => {
                    let nodes = nodes::all(&session.http)?;
                    nodes.into_iter().map(|node| node.name).collect()
                }
                false => on.clone(),
            };
            if on.is_empty() {
                let why = "there is no node for it; create one with `ashlar node create`";
                let object = format!("storage pool {name}");
                return Err(Error::Object { object, why: why.to_owned() });
            }
            session.all(&on, |session, node| {
                let body = json!({
                    "storage_pool_name": name,
                    "provider_kind": provider.word(),
                    "props": { PLACE: source },
                });
                let path = format!("/v1/nodes/{}/storage-pools", part(node));
                let what = format!("storage pool {name} of node {node}: create");
                session.change(&what, &Change::Post(path, body), None).map(drop)
            })
        }
        PoolCommand::Delete { name, on } => session.all(on, |session, node| {
            let path = format!("/v1/nodes/{}/storage-pools/{}", part(node), part(name));
            let what = format!("storage pool {name} of node {node}: delete");
            session.change(&what, &Change::Delete(path), None).map(drop)
        }),
    }
}

/// True if it is not the pool that stands for having no disk.
pub(super) fn is_storage(pool: &Pool) -> bool {
    pool.provider_kind != "DISKLESS"
}

/// A pool in a list.
#[derive(Serialize)]
pub(super) struct PoolRow<'a> {
    pool: &'a str,
    node: &'a str,
    provider: &'a str,
    place: &'a str,
    free_kib: Option<i64>,
    total_kib: Option<i64>,
    snapshots: bool,
    problems: Vec<&'a str>,
}

impl<'a> PoolRow<'a> {
    pub(super) fn of(pool: &'a Pool) -> PoolRow<'a> {
        let places = pool.props.iter().filter(|(key, _)| key.starts_with("StorDriver/"));
        let place = pool.props.get(PLACE).or(places.map(|(_, value)| value).next());
        PoolRow {
            pool: &pool.storage_pool_name,
            node: &pool.node_name,
            provider: &pool.provider_kind,
            place: place.map_or("", String::as_str),
            free_kib: pool.free_capacity,
            total_kib: pool.total_capacity,
            snapshots: pool.supports_snapshots,
            problems: pool.reports.iter().map(|report| report.message.as_str()).collect(),
        }
    }
}

impl Row for PoolRow<'_> {
    const COLUMNS: &'static [&'static str] =
        &["POOL", "NODE", "PROVIDER", "PLACE", "FREE", "TOTAL", "SNAPSHOTS", "STATE"];
    fn cells(&self) -> Vec<Cell> {
        let size = |kib: Option<i64>| match kib.and_then(|kib| u64::try_from(kib).ok()) {
            Some(kib) => Bytes(kib.saturating_mul(1024)).to_string(),
            None => "not known".to_owned(),
        };
        let state = match self.problems.is_empty() {
            true => Cell::toned("ok", Tone::Good),
            false => Cell::toned(self.problems.join("; "), Tone::Bad),
        };
        let snapshots = if self.snapshots { "yes" } else { "no" };
        vec![
            self.pool.into(),
            self.node.into(),
            self.provider.into(),
            self.place.into(),
            size(self.free_kib).into(),
            size(self.total_kib).into(),
            snapshots.into(),
            state,
        ]
    }
}
