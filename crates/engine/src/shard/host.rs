//! A resource on its shard: the core, and what its outputs are carried out with.
//!
//! Every input goes through [`Host::feed`], which drains the outputs at once and in order. Nothing
//! is decided here: an output names what is to be done, and this file does it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::SystemTime;

use codec::admin::{ConnectionStatistics, Note, PathStatus, ResourceStatistics, ResourceStatus};
use codec::config::{BackingConfig, PathConfig};
use codec::wire::{Packet, Stream};
use crypt::luks::Opened;
use frontend::nbd::server::TargetKey;
use replication::config::ResourceConfig;
use replication::io::{
    AdminCommand, BufId, DigestOf, DiskError, DiskOp, LinkLoss, LogLevel, Request, RequestOp,
};
use replication::{Input, Output, Resource};
use runtime::{Aspect, Completed, Conn, Extent, ExtentKind, Place};
use vocab::options::NetOptions;
use vocab::{ConfigError, Dagtag, Instant, Minor, NodeId, Refusal, SectorRange, VolumeNr};

use super::attach::AttachJob;
use super::calls::Calls;
use super::disk::{self, Disk, Finished, Look, Owner};
use super::io::Io;
use super::token::SocketOp;
use super::volume::{Volumes, Wish, WishOp};
use super::waterfall::{Begin, Kind, VolumeCounters, Waterfalls};
use crate::digest::Algorithm;
use crate::handlers::Programs;
use crate::transport::{Event, Link, LinkId, Next};
use logging::{Level, log};

/// Notes kept for `why`.
const NOTES_MAX: usize = 200;

/// Data queued for a peer beyond the kernel's buffers from which a connection counts as congested.
const CONGESTED: usize = 4 << 20;
/// Most extents that a client is told of at once; it asks again for what is behind them.
const PIECES_MAX: usize = 4096;

/// A position in a write stream beyond all that earlier runs of this node have used: nobody writes
/// eight sectors in a microsecond for long.
fn position() -> Dagtag {
    let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Dagtag(u64::try_from(since_epoch.as_micros()).unwrap_or(0) * 8)
}

/// Where the answer to an operator's wish goes.
pub(crate) type Reply = mpsc::Sender<Result<(), Refusal>>;

mod handover;
pub(crate) use handover::FrozenHost;

/// A resource.
pub(crate) struct Host {
    pub(crate) id: u16,
    pub(crate) name: String,
    node_id: NodeId,
    core: Resource,
    volumes: Vec<HostVolume>,
    /// By node id.
    links: BTreeMap<NodeId, Box<Link>>,
    net: BTreeMap<NodeId, NetOptions>,
    calls: Calls,
    admin: BTreeMap<u64, Reply>,
    last_admin: u64,
    notes: VecDeque<(Instant, String, String)>,
    /// States have changed since the last look.
    pub(crate) changed: bool,
    /// Links have something to send.
    unflushed: bool,
    waterfalls: Waterfalls,
}

struct HostVolume {
    nr: VolumeNr,
    target: TargetKey,
    disk: Option<Rc<Disk>>,
    /// Path of the disk in use.
    path: Option<String>,
    /// A disk is being read.
    attaching: bool,
    counters: VolumeCounters,
}

impl Host {
    pub(crate) fn new(id: u16, config: ResourceConfig, programs: Programs) -> Host {
        let (name, node_id) = (config.name.clone(), config.node_id);
        debug_assert!(config.volumes.is_empty() && config.peers.is_empty(), "added one by one");
        let core = Resource::new(config, crate::random::seed(), position());
        Host::around(id, name, node_id, core, programs)
    }

    /// A resource whose volumes and links are still to be added.
    fn around(id: u16, name: String, node_id: NodeId, core: Resource, programs: Programs) -> Host {
        Host {
            id,
            name,
            node_id,
            core,
            volumes: Vec::new(),
            links: BTreeMap::new(),
            net: BTreeMap::new(),
            calls: Calls::new(programs),
            admin: BTreeMap::new(),
            last_admin: 0,
            notes: VecDeque::new(),
            changed: true,
            unflushed: false,
            waterfalls: Waterfalls::default(),
        }
    }

