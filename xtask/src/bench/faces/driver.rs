//! The driver of a virtual machine's disk, without the machine: random requests of 4 KiB to a server of
//! vhost-user, through one queue, as a guest's driver makes them (on a machine that is little-endian, as
//! virtio is). rust-vmm's `vhost` speaks to the server. When the server goes, the driver waits for the next
//! one, as QEMU does with `reconnect`, but looks every few milliseconds.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vhost::vhost_user::message::{
    VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestRegionMmap, VolatileMemory};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Where the guest's memory begins, for the guest.
const GUEST: u64 = 1 << 20;
/// Bytes of it.
const MEMORY: u64 = 1 << 20;
/// Descriptors of the queue: three for each request.
const SIZE: u16 = 128;
/// Requests in flight, at most.
pub const DEPTH: u32 = 32;
/// Where the parts of the queue, the headers and the data begin.
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x4000;
const DATA: u64 = 0x1_0000;
/// Bytes of a request.
const BLOCK: u64 = 4096;
/// VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_RING_F_EVENT_IDX.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 29;
/// VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT.
const READ: u32 = 0;
const WRITE: u32 = 1;
/// How long a request may take, in milliseconds.
const PATIENCE_MS: i32 = 30_000;
/// How often a server that has gone is looked for.
const RETRY: Duration = Duration::from_millis(5);
/// What `calls` says: there are answers, or the server has gone.
const CALL: u64 = 0;
const GONE: u64 = 1;

/// A connection with its queue.
pub struct Driver {
    memory: GuestRegionMmap<()>,
    kick: EventFd,
    call: EventFd,
    /// Waits for `call`, and for the server's end.
    calls: Epoll,
    /// Requests offered, and answers seen; both begin again after 65,535.
    offered: u16,
    seen: u16,
    /// Of the random offsets.
    seed: u64,
    socket: PathBuf,
    /// Where the server writes down what it works on, for the next one.
    inflight: Option<(VhostUserInflight, File)>,
    /// Last: the server is there for as long as it is.
    frontend: Frontend,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub requests: u64,
    /// Requests per second.
    pub rate: f64,
    /// From making a request until its answer is seen, on average, in microseconds.
    pub mean: f64,
}

impl Driver {
    /// Connects to the server, which serves the queue from then on.
    ///
    /// # Errors
    /// If it does not.
    pub fn new(socket: &Path) -> Result<Driver> {
        let file = tempfile::tempfile_in("/dev/shm").context("the guest's memory")?;
        file.set_len(MEMORY)?;
        let memory = MmapRegion::<()>::from_file(FileOffset::new(file, 0), MEMORY as usize)?;
        let memory = GuestRegionMmap::new(memory, GuestAddress(GUEST)).context("its address")?;
        // As QEMU has them: io_uring writes to others by a thread of its own.
        let (kick, call) = (EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?);
        let calls = Epoll::new()?;
        let readable = EpollEvent::new(EventSet::IN, CALL);
        calls.ctl(ControlOperation::Add, call.as_raw_fd(), readable)?;
        let frontend = connect(socket, &calls)?;
        let (offered, seen, seed) = (0, 0, 0x9e37_79b9_7f4a_7c15);
        let (socket, inflight) = (socket.to_owned(), None);
        let mut driver =
            Driver { memory, kick, call, calls, offered, seen, seed, socket, inflight, frontend };
        driver.begin().context("the server of vhost-user")?;
        Ok(driver)
    }

    /// Writes some block of the first so many MiB, and returns once that is answered, by whichever server.
    ///
    /// # Errors
    /// As [`Driver::run`].
    pub fn write(&mut self, mib: u64) -> Result<()> {
        self.describe(0, true)?;
        self.offer(0, mib)?;
        self.publish(1)?;
        while self.answered()?.is_none() {
            self.wait()?;
        }
        Ok(())
    }

