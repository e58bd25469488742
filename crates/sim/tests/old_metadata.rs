//! Two nodes whose disks have the metadata of DRBD 8 (v08), between each other in protocol 9 and in
//! protocol 8. The seeds have them, too.

use replication::io::AdminCommand;
use sim::plan::{Plan, Start};
use sim::rng::Rng;
use sim::scenario::scenario;
use vocab::options::Quorum;
use vocab::{DiskState, ReplState};

#[test]
fn seeds_have_such_disks_under_both_protocols() {
    let plans = (1..=2000).map(|seed| Plan::random(&mut Rng::new(seed)));
    let old: Vec<Plan> = plans.filter(|plan| plan.old_metadata).collect();
    let legacy = old.iter().filter(|plan| plan.legacy).count();
    assert!(legacy > 20 && old.len() - legacy > 20, "{legacy} of {}", old.len());
    assert!(old.iter().all(|plan| plan.resource.quorum == Quorum::Off));
}

fn pairs() -> [Plan; 2] {
    let plan = Plan { old_metadata: true, ..Plan::quiet(2, 0) };
    [plan.clone(), Plan { legacy: true, ..plan }]
}

#[test]
fn the_first_resync_and_what_follows_are_recorded() {
    for plan in pairs() {
        scenario(Plan { start: Start::InitialSync, ..plan }, |w| {
            w.wait_connected(0, 1);
            w.granted(0, AdminCommand::Primary { force: true });
            w.wait_disk(1, DiskState::UpToDate);
            w.granted(0, AdminCommand::Secondary { force: false });
            w.power_loss(0);
            w.power_loss(1);
            w.start_node(0);
            w.start_node(1);
            w.wait_connected(0, 1);
            w.settle();
        });
    }
}

#[test]
fn a_primary_that_crashed_gives_its_peer_what_its_log_names() {
    for plan in pairs() {
        scenario(plan, |w| {
            w.form();
            w.open(0);
            for extent in 0..5 {
                w.write(0, extent * 8192);
            }
            w.power_loss(0);
            w.power_loss(1);
            w.start_node(1);
            w.start_node(0);
            w.wait_connected(0, 1);
            w.wait("the resync is over", |w| {
                w.device(0, 1).repl == ReplState::Established
                    && w.device(0, 1).out_of_sync == 0
                    && w.disk(1) == DiskState::UpToDate
            });
            w.settle();
        });
    }
}

#[test]
fn a_secondary_that_crashed_gets_what_it_may_lack() {
    for plan in pairs() {
        scenario(plan, |w| {
            w.form();
            let opener = w.open(0);
            for extent in 0..5 {
                w.write(0, extent * 8192);
            }
            w.power_loss(1);
            w.write(0, 9 * 8192);
            w.start_node(1);
            w.wait_connected(0, 1);
            w.wait_disk(1, DiskState::UpToDate);
            w.close(0, opener);
            w.detach(1);
            w.attach_again(1);
            w.wait_disk(1, DiskState::UpToDate);
            w.settle();
        });
    }
}
