//! Ceph: a monitor, a manager and three OSDs with BlueStore, used through librbd.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Running, Serving, Wanted};
use crate::bench::cluster;
use crate::bench::fio::Target;
use crate::process::{self, Daemon};

/// What a reader of its figures has to know.
pub const NOTE: &str = "three copies by three OSDs with BlueStore on files, answered when all \
                        have a write; fio's rbd engine is the client, without a cache; the OSDs \
                        have caches of their own";

/// Programs, with the Debian package of each.
pub const NEEDS: &[(&str, &str)] = &[
    ("ceph-mon", "ceph-mon"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-osd", "ceph-osd"),
    ("ceph", "ceph-common"),
    ("rbd", "ceph-common"),
    ("monmaptool", "ceph-base"),
];

const OSDS: usize = 3;
const POOL: &str = "blocks";
/// What Ceph's manual advises for three OSDs and three copies.
const PLACEMENT_GROUPS: &str = "128";
/// Any will do; a cluster that is met nowhere else needs no unique ones.
const FSID: &str = "a5b1a200-0000-4000-8000-000000000000";
/// How long it may take to be whole.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long a command may take.
const COMMAND_PATIENCE: Duration = Duration::from_secs(60);

/// Room of all disks. BlueStore writes data to places that are free, and has a database and its log
/// beside them.
pub fn room_mib(mib: u64) -> u64 {
    OSDS as u64 * disk_mib(mib)
}

fn disk_mib(mib: u64) -> u64 {
    mib + mib / 2 + 2048
}

/// A running one.
struct Cluster {
    folder: PathBuf,
    daemons: Vec<Daemon>,
}

/// Starts it with an image per volume.
pub fn serve(wanted: &Wanted) -> Result<Serving> {
    wanted.require_direct()?;
    let address = format!("{}.1", cluster::network());
    let folder = wanted.folder.to_owned();
    fs::write(folder.join("ceph.conf"), config(wanted, &address))?;
    let mut cluster = Cluster { folder, daemons: Vec::new() };
    cluster.start_monitor(&address)?;
    cluster.start("ceph-mgr", "x")?;
    for osd in 0..OSDS {
        cluster.start_osd(osd)?;
    }
    cluster.wait("all OSDs are up", |status| status["osdmap"]["num_up_osds"] == OSDS)?;
    let create = ["osd", "pool", "create", POOL, PLACEMENT_GROUPS, PLACEMENT_GROUPS];
    cluster.run("ceph", &create)?;
    cluster.wait("all placement groups are clean", is_whole)?;
    let (mut targets, size) = (Vec::new(), format!("{}M", wanted.mib));
    for volume in 0..wanted.volumes {
        let image = format!("v{volume}");
        // Locks of the other features go to and fro between the jobs of a row of several.
        let create = ["create", "--pool", POOL, "--size", &size, "--image-feature", "layering"];
        cluster.run("rbd", &[&create[..], &[&image]].concat())?;
        let config = cluster.config();
        targets.push(Target::Rbd { config, pool: POOL, image });
    }
    let servers = cluster.daemons.iter().map(Daemon::pid).collect();
    Ok(Serving { targets, servers, hops: Vec::new(), running: Box::new(cluster) })
}

/// Nothing outside of the folder, and nothing from the machine's own configuration. What is not
/// about places, sizes or the lack of a second machine has Ceph's defaults.
fn config(wanted: &Wanted, address: &str) -> String {
    let disk = disk_mib(wanted.volumes as u64 * wanted.mib) << 20;
    let folder = wanted.folder.display();
    format!(
        "[global]
fsid = {FSID}
mon_host = v2:{address}:3300
mon_initial_members = a
public_addr = {address}
cluster_addr = {address}
ms_bind_ipv6 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
# The three OSDs are on one host.
osd_crush_chooseleaf_type = 0
osd_pool_default_size = 3
osd_pool_default_min_size = 2
# Data are not to move while something is measured.
osd_pool_default_pg_autoscale_mode = off
run_dir = {folder}
crash_dir = {folder}
mon_data = {folder}/mon
mgr_data = {folder}/mgr
osd_data = {folder}/osd$id
keyring = {folder}/keyring
admin_socket =
log_file =
log_to_file = false
log_to_stderr = false
err_to_stderr = true
mon_cluster_log_to_file = false
# How full the file system is, is for us to judge.
mon_data_avail_crit = 0
[osd]
bluestore_block_size = {disk}
bluestore_block_preallocate_file = true
# A file is taken for a rotating disk otherwise; these are what it has for others.
bluestore_debug_enforce_settings = ssd
osd_op_num_shards = 8
osd_op_num_threads_per_shard = 2
# Three times the default of 4 GiB would be more than many machines have.
osd_memory_target = 1073741824
[client]
# With it writes are answered before any OSD has them.
rbd_cache = false
"
    )
}

impl Cluster {
    fn config(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = process::command(program);
        // The libraries' way to be told, which every program understands.
        command.env("CEPH_CONF", self.config());
        command
    }

    /// Runs a program to its end.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(program);
        command.args(arguments);
        process::output(command, COMMAND_PATIENCE)
            .with_context(|| format!("{program} {}", arguments.join(" ")))
    }

    fn start(&mut self, program: &str, id: &str) -> Result<()> {
        let mut command = self.command(program);
        command.args(["-f", "-i", id]);
        let log = self.folder.join(format!("{program}-{id}.log"));
        self.daemons.push(Daemon::start(command, log)?);
        Ok(())
    }

    fn start_monitor(&mut self, address: &str) -> Result<()> {
        let map = self.folder.join("monmap").display().to_string();
        let place = format!("[v2:{address}:3300]");
        self.run("monmaptool", &["--create", "--fsid", FSID, "--addv", "a", &place, &map])?;
        self.run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", &map])?;
        self.start("ceph-mon", "a")
    }

    fn start_osd(&mut self, osd: usize) -> Result<()> {
        let (id, uuid) = (osd.to_string(), format!("{}{osd}", &FSID[..FSID.len() - 1]));
        fs::create_dir(self.folder.join(format!("osd{osd}")))?;
        self.run("ceph", &["--connect-timeout", "30", "osd", "new", &uuid, &id])?;
        self.run("ceph-osd", &["--mkfs", "-i", &id, "--osd-uuid", &uuid])?;
        self.start("ceph-osd", &id)
    }

    fn status(&self) -> Result<Value> {
        let text = self.run("ceph", &["--connect-timeout", "30", "status", "--format", "json"])?;
        serde_json::from_str(&text).context("the status of Ceph is not JSON")
    }

    fn wait(&mut self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            let status = self.status()?;
            if holds(&status) {
                return Ok(());
            }
            self.daemons.check()?;
            process::check_signals()?;
            if begun.elapsed() > PATIENCE {
                bail!("waited in vain until {what}: {status}");
            }
        }
    }
}

