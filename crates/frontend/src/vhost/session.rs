//! One client, from its connection to its end.
//!
//! Messages are answered one by one, on a thread that may wait. What concerns requests is handed to
//! the devices of the thread that owns the target, and nothing else of the client gets there.
//!
//! A client that breaks the protocol, or asks for what can not be, is left, with a sentence for the
//! operator. It may connect again.
//!
//! # A guest that was served before
//!
//! A client that reconnects brings the log of requests that it was given ([`super::inflight`]); a new one
//! asks for a log. A guest that goes on remembers what it has read and written, so it may do so only on a
//! volume that nobody else has changed since ([`Owner::may_go_on`]). If it may not, its disk answers
//! every request with an error, as one that was pulled out, until the guest is started anew.

use std::fmt;
use std::io;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use runtime::{Ring, TargetInfo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::config::{self, bit};
use super::inflight::{Inflight, Lease};
use super::memory::{REGIONS_MAX, Regions};
use super::proto::{
    F_PROTOCOL_FEATURES, InflightArea, Message, RingAddress, Violation, config_changed, feature,
    reply,
};
use super::queue::Setup;
use super::server::{DeviceKey, Devices};
use super::socket::{ReadError, Received, Socket};
use super::split::Split;
use super::{QUEUE_SIZE_MAX, QUEUES_MAX};
use crate::nbd::server::Targets;

/// How often the volume's size is looked at, for clients that want to hear of it.
const LOOK: Duration = Duration::from_secs(2);
/// How often is looked whether somebody still waits for a ring's end.
const TICK: Duration = Duration::from_millis(100);
/// How long a client may take to take the news of a size.
const NEWS: Duration = Duration::from_secs(5);

const PROTOCOL_FEATURES: u64 = feature::MQ
    | feature::REPLY_ACK
    | feature::BACKEND_REQ
    | feature::CONFIG
    | feature::INFLIGHT_SHMFD
    | feature::RESET_DEVICE
    | feature::CONFIGURE_MEM_SLOTS;

/// Something to be done on the thread of the devices.
pub type Task = Box<dyn FnOnce(&mut Devices, &mut Ring, &mut dyn Targets) + Send>;

/// Whoever runs sessions.
pub trait Owner {
    /// Has it done between two turns of the devices' thread, and does not wait. False if the thread has
    /// ended.
    fn run(&self, task: Task) -> bool;

    /// By which the next one will know what may have happened since. The volume is open.
    fn lease(&self) -> Lease;

    /// Whether a guest that was served under that lease can go on. The volume is open.
    ///
    /// # Errors
    /// Why not.
    fn may_go_on(&self, lease: Lease) -> Result<(), String>;

    /// Something that an operator should read.
    fn tell(&self, text: &str);
}

/// Why a session has ended.
#[derive(Debug)]
pub enum End {
    /// The client has gone.
    Closed,
    /// Somebody wished it, or the devices' thread has ended.
    Stopped,
    /// It is to rest, and can go on: [`Session::serve`] again, or [`Session::freeze`].
    Held,
    /// The client broke the protocol.
    Violation(Violation),
    /// It asked for what can not be.
    Refused(String),
    /// The socket does not work.
    Io(io::Error),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Closed => f.write_str("it has gone"),
            End::Stopped => f.write_str("it was to end"),
            End::Held => f.write_str("it was to rest"),
            End::Violation(violation) => write!(f, "it sent {violation}"),
            End::Refused(why) => f.write_str(why),
            End::Io(error) => write!(f, "its socket: {error}"),
        }
    }
}

impl From<ReadError> for End {
    fn from(error: ReadError) -> End {
        match error {
            ReadError::Closed => End::Closed,
            ReadError::Stopped => End::Stopped,
            ReadError::Held => End::Held,
            ReadError::Violation(violation) => End::Violation(violation),
            ReadError::Io(error) => End::Io(error),
        }
    }
}

