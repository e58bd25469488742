//! What a kernel node does differently from an Ashlar node, played as DRBD 9.3.3 was seen to do it on
//! a connection of protocol 122.

use codec::wire::{
    Features, Operation, Packet, StateWord, TWOPC_HAS_REACHABLE, TWOPC_PRI_INCAPABLE, TwoPc,
    TwoPcReply, UuidFlags, Uuids110, feature,
};
use vocab::options::ResourceOptions;
use vocab::{
    ConnState, DiskState, GenUuid, Instant, NodeId, NodeMask, ReplState, Role, Sectors, VolumeNr,
};

use crate::Resource;
use crate::io::{AdminCommand, DiskMeasure, Input, LinkLoss, Output};
use crate::testing::attached;

const NR: VolumeNr = VolumeNr(0);
const CREATED: GenUuid = GenUuid(4);

fn id(id: u8) -> NodeId {
    NodeId::new(id).expect("a small number")
}

fn both() -> NodeMask {
    id(0).mask().with(id(1))
}

/// Node 0, an Ashlar node with a disk that was just created; its peer, node 1, is the kernel.
struct Node {
    resource: Resource,
    now: Instant,
    /// What its disk is found to have room for.
    room: Sectors,
    /// What users have been told of the size last.
    told: Option<Sectors>,
}

impl Node {
    /// Hands it an input, completes what it writes, and returns what it sends.
    fn input(&mut self, input: Input) -> Vec<Packet> {
        let mut sent = Vec::new();
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            self.resource.handle(self.now, input);
            while let Some(output) = self.resource.poll() {
                match output {
                    Output::Send { packet, .. } => sent.push(packet),
                    Output::MetaWrite { op, .. } => {
                        inputs.push(Input::MetaDone { op, result: Ok(()) });
                    }
                    Output::MeasureDisk { volume } => {
                        let result = Ok(DiskMeasure { capacity: self.room, moved: None });
                        inputs.push(Input::DiskMeasured { volume, result });
                    }
                    Output::SizeChanged { size, .. } => self.told = Some(size),
                    _ => {}
                }
            }
        }
        sent
    }

    fn receives(&mut self, packet: Packet) -> Vec<Packet> {
        self.input(Input::Packet { peer: id(1), packet, payload: None })
    }

    /// Connected to a peer whose disk was just created, too.
    fn connected() -> Node {
        let resource = attached(ResourceOptions::default(), |_| {});
        let room = resource.vols[0].size;
        let mut node = Node { resource, now: Instant(3), room, told: None };
        let command = AdminCommand::Connect { peer: id(1), discard_my_data: false };
        node.input(Input::Admin { id: 2, command });
        let sent = node.input(Input::LinkUp {
            peer: id(1),
            tie_break: true,
            challenge: Box::new([0; 64]),
        });
        let Some(Packet::ConnectionFeatures(ours)) = sent.first() else { panic!("{sent:?}") };
        let theirs = Features {
            sender_node_id: 1,
            receiver_node_id: 0,
            protocol_min: 86,
            protocol_max: 124,
            feature_flags: 0x3ff & !feature::BITS_OF_EQUALS,
        };
        let ours = *ours;
        assert!(ours.protocol_max >= 122);
        let sent = node.receives(Packet::ConnectionFeatures(theirs));
        let Some(Packet::Protocol(ours)) = sent.first() else { panic!("{sent:?}") };
        let sent = node.receives(Packet::Protocol(ours.clone()));
        let prepare = sent.iter().find_map(|p| match p {
            Packet::TwoPcPrepare(_, request) => Some(request.tid),
            _ => None,
        });
        let tid = prepare.expect("the lower node id starts the transaction");
        for packet in &sent {
            if let Packet::SyncParam(..) | Packet::Sizes(..) = packet {
                node.receives(packet.clone());
            }
        }
        node.receives(uuids(CREATED, UuidFlags::INCONSISTENT.0 | UuidFlags::STABLE.0));
        let word = state(Role::Secondary, DiskState::Inconsistent)
            .with_conn_state(ConnState::Connecting)
            .with_peer_role(Role::Unknown)
            .with_pdsk(DiskState::DUnknown);
        node.receives(Packet::State(Some(NR), word));
        let (primary_nodes, weak_nodes) = (NodeMask::EMPTY, NodeMask::EMPTY);
        let reachable_nodes = both();
        let yes = TwoPcReply { tid, initiator: 0, reachable_nodes, primary_nodes, weak_nodes };
        let sent = node.receives(Packet::TwoPcYes(None, yes));
        assert!(sent.iter().any(|p| matches!(p, Packet::TwoPcCommit(..))), "{sent:?}");
        node.receives(Packet::State(Some(NR), state(Role::Secondary, DiskState::Inconsistent)));
        while node.receives(Packet::PingAck).contains(&Packet::Ping) {}
        node
    }

    fn repl(&self) -> ReplState {
        self.resource.st.peers[0].devs[0].repl
    }
}

