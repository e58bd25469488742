//! The local disk of a volume: data operations and metadata writes of the core, carried out.
//!
//! A job lives in [`Jobs`] from its submission until its last ring operation has completed. It
//! holds what it needs of the disk, so a disk that the core gives up meanwhile stays open until
//! the jobs on it have ended.
//!
//! On an encrypted disk everything is encrypted on its way out, into memory of its own, and decrypted where it was
//! read to, before anybody sees it: above this file nothing is known of that.
//!
//! What a thin pool has no space for has not failed: it waits until the pool has grown, for a disk
//! that is given up for that has to be copied anew. Only reads and flushes need no space.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use codec::disk::{BLOCK_SIZE, Layout, MdParams};
use codec::wire::Digest;
use crypt::luks::Opened;
use crypt::xts::SectorCipher;
use replication::io::{
    DiskData, DiskError, DiskLimits, DiskMeasure, DiskOp, MetaBlock, MetaPlace, MetaWrite,
    MovedMetadata, OpId,
};
use runtime::{AllocError, Buf, Completed, DiskFile, Errno, Extent, ExtentKind, Payload, Place};
use vocab::{SECTOR_SIZE, Sector, SectorRange, VolumeNr};

use super::attach::AttachJob;
use super::bufs::Block;
use super::io::Io;
use super::token;
use crate::digest::Algorithm;

/// Bytes of one write of bitmap blocks.
const RUN_MAX: usize = 256 << 10;
/// Writes of bitmap blocks in flight for one metadata write.
const RUNS_IN_FLIGHT: usize = 16;

/// Bytes of zeroes written to an encrypted disk at a time.
const ZEROES_MAX: usize = 1 << 20;

/// How long an operation waits that found the disk full.
const FULL: Duration = Duration::from_secs(1);

/// A disk in use.
pub(crate) struct Disk {
    pub(crate) data: DiskFile,
    /// The metadata device; `None` if it is the data device.
    pub(crate) meta: Option<DiskFile>,
    /// Everything on it is encrypted; its metadata are on it then, too.
    pub(crate) crypt: Option<SectorCipher>,
    /// What that was made of.
    pub(crate) key: Option<Opened>,
    pub(crate) layout: Cell<Layout>,
    /// Where the metadata goes once the core says so.
    pub(crate) next_layout: Cell<Option<Layout>>,
    pub(crate) params: MdParams,
    pub(crate) limits: DiskLimits,
}

impl Disk {
    /// The device that holds the metadata.
    pub(crate) fn meta(&self) -> &DiskFile {
        self.meta.as_ref().unwrap_or(&self.data)
    }

    fn place(&self, place: MetaPlace) -> u64 {
        let layout = self.layout.get();
        match place {
            MetaPlace::Superblock => layout.superblock,
            MetaPlace::ActivityLog(index) => layout.al_block(index),
            MetaPlace::Bitmap(index) => layout.bitmap_block(index),
        }
    }

    /// What the devices offer now (metadata §2). Where metadata is on a device with another end, it
    /// stays until [`Disk::move_metadata`].
    pub(crate) fn measure(&self) -> Result<DiskMeasure, String> {
        let size = |device: &DiskFile| {
            let failed =
                |e| format!("the size of {} can not be found: {e}", device.path().display());
            device.refresh_size().map_err(failed)
        };
        let data = size(&self.data)?;
        let device = self.meta.as_ref().map_or(Ok(data), size)?;
        let old = self.layout.get();
        let new = old.resized(device, &self.params).map_err(|e| {
            format!("{} has no room for its metadata any more: {e}", self.meta().path().display())
        })?;
        let capacity = new.usable_on(data.sectors_floor());
        if new.superblock == old.superblock {
            self.layout.set(new);
            return Ok(DiskMeasure { capacity, moved: None });
        }
        self.next_layout.set(Some(new));
        let (from, to) = (old.start() / SECTOR_SIZE, old.superblock + BLOCK_SIZE as u64);
        let moved = MovedMetadata {
            md_size: new.md_size,
            al_offset: new.al_offset,
            bm_offset: new.bm_offset,
            left: SectorRange::new(from, to / SECTOR_SIZE - from),
        };
        Ok(DiskMeasure { capacity, moved: Some(moved) })
    }

