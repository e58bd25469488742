//! The controller itself: version, properties, error reports, counts, health, the passphrase.

use std::net::SocketAddr;
use std::time::SystemTime;

use axum::extract::State;
use axum::http::{Method, StatusCode};
use cluster::command::Command;
use cluster::name::NodeName;
use cluster::objects::Millis;
use cluster::props::PropsEdit;
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use vocab::options::Secret;
use vocab::{LogLevel, Utc};

use crate::agents::{Levels, LogConfig, says, set_level, shown};
use crate::answer::{Answer, Call, Changed, Entry, Found, Read};
use crate::ask::{App, Asked, Body, Modify, Path};
use crate::code::{Kind, Operation, Severity, code, number};
use crate::controller::{Failure, MasterPassphrase, Report, ReportFilter, Settings};
use crate::routes::{Routes, Says};

/// The version of LINSTOR whose behaviour this is.
pub const VERSION: &str = "1.34.0";
/// The version of the REST API. Clients look at it before they use what came later.
pub const REST_API: &str = "1.28.0";
/// What is served, where LINSTOR names the commit that it was built from.
pub const GIT_HASH: &str = concat!("ashlar-", env!("CARGO_PKG_VERSION"));
/// When it was built; fixed, since builds are to be the same each time.
pub const BUILD_TIME: &str = "2026-01-01T00:00:00Z";
/// What an error report has for the name of an exception: there are none.
const EXCEPTION: &str = "";
/// Longest name of a backup, in bytes.
const NAME: usize = 128;
/// Error reports of an answer without a limit of its own.
const REPORTS: usize = 1000;

pub fn routes() -> Routes {
    Routes::new()
        .get("/health", health)
        .says(Says::Nothing)
        .get("/v1/controller/version", version)
        .get("/v1/controller/properties", properties)
        .admin(Method::POST, "/v1/controller/properties", modify)
        .admin(Method::DELETE, "/v1/controller/properties/{*key}", delete_property)
        .get("/v1/controller/config", config)
        .admin(Method::PUT, "/v1/controller/config", modify_config)
        .at_once()
        .get("/v1/encryption/passphrase", passphrase)
        .admin(Method::POST, "/v1/encryption/passphrase", create_passphrase)
        .at_once()
        .admin(Method::PUT, "/v1/encryption/passphrase", modify_passphrase)
        .at_once()
        .admin(Method::PATCH, "/v1/encryption/passphrase", enter_passphrase)
        .at_once()
        .get("/v1/error-reports", reports)
        .asks(&["id", "node", "since", "to", "withContent", "limit", "offset"])
        .admin(Method::PATCH, "/v1/error-reports", delete_reports)
        .at_once()
        .get("/v1/error-reports/{id}", report)
        .asks(&["node", "since", "to", "withContent", "limit", "offset"])
        .admin(Method::DELETE, "/v1/error-reports/{id}", delete_report)
        .at_once()
        .get("/v1/stats/{what}", count)
        .admin(Method::POST, "/v1/controller/backup/db", back_up)
        .at_once()
        .admin(Method::POST, "/v1/controller/database/export", export)
        .at_once()
}