/// A ring as far as the client has described it.
#[derive(Default)]
pub(super) struct RingState {
    pub(super) size: u16,
    pub(super) address: Option<RingAddress>,
    pub(super) base: u16,
    /// Given when it is started.
    pub(super) kick: Option<OwnedFd>,
    pub(super) call: Option<OwnedFd>,
    pub(super) err: Option<OwnedFd>,
    pub(super) enabled: bool,
    pub(super) started: bool,
}

/// Ends that a session watches beside its client.
#[derive(Clone, Copy)]
pub struct Signals<'a> {
    /// Becomes readable when it is to end.
    pub stop: &'a OwnedFd,
    /// Is readable while it is to rest.
    pub hold: &'a OwnedFd,
}

/// A session; see the module.
pub struct Session<'a> {
    pub(super) socket: Socket,
    pub(super) signals: Signals<'a>,
    pub(super) owner: &'a dyn Owner,
    pub(super) key: DeviceKey,
    pub(super) read_only: bool,
    pub(super) info: TargetInfo,
    pub(super) features: u64,
    pub(super) protocol: u64,
    pub(super) cached: bool,
    pub(super) regions: Regions,
    pub(super) rings: Vec<RingState>,
    pub(super) inflight: Option<Inflight>,
    /// A ring was started with this log: whether the guest can go on is settled.
    pub(super) settled: bool,
    /// It can, or it is a new one: the volume has been open for it since.
    pub(super) goes_on: bool,
    /// Where the client hears of a new size.
    pub(super) news: Option<UnixStream>,
}

/// What a request comes to.
enum Answer {
    /// Nothing, or that it is done if the client wants to know.
    Done,
    /// These bytes, with a descriptor or without.
    Bytes(Vec<u8>, Option<OwnedFd>),
}

fn refused(why: impl Into<String>) -> End {
    End::Refused(why.into())
}

