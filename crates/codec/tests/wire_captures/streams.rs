//! Reassembled TCP streams cut into DRBD packets.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use codec::wire::{Agreed, Command, Header, HeaderVersion, Packet, Stream, decode, decode_header};

use crate::pcap::{Flow, Reassembled};

/// One packet as it was on the wire.
#[derive(Clone, Debug)]
pub struct Captured {
    pub time: u64,
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    /// What it was decoded with.
    pub agreed: Agreed,
    pub header: Header,
    pub packet: Packet,
    /// Header and payload.
    pub bytes: Vec<u8>,
    /// First packet of a data socket: the connection starts anew.
    pub starts: bool,
}

impl Captured {
    /// Header and the part of the payload that is decoded.
    pub fn decoded_bytes(&self) -> &[u8] {
        &self.bytes[..self.header.size() + self.header.fixed_len()]
    }

    /// Data-integrity digest and data of a bulk packet.
    pub fn digest_and_data(&self) -> (&[u8], &[u8]) {
        let rest = &self.bytes[self.header.size() + self.header.fixed_len()..];
        let digest = if self.packet.command().is_bulk() { self.agreed.peer_digest_len } else { 0 };
        rest.split_at(digest)
    }
}

/// What the nodes of a capture agree on and what a capture that starts in the middle hides.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub version: u32,
    pub features: u32,
    /// Digest length on connections that are up when the capture starts.
    pub digest: usize,
}

/// All packets of a capture in the order of their arrival.
pub fn packets(flows: &[Reassembled], setup: Setup) -> Vec<Captured> {
    let mut kinds: BTreeMap<Flow, Stream> = BTreeMap::new();
    for flow in flows {
        if let Some(kind) = kind_of(flow) {
            kinds.insert(flow.flow, kind);
            kinds.insert(flow.flow.reversed(), kind);
        }
    }
    let mut all: Vec<Captured> =
        flows.iter().flat_map(|flow| split(flow, kinds[&flow.flow], setup)).collect();
    // Stable: packets of one flow stay in order.
    all.sort_by_key(|captured| captured.time);
    all
}

/// Data or control, by the command at the start of the flow.
fn kind_of(flow: &Reassembled) -> Option<Stream> {
    let first = flow.pieces.iter().find_map(|piece| piece.bytes.as_ref())?;
    let number = match first[..4] {
        [0x83, 0x74, ..] => &first[4..6],
        [0x86, 0x20, ..] => &first[6..8],
        _ => return None,
    };
    let command = Command::from_number(u16::from_be_bytes([number[0], number[1]]))?;
    Some(if command.streams().contains(Stream::Data) { Stream::Data } else { Stream::Control })
}

fn split(flow: &Reassembled, stream: Stream, setup: Setup) -> Vec<Captured> {
    let mut cutter = Cutter {
        flow: flow.flow,
        stream,
        setup,
        agreed: if flow.from_start { Agreed::NOTHING } else { known(setup, setup.digest) },
        in_step: flow.from_start,
        fresh: flow.from_start,
        buffer: Vec::new(),
        out: Vec::new(),
    };
    for piece in &flow.pieces {
        match &piece.bytes {
            Some(bytes) => cutter.buffer.extend_from_slice(bytes),
            None => {
                // What was begun is lost; look for the next header.
                cutter.buffer.clear();
                cutter.in_step = false;
                continue;
            }
        }
        while cutter.cut(piece.time) {}
    }
    cutter.out
}

fn known(setup: Setup, digest: usize) -> Agreed {
    Agreed {
        version: setup.version,
        features: setup.features,
        peer_digest_len: digest,
        own_digest_len: digest,
    }
}

struct Cutter {
    flow: Flow,
    stream: Stream,
    setup: Setup,
    agreed: Agreed,
    /// The buffer starts with a header.
    in_step: bool,
    /// Nothing was cut yet, and the flow's beginning is here.
    fresh: bool,
    buffer: Vec<u8>,
    out: Vec<Captured>,
}

impl Cutter {
    /// Takes one packet off the buffer; false if it is not complete.
    fn cut(&mut self, time: u64) -> bool {
        if !self.in_step {
            let found = (0..self.buffer.len()).find(|at| {
                matches!(decode_header(&self.buffer[*at..], self.stream, &self.agreed), Ok(Some(_)))
            });
            let Some(at) = found else { return false };
            self.buffer.drain(..at);
            self.in_step = true;
        }
        let agreed = self.agreement_of_next();
        let header = match decode_header(&self.buffer, self.stream, &agreed) {
            Ok(Some(header)) => header,
            Ok(None) => return false,
            Err(error) => panic!("{:?}: {error}", self.flow),
        };
        let size = header.size() + header.len() as usize;
        if self.buffer.len() < size {
            return false;
        }
        let bytes: Vec<u8> = self.buffer.drain(..size).collect();
        let fixed = &bytes[header.size()..][..header.fixed_len()];
        let packet = match decode(header, fixed, &agreed) {
            Ok(packet) => packet,
            Err(error) => panic!("{:?}: {error}", self.flow),
        };
        self.follow(&packet);
        let starts = std::mem::take(&mut self.fresh) && self.stream == Stream::Data;
        self.out.push(Captured {
            time,
            from: *self.flow.from.ip(),
            to: *self.flow.to.ip(),
            agreed,
            header,
            packet,
            bytes,
            starts,
        });
        true
    }

    /// A control stream does not say when the features are exchanged: its header does.
    fn agreement_of_next(&self) -> Agreed {
        let is_v80 = self.buffer.starts_with(&[0x83, 0x74]);
        match (self.stream, is_v80) {
            (Stream::Control, true) => Agreed::NOTHING,
            (Stream::Control, false) => known(self.setup, 0),
            (Stream::Data, _) => self.agreed,
        }
    }

    /// What a packet on the data stream changes about those behind it.
    fn follow(&mut self, packet: &Packet) {
        match packet {
            Packet::ConnectionFeatures(features) => {
                assert_eq!(features.protocol_max, self.setup.version);
                assert_eq!(features.feature_flags, self.setup.features);
                self.agreed = known(self.setup, 0);
            }
            Packet::Protocol(protocol) | Packet::ProtocolUpdate(protocol) => {
                let len = match &protocol.integrity_alg[..] {
                    b"" => 0,
                    b"crc32c" => 4,
                    other => panic!("unknown digest {:?}", String::from_utf8_lossy(other)),
                };
                self.agreed = known(self.setup, len);
            }
            _ => {}
        }
    }
}

/// What to encode a captured packet with to get the header that it had.
pub fn encode_with(captured: &Captured) -> Agreed {
    match captured.header.version() {
        HeaderVersion::V80 => Agreed::NOTHING,
        HeaderVersion::V95 | HeaderVersion::V100 => captured.agreed,
    }
}
