//! Transactions as one node sees them, with a peer that is played by the test.

use codec::wire::{Features, Packet, StateWord, TwoPcReply};
use vocab::options::{DiskOptions, NetOptions, PeerDeviceOptions, ResourceOptions};
use vocab::{Dagtag, Instant, Minor, NodeId, NodeMask, VolumeNr};

use crate::Resource;
use crate::config::{PeerConfig, ResourceConfig, VolumeConfig};
use crate::io::{AdminCommand, Input, Output};

const NR: VolumeNr = VolumeNr(0);

/// A client that is about to connect to node 1.
struct Node {
    resource: Resource,
    now: Instant,
}

impl Node {
    fn new() -> Node {
        let disk = DiskOptions::default();
        let without_disk = PeerDeviceOptions { bitmap: false, ..PeerDeviceOptions::default() };
        let config = ResourceConfig {
            name: "r0".to_owned(),
            node_id: node(0),
            options: ResourceOptions::default(),
            handlers: vocab::HandlerSet::NONE,
            volumes: vec![VolumeConfig { nr: NR, minor: Minor(0), diskless: true, disk }],
            peers: vec![PeerConfig {
                node_id: node(1),
                name: "node1".to_owned(),
                net: NetOptions::default(),
                devices: vec![(NR, without_disk)],
            }],
        };
        Node { resource: Resource::new(config, 1, Dagtag::default()), now: Instant(1) }
    }

    fn input(&mut self, input: Input) -> Vec<Packet> {
        self.resource.handle(self.now, input);
        let mut sent = Vec::new();
        while let Some(output) = self.resource.poll() {
            if let Output::Send { packet, .. } = output {
                sent.push(packet);
            }
        }
        if sent.contains(&Packet::Ping) {
            self.receives(Packet::PingAck);
        }
        sent
    }

    fn receives(&mut self, packet: Packet) -> Vec<Packet> {
        self.input(Input::Packet { peer: node(1), packet, payload: None })
    }

    /// The id of the transaction that it starts within a second, if it does.
    fn transaction(&mut self) -> Option<u32> {
        let mut started = None;
        for _ in 0..10 {
            self.now = Instant(self.now.0 + 100_000_000);
            started = started.or(prepared(&self.input(Input::Timeout)));
        }
        started
    }
}

fn node(id: u8) -> NodeId {
    NodeId::new(id).expect("a small number")
}

fn prepared(sent: &[Packet]) -> Option<u32> {
    sent.iter().find_map(|p| match p {
        Packet::TwoPcPrepare(_, request) => Some(request.tid),
        _ => None,
    })
}

fn retry(tid: u32, reachable_nodes: NodeMask) -> Packet {
    let (primary_nodes, weak_nodes) = (NodeMask::EMPTY, NodeMask::EMPTY);
    let reply = TwoPcReply { tid, initiator: 0, reachable_nodes, primary_nodes, weak_nodes };
    Packet::TwoPcRetry(None, reply)
}

#[test]
fn states_sent_for_a_transaction_that_failed_are_not_taken_for_the_next_one() {
    let mut n0 = Node::new();
    n0.input(Input::Admin {
        id: 1,
        command: AdminCommand::Connect { peer: node(1), discard_my_data: false },
    });
    let sent =
        n0.input(Input::LinkUp { peer: node(1), tie_break: true, challenge: Box::new([7; 64]) });
    let [Packet::ConnectionFeatures(ours)] = sent[..] else { panic!("{sent:?}") };
    let theirs = Features { sender_node_id: 1, receiver_node_id: 0, ..ours };
    let sent = n0.receives(Packet::ConnectionFeatures(theirs));
    let [Packet::Protocol(ours)] = &sent[..] else { panic!("{sent:?}") };
    let sent = n0.receives(Packet::Protocol(ours.clone()));
    let first = prepared(&sent).expect("the connect transaction starts");

    // The peer has sent its states, but its answer is faster than they are.
    n0.receives(retry(first, node(0).mask().with(node(1))));
    assert_eq!(n0.transaction(), None, "the states of the first one are still to come");
    n0.receives(Packet::State(Some(NR), StateWord(0)));
    let second = n0.transaction().expect("nothing is in the way any more");

    // A peer that is busy sends none.
    n0.receives(retry(second, NodeMask::EMPTY));
    n0.transaction().expect("nothing is to come");
}
