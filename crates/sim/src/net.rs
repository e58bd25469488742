//! The simulated network: per pair of nodes at most one link of two ordered streams each way.
//!
//! What a driver's sockets promise, and not more: packets of one stream arrive in order; streams
//! and links are not ordered among each other; a link that breaks delivers any prefix of what
//! was under way, each stream for itself, and the two ends notice at different times, or only by
//! what they miss. While a direction is cut nothing arrives; if the link outlives the cut, the
//! stalled packets arrive after it (retransmission). Data may be damaged on the way; with
//! `data-integrity-alg` their digest travels along, and the receiving driver compares.
//!
//! This module decides *when*; the world carries out its [`NetEvent`]s.

use std::collections::VecDeque;

use codec::wire::{Agreed, CHALLENGE_LEN, Digest, Features, Packet, decode, decode_header, encode};
use replication::io::{Challenge, LinkLoss};

use crate::content::Data;
use crate::rng::Rng;

/// How long a driver waits for the end of one stream after that of the other, in nanoseconds.
const LINGER: u64 = 200_000_000;
/// Bytes of the digest of data.
const DIGEST_LEN: usize = 8;
/// Those of its features that a kernel node could have.
const KERNEL_FEATURES: u32 = 0x00ff_ffff;
/// Those that none before protocol 122 has.
const LATE_FEATURES: u32 = 0x390;

/// Index of a node of the world (equal to its node id).
pub type NodeIx = usize;

/// A packet under way.
#[derive(Debug)]
pub struct Parcel {
    /// When it may arrive.
    at: u64,
    /// The packet; `None` is the end of the stream.
    pub packet: Option<Packet>,
    /// The data behind it.
    pub data: Option<Data>,
    /// The digest that the sender has computed of them, if it is to.
    digest: Option<Digest>,
}

impl Parcel {
    /// False if the data are not what their digest was computed of.
    pub fn is_whole(&self) -> bool {
        match (&self.data, &self.digest) {
            (Some(data), Some(digest)) => data.digest() == *digest,
            _ => true,
        }
    }
}

/// Something the network does at a given time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetEvent {
    /// See whether two nodes that want a link can have one.
    Attempt {
        /// The pair.
        pair: usize,
    },
    /// An end learns that its link is up.
    Up {
        /// The pair.
        pair: usize,
        /// The link.
        link: u64,
        /// Which end: 0 is the lower node.
        end: usize,
    },
    /// An end learns that its link is gone.
    Down {
        /// The pair.
        pair: usize,
        /// The link.
        link: u64,
        /// Which end.
        end: usize,
        /// How.
        loss: LinkLoss,
    },
    /// The first packet of a stream arrives.
    Arrive {
        /// The pair.
        pair: usize,
        /// The link.
        link: u64,
        /// The receiving end.
        end: usize,
        /// 0 data, 1 control.
        stream: usize,
    },
}

/// One direction of one stream.
#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Parcel>,
    /// Arrival of the last packet put in.
    last: u64,
    /// An [`NetEvent::Arrive`] is scheduled.
    scheduled: bool,
}

/// A pair of sockets between two nodes.
#[derive(Debug)]
struct Link {
    id: u64,
    /// Which ends still hold it.
    held: [bool; 2],
    /// Which ends have been told that it is up.
    told: [bool; 2],
    /// It breaks: nothing that is sent from now on arrives, whether the sender knows or not.
    broken: bool,
    /// When each end is told at the latest.
    up_at: [u64; 2],
    /// By receiving end and stream.
    lanes: [[Lane; 2]; 2],
    /// End that accepted the control socket.
    tie_break: usize,
    /// By receiving end and stream: the end of the stream has arrived.
    ended: [[bool; 2]; 2],
    /// By end, the features it has sent, and those it has received.
    features: [(Option<Features>, Option<Features>); 2],
    /// By end, the bytes of the digest that goes with the data it sends.
    digests: [usize; 2],
    /// By receiving end: the next data that arrive were damaged on the way.
    damaged: [bool; 2],
}

