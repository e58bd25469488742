//! Transmission phase of one connection, without I/O: client bytes in, jobs for the target out;
//! completions in, replies out.
//!
//! ```text
//! Header ─► a valid request ───────────► Event::Job ─────────────────────► Header
//!       ├─► a valid write ─────────────► Event::Payload ─ payload taken ─► Header
//!       ├─► a refused request ── error reply ────────────────────────────► Header
//!       ├─► a refused write ───► Skip its payload ─ error reply ─────────► Header
//!       └─► NBD_CMD_DISC ──────► Event::Disconnect ► Disconnected (requests in flight complete)
//! ```
//!
//! A job is carried out in parts, as the target takes only so many bytes in one request. A
//! request is in flight from its event until its last part has completed; replies leave in the
//! order requests complete. The payload of a write never passes through here: the driver
//! receives it straight into aligned buffers and tells how much it took. The same holds for the
//! data of reads, which is handed to [`Replies`] as it came from the target.

use runtime::{Aspect, Buf, Completion, Errno, ExtentKind, Op};
use serde::{Deserialize, Serialize};

use super::proto::option::{Context, Contexts};
use super::proto::transfer::{
    Asked, Chunk, Command, EXTENDED_REQUEST_LEN, ExtendedRequest, Extent, REQUEST_LEN,
    RequestHeader, SimpleReply,
};
use super::proto::{CommandFlags, ErrorCode, MAX_PAYLOAD, TransmissionFlags};
use super::{ExportInfo, Violation};

/// Requests of one connection that may be in flight; more are left unread.
pub const MAX_REQUESTS: usize = 256;
/// Most extents sent in one block status reply; clients ask again for the rest.
const MAX_EXTENTS_SENT: usize = 4096;
/// Longest step of a request without data. The steps of one follow each other.
const STEP_MAX: u32 = 1 << 30;

/// Where replies go, in order.
pub trait Replies {
    /// Header bytes, to be copied.
    fn bytes(&mut self, bytes: &[u8]);
    /// Data read, to be sent from where it is.
    fn data(&mut self, data: Buf);
}

/// The transmission phase of one connection.
#[derive(Debug)]
pub struct Session {
    size: u64,
    block_size_min: u32,
    /// Longest part of a read or write, a multiple of `block_size_min`.
    part_max: u32,
    flags: TransmissionFlags,
    structured: bool,
    /// Requests and replies have extended headers.
    extended: bool,
    /// The metadata contexts that were selected.
    contexts: Contexts,
    shutting_down: bool,
    state: State,
    head: [u8; EXTENDED_REQUEST_LEN],
    head_len: usize,
    requests: Vec<Option<Pending>>,
    free: Vec<u32>,
    /// Bytes asked for by the reads in flight.
    reading: u64,
    scratch: Vec<u8>,
}

/// What client and server have agreed on, see [`Session::freeze`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Frozen {
    size: u64,
    block_size_min: u32,
    part_max: u32,
    flags: u16,
    structured: bool,
    extended: bool,
    /// `base:allocation` was selected.
    block_status: bool,
    /// [`Context::OutOfSync`] was selected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    out_of_sync: bool,
}

#[derive(Debug)]
enum State {
    Header,
    /// The driver takes this many more bytes of payload.
    Payload {
        remaining: u32,
    },
    /// This many more bytes of a refused write are thrown away.
    Skip {
        remaining: u32,
        asked: Asked,
        refusal: Refused,
    },
    Disconnected,
}

/// A request in flight.
#[derive(Debug)]
struct Pending {
    asked: Asked,
    op: Op,
    offset: u64,
    /// Of the part that is carried out now, if it has no data.
    len: u32,
    /// Bytes that come after that.
    rest: u64,
    fua: bool,
    /// One extent is enough (`NBD_CMD_FLAG_REQ_ONE`).
    one_extent: bool,
    parts: u32,
    parts_left: u32,
    /// The first failure and the byte its part began at.
    error: Option<(Errno, u64)>,
    reading: Reading,
}

