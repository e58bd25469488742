//! The log of requests in flight, in memory that the client keeps while no engine runs.
//!
//! ```text
//! 0    head: magic, who has served it (a `Lease`)                        64 bytes
//! 64   ring 0: features u64 | version u16 | descriptors u16 | last head u16 | used index u16
//!              per descriptor: in flight u8 | 5 unused | next u16 | counter u64
//!      ring 1 ..., each on a boundary of 64 bytes
//! ```
//!
//! The protocol leaves content and layout to the device, and says how it may be used: a descriptor is
//! marked before its request is carried out, and the mark goes once the used ring has it. A process that
//! takes over finds in the used ring how far that came, and carries out the marked ones again, in the
//! order of their counters. To repeat a request does no harm: it had no answer, so nothing relies on it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use serde::{Deserialize, Serialize};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, VolatileMemory};

use super::proto::InflightArea;
use super::{QUEUE_SIZE_MAX, QUEUES_MAX};

const MAGIC: u64 = u64::from_ne_bytes(*b"ashlar01");
const HEAD: usize = 64;
const RING_HEAD: usize = 16;
const ENTRY: usize = 16;
const VERSION: u16 = 1;

const AT_INSTANCE: usize = 8;
const AT_CHANGES: usize = 16;

/// Who has served a device last, by which the next one knows what may have happened in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lease {
    /// The engine's run; not 0.
    pub instance: u64,
    /// How often others had changed the volume, as that run counts.
    pub changes: u64,
}

/// The log of a device.
pub struct Inflight {
    mapping: Arc<MmapRegion<()>>,
    queues: u16,
    queue_size: u16,
}

fn ring_bytes(queue_size: u16) -> usize {
    (RING_HEAD + ENTRY * usize::from(queue_size)).next_multiple_of(64)
}

fn area_bytes(queues: u16, queue_size: u16) -> usize {
    HEAD + ring_bytes(queue_size) * usize::from(queues)
}

fn map(file: File, offset: u64, size: usize) -> Result<MmapRegion<()>, String> {
    MmapRegion::from_file(FileOffset::new(file, offset), size).map_err(|e| e.to_string())
}

impl Inflight {
    /// A new log for so many rings of that size, and its file.
    ///
    /// # Errors
    /// The numbers are beyond the limits, or there is no memory.
    pub fn create(queues: u16, queue_size: u16) -> Result<(InflightArea, OwnedFd), String> {
        check(queues, queue_size)?;
        let size = area_bytes(queues, queue_size) as u64;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("ashlar-inflight", flags).map_err(|e| e.to_string())?;
        ftruncate(&file, size).map_err(|e| e.to_string())?;
        // Nobody can take the memory away under this process.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(|e| e.to_string())?;
        let copy = file.try_clone().map_err(|e| e.to_string())?;
        let mapping = map(copy.into(), 0, size as usize)?;
        let whole = mapping.as_volatile_slice();
        whole.store(MAGIC, 0, Ordering::Relaxed).expect("the head is there");
        Ok((InflightArea { size, offset: 0, queues, queue_size }, file))
    }

    /// The log that a client brings.
    ///
    /// # Errors
    /// It is none of ours, or not whole.
    pub fn open(area: InflightArea, file: OwnedFd) -> Result<Inflight, String> {
        let InflightArea { size, offset, queues, queue_size } = area;
        check(queues, queue_size)?;
        let file = File::from(file);
        super::memory::check_memory_file(&file)?;
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let len = fstat(&file).map_err(|e| e.to_string())?.st_size;
        let bytes = area_bytes(queues, queue_size);
        if !sealed || offset != 0 || size != bytes as u64 || len < bytes as i64 {
            return Err("it is not what this engine gives to clients".to_owned());
        }
        let mapping = Arc::new(map(file, offset, bytes)?);
        let inflight = Inflight { mapping, queues, queue_size };
        if inflight.load::<u64>(0) != MAGIC {
            return Err("it is not what this engine gives to clients".to_owned());
        }
        Ok(inflight)
    }

    fn load<T: vm_memory::AtomicAccess + Default>(&self, at: usize) -> T {
        self.mapping.as_volatile_slice().load(at, Ordering::Acquire).unwrap_or_default()
    }

    /// How it is laid out, and its file, for [`Inflight::open`] in another process.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn file(&self) -> io::Result<(InflightArea, OwnedFd)> {
        let Inflight { queues, queue_size, .. } = *self;
        let size = area_bytes(queues, queue_size) as u64;
        let file = self.mapping.file_offset().expect("it is mapped from a file");
        let file = file.file().try_clone()?.into();
        Ok((InflightArea { size, offset: 0, queues, queue_size }, file))
    }

    /// Who has served the device, if anybody has.
    pub fn lease(&self) -> Option<Lease> {
        let instance = self.load(AT_INSTANCE);
        (instance != 0).then(|| Lease { instance, changes: self.load(AT_CHANGES) })
    }

    /// Notes who serves it from now on.
    pub fn set_lease(&self, lease: Lease) {
        let whole = self.mapping.as_volatile_slice();
        let changes = whole.store(lease.changes, AT_CHANGES, Ordering::Release);
        let instance = whole.store(lease.instance, AT_INSTANCE, Ordering::Release);
        changes.and(instance).expect("the head is there");
    }

    /// The log of a ring.
    pub fn ring(&self, index: u16, size: u16) -> Option<RingLog> {
        (index < self.queues && size <= self.queue_size).then(|| RingLog {
            mapping: self.mapping.clone(),
            base: HEAD + ring_bytes(self.queue_size) * usize::from(index),
            size,
            counter: 0,
        })
    }
}

