//! An examination as text: the figures, what is missing, the findings.

use std::fmt::Write as _;

use codec::admin::{Series, WatchedPeer, WatchedVolume};
use vocab::Bytes;

use super::{Examination, Finding, Weight};

/// Nanoseconds as a person reads them.
pub(super) fn time(ns: f64) -> String {
    match ns {
        ns if !ns.is_finite() => "unknown".to_owned(),
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e4 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e6 => format!("{:.0} us", ns / 1e3),
        ns if ns < 1e7 => format!("{:.2} ms", ns / 1e6),
        ns if ns < 1e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// Bytes per second as a person reads them.
pub(super) fn rate(bytes: f64) -> String {
    match bytes / f64::from(1 << 20) {
        mib if mib < 0.1 => format!("{:.0} KiB/s", bytes / 1024.0),
        mib if mib < 100.0 => format!("{mib:.1} MiB/s"),
        mib => format!("{mib:.0} MiB/s"),
    }
}

/// The examination as text.
pub(in super::super) fn render(e: &Examination) -> String {
    let mut out = format!("{} on {} ({})\n", e.resource, e.node, e.role);
    measured(e, &mut out);
    watched(e, &mut out);
    if !e.missing.is_empty() {
        out.push_str("\nNot measured\n");
    }
    for missing in &e.missing {
        let _ = writeln!(out, "  {}: {}", missing.what, missing.why);
    }
    out.push_str("\nFindings\n");
    if e.findings.is_empty() {
        out.push_str("  Nothing that limits it was found.\n");
    }
    for (nr, finding) in e.findings.iter().enumerate() {
        write_finding(nr + 1, finding, &mut out);
    }
    out
}

fn write_finding(nr: usize, finding: &Finding, out: &mut String) {
    let word = match finding.weight {
        Weight::Bottleneck => "bottleneck: ",
        Weight::Danger => "danger: ",
        Weight::Slow => "",
        Weight::Note => "note: ",
    };
    let _ = writeln!(out, "  {nr}. {word}{}", finding.object);
    let _ = writeln!(out, "     why:  {}", finding.evidence);
    let _ = writeln!(out, "     next: {}", finding.remedy);
}

const HEAD: &str = "throughput   per second      median        99 %";

fn row(name: &str, series: &Series, out: &mut String) {
    if series.operations == 0 {
        return;
    }
    let throughput = match series.block {
        0 => String::new(),
        block => rate(series.per_second() * f64::from(block)),
    };
    let (each, median, p99) = match series.block {
        // A stream: its bytes are no operations.
        1 => (String::new(), String::new(), String::new()),
        _ => (
            format!("{:.0}", series.per_second()),
            time(series.median as f64),
            time(series.p99 as f64),
        ),
    };
    let line = format!("  {name:<38} {throughput:>12} {each:>12} {median:>11} {p99:>11}");
    let _ = writeln!(out, "{}", line.trim_end());
}

fn measured(e: &Examination, out: &mut String) {
    let figures = &e.figures;
    if figures.reads.is_empty() && figures.writes.is_empty() && figures.networks.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{:<39} {HEAD:>50}", "Measured");
    for network in &figures.networks {
        let peer = &network.peer;
        row(&format!("{peer}: 4 KiB there, an answer back"), &network.figures.round_trip, out);
        row(&format!("{peer}: stream there"), &network.figures.to_peer, out);
        row(&format!("{peer}: stream from there"), &network.figures.from_peer, out);
    }
    for disk in &figures.reads {
        let (nr, reads) = (disk.volume, &disk.figures);
        row(&format!("disk {nr}: sequential read, 128 KiB"), &reads.sequential, out);
        row(&format!("disk {nr}: random read, 4 KiB, depth 1"), &reads.random, out);
        row(&format!("disk {nr}: random read, 4 KiB, depth 32"), &reads.random_deep, out);
        if let Some(flush) = &reads.flush {
            row(&format!("disk {nr}: flush of nothing"), &Series { block: 0, ..*flush }, out);
        }
        if !reads.direct {
            let _ = writeln!(out, "  disk {nr}: {} is read through the page cache", reads.path);
        }
        if reads.allocated_percent < 90 {
            let share = reads.allocated_percent;
            let _ = writeln!(
                out,
                "  disk {nr}: {share} % of {} has storage; the rest reads fast",
                reads.path
            );
        }
    }
    for disk in &figures.writes {
        let (nr, writes) = (disk.volume, &disk.figures);
        row(&format!("disk {nr}: sequential write, 128 KiB"), &writes.sequential, out);
        row(&format!("disk {nr}: random write, 4 KiB, depth 1"), &writes.random, out);
        row(&format!("disk {nr}: random write, 4 KiB, depth 32"), &writes.random_deep, out);
        row(&format!("disk {nr}: flush after a write"), &Series { block: 0, ..writes.flush }, out);
    }
}

fn watched(e: &Examination, out: &mut String) {
    let watch = &e.figures.watch;
    let seconds = watch.nanoseconds as f64 / 1e9;
    let _ = writeln!(out, "\nSeen in {seconds:.1} s");
    for volume in &watch.volumes {
        write_volume(volume, seconds, out);
    }
    for peer in &watch.peers {
        let connection = e.peers.get(&peer.peer.get()).map_or("?", String::as_str);
        write_peer(connection, peer, seconds, out);
    }
    if let Some(thread) = watch.threads.iter().find(|t| t.name == watch.thread) {
        let share = |ns: u64| 100.0 * ns as f64 / watch.nanoseconds.max(1) as f64;
        let (running, waiting) = (share(thread.running), share(thread.waiting));
        let name = &thread.name;
        let _ = writeln!(
            out,
            "  thread {name}: on a CPU {running:.0} %, waiting for one {waiting:.0} %"
        );
    }
}

fn write_volume(volume: &WatchedVolume, seconds: f64, out: &mut String) {
    let per_second = |kib: u64| rate(kib as f64 * 1024.0 / seconds.max(1e-9));
    let _ = writeln!(
        out,
        "  volume {}: {:.1} requests in flight, {:.1} of peers; {} read, {} written, {:.1} log \
         transactions/s\n    in the disk {:.1} reads, {:.1} writes, {:.1} flushes, {:.1} metadata",
        volume.volume,
        volume.requests,
        volume.unanswered,
        per_second(volume.read_kib),
        per_second(volume.written_kib),
        volume.al_writes as f64 / seconds.max(1e-9),
        volume.disk_reads,
        volume.disk_writes,
        volume.disk_flushes,
        volume.disk_metadata,
    );
    if let Some(device) = &volume.device {
        let mean = |ms: u64, n: u64| time(ms as f64 * 1e6 / n.max(1) as f64);
        let _ = writeln!(
            out,
            "    device {}: {} reads ({} each), {} writes ({}), {} flushes ({}), busy {:.0} %",
            device.name,
            device.reads,
            mean(device.read_ms, device.reads),
            device.writes,
            mean(device.write_ms, device.writes),
            device.flushes,
            mean(device.flush_ms, device.flushes),
            device.busy_ms as f64 / seconds.max(1e-9) / 10.0
        );
    }
}

fn write_peer(name: &str, peer: &WatchedPeer, seconds: f64, out: &mut String) {
    let Some(tcp) = &peer.data else {
        let _ = writeln!(out, "  {name}: not connected");
        return;
    };
    let per_second = |bytes: u64| rate(bytes as f64 / seconds.max(1e-9));
    let pending: f64 = peer.pending.iter().sum();
    let _ = writeln!(
        out,
        "  {name}: {pending:.1} requests wait for it; {} there, {} back\n    round trip {} (shortest {}), \
         path MTU {}, {} sent again{}",
        per_second(tcp.acked_bytes),
        per_second(tcp.received_bytes),
        time(tcp.rtt as f64),
        time(tcp.min_rtt as f64),
        tcp.path_mtu,
        Bytes(tcp.resent_bytes),
        peer.ping.map_or_else(String::new, |ns| format!(", last ping {}", time(ns as f64)))
    );
}
