//! More extents under write than the activity log holds.

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, PATIENCE, Setup};

const EXTENT: u64 = 4 << 20;
/// Writes at once: nearly twice the extents of the log.
const AT_ONCE: u64 = 128;

/// Three nodes, the last one without a disk, with the smallest activity log.
fn cluster() -> Cluster {
    Cluster::up(&Setup {
        clients: vec!["charlie"],
        disk: (AT_ONCE + 30) * EXTENT,
        sections: "  disk { al-extents 67; }".to_owned(),
        ..Setup::default()
    })
}

/// One block in each extent; other extents and another order in each round.
fn places(round: u64) -> Vec<u64> {
    let extent = |i: u64| (i * 61 + round * 17) % (AT_ONCE + 29);
    (0..AT_ONCE).map(|i| extent(i) * EXTENT + round % 512 * 4096).collect()
}

#[test]
fn writes_over_more_extents_than_the_log_holds_go_on_case_105() {
    let cluster = cluster();
    // With a disk of its own the Primary's log limits it, without one only the peers' do.
    for node in [0, 2] {
        let mut client = Client::open(&cluster.nodes[node].export(), "r0").unwrap();
        for round in 0..40 {
            client.write_all(&places(round), &[round as u8; 4096]).unwrap();
        }
        assert_eq!(client.read(places(39)[7], 4096).unwrap(), [39; 4096]);
        client.close();
    }
    assert!(cluster.nodes.iter().all(|node| node.is_connected()));
}

#[test]
fn survivors_settle_a_primary_that_is_lost_amid_such_writes() {
    let mut cluster = cluster();
    let mut client = Client::open(&cluster.nodes[2].export(), "r0").unwrap();
    let (report, rounds) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let written = |round: &_| client.write_all(&places(*round), &[1; 4096]).is_ok();
        (0..).take_while(written).for_each(|round| _ = report.send(round));
    });
    for _ in 0..3 {
        rounds.recv_timeout(PATIENCE).expect("some rounds pass");
    }
    cluster.nodes[2].kill();
    writer.join().unwrap();
    cluster.wait("the survivors try to connect again", |cluster| {
        cluster.nodes[..2].iter().all(|node| node.peer("charlie").0 == "Connecting")
    });
    cluster.wait("the survivors are UpToDate", |cluster| cluster.all_up_to_date());
}
