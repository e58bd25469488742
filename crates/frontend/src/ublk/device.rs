//! The requests of one device: each slot is a request at a time.
//!
//! ```text
//!            fetch                 request                  answer
//!   (start) ──────► Offered ─────────────────► Serving ─────────────► Offered (commit)
//!                      │        └► Waiting ──────┘  no buffer yet, or a pause
//!                      └► Back: the device has ended, the kernel wants nothing any more
//! ```
//!
//! A device may have a limit to how long a request takes. One that takes longer has failed, whatever becomes of
//! it; its slot goes on, and the target's answer, which names another turn of the slot, is not the kernel's any
//! more.

use runtime::ring::{UblkElements, UblkSlot};
use std::time::Duration;

use runtime::{
    AllocError, BufPool, Completed, Completion, Errno, Op, OpenerId, Payload, Request, Ring,
    Target, Token,
};
use vocab::Instant;

use super::channel::Channel;
use super::uapi::{Descriptor, DeviceInfo, RequestKind};

/// Who has a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    /// The kernel, until it has a request.
    Offered,
    /// This device, which lacks a buffer for the request, or takes none now.
    Waiting,
    /// The target; this many bytes are to be reported.
    Serving { read: bool, bytes: u32 },
    /// Nobody any more.
    Back,
}

impl Slot {
    /// It has a request that has no result.
    fn is_held(self) -> bool {
        matches!(self, Slot::Waiting | Slot::Serving { .. })
    }
}

/// A device that is served.
pub(super) struct Device<C> {
    channel: C,
    depth: u16,
    /// Its token is that of slot 0 of queue 0; queue and tag are in the lowest 32 bits of others.
    token: Token,
    opener: OpenerId,
    /// By queue, then tag.
    slots: Vec<Slot>,
    /// With a limit, by slot.
    limit: Option<Limit>,
    /// Slots that are not back.
    out: usize,
    waiting: Vec<UblkSlot>,
    /// Requests that the target has.
    serving: usize,
    /// Reads that were not copied.
    placed: u64,
    /// By queue: it waits for no more requests, where it was one command that did.
    ended: Vec<bool>,
    /// The first error by which the kernel refused a slot, other than the device's end.
    refused: Option<Errno>,
}

/// How long requests may take.
struct Limit {
    patience: Duration,
    /// When a slot's request came.
    since: Vec<Instant>,
    /// Requests of a slot that took too long.
    turns: Vec<u32>,
}

fn bits(slot: UblkSlot) -> u64 {
    u64::from(slot.queue) << 16 | u64::from(slot.tag)
}

fn slot_of(bits: u64) -> UblkSlot {
    UblkSlot { queue: (bits >> 16) as u16, tag: bits as u16 }
}

impl<C: Channel> Device<C> {
    /// Offers all slots. Tokens are `token` with queue and tag in its lowest 32 bits; requests go to
    /// the target that `opener` has open.
    pub(super) fn start(
        mut channel: C,
        ring: &mut Ring,
        info: &DeviceInfo,
        token: Token,
        opener: OpenerId,
        patience: Option<Duration>,
    ) -> Device<C> {
        let DeviceInfo { queues, depth, .. } = *info;
        for queue in 0..queues {
            for tag in 0..depth {
                let slot = UblkSlot { queue, tag };
                channel.fetch(ring, Token(token.0 | bits(slot)), slot);
            }
        }
        let slots = vec![Slot::Offered; usize::from(queues) * usize::from(depth)];
        let (out, waiting) = (slots.len(), Vec::new());
        let limit = patience.map(|patience| Limit {
            patience,
            since: vec![ring.now(); slots.len()],
            turns: vec![0; slots.len()],
        });
        let (serving, placed, refused) = (0, 0, None);
        Device {
            channel,
            depth,
            token,
            opener,
            slots,
            limit,
            out,
            waiting,
            serving,
            placed,
            ended: vec![false; usize::from(queues)],
            refused,
        }
    }

    /// True once after something was done that waits for [`Device::flush`].
    pub(super) fn take_fresh(&mut self) -> bool {
        self.channel.take_fresh()
    }

    /// Sends what the kernel takes in one command for several requests.
    pub(super) fn flush(&mut self, ring: &mut Ring) {
        self.channel.flush(ring, self.token);
    }

