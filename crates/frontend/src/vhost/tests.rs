//! Sessions, devices and rings against a client and a target that are made up.

mod client;

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use runtime::mailbox::Sender;
use runtime::thread::{Worker, WorkerHandle, WorkerOptions, spawn};
use runtime::{Completion, FaultPlan, FaultyTarget, Intent, Mailbox, MemoryTarget, Target, Token};
use vocab::Bytes;

use super::Devices;
use super::inflight::Lease;
use super::session::{End, Owner, Session, Signals, Task};
use crate::nbd::server::{TargetKey, Targets};
use client::{Client, GUEST, Guest, SIZE, event, words};

const SPACE: u8 = 7;
const MAILBOX: Token = Token(2 << 56);
const DISK: u64 = 4 << 20;

struct One(Box<dyn Target>);

impl Targets for One {
    fn target(&mut self, _: TargetKey) -> Option<&mut dyn Target> {
        Some(&mut *self.0)
    }
}

/// A thread with devices on a target, as an engine's is.
struct Bed {
    worker: Option<WorkerHandle<Option<Task>>>,
    told: Arc<Mutex<Vec<String>>>,
    may: Arc<Mutex<Result<(), String>>>,
}

#[derive(Clone)]
struct TestOwner {
    sender: Sender<Option<Task>>,
    told: Arc<Mutex<Vec<String>>>,
    may: Arc<Mutex<Result<(), String>>>,
}

impl Owner for TestOwner {
    fn run(&self, task: Task) -> bool {
        self.sender.send(Some(task)).is_ok()
    }

    fn lease(&self) -> Lease {
        Lease { instance: 1, changes: 0 }
    }

    fn may_go_on(&self, lease: Lease) -> Result<(), String> {
        assert_eq!(lease, self.lease());
        self.may.lock().unwrap().clone()
    }

    fn tell(&self, text: &str) {
        self.told.lock().unwrap().push(text.to_owned());
    }
}

fn turn(worker: Worker<Option<Task>>, make: impl FnOnce() -> Box<dyn Target>) {
    let Worker { mut ring, pool, inbox, .. } = worker;
    let mut devices = Devices::new(SPACE, pool);
    let mut targets = One(make());
    let mut mailbox = Mailbox::new(inbox, MAILBOX).unwrap();
    mailbox.arm(&mut ring);
    let (mut events, mut tasks, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let mut starved = false;
    loop {
        let soon = starved.then(|| ring.now() + Duration::from_millis(1));
        ring.wait(soon, &mut events).unwrap();
        for done in events.drain(..) {
            if done.token == MAILBOX {
                mailbox.on_completed(&mut ring, &mut tasks);
            } else {
                assert!(devices.owns(done.token));
                devices.on_completed(&mut ring, &mut targets, done);
            }
        }
        for task in tasks.drain(..) {
            let Some(task) = task else { return };
            task(&mut devices, &mut ring, &mut targets);
        }
        starved = devices.resume(&mut ring, &mut targets);
        loop {
            devices.turn_end(&mut ring, &mut targets);
            targets.0.flush_submissions();
            targets.0.poll_completions(&mut answers);
            if answers.is_empty() {
                break;
            }
            for done in answers.drain(..) {
                let done: Completion = done;
                assert!(devices.owns_opener(done.opener));
                devices.on_target_completion(&mut ring, &mut targets, done);
            }
        }
    }
}

impl Bed {
    fn new(make: impl FnOnce() -> Box<dyn Target> + Send + 'static) -> Bed {
        let options = WorkerOptions { pool_bytes: 4 << 20, ..WorkerOptions::default() };
        let worker = spawn(options, |worker| turn(worker, make)).unwrap();
        Bed { worker: Some(worker), told: Arc::default(), may: Arc::new(Mutex::new(Ok(()))) }
    }

    fn memory() -> Bed {
        Bed::new(|| Box::new(MemoryTarget::new(Bytes(DISK))))
    }

    fn owner(&self) -> TestOwner {
        let sender = self.worker.as_ref().unwrap().sender.clone();
        TestOwner { sender, told: self.told.clone(), may: self.may.clone() }
    }

    /// A client of a new session, which gives its end.
    fn connect(&self, guest: Guest, read_only: bool) -> (Client, JoinHandle<End>, Arc<OwnedFd>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (owner, stop) = (self.owner(), Arc::new(event()));
        let stopper = stop.clone();
        let session = std::thread::spawn(move || {
            let (tell, told) = mpsc::channel();
            let (reply, opened) = mpsc::channel();
            let intent = if read_only { Intent::Read } else { Intent::Write };
            owner.run(Box::new(move |devices, _, targets| {
                let key =
                    devices.open(targets, TargetKey(0), intent, "disk of a test, long", reply);
                tell.send(key.unwrap()).unwrap();
            }));
            let (key, info) = (told.recv().unwrap(), opened.recv().unwrap().unwrap());
            let hold = event();
            let signals = Signals { stop: &stopper, hold: &hold };
            let mut session = Session::new(ours, signals, &owner, (key, info, read_only)).unwrap();
            let end = session.serve();
            owner.run(Box::new(move |devices, ring, targets| devices.close(ring, targets, key)));
            end
        });
        (Client::new(theirs, guest), session, stop)
    }

    /// A client whose guest has its rings served.
    fn guest(&self, rings: u32) -> (Client, JoinHandle<End>) {
        let (mut client, session, _) = self.connect(Guest::new(rings as usize), false);
        client.begin();
        (0..rings).for_each(|ring| client.start(ring, 0));
        (client, session)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        let _ = worker.sender.send(None);
        let ended = worker.join();
        assert!(ended.is_ok() || std::thread::panicking(), "the devices' thread has panicked");
    }
}

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const ZEROES: u32 = 13;
const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &words(&[sectors, flags])].concat()
}