impl<'a> Session<'a> {
    /// A session with a client that has just connected, for a device that is open and as `info` says.
    ///
    /// # Errors
    /// The socket does not work.
    pub fn new(
        stream: UnixStream,
        signals: Signals<'a>,
        owner: &'a dyn Owner,
        (key, info, read_only): (DeviceKey, TargetInfo, bool),
    ) -> io::Result<Session<'a>> {
        Ok(Session {
            socket: Socket::new(stream)?,
            signals,
            owner,
            key,
            read_only,
            info,
            features: 0,
            protocol: 0,
            cached: true,
            regions: Regions::default(),
            rings: (0..QUEUES_MAX).map(|_| RingState::default()).collect(),
            inflight: None,
            settled: false,
            goes_on: false,
            news: None,
        })
    }

    /// Answers what the client asks, until one of the two ends. The device stays open.
    pub fn serve(&mut self) -> End {
        loop {
            if let Err(end) = self.step() {
                return end;
            }
        }
    }

    fn step(&mut self) -> Result<(), End> {
        let limit = self.news.is_some().then_some(LOOK);
        let Some(received) = self.socket.receive(self.signals.stop, self.signals.hold, limit)?
        else {
            return self.look_at_size();
        };
        let Received { header, message, fds } = received;
        let wants = header.need_reply && self.protocol & feature::REPLY_ACK != 0;
        let ack = |code: u64| reply(header.request, &code.to_ne_bytes());
        match self.answer(header.request, header.len, message, fds) {
            Ok(Answer::Bytes(bytes, fd)) => self.send(&bytes, fd.as_ref()),
            Ok(Answer::Done) if wants => self.send(&ack(0), None),
            Ok(Answer::Done) => Ok(()),
            Err(end) => {
                if wants {
                    // It is left in any case.
                    let _ = self.send(&ack(1), None);
                }
                Err(end)
            }
        }
    }

    fn send(&self, bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(), End> {
        self.socket.send(bytes, fd).map_err(End::Io)
    }

    /// Has something done by the devices, and waits for it.
    fn on<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Devices, &mut Ring, &mut dyn Targets) -> T + Send + 'static,
    ) -> Result<T, End> {
        ask(self.owner, run)
    }

    fn answer(
        &mut self,
        request: u32,
        len: u32,
        message: Message,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Answer, End> {
        let number = |value: u64| Ok(Answer::Bytes(reply(request, &value.to_ne_bytes()), None));
        match message {
            Message::GetFeatures => return number(config::features(&self.info, self.read_only)),
            Message::SetFeatures(features) => self.set_features(features)?,
            Message::SetOwner => {}
            Message::ResetOwner => self.enable_all(false)?,
            Message::GetProtocolFeatures => return number(PROTOCOL_FEATURES),
            Message::SetProtocolFeatures(features) => {
                if features & !PROTOCOL_FEATURES != 0 {
                    let why = format!("it asks for protocol features {features:#x}");
                    return Err(refused(why));
                }
                self.protocol = features;
            }
            Message::GetQueueNum => return number(u64::from(QUEUES_MAX)),
            Message::GetMaxMemSlots => return number(REGIONS_MAX as u64),
            Message::SetMemTable(regions) => {
                self.regions.clear();
                for (region, file) in regions.into_iter().zip(fds) {
                    self.regions.add(region, file).map_err(refused)?;
                }
                self.hand_memory()?;
            }
            Message::AddMemReg(region) => {
                let file = fds.pop().ok_or_else(|| refused("memory without a file"))?;
                self.regions.add(region, file).map_err(refused)?;
                self.hand_memory()?;
            }
            Message::RemMemReg(region) => {
                self.regions.remove(region).map_err(refused)?;
                self.hand_memory()?;
            }
            Message::SetVringNum { index, num } => {
                let size = u16::try_from(num).ok().filter(|size| *size <= QUEUE_SIZE_MAX);
                let size = size.filter(|size| size.is_power_of_two());
                let why = || format!("it wants a ring of {num} descriptors");
                self.stopped_ring(index)?.size = size.ok_or_else(|| refused(why()))?;
            }
            Message::SetVringAddr(address) => {
                if address.flags & 1 != 0 {
                    return Err(refused("it wants accesses to be logged, which is not offered"));
                }
                self.stopped_ring(address.index)?.address = Some(address);
            }
            Message::SetVringBase { index, base } => {
                let base = u16::try_from(base).map_err(|_| refused(format!("base {base}")))?;
                self.stopped_ring(index)?.base = base;
            }
            Message::GetVringBase { index } => {
                self.stop_ring(index)?;
                let base = u32::from(self.ring(index)?.base);
                let bytes = [index.to_ne_bytes(), base.to_ne_bytes()].concat();
                return Ok(Answer::Bytes(reply(request, &bytes), None));
            }
            Message::SetVringKick { index } => {
                let kick = fds.pop().ok_or(End::Violation(Violation::NoKick))?;
                self.start_ring(u32::from(index), kick)?;
            }
            Message::SetVringCall { index, .. } => self.set_call(u32::from(index), fds.pop())?,
            Message::SetVringErr { index, .. } => self.set_err(u32::from(index), fds.pop())?,
            Message::SetVringEnable { index, enable } => {
                self.ring(index)?.enabled = enable;
                let (key, index) = (self.key, index as u16);
                self.on(move |devices, ring, _| devices.set_enabled(ring, key, index, enable))?;
            }
            Message::SetBackendReqFd => {
                let fd = fds.pop().ok_or_else(|| refused("a socket that is not there"))?;
                self.hear(fd)?;
            }
            Message::GetConfig { offset, len } => {
                return Ok(Answer::Bytes(reply(request, &self.config(offset, len)), None));
            }
            Message::SetConfig { offset, data } => self.set_config(offset, &data)?,
            Message::GetInflightFd(area) => {
                let made = Inflight::create(area.queues, area.queue_size);
                let (area, file) = made.map_err(|e| refused(format!("no log: {e}")))?;
                return Ok(Answer::Bytes(reply(request, &area.encode(len)), Some(file)));
            }
            Message::SetInflightFd(area) => self.set_inflight(area, fds.pop())?,
            Message::ResetDevice => {
                for index in 0..u32::from(QUEUES_MAX) {
                    self.stop_ring(index)?;
                    *self.ring(index)? = RingState::default();
                }
            }
        }
        Ok(Answer::Done)
    }

    /// The client hears of a new size there.
    pub(super) fn hear(&mut self, fd: OwnedFd) -> Result<(), End> {
        let news = UnixStream::from(fd);
        news.set_write_timeout(Some(NEWS)).map_err(End::Io)?;
        self.news = Some(news);
        Ok(())
    }

    fn ring(&mut self, index: u32) -> Result<&mut RingState, End> {
        let ring = self.rings.get_mut(index as usize);
        ring.ok_or_else(|| refused(format!("there is no ring {index}")))
    }

    /// A ring that can be described.
    fn stopped_ring(&mut self, index: u32) -> Result<&mut RingState, End> {
        match self.ring(index)? {
            ring if ring.started => Err(refused(format!("ring {index} is in use"))),
            ring => Ok(ring),
        }
    }

    fn set_features(&mut self, features: u64) -> Result<(), End> {
        let offered = config::features(&self.info, self.read_only);
        if features & !offered != 0 {
            let why = format!("it takes features {features:#x}, of which {offered:#x} are offered");
            return Err(refused(why));
        }
        self.features = features;
        self.hand_cache()?;
        // Without the protocol's features there is no message that enables a ring.
        if features & F_PROTOCOL_FEATURES == 0 { self.enable_all(true) } else { Ok(()) }
    }

    fn enable_all(&mut self, enable: bool) -> Result<(), End> {
        self.rings.iter_mut().for_each(|ring| ring.enabled = enable);
        let key = self.key;
        self.on(move |devices, ring, _| {
            (0..QUEUES_MAX).for_each(|index| devices.set_enabled(ring, key, index, enable));
        })
    }

    /// Tells the devices whether writes have to be durable at once.
    fn hand_cache(&self) -> Result<(), End> {
        let chosen = self.features & bit::CONFIG_WCE == 0 || self.cached;
        let write_through = self.features & bit::FLUSH == 0 || !chosen;
        let key = self.key;
        self.on(move |devices, _, _| devices.set_write_through(key, write_through))
    }

    pub(super) fn hand_memory(&self) -> Result<(), End> {
        let guest = self.regions.guest().map_err(refused)?;
        let key = self.key;
        self.on(move |devices, _, _| devices.set_memory(key, guest))
    }

    fn set_call(&mut self, index: u32, call: Option<OwnedFd>) -> Result<(), End> {
        let call = call.map(check_event).transpose()?;
        let ring = self.ring(index)?;
        ring.call = call;
        if !ring.started {
            return Ok(());
        }
        let call = copy_of(ring.call.as_ref())?;
        let (key, index) = (self.key, index as u16);
        self.on(move |devices, ring, _| devices.set_call(ring, key, index, call))
    }

    fn set_err(&mut self, index: u32, err: Option<OwnedFd>) -> Result<(), End> {
        let err = err.map(check_event).transpose()?;
        let ring = self.ring(index)?;
        ring.err = err;
        if !ring.started {
            return Ok(());
        }
        let err = copy_of(ring.err.as_ref())?;
        let (key, index) = (self.key, index as u16);
        self.on(move |devices, ring, _| devices.set_err(ring, key, index, err))
    }

    fn set_inflight(&mut self, area: InflightArea, file: Option<OwnedFd>) -> Result<(), End> {
        if self.rings.iter().any(|ring| ring.started) {
            return Err(refused("it brings a log while rings are in use"));
        }
        let file = file.ok_or_else(|| refused("a log without a file"))?;
        // A guest that is reset comes with a new one.
        self.settled = false;
        let opened = Inflight::open(area, file);
        self.inflight = Some(opened.map_err(|e| refused(format!("its log of requests: {e}")))?);
        Ok(())
    }

    /// Settles whether the guest can go on with what it remembers of the volume.
    fn settle(&mut self, base: u16) -> Result<(), End> {
        if std::mem::replace(&mut self.settled, true) {
            return Ok(());
        }
        let lease = self.inflight.as_ref().and_then(Inflight::lease);
        let goes_on = match lease {
            Some(_) if self.goes_on => Ok(()),
            Some(lease) => self.owner.may_go_on(lease),
            None if base == 0 => Ok(()),
            None => Err("its rings were in use before, and it has no log of requests".to_owned()),
        };
        match goes_on {
            Ok(()) => {
                if let Some(inflight) = &self.inflight {
                    inflight.set_lease(self.owner.lease());
                }
                self.goes_on = true;
                let key = self.key;
                // The guest may have been reset since it was refused.
                self.on(move |devices, _, _| devices.set_gone(key, false))
            }
            Err(why) => {
                self.owner.tell(&format!(
                    "a guest that was served before can not go on: {why}; its disk fails until the \
                     guest is started anew"
                ));
                let key = self.key;
                self.on(move |devices, _, _| devices.set_gone(key, true))
            }
        }
    }

    fn start_ring(&mut self, index: u32, kick: OwnedFd) -> Result<(), End> {
        let kick = check_event(kick)?;
        let base = self.stopped_ring(index)?.base;
        let described = self.described_ring(index)?;
        self.settle(base)?;
        self.ring(index)?.kick = Some(kick);
        self.hand_ring(index, described)
    }

    /// A ring in the guest's memory.
    pub(super) fn described_ring(&mut self, index: u32) -> Result<Split, End> {
        let event_idx = self.features & bit::EVENT_IDX != 0;
        let ring = self.ring(index)?;
        let (size, address) = (ring.size, ring.address);
        let whole = || refused(format!("ring {index} is not described yet, or lies nowhere"));
        let address = address.filter(|_| size > 0).ok_or_else(whole)?;
        let count = u64::from(size);
        let at = |user, len| self.regions.translate(user, len).ok_or_else(whole);
        let desc = at(address.desc, 16 * count)?;
        let avail = at(address.avail, 6 + 2 * count)?;
        let used = at(address.used, 6 + 8 * count)?;
        Split::new(size, desc, avail, used, event_idx).ok_or_else(whole)
    }

    /// Has a ring served that is described.
    pub(super) fn hand_ring(&mut self, index: u32, split: Split) -> Result<(), End> {
        let size = self.ring(index)?.size;
        let log = match &self.inflight {
            Some(inflight) => Some(inflight.ring(index as u16, size).ok_or_else(|| {
                refused(format!("its log of requests has no place for ring {index}"))
            })?),
            None => None,
        };
        let ring = self.ring(index)?;
        let kick = copy_of(ring.kick.as_ref())?;
        let kick = kick.ok_or_else(|| refused(format!("ring {index} has no kick")))?;
        let (call, err) = (copy_of(ring.call.as_ref())?, copy_of(ring.err.as_ref())?);
        let (base, enabled) = (ring.base, ring.enabled);
        ring.started = true;
        let setup = Setup { split, base, kick, call, err, log, enabled };
        let (key, nr) = (self.key, index as u16);
        let started = self.on(move |devices, ring, _| devices.start(ring, key, nr, setup))?;
        started.map_err(|e| refused(format!("ring {index} can not be served: {e}")))
    }

    /// Stops a ring, once everything that was taken from it is used.
    fn stop_ring(&mut self, index: u32) -> Result<(), End> {
        let ring = self.ring(index)?;
        if !std::mem::take(&mut ring.started) {
            return Ok(());
        }
        let (told, stopped) = mpsc::channel();
        let (key, nr) = (self.key, index as u16);
        self.on(move |devices, ring, _| devices.stop(ring, key, nr, told))?;
        loop {
            match stopped.recv_timeout(TICK) {
                Ok(base) => {
                    let ring = self.ring(index)?;
                    (ring.base, ring.kick) = (base, None);
                    // As before it was started: a client that starts it again tells them.
                    (ring.call, ring.err) = (None, None);
                    return Ok(());
                }
                // A volume that waits does not answer; its guest waits as long.
                Err(mpsc::RecvTimeoutError::Timeout) => self.check_alive()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(refused(format!("ring {index} was not served")));
                }
            }
        }
    }

    /// Ends where somebody wishes it, or the client has gone.
    fn check_alive(&self) -> Result<(), End> {
        let mut fds = [
            PollFd::new(self.signals.stop, PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::RDHUP),
        ];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = poll(&mut fds, Some(&now));
        match (fds[0].revents().is_empty(), fds[1].revents().is_empty()) {
            (false, _) => Err(End::Stopped),
            (_, false) => Err(End::Closed),
            _ => Ok(()),
        }
    }

    /// The answer to a question for the configuration; empty if it is none.
    fn config(&self, offset: u32, len: u32) -> Vec<u8> {
        let space = config::space(&self.info, self.cached);
        let end = u64::from(offset) + u64::from(len);
        let mut answer = Vec::new();
        if end <= space.len() as u64 {
            for word in [offset, len, 0] {
                answer.extend(word.to_ne_bytes());
            }
            answer.extend(&space[offset as usize..end as usize]);
        }
        answer
    }

    fn set_config(&mut self, offset: u32, data: &[u8]) -> Result<(), End> {
        match (offset, data) {
            (config::WCE_AT, [cached]) if self.features & bit::CONFIG_WCE != 0 => {
                self.cached = *cached != 0;
                self.hand_cache()
            }
            _ => Err(refused(format!("it changes {} bytes of the configuration", data.len()))),
        }
    }

    /// Tells the client if the volume has another size.
    fn look_at_size(&mut self) -> Result<(), End> {
        let key = self.key;
        let info = self.on(move |devices, _, targets| devices.info(targets, key))?;
        let Some(info) = info else { return Ok(()) };
        let before = std::mem::replace(&mut self.info, info);
        if config::capacity(&before) == config::capacity(&info) {
            return Ok(());
        }
        if let Some(news) = &mut self.news
            && let Err(e) = news.write_all(&config_changed())
        {
            self.owner.tell(&format!("the client does not hear of the new size: {e}"));
            self.news = None;
        }
        Ok(())
    }
}

/// Has something done by the devices, and waits for it.
pub(super) fn ask<T: Send + 'static>(
    owner: &dyn Owner,
    run: impl FnOnce(&mut Devices, &mut Ring, &mut dyn Targets) -> T + Send + 'static,
) -> Result<T, End> {
    let (reply, result) = mpsc::channel();
    let task: Task = Box::new(move |devices, ring, targets| {
        // Whoever waited may have ended.
        let _ = reply.send(run(devices, ring, targets));
    });
    match owner.run(task) {
        true => result.recv().map_err(|_| End::Stopped),
        false => Err(End::Stopped),
    }
}

/// The same descriptor for the devices; this one is kept, for another process.
fn copy_of(fd: Option<&OwnedFd>) -> Result<Option<OwnedFd>, End> {
    fd.map(OwnedFd::try_clone).transpose().map_err(End::Io)
}

/// Refuses what is no eventfd: reading or writing it could take any time.
fn check_event(fd: OwnedFd) -> Result<OwnedFd, End> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(End::Io)?;
    match link.to_str() {
        Some("anon_inode:[eventfd]") => Ok(fd),
        _ => Err(refused(format!("{} is no eventfd", link.display()))),
    }
}
