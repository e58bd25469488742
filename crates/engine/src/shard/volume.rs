//! Volumes as block devices: what front ends ask is queued for the core, what the core answers
//! is queued for them.
//!
//! A volume here knows only its openers and requests. What may be done with it is the core's
//! decision.

mod standby;

use std::collections::BTreeMap;

use frontend::nbd::server::{TargetKey, Targets};
use replication::io::{BufId, IoError, OpenError, Request as CoreRequest, RequestOp};
use runtime::{
    Aspect, BUF_MAX, Buf, Completion, Errno, Extent, Intent, Op, OpenerId, Place, Request, Target,
    TargetInfo,
};
use vocab::{Bytes, SECTOR_SIZE, SectorRange, Sectors, VolumeNr};

use super::bufs::{Block, Bufs};
pub(crate) use standby::Access;
use standby::{Standby, Taken};

/// Largest discard or zeroing handed to the core as one: small enough for any peer (wire §2).
const RANGE_MAX: u64 = 4 << 20;

/// Something a volume wants of its core.
pub(crate) enum Wish {
    /// `Input::Open`.
    Open { opener: u64, write: bool, patient: bool },
    /// `Input::Close`.
    Close { opener: u64 },
    /// `Input::Request`; the buffer of a write comes along.
    Request { id: u64, op: WishOp, range: SectorRange },
    /// What holds for the parts of that.
    Look { id: u64, aspect: Aspect, range: SectorRange },
}

/// As `RequestOp`, before the buffer has its number.
pub(crate) enum WishOp {
    Read,
    Write { buf: Buf, fua: bool },
    Discard,
    Zeroes { unmap: bool },
    Flush,
}

impl Wish {
    /// The request for the core.
    pub(crate) fn request(
        volume: VolumeNr,
        id: u64,
        op: WishOp,
        range: SectorRange,
        bufs: &mut Bufs,
    ) -> CoreRequest {
        let op = match op {
            WishOp::Read => RequestOp::Read,
            WishOp::Write { buf, fua } => RequestOp::Write { buf: bufs.insert(buf), fua },
            WishOp::Discard => RequestOp::Discard,
            WishOp::Zeroes { unmap } => RequestOp::Zeroes { unmap },
            WishOp::Flush => RequestOp::Flush,
        };
        CoreRequest { volume, id, op, range }
    }
}

/// The volumes of a shard, by key.
#[derive(Default)]
pub(crate) struct Volumes {
    slots: Vec<Option<Volume>>,
    touched: Vec<u32>,
}

impl Volumes {
    /// Adds a volume. Keys are never reused, so a front end can not meet another volume under
    /// an old key.
    pub(crate) fn insert(&mut self, resource: u16, nr: VolumeNr) -> TargetKey {
        let key = self.slots.len() as u32;
        self.slots.push(Some(Volume::new(key, resource, nr)));
        TargetKey(u64::from(key))
    }

    pub(crate) fn remove(&mut self, key: TargetKey) {
        self.slots[key.0 as usize] = None;
    }

    pub(crate) fn get(&self, key: TargetKey) -> Option<&Volume> {
        self.slots.get(key.0 as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: TargetKey) -> Option<&mut Volume> {
        let volume = self.slots.get_mut(key.0 as usize)?.as_mut()?;
        if !std::mem::replace(&mut volume.touched, true) {
            self.touched.push(volume.key);
        }
        Some(volume)
    }

    /// Takes the list of volumes that were used since the last call: they may have wishes for
    /// their core, or completions for their front end.
    pub(crate) fn take_touched(&mut self, into: &mut Vec<u32>) {
        for key in &self.touched {
            if let Some(volume) = &mut self.slots[*key as usize] {
                volume.touched = false;
            }
        }
        into.append(&mut self.touched);
    }

    /// Takes the wishes of a volume: its resource, its number, and them.
    pub(crate) fn take_wishes(
        &mut self,
        key: u32,
        into: &mut Vec<Wish>,
    ) -> Option<(u16, VolumeNr)> {
        let volume = self.slots[key as usize].as_mut()?;
        into.append(&mut volume.wishes);
        Some((volume.resource, volume.nr))
    }

    /// Takes the completions of a volume.
    pub(crate) fn take_completions(&mut self, key: u32, into: &mut Vec<Completion>) {
        if let Some(volume) = &mut self.slots[key as usize] {
            into.append(&mut volume.completions);
        }
    }
}

impl Targets for Volumes {
    fn target(&mut self, key: TargetKey) -> Option<&mut dyn Target> {
        self.get_mut(key).map(|volume| volume as &mut dyn Target)
    }
}

/// One volume.
pub(crate) struct Volume {
    key: u32,
    /// Listed as touched.
    touched: bool,
    resource: u16,
    nr: VolumeNr,
    size: Sectors,
    block_size: u32,
    openers: BTreeMap<OpenerId, Opener>,
    /// Requests of those that open it when they need it, whoever of them is still there.
    standby_requests: u64,
    pending: Vec<Pending>,
    free: Vec<u32>,
    wishes: Vec<Wish>,
    completions: Vec<Completion>,
}

struct Opener {
    tag: u64,
    state: OpenState,
    /// Requests not completed by the core.
    in_flight: u32,
    /// It has the volume open in the core only while it needs it.
    standby: Option<Standby>,
}

impl Opener {
    fn is_at_rest(&self) -> bool {
        self.state == OpenState::Open
            && self.in_flight == 0
            && self.standby.as_ref().is_none_or(Standby::is_settled)
    }

