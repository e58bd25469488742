//! Answering the probes of peers: only while an operator asks for it, only for peers.
//!
//! A lease keeps the listeners open. Whoever wants them open asks again before it ends; when he is
//! gone, so are they, some seconds later. A connection from an address that is no peer's is closed
//! without a word, so nothing here answers a stranger with more than he has sent.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use codec::admin::{FailureKind, Serving};
use codec::config::PathConfig;

use super::network::{
    ANSWER, BLOCK, BYTES_MAX, CHUNK, GREETING, Kind, SILENCE, TIME_MAX, drain, set_up,
};
use crate::engine::{Done, Stop, lock};
use logging::{Level, log};

/// How often a listener looks whether somebody has come, and whether its lease has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Listeners with a lease.
#[derive(Default)]
pub(super) struct Server {
    leases: Mutex<BTreeMap<SocketAddr, Arc<Lease>>>,
}

struct Lease {
    until: Mutex<Instant>,
    peers: Mutex<BTreeSet<IpAddr>>,
    answered: AtomicU64,
}

impl Server {
    /// Serves the far ends of `paths` at the near ones, for `time` from now on.
    pub(super) fn serve(&self, paths: Vec<PathConfig>, port: u16, time: Duration) -> Done<Serving> {
        if paths.is_empty() {
            return Err(Stop::invalid("there is no path to a peer, so there is nobody to answer"));
        }
        let peers: BTreeSet<IpAddr> = paths.iter().map(|p| p.remote.ip().to_canonical()).collect();
        let addresses: BTreeSet<SocketAddr> =
            paths.iter().map(|p| SocketAddr::new(p.local.ip(), port)).collect();
        let mut leases = lock(&self.leases);
        let now = Instant::now();
        leases.retain(|_, lease| *lock(&lease.until) > now);
        let mut answered = 0;
        for address in &addresses {
            match leases.get(address) {
                Some(lease) => {
                    *lock(&lease.until) = now + time;
                    lock(&lease.peers).extend(&peers);
                    answered += lease.answered.load(Ordering::Relaxed);
                }
                None => {
                    let lease = begin(*address, now + time, peers.clone()).map_err(|e| {
                        let text = format!("can not listen at {address}: {e}");
                        let next = "give another --probe-port, here and where you measure";
                        Stop::failed(FailureKind::Io, text, next)
                    })?;
                    leases.insert(*address, lease);
                }
            }
        }
        Ok(Serving { addresses: addresses.into_iter().collect(), answered })
    }
}

/// Listens on a thread of its own until the lease ends.
fn begin(address: SocketAddr, until: Instant, peers: BTreeSet<IpAddr>) -> io::Result<Arc<Lease>> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let lease = Arc::new(Lease {
        until: Mutex::new(until),
        peers: Mutex::new(peers),
        answered: AtomicU64::new(0),
    });
    let held = lease.clone();
    thread::Builder::new().name("probes".to_owned()).spawn(move || {
        log!(Level::Info, "engine", "answers probes of peers at {address}");
        while Instant::now() < *lock(&held.until) {
            match listener.accept() {
                Ok((stream, from)) => {
                    let known = lock(&held.peers).contains(&from.ip().to_canonical());
                    // One after the other: two at a time would measure each other.
                    match if known { answer(stream) } else { Ok(()) } {
                        Ok(()) => _ = held.answered.fetch_add(u64::from(known), Ordering::Relaxed),
                        Err(e) => log!(Level::Debug, "engine", "a probe from {from} ended: {e}"),
                    }
                }
                Err(_) => thread::sleep(LOOK),
            }
        }
        log!(Level::Info, "engine", "answers no probes at {address} any more");
    })?;
    Ok(lease)
}

/// Does what the other side asks for.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    set_up(&stream)?;
    stream.write_all(&GREETING)?;
    let mut order = [0; 5];
    stream.read_exact(&mut order)?;
    let time = u32::from_be_bytes(order[1..].try_into().expect("four bytes"));
    let time = Duration::from_millis(time.into()).min(TIME_MAX);
    match Kind::of(order[0]) {
        None => Err(io::Error::other("it asks for something unknown")),
        Some(Kind::RoundTrips) => round_trips(&mut stream, time + SILENCE),
        Some(Kind::ToPeer) => {
            let (bytes, elapsed) = drain(&mut stream, time + SILENCE)?;
            let nanoseconds = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            stream.write_all(&[bytes.to_be_bytes(), nanoseconds.to_be_bytes()].concat())
        }
        Some(Kind::FromPeer) => send(&mut stream, time),
    }
}

