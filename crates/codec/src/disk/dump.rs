//! The text of `drbdmeta dump-md` (metadata §7.3): written byte for byte as drbdmeta does, and
//! parsed by its grammar, in which white space, the order of peers and the splitting of runs are
//! free.

use std::fmt::{self, Write};

use vocab::{Bytes, GenUuid, MAX_NODES, NodeId, NodeMask, Sectors};

use super::{
    AlStriping, Layout, MdFlags, MdParams, PeerFlags, PeerSlot, Placement, PlacementError,
    Superblock, SuperblockV8, bitmap,
};

mod parser;

pub use parser::{DumpError, parse};

/// The word that makes a restore of unclean metadata fail.
const UNCLEAN: &str = "This_is_an_unclean_meta_data_dump._Don't_trust_the_bitmap.";
/// Values in one line of a bitmap.
const PER_LINE: u64 = 4;
/// Shortest run that is abbreviated.
const MIN_RUN: u64 = 8;
/// A comment with the position stands in front of lines at a multiple of this many words.
const PER_COMMENT: u128 = 32;

/// A metadata dump of either version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Dump {
    /// DRBD 9.
    V09(DumpV09),
    /// DRBD 8.
    V08(DumpV08),
}

/// What both versions say behind the generations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// Last agreed size of the volume.
    pub la_size: Sectors,
    /// Bytes of data behind one bit.
    pub bm_bytes_per_bit: u32,
    /// Identity of the backing device.
    pub device_uuid: u64,
    /// Last agreed largest request, in bytes.
    pub la_peer_max_bio_size: u32,
    /// Shape of the activity log.
    pub al: AlStriping,
}

/// Content of a v09 dump.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpV09 {
    /// The activity log was not applied: the bitmap lacks what it names.
    pub unclean: bool,
    /// Bitmap slots.
    pub max_peers: u32,
    /// Own node id.
    pub node_id: Option<NodeId>,
    /// Current data generation.
    pub current_uuid: GenUuid,
    /// Device flags.
    pub flags: MdFlags,
    /// Members; tools before 9.27 neither print nor accept them.
    pub members: Option<NodeMask>,
    /// All nodes' entries, by node id.
    pub peers: Box<[PeerSlot; MAX_NODES]>,
    /// Older generations, youngest first.
    pub history: Box<[GenUuid; MAX_NODES]>,
    /// Size, granularity and the rest.
    pub tail: Tail,
    /// Content of each slot.
    pub slots: Vec<WordRuns>,
}

/// Content of a v08 dump.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpV08 {
    /// The activity log was not applied.
    pub unclean: bool,
    /// Current, bitmap, younger and older history generation.
    pub uuids: [GenUuid; 4],
    /// Device flags with their v08 meaning; drbdmeta up to 9.32 prints them as zero.
    pub flags: MdFlags,
    /// Size, granularity and the rest.
    pub tail: Tail,
    /// Content of the one slot.
    pub slot: WordRuns,
}

/// The bits of one slot as runs of equal 64-bit words; bit k of word i is bit 64·i+k.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WordRuns(Vec<WordRun>);

/// `count` times the same word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordRun {
    /// How often.
    pub count: u64,
    /// The word.
    pub word: u64,
}

impl WordRuns {
    /// Appends a run; equal neighbours become one.
    pub fn push(&mut self, count: u64, word: u64) {
        match self.0.last_mut() {
            _ if count == 0 => {}
            Some(last) if last.word == word => last.count = last.count.saturating_add(count),
            _ => self.0.push(WordRun { count, word }),
        }
    }

    /// The runs; neighbours differ.
    pub fn runs(&self) -> &[WordRun] {
        &self.0
    }

    /// Exactly `words` words: the rest is cut off, what is missing is zero.
    pub fn clipped(&self, words: u64) -> WordRuns {
        let mut clipped = WordRuns::default();
        let mut left = words;
        for run in &self.0 {
            let count = run.count.min(left);
            clipped.push(count, run.word);
            left -= count;
        }
        clipped.push(left, 0);
        clipped
    }

