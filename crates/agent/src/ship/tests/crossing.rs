//! From agent to agent: what arrives, who is let in, and that nothing is left of what is cut short, wherever.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use cluster::shipping::{Door, UploadTo};

use super::*;

const PORTS: (u16, u16) = (31_000, 31_999);
const ORIGIN: &str = "one/alpha";
const LATER: &str = "two/alpha";

fn secret() -> String {
    "5e".repeat(32)
}

fn seal(text: &str) -> String {
    master().seal(&text.into(), &mut |bytes| bytes.fill(3))
}

fn copies(files: Vec<String>) -> Vec<String> {
    files.into_iter().filter(|file| file.starts_with("copy")).collect()
}

/// What can not be made smaller: what is cut off is data.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

impl Bed {
    /// As `take`, with data that are not zeroes at all.
    fn take_noise(&self, node: &Node, name: &str, offset: u64, length: usize) {
        self.take(node, "before", &[]);
        let path = self.path("pool").join("web_00000.img");
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&noise(offset + 7, length), offset).unwrap();
        self.take(node, name, &[]);
    }
}

/// Receives what is called so as a snapshot of `copy`.
fn receive(
    node: &Node,
    snapshot: &str,
    origin: &str,
    base: Option<(&str, &str)>,
    token: u64,
) -> ShipmentState {
    let order = DownloadOrder {
        token: Generation(token),
        snapshot: snap(snapshot),
        from: DownloadFrom::Peer(Listen {
            address: "127.0.0.1".parse().unwrap(),
            ports: PORTS,
            secret: seal(&secret()),
            origin: origin.to_owned(),
            base: base.map(|(base, called)| (snap(base), called.to_owned())),
        }),
        chain: vec!["web".to_owned()],
        volumes: [(0, (pool(), Provider::FileThin, SIZE - (4 << 20)))].into(),
        drbd: false,
        passphrases: BTreeMap::new(),
    };
    carry(node, &copy(), Action::Download(Box::new(order)), Generation(token))
}

/// Where it listens, if it does.
fn listens(node: &Node) -> Option<Door> {
    node.shipments.states(&copy()).last()?.door.clone()
}

/// Where it listens, once it does.
fn door(node: &Node) -> Door {
    let begun = Instant::now();
    loop {
        if let Some(door) = listens(node) {
            return door;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not listen");
        thread::sleep(Duration::from_millis(10));
    }
}

fn send(
    node: &Node,
    door: Door,
    secret: &str,
    snapshot: &str,
    origin: &str,
    base: Option<(&str, &str)>,
) -> ShipmentState {
    let volume = DescribedVolume {
        size: Bytes(20 * MIB),
        gross_size: false,
        props: BTreeMap::new(),
        pool: pool(),
    };
    let order = UploadOrder {
        token: Generation(10),
        snapshot: snap(snapshot),
        to: UploadTo::Peer(Peer { door, secret: seal(secret) }),
        backup: origin.to_owned(),
        base: base.map(|(base, called)| (snap(base), called.to_owned())),
        described: Described {
            since: Millis(5),
            cluster: "c".to_owned(),
            uuid: "u".to_owned(),
            layers: vec![Layer::Drbd, Layer::Storage],
            node_id: NodeId::new(0),
            peer_slots: 7,
            props: BTreeMap::new(),
            volumes: [(VolumeNr(0), volume)].into(),
            keys: None,
        },
    };
    carry(node, &web(), Action::Upload(Box::new(order)), Generation(10))
}

/// A sender and a receiver, each with pools of its own.
fn beds() -> Option<(Bed, Bed)> {
    Some((Bed::new()?, Bed::new()?))
}

/// Ships a snapshot as it is called from one to the other; `on_the_way` may do something to the address.
fn ship(
    (sender, receiver): (&Node, &Node),
    (from, snapshot, origin): (&str, &str, &str),
    base: Option<(&str, &str)>,
    on_the_way: impl FnOnce(Door) -> Door,
) -> (ShipmentState, ShipmentState) {
    receiver.shipments.lock().clear();
    thread::scope(|scope| {
        let received = scope.spawn(move || {
            let base = base.map(|(_, called)| ("sa", called));
            receive(receiver, snapshot, origin, base, 20)
        });
        while !received.is_finished() && listens(receiver).is_none() {
            thread::sleep(Duration::from_millis(10));
        }
        let Some(door) = listens(receiver).filter(|_| !received.is_finished()) else {
            let received = received.join().unwrap();
            return (received.clone(), received);
        };
        let sent = send(sender, on_the_way(door), &secret(), from, origin, base);
        if sent.phase != Phase::Success {
            // One that has not got as far as to be known is waited for.
            thread::sleep(Duration::from_millis(300));
            receiver.shipments.stop(&copy(), Generation(20));
        }
        (sent, received.join().unwrap())
    })
}

#[test]
fn snapshots_arrive_as_they_were_full_and_incremental() {
    let Some((here, there)) = beds() else { return };
    let nodes = (&here.start(), &there.start());
    here.take(nodes.0, "s1", &[(0, 1, 5000), (8 << 20, 2, 3 << 20)]);
    here.take(nodes.0, "s2", &[(4096, 9, 4096), (9 << 20, 0, 1 << 20), (SIZE - 4096, 5, 4096)]);
    let (sent, received) = ship(nodes, ("s1", "sa", ORIGIN), None, |door| door);
    assert_eq!((sent.phase, sent.cause), (Phase::Success, None));
    assert_eq!((received.phase, received.cause), (Phase::Success, None));
    assert_eq!(copies(there.files()), ["copy_00000_sa.img"], "the volume has gone");
    assert!(there.content("copy_00000_sa.img") == here.content("web_00000_s1.img"));

    // What was received before is what the next one builds on. The end of it was changed there.
    let path = there.path("pool").join("copy_00000_sa.img");
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0xaa; 4096], SIZE - 8192).unwrap();
    let (sent, received) = ship(nodes, ("s2", "sb", LATER), Some(("s1", ORIGIN)), |door| door);
    assert_eq!((sent.phase, sent.cause), (Phase::Success, None));
    assert_eq!((received.phase, received.cause), (Phase::Success, None));
    assert!(there.content("copy_00000_sb.img") == here.content("web_00000_s2.img"));
    assert_eq!(copies(there.files()), ["copy_00000_sa.img", "copy_00000_sb.img"]);
}