impl Link {
    /// What an end has agreed on when it sends a packet.
    fn agreed(&self, end: usize, packet: &Packet) -> Agreed {
        let mut agreed = match (packet, self.features[end]) {
            (Packet::ConnectionFeatures(_), _) => Agreed::NOTHING,
            (_, (Some(a), Some(b))) => {
                let max = |f: &Features| match f.protocol_max {
                    0 => f.protocol_min,
                    max => max,
                };
                Agreed::new(max(&a).min(max(&b)), a.feature_flags & b.feature_flags)
            }
            _ => Agreed::NOTHING,
        };
        (agreed.own_digest_len, agreed.peer_digest_len) = (self.digests[end], self.digests[end]);
        agreed
    }
}

#[derive(Debug, Default)]
struct Pair {
    nodes: [NodeIx; 2],
    /// Which ends ask for a link.
    wanted: [bool; 2],
    link: Option<Link>,
    /// An attempt is scheduled.
    attempt: bool,
}

/// Delays of one direction of a pair, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Shortest and longest delay of a packet, skewed towards the shortest.
    pub delay: (u64, u64),
    /// Time one sector of payload takes.
    pub per_sector: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { delay: (30_000, 1_000_000), per_sector: 500 }
    }
}

/// What became of a packet handed to the network.
pub type Scheduled = Option<(u64, NetEvent)>;

/// The network.
#[derive(Debug)]
pub struct Net {
    nodes: usize,
    pairs: Vec<Pair>,
    /// By `from * nodes + to`: nothing gets through.
    cut: Vec<bool>,
    pace: Vec<Pace>,
    next_link: u64,
    rng: Rng,
    /// The nodes take each other for kernel nodes.
    foreign: bool,
    /// They take each other for nodes of protocol 8.
    legacy: bool,
    /// Newest version that each node is said to speak.
    newest: Vec<u32>,
    /// Room for the bytes of one packet.
    bytes: Vec<u8>,
}

impl Net {
    /// A network of so many nodes, nothing connected and nothing cut.
    pub fn new(nodes: usize, rng: Rng) -> Net {
        let mut pairs = Vec::new();
        for low in 0..nodes {
            for high in low + 1..nodes {
                pairs.push(Pair { nodes: [low, high], ..Pair::default() });
            }
        }
        Net {
            nodes,
            pairs,
            cut: vec![false; nodes * nodes],
            pace: vec![Pace::default(); nodes * nodes],
            next_link: 1,
            rng,
            foreign: false,
            legacy: false,
            newest: vec![u32::MAX; nodes],
            bytes: Vec::new(),
        }
    }

    /// Number of pairs.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The nodes of a pair, lower first.
    pub fn nodes_of(&self, pair: usize) -> [NodeIx; 2] {
        self.pairs[pair].nodes
    }

    fn pair_of(&self, a: NodeIx, b: NodeIx) -> (usize, usize) {
        let (low, high) = (a.min(b), a.max(b));
        // Pairs are listed row by row of the upper triangle.
        let pair = low * (2 * self.nodes - low - 1) / 2 + (high - low - 1);
        debug_assert_eq!(self.pairs[pair].nodes, [low, high], "the triangle is indexed right");
        (pair, usize::from(a > b))
    }

    /// What the peer of an end of a link has to sign. Not drawn: that a challenge is never used again
    /// is all that counts here.
    pub fn challenge(link: u64, end: usize) -> Challenge {
        let mut rng = Rng::new(2 * link + end as u64);
        let mut challenge = Challenge::new([0; CHALLENGE_LEN]);
        challenge.chunks_exact_mut(8).for_each(|part| {
            part.copy_from_slice(&rng.bits().to_le_bytes());
        });
        challenge
    }

    /// Delays from one node to another.
    pub fn set_pace(&mut self, from: NodeIx, to: NodeIx, pace: Pace) {
        self.pace[from * self.nodes + to] = pace;
    }

    /// True if nothing gets from one node to the other.
    pub fn is_cut(&self, from: NodeIx, to: NodeIx) -> bool {
        self.cut[from * self.nodes + to]
    }

    /// True if two nodes can reach each other both ways.
    pub fn reachable(&self, a: NodeIx, b: NodeIx) -> bool {
        !self.is_cut(a, b) && !self.is_cut(b, a)
    }

