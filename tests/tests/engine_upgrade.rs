//! Another engine takes over while clients write and peers replicate, and nobody is disconnected.

use std::process::Child;
use std::time::{Duration, Instant};

use crate::engine_support::nbd::Client;
use crate::engine_support::writers::{Writing, watched};
use crate::engine_support::{Cluster, Setup, pattern};

/// Clients that each have one request under way.
const WRITERS: u64 = 32;
const BLOCK: usize = 4096;

/// `ASHLAR_SWAPS` says how often, for measurements.
fn swaps() -> usize {
    std::env::var("ASHLAR_SWAPS").map_or(4, |n| n.parse().unwrap())
}

#[test]
fn an_engine_hands_over_while_clients_write() {
    let mut cluster = Cluster::up(&Setup::default());
    let socket = cluster.nodes[0].export();
    Writing::during(&socket, WRITERS, |writing| {
        let watchers: Vec<Child> =
            cluster.nodes[1..].iter().map(|node| node.follow(&["events"])).collect();
        for round in 0..swaps() {
            // Its peers as well: what they hold is not acknowledged yet.
            let node = if round % 4 == 3 { 1 + round / 4 % 2 } else { 0 };
            let answer = cluster.nodes[node].upgrade();
            println!("round {round}: {} {}", cluster.nodes[node].name, answer.trim());
            writing.wait_for_writes(300);
        }
        println!("the longest a writer waited: {:?}", writing.longest());
        for watcher in watchers {
            let seen = watched(watcher);
            let lost = |line: &&str| line.contains(" connection:") || line.contains(":Sync");
            let seen: String =
                seen.split_inclusive('\n').filter(|l| l.starts_with("change")).collect();
            assert_eq!(seen.lines().find(lost), None, "{seen}");
        }
    });
    cluster.wait("nothing is out of sync", |c| {
        c.all_up_to_date() && c.nodes.iter().all(|n| n.out_of_sync() == 0)
    });
    cluster.assert_equal(0, &[0, 1, 2]);
    // The one that has taken over is an engine like any other.
    let before = cluster.nodes[0].ok(&["exports", "--json"]);
    assert!(cluster.nodes[0].stop(), "it ends well");
    cluster.nodes[0].start();
    cluster.wait_connected();
    assert_eq!(cluster.nodes[0].ok(&["exports", "--json"]), before);
}

#[test]
fn who_can_not_hand_over_says_why_and_goes_on() {
    let mut cluster = Cluster::up(&Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() });
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    client.write(0, &pattern(1, BLOCK)).unwrap();
    let node = &cluster.nodes[0];
    let pid = node.pid();
    let refused = |args: &[&str], why: &str| {
        let (_, text) = node.fails(args);
        assert!(text.contains(why), "{text}");
    };
    refused(&["upgrade", "--binary", "/nonexistent"], "/nonexistent");
    refused(&["upgrade", "--binary", "/bin/false"], "has ended before");
    node.ok(&["suspend-io", "r0"]);
    refused(&["upgrade"], "suspended");
    node.ok(&["resume-io", "r0"]);
    client.write(0, &pattern(2, BLOCK)).unwrap();
    // A peer that hears nothing answers nothing, so a write is under way for as long.
    cluster.nodes[1].signal(libc::SIGSTOP);
    std::thread::scope(|scope| {
        scope.spawn(|| client.write(0, &pattern(3, BLOCK)).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        let (_, text) = cluster.nodes[0].fails(&["upgrade", "--retry", "0"]);
        cluster.nodes[1].signal(libc::SIGCONT);
        assert!(text.contains("not at rest"), "{text}");
    });
    assert_eq!(client.read(0, BLOCK).unwrap(), pattern(3, BLOCK));
    assert_eq!(cluster.nodes[0].pid(), pid);
    cluster.nodes[0].ok(&["info"]);
    // Asked for in the same state, it is done as soon as the peer answers again.
    let (alpha, others) = cluster.nodes.split_at_mut(1);
    others[0].signal(libc::SIGSTOP);
    std::thread::scope(|scope| {
        scope.spawn(|| client.write(0, &pattern(3, BLOCK)).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1000));
            others[0].signal(libc::SIGCONT);
        });
        let begin = Instant::now();
        alpha[0].upgrade();
        assert!(begin.elapsed() > Duration::from_secs(2), "the first try is refused");
    });
    client.write(0, &pattern(4, BLOCK)).unwrap();
    assert_eq!(client.read(0, BLOCK).unwrap(), pattern(4, BLOCK));
    client.close();
}
