//! What becomes of schedules: when a backup is due, how it is begun, what it comes to, and what goes
//! after it (control plane §8.4).
//!
//! ```text
//! tick: its time has come ──► due ──► an errand looks into the bucket ──► begun ──► made ──► kept, or gone
//!                              ▲                      │                    │
//!                              └── a minute later ◄── it has to wait, or failed and is tried again
//! ```
//!
//! Each arrow is one command, so a controller may stop anywhere. What could not be begun because
//! something is under way, away or locked has not failed: it waits.

use crate::change::{Key, Object};
use crate::edit::Edit;
use crate::errand;
use crate::name::*;
use crate::objects::*;
use crate::refusal::{Code, Refusal};
use crate::schedule::*;
use crate::shipping::{Phase, Upload};

use super::{rollback, shipping, snapshots};

#[cfg(test)]
mod tests;

/// In milliseconds.
const DAY: u64 = 86_400_000;

/// A change of a series that is there.
fn modify(edit: &mut Edit<'_>, key: &SeriesKey, change: impl FnOnce(&mut Series)) {
    let (name, remote, schedule) = key;
    let Some(mut series) = edit.model.series(name, remote, schedule).cloned() else { return };
    change(&mut series);
    edit.put(Object::Series(series));
}

fn find<'a>(edit: &'a Edit<'_>, key: &SeriesKey) -> Option<&'a Series> {
    edit.model.series(&key.0, &key.1, &key.2)
}

/// Drops series; what is being made goes on, and belongs to nothing then.
pub fn drop_where(edit: &mut Edit<'_>, gone: impl Fn(&Series) -> bool) {
    let keys: Vec<SeriesKey> =
        edit.model.all_series().filter(|s| gone(s)).map(Series::key).collect();
    for (name, remote, schedule) in keys {
        edit.remove(Key::Series(name, remote, schedule));
    }
}

// Switching.

/// Begins what is switched on, and ends what is not, of every resource definition.
pub fn review(edit: &mut Edit<'_>) {
    let any = edit.model.switches().next().is_some() || edit.model.all_series().next().is_some();
    if !any {
        return;
    }
    let names: Vec<ResourceName> = edit.model.definitions().map(|d| d.name.clone()).collect();
    for name in &names {
        begin_all(edit, name);
        let keys: Vec<SeriesKey> = edit.model.series_of(name).map(Series::key).collect();
        keys.iter().for_each(|key| end_if_off(edit, key));
    }
}

/// Begins what is switched on of a resource definition.
pub fn begin_all(edit: &mut Edit<'_>, name: &ResourceName) {
    let Some(definition) = edit.model.definition(name) else { return };
    let own = Level::Definition(name.clone());
    let levels = [own, Level::Group(definition.group.clone()), Level::Controller];
    let mut on: Vec<(RemoteName, ScheduleName)> = Vec::new();
    for switch in levels.iter().flat_map(|level| edit.model.switches_of(level)) {
        let pair = (switch.remote.clone(), switch.schedule.clone());
        let known = edit.model.series(name, &pair.0, &pair.1);
        let runs = known.is_some_and(|series| series.next.is_some());
        if !runs && switched_on(edit.model, definition, &pair.0, &pair.1).is_some() {
            on.push(pair);
        }
    }
    on.sort();
    on.dedup();
    for (remote, schedule) in on {
        let Some(found) = edit.model.schedule(&schedule) else { continue };
        let since = edit.context.now;
        let next = found.next(since).map(|(time, _)| time);
        let known = edit.model.series(name, &remote, &schedule).cloned();
        let series = match known {
            Some(known) => Series { since, next, ..known },
            None => Series {
                resource: name.clone(),
                remote,
                schedule,
                since,
                next,
                due: None,
                running: None,
                last: None,
                failure: None,
                fulls: Vec::new(),
                removing: Vec::new(),
                remove_again: None,
            },
        };
        edit.put(Object::Series(series));
    }
}