    /// True if both ends have been told of a link and both still hold it.
    pub fn linked(&self, a: NodeIx, b: NodeIx) -> bool {
        let (pair, _) = self.pair_of(a, b);
        self.pairs[pair].link.as_ref().is_some_and(|l| l.held == [true; 2] && l.told == [true; 2])
    }

    /// True if this end of the pair may send.
    pub fn may_send(&self, from: NodeIx, to: NodeIx) -> bool {
        let (pair, end) = self.pair_of(from, to);
        self.pairs[pair].link.as_ref().is_some_and(|l| l.held[end] && l.told[end])
    }

    /// Damages the next data that arrive at `to` from `from`, if they are linked.
    pub fn damage(&mut self, from: NodeIx, to: NodeIx) {
        let (pair, to_end) = self.pair_of(to, from);
        if let Some(link) = &mut self.pairs[pair].link {
            link.damaged[to_end] = true;
        }
    }

    /// From now on nodes agree on what they would agree on with kernel nodes.
    pub fn hide_own_features(&mut self) {
        self.foreign = true;
    }

    /// From now on nodes speak protocol 8 with each other.
    pub fn speak_legacy(&mut self) {
        self.legacy = true;
    }

    /// From now on the others take the node for one that speaks no newer version.
    pub fn limit_version(&mut self, node: NodeIx, newest: u32) {
        self.newest[node] = newest;
    }

    /// What a node offers another one as far as both know. Neither end knows of a limit.
    fn offered(&self, from: NodeIx, to: NodeIx, features: Features) -> Features {
        let protocol_max = features.protocol_max.min(self.newest[from]).min(self.newest[to]);
        let late = if protocol_max < 122 { LATE_FEATURES } else { 0 };
        let foreign = if self.foreign { KERNEL_FEATURES } else { u32::MAX };
        let feature_flags = features.feature_flags & foreign & !late;
        Features { protocol_max, feature_flags, ..features }
    }

    /// Cuts or heals one direction; returns what has to be scheduled.
    pub fn set_cut(
        &mut self,
        now: u64,
        from: NodeIx,
        to: NodeIx,
        cut: bool,
    ) -> Vec<(u64, NetEvent)> {
        self.cut[from * self.nodes + to] = cut;
        if cut {
            return Vec::new();
        }
        let (pair_ix, to_end) = self.pair_of(to, from);
        let mut events = Vec::new();
        // Retransmission takes a while, for each stream its own.
        let delays = [0; 2].map(|_: u64| self.rng.skewed(100_000, 3_000_000_000));
        if let Some(link) = &mut self.pairs[pair_ix].link {
            for (stream, lane) in link.lanes[to_end].iter_mut().enumerate() {
                if lane.queue.is_empty() || lane.scheduled {
                    continue;
                }
                lane.scheduled = true;
                let event = NetEvent::Arrive { pair: pair_ix, link: link.id, end: to_end, stream };
                events.push((now + delays[stream], event));
            }
        }
        events.extend(self.want_attempt(now, pair_ix));
        events
    }

    fn want_attempt(&mut self, now: u64, pair: usize) -> Scheduled {
        let [a, b] = self.pairs[pair].nodes;
        let state = &self.pairs[pair];
        if state.attempt || state.wanted != [true; 2] || !self.reachable(a, b) {
            return None;
        }
        self.pairs[pair].attempt = true;
        Some((now + self.rng.skewed(200_000, 2_000_000_000), NetEvent::Attempt { pair }))
    }

    /// A node asks for a link.
    pub fn connect(&mut self, now: u64, node: NodeIx, peer: NodeIx) -> Scheduled {
        let (pair, end) = self.pair_of(node, peer);
        self.pairs[pair].wanted[end] = true;
        self.want_attempt(now, pair)
    }

