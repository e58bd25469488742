//! Commands on a queue of a ublk character device: fetch a request, or give back its result and
//! fetch the next.
//!
//! A command completes when there is a request, however long that takes. How data come and go is the
//! device's ([`UblkData`]): by reading and writing the character device, by the request's own pages, which
//! the driver puts into a place of the ring's table of registered buffers, or by a buffer that a command
//! names. Like every operation's, that belongs to the ring until the command has completed.
//!
//! With `UBLK_F_BATCH_IO` (Linux 7.0) there is a command for all slots of a queue that have a result, and one
//! that stays and completes whenever there are requests.

use std::mem::size_of;

use io_uring::types::Fd as RingFd;
use io_uring::{opcode, squeue};

use super::op::{Kind, Memory, OpId, Token};
use super::provided::{GROUP, Provided};
use super::{Fd, Place, Ring};
use crate::{Buf, Errno};

/// `UBLK_U_IO_FETCH_REQ`: `_IOWR('u', 0x20, struct ublksrv_io_cmd)` (ublk_cmd.h).
const FETCH: u32 = 0xc010_7520;
/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`, number 0x21.
const COMMIT_AND_FETCH: u32 = 0xc010_7521;
/// `UBLK_AUTO_BUF_REG_FALLBACK`: what can not be registered is delivered all the same.
const FALLBACK: u64 = 1;

/// `UBLK_U_IO_PREP_IO_CMDS`, number 0x25.
const PREPARE: u32 = 0xc010_7525;
/// `UBLK_U_IO_COMMIT_IO_CMDS`, number 0x26.
const COMMIT: u32 = 0xc010_7526;
/// `UBLK_U_IO_FETCH_IO_CMDS`, number 0x27.
const FETCH_ALL: u32 = 0xc010_7527;
/// `UBLK_BATCH_F_AUTO_BUF_REG_FALLBACK`: [`FALLBACK`] for all.
const BATCH_FALLBACK: u16 = 1 << 2;
/// `IORING_URING_CMD_MULTISHOT`, in the entry's `uring_cmd_flags`.
const MULTISHOT: u32 = 1 << 1;
/// Where those flags lie in an entry (`struct io_uring_sqe`), in bytes.
const AT_FLAGS: usize = 28;
/// And the group of provided buffers.
const AT_GROUP: usize = 40;

/// A place for requests of a ublk device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UblkSlot {
    /// The hardware queue.
    pub queue: u16,
    /// The request's number there.
    pub tag: u16,
}

impl UblkSlot {
    /// What a token has in place of a tag when [`Ring::ublk_fetch_all`] has ended; no queue has as many slots.
    pub const END: u64 = 0xffff;
}

/// How the data of a slot come and go. Which of it is a matter of the features that a device was added with.
#[derive(Debug)]
pub enum UblkData {
    /// The server copies them (`UBLK_F_USER_COPY`, Linux 6.5).
    Copied,
    /// It can, and the request's memory is at this place as well, if the driver can put it there
    /// (`UBLK_F_AUTO_BUF_REG`, Linux 6.16).
    Placed(Place),
    /// The kernel copies them, where neither is allowed: what is to be written is in this buffer when the
    /// command completes, and what was read has to be in it when the result is given.
    Buffer(UblkBuffer),
}

/// Memory for the data of a slot.
#[derive(Debug)]
pub struct UblkBuffer(Buf);

impl UblkBuffer {
    /// Lends a buffer to the kernel. It comes back as the command's [`Payload::Buf`](super::Payload::Buf).
    ///
    /// # Safety
    /// It is not shorter than the longest read or write of the device that it is lent to: the kernel looks
    /// at nothing but its address.
    ///
    /// # Panics
    /// If it is not unique.
    pub unsafe fn lend(buf: Buf) -> UblkBuffer {
        assert!(buf.is_unique(), "the kernel writes only to a unique buffer");
        UblkBuffer(buf)
    }
}

impl UblkData {
    fn split(self) -> (Option<Place>, Memory) {
        match self {
            UblkData::Copied => (None, Memory::None),
            UblkData::Placed(place) => (Some(place), Memory::None),
            UblkData::Buffer(UblkBuffer(buf)) => (None, Memory::Buf(buf)),
        }
    }
}

/// A command on a slot, as the kernel wants it.
pub(super) struct UblkCommand {
    op: u32,
    slot: UblkSlot,
    result: i32,
    place: Option<Place>,
}

impl UblkCommand {
    /// `struct ublksrv_io_cmd`: queue, tag, result, address.
    fn bytes(&self, memory: &Memory) -> [u8; 16] {
        let address = match memory {
            Memory::Buf(buf) => buf.as_ptr() as u64,
            _ => 0,
        };
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.slot.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.slot.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&address.to_ne_bytes());
        bytes
    }

    /// `struct ublk_auto_buf_reg`: index in bits 0 to 15, flags in bits 16 to 23, zeroes.
    fn registration(&self) -> Option<u64> {
        self.place.map(|Place(index)| u64::from(index) | FALLBACK << 16)
    }

    /// `memory` is the operation's.
    pub(super) fn entry(&self, fd: RingFd, memory: &Memory) -> squeue::Entry {
        let command = opcode::UringCmd16::new(fd, self.op).cmd(self.bytes(memory));
        command.addr(self.registration()).build()
    }
}

/// Slots of a queue for one command, with their results (`struct ublk_elem_header`: tag, place, result).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UblkElements(Vec<u8>);

impl UblkElements {
    /// Bytes of each.
    pub const BYTES: u32 = 8;

    /// Adds a slot: its result, and where its next request can be put.
    pub fn push(&mut self, tag: u16, place: Option<Place>, result: i32) {
        let Place(index) = place.unwrap_or(Place(0));
        self.0.extend(tag.to_ne_bytes());
        self.0.extend(index.to_ne_bytes());
        self.0.extend(result.to_ne_bytes());
    }

    /// Slots.
    pub fn len(&self) -> usize {
        self.0.len() / UblkElements::BYTES as usize
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tags, in order.
    pub fn tags(&self) -> impl Iterator<Item = u16> {
        self.0.chunks(UblkElements::BYTES as usize).map(|e| u16::from_ne_bytes([e[0], e[1]]))
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// A command on several slots of a queue.
pub(super) struct UblkBatch {
    op: u32,
    queue: u16,
    /// The device was added with `UBLK_F_AUTO_BUF_REG`.
    registers: bool,
}

impl UblkBatch {
    /// `struct ublk_batch_io`: queue, flags, number of elements, bytes of each, zeroes.
    fn bytes(queue: u16, flags: u16, elements: u16, bytes: u8) -> [u8; 16] {
        let mut command = [0; 16];
        command[..2].copy_from_slice(&queue.to_ne_bytes());
        command[2..4].copy_from_slice(&flags.to_ne_bytes());
        command[4..6].copy_from_slice(&elements.to_ne_bytes());
        command[6] = bytes;
        command
    }

    /// `elements` are the operation's.
    pub(super) fn entry(&self, fd: RingFd, elements: &UblkElements) -> squeue::Entry {
        let flags = if self.registers { BATCH_FALLBACK } else { 0 };
        let count = elements.len() as u16;
        let bytes = UblkBatch::bytes(self.queue, flags, count, UblkElements::BYTES as u8);
        let command = opcode::UringCmd16::new(fd, self.op).cmd(bytes);
        command.addr(Some(elements.0.as_ptr() as u64)).build()
    }
}

const _: () = assert!(size_of::<squeue::Entry>() == 64);

pub(super) fn fetch_all(fd: RingFd, queue: u16) -> squeue::Entry {
    let bytes = UblkBatch::bytes(queue, 0, 0, size_of::<u16>() as u8);
    let command = opcode::UringCmd16::new(fd, FETCH_ALL).cmd(bytes).build();
    let mut entry = command.flags(squeue::Flags::BUFFER_SELECT);
    let base = (&raw mut entry).cast::<u8>();
    // SAFETY: an entry is the kernel's structure of 64 bytes and nothing else (`repr(C)`, and its size is looked at
    // above), all of it integers, and both lie within it. The library has no way to set them.
    unsafe {
        base.add(AT_FLAGS).cast::<u32>().write_unaligned(MULTISHOT);
        base.add(AT_GROUP).cast::<u16>().write_unaligned(GROUP);
    }
    entry
}

impl Ring {
    /// Offers slots of a queue for the first time, of a device that was added with `UBLK_F_BATCH_IO`; all or,
    /// with an error, none. The elements come back.
    pub fn ublk_prepare(
        &mut self,
        token: Token,
        fd: &Fd,
        queue: u16,
        registers: bool,
        elements: UblkElements,
    ) -> OpId {
        let kind = Kind::UblkBatch(UblkBatch { op: PREPARE, queue, registers });
        self.start(token, Some(fd), Memory::Elements(elements), kind)
    }

    /// Ends the requests of slots with their results, and offers the slots again. Completes with the bytes
    /// of the elements that were taken, from the first on. The elements come back.
    pub fn ublk_commit_all(
        &mut self,
        token: Token,
        fd: &Fd,
        queue: u16,
        registers: bool,
        elements: UblkElements,
    ) -> OpId {
        let kind = Kind::UblkBatch(UblkBatch { op: COMMIT, queue, registers });
        self.start(token, Some(fd), Memory::Elements(elements), kind)
    }

    /// Waits for requests of a queue's slots. Completes for each with a token whose lowest 16 bits are the
    /// tag, zero in `token`, and at last, with [`UblkSlot::END`] there, when it waits no more: for what
    /// reason is the result (`ENODEV`: the device has ended; `ENOBUFS`: it has to be begun again).
    ///
    /// # Errors
    /// What the kernel has against the memory that it takes.
    pub fn ublk_fetch_all(&mut self, token: Token, fd: &Fd, queue: u16) -> Result<OpId, Errno> {
        if self.provided.is_none() {
            self.provided = Some(Provided::register(&self.uring)?);
        }
        Ok(self.start(token, Some(fd), Memory::None, Kind::UblkFetchAll { queue }))
    }

    /// Offers a slot of the device to the kernel. Completes with 0 once there is a request, with
    /// `ENODEV` when the device ends. All slots of a queue are offered by one thread.
    pub fn ublk_fetch(&mut self, token: Token, fd: &Fd, slot: UblkSlot, data: UblkData) -> OpId {
        let (place, memory) = data.split();
        let command = UblkCommand { op: FETCH, slot, result: 0, place };
        self.start(token, Some(fd), memory, Kind::Ublk(command))
    }

    /// Ends the request of a slot with its result, bytes or a negative error number, and offers
    /// the slot again. Completes as [`Ring::ublk_fetch`] does.
    pub fn ublk_commit(
        &mut self,
        token: Token,
        fd: &Fd,
        slot: UblkSlot,
        result: i32,
        data: UblkData,
    ) -> OpId {
        let (place, memory) = data.split();
        let command = UblkCommand { op: COMMIT_AND_FETCH, slot, result, place };
        self.start(token, Some(fd), memory, Kind::Ublk(command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufPool, Errno};

    #[test]
    fn a_command_has_the_kernels_layout_and_an_address_only_with_a_buffer() {
        let slot = UblkSlot { queue: 0x0102, tag: 0x0304 };
        let command = UblkCommand { op: FETCH, slot, result: -5, place: None };
        let pool = BufPool::new(1 << 20).unwrap();
        let buf = pool.alloc(4096).unwrap();
        let at = buf.as_ptr() as u64;
        for (memory, address) in [(Memory::None, 0), (Memory::Buf(buf), at)] {
            let expected: [&[u8]; 4] = [
                &0x0102u16.to_ne_bytes(),
                &0x0304u16.to_ne_bytes(),
                &(-5i32).to_ne_bytes(),
                &address.to_ne_bytes(),
            ];
            assert_eq!(command.bytes(&memory).as_slice(), expected.concat());
        }
    }

    #[test]
    fn a_command_for_several_slots_has_the_kernels_layout() {
        let mut elements = UblkElements::default();
        elements.push(0x0102, Some(Place(0x0304)), -5);
        elements.push(3, None, 4096);
        let mut expected = Vec::new();
        for (tag, index, result) in [(0x0102u16, 0x0304u16, -5i32), (3, 0, 4096)] {
            expected.extend(tag.to_ne_bytes());
            expected.extend(index.to_ne_bytes());
            expected.extend(result.to_ne_bytes());
        }
        assert_eq!((elements.len(), &elements.0), (2, &expected));
        assert_eq!(elements.tags().collect::<Vec<_>>(), [0x0102, 3]);
        let mut expected = Vec::new();
        for half in [7u16, 4, 2] {
            expected.extend(half.to_ne_bytes());
        }
        expected.push(8);
        expected.resize(16, 0);
        assert_eq!(UblkBatch::bytes(7, BATCH_FALLBACK, 2, 8).as_slice(), expected);
    }

    #[test]
    fn a_command_that_stays_names_its_buffers() {
        let entry = fetch_all(RingFd(9), 3);
        // SAFETY: an entry is 64 bytes of integers.
        let bytes: [u8; 64] = unsafe { std::mem::transmute(entry) };
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]));
        // The operation IORING_OP_URING_CMD, with IOSQE_BUFFER_SELECT.
        assert_eq!((bytes[0], bytes[1], word(4), word(8)), (46, 1 << 5, 9, FETCH_ALL));
        assert_eq!((word(AT_FLAGS), bytes[AT_GROUP], bytes[AT_GROUP + 1]), (MULTISHOT, 0, 0));
        assert_eq!(bytes[48..], [[3, 0, 0, 0, 0, 0, 2, 0].as_slice(), &[0; 8]].concat());
    }

    #[test]
    fn a_file_that_is_no_such_device_ends_the_command_that_stays() {
        let mut ring = Ring::new().unwrap();
        let fd = Fd::new(tempfile::tempfile().unwrap().into());
        if let Err(errno) = ring.ublk_fetch_all(Token(7 << 16), &fd, 0) {
            println!("skipped: no buffers can be provided here: {errno}");
            return;
        }
        let mut events = Vec::new();
        while events.is_empty() {
            ring.wait(None, &mut events).unwrap();
        }
        assert_eq!(events[0].token, Token(7 << 16 | UblkSlot::END));
        assert!(events[0].result.is_err(), "{:?}", events[0]);
        assert_eq!(ring.in_flight(), 0);
    }

    #[test]
    fn a_place_is_in_the_entrys_address_and_may_be_missed() {
        let slot = UblkSlot { queue: 0, tag: 0 };
        let of = |place| UblkCommand { op: FETCH, slot, result: 0, place }.registration();
        assert_eq!(of(None), None);
        assert_eq!(of(Some(Place(0x1234))), Some(0x0001_1234));
        assert_eq!(of(Some(Place::NOWHERE)), Some(0x0001_ffff));
    }

    #[test]
    fn a_file_that_is_no_such_device_refuses_the_command() {
        let mut ring = Ring::new().unwrap();
        let fd = Fd::new(tempfile::tempfile().unwrap().into());
        ring.ublk_fetch(Token(7), &fd, UblkSlot { queue: 0, tag: 0 }, UblkData::Copied);
        let mut events = Vec::new();
        while events.is_empty() {
            ring.wait(None, &mut events).unwrap();
        }
        assert_eq!((events[0].token, events[0].result), (Token(7), Err(Errno::EOPNOTSUPP)));
    }
}