    /// A command on several slots of a queue has completed.
    fn on_batch(&mut self, ring: &mut Ring, done: Completed) {
        let UblkSlot { queue, tag } = slot_of(done.token.0);
        if u64::from(tag) == UblkSlot::END {
            match done.result {
                Err(Errno::ENODEV | Errno::ECANCELED) => self.end_queue(queue, None),
                // More than there was memory for at a time, or room for completions.
                Ok(_) | Err(Errno::ENOBUFS | Errno::ENOMEM | Errno::EAGAIN | Errno::EINTR) => {
                    self.fetch_all(ring, queue);
                }
                Err(errno) => self.end_queue(queue, Some(errno)),
            }
            return;
        }
        let Payload::Elements(elements) = done.payload else {
            panic!("what is given to the kernel comes back")
        };
        let bytes = done.result.unwrap_or(0);
        let errno = done.result.err().unwrap_or(Errno::EIO);
        // Those that a command with results has not come to are lost to both.
        let taken = (bytes / UblkElements::BYTES) as usize;
        let lost: Vec<u16> = elements.tags().skip(taken).collect();
        match (self.channel.batch_done(queue, elements), done.result) {
            (true, Ok(_)) => self.fetch_all(ring, queue),
            (true, Err(errno)) => self.end_queue(queue, Some(errno)),
            (false, _) => {
                for tag in lost {
                    self.give_up(UblkSlot { queue, tag }, Some(errno));
                }
            }
        }
    }

    fn fetch_all(&mut self, ring: &mut Ring, queue: u16) {
        if let Err(errno) = self.channel.fetch_all(ring, self.token, queue) {
            self.end_queue(queue, Some(errno));
        }
    }

    /// No requests come to a queue any more.
    fn end_queue(&mut self, queue: u16, why: Option<Errno>) {
        self.ended[usize::from(queue)] = true;
        for tag in 0..self.depth {
            self.give_up(UblkSlot { queue, tag }, why);
        }
    }

    /// A slot that is offered is nobody's any more.
    fn give_up(&mut self, slot: UblkSlot, why: Option<Errno>) {
        if *self.slot_mut(slot) == Slot::Offered {
            *self.slot_mut(slot) = Slot::Back;
            self.out -= 1;
        }
        if let Some(errno) = why.filter(|why| ![Errno::ENODEV, Errno::ECANCELED].contains(why)) {
            self.refused.get_or_insert(errno);
        }
    }

