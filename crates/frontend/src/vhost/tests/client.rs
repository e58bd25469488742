//! A vhost-user client with a guest's driver of a few lines, for tests: it can do what QEMU does, and what it
//! never would. Shared with the tests of whole engines.

#![allow(missing_docs, dead_code, reason = "a test's tools; not every test uses all of them")]

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, VolatileMemory};

/// Guest memory, in one piece.
pub const MEMORY: u64 = 8 << 20;
/// Where it begins in the guest, and in the client.
pub const GUEST: u64 = 1 << 20;
pub const USER: u64 = 0x7f00_0000_0000;
/// Descriptors of a ring.
pub const SIZE: u16 = 16;
/// Bytes that a ring's parts have.
const RING: u64 = 0x4000;
/// Where data begin; each of five chains has so many bytes.
const DATA: u64 = 0x10_0000;
const CHAIN: u64 = 0x10_0000;

const PATIENCE: Duration = Duration::from_secs(60);
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 29 | 1 << 28 | 1 << 12 | 1 << 9;

pub struct Client {
    pub stream: UnixStream,
    pub guest: Guest,
    pub log: Option<(Vec<u8>, OwnedFd)>,
}

/// What stays when the connection goes: memory and how far the driver is.
pub struct Guest {
    pub file: OwnedFd,
    pub memory: MmapRegion<()>,
    pub rings: Vec<GuestRing>,
}

pub struct GuestRing {
    pub avail: u16,
    pub used: u16,
    pub kick: OwnedFd,
    pub call: OwnedFd,
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Guest {
    pub fn new(rings: usize) -> Guest {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, MEMORY).unwrap();
        let offset = FileOffset::new(File::from(file.try_clone().unwrap()), 0);
        let memory = MmapRegion::from_file(offset, MEMORY as usize).unwrap();
        let ring = |_| GuestRing { avail: 0, used: 0, kick: event(), call: event() };
        Guest { file, memory, rings: (0..rings).map(ring).collect() }
    }

    pub fn store<T: vm_memory::AtomicAccess>(&self, at: u64, value: T) {
        self.memory.as_volatile_slice().store(value, at as usize, Ordering::SeqCst).unwrap();
    }

    /// How far the used ring is, as QEMU tells it to the next device.
    pub fn used_index(&self, ring: usize) -> u16 {
        let at = ring * RING as usize + 0x2002;
        self.memory.as_volatile_slice().load(at, Ordering::SeqCst).unwrap()
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.as_volatile_slice().write_slice(bytes, at as usize).unwrap();
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.as_volatile_slice().read_slice(&mut bytes, at as usize).unwrap();
        bytes
    }

    pub fn descriptor(&self, ring: usize, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        self.raw_descriptor(ring as u64 * RING + 16 * u64::from(index), at, len, flags, next);
    }

    pub fn raw_descriptor(&self, place: u64, at: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = (GUEST + at).to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(place, &bytes);
    }

    /// Offers the chain that begins with a descriptor, without a kick.
    pub fn offer(&mut self, ring: usize, head: u16) {
        let avail = ring as u64 * RING + 0x1000;
        let place = self.rings[ring].avail % SIZE;
        self.store(avail + 4 + 2 * u64::from(place), head.to_le());
        self.rings[ring].avail = self.rings[ring].avail.wrapping_add(1);
        let used = self.rings[ring].used;
        self.store(avail + 4 + 2 * u64::from(SIZE), used);
        self.store(avail + 2, self.rings[ring].avail);
    }

    pub fn kick(&self, ring: usize) {
        rustix::io::write(&self.rings[ring].kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Where the data of a chain are.
    pub fn data(chain: u16) -> u64 {
        DATA + CHAIN * u64::from(chain)
    }

    /// Describes a request in the three descriptors of one of five chains.
    pub fn describe(
        &self,
        ring: usize,
        chain: u16,
        kind: u32,
        sector: u64,
        out: &[u8],
        room: u32,
    ) -> u16 {
        let (head, base) = (chain * 3, Guest::data(chain));
        let header = 0x8_0000 + 64 * u64::from(chain);
        let mut bytes = words(&[kind, 0]);
        bytes.extend(sector.to_le_bytes());
        self.write(header, &bytes);
        self.write(header + 32, &[0xff]);
        let (len, flags) = if room > 0 { (room, 3) } else { (out.len() as u32, 1) };
        self.write(base, out);
        self.descriptor(ring, head, header, 16, 1, head + 1);
        self.descriptor(ring, head + 1, base, len, flags, head + 2);
        self.descriptor(ring, head + 2, header + 32, 1, 2, 0);
        if len == 0 {
            self.descriptor(ring, head, header, 16, 1, head + 2);
        }
        head
    }

    pub fn status(&self, chain: u16) -> u8 {
        self.read(0x8_0000 + 64 * u64::from(chain) + 32, 1)[0]
    }

    /// The next chain that was used: its head and the bytes written.
    pub fn used(&mut self, ring: usize) -> Option<(u32, u32)> {
        let used = ring as u64 * RING + 0x2000;
        let state = &mut self.rings[ring];
        let seen = state.used;
        let index: u16 =
            self.memory.as_volatile_slice().load(used as usize + 2, Ordering::SeqCst).unwrap();
        if index == seen {
            return None;
        }
        state.used = seen.wrapping_add(1);
        let entry = self.read(used + 4 + 8 * u64::from(seen % SIZE), 8);
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
        // Call for the next one.
        self.store(ring as u64 * RING + 0x1000 + 4 + 2 * u64::from(SIZE), seen.wrapping_add(1));
        Some((word(0), word(4)))
    }

    /// Waits for a call, and takes it without a look at what it is for.
    pub fn is_called(&self, ring: usize) -> bool {
        let mut fds = [PollFd::new(&self.rings[ring].call, PollFlags::IN)];
        let limit = Timespec { tv_sec: 5, tv_nsec: 0 };
        poll(&mut fds, Some(&limit)).unwrap();
        rustix::io::read(&self.rings[ring].call, &mut [0; 8]).is_ok()
    }

    /// Waits for calls until a chain was used.
    pub fn wait(&mut self, ring: usize) -> (u32, u32) {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(used) = self.used(ring) {
                return used;
            }
            assert!(Instant::now() < end, "no call came");
            let mut fds = [PollFd::new(&self.rings[ring].call, PollFlags::IN)];
            let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut fds, Some(&limit)).unwrap();
            let _ = rustix::io::read(&self.rings[ring].call, &mut [0; 8]);
        }
    }

