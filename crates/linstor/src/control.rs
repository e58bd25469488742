//! The controller itself: version, properties, error reports, counts, health, the passphrase.

use axum::extract::State;
use axum::http::{Method, StatusCode};
use cluster::command::Command;
use cluster::objects::Millis;
use cluster::props::PropsEdit;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use vocab::options::Secret;

use crate::answer::{Answer, Call, Changed, Found, Read};
use crate::ask::{App, Asked, Body, Modify, Path};
use crate::code::{Kind, Operation, number};
use crate::controller::{MasterPassphrase, Report, ReportFilter};
use crate::routes::{Routes, Says};

/// The version of LINSTOR whose behaviour this is.
pub const VERSION: &str = "1.34.0";
/// The version of the REST API. Clients look at it before they use what came later.
pub const REST_API: &str = "1.28.0";
/// What is served, where LINSTOR names the commit that it was built from.
pub const GIT_HASH: &str = concat!("ashlar-", env!("CARGO_PKG_VERSION"));
/// When it was built; fixed, since builds are to be the same each time.
pub const BUILD_TIME: &str = "2026-01-01T00:00:00Z";
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
        .admin(Method::POST, "/v1/controller/backup/db", no_backup)
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

async fn config() -> Found {
    let log = json!({
        "level": "INFO", "level_global": "INFO",
        "level_linstor": "INFO", "level_linstor_global": "INFO",
    });
    Found(json!({
        "config": {}, "debug": {}, "log": log, "db": {}, "http": { "enabled": true }, "https": {},
        "ldap": {},
    }))
}

async fn modify_config() -> Answer {
    let text = "the controller's configuration can not be changed while it runs";
    let cause = "it has no levels of its log to choose from";
    let next = "start it with other options";
    Answer::refused(Kind::Controller, number::UNSUPPORTED, text, cause, next)
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

async fn no_backup() -> Answer {
    let text = "the database is not backed up by this call";
    let cause = "where it may be written is not for clients to say";
    let next = "copy the store on the controller's host with SQLite's tools";
    Answer::refused(Kind::Controller, number::UNSUPPORTED, text, cause, next)
}

fn show_report(report: &Report, text: bool) -> Value {
    let mut shown = json!({
        "node_name": report.node,
        "error_time": report.time.0,
        "filename": format!("ErrorReport-{}.log", report.id),
        "module": if report.node == "Controller" { "Controller" } else { "Satellite" },
        "version": VERSION,
        "exception": "",
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
    let why = "error reports are chosen by id, node and time";
    crate::ask::unsupported(&[
        ("exception", body.exception.is_some_and(|text| !text.is_empty()), why),
        ("version", body.version.is_some_and(|text| !text.is_empty()), why),
    ])?;
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
    use crate::code::{Severity, code};
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
