//! What clients asked for and were told, and which content is therefore right (semantics §13,
//! invariants 2, 5, 7, 8, 37).
//!
//! A volume is checked as one register per sector. A value may be read if some write of it began
//! before the read ended and is not *overwritten*: no acknowledged write of the sector began
//! after it ended and ended before the read began. A write that failed, or whose client lost its
//! node, ended then and may or may not have happened.
//!
//! A power loss may take back an acknowledged write that no flush has covered; the world says
//! which ([`History::doubt`]). Only a *firm* write, one that no fault may undo, lets older
//! values be forgotten.

use vocab::SectorRange;

use crate::content::{Tag, ZERO};
use crate::plan::Plan;

/// A point in the order of all events the clients see.
pub type Stamp = u64;
/// Not yet.
pub const NEVER: Stamp = Stamp::MAX;

/// Sectors per list of writes.
const BLOCK: u64 = 8;

/// What a write leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// Its tag in every sector.
    Tag(Tag),
    /// Anything, but the same on all replicas: a discard.
    Undefined,
}

/// A write and what became of it.
#[derive(Clone, Debug)]
pub struct Write {
    /// Where.
    pub range: SectorRange,
    /// What it leaves.
    pub value: Value,
    /// When it was submitted.
    pub began: Stamp,
    /// When it completed, failed, or its node died.
    pub ended: Stamp,
    /// It was acknowledged, and nothing has cast doubt on it since.
    pub acked: bool,
    /// It was acknowledged and no power loss can take it back.
    pub firm: bool,
}

/// Index of a write in its history.
pub type WriteIx = u32;

/// The history of one volume.
#[derive(Debug)]
pub struct History {
    writes: Vec<Write>,
    /// By block of sectors, the writes that still matter there, oldest first.
    blocks: Vec<Vec<WriteIx>>,
    /// Acknowledged writes that are not firm.
    soft: Vec<WriteIx>,
    /// Started reads, oldest first: none of them may miss a value that is forgotten.
    reads: Vec<Stamp>,
}

impl History {
    /// A volume of so many sectors of zeroes.
    pub fn new(sectors: u64) -> History {
        let whole = Write {
            range: SectorRange::new(0, sectors),
            value: Value::Tag(ZERO),
            began: 0,
            ended: 0,
            acked: true,
            firm: true,
        };
        History {
            writes: vec![whole],
            blocks: vec![Vec::new(); sectors.div_ceil(BLOCK) as usize],
            soft: Vec::new(),
            reads: Vec::new(),
        }
    }

    /// The volume of a plan. What it may grow by has any content.
    pub fn of_plan(plan: &Plan) -> History {
        let most = plan.most_sectors();
        let mut history = History::new(most);
        if most > plan.sectors {
            history.add(Write {
                range: SectorRange::new(plan.sectors, most - plan.sectors),
                value: Value::Undefined,
                began: 0,
                ended: 0,
                acked: true,
                firm: true,
            });
        }
        history
    }

    /// Declares the content of a sector before the first write.
    pub fn preset(&mut self, range: SectorRange, tag: Tag) {
        let write =
            Write { range, value: Value::Tag(tag), began: 0, ended: 0, acked: true, firm: true };
        self.add(write);
    }

    fn add(&mut self, write: Write) -> WriteIx {
        let ix = self.writes.len() as WriteIx;
        for block in blocks(write.range) {
            self.blocks[block].push(ix);
        }
        self.writes.push(write);
        ix
    }

    /// A write was submitted.
    pub fn begin(&mut self, now: Stamp, range: SectorRange, value: Value) -> WriteIx {
        self.add(Write { range, value, began: now, ended: NEVER, acked: false, firm: false })
    }

    /// A write was acknowledged; `firm` if no power loss can take it back.
    pub fn ack(&mut self, now: Stamp, ix: WriteIx, firm: bool) {
        let write = &mut self.writes[ix as usize];
        assert_eq!(write.ended, NEVER, "a write ends once");
        (write.ended, write.acked, write.firm) = (now, true, firm);
        if firm {
            self.forget(ix);
        } else {
            self.soft.push(ix);
        }
    }