fn round_trips(stream: &mut TcpStream, limit: Duration) -> io::Result<()> {
    let (mut block, answer) = ([0; BLOCK], [0x5a; ANSWER]);
    let start = Instant::now();
    while start.elapsed() < limit {
        match stream.read_exact(&mut block) {
            Ok(()) => stream.write_all(&answer)?,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn send(stream: &mut TcpStream, time: Duration) -> io::Result<()> {
    let chunk = vec![0x5a; CHUNK];
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < time && sent < BYTES_MAX {
        match stream.write(&chunk) {
            Ok(count) => sent += count as u64,
            // Who asks leaves once it has measured for long enough.
            Err(_) if sent > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::network::probe;
    use super::*;

    /// The two ends of a path on addresses of this test alone.
    fn path(nr: u8) -> (PathConfig, PathConfig, u16) {
        let ip = |host| IpAddr::from([127, 215, nr, host]);
        let near = PathConfig {
            local: SocketAddr::new(ip(1), 7000),
            remote: SocketAddr::new(ip(2), 7000),
        };
        let far = PathConfig { local: near.remote, remote: near.local };
        (near, far, 20_000 + (std::process::id() % 10_000) as u16)
    }

    const TIME: Duration = Duration::from_millis(150);

    #[test]
    fn a_peer_that_is_served_measures_round_trips_and_both_directions() {
        let (near, far, port) = path(1);
        let server = Server::default();
        server.serve(vec![far], port, Duration::from_secs(20)).unwrap();
        let figures = probe(near, port, TIME).unwrap();
        assert!(figures.round_trip.operations > 10 && figures.round_trip.median > 0, "{figures:?}");
        assert!(figures.to_peer.operations > 1 << 20, "{figures:?}");
        assert!(figures.from_peer.operations > 1 << 20, "{figures:?}");
        assert!(figures.from_peer.mib_per_second() > 1.0, "{figures:?}");
        // Asked again, the same listener goes on. It may hear late that the last probe has ended.
        let start = Instant::now();
        let again = || server.serve(vec![far], port, Duration::from_secs(20)).unwrap();
        let mut serving = again();
        while serving.answered < 3 && start.elapsed() < Duration::from_secs(20) {
            thread::sleep(LOOK);
            serving = again();
        }
        assert_eq!(serving.answered, 3);
        assert_eq!(serving.addresses, [SocketAddr::new(far.local.ip(), port)]);
    }

    #[test]
    fn strangers_get_no_word_and_nobody_is_asked_who_does_not_greet() {
        let (near, far, port) = path(2);
        let server = Server::default();
        server.serve(vec![far], port, Duration::from_secs(20)).unwrap();
        // From another address than the peer's.
        let mut stranger = TcpStream::connect((far.local.ip(), port)).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(matches!(stranger.read(&mut [0; 1]), Ok(0) | Err(_)));
        // A server of another kind at that port is sent nothing.
        let other = TcpListener::bind((near.local.ip(), port)).unwrap();
        let heard = thread::spawn(move || {
            let (mut stream, _) = other.accept().unwrap();
            stream.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap();
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            heard
        });
        let Err(Stop::Failed(failure)) = probe(far, port, TIME) else { panic!("it is no probe") };
        assert!(failure.text.contains("another program"), "{failure:?}");
        assert_eq!(heard.join().unwrap(), b"");
    }

    #[test]
    fn listeners_are_gone_with_their_lease() {
        let (near, far, port) = path(3);
        let server = Server::default();
        server.serve(vec![far], port, Duration::from_millis(50)).unwrap();
        let start = Instant::now();
        while probe(near, port, TIME).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(20), "it goes on for ever");
        }
        // The port is free, and can be listened at again.
        while server.serve(vec![far], port, Duration::from_secs(20)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "the port is not given back");
            thread::sleep(LOOK);
        }
        assert!(probe(near, port, TIME).is_ok());
        assert!(matches!(server.serve(Vec::new(), port, TIME), Err(Stop::Refused(_))));
    }
}