    /// From here on metadata goes where it belongs by the last [`Disk::measure`].
    pub(crate) fn move_metadata(&self) {
        if let Some(next) = self.next_layout.take() {
            self.layout.set(next);
        }
    }
}

/// Whose job it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) resource: u16,
    pub(crate) volume: VolumeNr,
    pub(crate) op: OpId,
}

/// What came of a job.
pub(crate) enum Finished {
    /// Tell the core, as `DiskDone`.
    Disk(Owner, Result<DiskData, DiskError>),
    /// Tell the core, as `MetaDone`.
    Meta(Owner, Result<(), DiskError>),
    /// A disk to be attached was read, or not.
    Attach(Box<AttachJob>),
    /// A disk in use was looked at. Tell the core, as `DiskMeasured`.
    Measured(u16, VolumeNr, Result<DiskMeasure, String>),
    /// What a client has asked about a range.
    Looked(Look, Box<[Extent]>),
}

/// A client's wish to know something about the parts of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    pub(crate) resource: u16,
    pub(crate) volume: VolumeNr,
    /// The volume's number of the request.
    pub(crate) id: u64,
    pub(crate) range: SectorRange,
}

/// Jobs on disks, by token.
#[derive(Default)]
pub(crate) struct Jobs {
    slots: Vec<Option<Job>>,
    free: Vec<u32>,
    /// Jobs that wait for memory.
    starved: VecDeque<u32>,
    /// Jobs that wait for space on their disk.
    full: Vec<u32>,
    /// Volumes with such jobs.
    held: BTreeSet<(u16, VolumeNr)>,
    /// Volumes that are full from now on, or are not any more.
    pub(crate) full_news: Vec<(Owner, bool)>,
    /// Jobs that ended without an operation.
    pub(crate) finished: Vec<Finished>,
}

/// Jobs in flight, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct InFlight {
    pub(crate) reads: u32,
    pub(crate) writes: u32,
    /// Flushes, discards, what waits for memory.
    pub(crate) others: u32,
    pub(crate) metadata: u32,
}

enum Job {
    Data(Owner, DataJob),
    /// Zeroes of an encrypted disk.
    Zero(Owner, Box<ZeroJob>),
    Meta(Owner, Box<MetaJob>),
    Attach(Box<AttachJob>),
    /// The disk is not let go of meanwhile.
    Look(Look, Rc<Disk>),
}

/// What is made of what was read.
#[derive(Clone, Copy)]
enum Wants {
    Data {
        /// Say whether it is all zero.
        zeroes: bool,
    },
    /// Empty if there is no algorithm any more.
    Digest(Option<Algorithm>),
    /// Data and digest.
    Both(Option<Algorithm>),
}

enum DataJob {
    /// Waits for memory.
    Unstarted(Rc<Disk>, DiskOp, Option<Algorithm>),
    Read {
        disk: Rc<Disk>,
        start: Sector,
        len: usize,
        wants: Wants,
    },
    /// A read into a request's own memory.
    Placed(Rc<Disk>, DiskOp),
    Write(Rc<Disk>, DiskOp),
    /// Discard, zeroes, flush.
    Plain(Rc<Disk>, DiskOp),
}

impl Job {
    /// Whose it is, if it is a volume's.
    fn owner(&self) -> Option<Owner> {
        match self {
            Job::Data(owner, _) | Job::Zero(owner, _) | Job::Meta(owner, _) => Some(*owner),
            Job::Attach(_) | Job::Look(..) => None,
        }
    }