    /// It keeps others from what they want of the volume.
    fn counts(&self) -> bool {
        let unused = |standby: &Standby| standby.access().is_none() && standby.is_settled();
        !(self.state == OpenState::Open && self.standby.as_ref().is_some_and(unused))
    }
}

/// A volume at rest: all there is to it.
pub(crate) struct AtRest {
    pub(crate) size: Sectors,
    pub(crate) block_size: u32,
    /// Who has it open.
    pub(crate) openers: Vec<u64>,
    /// Who opens it when they need it, and how they have it open.
    pub(crate) standby: Vec<(u64, Option<Access>)>,
}

impl AtRest {
    /// All openers.
    pub(crate) fn openers(&self) -> impl Iterator<Item = u64> {
        self.openers.iter().copied().chain(self.standby.iter().map(|(opener, _)| *opener))
    }
}

/// What there is to tell of those that open a volume when they need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StandbyUse {
    /// How it is open.
    pub(crate) access: Option<Access>,
    /// Requests there have been.
    pub(crate) requests: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenState {
    Opening,
    Open,
    /// The front end has closed it; nothing is delivered any more.
    Closed {
        answered: bool,
    },
}

/// A request of a front end, or a part of one.
#[derive(Clone, Copy)]
enum Pending {
    Free,
    Whole {
        opener: OpenerId,
        tag: u64,
        /// Where a read may be put.
        place: Option<Place>,
    },
    /// Several parts, and perhaps a flush, stand for one request.
    Split {
        opener: OpenerId,
        tag: u64,
        parts: u32,
        flush: bool,
        failed: Option<Errno>,
    },
    Part {
        whole: u32,
    },
}

impl Volume {
    fn new(key: u32, resource: u16, nr: VolumeNr) -> Volume {
        Volume {
            key,
            touched: false,
            resource,
            nr,
            size: Sectors(0),
            block_size: 512,
            openers: BTreeMap::new(),
            standby_requests: 0,
            pending: Vec::new(),
            free: Vec::new(),
            wishes: Vec::new(),
            completions: Vec::new(),
        }
    }

    /// Nothing is under way for anybody.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.free.len() == self.pending.len()
            && self.wishes.is_empty()
            && self.completions.is_empty()
            && self.openers.values().all(Opener::is_at_rest)
    }

    /// All there is to a volume at rest.
    pub(crate) fn at_rest(&self) -> AtRest {
        let (mut openers, mut standby) = (Vec::new(), Vec::new());
        for (OpenerId(id), opener) in &self.openers {
            match &opener.standby {
                None => openers.push(*id),
                Some(one) => standby.push((*id, one.access())),
            }
        }
        AtRest { size: self.size, block_size: self.block_size, openers, standby }
    }

    /// The reverse, for a volume that was just added.
    pub(crate) fn set_at_rest(&mut self, at_rest: AtRest) {
        let AtRest { size, block_size, openers, standby } = at_rest;
        (self.size, self.block_size) = (size, block_size);
        let open = |id, standby| {
            let state = OpenState::Open;
            (OpenerId(id), Opener { tag: 0, state, in_flight: 0, standby })
        };
        let standby =
            standby.into_iter().map(|(id, access)| (id, Some(Standby::inherited(access))));
        let openers = openers.into_iter().map(|id| (id, None)).chain(standby);
        self.openers = openers.map(|(id, standby)| open(id, standby)).collect();
    }

    /// The size has changed.
    pub(crate) fn set_size(&mut self, size: Sectors) {
        self.size = size;
    }

