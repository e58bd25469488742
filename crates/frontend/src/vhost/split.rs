//! A ring in the guest's memory: the split virtqueue of the public virtio specification.
//!
//! The guest can change any of it at any moment. Each value is read once and checked; indices that make
//! no sense end the ring.

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::request::Piece;

/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Why a ring can not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The guest offers more than the ring holds.
    TooMany(u16),
    /// A chain begins outside of the table.
    Head(u16),
    /// A chain is offered again before it was used.
    Twice(u16),
    /// A chain is a loop, leads nowhere, or has no place for a status.
    Chain(u16),
    /// A part of the ring is not in the guest's memory.
    Memory,
    /// The guest's memory was taken away by the client.
    Torn,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::TooMany(count) => write!(f, "it offers {count} requests at once"),
            Broken::Head(head) => write!(f, "it offers descriptor {head}, which it does not have"),
            Broken::Twice(head) => write!(f, "it offers descriptor {head} a second time"),
            Broken::Chain(head) => write!(f, "what begins with descriptor {head} is no request"),
            Broken::Memory => f.write_str("it is not in the guest's memory"),
            Broken::Torn => f.write_str("the guest's memory was taken away"),
        }
    }
}

/// A ring: where it is, and how far it is.
#[derive(Clone, Debug)]
pub struct Split {
    size: u16,
    desc: u64,
    avail: u64,
    used: u64,
    event_idx: bool,
    next_avail: u16,
    next_used: u16,
    /// The used index when a call was considered last.
    told: u16,
}

type Memory = GuestMemoryMmap<()>;

fn load(memory: &Memory, at: u64) -> Result<u16, Broken> {
    let value = memory.load(GuestAddress(at), Ordering::Acquire);
    value.map(u16::from_le).map_err(|_| Broken::Memory)
}

fn store(memory: &Memory, at: u64, value: u16) -> Result<(), Broken> {
    let done = memory.store(value.to_le(), GuestAddress(at), Ordering::Release);
    done.map_err(|_| Broken::Memory)
}

impl Split {
    /// A ring of `size` descriptors, a power of two, with its parts at these addresses of the guest;
    /// `None` if it can not be one.
    pub fn new(size: u16, desc: u64, avail: u64, used: u64, event_idx: bool) -> Option<Split> {
        let aligned = desc.is_multiple_of(16) && avail.is_multiple_of(2) && used.is_multiple_of(4);
        // What is computed from these below can not overflow.
        let low = [desc, avail, used].iter().all(|at| *at < 1 << 62);
        let zero = (0, 0, 0);
        let (next_avail, next_used, told) = zero;
        (aligned && low && size.is_power_of_two()).then_some(Split {
            size,
            desc,
            avail,
            used,
            event_idx,
            next_avail,
            next_used,
            told,
        })
    }

    /// Descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Index of the next chain to be taken.
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Index of the next place in the used ring.
    pub fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Begins where the guest's used ring is; the next chain to be taken is `ahead` beyond that, or
    /// at `base`.
    ///
    /// # Errors
    /// [`Broken::Memory`]
    pub fn begin(&mut self, memory: &Memory, base: u16) -> Result<(), Broken> {
        // All of it, so that a ring that is not there is found out now.
        let size = u64::from(self.size);
        for last in
            [self.desc + DESCRIPTOR * size, self.avail + 6 + 2 * size, self.used + 6 + 8 * size]
        {
            load(memory, last - 2)?;
        }
        self.next_used = load(memory, self.used + 2)?;
        // Whoever served it before may have put these and not have called.
        self.told = self.next_used.wrapping_sub(self.size);
        self.next_avail = base;
        Ok(())
    }

    /// Takes chains from that index on.
    pub fn go_to(&mut self, next_avail: u16) {
        self.next_avail = next_avail;
    }

    /// Chains that are offered.
    fn offered(&self, memory: &Memory) -> Result<u16, Broken> {
        let count = load(memory, self.avail + 2)?.wrapping_sub(self.next_avail);
        if count > self.size { Err(Broken::TooMany(count)) } else { Ok(count) }
    }

    /// Takes the next chain: its first descriptor.
    ///
    /// # Errors
    /// [`Broken`]
    pub fn take(&mut self, memory: &Memory) -> Result<Option<u16>, Broken> {
        if self.offered(memory)? == 0 {
            return Ok(None);
        }
        let place = u64::from(self.next_avail % self.size);
        let head = load(memory, self.avail + 4 + 2 * place)?;
        if head >= self.size {
            return Err(Broken::Head(head));
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(Some(head))
    }

    /// Reads a chain: its memory, readable pieces first. Returns how many are readable.
    ///
    /// # Errors
    /// [`Broken::Chain`]
    pub fn chain(
        &self,
        memory: &Memory,
        head: u16,
        pieces: &mut Vec<Piece>,
    ) -> Result<usize, Broken> {
        let broken = Broken::Chain(head);
        pieces.clear();
        let (mut table, mut entries, mut index) = (self.desc, self.size, head);
        let (mut indirect, mut readable) = (false, 0);
        // A chain is never longer than its ring, so a loop is found.
        for _ in 0..=self.size {
            let mut bytes = [0; DESCRIPTOR as usize];
            let at = table.checked_add(DESCRIPTOR * u64::from(index)).ok_or(broken)?;
            memory.read_slice(&mut bytes, GuestAddress(at)).map_err(|_| broken)?;
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
            let at = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            let len = u32::from_le_bytes([i, j, k, l]);
            let (flags, next) = (u16::from_le_bytes([m, n]), u16::from_le_bytes([o, p]));
            if flags & INDIRECT != 0 {
                let count = u64::from(len) / DESCRIPTOR;
                let whole = u64::from(len) == count * DESCRIPTOR;
                let count = u16::try_from(count).map_err(|_| broken)?;
                if indirect || flags & NEXT != 0 || !whole || count == 0 {
                    return Err(broken);
                }
                (table, entries, index, indirect) = (at, count, 0, true);
                continue;
            }
            match flags & WRITE {
                0 if readable < pieces.len() => return Err(broken),
                0 => readable += 1,
                _ => {}
            }
            pieces.push(Piece { at, len });
            if flags & NEXT == 0 {
                return Ok(readable);
            }
            if next >= entries || pieces.len() >= usize::from(self.size) {
                return Err(broken);
            }
            index = next;
        }
        Err(broken)
    }

    /// Puts a chain into the used ring; `len` bytes of it were written.
    ///
    /// # Errors
    /// [`Broken::Memory`]
    pub fn put(&mut self, memory: &Memory, head: u16, len: u32) -> Result<(), Broken> {
        let at = self.used + 4 + 8 * u64::from(self.next_used % self.size);
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&len.to_le_bytes());
        memory.write_slice(&entry, GuestAddress(at)).map_err(|_| Broken::Memory)?;
        self.next_used = self.next_used.wrapping_add(1);
        store(memory, self.used + 2, self.next_used)
    }

