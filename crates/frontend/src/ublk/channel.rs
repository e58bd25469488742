//! The way between the requests of a device and the kernel: the real one, and what tests replace.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use runtime::ring::{UblkBuffer, UblkData, UblkElements, UblkSlot};
use runtime::{Buf, BufPool, Errno, Fd, Payload, Place, Ring, Token};

use super::batch::{self, Batch};
use super::uapi::{
    Descriptor, DeviceInfo, F_AUTO_BUF_REG, F_BATCH_IO, F_USER_COPY, data_offset,
    descriptors_offset,
};

/// What a device needs of the kernel.
pub(super) trait Channel {
    /// Offers a slot; the token completes with a request.
    fn fetch(&mut self, ring: &mut Ring, token: Token, slot: UblkSlot);

    /// Ends a slot's request with bytes or a negative error number, and offers it again.
    fn commit(&mut self, ring: &mut Ring, token: Token, slot: UblkSlot, result: i32);

    /// A slot's command has completed, with this.
    fn came_back(&mut self, slot: UblkSlot, payload: Payload);

    /// True once after something was offered or committed that waits for [`Channel::flush`].
    fn take_fresh(&mut self) -> bool;

    /// Sends what was collected. Its completions have a queue in their token, and in place of a tag
    /// [`batch::ELEMENTS`] or [`UblkSlot::END`].
    fn flush(&mut self, ring: &mut Ring, base: Token);

    /// A command on several slots has ended. True if it has offered them for the first time.
    fn batch_done(&mut self, queue: u16, elements: UblkElements) -> bool;

    /// Waits for requests of a queue whose slots are offered by such commands.
    fn fetch_all(&mut self, ring: &mut Ring, base: Token, queue: u16) -> Result<(), Errno>;

    /// The request of a slot. Slots are within the numbers of queues and their depth.
    fn descriptor(&self, slot: UblkSlot) -> Descriptor;

    /// Where a slot's request can be read to, without [`Channel::copy_out`].
    fn place(&self, slot: UblkSlot, descriptor: &Descriptor) -> Option<Place>;

    /// Copies what is to be written.
    fn copy_in(&self, slot: UblkSlot, into: &mut [u8]) -> Result<(), Errno>;

    /// Copies what was read.
    fn copy_out(&mut self, slot: UblkSlot, from: &[u8]) -> Result<(), Errno>;
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
    data: Data,
    /// If it was added with `UBLK_F_BATCH_IO`.
    batch: Option<Batch>,
}

/// How the data of a device come and go, by slot: by queue, then tag.
pub(super) enum Data {
    /// They are copied by its file.
    Copied,
    /// They can be, and the driver puts a request at its slot's place.
    Placed(Box<[Place]>),
    /// The same, but the ring has not as many places.
    Unplaced,
    /// The kernel copies them to and from these, which it has while a slot is offered.
    Buffers(Vec<Option<Buf>>),
}

impl Data {
    /// Buffers for so many slots, each as long as the longest request. They are memory once they are used.
    ///
    /// # Errors
    /// `ENOMEM`
    fn buffers(slots: usize, max_io: usize) -> Result<Data, Errno> {
        let pool = BufPool::new(slots * max_io.next_power_of_two())?;
        let alloc = |_| pool.alloc(max_io).map(Some).map_err(|_| Errno::ENOMEM);
        Ok(Data::Buffers((0..slots).map(alloc).collect::<Result<_, _>>()?))
    }
}

/// The descriptors of a queue, written by the kernel.
struct Area {
    base: NonNull<Descriptor>,
    bytes: usize,
}

impl Kernel {
    /// Takes the open character device of a device that was added as `info` says.
    ///
    /// # Errors
    /// The kernel's error number.
    pub(super) fn new(ring: &mut Ring, file: OwnedFd, info: &DeviceInfo) -> Result<Kernel, Errno> {
        let DeviceInfo { queues, depth, max_io, .. } = *info;
        let slots = usize::from(queues) * usize::from(depth);
        let has = |feature| info.flags & feature != 0;
        let data = if !has(F_USER_COPY) {
            Data::buffers(slots, max_io as usize)?
        } else if has(F_AUTO_BUF_REG) {
            ring.take_places(slots).map_or(Data::Unplaced, Data::Placed)
        } else {
            Data::Copied
        };
        let copy = file.as_fd().try_clone_to_owned()?;
        let areas: Result<_, Errno> =
            (0..queues).map(|queue| Area::map(&file, queue, depth)).collect();
        let batch = has(F_BATCH_IO).then(|| Batch::new(queues, has(F_AUTO_BUF_REG)));
        let (fd, file) = (Fd::new(file), File::from(copy));
        Ok(Kernel { fd, file, areas: areas?, depth, data, batch })
    }

