//! Pools that are made of disks, for LINSTOR's physical storage: what is made is one volume group,
//! thin pool or ZFS pool, or nothing.
//!
//! Each step knows how it is undone, and the disks are looked at right before the first. No command is
//! forced: LVM and ZFS, too, refuse a device on which they find something.

use std::sync::{Mutex, MutexGuard};

use cluster::disks::DevicePool;
use cluster::objects::Provider;

use crate::command::{CommandError, Failure, Runner};
use crate::disks::{self, Machine};
use crate::failed::Failed;

/// Who makes pools, one after the other.
#[derive(Debug, Default)]
pub struct Maker {
    /// What was made since the start: nothing else is ever removed.
    made: Mutex<Vec<DevicePool>>,
}

impl Maker {
    fn made(&self) -> MutexGuard<'_, Vec<DevicePool>> {
        self.made.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes a pool. Takes as long as the node's programs do.
    ///
    /// # Errors
    /// If it can not be made; nothing is left of it.
    pub fn make(&self, machine: &impl Machine, pool: &DevicePool) -> Result<(), Failed> {
        let mut made = self.made();
        make(machine, pool)?;
        made.push(pool.clone());
        Ok(())
    }

    /// Takes back a pool that it has made.
    ///
    /// # Errors
    /// If it is another's, or can not be removed.
    pub fn unmake(&self, machine: &impl Machine, pool: &DevicePool) -> Result<(), Failed> {
        let mut made = self.made();
        let found = made.iter().position(|known| known == pool);
        let index = found.ok_or_else(|| {
            let cause = format!("{pool} was not removed: it was not made by this agent");
            Failed::new(cause, "remove it by hand if nobody needs it")
        })?;
        unmake(machine, pool)?;
        made.remove(index);
        Ok(())
    }
}

/// A command, and the commands that take it back.
struct Step {
    what: String,
    run: Vec<String>,
    undo: Vec<Vec<String>>,
    /// What removes that which the command leaves where it fails itself.
    residue: Vec<Vec<String>>,
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

/// How a pool is made on devices.
fn steps(pool: &DevicePool, devices: &[String]) -> Vec<Step> {
    let group = pool.group();
    let with_devices = |mut line: Vec<String>| {
        line.extend(devices.iter().cloned());
        line
    };
    if matches!(pool.provider, Provider::Zfs | Provider::ZfsThin) {
        // ZFS makes partitions; those that are left of a pool that was destroyed would look like use.
        let wipe = devices.iter().map(|device| words(&["wipefs", "--all", device]));
        // Partitions come before all that can fail. Before them, there was no signature at all.
        let tables = ["wipefs", "--all", "--types", "gpt,PMBR"];
        let residue = devices.iter().map(|device| words(&[&tables[..], &[device]].concat()));
        let destroy = words(&["zpool", "destroy", &group]);
        return vec![Step {
            what: format!("ZFS pool {group}"),
            // The dataset that is the pool is for volumes, and has no files.
            run: with_devices(words(&["zpool", "create", "-m", "none", &group])),
            undo: std::iter::once(destroy).chain(wipe).collect(),
            residue: residue.collect(),
        }];
    }
    let mut steps: Vec<Step> = devices
        .iter()
        .map(|device| Step {
            what: format!("LVM's label on {device}"),
            run: words(&["pvcreate", device]),
            undo: vec![words(&["pvremove", device])],
            residue: Vec::new(),
        })
        .collect();
    steps.push(Step {
        what: format!("volume group {group}"),
        run: with_devices(words(&["vgcreate", &group])),
        undo: vec![words(&["vgremove", &group])],
        residue: Vec::new(),
    });
    if pool.provider == Provider::LvmThin {
        // The pool's volumes are zeroed where they were not written, which replicas count on.
        let mut run = words(&["lvcreate", "--yes", "--zero", "y"]);
        run.extend(words(&["--type", "thin-pool", "--extents", "100%FREE"]));
        run.extend(words(&["--name", &pool.name, &group]));
        steps.push(Step {
            what: format!("thin pool {}", pool.place()),
            run,
            undo: vec![words(&["lvremove", "--yes", &pool.place()])],
            residue: Vec::new(),
        });
    }
    steps
}

fn run(machine: &impl Runner, line: &[String]) -> Result<String, CommandError> {
    let argv: Vec<&str> = line.iter().map(String::as_str).collect();
    machine.run(&argv)
}

/// Runs all of these; returns what could not be done.
fn attempt<'a>(
    machine: &impl Runner,
    lines: impl IntoIterator<Item = &'a Vec<String>>,
) -> Vec<String> {
    let failed = lines.into_iter().filter_map(|line| run(machine, line).err());
    failed.map(|error| error.to_string()).collect()
}