    /// Set bits.
    pub fn count_ones(&self) -> u64 {
        let ones = |run: &WordRun| run.count.saturating_mul(u64::from(run.word.count_ones()));
        self.0.iter().map(ones).fold(0, u64::saturating_add)
    }
}

impl FromIterator<u64> for WordRuns {
    fn from_iter<I: IntoIterator<Item = u64>>(words: I) -> Self {
        let mut runs = WordRuns::default();
        for word in words {
            runs.push(1, word);
        }
        runs
    }
}

/// 64-bit words of slot `slot` that a dump shows: a trailing half word is left out.
fn dumped_words(tail: &Tail, slots: u32, slot: u32) -> u64 {
    let area = bitmap::area_bytes(tail.la_size.0, slots, tail.bm_bytes_per_bit);
    let (words, slots, slot) = (area / 4, u64::from(slots), u64::from(slot));
    (words + slots - 1 - slot) / slots / 2
}

impl DumpV09 {
    /// Dumps metadata; `word(slot, i)` is the i-th 64-bit word of a slot, asked for as many words
    /// as the superblock's size needs: validate it first. `members` says whether to show the
    /// members, which tools before 9.27 refuse.
    pub fn new(
        superblock: &Superblock,
        members: bool,
        mut word: impl FnMut(u32, u64) -> u64,
    ) -> DumpV09 {
        let tail = Tail {
            la_size: superblock.effective_size,
            bm_bytes_per_bit: superblock.bm_bytes_per_bit,
            device_uuid: superblock.device_uuid,
            la_peer_max_bio_size: superblock.la_peer_max_bio_size,
            al: superblock.al,
        };
        let slots = (0..superblock.max_peers)
            .map(|slot| {
                let words = 0..dumped_words(&tail, superblock.max_peers, slot);
                words.map(|i| word(slot, i)).collect()
            })
            .collect();
        DumpV09 {
            unclean: !superblock.flags.contains(MdFlags::AL_CLEAN),
            max_peers: superblock.max_peers,
            node_id: superblock.node_id,
            current_uuid: superblock.current_uuid,
            flags: superblock.flags,
            members: members.then_some(superblock.members),
            peers: Box::new(superblock.peers),
            history: Box::new(superblock.history),
            tail,
            slots,
        }
    }

    /// The superblock that `restore-md` writes on a device of `device` bytes: offsets are those
    /// of the device, and the agreed size is cut to what it can hold.
    pub fn superblock(
        &self,
        placement: Placement,
        device: Bytes,
    ) -> Result<(Superblock, Layout), PlacementError> {
        let params = MdParams {
            max_peers: self.max_peers,
            bm_bytes_per_bit: self.tail.bm_bytes_per_bit,
            al: self.tail.al,
        };
        let (created, layout) = Superblock::create(placement, device, &params)?;
        let superblock = Superblock {
            effective_size: self.tail.la_size.min(layout.usable),
            current_uuid: self.current_uuid,
            members: self.members.unwrap_or(NodeMask::EMPTY),
            device_uuid: self.tail.device_uuid,
            flags: self.flags,
            la_peer_max_bio_size: self.tail.la_peer_max_bio_size,
            node_id: self.node_id,
            peers: *self.peers,
            history: *self.history,
            ..created
        };
        Ok((superblock, layout))
    }
}

impl DumpV08 {
    /// Dumps metadata; `word(i)` is the i-th 64-bit word of the bitmap.
    pub fn new(superblock: &SuperblockV8, word: impl FnMut(u64) -> u64) -> DumpV08 {
        let tail = Tail {
            la_size: superblock.effective_size,
            bm_bytes_per_bit: 4096,
            device_uuid: superblock.device_uuid,
            la_peer_max_bio_size: superblock.la_peer_max_bio_size,
            al: superblock.al,
        };
        DumpV08 {
            unclean: !superblock.clean,
            uuids: [
                superblock.current_uuid,
                superblock.bitmap_uuid,
                superblock.history[0],
                superblock.history[1],
            ],
            flags: superblock.flags,
            tail,
            slot: (0..dumped_words(&tail, 1, 0)).map(word).collect(),
        }
    }
}

