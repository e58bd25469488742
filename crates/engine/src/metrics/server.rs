//! Answers `GET /metrics` over HTTP.
//!
//! On threads of its own, a few at most, never on a shard's: a shard is asked for its numbers like
//! for a status, and a client that is slow or malicious holds up nobody but the next one. A request
//! has to arrive, and its answer to be taken, within a deadline each; then the connection ends.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use codec::admin::{Answer, Request};

use super::{Format, Snapshot, render};
use crate::control::Slot;
use crate::engine::{Done, Engine};
use logging::{Level, log};

/// Clients at a time; more are turned away.
const CLIENTS_MAX: usize = 8;
/// Longest head of a request, bytes.
const HEAD_MAX: usize = 8 << 10;
/// Most header lines of a request.
const HEADERS_MAX: usize = 64;
/// How long a request may take to arrive, the engine to answer, and the client to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves clients until the process ends.
pub(crate) fn serve(engine: &Arc<Engine>, listener: &TcpListener) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(e) => {
                log!(Level::Warn, "engine", "can not accept clients of the metrics: {e}");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(slot) = Slot::take(&clients, CLIENTS_MAX) else {
            log!(Level::Debug, "engine", "a client of the metrics was turned away: too many");
            continue;
        };
        let slot = Arc::new(slot);
        let engine = engine.clone();
        let run = move || {
            let snapshot = || snapshot(&engine, &slot);
            if let Err(e) = client(stream, PATIENCE, snapshot) {
                log!(Level::Debug, "engine", "a client of the metrics is gone: {e}");
            }
        };
        if let Err(e) = thread::Builder::new().name("metrics".to_owned()).spawn(run) {
            log!(Level::Warn, "engine", "no thread for a client of the metrics: {e}");
        }
    }
}

/// The present numbers; `None` if the engine does not give them in time. The client's place stays
/// taken until it does, so that those who ask again and again do not pile up threads.
fn snapshot(engine: &Arc<Engine>, slot: &Arc<Slot>) -> Option<Snapshot> {
    let (done, result) = mpsc::channel();
    let (engine, slot) = (engine.clone(), slot.clone());
    let run = move || {
        let _ = done.send(collect(&engine));
        drop(slot);
    };
    thread::Builder::new().name("metrics".to_owned()).spawn(run).ok()?;
    result.recv_timeout(PATIENCE).ok()?.ok()
}

fn collect(engine: &Arc<Engine>) -> Done<Snapshot> {
    let mut snapshot = Snapshot { info: engine.info(), status: Vec::new(), statistics: Vec::new() };
    if let Answer::Status(status) = engine.execute(Request::Status { resource: None })? {
        snapshot.status = status;
    }
    let request = Request::Statistics { resource: None };
    if let Answer::Statistics(statistics) = engine.execute(request)? {
        snapshot.statistics = statistics;
    }
    Ok(snapshot)
}

/// What a request comes to.
enum Reply {
    Metrics(Format),
    Refused(&'static str, &'static str),
}

const TOO_LONG: Reply =
    Reply::Refused("431 Request Header Fields Too Large", "the head is too long");
const MALFORMED: Reply = Reply::Refused("400 Bad Request", "this is no HTTP request");
const LATE: Reply = Reply::Refused("408 Request Timeout", "the request took too long to arrive");

/// Serves one request.
pub(super) fn client(
    mut stream: TcpStream,
    patience: Duration,
    snapshot: impl FnOnce() -> Option<Snapshot>,
) -> io::Result<()> {
    let reply = read_request(&mut stream, patience)?;
    let (status, kind, body) = match reply {
        Reply::Metrics(format) => match snapshot() {
            Some(snapshot) => ("200 OK", format.content_type(), render(&snapshot, format)),
            None => {
                let text = "the engine did not give its numbers in time; see its log\n".to_owned();
                ("503 Service Unavailable", "text/plain; charset=utf-8", text)
            }
        },
        Reply::Refused(status, text) => (status, "text/plain; charset=utf-8", format!("{text}\n")),
    };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n",
        body.len()
    );
    if status.starts_with("405") {
        answer += "Allow: GET\r\n";
    }
    answer += "\r\n";
    answer += &body;
    write_within(&mut stream, answer.as_bytes(), patience)
}

fn read_request(stream: &mut TcpStream, patience: Duration) -> io::Result<Reply> {
    let end = Instant::now() + patience;
    let (mut head, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(LATE);
        }
        stream.set_read_timeout(Some(left))?;
        let n = match stream.read(&mut chunk) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(LATE),
            Err(e) => return Err(e),
        };
        head.extend_from_slice(&chunk[..n]);
        if let Some(reply) = understand(&head) {
            return Ok(reply);
        }
        if head.len() > HEAD_MAX {
            return Ok(TOO_LONG);
        }
    }
}

/// What the head of a request asks for; `None` if it is not complete.
fn understand(head: &[u8]) -> Option<Reply> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return None,
        Err(httparse::Error::TooManyHeaders) => return Some(TOO_LONG),
        Err(_) => return Some(MALFORMED),
    }
    let path = request.path.unwrap_or_default();
    Some(match (request.method, path.split('?').next()) {
        (Some("GET"), Some("/metrics")) => {
            let accept = request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case("accept"));
            let mut accept = accept.map(|h| String::from_utf8_lossy(h.value));
            let open = accept.any(|value| value.contains("application/openmetrics-text"));
            Reply::Metrics(if open { Format::OpenMetrics } else { Format::Prometheus })
        }
        (Some("GET"), _) => Reply::Refused("404 Not Found", "the metrics are at /metrics"),
        _ => Reply::Refused("405 Method Not Allowed", "only GET is answered"),
    })
}

/// Writes everything before the deadline, however little the client takes at a time.
fn write_within(stream: &mut TcpStream, mut bytes: &[u8], patience: Duration) -> io::Result<()> {
    let end = Instant::now() + patience;
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        let n = stream.write(bytes)?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[n..];
    }
    Ok(())
}
