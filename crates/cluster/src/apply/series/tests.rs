//! Backups by schedule, from outside: what is made when, what a crash leaves, and what is kept.

use std::collections::BTreeMap;

use super::*;
use crate::apply::shipping::tests::{bed, remote, replica, say, take};
use crate::apply::tests::{Bed, node, rd};
use crate::command::{Command, NewSchedule, ScheduleEdit};
use crate::errand::{Errand, What, errands};
use crate::model::Model;

/// 2026-11-29 00:00 UTC, a Sunday.
const SUNDAY: u64 = 20_786 * 86_400_000;
const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;

fn name() -> ScheduleName {
    ScheduleName::new("daily").unwrap()
}

fn key() -> SeriesKey {
    (rd("web"), remote(), name())
}

/// A cluster whose backups land in a bucket: the ids, and what each builds on.
struct Cluster {
    bed: Bed,
    bucket: BTreeMap<String, Option<String>>,
    /// What is made of the next upload.
    next: Phase,
}

/// At Sunday 00:30 `web` has full backups on Sundays at 02:00, others at every full hour.
fn cluster(change: impl FnOnce(&mut NewSchedule)) -> Cluster {
    let mut bed = bed();
    bed.now = SUNDAY + 30 * MINUTE;
    let mut schedule = NewSchedule {
        full: "0 2 * * sun".to_owned(),
        incremental: Some("0 * * * *".to_owned()),
        keep_local: None,
        keep_remote: None,
        on_failure: OnFailure::Skip,
        max_retries: None,
    };
    change(&mut schedule);
    bed.ok(Command::CreateSchedule { name: name(), schedule });
    let mut cluster = Cluster { bed, bucket: BTreeMap::new(), next: Phase::Success };
    cluster.switch(true);
    cluster
}

impl Cluster {
    fn switch(&mut self, on: bool) {
        let level = Level::Definition(rd("web"));
        let (remote, schedule) = (remote(), name());
        self.bed.ok(Command::SetSwitch { level, remote, schedule, on, node: None });
    }

    fn series(&self) -> &Series {
        self.bed.model.series(&rd("web"), &remote(), &name()).unwrap()
    }

    fn errands(&self) -> Vec<Errand> {
        errands(&self.bed.model, &self.bed.observed, Millis(self.bed.now))
    }

    fn at(&mut self, time: u64) {
        self.bed.now = time;
        self.bed.ok(Command::Tick);
    }

    /// Goes to the bucket for everything that has to be done there.
    fn go(&mut self) {
        for errand in self.errands() {
            let found = match &errand.what {
                What::Look => self.bucket.keys().cloned().collect(),
                What::Remove(backups) => self.delete(backups),
            };
            let done = errand.done(Ok(found));
            self.bed.ok(done);
        }
    }

    fn delete(&mut self, backups: &[String]) -> Vec<String> {
        let mut gone = backups.to_vec();
        loop {
            let builds = |(id, base): &(&String, &Option<String>)| {
                base.as_ref().is_some_and(|base| gone.contains(base)) && !gone.contains(id)
            };
            let Some((more, _)) = self.bucket.iter().find(builds) else { break };
            gone.push(more.clone());
        }
        self.bucket.retain(|id, _| !gone.contains(id));
        gone
    }

    /// Agents take the snapshot that is being made, and upload it.
    fn upload(&mut self) {
        take(&mut self.bed);
        let Some(running) = &self.series().running else { panic!("nothing is being made") };
        let snapshot = running.snapshot.clone();
        let found = self.bed.model.snapshot(&rd("web"), &snapshot).unwrap();
        let upload = found.uploads[&remote()].clone();
        let on = upload.node.clone().unwrap();
        if self.next == Phase::Success {
            self.bucket.insert(upload.backup, upload.base.map(|(_, backup)| backup));
        }
        say(&mut self.bed, &rd("web"), &on, upload.token, self.next);
        self.gone();
    }

    /// Agents delete the snapshots that are to go.
    fn gone(&mut self) {
        let going: Vec<SnapshotName> = self
            .bed
            .model
            .snapshots()
            .filter(|s| s.is_deleting())
            .map(|s| s.name.clone())
            .collect();
        for index in 0..3 {
            let replica = replica(&mut self.bed, &rd("web"), &node(index));
            replica.snapshots.retain(|name, _| !going.contains(name));
        }
        self.bed.ok(Command::Settle { name: rd("web") });
    }

