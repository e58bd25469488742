//! What is in a backup, as commands take it and as clients are told.

use std::collections::BTreeMap;

use cluster::layer::Layer;
use cluster::name::PoolName;
use cluster::refusal::{Code, Refusal};
use cluster::shipping::{Found, FoundVolume};
use serde_json::{Value, json};
use shipping::catalog::{Backup, Catalog};
use shipping::description::Description;
use vocab::{Bytes, NodeId, VolumeNr};

use crate::answer::without_empty;

fn description(backup: &Backup) -> Result<&Description, Refusal> {
    backup.description.as_ref().map_err(|_| strange(backup, "it has no description"))
}

fn strange(backup: &Backup, cause: impl Into<String>) -> Refusal {
    Refusal::new(Code::InvalidBackup, format!("backup {} can not be used", backup.id))
        .cause(cause.into())
        .correction("restore another one; see `ashlar backup list`")
}

/// What is made of a backup.
pub fn of(catalog: &Catalog, backup: &Backup) -> Result<Found, Refusal> {
    let described = description(backup)?;
    let chain = catalog.chain(&backup.id.to_string());
    let chain = chain.ok_or_else(|| strange(backup, "what it builds on is not there"))?;
    let layer = |word: &String| {
        Layer::ALL.iter().copied().find(|layer| layer.to_string().eq_ignore_ascii_case(word))
    };
    let layers: Option<Vec<Layer>> = described.layer_data.layers.iter().map(layer).collect();
    let layers = layers.ok_or_else(|| strange(backup, "it has a layer that is not known"))?;
    let mut volumes = BTreeMap::new();
    for (number, volume) in &described.rsc_dfn.vlm_dfns {
        let Some(on_node) = described.rsc.vlms.get(number) else {
            return Err(strange(backup, format!("volume {number} has no data")));
        };
        let size = volume.size.checked_mul(1024);
        let found = FoundVolume {
            size: Bytes(
                size.ok_or_else(|| strange(backup, "a size is beyond what can be counted"))?,
            ),
            gross_size: volume.gross_size,
            props: volume.props.clone(),
            pool: PoolName::new(&on_node.stor_pool)?,
            device: Bytes(on_node.device_size),
        };
        volumes.insert(VolumeNr(*number), found);
    }
    let node_id = described
        .layer_data
        .node_id
        .map(|id| NodeId::new(id).ok_or_else(|| strange(backup, "its node id is none")));
    Ok(Found {
        chain,
        layers,
        node_id: node_id.transpose()?,
        peer_slots: described.layer_data.peer_slots.clamp(1, 31),
        props: described.rsc_dfn.props.clone(),
        volumes,
        passphrases: BTreeMap::new(),
    })
}

/// What clients are told of a backup; `free` says how many KiB a pool of the node has.
pub fn info(
    catalog: &Catalog,
    backup: &Backup,
    pools: &BTreeMap<PoolName, PoolName>,
    free: impl Fn(&PoolName) -> Option<u64>,
) -> Value {
    let id = backup.id.to_string();
    let chain = catalog.chain(&id).unwrap_or_default();
    let descriptions: Vec<&Description> =
        chain.iter().filter_map(|id| catalog.backups.get(id)?.description.as_ref().ok()).collect();
    let bytes = |number: Option<u16>| -> u64 {
        let objects = descriptions.iter().flat_map(|one| one.objects());
        let sizes = objects.filter(|(n, _)| number.is_none_or(|number| number == *n));
        sizes.map(|(_, object)| object.size).fold(0, u64::saturating_add)
    };
    let kib = |bytes: u64| bytes.div_ceil(1024);
    let mut by_pool: BTreeMap<&str, (&str, Vec<Value>, u64)> = BTreeMap::new();
    let (mut allocated, last) = (0u64, descriptions.last());
    for (number, volume) in last.iter().flat_map(|last| &last.rsc.vlms) {
        allocated = allocated.saturating_add(volume.allocated_size);
        let (_, vlms, sum) =
            by_pool.entry(&volume.stor_pool).or_insert((&volume.provider_kind, Vec::new(), 0));
        *sum = sum.saturating_add(volume.allocated_size);
        let usable = last.and_then(|last| last.rsc_dfn.vlm_dfns.get(number)).map(|v| v.size);
        vlms.push(json!({
            "name": backup.id.archive(*number), "layer_type": "STORAGE",
            "dl_size_kib": kib(bytes(Some(*number))), "alloc_size_kib": kib(volume.allocated_size),
            "usable_size_kib": usable,
        }));
    }
    let storpools: Vec<Value> = by_pool
        .into_iter()
        .map(|(name, (kind, vlms, sum))| {
            let target =
                PoolName::new(name).ok().map(|pool| pools.get(&pool).cloned().unwrap_or(pool));
            let left = target.as_ref().and_then(&free).map(|free| free.saturating_sub(kib(sum)));
            json!({
                "name": name, "provider_kind": kind,
                "target_name": target.as_ref().map(ToString::to_string),
                "remaining_space_kib": left, "vlms": vlms,
            })
        })
        .collect();
    without_empty(json!({
        "rsc": backup.id.resource, "snap": backup.id.snapshot_name(),
        "full": chain.first(), "latest": id, "count": chain.len(),
        "dl_size_kib": kib(bytes(None)), "alloc_size_kib": kib(allocated),
        "storpools": storpools,
    }))
}
