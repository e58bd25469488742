//! Commands on a queue of a ublk character device: fetch a request, or give back its result and
//! fetch the next.
//!
//! A command completes when there is a request, however long that takes. Its sixteen bytes could
//! name memory for the kernel to copy data to; here they never do, so that nothing but the command
//! itself has to outlive it. Data are copied by reading and writing the device instead
//! (`UBLK_F_USER_COPY`), or read from a disk straight into the request's pages, which the driver puts
//! into a place of the ring's table of registered buffers (`UBLK_F_AUTO_BUF_REG`, Linux 6.16).

use io_uring::types::Fd as RingFd;
use io_uring::{opcode, squeue};

use super::op::{Kind, Memory, OpId, Token};
use super::{Fd, Place, Ring};

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

/// A command on a slot, as the kernel wants it.
pub(super) struct UblkCommand {
    op: u32,
    slot: UblkSlot,
    result: i32,
    place: Option<Place>,
}

impl UblkCommand {
    /// `struct ublksrv_io_cmd`: queue, tag, result, address.
    fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.slot.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.slot.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes
    }

    /// `struct ublk_auto_buf_reg`: index in bits 0 to 15, flags in bits 16 to 23, zeroes.
    fn registration(&self) -> Option<u64> {
        self.place.map(|Place(index)| u64::from(index) | FALLBACK << 16)
    }

    pub(super) fn entry(&self, fd: RingFd) -> squeue::Entry {
        let command = opcode::UringCmd16::new(fd, self.op).cmd(self.bytes());
        command.addr(self.registration()).build()
    }
}

impl Ring {
    /// Offers a slot of the device to the kernel. Completes with 0 once there is a request, with
    /// `ENODEV` when the device ends. All slots of a queue are offered by one thread.
    ///
    /// The request's memory will be at `place`, if it can be; there has to be one if the device was
    /// added with `UBLK_F_AUTO_BUF_REG`, and must not otherwise.
    pub fn ublk_fetch(
        &mut self,
        token: Token,
        fd: &Fd,
        slot: UblkSlot,
        place: Option<Place>,
    ) -> OpId {
        let command = UblkCommand { op: FETCH, slot, result: 0, place };
        self.start(token, Some(fd), Memory::None, Kind::Ublk(command))
    }

    /// Ends the request of a slot with its result, bytes or a negative error number, and offers
    /// the slot again. Completes as [`Ring::ublk_fetch`] does.
    pub fn ublk_commit(
        &mut self,
        token: Token,
        fd: &Fd,
        slot: UblkSlot,
        result: i32,
        place: Option<Place>,
    ) -> OpId {
        let command = UblkCommand { op: COMMIT_AND_FETCH, slot, result, place };
        self.start(token, Some(fd), Memory::None, Kind::Ublk(command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;

    #[test]
    fn a_command_has_the_kernels_layout_and_no_address() {
        let slot = UblkSlot { queue: 0x0102, tag: 0x0304 };
        let bytes = UblkCommand { op: FETCH, slot, result: -5, place: None }.bytes();
        let expected: [&[u8]; 4] = [
            &0x0102u16.to_ne_bytes(),
            &0x0304u16.to_ne_bytes(),
            &(-5i32).to_ne_bytes(),
            &0u64.to_ne_bytes(),
        ];
        assert_eq!(bytes.as_slice(), expected.concat());
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
        ring.ublk_fetch(Token(7), &fd, UblkSlot { queue: 0, tag: 0 }, None);
        let mut events = Vec::new();
        while events.is_empty() {
            ring.wait(None, &mut events).unwrap();
        }
        assert_eq!((events[0].token, events[0].result), (Token(7), Err(Errno::EOPNOTSUPP)));
    }
}
