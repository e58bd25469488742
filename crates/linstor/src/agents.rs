//! What is asked of agents now, outside of plans: how it is asked, and the calls that are nothing but
//! that: levels of their logs, external files as they are on nodes, and drbd-reactor.

use std::fmt;
use std::time::Duration;

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use cluster::change::Key;
use cluster::name::{FilePath, NodeName};
use cluster::question::{Question, ReactorCall, ReactorVerb, Reply};
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use vocab::LogLevel;

use crate::answer::{Answer, Call, Changed, Entry, Found, json as json_answer, without_empty};
use crate::ask::{App, Body, Path, unsupported};
use crate::code::{Kind, Operation, Severity, code, number};
use crate::controller::Unanswered;
use crate::nodes::unknown;
use crate::routes::{Routes, Says};

/// How long an agent may take for what needs no program.
const QUICK: Duration = Duration::from_secs(10);
/// How long it may take for a program that has a deadline of 45 seconds.
const PROGRAM: Duration = Duration::from_secs(60);

pub fn routes() -> Routes {
    const CONFIG: &str = "/v1/nodes/{node}/config";
    const REACTOR: &str = "/v1/nodes/exec/drbd-reactorctl";
    Routes::new()
        .get(CONFIG, config)
        .admin(Method::PUT, CONFIG, modify_config)
        .at_once()
        .get("/v1/files/{file}/check/{node}", check_file)
        .get("/v1/files/{file}/status/{node}", file_status)
        .admin(Method::POST, &format!("{REACTOR}/status"), reactor_status)
        .at_once()
        .says(Says::Json)
        .admin(Method::POST, &format!("{REACTOR}/evict"), reactor_evict)
        .at_once()
        .says(Says::Json)
        .admin(Method::POST, &format!("{REACTOR}/disable"), reactor_disable)
        .at_once()
        .says(Says::Json)
        .admin(Method::POST, &format!("{REACTOR}/enable"), reactor_enable)
        .at_once()
        .says(Says::Json)
        .admin(Method::POST, &format!("{REACTOR}/restart"), reactor_restart)
        .at_once()
        .says(Says::Json)
}

/// Why a node has not done what it was asked.
#[derive(Debug)]
pub struct Trouble {
    pub(crate) number: u16,
    message: String,
    cause: String,
    correction: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.message, self.cause, self.correction)
    }
}

impl Trouble {
    /// It has answered something else.
    pub fn unfit(node: &NodeName, reply: &Reply) -> Trouble {
        Trouble {
            number: number::UNSUPPORTED,
            message: format!("node {node} has answered something else than it was asked"),
            cause: format!("it says {reply:?}"),
            correction: "look whether its agent is of the controller's release".to_owned(),
        }
    }

    /// As an entry of an answer.
    pub fn entry(
        &self,
        severity: Severity,
        operation: Operation,
        kind: Kind,
        node: &NodeName,
    ) -> Entry {
        let code = code(severity, operation, kind, self.number);
        let entry = Entry::new(code, &*self.message).because(&*self.cause, &*self.correction);
        entry.about("Node", node)
    }
}

/// Asks an agent.
///
/// # Errors
/// If it refuses, or does not answer in time.
pub async fn ask(
    app: &App,
    node: &NodeName,
    question: Question,
    patience: Duration,
) -> Result<Reply, Trouble> {
    let trouble = |message: &str, number, cause: String, correction: &str| Trouble {
        number,
        message: message.to_owned(),
        cause,
        correction: correction.to_owned(),
    };
    let failed = format!("node {node} could not {question}");
    let unclear = match &question {
        Question::MakePool(_) | Question::UnmakePool(_) => {
            "look on the node whether it has done it; a pool that is there can be made a storage \
             pool by itself"
        }
        question if question.changes() => "look on the node whether it has done it",
        _ => "ask again",
    };
    let refused = match question {
        Question::MakePool(_) | Question::UnmakePool(_) | Question::Disks {} => number::POOL_CONFIG,
        _ => number::UNSUPPORTED,
    };
    let trouble = |number, cause, correction: &str| trouble(&failed, number, cause, correction);
    let not_connected = Code::NotConnected.number();
    match timeout(patience, app.ask_agent(node.clone(), question)).await {
        Ok(Ok(Reply::Refused { cause, correction })) => Err(trouble(refused, cause, &correction)),
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(Unanswered::NotConnected)) => {
            let cause = "its agent is not connected to the controller".to_owned();
            Err(trouble(not_connected, cause, "look whether its agent runs, then ask again"))
        }
        Ok(Err(Unanswered::Lost)) => {
            let cause = "its link was lost before it had answered".to_owned();
            Err(trouble(not_connected, cause, unclear))
        }
        Ok(Err(Unanswered::Stopping)) => {
            let cause = "the controller is going down".to_owned();
            Err(trouble(number::UNSUPPORTED, cause, unclear))
        }
        Err(_) => {
            let cause = format!("it has not answered within {} seconds", patience.as_secs());
            Err(trouble(number::NOT_FOLLOWED, cause, unclear))
        }
    }
}

