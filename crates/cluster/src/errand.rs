//! What schedules need of remotes' buckets. A controller goes there, and says by a command what came of
//! it; whatever it does not come back from is an errand still.

use std::collections::BTreeSet;
use std::fmt;

use crate::command::Command;
use crate::model::Model;
use crate::name::*;
use crate::objects::{Millis, Resource};
use crate::observed::Observed;
use crate::schedule::{Series, SeriesKey, switched_on};

/// Something to do in a bucket.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Errand {
    /// What it is for.
    pub key: SeriesKey,
    /// What is to be done.
    pub what: What,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    /// Look which backups of the resource definition are there, whole, before another is made.
    Look,
    /// Delete these, and all that builds on them.
    Remove(Vec<String>),
}

impl Errand {
    /// The remote.
    pub fn remote(&self) -> &RemoteName {
        &self.key.1
    }

    /// The command that says what came of it: the backups that are there, or those that were deleted,
    /// or why nothing came of it.
    pub fn done(self, outcome: Result<Vec<String>, String>) -> Command {
        let (name, remote, schedule) = self.key;
        match self.what {
            What::Look => Command::RunSchedule { name, remote, schedule, present: outcome },
            What::Remove(backups) => {
                Command::NoteRemoved { name, remote, schedule, backups, gone: outcome }
            }
        }
    }
}

impl fmt::Display for Errand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, remote, schedule) = &self.key;
        match &self.what {
            What::Look => write!(f, "look for backups of {name} in remote {remote}")?,
            What::Remove(backups) => {
                write!(f, "delete from remote {remote} {}", backups.join(", "))?;
            }
        }
        write!(f, " for schedule {schedule}")
    }
}

/// True while a backup of the resource definition is made in the remote: one after the other.
pub fn is_busy(model: &Model, name: &ResourceName, remote: &RemoteName) -> bool {
    let ships = |snapshot: &crate::objects::SnapshotDefinition| {
        snapshot.uploads.get(remote).is_some_and(|upload| upload.phase.is_active())
    };
    model.series_of(name).any(|series| series.remote == *remote && series.running.is_some())
        || model.snapshots_of(name).any(ships)
}

/// What can be done in buckets now.
pub fn errands(model: &Model, observed: &Observed, now: Millis) -> Vec<Errand> {
    // The keys of buckets are under the master key.
    if observed.master.is_none() {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut taken = BTreeSet::new();
    for series in model.with_errands() {
        let (name, remote) = (&series.resource, &series.remote);
        let there = model.remote(remote).is_some_and(|remote| !remote.deleting);
        if !there || is_busy(model, name, remote) {
            continue;
        }
        if !series.removing.is_empty() && series.remove_again.is_none_or(|again| again <= now) {
            let what = What::Remove(series.removing.clone());
            all.push(Errand { key: series.key(), what });
        }
        if is_due(model, series, now) && taken.insert((name.clone(), remote.clone())) {
            all.push(Errand { key: series.key(), what: What::Look });
        }
    }
    all
}

fn is_due(model: &Model, series: &Series, now: Millis) -> bool {
    let Some(definition) = model.definition(&series.resource) else { return false };
    // As long as nothing has been placed there is nothing to back up.
    let any = model.resources_of(&series.resource).any(Resource::is_replica);
    any && series.due.as_ref().is_some_and(|due| due.again <= now)
        && switched_on(model, definition, &series.remote, &series.schedule).is_some()
}