fn is_on(edit: &Edit<'_>, key: &SeriesKey) -> bool {
    let (name, remote, schedule) = key;
    let definition = edit.model.definition(name);
    definition.is_some_and(|d| switched_on(edit.model, d, remote, schedule).is_some())
}

/// Nothing is due any more of what is switched off. It is remembered as long as a level says that it is
/// off, or something is under way.
fn end_if_off(edit: &mut Edit<'_>, key: &SeriesKey) {
    let Some(series) = find(edit, key) else { return };
    if is_on(edit, key) {
        return;
    }
    let (name, remote, schedule) = key;
    let definition = edit.model.definition(name);
    let said = definition.and_then(|d| decides(edit.model, d, remote, schedule)).is_some();
    if !said && series.running.is_none() && series.removing.is_empty() {
        edit.remove(Key::Series(name.clone(), remote.clone(), schedule.clone()));
    } else if series.next.is_some() || series.due.is_some() {
        modify(edit, key, |series| (series.next, series.due) = (None, None));
    }
}

/// A schedule has other times: they count from now on.
pub fn begin_anew(edit: &mut Edit<'_>, schedule: &ScheduleName) {
    let now = edit.context.now;
    let Some(found) = edit.model.schedule(schedule) else { return };
    let next = found.next(now).map(|(time, _)| time);
    let on = edit.model.all_series().filter(|s| s.schedule == *schedule && s.next.is_some());
    for key in on.map(Series::key).collect::<Vec<_>>() {
        modify(edit, &key, |series| {
            (series.since, series.next, series.due) = (now, next, None);
        });
    }
}

// What is due.

/// Does what is due by the time of day.
pub fn tick(edit: &mut Edit<'_>) {
    review(edit);
    let keys: Vec<SeriesKey> = edit.model.all_series().map(Series::key).collect();
    for key in &keys {
        clock_went_back(edit, key);
        note_times(edit, key);
        if is_on(edit, key) {
            keep(edit, key);
        }
    }
}

/// A clock that was wrong by more than a day is right again. Without this nothing would be made before the
/// time comes at which it was wrong; when it is off by less nothing is made twice.
fn clock_went_back(edit: &mut Edit<'_>, key: &SeriesKey) {
    let now = edit.context.now;
    let Some(series) = find(edit, key) else { return };
    if series.next.is_none() || series.since.since(now) <= DAY {
        return;
    }
    let next = edit.model.schedule(&key.2).and_then(|schedule| schedule.next(now));
    modify(edit, key, |series| {
        (series.since, series.next) = (now, next.map(|(time, _)| time));
        series.remove_again = series.remove_again.map(|again| again.min(now));
        if let Some(due) = &mut series.due {
            due.again = due.again.min(now);
        }
    });
}

/// Takes note of times that have come. Of those that were missed one backup is made, a full one if one
/// of them was that.
fn note_times(edit: &mut Edit<'_>, key: &SeriesKey) {
    let now = edit.context.now;
    let Some(series) = find(edit, key).filter(|s| s.next.is_some_and(|next| next <= now)) else {
        return;
    };
    let Some(schedule) = edit.model.schedule(&key.2) else { return };
    let since = series.since;
    let full = schedule.full.next(since).filter(|time| *time <= now);
    let incremental = schedule.incremental.as_ref().and_then(|cron| cron.next(since));
    let at = full.or(incremental.filter(|time| *time <= now));
    let next = schedule.next(now).map(|(time, _)| time);
    modify(edit, key, |series| {
        (series.since, series.next) = (now, next);
        if let Some(at) = at {
            // One that is there already, and waits, is the same.
            let full = full.is_some() || series.due.as_ref().is_some_and(|due| due.full);
            series.due = Some(Due { full, at, failed: 0, again: now, waits: None });
        }
    });
}

