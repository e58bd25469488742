//! Schedules of backups, and where they are enabled.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::error::Error;
use super::args::{Kept, Of, OnFailure, ScheduleCommand, SwitchCommand};
use super::http::{Change, part, query};
use super::table::{Cell, Row, Tone};
use super::{Session, table};

const SCHEDULES: &str = "/v1/schedules";

pub(super) fn run(session: &mut Session<'_>, command: &ScheduleCommand) -> Result<(), Error> {
    match command {
        ScheduleCommand::List => {
            let found: Listed<Schedule> = session.get("schedules", SCHEDULES)?;
            session.list(&found.data)
        }
        ScheduleCommand::Create {
            name,
            full,
            incremental,
            keep_local,
            keep_remote,
            on_failure,
            max_retries,
        } => {
            let body = json!({
                "schedule_name": name, "full_cron": full, "inc_cron": incremental,
                "keep_local": number(*keep_local), "keep_remote": number(*keep_remote),
                "on_failure": word(*on_failure), "max_retries": number(*max_retries),
            });
            let change = Change::Post(SCHEDULES.to_owned(), body);
            session.change(&format!("schedule {name}: create"), &change, None).map(drop)
        }
        ScheduleCommand::Modify {
            name,
            full,
            incremental,
            keep_local,
            keep_remote,
            on_failure,
            max_retries,
        } => {
            let incremental = incremental.as_deref().map(|cron| match cron {
                "never" => "",
                cron => cron,
            });
            let body = json!({
                "full_cron": full, "inc_cron": incremental,
                "keep_local": number(*keep_local), "keep_remote": number(*keep_remote),
                "on_failure": on_failure.map(word), "max_retries": number(*max_retries),
            });
            let change = Change::Put(format!("{SCHEDULES}/{}", part(name)), body);
            session.change(&format!("schedule {name}: modify"), &change, None).map(drop)
        }
        ScheduleCommand::Delete { name } => {
            let change = Change::Delete(format!("{SCHEDULES}/{}", part(name)));
            session.change(&format!("schedule {name}: delete"), &change, None).map(drop)
        }
    }
}

/// As the controller takes it: no bound is a number below zero.
fn number(kept: Option<Kept>) -> Option<i64> {
    kept.map(|Kept(number)| number.map_or(-1, i64::from))
}

fn word(on_failure: OnFailure) -> &'static str {
    match on_failure {
        OnFailure::Skip => "SKIP",
        OnFailure::Retry => "RETRY",
    }
}

pub(super) fn switch(session: &mut Session<'_>, command: &SwitchCommand) -> Result<(), Error> {
    match command {
        SwitchCommand::List { names, remote, schedule } => list(session, names, remote, schedule),
        SwitchCommand::Enable { remote, schedule, of, on } => {
            let mut body = body(of);
            body["node_name"] = json!(on);
            let change = Change::Put(format!("{}/enable", path(remote, schedule)), body);
            say(session, "enable", remote, schedule, of, &change)
        }
        SwitchCommand::Disable { remote, schedule, of } => {
            let change = Change::Put(format!("{}/disable", path(remote, schedule)), body(of));
            say(session, "disable", remote, schedule, of, &change)
        }
        SwitchCommand::Delete { remote, schedule, of } => {
            let names = |name: &Option<String>| name.iter().cloned().collect::<Vec<_>>();
            let of_what = match &of.name {
                Some(_) => query("rsc_dfn_name", &names(&of.name)),
                None => query("rsc_grp_name", &names(&of.group)),
            };
            let change = Change::Delete(format!("{}/delete{of_what}", path(remote, schedule)));
            say(session, "delete", remote, schedule, of, &change)
        }
    }
}

fn path(remote: &str, schedule: &str) -> String {
    format!("/v1/remotes/{}/backups/schedule/{}", part(remote), part(schedule))
}

fn body(of: &Of) -> Value {
    json!({ "rsc_name": of.name, "grp_name": of.group })
}

fn say(
    session: &mut Session<'_>,
    what: &str,
    remote: &str,
    schedule: &str,
    of: &Of,
    change: &Change,
) -> Result<(), Error> {
    let of = match (&of.name, &of.group) {
        (Some(name), _) => format!("volume {name}"),
        (None, Some(group)) => format!("resource group {group}"),
        (None, None) => "all volumes".to_owned(),
    };
    let what = format!("schedule {schedule} with remote {remote} of {of}: {what}");
    session.change(&what, change, None).map(drop)
}