    // ---- inputs --------------------------------------------------------------------------

    /// Hands an input to the core and carries out what it wants done.
    pub(crate) fn feed(&mut self, io: &mut Io, volumes: &mut Volumes, input: Input) {
        if logging::enabled(Level::Trace) {
            trace(&self.name, "<-", &Brief(&input));
        }
        let (now, timing) = (io.now(), !self.waterfalls.is_empty());
        if timing && let Some(end) = self.waterfalls.input(&input, now) {
            if let Some(volume) = self.volume_mut(end.volume) {
                volume.counters.add_replica(&end);
            }
        }
        self.core.handle(now, input);
        while let Some(output) = self.core.poll() {
            if logging::enabled(Level::Trace) {
                trace(&self.name, "->", &Brief(&output));
            }
            if timing {
                self.waterfalls.output(&output, now, runtime::clock::now);
            }
            self.carry_out(io, volumes, output);
        }
    }

    /// What a volume wants.
    pub(crate) fn wish(&mut self, io: &mut Io, volumes: &mut Volumes, nr: VolumeNr, wish: Wish) {
        let input = match wish {
            Wish::Open { opener, write, patient } => {
                Input::Open { volume: nr, opener, write, patient }
            }
            Wish::Close { opener } => Input::Close { volume: nr, opener },
            Wish::Look { id, aspect, range } => {
                let look = Look { resource: self.id, volume: nr, id, range };
                return self.look(io, aspect, look);
            }
            Wish::Request { id, op, range } => {
                let weight = self.count(nr, &op, range, io.now());
                let request = Wish::request(nr, id, op, range, &mut io.bufs);
                return match weight {
                    Some(weight) => self.feed_timed(io, volumes, request, weight),
                    None => self.feed(io, volumes, Input::Request(request)),
                };
            }
        };
        self.feed(io, volumes, input);
    }

    /// Counts a request that is about to be handed to the core. If it is to be timed, gives the
    /// number of requests that it counts for.
    fn count(
        &mut self,
        nr: VolumeNr,
        op: &WishOp,
        range: SectorRange,
        now: Instant,
    ) -> Option<u64> {
        let counters = &mut self.volume_mut(nr)?.counters;
        let bytes = range.len.bytes().0;
        match op {
            WishOp::Read => counters.reads.add(bytes),
            WishOp::Write { .. } => counters.writes.add(bytes),
            WishOp::Discard => counters.discards.add(bytes),
            WishOp::Zeroes { .. } => counters.zeroes.add(bytes),
            WishOp::Flush => counters.flushes.add(0),
        }
        match op {
            WishOp::Read => counters.pick(Kind::Read, now),
            WishOp::Write { .. } => counters.pick(Kind::Write, now),
            _ => None,
        }
    }

    /// Hands a request to the core and times what becomes of it.
    fn feed_timed(&mut self, io: &mut Io, volumes: &mut Volumes, request: Request, weight: u64) {
        let Request { volume, id, op, range } = request;
        let (kind, buf) = match op {
            RequestOp::Write { buf, .. } => (Kind::Write, Some(buf)),
            _ => (Kind::Read, None),
        };
        let (received, handed) = (io.now(), runtime::clock::now());
        let begin = Begin { kind, volume, id, range, buf, weight, received, handed };
        self.waterfalls.begin(begin);
        self.feed(io, volumes, Input::Request(request));
        if self.waterfalls.waits(volume, id) && self.core.awaits_activity_log(volume, id) {
            self.waterfalls.awaits_log(volume, id);
        }
    }

    /// Users have the answers to all requests of a volume that the core has completed.
    pub(crate) fn answered(&mut self, nr: VolumeNr) {
        let volume = self.volumes.iter_mut().find(|v| v.nr == nr);
        if let Some(volume) = volume.filter(|_| !self.waterfalls.is_empty()) {
            self.waterfalls.answered(nr, &mut volume.counters, runtime::clock::now);
        }
    }

