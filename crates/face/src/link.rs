//! Requests on their way to an engine and back, over connections that come and go.
//!
//! ```text
//!  submit ──► waiting ──join──► sent on connection N ──reply──► answered
//!               ▲                     │
//!               └──── N is lost ──────┘
//! ```
//!
//! A request is kept until it is answered. When a connection is lost, what it did not answer is asked
//! of the next one. That is safe for each request by itself: whoever sent it has no answer yet, so he
//! can not have built on it, and a write that was carried out already is the same a second time. It
//! is safe for the data as a whole only if nobody else has written meanwhile; the engine sees to that
//! before it connects.
//!
//! Two connections never have the same request, and a lost connection that an engine still works on
//! is no danger: an engine carries out overlapping writes in the order in which it got them.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use frontend::nbd::proto::option::decode_oldstyle_greeting;
use frontend::nbd::proto::transfer::{
    Command, REQUEST_LEN, RequestHeader, SIMPLE_REPLY_LEN, SimpleReply,
};
use frontend::nbd::proto::{CommandFlags, ErrorCode, OLDSTYLE_GREETING_LEN, TransmissionFlags};

/// `EIO`: there is no engine to ask.
const EIO: i32 = 5;
/// What is read from an engine at a time, in bytes: the longest reply fits.
const RECEIVE: usize = 2 << 20;
/// Buffers kept for writes to come.
const SPARE_MAX: usize = 128;
/// How often is looked whether requests have waited long enough.
const WATCH: Duration = Duration::from_millis(500);

/// Where the answer to a request goes.
pub trait Answer: Send + 'static {
    /// The request was carried out, with the data of a read, or failed with an error number.
    fn done(self, result: Result<&[u8], i32>);
}

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Data.
    Read,
    /// To write these; the length is theirs.
    Write(Vec<u8>),
    /// To make the range read as zeroes; allocated if it is to keep its place.
    Zeroes {
        /// Keep its place.
        keep: bool,
    },
    /// To make durable what was written.
    Flush,
}

struct Request {
    op: Op,
    offset: u64,
    len: u32,
}

struct Pending<A> {
    request: Arc<Request>,
    /// The number of the connection that has it.
    sent_on: Option<u64>,
    answer: A,
}

/// A connection to an engine.
struct Conn {
    number: u64,
    /// For shutting it down, and for reading by its own thread.
    stream: UnixStream,
    writer: Mutex<UnixStream>,
}

struct Shared<A> {
    current: Option<Arc<Conn>>,
    /// Connections that only have to answer what they have.
    retired: Vec<Arc<Conn>>,
    /// Requests by cookie.
    pending: Vec<Option<Pending<A>>>,
    free: Vec<usize>,
    spare: Vec<Vec<u8>>,
    /// The volume's size in bytes, once there was a connection.
    size: Option<u64>,
    connections: u64,
    alone_since: Instant,
    /// Requests have waited for too long: every one fails from then on.
    given_up: bool,
}

