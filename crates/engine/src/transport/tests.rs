//! Two links in one thread find each other over loopback, whoever comes first and whatever
//! crosses, and lose each other again. `encrypted`: the same with TLS. `handover`: one end goes on in
//! another process. `paths`: there are several ways from one to the other. `spread`: and all are used at once.

mod encrypted;
mod handover;
mod paths;
mod spread;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use codec::wire::{BlockId, Data, DataFlags, Features, Protocol, feature};
use runtime::{BufPool, Ring};
use vocab::{NodeId, SectorRange, VolumeNr};

use super::*;
use crate::digest::Algorithm;
use crate::shard::token::{self, Purpose};

/// P_PING of protocol 80.
const PING: [u8; 8] = [0x83, 0x74, 0x02, 0x67, 0, 0x13, 0, 0];
/// The initial packet of a data socket (wire §1.1).
const INITIAL_DATA: [u8; 8] = [0x83, 0x74, 0x02, 0x67, 0xff, 0xf2, 0, 0];

/// One end, with what it was told.
struct End {
    link: Link,
    events: Vec<Event>,
    packets: VecDeque<(Packet, Option<Vec<u8>>)>,
    /// Read what arrives.
    reading: bool,
    /// Why its stream could not go on.
    why: String,
}

struct World {
    io: Io,
    ends: [End; 2],
}

fn net() -> NetOptions {
    NetOptions {
        connect_int: Duration::from_millis(400),
        ping_timeout: Duration::from_millis(50),
        timeout: Duration::from_millis(300),
        ko_count: 2,
        ..NetOptions::default()
    }
}

fn node(id: u8) -> NodeId {
    NodeId::new(id).unwrap()
}

/// Addresses no other test uses; the first end's is the smaller one.
fn addresses() -> [SocketAddr; 2] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let (pid, nr) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    [1, 2].map(|host| {
        let ip = Ipv4Addr::new(127, 1 + (pid % 15) as u8, nr, host);
        SocketAddr::new(ip.into(), 7000)
    })
}

impl World {
    fn new() -> (World, [SocketAddr; 2]) {
        let pool = BufPool::new(32 << 20).unwrap();
        let mut io = Io::new(Ring::with_entries(64).unwrap(), pool).unwrap();
        let addresses = addresses();
        let ends = [0u8, 1].map(|me| {
            let id = LinkId { resource: u16::from(me), node: node(1 - me) };
            let mut link = Link::new(id, format!("end{me}"), &format!("end{}", 1 - me), net());
            let (local, remote) = (addresses[usize::from(me)], addresses[usize::from(1 - me)]);
            let _ = link.set_paths(&mut io, vec![PathConfig { local, remote }]);
            let (events, packets) = (Vec::new(), VecDeque::new());
            End { link, events, packets, reading: true, why: String::new() }
        });
        (World { io, ends }, addresses)
    }

    fn connected() -> World {
        let (mut world, _) = World::new();
        world.meet();
        world
    }

    fn meet(&mut self) {
        self.connect(0);
        self.connect(1);
        self.run("both are up", |w| w.ends.iter().all(|e| !e.events.is_empty()));
    }

    /// A try to connect, and the wait after it, are as long as with DRBD's defaults.
    fn patient(&mut self) {
        let net = NetOptions { connect_int: Duration::from_secs(10), ..net() };
        for end in &mut self.ends {
            _ = end.link.set_net(&mut self.io, net.clone());
        }
    }

    /// A pair is looked at for so long, unless it is certain.
    fn looking_for(&mut self, ping_timeout: Duration) {
        let connect_int = Duration::from_secs(10);
        let net = NetOptions { connect_int, ping_timeout, ..net() };
        for end in &mut self.ends {
            _ = end.link.set_net(&mut self.io, net.clone());
        }
    }

    fn connect(&mut self, end: usize) {
        self.ends[end].link.connect(&mut self.io);
    }

    fn close(&mut self, end: usize) {
        self.ends[end].link.close(&mut self.io);
    }

    fn send(&mut self, end: usize, packet: &Packet, payload: Option<Buf>) {
        self.ends[end].link.send(packet, payload);
        self.ends[end].link.flush(&mut self.io);
    }

