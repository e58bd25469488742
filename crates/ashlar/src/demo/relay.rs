//! The network between the nodes: relays in this process that can be cut.
//!
//! Every replication link runs through a relay, so that a partition can be made without root,
//! namespaces or firewall rules. A cut is what a pulled cable is: nothing is delivered and nothing
//! is closed, on both sides; the nodes have to find out by themselves. When it heals, what was
//! under way is lost.
//!
//! A node knows a peer by its address (wire §1.1: an incoming socket is matched by its remote
//! IP), and the order of addresses, port first, decides which node opens which socket. So a relay
//! keeps the addresses of the two nodes and stands one port beside the real one:
//!
//! ```text
//!   node i at 127.0.0.i:P                                  node j at 127.0.0.j:P, i < j
//!      ──► 127.0.0.j:P+1  relay, goes on from 127.0.0.i ──► 127.0.0.j:P
//!      127.0.0.i:P ◄── relay, goes on from 127.0.0.j  127.0.0.i:P-1 ◄──
//! ```

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::NodeNr;

/// Bytes moved at a time.
const CHUNK: usize = 256 << 10;
/// How long the relay tries to reach a node; on one machine it answers at once or not at all.
const CONNECT: Duration = Duration::from_secs(1);

/// The address of a node on this machine.
pub fn ip(node: NodeNr) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, node)
}

/// Where `viewer` finds `node`: at its own port if they are the same, else at a relay.
pub fn relayed(viewer: NodeNr, node: NodeNr, port: u16) -> SocketAddr {
    let port = match viewer.cmp(&node) {
        std::cmp::Ordering::Less => port + 1,
        std::cmp::Ordering::Equal => port,
        std::cmp::Ordering::Greater => port - 1,
    };
    SocketAddr::from((ip(node), port))
}

/// All links between the nodes 1 to n.
#[derive(Debug)]
pub struct Network {
    links: BTreeMap<(NodeNr, NodeNr), Arc<Link>>,
    listeners: Vec<SocketAddr>,
    ended: Arc<AtomicBool>,
}

/// The link between two nodes.
#[derive(Debug, Default)]
struct Link {
    state: Mutex<State>,
    healed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    cut: bool,
    /// Counts cuts: a connection from before the last one is dead.
    age: u64,
    /// Both ends of every connection, to close them.
    streams: Vec<TcpStream>,
}

impl Network {
    /// Relays for nodes 1 to `nodes`, each of which listens at `port` of its address.
    ///
    /// # Errors
    /// If an address of a relay is taken.
    pub fn start(nodes: NodeNr, port: u16) -> io::Result<Network> {
        let pairs = (1..=nodes).flat_map(|a| (a + 1..=nodes).map(move |b| (a, b)));
        let links: BTreeMap<_, _> = pairs.map(|pair| (pair, Arc::default())).collect();
        let ended = Arc::new(AtomicBool::new(false));
        let mut network = Network { links, listeners: Vec::new(), ended };
        for node in 1..=nodes {
            let links = network.links_of(node);
            let lower = |peer: NodeNr| peer < node;
            for from_below in [true, false] {
                let peers: BTreeMap<IpAddr, (NodeNr, Arc<Link>)> = links
                    .iter()
                    .filter(|(peer, _)| lower(*peer) == from_below)
                    .map(|(peer, link)| (IpAddr::from(ip(*peer)), (*peer, Arc::clone(link))))
                    .collect();
                let Some(&(viewer, _)) = peers.values().next() else { continue };
                let listener = TcpListener::bind(relayed(viewer, node, port))?;
                network.listeners.push(listener.local_addr()?);
                let (ended, target) = (Arc::clone(&network.ended), (ip(node), port).into());
                thread::spawn(move || accept(&listener, target, &peers, &ended));
            }
        }
        Ok(network)
    }

    fn links_of(&self, node: NodeNr) -> Vec<(NodeNr, Arc<Link>)> {
        let touching = self.links.iter().filter_map(|(&(a, b), link)| match node {
            _ if a == node => Some((b, Arc::clone(link))),
            _ if b == node => Some((a, Arc::clone(link))),
            _ => None,
        });
        touching.collect()
    }

    /// Cuts `node` off from every other one.
    pub fn isolate(&self, node: NodeNr) {
        for (_, link) in self.links_of(node) {
            link.lock().cut = true;
        }
    }

