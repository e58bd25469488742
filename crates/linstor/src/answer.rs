//! Answers: arrays of entries with a return code, a message and more (control plane §2).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use cluster::change::{Change, Key};
use cluster::command::Command;
use cluster::edit::Made;
use cluster::place::{Placed, Verdict};
use cluster::refusal::{Note, NoteCode, Refusal};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use vocab::Utc;

use crate::access;
use crate::code::{self, Kind, Operation, Severity, code, number};
use crate::controller::{Controller, Failure, Followed, Problem, State};
use crate::foretell;

/// How long a call waits for the agents before it is answered; they go on afterwards.
const PATIENCE: Duration = Duration::from_secs(30);

/// One entry of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Entry {
    /// The return code.
    pub ret_code: i64,
    /// What it is about, in a sentence.
    pub message: String,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// More for who wants to know.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub correction: String,
    /// Ids of error reports about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub error_report_ids: Vec<String>,
    /// The objects it is about.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub obj_refs: BTreeMap<String, String>,
    /// What would be done, if that is all that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<Value>,
    /// When it was said.
    pub created_at: String,
}

impl Entry {
    /// An entry that was said now.
    pub fn new(ret_code: i64, message: impl Into<String>) -> Entry {
        let now = Utc(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default());
        let created_at = format!("{now}Z");
        Entry { ret_code, message: message.into(), created_at, ..Entry::default() }
    }

    /// With an object it is about.
    #[must_use]
    pub fn about(mut self, key: &str, value: impl ToString) -> Entry {
        self.obj_refs.insert(key.to_owned(), value.to_string());
        self
    }

    /// With the reason and what to do.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>, correction: impl Into<String>) -> Entry {
        (self.cause, self.correction) = (cause.into(), correction.into());
        self
    }

    /// The entry of a refusal; it is about `default` if it does not say what it is about.
    pub fn refused(operation: Operation, default: Kind, refusal: &Refusal) -> Entry {
        let kind = refusal.objects.first().map_or(default, Kind::of);
        let code = code(Severity::Error, operation, kind, refusal.code.number());
        let mut entry = Entry::new(code, &*refusal.message);
        entry = entry.because(&*refusal.cause, &*refusal.correction);
        entry.details = refusal.details.to_string();
        refusal.objects.iter().fold(entry, refer)
    }

    fn noted(operation: Operation, note: &Note) -> Entry {
        let severity = match note.code.is_warning() {
            true => Severity::Warning,
            false => Severity::Info,
        };
        let kind = Kind::of(&note.object);
        let entry = Entry::new(code(severity, operation, kind, note.code.number()), &*note.message);
        refer(entry, &note.object)
    }

    fn problem(operation: Operation, kind: Kind, problem: &Problem) -> Entry {
        let of = problem.resource.as_ref().map_or_else(String::new, |name| format!(" of {name}"));
        let text = format!("node {} could not {}{of}", problem.node, problem.order);
        let mut entry =
            Entry::new(code(Severity::Error, operation, kind, number::UNSUPPORTED), text)
                .because(&*problem.cause, &*problem.correction)
                .about("Node", &problem.node);
        entry.details = "it is tried again until it succeeds or is not wanted any more".to_owned();
        entry.error_report_ids.extend(problem.report.clone());
        entry
    }
}

/// Names the objects of a key.
fn refer(entry: Entry, key: &Key) -> Entry {
    match key {
        Key::Controller | Key::File(_) | Key::JoinToken(_) => entry,
        Key::Remote(name) => entry.about("Remote", name.as_str()),
        Key::Schedule(name) => entry.about("Schedule", name.as_str()),
        Key::Switch(_, remote, schedule) => {
            entry.about("Remote", remote.as_str()).about("Schedule", schedule.as_str())
        }
        Key::Series(name, remote, schedule) => entry
            .about("RscDfn", name)
            .about("Remote", remote.as_str())
            .about("Schedule", schedule.as_str()),
        Key::Node(node) => entry.about("Node", node),
        Key::PoolDefinition(pool) => entry.about("StorPoolDfn", pool),
        Key::Pool(node, pool) => entry.about("Node", node).about("StorPool", pool),
        Key::Group(group) => entry.about("RscGrp", group),
        Key::Definition(name) => entry.about("RscDfn", name),
        Key::Resource(name, node) => entry.about("RscDfn", name).about("Node", node),
        Key::Snapshot(name, snapshot) => entry.about("RscDfn", name).about("Snapshot", snapshot),
        Key::NodeConnection(a, b) => entry.about("Node", a).about("Node2", b),
        Key::ResourceConnection(name, a, b) => {
            entry.about("RscDfn", name).about("Node", a).about("Node2", b)
        }
        Key::Store(name) => entry.about("KVS", name),
    }
}