/// Takes back what was made, the last first; returns what could not be.
fn undo(machine: &impl Runner, made: &[Step]) -> Vec<String> {
    attempt(machine, made.iter().rev().flat_map(|step| &step.undo))
}

fn package(provider: Provider) -> &'static str {
    match provider {
        Provider::Zfs | Provider::ZfsThin => "zfsutils-linux",
        _ => "lvm2",
    }
}

/// Refuses a name that something else has.
fn is_free(machine: &impl Runner, pool: &DevicePool) -> Result<(), Failed> {
    let group = pool.group();
    let (what, argv) = match pool.provider {
        Provider::Zfs | Provider::ZfsThin => {
            ("ZFS pool", ["zpool", "list", "-H", "-o", "name"].as_slice())
        }
        _ => ("volume group", ["vgs", "--noheadings", "--options", "vg_name"].as_slice()),
    };
    let names = machine.run(argv).map_err(|error| {
        let next = match error.why {
            Failure::NotInstalled => format!("install {} on this node", package(pool.provider)),
            _ => format!("see why {} does not answer on this node", argv[0]),
        };
        Failed::new(format!("which pools there are is not known: {error}"), next)
    })?;
    if names.lines().any(|name| name.trim() == group) {
        let next = "choose another name, or create a storage pool on the one that is there";
        return Err(Failed::new(format!("there is a {what} {group} on this node"), next));
    }
    Ok(())
}

/// Makes a pool of disks that nobody uses.
///
/// # Errors
/// If a disk is used or the name is taken: then nothing was changed. If a step fails: then those before
/// it were undone, or it is said which could not be.
fn make(machine: &impl Machine, pool: &DevicePool) -> Result<(), Failed> {
    is_free(machine, pool)?;
    let devices = disks::check(machine, &pool.devices)?;
    let mut made = Vec::new();
    for step in steps(pool, &devices) {
        let Err(error) = run(machine, &step.run) else {
            made.push(step);
            continue;
        };
        let cause = format!("{} could not be made: {error}", step.what);
        let mut left = match error.why {
            // It was ended at its deadline, and may have done its work before. Where there is nothing to
            // undo, that fails.
            Failure::TooLong(_) => {
                undo(machine, &[step]);
                Vec::new()
            }
            Failure::NotInstalled => Vec::new(),
            _ => attempt(machine, &step.residue),
        };
        left.extend(undo(machine, &made));
        if !left.is_empty() {
            let cause = format!("{cause}; not undone: {}", left.join("; "));
            return Err(Failed::new(cause, "remove by hand what is left of it, then ask again"));
        }
        let next = match error.why {
            Failure::NotInstalled => format!("install {} on this node", package(pool.provider)),
            _ => "what was done before was undone; see to the cause, then ask again".to_owned(),
        };
        return Err(Failed::new(cause, next));
    }
    Ok(())
}

/// Takes back a pool that was just made, if nothing is in it.
///
/// # Errors
/// If something is in it, or it can not be removed as a whole.
fn unmake(machine: &impl Machine, pool: &DevicePool) -> Result<(), Failed> {
    let group = pool.group();
    let zfs = matches!(pool.provider, Provider::Zfs | Provider::ZfsThin);
    let listed = match zfs {
        true => machine.run(&["zfs", "list", "-H", "-r", "-t", "all", "-o", "name", &group]),
        false => machine.run(&["lvs", "--noheadings", "--options", "lv_name", &group]),
    };
    let failed = |cause: String| {
        Failed::new(format!("{pool} was not removed again: {cause}"), "remove it by hand")
    };
    let listed = listed.map_err(|error| failed(error.to_string()))?;
    let own = if zfs { &group } else { &pool.name };
    let thin = zfs || pool.provider == Provider::LvmThin;
    let is_own = |name: &str| name.is_empty() || thin && name == own;
    let other = listed.lines().map(str::trim).find(|name| !is_own(name));
    if let Some(other) = other {
        return Err(failed(format!("{other} is in it")));
    }
    let devices = pool.devices.iter().map(|path| {
        let real = machine.real(path.as_ref());
        real.map_or_else(|_| path.clone(), |real| real.display().to_string())
    });
    let devices: Vec<String> = devices.collect();
    match undo(machine, &steps(pool, &devices)) {
        left if left.is_empty() => Ok(()),
        left => Err(failed(left.join("; "))),
    }
}

#[cfg(test)]
mod tests;