    /// Features from both sides, so that everything may be sent.
    fn agree(&mut self) {
        for end in [0, 1] {
            let features = Features {
                protocol_min: 118,
                feature_flags: feature::OURS,
                protocol_max: 122,
                sender_node_id: end as u32,
                receiver_node_id: 1 - end as u32,
            };
            self.send(end, &Packet::ConnectionFeatures(features), None);
        }
        self.run("features arrived", |w| w.ends.iter().all(|e| !e.packets.is_empty()));
        self.ends.iter_mut().for_each(|e| e.packets.clear());
    }

    fn event(&mut self, end: usize, event: Option<Event>) {
        let Some(event) = event else { return };
        let streams = match event {
            Event::Readable(stream) => vec![stream],
            Event::Joined => vec![Stream::Data, Stream::Control],
            _ => {
                self.ends[end].events.push(event);
                vec![Stream::Data, Stream::Control]
            }
        };
        for stream in streams {
            self.read(end, stream);
        }
    }

    fn read(&mut self, end: usize, stream: Stream) {
        let end = &mut self.ends[end];
        while end.reading {
            match end.link.read(&mut self.io, stream) {
                Next::Packet(packet, payload) => {
                    end.packets.push_back((packet, payload.map(|buf| buf.to_vec())));
                }
                Next::Nothing => return,
                Next::Garbage(why) => {
                    end.why = why;
                    return end.events.push(Event::Down(LinkLoss::Garbage));
                }
            }
        }
    }