    /// The time comes, and what is due is made.
    fn make(&mut self, time: u64) {
        self.at(time);
        self.go();
        self.upload();
    }

    fn snapshots(&self) -> Vec<String> {
        self.bed.model.snapshots().map(|s| s.name.to_string()).collect()
    }

    /// The controller is started again: all it has is what was stored.
    fn restart(&mut self) {
        let stored = Model::from_rows(self.bed.model.rows());
        assert!(stored == self.bed.model, "the indexes follow from the rows");
        self.bed.model = stored;
    }
}

#[test]
fn the_first_is_full_and_others_build_on_it_until_a_full_one_is_due() {
    let mut cluster = cluster(|_| {});
    assert_eq!(cluster.series().next, Some(Millis(SUNDAY + HOUR)));
    assert_eq!(cluster.bed.model.next_wake(Millis(cluster.bed.now)), cluster.series().next);
    cluster.at(SUNDAY + HOUR - 10);
    assert_eq!((cluster.errands(), &cluster.series().due), (vec![], &None), "it is not yet time");
    cluster.make(SUNDAY + HOUR);
    let first = "web_back_20261129_010000".to_owned();
    assert_eq!(cluster.bucket.first_key_value().unwrap(), (&first, &None));
    let series = cluster.series().clone();
    assert_eq!((series.running, series.due, series.failure), (None, None, None));
    assert!(series.last.unwrap().full && series.fulls[0].backup == first);

    // Both times come at two: a full one is made.
    cluster.make(SUNDAY + 2 * HOUR);
    assert_eq!(cluster.bucket["web_back_20261129_020000"], None);
    cluster.make(SUNDAY + 3 * HOUR);
    let second = Some("web_back_20261129_020000".to_owned());
    assert_eq!(cluster.bucket["web_back_20261129_030000"], second);
    assert!(!cluster.series().last.as_ref().unwrap().full);
    assert_eq!(cluster.series().fulls.len(), 2);
    // What it would build on was deleted by somebody else.
    cluster.bucket.clear();
    cluster.make(SUNDAY + 4 * HOUR);
    assert_eq!(cluster.bucket["web_back_20261129_040000"], None);
    assert_eq!(cluster.series().fulls.len(), 1, "what is gone is not counted");
}

#[test]
fn what_was_missed_is_made_once_and_what_is_due_is_not_made_twice() {
    let mut cluster = cluster(|_| {});
    cluster.make(SUNDAY + HOUR);
    // Nobody was there for two days: a full one was due in that time.
    cluster.at(SUNDAY + 50 * HOUR + 7);
    let due = cluster.series().due.clone().unwrap();
    assert!(due.full && due.at == Millis(SUNDAY + 2 * HOUR), "{due:?}");
    let errand = cluster.errands().remove(0);
    for _ in 0..3 {
        // Whoever crashed comes with the same answer again.
        cluster.restart();
        cluster.bed.ok(errand.clone().done(Ok(vec![])));
    }
    assert_eq!(cluster.bed.model.snapshots().filter(|s| s.is_pending()).count(), 1);
    assert_eq!(cluster.errands(), [], "one at a time");
    cluster.restart();
    cluster.upload();
    assert_eq!((cluster.bucket.len(), cluster.errands()), (2, vec![]));
    assert_eq!(cluster.series().next, Some(Millis(SUNDAY + 51 * HOUR)));

    // The next time comes while one is being made.
    cluster.at(SUNDAY + 51 * HOUR);
    cluster.go();
    cluster.at(SUNDAY + 52 * HOUR);
    cluster.at(SUNDAY + 53 * HOUR);
    assert!(cluster.series().due.is_some() && cluster.errands().is_empty());
    cluster.upload();
    cluster.go();
    cluster.upload();
    assert_eq!((cluster.bucket.len(), cluster.errands()), (4, vec![]));
    // One that an operator makes is waited for, too.
    let by_hand = Command::CreateBackup {
        name: rd("web"),
        remote: remote(),
        snapshot: None,
        stamp: "20261201_053000".to_owned(),
        node: None,
        incremental: true,
        present: Vec::new(),
    };
    cluster.bed.ok(by_hand);
    cluster.at(SUNDAY + 54 * HOUR);
    assert_eq!(cluster.errands(), []);
    assert!(cluster.series().due.is_some());
}

