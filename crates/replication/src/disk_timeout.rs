//! A disk that does not answer (`disk-timeout`, semantics §7.1): it is given up as if it had failed, and
//! its node goes on by the disks of others.
//!
//! What a disk that was given up, for whatever reason, was to do may still be done, whenever. Nobody waits for
//! it: users and peers are answered at once. The operations keep their buffers until they end, so
//! nothing else is written by them, and hold the device, which is not attached before.
//!
//! Nothing is noted per operation but when it began. The disk is looked at once per timeout, or when
//! the oldest operation that was there is due.

use serde::{Deserialize, Serialize};
use vocab::Instant;

use crate::io::DiskError;
use crate::resource::{Op, Resource, Running};
use crate::state::VolIx;

/// A disk that is overdue is given up if it still is after this part of its timeout: a node that
/// stood still looks at its clock before it hears what the disk has done meanwhile.
const LAST_CHANCE: u32 = 10;

/// What is known of how long the operations on a disk have been running.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct DiskWatch {
    /// Since when the disk is attached. What has begun before is about another one.
    attached: Instant,
    /// None that runs has begun before.
    oldest: Instant,
    /// One is overdue, and the disk is given up then.
    last_chance: Option<Instant>,
}

impl DiskWatch {
    /// Of a disk that is attached now.
    pub(crate) const fn new(now: Instant) -> DiskWatch {
        DiskWatch { attached: now, oldest: now, last_chance: None }
    }
}

impl Resource {
    /// When the disk is to be looked at.
    pub(crate) fn disk_deadline(&self, vol: VolIx) -> Option<Instant> {
        let volume = &self.vols[vol];
        let timeout = volume.disk_opts.disk_timeout;
        if timeout.is_zero() || volume.backing.is_none() {
            return None;
        }
        Some(volume.watch.last_chance.unwrap_or(volume.watch.oldest + timeout))
    }

    /// Looks at the disk, if that is due.
    pub(crate) fn disk_timeout(&mut self, vol: VolIx) {
        if self.disk_deadline(vol).is_none_or(|at| at > self.now) {
            return;
        }
        let timeout = self.vols[vol].disk_opts.disk_timeout;
        let attached = self.vols[vol].watch.attached;
        let here = |o: &Running| o.since >= attached && self.volume_of(o.op) == Some(vol);
        let running = self.ops.iter().filter(|(_, running)| here(running));
        let oldest = running.map(|(_, running)| running.since).min();
        let overdue = oldest.is_some_and(|since| self.now.since(since) >= timeout);
        let now = self.now;
        let watch = &mut self.vols[vol].watch;
        watch.oldest = oldest.unwrap_or(now);
        match (overdue, watch.last_chance.take()) {
            (false, _) => {}
            (true, None) => watch.last_chance = Some(now + timeout / LAST_CHANCE),
            (true, Some(_)) => {
                let waited = now.since(watch.oldest).as_secs_f64();
                let what = format!(
                    "the disk has not answered for {waited:.1} s (disk-timeout {:.1} s)",
                    timeout.as_secs_f64()
                );
                self.tell_io_error(vol);
                self.give_up_disk(vol, &what);
            }
        }
    }

    /// The disk is given up. What it was to do for others has failed, as what it was to do for
    /// this node's users ([`Resource::abort_local`]).
    pub(crate) fn abandon(&mut self, vol: VolIx) {
        let failed = DiskError::Io;
        let here = |(_, running): &(usize, &Running)| self.volume_of(running.op) == Some(vol);
        let keys: Vec<usize> = self.ops.iter().filter(here).map(|(key, _)| key).collect();
        for key in keys {
            let op = self.ops[key].op;
            if let Op::Write(_) | Op::Meta(_) | Op::Abandoned(..) = op {
                // The first has its buffer until its entry in the log ends, and the device's own.
                // The superblock may be followed by the disk's last word.
                continue;
            }
            self.ops[key].op = Op::Abandoned(vol, None);
            match op {
                Op::Read(read) => self.local_read_done(read, Err(failed)),
                Op::PeerWrite(write) => {
                    let buf = self.peer_write_ended(write, Err(failed));
                    self.ops[key].op = Op::Abandoned(vol, buf);
                }
                Op::PeerRead(read) => self.peer_read_done(read, Err(failed)),
                Op::Serve(serve) => self.served(serve, Err(failed)),
                Op::EpochFlush(peer, _) => self.epoch_flushed(peer, vol, Err(failed)),
                Op::DemotionFlush(_) => self.demotion_flushed(vol, Err(failed)),
                Op::ConfirmFlush(peer, _) => self.confirm_flushed(peer, vol, Err(failed)),
                Op::ResyncWrite(..) => {
                    let buf = self.abandon_late_write(op);
                    self.ops[key].op = Op::Abandoned(vol, buf);
                }
                _ => {}
            }
        }
    }
}