    /// Carries out an [`NetEvent::Attempt`].
    pub fn attempt(&mut self, now: u64, pair: usize) -> Vec<(u64, NetEvent)> {
        let [a, b] = self.pairs[pair].nodes;
        let reachable = self.reachable(a, b);
        let state = &mut self.pairs[pair];
        state.attempt = false;
        if state.wanted != [true; 2] || !reachable {
            return Vec::new();
        }
        assert!(state.link.is_none(), "an end that wants a link holds none");
        state.wanted = [false; 2];
        let id = self.next_link;
        self.next_link += 1;
        let up_at = [0; 2].map(|_: u64| now + self.rng.skewed(10_000, 500_000_000));
        let mut lanes: [[Lane; 2]; 2] = Default::default();
        for (end, lanes) in lanes.iter_mut().enumerate() {
            lanes.iter_mut().for_each(|lane| lane.last = up_at[end]);
        }
        state.link = Some(Link {
            id,
            held: [true; 2],
            told: [false; 2],
            broken: false,
            up_at,
            lanes,
            tie_break: self.rng.below(2) as usize,
            ended: [[false; 2]; 2],
            features: [(None, None); 2],
            digests: [0; 2],
            damaged: [false; 2],
        });
        (0..2).map(|end| (up_at[end], NetEvent::Up { pair, link: id, end })).collect()
    }

    /// Carries out an [`NetEvent::Up`]: whether the end is to be told, and its tie-break bit.
    pub fn up(&mut self, pair: usize, id: u64, end: usize) -> Option<bool> {
        let link = self.pairs[pair].link.as_mut().filter(|l| l.id == id && l.held[end])?;
        link.told[end] = true;
        Some(link.tie_break == end)
    }

    /// Turns a packet into the bytes that travel, and back: what arrives is what the codec makes
    /// of them with what this link has agreed on.
    pub fn transcode(
        &mut self,
        from: NodeIx,
        to: NodeIx,
        packet: &Packet,
    ) -> Result<Packet, String> {
        let (pair, end) = self.pair_of(from, to);
        let packet = &match packet {
            Packet::ConnectionFeatures(features) if !self.legacy => {
                Packet::ConnectionFeatures(self.offered(from, to, *features))
            }
            // As DRBD 8.4.11 sends them.
            Packet::ConnectionFeatures(_) if self.legacy => Packet::ConnectionFeatures(Features {
                protocol_min: 86,
                feature_flags: 0xf,
                protocol_max: 101,
                sender_node_id: 0,
                receiver_node_id: 0,
            }),
            packet => packet.clone(),
        };
        let Some(link) = self.pairs[pair].link.as_mut() else { return Ok(packet.clone()) };
        if let Packet::ConnectionFeatures(features) = packet {
            link.features[end].0 = Some(*features);
        }
        let agreed = link.agreed(end, packet);
        if let Packet::Protocol(protocol) | Packet::ProtocolUpdate(protocol) = packet {
            link.digests[end] = if protocol.integrity_alg.is_empty() { 0 } else { DIGEST_LEN };
        }
        self.bytes.clear();
        encode(packet, &agreed, &mut self.bytes);
        let failed =
            |error: &dyn std::fmt::Debug| format!("{packet:?} is not read back: {error:?}");
        let header = decode_header(&self.bytes, packet.stream(), &agreed)
            .map_err(|error| failed(&error))?
            .ok_or_else(|| failed(&"the header is cut short"))?;
        let fixed = &self.bytes[header.size()..];
        decode(header, fixed, &agreed).map_err(|error| failed(&error))
    }

    /// What the receiver reads if the bytes of a packet are changed; nothing if its codec, or the
    /// node itself, does not take it.
    pub(crate) fn changed(
        &mut self,
        from: NodeIx,
        to: NodeIx,
        packet: &Packet,
        change: impl FnOnce(&mut [u8]),
    ) -> Option<Packet> {
        let (pair, end) = self.pair_of(from, to);
        let limited = self.legacy || self.newest[from].min(self.newest[to]) != u32::MAX;
        let link = self.pairs[pair].link.as_mut()?;
        if limited && matches!(packet, Packet::ConnectionFeatures(_)) {
            // Both nodes offer what an older one does without knowing of it.
            return Some(packet.clone());
        }
        let agreed = link.agreed(end, packet);
        self.bytes.clear();
        encode(packet, &agreed, &mut self.bytes);
        change(&mut self.bytes);
        let header = decode_header(&self.bytes, packet.stream(), &agreed).ok()??;
        let fixed = self.bytes.get(header.size()..header.size() + header.fixed_len())?;
        let packet = decode(header, fixed, &agreed).ok()?;
        if let Packet::ConnectionFeatures(features) = &packet {
            link.features[1 - end].1 = Some(*features);
        }
        Some(packet)
    }

