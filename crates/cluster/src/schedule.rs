//! Backups that are made by themselves: when, of what, how many are kept, and how far each is (control
//! plane §8.4).
//!
//! A schedule says when, a [`Switch`] where. What becomes of that is a [`Series`] for each resource
//! definition, which a store keeps: so a run is neither lost nor made twice, whoever crashes when.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cron::Cron;
use crate::model::Model;
use crate::name::*;
use crate::objects::{Definition, DefinitionFlag, Millis, Uuid, words};

/// After how long a run that failed, or could not begin, is tried again, in milliseconds.
pub const AGAIN: u64 = 60_000;
/// The largest number of chains that can be kept: that many full backups are remembered.
pub const KEEP_AT_MOST: u32 = 1000;

words! {
    /// What is done when a backup could not be made, in LINSTOR's words.
    OnFailure {
        /// The next one is made at its time.
        Skip = "SKIP",
        /// It is tried again.
        Retry = "RETRY",
    }
}

/// When backups are made, and how many are kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// Its name.
    pub name: ScheduleName,
    /// Unique id.
    pub uuid: Uuid,
    /// When full backups are made.
    pub full: Cron,
    /// When incremental ones are made, if any.
    #[serde(default)]
    pub incremental: Option<Cron>,
    /// Of how many full backups, and what builds on them, the snapshots stay; of all if none.
    #[serde(default)]
    pub keep_local: Option<u32>,
    /// How many full backups, and what builds on them, stay in the remote; all if none.
    #[serde(default)]
    pub keep_remote: Option<u32>,
    /// What is done about one that could not be made.
    pub on_failure: OnFailure,
    /// How often that is tried again; until it succeeds if none.
    #[serde(default)]
    pub max_retries: Option<u32>,
}

impl Schedule {
    /// The first of its times after one, and whether a full backup is made then.
    pub fn next(&self, after: Millis) -> Option<(Millis, bool)> {
        let full = self.full.next(after);
        let incremental = self.incremental.as_ref().and_then(|cron| cron.next(after));
        match (full, incremental) {
            (Some(full), Some(incremental)) if incremental < full => Some((incremental, false)),
            (Some(full), _) => Some((full, true)),
            (None, incremental) => incremental.map(|time| (time, false)),
        }
    }
}

/// Where a schedule is switched on or off: the nearest level to a resource definition decides.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the object of its name")]
pub enum Level {
    Controller,
    Group(GroupName),
    Definition(ResourceName),
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Level::Controller => write!(f, "the controller"),
            Level::Group(group) => write!(f, "resource group {group}"),
            Level::Definition(name) => write!(f, "resource definition {name}"),
        }
    }
}

/// What a level says of a schedule with a remote.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Switch {
    /// The level.
    pub level: Level,
    /// The remote.
    pub remote: RemoteName,
    /// The schedule.
    pub schedule: ScheduleName,
    /// Backups are made.
    pub on: bool,
    /// The node that uploads them, if it can.
    #[serde(default)]
    pub node: Option<NodeName>,
}

/// What says that backups of a resource definition are, or are not, made with a remote by a schedule:
/// the nearest of what the levels say.
pub fn decides<'a>(
    model: &'a Model,
    definition: &Definition,
    remote: &RemoteName,
    schedule: &ScheduleName,
) -> Option<&'a Switch> {
    let own = Level::Definition(definition.name.clone());
    let levels = [own, Level::Group(definition.group.clone()), Level::Controller];
    levels.iter().find_map(|level| model.switch(level, remote, schedule))
}

/// [`decides`], if it says that they are made.
pub fn switched_on<'a>(
    model: &'a Model,
    definition: &Definition,
    remote: &RemoteName,
    schedule: &ScheduleName,
) -> Option<&'a Switch> {
    let deleting = definition.flags.contains(&DefinitionFlag::Delete)
        || model.remote(remote).is_none_or(|remote| remote.deleting);
    decides(model, definition, remote, schedule).filter(|switch| switch.on && !deleting)
}

/// What identifies a series.
pub type SeriesKey = (ResourceName, RemoteName, ScheduleName);

/// Backups of a resource definition in a remote by a schedule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// The resource definition.
    pub resource: ResourceName,
    /// The remote.
    pub remote: RemoteName,
    /// The schedule.
    pub schedule: ScheduleName,
    /// Up to when the schedule's times have been seen to.
    pub since: Millis,
    /// The first of its times after that; none while it is switched off.
    pub next: Option<Millis>,
    /// The backup whose time has come. Of several that were missed one is made.
    #[serde(default)]
    pub due: Option<Due>,
    /// The one that is being made.
    #[serde(default)]
    pub running: Option<Running>,
    /// The last that was made.
    #[serde(default)]
    pub last: Option<Made>,
    /// Why the last one was not made, if it was not.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// Full backups in the remote, the oldest first; of more than [`KEEP_AT_MOST`] the newest.
    #[serde(default)]
    pub fulls: Vec<Full>,
    /// Full backups that go from the remote, with everything that builds on them.
    #[serde(default)]
    pub removing: Vec<String>,
    /// When that is tried again, after it has failed.
    #[serde(default)]
    pub remove_again: Option<Millis>,
}

/// A backup whose time has come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Due {
    /// It is a full one. Others are, too, if there is nothing that they could be compared with.
    pub full: bool,
    /// Its time.
    pub at: Millis,
    /// How often it has failed.
    pub failed: u32,
    /// When it is begun, or tried again.
    pub again: Millis,
    /// What it waits for, if it could not be begun.
    #[serde(default)]
    pub waits: Option<String>,
}

/// A backup that is being made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Running {
    /// Its snapshot.
    pub snapshot: SnapshotName,
    /// What was due.
    pub due: Due,
}

/// A backup that was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Made {
    /// When it was begun.
    pub at: Millis,
    /// It is a full one.
    pub full: bool,
}

/// A backup that could not be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// When it failed.
    pub at: Millis,
    /// Why.
    pub cause: String,
}

/// A full backup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Full {
    /// Its id.
    pub backup: String,
    /// When it was begun.
    pub since: Millis,
}

/// A snapshot's part in a series.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scheduled {
    /// The remote.
    pub remote: RemoteName,
    /// The schedule.
    pub schedule: ScheduleName,
    /// When the backup was begun.
    pub since: Millis,
    /// Its backup is a full one; none as long as it has not been made.
    #[serde(default)]
    pub full: Option<bool>,
}

impl Scheduled {
    /// True if it is of a series with that remote by that schedule.
    pub fn fits(&self, remote: &RemoteName, schedule: &ScheduleName) -> bool {
        self.remote == *remote && self.schedule == *schedule
    }
}

impl Series {
    /// What identifies it.
    pub fn key(&self) -> SeriesKey {
        (self.resource.clone(), self.remote.clone(), self.schedule.clone())
    }

    /// When something is to be seen to by the time of day.
    pub fn wakes(&self) -> impl Iterator<Item = Millis> {
        let again = self.due.as_ref().map(|due| due.again);
        let remove = self.remove_again.filter(|_| !self.removing.is_empty());
        [self.next, again, remove].into_iter().flatten()
    }

    /// True if something has to be done in its bucket.
    pub fn has_errand(&self) -> bool {
        self.due.is_some() || !self.removing.is_empty()
    }

    /// True if a backup of that time builds on a full one that goes from the remote.
    pub fn is_going(&self, since: Millis) -> bool {
        !self.removing.is_empty() && self.fulls.first().is_none_or(|oldest| since < oldest.since)
    }
}
