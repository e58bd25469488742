//! Looking on: what is in flight where, taken many times a second, and what counters did meanwhile.
//!
//! A request that waits is in flight somewhere, so averages of what is in flight say where time
//! goes without timing a single request: by Little's law the time spent in a place is in proportion
//! to the number found there. A look costs the resource's thread about as much as `ashlar status`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use codec::admin::{
    ResourceStatus, TcpFigures, Watch, WatchedDevice, WatchedPeer, WatchedThread, WatchedVolume,
};
use runtime::TcpInfo;
use vocab::{NodeId, SECTOR_SIZE, VolumeNr};

use super::device::{self, DeviceNr, Sys};
use super::machine::threads;
use crate::engine::{Done, Engine, Entry, unknown};
use crate::shard::Shard;
use crate::shard::disk::InFlight;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(20);

/// One look at a resource.
struct Look {
    status: ResourceStatus,
    /// By volume, as in the status.
    disks: Vec<InFlight>,
    links: BTreeMap<NodeId, LinkLook>,
}

/// One look at a connection that is up.
struct LinkLook {
    /// Bytes in the engine's queue.
    queued: usize,
    tcp: TcpInfo,
    buffers: (usize, usize),
    ping: Option<Duration>,
}

impl Engine {
    /// Looks on for `time`.
    pub(super) fn watch(&self, entry: &Entry, time: Duration) -> Done<Watch> {
        let sys = Sys::default();
        let start = Instant::now();
        let (before, devices_before, threads_before) =
            (self.look(entry)?, devices(&sys, entry), threads());
        let mut sums = Sums::default();
        let mut last = None;
        while start.elapsed() < time {
            std::thread::sleep(INTERVAL.min(time.saturating_sub(start.elapsed())));
            let look = self.look(entry)?;
            sums.add(&look);
            last = Some(look);
        }
        let after = match last {
            Some(look) => look,
            None => self.look(entry)?,
        };
        let elapsed = start.elapsed();
        let devices_after = devices(&sys, entry);
        let device =
            |nr: VolumeNr| Some(device::between(devices_before.get(&nr)?, devices_after.get(&nr)?));
        Ok(Watch {
            nanoseconds: nanos(elapsed),
            samples: sums.looks,
            volumes: sums.volumes(&before.status, &after.status, device),
            peers: sums.peers(&before, &after),
            threads: threads_between(&threads_before, threads()),
            thread: format!("shard{}", entry.shard),
        })
    }

    fn look(&self, entry: &Entry) -> Done<Look> {
        let id = entry.id;
        self.on(entry.shard, move |shard| look(shard, id))?.ok_or_else(|| unknown(&entry.name))
    }

    /// The path in use to a peer, or else the first.
    pub(super) fn path_to(&self, entry: &Entry, peer: NodeId) -> Done<codec::config::PathConfig> {
        let id = entry.id;
        let path = self.on(entry.shard, move |shard| {
            let link = shard.hosts.get_mut(id)?.link(peer)?;
            let mut paths: Vec<_> = link.paths().collect();
            paths.sort_by_key(|(_, in_use)| !in_use);
            paths.first().map(|(path, _)| *path)
        })?;
        path.ok_or_else(|| {
            let name = &entry.name;
            crate::engine::Stop::invalid(format!("{name}: there is no path to node {peer}"))
        })
    }
}

fn look(shard: &mut Shard, id: u16) -> Option<Look> {
    let host = shard.hosts.get_mut(id)?;
    let status = host.status();
    let disks = status.devices.iter().map(|d| shard.io.jobs.in_flight(id, d.volume)).collect();
    let links = status.connections.iter().filter_map(|c| {
        let link = host.link(c.peer_node_id)?;
        let conn = link.data_socket()?;
        let look = LinkLook {
            queued: link.queued_bytes(),
            tcp: conn.tcp_info().ok()?,
            buffers: conn.buffer_sizes().ok()?,
            ping: link.ping_time(),
        };
        Some((c.peer_node_id, look))
    });
    Some(Look { links: links.collect(), disks, status })
}

/// What the kernel has counted for the disks of a resource.
fn devices(sys: &Sys, entry: &Entry) -> BTreeMap<VolumeNr, WatchedDevice> {
    let volumes = crate::engine::lock(&entry.stored).config.volumes.clone();
    let disks = volumes.into_iter().filter_map(|v| Some((v.nr, v.backing?.disk)));
    let counters = disks.filter_map(|(nr, disk)| {
        let device = DeviceNr::of(Path::new(&disk)).ok()?;
        Some((nr, sys.counters(device)?))
    });
    counters.collect()
}

/// Sums over looks, for averages.
#[derive(Default)]
struct Sums {
    looks: u32,
    volumes: BTreeMap<VolumeNr, VolumeSums>,
    peers: BTreeMap<NodeId, PeerSums>,
}

#[derive(Default)]
struct VolumeSums {
    requests: u64,
    disk: [u64; 4],
    unanswered: u64,
}

#[derive(Default)]
struct PeerSums {
    pending: BTreeMap<VolumeNr, u64>,
    pending_bytes: u64,
    unsent_bytes: u64,
}

