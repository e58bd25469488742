//! Volumes served over vhost-user, to a client that is QEMU and guest in one: what is in flight when the
//! engine is killed, and what becomes of a guest after others have written. `cargo xtask vm vhost` does the same
//! with QEMU.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use crate::engine_support::nbd;
use crate::engine_support::{Cluster, PATIENCE, Setup};
use crate::vhost_client;
use crate::vhost_client::{Client, Guest};

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const OK: u8 = 0;
const IOERR: u8 = 1;

struct Bed {
    cluster: Cluster,
    socket: PathBuf,
}

impl Bed {
    fn new() -> Bed {
        let cluster = Cluster::up(&Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() });
        let socket = cluster.nodes[0].directory.join("disk");
        let bed = Bed { cluster, socket };
        bed.export();
        bed
    }

    fn export(&self) {
        let socket = self.socket.display().to_string();
        self.cluster.nodes[0].ok(&["export", "r0/0", "--vhost-user", &socket]);
    }

    /// Connects until a client is served: as QEMU does, it tries again where it is left.
    fn connect(&self, guest: Guest, log: &mut Option<Log>, bases: [u16; 2]) -> Client {
        let begun = Instant::now();
        let stream = loop {
            match self.try_connect() {
                Ok(stream) => break stream,
                Err(e) => assert!(begun.elapsed() < PATIENCE, "not served: {e}\n{}", self.log()),
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        };
        let mut client = Client::new(stream, guest);
        client.log = log.take();
        client.begin();
        client.start(0, bases[0]);
        client.start(1, bases[1]);
        client
    }

    /// A connection on which a first question was answered.
    fn try_connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.socket)?;
        let probe = Client::new(stream.try_clone()?, Guest::new(0));
        probe.send_raw(&vhost_client::words(&[1, 1, 0]), &[])?;
        let mut answer = [0; 20];
        io::Read::read_exact(&mut &stream, &mut answer)?;
        Ok(stream)
    }

    fn log(&self) -> String {
        self.cluster.nodes[0].log()
    }
}

type Log = (Vec<u8>, std::os::fd::OwnedFd);

/// Takes a client's connection away.
fn disconnect(client: Client) -> (Guest, Option<Log>) {
    let Client { stream, guest, log } = client;
    drop(stream);
    (guest, log)
}

/// Writes four sectors without waiting for an answer.
fn write_four(guest: &mut Guest, seed: u8) {
    for chain in 0..4 {
        let data = [seed + chain as u8; 4096];
        let head = guest.describe(0, chain, WRITE, 8 * u64::from(chain), &data, 0);
        guest.offer(0, head);
    }
    guest.kick(0);
}

fn finish_four(guest: &mut Guest) {
    for _ in 0..4 {
        guest.wait(0);
    }
    (0..4).for_each(|chain| assert_eq!(guest.status(chain), OK));
}

fn check_four(guest: &mut Guest, seed: u8) {
    for chain in 0..4u8 {
        let (status, read) = guest.request(1, READ, 8 * u64::from(chain), &[], 4096);
        assert_eq!((status, read), (OK, vec![seed + chain; 4096]));
    }
}