    /// Requests must be multiples of this, in bytes.
    pub(crate) fn set_block_size(&mut self, bytes: u32) {
        self.block_size = bytes;
    }

    /// Openers that are open, being opened, or not done yet. Those that only might open it do not count.
    pub(crate) fn openers(&self) -> usize {
        self.openers.values().filter(|opener| opener.counts()).count()
    }

    /// Those that open it when they need it; `None` if there are none.
    pub(crate) fn standby_use(&self) -> Option<StandbyUse> {
        let access = self.standbys().map(Standby::access).max()?;
        Some(StandbyUse { access, requests: self.standby_requests })
    }

    fn standbys(&self) -> impl Iterator<Item = &Standby> {
        self.openers.values().filter_map(|opener| opener.standby.as_ref())
    }

    /// Opens it for those that would when they need it: they are in use, whatever they ask.
    pub(crate) fn stand_up(&mut self, access: Access) {
        for (id, opener) in &mut self.openers {
            if opener.state == OpenState::Open
                && let Some(standby) = &mut opener.standby
            {
                self.wishes.extend(standby.want(*id, access));
            }
        }
    }

    /// It is open for those, or not; `None` while the core has not answered.
    pub(crate) fn standby_is_open(&self) -> Option<bool> {
        let is_open = self.standby_use().is_some_and(|now| now.access.is_some());
        (is_open || self.standbys().all(Standby::is_settled)).then_some(is_open)
    }

    /// Closes it for those that open it when they need it, unless there have been other requests than those
    /// that the caller knows of, or some are under way. True if it is closed.
    pub(crate) fn stand_down(&mut self, requests: u64) -> bool {
        let known = self.standby_use().is_some_and(|now| now.requests == requests);
        let at_rest = |opener: &Opener| opener.standby.is_none() || opener.is_at_rest();
        if !known || !self.openers.values().all(at_rest) {
            return false;
        }
        for (id, opener) in &mut self.openers {
            if let Some(standby) = &mut opener.standby
                && standby.access().is_some()
            {
                standby.closed();
                self.wishes.push(Wish::Close { opener: id.0 });
            }
        }
        true
    }

    /// The core has answered an open of one that needs it.
    fn standby_answered(&mut self, id: OpenerId, result: Result<(), Errno>) {
        let Some(entry) = self.openers.get_mut(&id) else { return };
        let standby = entry.standby.as_mut().expect("only such a one is opened twice");
        let answered = standby.answered(result);
        let next = standby.next(id);
        entry.in_flight += answered.ready.len() as u32;
        for request in answered.ready {
            self.carry_out(request);
        }
        let errno = result.err().unwrap_or(Errno::EIO);
        for request in answered.failed {
            let completion = Completion::new(id, request.tag, Err(errno));
            self.completions.push(Completion { buf: request.buf, ..completion });
        }
        self.wishes.extend(next);
    }

    /// The core has answered an open.
    pub(crate) fn opened(&mut self, opener: u64, result: &Result<(), OpenError>) {
        let id = OpenerId(opener);
        let Some(entry) = self.openers.get_mut(&id) else { return };
        let asked = entry.standby.as_ref().is_some_and(|standby| !standby.is_settled());
        match entry.state {
            OpenState::Open if asked => {
                self.standby_answered(id, result.as_ref().copied().map_err(open_errno));
            }
            OpenState::Opening => {
                let tag = entry.tag;
                let result = match result {
                    Ok(()) => {
                        entry.state = OpenState::Open;
                        Ok(())
                    }
                    Err(error) => {
                        self.openers.remove(&id);
                        Err(open_errno(error))
                    }
                };
                self.completions.push(Completion::new(id, tag, result));
            }
            OpenState::Closed { answered: false } => {
                if result.is_ok() {
                    self.wishes.push(Wish::Close { opener });
                }
                self.openers.remove(&id);
            }
            // It is closed in the core once its requests are done.
            OpenState::Closed { answered: true } if entry.standby.is_some() => {}
            OpenState::Open | OpenState::Closed { answered: true } => {
                panic!("the core answers an open once")
            }
        }
    }

    /// Where a read that the core has not completed may be put.
    pub(crate) fn place(&self, id: u64) -> Option<Place> {
        match self.pending.get(id as usize) {
            Some(Pending::Whole { place, .. }) => *place,
            _ => None,
        }
    }

