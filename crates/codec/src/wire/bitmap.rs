//! Bitmap transfers: run lengths as variable-length integers, plain chunks, and the rules that
//! join chunks of both kinds to one map (wire §7.2).
//!
//! Bit *i* stands for the 4 KiB at sector 8 *i*. A transfer sends the whole map in order, each
//! chunk either *plain* (little-endian 64-bit words, exactly as many as fit) or *compressed*
//! (alternating run lengths). A map that ends with a plain chunk is followed by one empty plain
//! chunk, a map that ends with a compressed one by nothing.
//!
//! [`BitmapSender`] and [`BitmapReceiver`] follow these rules for one transfer;
//! [`RunEncoder`] and [`RunDecoder`] are the compressed chunk alone.

use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::VolumeNr;

use super::agreed::Agreed;
use super::command::MAX_BITMAP_PACKET;
use super::packet::{BitmapWords, CompressedBitmap, Packet};

/// Low four bits of the encoding byte: run lengths as variable-length integers.
const RLE_VLI: u8 = 2;
/// Bit of the encoding byte: the first run is one of set bits.
const FIRST_SET: u8 = 0x80;

/// One line of the VLI table: numbers `low..` are `total` bits, of which the low `prefix_len`
/// are `prefix` and the rest is the number minus `low`. Bits go into bytes lowest first.
struct Vli {
    total: u32,
    prefix_len: u32,
    prefix: u64,
    low: u64,
}

const fn vli(total: u32, prefix_len: u32, prefix: u64, low: u64) -> Vli {
    Vli { total, prefix_len, prefix, low }
}

static VLI: [Vli; 10] = [
    vli(2, 1, 0x00, 1),
    vli(3, 2, 0x01, 3),
    vli(5, 3, 0x03, 5),
    vli(7, 4, 0x07, 9),
    vli(10, 5, 0x0f, 17),
    vli(14, 6, 0x1f, 49),
    vli(21, 8, 0x3f, 305),
    vli(29, 8, 0x7f, 8497),
    vli(42, 8, 0xbf, 2_105_649),
    vli(64, 8, 0xff, 17_181_974_833),
];

/// Longest run that can be coded.
pub const MAX_RUN: u64 = 72_057_611_219_902_768;

// The ranges follow each other without a gap, up to the longest run.
const _: () = {
    let mut line = 0;
    while line < VLI.len() {
        let next = VLI[line].low + (1 << (VLI[line].total - VLI[line].prefix_len));
        if line + 1 < VLI.len() {
            assert!(next == VLI[line + 1].low);
        } else {
            assert!(next == MAX_RUN + 1);
        }
        line += 1;
    }
};

/// Code bits of a run and how many they are.
fn code_of(run: u64) -> (u64, u32) {
    let line = VLI.iter().rfind(|line| line.low <= run).expect("runs are at least one bit long");
    (line.prefix | (run - line.low) << line.prefix_len, line.total)
}

/// The run that the code at the start of `bits` means, and how many bits it takes.
fn run_of(bits: u64) -> (u64, u32) {
    let is_prefix = |line: &&Vli| bits & ((1 << line.prefix_len) - 1) == line.prefix;
    // The prefixes cover every pattern of 8 bits (tested).
    let line = VLI.iter().find(is_prefix).unwrap_or(&VLI[VLI.len() - 1]);
    let data = bits >> line.prefix_len & (u64::MAX >> (64 - (line.total - line.prefix_len)));
    (line.low + data, line.total)
}

pub(super) fn is_known_encoding(chunk: &CompressedBitmap) -> bool {
    chunk.bytes.len() >= 2 && chunk.bytes[0] & 0x0f == RLE_VLI
}

/// Most words in a plain chunk: the packet has at most 4096 bytes with its header.
pub const fn max_plain_words(agreed: &Agreed) -> u64 {
    ((MAX_BITMAP_PACKET - agreed.header_version(0).size()) / 8) as u64
}

/// Most code bytes in a compressed chunk.
const fn max_code_bytes(agreed: &Agreed) -> usize {
    MAX_BITMAP_PACKET - agreed.header_version(0).size() - 1
}

