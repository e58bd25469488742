//! The engine's control socket from the client's side.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use codec::admin::{
    Answer, Call, Event, Line, Lines, MAX_LINE, Outcome, Request, VERSION, encode_line,
};

use super::error::Error;

/// Added to the deadline the engine is given, so that its own answer arrives first.
const GRACE: Duration = Duration::from_secs(2);

/// A connection to the engine.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    lines: Lines,
    next_id: u64,
    timeout: Duration,
}

impl Client {
    /// Connects; if the engine is still starting, tries again for `wait`.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if nothing listens there.
    pub fn connect(socket: &Path, timeout: Duration, wait: Duration) -> Result<Client, Error> {
        let end = Instant::now() + wait;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(e) if Instant::now() >= end => {
                    return Err(Error::Unreachable { socket: socket.to_owned(), why: e });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        Ok(Client { stream, lines: Lines::new(MAX_LINE), next_id: 1, timeout })
    }

    /// Asks and waits for the answer. `what` names the command in messages.
    ///
    /// # Errors
    /// If the engine refuses, fails, or does not answer in time.
    pub fn ask(&mut self, what: &str, request: Request) -> Result<Answer, Error> {
        let id = self.next_id;
        self.next_id += 1;
        let timeout_ms = u32::try_from(self.timeout.as_millis()).unwrap_or(u32::MAX);
        let call = Call { version: VERSION, id, timeout_ms, request };
        let closed = || Error::Closed { what: what.to_owned() };
        self.stream.write_all(&encode_line(&call)).map_err(|_| closed())?;
        let end = Instant::now() + self.timeout + GRACE;
        loop {
            let line = self.line(what, Some(end))?.ok_or_else(closed)?;
            let Line::Reply(reply) = line else { continue };
            if reply.id != id && reply.id != 0 {
                continue;
            }
            let what = what.to_owned();
            return match reply.outcome {
                Outcome::Ok(answer) => Ok(answer),
                Outcome::Refused(refusal) => Err(Error::Refused { what, refusal }),
                Outcome::Failed(failure) => Err(Error::Failed { what, failure }),
            };
        }
    }

    /// The next event after a subscription; `None` when the engine closes the connection.
    ///
    /// # Errors
    /// If something else than events arrives.
    pub fn event(&mut self) -> Result<Option<Event>, Error> {
        self.event_before(None)
    }

    /// The same until a point in time.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if none has come until `end`; if something else than events arrives.
    pub fn event_before(&mut self, end: Option<Instant>) -> Result<Option<Event>, Error> {
        loop {
            match self.line("events", end)? {
                Some(Line::Event(event)) => return Ok(Some(event)),
                Some(Line::Reply(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next line, or `None` at the end of the stream.
    fn line(&mut self, what: &str, end: Option<Instant>) -> Result<Option<Line>, Error> {
        let protocol = |why: String| Error::Protocol { what: what.to_owned(), why };
        let mut chunk = vec![0; 64 << 10];
        loop {
            if let Some(line) = self.lines.next_line().map_err(|e| protocol(e.to_string()))? {
                let line = serde_json::from_slice(&line);
                return line.map(Some).map_err(|e| protocol(format!("the answer is unclear: {e}")));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::NoAnswer { what: what.to_owned() });
            }
            self.stream.set_read_timeout(left).expect("the timeout is not zero");
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(n) => self.lines.push(&chunk[..n]),
                Err(e) => match e.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => return Ok(None),
                    _ => return Err(protocol(format!("the control socket failed: {e}"))),
                },
            }
        }
    }
}