impl Sums {
    fn add(&mut self, look: &Look) {
        self.looks += 1;
        for (device, disk) in look.status.devices.iter().zip(&look.disks) {
            let sums = self.volumes.entry(device.volume).or_default();
            sums.requests += device.upper_pending;
            let counts = [disk.reads, disk.writes, disk.others, disk.metadata];
            for (sum, count) in sums.disk.iter_mut().zip(counts) {
                *sum += u64::from(count);
            }
        }
        for connection in &look.status.connections {
            let sums = self.peers.entry(connection.peer_node_id).or_default();
            for device in &connection.peer_devices {
                *sums.pending.entry(device.volume).or_default() += device.pending;
                self.volumes.entry(device.volume).or_default().unanswered += device.unacked;
            }
            sums.pending_bytes += connection.ap_in_flight * SECTOR_SIZE;
            if let Some(link) = look.links.get(&connection.peer_node_id) {
                sums.unsent_bytes += link.queued as u64 + u64::from(link.tcp.unsent_bytes);
                // A receiver may wait with the acknowledgement of two segments for more to come,
                // for up to 40 ms: these say nothing of the network.
                if link.tcp.unacked_segments > 2 {
                    sums.unsent_bytes += link.tcp.outstanding_bytes();
                }
            }
        }
    }

    fn average(&self, sum: u64) -> f64 {
        if self.looks == 0 { 0.0 } else { sum as f64 / f64::from(self.looks) }
    }

    fn volumes(
        &self,
        before: &ResourceStatus,
        after: &ResourceStatus,
        device: impl Fn(VolumeNr) -> Option<WatchedDevice>,
    ) -> Vec<WatchedVolume> {
        let watched = after.devices.iter().filter_map(|d| {
            let sums = self.volumes.get(&d.volume)?;
            let then = before.devices.iter().find(|b| b.volume == d.volume)?;
            let [reads, writes, flushes, metadata] = sums.disk.map(|sum| self.average(sum));
            Some(WatchedVolume {
                volume: d.volume,
                requests: self.average(sums.requests),
                disk_reads: reads,
                disk_writes: writes,
                disk_flushes: flushes,
                disk_metadata: metadata,
                unanswered: self.average(sums.unanswered),
                read_kib: d.read.saturating_sub(then.read),
                written_kib: d.written.saturating_sub(then.written),
                al_writes: d.al_writes.saturating_sub(then.al_writes),
                device: device(d.volume),
            })
        });
        watched.collect()
    }

    fn peers(&self, before: &Look, after: &Look) -> Vec<WatchedPeer> {
        let watched = after.status.connections.iter().filter_map(|c| {
            let sums = self.peers.get(&c.peer_node_id)?;
            let link = after.links.get(&c.peer_node_id);
            let then = before.links.get(&c.peer_node_id);
            Some(WatchedPeer {
                peer: c.peer_node_id,
                pending: sums.pending.values().map(|sum| self.average(*sum)).collect(),
                pending_bytes: self.average(sums.pending_bytes),
                unsent_bytes: self.average(sums.unsent_bytes),
                data: link.map(|link| tcp_between(then.map(|then| &then.tcp), link)),
                ping: link.and_then(|link| link.ping).map(nanos),
            })
        });
        watched.collect()
    }
}

/// The figures of a socket. Counters begin anew with a new connection.
fn tcp_between(before: Option<&TcpInfo>, now: &LinkLook) -> TcpFigures {
    let after = &now.tcp;
    let none = TcpInfo::default();
    let before = before.filter(|b| b.acked_bytes <= after.acked_bytes).unwrap_or(&none);
    TcpFigures {
        rtt: nanos(after.rtt),
        min_rtt: nanos(after.min_rtt),
        path_mtu: after.path_mtu,
        segment: after.send_mss,
        advertised_segment: after.advertised_mss,
        acked_bytes: after.acked_bytes.saturating_sub(before.acked_bytes),
        received_bytes: after.received_bytes.saturating_sub(before.received_bytes),
        resent_bytes: after.resent_bytes.saturating_sub(before.resent_bytes),
        delivery_rate: after.delivery_rate,
        delivery_idle: after.delivery_app_limited,
        busy: nanos(after.busy.saturating_sub(before.busy)),
        receiver_limited: nanos(after.receiver_limited.saturating_sub(before.receiver_limited)),
        buffer_limited: nanos(after.buffer_limited.saturating_sub(before.buffer_limited)),
        send_buffer: now.buffers.0 as u64,
        receive_buffer: now.buffers.1 as u64,
    }
}

/// Threads that were there all the time, by name.
fn threads_between(
    before: &BTreeMap<u32, WatchedThread>,
    after: BTreeMap<u32, WatchedThread>,
) -> Vec<WatchedThread> {
    let both = after.into_iter().filter_map(|(id, thread)| {
        let then = before.get(&id)?;
        Some(WatchedThread {
            running: thread.running.saturating_sub(then.running),
            waiting: thread.waiting.saturating_sub(then.waiting),
            name: thread.name,
        })
    });
    let mut threads: Vec<_> = both.filter(|thread| thread.name.starts_with("shard")).collect();
    threads.sort_by(|a, b| a.name.cmp(&b.name));
    threads
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
