//! Backups by schedule, in some seeds: a bucket that fails now and then, agents that upload to it, and an
//! operator who switches schedules on and off.
//!
//! The checker looks at the bucket and at what was begun when: no run is made twice, no two at a time,
//! what is in the bucket can be restored, and when all faults have ended backups are made again and no
//! more are kept than are to be.

use std::collections::{BTreeMap, BTreeSet};

use ::cluster::command::{Command, NewSchedule, ScheduleEdit};
use ::cluster::errand::{Errand, What, errands};
use ::cluster::name::{RemoteName, ResourceName, ScheduleName};
use ::cluster::objects::{DefinitionFlag, Generation, Millis, Resource};
use ::cluster::observed::MasterKey;
use ::cluster::plan::Action;
use ::cluster::schedule::{Level, OnFailure, Series, SeriesKey};
use ::cluster::shipping::{Bucket, Phase, ShipmentState};

use super::world::{Event, World};
use crate::rng::Rng;

/// How much longer faults go on where minutes count.
const MORE: u64 = 360_000;

/// What there is of schedules.
pub struct Schedules {
    /// Chance of their own.
    rng: Rng,
    /// Backups in the bucket, and what each builds on.
    bucket: BTreeMap<String, Option<String>>,
    /// Errands that are under way, and which start of the controller they are of.
    under_way: BTreeSet<(SeriesKey, bool)>,
    starts: u64,
    was_running: bool,
    /// Runs that were begun: of which time, and which try.
    begun: BTreeSet<(SeriesKey, Millis, u32)>,
    /// What was being made when that was last looked at.
    running: BTreeMap<SeriesKey, (Millis, u32)>,
    /// Times of the last failures that were counted.
    failed: BTreeMap<SeriesKey, Millis>,
}

/// Something that happens.
pub enum Step {
    /// The controller looks at the time.
    Tick,
    /// Somebody is back from the bucket.
    Back { start: u64, errand: Errand, fails: bool },
    /// A node has uploaded a backup.
    Uploaded { node: usize, name: ResourceName, token: Generation, fails: bool },
}

fn remote() -> RemoteName {
    RemoteName::new("vault").expect("a valid name")
}

fn daily() -> ScheduleName {
    ScheduleName::new("daily").expect("a valid name")
}

fn bound(rng: &mut Rng, most: u64) -> Option<u32> {
    (!rng.one_in(4)).then(|| rng.range(1, most) as u32)
}

