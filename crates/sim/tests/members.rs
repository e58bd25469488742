//! Peers that are removed while everything else goes on.

use replication::io::AdminCommand;
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};

const WRITE: Op = Op::Write { fua: false };

fn equal(w: &World, a: usize, b: usize) -> bool {
    let (a, b) = (w.nodes[a].drive(0), w.nodes[b].drive(0));
    a.zip(b).is_some_and(|(a, b)| a.disk.first_difference(&b.disk, 0).is_none())
}

/// A peer is removed from nodes that are in use: what is in flight, here and from others, goes on with
/// those that stay, whatever their numbers become.
#[test]
fn a_peer_is_removed_while_others_are_written_to() {
    scenario(Plan::quiet(4, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        let peer = node_id(1);
        for node in [0, 2, 3] {
            w.granted(node, AdminCommand::Disconnect { peer, force: true });
        }
        w.write(0, 8);
        w.stall_disk(2, 30);
        let writes: Vec<u64> = (1..9).map(|n| w.start(0, WRITE, n * 64, 8)).collect();
        w.run_for(50_000_000);
        for node in [0, 3] {
            w.remove_peer(node, 1);
        }
        w.expect("nothing is answered yet", |w| !writes.iter().any(|id| w.is_answered(*id)));
        w.release_disk(2);
        w.remove_peer(2, 1);
        for id in writes {
            w.finish(id).expect("the disks that stay have it");
        }
        w.write(0, 1024);
        w.expect("all that stay have it", |w| {
            [2, 3].into_iter().all(|n| w.connected(0, n) && equal(w, n, 0))
        });
        w.close(0, opener);
        w.wait_secondary(0);
    });
}