    /// True if the guest wants to be called for what was put since this was asked last.
    ///
    /// # Errors
    /// [`Broken::Memory`]
    pub fn wants_call(&mut self, memory: &Memory) -> Result<bool, Broken> {
        // What was put is seen before the guest's wish is read.
        fence(Ordering::SeqCst);
        let told = std::mem::replace(&mut self.told, self.next_used);
        if !self.event_idx {
            return Ok(load(memory, self.avail)? & 1 == 0);
        }
        let event = load(memory, self.avail + 4 + 2 * u64::from(self.size))?;
        let since = self.next_used.wrapping_sub(event).wrapping_sub(1);
        Ok(since < self.next_used.wrapping_sub(told))
    }

    /// Asks the guest for no kicks for a while; it may send some.
    ///
    /// # Errors
    /// [`Broken::Memory`]
    pub fn disarm(&self, memory: &Memory) -> Result<(), Broken> {
        // With an index of the next event none comes unasked.
        if self.event_idx { Ok(()) } else { store(memory, self.used, 1) }
    }

    /// Asks for a kick with the next chain. True if there is one already.
    ///
    /// # Errors
    /// [`Broken`]
    pub fn arm(&self, memory: &Memory) -> Result<bool, Broken> {
        match self.event_idx {
            true => store(memory, self.used + 4 + 8 * u64::from(self.size), self.next_avail)?,
            false => store(memory, self.used, 0)?,
        }
        fence(Ordering::SeqCst);
        Ok(self.offered(memory)? > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost::request::parse;

    const MEMORY: usize = 4096;
    const SIZE: u16 = 8;

    /// The next number of a sequence.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    #[test]
    fn whatever_is_in_memory_a_ring_comes_to_an_end() {
        let guest = Memory::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
        let (mut pieces, mut state) = (Vec::new(), 7);
        let (mut chains, mut requests, mut refused) = (0, 0, 0);
        for _ in 0..20_000 {
            // Values that mean something are more likely than others.
            let mut content: Vec<u8> = Vec::with_capacity(MEMORY);
            while content.len() < 1024 {
                let random = next(&mut state);
                let word: u16 = match random % 4 {
                    0 => (random >> 32) as u16,
                    1 => (random >> 32) as u16 % 16,
                    2 => (random >> 32) as u16 & 0xfff0,
                    _ => 0,
                };
                content.extend(word.to_le_bytes());
            }
            // As many as the ring holds are offered.
            content[2..4].copy_from_slice(&SIZE.to_le_bytes());
            guest.write_slice(&content, GuestAddress(0)).unwrap();
            let mut split = Split::new(SIZE, 64, 0, 512, state & 1 == 0).unwrap();
            split.begin(&guest, 0).unwrap();
            while let Ok(Some(head)) = split.take(&guest) {
                match split.chain(&guest, head, &mut pieces) {
                    Ok(readable) => {
                        chains += 1;
                        assert!(readable <= pieces.len() && pieces.len() <= usize::from(SIZE));
                        requests += usize::from(parse(&mut pieces, readable, &guest).is_some());
                        split.put(&guest, head, 1).unwrap();
                    }
                    Err(why) => {
                        assert_eq!(why, Broken::Chain(head));
                        refused += 1;
                    }
                }
            }
            let _ = split.wants_call(&guest);
            let _ = split.arm(&guest);
        }
        assert!(chains > 1000 && requests > 500 && refused > 1000, "{chains} {requests} {refused}");
    }

    #[test]
    fn a_ring_that_can_not_be_one_is_refused() {
        for (size, desc, avail, used) in [
            (0, 0, 0, 0),
            (3, 0, 0, 0),
            (8, 8, 0, 0),
            (8, 0, 1, 0),
            (8, 0, 0, 2),
            (8, 1 << 63, 0, 0),
        ] {
            assert!(Split::new(size, desc, avail, used, true).is_none());
        }
        let guest = Memory::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
        let mut beyond = Split::new(256, 16, 0, 512, true).unwrap();
        assert_eq!(beyond.begin(&guest, 0), Err(Broken::Memory));
    }
}