/// A node that is there.
pub fn known(app: &App, name: &str) -> Result<NodeName, Refusal> {
    let name = NodeName::new(name)?;
    let found = app.state().model.node(&name).map(|node| node.name.clone());
    found.ok_or_else(|| unknown(Code::UnknownNode, &Key::Node(name)))
}

/// Something that was read of a node; 503 if the node is not there.
type ReadThere = Result<Found, Response>;

fn unread(kind: Kind, node: &NodeName, trouble: &Trouble) -> Response {
    let answer = Answer::from(trouble.entry(Severity::Error, Operation::Read, kind, node));
    match trouble.number == Code::NotConnected.number() {
        true => json_answer(StatusCode::SERVICE_UNAVAILABLE, &answer.entries),
        false => answer.into_response(),
    }
}

fn refused(refusal: Refusal) -> Response {
    Answer::from(refusal).into_response()
}

async fn config(State(app): State<App>, Path(node): Path<String>) -> ReadThere {
    let node = known(&app, &node).map_err(refused)?;
    let trouble = match ask(&app, &node, Question::LogLevel {}, QUICK).await {
        Ok(Reply::LogLevel(level)) => {
            let level = shown(level);
            return Ok(Found(json!({
                "config": {}, "debug": {}, "net": {},
                "log": { "level": level, "level_linstor": level },
                "stlt_override_node_name": node.as_str(),
                "remote_spdk": false, "ebs": false, "special_satellite": false,
            })));
        }
        Ok(other) => Trouble::unfit(&node, &other),
        Err(trouble) => trouble,
    };
    Err(unread(Kind::Node, &node, &trouble))
}

/// A level as LINSTOR's clients know it.
pub fn shown(level: LogLevel) -> String {
    level.name().to_ascii_uppercase()
}

/// The log's part of a configuration that is wanted.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct LogConfig {
    level: Option<String>,
    level_linstor: Option<String>,
    level_global: Option<String>,
    level_linstor_global: Option<String>,
    directory: Option<String>,
    print_stack_trace: Option<bool>,
    rest_access_log_path: Option<String>,
    rest_access_mode: Option<String>,
}

/// Levels that are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Levels {
    /// Of the one that is asked.
    pub one: Option<LogLevel>,
    /// Of all.
    pub all: Option<LogLevel>,
}

impl LogConfig {
    /// What it wants, and nothing that can not be had.
    ///
    /// # Errors
    /// If a level is none, two are different, or something else is wanted.
    pub fn levels(self) -> Result<Levels, Refusal> {
        let fixed = "the log goes to standard error; the service manager keeps it";
        unsupported(&[
            ("log.directory", self.directory.is_some_and(|text| !text.is_empty()), fixed),
            ("log.print_stack_trace", self.print_stack_trace == Some(true), "there are none"),
            (
                "log.rest_access_log_path",
                self.rest_access_log_path.is_some_and(|text| !text.is_empty()),
                "calls are in the log at level DEBUG, and what they change is in the audit log",
            ),
            (
                "log.rest_access_mode",
                self.rest_access_mode.is_some_and(|text| !text.is_empty()),
                "calls are in the log at level DEBUG, and what they change is in the audit log",
            ),
            ("log.level", self.level.is_some(), LIBRARIES),
            ("log.level_global", self.level_global.is_some(), LIBRARIES),
        ])?;
        let level = |word: Option<String>| -> Result<Option<LogLevel>, Refusal> {
            let Some(word) = word else { return Ok(None) };
            word.parse().map(Some).map_err(|error: vocab::UnknownName| {
                Refusal::new(Code::InvalidConfig, format!("`{word}` is not a log level"))
                    .cause(error.to_string())
                    .correction("give ERROR, WARN, INFO, DEBUG or TRACE")
            })
        };
        let levels =
            Levels { one: level(self.level_linstor)?, all: level(self.level_linstor_global)? };
        match levels {
            Levels { one: None, all: None } => {
                Err(Refusal::new(Code::InvalidConfig, "there is nothing to change")
                    .cause("the request names no level of the log")
                    .correction("give `log.level_linstor`"))
            }
            levels => Ok(levels),
        }
    }
}