/// Why a peer's bitmap is refused. The connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitmapError {
    /// The chunk is compressed in a way that is not known.
    Encoding,
    /// The code ends inside a run.
    CutRun {
        /// Bit of the map that the run starts at.
        position: u64,
    },
    /// A run goes beyond the end of the map.
    Beyond {
        /// Bit of the map that the run starts at.
        position: u64,
        /// Its length.
        run: u64,
        /// Bits in the map.
        bits: u64,
    },
    /// A plain chunk has not the length that its position demands.
    ChunkLength {
        /// Words it has.
        words: u64,
        /// Words it should have.
        expected: u64,
    },
    /// The map was already complete.
    Complete,
}

impl fmt::Display for BitmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BitmapError::Encoding => f.write_str("the bitmap's encoding is unknown"),
            BitmapError::CutRun { position } => {
                write!(f, "the bitmap's code ends inside the run at bit {position}")
            }
            BitmapError::Beyond { position, run, bits } => {
                write!(f, "a run of {run} at bit {position} leaves the bitmap of {bits} bits")
            }
            BitmapError::ChunkLength { words, expected } => {
                write!(f, "a bitmap chunk has {words} words instead of {expected}")
            }
            BitmapError::Complete => f.write_str("a bitmap chunk comes after the end of the map"),
        }
    }
}

impl std::error::Error for BitmapError {}

/// Consecutive bits of the same value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// First bit.
    pub start: u64,
    /// Number of bits, at least 1.
    pub len: u64,
    /// Their value.
    pub set: bool,
}

/// Builds one compressed chunk from alternating run lengths.
pub struct RunEncoder {
    bytes: Vec<u8>,
    /// Code bits in `bytes`.
    code_bits: usize,
    max_code_bits: usize,
    /// Bits of the map that the runs so far stand for.
    covered: u64,
}

impl RunEncoder {
    /// An empty chunk whose first run will be of set bits, or of clear ones.
    pub fn new(first_set: bool, agreed: &Agreed) -> RunEncoder {
        let encoding = RLE_VLI | if first_set { FIRST_SET } else { 0 };
        RunEncoder {
            bytes: vec![encoding],
            code_bits: 0,
            max_code_bits: max_code_bytes(agreed) * 8,
            covered: 0,
        }
    }

    /// Appends a run, or changes nothing and returns false if the chunk is full.
    ///
    /// # Panics
    /// If the run is empty or longer than [`MAX_RUN`].
    pub fn push(&mut self, run: u64) -> bool {
        assert!((1..=MAX_RUN).contains(&run), "a map has fewer bits than the code's longest run");
        let (code, len) = code_of(run);
        if self.code_bits + len as usize > self.max_code_bits {
            return false;
        }
        let (mut code, mut left) = (code, len);
        while left > 0 {
            let offset = self.code_bits % 8;
            if offset == 0 {
                self.bytes.push(0);
            }
            let taken = left.min(8 - offset as u32);
            let last = self.bytes.len() - 1;
            self.bytes[last] |= ((code & ((1 << taken) - 1)) << offset) as u8;
            code >>= taken;
            left -= taken;
            self.code_bits += taken as usize;
        }
        self.covered += run;
        true
    }

    /// Bits of the map in the chunk so far.
    pub fn covered(&self) -> u64 {
        self.covered
    }

    /// True if the code is not longer than the bits it stands for.
    pub fn is_worthwhile(&self) -> bool {
        self.covered >= 8 * (self.bytes.len() as u64 - 1)
    }

    /// The chunk.
    ///
    /// # Panics
    /// If it has no run.
    pub fn finish(mut self) -> CompressedBitmap {
        assert!(self.code_bits > 0, "a chunk has at least one run");
        let unused = 8 * (self.bytes.len() - 1) - self.code_bits;
        self.bytes[0] |= (unused as u8) << 4;
        CompressedBitmap { bytes: self.bytes }
    }
}

/// Reads the runs of one compressed chunk. Stops at the first error.
#[derive(Clone, Debug)]
pub struct RunDecoder<'a> {
    code: &'a [u8],
    /// Code bits read, and code bits there are.
    at: usize,
    end: usize,
    /// Value of the next run, and the bit of the map it starts at.
    set: bool,
    position: u64,
    bits: u64,
}

