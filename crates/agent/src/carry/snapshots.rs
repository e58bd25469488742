//! Suspensions of I/O, and the snapshots that are taken under them.
//!
//! A suspension ends by itself after a time (`expire`), whatever happens to the controller or the
//! snapshot; if this agent is gone, too, the engine ends it a little later. It is said to be over
//! before I/O goes on, and a snapshot counts only if the engine still holds it when all of it has been
//! taken, and when it is told to go on: so none counts that was written to.

use std::time::Duration;

use cluster::name::{ResourceName, SnapshotName};
use cluster::objects::Generation;
use cluster::observed::SuspensionState;
use codec::admin::Request;

use super::{Node, Step};
use crate::failed::Failed;
use crate::record::{Held, Record, Snapshot};
use crate::storage::Name;

/// How much longer than this agent the engine waits before it ends a suspension.
const ENGINE_WAITS: Duration = Duration::from_secs(10);

impl Step<'_> {
    /// True if the engine has the resource, with I/O suspended by an operator or by this agent.
    fn is_suspended(&self) -> Result<Option<bool>, Failed> {
        Ok(self.status()?.map(|status| status.suspended.user))
    }

    pub(super) fn suspend(&self, token: Generation) -> Result<(), Failed> {
        let record = self.record()?;
        match record.suspension {
            // One that has ended is not begun again.
            Some(held) if held.token > token => return Ok(()),
            Some(held) if held.token == token && held.state.is_some() => return Ok(()),
            _ => {}
        }
        if let Some(held) = record.suspension {
            // One that was not ended is, before another begins.
            self.node.expire(self.name, held.token)?;
        }
        let before = self.is_suspended()?;
        let (not_ours, up) = (before == Some(true), before.is_some());
        let held = Held { token, state: None, not_ours, up, over: false };
        self.update(|record| record.suspension = Some(held))?;
        if up && !not_ours {
            let resource = self.name.to_string();
            let what = format!("suspend I/O of {resource}");
            // Should this agent not be there to end it.
            let for_ms = self.node.suspend_for.saturating_add(ENGINE_WAITS).as_millis();
            let for_ms = Some(u32::try_from(for_ms).unwrap_or(u32::MAX));
            let request = Request::SuspendIo { resource, for_ms };
            if let Err(failed) = self.engine.ask_patiently(&what, &request) {
                // It may be suspended later than this was waited for.
                self.node.expire(self.name, token)?;
                return Err(failed);
            }
        }
        self.update(|record| {
            // The time may be over already.
            if let Some(held) = record.suspension.as_mut().filter(|held| held.state.is_none()) {
                held.state = Some(SuspensionState::Held);
            }
        })
    }

    pub(super) fn resume(&self, token: Generation) -> Result<(), Failed> {
        match self.record()?.suspension {
            Some(held) if held.token == token && held.state == Some(SuspensionState::Held) => {
                // What the engine has ended by itself, or forgotten, was not held until now.
                match self.is_held_by_engine(held)? {
                    true => {
                        end(self, held)?;
                        self.finish(token, SuspensionState::Released)
                    }
                    false => self.finish(token, SuspensionState::Expired),
                }
            }
            _ => Ok(()),
        }
    }

    /// Says how a suspension has ended, if that was not said before.
    fn finish(&self, token: Generation, how: SuspensionState) -> Result<(), Failed> {
        self.update(|record| {
            let held = record.suspension.as_mut().filter(|held| {
                held.token == token && matches!(held.state, None | Some(SuspensionState::Held))
            });
            if let Some(held) = held {
                held.state = Some(how);
                held.over = how == SuspensionState::Released;
            }
        })
    }

    pub(super) fn take_snapshot(
        &self,
        token: Generation,
        name: &SnapshotName,
    ) -> Result<(), Failed> {
        let record = self.record()?;
        match record.snapshots.get(name) {
            Some(there) if there.complete && there.token == token => return Ok(()),
            Some(there) if there.complete => {
                return Err(Failed::new(
                    format!("{} has another snapshot {name}", self.name),
                    "delete it, or give the new one another name",
                ));
            }
            // What was not finished may be of another moment.
            Some(there) => self.delete_parts(name, there)?,
            None => {}
        }
        self.held(token, name)?;
        let ready = record.volumes.iter().filter(|(_, volume)| volume.size != 0);
        let volumes = ready.map(|(number, v)| (*number, (v.pool.clone(), v.provider))).collect();
        let snapshot = Snapshot { token, complete: false, volumes };
        self.update(|record| record.snapshots.insert(name.clone(), snapshot.clone()))?;
        let taken = self.take_parts(name, &snapshot).and_then(|()| self.held(token, name));
        let counts = match taken {
            Ok(()) => self.update(|record| {
                let held = is_held(record, token);
                if let Some(snapshot) = record.snapshots.get_mut(name).filter(|_| held) {
                    snapshot.complete = true;
                }
                held
            }),
            Err(failed) => Err(failed),
        };
        if matches!(counts, Ok(true)) {
            return Ok(());
        }
        self.delete_parts(name, &snapshot)?;
        self.update(|record| record.snapshots.remove(name))?;
        counts.and_then(|_| Err(self.too_late(name)))
    }

    fn too_late(&self, name: &SnapshotName) -> Failed {
        Failed::new(
            format!("I/O of {} is not suspended for snapshot {name} (any more)", self.name),
            "take the snapshot again",
        )
    }

    /// True if the engine still does what it did when a suspension began: an engine that was started
    /// again has forgotten it, and one that had no such resource may have got it since.
    fn is_held_by_engine(&self, held: Held) -> Result<bool, Failed> {
        let now = self.is_suspended()?;
        Ok(if held.up { now == Some(true) } else { now.is_none() })
    }

    /// Refuses unless I/O is suspended for the token, as far as this agent and the engine know.
    fn held(&self, token: Generation, name: &SnapshotName) -> Result<(), Failed> {
        let record = self.record()?;
        let ours = record.suspension.filter(|_| is_held(&record, token));
        match ours {
            Some(held) if self.is_held_by_engine(held)? => Ok(()),
            _ => Err(self.too_late(name)),
        }
    }

    fn take_parts(&self, name: &SnapshotName, snapshot: &Snapshot) -> Result<(), Failed> {
        let part = Name::new(name.as_str())?;
        for (number, (pool, kind)) in &snapshot.volumes {
            self.pool(pool, *kind)?.snapshot(&self.volume_name(*number)?, &part)?;
        }
        Ok(())
    }

    fn delete_parts(&self, name: &SnapshotName, snapshot: &Snapshot) -> Result<(), Failed> {
        let part = Name::new(name.as_str())?;
        for (number, (pool, kind)) in &snapshot.volumes {
            self.pool(pool, *kind)?.remove_snapshot(&self.volume_name(*number)?, &part)?;
        }
        Ok(())
    }

    pub(super) fn delete_snapshot(&self, name: &SnapshotName) -> Result<(), Failed> {
        let there = self.update(|record| {
            let snapshot = record.snapshots.get_mut(name)?;
            snapshot.complete = false;
            Some(snapshot.clone())
        })?;
        if let Some(there) = there {
            self.delete_parts(name, &there)?;
            self.update(|record| record.snapshots.remove(name))?;
        }
        self.node.store.drop_empty(self.name)
    }
}