/// The one answer with an empty body.
async fn health(State(app): State<App>) -> StatusCode {
    match app.is_alive() {
        true => StatusCode::OK,
        false => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Reads nothing that could be locked: every command of the client asks for it first.
async fn version() -> Found {
    Found(json!({
        "version": VERSION,
        "git_hash": GIT_HASH,
        "build_time": BUILD_TIME,
        "rest_api_version": REST_API,
    }))
}

async fn properties(State(app): State<App>) -> Found {
    Found(json!(app.state().model.controller().props))
}

async fn modify(State(app): State<App>, Body(body): Body<Modify>) -> Answer {
    let call = Call::new(Operation::Modify, Kind::Controller, "controller properties modified");
    call.created().run(&app, Command::ModifyController { props: body.into() }).await
}

async fn delete_property(State(app): State<App>, Path(key): Path<String>) -> Answer {
    let said = format!("controller property {key} deleted");
    let call = Call::new(Operation::Delete, Kind::Controller, said);
    let props = PropsEdit { delete: vec![key], ..PropsEdit::default() };
    call.run(&app, Command::ModifyController { props }).await
}

async fn config(State(app): State<App>) -> Found {
    let level = shown(app.log_level());
    let log = json!({
        "level": level, "level_global": level,
        "level_linstor": level, "level_linstor_global": level,
        "print_stack_trace": false, "rest_access_mode": "NO_LOG",
    });
    let Settings { directory, store, http, https } = app.settings();
    let listener = |address: Option<SocketAddr>| match address {
        None => json!({ "enabled": false }),
        Some(address) => json!({
            "enabled": true, "listen_address": address.ip().to_string(), "port": address.port(),
        }),
    };
    Found(json!({
        "config": { "dir": directory.display().to_string() }, "debug": { "console_enabled": false },
        "log": log, "db": { "connection_url": store }, "http": listener(http),
        "https": listener(https), "ldap": { "enabled": false, "public_access_allowed": false },
    }))
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct NewConfig {
    log: LogConfig,
    config: Option<Value>,
    debug: Option<Value>,
    db: Option<Value>,
    http: Option<Value>,
    https: Option<Value>,
    ldap: Option<Value>,
}

/// Levels of the log are all that can be chosen while it runs.
async fn modify_config(State(app): State<App>, Body(body): Body<NewConfig>) -> Changed {
    let started = "the controller is told that when it is started";
    crate::ask::unsupported(&[
        ("config", says(body.config.as_ref()), started),
        ("debug", says(body.debug.as_ref()), "there is no console"),
        ("db", says(body.db.as_ref()), started),
        ("http", says(body.http.as_ref()), started),
        ("https", says(body.https.as_ref()), started),
        ("ldap", says(body.ldap.as_ref()), "there is no LDAP"),
    ])?;
    let Levels { one, all } = body.log.levels()?;
    let mut entries = Vec::new();
    // Of both, the one for the controller alone counts for it.
    if let Some(level) = one.or(all) {
        app.set_log_level(level)?;
        let said = format!("the controller logs up to {}", shown(level));
        entries.push(Call::new(Operation::Modify, Kind::Controller, said).succeeded());
    }
    if let Some(level) = all {
        entries.extend(set_everywhere(&app, level).await);
    }
    Ok(Answer { success: StatusCode::OK, entries })
}

/// Has every agent log up to a level. Those that are not connected are not told later: a level is good
/// as long as an agent runs.
async fn set_everywhere(app: &App, level: LogLevel) -> Vec<Entry> {
    let nodes: Vec<NodeName> = {
        let state = app.state();
        let holding = state.model.nodes().filter(|node| node.kind.holds_resources());
        holding.map(|node| node.name.clone()).collect()
    };
    let asking: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            let app = app.clone();
            tokio::spawn(async move {
                set_level(&app, &node, level).await.unwrap_or_else(|mut trouble| {
                    let mut severity = Severity::Error;
                    // It is not there, or is lost while it is asked, which is no mistake of the
                    // caller's.
                    if trouble.number == Code::NotConnected.number() {
                        (severity, trouble.number) = (Severity::Warning, number::AWAY);
                    }
                    trouble.entry(severity, Operation::Modify, Kind::Node, &node)
                })
            })
        })
        .collect();
    let mut entries = Vec::new();
    for asked in asking {
        // A task that ends otherwise has panicked, or the process is going down.
        entries.extend(asked.await);
    }
    entries
}

async fn passphrase(State(app): State<App>) -> Found {
    let state = app.state();
    let status = match (&state.model.controller().master_key, &state.observed.master) {
        (None, _) => "unset",
        (Some(_), None) => "locked",
        (Some(_), Some(_)) => "unlocked",
    };
    Found(json!({ "status": status }))
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct Passphrases {
    new_passphrase: Option<String>,
    old_passphrase: Option<String>,
}

/// A passphrase that was given.
fn given(text: Option<String>, which: &str) -> Result<Secret, Answer> {
    let secret = Secret::from(text.unwrap_or_default());
    if !secret.is_empty() {
        return Ok(secret);
    }
    let text = format!("there is no {which} passphrase");
    let (cause, next) = ("the request has none", "give one that is not empty");
    Err(Answer::refused(Kind::Controller, number::INVALID_PASSPHRASE, &text, cause, next))
}

async fn create_passphrase(State(app): State<App>, Body(body): Body<Passphrases>) -> Changed {
    let new = given(body.new_passphrase, "new")?;
    app.master(MasterPassphrase::Create(new)).await?;
    let said = "master passphrase created";
    Ok(Answer { success: StatusCode::CREATED, ..told(Operation::Create, number::CREATED, said) })
}

async fn modify_passphrase(State(app): State<App>, Body(body): Body<Passphrases>) -> Changed {
    let old = given(body.old_passphrase, "old")?;
    let new = given(body.new_passphrase, "new")?;
    app.master(MasterPassphrase::Modify { old, new }).await?;
    Ok(told(Operation::Modify, number::MODIFIED, "master passphrase modified"))
}

/// The body is the passphrase, a string of JSON and nothing around it.
async fn enter_passphrase(State(app): State<App>, Body(body): Body<Value>) -> Changed {
    let text = match body {
        Value::String(text) => Some(text),
        _ => None,
    };
    app.master(MasterPassphrase::Enter(given(text, "master")?)).await?;
    Ok(told(Operation::Modify, number::ACCEPTED, "master passphrase accepted"))
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct NewBackup {
    backup_name: Option<String>,
}

impl NewBackup {
    /// The name of the file. One from outside must not lead out of the folder.
    fn name(self) -> Result<String, Refusal> {
        let Some(name) = self.backup_name.filter(|name| !name.is_empty()) else {
            return Ok(timestamp());
        };
        let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if begins && name.len() <= NAME && name.chars().all(good) {
            return Ok(name);
        }
        let text = format!("`{name}` can not be the name of a backup");
        Err(Refusal::new(Code::InvalidRequest, text)
            .cause(format!(
                "it begins with a letter or digit and has letters, digits, `_`, `-` and `.`, at most \
                 {NAME}"
            ))
            .correction("give such a name: backups are in a folder of the controller's own"))
    }
}

/// The time, as a part of names of files.
pub fn timestamp() -> String {
    let now = Utc(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()).to_string();
    let second = now.split('.').next().unwrap_or(&now);
    second.replace(':', "-")
}

async fn back_up(State(app): State<App>, Body(body): Body<NewBackup>) -> Changed {
    let path = app.back_up(body.name()?).await.map_err(not_written)?;
    Ok(written("the store is copied to", &path))
}

async fn export(State(app): State<App>, Body(body): Body<NewBackup>) -> Changed {
    let path = app.export(body.name()?).await.map_err(not_written)?;
    Ok(written("what is wanted is written to", &path))
}

fn not_written(failure: Failure) -> Answer {
    match failure {
        Failure::Store(cause) => {
            let text = "the backup was not made";
            let next = "nothing else has changed; see to that, then ask again";
            Answer::refused(Kind::Controller, number::NOT_BACKED_UP, text, &cause, next)
        }
        other => other.into(),
    }
}

/// Where something was written to on the controller's host.
pub fn written(what: &str, path: &std::path::Path) -> Answer {
    let path = path.display().to_string();
    let call = Call::new(Operation::Create, Kind::Controller, format!("{what} {path}"));
    let entry = call.about("path", path).succeeded();
    Answer { success: StatusCode::CREATED, ..Answer::from(entry) }
}

fn show_report(report: &Report, text: bool) -> Value {
    let mut shown = json!({
        "node_name": report.node,
        "error_time": report.time.0,
        "filename": format!("ErrorReport-{}.log", report.id),
        "module": if report.node == "Controller" { "Controller" } else { "Satellite" },
        "version": VERSION,
        "exception": EXCEPTION,
        "exception_message": report.message,
    });
    if text {
        let Report { id, message, cause, correction, .. } = report;
        let text =
            format!("error report {id}\n\nwhat   {message}\nwhy    {cause}\nnext   {correction}\n");
        shown["text"] = json!(text);
    }
    shown
}

fn asked_reports(asked: &Asked) -> ReportFilter {
    let owned = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
    ReportFilter {
        ids: owned(asked.all("id")),
        nodes: owned(asked.all("node")),
        since: asked.number("since").map(Millis),
        to: asked.number("to").map(Millis),
    }
}

async fn reports(State(app): State<App>, asked: Asked) -> Read {
    let found = app.reports(asked_reports(&asked)).await?;
    let text = asked.flag("withContent");
    let limit = asked.number("limit").filter(|limit| *limit > 0);
    let most = if limit.is_some() { found.len() } else { REPORTS };
    let list = found.iter().take(most).map(|report| show_report(report, text));
    Ok(Found(asked.page(list.collect())))
}

/// A list, of one report. Its text is in it unless that is not wanted.
async fn report(State(app): State<App>, Path(id): Path<String>, asked: Asked) -> Read {
    let filter = ReportFilter { ids: vec![id.clone()], ..asked_reports(&asked) };
    let found = app.reports(filter).await?;
    if found.is_empty() {
        return Err(no_report(&id));
    }
    let text = asked.all("withContent").is_empty() || asked.flag("withContent");
    Ok(Found(asked.page(found.iter().map(|report| show_report(report, text)).collect())))
}

fn no_report(id: &str) -> Answer {
    let text = format!("there is no error report {id}");
    let cause = "it was deleted, or newer ones have taken its place";
    Answer::refused(Kind::Controller, number::NO_SUCH, &text, cause, "list them")
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct DeleteReports {
    since: Option<u64>,
    to: Option<u64>,
    nodes: Option<Vec<String>>,
    exception: Option<String>,
    version: Option<String>,
    ids: Option<Vec<String>>,
}

async fn delete_reports(State(app): State<App>, Body(body): Body<DeleteReports>) -> Changed {
    // Each report has these, and they are the same for all.
    let other = |given: &Option<String>, ours: &str| {
        given.as_ref().is_some_and(|given| !given.is_empty() && given != ours)
    };
    if other(&body.exception, EXCEPTION) || other(&body.version, VERSION) {
        return Ok(deleted("0 error reports deleted"));
    }
    let filter = ReportFilter {
        ids: body.ids.unwrap_or_default(),
        nodes: body.nodes.unwrap_or_default(),
        since: body.since.map(Millis),
        to: body.to.map(Millis),
    };
    let gone = app.delete_reports(filter).await?;
    Ok(deleted(&format!("{gone} error reports deleted")))
}

async fn delete_report(State(app): State<App>, Path(id): Path<String>) -> Changed {
    let filter = ReportFilter { ids: vec![id.clone()], ..ReportFilter::default() };
    match app.delete_reports(filter).await? {
        0 => Err(no_report(&id)),
        _ => Ok(deleted(&format!("error report {id} deleted"))),
    }
}

fn deleted(text: &str) -> Answer {
    told(Operation::Delete, number::DELETED, text)
}

fn told(operation: Operation, number: u16, text: &str) -> Answer {
    let code = code(Severity::Success, operation, Kind::Controller, number);
    crate::answer::Entry::new(code, text).into()
}

async fn count(State(app): State<App>, Path(what): Path<String>) -> Read {
    if what == "error-reports" {
        let reports = app.reports(ReportFilter::default()).await?;
        return Ok(Found(json!({ "count": reports.len() })));
    }
    let state = app.state();
    let model = &state.model;
    let count = match what.as_str() {
        "nodes" => model.nodes().count(),
        "storage-pools" => model.pools().count(),
        "resource-groups" => model.groups().count(),
        "resource-definitions" => model.definitions().count(),
        "resources" => model.definitions().map(|d| model.resources_of(&d.name).count()).sum(),
        _ => {
            let text = format!("{what} are not counted");
            let cause = "nodes, storage-pools, resource-groups, resource-definitions, resources and \
                         error-reports are";
            let next = "ask for one of these";
            return Err(Answer::refused(Kind::None, number::NO_SUCH, &text, cause, next));
        }
    };
    Ok(Found(json!({ "count": count })))
}
