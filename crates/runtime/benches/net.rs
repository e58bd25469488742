//! CPU cost of a replicated-write-like message: 40-byte header and payload one way, 16-byte
//! acknowledgement back, 32 messages outstanding. Sender and receiver are threads with a ring
//! each; figures are CPU time per message of each thread, and the payload bytes copied.

#![allow(clippy::print_stdout, reason = "the figures are the product of a benchmark")]

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use runtime::{BufPool, Conn, Received, Ring, Token, clock};
use vocab::Instant;

const DEPTH: usize = 32;
const HEADER: usize = 40;
const ACK: usize = 16;
const RX: Token = Token(1);
const TX: Token = Token(2);

struct Case {
    payload: usize,
    /// One message of only a header after so many messages; 0 = none.
    odd_every: usize,
    predict: bool,
}

/// CPU time of this thread in microseconds.
fn cpu_us() -> f64 {
    // SAFETY: rusage is a plain C struct that the kernel fills in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        let us = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
        us(usage.ru_utime) + us(usage.ru_stime)
    }
}

fn pool() -> BufPool {
    BufPool::new(64 << 20).expect("address space")
}

/// Runs one turn: submits, waits, hands completions to the connection. False at the end.
fn turn(ring: &mut Ring, conn: &mut Conn, events: &mut Vec<runtime::Completed>) -> bool {
    conn.rx.arm(ring, RX);
    conn.tx.flush(ring, TX);
    ring.wait(None, events).expect("the ring works");
    let now: Instant = ring.now();
    for done in events.drain(..) {
        if done.token == TX {
            conn.tx.on_completed(done, now).expect("sending works");
        } else if conn.rx.on_completed(done).expect("receiving works") == Received::End {
            return false;
        }
    }
    true
}

/// Returns CPU time per message.
fn send(socket: OwnedFd, case: &Case, messages: usize) -> f64 {
    let (mut ring, pool) = (Ring::new().expect("io_uring"), pool());
    let mut conn = Conn::new(socket, &pool).expect("a socket");
    let data = pool.alloc_zeroed(case.payload).expect("memory");
    let (mut sent, mut acked, mut events) = (0, 0, Vec::new());
    let start = cpu_us();
    while acked < messages {
        while sent < messages && sent - acked < DEPTH {
            sent += 1;
            let odd = case.odd_every > 0 && sent % case.odd_every == 0;
            let mut header = [0u8; HEADER];
            header[..4].copy_from_slice(&(if odd { 0 } else { case.payload as u32 }).to_be_bytes());
            conn.tx.push_bytes(&header);
            if !odd {
                conn.tx.push_buf(data.clone());
            }
        }
        turn(&mut ring, &mut conn, &mut events);
        while conn.rx.peek(ACK).is_some() {
            conn.rx.consume(ACK);
            acked += 1;
        }
    }
    (cpu_us() - start) / messages as f64
}

/// Returns CPU time per message and bytes copied per message.
fn receive(socket: OwnedFd, case: &Case, messages: usize) -> (f64, f64) {
    let (mut ring, pool) = (Ring::new().expect("io_uring"), pool());
    let mut conn = Conn::new(socket, &pool).expect("a socket");
    conn.rx.set_prediction(case.predict);
    let mut events = Vec::new();
    let mut wanted = None;
    let start = cpu_us();
    loop {
        loop {
            let len = match wanted {
                Some(len) => len,
                None => {
                    let Some(header) = conn.rx.peek(HEADER) else { break };
                    let len = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
                    conn.rx.consume(HEADER);
                    len as usize
                }
            };
            wanted = Some(len);
            if len > 0 && conn.rx.take_payload(len).expect("memory").is_none() {
                break;
            }
            wanted = None;
            conn.tx.push_bytes(&[0; ACK]);
        }
        if !turn(&mut ring, &mut conn, &mut events) {
            break;
        }
    }
    ((cpu_us() - start) / messages as f64, conn.rx.copied() as f64 / messages as f64)
}

/// The best of a few rounds: other load on the machine only ever adds.
const ROUNDS: usize = 5;

fn run(name: &str, pair: impl Fn() -> (OwnedFd, OwnedFd), case: &Case) {
    let messages = if case.payload > 65536 { 5_000 } else { 100_000 };
    let mut best = [f64::MAX; 3];
    let mut copied = 0.0;
    for _ in 0..ROUNDS {
        let (ours, theirs) = pair();
        let start = clock::now();
        let (sender, receiver) = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(theirs, case, messages));
            let sender = send(ours, case, messages);
            (sender, receiver.join().expect("the receiver ends well"))
        });
        let elapsed_us = clock::now().since(start).as_secs_f64() * 1e6;
        copied = receiver.1;
        let round = [receiver.0, sender, elapsed_us / messages as f64];
        best = std::array::from_fn(|i| best[i].min(round[i]));
    }
    let [receiver, sender, elapsed] = best;
    let mode = if case.predict { "predicted" } else { "staged" };
    println!(
        "{name:5} {:>8} B  odd 1/{:<3} {mode:9}  receiver {receiver:6.2} us  sender \
         {sender:6.2} us  elapsed {elapsed:6.2} us  copied {copied:6.0} B",
        case.payload, case.odd_every,
    );
}

fn unix() -> (OwnedFd, OwnedFd) {
    let (a, b) = UnixStream::pair().expect("a socket pair");
    (a.into(), b.into())
}

fn tcp() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let a = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (b, _) = listener.accept().expect("loopback");
    a.set_nodelay(true).expect("TCP");
    b.set_nodelay(true).expect("TCP");
    (a.into(), b.into())
}

fn main() {
    for (payload, odd_every) in [(4096, 0), (4096, 10), (4096, 3), (16384, 0), (1 << 20, 0)] {
        for predict in [false, true] {
            let case = Case { payload, odd_every, predict };
            run("unix", unix, &case);
            run("tcp", tcp, &case);
        }
    }
}
