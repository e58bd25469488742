//! Which part a resource waits for.
//!
//! Under load, requests in flight are counted where they are: by Little's law the part that holds
//! the most of them is the one they spend their time in, and no request has to be timed. At rest
//! the parts that were measured are compared: a replicated write is as slow as the slowest.

use codec::admin::{Series, WatchedPeer, WatchedVolume};
use codec::config::PeerConfig;
use vocab::{Role, VolumeNr};

use super::render::{rate, time};
use super::{Case, Finding, Weight};

/// Requests in flight on average from which there is load worth judging.
const LOAD: f64 = 0.5;
/// Share of a thread's time from which it counts as saturated.
const SATURATED: f64 = 0.9;
/// Share of the requests in flight that makes a part the one they wait for.
const MOST: f64 = 0.4;

/// The part that limits the resource, as far as figures tell.
pub(super) fn bottleneck(case: &Case<'_>) -> Option<Finding> {
    let watched = case.figures.watch.volumes.iter().filter(|v| case.volumes.contains(&v.volume));
    let busiest = watched.max_by(|a, b| load(a).total_cmp(&load(b)));
    match busiest {
        Some(volume) if load(volume) >= LOAD => {
            let found = saturated_thread(case).or_else(|| under_load(case, volume));
            let writer = writer(case).filter(|_| volume.requests < LOAD);
            found.map(|finding| match writer {
                Some(writer) => seen_from_a_secondary(case, finding, writer),
                None => finding,
            })
        }
        _ => at_rest(case),
    }
}

/// The node that writes, if that is another one.
fn writer<'a>(case: &'a Case<'_>) -> Option<&'a str> {
    let primary = case.status.connections.iter().find(|c| c.peer_role == Role::Primary);
    primary.map(|connection| connection.name.as_str())
}

/// A Secondary sees where writes are that have reached it, not what kept them from coming.
fn seen_from_a_secondary(case: &Case<'_>, finding: Finding, writer: &str) -> Finding {
    let remedy = format!(
        "run `ashlar doctor {}` on {writer}, which writes: only there all parts are seen; if it names \
         this one, {}",
        case.config.name, finding.remedy
    );
    let evidence = format!("most of what has come here and waits is there: {}", finding.evidence);
    Finding { weight: Weight::Note, evidence, remedy, ..finding }
}

fn load(volume: &WatchedVolume) -> f64 {
    volume.requests.max(volume.unanswered)
}

/// The engine's thread of this resource, if it has no time left.
fn saturated_thread(case: &Case<'_>) -> Option<Finding> {
    let watch = &case.figures.watch;
    let thread = watch.threads.iter().find(|t| t.name == watch.thread)?;
    let share = thread.running as f64 / watch.nanoseconds.max(1) as f64;
    (share >= SATURATED).then(|| Finding {
        weight: Weight::Bottleneck,
        object: format!("thread {} of the engine on {}", thread.name, case.config.host),
        evidence: format!("it used {:.0} % of a CPU, and requests wait meanwhile", share * 100.0),
        remedy:
            "a resource is served by one thread: spread volumes over several resources, give the \
                 engine more threads, or use a faster CPU"
                .to_owned(),
    })
}

/// Where the requests of a volume are.
enum Place<'a> {
    Disk,
    Metadata,
    Peer(&'a PeerConfig, &'a WatchedPeer),
}

fn under_load(case: &Case<'_>, volume: &WatchedVolume) -> Option<Finding> {
    let all = load(volume);
    let position = case.status.devices.iter().position(|d| d.volume == volume.volume)?;
    let in_disk = volume.disk_writes + volume.disk_reads + volume.disk_flushes;
    // Writes of a peer wait for those that they must not overtake, and for the flush behind them:
    // while a disk is at work on these, the others are nowhere else.
    let behind_them = volume.requests < LOAD && in_disk >= volume.disk_metadata.max(LOAD);
    let mut places = vec![(if behind_them { all } else { in_disk }, Place::Disk)];
    for peer in &case.figures.watch.peers {
        let config = case.config.peers.iter().find(|p| p.node_id == peer.peer);
        if let (Some(config), Some(pending)) = (config, peer.pending.get(position)) {
            places.push((*pending, Place::Peer(config, peer)));
        }
    }
    // One transaction holds up many writes, which are nowhere else meanwhile.
    if volume.disk_metadata >= LOAD && places.iter().all(|(n, _)| *n < MOST * all) {
        places.push((all, Place::Metadata));
    }
    let (here, place) = places.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    if here < MOST * all {
        return None;
    }
    let of = format!("of {all:.1} requests in flight {here:.1}");
    Some(match place {
        Place::Disk => {
            local_disk(case, volume, &format!("of {all:.1} requests in flight {in_disk:.1}"))
        }
        Place::Metadata => metadata(case, volume),
        Place::Peer(config, peer) => at_peer(case, config, peer, &of),
    })
}

fn disk_path(case: &Case<'_>, nr: VolumeNr) -> String {
    let volume = case.config.volumes.iter().find(|v| v.nr == nr);
    volume.and_then(|v| v.backing.as_ref()).map_or_else(String::new, |b| format!(" ({})", b.disk))
}

