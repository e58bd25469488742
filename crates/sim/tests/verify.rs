//! Online verify beside everything else that goes on.

use replication::io::AdminCommand;
use sim::disk::Behaviour;
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::{ReplState, VolumeNr};

const V0: VolumeNr = VolumeNr(0);
const WRITE: Op = Op::Write { fua: false };

fn behave(w: &mut World, node: usize, behaviour: Behaviour) {
    w.nodes[node].drives[0].as_mut().expect("a disk").disk.behaviour = behaviour;
}

fn verify(peer: usize, start: u64, stop: u64) -> AdminCommand {
    AdminCommand::Verify { peer: node_id(peer), volume: V0, start: Some(start), stop: Some(stop) }
}

#[test]
fn a_verify_of_blocks_whose_received_writes_wait_for_their_epoch_reports_nothing() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        behave(w, 1, Behaviour { latency: (100_000, 60_000_000), ..Behaviour::default() });
        for _ in 0..60 {
            // The write that ends first starts an epoch. What follows it is held back by the slow
            // Secondary until the other one is executed, too.
            let ids = [8192, 16384, 24576].map(|sector| w.start(0, WRITE, sector, 8));
            w.wait("a write ends", |w| ids.iter().any(|id| w.is_answered(*id)));
            let held = w.start(0, WRITE, 0, 8);
            w.ask(1, verify(0, 0, 64)).ok();
            for id in ids.into_iter().chain([held]) {
                w.finish(id).ok();
            }
            w.wait("the verify ends", |w| w.device(1, 0).repl == ReplState::Established);
        }
        w.close(0, opener);
        w.settle();
    });
}