#[test]
fn what_can_not_be_begun_waits_and_has_not_failed() {
    let mut cluster = cluster(|_| {});
    let master = cluster.bed.observed.master.take();
    cluster.at(SUNDAY + HOUR);
    assert_eq!(cluster.errands(), [], "the keys of the bucket are locked");
    cluster.bed.observed.master = master;
    cluster.bed.observed.nodes.values_mut().for_each(|node| node.connected = false);
    cluster.go();
    let due = cluster.series().due.clone().unwrap();
    assert!(due.waits.as_ref().unwrap().contains("no node with a replica is connected"), "{due:?}");
    assert_eq!((due.failed, &cluster.series().failure), (0, &None));
    assert_eq!(cluster.errands(), [], "not before a minute has passed");
    assert_eq!(cluster.bed.model.next_wake(Millis(cluster.bed.now)), Some(due.again));
    cluster.bed.observed.nodes.values_mut().for_each(|node| node.connected = true);
    cluster.make(SUNDAY + HOUR + 2 * MINUTE);
    assert_eq!(cluster.bucket.len(), 1, "it was made all the same");
}

#[test]
fn what_failed_is_skipped_or_tried_again() {
    for (on_failure, max_retries, tries) in [
        (OnFailure::Skip, None, 1),
        (OnFailure::Retry, Some(0), 1),
        (OnFailure::Retry, Some(2), 3),
        (OnFailure::Retry, None, 20),
    ] {
        let mut cluster = cluster(|schedule| {
            (schedule.on_failure, schedule.max_retries) = (on_failure, max_retries);
        });
        cluster.next = Phase::Failed;
        let mut made = 0;
        for minute in 0..20 {
            cluster.at(SUNDAY + HOUR + minute * (MINUTE + 1_000));
            if cluster.errands().is_empty() {
                continue;
            }
            cluster.go();
            cluster.upload();
            made += 1;
            let failure = cluster.series().failure.as_ref().unwrap();
            assert_eq!(failure.cause, "the bucket is gone");
            assert_eq!(cluster.snapshots(), Vec::<String>::new(), "they would fill the pool");
            assert_eq!(cluster.errands(), [], "not before a minute has passed");
        }
        assert_eq!(made, tries, "{on_failure} {max_retries:?}");
        // The next has its own tries.
        cluster.next = Phase::Success;
        cluster.make(SUNDAY + 2 * HOUR);
        assert_eq!((cluster.bucket.len(), &cluster.series().failure), (1, &None));
    }
}

#[test]
fn a_bucket_that_can_not_be_used_has_no_snapshot_made_for_it() {
    let mut cluster = cluster(|schedule| schedule.on_failure = OnFailure::Retry);
    cluster.at(SUNDAY + HOUR);
    let errand = cluster.errands().remove(0);
    cluster.bed.ok(errand.done(Err("the store does not answer".to_owned())));
    assert_eq!(cluster.bed.model.snapshots().count(), 0);
    assert_eq!(cluster.series().due.as_ref().unwrap().failed, 1);
    // What is refused for good counts as a failure, too.
    cluster.at(SUNDAY + HOUR + 2 * MINUTE);
    cluster.bed.observed.nodes.values_mut().for_each(|node| {
        let thin = node.pools.values_mut();
        thin.for_each(|pool| pool.no_snapshots = Some("it is too old".to_owned()));
    });
    cluster.go();
    let series = cluster.series();
    assert_eq!(series.due.as_ref().unwrap().failed, 2);
    let cause = &series.failure.as_ref().unwrap().cause;
    assert!(cause.contains("it is too old"), "{cause}");
    assert_eq!(cluster.bed.model.snapshots().count(), 0, "nothing is left of the attempt");
}

#[test]
fn what_an_operator_gives_up_is_not_tried_again() {
    let mut cluster = cluster(|schedule| schedule.on_failure = OnFailure::Retry);
    cluster.at(SUNDAY + HOUR);
    cluster.go();
    cluster.bed.ok(Command::AbortBackups {
        remote: remote(),
        name: Some(rd("web")),
        snapshot: None,
        uploads: true,
        downloads: true,
    });
    cluster.bed.ok(Command::Settle { name: rd("web") });
    let series = cluster.series();
    assert_eq!((&series.due, &series.running), (&None, &None));
    assert_eq!(series.failure.as_ref().unwrap().cause, "it was given up");
    cluster.make(SUNDAY + 2 * HOUR);
    assert_eq!(cluster.bucket.len(), 1);
}