fn is_held(record: &Record, token: Generation) -> bool {
    let held = Some(SuspensionState::Held);
    record.suspension.is_some_and(|there| there.token == token && there.state == held)
}

/// Lets I/O go on, unless somebody else has suspended it.
fn end(step: &Step<'_>, held: Held) -> Result<(), Failed> {
    if held.not_ours || step.is_suspended()? != Some(true) {
        return Ok(());
    }
    let resource = step.name.to_string();
    let what = format!("resume I/O of {resource}");
    // Not more than was begun: what quorum holds is not to go on.
    step.engine.ask_patiently(&what, &Request::Thaw { resource }).map(drop)
}

impl Node {
    /// Ends a suspension whose time is over. It is said to be over even if the engine does not
    /// answer: whoever takes the snapshot has to know. This is called again until I/O goes on.
    ///
    /// # Errors
    /// If that can not be written down, or the engine does not let I/O go on.
    pub fn expire(&self, name: &ResourceName, token: Generation) -> Result<(), Failed> {
        let step = self.step(name);
        step.finish(token, SuspensionState::Expired)?;
        let left = |held: &Held| held.token == token && !held.over;
        if let Some(held) = step.record()?.suspension.filter(left) {
            end(&step, held)?;
            step.update(|record| {
                if let Some(held) = record.suspension.as_mut().filter(|held| held.token == token) {
                    held.over = true;
                }
            })?;
        }
        Ok(())
    }

    /// A suspension from before the agent was started is over: whoever took a snapshot under it has
    /// to know, before anything else is told.
    ///
    /// # Errors
    /// If that can not be written down.
    pub fn forget_suspension(&self, name: &ResourceName) -> Result<(), Failed> {
        match self.store.get(name).and_then(|record| record.suspension) {
            Some(held) => self.step(name).finish(held.token, SuspensionState::Expired),
            None => Ok(()),
        }
    }

    /// What is left from before the agent or the engine was started: suspensions end, and metadata of
    /// volumes that have grown go to their ends. What was left of shipments goes.
    ///
    /// # Errors
    /// What could not be done; it is tried again.
    pub fn recover(&self, name: &ResourceName) -> Result<(), Failed> {
        let Some(record) = self.store.get(name) else { return Ok(()) };
        if let Some(held) = record.suspension.filter(|held| !held.over) {
            self.expire(name, held.token)?;
        }
        // What was being shipped must not keep the rest from going on.
        let cleared = match self.shipments.is_busy(name) {
            true => Ok(()),
            false => self.forget_receiving(name).and_then(|()| self.remove_copies(name)),
        };
        let step = self.step(name);
        step.recover_growth()?;
        step.attach_encrypted()?;
        cleared
    }

    /// Connects what peers have given up, for as long as something is not connected.
    ///
    /// # Errors
    /// If the engine does not answer.
    pub fn reconnect(&self, name: &ResourceName) -> Result<(), Failed> {
        if self.step(name).reconnect()? {
            self.store.update(name, |record| record.reconnect = false)?;
        }
        Ok(())
    }
}