impl Running for Cluster {
    fn check(&mut self) -> Result<()> {
        self.daemons.check()?;
        let status = self.status()?;
        match is_whole(&status) {
            true => Ok(()),
            false => bail!("Ceph has lost an OSD or a copy: {status}"),
        }
    }
}

/// All OSDs serve, and every placement group has all its copies; it may be looking through them.
fn is_whole(status: &Value) -> bool {
    let groups = &status["pgmap"]["pgs_by_state"];
    let groups = groups.as_array().map_or(&[][..], Vec::as_slice);
    let clean = |group: &Value| {
        group["state_name"].as_str().is_some_and(|state| state.starts_with("active+clean"))
    };
    status["osdmap"]["num_up_osds"] == OSDS && !groups.is_empty() && groups.iter().all(clean)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_cluster_with_a_missing_copy_is_not_whole() {
        let status = |osds: usize, state: &str| {
            let groups = serde_json::json!([
                { "state_name": "active+clean", "count": 128 }, { "state_name": state, "count": 1 }
            ]);
            serde_json::json!({
                "osdmap": { "num_up_osds": osds }, "pgmap": { "pgs_by_state": groups }
            })
        };
        assert!(is_whole(&status(3, "active+clean+scrubbing")));
        assert!(!is_whole(&status(2, "active+clean")));
        assert!(!is_whole(&status(3, "active+undersized+degraded")));
        assert!(!is_whole(&serde_json::json!({ "osdmap": { "num_up_osds": 3 } })));
    }

    #[test]
    fn everything_it_writes_is_in_its_folder() {
        let folder = Path::new("/folder");
        let wanted = Wanted { folder, volumes: 2, mib: 100, direct: true };
        let config = config(&wanted, "127.0.0.1");
        assert!(config.contains(&format!("bluestore_block_size = {}\n", 2348u64 << 20)));
        let paths = config.lines().filter(|line| line.contains('/'));
        assert!(paths.clone().count() >= 6 && paths.clone().all(|path| path.contains(" /folder")));
    }
}