/// How the data of a read leaves.
#[derive(Debug)]
enum Reading {
    /// Each part as a chunk as soon as it is there.
    Chunks,
    /// All parts together, in order, behind one header.
    Whole(Vec<Option<Buf>>),
}

/// Why a request is refused: the number and a text for the client's user.
type Refused = (ErrorCode, &'static str);

/// A request for the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    slot: u32,
    part_max: u32,
    /// What to do.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; 0 only for a flush.
    pub len: u32,
    /// Durable before it completes.
    pub fua: bool,
}

/// As much of a job as the target takes in one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The tag to give to the target.
    pub tag: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

impl Job {
    /// Number of parts, at least one.
    pub const fn parts(&self) -> u32 {
        if self.is_split() { self.len.div_ceil(self.part_max) } else { 1 }
    }

    /// Part `index`.
    ///
    /// # Panics
    /// If there is none of that index.
    pub fn part(&self, index: u32) -> Part {
        assert!(index < self.parts(), "part {index} of {}", self.parts());
        let (start, len) = if self.is_split() {
            let start = index * self.part_max;
            (start, self.part_max.min(self.len - start))
        } else {
            (0, self.len)
        };
        let tag = u64::from(index) << 32 | u64::from(self.slot);
        Part { tag, offset: self.offset + u64::from(start), len }
    }

    /// Only requests with data are limited in length.
    const fn is_split(&self) -> bool {
        matches!(self.op, Op::Read | Op::Write)
    }
}

/// What the session wants from its driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Submit every part of the job; a read needs a buffer for each.
    Job(Job),
    /// A write. The next `len` bytes of the stream are its data: receive each part into a buffer
    /// of its length, call [`Session::payload_taken`], submit it.
    Payload(Job),
    /// The client leaves: close once [`Session::in_flight`] is 0 and all replies are sent.
    Disconnect,
}

impl Session {
    pub(super) fn new(
        export: &ExportInfo<'_>,
        flags: TransmissionFlags,
        (structured, extended): (bool, bool),
        contexts: Contexts,
    ) -> Session {
        let target = &export.target;
        let part_max = target.max_transfer - target.max_transfer % target.block_size_min;
        assert!(part_max > 0, "a target takes at least one block at a time");
        assert!(
            structured || contexts == Contexts::NONE,
            "contexts are selected only with structured replies"
        );
        Session::thaw(&Frozen {
            size: export.size(),
            block_size_min: target.block_size_min,
            part_max,
            flags: flags.0,
            structured,
            extended,
            block_status: contexts.allocation,
            out_of_sync: contexts.out_of_sync,
        })
    }

