//! Connections over several paths at once: nothing is lost, doubled or out of order whatever path a part of a stream
//! comes by, paths come and go, and peers whose chunks are none are left.

use codec::wire::ChunkHeader;

use super::paths::Between;
use super::*;

/// Chunks from here on are not those of features.
const FIRST: u32 = 2;

fn spread() -> NetOptions {
    let timeout = Duration::from_secs(1);
    NetOptions { transport: "lb-tcp".to_owned(), load_balance_paths: true, timeout, ..net() }
}

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

impl World {
    /// Both ends balance load over so many paths, and are not connected.
    fn spread(paths: usize) -> (World, Vec<Between>) {
        let (mut world, _) = World::new();
        let paths: Vec<Between> = (0..paths).map(|_| Between::new()).collect();
        for end in [0, 1] {
            assert_eq!(world.ends[end].link.set_net(&mut world.io, spread()), None);
            let ours: Vec<PathConfig> = paths.iter().map(|path| path.of(end)).collect();
            world.set_paths(end, &ours);
        }
        (world, paths)
    }

    /// Connected by all of them, and ready for packets.
    fn spread_up(paths: usize) -> World {
        let (mut world, _) = World::spread(paths);
        world.meet();
        world.all_join(paths);
        world.agree();
        world
    }

    fn all_join(&mut self, paths: usize) {
        self.run("all paths are in use", |w| {
            w.ends.iter().all(|e| e.link.paths().filter(|(_, used)| *used).count() == paths)
        });
    }

    fn up(&mut self, end: usize) -> &mut Up {
        let State::Up(up) = &mut self.ends[end].link.state else { panic!("it is up") };
        up
    }

    /// Bytes that the first end puts on a path of the data stream past the link.
    fn put(&mut self, path: usize, bytes: &[u8]) {
        let State::Up(up) = &mut self.ends[0].link.state else { return };
        up.data.sockets[path].conn.tx.push_bytes(bytes);
        up.data.flush_one(&mut self.io.ring, path);
    }

    fn put_chunk(&mut self, path: usize, sequence: u32, bytes: &[u8]) {
        self.put(path, &chunk(sequence, bytes));
    }

    /// So much was sent by each path of a stream.
    fn sent(&mut self, end: usize, stream: Stream) -> Vec<u64> {
        let sockets = &self.up(end).channel(stream).sockets;
        sockets.iter().map(|socket| socket.conn.tcp_info().unwrap().sent_bytes).collect()
    }

    /// The second end has closed the connection for what the first one has put there.
    fn is_left(&mut self, why: &str) {
        self.run("it is left", |w| w.ends[1].events.len() == 2);
        assert_eq!(self.ends[1].events[1], Event::Down(LinkLoss::Garbage));
        assert!(self.ends[1].why.contains(why), "{}", self.ends[1].why);
    }
}

fn chunk(sequence: u32, bytes: &[u8]) -> Vec<u8> {
    let header = ChunkHeader { sequence, bytes: bytes.len() as u32 };
    [&header.to_bytes(), bytes].concat()
}

type Packets = Vec<(Packet, Option<Vec<u8>>)>;

/// Packets of different sizes, and their bytes.
fn some_packets(numbers: &mut Numbers, count: u64) -> (Packets, Vec<u8>) {
    let agreed = Agreed::new(122, feature::OURS);
    let (mut packets, mut stream) = (Vec::new(), Vec::new());
    for nr in 0..count {
        let packet = match numbers.below(4) {
            0 => Packet::UnplugRemote,
            _ => block(nr),
        };
        codec::wire::encode(&packet, &agreed, &mut stream);
        let data = (packet.payload_len() > 0).then(|| vec![nr as u8; packet.payload_len()]);
        stream.extend(data.iter().flatten());
        packets.push((packet, data));
    }
    (packets, stream)
}

#[test]
fn packets_arrive_in_order_over_all_paths() {
    for paths in [1, 2, 3] {
        let (mut world, _) = World::spread(paths);
        world.meet();
        let tie_breaks = tie_breaks(&world);
        assert_ne!(tie_breaks[0], tie_breaks[1]);
        world.all_join(paths);
        exchange(&mut world);
        for _ in 0..10 {
            world.send(1, &Packet::Ping, None);
            world.send(1, &Packet::PingAck, None);
        }
        world.run("they arrived", |w| w.ends[0].packets.len() == 21);
        // Besides the initial packet and a header.
        assert!(world.sent(0, Stream::Data).into_iter().all(|bytes| bytes > 50_000));
        assert!(world.sent(1, Stream::Control).into_iter().all(|bytes| bytes > 24));
        assert!(world.ends.iter().all(|end| end.events.len() == 1), "nobody was told of an end");
    }
}

