//! Floors: what this machine does without Ashlar, between two processes or two files.
//!
//! Of two processes the other one is this program, started with hidden arguments; it connects to a socket
//! of ours and does one thing until the socket is closed. The two have a CPU each, as two nodes do: on
//! one CPU a round trip takes a tenth of the time, since no CPU has to be woken up.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::fio::{Job, Target};
use crate::process::{self, Daemon};

/// The hidden word after `bench`; what to do and the port follow.
pub const PEER: &str = "floor-peer";

/// What a write brings to a peer, and what comes back: as much as an acknowledgement.
const REQUEST: usize = 4096;
const ANSWER: usize = 32;
/// What one write to a stream has.
const PIECE: usize = 128 << 10;
/// How long the other process may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the other process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Answers each request.
    Answer,
    /// Reads to the end of the stream, and says so.
    Read,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Answer => "answer",
            Role::Read => "read",
        }
    }
}

/// The mean time from a request of 4 KiB to a small answer over loopback, one at a time, both
/// sides blocking, in microseconds.
///
/// # Errors
/// If the other process can not be started, or is lost.
pub fn round_trip(folder: &Path, time: Duration) -> Result<f64> {
    let (mut stream, _peer) = other_process(Role::Answer, folder)?;
    on_own_cpu(|| ask(&mut stream, time))
}

/// What one TCP stream moves over loopback in pieces of 128 KiB until the other process has read
/// all of it, in MiB per second.
///
/// # Errors
/// If the other process can not be started, or is lost.
pub fn stream(folder: &Path, time: Duration) -> Result<f64> {
    let (mut stream, _peer) = other_process(Role::Read, folder)?;
    on_own_cpu(|| send(&mut stream, time))
}

/// The first file is read and the second one written at once, in requests of 1 MiB: MiB/s of the
/// slower one.
pub fn copy(files: &[Target; 2], mib: u64) -> Result<f64> {
    let job = |index: usize, pattern| Job {
        targets: &files[index..=index],
        pattern,
        block: "1m",
        depth: 4,
        jobs: 1,
        mib,
        seconds: None,
        rate: None,
    };
    let (read, write) = std::thread::scope(|scope| {
        let read = scope.spawn(|| job(0, "read").run());
        let write = job(1, "write").run();
        (read.join(), write)
    });
    let read = read.map_err(|_| anyhow::anyhow!("fio's thread has died"))??;
    let slower = read.read.bandwidth.min(write?.write.bandwidth);
    Ok(slower / f64::from(1 << 20))
}

/// The other process: `arguments` are its role and our port.
pub fn peer(arguments: &[String]) -> Result<()> {
    let [role, port] = arguments else { bail!("{PEER} takes a role and a port") };
    let port: u16 = port.parse().with_context(|| format!("{port:?} is no port"))?;
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    match [Role::Answer, Role::Read].into_iter().find(|known| known.name() == role) {
        Some(Role::Answer) => answer(stream),
        Some(Role::Read) => read(stream),
        None => bail!("{role:?} is no role"),
    }
}

fn other_process(role: Role, folder: &Path) -> Result<(TcpStream, Daemon)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port().to_string();
    let mut command = process::command("taskset");
    command.args(["--cpu-list", last_cpu(&cpus()?)]).arg(std::env::current_exe()?);
    command.args(["bench", PEER, role.name(), &port]);
    let mut daemon = Daemon::start(command, folder.join("floor-peer.log"))?;
    listener.set_nonblocking(true)?;
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok((prepared(stream)?, daemon)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("the other process of a floor"),
        }
        daemon.check()?;
        process::check_signals()?;
        if begun.elapsed() > PATIENCE {
            bail!("the other process of a floor does not connect");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Does something on the first of our CPUs; the other process has the last one.
fn on_own_cpu<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let cpus = cpus()?;
    run_on(first_cpu(&cpus))?;
    let outcome = work();
    run_on(&cpus)?;
    outcome
}

/// The CPUs that this thread may run on, as in `0-3,6`.
fn cpus() -> Result<String> {
    let path = "/proc/thread-self/status";
    let text = std::fs::read_to_string(path).context(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(line.with_context(|| format!("{path} has no Cpus_allowed_list"))?.trim().to_owned())
}

fn first_cpu(cpus: &str) -> &str {
    cpus.split([',', '-']).next().unwrap_or(cpus)
}

fn last_cpu(cpus: &str) -> &str {
    cpus.rsplit([',', '-']).next().unwrap_or(cpus)
}

fn run_on(cpus: &str) -> Result<()> {
    let mut command = process::command("taskset");
    // The first thread's number is the process's; it is the one that measures.
    command.args(["--cpu-list", "--pid", cpus]).arg(std::process::id().to_string());
    process::output(command, PATIENCE)?;
    Ok(())
}

/// A blocking stream that sends at once; nothing takes forever.
fn prepared(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream, time: Duration) -> Result<f64> {
    let (request, mut answer) = ([7; REQUEST], [0; ANSWER]);
    let begun = Instant::now();
    let mut count = 0u32;
    while begun.elapsed() < time {
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        count += 1;
    }
    match count {
        0 => bail!("no request was answered"),
        count => Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(count)),
    }
}

fn answer(stream: TcpStream) -> Result<()> {
    let mut stream = prepared(stream)?;
    let (mut request, answer) = ([0; REQUEST], [7; ANSWER]);
    loop {
        match stream.read_exact(&mut request) {
            Ok(()) => stream.write_all(&answer)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn send(stream: &mut TcpStream, time: Duration) -> Result<f64> {
    let piece = vec![7; PIECE];
    let begun = Instant::now();
    let mut count = 0u32;
    while begun.elapsed() < time {
        stream.write_all(&piece)?;
        count += 1;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_exact(&mut [0])?;
    let mib = f64::from(count) * PIECE as f64 / f64::from(1 << 20);
    Ok(mib / begun.elapsed().as_secs_f64())
}

fn read(stream: TcpStream) -> Result<()> {
    let mut stream = prepared(stream)?;
    let mut piece = vec![0; PIECE];
    while stream.read(&mut piece)? > 0 {}
    stream.write_all(&[1])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer in a thread: here the program is the test's.
    fn with_peer(role: fn(TcpStream) -> Result<()>) -> TcpStream {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || role(TcpStream::connect(address).unwrap()).unwrap());
        prepared(listener.accept().unwrap().0).unwrap()
    }

    #[test]
    fn requests_are_answered_and_streams_read_to_their_end() {
        let time = Duration::from_millis(20);
        let microseconds = ask(&mut with_peer(answer), time).unwrap();
        assert!(microseconds > 0.0);
        assert!(send(&mut with_peer(read), time).unwrap() > 0.0);
    }

    #[test]
    fn a_peer_that_is_lost_is_no_figure() {
        let silent = |stream: TcpStream| {
            drop(stream);
            Ok(())
        };
        assert!(ask(&mut with_peer(silent), Duration::from_secs(5)).is_err());
        assert!(send(&mut with_peer(silent), Duration::from_secs(5)).is_err());
    }

    #[test]
    fn two_processes_have_two_cpus_where_there_are_so_many() {
        for (cpus, first, last) in [("0-3,6", "0", "6"), ("2,4-9", "2", "9"), ("5", "5", "5")] {
            assert_eq!((first_cpu(cpus), last_cpu(cpus)), (first, last));
        }
        assert!(!cpus().unwrap().is_empty());
    }

    #[test]
    fn the_other_process_knows_what_it_is_told() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(peer(&words("answer")).is_err());
        assert!(peer(&words("answer no-port")).unwrap_err().to_string().contains("no port"));
    }
}