fn local_disk(case: &Case<'_>, volume: &WatchedVolume, of: &str) -> Finding {
    let seconds = case.figures.watch.nanoseconds.max(1) as f64 / 1e9;
    let mut evidence = format!(
        "{of} were in it, {:.1} of them flushes; {} read and {} written",
        volume.disk_flushes,
        rate(volume.read_kib as f64 * 1024.0 / seconds),
        rate(volume.written_kib as f64 * 1024.0 / seconds)
    );
    if let Some(device) = &volume.device {
        evidence += &format!(
            "; {} did {:.0} reads/s at {}, {:.0} writes/s at {}, {:.0} flushes/s at {}",
            device.name,
            device.reads as f64 / seconds,
            each(device.read_ms, device.reads),
            device.writes as f64 / seconds,
            each(device.write_ms, device.writes),
            device.flushes as f64 / seconds,
            each(device.flush_ms, device.flushes),
        );
    }
    let remedy = if volume.disk_flushes > volume.disk_writes + volume.disk_reads {
        "flushes take the time: a disk or controller whose cache keeps its content without power"
    } else {
        "a faster disk; if others use it too, give the volume one of its own"
    };
    Finding {
        weight: Weight::Bottleneck,
        object: format!("disk of {}{}", case.config.host, disk_path(case, volume.volume)),
        evidence,
        remedy: remedy.to_owned(),
    }
}

/// The mean time of operations.
fn each(ms: u64, operations: u64) -> String {
    if operations == 0 { "0 ms".to_owned() } else { time(ms as f64 * 1e6 / operations as f64) }
}

fn metadata(case: &Case<'_>, volume: &WatchedVolume) -> Finding {
    let seconds = case.figures.watch.nanoseconds.max(1) as f64 / 1e9;
    Finding {
        weight: Weight::Bottleneck,
        object: format!("metadata of volume {} on {}", volume.volume, case.config.host),
        evidence: format!(
            "{:.1} writes of metadata were in flight, {:.0} activity log transactions/s, while {:.1} \
             requests waited",
            volume.disk_metadata,
            volume.al_writes as f64 / seconds,
            volume.requests
        ),
        remedy: "raise al-extents, or put the metadata on a faster disk (meta-disk)".to_owned(),
    }
}

/// Requests wait for a peer: for the network to it, or for what is behind it.
fn at_peer(case: &Case<'_>, config: &PeerConfig, peer: &WatchedPeer, of: &str) -> Finding {
    let seconds = case.figures.watch.nanoseconds.max(1) as f64 / 1e9;
    let (here, there) = (&case.config.host, &config.name);
    let tcp = peer.data.unwrap_or_default();
    let acked = tcp.acked_bytes as f64 / seconds;
    let unsent = peer.unsent_bytes / peer.pending_bytes.max(1.0);
    // By Little's law: what waits, by what passes in a second.
    let wait = if acked > 0.0 { peer.pending_bytes / acked * 1e9 } else { f64::INFINITY };
    let window = tcp.receiver_limited as f64 / tcp.busy.max(1) as f64;
    let buffer = tcp.buffer_limited as f64 / tcp.busy.max(1) as f64;
    let figures = format!(
        "{of} wait for {there}; {} went to it, round trip {} (shortest {}), {} sent again",
        rate(acked),
        time(tcp.rtt as f64),
        time(tcp.min_rtt as f64),
        rate(tcp.resent_bytes as f64 / seconds),
    );
    let finding = |object: String, evidence: String, remedy: &str| Finding {
        weight: Weight::Bottleneck,
        object,
        evidence,
        remedy: remedy.to_owned(),
    };
    let network = format!("network from {here} to {there}");
    if peer.pending_bytes < 1.0 {
        // Reads: what they wait for leaves no trace on this side.
        let remedy =
            format!("run `ashlar doctor {}` on {there}: it reads that disk", case.config.name);
        return finding(format!("reads from {there}"), figures, &remedy);
    }
    if tcp.min_rtt as f64 >= wait / 2.0 {
        let evidence = format!("{figures}: about {} until an answer", time(wait));
        let remedy = "the distance takes the time: keep more requests in flight, shorten the path, or, \
                      if the last writes may be lost with a node, protocol A";
        return finding(network, evidence, remedy);
    }
    if unsent >= 0.5 && window >= 0.5 {
        let evidence =
            format!("{figures}; {:.0} % of the time it had no room to receive", window * 100.0);
        let remedy =
            "its engine does not keep up: look at its CPU there, and raise rcvbuf-size if set";
        return finding(format!("engine of {there}"), evidence, remedy);
    }
    if unsent >= 0.5 && buffer >= 0.5 {
        let evidence = format!(
            "{figures}; {:.0} % of the time the send buffer of {} KiB was full",
            buffer * 100.0,
            tcp.send_buffer >> 10
        );
        return finding(network, evidence, "raise sndbuf-size, or leave it to the kernel (0)");
    }
    if unsent >= 0.5 {
        let evidence = format!(
            "{figures}; {:.0} % of the data that has no answer has not arrived there",
            unsent.min(1.0) * 100.0
        );
        let remedy = "a faster network, or one that carries nothing else; measure it without load: \
                      `ashlar doctor --serve` on the peer and `ashlar doctor` here";
        return finding(network, evidence, remedy);
    }
    let evidence = format!(
        "{figures}; all but {:.0} % of the data that has no answer has arrived there, so it waits for \
         the disk, or for a CPU",
        unsent * 100.0
    );
    let remedy = format!(
        "run `ashlar doctor {}` on {there}: it looks at that disk and those threads",
        case.config.name
    );
    finding(format!("disk of {there}"), evidence, &remedy)
}

