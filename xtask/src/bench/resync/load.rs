//! fio as the application, alone or during a resync, and as what the disk does by itself.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::TARGET;
use super::latencies::Latencies;
use crate::bench::cluster::{Cluster, array};
use crate::bench::fio::{Job, Target};
use crate::process;

/// When it is looked how far the resync is: so long after fio's start, and before its end. Both are
/// in runs without a resync, too, for a look takes a CPU for some milliseconds.
const LOOK: Duration = Duration::from_millis(600);
const TAIL: Duration = Duration::from_millis(300);
/// Between looks whether something has ended.
const TICK: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(300);

/// The application: random writes of 4 KiB.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    pub volume: &'a Target,
    /// The part of the volume to write to, from its beginning.
    pub mib: u64,
    pub depth: u32,
    /// Requests per second; without it as many as are answered.
    pub pace: Option<u32>,
    pub time: Duration,
}

impl Load<'_> {
    /// Runs it by itself, or from the middle of a resync on. Returns what it saw, and the KiB/s of
    /// the resync.
    ///
    /// # Errors
    /// If the resync did not go on all the while, or anything fails.
    pub fn run(&self, cluster: &Cluster, resync: bool) -> Result<(Latencies, f64)> {
        let folder = tempfile::Builder::new().prefix("ashlar-bench").tempdir()?;
        let log = folder.path().join("each");
        let job = Job {
            targets: std::slice::from_ref(self.volume),
            pattern: "randwrite",
            block: "4k",
            depth: self.depth,
            jobs: 1,
            mib: self.mib,
            seconds: Some(self.time.as_secs()),
            rate: self.pace,
        };
        if resync {
            cluster.command(TARGET, &["invalidate", "r0/0"])?;
        }
        let looks = std::thread::scope(|scope| {
            let fio = scope.spawn(|| job.run_logged(&log));
            std::thread::sleep(LOOK);
            let first = Look::at(cluster)?;
            std::thread::sleep(self.time.saturating_sub(LOOK + TAIL));
            let last = Look::at(cluster)?;
            fio.join().map_err(|_| anyhow::anyhow!("fio's thread has died"))??;
            Ok::<_, anyhow::Error>((first, last))
        });
        let (first, last) = looks?;
        if resync && !last.is_syncing {
            bail!("the resync was over before the application; give a larger --mib");
        }
        let begun = Instant::now();
        while Look::at(cluster)?.is_syncing {
            process::check_signals()?;
            if begun.elapsed() > PATIENCE {
                bail!("a resync has not ended after {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(TICK);
        }
        let path = folder.path().join("each_lat.1.log");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let kib = last.resynced_kib.saturating_sub(first.resynced_kib) as f64;
        Ok((Latencies::parse(&text)?, kib / (last.at - first.at).as_secs_f64()))
    }
}

/// The node that is resynced at some moment.
struct Look {
    at: Instant,
    is_syncing: bool,
    /// Data of resyncs that have arrived in all its life: what users write is received, too, but
    /// counts as written as well.
    resynced_kib: u64,
}

impl Look {
    fn at(cluster: &Cluster) -> Result<Look> {
        let status = cluster.status(TARGET)?;
        let (device, peers) = (&status[0]["devices"][0], array(&status[0]["connections"]));
        let kib = |of: &Value, name| of[name].as_u64().with_context(|| format!("no {name}"));
        let mut received = 0;
        for peer in peers {
            received += kib(&peer["peer_devices"][0], "received")?;
        }
        Ok(Look {
            at: Instant::now(),
            is_syncing: device["disk-state"] != "UpToDate",
            resynced_kib: received.saturating_sub(kib(device, "written")?),
        })
    }
}