const LIBRARIES: &str = "libraries do not write to the log here; give `level_linstor`";

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct NodeConfig {
    log: LogConfig,
    config: Option<Value>,
    debug: Option<Value>,
    net: Option<Value>,
    stlt_override_node_name: Option<String>,
    remote_spdk: Option<bool>,
    ebs: Option<bool>,
    special_satellite: Option<bool>,
    drbd_keep_res_pattern: Option<String>,
}

/// True if something is said there.
pub fn says(value: Option<&Value>) -> bool {
    let nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    value.is_some_and(|value| !nothing(value))
}

async fn modify_config(
    State(app): State<App>,
    Path(node): Path<String>,
    Body(body): Body<NodeConfig>,
) -> Changed {
    let node = known(&app, &node)?;
    let started = "an agent is told that when it is started";
    let text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    unsupported(&[
        ("config", says(body.config.as_ref()), started),
        ("debug", says(body.debug.as_ref()), "there is no console"),
        ("net", says(body.net.as_ref()), "agents listen nowhere: they dial the controller"),
        (
            "stlt_override_node_name",
            text(&body.stlt_override_node_name),
            "a node's name is in its certificate; it would have to join again",
        ),
        ("remote_spdk", body.remote_spdk == Some(true), "there are no such nodes"),
        ("ebs", body.ebs == Some(true), "there are no such nodes"),
        ("special_satellite", body.special_satellite == Some(true), "there are no such nodes"),
        ("drbd_keep_res_pattern", text(&body.drbd_keep_res_pattern), started),
    ])?;
    let levels = body.log.levels()?;
    let Levels { one: Some(level), all: None } = levels else {
        return Err(Refusal::new(Code::InvalidConfig, "a node can not set the level of all")
            .cause("`level_linstor_global` is the controller's")
            .correction("give it to /v1/controller/config")
            .into());
    };
    match set_level(&app, &node, level).await {
        Ok(entry) => Ok(entry.into()),
        Err(trouble) => {
            Err(trouble.entry(Severity::Error, Operation::Modify, Kind::Node, &node).into())
        }
    }
}

/// Has a node log up to a level.
///
/// # Errors
/// If it does not.
pub async fn set_level(app: &App, node: &NodeName, level: LogLevel) -> Result<Entry, Trouble> {
    match ask(app, node, Question::SetLogLevel(level), QUICK).await? {
        Reply::Done {} => {
            let said = format!("node {node} logs up to {}", shown(level));
            Ok(Call::new(Operation::Modify, Kind::Node, said).about("Node", node).succeeded())
        }
        other => Err(Trouble::unfit(node, &other)),
    }
}

async fn check_file(
    State(app): State<App>,
    Path((path, node)): Path<(String, String)>,
) -> ReadThere {
    let node = known(&app, &node).map_err(refused)?;
    let path = FilePath::new(&path).map_err(refused)?;
    let trouble = match ask(&app, &node, Question::MayPut { path }, QUICK).await {
        Ok(Reply::MayPut { allowed }) => return Ok(Found(json!({ "allowed": allowed }))),
        Ok(other) => Trouble::unfit(&node, &other),
        Err(trouble) => trouble,
    };
    Err(unread(Kind::File, &node, &trouble))
}