    /// Sends a packet, or the end of the streams (`packet` is `None`) on both.
    pub fn send(
        &mut self,
        now: u64,
        from: NodeIx,
        to: NodeIx,
        stream: usize,
        packet: Option<Packet>,
        data: Option<Data>,
    ) -> Scheduled {
        let (pair, from_end) = self.pair_of(from, to);
        let to_end = 1 - from_end;
        let pace = self.pace[from * self.nodes + to];
        let mut delay = self.rng.skewed(pace.delay.0, pace.delay.1);
        if self.rng.one_in(500) {
            // A lost segment: the stream waits for its retransmission.
            delay += self.rng.range(1_000_000, 300_000_000);
        }
        let cut = self.is_cut(from, to);
        let link = self.pairs[pair].link.as_mut()?;
        if !link.held[to_end] {
            // The other end is gone: what is sent is answered by a reset, if anything gets there.
            if cut || self.is_cut(to, from) || packet.is_none() {
                return None;
            }
            let id = self.pairs[pair].link.as_ref().expect("looked at just now").id;
            let loss = LinkLoss::Broken;
            let event = NetEvent::Down { pair, link: id, end: from_end, loss };
            return Some((now + delay, event));
        }
        if link.broken {
            return None;
        }
        let lane = &mut link.lanes[to_end][stream];
        let sectors = data.as_ref().map_or(0, Data::sectors);
        let wants_digest = link.digests[from_end] > 0;
        let digest = data.as_ref().filter(|_| wants_digest).map(Data::digest);
        let at = lane.last.max(now + delay) + sectors * pace.per_sector;
        lane.last = at;
        lane.queue.push_back(Parcel { at, packet, data, digest });
        if lane.scheduled || cut {
            return None;
        }
        lane.scheduled = true;
        Some((at, NetEvent::Arrive { pair, link: link.id, end: to_end, stream }))
    }

    /// Carries out an [`NetEvent::Arrive`]: the packet, and when to look for the next one.
    pub fn arrive(
        &mut self,
        now: u64,
        pair: usize,
        id: u64,
        end: usize,
        stream: usize,
    ) -> (Option<Parcel>, Scheduled) {
        let nodes = self.pairs[pair].nodes;
        let cut = self.is_cut(nodes[1 - end], nodes[end]);
        let Some(link) = self.pairs[pair].link.as_mut().filter(|l| l.id == id) else {
            return (None, None);
        };
        let lane = &mut link.lanes[end][stream];
        lane.scheduled = false;
        if cut || !link.held[end] {
            return (None, None);
        }
        let again = NetEvent::Arrive { pair, link: id, end, stream };
        match lane.queue.front() {
            None => return (None, None),
            Some(first) if first.at > now => {
                lane.scheduled = true;
                return (None, Some((first.at, again)));
            }
            Some(_) => {}
        }
        let mut parcel = lane.queue.pop_front();
        if let Some(data) = parcel.as_mut().and_then(|p| p.data.as_mut()) {
            if std::mem::take(&mut link.damaged[end]) {
                *data = data.damaged();
            }
        }
        if let Some(Packet::ConnectionFeatures(features)) =
            parcel.as_ref().and_then(|p| p.packet.as_ref())
        {
            link.features[end].1 = Some(*features);
        }
        let lane = &mut link.lanes[end][stream];
        let next = lane.queue.front().map(|next| (next.at.max(now), again));
        lane.scheduled = next.is_some();
        (parcel, next)
    }