    /// The disk that it holds.
    fn disk(&self) -> Option<&Rc<Disk>> {
        match self {
            Job::Data(
                _,
                DataJob::Unstarted(disk, ..)
                | DataJob::Read { disk, .. }
                | DataJob::Placed(disk, _)
                | DataJob::Write(disk, _)
                | DataJob::Plain(disk, _),
            ) => Some(disk),
            Job::Zero(_, job) => Some(&job.disk),
            Job::Meta(_, job) => Some(&job.disk),
            Job::Look(_, disk) => Some(disk),
            Job::Attach(_) => None,
        }
    }
}

impl Jobs {
    /// Nothing is under way on any disk.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len() && self.finished.is_empty() && self.full_news.is_empty()
    }

    fn insert(&mut self, job: Job) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[index as usize] = Some(job);
        index
    }

    /// Jobs of a volume that are in its disk now, or wait for memory.
    pub(crate) fn in_flight(&self, resource: u16, volume: VolumeNr) -> InFlight {
        let mut count = InFlight::default();
        for job in self.slots.iter().flatten() {
            let (owner, counter) = match job {
                Job::Data(owner, DataJob::Read { .. } | DataJob::Placed(..)) => {
                    (owner, &mut count.reads)
                }
                Job::Data(owner, DataJob::Write(..)) => (owner, &mut count.writes),
                Job::Data(owner, DataJob::Plain(..) | DataJob::Unstarted(..)) => {
                    (owner, &mut count.others)
                }
                Job::Zero(owner, _) => (owner, &mut count.others),
                Job::Meta(owner, _) => (owner, &mut count.metadata),
                Job::Attach(_) | Job::Look(..) => continue,
            };
            *counter += u32::from((owner.resource, owner.volume) == (resource, volume));
        }
        count
    }

    fn remove(&mut self, index: u32) -> Job {
        let job = self.slots[index as usize].take().expect("a job ends once");
        self.free.push(index);
        job
    }
}

/// The core's view of an error of the kernel. `discard` says that the operation is one a device
/// may not support.
fn disk_error(errno: Errno, optional: bool) -> DiskError {
    match errno {
        Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::ENOSYS if optional => DiskError::Unsupported,
        Errno::ENOSPC => DiskError::NoSpace,
        _ => DiskError::Io,
    }
}

/// Starts a data operation. `digest` is the algorithm of those that give one; `place` is where a read is
/// wanted, by a request that the core has not answered.
pub(crate) fn start(
    io: &mut Io,
    owner: Owner,
    disk: &Rc<Disk>,
    op: DiskOp,
    digest: Option<Algorithm>,
    place: Option<Place>,
) {
    if let (DiskOp::Read { range, .. }, Some(place)) = (op, place)
        // What is encrypted has to be seen, and what lies in memory is faster copied than asked for.
        && disk.crypt.is_none()
        && !disk.data.is_in_memory()
    {
        // Now and once: by the time of another try the request may be another.
        let index = io.jobs.insert(Job::Data(owner, DataJob::Placed(disk.clone(), op)));
        let (token, len) = (token::disk(index), range.len.bytes().0 as u32);
        disk.data.read_placed(&mut io.ring, token, range.start, len, place);
        return;
    }
    if let (DiskOp::Zeroes { range, .. }, true) = (op, disk.crypt.is_some()) {
        let job = ZeroJob { disk: disk.clone(), rest: range, in_flight: 0, failed: None };
        let index = io.jobs.insert(Job::Zero(owner, Box::new(job)));
        return go_on(io, index, None);
    }
    let job = DataJob::Unstarted(disk.clone(), op, digest);
    let index = io.jobs.insert(Job::Data(owner, job));
    start_data(io, index);
}

