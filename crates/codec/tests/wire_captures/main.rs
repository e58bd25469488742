//! The codec against captures of kernel nodes: every packet is decoded and encoded again, and the
//! rules that join packets hold. `testdata/wire/README.md` says where the captures come from.

mod pcap;
mod rules;
mod streams;

use std::collections::BTreeMap;
use std::path::Path;

use codec::wire::{
    Agreed, BitmapReceiver, BitmapSender, BitmapSource, Command, Packet, auth_message, encode,
};
use vocab::NodeId;

use rules::Connection;
use streams::{Captured, Setup};

/// Captures, with the number of packets that an independent decoder found in each, and the
/// length of data-integrity digests on connections that were up before.
const KERNEL_9: &[(&str, usize, usize)] = &[
    ("01-connect-skip-initial-sync", 98, 0),
    ("02-primary-writes-c", 80, 0),
    ("04-disconnect-write-resync", 159, 0),
    ("05-online-verify", 12292, 0),
    ("06-role-change", 76, 0),
    ("07-diskless-client-io", 124, 0),
    ("08-quorum-loss-and-return", 72, 0),
    ("03-discard-zeroes", 215, 0),
    ("10-auth-integrity-3disks", 185, 0),
    ("11-csums-resync", 213, 4),
    ("12-primary-crash-reconcile", 433, 4),
    ("13-protocol-a", 178, 0),
    ("14-protocol-b", 215, 0),
    ("15-initial-full-sync", 1008, 0),
    ("16-split-brain", 78, 0),
    ("17-writes-during-resync", 562, 0),
    ("18-detach-attach-invalidate", 895, 0),
    ("19-resize", 98, 0),
];
const KERNEL_8: &[(&str, usize, usize)] = &[
    ("01-connect-skip-initial-sync", 17, 0),
    ("02-primary-writes-c", 60, 0),
    ("03-disconnect-write-resync", 46, 0),
    ("04-cram-hmac-integrity", 351, 0),
];
/// Captures that continue the one before them in the tables above. (9.3 12 continues 11 as well,
/// but some packets between them were not captured.)
const CONTINUED: &[&str] = &[
    "drbd-9.3/02-primary-writes-c",
    "drbd-9.3/04-disconnect-write-resync",
    "drbd-9.3/05-online-verify",
    "drbd-9.3/06-role-change",
    "drbd-9.3/07-diskless-client-io",
    "drbd-9.3/08-quorum-loss-and-return",
    "drbd-9.3/11-csums-resync",
    "drbd-8.4/02-primary-writes-c",
    "drbd-8.4/03-disconnect-write-resync",
];

fn read(folder: &str, name: &str, setup: Setup) -> Vec<Captured> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/wire")
        .join(folder)
        .join(name)
        .with_extension("pcap");
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    streams::packets(&pcap::flows(&file), setup)
}

/// Every capture with its packets.
fn all() -> Vec<(String, Vec<Captured>)> {
    let folders = [
        ("drbd-9.3", KERNEL_9, Agreed::new(124, 0x3ff)),
        ("drbd-8.4", KERNEL_8, Agreed::new(101, 0xf)),
    ];
    let mut captures = Vec::new();
    for (folder, names, agreed) in folders {
        for (name, expected, digest) in names {
            let setup =
                Setup { version: agreed.version, features: agreed.features, digest: *digest };
            let packets = read(folder, name, setup);
            assert_eq!(packets.len(), *expected, "packets in {folder}/{name}");
            captures.push((format!("{folder}/{name}"), packets));
        }
    }
    captures
}

#[test]
fn every_captured_packet_is_encoded_byte_for_byte() {
    let mut out = Vec::new();
    for (name, packets) in all() {
        for captured in &packets {
            out.clear();
            encode(&captured.packet, &streams::encode_with(captured), &mut out);
            assert_eq!(out, captured.decoded_bytes(), "{name}: {:?}", captured.packet);
            let (digest, data) = captured.digest_and_data();
            assert_eq!(data.len(), captured.packet.payload_len(), "{name}");
            if !digest.is_empty() && captured.packet.payload_len() > 0 {
                // The only digest in the captures; stored little-endian (wire §5.2).
                assert_eq!(digest, crc32c::crc32c(data).to_le_bytes(), "{name}");
            }
        }
    }
}