/// Begins what is due, if it can.
pub fn begin(edit: &mut Edit<'_>, key: &SeriesKey, present: Result<Vec<String>, String>) {
    let now = edit.context.now;
    let due = find(edit, key).and_then(|series| series.due.clone());
    // It may have been begun, or switched off, since somebody went to look.
    let Some(due) = due.filter(|due| due.again <= now && is_on(edit, key)) else { return };
    if errand::is_busy(edit.model, &key.0, &key.1) {
        return;
    }
    let present = match present {
        Ok(present) => present,
        Err(cause) => return failed(edit, key, due, cause, true),
    };
    modify(edit, key, |series| {
        // What others have deleted is not there to be kept.
        series.fulls.retain(|full| present.contains(&full.backup));
    });
    let begun = edit.attempt(|edit| make(edit, key, due.clone(), present));
    match begun {
        Ok(()) => {}
        Err(refusal) if passes(refusal.code) => modify(edit, key, |series| {
            let (again, waits) = (Millis(now.0 + AGAIN), Some(said(&refusal)));
            series.due = Some(Due { again, waits, ..due });
        }),
        Err(refusal) => failed(edit, key, due, said(&refusal), true),
    }
}

/// True if what was refused can be done by and by.
const fn passes(code: Code) -> bool {
    matches!(
        code,
        Code::InUse
            | Code::NotConnected
            | Code::NoMasterKey
            | Code::RollbackRunning
            | Code::SnapshotSourceNotUpToDate
    )
}

fn said(refusal: &Refusal) -> String {
    format!("{}: {}", refusal.message, refusal.cause)
}

fn make(
    edit: &mut Edit<'_>,
    key: &SeriesKey,
    due: Due,
    present: Vec<String>,
) -> Result<(), Refusal> {
    let (name, remote, schedule) = key;
    let now = edit.context.now;
    rollback::refuse_if_busy(edit, name)?;
    let stamp = stamp(now);
    let snapshot = SnapshotName::new(&format!("back_{stamp}"))?;
    if edit.model.snapshot(name, &snapshot).is_some() {
        let key = Key::Snapshot(name.clone(), snapshot);
        return Err(Refusal::new(Code::InUse, format!("{key} exists"))
            .cause("another backup was begun in the same second")
            .correction("wait")
            .about(key));
    }
    let wish = shipping::Wish {
        snapshot: None,
        stamp,
        node: preferred(edit, key),
        incremental: !due.full,
        present,
        schedule: Some(schedule.clone()),
        sending: None,
    };
    shipping::create(edit, name, remote, wish)?;
    // A node that has not what it is compared with would have to upload all of it.
    let found = edit.snapshot(name, &snapshot)?;
    let lacks = found.uploads.get(remote).is_some_and(|upload| {
        let (Some(node), Some((base, _))) = (&upload.node, &upload.base) else { return false };
        let base = edit.model.snapshot(name, base);
        base.is_none_or(|base| !base.nodes.contains_key(node))
    });
    if lacks {
        shipping::change(edit, name, &snapshot, remote, |upload| upload.node = None);
    }
    let own =
        Scheduled { remote: remote.clone(), schedule: schedule.clone(), since: now, full: None };
    edit.modify_snapshot(name, &snapshot, |snapshot| snapshot.scheduled = Some(own));
    modify(edit, key, |series| {
        (series.due, series.running) = (None, Some(Running { snapshot, due }));
    });
    Ok(())
}

/// The node that is preferred, if it can upload.
fn preferred(edit: &Edit<'_>, key: &SeriesKey) -> Option<NodeName> {
    let (name, remote, schedule) = key;
    let definition = edit.model.definition(name)?;
    let node = switched_on(edit.model, definition, remote, schedule)?.node.clone()?;
    let replica = edit.model.resource(name, &node)?;
    let able = replica.is_replica()
        && !replica.flags.contains(&ResourceFlag::Evacuate)
        && replica.deactivated.is_none();
    (able && shipping::ships(edit, &node, &definition.layers, shipping::Way::Bucket).is_ok())
        .then_some(node)
}

