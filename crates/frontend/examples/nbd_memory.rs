//! A disk in memory on a unix socket, for trying out clients and for measuring.
//!
//! `cargo run --release -p frontend --example nbd_memory -- SOCKET [MIB]`
//!
//! Serves until its standard input ends, then prints what it did and what that cost.
#![allow(clippy::print_stdout, reason = "printing is what this program is for")]

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use frontend::nbd::server::{Config, Event, Export, Place, Server, TargetKey, Targets};
use runtime::thread::{Worker, WorkerOptions, spawn};
use runtime::{Mailbox, MemoryTarget, Target, Token};
use vocab::Bytes;

const SPACE: u8 = 1;
const MAILBOX: Token = Token(2 << 56);

struct One(MemoryTarget);

impl Targets for One {
    fn target(&mut self, _: TargetKey) -> Option<&mut dyn Target> {
        Some(&mut self.0)
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().expect("usage: nbd_memory SOCKET [MIB]");
    let mib: u64 = arguments.next().map_or(1024, |mib| mib.parse().expect("a number of MiB"));
    let worker = spawn(WorkerOptions::default(), move |worker| serve(worker, &socket, mib))
        .unwrap_or_else(|error| panic!("{error}"));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let _ = worker.sender.send(());
    worker.join().expect("the server ends");
}

fn serve(worker: Worker<()>, socket: &str, mib: u64) {
    let Worker { mut ring, pool, inbox, .. } = worker;
    let mut target = One(MemoryTarget::new(Bytes(mib << 20)));
    let mut server = Server::new(SPACE, pool, Config::default());
    let place = Place::Here(TargetKey(0));
    server.set_export(
        "memory",
        Export { description: String::new(), read_only: false, encrypted: false, place },
    );
    server
        .listen_unix(&mut ring, Path::new(socket))
        .unwrap_or_else(|errno| panic!("{socket}: {errno}"));
    let mut mailbox = Mailbox::new(inbox, MAILBOX).expect("a mailbox");
    mailbox.arm(&mut ring);
    println!("nbd+unix:///memory?socket={socket}");
    let (mut events, mut answers) = (Vec::new(), Vec::new());
    let (mut operations, mut turns) = (0u64, 0u64);
    let start = cpu_time();
    let mut stopping = false;
    while !stopping {
        ring.wait(server.deadline(), &mut events).expect("the ring works");
        turns += 1;
        for done in events.drain(..) {
            if done.token == MAILBOX {
                stopping = true;
            } else {
                server.on_completed(&mut ring, &mut target, done);
            }
        }
        loop {
            server.turn_end(&mut ring, &mut target);
            target.0.flush_submissions();
            target.0.poll_completions(&mut answers);
            if answers.is_empty() {
                break;
            }
            operations += answers.len() as u64;
            for done in answers.drain(..) {
                server.on_target_completion(&mut ring, &mut target, done);
            }
        }
        for event in server.take_events() {
            if let Event::Closed { peer, reason, .. } = event {
                println!("{peer} is gone: {reason:?}");
            }
        }
    }
    server.stop(&mut target);
    let cpu = cpu_time() - start;
    println!(
        "{operations} requests in {turns} turns, {:.2} s CPU, {:.2} us per request",
        cpu.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / operations.max(1) as f64
    );
}

/// CPU time this thread has used, in user and kernel mode.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the given timespec only.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "every Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