    /// An operator's wish. The answer goes to `reply`, now or later.
    pub(crate) fn command(
        &mut self,
        io: &mut Io,
        volumes: &mut Volumes,
        command: AdminCommand,
        reply: Reply,
    ) {
        self.last_admin += 1;
        let id = self.last_admin;
        self.admin.insert(id, reply);
        self.feed(io, volumes, Input::Admin { id, command });
    }

    fn answer(&mut self, id: u64, result: Result<(), Refusal>) {
        if let Some(reply) = self.admin.remove(&id) {
            // Who asked may have gone away meanwhile.
            let _ = reply.send(result);
        }
    }

    /// A disk job has ended.
    pub(crate) fn finished(&mut self, io: &mut Io, volumes: &mut Volumes, finished: Finished) {
        match finished {
            Finished::Disk(owner, result) => {
                if let Err(error @ (DiskError::Io | DiskError::NoSpace)) = &result {
                    let text = format!("an operation of the disk failed: {error:?}");
                    self.note(io.now(), Level::Error, format!("volume {}", owner.volume), text);
                }
                self.feed(io, volumes, Input::DiskDone { op: owner.op, result });
            }
            Finished::Meta(owner, result) => {
                self.feed(io, volumes, Input::MetaDone { op: owner.op, result });
            }
            Finished::Attach(job) => self.attach_read(io, volumes, *job),
            Finished::Measured(_, volume, result) => {
                self.feed(io, volumes, Input::DiskMeasured { volume, result });
            }
            Finished::Looked(look, extents) => {
                let target = self.volume_mut(look.volume).map(|v| v.target);
                if let Some(target) = target.and_then(|key| volumes.get_mut(key)) {
                    target.looked(look.id, extents);
                }
            }
        }
    }

    /// A client wishes to know something about the parts of a range.
    fn look(&mut self, io: &mut Io, aspect: Aspect, look: Look) {
        let extents = match aspect {
            Aspect::Allocation => {
                // What this disk says counts if it is current: a hole that is looked for from now on has
                // no data that anybody has been told of. Encrypted, a hole reads as noise.
                let current = self.core.is_up_to_date(look.volume);
                let disk = self.disk_of(look.volume).filter(|disk| current && disk.crypt.is_none());
                if let Some(disk) = disk {
                    return disk::look(io, look, &disk);
                }
                Extent { len: look.range.len.bytes().0, kind: ExtentKind::Plain }.alone()
            }
            Aspect::OutOfSync => {
                let pieces = self.core.out_of_sync_pieces(look.volume, look.range, PIECES_MAX);
                let extent = |(piece, missed): (SectorRange, bool)| Extent {
                    len: piece.len.bytes().0,
                    kind: if missed { ExtentKind::OutOfSync } else { ExtentKind::Plain },
                };
                pieces.into_iter().map(extent).collect()
            }
        };
        io.jobs.finished.push(Finished::Looked(look, extents));
    }

    /// A handler has ended.
    pub(crate) fn handler_done(
        &mut self,
        io: &mut Io,
        volumes: &mut Volumes,
        id: u64,
        exit: Option<u8>,
    ) {
        io.calls.extend(self.calls.ended(id));
        self.feed(io, volumes, Input::HandlerDone { id, exit });
    }

    pub(crate) fn set_programs(&mut self, programs: Programs) {
        self.calls.programs = programs;
    }

    /// A disk has no space for what is written, or has it again.
    pub(crate) fn full(&mut self, io: &Io, volume: VolumeNr, full: bool) {
        let (level, text) = match full {
            true => (Level::Error, "no space for the volume: writes wait until its pool has grown"),
            false => (Level::Info, "there is space for the volume again: writes go on"),
        };
        self.note(io.now(), level, format!("volume {volume}"), text.to_owned());
    }