/// Passes on so many bytes of what the sender says, then nothing more, and ends both connections.
fn cut_after(door: &Door, bytes: usize) -> Door {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = (door.address, door.port);
    thread::spawn(move || {
        let (mut from, _) = listener.accept().unwrap();
        drop(listener);
        let mut to = TcpStream::connect(to).unwrap();
        let (mut back, mut answers) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let other = thread::spawn(move || _ = std::io::copy(&mut answers, &mut back));
        let mut left = bytes;
        let mut buffer = [0; 1000];
        while left > 0 {
            let most = left.min(buffer.len());
            match from.read(&mut buffer[..most]) {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    left -= count;
                    if to.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
            }
        }
        if left > 0 {
            // Everything went through: what is still to be answered is.
            let _ = other.join();
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
    Door { port, ..door.clone() }
}

#[test]
fn nothing_is_left_of_a_connection_that_breaks_wherever_that_is() {
    let Some((here, there)) = beds() else { return };
    let nodes = (&here.start(), &there.start());
    here.take_noise(nodes.0, "s1", 4096, 40_000);
    let (mut broken, mut bytes) = (0, 0);
    loop {
        let (sent, received) =
            ship(nodes, ("s1", "sa", ORIGIN), None, |door| cut_after(&door, bytes));
        if sent.phase == Phase::Success {
            assert_eq!(received.phase, Phase::Success);
            break;
        }
        broken += 1;
        assert!(sent.phase == Phase::Failed && sent.cause.is_some(), "{bytes}: {sent:?}");
        if received.phase == Phase::Success {
            // The last word was lost; what is there is whole.
            assert!(there.content("copy_00000_sa.img") == here.content("web_00000_s1.img"));
            break;
        }
        assert_eq!(copies(there.files()), Vec::<String>::new(), "after {bytes} bytes");
        assert!(nodes.1.store.get(&copy()).is_none(), "after {bytes} bytes");
        bytes += if bytes < 1000 { 400 } else { 4400 };
    }
    assert!(broken > 8, "{broken}");
}

#[test]
fn who_has_not_the_secret_is_not_let_in_and_keeps_nobody_out() {
    let Some((here, there)) = beds() else { return };
    let nodes = (&here.start(), &there.start());
    here.take(nodes.0, "s1", &[(0, 1, 5000)]);
    let mut held = Vec::new();
    let (sent, received) = ship(nodes, ("s1", "sa", ORIGIN), None, |door| {
        let at = (door.address, door.port);
        // Those that say nothing, more than there may be at the same time; and those that say what is no TLS.
        for number in 0..100u32 {
            let Ok(mut stranger) = TcpStream::connect(at) else { continue };
            if number % 3 == 0 {
                let _ = stranger.write_all(&[0xff; 4096]);
            } else if number % 3 == 1 {
                // The head of a record of TLS that is longer than any.
                let _ = stranger.write_all(&[0x16, 3, 1, 0xff, 0xff, 0, 0]);
            }
            held.push(stranger);
        }
        // TLS, and another secret; and a secret that is none.
        let wrong = send(nodes.0, door.clone(), &"00".repeat(32), "s1", ORIGIN, None);
        assert_eq!(wrong.phase, Phase::Failed, "{wrong:?}");
        let none = send(nodes.0, door.clone(), "short", "s1", ORIGIN, None);
        assert_eq!(none.phase, Phase::Failed, "{none:?}");
        // A certificate that is not the one that was told is not believed, and gets no secret.
        let other = Door { fingerprint: "00".repeat(32), ..door.clone() };
        let other = send(nodes.0, other, &secret(), "s1", ORIGIN, None);
        assert!(other.phase == Phase::Failed, "{other:?}");
        door
    });
    assert_eq!((sent.phase, sent.cause), (Phase::Success, None));
    assert_eq!(received.phase, Phase::Success);
    drop(held);
    // Nobody listens any more.
    let again = send(nodes.0, door(nodes.1), &secret(), "s1", ORIGIN, None);
    assert!(again.cause.unwrap().contains("can not be reached"));
}

#[test]
fn what_fails_at_one_end_is_told_at_the_other() {
    let Some((here, there)) = beds() else { return };
    let nodes = (&here.start(), &there.start());
    here.take(nodes.0, "s1", &[(0, 1, 5000)]);
    // It is called otherwise than the receiver expects.
    let (sent, received) = thread::scope(|scope| {
        let received = scope.spawn(|| receive(nodes.1, "sa", LATER, None, 20));
        let sent = send(nodes.0, door(nodes.1), &secret(), "s1", ORIGIN, None);
        (sent, received.join().unwrap())
    });
    let cause = received.cause.unwrap();
    assert!(received.phase == Phase::Failed && cause.contains("another archive"), "{cause}");
    let cause = sent.cause.unwrap();
    assert!(cause.contains("the node that receives it has ended it"), "{cause}");
    assert_eq!(copies(there.files()), Vec::<String>::new());

    // Given up where it is waited for.
    nodes.1.shipments.lock().clear();
    let received = thread::scope(|scope| {
        let received = scope.spawn(|| receive(nodes.1, "sa", ORIGIN, None, 20));
        door(nodes.1);
        nodes.1.shipments.stop(&copy(), Generation(20));
        received.join().unwrap()
    });
    assert_eq!((received.phase, received.cause), (Phase::Aborted, None));
    // Every port is in use.
    let taken: Vec<TcpListener> =
        (31_990..=31_991).filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).collect();
    let listen = Listen {
        address: "127.0.0.1".parse().unwrap(),
        ports: (31_990, 31_991),
        secret: seal(&secret()),
        origin: ORIGIN.to_owned(),
        base: None,
    };
    let order = DownloadOrder {
        token: Generation(22),
        snapshot: snap("sa"),
        from: DownloadFrom::Peer(listen),
        chain: vec!["web".to_owned()],
        volumes: BTreeMap::new(),
        drbd: false,
        passphrases: BTreeMap::new(),
    };
    let full = carry(nodes.1, &copy(), Action::Download(Box::new(order)), Generation(22));
    assert!(full.cause.unwrap().contains("from 31990 to 31991 is in use"));
    drop(taken);
}

#[test]
fn a_receiver_that_crashes_leaves_a_whole_snapshot_or_none() {
    let Some((here, there)) = beds() else { return };
    let sender = here.start();
    here.take(&sender, "s1", &[(0, 1, 5000)]);
    for at in 0.. {
        let receiver = there.start();
        *receiver.store.crash.lock().unwrap() = Some(at);
        let (_, received) = ship((&sender, &receiver), ("s1", "sa", ORIGIN), None, |door| door);
        if received.phase == Phase::Success {
            assert!(at > 3, "{at}");
            break;
        }
        let receiver = there.start();
        let complete = receiver
            .store
            .get(&copy())
            .is_some_and(|record| record.snapshots.values().any(|snapshot| snapshot.complete));
        receiver.forget_receiving(&copy()).unwrap();
        assert_eq!(copies(there.files()).len(), usize::from(complete), "a crash at write {at}");
        if complete {
            // Nobody has to come again.
            assert!(at > 2, "{at}");
            assert_eq!(receive(&receiver, "sa", ORIGIN, None, 20).phase, Phase::Success);
            break;
        }
    }
}