/// A time as names of backups have it: `yyyyMMdd_HHmmss`, UTC.
fn stamp(time: Millis) -> String {
    let text = vocab::Utc(std::time::Duration::from_millis(time.0)).to_string();
    let text = text.split('.').next().unwrap_or_default();
    text.replace(['-', ':'], "").replace('T', "_")
}

// What it comes to.

/// Takes note of what became of backups of a resource definition.
pub fn settle(edit: &mut Edit<'_>, name: &ResourceName) {
    let running = edit.model.series_of(name).filter(|series| series.running.is_some());
    for series in running.cloned().collect::<Vec<_>>() {
        settle_one(edit, &series);
    }
}

fn settle_one(edit: &mut Edit<'_>, series: &Series) {
    let Some(Running { snapshot, due }) = series.running.clone() else { return };
    let key = series.key();
    let (name, remote, _) = &key;
    let found = edit.model.snapshot(name, &snapshot);
    let upload = found.and_then(|found| found.uploads.get(remote)).cloned();
    let Some(upload) = upload else {
        let cause = format!("snapshot {snapshot} could not be made, or was deleted");
        return failed(edit, &key, due, cause, true);
    };
    match upload.phase {
        Phase::Success => made(edit, &key, &snapshot, &upload),
        Phase::Failed => {
            let cause = upload.cause.unwrap_or_else(|| "it could not be uploaded".to_owned());
            failed(edit, &key, due, cause, true);
        }
        // Somebody did not want it.
        Phase::Aborted => failed(edit, &key, due, "it was given up".to_owned(), false),
        Phase::Waiting => {
            // A node that is preferred is not waited for.
            let away = |node: &NodeName| !edit.observed().is_connected(node);
            if upload.node.as_ref().is_some_and(away) {
                shipping::change(edit, name, &snapshot, remote, |upload| upload.node = None);
                shipping::start(edit);
            }
        }
        Phase::Shipping | Phase::Finishing | Phase::Aborting => {}
    }
}

fn made(edit: &mut Edit<'_>, key: &SeriesKey, snapshot: &SnapshotName, upload: &Upload) {
    let (full, at) = (upload.base.is_none(), upload.since);
    edit.modify_snapshot(&key.0, snapshot, |snapshot| {
        if let Some(own) = &mut snapshot.scheduled {
            own.full = Some(full);
        }
    });
    modify(edit, key, |series| {
        (series.running, series.failure) = (None, None);
        series.last = Some(Made { at, full });
        if full {
            series.fulls.push(Full { backup: upload.backup.clone(), since: at });
        }
        let surplus = series.fulls.len().saturating_sub(KEEP_AT_MOST as usize);
        series.fulls.drain(..surplus);
    });
    if is_on(edit, key) {
        keep(edit, key);
    }
    end_if_off(edit, key);
}

/// A run has failed; `again` if it may be tried again.
fn failed(edit: &mut Edit<'_>, key: &SeriesKey, due: Due, cause: String, again: bool) {
    let now = edit.context.now;
    let Some(schedule) = edit.model.schedule(&key.2) else { return };
    let left = schedule.max_retries.is_none_or(|most| due.failed < most);
    let retry = again && left && schedule.on_failure == OnFailure::Retry && is_on(edit, key);
    modify(edit, key, |series| {
        // The time of another may have come while it ran.
        let newer = series.running.take().and(series.due.take());
        let old = retry.then(|| Due {
            failed: due.failed + 1,
            again: Millis(now.0 + AGAIN),
            waits: None,
            ..due
        });
        series.due = match (newer, old) {
            (Some(newer), Some(old)) => Some(Due { full: newer.full || old.full, ..newer }),
            (newer, old) => newer.or(old),
        };
        series.failure = Some(Failure { at: now, cause });
    });
    clear_failed(edit, key);
    end_if_off(edit, key);
}

// What is kept.

