//! Giving a resource a disk, and taking it away (control plane §4.8).
//!
//! ```text
//! DISKLESS ──to diskful──► DISKLESS DISK_ADD_REQUESTED ──disk is there──► (none)
//! (none) ──to diskless──► DISK_REMOVE_REQUESTED ──disk is gone──► DISKLESS
//! ```
//! The opposite call turns round what is not finished. With `MigrateFrom` another replica is deleted
//! when this one is UpToDate.

use vocab::VolumeNr;

use crate::change::Key;
use crate::edit::Edit;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::redundancy::{MIGRATE_FROM, replaces};
use crate::refusal::{Code, NoteCode, Refusal};

use super::resources::{self, DISKFUL_BY};
use super::{activity, nodes};

pub fn to_diskful(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    pool: Option<PoolName>,
    from: Option<&NodeName>,
    by: &str,
) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    let definition = edit.definition(name)?.clone();
    let resource = edit.resource(name, node)?.clone();
    needs_drbd(&definition, &key)?;
    stays(&resource, &key)?;
    activity::needed(&resource, &format!("the disk of {key} can not be toggled"))?;
    if let Some(from) = from {
        may_migrate(edit, name, node, from)?;
    }
    if resource.is_replica() {
        edit.note(NoteCode::HasDisk, key.clone(), format!("{key} has a disk already"));
        // One that is there replaces no other: the call may be one that has been carried out before.
        if resource.flags.contains(&ResourceFlag::DiskAddRequested) {
            set_origin(edit, name, node, from, None);
        }
        return Ok(());
    }
    nodes::accepting(edit, node)?;
    if resource.flags.contains(&ResourceFlag::DiskRemoveRequested) {
        // If a step has taken the disk by now, a new one is made.
        edit.modify_resource(name, node, |resource| {
            use ResourceFlag::*;
            let leaving = [DiskRemoveRequested, DiskRemoving, TieBreaker];
            resource.flags.retain(|flag| !leaving.contains(flag));
        });
        set_origin(edit, name, node, from, Some(by));
        return Ok(());
    }
    resources::supports(edit, node, &definition.layers, &key)?;
    let pools = resources::choose_pools(edit, &definition, node, pool.as_ref(), &resource.props)?;
    edit.modify_resource(name, node, |resource| {
        use ResourceFlag::*;
        resource.flags.retain(|flag| !matches!(flag, TieBreaker | Client));
        resource.flags.insert(DiskAddRequested);
        if let Some(pool) = &pool {
            resource.props.insert(resources::POOL.to_owned(), pool.to_string());
        }
        for (number, pool) in pools {
            if let Some(volume) = resource.volumes.get_mut(&number) {
                volume.pool = pool;
            }
        }
    });
    set_origin(edit, name, node, from, Some(by));
    Ok(())
}

fn set_origin(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    from: Option<&NodeName>,
    by: Option<&str>,
) {
    edit.modify_resource(name, node, |resource| {
        if let Some(from) = from {
            resource.props.insert(MIGRATE_FROM.to_owned(), from.to_string());
        }
        if let Some(by) = by {
            resource.props.insert(DISKFUL_BY.to_owned(), by.to_owned());
        }
    });
}

fn needs_drbd(definition: &Definition, key: &Key) -> Result<(), Refusal> {
    if definition.layers.contains(&Layer::Drbd) {
        return Ok(());
    }
    Err(Refusal::new(Code::InvalidLayerStack, format!("the disk of {key} can not be toggled"))
        .cause("without the layer DRBD a resource is its disk")
        .correction("delete the resource, or create another one")
        .about(key.clone()))
}

fn stays(resource: &Resource, key: &Key) -> Result<(), Refusal> {
    if !resource.is_deleting() {
        return Ok(());
    }
    Err(Refusal::new(Code::InUse, format!("the disk of {key} can not be toggled"))
        .cause("it is being deleted")
        .correction("make it available again first")
        .about(key.clone()))
}

/// Checks that the replica at `from` can be replaced by the one at `node`.
fn may_migrate(
    edit: &Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    from: &NodeName,
) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), from.clone());
    let refuse = |code, cause: &str, correction: &str| {
        Err(Refusal::new(code, format!("{key} can not be migrated to node {node}"))
            .cause(cause)
            .correction(correction)
            .about(key.clone()))
    };
    let source = edit.resource(name, from)?;
    let successor = edit.model.resources_of(name).find(|r| replaces(r).as_ref() == Some(from));
    if from == node {
        return refuse(Code::InvalidRequest, "source and target are the same", "name two nodes");
    }
    activity::needed(source, &format!("{key} can not be migrated to node {node}"))?;
    if !source.is_replica() {
        return refuse(Code::InvalidRequest, "it has no disk", "name a replica with a disk");
    }
    if edit.observed().in_use(name, from) {
        return refuse(Code::InUse, "it is Primary or open", "close it first");
    }
    let own = edit.model.resources_of(name).find(|r| replaces(r).as_ref() == Some(node));
    if let Some(own) = own {
        let cause = format!("the replica of node {node} is being migrated to node {}", own.node);
        return refuse(Code::InUse, &cause, "name a target that stays");
    }
    if successor.is_some_and(|successor| successor.node != *node) {
        return refuse(Code::InUse, "it is being migrated elsewhere", "wait until that is done");
    }
    Ok(())
}

pub fn to_diskless(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    client: bool,
) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    let definition = edit.definition(name)?.clone();
    let resource = edit.resource(name, node)?.clone();
    needs_drbd(&definition, &key)?;
    stays(&resource, &key)?;
    activity::needed(&resource, &format!("the disk of {key} can not be toggled"))?;
    if client {
        edit.modify_resource(name, node, |r| {
            r.flags.insert(ResourceFlag::Client);
        });
    }
    if !resource.is_diskful() {
        edit.note(NoteCode::IsDiskless, key.clone(), format!("{key} is diskless already"));
        return Ok(());
    }
    let numbers: Vec<VolumeNr> = definition.volumes.keys().copied().collect();
    let safe = edit.model.resources_of(name).any(|other| {
        other.node != *node
            && other.is_replica()
            && edit.observed().is_up_to_date(name, &other.node, numbers.iter())
    });
    let adding = resource.flags.contains(&ResourceFlag::DiskAddRequested)
        && edit.model.resources_of(name).any(|r| r.node != *node && r.is_replica());
    if !safe && !adding {
        return Err(Refusal::new(
            Code::InsufficientReplicas,
            format!("the disk of {key} can not be removed"),
        )
        .cause("no other replica is known to be UpToDate: its data may be the only ones")
        .correction("wait until another replica is UpToDate and its node connected")
        .about(key));
    }
    edit.modify_resource(name, node, lose_disk);
    Ok(())
}

/// Has a resource lose its disk as soon as its data are no longer needed.
pub fn lose_disk(resource: &mut Resource) {
    use ResourceFlag::*;
    resource.flags.retain(|flag| !matches!(flag, DiskAddRequested | Diskless | DrbdDiskless));
    resource.flags.insert(DiskRemoveRequested);
    for key in [MIGRATE_FROM, DISKFUL_BY, resources::POOL] {
        resource.props.remove(key);
    }
}
