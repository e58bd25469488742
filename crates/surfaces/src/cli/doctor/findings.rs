//! What else costs speed or safety: one function for each kind of trouble, each from figures alone.

use codec::admin::WatchedVolume;
use vocab::options::Protocol;
use vocab::{Bytes, ConnState, ReplState, VolumeNr};

use super::bottleneck::bottleneck;
use super::render::{rate, time};
use super::{Case, Finding, Weight};

/// Bytes of an extent of the activity log.
const EXTENT: u64 = 4 << 20;
/// Activity log transactions for each 100 blocks of 4 KiB written from which there are many.
const AL_MANY: f64 = 3.0;
/// Data written below which nothing is said of the activity log, in KiB.
const AL_WRITTEN: u64 = 4096;
/// A flush that takes longer waits for a platter or for flash without a protected cache, in ns.
const FLUSH_SLOW: f64 = 2e6;
/// Headers of IPv4 and TCP with timestamps, in bytes, and some more for options.
const HEADERS: u32 = 40;
const OPTIONS: u32 = 40;
/// Largest packet of Ethernet. Loopback has larger ones, of which nothing follows.
const JUMBO: u32 = 9216;
/// Clock sources that cost a system call or more for each look at the time.
const SLOW_CLOCKS: [&str; 5] = ["hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"];

/// Everything worth knowing, the bottleneck first.
pub(super) fn findings(case: &Case<'_>) -> Vec<Finding> {
    let mut all: Vec<Finding> = bottleneck(case).into_iter().collect();
    machine(case, &mut all);
    threads(case, &mut all);
    for volume in case.figures.watch.volumes.iter().filter(|v| case.volumes.contains(&v.volume)) {
        activity_log(case, volume, &mut all);
    }
    flushes(case, &mut all);
    connections(case, &mut all);
    sockets(case, &mut all);
    all.sort_by_key(|finding| finding.weight);
    all
}

fn add(all: &mut Vec<Finding>, weight: Weight, object: String, evidence: String, remedy: &str) {
    all.push(Finding { weight, object, evidence, remedy: remedy.to_owned() });
}

fn machine(case: &Case<'_>, all: &mut Vec<Finding>) {
    let (machine, host) = (&case.figures.machine, &case.config.host);
    if SLOW_CLOCKS.contains(&machine.clock_source.as_str()) {
        let evidence = format!("it is {}, which is slow to read", machine.clock_source);
        let remedy = "find out why the kernel gave up its better one (`dmesg | grep -i clocksource`): \
                      often firmware, or a virtual machine without kvm-clock";
        add(all, Weight::Slow, format!("clock source of {host}"), evidence, remedy);
    }
    // Drivers of whole processors govern the frequency themselves whatever the word.
    let slow = |governor: &&String| {
        let own = ["(intel_pstate)", "(amd-pstate", "(amd-pstate-epp)"];
        ["powersave ", "conservative "].iter().any(|word| governor.starts_with(word))
            && !own.iter().any(|driver| governor.contains(driver))
    };
    if let Some(governor) = machine.governors.iter().find(slow) {
        let evidence = format!("it is {governor}: CPUs stay slow while they are woken often");
        let remedy = "`cpupower frequency-set -g performance`";
        add(all, Weight::Slow, format!("CPU governor of {host}"), evidence, remedy);
    }
    if machine.unpinned_threads > 0 {
        let limit = match machine.locked_memory_limit {
            Some(bytes) => format!("{} KiB", bytes >> 10),
            None => "none".to_owned(),
        };
        let evidence = format!(
            "{} threads could not pin all of their buffers; the limit is {limit}",
            machine.unpinned_threads
        );
        let remedy = "raise it (LimitMEMLOCK= of the unit, `ulimit -l`), then restart the engine: \
                      transfers cost a little less CPU time";
        add(all, Weight::Note, format!("locked memory of {host}"), evidence, remedy);
    }
}

fn threads(case: &Case<'_>, all: &mut Vec<Finding>) {
    let watch = &case.figures.watch;
    let Some(thread) = watch.threads.iter().find(|t| t.name == watch.thread) else { return };
    let share = |ns: u64| ns as f64 / watch.nanoseconds.max(1) as f64;
    let (running, waiting) = (share(thread.running), share(thread.waiting));
    // Who hardly works does not suffer from waiting.
    if waiting >= 0.2 && running >= 0.1 {
        let evidence = format!(
            "it ran {:.0} % of the time and waited for a CPU {:.0} %",
            running * 100.0,
            waiting * 100.0
        );
        let remedy = "other processes take its CPU: move them, give the engine CPUs of its own \
                      (CPUAffinity=, cpuset) or a higher weight";
        let object = format!("thread {} of the engine on {}", thread.name, case.config.host);
        add(all, Weight::Slow, object, evidence, remedy);
    }
}