impl<'a> RunDecoder<'a> {
    /// Reads `chunk`, which continues at bit `position` of a map of `bits` bits.
    ///
    /// # Errors
    /// [`BitmapError::Encoding`].
    pub fn new(
        chunk: &'a CompressedBitmap,
        position: u64,
        bits: u64,
    ) -> Result<RunDecoder<'a>, BitmapError> {
        if !is_known_encoding(chunk) {
            return Err(BitmapError::Encoding);
        }
        let (encoding, code) = (chunk.bytes[0], &chunk.bytes[1..]);
        let unused = usize::from(encoding >> 4 & 7);
        let (end, set) = (8 * code.len() - unused, encoding & FIRST_SET != 0);
        Ok(RunDecoder { code, at: 0, end, set, position, bits })
    }

    /// Bit of the map that the next run starts at.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next 64 code bits, with zeros behind the end.
    fn peek(&self) -> u64 {
        let rest = &self.code[self.at / 8..];
        let mut window = [0; 16];
        let len = rest.len().min(9);
        window[..len].copy_from_slice(&rest[..len]);
        (u128::from_le_bytes(window) >> (self.at % 8)) as u64
    }

    fn run(&mut self) -> Result<Run, BitmapError> {
        let (start, bits) = (self.position, self.bits);
        let (len, taken) = run_of(self.peek());
        if taken as usize > self.end - self.at {
            return Err(BitmapError::CutRun { position: start });
        }
        if start.checked_add(len).is_none_or(|end| end > bits) {
            return Err(BitmapError::Beyond { position: start, run: len, bits });
        }
        let run = Run { start, len, set: self.set };
        self.at += taken as usize;
        self.position += len;
        self.set = !self.set;
        Ok(run)
    }
}

impl Iterator for RunDecoder<'_> {
    type Item = Result<Run, BitmapError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let run = self.run();
        if run.is_err() {
            self.at = self.end;
        }
        Some(run)
    }
}

/// The map that a [`BitmapSender`] sends.
pub trait BitmapSource {
    /// Value of bit `from` and the number of bits from there on that have it, at least 1. It may
    /// be less than there are, and the end of the map needs no care.
    fn run(&self, from: u64) -> (bool, u64);

    /// Bits `64 * index ..` as a word, lowest first. Bits behind the map are masked away.
    fn word(&self, index: u64) -> u64 {
        let (mut word, mut bit) = (0, 0);
        while bit < 64 {
            let (set, len) = self.run(64 * index + bit);
            assert!(len > 0, "every bit has a value");
            let len = len.min(64 - bit);
            if set {
                word |= (u64::MAX >> (64 - len)) << bit;
            }
            bit += len;
        }
        word
    }
}

/// One transfer of a map to a peer.
#[derive(Clone, Debug)]
pub struct BitmapSender {
    bits: u64,
    position: u64,
    agreed: Agreed,
    compress: bool,
    done: bool,
}

impl BitmapSender {
    /// The start of a transfer of `bits` bits, with compressed chunks where they are shorter if
    /// `compress` is set.
    pub fn new(bits: u64, compress: bool, agreed: &Agreed) -> BitmapSender {
        BitmapSender { bits, position: 0, agreed: *agreed, compress, done: false }
    }

    /// True if every packet has been taken.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The next packet, or `None` behind the last. Nothing else may be sent on the data stream
    /// between the first packet and the last.
    pub fn next_packet(
        &mut self,
        volume: VolumeNr,
        source: &(impl BitmapSource + ?Sized),
    ) -> Option<Packet> {
        if self.done {
            return None;
        }
        if self.position == self.bits {
            self.done = true;
            return Some(Packet::Bitmap(volume, BitmapWords { words: Vec::new() }));
        }
        if self.compress
            && let Some(chunk) = self.compressed(source)
        {
            self.done = self.position == self.bits;
            return Some(Packet::CompressedBitmap(volume, chunk));
        }
        Some(Packet::Bitmap(volume, self.plain(source)))
    }

    /// A compressed chunk, unless it would be longer than a plain one.
    fn compressed(&mut self, source: &(impl BitmapSource + ?Sized)) -> Option<CompressedBitmap> {
        let (first_set, _) = source.run(self.position);
        let mut encoder = RunEncoder::new(first_set, &self.agreed);
        let (mut at, mut set) = (self.position, first_set);
        while at < self.bits {
            let len = self.run_length(source, at, set);
            if !encoder.push(len) {
                break;
            }
            at += len;
            set = !set;
        }
        if !encoder.is_worthwhile() {
            return None;
        }
        self.position = at;
        Some(encoder.finish())
    }