    /// The core has completed a request.
    pub(crate) fn completed(
        &mut self,
        id: u64,
        result: Result<Option<BufId>, IoError>,
        bufs: &Bufs,
    ) {
        let index = id as u32;
        let pending = std::mem::replace(&mut self.pending[index as usize], Pending::Free);
        self.free.push(index);
        match pending {
            Pending::Whole { opener, tag, .. } => {
                let (result, block) = match result {
                    Ok(buf) => (Ok(()), buf.map(|buf| bufs.block(buf))),
                    Err(error) => (Err(io_errno(error)), None),
                };
                let (buf, placed) = match block {
                    Some(Block::Bytes(buf)) => (Some(buf), false),
                    Some(Block::Placed) => (None, true),
                    None => (None, false),
                };
                let completion = Completion::new(opener, tag, result);
                self.finish(opener, Completion { buf, placed, ..completion });
            }
            Pending::Part { whole } => self.part_done(whole, result.map(|_| ())),
            Pending::Free | Pending::Split { .. } => {
                panic!("the core completes a request once, and only what it was given")
            }
        }
    }

    /// What a client has asked about a range.
    pub(crate) fn looked(&mut self, id: u64, extents: Box<[Extent]>) {
        let index = id as u32;
        let pending = std::mem::replace(&mut self.pending[index as usize], Pending::Free);
        self.free.push(index);
        let Pending::Whole { opener, tag, .. } = pending else { panic!("a look is one request") };
        let extents = Some(extents);
        self.finish(opener, Completion { extents, ..Completion::new(opener, tag, Ok(())) });
    }

    fn part_done(&mut self, index: u32, result: Result<(), IoError>) {
        let Pending::Split { opener, tag, parts, flush, failed } =
            &mut self.pending[index as usize]
        else {
            panic!("a request outlives its parts");
        };
        if let Err(error) = result {
            failed.get_or_insert(io_errno(error));
        }
        *parts -= 1;
        if *parts > 0 {
            return;
        }
        if *flush && failed.is_none() {
            (*flush, *parts) = (false, 1);
            let id = self.add(Pending::Part { whole: index });
            self.wish(id, WishOp::Flush, SectorRange::new(0, 0));
            return;
        }
        let (opener, tag, result) = (*opener, *tag, failed.map_or(Ok(()), Err));
        self.pending[index as usize] = Pending::Free;
        self.free.push(index);
        self.finish(opener, Completion::new(opener, tag, result));
    }

    /// Delivers an answer, unless its opener has closed.
    fn finish(&mut self, opener: OpenerId, completion: Completion) {
        let entry = self.openers.get_mut(&opener).expect("an opener outlives its requests");
        entry.in_flight -= 1;
        match entry.state {
            OpenState::Closed { .. } => self.close_if_idle(opener),
            OpenState::Opening | OpenState::Open => self.completions.push(completion),
        }
    }

    fn close_if_idle(&mut self, opener: OpenerId) {
        if self.openers.get(&opener).is_some_and(|entry| entry.in_flight == 0) {
            self.openers.remove(&opener);
            self.wishes.push(Wish::Close { opener: opener.0 });
        }
    }

    fn add(&mut self, pending: Pending) -> u64 {
        match self.free.pop() {
            Some(index) => {
                self.pending[index as usize] = pending;
                u64::from(index)
            }
            None => {
                self.pending.push(pending);
                self.pending.len() as u64 - 1
            }
        }
    }

    fn wish(&mut self, id: u64, op: WishOp, range: SectorRange) {
        self.wishes.push(Wish::Request { id, op, range });
    }

    /// Has the core do what an opener asks that may.
    fn carry_out(&mut self, request: Request) {
        let (opener, tag) = (request.opener, request.tag);
        let range = sectors(request.offset, u64::from(request.len));
        let op = match request.op {
            // The data arrives where the request wants it, or in a buffer of its own, from the disk or from
            // a peer; the one that came along goes back to the pool until then.
            Op::Read => WishOp::Read,
            Op::Write => {
                let buf = request.buf.expect("a write that was checked has its data");
                WishOp::Write { buf, fua: request.fua }
            }
            Op::Flush => WishOp::Flush,
            Op::Trim | Op::WriteZeroes { .. } => return self.submit_range(&request),
            Op::BlockStatus(aspect) => {
                let id = self.add(Pending::Whole { opener, tag, place: None });
                return self.wishes.push(Wish::Look { id, aspect, range });
            }
        };
        let id = self.add(Pending::Whole { opener, tag, place: request.place });
        self.wish(id, op, range);
    }

