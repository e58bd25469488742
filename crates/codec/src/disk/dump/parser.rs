//! Parser of the dump text: the grammar of metadata §7.3, one function for each rule.
//!
//! Input is untrusted. Memory is bounded by the length of the text: runs stay runs, however long
//! they claim to be.

use std::fmt;

use vocab::{Dagtag, GenUuid, MAX_NODES, NodeId, NodeMask, Sectors};

use super::super::placement::is_bytes_per_bit;
use super::{Dump, DumpV08, DumpV09, Tail, UNCLEAN, WordRuns};
use crate::disk::{AlStriping, MAX_SLOTS, MdFlags, PeerFlags, PeerSlot};

/// Most of a wrong word that an error shows.
const SHOWN: usize = 40;

/// Why a text is not a usable dump. Lines count from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DumpError {
    /// Something else stands where the grammar wants `expected`.
    Unexpected {
        /// Where.
        line: u32,
        /// What the grammar wants.
        expected: &'static str,
        /// What stands there, cut to 40 characters.
        found: String,
    },
    /// A value that metadata cannot have.
    Value {
        /// Where.
        line: u32,
        /// Name of the value.
        name: &'static str,
        /// What it must be.
        must: &'static str,
    },
    /// A peer or slot that is out of order or given twice.
    Index {
        /// Where.
        line: u32,
        /// `peer` or `bitmap`.
        name: &'static str,
        /// Its number.
        index: u64,
    },
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpError::Unexpected { line, expected, found } => {
                write!(f, "line {line}: expected {expected}, found {found}")
            }
            DumpError::Value { line, name, must } => {
                write!(f, "line {line}: {name} must be {must}")
            }
            DumpError::Index { line, name, index } => {
                write!(f, "line {line}: {name}[{index}] is given twice or out of order")
            }
        }
    }
}

impl std::error::Error for DumpError {}

