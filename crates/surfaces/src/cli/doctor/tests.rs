//! Figures made up, and what has to be concluded from them.

use codec::admin::{
    DiskReads, DiskWrites, Machine, Network, ResourceStatus, Series, TcpFigures, Watch,
    WatchedDevice, WatchedPeer, WatchedThread, WatchedVolume,
};
use codec::config::ResourceConfig;
use vocab::{ConnState, NodeId, ReplState, Role, VolumeNr};

use super::super::tests::{configured, recordings};
use super::findings::findings;
use super::render::{rate, render, time};
use super::*;

const SECOND: u64 = 1_000_000_000;
const CONFIG: &str = "resource r0 {
    disk { al-extents 100; }
    volume 0 { device minor 0; disk /dev/vg/r0; meta-disk internal; }
    on g11 { node-id 0; address 10.0.0.1:7000; }
    on g12 { node-id 1; address 10.0.0.2:7000; }
    on g13 { node-id 2; address 10.0.0.3:7000; }
    connection-mesh { hosts g11 g12 g13; } }";

/// A resource of three nodes, seen from the first, that is Primary and well.
struct Made {
    config: ResourceConfig,
    status: ResourceStatus,
    figures: Figures,
}

fn tcp() -> TcpFigures {
    TcpFigures {
        rtt: 100_000,
        min_rtt: 50_000,
        path_mtu: 1500,
        segment: 1448,
        advertised_segment: 1460,
        acked_bytes: 100 << 20,
        busy: SECOND,
        send_buffer: 2 << 20,
        ..TcpFigures::default()
    }
}

impl Made {
    /// Eight small writes in flight all the time, everywhere alike.
    fn busy() -> Made {
        let mut status = recordings().remove(0).status();
        status.role = Role::Primary;
        let peer = |nr| WatchedPeer {
            peer: NodeId::new(nr).unwrap(),
            pending: vec![2.5],
            pending_bytes: 2.5 * 4096.0,
            unsent_bytes: 0.0,
            data: Some(tcp()),
            ping: Some(200_000),
        };
        let volume = WatchedVolume {
            volume: VolumeNr(0),
            requests: 8.0,
            disk_reads: 0.0,
            disk_writes: 2.0,
            disk_flushes: 0.0,
            disk_metadata: 0.0,
            unanswered: 0.0,
            read_kib: 0,
            written_kib: 100 << 10,
            al_writes: 0,
            device: None,
        };
        let watch = Watch {
            nanoseconds: 5 * SECOND,
            samples: 250,
            volumes: vec![volume],
            peers: vec![peer(1), peer(2)],
            threads: vec![thread(SECOND, 0)],
            thread: "shard0".to_owned(),
        };
        let machine = Machine { clock_source: "tsc".to_owned(), cpus: 4, ..Machine::default() };
        let figures = Figures { machine, watch, ..Figures::default() };
        Made { config: configured(CONFIG, "g11").remove(0), status, figures }
    }

    fn idle() -> Made {
        let mut made = Made::busy();
        made.volume().requests = 0.1;
        made
    }

    fn volume(&mut self) -> &mut WatchedVolume {
        &mut self.figures.watch.volumes[0]
    }

    fn peer(&mut self) -> &mut WatchedPeer {
        &mut self.figures.watch.peers[0]
    }

    fn tcp(&mut self) -> &mut TcpFigures {
        self.figures.watch.peers[0].data.as_mut().unwrap()
    }

    fn findings(&self) -> Vec<Finding> {
        let Made { config, status, figures } = self;
        findings(&Case { config, status, volumes: &[VolumeNr(0)], figures })
    }

    /// The bottleneck, as `object: evidence`.
    fn bottleneck(&self) -> String {
        let all = self.findings();
        let bottlenecks: Vec<_> = all.iter().filter(|f| f.weight == Weight::Bottleneck).collect();
        assert!(
            bottlenecks.len() <= 1 && all.iter().skip(1).all(|f| f.weight > Weight::Bottleneck)
        );
        bottlenecks.first().map_or_else(String::new, |f| format!("{}: {}", f.object, f.evidence))
    }

    /// The other findings, as `object: evidence`.
    fn others(&self) -> Vec<String> {
        let others = self.findings().into_iter().filter(|f| f.weight != Weight::Bottleneck);
        others.map(|f| format!("{}: {}", f.object, f.evidence)).collect()
    }
}

