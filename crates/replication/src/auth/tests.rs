//! Proofs of recorded peers, and peers that can not give one.

use codec::wire::{CHALLENGE_LEN, Features, PeerAck, feature};
use vocab::options::{PeerDeviceOptions, ResourceOptions, Secret};
use vocab::{ConnState, Dagtag, Instant, NodeId, NodeMask};

use super::*;
use crate::config::{PeerConfig, ResourceConfig};
use crate::io::{AdminCommand, Input, LinkLoss, Output};

const SECRET: &str = "s3cret-s3cret";
const OURS: [u8; CHALLENGE_LEN] = [7; CHALLENGE_LEN];
const THEIRS: [u8; CHALLENGE_LEN] = [9; CHALLENGE_LEN];

fn hex(text: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

fn node(id: u8) -> NodeId {
    NodeId::new(id).expect("a small number")
}

/// Challenge and response of the first proof in the recordings drbd-9.3/10 (by node 1) and drbd-8.4/04.
#[test]
fn proofs_are_those_of_kernel_nodes() {
    let nine = hex("8e796c6f53f87c0d6243c8dad6e3bf24160ae2e52f51bf89fcb855cfb5507113\
         dbd49d3686b4f1b40da2158eb219a1c49c4981ed0071eb45a19acec30397bb0d");
    let nine = auth_message(&nine, node(1), &Agreed::new(122, 0));
    let proof = hex("0f0fc027e701fa76eba3220a683df7b6ba0b862c59e460f6d349126eeeedb17c");
    assert_eq!(Algorithm::Sha256.sign(SECRET.as_bytes(), &nine), proof);
    assert!(Algorithm::Sha256.verify(SECRET.as_bytes(), &nine, &proof));
    let other = auth_message(&nine[..CHALLENGE_LEN], node(2), &Agreed::new(122, 0));
    assert!(!Algorithm::Sha256.verify(SECRET.as_bytes(), &other, &proof), "by another node");

    let eight = hex("56082edae62d533be3acd23ca3bb9061d9759ab15563d6091fc1de7d59b10a34\
         2ad53a38a3cf29bfc91dd5a1a5af3873670e70b6341ae2a2fc09d18f5e76345a");
    let proof = hex("cd27baff20788378c0144f74c83ca72229fca50c");
    assert_eq!(Algorithm::Sha1.sign(SECRET.as_bytes(), &eight), proof);
}

/// RFC 2202 and RFC 4231, test case 2.
#[test]
fn every_digest_is_the_one_of_its_name() {
    for name in ALGORITHMS.split(", ").flat_map(|names| names.split(" or ")) {
        let algorithm = Algorithm::named(name).unwrap();
        let proof = algorithm.sign(b"Jefe", b"what do ya want for nothing?");
        let begins = match name {
            "md5" => "750c783e6ab0b503",
            "sha1" => "effcdf6ae5eb2fa2",
            "sha256" => "5bdcc146bf60754e",
            _ => "164b7a7bfcf819e2",
        };
        assert!(proof.starts_with(&hex(begins)), "{name}");
        assert!(!algorithm.verify(b"Jefe", b"what do ya want for nothing?", &proof[1..]));
    }
    assert_eq!(Algorithm::named("crc32c"), None, "a checksum proves nothing");
}

/// Node 0 without volumes, which has node 1 for a peer that the test plays.
struct Play {
    core: Resource,
    now: Instant,
    log: String,
}

impl Play {
    /// Features are agreed; also what the node has sent after them.
    fn new(alg: &str, secret: &str) -> (Play, Vec<Packet>) {
        let config = ResourceConfig {
            name: "r0".to_owned(),
            node_id: node(0),
            options: ResourceOptions::default(),
            handlers: vocab::HandlerSet::NONE,
            volumes: Vec::new(),
            peers: vec![PeerConfig {
                node_id: node(1),
                name: "bravo".to_owned(),
                net: net(alg, secret),
                devices: Vec::<(_, PeerDeviceOptions)>::new(),
            }],
        };
        let core = Resource::new(config, 1, Dagtag::default());
        let mut play = Play { core, now: Instant(1), log: String::new() };
        let command = AdminCommand::Connect { peer: node(1), discard_my_data: false };
        play.input(Input::Admin { id: 1, command });
        let sent = play.link();
        (play, sent)
    }

    fn link(&mut self) -> Vec<Packet> {
        let challenge = Box::new(OURS);
        let sent = self.input(Input::LinkUp { peer: node(1), tie_break: true, challenge });
        let [Packet::ConnectionFeatures(ours)] = sent[..] else { panic!("{sent:?}") };
        let theirs = Features { sender_node_id: 1, receiver_node_id: 0, ..ours };
        self.gets(Packet::ConnectionFeatures(theirs))
    }

    fn input(&mut self, input: Input) -> Vec<Packet> {
        self.core.handle(self.now, input);
        let mut sent = Vec::new();
        while let Some(output) = self.core.poll() {
            match output {
                Output::Send { packet, .. } => sent.push(packet),
                Output::Log(_, text) => self.log += &text,
                _ => {}
            }
        }
        sent
    }

    fn gets(&mut self, packet: Packet) -> Vec<Packet> {
        self.input(Input::Packet { peer: node(1), packet, payload: None })
    }

    fn is(&self, state: ConnState) -> bool {
        self.core.status().connections[0].connection_state == state
    }

    /// The connection has ended for good, and the log says why. The peer, which has been told, is the
    /// one that closes it.
    fn is_refused(&mut self, sent: &[Packet], why: &str) -> bool {
        let told = sent == [Packet::Disconnect] && self.log.contains(why);
        let waits = self.is(ConnState::Disconnecting);
        self.input(Input::LinkDown { peer: node(1), loss: LinkLoss::Closed });
        told && waits && self.log.contains("bravo") && self.is(ConnState::StandAlone)
    }
}

fn net(alg: &str, secret: &str) -> NetOptions {
    NetOptions {
        cram_hmac_alg: alg.to_owned(),
        shared_secret: Secret::from(secret),
        ..NetOptions::default()
    }
}

/// What a node with that id answers to the test's node.
fn proof_of(id: u8, secret: &str, challenge: &[u8]) -> Packet {
    let message = auth_message(challenge, node(id), &Agreed::new(122, feature::OURS));
    Packet::AuthResponse(Algorithm::Sha256.sign(secret.as_bytes(), &message))
}

fn challenge() -> Packet {
    Packet::AuthChallenge(THEIRS.to_vec())
}

#[test]
fn both_prove_themselves_before_parameters_are_sent() {
    let (mut play, sent) = Play::new("sha256", SECRET);
    assert_eq!(sent, [Packet::AuthChallenge(OURS.to_vec())]);
    // The peer's first ping overtakes its proof.
    assert_eq!(play.gets(Packet::Ping), [Packet::PingAck]);
    assert_eq!(play.gets(challenge()), [proof_of(0, SECRET, &THEIRS)]);
    let sent = play.gets(proof_of(1, SECRET, &OURS));
    assert!(matches!(sent[..], [Packet::Protocol(_)]), "{sent:?}");
    // And never again.
    play.gets(challenge());
    assert!(!play.is(ConnState::Connected));
}

#[test]
fn without_a_digest_nothing_is_asked() {
    let (_, sent) = Play::new("", "");
    assert!(matches!(sent[..], [Packet::Protocol(_)]), "{sent:?}");
}

#[test]
fn whoever_can_not_prove_itself_is_refused_for_good() {
    let wrong = "does not know the shared secret";
    let forged = [
        proof_of(1, "another", &OURS),
        // Recorded when this node asked something else.
        proof_of(1, SECRET, &THEIRS),
        // What this node would answer itself.
        proof_of(0, SECRET, &OURS),
        Packet::AuthResponse(Vec::new()),
        Packet::AuthResponse(vec![0; 64]),
    ];
    for proof in forged {
        let (mut play, _) = Play::new("sha256", SECRET);
        play.gets(challenge());
        let sent = play.gets(proof);
        assert!(play.is_refused(&sent, wrong), "{sent:?} {}", play.log);
        assert!(!play.log.contains(SECRET));
        // It does not try again by itself.
        play.now = Instant(3_600_000_000_000);
        assert_eq!(play.input(Input::Timeout), []);
        assert!(play.is(ConnState::StandAlone));
    }
}

#[test]
fn a_challenge_that_comes_back_is_not_answered() {
    let (mut play, _) = Play::new("sha256", SECRET);
    let sent = play.gets(Packet::AuthChallenge(OURS.to_vec()));
    assert!(play.is_refused(&sent, "own challenge back"), "{sent:?} {}", play.log);
    for len in [0, 63] {
        let (mut play, _) = Play::new("sha256", SECRET);
        let sent = play.gets(Packet::AuthChallenge(vec![1; len]));
        assert!(play.is_refused(&sent, "64 bytes"), "{sent:?} {}", play.log);
    }
}

#[test]
fn one_side_without_a_secret_is_refused_by_either() {
    let (mut play, sent) = Play::new("", "");
    let [Packet::Protocol(parameters)] = &sent[..] else { panic!("{sent:?}") };
    let sent = play.gets(challenge());
    assert!(play.is_refused(&sent, "none is configured here"), "{sent:?} {}", play.log);
    let (mut play, _) = Play::new("sha256", SECRET);
    let sent = play.gets(Packet::Protocol(parameters.clone()));
    assert!(play.is_refused(&sent, "no cram-hmac-alg"), "{sent:?} {}", play.log);
}

#[test]
fn before_the_proof_nothing_else_is_taken() {
    let (dagtag, mask) = (Dagtag(8), NodeMask::EMPTY);
    for packet in [
        Packet::Dagtag(dagtag),
        Packet::PeerAck(PeerAck { mask, dagtag }),
        // Proofs and challenges in another order, or twice.
        proof_of(1, SECRET, &OURS),
    ] {
        let (mut play, _) = Play::new("sha256", SECRET);
        assert_eq!(play.gets(packet), []);
        assert!(play.log.contains("bravo broke the protocol"), "{}", play.log);
    }
    let (mut play, _) = Play::new("sha256", SECRET);
    play.gets(challenge());
    assert_eq!(play.gets(challenge()), []);
    assert!(play.log.contains("a second challenge"), "{}", play.log);
}

#[test]
fn a_secret_that_changes_under_the_proof_begins_a_new_one() {
    let (mut play, _) = Play::new("sha256", SECRET);
    let options = Box::new(net("sha256", "another"));
    play.input(Input::Admin { id: 2, command: AdminCommand::NetOptions(node(1), options) });
    assert_eq!(play.gets(proof_of(1, SECRET, &OURS)), [], "left over from before");
    play.now = Instant(10_000_000_000);
    play.input(Input::Timeout);
    assert_eq!(play.link(), [Packet::AuthChallenge(OURS.to_vec())]);
    play.gets(challenge());
    let sent = play.gets(proof_of(1, "another", &OURS));
    assert!(matches!(sent[..], [Packet::Protocol(_)]), "{sent:?}");
}

#[test]
fn no_trace_of_an_input_shows_the_secret() {
    let command = AdminCommand::NetOptions(node(1), Box::new(net("sha256", SECRET)));
    let shown = format!("{:?}", Input::Admin { id: 1, command });
    assert!(shown.contains("cram_hmac_alg: \"sha256\"") && !shown.contains(SECRET), "{shown}");
}
