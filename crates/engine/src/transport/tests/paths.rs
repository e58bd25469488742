//! Several paths: one is used at a time, by both sockets and as both ends see it, and another one when that
//! fails or is taken away.

use socket2::{Domain, SockAddr, Socket, Type};

use super::*;

/// A path between both ends, as each has it.
pub(super) struct Between([SocketAddr; 2]);

impl Between {
    pub(super) fn new() -> Between {
        Between(addresses())
    }

    pub(super) fn of(&self, end: usize) -> PathConfig {
        PathConfig { local: self.0[end], remote: self.0[1 - end] }
    }
}

/// An address that takes no more connections: tries to connect neither succeed nor fail.
struct Silent {
    address: SocketAddr,
    _sockets: Vec<Socket>,
}

impl Silent {
    fn new() -> Silent {
        let [address, _] = addresses();
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::from(address)).unwrap();
        listener.listen(0).unwrap();
        let mut sockets = vec![listener];
        // Nobody accepts them; the last one finds no place.
        for _ in 0..4 {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&SockAddr::from(address));
            sockets.push(socket);
        }
        Silent { address, _sockets: sockets }
    }
}

impl World {
    pub(super) fn set_paths(&mut self, end: usize, paths: &[PathConfig]) -> Option<Event> {
        self.ends[end].link.set_paths(&mut self.io, paths.to_vec())
    }

    /// The path in use, which is that of both sockets.
    fn used(&self, end: usize) -> PathConfig {
        let State::Up(up) = &self.ends[end].link.state else { panic!("it is up") };
        let [path] = up.paths[..] else { panic!("it has one path") };
        for channel in [&up.data, &up.control] {
            let [socket] = &channel.sockets[..] else { panic!("one socket") };
            let ips = (socket.conn.local_addr(), socket.conn.peer_addr());
            let ips = (ips.0.unwrap().ip(), ips.1.unwrap().ip());
            assert_eq!(ips, (path.local.ip(), path.remote.ip()), "a socket of another path");
        }
        path
    }

    fn come_up(&mut self) {
        self.ends.iter_mut().for_each(|end| end.events.clear());
        self.connect(0);
        self.connect(1);
        self.run("both are up", |w| w.ends.iter().all(|e| !e.events.is_empty()));
    }

    /// Both ends ask for a sign of life, get none, and give the connection up.
    fn fall_silent(&mut self) {
        for end in [0, 1] {
            self.ends[end].reading = false;
            self.send(end, &Packet::Ping, None);
        }
        for end in [0, 1] {
            self.close(end);
            self.ends[end].reading = true;
        }
    }
}

#[test]
fn a_path_that_is_taken_away_ends_the_connection_over_it_and_no_other() {
    let mut world = World::connected();
    let (used, _) = world.ends[0].link.paths().next().expect("it has one");
    let spare = PathConfig { local: used.local, remote: "127.1.2.9:7788".parse().unwrap() };
    assert_eq!(world.set_paths(0, &[spare, used]), None, "a path more disturbs nobody");
    let state: Vec<bool> = world.ends[0].link.paths().map(|(_, used)| used).collect();
    assert_eq!(state, [false, true]);
    assert_eq!(world.set_paths(0, &[used]), None, "nor does one less that is not in use");
    assert_eq!(world.set_paths(0, &[spare]), Some(Event::Down(LinkLoss::Broken)));
    assert!(world.ends[0].link.paths().all(|(_, used)| !used));
    world.run("the other end knows", |w| w.ends[1].events.len() == 2);
}

#[test]
fn the_second_path_is_taken_if_the_first_is_dead() {
    let (mut world, _) = World::new();
    let (live, [dead, _]) = (Between::new(), addresses());
    for end in [0, 1] {
        // Nobody has the remote address of the first path.
        let first = PathConfig { remote: dead, ..live.of(end) };
        world.set_paths(end, &[first, live.of(end)]);
    }
    world.come_up();
    for end in [0, 1] {
        assert_eq!(world.used(end), live.of(end));
    }
}

