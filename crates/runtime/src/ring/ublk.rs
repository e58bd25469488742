//! Commands on a queue of a ublk character device: fetch a request, or give back its result and
//! fetch the next.
//!
//! A command completes when there is a request, however long that takes. How data come and go is the
//! device's ([`UblkData`]): by reading and writing the character device, by the request's own pages, which
//! the driver puts into a place of the ring's table of registered buffers, or by a buffer that a command
//! names. Like every operation's, that belongs to the ring until the command has completed.

use io_uring::types::Fd as RingFd;
use io_uring::{opcode, squeue};

use super::op::{Kind, Memory, OpId, Token};
use super::{Fd, Place, Ring};
use crate::Buf;

/// `UBLK_U_IO_FETCH_REQ`: `_IOWR('u', 0x20, struct ublksrv_io_cmd)` (ublk_cmd.h).
const FETCH: u32 = 0xc010_7520;
/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`, number 0x21.
const COMMIT_AND_FETCH: u32 = 0xc010_7521;
/// `UBLK_AUTO_BUF_REG_FALLBACK`: what can not be registered is delivered all the same.
const FALLBACK: u64 = 1;

/// A place for requests of a ublk device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UblkSlot {
    /// The hardware queue.
    pub queue: u16,
    /// The request's number there.
    pub tag: u16,
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

impl Ring {
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