    /// The end of a stream has arrived. The other stream may have packets that were sent before
    /// it, so the driver waits for that stream's end or a moment. Returns when to look again, or
    /// `None` if both streams have ended.
    pub fn stream_ended(
        &mut self,
        now: u64,
        pair: usize,
        id: u64,
        end: usize,
        stream: usize,
    ) -> Scheduled {
        let link = self.pairs[pair].link.as_mut().filter(|l| l.id == id)?;
        link.ended[end][stream] = true;
        if link.ended[end] == [true; 2] {
            return None;
        }
        Some((now + LINGER, NetEvent::Down { pair, link: id, end, loss: LinkLoss::Closed }))
    }

    /// Carries out an [`NetEvent::Down`]: whether the end is to be told, and what has to be
    /// scheduled. An end that was not told of the link either goes on trying.
    pub fn down(&mut self, now: u64, pair: usize, id: u64, end: usize) -> (bool, Scheduled) {
        let Some(link) = self.pairs[pair].link.as_mut().filter(|l| l.id == id) else {
            return (false, None);
        };
        let (held, told) = (link.held[end], link.told[end]);
        self.release(pair, end);
        if !held || told {
            return (held, None);
        }
        self.pairs[pair].wanted[end] = true;
        (false, self.want_attempt(now, pair))
    }

    /// An end no longer holds the link; forgets the link when nobody does.
    fn release(&mut self, pair: usize, end: usize) {
        let Some(link) = &mut self.pairs[pair].link else { return };
        link.held[end] = false;
        if link.held == [false; 2] {
            self.pairs[pair].link = None;
        }
    }

    /// A node stops asking for a link and closes the one it has. `polite` is a close that sends
    /// the end of the streams; otherwise (power loss) the peer hears nothing.
    pub fn close(
        &mut self,
        now: u64,
        node: NodeIx,
        peer: NodeIx,
        polite: bool,
    ) -> Vec<(u64, NetEvent)> {
        let (pair, end) = self.pair_of(node, peer);
        self.pairs[pair].wanted[end] = false;
        let Some(link) = &self.pairs[pair].link else { return Vec::new() };
        if !link.held[end] {
            return Vec::new();
        }
        let (id, told) = (link.id, link.told[1 - end]);
        let mut events = Vec::new();
        if polite {
            for stream in 0..2 {
                events.extend(self.send(now, node, peer, stream, None, None));
            }
            if !told {
                // The sockets closed before the peer had used them: it sees that later.
                let at = self.pairs[pair].link.as_ref().map_or(now, |l| l.up_at[1 - end]);
                let loss = LinkLoss::Closed;
                events.push((at + 1, NetEvent::Down { pair, link: id, end: 1 - end, loss }));
            }
        } else {
            self.truncate(pair, 1 - end);
        }
        self.release(pair, end);
        events
    }

    /// Of what is under way to `end`, only a prefix of each stream will arrive.
    fn truncate(&mut self, pair: usize, end: usize) {
        let Some(link) = &mut self.pairs[pair].link else { return };
        for lane in &mut link.lanes[end] {
            let keep = self.rng.below(lane.queue.len() as u64 + 1) as usize;
            lane.queue.truncate(keep);
        }
    }

    /// Like [`reset`](Self::reset), by the nodes.
    pub fn reset_between(&mut self, now: u64, a: NodeIx, b: NodeIx) -> Vec<(u64, NetEvent)> {
        let (pair, _) = self.pair_of(a, b);
        self.reset(now, pair)
    }

