//! Classic pcap files and the TCP streams in them. Just enough for captures of IPv4 on Ethernet.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

const SYN: u8 = 2;
const RST: u8 = 4;

/// One direction of one TCP connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Flow {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
}

impl Flow {
    pub fn reversed(self) -> Flow {
        Flow { from: self.to, to: self.from }
    }
}

/// Bytes of a flow in order, or the fact that some are missing.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Microseconds since the epoch of the capturing machine; never decreases within a flow.
    pub time: u64,
    /// `None` for a gap: bytes that the capture does not contain.
    pub bytes: Option<Vec<u8>>,
}

/// A flow put together.
#[derive(Clone, Debug)]
pub struct Reassembled {
    pub flow: Flow,
    pub pieces: Vec<Piece>,
    /// The capture contains the beginning.
    pub from_start: bool,
}

struct Segment {
    time: u64,
    seq: u32,
    flags: u8,
    data: Vec<u8>,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    be32(bytes, at).swap_bytes()
}

/// Every flow of a capture that carried bytes, in order of first appearance.
pub fn flows(file: &[u8]) -> Vec<Reassembled> {
    assert_eq!(le32(file, 0), 0xa1b2_c3d4, "a little-endian pcap file with microseconds");
    assert_eq!(le32(file, 20), 1, "of Ethernet frames");
    let mut order = Vec::new();
    let mut segments: BTreeMap<Flow, Vec<Segment>> = BTreeMap::new();
    let mut at = 24;
    while at + 16 <= file.len() {
        let time = u64::from(le32(file, at)) * 1_000_000 + u64::from(le32(file, at + 4));
        let len = le32(file, at + 8) as usize;
        let frame = &file[at + 16..at + 16 + len];
        at += 16 + len;
        let Some((flow, segment)) = segment(time, frame) else { continue };
        if !segments.contains_key(&flow) {
            order.push(flow);
        }
        segments.entry(flow).or_default().push(segment);
    }
    order
        .into_iter()
        .map(|flow| reassemble(flow, &segments[&flow]))
        .filter(|stream| !stream.pieces.is_empty())
        .collect()
}

/// The TCP segment in an Ethernet frame.
fn segment(time: u64, frame: &[u8]) -> Option<(Flow, Segment)> {
    let ip = frame.get(14..)?;
    if be16(frame, 12) != 0x0800 || ip[0] >> 4 != 4 || ip[9] != 6 {
        return None;
    }
    let tcp = &ip[usize::from(ip[0] & 15) * 4..usize::from(be16(ip, 2))];
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    let flow = Flow {
        from: SocketAddrV4::new(address(12), be16(tcp, 0)),
        to: SocketAddrV4::new(address(16), be16(tcp, 2)),
    };
    let data = tcp[usize::from(tcp[12] >> 4) * 4..].to_vec();
    Some((flow, Segment { time, seq: be32(tcp, 4), flags: tcp[13], data }))
}

fn reassemble(flow: Flow, segments: &[Segment]) -> Reassembled {
    let start = segments.iter().find(|s| s.flags & SYN != 0).map(|s| s.seq.wrapping_add(1));
    let with_data = segments.iter().find(|s| !s.data.is_empty()).map(|s| s.seq);
    let base = start.or(with_data).unwrap_or(0);
    // By offset from the base, the longest of repeated segments. A capture that starts in the
    // middle may see a retransmission from before its first segment: negative offsets.
    let mut parts: BTreeMap<i64, &Segment> = BTreeMap::new();
    for segment in segments.iter().filter(|s| !s.data.is_empty() && s.flags & RST == 0) {
        let offset = i64::from(segment.seq.wrapping_sub(base) as i32);
        let part = parts.entry(offset).or_insert(segment);
        if segment.data.len() > part.data.len() {
            *part = segment;
        }
    }
    let mut pieces = Vec::new();
    let (mut end, mut time) = (parts.keys().next().copied().unwrap_or(0), 0);
    if start.is_some() {
        end = 0;
    }
    for (offset, part) in parts {
        time = part.time.max(time);
        if offset > end {
            pieces.push(Piece { time, bytes: None });
            end = offset;
        }
        let known = usize::try_from(end - offset).expect("parts are in order");
        if known < part.data.len() {
            pieces.push(Piece { time, bytes: Some(part.data[known..].to_vec()) });
            end = offset + part.data.len() as i64;
        }
    }
    Reassembled { flow, pieces, from_start: start.is_some() }
}
