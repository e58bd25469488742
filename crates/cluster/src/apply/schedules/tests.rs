//! Schedules and switches, from outside.

use super::*;
use crate::apply::shipping::tests::{bed, bucket, remote};
use crate::apply::tests::{Bed, rd};
use crate::command::{Command, NewDefinition};
use crate::objects::{Filter, Props};
use crate::schedule::{OnFailure, decides, switched_on};

fn name() -> ScheduleName {
    ScheduleName::new("daily").unwrap()
}

fn new(full: &str) -> NewSchedule {
    NewSchedule {
        full: full.to_owned(),
        incremental: None,
        keep_local: None,
        keep_remote: None,
        on_failure: OnFailure::Skip,
        max_retries: None,
    }
}

fn create(schedule: NewSchedule) -> Command {
    Command::CreateSchedule { name: name(), schedule }
}

fn set(level: Level, on: bool) -> Command {
    Command::SetSwitch { level, remote: remote(), schedule: name(), on, node: None }
}

fn unset(level: Level) -> Command {
    Command::RemoveSwitch { level, remote: remote(), schedule: name() }
}

fn is_on(bed: &Bed, name: &str) -> bool {
    let definition = bed.model.definition(&rd(name)).unwrap();
    switched_on(&bed.model, definition, &remote(), &self::name()).is_some()
}

#[test]
fn a_schedule_is_made_changed_and_removed() {
    let mut bed = Bed::new(1);
    let refusal = bed.refused(create(new("0 25 * * *")));
    assert_eq!(refusal.code.number(), 240);
    assert!(refusal.cause.contains("`25` is no hour"), "{refusal}");
    let wrong = NewSchedule { incremental: Some("daily".to_owned()), ..new("0 2 * * *") };
    assert_eq!(bed.refused(create(wrong)).code, Code::InvalidTime);
    for keep in [0, KEEP_AT_MOST + 1] {
        let local = NewSchedule { keep_local: Some(keep), ..new("0 2 * * *") };
        assert_eq!(bed.refused(create(local)).code, Code::InvalidBackup);
        let remote = NewSchedule { keep_remote: Some(keep), ..new("0 2 * * *") };
        assert_eq!(bed.refused(create(remote)).code, Code::InvalidBackup);
    }
    let incremental = Some("0 * * * *".to_owned());
    bed.ok(create(NewSchedule { incremental, keep_local: Some(3), ..new("0 2 * * *") }));
    assert_eq!(bed.refused(create(new("0 2 * * *"))).code, Code::ScheduleExists);

    let modify = |schedule| Command::ModifySchedule { name: name(), schedule };
    let other = ScheduleEdit { full: Some("0 3 * * 1".to_owned()), ..Default::default() };
    bed.ok(modify(other));
    let changed = ScheduleEdit {
        incremental: Some(None),
        keep_local: Some(None),
        keep_remote: Some(Some(2)),
        on_failure: Some(OnFailure::Retry),
        max_retries: Some(Some(4)),
        ..Default::default()
    };
    bed.ok(modify(changed));
    let schedule = bed.model.schedule(&name()).unwrap();
    assert_eq!(schedule.full.to_string(), "0 3 * * 1");
    assert_eq!((&schedule.incremental, schedule.keep_local), (&None, None));
    assert_eq!((schedule.keep_remote, schedule.max_retries), (Some(2), Some(4)));
    assert_eq!(schedule.on_failure, OnFailure::Retry);
    let wrong = ScheduleEdit { full: Some("0 0 31 2 *".to_owned()), ..Default::default() };
    assert_eq!(bed.refused(modify(wrong)).code, Code::InvalidTime);
    let never = ScheduleName::new("never").unwrap();
    let refusal =
        bed.refused(Command::ModifySchedule { name: never, schedule: Default::default() });
    assert_eq!(refusal.code, Code::UnknownSchedule);

    bed.ok(Command::DeleteSchedule { name: name() });
    let again = bed.ok(Command::DeleteSchedule { name: name() });
    assert_eq!(again.notes[0].code, NoteCode::NotFound);
}