#[test]
fn a_guest_reads_what_it_has_written_on_every_ring() {
    let bed = Bed::memory();
    let (mut client, session) = bed.guest(2);
    let guest = &mut client.guest;
    let data = pattern(8192);
    assert_eq!(guest.request(0, WRITE, 8, &data, 0).0, OK);
    assert_eq!(guest.request(0, FLUSH, 0, &[], 0).0, OK);
    assert_eq!(guest.request(1, READ, 8, &[], 8192), (OK, data.clone()));
    assert_eq!(guest.request(1, DISCARD, 0, &range(8, 8, 0), 0).0, OK);
    assert_eq!(guest.request(0, ZEROES, 0, &range(16, 4, 1), 0).0, OK);
    let (status, read) = guest.request(0, READ, 16, &[], 4096);
    assert_eq!((status, &read[..2048], &read[2048..]), (OK, &[0; 2048][..], &data[6144..]));
    assert_eq!(guest.request(0, GET_ID, 0, &[], 20), (OK, b"disk of a test, long".to_vec()));
    drop(client);
    assert!(matches!(session.join().unwrap(), End::Closed));
}

#[test]
fn requests_longer_than_a_buffer_are_whole() {
    let bed = Bed::memory();
    let (mut client, _session) = bed.guest(1);
    // Two pieces of data, 1.5 MiB: more than the target takes at once.
    let guest = &mut client.guest;
    let data = pattern(3 << 19);
    for (kind, flags) in [(WRITE, 0), (READ, 2)] {
        let head = guest.describe(0, 0, kind, 2, &[], 512);
        guest.descriptor(0, 1, Guest::data(0), 1 << 20, 1 | flags, 10);
        guest.descriptor(0, 10, Guest::data(3), 1 << 19, 1 | flags, 2);
        if kind == WRITE {
            guest.write(Guest::data(0), &data[..1 << 20]);
            guest.write(Guest::data(3), &data[1 << 20..]);
        } else {
            guest.write(Guest::data(0), &vec![0; 1 << 20]);
            guest.write(Guest::data(3), &vec![0; 1 << 19]);
        }
        guest.offer(0, head);
        guest.kick(0);
        let expected = if kind == READ { (3 << 19) + 1 } else { 1 };
        assert_eq!(guest.wait(0), (u32::from(head), expected));
        assert_eq!(guest.status(0), OK);
    }
    assert!(guest.read(Guest::data(0), 1 << 20) == data[..1 << 20]);
    assert!(guest.read(Guest::data(3), 1 << 19) == data[1 << 20..]);
}