fn check(queues: u16, queue_size: u16) -> Result<(), String> {
    match (1..=QUEUES_MAX).contains(&queues) && (1..=QUEUE_SIZE_MAX).contains(&queue_size) {
        true => Ok(()),
        false => Err(format!("{queues} rings of {queue_size} descriptors are beyond the limits")),
    }
}

/// The log of one ring.
pub struct RingLog {
    mapping: Arc<MmapRegion<()>>,
    base: usize,
    size: u16,
    counter: u64,
}

/// Places in a ring's head and entries.
const AT_VERSION: usize = 8;
const AT_SIZE: usize = 10;
const AT_LAST: usize = 12;
const AT_USED: usize = 14;
const ENTRY_NEXT: usize = 6;
const ENTRY_COUNTER: usize = 8;

impl RingLog {
    fn load<T: vm_memory::AtomicAccess + Default>(&self, at: usize) -> T {
        let whole = self.mapping.as_volatile_slice();
        whole.load(self.base + at, Ordering::Acquire).unwrap_or_default()
    }

    fn store<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) {
        let whole = self.mapping.as_volatile_slice();
        whole.store(value, self.base + at, Ordering::Release).expect("within the ring's log");
    }

    fn entry(&self, head: u16) -> usize {
        RING_HEAD + ENTRY * usize::from(head)
    }

    /// Begins with the ring as it is: its used index is `used`. Returns the heads to be carried out
    /// again, in order.
    pub fn recover(&mut self, used: u16) -> Vec<u16> {
        if self.load::<u16>(AT_VERSION) != VERSION || self.load::<u16>(AT_SIZE) != self.size {
            (0..self.size).for_each(|head| self.store(self.entry(head), 0u8));
            self.store(AT_SIZE, self.size);
            self.store(AT_VERSION, VERSION);
        } else if self.load::<u16>(AT_USED) != used {
            // The last one got into the used ring, and its mark may not have gone.
            let last: u16 = self.load(AT_LAST);
            if last < self.size {
                self.store(self.entry(last), 0u8);
            }
        }
        self.store(AT_USED, used);
        let marked = (0..self.size).filter(|head| self.load::<u8>(self.entry(*head)) == 1);
        let mut heads: Vec<(u64, u16)> =
            marked.map(|head| (self.load(self.entry(head) + ENTRY_COUNTER), head)).collect();
        heads.sort_unstable();
        self.counter = heads.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        heads.into_iter().map(|(_, head)| head).collect()
    }

    /// A request begins.
    pub fn begin(&mut self, head: u16) {
        let entry = self.entry(head);
        self.store(entry + ENTRY_COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.store(entry, 1u8);
    }

    /// A request is about to get into the used ring.
    pub fn ending(&self, head: u16) {
        self.store(self.entry(head) + ENTRY_NEXT, self.load::<u16>(AT_LAST));
        self.store(AT_LAST, head);
    }

    /// It is there; the ring's used index is `used` now.
    pub fn ended(&self, head: u16, used: u16) {
        self.store(self.entry(head), 0u8);
        self.store(AT_USED, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (InflightArea, OwnedFd) {
        Inflight::create(2, 8).unwrap()
    }

    fn opened(area: InflightArea, file: &OwnedFd) -> Inflight {
        Inflight::open(area, file.try_clone().unwrap()).unwrap()
    }

    #[test]
    fn what_was_begun_and_not_ended_is_found_in_order() {
        let (area, file) = log();
        let mut ring = opened(area, &file).ring(1, 8).unwrap();
        assert!(ring.recover(0).is_empty());
        for head in [5, 2, 7, 0] {
            ring.begin(head);
        }
        ring.ending(7);
        ring.ended(7, 1);
        // Killed between the used ring and the mark.
        ring.ending(2);
        let mut next = opened(area, &file).ring(1, 8).unwrap();
        assert_eq!(next.recover(2), [5, 0]);
        // Killed before the used ring: asked for again.
        next.ending(5);
        let mut third = opened(area, &file).ring(1, 8).unwrap();
        assert_eq!(third.recover(2), [5, 0]);
        let mut other = opened(area, &file).ring(0, 8).unwrap();
        assert!(other.recover(0).is_empty(), "rings are apart");
    }

    #[test]
    fn a_log_knows_who_served_it() {
        let (area, file) = log();
        let inflight = opened(area, &file);
        assert_eq!(inflight.lease(), None);
        let lease = Lease { instance: 7, changes: 3 };
        inflight.set_lease(lease);
        assert_eq!(opened(area, &file).lease(), Some(lease));
    }

    #[test]
    fn what_others_made_is_not_taken() {
        let (area, file) = log();
        let larger = InflightArea { queues: 3, ..area };
        assert!(Inflight::open(larger, file.try_clone().unwrap()).is_err());
        let beyond = InflightArea { queue_size: 2048, ..area };
        assert!(Inflight::open(beyond, file.try_clone().unwrap()).is_err());
        let unsealed = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&unsealed, area.size).unwrap();
        assert!(Inflight::open(area, unsealed).is_err());
        assert!(Inflight::create(0, 8).is_err());
        assert!(opened(area, &file).ring(2, 8).is_none());
        assert!(opened(area, &file).ring(0, 16).is_none());
    }
}