/// Submits a data operation, or puts it off until there is memory for it.
fn start_data(io: &mut Io, index: u32) {
    let Some(Job::Data(_, DataJob::Unstarted(disk, op, digest))) = &io.jobs.slots[index as usize]
    else {
        panic!("only a data operation that was not started is");
    };
    let (disk, op, digest) = (disk.clone(), *op, *digest);
    let (data, token) = (&disk.data, token::disk(index));
    let started = match op {
        DiskOp::Read { range, .. }
        | DiskOp::ReadWithDigest { range, .. }
        | DiskOp::Digest { range, .. } => {
            let len = range.len.bytes().0 as usize;
            match io.pool.alloc(len) {
                Ok(buf) => {
                    data.read(&mut io.ring, token, range.start, buf);
                    let zeroes = matches!(op, DiskOp::Read { detect_zeroes: true, .. });
                    let wants = match op {
                        DiskOp::Digest { .. } => Wants::Digest(digest),
                        DiskOp::ReadWithDigest { .. } => Wants::Both(digest),
                        _ => Wants::Data { zeroes },
                    };
                    DataJob::Read { disk: disk.clone(), start: range.start, len, wants }
                }
                Err(AllocError::Exhausted) => {
                    io.jobs.starved.push_back(index);
                    io.starved = true;
                    return;
                }
                Err(AllocError::TooLarge) => {
                    panic!("the core splits reads at 1 MiB, this one is {range}")
                }
            }
        }
        DiskOp::Write { range, buf, fua } => {
            let mut buf = io.bufs.share(buf);
            if let Some(crypt) = &disk.crypt {
                // What is in memory is sent to peers, too, and stays as it is.
                match encrypted(io, crypt, range.start, &buf) {
                    Ok(sealed) => buf = sealed,
                    Err(NotEncrypted::NoMemory) => {
                        io.jobs.starved.push_back(index);
                        io.starved = true;
                        return;
                    }
                    Err(NotEncrypted::Misaligned) => return fail(io, index, DiskError::Io),
                }
            }
            data.write(&mut io.ring, token, range.start, buf, fua);
            DataJob::Write(disk.clone(), op)
        }
        // It would read as noise afterwards, another on every node. Refused everywhere, the old data stay.
        DiskOp::Discard { .. } if disk.crypt.is_some() => {
            return fail(io, index, DiskError::Unsupported);
        }
        DiskOp::Discard { range } => {
            data.discard(&mut io.ring, token, range);
            DataJob::Plain(disk.clone(), op)
        }
        DiskOp::Zeroes { range, unmap } => {
            data.write_zeroes(&mut io.ring, token, range, !unmap);
            DataJob::Plain(disk.clone(), op)
        }
        DiskOp::Flush => {
            data.flush(&mut io.ring, token);
            DataJob::Plain(disk.clone(), op)
        }
    };
    if let Some(Job::Data(_, job)) = &mut io.jobs.slots[index as usize] {
        *job = started;
    }
}

/// Ends a data operation that was not started.
fn fail(io: &mut Io, index: u32, error: DiskError) {
    let owner = io.jobs.remove(index).owner().expect("a data operation is a volume's");
    io.jobs.finished.push(Finished::Disk(owner, Err(error)));
}

/// Why data were not encrypted.
enum NotEncrypted {
    NoMemory,
    /// They are not whole sectors of the disk.
    Misaligned,
}

/// Data as they are on an encrypted disk, in memory of their own.
fn encrypted(
    io: &Io,
    crypt: &SectorCipher,
    start: Sector,
    data: &[u8],
) -> Result<Buf, NotEncrypted> {
    let sector = crypt.sector_size() as usize;
    if !data.len().is_multiple_of(sector) || !start.0.is_multiple_of(sector as u64 / SECTOR_SIZE) {
        return Err(NotEncrypted::Misaligned);
    }
    let mut buf = io.crypt_pool.copy_from(data).map_err(|_| NotEncrypted::NoMemory)?;
    crypt.encrypt(start.0, buf.as_mut_slice().expect("a new buffer is unique"));
    Ok(buf)
}

/// Starts a metadata write.
pub(crate) fn start_meta(io: &mut Io, owner: Owner, disk: &Rc<Disk>, write: MetaWrite) {
    let job = MetaJob::new(disk.clone(), write);
    let index = io.jobs.insert(Job::Meta(owner, Box::new(job)));
    go_on(io, index, None);
}