    /// A write failed, or its client is gone: it may or may not have happened.
    pub fn fail(&mut self, now: Stamp, ix: WriteIx) {
        let write = &mut self.writes[ix as usize];
        assert_eq!(write.ended, NEVER, "a write ends once");
        write.ended = now;
    }

    /// A flush has completed: what was acknowledged before `covered` is firm.
    pub fn flushed(&mut self, covered: Stamp) {
        let mut firm = Vec::new();
        self.soft.retain(|ix| {
            let write = &mut self.writes[*ix as usize];
            let firm_now = write.ended < covered && write.acked;
            if firm_now {
                write.firm = true;
                firm.push(*ix);
            }
            !firm_now
        });
        firm.into_iter().for_each(|ix| self.forget(ix));
    }

    /// Acknowledged writes that a power loss may take back.
    pub fn soft(&self) -> impl Iterator<Item = &Write> {
        self.soft.iter().map(|ix| &self.writes[*ix as usize])
    }

    /// A crash may have taken back those soft writes of which `lost` says so.
    pub fn doubt(&mut self, mut lost: impl FnMut(&History, &Write) -> bool) {
        let soft = std::mem::take(&mut self.soft);
        let (gone, kept): (Vec<_>, Vec<_>) =
            soft.into_iter().partition(|ix| lost(self, &self.writes[*ix as usize]));
        for ix in gone {
            self.writes[ix as usize].acked = false;
        }
        self.soft = kept;
    }

    /// Drops values that a firm write has overwritten for every read there is or will be.
    fn forget(&mut self, by: WriteIx) {
        let new = self.writes[by as usize].clone();
        if self.reads.first().is_some_and(|began| *began <= new.ended) {
            return;
        }
        for block in blocks(new.range) {
            if self.blocks[block].len() < 8 {
                continue;
            }
            let part = block_range(block);
            let writes = &self.writes;
            self.blocks[block].retain(|ix| {
                let old = &writes[*ix as usize];
                old.ended >= new.began || !new.range.covers(clip(old.range, part))
            });
        }
    }

    /// A read was submitted.
    pub fn begin_read(&mut self, now: Stamp) {
        self.reads.push(now);
    }

    /// A read that was submitted at `began` ended; other requests that began then are ignored.
    pub fn end_read(&mut self, began: Stamp) {
        self.reads.retain(|read| *read != began);
    }

    /// The write, by its index.
    pub fn write(&self, ix: WriteIx) -> &Write {
        &self.writes[ix as usize]
    }

    fn of_sector(&self, sector: u64) -> impl Iterator<Item = &Write> {
        let here = SectorRange::new(sector, 1);
        let list = &self.blocks[(sector / BLOCK) as usize];
        std::iter::once(&self.writes[0])
            .chain(list.iter().map(|ix| &self.writes[*ix as usize]))
            .filter(move |w| w.range.covers(here))
    }

    /// True if a read of the sector between the two points may return `tag`.
    pub fn allows(&self, sector: u64, tag: Tag, began: Stamp, ended: Stamp) -> bool {
        let floor = self
            .of_sector(sector)
            .filter(|w| w.acked && w.ended < began)
            .map(|w| w.began)
            .max()
            .unwrap_or(0);
        self.of_sector(sector)
            .any(|w| w.began < ended && w.ended >= floor && matches_value(w.value, tag))
    }

    /// Values a read of the sector may return now, for messages.
    pub fn allowed_now(&self, sector: u64, now: Stamp) -> Vec<&Write> {
        let floor = self
            .of_sector(sector)
            .filter(|w| w.acked && w.ended < now)
            .map(|w| w.began)
            .max()
            .unwrap_or(0);
        self.of_sector(sector).filter(|w| w.ended >= floor).collect()
    }

