//! One ring as a state machine: from the guest's chains to the target and back.
//!
//! ```text
//!           taken                part                 answer
//!   Free ─────────► (parsed) ───────────► Serving ─────────────► used, Free
//!                        │  └► Waiting ──────┘  no buffer yet
//!                        └► refused: used at once
//! ```
//!
//! A slot belongs to the descriptor that its chain begins with. A request longer than the target takes at
//! once is carried out in parts, one after the other, so none needs more than one buffer.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::mpsc;

use runtime::{
    AllocError, Buf, BufPool, Completion, Errno, Fd, Op, OpId, OpenerId, Payload, Request, Ring,
    Target, Token,
};
use vm_memory::{Bytes, GuestAddress};

use super::inflight::RingLog;
use super::memory::Guest;
use super::request::{Ask, ID_LEN, IOERR, OK, Piece, UNSUPP, copy, parse};
use super::split::{Broken, Split};

/// Requests taken from a ring before it is the others' turn.
const TURN_REQUESTS: usize = 64;
/// Bytes copied from a ring before it is the others' turn.
const TURN_BYTES: usize = 4 << 20;
/// What an eventfd is read and written with.
const EVENT_LEN: usize = 8;

/// A ring as its client has described it.
pub struct Setup {
    /// Where it is.
    pub split: Split,
    /// Index of the first chain to be taken, unless the log says otherwise.
    pub base: u16,
    /// Tells of new chains.
    pub kick: OwnedFd,
    /// Tells the guest of used ones, unless it looks by itself.
    pub call: Option<OwnedFd>,
    /// Tells the client that the ring is broken, if it wants to know.
    pub err: Option<OwnedFd>,
    /// What was in flight before.
    pub log: Option<RingLog>,
    /// Whether chains are taken.
    pub enabled: bool,
}

/// What holds for all rings of a device.
pub(super) struct Terms {
    pub(super) opener: OpenerId,
    /// Longest part, in bytes.
    pub(super) part_max: u32,
    /// The guest relies on a write being durable once it is used.
    pub(super) write_through: bool,
    /// Nothing may be written.
    pub(super) read_only: bool,
    /// The volume is not what the guest knows: every request fails.
    pub(super) gone: bool,
    pub(super) id: [u8; ID_LEN],
}

/// What a ring works with.
pub(super) struct Context<'a> {
    pub(super) ring: &'a mut Ring,
    pub(super) pool: &'a BufPool,
    pub(super) guest: &'a Guest,
    pub(super) terms: &'a Terms,
    /// No chains are taken, and no kicks are waited for.
    pub(super) paused: bool,
    /// The ring's number, in the place it has in tags of requests.
    pub(super) tag: u64,
    /// Tokens of this ring.
    pub(super) tokens: Tokens,
}

/// Tokens of a ring's operations.
#[derive(Clone, Copy)]
pub(super) struct Tokens {
    /// A kick was read.
    pub(super) kick: Token,
    /// A call was written.
    pub(super) call: Token,
    /// It is the ring's turn again.
    pub(super) again: Token,
    /// The client was told of an error.
    pub(super) err: Token,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Waiting,
    Serving,
}

/// A chain that is being carried out.
struct Slot {
    state: State,
    op: Op,
    offset: u64,
    len: u32,
    /// Bytes that are done, and those of the part that the target has.
    done: u32,
    part: u32,
    status: GuestAddress,
    pieces: Vec<Piece>,
}

