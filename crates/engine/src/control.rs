//! The control socket: connections, calls, deadlines, subscriptions.
//!
//! One thread reads a connection and one runs each call, so a slow command holds up nothing but
//! its own answer. Every call is answered before its deadline; a command that takes longer goes
//! on, and its result is then in the log and in the state.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use codec::admin::{
    Answer, Call, Event, Failure, FailureKind, Line, Lines, MAX_CALL, Outcome, Reply, Request,
    encode_line,
};

use crate::engine::{Engine, Stop, lock};
use crate::restore::text;
use logging::{Level, log};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 128;
/// Calls at a time on all connections.
const CALLS_MAX: usize = 512;
/// Kept back from the time a caller waits, so that the answer reaches it in time.
const MARGIN: Duration = Duration::from_millis(200);
/// A client that takes no data for so long is dropped.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// Listens at `path`, replacing a socket left by a dead process.
///
/// # Errors
/// Why that is not possible, in one sentence.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, String> {
    let failed = |doing: &str, e: &io::Error| format!("{}: can not {doing}: {e}", path.display());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|e| failed("create its directory", &e))?;
    }
    if UnixStream::connect(path).is_ok() {
        return Err(format!(
            "{}: another engine listens there; stop it, or give this one its own --socket",
            path.display()
        ));
    }
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(failed("replace the old socket", &e));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(|e| failed("listen there", &e))?;
    // Whoever may talk to the engine may destroy data: root, and whom root lets in.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .map_err(|e| failed("restrict access to it", &e))?;
    Ok(listener)
}

/// A control socket that listens under another name.
pub(crate) struct Prepared {
    listener: UnixListener,
    beside: PathBuf,
    path: PathBuf,
}

/// Listens beside `path`, where another engine listens.
///
/// # Errors
/// Why that is not possible, in one sentence.
pub(crate) fn prepare(path: &Path) -> Result<Prepared, String> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    Ok(Prepared { listener: listen(&beside)?, beside, path: path.to_owned() })
}

impl Prepared {
    /// Takes the other engine's place.
    ///
    /// # Errors
    /// Why that is not possible, in one sentence.
    pub(crate) fn publish(self) -> Result<UnixListener, String> {
        let Prepared { listener, beside, path } = self;
        let failed = |e| format!("{}: can not take its place: {e}", path.display());
        fs::rename(&beside, &path).map_err(failed)?;
        Ok(listener)
    }
}

/// Serves connections until the process ends.
pub(crate) fn serve(engine: Arc<Engine>, listener: UnixListener) {
    let connections = Arc::new(AtomicUsize::new(0));
    let calls = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(e) => {
                log!(Level::Warn, "engine", "can not accept on the control socket: {e}");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(slot) = Slot::take(&connections, CONNECTIONS_MAX) else {
            log!(Level::Warn, "engine", "too many connections to the control socket");
            continue;
        };
        let (engine, calls) = (engine.clone(), calls.clone());
        let run = move || {
            if let Err(e) = connection(&engine, &calls, stream) {
                log!(Level::Debug, "engine", "a control connection ended: {e}");
            }
            drop(slot);
        };
        if let Err(e) = thread::Builder::new().name("control".to_owned()).spawn(run) {
            log!(Level::Warn, "engine", "no thread for a control connection: {e}");
        }
    }
}

/// One of a limited number of places.
pub(crate) struct Slot(Arc<AtomicUsize>);

impl Slot {
    /// Takes a place that is free until the slot is dropped; `None` if there are `limit` taken.
    pub(crate) fn take(count: &Arc<AtomicUsize>, limit: usize) -> Option<Slot> {
        if count.fetch_add(1, Ordering::AcqRel) >= limit {
            count.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(Slot(count.clone()))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The writing side of a connection, shared by its calls.
type Writer = Arc<Answers>;

struct Answers {
    stream: Mutex<UnixStream>,
    /// The client has closed its end.
    gone: AtomicBool,
}

fn write(writer: &Writer, line: &Line) -> io::Result<()> {
    lock(&writer.stream).write_all(&encode_line(line))
}

fn connection(
    engine: &Arc<Engine>,
    calls: &Arc<AtomicUsize>,
    mut stream: UnixStream,
) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_PATIENCE))?;
    let answers = Answers { stream: Mutex::new(stream.try_clone()?), gone: AtomicBool::new(false) };
    let writer = Arc::new(answers);
    let result = read_calls(engine, calls, &mut stream, &writer);
    writer.gone.store(true, Ordering::Release);
    result
}

fn read_calls(
    engine: &Arc<Engine>,
    calls: &Arc<AtomicUsize>,
    stream: &mut UnixStream,
    writer: &Writer,
) -> io::Result<()> {
    let mut lines = Lines::new(MAX_CALL);
    let mut chunk = vec![0; 16 << 10];
    loop {
        let n = stream.read(&mut chunk)?;
        if n == 0 {
            return Ok(());
        }
        lines.push(&chunk[..n]);
        while let Some(line) = lines.next_line().map_err(io::Error::other)? {
            let call = match Call::decode(&line) {
                Ok(call) => call,
                Err(reply) => {
                    write(writer, &Line::Reply(reply))?;
                    continue;
                }
            };
            take_call(engine, calls, writer, call)?;
        }
    }
}

