//! Schedules, by which backups are made; where they are switched on, and what becomes of them (control
//! plane §8.4).

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use axum::extract::State;
use axum::http::Method;
use cluster::command::{Command, NewSchedule, ScheduleEdit};
use cluster::edit::unknown;
use cluster::model::Model;
use cluster::name::{GroupName, NodeName, RemoteName, ResourceName, ScheduleName};
use cluster::objects::{Definition, Millis};
use cluster::refusal::{Code, Refusal};
use cluster::schedule::{Level, OnFailure, Schedule, Series, decides, switched_on};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{Call, Changed, Found, Read, without_empty};
use crate::ask::{App, Asked, Body, Path, unsupported};
use crate::code::{Kind, Operation};
use crate::routes::Routes;

pub fn routes() -> Routes {
    const ONE: &str = "/v1/schedules/{schedule}";
    const OF_REMOTE: &str = "/v1/remotes/{remote}/backups/schedule/{schedule}";
    const VIEW: &str = "/v1/view/schedules-by-resource";
    Routes::new()
        .get("/v1/schedules", list)
        .admin(Method::POST, "/v1/schedules", create)
        .admin(Method::PUT, ONE, modify)
        .admin(Method::DELETE, ONE, delete)
        .admin(Method::PUT, &format!("{OF_REMOTE}/enable"), enable)
        .admin(Method::PUT, &format!("{OF_REMOTE}/disable"), disable)
        .admin(Method::DELETE, &format!("{OF_REMOTE}/delete"), unset)
        .asks(&["rsc_dfn_name", "rsc_grp_name"])
        .get(VIEW, by_resource)
        .asks(&["active-only", "remote", "rsc", "schedule"])
        .get(&format!("{VIEW}/{{resource}}"), of_resource)
}

fn show(schedule: &Schedule) -> Value {
    without_empty(json!({
        "schedule_name": schedule.name.as_str(),
        "full_cron": schedule.full.to_string(),
        "inc_cron": schedule.incremental.as_ref().map(ToString::to_string),
        "keep_local": schedule.keep_local,
        "keep_remote": schedule.keep_remote,
        "on_failure": schedule.on_failure.word(),
        "max_retries": schedule.max_retries,
    }))
}