/// Names the objects of changes; of several of a kind the first.
pub fn objects(changes: &[Change]) -> BTreeMap<String, String> {
    let keys = changes.iter().map(Change::key).rev();
    keys.fold(Entry::default(), |entry, key| refer(entry, &key)).obj_refs
}

/// An answer of entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The status if there is no error among them.
    pub success: StatusCode,
    /// What is said; never nothing.
    pub entries: Vec<Entry>,
}

impl Answer {
    /// The HTTP status: clients of LINSTOR compare it exactly (control plane §2.4).
    pub fn status(&self) -> StatusCode {
        let error = |entry: &&Entry| code::severity(entry.ret_code) == Severity::Error;
        let Some(error) = self.entries.iter().find(error) else { return self.success };
        match (error.ret_code, code::number(error.ret_code)) {
            (code::UNREADABLE, _) => StatusCode::BAD_REQUEST,
            (_, 300..=399) => StatusCode::NOT_FOUND,
            (_, 400..=499) => StatusCode::FORBIDDEN,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// True if it says what would be done, and nothing was.
    pub fn is_foretold(&self) -> bool {
        self.entries.first().is_some_and(|first| first.dry_run.is_some())
    }

    /// A call that is refused by the surface itself.
    pub fn refused(kind: Kind, number: u16, message: &str, cause: &str, next: &str) -> Answer {
        let code = code(Severity::Error, Operation::Read, kind, number);
        Answer::from(Entry::new(code, message).because(cause, next))
    }
}

impl From<Entry> for Answer {
    fn from(entry: Entry) -> Answer {
        Answer { success: StatusCode::OK, entries: vec![entry] }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Answer {
        Answer::from(Entry::refused(Operation::Read, Kind::None, &refusal))
    }
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Answer {
        Call::new(Operation::Read, Kind::Controller, "").failed(&failure).into()
    }
}

/// What was answered, for the audit log. It goes beside the response, not in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// The return codes.
    pub codes: Vec<i64>,
    /// The objects of the first entry.
    pub objects: BTreeMap<String, String>,
}

impl Answer {
    /// The answer as an object that has the entries inside.
    pub fn inside(self, mut object: Value) -> Response {
        object["messages"] = json!(self.entries);
        let response = json(self.status(), &object);
        self.noted_on(response)
    }

    fn noted_on(self, mut response: Response) -> Response {
        let codes = self.entries.iter().map(|entry| entry.ret_code).collect();
        let objects = self.entries.into_iter().next().map(|first| first.obj_refs);
        let told = Told { codes, objects: objects.unwrap_or_default() };
        response.extensions_mut().insert(told);
        response
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let response = json(self.status(), &self.entries);
        self.noted_on(response)
    }
}

/// A JSON answer.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => (status, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
        // Everything that is written here has strings for keys.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// A value that was read, or why not.
pub type Read = Result<Found, Answer>;

/// A value that was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Found(pub Value);

impl IntoResponse for Found {
    fn into_response(self) -> Response {
        json(StatusCode::OK, &self.0)
    }
}

/// What came of a call that changes something.
pub type Changed = Result<Answer, Answer>;

/// Leaves out what is null or empty, at every depth: clients take it as absent.
pub fn without_empty(mut value: Value) -> Value {
    prune(&mut value);
    value
}

fn prune(value: &mut Value) {
    let kept = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(prune);
            map.retain(|_, value| kept(value));
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}

/// A call that changes something.
#[derive(Clone, Debug)]
pub struct Call {
    operation: Operation,
    kind: Kind,
    said: String,
    success: StatusCode,
    refs: BTreeMap<String, String>,
}

impl Call {
    /// A call; `said` is what is answered when it has succeeded.
    pub fn new(operation: Operation, kind: Kind, said: impl Into<String>) -> Call {
        let success = match operation {
            Operation::Create => StatusCode::CREATED,
            _ => StatusCode::OK,
        };
        Call { operation, kind, said: said.into(), success, refs: BTreeMap::new() }
    }

    /// A call about the object of that name.
    pub fn one(operation: Operation, kind: Kind, name: &impl std::fmt::Display) -> Call {
        let done = match operation {
            Operation::Create => "created",
            Operation::Delete => "deleted",
            Operation::Modify | Operation::Read => "modified",
        };
        let call = Call::new(operation, kind, format!("{} {name} {done}", kind.noun()));
        match kind.key() {
            Some(key) => call.about(key, name),
            None => call,
        }
    }

    /// Answers 200 even though it creates (control plane §3.0).
    #[must_use]
    pub fn ok(mut self) -> Call {
        self.success = StatusCode::OK;
        self
    }

    /// Answers 201 even though it modifies.
    #[must_use]
    pub fn created(mut self) -> Call {
        self.success = StatusCode::CREATED;
        self
    }

    /// With an object it is about.
    #[must_use]
    pub fn about(mut self, key: &str, value: impl ToString) -> Call {
        self.refs.insert(key.to_owned(), value.to_string());
        self
    }

    /// Has a command carried out.
    pub async fn run(self, controller: &Arc<dyn Controller>, command: Command) -> Answer {
        self.run_all(controller, vec![command]).await
    }

    /// Has commands carried out one after the other, up to the first that is refused, and waits until
    /// the agents have followed. It goes on when the client goes away.
    pub async fn run_all(self, controller: &Arc<dyn Controller>, commands: Vec<Command>) -> Answer {
        if foretell::is_asked() {
            return self.foretell(&**controller, commands).await;
        }
        let (success, call) = (self.success, access::call());
        let controller = controller.clone();
        let carry_out = async move { self.carry_out(&*controller, commands).await };
        let entries = tokio::spawn(access::within(call, carry_out));
        let entries = entries.await.unwrap_or_default();
        if entries.is_empty() {
            return Failure::Stopping.into();
        }
        Answer { success, entries }
    }

    /// Says what commands would lead to.
    async fn foretell(self, controller: &dyn Controller, commands: Vec<Command>) -> Answer {
        let prediction = match controller.foretell(commands).await {
            Ok(prediction) => prediction,
            Err(failure) => return self.failed(&failure).into(),
        };
        let (text, details, data) = foretell::show(&prediction);
        let nothing = NoteCode::NothingToDo.number();
        let code = code(Severity::Info, self.operation, self.kind, nothing);
        let cause = "this was asked for by dry_run; nothing was changed";
        let first =
            Entry::new(code, text).because(cause, "ask again without dry_run to have it done");
        let first = Entry { details, obj_refs: self.refs.clone(), dry_run: Some(data), ..first };
        let notes = prediction.applied.notes.iter();
        let notes = notes.map(|note| Entry::noted(self.operation, note));
        let entries = std::iter::once(first).chain(notes).collect();
        Answer { success: StatusCode::OK, entries }
    }

    async fn carry_out(self, controller: &dyn Controller, commands: Vec<Command>) -> Vec<Entry> {
        let (mut notes, mut following, mut failed) = (Vec::new(), Vec::new(), None);
        let (mut made, mut placed) = (Vec::new(), Vec::new());
        for command in commands {
            match controller.carry_out(command).await {
                Ok(done) => {
                    notes.extend(done.notes);
                    made.extend(done.made);
                    placed.extend(done.placed);
                    following.push(done.followed);
                }
                Err(failure) => {
                    failed = Some(self.failed(&failure));
                    break;
                }
            }
        }
        let absent = notes.iter().any(|note| note.code == NoteCode::NotFound);
        let mut entries = Vec::new();
        if failed.is_none() && !absent {
            let mut done = self.succeeded();
            name_made(&mut done.obj_refs, &made);
            name_places(&mut done.obj_refs, &controller.state(), &placed);
            entries.push(done);
        }
        entries.extend(notes.iter().map(|note| Entry::noted(self.operation, note)));
        entries.extend(failed);
        let (followed, complete) = wait(following).await;
        let problems = followed.problems.iter();
        entries.extend(problems.map(|p| Entry::problem(self.operation, self.kind, p)));
        if !complete {
            let code = code(Severity::Warning, self.operation, self.kind, number::NOT_FOLLOWED);
            let text = "the agents are still at work on it";
            entries.push(Entry::new(code, text).because(
                format!("they have not finished within {} seconds", PATIENCE.as_secs()),
                "look at the resources again later",
            ));
        }
        if let (Some(first), false) = (entries.first_mut(), followed.waits.is_empty()) {
            if first.details.is_empty() {
                first.details = followed.waits.join("\n");
            }
        }
        entries
    }

    /// The entry of its success.
    pub fn succeeded(&self) -> Entry {
        let number = match self.operation {
            Operation::Create => number::CREATED,
            Operation::Delete => number::DELETED,
            Operation::Modify | Operation::Read => number::MODIFIED,
        };
        let code = code(Severity::Success, self.operation, self.kind, number);
        Entry { obj_refs: self.refs.clone(), ..Entry::new(code, &*self.said) }
    }

    /// The entry of a failure.
    pub fn failed(&self, failure: &Failure) -> Entry {
        let number = match failure {
            Failure::Refused(refusal) => {
                return Entry::refused(self.operation, self.kind, refusal);
            }
            Failure::Store(_) => number::DATABASE,
            Failure::Stopping => number::UNSUPPORTED,
        };
        let code = code(Severity::Error, self.operation, self.kind, number);
        Entry::new(code, "nothing was changed").because(failure.to_string(), "try again later")
    }
}

/// Names what was made: names are derived from other names, and numbers are chosen.
fn name_made(refs: &mut BTreeMap<String, String>, made: &[Made]) {
    for made in made {
        match made {
            Made::Object(Key::Definition(name)) => {
                refs.insert("RscDfn".to_owned(), name.to_string());
            }
            // Of several the first.
            Made::Volume(_, number) | Made::VolumeGroup(_, number) => {
                refs.entry("VlmNr".to_owned()).or_insert_with(|| number.0.to_string());
            }
            Made::Object(_) => {}
        }
    }
}

/// Names the nodes and pools that were chosen for one resource definition (control plane §2.3).
fn name_places(refs: &mut BTreeMap<String, String>, state: &State, placed: &[Placed]) {
    let Some(first) = placed.first() else { return };
    if placed.iter().any(|other| other.name != first.name) {
        return;
    }
    let candidates = placed.iter().flat_map(|placed| &placed.candidates);
    let chosen = candidates.filter(|candidate| candidate.verdict == Verdict::Chosen);
    let pools = chosen.filter_map(|candidate| state.model.pool(&candidate.node, &candidate.pool));
    for (index, pool) in pools.filter(|pool| pool.provider.has_device()).enumerate() {
        refs.insert(format!("Node/{index}"), pool.node.to_string());
        refs.insert(format!("StoragePool/{index}/0"), format!("{},{}", pool.name, pool.provider));
    }
}

/// Waits until agents have followed, or for as long as a client should have to.
async fn wait(following: Vec<oneshot::Receiver<Followed>>) -> (Followed, bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    let mut all = Followed::default();
    let mut complete = true;
    for followed in following {
        match tokio::time::timeout_at(end, followed).await {
            Ok(Ok(followed)) => {
                all.problems.extend(followed.problems);
                all.waits.extend(followed.waits);
            }
            Ok(Err(_)) | Err(_) => complete = false,
        }
    }
    all.waits.sort();
    all.waits.dedup();
    (all, complete)
}