fn thread(running: u64, waiting: u64) -> WatchedThread {
    WatchedThread { name: "shard0".to_owned(), running, waiting }
}

fn series(block: u32, per_second: u64, median: u64) -> Series {
    let (operations, nanoseconds) = (per_second, SECOND);
    Series { block, depth: 1, operations, nanoseconds, median, p99: 2 * median }
}

fn reads(per_second: u64) -> OfVolume<DiskReads> {
    let small = series(4096, per_second, SECOND / per_second);
    let figures = DiskReads {
        path: "/dev/vg/r0".to_owned(),
        direct: true,
        volatile_cache: true,
        allocated_percent: 100,
        sequential: series(128 << 10, 4000, 1_000_000),
        random: small,
        random_deep: series(4096, 20 * per_second, SECOND / per_second),
        flush: None,
    };
    OfVolume { volume: 0, figures }
}

fn writes(per_second: u64, flush: u64) -> OfVolume<DiskWrites> {
    let figures = DiskWrites {
        path: "/dev/vg/r0".to_owned(),
        direct: true,
        sequential: series(128 << 10, 4000, 1_000_000),
        random: series(4096, per_second, SECOND / per_second),
        random_deep: series(4096, 20 * per_second, SECOND / per_second),
        flush: series(4096, 100, flush),
    };
    OfVolume { volume: 0, figures }
}

fn network(there_mib: u64, back_mib: u64, trip: u64) -> OfPeer {
    let figures = Network {
        local: "10.0.0.1:0".parse().unwrap(),
        remote: "10.0.0.2:7099".parse().unwrap(),
        round_trip: series(4096, SECOND / trip, trip),
        to_peer: series(1, there_mib << 20, 0),
        from_peer: series(1, back_mib << 20, 0),
    };
    OfPeer { peer: "g12".to_owned(), figures }
}

#[test]
fn requests_wait_where_most_of_them_are() {
    // Nothing stands out.
    assert_eq!(Made::busy().bottleneck(), "");

    let mut made = Made::busy();
    made.volume().disk_writes = 7.5;
    made.volume().device = Some(WatchedDevice {
        name: "sda".to_owned(),
        writes: 500,
        write_ms: 37_500,
        ..WatchedDevice::default()
    });
    let found = made.bottleneck();
    assert!(
        found.starts_with("disk of g11 (/dev/vg/r0): of 8.0 requests in flight 7.5"),
        "{found}"
    );
    assert!(found.contains("sda did 0 reads/s at 0 ms, 100 writes/s at 75 ms"), "{found}");

    let mut made = Made::busy();
    made.volume().disk_flushes = 6.0;
    let remedy = &made.findings()[0].remedy;
    assert!(remedy.contains("without power"), "{remedy}");

    let mut made = Made::busy();
    made.volume().disk_metadata = 0.9;
    made.volume().disk_writes = 0.2;
    made.figures.watch.peers.iter_mut().for_each(|p| p.pending = vec![0.2]);
    assert!(made.bottleneck().starts_with("metadata of volume 0 on g11"), "{}", made.bottleneck());

    let mut made = Made::busy();
    made.figures.watch.threads = vec![thread(5 * SECOND - SECOND / 10, 0)];
    assert!(made.bottleneck().starts_with("thread shard0"), "{}", made.bottleneck());
}

#[test]
fn a_peers_disk_and_the_network_to_it_are_told_apart() {
    let waiting = || {
        let mut made = Made::busy();
        let peer = made.peer();
        (peer.pending, peer.pending_bytes) = (vec![7.8], 7.8 * 4096.0);
        made.tcp().acked_bytes = 5 << 20;
        made
    };
    // The data has arrived, and there is no answer.
    let found = waiting().bottleneck();
    assert!(
        found.starts_with("disk of g12: of 8.0 requests in flight 7.8 wait for g12"),
        "{found}"
    );

    let mut made = waiting();
    made.peer().unsent_bytes = 7.0 * 4096.0;
    let found = made.bottleneck();
    assert!(found.starts_with("network from g11 to g12"), "{found}");
    assert!(found.contains("90 % of the data that has no answer has not arrived"), "{found}");

    // It has not arrived because nobody there reads it.
    let mut made = waiting();
    made.peer().unsent_bytes = 7.0 * 4096.0;
    made.tcp().receiver_limited = SECOND * 6 / 10;
    assert!(made.bottleneck().starts_with("engine of g12"), "{}", made.bottleneck());

    // It does not leave because the socket's buffer is too small.
    let mut made = waiting();
    made.peer().unsent_bytes = 7.0 * 4096.0;
    made.tcp().buffer_limited = SECOND * 6 / 10;
    let remedy = &made.findings()[0].remedy;
    assert!(remedy.contains("sndbuf-size"), "{remedy}");

    // 32 KB at 1 MiB/s wait 30 ms, of which 20 are the way.
    let mut made = waiting();
    made.tcp().min_rtt = 20_000_000;
    let remedy = &made.findings()[0].remedy;
    assert!(remedy.contains("distance"), "{remedy}");

    // A client without a disk: nothing is sent that could say where reads wait.
    let mut made = waiting();
    made.peer().pending_bytes = 0.0;
    assert!(made.bottleneck().starts_with("reads from g12"), "{}", made.bottleneck());
}