async fn file_status(
    State(app): State<App>,
    Path((path, node)): Path<(String, String)>,
) -> ReadThere {
    let node = known(&app, &node).map_err(refused)?;
    let path = FilePath::new(&path).map_err(refused)?;
    let content = app.state().model.file(&path).map(|file| file.content.clone());
    let unknown = || refused(unknown(Code::UnknownFile, &Key::File(path.clone())));
    let question = Question::File { path: path.clone(), content: content.ok_or_else(unknown)? };
    let trouble = match ask(&app, &node, question, QUICK).await {
        Ok(Reply::File { there, same }) => {
            let actual = there.then(|| path.to_string());
            return Ok(Found(without_empty(
                json!({ "actual_path": actual, "content_match": same }),
            )));
        }
        Ok(other) => Trouble::unfit(&node, &other),
        Err(trouble) => trouble,
    };
    Err(unread(Kind::File, &node, &trouble))
}

#[derive(Deserialize, JsonSchema)]
struct ReactorStatus {
    nodes: Vec<String>,
    resource: Option<String>,
    wait: Option<bool>,
}

#[derive(Deserialize, JsonSchema)]
struct ReactorPlugin {
    nodes: Vec<String>,
    config: String,
    now: Option<bool>,
}

async fn reactor_status(State(app): State<App>, Body(body): Body<ReactorStatus>) -> Done {
    let why = "the state is always waited for";
    unsupported(&[("wait", body.wait == Some(true), why)])?;
    let call = ReactorCall::new(ReactorVerb::Status, body.resource.as_deref().unwrap_or(""))?;
    reactor(&app, &body.nodes, &call).await
}

async fn reactor_evict(State(app): State<App>, Body(body): Body<ReactorStatus>) -> Done {
    let call = ReactorCall::new(ReactorVerb::Evict, body.resource.as_deref().unwrap_or(""))?;
    let call = ReactorCall { wait: body.wait.unwrap_or(false), ..call };
    reactor(&app, &body.nodes, &call).await
}

async fn reactor_disable(State(app): State<App>, Body(body): Body<ReactorPlugin>) -> Done {
    let call = ReactorCall::new(ReactorVerb::Disable, &body.config)?;
    let call = ReactorCall { now: body.now.unwrap_or(false), ..call };
    reactor(&app, &body.nodes, &call).await
}

async fn reactor_enable(state: State<App>, body: Body<ReactorPlugin>) -> Done {
    reactor_plugin(ReactorVerb::Enable, state, body).await
}

async fn reactor_restart(state: State<App>, body: Body<ReactorPlugin>) -> Done {
    reactor_plugin(ReactorVerb::Restart, state, body).await
}

async fn reactor_plugin(
    verb: ReactorVerb,
    State(app): State<App>,
    Body(body): Body<ReactorPlugin>,
) -> Done {
    unsupported(&[("now", body.now == Some(true), "it is for `disable` only")])?;
    reactor(&app, &body.nodes, &ReactorCall::new(verb, &body.config)?).await
}

/// What the program has said on each node, or why it was not called at all.
type Done = Result<Found, Answer>;

/// Has drbd-reactor's control program called on nodes, side by side.
async fn reactor(app: &App, nodes: &[String], call: &ReactorCall) -> Done {
    if nodes.is_empty() {
        return Err(Refusal::new(Code::InvalidRequest, "no node is named")
            .cause(format!("`{call}` is called on those of `nodes`"))
            .correction("name one")
            .into());
    }
    // Nothing is begun anywhere if a name is wrong.
    let nodes: Vec<NodeName> =
        nodes.iter().map(|node| known(app, node)).collect::<Result<_, _>>()?;
    let asking: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            let (app, question) = (app.clone(), Question::Reactor(call.clone()));
            tokio::spawn(async move {
                let said = ask(&app, &node, question, PROGRAM).await;
                (node, said)
            })
        })
        .collect();
    let mut all = Vec::new();
    for asked in asking {
        // A task that ends otherwise has panicked, or the process is going down.
        let Ok((node, said)) = asked.await else { continue };
        let (status, output, errors) = match said {
            Ok(Reply::Said { status, output, errors }) => (status, output, errors),
            Ok(other) => (-1, String::new(), Trouble::unfit(&node, &other).to_string()),
            Err(trouble) => (-1, String::new(), trouble.to_string()),
        };
        all.push(json!({
            "node": node.as_str(), "exit_code": status, "stdout_utf8": output, "stderr_utf8": errors,
        }));
    }
    Ok(Found(all.into()))
}
