//! Carrying out commands: `apply(model, context, command)` either changes the wanted state and says
//! how, or refuses and changes nothing.
//!
//! One file for each kind of object. `helpers` is what follows from a change by itself (quorum and
//! tie-breakers), `trouble` is about nodes that leave, `settle` takes note of what is done.

mod activity;
mod clone;
mod crossing;
mod definitions;
mod groups;
mod helpers;
mod join;
mod nodes;
mod passphrase;
mod pools;
mod remotes;
mod resources;
mod rollback;
mod schedules;
mod series;
mod settle;
mod shipping;
mod small;
pub(crate) mod snapshots;
#[cfg(test)]
pub(crate) mod tests;
mod timing;
mod toggle;
mod trouble;

use crate::command::Command;
use crate::edit::{Applied, Context, Edit};
use crate::model::Model;
use crate::refusal::Refusal;
use crate::schedule::Switch;
use crate::shipping::Place;

pub(crate) use helpers::has_no_data;

/// Carries out a command.
///
/// # Errors
/// If the command can not be carried out; `model` is as before then.
pub fn apply(
    model: &mut Model,
    context: &Context<'_>,
    command: Command,
) -> Result<Applied, Refusal> {
    let mut edit = Edit::new(model, context);
    let timing = timing::touches(&command);
    let done = dispatch(&mut edit, command);
    match done.and_then(|()| if timing { timing::check(&edit) } else { Ok(()) }) {
        Ok(()) => Ok(edit.finish()),
        Err(refusal) => {
            edit.undo();
            Err(refusal)
        }
    }
}