#[test]
fn a_secondary_names_its_own_disk_and_who_sees_the_rest() {
    let mut made = Made::busy();
    made.status.role = Role::Secondary;
    let volume = made.volume();
    (volume.requests, volume.unanswered, volume.disk_writes) = (0.0, 6.0, 5.5);
    made.figures.watch.peers.iter_mut().for_each(|p| p.pending = vec![0.0]);
    made.status.connections[1].peer_role = Role::Primary;
    let findings = made.findings();
    let [only] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((only.weight, only.object.as_str()), (Weight::Note, "disk of g11 (/dev/vg/r0)"));
    assert!(only.remedy.contains("on g13, which writes"), "{only:?}");
    // Writes that wait for those before them and their flush count, too.
    let volume = made.volume();
    (volume.unanswered, volume.disk_writes, volume.disk_flushes) = (7.9, 2.6, 0.5);
    let found = made.findings();
    assert_eq!(found[0].object, "disk of g11 (/dev/vg/r0)", "{found:?}");
    assert!(found[0].evidence.contains("of 7.9 requests in flight 3.1 were in it"), "{found:?}");
    // The activity log holds them up if that is written.
    let volume = made.volume();
    (volume.disk_writes, volume.disk_flushes, volume.disk_metadata) = (0.0, 0.0, 1.0);
    assert_eq!(made.findings()[0].object, "metadata of volume 0 on g11");
}

#[test]
fn at_rest_the_slowest_part_that_was_measured_is_named() {
    // One part alone is not the slowest of anything.
    let mut made = Made::idle();
    made.figures.reads.push(reads(2300));
    assert_eq!(made.bottleneck(), "");

    made.figures.networks.push(network(1100, 1100, 60_000));
    let found = made.bottleneck();
    assert!(found.contains("a small write of r0 takes 435 us at least"), "{found}");
    assert!(found.contains("random 4 KiB read 2300/s"), "{found}");

    // Writes that were measured count, not the reads that stand in for them.
    made.figures.writes.push(writes(50_000, 100_000));
    let found = made.bottleneck();
    assert!(found.starts_with("network from g11 to g12: a small write"), "{found}");

    made.figures.networks = vec![network(1, 1, 60_000)];
    let found = made.bottleneck();
    let expected = "network from g11 to g12: large writes of r0 can not be faster than 1.0 MiB/s";
    assert!(found.starts_with(expected), "{found}");

    // Reads of a file without storage, or from memory, say nothing of the disk.
    for change in
        [|r: &mut DiskReads| r.direct = false, |r: &mut DiskReads| r.allocated_percent = 3]
    {
        let mut made = Made::idle();
        made.figures.networks.push(network(1100, 1100, 60_000));
        made.figures.reads.push(reads(100));
        change(&mut made.figures.reads[0].figures);
        assert_eq!(made.bottleneck(), "");
    }
}

#[test]
fn a_well_resource_has_no_findings() {
    let mut made = Made::busy();
    made.figures.reads.push(reads(2300));
    made.figures.writes.push(writes(2300, 100_000));
    made.figures.networks.push(network(1100, 1000, 60_000));
    assert_eq!(made.others(), [""; 0]);
}

/// Changes one thing and expects one finding that contains all of the words.
fn expect(change: impl FnOnce(&mut Made), words: &[&str]) {
    let mut made = Made::busy();
    change(&mut made);
    let others = made.others();
    let [only] = &others[..] else { panic!("{words:?}: {others:?}") };
    for word in words {
        assert!(only.contains(word), "{word}: {only}");
    }
}