/// Starts a call on a thread of its own.
fn take_call(
    engine: &Arc<Engine>,
    calls: &Arc<AtomicUsize>,
    writer: &Writer,
    call: Call,
) -> io::Result<()> {
    let id = call.id;
    let overloaded = || {
        let text = "the engine has too many commands to carry out";
        let failure = Failure::new(FailureKind::Resources, text, "try again");
        Line::Reply(Reply { id, outcome: Outcome::Failed(failure) })
    };
    let Some(slot) = Slot::take(calls, CALLS_MAX) else { return write(writer, &overloaded()) };
    let (engine, answer_to) = (engine.clone(), writer.clone());
    let run = move || {
        // A client that has gone away misses its answer.
        let _ = answer(&engine, &answer_to, call);
        drop(slot);
    };
    match thread::Builder::new().name("call".to_owned()).spawn(run) {
        Ok(_) => Ok(()),
        Err(_) => write(writer, &overloaded()),
    }
}

fn answer(engine: &Arc<Engine>, writer: &Writer, call: Call) -> io::Result<()> {
    let Call { id, timeout_ms, request, .. } = call;
    let request = match request {
        Request::Events { resource, statistics_ms } => {
            return subscribe(engine, writer, id, resource, statistics_ms);
        }
        request => request,
    };
    let _unanswered = engine.unanswered.clone();
    let what = name(&request);
    let patience = Duration::from_millis(timeout_ms.into());
    let deadline = Instant::now() + patience.saturating_sub(MARGIN).max(patience / 2);
    let (done, result) = mpsc::channel();
    let (worker, named) = (engine.clone(), what.clone());
    let run = move || {
        let what = named;
        let result = worker.execute(request);
        if let Err(stop @ Stop::Failed(_)) = &result {
            log!(Level::Error, "engine", "{what} failed: {}", text(stop));
        }
        if let Err(mpsc::SendError(late)) = done.send(result) {
            let how = match &late {
                Ok(_) => "succeeded".to_owned(),
                Err(stop) => format!("failed: {}", text(stop)),
            };
            log!(Level::Info, "engine", "{what}, which had timed out, has {how}");
        }
    };
    let outcome = match thread::Builder::new().name("command".to_owned()).spawn(run) {
        Err(e) => {
            let text = format!("no thread for the command: {e}");
            Outcome::Failed(Failure::new(FailureKind::Resources, text, "try again"))
        }
        Ok(_) => {
            let left = deadline.saturating_duration_since(Instant::now());
            match result.recv_timeout(left) {
                Ok(Ok(answer)) => Outcome::Ok(answer),
                Ok(Err(stop)) => stop.into(),
                Err(_) => {
                    let text = format!("{what} is still being carried out");
                    let next = "look at the status, and wait or undo it";
                    Outcome::Failed(Failure::new(FailureKind::Timeout, text, next))
                }
            }
        }
    };
    drop(result);
    write(writer, &Line::Reply(Reply { id, outcome }))
}

/// The name of a command, for messages.
fn name(request: &Request) -> String {
    let json = serde_json::to_value(request).ok();
    let name = json.as_ref().and_then(|value| value.get("command")?.as_str());
    name.unwrap_or("the command").to_owned()
}

/// Sends the current state, then every change, until the client is gone.
fn subscribe(
    engine: &Arc<Engine>,
    writer: &Writer,
    id: u64,
    resource: Option<String>,
    statistics_ms: Option<u32>,
) -> io::Result<()> {
    write(writer, &Line::Reply(Reply { id, outcome: Outcome::Ok(Answer::Done) }))?;
    let subscriber = engine.hub.subscribe(resource.clone());
    let result = send_events(engine, writer, &subscriber, resource, statistics_ms);
    engine.hub.unsubscribe(subscriber.id);
    result
}

fn send_events(
    engine: &Arc<Engine>,
    writer: &Writer,
    subscriber: &crate::hub::Subscriber,
    resource: Option<String>,
    statistics_ms: Option<u32>,
) -> io::Result<()> {
    let id = subscriber.id;
    let snapshot = || {
        for shard in 0..engine.shards.len() {
            let resource = resource.clone();
            // A shard that is gone has nothing to tell.
            let _ = engine.on(shard, move |shard| shard.publish_to(id, resource.as_deref()));
        }
    };
    snapshot();
    for event in subscriber.take(Duration::ZERO).unwrap_or_default() {
        write(writer, &Line::Event(event))?;
    }
    write(writer, &Line::Event(Event::Current))?;
    // A subscriber to states alone is looked after now and then, to notice that it has gone.
    let interval = statistics_ms.map(|ms| Duration::from_millis(u64::from(ms).max(100)));
    let patience = interval.unwrap_or(Duration::from_secs(5));
    let mut next = Instant::now() + patience;
    let mut sent = BTreeMap::new();
    loop {
        let left = next.saturating_duration_since(Instant::now());
        let Some(events) = subscriber.take(left) else { return Ok(()) };
        for event in events {
            // Snapshots taken for statistics are news only while numbers move.
            if let Event::Resource(status) = &event
                && sent.insert(status.name.clone(), status.clone()).as_ref() == Some(status)
            {
                continue;
            }
            write(writer, &Line::Event(event))?;
        }
        if writer.gone.load(Ordering::Acquire) {
            return Ok(());
        }
        if Instant::now() >= next {
            next = Instant::now() + patience;
            if interval.is_some() {
                snapshot();
            }
        }
    }
}