    /// Turns until a condition holds.
    fn run(&mut self, what: &str, mut until: impl FnMut(&World) -> bool) {
        let start = runtime::clock::now();
        let mut events = Vec::new();
        while !until(self) {
            let now = runtime::clock::now();
            assert!(now.since(start) < Duration::from_secs(20), "waited in vain until {what}");
            let links = self.ends.iter().filter_map(|e| e.link.deadline(now));
            let deadline = links.min().unwrap_or(now + Duration::from_millis(50));
            let deadline = deadline.min(now + Duration::from_millis(50));
            self.io.ring.wait(Some(deadline), &mut events).unwrap();
            for done in events.drain(..) {
                match token::purpose(done.token) {
                    Purpose::Link(link) => {
                        let end = usize::from(link.resource);
                        let io = &mut self.io;
                        let event = self.ends[end].link.completed(io, link.op, link.serial, done);
                        self.event(end, event);
                    }
                    Purpose::Listener(index) => {
                        let Io { listeners, ring, pool, .. } = &mut self.io;
                        if let Some((who, conn)) = listeners.accepted(ring, index, done, pool) {
                            let end = &mut self.ends[usize::from(who.resource)];
                            end.link.accepted(&mut self.io, conn);
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            for end in [0, 1] {
                if self.ends[end].link.deadline(self.io.now()).is_some_and(|at| at <= self.io.now())
                {
                    let event = self.ends[end].link.timeout(&mut self.io);
                    self.event(end, event);
                }
            }
        }
    }
}

fn tie_breaks(world: &World) -> Vec<bool> {
    let up = |end: &End| match end.events.first() {
        Some(Event::Up { tie_break }) => *tie_break,
        other => panic!("{other:?}"),
    };
    world.ends.iter().map(up).collect()
}

#[test]
fn two_that_start_together_have_one_tie_break_between_them() {
    for _ in 0..5 {
        let world = World::connected();
        // The greater address opens data and accepts control (wire §1.1).
        assert_eq!(tie_breaks(&world), [false, true]);
    }
}

#[test]
fn one_that_comes_later_is_not_kept_waiting() {
    for (first, second) in [(0, 1), (1, 0)] {
        let (mut world, _) = World::new();
        world.patient();
        world.connect(first);
        let start = runtime::clock::now();
        world.run("the first has tried", |_| {
            runtime::clock::now().since(start) > Duration::from_millis(100)
        });
        world.connect(second);
        world.run("both are up", |w| w.ends.iter().all(|e| !e.events.is_empty()));
        assert!(runtime::clock::now().since(start) < Duration::from_secs(5));
        let tie_breaks = tie_breaks(&world);
        assert_ne!(tie_breaks[0], tie_breaks[1]);
    }
}

/// Each side has opened one socket, and nothing crossed: nobody looks at the pair for `ping-timeout`.
#[test]
fn a_pair_that_is_certain_is_used_at_once() {
    for (first, second) in [(0, 1), (1, 0)] {
        let (mut world, _) = World::new();
        world.looking_for(Duration::from_secs(60));
        world.connect(first);
        let start = runtime::clock::now();
        world.run("the first has tried", |_| {
            runtime::clock::now().since(start) > Duration::from_millis(100)
        });
        world.connect(second);
        world.run("both are up", |w| w.ends.iter().all(|e| !e.events.is_empty()));
    }
}

/// One side has opened both: the other may have opened one, too, that is still on its way.
#[test]
fn a_pair_that_one_side_has_opened_is_looked_at() {
    let (mut world, [peer, engine]) = World::new();
    world.looking_for(Duration::from_millis(500));
    world.connect(1);
    let start = runtime::clock::now();
    world.run("it has tried", |_| runtime::clock::now().since(start) > Duration::from_millis(100));
    let mut sockets = [call(peer.ip(), engine), call(peer.ip(), engine)];
    for (socket, kind) in sockets.iter_mut().zip([0xf1, 0xf2]) {
        socket.write_all(&[0x83, 0x74, 0x02, 0x67, 0xff, kind, 0, 0]).unwrap();
    }
    let opened = runtime::clock::now();
    world.run("it is up", |w| !w.ends[1].events.is_empty());
    let looked = runtime::clock::now().since(opened);
    assert!(looked >= Duration::from_millis(500), "it was looked at for {looked:?}");
}

/// The peer has found the pair to be good before this end has read what its socket is.
#[test]
fn what_comes_with_the_initial_packet_is_read() {
    let (mut world, [peer, engine]) = World::new();
    world.patient();
    let listener = TcpListener::bind(peer).unwrap();
    world.connect(1);
    world.run("it has opened the data socket", |w| match &w.ends[1].link.state {
        State::Dancing(dance) => dance.holds(Stream::Data),
        _ => false,
    });
    let _data = listener.accept().unwrap();
    // A ping of protocol 80 behind it, as whoever has no features yet would send one.
    let mut control = call(peer.ip(), engine);
    let initial = [0x83, 0x74, 0x02, 0x67, 0xff, 0xf1, 0, 0];
    control.write_all(&[initial, PING].concat()).unwrap();
    world.run("it is up", |w| !w.ends[1].events.is_empty());
    world.run("the ping is read", |w| !w.ends[1].packets.is_empty());
    assert_eq!(world.ends[1].packets[0].0, Packet::Ping);
}

#[test]
fn packets_arrive_in_order_with_their_data() {
    exchange(&mut World::connected());
}

/// Sends many packets one way, and one the other way.
fn exchange(world: &mut World) {
    world.agree();
    let mut expected = Vec::new();
    for i in 0..200u64 {
        let len = 512 * (1 + i as usize % 40);
        let bytes: Vec<u8> = (0..len).map(|b| (b as u64 ^ i) as u8).collect();
        let data = Data {
            range: SectorRange::new(i * 64, len as u64 / 512),
            block_id: BlockId(i + 1),
            seq: i as u32,
            flags: DataFlags::SEND_WRITE_ACK,
        };
        let packet = Packet::Data(VolumeNr(0), data);
        let buf = world.io.pool.copy_from(&bytes).unwrap();
        world.ends[0].link.send(&packet, Some(buf));
        expected.push((packet, Some(bytes)));
    }
    world.ends[0].link.flush(&mut world.io);
    world.send(1, &Packet::Ping, None);
    world.run("all arrived", |w| w.ends[1].packets.len() == 200 && !w.ends[0].packets.is_empty());
    assert!(world.ends[1].packets.iter().eq(&expected));
    assert_eq!(world.ends[0].packets[0], (Packet::Ping, None));
}

/// P_PROTOCOL or P_PROTOCOL_UPDATE with the name of a digest.
fn parameters(kind: fn(Box<Protocol>) -> Packet, name: &str) -> Packet {
    kind(Box::new(Protocol {
        protocol: 3,
        after_sb_0p: 0,
        after_sb_1p: 0,
        after_sb_2p: 0,
        conn_flags: 0,
        two_primaries: 0,
        integrity_alg: name.as_bytes().to_vec(),
    }))
}

fn block(nr: u64) -> Packet {
    let (range, flags) = (SectorRange::new(nr * 8, 8), DataFlags::SEND_WRITE_ACK);
    Packet::Data(VolumeNr(0), Data { range, block_id: BlockId(nr + 1), seq: 0, flags })
}

#[test]
fn data_follow_the_digest_that_their_sender_has_named_last() {
    let mut world = World::connected();
    world.agree();
    let mut expected = Vec::new();
    for (nr, name) in ["", "crc32c", "sha512", "", "md5"].into_iter().enumerate() {
        let kind = if nr == 0 { Packet::Protocol } else { Packet::ProtocolUpdate };
        let (told, packet) = (parameters(kind, name), block(nr as u64));
        let bytes = vec![nr as u8; 4096];
        let buf = world.io.pool.copy_from(&bytes).unwrap();
        world.ends[0].link.send(&told, None);
        world.ends[0].link.send(&packet, Some(buf));
        expected.extend([(told, None), (packet, Some(bytes))]);
    }
    world.ends[0].link.flush(&mut world.io);
    // The other direction has none.
    let buf = world.io.pool.copy_from(&[7; 4096]).unwrap();
    world.send(1, &block(0), Some(buf));
    world.run("all arrived", |w| w.ends[1].packets.len() == 10 && !w.ends[0].packets.is_empty());
    assert!(world.ends[1].packets.iter().eq(&expected));
}

#[test]
fn data_without_their_digest_are_not_handed_on() {
    let mut world = World::connected();
    world.agree();
    world.send(0, &parameters(Packet::Protocol, "crc32c"), None);
    let buf = world.io.pool.copy_from(&[1; 4096]).unwrap();
    world.send(0, &block(0), Some(buf));
    let State::Up(up) = &mut world.ends[0].link.state else { panic!("it is up") };
    let agreed = up.agreed;
    let tx = &mut up.data.sockets[0].conn.tx;
    tx.push_with(|out| codec::wire::encode(&block(1), &agreed, out));
    tx.push_bytes(&Algorithm::Crc32c.of(&[1; 4096]));
    tx.push_bytes(&[vec![1; 4095], vec![3]].concat());
    world.ends[0].link.flush(&mut world.io);
    world.run("it is noticed", |w| w.ends[1].events.len() == 2);
    assert_eq!(world.ends[1].events[1], Event::Down(LinkLoss::Garbage));
    let packets: Vec<_> = world.ends[1].packets.iter().map(|(packet, _)| packet).collect();
    assert_eq!(packets, [&parameters(Packet::Protocol, "crc32c"), &block(0)]);
    let why = &world.ends[1].why;
    assert!(why.contains("volume 0, sectors 8+8") && why.contains("P_DATA"), "{why}");
    assert!(why.contains("crc32c"), "{why}");
}

#[test]
fn a_digest_that_nobody_knows_ends_the_connection() {
    let mut world = World::connected();
    world.agree();
    world.send(0, &parameters(Packet::Protocol, ""), None);
    let State::Up(up) = &mut world.ends[0].link.state else { panic!("it is up") };
    let (told, agreed) = (parameters(Packet::ProtocolUpdate, "crc\n64"), up.agreed);
    up.data.sockets[0].conn.tx.push_with(|out| codec::wire::encode(&told, &agreed, out));
    world.ends[0].link.flush(&mut world.io);
    world.run("it is noticed", |w| w.ends[1].events.len() == 2);
    assert!(world.ends[1].why.contains("`crc\\n64`"), "{}", world.ends[1].why);
}

#[test]
fn what_was_said_before_the_end_is_heard_before_it() {
    for _ in 0..5 {
        let mut world = World::connected();
        world.agree();
        world.ends[0].link.send(&Packet::Disconnect, None);
        world.close(0);
        world.run("the other end knows", |w| w.ends[1].events.len() == 2);
        assert_eq!(world.ends[1].packets, [(Packet::Disconnect, None)]);
        assert!(matches!(
            world.ends[1].events[1],
            Event::Down(LinkLoss::Closed | LinkLoss::Broken)
        ));
        assert_eq!(world.ends[0].events.len(), 1, "whoever closes is not told");
        // And both can connect again.
        world.connect(0);
        world.connect(1);
        world.run("both are up again", |w| {
            matches!(w.ends[0].events.last(), Some(Event::Up { .. }))
                && matches!(w.ends[1].events.last(), Some(Event::Up { .. }))
                && w.ends[1].events.len() == 3
        });
    }
}

#[test]
fn a_peer_that_takes_no_data_is_given_up() {
    let mut world = World::connected();
    world.agree();
    world.ends[1].reading = false;
    let buf = world.io.pool.alloc_zeroed(1 << 20).unwrap();
    let start = runtime::clock::now();
    for i in 0..20u64 {
        let range = SectorRange::new(i * 2048, 2048);
        let flags = DataFlags::SEND_WRITE_ACK;
        let data = Data { range, block_id: BlockId(i + 1), seq: 0, flags };
        let packet = Packet::Data(VolumeNr(0), data);
        world.ends[0].link.send(&packet, Some(buf.clone()));
    }
    world.ends[0].link.flush(&mut world.io);
    world.run("it is given up", |w| w.ends[0].events.len() == 2);
    assert_eq!(world.ends[0].events[1], Event::Down(LinkLoss::Stalled));
    // Timeout times ko-count, for the data stream.
    assert!(runtime::clock::now().since(start) >= Duration::from_millis(550));
}

#[test]
fn bytes_that_are_no_packet_end_the_connection() {
    let mut world = World::connected();
    world.agree();
    let up = match &mut world.ends[0].link.state {
        State::Up(up) => up,
        _ => panic!("it is up"),
    };
    up.data.sockets[0].conn.tx.push_bytes(b"GET / HTTP/1.1\r\n");
    world.ends[0].link.flush(&mut world.io);
    world.run("it is noticed", |w| w.ends[1].events.len() == 2);
    assert_eq!(world.ends[1].events[1], Event::Down(LinkLoss::Garbage));
}

/// A socket from an address, as somebody else than a link opens one.
fn call(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    TcpStream::from(OwnedFd::from(socket))
}

/// The peer's part is a kernel 8.4's: it opens the data socket first though its address is the lesser
/// one, and drops it when it finds that it has been given one meanwhile.
#[test]
fn a_kernel_that_opened_the_same_socket_finds_its_peers_alive() {
    for _ in 0..5 {
        let (mut world, [kernel, engine]) = World::new();
        world.patient();
        let listener = TcpListener::bind(kernel).unwrap();
        world.connect(1);
        world.run("it has opened the data socket", |w| match &w.ends[1].link.state {
            State::Dancing(dance) => dance.holds(Stream::Data),
            _ => false,
        });
        let mut own = call(kernel.ip(), engine);
        own.write_all(&INITIAL_DATA).unwrap();
        let (mut data, _) = listener.accept().unwrap();
        data.set_nonblocking(true).unwrap();
        let mut initial = [0; 8];
        world.run("it has said so", |_| data.peek(&mut initial).is_ok_and(|n| n == 8));
        data.read_exact(&mut initial).unwrap();
        assert_eq!(initial, INITIAL_DATA);
        // Its coin says that it waits for the other one.
        drop(own);
        listener.set_nonblocking(true).unwrap();
        let mut control = None;
        world.run("it opens the control socket", |_| {
            control = control.take().or_else(|| listener.accept().ok());
            control.is_some()
        });
        world.run("it is up", |w| !w.ends[1].events.is_empty());
        let end = data.read(&mut [0; 8]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::WouldBlock), "the data socket is in use");
    }
}

#[test]
fn strangers_and_silent_callers_do_not_disturb() {
    let (mut world, addresses) = World::new();
    world.connect(0);
    // Somebody from the peer's address, who is no DRBD; one who says nothing; one from elsewhere.
    let from = |ip| call(ip, addresses[0]);
    let peer = addresses[1].ip();
    let mut browser = from(peer);
    browser.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let _silent = from(peer);
    let mut stranger = from(Ipv4Addr::new(127, 0, 0, 1).into());
    let start = runtime::clock::now();
    world.run("they are sent away", |_| {
        runtime::clock::now().since(start) > Duration::from_millis(300)
    });
    for socket in [&mut browser, &mut stranger] {
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        assert!(matches!(socket.read(&mut [0; 8]), Ok(0) | Err(_)));
    }
    assert!(world.ends[0].events.is_empty());
    world.connect(1);
    world.run("both are up", |w| w.ends.iter().all(|e| !e.events.is_empty()));
}