#[test]
fn a_peer_that_comes_by_another_path_is_not_kept_waiting() {
    let (silent, [refused, _]) = (Silent::new(), addresses());
    // While the first path is tried, and while the second one waits for its turn.
    for dead in [vec![silent.address], vec![refused, silent.address]] {
        for (waiting, coming) in [(0, 1), (1, 0)] {
            let (mut world, _) = World::new();
            world.patient();
            let live = Between::new();
            let mut paths: Vec<PathConfig> = Vec::new();
            for remote in &dead {
                let [local, _] = addresses();
                paths.push(PathConfig { local, remote: *remote });
            }
            paths.push(live.of(waiting));
            world.set_paths(waiting, &paths);
            world.set_paths(coming, &[live.of(coming)]);
            world.connect(waiting);
            let start = runtime::clock::now();
            world.run("it has tried", |_| {
                runtime::clock::now().since(start) > Duration::from_millis(100)
            });
            world.connect(coming);
            world.run("both are up", |w| w.ends.iter().all(|e| !e.events.is_empty()));
            assert!(runtime::clock::now().since(start) < Duration::from_secs(5), "{dead:?}");
            for end in [0, 1] {
                assert_eq!(world.used(end), live.of(end));
            }
            let tie_breaks = tie_breaks(&world);
            assert_ne!(tie_breaks[0], tie_breaks[1]);
        }
    }
}

#[test]
fn two_that_begin_with_different_paths_agree_on_one() {
    for _ in 0..10 {
        let (mut world, _) = World::new();
        world.patient();
        let (x, y) = (Between::new(), Between::new());
        world.set_paths(0, &[x.of(0), y.of(0)]);
        world.set_paths(1, &[y.of(1), x.of(1)]);
        world.come_up();
        let (one, other) = (world.used(0), world.used(1));
        assert_eq!((one.local, one.remote), (other.remote, other.local));
        let tie_breaks = tie_breaks(&world);
        assert_ne!(tie_breaks[0], tie_breaks[1]);
        exchange(&mut world);
    }
}

#[test]
fn a_path_that_failed_is_tried_last() {
    let (mut world, _) = World::new();
    world.patient();
    let (x, y, [refused, _]) = (Between::new(), Between::new(), addresses());
    for end in [0, 1] {
        world.set_paths(end, &[x.of(end), y.of(end)]);
    }
    world.come_up();
    assert_eq!(world.used(0), x.of(0));
    world.fall_silent();
    world.come_up();
    for end in [0, 1] {
        assert_eq!(world.used(end), y.of(end), "the one after that which failed");
    }
    // Whoever ends a connection for another reason has no reason to avoid its path.
    world.close(0);
    world.close(1);
    world.come_up();
    assert_eq!(world.used(0), x.of(0), "in the order");
    // And if there is no other that works, it is the one that failed.
    for end in [0, 1] {
        let dead = PathConfig { remote: refused, ..y.of(end) };
        assert_eq!(world.set_paths(end, &[x.of(end), dead]), None);
    }
    world.fall_silent();
    world.come_up();
    assert_eq!(world.used(0), x.of(0));
}

#[test]
fn a_path_that_dies_while_one_socket_is_there_is_left() {
    let (mut world, _) = World::new();
    let (silent, [local, _]) = (Silent::new(), addresses());
    let (live, half) = (Between::new(), PathConfig { local, remote: silent.address });
    // The other end is reached, and reaches nobody.
    let elsewhere = SocketAddr::new(live.0[0].ip(), 7001);
    world.set_paths(0, &[half, live.of(0)]);
    world.set_paths(1, &[PathConfig { remote: elsewhere, ..live.of(1) }]);
    world.connect(0);
    // The peer has opened one socket by the first path; the other one can not be opened by it.
    let peer = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    peer.bind(&SocketAddr::new(half.remote.ip(), 0).into()).unwrap();
    peer.connect(&SockAddr::from(local)).unwrap();
    let mut initial = Vec::new();
    codec::wire::encode(&Packet::InitialData, &Agreed::NOTHING, &mut initial);
    (&peer).write_all(&initial).unwrap();
    world.connect(1);
    world.run("both are up", |w| w.ends.iter().all(|e| !e.events.is_empty()));
    assert_eq!(world.used(0), live.of(0));
}