#[test]
fn the_commands_seen_are_those_the_specification_says_were_seen() {
    let mut counts: BTreeMap<(bool, Command), u32> = BTreeMap::new();
    for (name, packets) in all() {
        for captured in packets {
            let kernel_9 = name.starts_with("drbd-9");
            *counts.entry((kernel_9, captured.packet.command())).or_default() += 1;
        }
    }
    for ((kernel_9, command), count) in &counts {
        println!("{} {command:28} {count:6}", if *kernel_9 { "9.3.3" } else { "8.4  " });
    }
    // wire §3.2, the paragraph below the table.
    let of_9: Vec<u16> = (0x00..=0x03)
        .chain([0x07, 0x08, 0x0b, 0x0d, 0x0e, 0x10, 0x11])
        .chain(0x13..=0x17)
        .chain([0x1c, 0x22, 0x23, 0x24, 0x28])
        .chain(0x2d..=0x31)
        .chain([0x35, 0x36])
        .chain(0x40..=0x48)
        .chain(0x4b..=0x51)
        .chain(0x53..=0x59)
        .chain([0xfff1, 0xfff2, 0xfffe])
        .collect();
    let only_8 = [0x09, 0x0c, 0x0f, 0x12, 0x1d, 0x1e, 0x1f, 0x20, 0x21, 0x2a, 0x2b];
    let seen = |kernel_9| -> Vec<u16> {
        counts.keys().filter(|key| key.0 == kernel_9).map(|key| key.1.number()).collect()
    };
    assert_eq!(seen(true), of_9);
    let additional: Vec<u16> =
        seen(false).into_iter().filter(|number| !of_9.contains(number)).collect();
    assert_eq!(additional, only_8);
}

#[test]
fn compat_lists_every_packet_and_where_it_was_seen() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../COMPAT.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, text) = text.split_once("\n### Packets\n").expect("it has the section");
    let mut seen: BTreeMap<Command, Vec<&str>> = BTreeMap::new();
    for (name, packets) in all() {
        let kernel = if name.starts_with("drbd-9") { "9.3" } else { "8.4" };
        for captured in packets {
            let kernels = seen.entry(captured.packet.command()).or_default();
            if !kernels.contains(&kernel) {
                kernels.push(kernel);
            }
        }
    }
    for command in Command::ALL {
        let begin = format!("| {command} |");
        let row = text.lines().find(|line| line.starts_with(&begin));
        let row = row.unwrap_or_else(|| panic!("{command} is not in COMPAT.md"));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, _, kernels, with_kernel, ours, why, _] = cells[..] else { panic!("{row}") };
        let mut captured = seen.remove(command).unwrap_or_default();
        captured.sort_unstable();
        let captured = if captured.is_empty() { "–".to_owned() } else { captured.join(", ") };
        assert_eq!(kernels, captured, "{command}");
        let nowhere = [kernels, with_kernel, ours] == ["–"; 3];
        assert_eq!(nowhere, !why.is_empty(), "{command}: either seen, or a reason");
    }
}

#[test]
fn packets_of_a_connection_fit_together() {
    let mut checked: BTreeMap<&str, u32> = BTreeMap::new();
    let mut complaints = Vec::new();
    let mut captures = all().into_iter().peekable();
    while let Some((name, mut packets)) = captures.next() {
        // Captures that go on where the one before stopped are one history.
        while let Some((_, more)) = captures.next_if(|(next, _)| CONTINUED.contains(&&next[..])) {
            packets.extend(more);
        }
        let mut connections: BTreeMap<_, Connection> = BTreeMap::new();
        for captured in &packets {
            let pair = (captured.from.min(captured.to), captured.from.max(captured.to));
            connections.entry(pair).or_default().packet(captured);
        }
        for (pair, mut connection) in connections {
            connection.end();
            for (rule, count) in &connection.checked {
                *checked.entry(rule).or_default() += count;
            }
            let here = connection.complaints().iter();
            complaints.extend(here.map(|complaint| format!("{name} {pair:?}: {complaint}")));
        }
    }
    println!("{checked:#?}");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    let rules = [
        "answer",
        "barrier",
        "barrier ack",
        "peer ack",
        "peer ack order",
        "resync ack",
        "sequence",
        "verify result",
        "write ack",
    ];
    assert_eq!(checked.keys().copied().collect::<Vec<_>>(), rules, "every rule was exercised");
}

/// A map as sorted runs of set bits.
struct Runs(Vec<(u64, u64)>);

impl BitmapSource for Runs {
    fn run(&self, from: u64) -> (bool, u64) {
        let next = self.0.partition_point(|(start, len)| start + len <= from);
        match self.0.get(next) {
            Some((start, len)) if *start <= from => (true, start + len - from),
            Some((start, _)) => (false, start - from),
            None => (false, u64::MAX - from),
        }
    }
}