/// A part that was measured, as far as a write has to pass it.
struct Part {
    object: String,
    /// How long it takes for a small write, in nanoseconds.
    small: Option<(f64, String)>,
    /// How much it moves, bytes per second.
    large: Option<(f64, String)>,
}

fn bytes_per_second(series: &Series) -> Option<f64> {
    let bytes = series.per_second() * f64::from(series.block);
    (bytes > 0.0).then_some(bytes)
}

/// Nothing goes on: compares what was measured.
fn at_rest(case: &Case<'_>) -> Option<Finding> {
    let figures = case.figures;
    let mut parts = Vec::new();
    for disk in &figures.writes {
        let writes = &disk.figures;
        let (random, streamed) = (writes.random, bytes_per_second(&writes.sequential));
        parts.push(Part {
            object: format!("disk of {} ({})", case.config.host, writes.path),
            small: (random.median > 0).then(|| {
                let text = "random 4 KiB write";
                (random.median as f64, format!("{text} {:.0}/s at depth 1", random.per_second()))
            }),
            large: streamed.map(|bytes| (bytes, "sequential write".to_owned())),
        });
    }
    for disk in &figures.reads {
        let reads = &disk.figures;
        let trusted = reads.direct && reads.allocated_percent >= 50;
        if !trusted || figures.writes.iter().any(|w| w.volume == disk.volume) {
            continue;
        }
        // Reads stand in for writes that were not measured.
        let (random, streamed) = (reads.random, bytes_per_second(&reads.sequential));
        parts.push(Part {
            object: format!("disk of {} ({})", case.config.host, reads.path),
            small: (random.median > 0).then(|| {
                let text = "random 4 KiB read";
                (random.median as f64, format!("{text} {:.0}/s at depth 1", random.per_second()))
            }),
            large: streamed.map(|bytes| (bytes, "sequential read".to_owned())),
        });
    }
    for network in &figures.networks {
        let measured = &network.figures;
        let trip = measured.round_trip.median;
        parts.push(Part {
            object: format!("network from {} to {}", case.config.host, network.peer),
            small: (trip > 0).then(|| (trip as f64, "4 KiB there and an answer back".to_owned())),
            large: bytes_per_second(&measured.to_peer).map(|b| (b, "one TCP stream".to_owned())),
        });
    }
    slowest(case, &parts)
}

/// The part that is furthest behind the others, in time for small writes or in throughput.
fn slowest(case: &Case<'_>, parts: &[Part]) -> Option<Finding> {
    let mut small: Vec<(f64, &str, &str)> = parts
        .iter()
        .filter_map(|p| p.small.as_ref().map(|(ns, how)| (*ns, p.object.as_str(), how.as_str())))
        .collect();
    let mut large: Vec<(f64, &str, &str)> = parts
        .iter()
        .filter_map(|p| p.large.as_ref().map(|(b, how)| (*b, p.object.as_str(), how.as_str())))
        .collect();
    small.sort_by(|a, b| b.0.total_cmp(&a.0));
    large.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Nothing can be said of the slowest of one.
    let (slow, lag) = match small[..] {
        [first, second, ..] => (Some(first), first.0 / second.0),
        _ => (None, 0.0),
    };
    let (narrow, narrowness) = match large[..] {
        [first, second, ..] => (Some(first), second.0 / first.0),
        _ => (None, 0.0),
    };
    let secondary = case.status.role != Role::Primary;
    let note =
        if secondary { "; nothing is written through this node now" } else { "; it is idle now" };
    let finding = |object: &str, evidence: String, remedy: &str| Finding {
        weight: Weight::Bottleneck,
        object: object.to_owned(),
        evidence: evidence + note,
        remedy: remedy.to_owned(),
    };
    let name = &case.config.name;
    match (slow, narrow) {
        (Some((ns, object, how)), _) if lag >= narrowness => {
            let evidence = format!("a small write of {name} takes {} at least: {how}", time(ns));
            let remedy =
                "of what was measured this is the slowest; if it is fast enough, look under load";
            Some(finding(object, evidence, remedy))
        }
        (_, Some((bytes, object, how))) => {
            let evidence =
                format!("large writes of {name} can not be faster than {}: {how}", rate(bytes));
            let remedy =
                "of what was measured this is the slowest; if it is fast enough, look under load";
            Some(finding(object, evidence, remedy))
        }
        _ => None,
    }
}