/// With a kernel node that is so: what it would do of what comes by another path is not safe there.
#[test]
fn control_packets_go_by_the_first_path_to_a_peer_of_another_kind() {
    let (mut world, _) = World::spread(2);
    world.meet();
    world.all_join(2);
    for end in [0, 1] {
        world.up(end).agreed = Agreed::new(122, 0x7f);
    }
    let before = world.sent(0, Stream::Control);
    for _ in 0..10 {
        world.send(0, &Packet::Ping, None);
    }
    world.run("they arrived", |w| w.ends[1].packets.len() == 10);
    let after = world.sent(0, Stream::Control);
    assert!(after[0] > before[0] && after[1] == before[1], "{before:?} {after:?}");
}

#[test]
fn digests_are_checked_whatever_path_data_come_by() {
    let mut world = World::spread_up(2);
    world.send(0, &parameters(Packet::Protocol, "crc32c"), None);
    for nr in 0..8 {
        let buf = world.io.pool.copy_from(&[nr as u8; 4096]).unwrap();
        world.send(0, &block(nr), Some(buf));
    }
    world.run("all arrived", |w| w.ends[1].packets.len() == 9);
    assert!(world.sent(0, Stream::Data).into_iter().all(|bytes| bytes > 4096));
}

/// As a kernel node cuts them, and worse: anywhere, into chunks of nothing, too, and each path at its own pace.
#[test]
fn a_stream_cut_anywhere_over_all_paths_is_put_together() {
    for seed in 0..20 {
        let mut numbers = Numbers(seed);
        let paths = 2 + numbers.below(2);
        let mut world = World::spread_up(paths);
        let (packets, stream) = some_packets(&mut numbers, 60);
        let (mut rest, mut sequence) = (&stream[..], FIRST);
        let mut by_path = vec![Vec::new(); paths];
        while !rest.is_empty() {
            let most = [1, 20, 5000, 9000][numbers.below(4)];
            let (part, others) = rest.split_at(numbers.below(most + 1).min(rest.len()));
            by_path[numbers.below(paths)].extend(chunk(sequence, part));
            (rest, sequence) = (others, sequence + 1);
        }
        let mut at = vec![0; paths];
        while at.iter().zip(&by_path).any(|(at, bytes)| *at < bytes.len()) {
            let path = numbers.below(paths);
            let left = by_path[path].len() - at[path];
            let most = [7, 3000, 30_000][numbers.below(3)];
            let n = (1 + numbers.below(most)).min(left);
            world.put(path, &by_path[path][at[path]..][..n]);
            at[path] += n;
            if numbers.below(8) == 0 {
                world.turn();
            }
            if numbers.below(20) == 0 {
                world.swap(1);
            }
        }
        world.run("all arrived", |w| w.ends[1].packets.len() == 60 || w.ends[1].events.len() > 1);
        assert!(world.ends[1].packets.iter().eq(&packets), "seed {seed}: {}", world.ends[1].why);
    }
}

#[test]
fn packets_over_two_paths_arrive_in_order_while_both_ends_are_swapped() {
    let (mut world, _) = World::spread(2);
    world.meet();
    world.all_join(2);
    handover::swapped_back_and_forth(&mut world);
    assert!(world.sent(0, Stream::Data).into_iter().all(|bytes| bytes > 50_000));
}

#[test]
fn the_heir_of_a_connection_goes_on_trying_the_paths_that_are_missing() {
    let (mut world, paths) = World::spread(2);
    world.set_paths(0, &[paths[0].of(0)]);
    world.meet();
    world.swap(1);
    world.set_paths(0, &[paths[0].of(0), paths[1].of(0)]);
    world.all_join(2);
    exchange(&mut world);
}

#[test]
fn sequence_numbers_go_on_beyond_the_greatest() {
    let mut world = World::spread_up(2);
    for (end, stream) in [(0, Stream::Data), (0, Stream::Control), (1, Stream::Control)] {
        let up = world.up(end);
        up.channel(stream).spread.as_mut().unwrap().set_next(u32::MAX - 2);
        let up = world.up(1 - end);
        up.channel(stream).spread.as_mut().unwrap().set_expected(u32::MAX - 2);
    }
    for nr in 0..10 {
        let buf = world.io.pool.copy_from(&[nr as u8; 4096]).unwrap();
        world.send(0, &block(nr), Some(buf));
        world.send(0, &Packet::Ping, None);
        world.send(1, &Packet::PingAck, None);
    }
    world.run("all arrived", |w| w.ends[1].packets.len() == 20 && w.ends[0].packets.len() == 10);
}