#[test]
fn a_snapshot_that_is_not_made_is_a_failure() {
    let mut cluster = cluster(|schedule| schedule.on_failure = OnFailure::Retry);
    cluster.at(SUNDAY + HOUR);
    cluster.go();
    let snapshot = cluster.series().running.as_ref().unwrap().snapshot.clone();
    let abort = Command::AbortSnapshot { name: rd("web"), snapshot, disconnected: true };
    cluster.bed.ok(abort);
    cluster.bed.ok(Command::Settle { name: rd("web") });
    cluster.gone();
    let series = cluster.series();
    assert!(series.running.is_none() && series.due.as_ref().unwrap().failed == 1, "{series:?}");
    cluster.make(SUNDAY + HOUR + 2 * MINUTE);
    assert_eq!(cluster.bucket.len(), 1);
}

#[test]
fn the_newest_chains_are_kept_here_and_there() {
    let mut cluster = cluster(|schedule| {
        (schedule.keep_local, schedule.keep_remote) = (Some(1), Some(2));
        schedule.full = "0 */2 * * *".to_owned();
    });
    // Of others nothing goes.
    let by_hand = ["mine".to_owned()];
    let mine = Command::CreateSnapshots {
        snapshots: vec![(rd("web"), SnapshotName::new("mine").unwrap(), Vec::new())],
        props: Props::new(),
    };
    cluster.bed.ok(mine);
    take(&mut cluster.bed);
    cluster.make(SUNDAY + HOUR);
    cluster.make(SUNDAY + 2 * HOUR);
    assert_eq!(cluster.snapshots(), ["back_20261129_020000", "mine"]);
    cluster.make(SUNDAY + 3 * HOUR);
    assert_eq!(
        cluster.snapshots(),
        ["back_20261129_020000", "back_20261129_030000", "mine"],
        "a chain is kept as a whole"
    );
    assert_eq!(cluster.bucket.len(), 3);
    cluster.make(SUNDAY + 4 * HOUR);
    assert_eq!(cluster.snapshots(), ["back_20261129_040000", "mine"]);
    let going = vec!["web_back_20261129_010000".to_owned()];
    let errands = cluster.errands();
    assert_eq!(errands, [Errand { key: key(), what: What::Remove(going.clone()) }]);

    // It can not be deleted now: later, and backups go on.
    let denied = errands[0].clone().done(Err("access denied".to_owned()));
    cluster.bed.ok(denied);
    assert_eq!(cluster.errands(), []);
    assert!(cluster.series().failure.as_ref().unwrap().cause.contains("access denied"));
    cluster.restart();
    cluster.make(SUNDAY + 5 * HOUR);
    let base = cluster.bucket["web_back_20261129_050000"].clone();
    assert_eq!(base.as_deref(), Some("web_back_20261129_040000"));
    assert_eq!(cluster.bucket.len(), 4, "the first is gone");
    assert!(cluster.series().removing.is_empty());
    cluster.make(SUNDAY + 6 * HOUR);
    cluster.go();
    let left: Vec<&String> = cluster.bucket.keys().collect();
    assert_eq!(
        left,
        ["web_back_20261129_040000", "web_back_20261129_050000", "web_back_20261129_060000"],
        "two fulls, and what builds on them"
    );
    assert_eq!(cluster.snapshots(), ["back_20261129_060000", by_hand[0].as_str()]);

    // Fewer are to be kept: with the next look.
    let fewer = ScheduleEdit { keep_remote: Some(Some(1)), ..ScheduleEdit::default() };
    cluster.bed.ok(Command::ModifySchedule { name: name(), schedule: fewer });
    cluster.at(SUNDAY + 6 * HOUR + MINUTE);
    cluster.go();
    assert_eq!(cluster.bucket.len(), 1);
}

#[test]
fn nothing_is_deleted_from_a_remote_while_a_backup_is_made() {
    let mut cluster = cluster(|schedule| schedule.keep_remote = Some(1));
    cluster.make(SUNDAY + HOUR);
    cluster.make(SUNDAY + 2 * HOUR);
    let remove = cluster.errands();
    assert!(matches!(&remove[..], [Errand { what: What::Remove(_), .. }]), "{remove:?}");
    cluster.at(SUNDAY + 3 * HOUR);
    let look = cluster.errands().into_iter().find(|errand| errand.what == What::Look).unwrap();
    let present = cluster.bucket.keys().cloned().collect();
    cluster.bed.ok(look.done(Ok(present)));
    assert_eq!(cluster.errands(), []);
    cluster.upload();
    assert_eq!(cluster.errands(), remove);
    cluster.go();
    assert_eq!((cluster.bucket.len(), cluster.errands()), (2, vec![]));
}