/// The way to the engine.
pub struct Link<A> {
    shared: Mutex<Shared<A>>,
    joined: Condvar,
    read_only: bool,
    patience: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each critical section is a few assignments: nothing can be half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Conn {
    /// Sends a request. If that fails the connection is lost, which its own thread sees to.
    fn send(&self, cookie: usize, request: &Request) {
        let (command, flags) = match &request.op {
            Op::Read => (Command::Read, CommandFlags::NONE),
            Op::Write(_) => (Command::Write, CommandFlags::NONE),
            Op::Zeroes { keep: false } => (Command::WriteZeroes, CommandFlags::NONE),
            Op::Zeroes { keep: true } => (Command::WriteZeroes, CommandFlags::NO_HOLE),
            Op::Flush => (Command::Flush, CommandFlags::NONE),
        };
        let Request { offset, len, .. } = *request;
        let header = RequestHeader { flags, command, cookie: cookie as u64, offset, len }.encode();
        let data: &[u8] = if let Op::Write(data) = &request.op { data } else { &[] };
        let mut slices = [IoSlice::new(&header), IoSlice::new(data)];
        if write_slices(&mut lock(&self.writer), &mut slices).is_err() {
            self.close();
        }
    }

    fn close(&self) {
        // It may be closed from the other side already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// All slices, in one system call if the socket takes them.
pub(crate) fn write_slices(stream: &mut UnixStream, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    let mut left = slices;
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut left, n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl<A: Answer> Link<A> {
    /// No connection yet. Requests wait for one for at most `patience`.
    pub fn new(read_only: bool, patience: Duration) -> Link<A> {
        let shared = Shared {
            current: None,
            retired: Vec::new(),
            pending: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            size: None,
            connections: 0,
            alone_since: Instant::now(),
            given_up: false,
        };
        Link { shared: Mutex::new(shared), joined: Condvar::new(), read_only, patience }
    }

    /// The volume's size in bytes; 0 before there was a connection.
    pub fn size(&self) -> u64 {
        lock(&self.shared).size.unwrap_or(0)
    }

    /// True if requests fail for lack of an engine.
    pub fn has_given_up(&self) -> bool {
        lock(&self.shared).given_up
    }

    /// Waits for the first connection; false if there was none in that time.
    pub fn wait_joined(&self, patience: Duration) -> bool {
        let shared = lock(&self.shared);
        let waited = self.joined.wait_timeout_while(shared, patience, |s| s.size.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.size.is_some()
    }

    /// Waits until the volume has another size than this, and returns it.
    pub fn wait_resized(&self, known: u64) -> u64 {
        let shared = lock(&self.shared);
        let waited = self.joined.wait_while(shared, |s| s.size.is_none_or(|size| size == known));
        waited.unwrap_or_else(PoisonError::into_inner).size.unwrap_or(known)
    }

    /// A copy of what is to be written, for [`Op::Write`].
    pub fn copy(&self, data: &[u8]) -> Vec<u8> {
        let mut copy = lock(&self.shared).spare.pop().unwrap_or_default();
        copy.extend_from_slice(data);
        copy
    }

    /// Takes a request, in bytes. Its answer comes from another thread.
    pub fn submit(&self, op: Op, offset: u64, len: u32, answer: A) {
        let request = Arc::new(Request { op, offset, len });
        let mut shared = lock(&self.shared);
        if shared.given_up {
            drop(shared);
            return answer.done(Err(EIO));
        }
        let current = shared.current.clone();
        let sent_on = current.as_ref().map(|conn| conn.number);
        let pending = Pending { request: request.clone(), sent_on, answer };
        let cookie = shared.insert(pending);
        drop(shared);
        if let Some(conn) = current {
            conn.send(cookie, &request);
        }
    }

    /// Takes a connection into use once the engine has greeted, which may take that long.
    ///
    /// # Errors
    /// It is not the engine's, or not fit for this volume, or comes too late.
    pub fn join(self: &Arc<Self>, mut stream: UnixStream, patience: Duration) -> io::Result<()> {
        stream.set_read_timeout(Some(patience))?;
        let mut greeting = [0; OLDSTYLE_GREETING_LEN];
        stream.read_exact(&mut greeting)?;
        let (size, flags) =
            decode_oldstyle_greeting(&greeting).ok_or_else(|| invalid("that is no greeting"))?;
        if !self.read_only && flags.contains(TransmissionFlags::READ_ONLY) {
            return Err(invalid("the volume can only be read there"));
        }
        stream.set_read_timeout(None)?;
        let (writer, reader) = (Mutex::new(stream.try_clone()?), stream.try_clone()?);
        let mut shared = lock(&self.shared);
        if shared.given_up {
            return Err(invalid("requests have failed already"));
        }
        shared.connections += 1;
        let conn = Arc::new(Conn { number: shared.connections, stream, writer });
        // Before anything is sent: what is lost from here on is found by that thread.
        let (link, ours) = (self.clone(), conn.clone());
        let receive = move || link.receive(&ours, reader);
        std::thread::Builder::new().name("receive".to_owned()).spawn(receive)?;
        if let Some(old) = shared.current.replace(conn.clone()) {
            shared.retired.push(old);
            shared.close_retired();
        }
        shared.size = Some(size);
        let waiting = shared.take_waiting(&conn);
        drop(shared);
        self.joined.notify_all();
        for (cookie, request) in waiting {
            conn.send(cookie, &request);
        }
        Ok(())
    }

    /// Gives up once requests have waited for an engine for too long. Does not return before.
    pub fn watch(&self) {
        loop {
            std::thread::sleep(WATCH);
            let mut shared = lock(&self.shared);
            if shared.current.is_some() || shared.alone_since.elapsed() < self.patience {
                continue;
            }
            shared.given_up = true;
            let failed: Vec<_> = shared.pending.iter_mut().filter_map(Option::take).collect();
            drop(shared);
            eprintln!(
                "face: no engine for {} seconds: {} requests fail, and all to come",
                self.patience.as_secs(),
                failed.len()
            );
            for pending in failed {
                pending.answer.done(Err(EIO));
            }
            return;
        }
    }

    /// Reads replies until the connection is lost.
    fn receive(&self, conn: &Conn, mut stream: UnixStream) {
        let mut buf = vec![0; RECEIVE];
        let (mut begin, mut end) = (0, 0);
        let why = loop {
            match self.reply(conn, &buf[begin..end]) {
                Ok(Some(used)) => {
                    begin += used;
                    continue;
                }
                Ok(None) => {}
                Err(why) => break why,
            }
            if begin > 0 {
                buf.copy_within(begin..end, 0);
                (begin, end) = (0, end - begin);
            }
            match stream.read(&mut buf[end..]) {
                Ok(0) => break "it was closed".to_owned(),
                Ok(n) => end += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break e.to_string(),
            }
        };
        self.lost(conn, &why);
    }

    /// Takes one reply from the front of `bytes` and returns how long it was; `None` if there is not
    /// all of it yet.
    ///
    /// # Errors
    /// The engine is out of step.
    fn reply(&self, conn: &Conn, bytes: &[u8]) -> Result<Option<usize>, String> {
        let Some((header, rest)) = bytes.split_first_chunk::<SIMPLE_REPLY_LEN>() else {
            return Ok(None);
        };
        let reply = SimpleReply::decode(header).ok_or("a reply without its magic")?;
        let mut shared = lock(&self.shared);
        let cookie = usize::try_from(reply.cookie).map_err(|_| "a reply to nothing")?;
        let pending = shared.pending.get_mut(cookie).and_then(Option::as_mut);
        let pending = pending.filter(|pending| pending.sent_on == Some(conn.number));
        let pending = pending.ok_or("a reply to nothing")?;
        if reply.error == ErrorCode::Shutdown.number() {
            // The engine ends; the next one is asked, which may be there already.
            pending.sent_on = None;
            let next = shared.current.clone().filter(|current| current.number != conn.number);
            if let Some(next) = next {
                let waiting = shared.take_waiting(&next);
                drop(shared);
                waiting.iter().for_each(|(cookie, request)| next.send(*cookie, request));
            }
            return Ok(Some(SIMPLE_REPLY_LEN));
        }
        let is_read = pending.request.op == Op::Read;
        let len = if is_read && reply.error == 0 { pending.request.len as usize } else { 0 };
        let Some(data) = rest.get(..len) else { return Ok(None) };
        let Pending { request, answer, .. } = shared.remove(cookie);
        shared.close_retired();
        if let Ok(Request { op: Op::Write(mut data), .. }) = Arc::try_unwrap(request)
            && shared.spare.len() < SPARE_MAX
        {
            data.clear();
            shared.spare.push(data);
        }
        drop(shared);
        let result = match i32::try_from(reply.error) {
            Ok(0) => Ok(data),
            Ok(errno) => Err(errno),
            Err(_) => Err(EIO),
        };
        answer.done(result);
        Ok(Some(SIMPLE_REPLY_LEN + len))
    }

    /// A connection is lost: what it did not answer goes to the newest one, or waits.
    fn lost(&self, conn: &Conn, why: &str) {
        conn.close();
        let mut shared = lock(&self.shared);
        let mut left = 0;
        for pending in shared.pending.iter_mut().flatten() {
            if pending.sent_on == Some(conn.number) {
                pending.sent_on = None;
                left += 1;
            }
        }
        shared.retired.retain(|retired| retired.number != conn.number);
        if shared.current.as_ref().is_some_and(|current| current.number == conn.number) {
            shared.current = None;
            shared.alone_since = Instant::now();
            eprintln!("face: the engine is gone ({why}), {left} requests wait for the next one");
        }
        let Some(current) = shared.current.clone() else { return };
        let waiting = shared.take_waiting(&current);
        drop(shared);
        for (cookie, request) in waiting {
            current.send(cookie, &request);
        }
    }
}

impl<A> Shared<A> {
    fn insert(&mut self, pending: Pending<A>) -> usize {
        let cookie = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[cookie] = Some(pending);
        cookie
    }

    fn remove(&mut self, cookie: usize) -> Pending<A> {
        self.free.push(cookie);
        self.pending[cookie].take().expect("seen by the caller")
    }

    /// The requests that no connection has, which `conn` is given.
    fn take_waiting(&mut self, conn: &Conn) -> Vec<(usize, Arc<Request>)> {
        let mut waiting = Vec::new();
        for (cookie, pending) in self.pending.iter_mut().enumerate() {
            if let Some(pending) = pending
                && pending.sent_on.is_none()
            {
                pending.sent_on = Some(conn.number);
                waiting.push((cookie, pending.request.clone()));
            }
        }
        waiting
    }

    /// Closes retired connections that have nothing left to answer.
    fn close_retired(&mut self) {
        let Shared { retired, pending, .. } = self;
        if retired.is_empty() {
            return;
        }
        retired.retain(|conn| {
            let busy = pending.iter().flatten().any(|p| p.sent_on == Some(conn.number));
            if !busy {
                conn.close();
            }
            busy
        });
    }
}

const _: () = assert!(REQUEST_LEN == 28 && RECEIVE > SIMPLE_REPLY_LEN + (1 << 20));

#[cfg(test)]
mod tests;