/// Starts reading a disk that is to be attached.
pub(crate) fn start_attach(io: &mut Io, job: AttachJob) {
    let index = io.jobs.insert(Job::Attach(Box::new(job)));
    go_on(io, index, None);
}

/// Looks at a disk for holes.
pub(crate) fn look(io: &mut Io, look: Look, disk: &Rc<Disk>) {
    let index = io.jobs.insert(Job::Look(look, disk.clone()));
    disk.data.holes(&mut io.ring, token::disk(index), look.range);
}

/// A ring operation of a job has completed.
pub(crate) fn completed(io: &mut Io, index: u32, done: Completed) -> Option<Finished> {
    match &io.jobs.slots[index as usize] {
        Some(Job::Data(..)) => {
            let Job::Data(owner, job) = io.jobs.remove(index) else { unreachable!("seen above") };
            if let (DataJob::Write(disk, op) | DataJob::Plain(disk, op), Err(Errno::ENOSPC)) =
                (&job, &done.result)
            {
                let again = DataJob::Unstarted(disk.clone(), *op, None);
                let index = io.jobs.insert(Job::Data(owner, again));
                hold(io, index, owner);
                return None;
            }
            let job = match job {
                // Whatever the disk has against that memory, it may read into ours.
                DataJob::Placed(disk, op) if !is_whole(&op, &done) => {
                    let again = DataJob::Unstarted(disk, op, None);
                    let index = io.jobs.insert(Job::Data(owner, again));
                    start_data(io, index);
                    return None;
                }
                job => job,
            };
            let result = data_result(io, job, done);
            if result.is_ok() {
                has_space(io, owner);
            }
            Some(Finished::Disk(owner, result))
        }
        Some(Job::Look(look, _)) => {
            let look = *look;
            io.jobs.remove(index);
            let extents = match done.payload {
                Payload::Extents(extents) if !extents.is_empty() => extents,
                // As far as anybody knows all is data.
                _ => Extent { len: look.range.len.bytes().0, kind: ExtentKind::Plain }.alone(),
            };
            Some(Finished::Looked(look, extents))
        }
        Some(_) => {
            go_on(io, index, Some(done));
            io.jobs.finished.pop()
        }
        None => panic!("a job ends with its last operation"),
    }
}

/// A read has given all that was asked for.
fn is_whole(op: &DiskOp, done: &Completed) -> bool {
    let DiskOp::Read { range, .. } = op else { return false };
    done.result.is_ok_and(|len| u64::from(len) == range.len.bytes().0)
}

fn data_result(io: &mut Io, job: DataJob, done: Completed) -> Result<DiskData, DiskError> {
    match job {
        DataJob::Unstarted(..) => panic!("an operation completes after it was started"),
        DataJob::Placed(..) => {
            Ok(DiskData::Read { buf: io.bufs.insert_block(Block::Placed), all_zero: false })
        }
        DataJob::Plain(..) => match done.result {
            Ok(_) => Ok(DiskData::None),
            Err(errno) => Err(disk_error(errno, true)),
        },
        DataJob::Write(..) => match done.result {
            Ok(_) => Ok(DiskData::None),
            Err(errno) => Err(disk_error(errno, false)),
        },
        DataJob::Read { disk, start, len, wants } => {
            let read = done.result.map_err(|errno| disk_error(errno, false))?;
            let Payload::Buf(mut buf) = done.payload else {
                panic!("a read gives its buffer back")
            };
            if read as usize != len {
                return Err(DiskError::Io);
            }
            if let Some(crypt) = &disk.crypt {
                let bytes = buf.as_mut_slice().expect("a buffer that was read into is unique");
                crypt.decrypt(start.0, bytes);
            }
            let of = |algorithm: Option<Algorithm>| {
                algorithm.map_or(Digest::NONE, |algorithm| algorithm.of(&buf))
            };
            Ok(match wants {
                Wants::Digest(algorithm) => DiskData::Digest(of(algorithm)),
                Wants::Both(algorithm) => {
                    let digest = of(algorithm);
                    DiskData::ReadWithDigest { buf: io.bufs.insert(buf), digest }
                }
                Wants::Data { zeroes } => {
                    let all_zero = zeroes && is_zero(&buf);
                    DiskData::Read { buf: io.bufs.insert(buf), all_zero }
                }
            })
        }
    }
}