#[test]
fn nothing_builds_on_what_goes() {
    let mut cluster = cluster(|schedule| schedule.keep_remote = Some(1));
    cluster.make(SUNDAY + HOUR);
    cluster.make(SUNDAY + 2 * HOUR);
    let Errand { what: What::Remove(going), .. } = cluster.errands().remove(0) else { panic!() };
    assert_eq!(going, ["web_back_20261129_010000"]);
    // The newer one is deleted by hand before the older one is gone.
    cluster.bucket.remove("web_back_20261129_020000");
    let backups = vec!["web_back_20261129_020000".to_owned()];
    cluster.bed.ok(Command::ForgetBackups { remote: remote(), backups });
    cluster.at(SUNDAY + 3 * HOUR);
    let look = cluster.errands().into_iter().find(|errand| errand.what == What::Look).unwrap();
    cluster.bed.ok(look.done(Ok(vec![going[0].clone()])));
    cluster.upload();
    assert_eq!(cluster.bucket["web_back_20261129_030000"], None);
}

#[test]
fn what_is_switched_off_makes_nothing_and_misses_nothing() {
    let mut cluster = cluster(|_| {});
    cluster.make(SUNDAY + HOUR);
    cluster.at(SUNDAY + 2 * HOUR);
    assert!(cluster.series().due.is_some());
    cluster.switch(false);
    let series = cluster.series();
    assert_eq!((&series.due, series.next, series.fulls.len()), (&None, None, 1));
    cluster.at(SUNDAY + 5 * HOUR);
    assert_eq!(cluster.errands(), []);
    cluster.bed.now = SUNDAY + 6 * HOUR + MINUTE;
    cluster.switch(true);
    cluster.at(SUNDAY + 6 * HOUR + 2 * MINUTE);
    assert_eq!(cluster.errands(), [], "only what comes from then on");
    cluster.make(SUNDAY + 7 * HOUR);
    let base = cluster.bucket["web_back_20261129_070000"].as_deref();
    assert_eq!(base, Some("web_back_20261129_010000"), "the chain goes on");

    // Switched off while one is being made: it is made, and is the last.
    cluster.at(SUNDAY + 8 * HOUR);
    cluster.go();
    cluster.switch(false);
    cluster.upload();
    assert_eq!(cluster.bucket.len(), 3);
    let (level, remote, schedule) = (Level::Definition(rd("web")), remote(), name());
    cluster.bed.ok(Command::RemoveSwitch { level, remote, schedule });
    assert_eq!(cluster.bed.model.all_series().count(), 0);
    cluster.at(SUNDAY + 9 * HOUR);
    assert_eq!((cluster.errands(), cluster.snapshots().len()), (vec![], 3));
}

#[test]
fn a_clock_that_was_wrong_delays_nothing_for_long() {
    let mut cluster = cluster(|_| {});
    cluster.make(SUNDAY + HOUR);
    // An hour comes twice: nothing is made twice.
    cluster.make(SUNDAY + 3 * HOUR);
    cluster.at(SUNDAY + 2 * HOUR);
    assert_eq!(cluster.errands(), []);
    assert_eq!(cluster.series().next, Some(Millis(SUNDAY + 4 * HOUR)));
    // A year that has not come is taken for nothing.
    cluster.at(SUNDAY + 9000 * HOUR);
    assert!(cluster.series().due.is_some());
    cluster.go();
    cluster.upload();
    cluster.at(SUNDAY + 4 * HOUR + 1);
    assert_eq!(cluster.errands(), []);
    cluster.make(SUNDAY + 5 * HOUR);
    assert_eq!((cluster.bucket.len(), cluster.errands()), (4, vec![]));
}