async fn list(State(app): State<App>) -> Found {
    let all: Vec<Value> = app.state().model.schedules().map(show).collect();
    Found(json!({ "data": all }))
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct NewBody {
    schedule_name: String,
    full_cron: String,
    inc_cron: Option<String>,
    keep_local: Option<i64>,
    keep_remote: Option<i64>,
    on_failure: Option<String>,
    max_retries: Option<i64>,
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct ModifyBody {
    full_cron: Option<String>,
    inc_cron: Option<String>,
    keep_local: Option<i64>,
    keep_remote: Option<i64>,
    on_failure: Option<String>,
    max_retries: Option<i64>,
}

/// A number below zero is how clients say that there is no bound.
fn bound(number: i64) -> Option<u32> {
    (number >= 0).then(|| u32::try_from(number).unwrap_or(u32::MAX))
}

fn on_failure(word: &str) -> Result<OnFailure, Refusal> {
    OnFailure::from_word(word).ok_or_else(|| {
        let text = format!("`on_failure` can not be `{word}`");
        Refusal::new(Code::InvalidRequest, text)
            .cause("what failed is skipped (SKIP) or tried again (RETRY)")
            .correction("give one of these")
    })
}

async fn create(State(app): State<App>, Body(body): Body<NewBody>) -> Changed {
    let name = ScheduleName::new(&body.schedule_name)?;
    let failed = body.on_failure.as_deref().map(on_failure).transpose()?;
    let schedule = NewSchedule {
        full: body.full_cron,
        incremental: body.inc_cron.filter(|cron| !cron.is_empty()),
        keep_local: body.keep_local.and_then(bound),
        keep_remote: body.keep_remote.and_then(bound),
        on_failure: failed.unwrap_or(OnFailure::Skip),
        max_retries: body.max_retries.and_then(bound),
    };
    let call = Call::one(Operation::Create, Kind::Schedule, &name).ok();
    Ok(call.run(&app, Command::CreateSchedule { name, schedule }).await)
}

async fn modify(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<ModifyBody>,
) -> Changed {
    let name = ScheduleName::new(&name)?;
    let schedule = ScheduleEdit {
        full: body.full_cron,
        // None is what nothing is.
        incremental: body.inc_cron.map(|cron| Some(cron).filter(|cron| !cron.is_empty())),
        keep_local: body.keep_local.map(bound),
        keep_remote: body.keep_remote.map(bound),
        on_failure: body.on_failure.as_deref().map(on_failure).transpose()?,
        max_retries: body.max_retries.map(bound),
    };
    let call = Call::one(Operation::Modify, Kind::Schedule, &name);
    Ok(call.run(&app, Command::ModifySchedule { name, schedule }).await)
}

async fn delete(State(app): State<App>, Path(name): Path<String>) -> Changed {
    let name = ScheduleName::new(&name)?;
    let call = Call::one(Operation::Delete, Kind::Schedule, &name);
    Ok(call.run(&app, Command::DeleteSchedule { name }).await)
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct SwitchBody {
    rsc_name: Option<String>,
    grp_name: Option<String>,
    node_name: Option<String>,
    dst_stor_pool: Option<String>,
    stor_pool_rename: Option<BTreeMap<String, String>>,
    force_restore: bool,
    dst_rsc_grp: Option<String>,
    dst_rsc_name: Option<String>,
    force_mv_rsc_grp: bool,
}

fn level(resource: Option<&str>, group: Option<&str>) -> Result<Level, Refusal> {
    let given = |name: Option<&str>| name.filter(|name| !name.is_empty()).map(str::to_owned);
    match (given(resource), given(group)) {
        (None, None) => Ok(Level::Controller),
        (Some(name), None) => Ok(Level::Definition(ResourceName::new(&name)?)),
        (None, Some(group)) => Ok(Level::Group(GroupName::new(&group)?)),
        (Some(_), Some(_)) => {
            Err(Refusal::new(Code::InvalidRequest, "it is not clear where the schedule counts")
                .cause("a resource definition and a resource group are named")
                .correction("name one of them, or none for all"))
        }
    }
}

async fn enable(
    State(app): State<App>,
    Path(names): Path<(String, String)>,
    Body(body): Body<SwitchBody>,
) -> Changed {
    switch(&app, &names, body, true).await
}

async fn disable(
    State(app): State<App>,
    Path(names): Path<(String, String)>,
    Body(body): Body<SwitchBody>,
) -> Changed {
    switch(&app, &names, body, false).await
}

async fn switch(app: &App, names: &(String, String), body: SwitchBody, on: bool) -> Changed {
    const CLUSTERS: &str = "backups go to stores that speak S3, where nothing is made of them";
    let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    unsupported(&[
        ("dst_stor_pool", given(&body.dst_stor_pool), CLUSTERS),
        ("stor_pool_rename", body.stor_pool_rename.is_some_and(|map| !map.is_empty()), CLUSTERS),
        ("force_restore", body.force_restore, CLUSTERS),
        ("dst_rsc_grp", given(&body.dst_rsc_grp), CLUSTERS),
        ("dst_rsc_name", given(&body.dst_rsc_name), CLUSTERS),
        ("force_mv_rsc_grp", body.force_mv_rsc_grp, CLUSTERS),
        ("node_name", given(&body.node_name) && !on, "no node makes what is switched off"),
    ])?;
    let (remote, schedule) = (RemoteName::new(&names.0)?, ScheduleName::new(&names.1)?);
    let level = level(body.rsc_name.as_deref(), body.grp_name.as_deref())?;
    let node = body.node_name.filter(|node| !node.is_empty());
    let node = node.map(|node| NodeName::new(&node)).transpose()?;
    let word = if on { "enabled" } else { "disabled" };
    let said = format!("schedule {schedule} with remote {remote} {word} on {level}");
    let call = about(&level, Call::new(Operation::Modify, Kind::Schedule, said));
    let call = call.about("Remote", &remote).about("Schedule", &schedule);
    let command = Command::SetSwitch { level, remote, schedule, on, node };
    Ok(call.run(app, command).await)
}

fn about(level: &Level, call: Call) -> Call {
    match level {
        Level::Controller => call,
        Level::Group(group) => call.about("RscGrp", group),
        Level::Definition(name) => call.about("RscDfn", name),
    }
}

async fn unset(
    State(app): State<App>,
    Path((remote, schedule)): Path<(String, String)>,
    asked: Asked,
) -> Changed {
    let (remote, schedule) = (RemoteName::new(&remote)?, ScheduleName::new(&schedule)?);
    let first = |name: &str| asked.all(name).first().copied();
    let level = level(first("rsc_dfn_name"), first("rsc_grp_name"))?;
    let said = format!("{level} says nothing of schedule {schedule} with remote {remote} any more");
    let call = about(&level, Call::new(Operation::Delete, Kind::Schedule, said));
    let call = call.about("Remote", &remote).about("Schedule", &schedule);
    Ok(call.run(&app, Command::RemoveSwitch { level, remote, schedule }).await)
}

/// Schedules with their remotes of which some level of a resource definition says something.
fn pairs(model: &Model, definition: &Definition) -> BTreeSet<(RemoteName, ScheduleName)> {
    let levels = levels(definition);
    let all = levels.iter().flat_map(|level| model.switches_of(level));
    all.map(|switch| (switch.remote.clone(), switch.schedule.clone())).collect()
}

fn levels(definition: &Definition) -> [Level; 3] {
    let own = Level::Definition(definition.name.clone());
    [own, Level::Group(definition.group.clone()), Level::Controller]
}

/// A time as clients have it: none is negative.
fn time(time: Option<Millis>) -> i64 {
    time.and_then(|time| i64::try_from(time.0).ok()).unwrap_or(-1)
}

fn show_series(schedule: &Schedule, series: &Series, locked: bool, now: Millis) -> Value {
    let due = series.due.as_ref();
    let waits = due.and_then(|due| match locked {
        true => Some("the master passphrase has to be entered".to_owned()),
        false => due.waits.clone(),
    });
    let next = match (&series.running, due) {
        // It is being made.
        (Some(_), _) => None,
        (None, Some(due)) => Some((due.again, due.full)),
        (None, None) => schedule.next(now),
    };
    let incremental = schedule.incremental.as_ref();
    json!({
        "last_snap_time": time(series.last.as_ref().map(|last| last.at)),
        "last_snap_inc": series.last.as_ref().is_some_and(|last| !last.full),
        "next_exec_time": time(next.map(|(time, _)| time)),
        "next_exec_inc": next.is_some_and(|(_, full)| !full),
        "next_planned_full": time(schedule.full.next(now)),
        "next_planned_inc": time(incremental.and_then(|cron| cron.next(now))),
        // Ours.
        "waits": waits,
        "failure": series.failure.as_ref().map(|failure| failure.cause.clone()),
        "failure_time": series.failure.as_ref().map(|failure| failure.at.0),
    })
}

fn show_one(
    state: &crate::controller::State,
    definition: &Definition,
    remote: &RemoteName,
    schedule: &ScheduleName,
    now: Millis,
) -> Value {
    let model = &state.model;
    let locked = state.observed.master.is_none();
    let series = model.series(&definition.name, remote, schedule);
    let known = model.schedule(schedule).zip(series);
    let on = switched_on(model, definition, remote, schedule).is_some();
    let mut shown = match known {
        Some((schedule, series)) if on => show_series(schedule, series, locked, now),
        // The next look at the time begins it.
        _ if on => json!({ "last_snap_time": -1, "next_exec_time": -1 }),
        _ => {
            let says = decides(model, definition, remote, schedule);
            let why = says.map_or_else(String::new, |switch| match switch.on {
                true => "the remote or the resource definition is being deleted".to_owned(),
                false => format!("disabled on {}", switch.level),
            });
            json!({ "reason": why })
        }
    };
    shown["rsc_name"] = json!(definition.name.as_str());
    shown["remote_name"] = json!(remote.as_str());
    shown["schedule_name"] = json!(schedule.as_str());
    without_empty(shown)
}

async fn by_resource(State(app): State<App>, asked: Asked) -> Found {
    let passed = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let now = Millis(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX));
    let state = app.state();
    let model = &state.model;
    let active = asked.flag("active-only");
    let filtered = !asked.all("remote").is_empty() || !asked.all("schedule").is_empty();
    let mut all = Vec::new();
    for definition in model.definitions().filter(|d| asked.wants("rsc", d.name.as_str())) {
        let pairs = pairs(model, definition);
        if pairs.is_empty() && !active && !filtered {
            // Clients show both names, and want them to be there.
            all.push(json!({
                "rsc_name": definition.name.as_str(), "remote_name": "", "schedule_name": "",
                "reason": "no schedule is enabled on it",
            }));
        }
        for (remote, schedule) in pairs {
            let wanted = asked.wants("remote", remote.as_str())
                && asked.wants("schedule", schedule.as_str())
                && (!active || switched_on(model, definition, &remote, &schedule).is_some());
            if wanted {
                all.push(show_one(&state, definition, &remote, &schedule, now));
            }
        }
    }
    Found(json!({ "data": all }))
}

async fn of_resource(State(app): State<App>, Path(name): Path<String>) -> Read {
    let name = ResourceName::new(&name)?;
    let state = app.state();
    let model = &state.model;
    let Some(definition) = model.definition(&name) else {
        let key = cluster::change::Key::Definition(name);
        return Err(unknown(Code::UnknownDefinition, key).into());
    };
    let levels = levels(definition);
    let says = |(remote, schedule): &(RemoteName, ScheduleName)| {
        let on = |level| model.switch(level, remote, schedule).map(|switch| switch.on);
        without_empty(json!({
            "remote_name": remote.as_str(), "schedule_name": schedule.as_str(),
            "rsc_dfn": on(&levels[0]), "rsc_grp": on(&levels[1]), "ctrl": on(&levels[2]),
        }))
    };
    let all: Vec<Value> = pairs(model, definition).iter().map(says).collect();
    Ok(Found(json!({ "data": all })))
}