#[test]
fn a_path_that_is_added_joins_and_one_that_is_taken_away_ends_the_connection() {
    let (mut world, paths) = World::spread(3);
    for end in [0, 1] {
        world.set_paths(end, &[paths[1].of(end)]);
    }
    world.meet();
    for end in [0, 1] {
        let all: Vec<PathConfig> = paths.iter().map(|path| path.of(end)).collect();
        assert_eq!(world.set_paths(end, &all), None);
    }
    world.all_join(3);
    for end in [0, 1] {
        let in_order: Vec<PathConfig> = paths.iter().map(|path| path.of(end)).collect();
        assert_eq!(world.up(end).paths, in_order);
    }
    exchange(&mut world);
    assert!(world.sent(0, Stream::Data).into_iter().all(|bytes| bytes > 50_000));
    let two = [paths[0].of(0), paths[1].of(0)];
    assert_eq!(world.set_paths(0, &two), Some(Event::Down(LinkLoss::Broken)));
    world.run("the other end knows", |w| w.ends[1].events.len() == 2);
}

#[test]
fn a_path_that_is_not_there_yet_is_tried_until_it_is() {
    let (mut world, paths) = World::spread(2);
    let [dead, _] = addresses();
    for end in [0, 1] {
        let second = PathConfig { remote: dead, ..paths[1].of(end) };
        world.set_paths(end, &[paths[0].of(end), second]);
    }
    world.meet();
    exchange(&mut world);
    assert_eq!(world.up(0).joining.len(), 1);
    for end in [0, 1] {
        world.set_paths(end, &[paths[0].of(end), paths[1].of(end)]);
    }
    world.all_join(2);
    let before = world.ends[1].packets.len();
    for nr in 0..8 {
        let buf = world.io.pool.copy_from(&[nr as u8; 4096]).unwrap();
        world.send(0, &block(nr), Some(buf));
    }
    world.run("all arrived", |w| w.ends[1].packets.len() == before + 8);
    assert!(world.sent(0, Stream::Data).into_iter().all(|bytes| bytes > 4096));
}

/// Whatever has arrived is a beginning of what was sent, and the connection is made anew by both paths.
#[test]
fn a_path_that_ends_under_load_ends_the_connection_before_anything_is_missing() {
    for round in 0..10 {
        let mut world = World::spread_up(2);
        let mut expected = Vec::new();
        for nr in 0..400 {
            let bytes = vec![nr as u8; 4096];
            let buf = world.io.pool.copy_from(&bytes).unwrap();
            world.ends[0].link.send(&block(nr), Some(buf));
            expected.push((block(nr), Some(bytes)));
            if nr % 30 == 0 {
                world.ends[0].link.flush(&mut world.io);
            }
            if nr == 40 * round {
                let stream = [Stream::Data, Stream::Control][(round % 4 / 2) as usize];
                let end = (round % 3 / 2) as usize;
                world.up(end).channel(stream).sockets[round as usize % 2].conn.shutdown();
            }
        }
        world.ends[0].link.flush(&mut world.io);
        world.run("both know", |w| w.ends.iter().all(|end| end.events.len() == 2));
        let arrived = &world.ends[1].packets;
        assert!(arrived.iter().zip(&expected).all(|(got, sent)| got == sent), "round {round}");
        for end in [0, 1] {
            world.ends[end].packets.clear();
            world.ends[end].events.clear();
        }
        world.meet();
        world.all_join(2);
        exchange(&mut world);
    }
}

#[test]
fn a_part_of_a_stream_that_does_not_come_ends_the_connection() {
    let mut world = World::spread_up(2);
    world.put_chunk(1, FIRST + 1, &[0; 16]);
    world.run("it is given up", |w| w.ends[1].events.len() == 2);
    assert_eq!(world.ends[1].events[1], Event::Down(LinkLoss::Broken));
    assert_eq!(world.ends[1].packets.len(), 0);
    // Also if some of it has come.
    let mut world = World::spread_up(2);
    let part = chunk(FIRST, &[0; 4096]);
    world.put(0, &part[..1000]);
    world.put_chunk(1, FIRST + 1, &[0; 16]);
    world.run("it is given up", |w| w.ends[1].events.len() == 2);
}