    /// A request from beginning to end: status and what was read.
    pub fn request(
        &mut self,
        ring: usize,
        kind: u32,
        sector: u64,
        out: &[u8],
        room: u32,
    ) -> (u8, Vec<u8>) {
        let head = self.describe(ring, 0, kind, sector, out, room);
        self.offer(ring, head);
        self.kick(ring);
        assert_eq!(self.wait(ring).0, u32::from(head));
        (self.status(0), self.read(Guest::data(0), room as usize))
    }
}

impl Client {
    pub fn new(stream: UnixStream, guest: Guest) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream, guest, log: None }
    }

    pub fn send(&self, request: u32, payload: &[u8], fds: &[&OwnedFd]) {
        let mut bytes = words(&[request, 1, payload.len() as u32]);
        bytes.extend(payload);
        self.send_raw(&bytes, fds).unwrap();
    }

    pub fn send_raw(&self, bytes: &[u8], fds: &[&OwnedFd]) -> Result<(), rustix::io::Errno> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The payload of an answer, and its descriptor.
    pub fn answer(&self) -> (Vec<u8>, Option<OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut head = [0; 12];
        let mut pieces = [std::io::IoSliceMut::new(&mut head)];
        let got = recvmsg(&self.stream, &mut pieces, &mut control, RecvFlags::empty()).unwrap();
        assert_eq!(got.bytes, 12, "an answer comes");
        let mut fd = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fd = rights.into_iter().next();
            }
        }
        let len = u32::from_ne_bytes(head[8..].try_into().unwrap());
        let mut payload = vec![0; len as usize];
        (&self.stream).read_exact(&mut payload).unwrap();
        (payload, fd)
    }

    pub fn ask(&self, request: u32, payload: &[u8]) -> Vec<u8> {
        self.send(request, payload, &[]);
        self.answer().0
    }

    pub fn ask_u64(&self, request: u32) -> u64 {
        u64::from_ne_bytes(self.ask(request, &[]).try_into().unwrap())
    }

    /// As QEMU begins: features, memory, a log.
    pub fn begin(&mut self) {
        let (features, protocol) = (self.ask_u64(1), self.ask_u64(15));
        assert_eq!(features & FEATURES, FEATURES);
        self.send(16, &protocol.to_ne_bytes(), &[]);
        self.send(3, &[], &[]);
        if self.log.is_none() {
            let mut area = vec![0; 16];
            area.extend(2u16.to_ne_bytes());
            area.extend(SIZE.to_ne_bytes());
            area.extend([0; 4]);
            self.send(31, &area, &[]);
            let (area, fd) = self.answer();
            self.log = Some((area, fd.unwrap()));
        }
        let (area, fd) = self.log.as_ref().unwrap();
        self.send(32, area, &[fd]);
        self.send(2, &FEATURES.to_ne_bytes(), &[]);
        self.send_memory();
    }

    pub fn send_memory(&self) {
        let mut table = words(&[1, 0]);
        for value in [GUEST, MEMORY, USER, 0] {
            table.extend(value.to_ne_bytes());
        }
        self.send(5, &table, &[&self.guest.file]);
    }

    /// Describes a ring, has it served from `base` on, and waits until it is.
    pub fn start(&self, ring: u32, base: u16) {
        self.send(8, &words(&[ring, u32::from(SIZE)]), &[]);
        self.send(10, &words(&[ring, u32::from(base)]), &[]);
        let at = USER + u64::from(ring) * RING;
        let mut address = words(&[ring, 0]);
        for value in [at, at + 0x2000, at + 0x1000, 0] {
            address.extend(value.to_ne_bytes());
        }
        self.send(9, &address, &[]);
        let state = &self.guest.rings[ring as usize];
        self.send(13, &u64::from(ring).to_ne_bytes(), &[&state.call]);
        self.send(12, &u64::from(ring).to_ne_bytes(), &[&state.kick]);
        self.send(18, &words(&[ring, 1]), &[]);
        self.ask_u64(17);
    }

    /// Stops a ring: its base.
    pub fn stop(&self, ring: u32) -> u32 {
        let answer = self.ask(11, &words(&[ring, 0]));
        u32::from_ne_bytes(answer[4..8].try_into().unwrap())
    }

    /// The guest begins anew, with empty rings.
    pub fn reset(&mut self) {
        for (nr, ring) in self.guest.rings.iter_mut().enumerate() {
            (ring.avail, ring.used) = (0, 0);
            for part in [0x1002, 0x2002] {
                let at = nr * RING as usize + part;
                self.guest.memory.as_volatile_slice().store(0u16, at, Ordering::SeqCst).unwrap();
            }
        }
    }

    /// True once the other side has left.
    pub fn is_left(&self) -> bool {
        matches!((&self.stream).read(&mut [0; 64]), Ok(0) | Err(_))
    }
}