fn activity_log(case: &Case<'_>, volume: &WatchedVolume, all: &mut Vec<Finding>) {
    let blocks = volume.written_kib as f64 / 4.0;
    let config = case.config.volumes.iter().find(|v| v.nr == volume.volume);
    let device = case.status.devices.iter().find(|d| d.volume == volume.volume);
    let (Some(backing), Some(device)) = (config.and_then(|v| v.backing.as_ref()), device) else {
        return;
    };
    let extents = u64::from(backing.options.al_extents);
    let held = extents * EXTENT;
    let many = 100.0 * volume.al_writes as f64 / blocks.max(1.0);
    // A log that holds all of the volume has to fill once, and a larger one would not help.
    if volume.written_kib < AL_WRITTEN || many < AL_MANY || held >= device.size << 10 {
        return;
    }
    let evidence = format!(
        "{} transactions for {} written, {many:.1} for each 100 blocks of 4 KiB; it holds {extents} \
         extents, {}, and the volume has {}",
        volume.al_writes,
        Bytes(volume.written_kib << 10),
        Bytes(held),
        Bytes(device.size << 10)
    );
    let remedy = "what is written in a while is larger than that: raise al-extents (up to 65534; a \
                  crash then costs a longer resync), `ashlar adjust`";
    let object = format!("activity log of volume {} on {}", volume.volume, case.config.host);
    add(all, Weight::Slow, object, evidence, remedy);
}

fn flushes(case: &Case<'_>, all: &mut Vec<Finding>) {
    for disk in &case.figures.reads {
        let nr = VolumeNr(disk.volume);
        let config = case.config.volumes.iter().find(|v| v.nr == nr);
        let Some(backing) = config.and_then(|v| v.backing.as_ref()) else { continue };
        let on = backing.options.disk_flushes && backing.options.md_flushes;
        let volatile = disk.figures.volatile_cache;
        if !on && volatile {
            let evidence = "disk-flushes or md-flushes is off, and the disk says that it may lose what \
                            was written without a flush";
            let remedy = "turn both on, unless the cache of disk or controller has a battery and only \
                          says otherwise";
            let object = format!("disk of {} ({})", case.config.host, disk.figures.path);
            add(all, Weight::Danger, object, evidence.to_owned(), remedy);
        }
        let writes = case.figures.writes.iter().find(|w| w.volume == disk.volume);
        let flush = writes.map(|w| w.figures.flush).or(disk.figures.flush);
        if let Some(flush) = flush.filter(|f| on && volatile && f.median as f64 >= FLUSH_SLOW) {
            let evidence = format!(
                "a flush takes {} (99 %: {})",
                time(flush.median as f64),
                time(flush.p99 as f64)
            );
            let remedy = "a disk whose cache keeps its content without power (write_cache `write \
                          through` in sysfs) needs none; on others every epoch waits for one";
            let object =
                format!("flushes of the disk of {} ({})", case.config.host, disk.figures.path);
            add(all, Weight::Slow, object, evidence, remedy);
        }
    }
}

fn connections(case: &Case<'_>, all: &mut Vec<Finding>) {
    for connection in &case.status.connections {
        let object = format!("connection to {}", connection.name);
        if connection.connection_state != ConnState::Connected {
            let evidence =
                format!("it is {}, so nothing of it was measured", connection.connection_state);
            let remedy = format!("`ashlar why {}`", case.config.name);
            add(all, Weight::Note, object, evidence, &remedy);
            continue;
        }
        let resyncs = connection.peer_devices.iter().filter(|d| {
            use ReplState::{PausedSyncS, PausedSyncT, SyncSource, SyncTarget, VerifyS, VerifyT};
            case.volumes.contains(&d.volume)
                && [SyncSource, SyncTarget, VerifyS, VerifyT].contains(&d.replication_state)
                && ![PausedSyncS, PausedSyncT].contains(&d.replication_state)
        });
        for device in resyncs {
            let evidence = format!("volume {} is {}", device.volume, device.replication_state);
            let remedy = "it shares disks and network with the users: look again when it is done, or \
                          `ashlar pause-sync` meanwhile";
            add(all, Weight::Slow, object.clone(), evidence, remedy);
        }
        let peer = case.config.peers.iter().find(|p| p.node_id == connection.peer_node_id);
        if let Some(peer) = peer.filter(|p| p.net.protocol != Protocol::C) {
            let evidence = format!(
                "protocol {}: a write is complete before it is on the peer's disk",
                if peer.net.protocol == Protocol::A { "A" } else { "B" }
            );
            let remedy = "protocol C, if the loss of this node must not lose writes";
            add(all, Weight::Note, object, evidence, remedy);
        }
    }
}