#[test]
fn captured_bitmaps_are_coded_as_the_kernel_codes_them() {
    let mut maps = 0;
    for (name, packets) in all() {
        for captured in &packets {
            let Packet::CompressedBitmap(volume, chunk) = &captured.packet else { continue };
            // Each map fits into one packet, whose runs therefore add up to its bits.
            let runs = codec::wire::bitmap::RunDecoder::new(chunk, 0, u64::MAX).unwrap();
            let bits: u64 = runs.map(|run| run.unwrap().len).sum();
            // 16 MiB and 8 MiB disks less their internal metadata.
            assert!([4086, 2038].contains(&bits), "{name}: {bits}");
            let mut set = Vec::new();
            BitmapReceiver::new(bits, &captured.agreed)
                .compressed(chunk, |start, len| set.push((start, len)))
                .unwrap();
            let mut sender = BitmapSender::new(bits, true, &captured.agreed);
            let map = Runs(set);
            assert_eq!(sender.next_packet(*volume, &map).as_ref(), Some(&captured.packet));
            assert_eq!(sender.next_packet(*volume, &map), None);
            maps += 1;
        }
    }
    assert!(maps >= 20, "{maps}");
}

/// HMAC-SHA256 (RFC 2104).
fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    let pad = |byte: u8| block.map(|b| b ^ byte);
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().to_vec()
}

#[test]
fn authentication_signs_the_peers_challenge_and_the_own_id() {
    let challenge: Vec<u8> = (0..64).collect();
    let node = |id| NodeId::new(id).unwrap();
    let signed = auth_message(&challenge, node(0), &Agreed::new(122, 0));
    // wire §11.
    assert_eq!(hmac_sha256(b"secret", &signed)[..4], [0x52, 0xed, 0x96, 0xf3]);
    let setup = Setup { version: 124, features: 0x3ff, digest: 0 };
    let packets = read("drbd-9.3", "10-auth-integrity-3disks", setup);
    let mut challenges = BTreeMap::new();
    let mut verified = 0;
    for captured in &packets {
        match &captured.packet {
            Packet::AuthChallenge(challenge) => {
                challenges.insert((captured.from, captured.to), challenge.clone());
            }
            Packet::AuthResponse(response) => {
                let challenge = &challenges[&(captured.to, captured.from)];
                // Addresses end in 11 plus the node id.
                let responder = node(captured.from.octets()[3] - 11);
                let signed = auth_message(challenge, responder, &captured.agreed);
                assert_eq!(*response, hmac_sha256(b"s3cret-s3cret", &signed));
                verified += 1;
            }
            _ => {}
        }
    }
    assert_eq!(verified, 6, "three connections, both ways");
}

/// Complaints about a capture that was tampered with.
fn complaints_after(tamper: impl FnOnce(&mut Vec<Captured>)) -> Vec<String> {
    let setup = Setup { version: 124, features: 0x3ff, digest: 0 };
    let mut packets = read("drbd-9.3", "03-discard-zeroes", setup);
    tamper(&mut packets);
    let mut connections: BTreeMap<_, Connection> = BTreeMap::new();
    for captured in &packets {
        let pair = (captured.from.min(captured.to), captured.from.max(captured.to));
        connections.entry(pair).or_default().packet(captured);
    }
    connections
        .into_values()
        .flat_map(|mut connection| {
            connection.end();
            connection.complaints().to_vec()
        })
        .collect()
}

#[test]
fn a_capture_that_was_tampered_with_is_noticed() {
    let position = |packets: &[Captured], command| {
        packets.iter().position(|captured| captured.packet.command() == command).unwrap()
    };
    let without = |command| {
        complaints_after(|packets| {
            packets.remove(position(packets, command));
        })
    };
    assert_eq!(complaints_after(|_| ()), Vec::<String>::new());
    assert!(without(Command::WriteAck)[0].starts_with("sequence numbers"));
    let lost_write = without(Command::Data).concat();
    for rule in ["acks nothing", "expected", "no write has this dagtag", "sequence numbers"] {
        assert!(lost_write.contains(rule), "{rule}: {lost_write}");
    }
    let early = complaints_after(|packets| {
        let peer_ack = position(packets, Command::PeerAck);
        let (from, to) = (packets[peer_ack].from, packets[peer_ack].to);
        let barrier_ack = packets[..peer_ack].iter().rposition(|captured| {
            captured.packet.command() == Command::BarrierAck
                && (captured.from, captured.to) == (to, from)
        });
        packets.swap(barrier_ack.unwrap(), peer_ack);
    });
    assert!(early[0].starts_with("before the barrier ack"), "{early:?}");
}