/// Lets jobs that waited for memory try again.
pub(crate) fn retry_starved(io: &mut Io) {
    for _ in 0..io.jobs.starved.len() {
        let Some(index) = io.jobs.starved.pop_front() else { return };
        match io.jobs.slots[index as usize] {
            Some(Job::Data(..)) => start_data(io, index),
            Some(_) => go_on(io, index, None),
            None => {}
        }
    }
}

/// An operation waits for space.
fn hold(io: &mut Io, index: u32, owner: Owner) {
    io.jobs.full.push(index);
    if io.jobs.held.insert((owner.resource, owner.volume)) {
        io.jobs.full_news.push((owner, true));
    }
    let until = io.now() + FULL;
    io.full_until.get_or_insert(until);
}

/// An operation has found space, or needed none.
fn has_space(io: &mut Io, owner: Owner) {
    let key = (owner.resource, owner.volume);
    let waits = |index: &u32| {
        let job = io.jobs.slots[*index as usize].as_ref().and_then(Job::owner);
        job.is_some_and(|other| (other.resource, other.volume) == key)
    };
    if io.jobs.held.contains(&key) && !io.jobs.full.iter().any(waits) {
        io.jobs.held.remove(&key);
        io.jobs.full_news.push((owner, false));
    }
}

/// Lets jobs that waited for space try again, or fail if their disk was given up meanwhile.
pub(crate) fn retry_full(io: &mut Io) {
    io.full_until = None;
    for index in std::mem::take(&mut io.jobs.full) {
        let Some(job) = &io.jobs.slots[index as usize] else { continue };
        let (Some(owner), Some(disk)) = (job.owner(), job.disk()) else { continue };
        let same = |job: &&Job| job.disk().is_some_and(|other| Rc::ptr_eq(other, disk));
        let held = io.jobs.slots.iter().flatten().filter(same).count();
        let given_up = Rc::strong_count(disk) <= held;
        match (given_up, job) {
            (false, Job::Data(..)) => start_data(io, index),
            (false, _) => go_on(io, index, None),
            (true, job) => {
                let error = DiskError::NoSpace;
                let finished = match job {
                    Job::Data(..) | Job::Zero(..) => Finished::Disk(owner, Err(error)),
                    Job::Meta(..) | Job::Attach(_) | Job::Look(..) => {
                        Finished::Meta(owner, Err(error))
                    }
                };
                io.jobs.remove(index);
                io.jobs.finished.push(finished);
            }
        }
    }
}

/// What a job of several steps wants next.
pub(crate) enum Step {
    /// Its operations are under way.
    Running,
    /// It needs memory first.
    Starved,
    /// It needs space on the disk first.
    Full,
    /// It has ended.
    Ended,
}

/// Lets a job of several steps go on.
fn go_on(io: &mut Io, index: u32, done: Option<Completed>) {
    let mut job = io.jobs.slots[index as usize].take().expect("seen by the caller");
    let step = match &mut job {
        Job::Zero(_, job) => job.go_on(io, index, done),
        Job::Meta(_, job) => job.go_on(io, index, done),
        Job::Attach(job) => job.go_on(io, index, done),
        Job::Data(..) | Job::Look(..) => panic!("these operations have one step"),
    };
    io.jobs.slots[index as usize] = Some(job);
    match step {
        Step::Running => {}
        Step::Starved => {
            io.jobs.starved.push_back(index);
            io.starved = true;
        }
        Step::Full => {
            if let Some(owner) = io.jobs.slots[index as usize].as_ref().and_then(Job::owner) {
                hold(io, index, owner);
            }
        }
        Step::Ended => {
            let finished = match io.jobs.remove(index) {
                Job::Zero(owner, job) => {
                    if job.failed.is_none() {
                        has_space(io, owner);
                    }
                    Finished::Disk(owner, job.failed.map_or(Ok(DiskData::None), Err))
                }
                Job::Meta(owner, job) => {
                    if job.failed.is_none() {
                        has_space(io, owner);
                    }
                    Finished::Meta(owner, job.failed.map_or(Ok(()), Err))
                }
                Job::Attach(job) => Finished::Attach(job),
                Job::Data(..) | Job::Look(..) => unreachable!("seen above"),
            };
            io.jobs.finished.push(finished);
        }
    }
}