    /// True if `tag` in the sector is what the write left, or what a write that is not older
    /// than it left: On(w, n) of semantics §13.
    pub fn holds(&self, sector: u64, tag: Tag, write: &Write) -> bool {
        self.of_sector(sector).any(|w| w.ended >= write.began && matches_value(w.value, tag))
    }

    /// True if a write of the sector is under way, so that replicas may differ there.
    pub fn unsettled(&self, sector: u64) -> bool {
        self.of_sector(sector).any(|w| w.ended == NEVER)
    }

    /// Blocks of sectors that clients have written to, as ranges of at most a block.
    pub fn touched(&self) -> impl Iterator<Item = SectorRange> + '_ {
        let sectors = self.writes[0].range.len.0;
        self.blocks.iter().enumerate().filter(|(_, list)| !list.is_empty()).map(
            move |(block, _)| {
                let range = block_range(block);
                SectorRange::new(range.start.0, range.len.0.min(sectors - range.start.0))
            },
        )
    }
}

fn matches_value(value: Value, tag: Tag) -> bool {
    match value {
        Value::Tag(own) => own == tag,
        Value::Undefined => true,
    }
}

fn blocks(range: SectorRange) -> std::ops::Range<usize> {
    (range.start.0 / BLOCK) as usize..range.end().div_ceil(BLOCK) as usize
}

fn block_range(block: usize) -> SectorRange {
    SectorRange::new(block as u64 * BLOCK, BLOCK)
}

fn clip(range: SectorRange, to: SectorRange) -> SectorRange {
    let start = range.start.0.max(to.start.0);
    SectorRange::new(start, range.end().min(to.end()) - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sector: u64) -> SectorRange {
        SectorRange::new(sector, 8)
    }

    #[test]
    fn an_acknowledged_write_hides_what_ended_before_it_began() {
        let mut h = History::new(64);
        let a = h.begin(1, at(0), Value::Tag(10));
        assert!(h.allows(0, 0, 2, 3) && h.allows(0, 10, 2, 3), "a write in flight may be seen");
        h.ack(4, a, true);
        assert!(h.allows(0, 10, 5, 6) && !h.allows(0, 0, 5, 6));
        assert!(h.allows(0, 0, 2, 6), "a read that began before the ack may miss it");
        assert!(h.allows(8, 0, 5, 6), "other sectors are not concerned");
    }

    #[test]
    fn a_failed_write_may_or_may_not_have_happened_until_overwritten() {
        let mut h = History::new(64);
        let a = h.begin(1, at(0), Value::Tag(10));
        h.fail(2, a);
        assert!(h.allows(0, 10, 3, 4) && h.allows(0, 0, 3, 4));
        let b = h.begin(5, at(0), Value::Tag(11));
        h.ack(6, b, true);
        assert!(!h.allows(0, 10, 7, 8) && !h.allows(0, 0, 7, 8) && h.allows(0, 11, 7, 8));
    }

    #[test]
    fn a_doubted_write_brings_the_older_value_back() {
        let mut h = History::new(64);
        let a = h.begin(1, at(0), Value::Tag(10));
        h.ack(2, a, false);
        h.doubt(|_, _| true);
        assert!(h.allows(0, 0, 3, 4) && h.allows(0, 10, 3, 4));
        let b = h.begin(5, at(0), Value::Tag(11));
        h.ack(6, b, false);
        h.flushed(7);
        h.doubt(|_, _| true);
        assert!(!h.allows(0, 10, 8, 9), "a flushed write can not be lost");
    }

    #[test]
    fn forgetting_keeps_every_value_that_can_still_be_read() {
        let mut h = History::new(64);
        for i in 0..100 {
            let w = h.begin(10 * i + 1, at(0), Value::Tag(i + 1));
            h.ack(10 * i + 5, w, true);
        }
        assert!(h.blocks[0].len() < 20);
        assert!(h.allows(0, 100, 2000, 2001) && !h.allows(0, 99, 2000, 2001));
    }
}
