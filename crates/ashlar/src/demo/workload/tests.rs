//! The application and its NBD client against the real NBD server over a disk in memory, which
//! can be made to forget, to hold back and to die.

use std::net::SocketAddr;
use std::sync::Mutex;

use frontend::nbd::server::{Config, Export, Place, Server, TargetKey, Targets};
use runtime::thread::{Worker, WorkerHandle, WorkerOptions, spawn};
use runtime::{
    Completion, Errno, Intent, Mailbox, MemoryTarget, OpenerId, Request, Target, TargetInfo, Token,
};
use vocab::Bytes;

use super::*;

const SIZE: u64 = 16 << 20;
const SPACE: u8 = 1;
const MAILBOX: Token = Token(2 << 56);
const WAIT: Duration = Duration::from_secs(20);

/// What the disk does wrong.
#[derive(Clone, Copy, Default, Debug)]
struct Faults {
    /// Acknowledges one write in so many without doing it; 0 is never.
    forget: u64,
    /// Leaves requests unanswered.
    hold: bool,
    /// Refuses to be opened.
    closed: bool,
}

struct Disk {
    memory: MemoryTarget,
    faults: Arc<Mutex<Faults>>,
    writes: u64,
    held: Vec<Request>,
}

impl Target for Disk {
    fn info(&self) -> TargetInfo {
        self.memory.info()
    }
    fn open(&mut self, opener: OpenerId, intent: Intent, tag: u64) {
        assert_eq!(intent, Intent::Write, "an NBD client opens for writing");
        let closed = self.faults.lock().unwrap().closed;
        self.memory.refuse_open(closed.then_some(Errno::EIO));
        self.memory.open(opener, intent, tag);
    }
    fn close(&mut self, opener: OpenerId) {
        self.memory.close(opener);
    }
    fn submit(&mut self, mut request: Request) {
        let faults = *self.faults.lock().unwrap();
        if faults.hold {
            self.held.push(request);
            return;
        }
        if request.op.is_write() {
            self.writes += 1;
            if faults.forget > 0 && self.writes.is_multiple_of(faults.forget) {
                // Something has to answer: a read of nothing that anybody sees.
                request.op = runtime::Op::Flush;
                (request.offset, request.len, request.buf) = (0, 0, None);
            }
        }
        self.memory.submit(request);
    }
    fn flush_submissions(&mut self) {
        if !self.faults.lock().unwrap().hold {
            for request in std::mem::take(&mut self.held) {
                self.memory.submit(request);
            }
        }
        self.memory.flush_submissions();
    }
    fn poll_completions(&mut self, out: &mut Vec<Completion>) {
        self.memory.poll_completions(out);
    }
}

impl Targets for Disk {
    fn target(&mut self, _: TargetKey) -> Option<&mut dyn Target> {
        Some(self)
    }
}

/// A server on a port of its own.
struct TestServer {
    address: SocketAddr,
    faults: Arc<Mutex<Faults>>,
    worker: Option<WorkerHandle<()>>,
}

impl TestServer {
    fn start() -> TestServer {
        let faults: Arc<Mutex<Faults>> = Arc::default();
        let (shared, (tell, told)) = (Arc::clone(&faults), std::sync::mpsc::channel());
        let worker = spawn(WorkerOptions::default(), move |worker| serve(worker, shared, &tell));
        let address = told.recv_timeout(WAIT).unwrap();
        TestServer { address, faults, worker: Some(worker.unwrap()) }
    }

    fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap());
    }

    fn open(&self) -> Connection {
        Connection::open(self.address, "demo", WAIT).unwrap()
    }

    /// Closes every connection at once, like a process that is killed.
    fn die(&mut self) {
        let worker = self.worker.take().unwrap();
        let _ = worker.sender.send(());
        worker.join().unwrap();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if self.worker.is_some() {
            self.die();
        }
    }
}