fn dispatch(edit: &mut Edit<'_>, command: Command) -> Result<(), Refusal> {
    use Command::*;
    rollback::refuse_while_busy(edit, &command)?;
    shipping::refuse_while_downloading(edit, &command)?;
    match command {
        ModifyController { props } => small::modify_controller(edit, &props),
        SetMasterKey { wrapped, before } => small::set_master_key(edit, wrapped, before),

        CreateNode { name, kind, net_interfaces, props } => {
            nodes::create(edit, name, kind, net_interfaces, props)
        }
        ModifyNode { name, kind, props } => nodes::modify(edit, &name, kind, &props),
        DeleteNode { name } => nodes::delete(edit, &name),
        LoseNode { name } => nodes::lose(edit, &name),
        EvacuateNode { name, to, not_to } => trouble::evacuate(edit, &name, to, not_to),
        EvictNode { name } => trouble::evict(edit, &name),
        RestoreNode { name, delete_resources, delete_snapshots } => {
            trouble::restore(edit, &name, delete_resources, delete_snapshots)
        }
        CreateJoinToken { token } => {
            join::create(edit, token);
            Ok(())
        }
        UseJoinToken { digest, node } => join::take(edit, digest, &node),
        CreateNetInterface { node, interface, activate } => {
            nodes::put_interface(edit, &node, interface, activate, false)
        }
        ModifyNetInterface { node, interface, activate } => {
            nodes::put_interface(edit, &node, interface, activate, true)
        }
        DeleteNetInterface { node, name } => nodes::delete_interface(edit, &node, &name),
        ModifyNodeConnection { a, b, props } => small::modify_node_connection(edit, a, b, &props),

        CreatePoolDefinition { name, props } => pools::create_definition(edit, name, props),
        ModifyPoolDefinition { name, props } => pools::modify_definition(edit, &name, &props),
        DeletePoolDefinition { name } => pools::delete_definition(edit, &name),
        CreatePool { node, name, provider, props, shared_space, external_locking } => {
            pools::create(edit, node, name, provider, props, shared_space, external_locking)
        }
        ModifyPool { node, name, props } => pools::modify(edit, &node, &name, &props),
        DeletePool { node, name } => pools::delete(edit, &node, &name),

        CreateGroup { name, description, props, filter, peer_slots } => {
            groups::create(edit, name, description, props, filter, peer_slots)
        }
        ModifyGroup { name, description, props, filter, peer_slots } => {
            groups::modify(edit, &name, description, &props, filter, peer_slots)
        }
        DeleteGroup { name } => groups::delete(edit, &name),
        CreateVolumeGroup { group, number, props, gross_size } => {
            groups::create_volume(edit, &group, number, props, gross_size)
        }
        ModifyVolumeGroup { group, number, props, gross_size } => {
            groups::modify_volume(edit, &group, number, &props, gross_size)
        }
        DeleteVolumeGroup { group, number } => groups::delete_volume(edit, &group, number),
        Spawn { group, definition, sizes, filter, partial, definitions_only, passphrases } => {
            let sizes = groups::Sizes { sizes, passphrases, partial };
            groups::spawn(edit, group, definition, sizes, &filter, definitions_only)
        }
        AdjustGroup { name, filter } => groups::adjust(edit, &name, &filter),

        CreateDefinition { definition } => definitions::create(edit, definition).map(drop),
        ModifyDefinition { name, props, group, layers, peer_slots } => {
            definitions::modify(edit, &name, &props, group, layers, peer_slots)
        }
        DeleteDefinition { name } => definitions::delete(edit, &name),
        CreateVolumeDefinition { name, volume } => definitions::create_volume(edit, &name, volume),
        ModifyVolumeDefinition { name, number, size, props, gross_size } => {
            definitions::modify_volume(edit, &name, number, size, &props, gross_size)
        }
        ChangePassphrase { name, number, passphrase: sealed } => {
            passphrase::change(edit, &name, number, sealed)
        }
        DeleteVolumeDefinition { name, number } => definitions::delete_volume(edit, &name, number),

        CreateResource { name, node, resource } => {
            resources::note_without_volumes(edit, &name);
            resources::create(edit, &name, &node, &resource, "user")?;
            helpers::review(edit, &name)
        }
        ModifyResource { name, node, props } => resources::modify(edit, &name, &node, &props),
        ModifyVolume { name, node, number, props } => {
            resources::modify_volume(edit, &name, &node, number, &props)
        }
        DeleteResource { name, node, keep_tie_breaker } => {
            resources::delete(edit, &name, &node, keep_tie_breaker)
        }
        Autoplace { name, filter } => resources::autoplace(edit, &name, &filter),
        MakeAvailable { name, node, diskful } => {
            resources::make_available(edit, &name, &node, diskful)
        }
        ToggleDisk { name, node, diskful: true, pool, migrate_from, client: _ } => {
            toggle::to_diskful(edit, &name, &node, pool, migrate_from.as_ref(), "user")?;
            helpers::review(edit, &name)
        }
        ToggleDisk { name, node, diskful: false, client, .. } => {
            toggle::to_diskless(edit, &name, &node, client)?;
            helpers::review(edit, &name)
        }
        ActivateResource { name, node } => activity::activate(edit, &name, &node),
        DeactivateResource { name, node } => activity::deactivate(edit, &name, &node),
        ModifyResourceConnection { name, a, b, props } => {
            small::modify_resource_connection(edit, name, a, b, &props)
        }

        CreateSnapshots { snapshots, props } => snapshots::create(edit, snapshots, &props),
        ModifySnapshot { name, snapshot, props } => {
            snapshots::modify(edit, &name, &snapshot, &props)
        }
        DeleteSnapshot { name, snapshot, nodes } => {
            snapshots::delete(edit, &name, &snapshot, &nodes)
        }
        AbortSnapshot { name, snapshot, disconnected } => {
            snapshots::abort(edit, &name, &snapshot, disconnected)
        }
        RestoreVolumeDefinitions { name, snapshot, to } => {
            snapshots::restore_volumes(edit, &name, &snapshot, &to)
        }
        RestoreResources { name, snapshot, to, nodes, pools } => {
            snapshots::restore_resources(edit, &name, &snapshot, &to, &nodes, &pools)
        }
        CloneDefinition { name, to, props } => clone::begin(edit, &name, to, &props),
        RollBack { name, snapshot } => rollback::begin(edit, &name, &snapshot),

        CreateRemote { name, bucket } => remotes::create(edit, name, Place::Bucket(bucket)),
        ModifyRemote { name, bucket } => remotes::modify_bucket(edit, &name, bucket),
        CreateClusterRemote { name, cluster } => {
            remotes::create(edit, name, Place::Cluster(cluster))
        }
        ModifyClusterRemote { name, cluster } => remotes::modify_cluster(edit, &name, cluster),
        DeleteRemote { name } => remotes::delete(edit, &name),
        CreateBackup { name, remote, snapshot, stamp, node, incremental, present } => {
            let (schedule, sending) = (None, None);
            let wish =
                shipping::Wish { snapshot, stamp, node, incremental, present, schedule, sending };
            shipping::create(edit, &name, &remote, wish)
        }
        RestoreBackup { remote, found, snapshot, to, group, node, pools, download_only } => {
            let target = shipping::Target { snapshot, to, group, node, pools, download_only };
            shipping::restore(edit, &remote, found, target)
        }
        AbortBackups { remote, name, snapshot, uploads, downloads } => {
            let which = shipping::Which { name, snapshot, uploads, downloads };
            shipping::abort(edit, &remote, &which)
        }
        ShipSnapshot { name, remote, snapshot, stamp, node, to } => {
            crossing::ship(edit, &name, &remote, snapshot, stamp, node, to)
        }
        NoteDoor { name, snapshot, remote, token, door } => {
            crossing::note_door(edit, &name, &snapshot, &remote, token, door);
            Ok(())
        }
        NoteClosed { name, snapshot, remote, token } => {
            crossing::note_closed(edit, &name, &snapshot, &remote, token);
            Ok(())
        }
        ReceiveSnapshot { remote, found, snapshot } => {
            crossing::receive(edit, &remote, found, snapshot)
        }
        AbortReceived { cluster, shipment } => {
            crossing::abort_received(edit, &cluster, &shipment);
            Ok(())
        }
        ForgetBackups { remote, backups } => {
            shipping::forget(edit, &remote, &backups);
            Ok(())
        }

        CreateSchedule { name, schedule } => schedules::create(edit, name, schedule),
        ModifySchedule { name, schedule } => schedules::modify(edit, &name, schedule),
        DeleteSchedule { name } => schedules::delete(edit, &name),
        SetSwitch { level, remote, schedule, on, node } => {
            schedules::set(edit, Switch { level, remote, schedule, on, node })
        }
        RemoveSwitch { level, remote, schedule } => {
            schedules::unset(edit, &level, &remote, &schedule)
        }
        RunSchedule { name, remote, schedule, present } => {
            series::begin(edit, &(name, remote, schedule), present);
            Ok(())
        }
        NoteRemoved { name, remote, schedule, backups, gone } => {
            series::removed(edit, &(name, remote, schedule), &backups, gone);
            Ok(())
        }

        ModifyStore { name, edit: change } => small::modify_store(edit, name, &change),
        DeleteStore { name } => small::delete_store(edit, name),
        PutFile { path, content } => small::put_file(edit, path, content),
        DeleteFile { path } => small::delete_file(edit, path),
        DeployFile { path, name, deploy } => small::deploy_file(edit, &path, &name, deploy),

        Settle { name } => settle::settle(edit, &name),
        Tick => trouble::tick(edit),
    }
}