#[test]
fn what_no_disk_can_do_is_an_error_to_the_guest() {
    let bed = Bed::memory();
    let (mut client, _session) = bed.guest(1);
    let guest = &mut client.guest;
    let last = DISK / 512;
    assert_eq!(guest.request(0, WRITE, 0, &[9; 512], 0).0, OK);
    for (kind, sector, out, room, status) in [
        (READ, last, 0, 512, IOERR),
        (READ, u64::MAX, 0, 512, IOERR),
        (READ, u64::MAX / 512, 0, 512, IOERR),
        (WRITE, last - 1, 1024, 0, IOERR),
        (WRITE, 0, 100, 0, IOERR),
        (READ, 0, 0, 100, IOERR),
        (WRITE, 0, 0, 0, IOERR),
        (DISCARD, 0, 8, 0, IOERR),
        (77, 0, 512, 0, UNSUPP),
    ] {
        let found = guest.request(0, kind, sector, &vec![1; out], room).0;
        assert_eq!(found, status, "{kind} {sector} {out} {room}");
    }
    for bad in [range(last, 8, 0), range(0, u32::MAX, 0), range(u64::MAX, 1, 0)] {
        assert_eq!(guest.request(0, DISCARD, 0, &bad, 0).0, IOERR);
    }
    assert_eq!(guest.request(0, DISCARD, 0, &range(0, 8, 1), 0).0, UNSUPP);
    let (_, read) = guest.request(0, READ, 0, &[], 512);
    assert_eq!(read, [9; 512], "nothing of that was written");
}

#[test]
fn a_disk_to_read_is_not_written() {
    let bed = Bed::memory();
    let (mut client, _session, _) = bed.connect(Guest::new(1), true);
    client.begin();
    client.start(0, 0);
    assert_eq!(client.guest.request(0, WRITE, 0, &[1; 512], 0).0, IOERR);
    assert_eq!(client.guest.request(0, READ, 0, &[], 512), (OK, vec![0; 512]));
}