#[test]
fn other_times_count_from_when_they_are_set() {
    let mut cluster = cluster(|_| {});
    cluster.make(SUNDAY + HOUR);
    cluster.bed.now = SUNDAY + HOUR + 30 * MINUTE;
    let other = ScheduleEdit { incremental: Some(Some("*/5 * * * *".to_owned())), ..default() };
    cluster.bed.ok(Command::ModifySchedule { name: name(), schedule: other });
    assert_eq!(cluster.errands(), []);
    assert_eq!(cluster.series().next, Some(Millis(SUNDAY + HOUR + 35 * MINUTE)));
    let none = ScheduleEdit { incremental: Some(None), ..default() };
    cluster.bed.ok(Command::ModifySchedule { name: name(), schedule: none });
    assert_eq!(cluster.series().next, Some(Millis(SUNDAY + 2 * HOUR)));
}

fn default() -> ScheduleEdit {
    ScheduleEdit::default()
}

#[test]
fn a_node_is_preferred_as_long_as_it_can() {
    for (preferred, connected, expected) in [(1, true, 1), (0, true, 0), (1, false, 0)] {
        let mut cluster = cluster(|_| {});
        let (level, remote, schedule) = (Level::Controller, remote(), name());
        let (on, node_name) = (true, Some(node(preferred)));
        let set = Command::SetSwitch { level, remote, schedule, on, node: node_name };
        let own = Level::Definition(rd("web"));
        cluster.bed.ok(set);
        let (remote, schedule) = (self::remote(), name());
        cluster.bed.ok(Command::RemoveSwitch { level: own, remote, schedule });
        cluster.at(SUNDAY + HOUR);
        cluster.go();
        take(&mut cluster.bed);
        if !connected {
            // It goes away between the snapshot and the upload.
            let token = cluster.running().token;
            let snapshot = cluster.series().running.as_ref().unwrap().snapshot.clone();
            cluster.bed.ok(Command::Settle { name: rd("web") });
            cluster.bed.observed.nodes.get_mut(&node(1)).unwrap().connected = false;
            let wait = |upload: &mut Upload| upload.phase = Phase::Waiting;
            let mut found = cluster.bed.model.snapshot(&rd("web"), &snapshot).unwrap().clone();
            wait(found.uploads.get_mut(&self::remote()).unwrap());
            cluster.bed.model.put(Object::Snapshot(found));
            cluster.bed.ok(Command::Settle { name: rd("web") });
            assert_eq!(cluster.running().token, token);
        }
        let upload = cluster.running();
        assert_eq!((upload.phase, upload.node), (Phase::Shipping, Some(node(expected))));
    }
}

impl Cluster {
    fn running(&self) -> Upload {
        let snapshot = &self.series().running.as_ref().unwrap().snapshot;
        self.bed.model.snapshot(&rd("web"), snapshot).unwrap().uploads[&remote()].clone()
    }
}

#[test]
fn two_schedules_take_turns_and_do_not_share_chains() {
    let mut cluster = cluster(|_| {});
    let weekly = ScheduleName::new("weekly").unwrap();
    let schedule = NewSchedule {
        full: "0 1 * * sun".to_owned(),
        incremental: Some("0 3 * * *".to_owned()),
        keep_local: Some(1),
        keep_remote: Some(1),
        on_failure: OnFailure::Skip,
        max_retries: None,
    };
    cluster.bed.ok(Command::CreateSchedule { name: weekly.clone(), schedule });
    let (level, schedule) = (Level::Controller, weekly.clone());
    let set = Command::SetSwitch { level, remote: remote(), schedule, on: true, node: None };
    cluster.bed.ok(set);
    cluster.at(SUNDAY + HOUR);
    assert_eq!(cluster.errands().len(), 1, "one after the other");
    cluster.go();
    cluster.upload();
    cluster.bed.now += 1_000;
    cluster.go();
    let series = cluster.bed.model.series(&rd("web"), &remote(), &weekly).unwrap();
    let snapshot = series.running.as_ref().unwrap().snapshot.clone();
    take(&mut cluster.bed);
    let found = cluster.bed.model.snapshot(&rd("web"), &snapshot).unwrap();
    let upload = found.uploads[&remote()].clone();
    assert_eq!(upload.base, None);
    say(&mut cluster.bed, &rd("web"), &upload.node.unwrap(), upload.token, Phase::Success);
    cluster.bucket.insert(upload.backup, None);
    cluster.bed.now += 60_000;
    cluster.at(SUNDAY + 90 * MINUTE);
    assert_eq!(cluster.errands(), [], "each keeps its own");
    assert_eq!(cluster.bed.model.snapshots().count(), 2);
}