/// States of the connected kernel node, whose peer is Inconsistent.
fn state(role: Role, disk: DiskState) -> StateWord {
    StateWord::default()
        .with_role(role)
        .with_peer_role(Role::Secondary)
        .with_repl_state(ReplState::Established)
        .with_disk(disk)
        .with_pdsk(DiskState::Inconsistent)
        .with_quorum(true)
}

fn uuids(current: GenUuid, flags: u64) -> Packet {
    let before = if current == CREATED { GenUuid(0) } else { GenUuid(0xa4b3_83fe_9d83_5bc0) };
    let uuids = Uuids110 {
        current,
        dirty_bits: 4086,
        flags: UuidFlags(flags),
        node_mask: NodeMask::EMPTY,
        bitmap_uuids: vec![(0, before), (1, GenUuid(0))],
        history: vec![GenUuid(0); 32],
    };
    Packet::Uuids110(NR, Box::new(uuids))
}

/// PREPARE or COMMIT of the kernel's forced promotion.
fn promotion(word20: u64, word28: u64, flags: u32) -> TwoPc {
    let nodes_to_reach = both().complement();
    let (initiator, target) = (1, -1);
    let flags = flags | TWOPC_HAS_REACHABLE;
    TwoPc { tid: 7, flags, v2: true, initiator, target, nodes_to_reach, word20, word28 }
}

/// It names its new generation in P_UUIDS110 without any flag that asks for a comparison, then sends its
/// states. Both ends compare by themselves.
#[test]
fn disk_that_was_forced_up_to_date_is_resynced_from() {
    let mut node = Node::connected();
    let request = Operation::Promote { force: true }.request();
    let word28 = u64::from(request.mask.0) << 32 | u64::from(request.val.0);
    let sent = node.receives(Packet::TwoPcPrepare(None, promotion(0, word28, 0)));
    assert!(sent.iter().any(|p| matches!(p, Packet::TwoPcYes(..))), "{sent:?}");
    let commit = promotion(id(1).mask().0, both().0, TWOPC_PRI_INCAPABLE);
    node.receives(Packet::TwoPcCommit(None, commit));
    node.receives(uuids(GenUuid(0x9a4e_188a_44ed_ca47), UuidFlags::STABLE.0));
    assert_eq!(node.repl(), ReplState::Established);
    let primary = state(Role::Primary, DiskState::UpToDate);
    node.receives(Packet::State(Some(NR), primary));
    assert_eq!(node.repl(), ReplState::WFBitMapT, "the other disk is the only one with data");
}

/// Pings that reach it before it has answered get one answer together.
#[test]
fn pings_that_are_answered_together_are_no_reason_to_hang_up() {
    let mut node = Node::connected();
    let peer = node.resource.peer_ix(id(1)).expect("it is configured");
    node.resource.ping(peer);
    node.resource.ping(peer);
    let mut pings = 0;
    let mut sent = node.input(Input::Timeout);
    while sent.contains(&Packet::Ping) {
        pings += 1;
        assert!(pings <= 2, "one for each reason is enough");
        sent = node.receives(Packet::PingAck);
    }
    assert_eq!(pings, 2, "what came behind the first one may be known to its answer, or not");
    node.now = Instant(node.now.0 + 600_000_000);
    node.input(Input::Timeout);
    assert_eq!(node.resource.st.peers[peer].conn, ConnState::Connected);
}

/// It tries again for ever if the link closes before it has read P_DISCONNECT.
#[test]
fn link_stays_until_the_peer_has_read_a_refusal() {
    let mut node = Node::connected();
    let peer = node.resource.peer_ix(id(1)).expect("it is configured");
    node.resource.refuse_connection(peer, "that is the test");
    let mut closed = false;
    let mut told = false;
    while let Some(output) = node.resource.poll() {
        told |= matches!(&output, Output::Send { packet: Packet::Disconnect, .. });
        closed |= matches!(output, Output::CloseLink { .. });
    }
    assert!(told && !closed);
    let loss = LinkLoss::Closed;
    node.input(Input::LinkDown { peer: id(1), loss });
    assert_eq!(node.resource.st.peers[peer].conn, ConnState::StandAlone);
}