#[test]
fn the_nearest_level_decides() {
    let mut bed = bed();
    bed.ok(create(new("0 2 * * *")));
    let group = Level::Group(GroupName::default_group());
    let own = || Level::Definition(rd("web"));
    assert!(!is_on(&bed, "web"));
    bed.ok(set(Level::Controller, true));
    assert!(is_on(&bed, "web"));
    bed.ok(set(group.clone(), false));
    assert!(!is_on(&bed, "web"));
    bed.ok(set(own(), true));
    assert!(is_on(&bed, "web"));
    bed.ok(set(own(), false));
    assert!(!is_on(&bed, "web"));
    bed.ok(unset(own()));
    bed.ok(unset(group.clone()));
    assert!(is_on(&bed, "web"), "the controller decides again");
    let again = bed.ok(unset(group));
    assert_eq!(again.notes[0].code, NoteCode::NotFound);
    let other = set(Level::Controller, true);
    assert!(bed.ok(other).changes.is_empty(), "it is on already");
    // What comes later is in it, too, from its beginning on.
    bed.define("later");
    assert_eq!(bed.model.series_of(&rd("later")).count(), 1);
    assert_eq!(bed.model.switches().count(), 1);
}

#[test]
fn only_what_is_there_is_switched() {
    let mut bed = bed();
    let unknown = bed.refused(set(Level::Controller, true));
    assert_eq!(unknown.code, Code::UnknownSchedule);
    bed.ok(create(new("0 2 * * *")));
    let level = Level::Group(GroupName::new("never").unwrap());
    assert_eq!(bed.refused(set(level, true)).code, Code::UnknownGroup);
    let level = Level::Definition(rd("never"));
    assert_eq!(bed.refused(set(level, true)).code, Code::UnknownDefinition);
    let no_remote = Command::SetSwitch {
        level: Level::Controller,
        remote: RemoteName::new("never").unwrap(),
        schedule: name(),
        on: true,
        node: None,
    };
    assert_eq!(bed.refused(no_remote).code, Code::UnknownRemote);
    let no_node = Command::SetSwitch {
        level: Level::Controller,
        remote: remote(),
        schedule: name(),
        on: true,
        node: Some(NodeName::new("never").unwrap()),
    };
    assert_eq!(bed.refused(no_node).code, Code::UnknownNode);
}

#[test]
fn what_goes_takes_its_switches_along() {
    let mut bed = bed();
    bed.ok(create(new("0 2 * * *")));
    let group = GroupName::new("fast").unwrap();
    bed.ok(Command::CreateGroup {
        name: group.clone(),
        description: String::new(),
        props: Props::new(),
        filter: Filter::default(),
        peer_slots: None,
    });
    let empty = NewDefinition { name: Some(rd("empty")), ..NewDefinition::default() };
    bed.ok(Command::CreateDefinition { definition: empty });
    bed.ok(set(Level::Group(group.clone()), true));
    bed.ok(set(Level::Definition(rd("empty")), true));
    bed.ok(set(Level::Definition(rd("web")), true));
    assert_eq!((bed.model.switches().count(), bed.model.all_series().count()), (3, 2));
    bed.ok(Command::DeleteGroup { name: group });
    assert_eq!(bed.model.switches().count(), 2);
    bed.ok(Command::DeleteDefinition { name: rd("empty") });
    bed.ok(Command::Settle { name: rd("empty") });
    assert!(bed.model.definition(&rd("empty")).is_none());
    assert_eq!((bed.model.switches().count(), bed.model.all_series().count()), (1, 1));
    let deleted = bed.ok(Command::DeleteSchedule { name: name() });
    assert_eq!(deleted.notes[0].code, NoteCode::PropertyRemoved);
    assert!(deleted.notes[0].message.contains("resource definition web"), "{:?}", deleted.notes);
    assert_eq!((bed.model.switches().count(), bed.model.all_series().count()), (0, 0));

    bed.ok(create(new("0 2 * * *")));
    bed.ok(set(Level::Controller, true));
    bed.ok(Command::DeleteRemote { name: remote() });
    assert_eq!((bed.model.switches().count(), bed.model.all_series().count()), (0, 0));
    bed.ok(Command::CreateRemote { name: remote(), bucket: bucket() });
    let definition = bed.model.definition(&rd("web")).unwrap();
    assert!(decides(&bed.model, definition, &remote(), &name()).is_none(), "another remote");
}