/// What the comments of a dump tell besides its content. No clock here: the caller knows.
#[derive(Clone, Copy, Debug)]
pub struct Comments<'a> {
    /// `YYYY-MM-DD HH:MM:SS +ZZZZ [unix-seconds]`.
    pub date: &'a str,
    /// Name of the host.
    pub host: &'a str,
    /// The command line: `drbdmeta …`.
    pub command: &'a str,
    /// Where the parts lie.
    pub layout: &'a Layout,
    /// The superblock's number of al-extents.
    pub al_nr_extents: u32,
}

impl Dump {
    /// Writes the text.
    pub fn write(&self, out: &mut impl Write, comments: &Comments<'_>) -> fmt::Result {
        match self {
            Dump::V09(dump) => dump.write(out, comments),
            Dump::V08(dump) => dump.write(out, comments),
        }
    }
}

impl Comments<'_> {
    fn write_head(&self, out: &mut impl Write, version: &str, unclean: bool) -> fmt::Result {
        writeln!(out, "# DRBD meta data dump\n# {}", self.date)?;
        writeln!(out, "# {}> {}\n#\n", self.host, self.command)?;
        writeln!(out, "version \"{version}\";\n")?;
        if unclean {
            writeln!(out, "{UNCLEAN}")?;
            writeln!(out, "# You should \"apply-al\" first, if you plan to restore this.\n")?;
        }
        Ok(())
    }

    fn write_offsets(&self, out: &mut impl Write) -> fmt::Result {
        let layout = self.layout;
        writeln!(out, "# md_size_sect {}", layout.md_size.0)?;
        writeln!(out, "# md_offset {}", layout.superblock)?;
        writeln!(out, "# al_offset {}", layout.activity_log)?;
        writeln!(out, "# bm_offset {}\n", layout.bitmap)
    }

    fn write_tail(&self, out: &mut impl Write, tail: &Tail, slots: u32) -> fmt::Result {
        writeln!(out, "# al-extents {};", self.al_nr_extents)?;
        writeln!(out, "la-size-sect {};", tail.la_size.0)?;
        writeln!(out, "bm-byte-per-bit {};", tail.bm_bytes_per_bit)?;
        writeln!(out, "device-uuid {};", Hex(tail.device_uuid))?;
        writeln!(out, "la-peer-max-bio-size {};", tail.la_peer_max_bio_size)?;
        writeln!(out, "al-stripes {};", tail.al.stripes())?;
        writeln!(out, "al-stripe-size-4k {};", tail.al.stripe_size_4k())?;
        let area = bitmap::area_bytes(tail.la_size.0, slots, tail.bm_bytes_per_bit);
        writeln!(out, "# bm-bytes {area};")
    }
}

impl DumpV09 {
    /// Writes the text.
    pub fn write(&self, out: &mut impl Write, comments: &Comments<'_>) -> fmt::Result {
        comments.write_head(out, "v09", self.unclean)?;
        writeln!(out, "max-peers {};", self.max_peers)?;
        comments.write_offsets(out)?;
        writeln!(out, "node-id {};", self.node_id.map_or(-1, |id| i32::from(id.get())))?;
        writeln!(out, "current-uuid 0x{};", self.current_uuid)?;
        writeln!(out, "flags 0x{:08X};", self.flags.0)?;
        if let Some(members) = self.members {
            writeln!(out, "members {};", Hex(members.0))?;
        }
        for (node, peer) in self.peers.iter().enumerate() {
            writeln!(out, "peer[{node}] {{")?;
            writeln!(out, "    bitmap-index {};", peer.bitmap_index.map_or(-1, i32::from))?;
            writeln!(out, "    bitmap-uuid 0x{};", peer.bitmap_uuid)?;
            writeln!(out, "    bitmap-dagtag {};", Hex(peer.bitmap_dagtag.0))?;
            writeln!(out, "    flags 0x{:08X};{}", peer.flags.0, FlagComment(peer.flags))?;
            writeln!(out, "}}")?;
        }
        writeln!(out, "history-uuids {{")?;
        for line in self.history.chunks(4) {
            write!(out, "       ")?;
            for uuid in line {
                write!(out, " 0x{uuid};")?;
            }
            writeln!(out)?;
        }
        writeln!(out, "}}")?;
        comments.write_tail(out, &self.tail, self.max_peers)?;
        let mut bits = 0;
        for (slot, runs) in (0..self.max_peers).zip(&self.slots) {
            writeln!(out, "bitmap[{slot}] {{")?;
            let runs = runs.clipped(dumped_words(&self.tail, self.max_peers, slot));
            write_words(out, &runs, u64::from(self.max_peers))?;
            writeln!(out, "}}")?;
            // Of the last one only, as `drbdmeta` does it.
            bits = runs.count_ones();
        }
        writeln!(out, "# bits-set {bits};")
    }
}