    /// The places of its slots, which are its own for as long as the kernel may have a request of it.
    pub(super) fn places(&self) -> &[Place] {
        match &self.data {
            Data::Placed(places) => places,
            _ => &[],
        }
    }

    fn index(&self, slot: UblkSlot) -> usize {
        usize::from(slot.queue) * usize::from(self.depth) + usize::from(slot.tag)
    }

    /// The place that the driver is told of a slot.
    fn told(&self, slot: UblkSlot) -> Option<Place> {
        match &self.data {
            Data::Placed(places) => Some(places[self.index(slot)]),
            Data::Unplaced => Some(Place::NOWHERE),
            Data::Copied | Data::Buffers(_) => None,
        }
    }

    /// What the driver is told of a slot's data.
    fn offer(&mut self, slot: UblkSlot) -> UblkData {
        let index = self.index(slot);
        let told = self.told(slot);
        match &mut self.data {
            Data::Copied | Data::Placed(_) | Data::Unplaced => {
                told.map_or(UblkData::Copied, UblkData::Placed)
            }
            Data::Buffers(buffers) => {
                let buf = buffers[index].take().expect("a slot is offered when it is back");
                // SAFETY: it was made as long as `max_io` of the device, and nobody has cut it.
                UblkData::Buffer(unsafe { UblkBuffer::lend(buf) })
            }
        }
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
        let place = self.told(slot);
        if let Some(batch) = &mut self.batch {
            return batch.push(slot, place, 0);
        }
        let data = self.offer(slot);
        ring.ublk_fetch(token, &self.fd, slot, data);
    }

    fn commit(&mut self, ring: &mut Ring, token: Token, slot: UblkSlot, result: i32) {
        let place = self.told(slot);
        if let Some(batch) = &mut self.batch {
            return batch.push(slot, place, result);
        }
        let data = self.offer(slot);
        ring.ublk_commit(token, &self.fd, slot, result, data);
    }

    fn came_back(&mut self, slot: UblkSlot, payload: Payload) {
        let index = self.index(slot);
        if let (Data::Buffers(buffers), Payload::Buf(buf)) = (&mut self.data, payload) {
            buffers[index] = Some(buf);
        }
    }

    fn take_fresh(&mut self) -> bool {
        self.batch.as_mut().is_some_and(Batch::take_fresh)
    }

    fn flush(&mut self, ring: &mut Ring, base: Token) {
        if let Some(batch) = &mut self.batch {
            batch.flush(ring, &self.fd, base);
        }
    }

    fn batch_done(&mut self, queue: u16, elements: UblkElements) -> bool {
        self.batch.as_mut().is_some_and(|batch| batch.done(queue, elements))
    }

    fn fetch_all(&mut self, ring: &mut Ring, base: Token, queue: u16) -> Result<(), Errno> {
        ring.ublk_fetch_all(batch::token(base, queue, 0), &self.fd, queue).map(drop)
    }

    fn place(&self, slot: UblkSlot, descriptor: &Descriptor) -> Option<Place> {
        match &self.data {
            Data::Placed(places) if !descriptor.is_unregistered() => Some(places[self.index(slot)]),
            _ => None,
        }
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
        if let Data::Buffers(buffers) = &self.data {
            let buf = buffers[self.index(slot)].as_deref().expect("a request's slot is back");
            into.copy_from_slice(buf.get(..into.len()).ok_or(Errno::EINVAL)?);
            return Ok(());
        }
        Ok(self.file.read_exact_at(into, data_offset(slot.queue, slot.tag))?)
    }

    fn copy_out(&mut self, slot: UblkSlot, from: &[u8]) -> Result<(), Errno> {
        let index = self.index(slot);
        if let Data::Buffers(buffers) = &mut self.data {
            let buf = buffers[index].as_mut().expect("a request's slot is back");
            let bytes = buf.as_mut_slice().expect("nobody else has a slot's buffer");
            bytes.get_mut(..from.len()).ok_or(Errno::EINVAL)?.copy_from_slice(from);
            return Ok(());
        }
        Ok(self.file.write_all_at(from, data_offset(slot.queue, slot.tag))?)
    }
}