    /// An operation of a link's socket has completed.
    pub(crate) fn link_completed(
        &mut self,
        io: &mut Io,
        volumes: &mut Volumes,
        node: NodeId,
        (op, serial): (SocketOp, u32),
        done: Completed,
    ) {
        let Some(link) = self.links.get_mut(&node) else { return };
        let event = link.completed(io, op, serial, done);
        self.link_event(io, volumes, node, event);
    }

    /// A peer has connected to one of the listeners.
    pub(crate) fn accepted(&mut self, io: &mut Io, node: NodeId, conn: Conn) {
        if let Some(link) = self.links.get_mut(&node) {
            link.accepted(io, conn);
        }
    }

    fn link_event(
        &mut self,
        io: &mut Io,
        volumes: &mut Volumes,
        node: NodeId,
        event: Option<Event>,
    ) {
        match event {
            None => {}
            Some(Event::Up { tie_break }) => {
                let challenge = crate::random::challenge();
                self.feed(io, volumes, Input::LinkUp { peer: node, tie_break, challenge });
                // What arrived while the sockets were checked.
                self.read(io, volumes, node, Stream::Data);
                self.read(io, volumes, node, Stream::Control);
            }
            Some(Event::Readable(stream)) => self.read(io, volumes, node, stream),
            Some(Event::Joined) => {
                self.changed = true;
                self.read(io, volumes, node, Stream::Data);
                self.read(io, volumes, node, Stream::Control);
            }
            Some(Event::Down(loss)) => {
                self.feed(io, volumes, Input::LinkDown { peer: node, loss });
            }
        }
    }

    /// Feeds all packets that have arrived completely.
    fn read(&mut self, io: &mut Io, volumes: &mut Volumes, node: NodeId, stream: Stream) {
        while let Some(link) = self.links.get_mut(&node) {
            match link.read(io, stream) {
                Next::Packet(packet, payload) => {
                    let payload = payload.map(|buf| io.bufs.insert(buf));
                    if let (Packet::Data(nr, data), Some(buf)) = (&packet, payload) {
                        self.count_replica(*nr, data.range, buf, io.now());
                    }
                    self.feed(io, volumes, Input::Packet { peer: node, packet, payload });
                }
                Next::Nothing => return,
                Next::Garbage(why) => {
                    self.note(io.now(), Level::Error, format!("resource {}", self.name), why);
                    let loss = LinkLoss::Garbage;
                    return self.feed(io, volumes, Input::LinkDown { peer: node, loss });
                }
            }
        }
    }

    /// Counts a write of a peer that is about to be handed to the core, and times some.
    fn count_replica(&mut self, nr: VolumeNr, range: SectorRange, buf: BufId, now: Instant) {
        let Some(volume) = self.volume_mut(nr) else { return };
        volume.counters.replica_writes.add(range.len.bytes().0);
        if let Some(weight) = volume.counters.pick(Kind::Replica, now) {
            let (received, handed) = (now, now);
            let (kind, id, buf) = (Kind::Replica, 0, Some(buf));
            let begin = Begin { kind, volume: nr, id, range, buf, weight, received, handed };
            self.waterfalls.begin(begin);
        }
    }

    /// Memory may be there again.
    pub(crate) fn unstarve(&mut self, io: &mut Io, volumes: &mut Volumes) {
        let nodes: Vec<NodeId> =
            self.links.iter_mut().filter_map(|(n, l)| l.unstarve().then_some(*n)).collect();
        for node in nodes {
            self.read(io, volumes, node, Stream::Data);
            self.read(io, volumes, node, Stream::Control);
        }
    }

    // ---- time ----------------------------------------------------------------------------