impl DumpV08 {
    /// Writes the text.
    pub fn write(&self, out: &mut impl Write, comments: &Comments<'_>) -> fmt::Result {
        comments.write_head(out, "v08", self.unclean)?;
        comments.write_offsets(out)?;
        let [current, bitmap, younger, older] = self.uuids;
        writeln!(out, "uuid {{\n    0x{current}; 0x{bitmap}; 0x{younger}; 0x{older};")?;
        writeln!(out, "    flags 0x{:08X};\n}}", self.flags.0)?;
        comments.write_tail(out, &self.tail, 1)?;
        writeln!(out, "bm {{")?;
        let runs = self.slot.clipped(dumped_words(&self.tail, 1, 0));
        write_words(out, &runs, 1)?;
        writeln!(out, "}}\n# bits-set {};", runs.count_ones())
    }
}

/// Four values to a line. At the start of a line, a run of at least eight values whose halves
/// are equal too is abbreviated, down to a multiple of four.
fn write_words(out: &mut impl Write, runs: &WordRuns, slots: u64) -> fmt::Result {
    let mut position = 0;
    for run in runs.runs() {
        let mut left = run.count;
        let abbreviated = run.word as u32 == (run.word >> 32) as u32;
        while left > 0 {
            let column = position % PER_LINE;
            if column == 0 {
                // drbdmeta counts the 64-bit words of all slots, and takes each for 64 blocks
                // of 4 KiB whatever the granularity: right for one slot only.
                let of_all_slots = u128::from(position) * u128::from(slots);
                if of_all_slots % PER_COMMENT == 0 {
                    writeln!(out, "   # at {}kB", of_all_slots * 256)?;
                }
                if abbreviated && left >= MIN_RUN {
                    let count = left / PER_LINE * PER_LINE;
                    writeln!(out, "    {count} times {};", Hex(run.word))?;
                    position += count;
                    left -= count;
                    continue;
                }
            }
            let indent = if column == 0 { "    " } else { " " };
            write!(out, "{indent}{};", Hex(run.word))?;
            if column == PER_LINE - 1 {
                writeln!(out)?;
            }
            position += 1;
            left -= 1;
        }
    }
    if position % PER_LINE != 0 {
        writeln!(out)?;
    }
    Ok(())
}

/// A 64-bit value as dumps print it: `0x` and 16 upper-case digits.
struct Hex(u64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016X}", self.0)
    }
}

/// The comment behind a peer's flags; nothing if there are none.
struct FlagComment(PeerFlags);

impl fmt::Display for FlagComment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = " # ";
        for bit in (0..32).map(|i| 1u32 << i).filter(|bit| self.0.0 & bit != 0) {
            f.write_str(separator)?;
            separator = " | ";
            match PeerFlags(bit) {
                PeerFlags::CONNECTED => f.write_str("connected")?,
                PeerFlags::OUTDATED => f.write_str("<=outdated")?,
                PeerFlags::FENCING => f.write_str("fencing")?,
                PeerFlags::FULL_SYNC => f.write_str("full-sync")?,
                PeerFlags::DEVICE_SEEN => f.write_str("seen")?,
                PeerFlags::NODE_EXISTS => f.write_str("exists")?,
                PeerFlags(unknown) => write!(f, "{unknown:#x}=?")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