fn sockets(case: &Case<'_>, all: &mut Vec<Finding>) {
    let watch = &case.figures.watch;
    let seconds = watch.nanoseconds.max(1) as f64 / 1e9;
    for watched in &watch.peers {
        let config = case.config.peers.iter().find(|p| p.node_id == watched.peer);
        let (Some(config), Some(tcp)) = (config, watched.data) else { continue };
        let object = format!("network from {} to {}", case.config.host, config.name);
        let resent = tcp.resent_bytes as f64 / tcp.acked_bytes.max(1) as f64;
        if tcp.resent_bytes >= 64 << 10 && resent >= 0.001 {
            let evidence = format!(
                "{} of {} were sent again ({:.1} %)",
                Bytes(tcp.resent_bytes),
                Bytes(tcp.acked_bytes),
                resent * 100.0
            );
            let remedy =
                "packets are lost: cable, switch or its buffers (`ethtool -S`, pause frames)";
            add(all, Weight::Slow, object.clone(), evidence, remedy);
        }
        // A tenth of the time watched, so that short moments do not count.
        let long = |ns: u64| ns as f64 / 1e9 >= seconds / 10.0;
        if long(tcp.buffer_limited) {
            let set = if config.net.sndbuf_size.0 > 0 { "set to" } else { "is" };
            let evidence = format!(
                "the send buffer was full for {} of {seconds:.1} s; its size {set} {} KiB",
                time(tcp.buffer_limited as f64),
                tcp.send_buffer >> 10
            );
            let remedy = match config.net.sndbuf_size.0 {
                0 => "raise net.ipv4.tcp_wmem",
                _ => "raise sndbuf-size, or set it to 0 and leave it to the kernel",
            };
            add(all, Weight::Slow, object.clone(), evidence, remedy);
        }
        if long(tcp.receiver_limited) {
            let evidence = format!(
                "{} had no room to receive for {} of {seconds:.1} s",
                config.name,
                time(tcp.receiver_limited as f64)
            );
            let remedy = "its engine does not keep up, or rcvbuf-size is set too small there";
            add(all, Weight::Slow, object.clone(), evidence, remedy);
        }
        packet_sizes(tcp.path_mtu, tcp.segment, tcp.advertised_segment, &object, &config.name, all);
        if let Some(ping) = watched.ping.filter(|ping| *ping >= 20_000_000 && *ping >= 20 * tcp.rtt)
        {
            let evidence = format!(
                "{} took {} to answer the last ping, with a round trip of {}",
                config.name,
                time(ping as f64),
                time(tcp.rtt as f64)
            );
            let remedy = "its engine is busy or gets no CPU: look there";
            add(all, Weight::Note, format!("engine of {}", config.name), evidence, remedy);
        }
    }
    for network in &case.figures.networks {
        let (to, from) = (network.figures.to_peer, network.figures.from_peer);
        let (to, from) = (to.per_second(), from.per_second());
        if to.min(from) > 0.0 && to.max(from) / to.min(from) >= 2.0 {
            let evidence = format!("{} to {}, and {} back", rate(to), network.peer, rate(from));
            let remedy = "both ways should be alike: look for errors and duplex of ports (`ethtool`), \
                          and for traffic of others";
            let object = format!("network between {} and {}", case.config.host, network.peer);
            add(all, Weight::Slow, object, evidence, remedy);
        }
    }
}

/// Packets that are smaller than this node's interface permits.
fn packet_sizes(
    path: u32,
    segment: u32,
    advertised: u32,
    object: &str,
    peer: &str,
    all: &mut Vec<Finding>,
) {
    let interface = advertised + HEADERS;
    if path == 0 || advertised == 0 || interface > JUMBO {
        return;
    }
    if path < interface {
        let evidence =
            format!("packets of {path} bytes fit the path, {interface} this node's interface");
        let remedy = "give all interfaces and switches between the nodes the same MTU";
        add(all, Weight::Slow, object.to_owned(), evidence, remedy);
    } else if segment + OPTIONS < advertised {
        let evidence = format!(
            "{peer} takes segments of {segment} bytes, this node of {advertised}: its interface has a \
             smaller MTU"
        );
        let remedy = "give the interfaces of both nodes the same MTU";
        add(all, Weight::Slow, object.to_owned(), evidence, remedy);
    }
}