    /// Random reads or writes in the first so many MiB, `depth` of them in flight.
    ///
    /// # Errors
    /// If one fails, or takes too long.
    pub fn run(&mut self, write: bool, depth: u32, mib: u64, time: Duration) -> Result<Done> {
        let depth = depth.min(DEPTH) as u16;
        for slot in 0..depth {
            self.describe(slot, write)?;
        }
        let mut made = [Instant::now(); DEPTH as usize];
        let (begun, mut requests, mut waited) = (Instant::now(), 0_u64, Duration::ZERO);
        for slot in 0..depth {
            self.offer(slot, mib)?;
        }
        self.publish(depth)?;
        let mut flying = depth;
        while flying > 0 {
            let mut again = 0;
            while let Some(slot) = self.answered()? {
                let now = Instant::now();
                waited += now - made[usize::from(slot)];
                requests += 1;
                if begun.elapsed() < time {
                    made[usize::from(slot)] = now;
                    self.offer(slot, mib)?;
                    again += 1;
                } else {
                    flying -= 1;
                }
            }
            if again > 0 {
                self.publish(again)?;
            } else if flying > 0 {
                self.wait()?;
            }
        }
        let (took, mean) = (begun.elapsed().as_secs_f64(), waited.as_secs_f64() * 1e6);
        let each = requests.max(1) as f64;
        Ok(Done { requests, rate: requests as f64 / took, mean: mean / each })
    }

    /// Writes every block of the first so many MiB once.
    ///
    /// # Errors
    /// As [`Driver::run`].
    pub fn fill(&mut self, mib: u64) -> Result<()> {
        self.describe(0, true)?;
        for block in 0..mib << 8 {
            self.offer_block(0, block)?;
            self.publish(1)?;
            while self.answered()?.is_none() {
                self.wait()?;
            }
        }
        Ok(())
    }

    /// The three descriptors of a request: header, data, status.
    fn describe(&self, slot: u16, write: bool) -> Result<()> {
        let (first, header) = (slot * 3, header(slot));
        self.put(header, if write { WRITE } else { READ })?;
        let (more, device_writes) = (1_u16, 2_u16);
        let data = if write { more } else { more | device_writes };
        self.descriptor(first, header, 16, more, first + 1)?;
        self.descriptor(first + 1, DATA + BLOCK * u64::from(slot), BLOCK as u32, data, first + 2)?;
        self.descriptor(first + 2, header + 16, 1, device_writes, 0)
    }

    fn descriptor(&self, index: u16, at: u64, len: u32, flags: u16, next: u16) -> Result<()> {
        let place = 16 * u64::from(index);
        self.put(place, GUEST + at)?;
        self.put(place + 8, len)?;
        self.put(place + 12, flags)?;
        self.put(place + 14, next)
    }

    /// Puts a request for some block into the queue; it counts once [`Driver::publish`] says so.
    fn offer(&mut self, slot: u16, mib: u64) -> Result<()> {
        // xorshift64*
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        let block = (self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % (mib << 8);
        self.offer_block(slot, block)
    }

    fn offer_block(&mut self, slot: u16, block: u64) -> Result<()> {
        self.put(header(slot) + 8, block * 8)?;
        self.put(header(slot) + 16, 0xff_u8)?;
        let place = AVAILABLE + 4 + 2 * u64::from(self.offered % SIZE);
        self.put(place, slot * 3)?;
        self.offered = self.offered.wrapping_add(1);
        Ok(())
    }

    /// Tells of so many requests; wakes the server if it sleeps.
    fn publish(&self, count: u16) -> Result<()> {
        self.put(AVAILABLE + 2, self.offered)?;
        std::sync::atomic::fence(Ordering::SeqCst);
        let event: u16 = self.get(USED + 4 + 8 * u64::from(SIZE))?;
        // It wants to be woken when this number is passed.
        if self.offered.wrapping_sub(event).wrapping_sub(1) < count {
            self.kick.write(1)?;
        }
        Ok(())
    }

    /// The next request that was answered.
    fn answered(&mut self) -> Result<Option<u16>> {
        let index: u16 = self.get(USED + 2)?;
        if index == self.seen {
            return Ok(None);
        }
        let head: u32 = self.get(USED + 4 + 8 * u64::from(self.seen % SIZE))?;
        self.seen = self.seen.wrapping_add(1);
        let slot = u16::try_from(head / 3).ok().filter(|slot| u32::from(*slot) < DEPTH);
        let slot = slot.with_context(|| format!("an answer to {head}, which was not asked"))?;
        let status: u8 = self.get(header(slot) + 16)?;
        ensure!(status == 0, "a request failed with status {status}");
        Ok(Some(slot))
    }

    /// Sleeps until there are answers, or another server.
    fn wait(&mut self) -> Result<()> {
        self.put(AVAILABLE + 4 + 2 * u64::from(SIZE), self.seen)?;
        std::sync::atomic::fence(Ordering::SeqCst);
        let index: u16 = self.get(USED + 2)?;
        if index == self.seen {
            let mut events = [EpollEvent::default()];
            let called = self.calls.wait(PATIENCE_MS, &mut events)?;
            ensure!(called > 0, "no answer for {PATIENCE_MS} ms");
            match events[0].data() {
                GONE => self.reconnect()?,
                _ => _ = self.call.read()?,
            }
        }
        Ok(())
    }

    /// Has the next server go on, as soon as there is one that does.
    fn reconnect(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            // The old one goes out of `calls` by being closed.
            let tried = connect(&self.socket, &self.calls);
            let tried = tried.map(|frontend| self.frontend = frontend).and_then(|()| self.begin());
            match tried {
                Ok(()) => return Ok(self.kick.write(1)?),
                Err(error) => {
                    let waited = begun.elapsed().as_millis();
                    ensure!(waited < PATIENCE_MS as u128, "no other server: {error:#}");
                    std::thread::sleep(RETRY);
                }
            }
        }
    }