/// Snapshots of a series, the oldest first.
fn snapshots_of(edit: &Edit<'_>, key: &SeriesKey) -> Vec<(SnapshotName, Scheduled)> {
    let (name, remote, schedule) = key;
    let own = edit.model.snapshots_of(name).filter_map(|snapshot| {
        let own = snapshot.scheduled.as_ref()?;
        let counts = own.fits(remote, schedule) && !snapshot.is_deleting();
        counts.then(|| (snapshot.name.clone(), own.clone()))
    });
    let mut own: Vec<_> = own.collect();
    own.sort_by_key(|(_, own)| own.since);
    own
}

/// Deletes the snapshots of backups that could not be made: nothing builds on them, and they take space
/// with every try.
fn clear_failed(edit: &mut Edit<'_>, key: &SeriesKey) {
    let running = find(edit, key).and_then(|series| series.running.as_ref());
    let running = running.map(|running| running.snapshot.clone());
    for (snapshot, own) in snapshots_of(edit, key) {
        if own.full.is_none() && running.as_ref() != Some(&snapshot) {
            delete(edit, &key.0, &snapshot);
        }
    }
}

fn delete(edit: &mut Edit<'_>, name: &ResourceName, snapshot: &SnapshotName) {
    // One that is used by somebody is tried again with the next tick.
    let _ = edit.attempt(|edit| {
        rollback::refuse_if_busy(edit, name)?;
        snapshots::delete(edit, name, snapshot, &[])
    });
}

/// Lets go what is more than the schedule keeps.
fn keep(edit: &mut Edit<'_>, key: &SeriesKey) {
    clear_failed(edit, key);
    let Some(schedule) = edit.model.schedule(&key.2) else { return };
    let (local, remote) = (schedule.keep_local, schedule.keep_remote);
    if let Some(keep) = local {
        let own = snapshots_of(edit, key);
        let fulls = own.iter().enumerate().filter(|(_, (_, own))| own.full == Some(true));
        let begins: Vec<usize> = fulls.map(|(index, _)| index).collect();
        let oldest = begins.len().checked_sub(keep as usize).and_then(|index| begins.get(index));
        // The last of a chain goes first: what is left is one.
        for (snapshot, own) in own[..oldest.copied().unwrap_or(0)].iter().rev() {
            if own.full.is_some() {
                delete(edit, &key.0, snapshot);
            }
        }
    }
    let Some(series) = find(edit, key) else { return };
    let surplus = remote.map_or(0, |keep| series.fulls.len().saturating_sub(keep as usize));
    if surplus > 0 {
        modify(edit, key, |series| {
            let gone = series.fulls.drain(..surplus).map(|full| full.backup);
            series.removing.extend(gone);
        });
    }
}

/// Takes note of what became of full backups that were to go from the remote.
pub fn removed(
    edit: &mut Edit<'_>,
    key: &SeriesKey,
    backups: &[String],
    gone: Result<Vec<String>, String>,
) {
    let now = edit.context.now;
    match gone {
        Ok(gone) => {
            modify(edit, key, |series| {
                series.removing.retain(|backup| !backups.contains(backup));
                series.remove_again = None;
            });
            shipping::forget(edit, &key.1, &gone);
        }
        Err(cause) => modify(edit, key, |series| {
            series.remove_again = Some(Millis(now.0 + AGAIN));
            let cause = format!("old backups could not be deleted from the remote: {cause}");
            series.failure = Some(Failure { at: now, cause });
        }),
    }
    end_if_off(edit, key);
}

/// Takes note that backups are no more.
pub fn forget(edit: &mut Edit<'_>, remote: &RemoteName, backups: &[String]) {
    let concerns = |series: &&Series| {
        series.remote == *remote
            && (series.fulls.iter().any(|full| backups.contains(&full.backup))
                || series.removing.iter().any(|backup| backups.contains(backup)))
    };
    let keys = edit.model.all_series().filter(concerns).map(Series::key);
    for key in keys.collect::<Vec<_>>() {
        modify(edit, &key, |series| {
            series.fulls.retain(|full| !backups.contains(&full.backup));
            series.removing.retain(|backup| !backups.contains(backup));
        });
    }
}