/// True if all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Zeroes of an encrypted disk: they are written, one piece after the other.
struct ZeroJob {
    disk: Rc<Disk>,
    /// What is not zero yet; the piece that is under way is in it.
    rest: SectorRange,
    /// Sectors of that piece.
    in_flight: u64,
    failed: Option<DiskError>,
}

impl ZeroJob {
    fn go_on(&mut self, io: &mut Io, index: u32, done: Option<Completed>) -> Step {
        if let Some(done) = done {
            let written = std::mem::take(&mut self.in_flight);
            match done.result {
                Ok(_) => {
                    let (start, left) = (self.rest.start.0 + written, self.rest.len.0 - written);
                    self.rest = SectorRange::new(start, left);
                }
                Err(Errno::ENOSPC) => return Step::Full,
                Err(errno) => self.failed = Some(disk_error(errno, false)),
            }
        }
        let len = (self.rest.len.bytes().0 as usize).min(ZEROES_MAX);
        if self.failed.is_some() || len == 0 {
            return Step::Ended;
        }
        let Ok(mut buf) = io.crypt_pool.alloc_zeroed(len) else { return Step::Starved };
        let crypt = self.disk.crypt.as_ref().expect("only encrypted disks are zeroed so");
        let (sector, start) = (crypt.sector_size() as usize, self.rest.start);
        if !len.is_multiple_of(sector) || !start.0.is_multiple_of(sector as u64 / SECTOR_SIZE) {
            self.failed = Some(DiskError::Io);
            return Step::Ended;
        }
        crypt.encrypt(start.0, buf.as_mut_slice().expect("a new buffer is unique"));
        self.in_flight = len as u64 / SECTOR_SIZE;
        self.disk.data.write(&mut io.ring, token::disk(index), start, buf, false);
        Step::Running
    }
}

/// A metadata write in the order of [`MetaWrite`].
struct MetaJob {
    disk: Rc<Disk>,
    stage: Stage,
    /// Adjacent plain blocks as single writes, by byte position.
    runs: Vec<(u64, Vec<MetaBlock>)>,
    /// The first run that is not under way. One that found no space begins anew.
    next: usize,
    full: bool,
    commit: Option<MetaBlock>,
    flush: bool,
    in_flight: usize,
    failed: Option<DiskError>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    FlushData,
    Plain,
    FlushAll,
    Commit,
    Done,
}

impl MetaJob {
    fn new(disk: Rc<Disk>, write: MetaWrite) -> MetaJob {
        let MetaWrite { mut plain, commit, flush } = write;
        plain.sort_by_key(|block| disk.place(block.place));
        let mut runs: Vec<(u64, Vec<MetaBlock>)> = Vec::new();
        for block in plain {
            let at = disk.place(block.place);
            match runs.last_mut() {
                Some((start, run))
                    if *start + (run.len() * BLOCK_SIZE) as u64 == at
                        && run.len() * BLOCK_SIZE < RUN_MAX =>
                {
                    run.push(block);
                }
                _ => runs.push((at, vec![block])),
            }
        }
        let stage = Stage::FlushData;
        let (next, full, in_flight, failed) = (0, false, 0, None);
        MetaJob { disk, stage, runs, next, full, commit, flush, in_flight, failed }.begin()
    }