    /// A discard or zeroing, in parts that every peer takes, followed by a flush if it must be
    /// durable when it completes.
    fn submit_range(&mut self, request: &Request) {
        let (opener, tag) = (request.opener, request.tag);
        let end = request.offset + u64::from(request.len);
        let parts = u64::from(request.len).div_ceil(RANGE_MAX) as u32;
        let split = Pending::Split { opener, tag, parts, flush: request.fua, failed: None };
        let whole = self.add(split) as u32;
        let mut offset = request.offset;
        while offset < end {
            let len = RANGE_MAX.min(end - offset);
            let op = match request.op {
                Op::WriteZeroes { no_hole } => WishOp::Zeroes { unmap: !no_hole },
                _ => WishOp::Discard,
            };
            let id = self.add(Pending::Part { whole });
            self.wish(id, op, sectors(offset, len));
            offset += len;
        }
    }
}

fn sectors(offset: u64, len: u64) -> SectorRange {
    SectorRange::new(offset / SECTOR_SIZE, len / SECTOR_SIZE)
}

/// What a failed request looks like to applications.
const fn io_errno(error: IoError) -> Errno {
    match error {
        IoError::Io => Errno::EIO,
        IoError::NotPrimary => Errno::EROFS,
        IoError::NoSpace => Errno::ENOSPC,
        IoError::Invalid => Errno::EINVAL,
        IoError::Unsupported => Errno::EOPNOTSUPP,
    }
}

/// The numbers that opening DRBD's device gives (semantics §3.4).
const fn open_errno(error: &OpenError) -> Errno {
    match error {
        OpenError::FailIo => Errno(libc::ENOTRECOVERABLE),
        OpenError::PromotionRefused(_) => Errno::EROFS,
        OpenError::NotPrimaryHere { .. } => Errno::EMEDIUMTYPE,
        OpenError::NoData => Errno(libc::ENODATA),
        OpenError::NoDevice => Errno::ENODEV,
    }
}

impl Target for Volume {
    fn info(&self) -> TargetInfo {
        TargetInfo {
            size: Bytes(self.size.0 * SECTOR_SIZE),
            block_size_min: self.block_size,
            block_size_preferred: 4096,
            max_transfer: BUF_MAX as u32,
            read_only: false,
            can_trim: true,
            can_zero: true,
            can_flush: true,
            can_fua: true,
            multi_conn: true,
            rotational: false,
        }
    }

    fn open(&mut self, opener: OpenerId, intent: Intent, tag: u64) {
        let (state, standby) = match intent {
            Intent::Read | Intent::Write => (OpenState::Opening, None),
            Intent::Standby => (OpenState::Open, Some(Standby::new())),
        };
        let entry = Opener { tag, state, in_flight: 0, standby };
        let before = self.openers.insert(opener, entry);
        assert!(before.is_none(), "openers are unique");
        match intent {
            Intent::Read | Intent::Write => {
                let write = intent == Intent::Write;
                self.wishes.push(Wish::Open { opener: opener.0, write, patient: false });
            }
            Intent::Standby => self.completions.push(Completion::new(opener, tag, Ok(()))),
        }
    }

    fn close(&mut self, opener: OpenerId) {
        let Some(entry) = self.openers.get_mut(&opener) else { return };
        match entry.state {
            OpenState::Opening => entry.state = OpenState::Closed { answered: false },
            OpenState::Open => {
                entry.state = OpenState::Closed { answered: true };
                if let Some(standby) = &mut entry.standby {
                    standby.forget();
                }
                self.close_if_idle(opener);
            }
            OpenState::Closed { .. } => return,
        }
        self.completions.retain(|completion| completion.opener != opener);
    }

    fn submit(&mut self, request: Request) {
        let (opener, tag) = (request.opener, request.tag);
        let open = self.openers.get(&opener).is_some_and(|entry| entry.state == OpenState::Open);
        let checked = if open { self.info().check(&request) } else { Err(Errno::EBADF) };
        if let Err(errno) = checked {
            let completion = Completion::new(opener, tag, Err(errno));
            self.completions.push(Completion { buf: request.buf, ..completion });
            return;
        }
        let entry = self.openers.get_mut(&opener).expect("seen above");
        let request = match &mut entry.standby {
            None => request,
            Some(standby) => {
                self.standby_requests += 1;
                match standby.take(request) {
                    Taken::Now(request) => request,
                    Taken::Held => return self.wishes.extend(standby.next(opener)),
                }
            }
        };
        entry.in_flight += 1;
        self.carry_out(request);
    }

    /// Wishes leave at the end of the turn.
    fn flush_submissions(&mut self) {}

    fn poll_completions(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.completions);
    }
}