impl World<'_> {
    /// Has schedules in this run.
    pub fn with_schedules(&mut self, rng: Rng) {
        self.schedules = Some(Schedules {
            rng,
            bucket: BTreeMap::new(),
            under_way: BTreeSet::new(),
            starts: 0,
            was_running: true,
            begun: BTreeSet::new(),
            running: BTreeMap::new(),
            failed: BTreeMap::new(),
        });
    }

    pub(super) fn begin_schedules(&mut self) {
        let Some(schedules) = &mut self.schedules else { return };
        let rng = &mut schedules.rng;
        let word = || "sealed".to_owned();
        let bucket = Bucket {
            endpoint: "https://s3".to_owned(),
            bucket: "vault".to_owned(),
            region: "here".to_owned(),
            path_style: true,
            access_key: word(),
            secret_key: word(),
        };
        let schedule = NewSchedule {
            full: if rng.one_in(2) { "*/2 * * * *" } else { "*/3 * * * *" }.to_owned(),
            incremental: (!rng.one_in(4)).then(|| "* * * * *".to_owned()),
            keep_local: bound(rng, 2),
            keep_remote: bound(rng, 2),
            on_failure: if rng.one_in(2) { OnFailure::Retry } else { OnFailure::Skip },
            max_retries: bound(rng, 3),
        };
        self.command(Command::CreateRemote { name: remote(), bucket });
        self.command(Command::CreateSchedule { name: daily(), schedule });
        self.switch(Level::Controller, true);
        self.at(500, Event::Schedule(Step::Tick));
    }

    fn switch(&mut self, level: Level, on: bool) {
        let (remote, schedule) = (remote(), daily());
        self.command(Command::SetSwitch { level, remote, schedule, on, node: None });
    }

    fn unset(&mut self, level: Level) {
        let (remote, schedule) = (remote(), daily());
        self.command(Command::RemoveSwitch { level, remote, schedule });
    }

    /// Faults go on until some minutes have passed.
    pub(super) fn more_schedules(&mut self) -> Result<(), String> {
        if self.schedules.is_none() {
            return Ok(());
        }
        self.until(self.now + MORE)
    }

    pub(super) fn schedule(&mut self, step: Step) {
        match step {
            Step::Tick => {
                self.tick_schedules();
                self.at(500, Event::Schedule(Step::Tick));
            }
            Step::Back { start, errand, fails } => self.back(start, errand, fails),
            Step::Uploaded { node, name, token, fails } => {
                self.uploaded(node, &name, token, fails);
            }
        }
    }

    fn tick_schedules(&mut self) {
        let Some(schedules) = &mut self.schedules else { return };
        if self.running && !schedules.was_running {
            // Those who were under way for the one that crashed do not come back to it.
            schedules.starts += 1;
            schedules.under_way.clear();
        }
        schedules.was_running = self.running;
        if !self.running {
            return;
        }
        let acts = !self.calm && schedules.rng.percent(10);
        // Somebody has to enter the passphrase after each start.
        if self.observed.master.is_none() && (self.calm || schedules.rng.percent(30)) {
            self.observed.master = Some(MasterKey::new(&mut |bytes| bytes.fill(1)));
        }
        if acts {
            self.operate();
        }
        let now = Millis(self.now);
        let due = |series: &Series| series.next.is_some_and(|next| next <= now);
        if self.model.all_series().any(due) || self.now.is_multiple_of(20_000) {
            self.command(Command::Tick);
            self.look_at_all();
            if self.crash_now() {
                return;
            }
        }
        self.send_errands();
    }

    fn send_errands(&mut self) {
        let all = errands(&self.model, &self.observed, Millis(self.now));
        for errand in all {
            let Some(schedules) = &mut self.schedules else { return };
            let identity = (errand.key.clone(), errand.what == What::Look);
            if !self.running || !schedules.under_way.insert(identity) {
                continue;
            }
            let fails = !self.calm && schedules.rng.percent(15);
            let delay = schedules.rng.skewed(5, if self.calm { 200 } else { 5_000 });
            let start = schedules.starts;
            self.at(delay, Event::Schedule(Step::Back { start, errand, fails }));
        }
    }

    /// What an errand does to the bucket is done, whoever has sent it; what it found is told to that one
    /// only.
    fn back(&mut self, start: u64, errand: Errand, fails: bool) {
        let Some(schedules) = &mut self.schedules else { return };
        let name = format!("{}_", errand.key.0);
        let outcome = match &errand.what {
            _ if fails && errand.what == What::Look => Err("the store does not answer".to_owned()),
            What::Look => {
                let own = schedules.bucket.keys().filter(|id| id.starts_with(&name));
                Ok(own.cloned().collect())
            }
            What::Remove(backups) => {
                let gone = schedules.with_dependants(backups);
                // Those that build on others go first. It may be cut short anywhere.
                let some = (gone.len() as u64).max(1);
                let most = if fails { schedules.rng.below(some) } else { u64::MAX };
                for (_, id) in (0..most).zip(gone.iter().rev()) {
                    schedules.bucket.remove(id);
                }
                match fails {
                    true => Err("the store does not answer".to_owned()),
                    false => Ok(gone),
                }
            }
        };
        let same = schedules.starts == start && self.running && schedules.was_running;
        if !same {
            return;
        }
        schedules.under_way.remove(&(errand.key.clone(), errand.what == What::Look));
        let removed = match (&errand.what, &outcome) {
            (What::Remove(backups), Ok(_)) => backups.len() as u64,
            _ => 0,
        };
        self.stats.removed_chains += removed;
        let name = errand.key.0.clone();
        self.command(errand.done(outcome));
        if !self.crash_now() {
            self.look(&name);
        }
    }

    // Agents.

    /// An agent begins an upload, or stops one. It does nothing that is older than what it has begun.
    pub(super) fn ship(
        &mut self,
        index: usize,
        name: &ResourceName,
        generation: Generation,
        action: &Action,
    ) {
        let Some(schedules) = &mut self.schedules else { return };
        let Some(record) = self.agents[index].records.get_mut(name) else { return };
        if generation < record.seen {
            self.stats.refused_steps += 1;
            return;
        }
        match action {
            Action::Upload(order) => {
                let known = record.shipments.iter().any(|shipment| shipment.token == order.token);
                if known || !record.snapshots.contains_key(&order.snapshot) {
                    return;
                }
                let (token, phase) = (order.token, Phase::Shipping);
                let (done_percent, cause, door) = (0, None, None);
                record.shipments.push(ShipmentState { token, phase, done_percent, cause, door });
                let fails = !self.calm && schedules.rng.percent(15);
                let delay = schedules.rng.skewed(10, if self.calm { 2_000 } else { 40_000 });
                let name = name.clone();
                self.at(delay, Event::Schedule(Step::Uploaded { node: index, name, token, fails }));
            }
            Action::StopShipping { token } => {
                let shipment = record.shipments.iter_mut().find(|s| s.token == *token);
                if let Some(shipment) = shipment.filter(|s| s.phase.is_active()) {
                    shipment.phase = Phase::Aborted;
                }
            }
            _ => {}
        }
        self.stats.steps += 1;
        self.tell(index, name);
    }

    fn uploaded(&mut self, index: usize, name: &ResourceName, token: Generation, fails: bool) {
        let agent = &mut self.agents[index];
        let record = agent.records.get_mut(name).filter(|_| agent.up);
        let shipment = record.and_then(|record| {
            record.shipments.iter_mut().find(|s| s.token == token && s.phase.is_active())
        });
        let Some(shipment) = shipment else { return };
        // What is uploaded is what was ordered; it may not be wanted any more.
        let ordered = self.model.snapshots_of(name).find_map(|snapshot| {
            let upload = snapshot.uploads.get(&remote())?;
            (upload.token == token).then(|| upload.clone())
        });
        (shipment.phase, shipment.cause) = match fails {
            true => (Phase::Failed, Some("the store does not answer".to_owned())),
            false => (Phase::Success, None),
        };
        if let (Some(upload), Some(schedules), false) = (ordered, &mut self.schedules, fails) {
            schedules.bucket.insert(upload.backup, upload.base.map(|(_, backup)| backup));
        }
        self.tell(index, name);
    }

    // The operator.

    fn operate(&mut self) {
        let names: Vec<ResourceName> = self.model.definitions().map(|d| d.name.clone()).collect();
        let snapshots: Vec<_> = self.model.snapshots().filter(|s| s.scheduled.is_some()).collect();
        let snapshots: Vec<_> =
            snapshots.into_iter().map(|s| (s.resource.clone(), s.name.clone())).collect();
        let Some(schedules) = &mut self.schedules else { return };
        let rng = &mut schedules.rng;
        let what = rng.weighted(&[3, 2, 3, 2, 2, 2, 1]);
        let on = rng.one_in(2);
        let name = (!names.is_empty()).then(|| rng.pick(&names).clone());
        let snapshot = (!snapshots.is_empty()).then(|| rng.pick(&snapshots).clone());
        let keep = ScheduleEdit {
            keep_local: Some(bound(rng, 2)),
            keep_remote: Some(bound(rng, 2)),
            ..ScheduleEdit::default()
        };
        match (what, name, snapshot) {
            (0, Some(name), _) => self.switch(Level::Definition(name), on),
            (1, Some(name), _) => self.unset(Level::Definition(name)),
            (2, _, _) => self.switch(Level::Controller, on),
            (3, _, _) => {
                self.command(Command::ModifySchedule { name: daily(), schedule: keep });
            }
            (4, _, Some((name, snapshot))) => {
                self.command(Command::DeleteSnapshot { name, snapshot, nodes: vec![] });
            }
            (5, name, _) => {
                let (snapshot, uploads, downloads) = (None, true, true);
                let remote = remote();
                let abort = Command::AbortBackups { remote, name, snapshot, uploads, downloads };
                self.command(abort);
            }
            (6, _, _) => {
                // Somebody deletes a backup, and says nothing of it.
                let Some(schedules) = &mut self.schedules else { return };
                let ids: Vec<String> = schedules.bucket.keys().cloned().collect();
                if !ids.is_empty() && !self.model.snapshots().any(|s| s.is_uploading()) {
                    let id = schedules.rng.pick(&ids).clone();
                    for gone in schedules.with_dependants(&[id]) {
                        schedules.bucket.remove(&gone);
                    }
                }
            }
            _ => {}
        }
        self.look_at_all();
    }

    // What is checked.

    /// After every change: no run is begun twice, and no two of a resource definition at a time.
    pub(super) fn check_schedules(&mut self) {
        let Some(schedules) = &mut self.schedules else { return };
        let mut broken = None;
        let mut running = BTreeMap::new();
        for series in self.model.all_series() {
            let key = series.key();
            if let Some(made) = &series.running {
                let run = (made.due.at, made.due.failed);
                let new = schedules.running.get(&key) != Some(&run);
                if new && !schedules.begun.insert((key.clone(), run.0, run.1)) {
                    broken = Some(format!("{} of {} was begun twice", run.0.0, key.0));
                }
                running.insert(key.clone(), run);
            } else if schedules.running.contains_key(&key) && series.failure.is_none() {
                self.stats.backups += 1;
            }
            let failure = series.failure.as_ref().map(|failure| failure.at);
            if let Some(at) = failure {
                if schedules.failed.insert(key, at) != Some(at) {
                    self.stats.failed_backups += 1;
                }
            }
        }
        schedules.running = running;
        for definition in self.model.definitions() {
            let name = &definition.name;
            let active = self.model.snapshots_of(name).filter(|snapshot| snapshot.is_uploading());
            if active.count() > 1 {
                broken = Some(format!("two backups of {name} are made at the same time"));
            }
        }
        let lost = schedules.bucket.iter().find(|(_, base)| {
            base.as_ref().is_some_and(|base| !schedules.bucket.contains_key(base))
        });
        if let Some((id, base)) = lost {
            broken = Some(format!("backup {id} can not be restored without {base:?}"));
        }
        self.broken = self.broken.take().or(broken);
    }

    /// An operator has everything backed up when faults have ended.
    pub(super) fn heal_schedules(&mut self) {
        if self.schedules.is_none() {
            return;
        }
        let names: Vec<ResourceName> = self.model.definitions().map(|d| d.name.clone()).collect();
        self.switch(Level::Controller, true);
        names.into_iter().for_each(|name| self.unset(Level::Definition(name)));
        let both = Some("* * * * *".to_owned());
        let schedule = ScheduleEdit {
            incremental: Some(both),
            keep_local: Some(Some(1)),
            keep_remote: Some(Some(1)),
            ..ScheduleEdit::default()
        };
        self.command(Command::ModifySchedule { name: daily(), schedule });
    }

    /// Backups are made every minute, and no more are kept than are to be. Then schedules end.
    pub(super) fn end_schedules(&mut self) -> Result<(), String> {
        if self.schedules.is_none() {
            return Ok(());
        }
        // A full one comes within three minutes, and what is left of a minute is not looked at.
        self.until((self.now / 60_000 + 3) * 60_000 + 40_000)?;
        for definition in self.model.definitions() {
            let name = &definition.name;
            let usable = self.model.resources_of(name).any(Resource::is_replica)
                && !self.forgiven.contains(name)
                && !definition.flags.contains(&DefinitionFlag::Delete);
            if !usable {
                continue;
            }
            let Some(series) = self.model.series(name, &remote(), &daily()) else {
                return Err(format!("no backups are made of {name}"));
            };
            let last = series.last.as_ref().map(|last| last.at.0);
            if last.is_none_or(|last| self.now - last > 60_000) {
                return Err(format!("the last backup of {name} was {last:?}: {series:?}"));
            }
            let idle = series.due.is_none() && series.running.is_none();
            if !idle || !series.removing.is_empty() || series.fulls.len() != 1 {
                return Err(format!("too much is left to be done of {series:?}"));
            }
            let full = &series.fulls[0].backup;
            let Some(schedules) = &self.schedules else { return Ok(()) };
            if !schedules.bucket.contains_key(full) {
                return Err(format!("backup {full} is not there"));
            }
            let own = self.model.snapshots_of(name).filter_map(|s| s.scheduled.as_ref());
            let chains = own.map(|own| own.full).collect::<Vec<_>>();
            let fulls = chains.iter().filter(|full| **full == Some(true)).count();
            if fulls != 1 || chains.contains(&None) {
                return Err(format!("snapshots of {name} are not those of one chain: {chains:?}"));
            }
        }
        self.command(Command::DeleteSchedule { name: daily() });
        self.until(self.now + 15_000)?;
        match self.model.all_series().next() {
            Some(series) => Err(format!("this is left: {series:?}")),
            None => Ok(()),
        }
    }
}

impl Schedules {
    /// Backups with all that builds on them, in the order in which they build on each other.
    fn with_dependants(&self, backups: &[String]) -> Vec<String> {
        let there = backups.iter().filter(|id| self.bucket.contains_key(*id));
        let mut gone: Vec<String> = there.cloned().collect();
        let mut index = 0;
        while let Some(id) = gone.get(index).cloned() {
            let on = self.bucket.iter().filter(|(_, base)| base.as_ref() == Some(&id));
            let on: Vec<String> = on.map(|(other, _)| other.clone()).collect();
            gone.extend(on.into_iter().filter(|other| !gone.contains(other)).collect::<Vec<_>>());
            index += 1;
        }
        gone
    }
}