#[test]
fn a_guest_goes_on_after_kills_and_restarts_of_the_engine() {
    let mut bed = Bed::new();
    let mut client = bed.connect(Guest::new(2), &mut None, [0, 0]);
    write_four(&mut client.guest, 10);
    finish_four(&mut client.guest);
    for round in 0..4u8 {
        // A disk that is being resynced can not tell whether it is what it was.
        bed.cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
        let seed = 20 + 10 * round;
        write_four(&mut client.guest, seed);
        match round % 2 {
            0 => bed.cluster.nodes[0].kill(),
            _ => assert!(bed.cluster.nodes[0].stop()),
        }
        bed.cluster.nodes[0].start();
        let (guest, mut log) = disconnect(client);
        let bases = [guest.used_index(0), guest.used_index(1)];
        client = bed.connect(guest, &mut log, bases);
        finish_four(&mut client.guest);
        check_four(&mut client.guest, seed);
        assert_eq!(client.guest.request(1, FLUSH, 0, &[], 0).0, OK);
    }
    assert!(!bed.log().contains("can not go on"), "{}", bed.log());
    let exports = bed.cluster.nodes[0].ok(&["exports"]);
    assert!(exports.contains("vhost-user-blk:") && exports.contains("clients:1"), "{exports}");
    drop(client);
    bed.cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
    bed.cluster.nodes.iter_mut().for_each(|node| assert!(node.stop(), "{}", node.name));
    bed.cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_guest_does_not_go_on_after_others_have_written() {
    let mut bed = Bed::new();
    let mut client = bed.connect(Guest::new(2), &mut None, [0, 0]);
    assert_eq!(client.guest.request(0, WRITE, 0, &[1; 4096], 0).0, OK);
    bed.cluster.nodes[0].kill();
    let socket = bed.cluster.nodes[1].export();
    let mut other = nbd::Client::open(&socket, "r0/0").unwrap();
    other.write(0, &[2; 4096]).unwrap();
    other.flush().unwrap();
    other.close();
    bed.cluster.nodes[0].start();
    bed.cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
    let (guest, mut log) = disconnect(client);
    let bases = [guest.used_index(0), guest.used_index(1)];
    let mut client = bed.connect(guest, &mut log, bases);
    assert_eq!(client.guest.request(0, READ, 0, &[], 4096).0, IOERR);
    assert_eq!(client.guest.request(0, WRITE, 0, &[3; 4096], 0).0, IOERR);
    bed.cluster.wait_logged(0, "others have written");
    // It is started anew: it knows nothing, and reads what the other has written.
    drop(client);
    let mut fresh = bed.connect(Guest::new(2), &mut None, [0, 0]);
    assert_eq!(fresh.guest.request(0, READ, 0, &[], 4096), (OK, vec![2; 4096]));
}

#[test]
fn one_client_at_a_time_and_none_where_another_node_is_primary() {
    let bed = Bed::new();
    let mut client = bed.connect(Guest::new(2), &mut None, [0, 0]);
    assert_eq!(client.guest.request(0, WRITE, 0, &[1; 4096], 0).0, OK);
    let bravo = &bed.cluster.nodes[1];
    let theirs = bravo.directory.join("disk").display().to_string();
    bravo.ok(&["export", "r0/0", "--vhost-user", &theirs]);
    let refused = UnixStream::connect(&theirs).unwrap();
    assert!(Client::new(refused, Guest::new(0)).is_left());
    bed.cluster.wait("it is said why", |c| c.nodes[1].log().contains("can not be opened"));
    // The place is taken, and stays so.
    let here = bed.socket.display().to_string();
    let (_, why) =
        bed.cluster.nodes[0].fails(&["export", "r0/0", "--name", "b", "--vhost-user", &here]);
    assert!(why.contains("can not listen"), "{why}");
    let (_, why) = bed.cluster.nodes[0].fails(&["down", "r0"]);
    assert!(why.contains("open"), "{why}");
    bed.cluster.nodes[0].ok(&["unexport", "r0/0"]);
    assert!(client.is_left());
    assert!(!bed.socket.exists());
    bed.cluster.wait("nobody is Primary", |c| c.nodes[0].status()["role"] == "Secondary");
}

#[test]
fn a_guest_does_not_notice_upgrades_and_goes_on_after_a_kill() {
    let mut bed = Bed::new();
    let mut client = bed.connect(Guest::new(2), &mut None, [0, 0]);
    for round in 0..4u8 {
        let seed = 10 + 10 * round;
        write_four(&mut client.guest, seed);
        bed.cluster.nodes[0].upgrade();
        finish_four(&mut client.guest);
        check_four(&mut client.guest, seed);
        assert_eq!(client.guest.request(1, FLUSH, 0, &[], 0).0, OK);
        // The conversation goes on, too: a ring ends and begins again.
        let base = client.stop(1);
        client.start(1, base as u16);
        check_four(&mut client.guest, seed);
    }
    let exports = bed.cluster.nodes[0].ok(&["exports"]);
    assert!(exports.contains("vhost-user-blk:") && exports.contains("clients:1"), "{exports}");
    write_four(&mut client.guest, 90);
    bed.cluster.nodes[0].kill();
    bed.cluster.nodes[0].start();
    let (guest, mut log) = disconnect(client);
    let bases = [guest.used_index(0), guest.used_index(1)];
    client = bed.connect(guest, &mut log, bases);
    finish_four(&mut client.guest);
    check_four(&mut client.guest, 90);
    assert!(!bed.log().contains("can not go on"), "{}", bed.log());
    drop(client);
    bed.cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
    bed.cluster.nodes.iter_mut().for_each(|node| assert!(node.stop(), "{}", node.name));
    bed.cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_guest_that_is_away_during_an_upgrade_goes_on_unless_others_have_written() {
    let mut bed = Bed::new();
    let mut client = bed.connect(Guest::new(2), &mut None, [0, 0]);
    for others_write in [false, true] {
        assert_eq!(client.guest.request(0, WRITE, 0, &[1; 4096], 0).0, OK);
        let (guest, mut log) = disconnect(client);
        bed.cluster.wait("nobody is Primary", |c| c.nodes[0].status()["role"] == "Secondary");
        bed.cluster.nodes[0].upgrade();
        if others_write {
            let socket = bed.cluster.nodes[1].export();
            let mut other = nbd::Client::open(&socket, "r0/0").unwrap();
            other.write(0, &[2; 4096]).unwrap();
            other.flush().unwrap();
            other.close();
            bed.cluster.wait("nobody is Primary", |c| c.nodes[1].status()["role"] == "Secondary");
        }
        let bases = [guest.used_index(0), guest.used_index(1)];
        client = bed.connect(guest, &mut log, bases);
        let expected = if others_write { IOERR } else { OK };
        assert_eq!(client.guest.request(0, READ, 0, &[], 4096).0, expected, "{}", bed.log());
    }
    bed.cluster.wait_logged(0, "others have written");
}

#[test]
fn an_upgrade_in_the_middle_of_a_message_is_refused_and_changes_nothing() {
    let mut bed = Bed::new();
    let mut client = bed.connect(Guest::new(2), &mut None, [0, 0]);
    write_four(&mut client.guest, 10);
    // Half of a question for the features.
    let question = vhost_client::words(&[1, 1, 0]);
    client.send_raw(&question[..6], &[]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let (_, why) = bed.cluster.nodes[0].fails(&["upgrade", "--retry", "0"]);
    assert!(why.contains("is being answered") && why.contains("nothing was changed"), "{why}");
    finish_four(&mut client.guest);
    client.send_raw(&question[6..], &[]).unwrap();
    assert_eq!(client.answer().0.len(), 8);
    check_four(&mut client.guest, 10);
    bed.cluster.nodes[0].upgrade();
    check_four(&mut client.guest, 10);
}