/// One ring; see the module.
pub(super) struct Vring {
    split: Split,
    slots: Vec<Slot>,
    /// Heads to be carried out again, the last one first.
    repeats: Vec<u16>,
    waiting: VecDeque<u16>,
    /// Slots that are not free.
    in_flight: usize,
    log: Option<RingLog>,
    kick: Fd,
    /// The read that waits for a kick, or what it is to be read into.
    kick_op: Option<OpId>,
    kick_buf: Option<Buf>,
    call: Option<Fd>,
    err: Option<Fd>,
    /// Eight bytes that say 1.
    one: Buf,
    /// The guest was not considered for a call since something was put, here or by who served it before.
    due: bool,
    /// A call is on its way; another one is wanted.
    calling: bool,
    call_again: bool,
    /// It will be its turn again.
    scheduled: bool,
    enabled: bool,
    broken: Option<Broken>,
    /// Told the next index once nothing is in flight any more.
    stopped: Option<mpsc::Sender<u16>>,
}

impl Vring {
    /// Begins with a ring as it is in the guest's memory.
    ///
    /// # Errors
    /// Why it can not be served.
    pub(super) fn start(cx: &mut Context<'_>, setup: Setup) -> Result<Vring, String> {
        let Setup { mut split, base, kick, call, err, mut log, enabled } = setup;
        split.begin(cx.guest.memory(), base).map_err(|e| e.to_string())?;
        let mut repeats = Vec::new();
        if let Some(log) = &mut log {
            repeats = log.recover(split.next_used());
            split.go_to(split.next_used().wrapping_add(repeats.len() as u16));
            repeats.reverse();
        }
        let buffer = |len| cx.pool.alloc(len).map_err(|_| "no buffers are left".to_owned());
        let mut one = buffer(EVENT_LEN)?;
        let bytes = one.as_mut_slice().expect("nobody else has a buffer just allocated");
        bytes.copy_from_slice(&1u64.to_ne_bytes());
        let kick = Fd::new(kick);
        let kick_buf = Some(buffer(EVENT_LEN)?);
        let slot = || Slot {
            state: State::Free,
            op: Op::Flush,
            offset: 0,
            len: 0,
            done: 0,
            part: 0,
            status: GuestAddress(0),
            pieces: Vec::new(),
        };
        let mut vring = Vring {
            slots: (0..split.size()).map(|_| slot()).collect(),
            split,
            repeats,
            waiting: VecDeque::new(),
            in_flight: 0,
            log,
            kick,
            kick_op: None,
            kick_buf,
            call: call.map(Fd::new),
            err: err.map(Fd::new),
            one,
            due: true,
            calling: false,
            call_again: false,
            scheduled: false,
            enabled,
            broken: None,
            stopped: None,
        };
        // Chains may be there already, and their kick may have gone to whoever served the ring before.
        if !cx.paused {
            vring.go_on(cx);
        }
        Ok(vring)
    }

    /// Withdraws the read that waits for a kick: another process may be about to wait for them.
    pub(super) fn pause(&mut self, ring: &mut Ring) {
        if let Some(op) = self.kick_op {
            ring.cancel(op);
        }
    }

