//! The way between the requests of a device and the kernel: the real one, and what tests replace.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use runtime::ring::UblkSlot;
use runtime::{Errno, Fd, Place, Ring, Token};

use super::uapi::{Descriptor, data_offset, descriptors_offset};

/// What a device needs of the kernel.
pub(super) trait Channel {
    /// Offers a slot; the token completes with a request.
    fn fetch(&mut self, ring: &mut Ring, token: Token, slot: UblkSlot);

    /// Ends a slot's request with bytes or a negative error number, and offers it again.
    fn commit(&mut self, ring: &mut Ring, token: Token, slot: UblkSlot, result: i32);

    /// The request of a slot. Slots are within the numbers of queues and their depth.
    fn descriptor(&self, slot: UblkSlot) -> Descriptor;

    /// Where a slot's request can be read to, without [`Channel::copy_out`].
    fn place(&self, slot: UblkSlot, descriptor: &Descriptor) -> Option<Place>;

    /// Copies what is to be written.
    fn copy_in(&self, slot: UblkSlot, into: &mut [u8]) -> Result<(), Errno>;

    /// Copies what was read.
    fn copy_out(&self, slot: UblkSlot, from: &[u8]) -> Result<(), Errno>;
}

/// `/dev/ublkcN`.
pub(super) struct Kernel {
    /// For the ring.
    fd: Fd,
    /// The same open file, for copies.
    file: File,
    /// By queue.
    areas: Vec<Area>,
    depth: u16,
    places: Option<Places>,
}

/// The places for a device's requests, if its driver puts them somewhere.
pub(super) enum Places {
    /// One for each slot, by queue and tag.
    Own(Box<[Place]>),
    /// The ring has not as many.
    None,
}

/// The descriptors of a queue, written by the kernel.
struct Area {
    base: NonNull<Descriptor>,
    bytes: usize,
}

impl Kernel {
    /// Takes the open character device of a device with that many queues and slots. There are places if
    /// it was added with `UBLK_F_AUTO_BUF_REG`, and not otherwise.
    ///
    /// # Errors
    /// The kernel's error number.
    pub(super) fn new(
        file: OwnedFd,
        queues: u16,
        depth: u16,
        places: Option<Places>,
    ) -> Result<Kernel, Errno> {
        let copy = file.as_fd().try_clone_to_owned()?;
        let areas: Result<_, Errno> =
            (0..queues).map(|queue| Area::map(&file, queue, depth)).collect();
        Ok(Kernel { fd: Fd::new(file), file: File::from(copy), areas: areas?, depth, places })
    }

    /// The places of its slots, which are its own for as long as the kernel may have a request of it.
    pub(super) fn places(&self) -> &[Place] {
        match &self.places {
            Some(Places::Own(places)) => places,
            _ => &[],
        }
    }

    /// What the driver is told of a slot's place.
    fn told(&self, slot: UblkSlot) -> Option<Place> {
        Some(match self.places.as_ref()? {
            Places::Own(places) => {
                places[usize::from(slot.queue) * usize::from(self.depth) + usize::from(slot.tag)]
            }
            Places::None => Place::NOWHERE,
        })
    }
}

impl Area {
    fn map(file: &OwnedFd, queue: u16, depth: u16) -> Result<Area, Errno> {
        // The kernel wants whole pages, and at most one more than the descriptors fill.
        // SAFETY: sysconf reads a constant.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let bytes = (usize::from(depth) * size_of::<Descriptor>()).next_multiple_of(page);
        let offset = libc::off_t::try_from(descriptors_offset(queue)).map_err(|_| Errno::EINVAL)?;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            let fd = file.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, flags, fd, offset)
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let base = NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Area { base, bytes })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`, and no reference into it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl Channel for Kernel {
    fn fetch(&mut self, ring: &mut Ring, token: Token, slot: UblkSlot) {
        ring.ublk_fetch(token, &self.fd, slot, self.told(slot));
    }

    fn commit(&mut self, ring: &mut Ring, token: Token, slot: UblkSlot, result: i32) {
        ring.ublk_commit(token, &self.fd, slot, result, self.told(slot));
    }

    fn place(&self, slot: UblkSlot, descriptor: &Descriptor) -> Option<Place> {
        let there = matches!(self.places, Some(Places::Own(_))) && !descriptor.is_unregistered();
        self.told(slot).filter(|_| there)
    }

    fn descriptor(&self, slot: UblkSlot) -> Descriptor {
        let area = &self.areas[usize::from(slot.queue)];
        assert!(slot.tag < self.depth, "a slot is within its queue");
        // SAFETY: the mapping has `depth` descriptors from its page-aligned beginning on. The kernel
        // fills this one before it completes the slot's command and leaves it alone until the next;
        // any bits are a value of its integers. Volatile, because the compiler can not see it change.
        unsafe { area.base.add(usize::from(slot.tag)).read_volatile() }
    }

    fn copy_in(&self, slot: UblkSlot, into: &mut [u8]) -> Result<(), Errno> {
        Ok(self.file.read_exact_at(into, data_offset(slot.queue, slot.tag))?)
    }

    fn copy_out(&self, slot: UblkSlot, from: &[u8]) -> Result<(), Errno> {
        Ok(self.file.write_all_at(from, data_offset(slot.queue, slot.tag))?)
    }
}