    /// Mends every link of `node`.
    pub fn heal(&self, node: NodeNr) {
        for (_, link) in self.links_of(node) {
            link.heal();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for listener in &self.listeners {
            // Wakes the thread in accept.
            let _ = TcpStream::connect(listener);
        }
        for link in self.links.values() {
            link.heal();
        }
    }
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heal(&self) {
        let mut state = self.lock();
        state.cut = false;
        state.age += 1;
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.healed.notify_all();
    }

    /// Waits while the link is cut. False if it was cut since `age`.
    fn passes(&self, age: u64) -> bool {
        let mut state = self.lock();
        while state.cut && state.age == age {
            state = self.healed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.age == age
    }

    /// Moves bytes between the two streams until both directions have ended.
    fn carry(self: &Arc<Link>, a: TcpStream, b: TcpStream) -> io::Result<()> {
        let age = {
            let mut state = self.lock();
            state.streams.retain(|stream| stream.peer_addr().is_ok());
            state.streams.extend([a.try_clone()?, b.try_clone()?]);
            state.age
        };
        for (from, to) in [(a.try_clone()?, b.try_clone()?), (b, a)] {
            let link = Arc::clone(self);
            thread::spawn(move || link.pump(age, from, to));
        }
        Ok(())
    }

    /// One direction. The end of the stream is passed on like everything else.
    fn pump(&self, age: u64, mut from: TcpStream, mut to: TcpStream) {
        let mut chunk = vec![0; CHUNK];
        loop {
            let count = from.read(&mut chunk);
            if !self.passes(age) {
                return;
            }
            match count {
                Ok(0) => {
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                Ok(n) if to.write_all(&chunk[..n]).is_ok() => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                _ => {
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                    return;
                }
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    target: SocketAddr,
    peers: &BTreeMap<IpAddr, (NodeNr, Arc<Link>)>,
    ended: &AtomicBool,
) {
    for incoming in listener.incoming() {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let Ok(incoming) = incoming else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let from = incoming.peer_addr().map(|address| address.ip());
        let Some((peer, link)) = from.ok().and_then(|from| peers.get(&from)) else { continue };
        let mut state = link.lock();
        if state.cut {
            // Packets into a cut cable: no answer, until it is mended.
            state.streams.push(incoming);
            continue;
        }
        drop(state);
        // A node that is down closes the relay's connection, and the relay the peer's.
        if let Ok(outgoing) = connect(ip(*peer), target) {
            let _ = incoming.set_nodelay(true);
            let _ = link.carry(incoming, outgoing);
        }
    }
}

/// A connection to `target` that comes from `source`.
fn connect(source: Ipv4Addr, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    socket.connect_timeout(&target.into(), CONNECT)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(200);

    /// A port with free neighbours on the addresses of three nodes.
    fn network() -> (Network, u16) {
        for port in (20_000..30_000).step_by(7) {
            let Ok(network) = Network::start(3, port) else { continue };
            return (network, port);
        }
        panic!("no free ports");
    }

    fn talk(from: &mut TcpStream, to: &mut TcpStream, text: &[u8]) -> io::Result<()> {
        to.set_read_timeout(Some(WAIT)).unwrap();
        from.write_all(text)?;
        let mut got = vec![0; text.len()];
        to.read_exact(&mut got)?;
        assert_eq!(got, text);
        Ok(())
    }

    #[test]
    fn a_relay_keeps_the_addresses_and_their_order() {
        let (_network, port) = network();
        for (a, b) in [(1, 3), (3, 1), (2, 3), (2, 1)] {
            let listener = TcpListener::bind((ip(b), port)).unwrap();
            let mut client = connect(ip(a), relayed(a, b, port)).unwrap();
            let (mut server, from) = listener.accept().unwrap();
            assert_eq!(from.ip(), IpAddr::from(ip(a)));
            talk(&mut client, &mut server, b"there").unwrap();
            talk(&mut server, &mut client, b"and back").unwrap();
            drop(server);
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the end is passed on");
        }
        let key = |viewer, node| (relayed(viewer, node, port).port(), relayed(viewer, node, port));
        assert!(key(1, 1) < key(1, 2) && key(2, 1) < key(2, 2));
    }

    #[test]
    fn a_cut_link_is_silent_until_healed_and_then_new_connections_work() {
        let (network, port) = network();
        let listener = TcpListener::bind((ip(2), port)).unwrap();
        let mut client = connect(ip(1), relayed(1, 2, port)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        talk(&mut client, &mut server, b"before").unwrap();

        network.isolate(2);
        let silent = |e: io::Error| {
            assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
        };
        silent(talk(&mut client, &mut server, b"lost").unwrap_err());
        silent(talk(&mut server, &mut client, b"lost").unwrap_err());
        let mut late = connect(ip(1), relayed(1, 2, port)).unwrap();
        late.set_read_timeout(Some(WAIT)).unwrap();
        silent(late.read(&mut [0; 1]).unwrap_err());

        network.heal(2);
        for stream in [&mut client, &mut server, &mut late] {
            assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)), "it is dead");
        }
        let mut client = connect(ip(1), relayed(1, 2, port)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        talk(&mut client, &mut server, b"after").unwrap();
    }

    #[test]
    fn a_cut_does_not_touch_other_links() {
        let (network, port) = network();
        network.isolate(2);
        let listener = TcpListener::bind((ip(3), port)).unwrap();
        let mut client = connect(ip(1), relayed(1, 3, port)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        talk(&mut client, &mut server, b"through").unwrap();
    }

    #[test]
    fn a_node_that_is_down_ends_the_connection() {
        let (_network, port) = network();
        let mut client = connect(ip(1), relayed(1, 2, port)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(matches!(client.read(&mut [0; 1]), Ok(0)));
    }
}