fn serve(
    worker: Worker<()>,
    faults: Arc<Mutex<Faults>>,
    tell: &std::sync::mpsc::Sender<SocketAddr>,
) {
    let Worker { mut ring, pool, inbox, .. } = worker;
    let memory = MemoryTarget::new(Bytes(SIZE));
    let mut disk = Disk { memory, faults, writes: 0, held: Vec::new() };
    let mut server = Server::new(SPACE, pool, Config::default());
    let place = Place::Here(TargetKey(0));
    server.set_export(
        "demo",
        Export { description: String::new(), read_only: false, encrypted: false, place },
    );
    let (_, address) = server.listen_tcp(&mut ring, "127.0.0.1:0".parse().unwrap()).unwrap();
    tell.send(address).unwrap();
    let mut mailbox = Mailbox::new(inbox, MAILBOX).unwrap();
    mailbox.arm(&mut ring);
    let (mut events, mut answers) = (Vec::new(), Vec::new());
    loop {
        // Faults change from outside: look at least every few milliseconds.
        let soon = ring.now() + Duration::from_millis(5);
        let deadline = server.deadline().map_or(soon, |deadline| deadline.min(soon));
        ring.wait(Some(deadline), &mut events).unwrap();
        for done in events.drain(..) {
            if done.token == MAILBOX {
                server.stop(&mut disk);
                return;
            }
            server.on_completed(&mut ring, &mut disk, done);
        }
        loop {
            server.turn_end(&mut ring, &mut disk);
            disk.flush_submissions();
            disk.poll_completions(&mut answers);
            if answers.is_empty() {
                break;
            }
            for done in answers.drain(..) {
                server.on_target_completion(&mut ring, &mut disk, done);
            }
        }
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT;
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn work(workload: Workload, server: &TestServer, writes: u64) -> Workload {
    let running = workload.start(server.open());
    until("writes", || running.acknowledged() >= writes);
    let ended = running.stop();
    assert!(ended.lost.is_none() && ended.abandoned == 0, "{:?}", ended.lost);
    ended.workload
}

fn read_back(workload: &mut Workload, server: &TestServer) -> u64 {
    workload.read_back(&mut server.open(), &mut |_, _| true).unwrap()
}

#[test]
fn an_honest_disk_keeps_every_promise() {
    let server = TestServer::start();
    assert_eq!(server.open().size(), SIZE);
    let mut workload = work(Workload::new(1, SIZE), &server, 3_000);
    assert!(workload.ledger.acknowledged() >= 3_000);
    let Counts { reads, stale, wrong, errors } = workload.counts;
    assert!(reads > 300 && (stale, wrong, errors) == (0, 0, 0), "{:?}", workload.counts);
    assert_eq!(read_back(&mut workload, &server), 0);
}

#[test]
fn a_disk_that_forgets_writes_is_found_out() {
    let server = TestServer::start();
    server.set(|faults| faults.forget = 50);
    let mut workload = work(Workload::new(2, SIZE), &server, 4_000);
    assert!(workload.counts.stale > 0, "by reads in between: {:?}", workload.counts);
    assert!(read_back(&mut workload, &server) > 0, "by reading back");
}

#[test]
fn a_disk_that_has_gone_back_in_time_is_found_out() {
    let (old, new) = (TestServer::start(), TestServer::start());
    let workload = work(Workload::new(3, SIZE), &old, 500);
    let mut workload = work(workload, &new, 1_000);
    assert!(read_back(&mut workload, &old) > 0);
}

#[test]
fn work_goes_on_elsewhere_when_the_server_dies() {
    let mut server = TestServer::start();
    let running = Workload::new(4, SIZE).start(server.open());
    until("writes", || running.acknowledged() >= 100);
    server.set(|faults| faults.hold = true);
    thread::sleep(Duration::from_millis(50));
    let before = running.acknowledged();
    server.die();
    let ended = running.wait();
    assert!(ended.lost.is_some());
    assert_eq!(ended.abandoned, DEPTH);
    let workload = ended.workload;
    assert_eq!(workload.ledger.acknowledged(), before);
    let other = TestServer::start();
    let workload = work(workload, &other, 100);
    assert!(workload.ledger.acknowledged() >= before + 100);
}

#[test]
fn a_suspended_disk_delays_and_fails_nothing() {
    let server = TestServer::start();
    let running = Workload::new(5, SIZE).start(server.open());
    until("writes", || running.acknowledged() >= 100);
    server.set(|faults| faults.hold = true);
    thread::sleep(Duration::from_millis(50));
    let held = running.acknowledged();
    assert_eq!(running.in_flight(), DEPTH as u64);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(running.acknowledged(), held);
    server.set(|faults| faults.hold = false);
    until("writes to go on", || running.acknowledged() > held + 100);
    let ended = running.stop();
    assert!(ended.lost.is_none());
    assert_eq!(ended.workload.counts.errors, 0);
}

#[test]
fn an_export_that_can_not_be_opened_is_refused_with_a_reason() {
    let server = TestServer::start();
    server.set(|faults| faults.closed = true);
    let error = Connection::open(server.address, "demo", WAIT).unwrap_err();
    assert!(matches!(error, Error::Refused(..)), "{error}");
    let error = Connection::open(server.address, "other", WAIT).unwrap_err();
    assert!(matches!(error, Error::Refused(..)), "{error}");
}

#[test]
fn a_seed_repeats_the_choice_of_blocks() {
    let choices = |seed| {
        let mut workload = Workload::new(seed, 256 << 20);
        let blocks: Vec<u64> = (0..100).map(|_| workload.idle_block(&[])).collect();
        (workload.run, blocks)
    };
    assert_eq!(choices(9), choices(9));
    assert_ne!(choices(9), choices(10));
}

#[test]
fn the_working_set_is_a_quarter_of_the_volume_and_within_it() {
    for mib in [1, 4, 16, 255, 256, 1024] {
        let bytes = (mib << 20) - 4096;
        let mut workload = Workload::new(1, bytes);
        let blocks = bytes / BLOCK as u64;
        assert!((0..1000).all(|_| workload.idle_block(&[]) < blocks), "{mib} MiB");
        let used = workload.extents.len() as u64 * workload.extent_blocks;
        assert!(mib < 64 || used <= blocks / 2, "{mib} MiB");
    }
}
