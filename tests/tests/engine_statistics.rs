//! Where the time of requests goes, as real engines tell it: over the control socket, by `ashlar top`
//! and to Prometheus.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Node, Setup, list};
use codec::admin::{
    Answer, Call, Line, Lines, MAX_LINE, Outcome, Request, ResourceStatistics, VERSION, Waterfall,
    encode_line,
};
use serde_json::Value;

/// Longer than whatever engines wait before they time the next request in any case.
const PAUSE: Duration = Duration::from_millis(150);

/// What the activity log counts in.
const EXTENT: u64 = 4 << 20;

/// What an engine says of `r0`.
fn statistics(node: &Node) -> ResourceStatistics {
    let mut stream = UnixStream::connect(node.socket()).unwrap();
    let request = Request::Statistics { resource: Some("r0".to_owned()) };
    let call = Call { version: VERSION, id: 1, timeout_ms: 10_000, request };
    stream.write_all(&encode_line(&call)).unwrap();
    let (mut lines, mut chunk) = (Lines::new(MAX_LINE), [0; 4096]);
    let line = loop {
        if let Some(line) = lines.next_line().unwrap() {
            break line;
        }
        let n = stream.read(&mut chunk).unwrap();
        assert_ne!(n, 0, "the engine answers");
        lines.push(&chunk[..n]);
    };
    let Line::Reply(reply) = serde_json::from_slice(&line).unwrap() else { panic!("no reply") };
    let Outcome::Ok(Answer::Statistics(mut all)) = reply.outcome else { panic!("{reply:?}") };
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// The waterfall of writes. Its stages always add up.
fn writes(node: &Node) -> Waterfall {
    let waterfall = *statistics(node).volumes.remove(0).write.expect("writes were timed");
    assert_eq!(waterfall.stages_sum(), waterfall.total.sum(), "{waterfall:?}");
    waterfall
}

/// Time that a peer decided.
fn decided(waterfall: &Waterfall, peer: u8) -> Duration {
    let peer = waterfall.peers.iter().find(|p| p.peer.get() == peer);
    peer.map_or(Duration::ZERO, |p| p.parallel.decided())
}

#[test]
fn the_stage_that_is_slow_is_the_one_that_grows() {
    let cluster = Cluster::up(&Setup::default());
    let mut client = Client::open(&cluster.nodes[0].export(), "r0").unwrap();
    // The first write waits for a new generation, which is a matter of admission.
    client.write(0, &[1; 4096]).unwrap();
    let first = writes(&cluster.nodes[0]);
    assert_eq!((first.total.count(), first.activity_log.sum()), (1, Duration::ZERO));
    // Of the second one the extent is not active in the log yet.
    client.write(EXTENT, &[1; 4096]).unwrap();
    let cold = writes(&cluster.nodes[0]);
    assert_eq!(cold.total.count(), 2);
    assert!(cold.activity_log.sum() > Duration::ZERO, "{cold:?}");
    assert_eq!(cold.admission.sum(), first.admission.sum(), "it waited for nothing else");
    for round in 2..60u8 {
        client.write(u64::from(round) * 4096, &[round; 4096]).unwrap();
    }
    let warm = writes(&cluster.nodes[0]);
    assert_eq!(warm.activity_log.sum(), cold.activity_log.sum(), "the extent is active");
    for (slow, other) in [(2, 1), (1, 2)] {
        thread::sleep(PAUSE);
        let before = writes(&cluster.nodes[0]);
        let node = &cluster.nodes[usize::from(slow)];
        node.signal(libc::SIGSTOP);
        thread::scope(|scope| {
            let writer = scope.spawn(|| client.write(8192, &[9; 4096]));
            thread::sleep(PAUSE);
            node.signal(libc::SIGCONT);
            writer.join().unwrap().unwrap();
        });
        let new = writes(&cluster.nodes[0]).since(&before);
        let stalled = decided(&new, slow);
        assert!(stalled >= PAUSE / 2, "{new:?}");
        assert!(stalled >= new.total.sum() / 2, "most of all time: {new:?}");
        assert_eq!(decided(&new, other), Duration::ZERO, "{new:?}");
    }
    thread::sleep(PAUSE);
    assert_eq!(client.read(8192, 4096).unwrap(), [9; 4096]);
    let volume = &statistics(&cluster.nodes[0]).volumes[0];
    assert_eq!((volume.in_flight, volume.writes.requests, volume.reads.requests), (0, 62, 1));
    assert_eq!(volume.writes.bytes, 62 * 4096);
    let read = volume.read.as_ref().unwrap();
    assert_eq!(read.stages_sum(), read.total.sum());
    assert!(read.disk.latency.count() == 1 && read.peers.is_empty(), "it has a disk: {read:?}");
    for node in &cluster.nodes[1..] {
        let volume = &statistics(node).volumes[0];
        assert_eq!((volume.replica_writes.requests, volume.writes.requests), (62, 0));
        let replica = volume.replica.as_ref().unwrap();
        assert!(replica.disk.sum() > Duration::ZERO && replica.disk.count() <= 62, "{replica:?}");
    }
    let round_trips = statistics(&cluster.nodes[0]).connections;
    assert!(round_trips.iter().all(|c| c.round_trip.is_some()), "{round_trips:?}");
    client.close();
}

#[test]
fn a_client_without_a_disk_reads_from_a_peer() {
    let cluster = Cluster::up(&Setup { clients: vec!["charlie"], ..Setup::default() });
    let mut client = Client::open(&cluster.nodes[2].export(), "r0").unwrap();
    client.write(0, &[7; 4096]).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    let volume = &statistics(&cluster.nodes[2]).volumes[0];
    for waterfall in [volume.read.as_ref().unwrap(), volume.write.as_ref().unwrap()] {
        assert_eq!(waterfall.stages_sum(), waterfall.total.sum());
        assert_eq!((waterfall.total.count(), waterfall.disk.latency.count()), (1, 0));
    }
    assert_eq!(volume.read.as_ref().unwrap().peers.len(), 1);
    assert_eq!(volume.write.as_ref().unwrap().peers.len(), 2);
    client.close();
}

/// The numbers for Prometheus.
fn metrics(node: &Node) -> String {
    let log = node.log();
    let line = log.lines().rev().find_map(|line| line.split_once("metrics are at http://"));
    let address = line.expect("it says where").1.strip_suffix("/metrics").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body.to_owned()
}

#[test]
fn top_and_metrics_show_a_volume_under_load() {
    let mut cluster = Cluster::new(&Setup::default());
    cluster.nodes[0].args = vec!["--metrics".into(), "127.0.0.1:0".into()];
    for node in &mut cluster.nodes {
        node.start();
        node.ok(&["create-md", "r0"]);
        node.ok(&["up", "r0"]);
    }
    cluster.wait_connected();
    cluster.nodes[0].ok(&["new-current-uuid", "--clear-bitmap", "r0/0"]);
    cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
    let mut client = Client::open(&cluster.nodes[0].export(), "r0").unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let places: Vec<u64> = (0..8).map(|i| i * 8192).collect();
            while !stop.load(Ordering::Relaxed) {
                client.write_all(&places, &[5; 4096]).unwrap();
            }
        });
        let top = |args: &[&str]| cluster.nodes[0].ok(&[&["top", "--once"], args].concat());
        let json: Value = serde_json::from_str(&top(&["r0", "--json"])).unwrap();
        let text = top(&["--sort", "write"]);
        let page = metrics(&cluster.nodes[0]);
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        let write = &json[0]["write"];
        assert!(write["requests-per-second"].as_f64().unwrap() > 8.0, "{json}");
        assert!(write["p99-us"].as_f64() >= write["p50-us"].as_f64(), "{json}");
        let shares = list(&write["stages"]).iter().map(|s| s["share"].as_f64().unwrap());
        assert!((shares.sum::<f64>() - 1.0).abs() < 1e-6, "{json}");
        assert!(text.lines().any(|line| line.starts_with("r0/0 ")), "{text}");
        assert!(text.lines().any(|line| line.starts_with("  write ")), "{text}");
        let value = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.trim().parse::<f64>().unwrap()
        };
        let volume = "name=\"r0\",volume=\"0\",minor=\"0\"";
        assert_eq!(value("drbd_resource_role{name=\"r0\",drbd_resource_role=\"Primary\"}"), 1.0);
        let requests = value(&format!("ashlar_requests_total{{{volume},op=\"write\"}}"));
        let timed = value(&format!("ashlar_request_seconds_count{{{volume},op=\"write\"}}"));
        assert!(requests > 8.0 && timed > 0.0 && timed <= requests, "{timed} of {requests}");
    });
    let (_, why) = cluster.nodes[0].fails(&["top", "--once", "nothing"]);
    assert!(why.contains("nothing"), "{why}");
    client.close();
}