    /// Takes bytes from the client, hands replies to refused requests to `replies`, and stops at
    /// the first event. Returns how many bytes were used; the rest belongs to what comes after
    /// the event. Uses nothing while a payload is due, while [`MAX_REQUESTS`] are in flight and
    /// after a disconnect.
    ///
    /// # Errors
    /// The client broke the protocol: close the connection.
    pub fn receive(
        &mut self,
        input: &[u8],
        replies: &mut impl Replies,
    ) -> Result<(usize, Option<Event>), Violation> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            match &mut self.state {
                State::Header => {
                    if self.in_flight() >= MAX_REQUESTS {
                        return Ok((used, None));
                    }
                    let n = (self.request_len() - self.head_len).min(rest.len());
                    self.head[self.head_len..self.head_len + n].copy_from_slice(&rest[..n]);
                    self.head_len += n;
                    used += n;
                    if self.head_len < self.request_len() {
                        return Ok((used, None));
                    }
                    self.head_len = 0;
                    if let Some(event) = self.on_request(replies)? {
                        return Ok((used, Some(event)));
                    }
                }
                State::Skip { remaining, asked, refusal } => {
                    let n = rest.len().min(*remaining as usize);
                    *remaining -= n as u32;
                    used += n;
                    if *remaining > 0 {
                        return Ok((used, None));
                    }
                    let (asked, refusal) = (*asked, *refusal);
                    self.state = State::Header;
                    self.reply_refused(asked, refusal, replies);
                }
                State::Payload { .. } | State::Disconnected => return Ok((used, None)),
            }
        }
    }

    /// The driver took `len` bytes of payload from the stream.
    ///
    /// # Panics
    /// If that is more than was due.
    pub fn payload_taken(&mut self, len: u32) {
        let State::Payload { remaining } = &mut self.state else {
            panic!("payload is taken only after its event");
        };
        *remaining = remaining.checked_sub(len).expect("no more than the payload is taken");
        if *remaining == 0 {
            self.state = State::Header;
        }
    }

    /// A part has completed. What comes back is the next step of the same request: submit it.
    ///
    /// # Panics
    /// If the tag is not that of a part in flight, or a read succeeded without its data: the
    /// target's contract is broken.
    #[must_use]
    pub fn complete(&mut self, done: Completion, replies: &mut impl Replies) -> Option<Job> {
        let contexts = self.contexts;
        let (slot, part) = (done.tag as u32, (done.tag >> 32) as u32);
        let pending = self.requests.get_mut(slot as usize).and_then(Option::as_mut);
        let pending = pending.expect("a completion belongs to a request in flight");
        assert!(part < pending.parts && pending.parts_left > 0, "each part completes once");
        pending.parts_left -= 1;
        let last = pending.parts_left == 0;
        let start = u64::from(part) * u64::from(self.part_max);
        match done.result {
            Err(errno) => {
                let at = pending.offset + start;
                pending.error = Some(pending.error.unwrap_or((errno, at)));
            }
            Ok(()) if pending.op == Op::Read => {
                let data = done.buf.expect("a successful read brings its data");
                let want = u64::from(self.part_max).min(u64::from(pending.len) - start);
                assert_eq!(data.len() as u64, want, "a read brings all of its data");
                match &mut pending.reading {
                    Reading::Whole(parts) if pending.parts > 1 => parts[part as usize] = Some(data),
                    _ if pending.error.is_some() => {}
                    Reading::Whole(_) => {
                        let cookie = pending.asked.cookie;
                        replies.bytes(&SimpleReply { error: 0, cookie }.encode());
                        replies.data(data);
                        self.release(slot);
                        return None;
                    }
                    Reading::Chunks => {
                        let (offset, len) = (pending.offset + start, data.len() as u32);
                        let chunk = Chunk::OffsetData { offset, len };
                        self.scratch.clear();
                        chunk.encode(pending.asked, last, &mut self.scratch);
                        replies.bytes(&self.scratch);
                        replies.data(data);
                        if last {
                            self.release(slot);
                            return None;
                        }
                    }
                }
            }
            Ok(()) if pending.rest > 0 && self.shutting_down => {
                let at = pending.offset + u64::from(pending.len);
                pending.error = Some((Errno::ESHUTDOWN, at));
            }
            Ok(()) if pending.rest > 0 => {
                pending.parts_left = 1;
                pending.offset += u64::from(pending.len);
                pending.len = step_of(pending.rest);
                pending.rest -= u64::from(pending.len);
                let Pending { op, offset, len, fua, .. } = *pending;
                return Some(Job { slot, part_max: self.part_max, op, offset, len, fua });
            }
            Ok(()) => {
                if let Op::BlockStatus(told) = pending.op {
                    let next = contexts.iter().skip_while(|c| aspect(*c) != told).nth(1);
                    let limit = if pending.one_extent { 1 } else { MAX_EXTENTS_SENT };
                    let extents = done.extents.as_deref().unwrap_or(&[]);
                    let extents = extents_for_wire(extents, pending.len, limit);
                    let chunk =
                        Chunk::BlockStatus { context: context(told).id(), extents: &extents };
                    self.scratch.clear();
                    chunk.encode(pending.asked, next.is_none(), &mut self.scratch);
                    replies.bytes(&self.scratch);
                    let Some(next) = next else {
                        self.release(slot);
                        return None;
                    };
                    (pending.op, pending.parts_left) = (Op::BlockStatus(aspect(next)), 1);
                    let Pending { op, offset, len, fua, .. } = *pending;
                    return Some(Job { slot, part_max: self.part_max, op, offset, len, fua });
                }
            }
        }
        if last {
            let pending = self.release(slot);
            self.finish(pending, replies);
        }
        None
    }

    /// New requests are answered with `NBD_ESHUTDOWN` from now on; those in flight complete.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    /// Bytes asked for by the reads in flight.
    pub const fn reading_bytes(&self) -> u64 {
        self.reading
    }

    /// How many bytes [`Session::receive`] needs at least to make progress, and uses at most
    /// before its next event. Nothing while a payload is due or after a disconnect.
    pub const fn wanted(&self) -> (usize, usize) {
        match self.state {
            State::Header => {
                (self.request_len() - self.head_len, self.request_len() - self.head_len)
            }
            State::Skip { remaining, .. } => (1, remaining as usize),
            State::Payload { .. } | State::Disconnected => (0, 0),
        }
    }

    const fn request_len(&self) -> usize {
        if self.extended { EXTENDED_REQUEST_LEN } else { REQUEST_LEN }
    }

    /// No data of a request is to be read before the next one; that may have begun.
    pub const fn is_between_requests(&self) -> bool {
        matches!(self.state, State::Header)
    }

    /// A session that has nothing in flight, for [`Session::thaw`] in another process; and what it has
    /// read of the next request. `None` if it has, or if its client leaves.
    pub fn freeze(&self) -> Option<(Frozen, &[u8])> {
        if self.in_flight() > 0 || !self.is_between_requests() || self.shutting_down {
            return None;
        }
        let frozen = Frozen {
            size: self.size,
            block_size_min: self.block_size_min,
            part_max: self.part_max,
            flags: self.flags.0,
            structured: self.structured,
            extended: self.extended,
            block_status: self.contexts.allocation,
            out_of_sync: self.contexts.out_of_sync,
        };
        Some((frozen, &self.head[..self.head_len]))
    }

    /// A session between two requests: one that goes on with what was frozen, or a new one.
    pub fn thaw(frozen: &Frozen) -> Session {
        let Frozen { size, block_size_min, part_max, flags, structured, extended, .. } = *frozen;
        let (allocation, out_of_sync) = (frozen.block_status, frozen.out_of_sync);
        Session {
            size,
            block_size_min,
            part_max,
            flags: TransmissionFlags(flags),
            structured,
            extended,
            contexts: Contexts { allocation, out_of_sync },
            shutting_down: false,
            state: State::Header,
            head: [0; EXTENDED_REQUEST_LEN],
            head_len: 0,
            requests: Vec::new(),
            free: Vec::new(),
            reading: 0,
            scratch: Vec::new(),
        }
    }

    /// True once the client has said it leaves.
    pub const fn is_disconnected(&self) -> bool {
        matches!(self.state, State::Disconnected)
    }

    fn on_request(&mut self, replies: &mut impl Replies) -> Result<Option<Event>, Violation> {
        let header = self.decode().ok_or(Violation::RequestMagic)?;
        let ExtendedRequest { flags, command, cookie, offset, len } = header;
        let asked = Asked { cookie, extended: self.extended.then_some(offset) };
        let brings_payload =
            command == Command::Write || self.extended && flags.contains(CommandFlags::PAYLOAD_LEN);
        if brings_payload && len > u64::from(MAX_PAYLOAD) {
            return Err(Violation::PayloadTooLong(len));
        }
        if command == Command::Disc {
            self.state = State::Disconnected;
            return Ok(Some(Event::Disconnect));
        }
        match self.check(&header) {
            Err(refusal) if brings_payload && len > 0 => {
                self.state = State::Skip { remaining: len as u32, asked, refusal };
                Ok(None)
            }
            Err(refusal) => {
                self.reply_refused(asked, refusal, replies);
                Ok(None)
            }
            // The protocol leaves empty requests undefined; they do nothing, successfully.
            Ok(op) if len == 0 && op != Op::Flush => {
                self.reply_success(asked, op, replies);
                Ok(None)
            }
            Ok(op) => {
                let job = self.begin(&header, asked, op);
                if op == Op::Write {
                    self.state = State::Payload { remaining: len as u32 };
                    Ok(Some(Event::Payload(job)))
                } else {
                    Ok(Some(Event::Job(job)))
                }
            }
        }
    }

    fn decode(&self) -> Option<ExtendedRequest> {
        if self.extended {
            return ExtendedRequest::decode(&self.head);
        }
        let compact = self.head.first_chunk().expect("extended requests are longer");
        RequestHeader::decode(compact).map(ExtendedRequest::from)
    }

    /// What the request asks of the target, or why it is refused ("Error values").
    fn check(&self, header: &ExtendedRequest) -> Result<Op, Refused> {
        let ExtendedRequest { flags, command, offset, len, .. } = *header;
        let served = |flag| self.flags.contains(flag);
        if self.shutting_down {
            return Err((ErrorCode::Shutdown, "the export is being shut down"));
        }
        let mut valid = command.valid_flags();
        // Writes of careless clients come without it, and are understood.
        let payload = self.extended && command == Command::Write;
        valid = valid.with_if(CommandFlags::PAYLOAD_LEN, payload);
        for (flag, needs) in [
            (CommandFlags::FUA, TransmissionFlags::SEND_FUA),
            (CommandFlags::DF, TransmissionFlags::SEND_DF),
            (CommandFlags::FAST_ZERO, TransmissionFlags::SEND_FAST_ZERO),
        ] {
            if !served(needs) {
                valid = valid.without(flag);
            }
        }
        if flags.without(valid) != CommandFlags::NONE {
            return Err((ErrorCode::Inval, "the command does not have such a flag here"));
        }
        let op = match command {
            Command::Read => Op::Read,
            Command::Write => Op::Write,
            Command::Flush => Op::Flush,
            Command::Trim => Op::Trim,
            Command::WriteZeroes => {
                Op::WriteZeroes { no_hole: flags.contains(CommandFlags::NO_HOLE) }
            }
            Command::BlockStatus => Op::BlockStatus(match self.contexts.iter().next() {
                Some(context) => aspect(context),
                None => return Err(NOT_OFFERED),
            }),
            Command::Disc | Command::Cache | Command::Resize | Command::Unknown(_) => {
                return Err((ErrorCode::Inval, "this server does not know the command"));
            }
        };
        if op.is_write() && served(TransmissionFlags::READ_ONLY) {
            return Err((ErrorCode::Perm, "the export is read-only"));
        }
        let offered = match op {
            Op::Read | Op::Write => true,
            Op::Flush => served(TransmissionFlags::SEND_FLUSH),
            Op::Trim => served(TransmissionFlags::SEND_TRIM),
            Op::WriteZeroes { .. } => served(TransmissionFlags::SEND_WRITE_ZEROES),
            Op::BlockStatus(_) => true,
        };
        if !offered {
            return Err(NOT_OFFERED);
        }
        if op == Op::Flush {
            return if offset == 0 && len == 0 {
                Ok(op)
            } else {
                Err((ErrorCode::Inval, "a flush has no offset and no length"))
            };
        }
        self.check_range(op, offset, len).map(|()| op)
    }

    fn check_range(&self, op: Op, offset: u64, len: u64) -> Result<(), Refused> {
        let block = u64::from(self.block_size_min);
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            let code = match op {
                Op::Write | Op::WriteZeroes { .. } => ErrorCode::NoSpc,
                _ => ErrorCode::Inval,
            };
            return Err((code, "the request goes beyond the end of the export"));
        }
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err((ErrorCode::Inval, "offset or length is not a multiple of the block size"));
        }
        if op == Op::Read && len > u64::from(MAX_PAYLOAD) {
            // Simple replies have no such number ("Error values").
            let code = if self.structured { ErrorCode::Overflow } else { ErrorCode::Inval };
            return Err((code, "a read may ask for 32 MiB at most"));
        }
        if matches!(op, Op::BlockStatus(_)) && len == 0 {
            return Err((ErrorCode::Inval, "a block status needs a range"));
        }
        Ok(())
    }

    /// Puts a request in flight.
    fn begin(&mut self, header: &ExtendedRequest, asked: Asked, op: Op) -> Job {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() as u32 - 1
        });
        let ExtendedRequest { offset, flags, .. } = *header;
        let len = match op {
            Op::Read | Op::Write => header.len as u32,
            _ => step_of(header.len),
        };
        let rest = match op {
            // What is said of the beginning is an answer.
            Op::BlockStatus(_) => 0,
            _ => header.len - u64::from(len),
        };
        // Clients may set FUA on anything; it means something only where data is written.
        let fua = op.is_write() && flags.contains(CommandFlags::FUA);
        let job = Job { slot, part_max: self.part_max, op, offset, len, fua };
        let parts = job.parts();
        let whole = !self.structured || flags.contains(CommandFlags::DF) && parts > 1;
        let reading = if whole && op == Op::Read && parts > 1 {
            Reading::Whole((0..parts).map(|_| None).collect())
        } else if whole {
            Reading::Whole(Vec::new())
        } else {
            Reading::Chunks
        };
        let pending = Pending {
            asked,
            op,
            offset,
            len,
            rest,
            fua,
            one_extent: flags.contains(CommandFlags::REQ_ONE),
            parts,
            parts_left: parts,
            error: None,
            reading,
        };
        let place = &mut self.requests[slot as usize];
        assert!(place.is_none(), "a free slot holds no request");
        *place = Some(pending);
        if op == Op::Read {
            self.reading += u64::from(len);
        }
        job
    }

    fn release(&mut self, slot: u32) -> Pending {
        let pending = self.requests[slot as usize].take().expect("the slot holds a request");
        assert_eq!(pending.parts_left, 0, "only a completed request is released");
        self.free.push(slot);
        if pending.op == Op::Read {
            self.reading -= u64::from(pending.len);
        }
        pending
    }

    /// The last part is done and its data, if it went as chunks, is on its way.
    fn finish(&mut self, pending: Pending, replies: &mut impl Replies) {
        let Pending { asked, op, offset, len, .. } = pending;
        if let Some((errno, at)) = pending.error {
            let at = (op == Op::Read && pending.parts > 1).then_some(at);
            return self.reply_failed(asked, errno, at, replies);
        }
        self.scratch.clear();
        match (op, pending.reading) {
            (Op::Read, Reading::Whole(parts)) => {
                if self.structured {
                    Chunk::OffsetData { offset, len }.encode(asked, true, &mut self.scratch);
                    replies.bytes(&self.scratch);
                } else {
                    replies.bytes(&SimpleReply { error: 0, cookie: asked.cookie }.encode());
                }
                for part in parts {
                    replies.data(part.expect("every part has completed"));
                }
            }
            _ => self.reply_success(asked, op, replies),
        }
    }

    /// Success without data. Only reads must be answered by chunks; a simple reply is shorter.
    fn reply_success(&mut self, asked: Asked, op: Op, replies: &mut impl Replies) {
        if self.extended || self.structured && op == Op::Read {
            self.scratch.clear();
            Chunk::None.encode(asked, true, &mut self.scratch);
            replies.bytes(&self.scratch);
        } else {
            replies.bytes(&SimpleReply { error: 0, cookie: asked.cookie }.encode());
        }
    }

    fn reply_refused(&mut self, asked: Asked, refusal: Refused, replies: &mut impl Replies) {
        let (error, text) = refusal;
        self.reply_error(asked, error, text, None, replies);
    }

    fn reply_failed(
        &mut self,
        asked: Asked,
        errno: Errno,
        at: Option<u64>,
        replies: &mut impl Replies,
    ) {
        // The text costs a formatting, which an error on a failing device can afford.
        self.reply_error(asked, error_code(errno), &errno.to_string(), at, replies);
    }

    fn reply_error(
        &mut self,
        asked: Asked,
        error: ErrorCode,
        text: &str,
        at: Option<u64>,
        replies: &mut impl Replies,
    ) {
        if !self.structured {
            replies.bytes(&SimpleReply { error: error.number(), cookie: asked.cookie }.encode());
            return;
        }
        let chunk = match at {
            Some(offset) => Chunk::ErrorOffset { error, text, offset },
            None => Chunk::Error { error, text },
        };
        self.scratch.clear();
        chunk.encode(asked, true, &mut self.scratch);
        replies.bytes(&self.scratch);
    }
}