    fn begin(mut self) -> MetaJob {
        if !self.flush || self.runs.is_empty() {
            self.stage = Stage::Plain;
        }
        self
    }

    fn go_on(&mut self, io: &mut Io, index: u32, done: Option<Completed>) -> Step {
        if let Some(done) = done {
            self.in_flight -= 1;
            match done.result {
                Ok(_) => {}
                Err(Errno::ENOSPC) => self.full = true,
                Err(errno) => self.failed = Some(disk_error(errno, false)),
            }
            if self.stage == Stage::FlushData && self.in_flight == 0 {
                self.stage = Stage::Plain;
            }
        } else if self.stage == Stage::FlushData {
            self.disk.data.flush(&mut io.ring, token::disk(index));
            self.in_flight = 1;
            return Step::Running;
        }
        loop {
            if self.failed.is_some() {
                // What was meant to rely on the failed step must not be written.
                self.stage = Stage::Done;
            } else if self.full {
                if self.in_flight > 0 {
                    return Step::Running;
                }
                (self.full, self.next, self.stage) = (false, 0, Stage::Plain);
                return Step::Full;
            }
            match self.stage {
                Stage::Plain => {
                    while self.in_flight < RUNS_IN_FLIGHT
                        && let Some((at, run)) = self.runs.get(self.next)
                    {
                        let blocks = run.iter().map(|block| &block.bytes[..]);
                        let Some(buf) = gather(io, run.len() * BLOCK_SIZE, blocks) else {
                            return self.starved();
                        };
                        self.write(io, index, *at, buf, false);
                        self.next += 1;
                        self.in_flight += 1;
                    }
                    if self.in_flight > 0 {
                        return Step::Running;
                    }
                    self.stage = Stage::FlushAll;
                    if self.flush && self.commit.is_some() {
                        self.disk.data.flush(&mut io.ring, token::disk(index));
                        self.in_flight += 1;
                        if let Some(meta) = &self.disk.meta {
                            meta.flush(&mut io.ring, token::disk(index));
                            self.in_flight += 1;
                        }
                    }
                }
                Stage::FlushAll if self.in_flight == 0 => {
                    let Some(commit) = &self.commit else {
                        self.stage = Stage::Done;
                        continue;
                    };
                    let Some(buf) = gather(io, BLOCK_SIZE, [&commit.bytes[..]].into_iter()) else {
                        return self.starved();
                    };
                    let at = self.disk.place(commit.place);
                    self.write(io, index, at, buf, self.flush);
                    self.in_flight += 1;
                    self.stage = Stage::Commit;
                }
                Stage::Commit if self.in_flight == 0 => self.stage = Stage::Done,
                Stage::Done if self.in_flight == 0 => return Step::Ended,
                _ => return Step::Running,
            }
        }
    }

    fn starved(&self) -> Step {
        // A completion of its own lets it go on, too.
        if self.in_flight > 0 { Step::Running } else { Step::Starved }
    }

    fn write(&self, io: &mut Io, index: u32, at: u64, mut buf: Buf, durable: bool) {
        let sector = Sector(at / SECTOR_SIZE);
        if let Some(crypt) = &self.disk.crypt {
            crypt.encrypt(sector.0, buf.as_mut_slice().expect("a new buffer is unique"));
        }
        self.disk.meta().write(&mut io.ring, token::disk(index), sector, buf, durable);
    }
}

/// Blocks as one buffer; `None` if there is no memory.
fn gather<'a>(io: &Io, len: usize, blocks: impl Iterator<Item = &'a [u8]>) -> Option<Buf> {
    let mut buf = io.meta_pool.alloc(len).ok()?;
    let bytes = buf.as_mut_slice().expect("a new buffer is unique");
    for (to, from) in bytes.chunks_mut(BLOCK_SIZE).zip(blocks) {
        to.copy_from_slice(from);
    }
    Some(buf)
}