    /// The link of two nodes breaks: each end notices at its own time.
    pub fn reset(&mut self, now: u64, pair: usize) -> Vec<(u64, NetEvent)> {
        let Some(link) = &mut self.pairs[pair].link else { return Vec::new() };
        link.broken = true;
        let (id, up_at) = (link.id, link.up_at);
        for end in 0..2 {
            self.truncate(pair, end);
        }
        (0..2)
            .map(|end| {
                let at = (now + self.rng.skewed(10_000, 8_000_000_000)).max(up_at[end] + 1);
                let loss = if self.rng.one_in(4) { LinkLoss::Stalled } else { LinkLoss::Broken };
                (at, NetEvent::Down { pair, link: id, end, loss })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pump(net: &mut Net, mut events: Vec<(u64, NetEvent)>) -> Vec<(u64, usize, Option<Packet>)> {
        let mut seen = Vec::new();
        while !events.is_empty() {
            events.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            let (now, event) = events.pop().unwrap();
            match event {
                NetEvent::Attempt { pair } => events.extend(net.attempt(now, pair)),
                NetEvent::Up { pair, link, end } => {
                    net.up(pair, link, end);
                }
                NetEvent::Down { pair, link, end, .. } => {
                    let (_, next) = net.down(now, pair, link, end);
                    events.extend(next);
                }
                NetEvent::Arrive { pair, link, end, stream } => {
                    let (parcel, next) = net.arrive(now, pair, link, end, stream);
                    events.extend(next);
                    if let Some(parcel) = parcel {
                        seen.push((now, stream, parcel.packet));
                    }
                }
            }
        }
        seen
    }

    fn connected(nodes: usize, seed: u64) -> Net {
        let mut net = Net::new(nodes, Rng::new(seed));
        assert_eq!(net.connect(0, 0, 1), None, "one end alone gets nothing");
        let attempt = net.connect(0, 1, 0).unwrap();
        pump(&mut net, vec![attempt]);
        assert!(net.linked(0, 1) && net.may_send(1, 0));
        net
    }

    #[test]
    fn streams_keep_their_order_whatever_the_delays() {
        for seed in 0..20 {
            let mut net = connected(3, seed);
            let mut events = Vec::new();
            for i in 0..50 {
                let now = 10_000_000_000 + u64::from(i);
                events.extend(net.send(now, 0, 1, 0, Some(Packet::Barrier(i)), None));
                events.extend(net.send(now, 0, 1, 1, Some(Packet::BarrierAck(i, 0)), None));
            }
            let seen = pump(&mut net, events);
            let order: Vec<u32> = seen
                .iter()
                .filter_map(|(_, _, p)| match p {
                    Some(Packet::Barrier(i)) => Some(*i),
                    _ => None,
                })
                .collect();
            assert_eq!(order, (0..50).collect::<Vec<_>>());
            assert_eq!(seen.len(), 100);
        }
    }

    #[test]
    fn a_cut_holds_packets_back_and_a_heal_delivers_them() {
        let mut net = connected(2, 3);
        let now = 10_000_000_000;
        net.set_cut(now, 0, 1, true);
        assert_eq!(net.send(now, 0, 1, 0, Some(Packet::Ping), None), None);
        let events = net.set_cut(now + 1, 0, 1, false);
        assert_eq!(pump(&mut net, events).len(), 1);
    }

    #[test]
    fn nothing_arrives_behind_what_a_reset_has_cut_off() {
        for seed in 0..20 {
            let mut net = connected(2, seed);
            let now = 10_000_000_000;
            let mut events = Vec::new();
            for i in 0..10 {
                events.extend(net.send(now, 0, 1, 0, Some(Packet::Barrier(i)), None));
            }
            events.extend(net.reset_between(now, 0, 1));
            for i in 10..20 {
                events.extend(net.send(now + 1, 0, 1, 0, Some(Packet::Barrier(i)), None));
            }
            let seen = pump(&mut net, events);
            let numbers: Vec<u32> = seen
                .iter()
                .filter_map(|(_, _, p)| match p {
                    Some(Packet::Barrier(i)) => Some(*i),
                    _ => None,
                })
                .collect();
            assert!(numbers.len() <= 10);
            assert_eq!(numbers, (0..numbers.len() as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_close_reaches_the_peer_as_the_end_of_the_stream() {
        let mut net = connected(2, 4);
        let now = 10_000_000_000;
        let mut events: Vec<_> =
            net.send(now, 0, 1, 0, Some(Packet::Ping), None).into_iter().collect();
        events.extend(net.close(now, 0, 1, true));
        let seen = pump(&mut net, events);
        assert!(seen.iter().any(|(_, _, p)| p.is_none()));
        assert!(!net.may_send(0, 1) && net.may_send(1, 0));
        let reset = net.send(now, 1, 0, 0, Some(Packet::Ping), None).unwrap();
        assert!(matches!(reset.1, NetEvent::Down { end: 1, .. }));
    }
}
