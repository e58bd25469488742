//! In which order the volumes of this node are resynced (`resync-after`), whatever threads they are on.
//!
//! One table for all of them, behind a lock that is taken when a state has changed and never for a
//! request. Shards write down which of their volumes are being resynced; commands, which volume
//! names which. Whoever changes who has to wait tells all shards to look, and what a shard finds when it
//! looks is what counts: a call that comes late, or twice, says nothing that is not true any more.

use std::sync::{Arc, Mutex};

use replication::{Input, ResyncCycle, ResyncOrder};
use runtime::SendError;
use vocab::{ConfigError, Minor, Refusal, VolumeNr};

use crate::engine::{Done, Engine, Entry, lock, not_kept};
use crate::shard::{Message, Shard};
use logging::{Level, log};

/// The table, shared by shards and commands.
pub(crate) type Order = Arc<Mutex<ResyncOrder>>;

impl Engine {
    /// Has a volume resynced after another one that exists, or after none.
    ///
    /// Looked up once more behind the change: who removes that volume takes it out of the table after
    /// it can not be found any more. Shards wait for the lock of the table, so that it is not held meanwhile.
    pub(crate) fn order_resync(&self, minor: Minor, after: Option<Minor>) -> Done {
        let check = || match after {
            Some(named) if self.minor(named).is_err() => Err(missing(minor, named)),
            _ => Ok(()),
        };
        check()?;
        let mut order = lock(&self.order);
        let before = order.after(minor);
        let changed =
            order.set_after(minor, after).map_err(|cycle| refused(minor, after, cycle))?;
        drop(order);
        let checked = check();
        if checked.is_err() {
            // What was there before was no cycle then, and may have become one.
            let _ = lock(&self.order).set_after(minor, before);
        }
        self.look_at_order(changed)?;
        Ok(checked?)
    }

    /// The same for a volume as it is kept. The one that is named may come up later.
    pub(crate) fn restore_order(&self, name: &str, minor: Minor, after: Option<Minor>) -> Done {
        let set = lock(&self.order).set_after(minor, after);
        let changed = set.unwrap_or_else(|cycle| {
            log!(Level::Error, name, "{}; it waits for none", refused(minor, after, cycle));
            false
        });
        self.look_at_order(changed)
    }

    /// What is kept of what a volume is resynced after is what the table says, whatever others change
    /// meanwhile: who writes it down looks again afterwards.
    pub(crate) fn keep_order(&self, entry: &Entry, nr: VolumeNr, minor: Minor) -> Done {
        loop {
            let after = lock(&self.order).after(minor);
            let mut stored = lock(&entry.stored);
            let volume = stored.config.volumes.iter_mut().find(|v| v.nr == nr && v.minor == minor);
            let backing = volume.and_then(|v| v.backing.as_mut());
            match backing {
                Some(backing) if backing.options.resync_after != after => {
                    backing.options.resync_after = after;
                    self.state.put_resource(&stored).map_err(not_kept)?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// A volume is gone, and no other one names it any more.
    pub(crate) fn leave_order(&self, minor: Minor) -> Done {
        let freed = lock(&self.order).remove(minor);
        for named in &freed {
            // Gone as well, meanwhile.
            let Ok((entry, nr)) = self.minor(*named) else { continue };
            log!(
                Level::Info,
                entry.name,
                "volume {nr} is resynced after none: minor {} is gone",
                minor.0
            );
            self.keep_order(&entry, nr, *named)?;
        }
        self.look_at_order(!freed.is_empty())
    }

    fn look_at_order(&self, changed: bool) -> Done {
        for shard in (0..self.shards.len()).filter(|_| changed) {
            self.send(shard, Message::Do(Box::new(Shard::look_at_order)))?;
        }
        Ok(())
    }
}

fn missing(minor: Minor, named: Minor) -> Refusal {
    let detail = format!(
        "resync-after of minor {} names minor {}, which is not configured; create that first",
        minor.0, named.0
    );
    Refusal::config(ConfigError::ResyncAfterInvalid, detail)
}

fn refused(minor: Minor, after: Option<Minor>, _: ResyncCycle) -> Refusal {
    let named = after.map_or(-1, |named| i64::from(named.0));
    let detail = format!(
        "minor {} can not be resynced after minor {named}, which is, or waits for, minor {}; correct \
         resync-after of one of them",
        minor.0, minor.0
    );
    Refusal::config(ConfigError::ResyncAfterCycle, detail)
}

impl Shard {
    /// Notes which volumes of a resource are being resynced. True if others wait for that, or did.
    pub(crate) fn note_resyncs(&mut self, id: u16) -> bool {
        let Some(host) = self.hosts.get_mut(id) else { return false };
        let mut order = lock(&self.order);
        // All of them are noted, whatever the first one means to others.
        host.resyncing().fold(false, |any, (minor, busy)| order.set_busy(minor, busy) | any)
    }

    /// Tells all shards to look, this one as well. One whose mailbox is full is told in the next turn.
    pub(crate) fn tell_order(&mut self) {
        if !std::mem::take(&mut self.order_changed) {
            return;
        }
        for peer in &self.peers {
            let message = Message::Do(Box::new(Shard::look_at_order));
            if let Err(SendError::Full(_)) = peer.send(message) {
                self.order_changed = true;
            }
        }
    }

    /// Lets resyncs wait, or go on, that have to by now.
    pub(crate) fn look_at_order(&mut self) {
        if self.frozen {
            // It looks when it goes on.
            return;
        }
        let order = lock(&self.order);
        let mut changed = Vec::new();
        for host in self.hosts.iter_mut() {
            let id = host.id;
            let other = host.waits().filter(|(_, minor, waits)| order.waits(*minor) != *waits);
            changed.extend(other.map(|(volume, _, waits)| (id, volume, !waits)));
        }
        drop(order);
        for (id, volume, wait) in changed {
            self.with(id, |host, io, volumes| {
                host.feed(io, volumes, Input::WaitForOther { volume, wait });
            });
        }
    }
}