/// The bytes of a peer that sends on and on wait in the sockets.
#[test]
fn what_waits_for_its_turn_takes_no_memory() {
    let mut world = World::spread_up(2);
    let used = world.io.pool.in_use();
    for sequence in 0..64 {
        world.put_chunk(1, FIRST + 1 + sequence, &[0; 60_000]);
    }
    world.run("it is given up", |w| {
        assert!(w.io.pool.in_use() <= used + (1 << 20), "{}", w.io.pool.in_use());
        w.ends[1].events.len() == 2
    });
}

#[test]
fn peers_whose_chunks_are_none_are_left() {
    let mut world = World::spread_up(2);
    world.put(0, &ChunkHeader { sequence: FIRST, bytes: u32::MAX }.to_bytes());
    world.is_left("a chunk of 4294967295 bytes");

    let mut world = World::spread_up(2);
    world.put_chunk(1, FIRST - 1, &[0; 16]);
    world.is_left("chunk 1 where 2 comes next: it was there already");

    let mut world = World::spread_up(2);
    world.put_chunk(1, FIRST + (1 << 25), &[0; 16]);
    world.is_left("too far ahead");

    // The same place by two paths.
    let mut world = World::spread_up(2);
    world.put_chunk(0, FIRST + 1, &[0; 16]);
    world.put_chunk(1, FIRST + 1, &[0; 16]);
    world.is_left("chunk 3 where 2 comes next: it was there already");

    // Chunks are as they should be, and what is in them is no packet.
    let mut world = World::spread_up(2);
    world.put_chunk(1, FIRST, b"GET / HTTP/1.1\r\n");
    world.is_left("no packet header");
}

#[test]
fn one_that_balances_load_and_one_that_does_not_say_so_and_do_not_connect() {
    let (mut world, _) = World::spread(1);
    let event = world.ends[1].link.set_net(&mut world.io, net());
    world.event(1, event);
    world.connect(0);
    world.connect(1);
    world.run("both know why", |w| w.ends.iter().all(|end| end.link.trouble().is_some()));
    let why = [0, 1].map(|end| world.ends[end].link.trouble().unwrap().to_owned());
    assert!(why[0].contains("end0 not made: this node spreads it over all paths"), "{why:?}");
    assert!(why[1].contains("end1 not made: the peer spreads it over all paths"), "{why:?}");
    assert!(
        why.iter().all(|why| why.contains("`load-balance-paths yes` on both nodes")),
        "{why:?}"
    );
    assert!(world.ends.iter().all(|end| end.events.is_empty()));
    // And no longer than that.
    let event = world.ends[1].link.set_net(&mut world.io, spread());
    world.event(1, event);
    world.run("both are up", |w| w.ends.iter().all(|e| !e.events.is_empty()));
    assert!(world.ends.iter().all(|end| end.link.trouble().is_none()));
    exchange(&mut world);
}

#[test]
fn data_over_two_paths_allocate_nothing_once_it_runs() {
    let mut world = World::spread_up(2);
    let data = world.io.pool.copy_from(&[1; 4096]).unwrap();
    let mut allocated = 0;
    for nr in 0..60 {
        if nr == 40 {
            allocated = 0;
        }
        allocated += round(&mut world, &data);
    }
    assert_eq!(allocated, 0);
}

/// Sends some packets and receives them: how often memory was allocated for that.
fn round(world: &mut World, data: &Buf) -> u64 {
    let before = runtime::counting::allocations();
    for nr in 0..40 {
        world.ends[0].link.send(&block(nr), Some(data.clone()));
    }
    world.ends[0].link.flush(&mut world.io);
    let mut allocated = runtime::counting::allocations() - before;
    let mut arrived = 0;
    while arrived < 40 {
        let mut events = Vec::with_capacity(64);
        world.io.ring.wait(None, &mut events).unwrap();
        let before = runtime::counting::allocations();
        for done in events.drain(..) {
            let Purpose::Link(link) = token::purpose(done.token) else { panic!("a link's") };
            let end = &mut world.ends[usize::from(link.resource)].link;
            end.completed(&mut world.io, link.op, link.serial, done);
            while let Next::Packet(..) = world.ends[1].link.read(&mut world.io, Stream::Data) {
                arrived += 1;
            }
        }
        allocated += runtime::counting::allocations() - before;
    }
    allocated
}
