//! Probes of the network between two nodes, beside the replication.
//!
//! ```text
//! asking side connects from its replication address
//! serving side   GREETING                        (an asking side that reads anything else leaves)
//! asking side    kind: u8, milliseconds: u32 BE
//!   round trips  asking: BLOCK bytes, serving: ANSWER bytes, until the asking side closes
//!   to peer      asking: bytes until it shuts its side; serving: bytes u64 BE, nanoseconds u64 BE
//!   from peer    serving: bytes for so long, then it closes
//! ```
//!
//! The serving side speaks first, so that nothing is ever sent to a program of another kind that
//! happens to listen there. Both sides bound time and bytes, whatever the other one says.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use codec::admin::{FailureKind, Network, Series};
use codec::config::PathConfig;
use socket2::{Domain, Socket, Type};

use super::series::summary;
use crate::engine::{Done, Stop};

/// What the serving side says first.
pub(super) const GREETING: [u8; 16] = *b"ashlar probe 1\r\n";
/// A write's worth of data, in bytes.
pub(super) const BLOCK: usize = 4096;
/// And of an acknowledgement.
pub(super) const ANSWER: usize = 64;
/// Bytes of one call where throughput is measured.
pub(super) const CHUNK: usize = 128 << 10;
/// Longest probe served.
pub(super) const TIME_MAX: Duration = Duration::from_secs(10);
/// Most bytes one probe moves.
pub(super) const BYTES_MAX: u64 = 4 << 30;
/// How long the other side may say nothing.
pub(super) const SILENCE: Duration = Duration::from_secs(2);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(1);

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    RoundTrips,
    ToPeer,
    FromPeer,
}

impl Kind {
    pub(super) const fn code(self) -> u8 {
        match self {
            Kind::RoundTrips => b'r',
            Kind::ToPeer => b't',
            Kind::FromPeer => b'f',
        }
    }

    pub(super) fn of(code: u8) -> Option<Kind> {
        [Kind::RoundTrips, Kind::ToPeer, Kind::FromPeer].into_iter().find(|k| k.code() == code)
    }
}

/// Probes a path for `time` in all.
pub(super) fn probe(path: PathConfig, port: u16, time: Duration) -> Done<Network> {
    let local = SocketAddr::new(path.local.ip(), 0);
    let remote = SocketAddr::new(path.remote.ip(), port);
    let third = time / 3;
    let measured = || -> io::Result<Network> {
        Ok(Network {
            local,
            remote,
            round_trip: round_trips(begin(local, remote, Kind::RoundTrips, third)?, third)?,
            to_peer: to_peer(begin(local, remote, Kind::ToPeer, third)?, third)?,
            from_peer: from_peer(begin(local, remote, Kind::FromPeer, third)?, third)?,
        })
    };
    measured().map_err(|e| {
        let text = match e.kind() {
            io::ErrorKind::ConnectionRefused => "nobody serves probes there".to_owned(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer".to_owned(),
            _ => e.to_string(),
        };
        let next = "run `ashlar doctor --serve` on that node meanwhile; kernel nodes have none";
        Stop::failed(FailureKind::Io, format!("{remote}: {text}"), next)
    })
}

/// A connection on which the serving side does what is asked.
fn begin(
    local: SocketAddr,
    remote: SocketAddr,
    kind: Kind,
    time: Duration,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, None)?;
    socket.bind(&local.into())?;
    socket.connect_timeout(&remote.into(), CONNECT)?;
    let mut stream = TcpStream::from(socket);
    set_up(&stream)?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting)?;
    if greeting != GREETING {
        return Err(io::Error::other("another program listens there"));
    }
    let mut order = vec![kind.code()];
    order.extend((time.as_millis() as u32).to_be_bytes());
    stream.write_all(&order)?;
    Ok(stream)
}

/// The options of a probe's socket.
pub(super) fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))
}

fn round_trips(mut stream: TcpStream, time: Duration) -> io::Result<Series> {
    let (block, mut answer) = ([0xa5; BLOCK], [0; ANSWER]);
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < time && times.len() < 100_000 {
        let sent = Instant::now();
        stream.write_all(&block)?;
        stream.read_exact(&mut answer)?;
        times.push(sent.elapsed());
    }
    Ok(summary(times, start.elapsed(), BLOCK as u32, 1))
}

fn to_peer(mut stream: TcpStream, time: Duration) -> io::Result<Series> {
    let chunk = vec![0xa5; CHUNK];
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < time && sent < BYTES_MAX {
        match stream.write(&chunk) {
            Ok(n) => sent += n as u64,
            // A network that is slow, or a peer; what has arrived counts.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    stream.shutdown(Shutdown::Write)?;
    // What waits in the buffers of a slow network still has to arrive before the answer comes.
    stream.set_read_timeout(Some(2 * SILENCE))?;
    let mut answer = [0; 16];
    stream.read_exact(&mut answer)?;
    let [bytes, nanoseconds] = [0, 8].map(|at| {
        let field = answer[at..at + 8].try_into().expect("eight bytes");
        u64::from_be_bytes(field)
    });
    Ok(stream_of(bytes, nanoseconds))
}

fn from_peer(mut stream: TcpStream, time: Duration) -> io::Result<Series> {
    let (bytes, elapsed) = drain(&mut stream, time + SILENCE)?;
    Ok(stream_of(bytes, u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)))
}

/// Receives until the stream ends, and for `limit` at most: bytes, and the time from the first one
/// to the last.
pub(super) fn drain(stream: &mut TcpStream, limit: Duration) -> io::Result<(u64, Duration)> {
    let mut chunk = vec![0; CHUNK];
    let mut bytes = stream.read(&mut chunk)? as u64;
    let start = Instant::now();
    let mut last = start;
    while start.elapsed() < limit && bytes < 2 * BYTES_MAX {
        match stream.read(&mut chunk)? {
            0 => break,
            n => bytes += n as u64,
        }
        last = Instant::now();
    }
    Ok((bytes, last - start))
}

/// A stream as a series of bytes.
fn stream_of(bytes: u64, nanoseconds: u64) -> Series {
    Series { block: 1, depth: 1, operations: bytes, nanoseconds, median: 0, p99: 0 }
}