    /// When the oldest request will have taken too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let limit = self.limit.as_ref()?;
        let held = self.slots.iter().zip(&limit.since).filter(|(slot, _)| slot.is_held());
        Some(*held.map(|(_, since)| since).min()? + limit.patience)
    }

    /// Fails the requests that have taken too long.
    pub(super) fn end_overdue(&mut self, ring: &mut Ring) {
        let Some(limit) = &mut self.limit else { return };
        let now = ring.now();
        let mut overdue = Vec::new();
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.is_held() && limit.since[index] + limit.patience <= now {
                limit.turns[index] = limit.turns[index].wrapping_add(1);
                let depth = usize::from(self.depth);
                let (queue, tag) = ((index / depth) as u16, (index % depth) as u16);
                overdue.push(UblkSlot { queue, tag });
            }
        }
        self.waiting.retain(|slot| !overdue.contains(slot));
        for slot in overdue {
            self.refuse(ring, slot, Errno::ETIMEDOUT);
        }
    }

    /// How often the slot's requests took too long, in the highest bits of a request's tag.
    fn turn(&self, slot: UblkSlot) -> u64 {
        self.limit.as_ref().map_or(0, |limit| u64::from(limit.turns[self.index(slot)]) << 32)
    }

    fn index(&self, slot: UblkSlot) -> usize {
        usize::from(slot.queue) * usize::from(self.depth) + usize::from(slot.tag)
    }

    /// The way to the kernel.
    pub(super) fn channel(&self) -> &C {
        &self.channel
    }

    /// Reads that the disk has put straight into the memory of their requests.
    pub(super) fn placed(&self) -> u64 {
        self.placed
    }

    /// All slots are back: nothing will complete any more.
    pub(super) fn is_back(&self) -> bool {
        self.out == 0
    }

    /// Some requests lack buffers, or came in a pause.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Requests that the target has.
    pub(super) fn in_flight(&self) -> usize {
        self.serving
    }

    /// Why the kernel took a slot back though the device goes on; told once.
    pub(super) fn take_refusal(&mut self) -> Option<Errno> {
        self.refused.take()
    }

    fn slot_mut(&mut self, slot: UblkSlot) -> &mut Slot {
        let index = self.index(slot);
        &mut self.slots[index]
    }

    fn commit(&mut self, ring: &mut Ring, slot: UblkSlot, result: i32) {
        *self.slot_mut(slot) = Slot::Offered;
        let token = Token(self.token.0 | bits(slot));
        self.channel.commit(ring, token, slot, result);
        if self.ended[usize::from(slot.queue)] {
            self.give_up(slot, None);
        }
    }

    fn refuse(&mut self, ring: &mut Ring, slot: UblkSlot, errno: Errno) {
        self.commit(ring, slot, -errno.0);
    }

    /// The command of a slot has completed: there is a request, or the slot is back.
    pub(super) fn on_completed(
        &mut self,
        ring: &mut Ring,
        target: Option<&mut dyn Target>,
        pool: &BufPool,
        done: Completed,
        paused: bool,
    ) {
        let slot = slot_of(done.token.0);
        if slot.tag >= self.depth {
            return self.on_batch(ring, done);
        }
        self.channel.came_back(slot, done.payload);
        let index = self.index(slot);
        if let Some(limit) = &mut self.limit {
            limit.since[index] = ring.now();
        }
        let was = std::mem::replace(self.slot_mut(slot), Slot::Waiting);
        assert_eq!(was, Slot::Offered, "a slot completes once for each time it is offered");
        match done.result {
            // Served when the pause ends; if another process goes on, the kernel asks that one.
            Ok(0) if paused => self.waiting.push(slot),
            Ok(0) => self.serve(ring, target, pool, slot),
            // The driver asks for an address only of those who said that they give one.
            Ok(_) => self.refuse(ring, slot, Errno::EIO),
            Err(errno) => {
                *self.slot_mut(slot) = Slot::Back;
                self.out -= 1;
                if ![Errno::ENODEV, Errno::ECANCELED].contains(&errno) {
                    self.refused.get_or_insert(errno);
                }
            }
        }
    }

    /// Tries again to serve those that lacked buffers.
    pub(super) fn resume(
        &mut self,
        ring: &mut Ring,
        mut target: Option<&mut dyn Target>,
        pool: &BufPool,
    ) {
        for _ in 0..self.waiting.len() {
            let slot = self.waiting.remove(0);
            // Not `as_deref_mut`: the trait object's lifetime would have to outlive the loop.
            let target = target.as_mut().map(|target| &mut **target as &mut dyn Target);
            self.serve(ring, target, pool, slot);
        }
    }

    /// Hands the request of a slot to the target.
    fn serve(
        &mut self,
        ring: &mut Ring,
        target: Option<&mut dyn Target>,
        pool: &BufPool,
        slot: UblkSlot,
    ) {
        let descriptor = self.channel.descriptor(slot);
        let Some(target) = target else { return self.refuse(ring, slot, Errno::EIO) };
        let (op, offset, len) = match operation(&descriptor) {
            Ok(operation) => operation,
            Err(errno) => return self.refuse(ring, slot, errno),
        };
        let buf = match op {
            Op::Read | Op::Write => match pool.alloc(len as usize) {
                Ok(buf) => Some(buf),
                Err(AllocError::TooLarge) => return self.refuse(ring, slot, Errno::EINVAL),
                Err(AllocError::Exhausted) => {
                    *self.slot_mut(slot) = Slot::Waiting;
                    return self.waiting.push(slot);
                }
            },
            _ => None,
        };
        let buf = match buf {
            Some(mut buf) if op == Op::Write => {
                let into = buf.as_mut_slice().expect("nobody else has a buffer just allocated");
                if let Err(errno) = self.channel.copy_in(slot, into) {
                    return self.refuse(ring, slot, errno);
                }
                Some(buf)
            }
            buf => buf,
        };
        *self.slot_mut(slot) = Slot::Serving { read: op == Op::Read, bytes: len };
        self.serving += 1;
        let fua = op.is_write() && descriptor.fua();
        let (opener, tag) = (self.opener, self.turn(slot) | bits(slot));
        let place = match op {
            Op::Read => self.channel.place(slot, &descriptor),
            _ => None,
        };
        target.submit(Request { opener, tag, op, offset, len, fua, buf, place });
    }

    /// The target has answered a request.
    pub(super) fn on_target(&mut self, ring: &mut Ring, done: Completion) {
        let slot = slot_of(done.tag);
        self.serving -= 1;
        if done.tag != self.turn(slot) | bits(slot) {
            return;
        }
        let Slot::Serving { read, bytes } = *self.slot_mut(slot) else {
            panic!("a target answers each request once");
        };
        let result = match (done.result, read) {
            (Ok(()), true) if done.placed => {
                self.placed += 1;
                Ok(())
            }
            (Ok(()), true) => {
                let data = done.buf.as_deref().expect("a successful read has its data");
                assert_eq!(data.len(), bytes as usize, "a target reads what was asked for");
                self.channel.copy_out(slot, data)
            }
            (result, _) => result,
        };
        match result {
            // Lengths are far below 2 GiB.
            Ok(()) => self.commit(ring, slot, bytes as i32),
            Err(errno) => self.refuse(ring, slot, errno),
        }
    }
}

/// What a descriptor asks of the target: operation, offset and length in bytes.
fn operation(descriptor: &Descriptor) -> Result<(Op, u64, u32), Errno> {
    let op = match descriptor.kind() {
        RequestKind::Read => Op::Read,
        RequestKind::Write => Op::Write,
        RequestKind::Flush => return Ok((Op::Flush, 0, 0)),
        RequestKind::Discard => Op::Trim,
        RequestKind::WriteZeroes => Op::WriteZeroes { no_hole: descriptor.no_unmap() },
        RequestKind::Other(_) => return Err(Errno::EOPNOTSUPP),
    };
    let (offset, len) = descriptor.range().filter(|(_, len)| *len > 0).ok_or(Errno::EINVAL)?;
    Ok((op, offset, len))
}
