//! Schedules, and where they are switched on (control plane §8.4).

use crate::change::{Key, Object};
use crate::command::{NewSchedule, ScheduleEdit};
use crate::cron::Cron;
use crate::edit::{Edit, unknown};
use crate::name::*;
use crate::refusal::{Code, NoteCode, Refusal};
use crate::schedule::{KEEP_AT_MOST, Level, Schedule, Switch};

use super::{series, small};

#[cfg(test)]
mod tests;

pub fn create(edit: &mut Edit<'_>, name: ScheduleName, new: NewSchedule) -> Result<(), Refusal> {
    let key = Key::Schedule(name.clone());
    if edit.model.schedule(&name).is_some() {
        return Err(Refusal::new(Code::ScheduleExists, format!("{key} exists"))
            .cause("names of schedules are unique, without regard to case")
            .correction("choose another name, or modify or delete that one")
            .about(key));
    }
    let full = cron(&key, "full", &new.full)?;
    let incremental = new.incremental.as_deref().map(|text| cron(&key, "incremental", text));
    let incremental = incremental.transpose()?;
    let uuid = edit.uuid();
    let schedule = Schedule {
        name,
        uuid,
        full,
        incremental,
        keep_local: new.keep_local,
        keep_remote: new.keep_remote,
        on_failure: new.on_failure,
        max_retries: new.max_retries,
    };
    check(&key, &schedule)?;
    edit.put(Object::Schedule(schedule));
    Ok(())
}

pub fn modify(
    edit: &mut Edit<'_>,
    name: &ScheduleName,
    change: ScheduleEdit,
) -> Result<(), Refusal> {
    let key = Key::Schedule(name.clone());
    let Some(mut schedule) = edit.model.schedule(name).cloned() else {
        return Err(unknown(Code::UnknownSchedule, key));
    };
    let before = schedule.clone();
    if let Some(text) = change.full {
        schedule.full = cron(&key, "full", &text)?;
    }
    if let Some(text) = change.incremental {
        let text = text.as_deref().map(|text| cron(&key, "incremental", text));
        schedule.incremental = text.transpose()?;
    }
    schedule.keep_local = change.keep_local.unwrap_or(schedule.keep_local);
    schedule.keep_remote = change.keep_remote.unwrap_or(schedule.keep_remote);
    schedule.on_failure = change.on_failure.unwrap_or(schedule.on_failure);
    schedule.max_retries = change.max_retries.unwrap_or(schedule.max_retries);
    check(&key, &schedule)?;
    let other_times =
        (&before.full, &before.incremental) != (&schedule.full, &schedule.incremental);
    edit.put(Object::Schedule(schedule));
    if other_times {
        series::begin_anew(edit, name);
    }
    Ok(())
}

fn cron(key: &Key, what: &str, text: &str) -> Result<Cron, Refusal> {
    Cron::new(text).map_err(|cause| {
        Refusal::new(Code::InvalidTime, format!("{key} can not have {what} backups at `{text}`"))
            .cause(cause)
            .correction(
                "give the times as a crontab has them (UTC): `0 2 * * sun` is Sundays at 02:00",
            )
            .about(key.clone())
    })
}

fn check(key: &Key, schedule: &Schedule) -> Result<(), Refusal> {
    let kept = [("local", schedule.keep_local), ("remote", schedule.keep_remote)];
    for (what, count) in kept {
        if count.is_some_and(|count| !(1..=KEEP_AT_MOST).contains(&count)) {
            return Err(Refusal::new(Code::InvalidBackup, format!("{key} can not be so"))
                .cause(format!(
                    "{what}: 1 to {KEEP_AT_MOST} full backups, with what builds on them, can be \
                     kept, or all"
                ))
                .correction("give such a number")
                .about(key.clone()));
        }
    }
    Ok(())
}

pub fn delete(edit: &mut Edit<'_>, name: &ScheduleName) -> Result<(), Refusal> {
    let key = Key::Schedule(name.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    let switches = edit.model.switches().filter(|switch| switch.schedule == *name);
    for switch in switches.cloned().collect::<Vec<_>>() {
        let text = format!("no backups are made by {key} with remote {} any more", switch.remote);
        edit.note(NoteCode::PropertyRemoved, key.clone(), format!("{}: {text}", switch.level));
        remove(edit, &switch);
    }
    series::drop_where(edit, |series| series.schedule == *name);
    edit.remove(key);
    Ok(())
}

pub fn set(edit: &mut Edit<'_>, switch: Switch) -> Result<(), Refusal> {
    let key = Key::Remote(switch.remote.clone());
    match edit.model.remote(&switch.remote) {
        Some(remote) if remote.deleting => {
            return Err(Refusal::new(Code::InUse, format!("{key} can not be used"))
                .cause("it is being deleted")
                .correction("use another one")
                .about(key));
        }
        Some(remote) if remote.bucket().is_none() => {
            return Err(Refusal::new(Code::InvalidBackup, format!("{key} has no schedules"))
                .cause("it is another cluster: schedules make backups in buckets")
                .correction("name a remote that is a bucket, or ship by a timer of your own")
                .about(key));
        }
        Some(_) => {}
        None => return Err(unknown(Code::UnknownRemote, key)),
    }
    let key = Key::Schedule(switch.schedule.clone());
    if edit.model.schedule(&switch.schedule).is_none() {
        return Err(unknown(Code::UnknownSchedule, key));
    }
    match &switch.level {
        Level::Controller => {}
        Level::Group(group) => drop(edit.group(group)?),
        Level::Definition(name) => drop(edit.definition(name)?),
    }
    if let Some(node) = &switch.node {
        edit.node(node)?;
    }
    edit.put(Object::Switch(switch));
    series::review(edit);
    Ok(())
}

pub fn unset(
    edit: &mut Edit<'_>,
    level: &Level,
    remote: &RemoteName,
    schedule: &ScheduleName,
) -> Result<(), Refusal> {
    let key = Key::Switch(level.clone(), remote.clone(), schedule.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    edit.remove(key);
    series::review(edit);
    Ok(())
}

fn remove(edit: &mut Edit<'_>, switch: &Switch) {
    let Switch { level, remote, schedule, .. } = switch;
    edit.remove(Key::Switch(level.clone(), remote.clone(), schedule.clone()));
}

/// Drops what a level says, which is going.
pub fn forget(edit: &mut Edit<'_>, level: &Level) {
    let switches: Vec<Switch> = edit.model.switches_of(level).cloned().collect();
    switches.iter().for_each(|switch| remove(edit, switch));
    if let Level::Definition(name) = level {
        series::drop_where(edit, |series| series.resource == *name);
    }
}

/// Drops what is said of a remote, which is going.
pub fn forget_remote(edit: &mut Edit<'_>, remote: &RemoteName) {
    let switches = edit.model.switches().filter(|switch| switch.remote == *remote);
    for switch in switches.cloned().collect::<Vec<_>>() {
        remove(edit, &switch);
    }
    series::drop_where(edit, |series| series.remote == *remote);
}