#[test]
fn each_trouble_is_named_with_its_figures() {
    expect(|m| m.figures.machine.clock_source = "hpet".into(), &["clock source of g11", "hpet"]);
    expect(
        |m| m.figures.machine.governors = vec!["powersave (acpi-cpufreq)".into()],
        &["CPU governor of g11", "powersave"],
    );
    expect(
        |m| {
            m.figures.machine.unpinned_threads = 2;
            m.figures.machine.locked_memory_limit = Some(8 << 20);
        },
        &["locked memory of g11", "2 threads", "8192 KiB"],
    );
    expect(
        |m| m.figures.watch.threads = vec![thread(SECOND, 2 * SECOND)],
        &["thread shard0", "ran 20 %", "waited for a CPU 40 %"],
    );
    // 25,600 blocks of 4 KiB; the log holds 400 MiB.
    expect(
        |m| {
            m.volume().al_writes = 2560;
            m.status.devices[0].size = 1 << 20;
        },
        &["activity log of volume 0", "2560 transactions for 100 MiB", "10.0 for each", "1 GiB"],
    );
    expect(
        |m| m.status.connections[0].connection_state = ConnState::Connecting,
        &["connection to g12", "Connecting"],
    );
    expect(
        |m| m.status.connections[1].peer_devices[0].replication_state = ReplState::SyncSource,
        &["connection to g13", "volume 0 is SyncSource"],
    );
    expect(
        |m| m.config.peers[0].net.protocol = vocab::options::Protocol::A,
        &["connection to g12", "protocol A"],
    );
    expect(
        |m| m.tcp().resent_bytes = 1 << 20,
        &["network from g11 to g12", "1 MiB of 100 MiB were sent again (1.0 %)"],
    );
    expect(
        |m| m.tcp().buffer_limited = SECOND,
        &["send buffer was full for 1.0 s of 5.0 s", "2048 KiB"],
    );
    expect(|m| m.tcp().receiver_limited = SECOND, &["g12 had no room to receive for 1.0 s"]);
    expect(
        |m| (m.tcp().path_mtu, m.tcp().segment) = (1400, 1348),
        &["packets of 1400 bytes fit the path, 1500"],
    );
    expect(
        |m| (m.tcp().path_mtu, m.tcp().advertised_segment) = (9000, 8960),
        &["g12 takes segments of 1448 bytes, this node of 8960"],
    );
    expect(
        |m| m.peer().ping = Some(80_000_000),
        &["engine of g12", "80 ms", "round trip of 100 us"],
    );
    expect(
        |m| m.figures.networks.push(network(1000, 90, 60_000)),
        &["network between g11 and g12", "1000 MiB/s to g12, and 90.0 MiB/s back"],
    );
}

#[test]
fn flushes_are_judged_by_what_the_disk_says_of_its_cache() {
    let disk = |flushes: bool, volatile: bool, flush: u64| {
        let mut made = Made::busy();
        let backing = made.config.volumes[0].backing.as_mut().unwrap();
        backing.options.disk_flushes = flushes;
        made.figures.reads.push(reads(2300));
        made.figures.reads[0].figures.volatile_cache = volatile;
        made.figures.writes.push(writes(2300, flush));
        made.findings()
    };
    let [danger] = &disk(false, true, 100_000)[..] else { panic!("one finding") };
    assert_eq!(
        (danger.weight, danger.object.as_str()),
        (Weight::Danger, "disk of g11 (/dev/vg/r0)")
    );
    assert_eq!(disk(false, false, 9_000_000), []);
    let [slow] = &disk(true, true, 9_000_000)[..] else { panic!("one finding") };
    assert!(slow.evidence.contains("a flush takes 9.00 ms"), "{slow:?}");
    assert_eq!(disk(true, true, 1_000_000), []);
    assert_eq!(disk(true, false, 9_000_000), []);
}