/// Parses a dump. A dump of unclean metadata parses too and says so: it must not be restored.
pub fn parse(text: &str) -> Result<Dump, DumpError> {
    let mut parser = Parser { rest: text, line: 1, token_line: 1 };
    let dump = parser.dump()?;
    match parser.next()? {
        Token::End => Ok(dump),
        token => Err(parser.unexpected("the end of the file", token)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token<'a> {
    Punct(char),
    Hex64(u64),
    Hex32(u32),
    Num(i128),
    Str(&'a str),
    Word(&'a str),
    End,
}

struct Parser<'a> {
    rest: &'a str,
    /// Line of `rest`.
    line: u32,
    /// Line of the token last read.
    token_line: u32,
}

impl<'a> Parser<'a> {
    fn skip_blanks(&mut self) {
        loop {
            let trimmed = self.rest.trim_start();
            let skipped = &self.rest[..self.rest.len() - trimmed.len()];
            self.line = self.line.saturating_add(newlines(skipped));
            self.rest = trimmed;
            if !trimmed.starts_with('#') {
                return;
            }
            self.rest = trimmed.find('\n').map_or("", |end| &trimmed[end..]);
        }
    }

    fn take(&mut self, len: usize) -> &'a str {
        let (token, rest) = self.rest.split_at(len);
        self.rest = rest;
        token
    }

    fn next(&mut self) -> Result<Token<'a>, DumpError> {
        self.skip_blanks();
        self.token_line = self.line;
        let Some(first) = self.rest.chars().next() else { return Ok(Token::End) };
        if matches!(first, ';' | '{' | '}' | '[' | ']') {
            self.take(1);
            return Ok(Token::Punct(first));
        }
        if first == '"' {
            let inner = self.rest[1..].find(['"', '\n']).unwrap_or(self.rest.len() - 1);
            if !self.rest[1 + inner..].starts_with('"') || inner == 0 || inner > 20 {
                let found = self.take(self.rest.len());
                return Err(self.unexpected("a string of 1 to 20 characters", Token::Word(found)));
            }
            return Ok(Token::Str(&self.take(inner + 2)[1..=inner]));
        }
        let is_end = |c: char| c.is_whitespace() || matches!(c, ';' | '{' | '}' | '[' | ']' | '"');
        let len = self.rest.find(is_end).unwrap_or(self.rest.len());
        Ok(classify(self.take(len)))
    }

    fn unexpected(&self, expected: &'static str, token: Token<'_>) -> DumpError {
        let mut found = match token {
            Token::Punct(c) => format!("`{c}`"),
            Token::Hex64(value) => format!("0x{value:016X}"),
            Token::Hex32(value) => format!("0x{value:08X}"),
            Token::Num(value) => value.to_string(),
            Token::Str(text) => format!("{text:?}"),
            Token::Word(word) => word.chars().take(SHOWN).collect(),
            Token::End => "the end of the file".to_owned(),
        };
        if let Some((cut, _)) = found.char_indices().nth(SHOWN) {
            found.truncate(cut);
        }
        DumpError::Unexpected { line: self.token_line, expected, found }
    }

    fn value(&self, name: &'static str, must: &'static str) -> DumpError {
        DumpError::Value { line: self.token_line, name, must }
    }

    fn punct(&mut self, wanted: char, expected: &'static str) -> Result<(), DumpError> {
        match self.next()? {
            Token::Punct(c) if c == wanted => Ok(()),
            token => Err(self.unexpected(expected, token)),
        }
    }

    fn open(&mut self) -> Result<(), DumpError> {
        self.punct('{', "`{`")
    }

    fn close(&mut self) -> Result<(), DumpError> {
        self.punct('}', "`}`")
    }

    fn semicolon(&mut self) -> Result<(), DumpError> {
        self.punct(';', "`;`")
    }

    fn keyword(&mut self, wanted: &'static str) -> Result<(), DumpError> {
        match self.next()? {
            Token::Word(word) if word == wanted => Ok(()),
            token => Err(self.unexpected(wanted, token)),
        }
    }

    /// `name NUM ;`
    fn number<T: TryFrom<i128>>(
        &mut self,
        name: &'static str,
        must: &'static str,
    ) -> Result<T, DumpError> {
        self.keyword(name)?;
        let value = match self.next()? {
            Token::Num(value) => T::try_from(value).map_err(|_| self.value(name, must))?,
            token => return Err(self.unexpected("a decimal number", token)),
        };
        self.semicolon()?;
        Ok(value)
    }

    fn hex64(&mut self) -> Result<u64, DumpError> {
        match self.next()? {
            Token::Hex64(value) => {
                self.semicolon()?;
                Ok(value)
            }
            token => Err(self.unexpected("0x and 16 hexadecimal digits", token)),
        }
    }

    fn named_hex64(&mut self, name: &'static str) -> Result<u64, DumpError> {
        self.keyword(name)?;
        self.hex64()
    }

    /// `flags HEX32 ;`
    fn flags(&mut self) -> Result<u32, DumpError> {
        self.keyword("flags")?;
        match self.next()? {
            Token::Hex32(value) => {
                self.semicolon()?;
                Ok(value)
            }
            token => Err(self.unexpected("0x and 8 hexadecimal digits", token)),
        }
    }

    /// `name [ NUM ]`, the name already read.
    fn index(&mut self) -> Result<u64, DumpError> {
        self.punct('[', "`[`")?;
        let index = match self.next()? {
            Token::Num(value) => u64::try_from(value)
                .map_err(|_| self.value("an index in brackets", "a non-negative number"))?,
            token => return Err(self.unexpected("a decimal number", token)),
        };
        self.punct(']', "`]`")?;
        Ok(index)
    }

    fn dump(&mut self) -> Result<Dump, DumpError> {
        self.keyword("version")?;
        let version = self.next()?;
        if !matches!(version, Token::Str("v08" | "v09")) {
            return Err(self.unexpected("\"v08\" or \"v09\"", version));
        }
        self.semicolon()?;
        let mut unclean = false;
        loop {
            match (self.next()?, version) {
                (Token::Word(UNCLEAN), _) if !unclean => unclean = true,
                (Token::Word("max-peers"), Token::Str("v09")) => {
                    return self.v09(unclean).map(Dump::V09);
                }
                (Token::Word("uuid"), Token::Str("v08")) => {
                    return self.v08(unclean).map(Dump::V08);
                }
                (token, Token::Str("v09")) => return Err(self.unexpected("max-peers", token)),
                (token, _) => return Err(self.unexpected("uuid", token)),
            }
        }
    }

    fn v09(&mut self, unclean: bool) -> Result<DumpV09, DumpError> {
        let max_peers = match self.next()? {
            Token::Num(value) => u32::try_from(value)
                .ok()
                .filter(|n| (1..=MAX_SLOTS).contains(n))
                .ok_or(self.value("max-peers", "1 to 31"))?,
            token => return Err(self.unexpected("a decimal number", token)),
        };
        self.semicolon()?;
        let node_id = match self.number::<i8>("node-id", "-1 to 31")? {
            -1 => None,
            id => Some(
                u8::try_from(id)
                    .ok()
                    .and_then(NodeId::new)
                    .ok_or(self.value("node-id", "-1 to 31"))?,
            ),
        };
        let current_uuid = GenUuid(self.named_hex64("current-uuid")?);
        let flags = MdFlags(self.flags()?);
        let (members, peers) = self.members_and_peers()?;
        self.keyword("history-uuids")?;
        self.open()?;
        let mut history = Box::new([GenUuid::NONE; MAX_NODES]);
        for uuid in history.iter_mut() {
            *uuid = GenUuid(self.hex64()?);
        }
        self.close()?;
        let tail = self.tail()?;
        let mut slots = Vec::new();
        for slot in 0..u64::from(max_peers) {
            self.keyword("bitmap")?;
            let index = self.index()?;
            if index != slot {
                return Err(DumpError::Index { line: self.token_line, name: "bitmap", index });
            }
            slots.push(self.words()?);
        }
        Ok(DumpV09 {
            unclean,
            max_peers,
            node_id,
            current_uuid,
            flags,
            members,
            peers,
            history,
            tail,
            slots,
        })
    }

    #[allow(clippy::type_complexity, reason = "two neighbours of one rule")]
    fn members_and_peers(
        &mut self,
    ) -> Result<(Option<NodeMask>, Box<[PeerSlot; MAX_NODES]>), DumpError> {
        let mut members = None;
        let mut peers = Box::new([PeerSlot::default(); MAX_NODES]);
        let mut seen = 0u32;
        while seen != u32::MAX {
            match self.next()? {
                Token::Word("members") if members.is_none() && seen == 0 => {
                    members = Some(NodeMask(self.hex64()?));
                }
                Token::Word("peer") => {
                    let index = self.index()?;
                    if index >= MAX_NODES as u64 || seen & 1 << index != 0 {
                        return Err(DumpError::Index {
                            line: self.token_line,
                            name: "peer",
                            index,
                        });
                    }
                    seen |= 1 << index;
                    peers[index as usize] = self.peer()?;
                }
                token => return Err(self.unexpected("a peer, each from 0 to 31 once", token)),
            }
        }
        Ok((members, peers))
    }

    fn peer(&mut self) -> Result<PeerSlot, DumpError> {
        self.open()?;
        let bitmap_index = match self.number::<i8>("bitmap-index", "-1 to 31")? {
            -1 => None,
            index @ 0..=31 => Some(index as u8),
            _ => return Err(self.value("bitmap-index", "-1 to 31")),
        };
        let bitmap_uuid = GenUuid(self.named_hex64("bitmap-uuid")?);
        let bitmap_dagtag = Dagtag(self.named_hex64("bitmap-dagtag")?);
        let flags = PeerFlags(self.flags()?);
        self.close()?;
        Ok(PeerSlot { bitmap_uuid, bitmap_dagtag, flags, bitmap_index })
    }

    fn v08(&mut self, unclean: bool) -> Result<DumpV08, DumpError> {
        self.open()?;
        let mut uuids = [GenUuid::NONE; 4];
        for uuid in &mut uuids {
            *uuid = GenUuid(self.hex64()?);
        }
        let flags = MdFlags(self.flags()?);
        self.close()?;
        let tail = self.tail()?;
        self.keyword("bm")?;
        Ok(DumpV08 { unclean, uuids, flags, tail, slot: self.words()? })
    }

    fn tail(&mut self) -> Result<Tail, DumpError> {
        let la_size = Sectors(self.number("la-size-sect", "a non-negative number")?);
        let bm_bytes_per_bit: u32 = self.number("bm-byte-per-bit", "4096 to 1048576")?;
        if !is_bytes_per_bit(bm_bytes_per_bit) {
            return Err(self.value("bm-byte-per-bit", "a power of two from 4096 to 1048576"));
        }
        let device_uuid = self.named_hex64("device-uuid")?;
        let la_peer_max_bio_size = self.number("la-peer-max-bio-size", "0 to 4294967295")?;
        let stripes = self.number("al-stripes", "at least 1")?;
        let stripe_size = self.number("al-stripe-size-4k", "at least 1")?;
        let al = AlStriping::new(stripes, stripe_size)
            .ok_or(self.value("al-stripe-size-4k", "such that 8 to 4194304 blocks result"))?;
        Ok(Tail { la_size, bm_bytes_per_bit, device_uuid, la_peer_max_bio_size, al })
    }

    fn words(&mut self) -> Result<WordRuns, DumpError> {
        self.open()?;
        let mut runs = WordRuns::default();
        loop {
            match self.next()? {
                Token::Punct('}') => return Ok(runs),
                Token::Hex64(word) => {
                    self.semicolon()?;
                    runs.push(1, word);
                }
                Token::Num(count) => {
                    let count = u64::try_from(count)
                        .map_err(|_| self.value("a repetition", "a non-negative number"))?;
                    self.keyword("times")?;
                    let word = self.hex64()?;
                    runs.push(count, word);
                }
                token => return Err(self.unexpected("a word of the bitmap or `}`", token)),
            }
        }
    }
}

fn newlines(text: &str) -> u32 {
    u32::try_from(text.bytes().filter(|b| *b == b'\n').count()).unwrap_or(u32::MAX)
}

fn classify(text: &str) -> Token<'_> {
    if let Some(digits) = text.strip_prefix("0x")
        && digits.bytes().all(|b| b.is_ascii_hexdigit())
    {
        let value = || u64::from_str_radix(digits, 16).ok();
        match digits.len() {
            16 => return value().map_or(Token::Word(text), Token::Hex64),
            8 => return value().map_or(Token::Word(text), |value| Token::Hex32(value as u32)),
            _ => return Token::Word(text),
        }
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    if (1..=19).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().map_or(Token::Word(text), Token::Num);
    }
    Token::Word(text)
}