/// A command that the client was not told of.
const NOT_OFFERED: Refused = (ErrorCode::Inval, "the command was not offered for this export");

/// What a context tells of.
const fn aspect(context: Context) -> Aspect {
    match context {
        Context::Allocation => Aspect::Allocation,
        Context::OutOfSync => Aspect::OutOfSync,
    }
}

const fn context(aspect: Aspect) -> Context {
    match aspect {
        Aspect::Allocation => Context::Allocation,
        Aspect::OutOfSync => Context::OutOfSync,
    }
}

/// An extent's flags in its context.
const fn flags(kind: ExtentKind) -> u32 {
    match kind {
        ExtentKind::Plain => 0,
        ExtentKind::Hole => 1 | 2,
        ExtentKind::OutOfSync => 1,
    }
}

/// How much of a request without data is carried out at once.
const fn step_of(left: u64) -> u32 {
    if left < STEP_MAX as u64 { left as u32 } else { STEP_MAX }
}

/// The protocol's number for a target's error. It knows eight; the rest are I/O errors.
pub fn error_code(errno: Errno) -> ErrorCode {
    match errno.0 {
        libc::EPERM | libc::EACCES | libc::EROFS => ErrorCode::Perm,
        libc::ENOMEM => ErrorCode::NoMem,
        libc::EINVAL | libc::EOPNOTSUPP => ErrorCode::Inval,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorCode::NoSpc,
        libc::ESHUTDOWN => ErrorCode::Shutdown,
        _ => ErrorCode::Io,
    }
}

/// A target's extents as far as they concern a request of `len` bytes, at most `limit` of them.
///
/// A target says at least something; if not, nothing is out of the ordinary.
fn extents_for_wire(extents: &[runtime::Extent], len: u32, limit: usize) -> Vec<Extent> {
    let mut wire: Vec<Extent> = Vec::new();
    let mut left = len;
    for extent in extents {
        let part = u32::try_from(extent.len).unwrap_or(u32::MAX).min(left);
        if part == 0 {
            continue;
        }
        let full = wire.len() == limit;
        match wire.last_mut() {
            Some(last) if last.flags == flags(extent.kind) => last.len += part,
            _ if full => break,
            _ => wire.push(Extent { len: part, flags: flags(extent.kind) }),
        }
        left -= part;
    }
    if wire.is_empty() {
        wire.push(Extent { len, flags: 0 });
    }
    wire
}

#[cfg(test)]
mod tests;