#[test]
fn rings_that_make_no_sense_end_and_others_go_on() {
    let bed = Bed::memory();
    let (mut good, _session) = bed.guest(1);
    type Harm = fn(&mut Guest);
    let harms: [Harm; 9] = [
        // More chains than the ring holds.
        |guest| guest.store(0x1002, SIZE + 1),
        // A descriptor that is not there.
        |guest| guest.offer(0, SIZE),
        // A loop.
        |guest| {
            guest.descriptor(0, 0, 0x8_0000, 16, 1, 0);
            guest.offer(0, 0);
        },
        // The next one is not there.
        |guest| {
            guest.descriptor(0, 0, 0x8_0000, 16, 1, 999);
            guest.offer(0, 0);
        },
        // Nothing can be written.
        |guest| {
            guest.descriptor(0, 0, 0x8_0000, 16, 0, 0);
            guest.offer(0, 0);
        },
        // The status comes before the head.
        |guest| {
            guest.descriptor(0, 0, 0x8_0000, 1, 3, 1);
            guest.descriptor(0, 1, 0x8_0000, 16, 0, 0);
            guest.offer(0, 0);
        },
        // A table in itself, one without an end, one that is nowhere.
        |guest| {
            guest.descriptor(0, 0, 0, 16 * u32::from(SIZE), 4, 0);
            guest.offer(0, 0);
        },
        |guest| {
            guest.descriptor(0, 0, 0x9_0000, 17, 4, 0);
            guest.offer(0, 0);
        },
        |guest| {
            guest.descriptor(0, 0, u64::MAX - GUEST - 100, !15, 4, 0);
            guest.offer(0, 0);
        },
    ];
    for (nr, harm) in harms.into_iter().enumerate() {
        let (mut bad, session) = bed.guest(2);
        let err = event();
        bad.send(14, &0u64.to_ne_bytes(), &[&err]);
        bad.ask_u64(17);
        harm(&mut bad.guest);
        bad.guest.kick(0);
        // The client hears of it, its other ring goes on, and so do other clients.
        let mut fds = [rustix::event::PollFd::new(&err, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "harm {nr}");
        assert_eq!(bad.guest.request(1, READ, 0, &[], 512).0, OK);
        assert_eq!(good.guest.request(0, READ, 0, &[], 512).0, OK);
        bad.stop(0);
        drop(bad);
        assert!(matches!(session.join().unwrap(), End::Closed));
    }
}

#[test]
fn addresses_outside_of_the_guest_are_errors() {
    let bed = Bed::memory();
    let (mut client, _session) = bed.guest(1);
    let guest = &mut client.guest;
    for (at, len) in [(client::MEMORY - 512, 1024), (u64::MAX - GUEST - 255, 512), (1 << 40, 512)] {
        for (kind, flags) in [(WRITE, 1), (READ, 3)] {
            let head = guest.describe(0, 0, kind, 0, &[], 512);
            guest.descriptor(0, 1, at, len, flags, 2);
            guest.offer(0, head);
            guest.kick(0);
            guest.wait(0);
            assert_eq!(guest.status(0), IOERR);
        }
    }
    assert_eq!(guest.request(0, READ, 0, &[], 512), (OK, vec![0; 512]));
}

#[test]
fn memory_that_is_taken_away_costs_only_its_owner() {
    let bed = Bed::memory();
    let (mut good, _session) = bed.guest(1);
    let (mut bad, session) = bed.guest(1);
    assert_eq!(bad.guest.request(0, WRITE, 0, &[7; 4096], 0).0, OK);
    let head = bad.guest.describe(0, 0, WRITE, 0, &[8; 4096], 0);
    bad.guest.offer(0, head);
    rustix::fs::ftruncate(&bad.guest.file, 0).unwrap();
    bad.guest.kick(0);
    // Whether its thread has come across it can only be told by something after it.
    bad.ask_u64(17);
    let (status, read) = good.guest.request(0, READ, 0, &[], 4096);
    assert_eq!((status, &read[..]), (OK, &[7; 4096][..]), "nothing made up was written");
    drop(bad);
    assert!(matches!(session.join().unwrap(), End::Closed));
    let (mut third, _session) = bed.guest(1);
    assert_eq!(third.guest.request(0, READ, 0, &[], 4096).0, OK);
}

#[test]
fn messages_that_make_no_sense_end_the_session_only() {
    let bed = Bed::memory();
    let (mut good, _session) = bed.guest(1);
    let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap().0;
    let disk = tempfile_on_disk();
    let table = |size: u64, offset: u64| {
        let mut table = words(&[1, 0]);
        for value in [GUEST, size, client::USER, offset] {
            table.extend(value.to_ne_bytes());
        }
        table
    };
    let spare = Guest::new(0);
    let bad: Vec<(u32, Vec<u8>, Vec<&OwnedFd>)> = vec![
        (99, vec![], vec![]),
        (1, vec![0; 8], vec![]),
        (2, u64::MAX.to_ne_bytes().to_vec(), vec![]),
        (16, u64::MAX.to_ne_bytes().to_vec(), vec![]),
        (5, words(&[9, 0]), vec![]),
        (5, table(client::MEMORY, 0), vec![]),
        (5, table(client::MEMORY + 4096, 0), vec![&spare.file]),
        (5, table(u64::MAX, 0), vec![&spare.file]),
        (5, table(4096, u64::MAX), vec![&spare.file]),
        (5, table(0, 0), vec![&spare.file]),
        (5, table(4096, 0), vec![&disk]),
        (5, table(4096, 0), vec![&pipe]),
        (8, words(&[0, 3]), vec![]),
        (8, words(&[0, 65536]), vec![]),
        (8, words(&[64, 16]), vec![]),
        (11, words(&[u32::MAX, 0]), vec![]),
        (12, 0u64.to_ne_bytes().to_vec(), vec![&pipe]),
        (12, 0u64.to_ne_bytes().to_vec(), vec![&spare.file]),
        (13, 255u64.to_ne_bytes().to_vec(), vec![]),
        (13, 0u64.to_ne_bytes().to_vec(), vec![&pipe]),
        (18, words(&[1000, 1]), vec![]),
        (21, vec![], vec![&pipe]),
        (25, words(&[0, 0, 0]), vec![]),
        (31, vec![0xff; 24], vec![]),
        (32, vec![0; 24], vec![&spare.file]),
        (38, vec![0; 40], vec![]),
    ];
    for (request, payload, fds) in bad {
        let (client, session, _) = bed.connect(Guest::new(0), false);
        client.send(request, &payload, &fds);
        let end = session.join().unwrap();
        assert!(!matches!(end, End::Closed | End::Stopped), "{request} {payload:?}: {end}");
        assert!(client.is_left());
    }
    // Half a message, and then nothing.
    let (client, session, _) = bed.connect(Guest::new(0), false);
    client.send_raw(&words(&[5, 1, 40])[..11], &[]).unwrap();
    drop(client);
    assert!(matches!(session.join().unwrap(), End::Closed));
    let (client, session, stop) = bed.connect(Guest::new(0), false);
    client.send_raw(&words(&[5, 1, 4000]), &[]).unwrap();
    rustix::io::write(&*stop, &1u64.to_ne_bytes()).unwrap();
    assert!(matches!(session.join().unwrap(), End::Stopped));
    assert_eq!(good.guest.request(0, READ, 0, &[], 512).0, OK);
}

/// A file that is not in memory.
fn tempfile_on_disk() -> OwnedFd {
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.into()
}

#[test]
fn errors_of_the_target_reach_the_guest() {
    let bed = Bed::new(|| {
        let plan = FaultPlan { fail_per_mille: 500, ..FaultPlan::none(7) };
        Box::new(FaultyTarget::new(MemoryTarget::new(Bytes(DISK)), plan))
    });
    let (mut client, _session) = bed.guest(1);
    let failed = (0..100).filter(|_| client.guest.request(0, WRITE, 0, &[1; 512], 0).0 == IOERR);
    let failed = failed.count();
    assert!((1..100).contains(&failed), "{failed} of 100 failed");
}

#[test]
fn a_ring_that_was_stopped_goes_on_where_it_was() {
    let bed = Bed::memory();
    let (mut client, _session) = bed.guest(1);
    for n in 0..20u8 {
        assert_eq!(client.guest.request(0, WRITE, u64::from(n), &[n; 512], 0).0, OK);
    }
    assert_eq!(client.stop(0), 20);
    // Nobody looks at it now; what comes meanwhile is found later.
    let head = client.guest.describe(0, 0, READ, 7, &[], 512);
    client.guest.offer(0, head);
    client.guest.kick(0);
    client.start(0, 20);
    client.guest.wait(0);
    assert_eq!(client.guest.read(Guest::data(0), 512), [7; 512]);
    assert_eq!(client.stop(0), 21);
}

/// Requests that were under way when the first device went are carried out by the second.
#[test]
fn what_was_in_flight_is_repeated_by_the_next_device() {
    // A device that takes requests and answers none.
    let first = Bed::new(|| Box::new(Silent { inner: MemoryTarget::new(Bytes(DISK)) }));
    let (mut client, session) = first.guest(2);
    for chain in 0..4 {
        let data = [chain as u8 + 1; 512];
        let head = client.guest.describe(0, chain, WRITE, u64::from(chain), &data, 0);
        client.guest.offer(0, head);
    }
    client.guest.kick(0);
    while !first.taken(4) {
        std::thread::yield_now();
    }
    let Client { stream, guest, log } = client;
    drop(stream);
    assert!(matches!(session.join().unwrap(), End::Closed));
    drop(first);
    let second = Bed::memory();
    let (mut client, _session, _) = second.connect(guest, false);
    client.log = log;
    client.begin();
    // QEMU tells the used index here, since it does not know how many were taken.
    client.start(0, 0);
    client.start(1, 0);
    for chain in 0..4 {
        assert_eq!(client.guest.wait(0).0, 3 * chain);
        assert_eq!(client.guest.status(chain as u16), OK);
    }
    for sector in 0..4 {
        let (status, read) = client.guest.request(1, READ, sector, &[], 512);
        assert_eq!((status, read), (OK, vec![sector as u8 + 1; 512]));
    }
    assert_eq!(client.guest.request(0, READ, 0, &[], 512).0, OK);
    assert_eq!(client.stop(0), 5);
}

/// A device goes, or is killed, when it has put an answer and has not called yet: the guest waits for that call,
/// and with it for the one request that it has.
#[test]
fn a_guest_is_called_for_what_the_device_before_has_answered() {
    let bed = Bed::memory();
    let (mut client, session) = bed.guest(1);
    // The only request, so that the only call is for it.
    let head = client.guest.describe(0, 0, WRITE, 0, &[1; 512], 0);
    client.guest.offer(0, head);
    client.guest.kick(0);
    assert!(client.guest.is_called(0));
    assert_eq!(client.guest.used_index(0), 1);
    let Client { stream, guest, log } = client;
    drop(stream);
    assert!(matches!(session.join().unwrap(), End::Closed));
    let (mut client, _session, _) = bed.connect(guest, false);
    client.log = log;
    client.begin();
    client.start(0, 1);
    assert!(client.guest.is_called(0), "what it has not looked at may have had no call");
    assert_eq!(client.guest.used(0), Some((u32::from(head), 1)));
    assert_eq!(client.guest.request(0, READ, 0, &[], 512), (OK, vec![1; 512]));
}

#[test]
fn a_guest_that_may_not_go_on_gets_errors_and_a_new_one_none() {
    let bed = Bed::memory();
    let (mut client, session) = bed.guest(1);
    assert_eq!(client.guest.request(0, WRITE, 0, &[1; 512], 0).0, OK);
    let Client { stream, guest, log } = client;
    drop(stream);
    session.join().unwrap();
    *bed.may.lock().unwrap() = Err("others have written".to_owned());
    let (mut client, session, _) = bed.connect(guest, false);
    client.log = log;
    client.begin();
    client.start(0, 1);
    assert_eq!(client.guest.request(0, WRITE, 0, &[2; 512], 0).0, IOERR);
    assert_eq!(client.guest.request(0, READ, 0, &[], 512).0, IOERR);
    assert!(bed.told.lock().unwrap()[0].contains("others have written"));
    // The guest is reset: QEMU stops its rings, asks for another log, and begins again.
    client.stop(0);
    client.log = None;
    client.reset();
    client.begin();
    client.start(0, 0);
    assert_eq!(client.guest.request(0, READ, 0, &[], 512), (OK, vec![1; 512]));
    // That one is known to the next session again.
    let Client { stream, guest, log } = client;
    drop(stream);
    session.join().unwrap();
    let (mut client, session, _) = bed.connect(guest, false);
    client.log = log;
    client.begin();
    client.start(0, 1);
    assert_eq!(client.guest.request(0, READ, 0, &[], 512).0, IOERR, "it has been served before");
    drop(client);
    session.join().unwrap();
    let (mut fresh, _session) = bed.guest(1);
    assert_eq!(fresh.guest.request(0, READ, 0, &[], 512), (OK, vec![1; 512]));
}

#[test]
fn rings_in_use_without_a_log_are_not_taken_over() {
    let bed = Bed::memory();
    let (mut client, _session, _) = bed.connect(Guest::new(1), false);
    client.begin();
    client.guest.rings[0].avail = 5;
    client.guest.rings[0].used = 5;
    client.guest.store(0x1002, 5u16);
    client.guest.store(0x2002, 5u16);
    client.start(0, 5);
    assert_eq!(client.guest.request(0, READ, 0, &[], 512).0, IOERR);
}

#[test]
fn a_disk_is_described_as_the_target_is() {
    let bed = Bed::memory();
    let (client, _session, _) = bed.connect(Guest::new(0), false);
    let space = client.ask(24, &[words(&[0, 60, 0]), vec![0; 60]].concat());
    let word = |at: usize| u32::from_le_bytes(space[12 + at..16 + at].try_into().unwrap());
    assert_eq!(u64::from(word(0)), DISK / 512);
    // Segments, block size, physical block, queues, discards.
    assert_eq!((word(8), word(12), word(20)), (1 << 20, 126, 512));
    assert_eq!((space[12 + 24], space[12 + 32], space[12 + 34]), (3, 1, 64));
    assert_eq!((word(36), word(40), word(44)), (1 << 17, 1, 8));
    let beyond = client.ask(24, &[words(&[250, 60, 0]), vec![0; 60]].concat());
    assert!(beyond.is_empty());
}

/// Has the size that it is told.
struct Growing {
    inner: MemoryTarget,
    size: Arc<AtomicU64>,
}

impl Target for Growing {
    fn info(&self) -> runtime::TargetInfo {
        let size = Bytes(self.size.load(Ordering::SeqCst));
        runtime::TargetInfo { size, ..self.inner.info() }
    }

    fn open(&mut self, opener: runtime::OpenerId, intent: Intent, tag: u64) {
        self.inner.open(opener, intent, tag);
    }

    fn close(&mut self, opener: runtime::OpenerId) {
        self.inner.close(opener);
    }

    fn submit(&mut self, request: runtime::Request) {
        self.inner.submit(request);
    }

    fn flush_submissions(&mut self) {}

    fn poll_completions(&mut self, out: &mut Vec<Completion>) {
        self.inner.poll_completions(out);
    }
}

#[test]
fn a_client_hears_of_a_new_size() {
    let size = Arc::new(AtomicU64::new(DISK / 2));
    let told = size.clone();
    let bed =
        Bed::new(move || Box::new(Growing { inner: MemoryTarget::new(Bytes(DISK)), size: told }));
    let (client, _session, _) = bed.connect(Guest::new(0), false);
    let capacity = || {
        let space = client.ask(24, &[words(&[0, 8, 0]), vec![0; 8]].concat());
        u64::from_le_bytes(space[12..].try_into().unwrap())
    };
    assert_eq!(capacity(), DISK / 2 / 512);
    let (mut news, theirs) = UnixStream::pair().unwrap();
    client.send(21, &[], &[&theirs.into()]);
    size.store(DISK, Ordering::SeqCst);
    let mut message = [0; 12];
    news.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    news.read_exact(&mut message).unwrap();
    assert_eq!(message[..], words(&[2, 1, 0]));
    assert_eq!(capacity(), DISK / 512);
}

/// Takes requests, and never answers one.
struct Silent {
    inner: MemoryTarget,
}

impl Target for Silent {
    fn info(&self) -> runtime::TargetInfo {
        self.inner.info()
    }

    fn open(&mut self, opener: runtime::OpenerId, intent: Intent, tag: u64) {
        self.inner.open(opener, intent, tag);
    }

    fn close(&mut self, opener: runtime::OpenerId) {
        self.inner.close(opener);
    }

    fn submit(&mut self, _: runtime::Request) {}

    fn flush_submissions(&mut self) {}

    fn poll_completions(&mut self, out: &mut Vec<Completion>) {
        self.inner.poll_completions(out);
    }
}

impl Bed {
    /// True if the devices have that many requests.
    fn taken(&self, count: usize) -> bool {
        let (tell, told) = mpsc::channel();
        self.owner().run(Box::new(move |devices, _, _| {
            let _ = tell.send(devices.in_flight());
        }));
        told.recv().unwrap() == count
    }
}