    /// What keeps it from being handed over, once it is paused.
    pub(super) fn unfrozen(&self) -> Option<&'static str> {
        let told = self.kick_op.is_some() || self.calling || self.due || self.scheduled;
        match (self.in_flight, told) {
            (0, false) => None,
            (0, true) => Some("a guest is being told of answers"),
            _ => Some("requests of a guest are under way"),
        }
    }

    /// It takes no more chains, for good.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Index of the next chain to be taken.
    pub(super) fn next_chain(&self) -> u16 {
        self.split.next_avail()
    }

    /// Goes on after a pause. What was offered meanwhile may have had its kick taken by another process.
    pub(super) fn go_on(&mut self, cx: &mut Context<'_>) {
        if self.stopped.is_none() {
            self.await_kick(cx);
            self.schedule(cx);
        }
    }

    fn await_kick(&mut self, cx: &mut Context<'_>) {
        if let Some(buf) = self.kick_buf.take() {
            self.kick_op = Some(cx.ring.read(cx.tokens.kick, &self.kick, 0, buf));
        }
    }

    /// Requests that are taken and not used.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Some requests lack buffers.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call.map(Fd::new);
        // One that was on its way may have gone to the old one.
        self.due = true;
    }

    pub(super) fn set_err(&mut self, err: Option<OwnedFd>) {
        self.err = err.map(Fd::new);
    }

    pub(super) fn set_enabled(&mut self, cx: &mut Context<'_>, enabled: bool) {
        self.enabled = enabled;
        self.schedule(cx);
    }

    /// Takes no more chains. `told` gets the index of the next one once all that were taken are used.
    pub(super) fn stop(&mut self, ring: &mut Ring, told: mpsc::Sender<u16>) {
        self.pause(ring);
        self.stopped = Some(told);
        self.tell_stopped();
    }

    /// True once it has stopped: nothing of it is in flight.
    pub(super) fn tell_stopped(&mut self) -> bool {
        let Some(told) = self.stopped.as_ref().filter(|_| self.in_flight == 0) else {
            return false;
        };
        // Whoever waited may have lost patience.
        let _ = told.send(self.split.next_avail());
        true
    }

    /// Has the ring's turn come again soon.
    fn schedule(&mut self, cx: &mut Context<'_>) {
        if !std::mem::replace(&mut self.scheduled, true) {
            cx.ring.fail(cx.tokens.again, Errno::ECANCELED, Payload::None);
        }
    }

    /// A kick was read.
    pub(super) fn on_kick(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut dyn Target,
        payload: Payload,
        result: Result<u32, Errno>,
    ) -> Result<(), Broken> {
        self.kick_op = None;
        let (Payload::Buf(buf), true) = (payload, self.stopped.is_none()) else { return Ok(()) };
        self.kick_buf = Some(buf);
        match result {
            // It is considered when the ring goes on.
            _ if cx.paused => Ok(()),
            Ok(_) | Err(Errno::ECANCELED) => {
                self.await_kick(cx);
                self.serve(cx, target)
            }
            // Without kicks there is nothing to go by.
            Err(_) => self.fail(cx, Broken::Memory),
        }
    }

    /// It is the ring's turn again.
    pub(super) fn on_again(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut dyn Target,
    ) -> Result<(), Broken> {
        self.scheduled = false;
        self.serve(cx, target)
    }

    /// A call was written.
    pub(super) fn on_called(&mut self, cx: &mut Context<'_>) {
        self.calling = false;
        if std::mem::take(&mut self.call_again) {
            self.write_call(cx);
        }
    }

    /// Takes no more chains, and says so.
    fn fail(&mut self, cx: &mut Context<'_>, why: Broken) -> Result<(), Broken> {
        if self.broken.is_some() {
            return Ok(());
        }
        self.broken = Some(why);
        if let Some(err) = &self.err {
            cx.ring.write(cx.tokens.err, err, 0, self.one.clone(), false);
        }
        Err(why)
    }

    /// Takes chains, as many as fit into a turn. The error says why the ring is broken from now on.
    pub(super) fn serve(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut dyn Target,
    ) -> Result<(), Broken> {
        if !self.enabled || cx.paused || self.broken.is_some() || self.stopped.is_some() {
            return Ok(());
        }
        match self.take_all(cx, target) {
            Ok(()) => Ok(()),
            Err(why) => self.fail(cx, why),
        }
    }

    fn take_all(&mut self, cx: &mut Context<'_>, target: &mut dyn Target) -> Result<(), Broken> {
        let memory = cx.guest.memory();
        self.split.disarm(memory)?;
        let mut bytes = 0;
        for _ in 0..TURN_REQUESTS {
            if bytes >= TURN_BYTES {
                break;
            }
            if let Some(head) = self.repeats.pop() {
                bytes += self.begin(cx, target, head, true)?;
                continue;
            }
            match self.split.take(memory)? {
                Some(head) => bytes += self.begin(cx, target, head, false)?,
                None if self.split.arm(memory)? => {}
                None => return Ok(()),
            }
        }
        self.schedule(cx);
        Ok(())
    }

    /// Begins with a chain. Returns its bytes.
    fn begin(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut dyn Target,
        head: u16,
        repeat: bool,
    ) -> Result<usize, Broken> {
        let memory = cx.guest.memory();
        let slot = &mut self.slots[usize::from(head)];
        if slot.state != State::Free {
            return Err(Broken::Twice(head));
        }
        let readable = self.split.chain(memory, head, &mut slot.pieces)?;
        let parsed = parse(&mut slot.pieces, readable, memory).ok_or(Broken::Chain(head))?;
        if cx.guest.is_torn() {
            return Err(Broken::Torn);
        }
        slot.status = parsed.status;
        (slot.done, slot.part) = (0, 0);
        (slot.op, slot.len) = (Op::Flush, 0);
        slot.state = State::Serving;
        self.in_flight += 1;
        if let (Some(log), false) = (&mut self.log, repeat) {
            log.begin(head);
        }
        match parsed.ask {
            _ if cx.terms.gone => self.finish(cx, head, IOERR)?,
            Ask::Refused(status) => self.finish(cx, head, status)?,
            Ask::Id => {
                let status = self.tell_id(cx, head);
                self.finish(cx, head, status)?;
            }
            Ask::Target { op, offset, len } => {
                let forbidden = op.is_write() && cx.terms.read_only;
                if forbidden || !fits(target, op, offset, len) {
                    self.finish(cx, head, IOERR)?;
                    return Ok(0);
                }
                (slot_of(&mut self.slots, head).op, slot_of(&mut self.slots, head).len) = (op, len);
                slot_of(&mut self.slots, head).offset = offset;
                self.submit(cx, target, head)?;
                return Ok(if matches!(op, Op::Read | Op::Write) { len as usize } else { 0 });
            }
        }
        Ok(0)
    }

    fn tell_id(&mut self, cx: &Context<'_>, head: u16) -> u8 {
        let slot = slot_of(&mut self.slots, head);
        let room: usize = slot.pieces.iter().map(|piece| piece.len as usize).sum();
        let (len, memory, id) = (room.min(ID_LEN), cx.guest.memory(), &cx.terms.id);
        slot.len = len as u32;
        slot.op = Op::Read;
        let done =
            copy(&slot.pieces, 0, len, |at, range| memory.write_slice(&id[range], at).is_ok());
        if done { OK } else { IOERR }
    }

    /// Hands the next part of a request to the target.
    fn submit(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut dyn Target,
        head: u16,
    ) -> Result<(), Broken> {
        let slot = slot_of(&mut self.slots, head);
        let op = slot.op;
        let mut part = slot.len - slot.done;
        let buf = match op {
            Op::Read | Op::Write => {
                part = part.min(cx.terms.part_max);
                match cx.pool.alloc(part as usize) {
                    Ok(buf) => Some(buf),
                    Err(AllocError::TooLarge) => return self.finish(cx, head, IOERR),
                    Err(AllocError::Exhausted) => {
                        slot.state = State::Waiting;
                        self.waiting.push_back(head);
                        return Ok(());
                    }
                }
            }
            _ => None,
        };
        let buf = match buf {
            Some(mut buf) if op == Op::Write => {
                let into = buf.as_mut_slice().expect("nobody else has a buffer just allocated");
                let (skip, memory) = (slot.done as usize, cx.guest.memory());
                let whole = copy(&slot.pieces, skip, part as usize, |at, range| {
                    memory.read_slice(&mut into[range], at).is_ok()
                });
                if cx.guest.is_torn() {
                    // Its mark stays: it is no guest any more that could be answered.
                    return Err(Broken::Torn);
                }
                if !whole {
                    return self.finish(cx, head, IOERR);
                }
                Some(buf)
            }
            buf => buf,
        };
        slot.state = State::Serving;
        slot.part = part;
        let (opener, tag) = (cx.terms.opener, cx.tag | u64::from(head));
        let offset = slot.offset + u64::from(slot.done);
        let fua = op.is_write() && cx.terms.write_through;
        target.submit(Request { opener, tag, op, offset, len: part, fua, buf, place: None });
        Ok(())
    }

    /// Tries again to serve those that lacked buffers.
    pub(super) fn resume(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut dyn Target,
    ) -> Result<(), Broken> {
        for _ in 0..self.waiting.len() {
            let Some(head) = self.waiting.pop_front() else { break };
            if let Err(why) = self.submit(cx, target, head) {
                return self.fail(cx, why);
            }
        }
        Ok(())
    }

    /// The target has answered a part of a request.
    pub(super) fn on_target(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut dyn Target,
        done: Completion,
    ) -> Result<(), Broken> {
        let head = done.tag as u16;
        let slot = slot_of(&mut self.slots, head);
        assert_eq!(slot.state, State::Serving, "a target answers each request once");
        let mut status = match done.result {
            Ok(()) => OK,
            Err(Errno::EOPNOTSUPP) => UNSUPP,
            Err(_) => IOERR,
        };
        if status == OK && slot.op == Op::Read {
            let data = done.buf.as_deref().expect("a successful read has its data");
            let (skip, memory) = (slot.done as usize, cx.guest.memory());
            let whole = copy(&slot.pieces, skip, slot.part as usize, |at, range| {
                memory.write_slice(&data[range], at).is_ok()
            });
            status = if whole { OK } else { IOERR };
        }
        slot.done += slot.part;
        let next = match status == OK && slot.done < slot.len {
            true => self.submit(cx, target, head),
            false => self.finish(cx, head, status),
        };
        next.or_else(|why| self.fail(cx, why))
    }

    /// Answers a request.
    fn finish(&mut self, cx: &mut Context<'_>, head: u16, status: u8) -> Result<(), Broken> {
        let slot = slot_of(&mut self.slots, head);
        let memory = cx.guest.memory();
        let written = if slot.op == Op::Read && status == OK { slot.len } else { 0 };
        slot.state = State::Free;
        let at = slot.status;
        self.in_flight -= 1;
        self.due = true;
        memory.write_slice(&[status], at).map_err(|_| Broken::Memory)?;
        if let Some(log) = &self.log {
            log.ending(head);
        }
        self.split.put(memory, head, written.saturating_add(1))?;
        if let Some(log) = &self.log {
            log.ended(head, self.split.next_used());
        }
        Ok(())
    }

    /// Calls the guest if there is something new and it wants to be called.
    pub(super) fn call(&mut self, cx: &mut Context<'_>) -> Result<(), Broken> {
        if !std::mem::take(&mut self.due) {
            return Ok(());
        }
        match self.split.wants_call(cx.guest.memory()) {
            Ok(true) if self.calling => self.call_again = true,
            Ok(true) => self.write_call(cx),
            Ok(false) => {}
            Err(why) => return self.fail(cx, why),
        }
        Ok(())
    }

    fn write_call(&mut self, cx: &mut Context<'_>) {
        if let Some(call) = &self.call {
            cx.ring.write(cx.tokens.call, call, 0, self.one.clone(), false);
            self.calling = true;
        }
    }
}

fn slot_of(slots: &mut [Slot], head: u16) -> &mut Slot {
    &mut slots[usize::from(head)]
}

/// Whether a request is whole blocks within the target, before a part of it is carried out.
fn fits(target: &dyn Target, op: Op, offset: u64, len: u32) -> bool {
    let (info, block) = (target.info(), u64::from(target.info().block_size_min));
    let len = u64::from(len);
    op == Op::Flush
        || (len > 0
            && offset.is_multiple_of(block)
            && len.is_multiple_of(block)
            && offset.checked_add(len).is_some_and(|end| end <= info.size.0))
}
