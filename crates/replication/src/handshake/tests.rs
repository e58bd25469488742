//! What nodes of every release say first, and what they are answered.

use codec::wire::{Agreed, Features, Packet, encode, feature};
use vocab::options::ResourceOptions;
use vocab::{ConnState, Instant, NodeId};

use super::{NEEDED_122, PROTOCOL_MAX, PROTOCOL_MIN};
use crate::io::{AdminCommand, Input, Output};
use crate::resource::Resource;
use crate::testing::attached;

/// What was sent to a peer with these features, all of it in the words that are agreed with it; the
/// state of the connection, and the log.
fn greeted(theirs: Features) -> (Vec<Packet>, ConnState, String) {
    greeted_by(attached(ResourceOptions::default(), |_| {}), theirs)
}

/// The same by a node that takes peers of protocol 121.
fn greeted_by_old(theirs: Features) -> (Vec<Packet>, ConnState, String) {
    let mut core = attached(ResourceOptions::default(), |_| {});
    core.take_protocol_121();
    greeted_by(core, theirs)
}

fn greeted_by(mut core: Resource, theirs: Features) -> (Vec<Packet>, ConnState, String) {
    let peer = NodeId::new(1).expect("a small number");
    let command = AdminCommand::Connect { peer, discard_my_data: false };
    core.handle(Instant(3), Input::Admin { id: 2, command });
    let challenge = Box::new([0; 64]);
    core.handle(Instant(3), Input::LinkUp { peer, tie_break: true, challenge });
    let mut own = None;
    while let Some(output) = core.poll() {
        if let Output::Send { packet: Packet::ConnectionFeatures(features), .. } = output {
            own = Some(features);
        }
    }
    let own = own.expect("features are the first packet");
    let packet = Packet::ConnectionFeatures(theirs);
    core.handle(Instant(4), Input::Packet { peer, packet, payload: None });

    // As the engine's transport does it.
    let max = if theirs.protocol_max == 0 { theirs.protocol_min } else { theirs.protocol_max };
    let flags = theirs.feature_flags & own.feature_flags;
    let agreed = Agreed::new(max.min(own.protocol_max), flags);
    let (mut sent, mut log) = (Vec::new(), String::new());
    while let Some(output) = core.poll() {
        match output {
            Output::Send { packet, .. } => {
                encode(&packet, &agreed, &mut Vec::new());
                sent.push(packet);
            }
            Output::Log(_, text) => log += &text,
            _ => {}
        }
    }
    (sent, core.status().connections[0].connection_state, log)
}

fn features(protocol_max: u32, feature_flags: u32) -> Features {
    Features {
        protocol_min: 86,
        protocol_max,
        feature_flags,
        sender_node_id: 1,
        receiver_node_id: 0,
    }
}

/// Releases of DRBD 9 before 9.2.3 with their features, and what nobody has released.
#[test]
fn a_peer_that_is_too_old_is_refused_in_words_it_knows() {
    for version in 102..PROTOCOL_MIN {
        for flags in [0, 0xf, 0x1f, 0x3ff, u32::MAX] {
            let (sent, state, log) = greeted(features(version, flags));
            let told = sent.contains(&Packet::Disconnect);
            assert_eq!(told, version >= 118, "P_DISCONNECT is as old as protocol 118");
            assert_ne!(state, ConnState::Connecting, "{version}: it is not tried again");
            assert!(log.contains("refused") && log.contains(&version.to_string()), "{log}");
        }
    }
}

#[test]
fn a_peer_without_what_every_release_has_is_refused() {
    for bit in 0..10 {
        let (sent, _, log) = greeted(features(PROTOCOL_MAX, 0x3ff & !(1 << bit)));
        let needed = NEEDED_122 & 1 << bit != 0;
        assert_eq!(sent.contains(&Packet::Disconnect), needed, "{log}");
        assert_eq!(log.contains("lacks"), needed, "{log}");
    }
    let all = feature::TRIM | feature::WSAME | feature::RESYNC_DAGTAG;
    assert_eq!(NEEDED_122 & all, all);
}

/// DRBD 9.1 from 9.1.13 on.
#[test]
fn a_peer_before_122_is_taken() {
    for flags in [0x2f, 0x6f] {
        let (sent, state, log) = greeted_by_old(features(121, flags));
        assert!(matches!(sent[..], [Packet::Protocol(_)]), "{flags:#x}: {log}");
        assert_eq!(state, ConnState::Connecting, "{log}");
    }
}

/// DRBD 9.0.31 and 9.1 before that, 9.2.0 to 9.2.2, and what nobody has released.
#[test]
fn a_peer_before_122_with_other_features_is_refused() {
    for (flags, why) in [
        (0xf, "lacks 0x20"),
        (0x1f, "lacks 0x20"),
        (0x3f, "9.2.0"),
        (0x3ff, "9.2.0"),
        (0x67, "lacks 0x8"),
        (0, "lacks 0x2f"),
    ] {
        let (sent, state, log) = greeted_by_old(features(121, flags));
        assert_eq!(sent, [Packet::Disconnect], "{flags:#x}");
        assert_ne!(state, ConnState::Connecting, "it is not tried again");
        assert!(log.contains(why), "{log}");
    }
}