    /// When [`Host::timeout`] is wanted.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let core = self.core.deadline().map(|(at, _)| at);
        self.links.values().filter_map(|link| link.deadline(now)).chain(core).min()
    }

    /// Time has passed.
    pub(crate) fn timeout(&mut self, io: &mut Io, volumes: &mut Volumes) {
        let nodes: Vec<NodeId> = self.links.keys().copied().collect();
        for node in nodes {
            let event = self.links.get_mut(&node).and_then(|link| link.timeout(io));
            self.link_event(io, volumes, node, event);
        }
        self.feed(io, volumes, Input::Timeout);
    }

    /// Ends a turn: what was queued for the peers leaves.
    pub(crate) fn flush(&mut self, io: &mut Io) {
        if std::mem::take(&mut self.unflushed) {
            for link in self.links.values_mut() {
                link.flush(io);
            }
        }
    }

    // ---- outputs -------------------------------------------------------------------------

    fn carry_out(&mut self, io: &mut Io, volumes: &mut Volumes, output: Output) {
        match output {
            Output::Connect { peer } => {
                if let Some(link) = self.links.get_mut(&peer) {
                    link.connect(io);
                }
            }
            Output::CloseLink { peer } => {
                if let Some(link) = self.links.get_mut(&peer) {
                    link.close(io);
                }
            }
            Output::Send { peer, packet, payload } => {
                let payload = payload.map(|id| io.bufs.share(id));
                if let Some(link) = self.links.get_mut(&peer) {
                    link.send(&packet, payload);
                    self.unflushed = true;
                }
            }
            Output::Disk { volume, op, io: disk_op } => {
                let owner = Owner { resource: self.id, volume, op };
                match self.disk_of(volume) {
                    Some(disk) => {
                        let digest = self.digest(&disk_op);
                        let place = self.place(volumes, volume, &disk_op);
                        disk::start(io, owner, &disk, disk_op, digest, place);
                    }
                    None => io.jobs.finished.push(Finished::Disk(owner, Err(DiskError::Io))),
                }
            }
            Output::MetaWrite { volume, op, write } => {
                let owner = Owner { resource: self.id, volume, op };
                match self.disk_of(volume) {
                    Some(disk) => disk::start_meta(io, owner, &disk, write),
                    None => io.jobs.finished.push(Finished::Meta(owner, Err(DiskError::Io))),
                }
            }
            Output::MeasureDisk { volume } => {
                let gone = || Err("the disk is gone".to_owned());
                let result = self.disk_of(volume).map_or_else(gone, |disk| disk.measure());
                io.jobs.finished.push(Finished::Measured(self.id, volume, result));
            }
            Output::MoveMetadata { volume } => {
                if let Some(disk) = self.disk_of(volume) {
                    disk.move_metadata();
                }
            }
            Output::DiskReleased { volume } => {
                if let Some(volume) = self.volume_mut(volume) {
                    (volume.disk, volume.path) = (None, None);
                }
            }
            Output::Complete { volume, id, result } => {
                let target = self.volume_mut(volume).map(|v| {
                    v.counters.completed += 1;
                    v.target
                });
                if let Some(target) = target.and_then(|key| volumes.get_mut(key)) {
                    target.completed(id, result, &io.bufs);
                }
            }
            Output::OpenDone { volume, opener, result } => {
                if let Err(error) = &result {
                    log!(Level::Info, format!("{}/{volume}", self.name), "not opened: {error:?}");
                }
                let target = self.volume_mut(volume).map(|v| v.target);
                if let Some(target) = target.and_then(|key| volumes.get_mut(key)) {
                    target.opened(opener, &result);
                }
            }
            Output::Free(id) => io.bufs.free(id),
            Output::AdminDone { id, result } => {
                self.answer(id, result);
            }
            Output::StateChanged => self.changed = true,
            Output::SizeChanged { volume, size } => {
                let target = self.volume_mut(volume).map(|v| v.target);
                if let Some(target) = target.and_then(|key| volumes.get_mut(key)) {
                    target.set_size(size);
                }
                self.changed = true;
            }
            Output::CallHandler { id, call } => {
                let status = self.status();
                io.calls.extend(self.calls.called((self.id, id), &status, &call));
            }
            Output::Log(level, text) => {
                let level = match level {
                    LogLevel::Info => Level::Info,
                    LogLevel::Warn => Level::Warn,
                    LogLevel::Error => Level::Error,
                };
                self.note(io.now(), level, format!("resource {}", self.name), text);
            }
        }
    }

    fn volume_mut(&mut self, nr: VolumeNr) -> Option<&mut HostVolume> {
        self.volumes.iter_mut().find(|v| v.nr == nr)
    }

    fn disk_of(&self, nr: VolumeNr) -> Option<Rc<Disk>> {
        self.volumes.iter().find(|v| v.nr == nr)?.disk.clone()
    }

    /// Where the user wants what is to be read.
    fn place(&self, volumes: &Volumes, nr: VolumeNr, op: &DiskOp) -> Option<Place> {
        let DiskOp::Read { request: Some(request), .. } = *op else { return None };
        let target = self.target(nr)?;
        volumes.get(target)?.place(request)
    }

    /// The digest that is asked for. All connections of a resource that name a `verify-alg` name the
    /// same; that is checked when they are configured.
    fn digest(&self, op: &DiskOp) -> Option<Algorithm> {
        let of_resync = |peer| Algorithm::named(&self.net.get(&peer)?.csums_alg);
        match *op {
            DiskOp::Digest { of: DigestOf::Verify, .. } => {
                self.net.values().find_map(|net| Algorithm::named(&net.verify_alg))
            }
            DiskOp::Digest { of: DigestOf::Resync(peer), .. }
            | DiskOp::ReadWithDigest { peer, .. } => of_resync(peer),
            _ => None,
        }
    }

    fn note(&mut self, now: Instant, level: Level, object: String, text: String) {
        log!(level, self.name, "{text}");
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back((now, object, text));
    }

    // ---- configuration -------------------------------------------------------------------

    /// Adds a volume that the core has accepted.
    pub(crate) fn add_volume(&mut self, volumes: &mut Volumes, nr: VolumeNr) -> TargetKey {
        let target = volumes.insert(self.id, nr);
        let counters = VolumeCounters::default();
        let volume = HostVolume { nr, target, disk: None, path: None, attaching: false, counters };
        self.volumes.push(volume);
        target
    }

    /// Removes a volume that the core has removed.
    pub(crate) fn remove_volume(&mut self, volumes: &mut Volumes, nr: VolumeNr) {
        self.waterfalls.forget(nr);
        self.volumes.retain(|volume| {
            if volume.nr == nr {
                volumes.remove(volume.target);
            }
            volume.nr != nr
        });
    }

    /// The target of a volume.
    pub(crate) fn target(&self, nr: VolumeNr) -> Option<TargetKey> {
        self.volumes.iter().find(|v| v.nr == nr).map(|v| v.target)
    }

    /// True if users of a volume from before the engine's start can go on with it.
    pub(crate) fn is_as_it_was(&self, nr: VolumeNr) -> bool {
        self.core.is_as_it_was(nr)
    }

    /// How often others may have changed a volume; `None` without a disk.
    pub(crate) fn changes_by_others(&self, nr: VolumeNr) -> Option<u64> {
        self.core.changes_by_others(nr)
    }

    /// Adds a peer: before the core hears of it, so that it can never miss its link.
    pub(crate) fn add_link(&mut self, node: NodeId, peer: &str, net: NetOptions) {
        let id = LinkId { resource: self.id, node };
        let label = format!("{}/{peer}", self.name);
        self.links.insert(node, Box::new(Link::new(id, label, peer, net.clone())));
        self.net.insert(node, net);
    }

    pub(crate) fn remove_link(&mut self, io: &mut Io, node: NodeId) {
        if let Some(mut link) = self.links.remove(&node) {
            link.close(io);
            link.drop_now(io);
        }
        self.net.remove(&node);
    }

    pub(crate) fn set_net(
        &mut self,
        io: &mut Io,
        volumes: &mut Volumes,
        node: NodeId,
        net: NetOptions,
    ) {
        if let Some(link) = self.links.get_mut(&node) {
            let event = link.set_net(io, net.clone());
            self.net.insert(node, net);
            self.link_event(io, volumes, node, event);
        }
    }

    pub(crate) fn set_paths(
        &mut self,
        io: &mut Io,
        volumes: &mut Volumes,
        node: NodeId,
        paths: Vec<PathConfig>,
    ) {
        if let Some(link) = self.links.get_mut(&node) {
            let event = link.set_paths(io, paths);
            self.link_event(io, volumes, node, event);
        }
        self.changed = true;
    }

    // ---- disks ---------------------------------------------------------------------------

    /// Claims a disk and begins to read its metadata; the core hears of it afterwards.
    pub(crate) fn attach(
        &mut self,
        io: &mut Io,
        nr: VolumeNr,
        backing: &BackingConfig,
        key: Option<Opened>,
        reply: Reply,
    ) {
        let refused = |detail: String| Err(Refusal::config(ConfigError::DiskConfigured, detail));
        let (resource, me) = (self.id, self.node_id);
        let Some(volume) = self.volume_mut(nr) else {
            let _ = reply.send(Err(ConfigError::MinorInvalid.into()));
            return;
        };
        if volume.attaching || volume.disk.is_some() {
            let detail = format!("volume {nr} has a disk, or is getting one; detach it first");
            let _ = reply.send(refused(detail));
            return;
        }
        self.last_admin += 1;
        let admin = self.last_admin;
        match AttachJob::open(resource, nr, me, admin, backing, key) {
            Ok(job) => {
                let volume = self.volume_mut(nr).expect("seen above");
                volume.attaching = true;
                volume.path = Some(backing.disk.clone());
                self.admin.insert(admin, reply);
                disk::start_attach(io, job);
            }
            Err(refusal) => _ = reply.send(Err(refusal)),
        }
    }

    /// The metadata of a disk was read, or not.
    fn attach_read(&mut self, io: &mut Io, volumes: &mut Volumes, job: AttachJob) {
        let (nr, id) = (job.volume, job.admin);
        let result = job.finish();
        let Some(volume) = self.volume_mut(nr) else {
            return self.answer(id, Err(ConfigError::MinorInvalid.into()));
        };
        volume.attaching = false;
        let target = volume.target;
        match result {
            Ok((disk, image)) => {
                if let Some(target) = volumes.get_mut(target) {
                    target.set_block_size(disk.limits.logical_block_size);
                }
                self.volume_mut(nr).expect("seen above").disk = Some(disk);
                let command = AdminCommand::Attach { volume: nr, image: Box::new(image) };
                self.feed(io, volumes, Input::Admin { id, command });
                // Refused at once: the core never had it.
                if !self.admin.contains_key(&id) && !self.core_has_disk(nr) {
                    let volume = self.volume_mut(nr).expect("seen above");
                    (volume.disk, volume.path) = (None, None);
                }
            }
            Err(refusal) => {
                volume.path = None;
                self.answer(id, Err(refusal));
            }
        }
    }

    fn core_has_disk(&self, nr: VolumeNr) -> bool {
        let status = self.core.status();
        let device = status.devices.iter().find(|device| device.volume == nr);
        device.is_some_and(|device| device.disk_state > vocab::DiskState::Diskless)
    }

    // ---- what users see ------------------------------------------------------------------

    /// The states, with what only the driver knows.
    pub(crate) fn status(&self) -> ResourceStatus {
        let mut status = self.core.status();
        for device in &mut status.devices {
            let volume = self.volumes.iter().find(|v| v.nr == device.volume);
            device.backing_dev = volume.and_then(|v| v.path.clone());
        }
        for connection in &mut status.connections {
            let Some(link) = self.links.get(&connection.peer_node_id) else { continue };
            connection.tls = Some(link.is_encrypted());
            connection.congested |= link.queued_bytes() > CONGESTED;
            connection.paths = link
                .paths()
                .map(|(path, established)| PathStatus {
                    this_host: path.local,
                    remote_host: path.remote,
                    established,
                })
                .collect();
        }
        status
    }

    /// Every volume, and whether it is being resynced.
    pub(crate) fn resyncing(&self) -> impl Iterator<Item = (Minor, bool)> + '_ {
        self.core.resyncing()
    }

    /// Every volume, and whether its resyncs wait for another volume.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (VolumeNr, Minor, bool)> + '_ {
        self.core.waits()
    }

    /// The generation identifiers of a volume's disk towards a peer.
    pub(crate) fn identifiers(&self, nr: VolumeNr, peer: NodeId) -> Option<String> {
        self.core.identifiers(nr, peer)
    }

    /// Counters and latencies.
    pub(crate) fn statistics(&self, now: Instant) -> ResourceStatistics {
        let status = self.core.status();
        let volumes = status.devices.iter().filter_map(|device| {
            let volume = self.volumes.iter().find(|v| v.nr == device.volume)?;
            Some(volume.counters.statistics(volume.nr, device.minor))
        });
        let connections = status.connections.iter().map(|connection| {
            let link = self.links.get(&connection.peer_node_id);
            ConnectionStatistics {
                peer_node_id: connection.peer_node_id,
                name: connection.name.clone(),
                queued_bytes: link.map_or(0, |link| link.queued_bytes() as u64),
                round_trip: link.and_then(|link| link.round_trip()),
            }
        });
        ResourceStatistics {
            name: self.name.clone(),
            taken_ns: now.0,
            volumes: volumes.collect(),
            connections: connections.collect(),
        }
    }

    /// What happened lately, and the core's own view of what is wrong.
    pub(crate) fn why(&self, now: Instant) -> Vec<Note> {
        let past = self.notes.iter().map(|(at, object, text)| Note {
            age_seconds: now.since(*at).as_secs(),
            object: object.clone(),
            text: text.clone(),
        });
        let object = format!("resource {}", self.name);
        let present = self.core.explain();
        let present =
            present.into_iter().map(|text| Note { age_seconds: 0, object: object.clone(), text });
        let links = self.links.values().filter_map(|link| link.trouble());
        let unmade = links.map(|text| Note {
            age_seconds: 0,
            object: object.clone(),
            text: text.to_owned(),
        });
        past.chain(present).chain(unmade).collect()
    }

    /// The connection to a peer.
    pub(crate) fn link(&self, node: NodeId) -> Option<&Link> {
        self.links.get(&node).map(|link| &**link)
    }

    /// Openers of all volumes.
    pub(crate) fn openers(&self, volumes: &mut Volumes) -> usize {
        self.volumes.iter().filter_map(|v| volumes.get_mut(v.target).map(|t| t.openers())).sum()
    }
}

/// A line of the trace from which a run of the core can be retold: what went in, what came out.
fn trace(name: &str, direction: &str, what: &dyn fmt::Display) {
    log!(Level::Trace, name, "core {direction} {what}");
}

/// An input or output without the bytes of metadata blocks.
struct Brief<'a, T>(&'a T);

impl fmt::Display for Brief<'_, Input> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Input::Admin { id, command: AdminCommand::Attach { volume, image } } => {
                let blocks = image.bitmap.len();
                write!(f, "Admin {{ id: {id}, Attach {volume}, {blocks} blocks of bitmap }}")
            }
            input => write!(f, "{input:?}"),
        }
    }
}

impl fmt::Display for Brief<'_, Output> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Output::MetaWrite { volume, op, write } => {
                let plain: Vec<_> = write.plain.iter().map(|block| block.place).collect();
                let commit = write.commit.as_ref().map(|block| block.place);
                write!(f, "MetaWrite {{ {volume}, {op:?}, plain: {plain:?}, commit: {commit:?} }}")
            }
            output => write!(f, "{output:?}"),
        }
    }
}
