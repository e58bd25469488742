//! A link is frozen and thawed between any two bytes, and the other end notices nothing.

use super::*;

impl World {
    /// Freezes an end's link, sends it through bytes, and goes on with what comes out.
    pub(super) fn swap(&mut self, end: usize) {
        self.ends[end].link.pause(&mut self.io);
        self.run("it is at rest", |w| w.ends[end].link.unfrozen().is_none());
        let (frozen, descriptors) = self.ends[end].link.freeze().unwrap();
        let bytes = codec::frozen::to_bytes(1, &frozen).unwrap();
        let frozen: FrozenLink = codec::frozen::from_bytes(1, &bytes).unwrap();
        assert_eq!(frozen.descriptors(), descriptors.len());
        let id = self.ends[end].link.id;
        let mut link =
            Link::new(id, format!("heir{end}"), &frozen.peer.clone(), frozen.net.clone());
        link.thaw(&mut self.io, frozen, descriptors).unwrap();
        let old = std::mem::replace(&mut self.ends[end].link, link);
        // As the process would that ends: nothing is shut down.
        std::mem::forget(old);
        let before = self.ends[end].packets.len();
        self.read(end, Stream::Data);
        self.read(end, Stream::Control);
        assert_eq!(self.ends[end].packets.len(), before, "nothing is read in a pause");
        self.ends[end].link.resume();
        for stream in [Stream::Data, Stream::Control] {
            self.read(end, stream);
        }
    }

    /// Turns for a moment: what was sent has most likely arrived.
    pub(super) fn turn(&mut self) {
        let start = runtime::clock::now();
        self.run("a moment has passed", |_| {
            runtime::clock::now().since(start) > Duration::from_millis(1)
        });
    }
}

#[test]
fn packets_arrive_in_order_while_both_ends_are_swapped() {
    let mut world = World::connected();
    swapped_back_and_forth(&mut world);
}

pub(super) fn swapped_back_and_forth(world: &mut World) {
    world.agree();
    for round in 0..20u64 {
        let mut expected = Vec::new();
        for nr in 0..40 {
            let bytes = vec![(round * 40 + nr) as u8; 4096];
            let buf = world.io.pool.copy_from(&bytes).unwrap();
            world.ends[0].link.send(&block(nr), Some(buf));
            expected.push((block(nr), Some(bytes)));
        }
        world.ends[0].link.flush(&mut world.io);
        world.swap(1);
        world.swap(0);
        world.swap(1);
        world.run("all arrived", |w| w.ends[1].packets.len() == 40);
        assert!(world.ends[1].packets.iter().eq(&expected), "round {round}");
        world.ends[1].packets.clear();
        world.send(1, &Packet::Ping, None);
        world.run("and back", |w| !w.ends[0].packets.is_empty());
        assert_eq!(world.ends[0].packets.pop_front(), Some((Packet::Ping, None)));
    }
    assert!(world.ends.iter().all(|end| end.events.len() == 1), "nobody was told of an end");
}

#[test]
fn a_packet_of_which_some_has_arrived_is_completed_by_the_heir() {
    let mut world = World::connected();
    world.agree();
    world.send(0, &parameters(Packet::Protocol, "crc32c"), None);
    world.run("it is named", |w| w.ends[1].packets.len() == 1);
    world.ends[1].packets.clear();
    let State::Up(up) = &world.ends[0].link.state else { panic!("it is up") };
    let agreed = up.agreed;
    let (mut stream, mut expected) = (Vec::new(), Vec::new());
    for nr in [1, 2] {
        let bytes: Vec<u8> = (0..4096u64).map(|i| (i * 7 + nr) as u8).collect();
        codec::wire::encode(&block(nr), &agreed, &mut stream);
        stream.extend_from_slice(&Algorithm::Crc32c.of(&bytes));
        stream.extend_from_slice(&bytes);
        expected.push((block(nr), Some(bytes)));
    }
    let half = stream.len() / 2;
    let header = half - 4096;
    let cuts = (0..=header + 2).chain([1000, half - 1]);
    let cuts = cuts.chain(half..half + header + 2).chain([half + 1000, stream.len() - 1]);
    for cut in cuts {
        for (part, swapped) in [(&stream[..cut], true), (&stream[cut..], false)] {
            let State::Up(up) = &mut world.ends[0].link.state else { panic!("it is up") };
            up.data.sockets[0].conn.tx.push_bytes(part);
            world.ends[0].link.flush(&mut world.io);
            if swapped {
                world.turn();
                world.swap(1);
            }
        }
        world.run("both arrived", |w| w.ends[1].packets.len() == 2 || w.ends[1].events.len() > 1);
        assert!(world.ends[1].packets.iter().eq(&expected), "cut at {cut}: {}", world.ends[1].why);
        world.ends[1].packets.clear();
    }
}