/// It compares at the first state that follows the commit, whatever generation it knows by then.
#[test]
fn state_of_a_disk_that_was_forced_up_to_date_follows_its_generation() {
    let mut node = Node::connected();
    let command = AdminCommand::Primary { force: true };
    let mut sent = node.input(Input::Admin { id: 3, command });
    sent.extend(node.receives(Packet::PingAck));
    let tid = sent.iter().find_map(|p| match p {
        Packet::TwoPcPrepare(_, request) => Some(request.tid),
        _ => None,
    });
    let tid = tid.expect("the promotion is a transaction");
    let (primary_nodes, weak_nodes) = (NodeMask::EMPTY, NodeMask::EMPTY);
    let reachable_nodes = both();
    let yes = TwoPcReply { tid, initiator: 0, reachable_nodes, primary_nodes, weak_nodes };
    let sent = node.receives(Packet::TwoPcYes(None, yes));
    let commit = sent.iter().position(|p| matches!(p, Packet::TwoPcCommit(..)));
    let uuids =
        sent.iter().position(|p| matches!(p, Packet::Uuids110(_, u) if u.current != CREATED));
    let state = sent.iter().position(|p| matches!(p, Packet::State(..)));
    assert!(commit.is_some() && commit < uuids && uuids < state, "{sent:?}");
    node.receives(Packet::State(Some(NR), state_of_target()));
    assert_eq!(node.repl(), ReplState::WFBitMapS);
}

/// The state by which a kernel node says that it is going to be resynced.
fn state_of_target() -> StateWord {
    state(Role::Secondary, DiskState::Inconsistent)
        .with_peer_role(Role::Primary)
        .with_repl_state(ReplState::WFBitMapT)
        .with_pdsk(DiskState::UpToDate)
}

/// Its packets are those of the captured resize, with other numbers.
#[test]
fn resize_that_it_asks_for_is_agreed_to_and_carried_out() {
    let mut node = Node::connected();
    let old = node.resource.vols[0].size;
    node.room = Sectors(old.0 + 8192);
    let (tid, new) = (0xdecc_9fbb, Sectors(old.0 + 512));
    let prepare = TwoPc {
        tid,
        flags: 0,
        v2: true,
        initiator: 1,
        target: -1,
        nodes_to_reach: both().complement(),
        word20: new.0,
        word28: 0,
    };
    let sent = node.receives(Packet::TwoPcPrepRsz(Some(NR), prepare));
    let yes = TwoPcReply {
        tid,
        initiator: 1,
        reachable_nodes: both(),
        primary_nodes: NodeMask::EMPTY,
        weak_nodes: NodeMask(node.room.0),
    };
    assert_eq!(sent, [Packet::TwoPcYes(Some(NR), yes)]);
    assert_eq!(node.resource.vols[0].size, old, "nothing has changed yet");
    let commit = TwoPc { word20: id(1).mask().0, word28: new.0, ..prepare };
    let sent = node.receives(Packet::TwoPcCommit(Some(NR), commit));
    assert!(!sent.iter().any(|p| matches!(p, Packet::Sizes(..))), "both know: {sent:?}");
    assert_eq!((node.resource.vols[0].size, node.told), (new, Some(new)));
    let backing = node.resource.vols[0].backing.as_ref().unwrap();
    assert_eq!((backing.sb.effective_size, backing.bitmap.size()), (new, new));
}

#[test]
fn resize_that_it_is_asked_for_has_its_layout() {
    let mut node = Node::connected();
    let old = node.resource.vols[0].size;
    node.room = Sectors(old.0 + 8192);
    let command = AdminCommand::Resize {
        volume: NR,
        size: None,
        assume_peer_has_space: true,
        assume_clean: false,
    };
    let sent = node.input(Input::Admin { id: 3, command });
    let Some(Packet::TwoPcPrepRsz(Some(NR), asked)) = sent.first() else { panic!("{sent:?}") };
    let (flags, word20, word28) = (asked.flags, asked.word20, asked.word28);
    assert_eq!((flags, word20, word28, asked.target), (0, 0, 1 << 48, -1));
    let room = Sectors(old.0 + 4096);
    let yes = TwoPcReply {
        tid: asked.tid,
        initiator: 0,
        reachable_nodes: both(),
        primary_nodes: NodeMask::EMPTY,
        weak_nodes: NodeMask(room.0),
    };
    let sent = node.receives(Packet::TwoPcYes(Some(NR), yes));
    let Some(Packet::TwoPcCommit(Some(NR), commit)) = sent.first() else { panic!("{sent:?}") };
    assert_eq!((commit.flags, commit.word20, commit.word28), (0, 0, room.0));
    assert_eq!(node.told, Some(room));
}