    /// Length of the run of `set` bits from `at`, joining pieces that the source did not join.
    fn run_length(&self, source: &(impl BitmapSource + ?Sized), at: u64, set: bool) -> u64 {
        let mut end = at;
        while end < self.bits {
            let (value, len) = source.run(end);
            assert!(len > 0, "every bit has a value");
            if value != set {
                break;
            }
            end = self.bits.min(end.saturating_add(len));
        }
        end - at
    }

    fn plain(&mut self, source: &(impl BitmapSource + ?Sized)) -> BitmapWords {
        let first = self.position / 64;
        let count = max_plain_words(&self.agreed).min(self.bits.div_ceil(64) - first);
        let mut words: Vec<u64> = (first..first + count).map(|index| source.word(index)).collect();
        let end = 64 * (first + count);
        if end > self.bits
            && let Some(last) = words.last_mut()
        {
            *last &= u64::MAX >> (end - self.bits);
        }
        self.position = end.min(self.bits);
        BitmapWords { words }
    }
}

/// How far a transfer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// More chunks follow; nothing else may come on the data stream.
    Continues,
    /// The map is complete.
    Complete,
}

/// One transfer of a map from a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BitmapReceiver {
    bits: u64,
    position: u64,
    max_words: u64,
    complete: bool,
}

impl BitmapReceiver {
    /// The start of a transfer of `bits` bits.
    pub fn new(bits: u64, agreed: &Agreed) -> BitmapReceiver {
        BitmapReceiver { bits, position: 0, max_words: max_plain_words(agreed), complete: false }
    }

    /// Takes a P_BITMAP and reports its set bits, as runs (first bit, number of bits).
    ///
    /// # Errors
    /// The rule the peer has broken. Runs reported before stay reported: they only add
    /// out-of-sync bits.
    pub fn plain(
        &mut self,
        chunk: &BitmapWords,
        mut set: impl FnMut(u64, u64),
    ) -> Result<Progress, BitmapError> {
        self.check_incomplete()?;
        let first = self.position / 64;
        let remaining = if self.position == self.bits { 0 } else { self.bits.div_ceil(64) - first };
        let (words, expected) = (chunk.words.len() as u64, remaining.min(self.max_words));
        if words != expected {
            return Err(BitmapError::ChunkLength { words, expected });
        }
        if words == 0 {
            self.complete = true;
            return Ok(Progress::Complete);
        }
        for (index, word) in chunk.words.iter().enumerate() {
            self.runs_of_word(64 * (first + index as u64), *word, &mut set);
        }
        self.position = self.bits.min(64 * (first + words));
        Ok(Progress::Continues)
    }

    /// Takes a P_COMPRESSED_BITMAP and reports its runs of set bits (first bit, number of bits).
    ///
    /// # Errors
    /// As for [`Self::plain`].
    pub fn compressed(
        &mut self,
        chunk: &CompressedBitmap,
        mut set: impl FnMut(u64, u64),
    ) -> Result<Progress, BitmapError> {
        self.check_incomplete()?;
        let mut runs = RunDecoder::new(chunk, self.position, self.bits)?;
        for run in &mut runs {
            let run = run?;
            if run.set {
                set(run.start, run.len);
            }
        }
        self.position = runs.position();
        self.complete = self.position == self.bits;
        Ok(if self.complete { Progress::Complete } else { Progress::Continues })
    }

    fn check_incomplete(&self) -> Result<(), BitmapError> {
        if self.complete { Err(BitmapError::Complete) } else { Ok(()) }
    }

    /// Runs of set bits in one word. Bits behind the map say nothing.
    fn runs_of_word(&self, base: u64, word: u64, set: &mut impl FnMut(u64, u64)) {
        let valid = (self.bits - base).min(64);
        let mut left = word & (u64::MAX >> (64 - valid));
        while left != 0 {
            let start = left.trailing_zeros();
            let len = (left >> start).trailing_ones();
            set(base + u64::from(start), u64::from(len));
            if start + len == 64 {
                break;
            }
            left &= u64::MAX << (start + len);
        }
    }
}

#[cfg(test)]
mod tests;
