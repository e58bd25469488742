//! Other passphrases for encrypted volumes.
//!
//! A volume has one passphrase on all nodes, which is wanted state like its size: each agent changes the
//! header of its disk, and says how often it has. Snapshots keep the passphrase with which they were
//! taken, as their headers do.

use crate::change::{Key, Object};
use crate::edit::Edit;
use crate::layer::Layer;
use crate::name::ResourceName;
use crate::objects::{SnapshotDefinition, VolumeDefinitionFlag};
use crate::refusal::{Code, NoteCode, Refusal};

use super::definitions::{no_volume, not_snapshotted, volume_number};

#[cfg(test)]
mod tests;

/// Has a volume opened by another passphrase; `sealed` is that one, encrypted under the master key.
pub fn change(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    number: u16,
    sealed: String,
) -> Result<(), Refusal> {
    let key = Key::Definition(name.clone());
    let mut definition = edit.definition(name)?.clone();
    let number = volume_number(number, &key)?;
    let Some(volume) = definition.volumes.get_mut(&number) else {
        return Err(no_volume(&key, number));
    };
    let refuse = |code, cause: &str, next: &str| {
        let text = format!("volume {number} of {key} can not have another passphrase");
        Err(Refusal::new(code, text).cause(cause).correction(next).about(key.clone()))
    };
    let Some(old) = volume.passphrase.replace(sealed) else {
        return refuse(
            Code::InvalidLayerStack,
            "it is not encrypted: it has no layer LUKS",
            "leave it as it is, or copy its data to a volume with the layers DRBD,LUKS,STORAGE",
        );
    };
    if edit.observed().master.is_none() {
        return refuse(
            Code::NoMasterKey,
            "the master passphrase was not entered since the controller started",
            "enter it (`ashlar encryption unlock`)",
        );
    }
    if volume.flags.contains(&VolumeDefinitionFlag::Delete) {
        return refuse(Code::InUse, "it is being deleted", "leave it alone");
    }
    not_snapshotted(edit, name, &key)?;
    volume.passphrase_changes += 1;
    let snapshots: Vec<SnapshotDefinition> = edit.model.snapshots_of(name).cloned().collect();
    for mut snapshot in snapshots.into_iter().filter(|s| s.sizes.contains_key(&number)) {
        snapshot.passphrases.entry(number).or_insert_with(|| old.clone());
        edit.put(Object::Snapshot(snapshot));
    }
    edit.put(Object::Definition(definition));
    let away = edit.model.resources_of(name).filter(|resource| resource.is_diskful());
    let away = away.filter(|resource| !edit.observed().is_connected(&resource.node));
    let away: Vec<_> = away.map(|resource| resource.node.clone()).collect();
    for node in away {
        let text = format!(
            "node {node} is not connected: the old passphrase opens volume {number} of {name} there \
             until it is"
        );
        edit.note(NoteCode::NotConnected, Key::Node(node), text);
    }
    Ok(())
}

/// Refuses what copies disks, headers and all, as long as one may have an old passphrase; `text` says what
/// that is.
pub fn settled(edit: &Edit<'_>, name: &ResourceName, text: &str) -> Result<(), Refusal> {
    let definition = edit.definition(name)?;
    if !definition.layers.contains(&Layer::Luks) {
        return Ok(());
    }
    for resource in edit.model.resources_of(name).filter(|resource| resource.is_diskful()) {
        let node = &resource.node;
        // One that is away is not copied.
        if !edit.observed().is_connected(node) {
            continue;
        }
        let Some(replica) = edit.observed().replica(name, node) else { continue };
        let behind = definition.volumes.iter().find(|(number, volume)| {
            let state = replica.volumes.get(number).filter(|state| state.backing.is_some());
            state.is_some_and(|state| state.passphrase_changes < volume.passphrase_changes)
        });
        if let Some((number, _)) = behind {
            return Err(Refusal::new(Code::InUse, text)
                .cause(format!("the passphrase of volume {number} is being changed on node {node}"))
                .correction("wait until that is done")
                .about(Key::Definition(name.clone())));
        }
    }
    Ok(())
}

/// Refuses to give disks the data of a snapshot in their places whose passphrase is another one: nobody would
/// know it afterwards.
pub fn same_as_then(
    edit: &Edit<'_>,
    snapshot: &SnapshotDefinition,
    text: &str,
) -> Result<(), Refusal> {
    settled(edit, &snapshot.resource, text)?;
    let Some(number) = snapshot.passphrases.keys().next() else { return Ok(()) };
    Err(Refusal::new(Code::InvalidResourceState, text)
        .cause(format!(
            "the passphrase of volume {number} was changed since the snapshot was taken"
        ))
        .correction(
            "restore the snapshot to a new resource definition, which has the passphrase of then",
        )
        .about(Key::Snapshot(snapshot.resource.clone(), snapshot.name.clone())))
}
