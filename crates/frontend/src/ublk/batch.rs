//! Commands for several slots of a queue at a time (`UBLK_F_BATCH_IO`, Linux 7.0): what is offered or has a result in
//! a turn of the loop goes in one command for each queue, and one command for each queue waits for requests.

use runtime::ring::{UblkElements, UblkSlot};
use runtime::{Fd, Place, Ring, Token};

/// What a token has in place of a tag for the command that offers slots or gives results.
pub(super) const ELEMENTS: u64 = 0xfffe;

/// The token of a command of a queue.
pub(super) fn token(base: Token, queue: u16, what: u64) -> Token {
    Token(base.0 | u64::from(queue) << 16 | what)
}

/// The queues of a device.
pub(super) struct Batch {
    queues: Vec<Queue>,
    /// The driver registers the memory of requests.
    registers: bool,
    /// Something was added since the last [`Batch::flush`], and nobody was told.
    is_fresh: bool,
}

#[derive(Default)]
struct Queue {
    /// Slots for the next command.
    next: UblkElements,
    /// What was in commands that have ended.
    spare: Vec<UblkElements>,
    offer: Offer,
}

/// How far a queue's slots are offered for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Offer {
    #[default]
    Not,
    Begun,
    Done,
}

impl Batch {
    pub(super) fn new(queues: u16, registers: bool) -> Batch {
        let queues = (0..queues).map(|_| Queue::default()).collect();
        Batch { queues, registers, is_fresh: false }
    }

    /// Adds a slot to the next command of its queue.
    pub(super) fn push(&mut self, slot: UblkSlot, place: Option<Place>, result: i32) {
        self.queues[usize::from(slot.queue)].next.push(slot.tag, place, result);
        self.is_fresh = true;
    }

    /// True once after something was added.
    pub(super) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.is_fresh)
    }

    /// Sends what was added. A queue's first command has all of its slots.
    pub(super) fn flush(&mut self, ring: &mut Ring, fd: &Fd, base: Token) {
        for (queue, nr) in self.queues.iter_mut().zip(0..) {
            if queue.next.is_empty() {
                continue;
            }
            let spare = queue.spare.pop().unwrap_or_default();
            let elements = std::mem::replace(&mut queue.next, spare);
            let token = token(base, nr, ELEMENTS);
            match queue.offer {
                Offer::Not => {
                    queue.offer = Offer::Begun;
                    ring.ublk_prepare(token, fd, nr, self.registers, elements);
                }
                _ => {
                    ring.ublk_commit_all(token, fd, nr, self.registers, elements);
                }
            }
        }
    }

    /// A command has ended, and this comes back. True if it was the one that offers a queue's slots.
    pub(super) fn done(&mut self, queue: u16, mut elements: UblkElements) -> bool {
        let queue = &mut self.queues[usize::from(queue)];
        elements.clear();
        queue.spare.push(elements);
        std::mem::replace(&mut queue.offer, Offer::Done) == Offer::Begun
    }
}