#[test]
fn what_is_as_it_should_be_is_not_a_finding() {
    let calm: [fn(&mut Made); 8] = [
        // Governed by the processor itself.
        |m| m.figures.machine.governors = vec!["powersave (intel_pstate)".into()],
        // An idle thread that waits now and then.
        |m| m.figures.watch.threads = vec![thread(SECOND / 10, 2 * SECOND)],
        // A log that holds the whole volume, filling.
        |m| {
            m.volume().al_writes = 2560;
            m.status.devices[0].size = 400 << 10;
        },
        // Too little was written to say.
        |m| {
            (m.volume().al_writes, m.volume().written_kib) = (100, 400);
            m.status.devices[0].size = 1 << 20;
        },
        // Loopback.
        |m| (m.tcp().path_mtu, m.tcp().segment, m.tcp().advertised_segment) = (65536, 32741, 65496),
        // Jumbo frames on both sides.
        |m| (m.tcp().path_mtu, m.tcp().segment, m.tcp().advertised_segment) = (9000, 8948, 8960),
        // A slow answer over a long way.
        |m| (m.peer().ping, m.tcp().rtt) = (Some(25_000_000), 24_000_000),
        // A single packet sent again.
        |m| m.tcp().resent_bytes = 1448,
    ];
    for (nr, change) in calm.into_iter().enumerate() {
        let mut made = Made::busy();
        change(&mut made);
        assert_eq!(made.others(), [""; 0], "{nr}");
    }
}

#[test]
fn text_has_figures_then_what_is_missing_then_findings() {
    let mut made = Made::idle();
    made.figures.reads.push(reads(2300));
    made.figures.networks.push(network(1100, 1100, 60_000));
    made.status.connections[1].connection_state = ConnState::Connecting;
    made.figures.watch.peers[1].data = None;
    let examination = Examination {
        resource: "r0".to_owned(),
        node: "g11".to_owned(),
        role: "Primary".to_owned(),
        peers: [(1, "g12".to_owned()), (2, "g13".to_owned())].into(),
        findings: made.findings(),
        figures: made.figures,
        missing: vec![Missing { what: "network to g13".to_owned(), why: "no answer".to_owned() }],
    };
    let expected = "\
r0 on g11 (Primary)

Measured                                   throughput   per second      median        99 %
  g12: 4 KiB there, an answer back         65.1 MiB/s        16666       60 us      120 us
  g12: stream there                        1100 MiB/s
  g12: stream from there                   1100 MiB/s
  disk 0: sequential read, 128 KiB          500 MiB/s         4000     1.00 ms     2.00 ms
  disk 0: random read, 4 KiB, depth 1       9.0 MiB/s         2300      435 us      870 us
  disk 0: random read, 4 KiB, depth 32      180 MiB/s        46000      435 us      870 us

Seen in 5.0 s
  volume 0: 0.1 requests in flight, 0.0 of peers; 0 KiB/s read, 20.0 MiB/s written, 0.0 log transactions/s
    in the disk 0.0 reads, 2.0 writes, 0.0 flushes, 0.0 metadata
  g12: 2.5 requests wait for it; 20.0 MiB/s there, 0 KiB/s back
    round trip 100 us (shortest 50 us), path MTU 1500, 0 B sent again, last ping 200 us
  g13: not connected
  thread shard0: on a CPU 20 %, waiting for one 0 %

Not measured
  network to g13: no answer

Findings
  1. bottleneck: disk of g11 (/dev/vg/r0)
     why:  a small write of r0 takes 435 us at least: random 4 KiB read 2300/s at depth 1; it is idle now
     next: of what was measured this is the slowest; if it is fast enough, look under load
  2. note: connection to g13
     why:  it is Connecting, so nothing of it was measured
     next: `ashlar why r0`
";
    assert_eq!(render(&examination), expected);
    let json = serde_json::to_value(&examination).unwrap();
    assert_eq!(json["findings"][0]["weight"], "bottleneck");
    assert_eq!(json["figures"]["networks"][0]["peer"], "g12");
    assert_eq!(json["figures"]["reads"][0]["random"]["operations"], 2300);
}

#[test]
fn times_and_rates_are_short() {
    let times =
        [(12.0, "12 ns"), (1234.0, "1.2 us"), (43_210.0, "43 us"), (1_234_567.0, "1.23 ms")];
    let long = [(45_600_000.0, "46 ms"), (2_500_000_000.0, "2.5 s"), (f64::INFINITY, "unknown")];
    for (ns, text) in times.into_iter().chain(long) {
        assert_eq!(time(ns), text);
    }
    for (bytes, text) in [(2048.0, "2 KiB/s"), (5e6, "4.8 MiB/s"), (5e8, "477 MiB/s")] {
        assert_eq!(rate(bytes), text);
    }
}