    /// Has the server serve the queue, as QEMU does: from the first request that was not answered.
    fn begin(&mut self) -> Result<()> {
        let base: u16 = self.get(USED + 2)?;
        let user = self.memory.as_ptr() as u64;
        let frontend = &mut self.frontend;
        frontend.set_owner()?;
        let features = frontend.get_features()?;
        ensure!(features & FEATURES == FEATURES, "features {features:#x} lack {FEATURES:#x}");
        let protocol = frontend.get_protocol_features()?;
        let wanted =
            VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        frontend.set_protocol_features(protocol & wanted)?;
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        if protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            if self.inflight.is_none() {
                let area = VhostUserInflight::new(0, 0, 1, SIZE);
                self.inflight = Some(frontend.get_inflight_fd(&area)?);
            }
            if let Some((area, file)) = &self.inflight {
                frontend.set_inflight_fd(area, file.as_raw_fd())?;
            }
        }
        frontend.set_features(FEATURES)?;
        let region = VhostUserMemoryRegionInfo::from_guest_region(&self.memory)?;
        frontend.set_mem_table(&[region])?;
        frontend.set_vring_num(0, SIZE)?;
        frontend.set_vring_base(0, base)?;
        frontend.set_vring_addr(
            0,
            &VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: user,
                used_ring_addr: user + USED,
                avail_ring_addr: user + AVAILABLE,
                log_addr: None,
            },
        )?;
        frontend.set_vring_call(0, &self.call)?;
        frontend.set_vring_kick(0, &self.kick)?;
        frontend.set_vring_enable(0, true)?;
        Ok(())
    }

    fn put<T: vm_memory::AtomicAccess>(&self, at: u64, value: T) -> Result<()> {
        Ok(MmapRegion::as_volatile_slice(&self.memory).store(
            value,
            at as usize,
            Ordering::Release,
        )?)
    }

    fn get<T: vm_memory::AtomicAccess>(&self, at: u64) -> Result<T> {
        Ok(MmapRegion::as_volatile_slice(&self.memory).load(at as usize, Ordering::Acquire)?)
    }
}

/// Where a request's header and status are.
fn header(slot: u16) -> u64 {
    HEADERS + 64 * u64::from(slot)
}

/// A connection to the server, of which `calls` tells when it ends.
fn connect(socket: &Path, calls: &Epoll) -> Result<Frontend> {
    let stream = UnixStream::connect(socket).context("the server's socket")?;
    let gone = EpollEvent::new(EventSet::READ_HANG_UP, GONE);
    calls.ctl(ControlOperation::Add, stream.as_raw_fd(), gone)?;
    Ok(Frontend::from_stream(stream, 1))
}