fn list(
    session: &mut Session<'_>,
    names: &[String],
    remote: &Option<String>,
    schedule: &Option<String>,
) -> Result<(), Error> {
    let view = "/v1/view/schedules-by-resource";
    let path = format!("{view}{}", query("rsc", names));
    let found: Listed<Series> = session.get("backups by schedule", &path)?;
    let fits = |wanted: &Option<String>, name: &str| {
        wanted.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(name))
    };
    let rows = found.data.into_iter().filter(|row| {
        // Volumes of which nothing is said are in it, too.
        !row.schedule.is_empty() && fits(remote, &row.remote) && fits(schedule, &row.schedule)
    });
    session.list(&rows.map(Series::judged).collect::<Vec<_>>())
}

#[derive(Deserialize)]
struct Listed<T> {
    #[serde(default = "Vec::new")]
    data: Vec<T>,
}

/// A schedule in a list.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Schedule {
    #[serde(rename(deserialize = "schedule_name"))]
    schedule: String,
    #[serde(rename(deserialize = "full_cron"))]
    full: String,
    #[serde(rename(deserialize = "inc_cron"))]
    incremental: Option<String>,
    keep_local: Option<u32>,
    keep_remote: Option<u32>,
    on_failure: String,
    max_retries: Option<u32>,
}

impl Row for Schedule {
    const COLUMNS: &'static [&'static str] =
        &["SCHEDULE", "FULL (UTC)", "INCREMENTAL (UTC)", "KEEPS HERE", "IN REMOTE", "ON FAILURE"];
    fn cells(&self) -> Vec<Cell> {
        let kept = |count: Option<u32>| count.map_or("all".to_owned(), |count| count.to_string());
        let retries = self.max_retries.filter(|_| self.on_failure == "RETRY");
        let retries = retries.map_or_else(String::new, |count| format!(" {count}"));
        vec![
            self.schedule.clone().into(),
            self.full.clone().into(),
            self.incremental.clone().unwrap_or_else(|| "never".to_owned()).into(),
            kept(self.keep_local).into(),
            kept(self.keep_remote).into(),
            format!("{}{retries}", self.on_failure.to_lowercase()).into(),
        ]
    }
}

/// What becomes of a volume's backups by a schedule.
#[derive(Debug, Serialize, Deserialize)]
struct Series {
    #[serde(rename(deserialize = "rsc_name"))]
    volume: String,
    #[serde(rename(deserialize = "remote_name"), default)]
    remote: String,
    #[serde(rename(deserialize = "schedule_name"), default)]
    schedule: String,
    #[serde(skip_deserializing)]
    state: String,
    #[serde(rename(deserialize = "last_snap_time"), default)]
    last_ms: Option<i64>,
    #[serde(rename(deserialize = "last_snap_inc"), default)]
    last_incremental: bool,
    #[serde(rename(deserialize = "next_exec_time"), default)]
    next_ms: Option<i64>,
    #[serde(rename(deserialize = "next_exec_inc"), default)]
    next_incremental: bool,
    #[serde(default)]
    waits: Option<String>,
    #[serde(default)]
    failure: Option<String>,
    /// Why nothing is made.
    #[serde(default, skip_serializing)]
    reason: Option<String>,
}

impl Series {
    fn judged(mut self) -> Series {
        let past = |time: Option<i64>| time.filter(|time| *time >= 0);
        let running = self.reason.is_none() && self.next_ms.is_some_and(|next| next < 0);
        (self.last_ms, self.next_ms) = (past(self.last_ms), past(self.next_ms));
        self.state = match (&self.reason, &self.waits, &self.failure) {
            (Some(reason), _, _) => reason.clone(),
            _ if running => "being made".to_owned(),
            (_, Some(waits), _) => format!("waits: {waits}"),
            (_, _, Some(failure)) => format!("failed: {failure}"),
            _ => "enabled".to_owned(),
        };
        self
    }
}

impl Row for Series {
    const COLUMNS: &'static [&'static str] =
        &["VOLUME", "REMOTE", "SCHEDULE", "LAST (UTC)", "NEXT (UTC)", "STATE"];
    fn cells(&self) -> Vec<Cell> {
        let time = |time: Option<i64>, incremental: bool| {
            let time = time.and_then(|time| u64::try_from(time).ok());
            let kind = if incremental { "incremental" } else { "full" };
            time.map_or_else(String::new, |time| format!("{} {kind}", table::time(time)))
        };
        let tone = match () {
            () if self.state == "enabled" => Tone::Good,
            () if self.state == "being made" || self.waits.is_some() => Tone::Busy,
            () if self.failure.is_some() => Tone::Bad,
            () => Tone::Plain,
        };
        vec![
            self.volume.clone().into(),
            self.remote.clone().into(),
            self.schedule.clone().into(),
            time(self.last_ms, self.last_incremental).into(),
            time(self.next_ms, self.next_incremental).into(),
            Cell::toned(&*self.state, tone),
        ]
    }
}
