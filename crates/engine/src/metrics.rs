//! Metrics for Prometheus: states and statistics as text.
//!
//! Where DRBD Reactor has a metric of the same meaning, its name and labels are used (`drbd_…`); what
//! is Ashlar's own begins with `ashlar_`. The names are in docs/operating.md. `server` answers those
//! who fetch them.

mod server;
#[cfg(test)]
mod tests;

use std::fmt::{Display, Write};
use std::time::Duration;

use codec::admin::{
    ConnectionStatus, DeviceStatus, EngineInfo, PeerDeviceStatus, ResourceStatistics,
    ResourceStatus, Traffic, VolumeStatistics, Waterfall,
};
use vocab::{ConnState, DiskState, Histogram, Role, SECTOR_SIZE};

pub(crate) use server::serve;

/// Buckets of histograms end at the powers of two from 2^5 to 2^23 us: 32 us to 8.4 s.
const BUCKETS: std::ops::RangeInclusive<u32> = 5..=23;

/// What the text is made of.
pub(crate) struct Snapshot {
    pub(crate) info: EngineInfo,
    pub(crate) status: Vec<ResourceStatus>,
    pub(crate) statistics: Vec<ResourceStatistics>,
}

/// How the text is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// Prometheus' own, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.0: counters are declared without `_total`, and there is an end.
    OpenMetrics,
}

impl Format {
    /// The media type of the text.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes everything.
pub(crate) fn render(snapshot: &Snapshot, format: Format) -> String {
    let mut page = Page { text: String::new(), format, name: "" };
    engine(&mut page, snapshot);
    resources(&mut page, &snapshot.status);
    devices(&mut page, &snapshot.status);
    connections(&mut page, &snapshot.status);
    requests(&mut page, &snapshot.statistics);
    latencies(&mut page, &snapshot.statistics);
    links(&mut page, &snapshot.statistics);
    if format == Format::OpenMetrics {
        page.text.push_str("# EOF\n");
    }
    page.text
}

/// The text, and the metric that is being written.
struct Page {
    text: String,
    format: Format,
    name: &'static str,
}

/// Labels of a sample, in order.
type Labels<'a> = [(&'a str, &'a dyn Display)];

impl Page {
    /// Begins a metric. Its samples must follow before the next one begins. The name of a counter
    /// is given without `_total`.
    fn begin(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        let declared = match (kind, self.format) {
            ("counter", Format::Prometheus) => "_total",
            _ => "",
        };
        self.put(format_args!("# HELP {name}{declared} {help}\n"));
        self.put(format_args!("# TYPE {name}{declared} {kind}\n"));
    }

    fn gauge(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.sample("", labels, None, &value);
    }

    fn counter(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.sample("_total", labels, None, &value);
    }

    fn histogram(&mut self, labels: &Labels<'_>, histogram: &Histogram) {
        for power in BUCKETS {
            let end = Duration::from_micros(1 << power);
            let le = end.as_secs_f64();
            self.sample("_bucket", labels, Some(&le), &histogram.below(end));
        }
        self.sample("_bucket", labels, Some(&"+Inf"), &histogram.count());
        self.sample("_sum", labels, None, &seconds(histogram.sum()));
        self.sample("_count", labels, None, &histogram.count());
    }

    /// One of several states as a sample for each: 1 for the present one, 0 for the others. The
    /// label has the metric's name, as DRBD Reactor has it.
    fn one_of<T: PartialEq + Display>(&mut self, labels: &Labels<'_>, all: &[T], present: &T) {
        for state in all {
            let mut labels = labels.to_vec();
            labels.push((self.name, state));
            self.gauge(&labels, u8::from(state == present));
        }
    }

    fn sample(
        &mut self,
        suffix: &str,
        labels: &Labels<'_>,
        le: Option<&dyn Display>,
        value: &dyn Display,
    ) {
        let name = self.name;
        self.put(format_args!("{name}{suffix}"));
        let le = le.map(|le| ("le", le));
        for (index, (label, value)) in labels.iter().copied().chain(le).enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            self.put(format_args!("{before}{label}=\"{}\"", Escaped(value)));
        }
        if !labels.is_empty() || le.is_some() {
            self.text.push('}');
        }
        self.put(format_args!(" {value}\n"));
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("a String takes everything");
    }
}

/// The value of a label, with what would end it or its line escaped.
struct Escaped<'a>(&'a dyn Display);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.to_string().chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e9
}

/// Of KiB, as states have sizes.
const fn bytes(kib: u64) -> u64 {
    kib * 1024
}

fn engine(page: &mut Page, snapshot: &Snapshot) {
    let Snapshot { info, status, .. } = snapshot;
    page.begin("ashlar_version", "gauge", "Always 1; the label has the version of the engine");
    page.gauge(&[("version", &info.version)], 1);
    page.begin("ashlar_uptime_seconds", "gauge", "How long the engine runs");
    page.gauge(&[], info.uptime_seconds);
    page.begin("drbd_resource_resources", "gauge", "Resources on this node");
    page.gauge(&[], status.len());
}

fn resources(page: &mut Page, all: &[ResourceStatus]) {
    page.begin("drbd_resource_role", "gauge", "This node's role: 1 for the present one");
    for r in all {
        page.one_of(&[("name", &r.name)], Role::ALL, &r.role);
    }
    page.begin("drbd_resource_suspended", "gauge", "1 if I/O is suspended, for whatever reason");
    for r in all {
        page.gauge(&[("name", &r.name)], u8::from(r.suspended.any()));
    }
    page.begin("drbd_resource_maypromote", "gauge", "1 if a promotion would be granted now");
    for r in all {
        page.gauge(&[("name", &r.name)], u8::from(r.may_promote));
    }
    page.begin("drbd_resource_promotionscore", "gauge", "How good a Primary this node would make");
    for r in all {
        page.gauge(&[("name", &r.name)], r.promotion_score);
    }
}

/// A property of volumes.
type OfDevice = fn(&DeviceStatus) -> u64;
/// A property of volumes towards a peer.
type OfPeerDevice = fn(&PeerDeviceStatus) -> u64;
/// Requests of a kind.
type OfVolume = fn(&VolumeStatistics) -> Traffic;

fn devices(page: &mut Page, all: &[ResourceStatus]) {
    let each = |page: &mut Page, sample: &dyn Fn(&mut Page, &Labels<'_>, &DeviceStatus)| {
        for r in all {
            for d in &r.devices {
                let (volume, minor) = (&d.volume, &d.minor);
                let labels: &Labels<'_> =
                    &[("name", &r.name), ("volume", volume), ("minor", minor)];
                sample(page, labels, d);
            }
        }
    };
    page.begin("drbd_device_state", "gauge", "State of the own disk: 1 for the present one");
    each(page, &|page, labels, d| page.one_of(labels, DiskState::ALL, &d.disk_state));
    let gauges: [(&str, &str, OfDevice); 7] = [
        ("drbd_device_size_bytes", "Size of the volume", |d| bytes(d.size)),
        ("drbd_device_quorum", "1 if this partition has quorum", |d| d.quorum.into()),
        ("drbd_device_client", "1 if the volume is diskless by intent", |d| d.client.into()),
        (
            "drbd_device_unintentionaldiskless",
            "1 if the volume should have a disk and has none",
            |d| (d.disk_state == DiskState::Diskless && !d.client).into(),
        ),
        ("drbd_device_alsuspended", "1 if the activity log rests", |d| d.al_suspended.into()),
        (
            "drbd_device_upperpending",
            "Requests of users that are accepted and not completed",
            |d| d.upper_pending,
        ),
        ("drbd_device_lowerpending", "Requests that the own disk has not ended", |d| {
            d.lower_pending
        }),
    ];
    for (name, help, value) in gauges {
        page.begin(name, "gauge", help);
        each(page, &|page, labels, d| page.gauge(labels, value(d)));
    }
    let counters: [(&str, &str, OfDevice); 5] = [
        ("drbd_device_read_bytes", "Read from the own disk", |d| bytes(d.read)),
        ("drbd_device_written_bytes", "Written to the own disk", |d| bytes(d.written)),
        ("drbd_device_alwrites", "Activity log transactions", |d| d.al_writes),
        ("drbd_device_bmwrites", "Bitmap blocks written", |d| d.bm_writes),
        ("ashlar_device_sbwrites", "Superblocks written", |d| d.sb_writes.unwrap_or(0)),
    ];
    for (name, help, value) in counters {
        page.begin(name, "counter", help);
        each(page, &|page, labels, d| page.counter(labels, value(d)));
    }
}

fn connections(page: &mut Page, all: &[ResourceStatus]) {
    let each = |page: &mut Page, sample: &dyn Fn(&mut Page, &Labels<'_>, &ConnectionStatus)| {
        for r in all {
            for c in &r.connections {
                let peer = &c.peer_node_id;
                let labels: &Labels<'_> =
                    &[("name", &r.name), ("conn_name", &c.name), ("peer_node_id", peer)];
                sample(page, labels, c);
            }
        }
    };
    page.begin("drbd_connection_state", "gauge", "State of a connection: 1 for the present one");
    each(page, &|page, labels, c| page.one_of(labels, ConnState::ALL, &c.connection_state));
    page.begin("drbd_connection_congested", "gauge", "1 if the peer does not keep up with data");
    each(page, &|page, labels, c| page.gauge(labels, u8::from(c.congested)));
    page.begin("drbd_connection_apinflight_bytes", "gauge", "Data of users sent, not acknowledged");
    each(page, &|page, labels, c| page.gauge(labels, c.ap_in_flight * SECTOR_SIZE));
    page.begin("drbd_connection_rsinflight_bytes", "gauge", "Resync data sent, not acknowledged");
    each(page, &|page, labels, c| page.gauge(labels, c.rs_in_flight * SECTOR_SIZE));
    let of_volumes: [(&str, &str, OfPeerDevice); 3] = [
        ("drbd_peerdevice_outofsync_bytes", "Known to differ from the peer's disk", |p| {
            bytes(p.out_of_sync)
        }),
        ("drbd_peerdevice_sent_bytes", "Data sent to the peer", |p| bytes(p.sent)),
        ("drbd_peerdevice_received_bytes", "Data received from the peer", |p| bytes(p.received)),
    ];
    for (name, help, value) in of_volumes {
        page.begin(name, "gauge", help);
        each(page, &|page, labels, c| {
            for p in &c.peer_devices {
                let mut labels = labels.to_vec();
                labels.push(("volume", &p.volume));
                page.gauge(&labels, value(p));
            }
        });
    }
}

/// Does something for each volume, with its labels.
fn each_volume(
    page: &mut Page,
    all: &[ResourceStatistics],
    sample: impl Fn(&mut Page, &Labels<'_>, &ResourceStatistics, &VolumeStatistics),
) {
    for r in all {
        for v in &r.volumes {
            let labels: &Labels<'_> =
                &[("name", &r.name), ("volume", &v.volume), ("minor", &v.minor)];
            sample(page, labels, r, v);
        }
    }
}

/// Labels with one more.
fn and<'a>(
    labels: &Labels<'a>,
    label: &'a str,
    value: &'a dyn Display,
) -> Vec<(&'a str, &'a dyn Display)> {
    let mut labels = labels.to_vec();
    labels.push((label, value));
    labels
}

fn requests(page: &mut Page, all: &[ResourceStatistics]) {
    let kinds: [(&str, OfVolume); 6] = [
        ("read", |v| v.reads),
        ("write", |v| v.writes),
        ("discard", |v| v.discards),
        ("zeroes", |v| v.zeroes),
        ("flush", |v| v.flushes),
        ("replica-write", |v| v.replica_writes),
    ];
    page.begin("ashlar_requests", "counter", "Requests of users, and writes that peers sent");
    each_volume(page, all, |page, labels, _, v| {
        for (op, of) in &kinds {
            page.counter(&and(labels, "op", op), of(v).requests);
        }
    });
    page.begin("ashlar_request_bytes", "counter", "Bytes of these requests");
    each_volume(page, all, |page, labels, _, v| {
        for (op, of) in kinds.iter().filter(|(op, _)| *op != "flush") {
            page.counter(&and(labels, "op", op), of(v).bytes);
        }
    });
    page.begin("ashlar_requests_in_flight", "gauge", "Requests of users accepted, not completed");
    each_volume(page, all, |page, labels, _, v| page.gauge(labels, v.in_flight));
}

/// The waterfalls of a volume that have something in them.
fn waterfalls(v: &VolumeStatistics) -> impl Iterator<Item = (&'static str, &Waterfall)> {
    let both = [("read", &v.read), ("write", &v.write)];
    both.into_iter().filter_map(|(op, waterfall)| Some((op, &**waterfall.as_ref()?)))
}

/// The name of a peer, or its number if it is not configured any more.
fn peer_name(r: &ResourceStatistics, peer: vocab::NodeId) -> String {
    let connection = r.connections.iter().find(|c| c.peer_node_id == peer);
    connection.map_or_else(|| peer.to_string(), |c| c.name.clone())
}

fn latencies(page: &mut Page, all: &[ResourceStatistics]) {
    let help = "From a request's arrival until its answer was queued";
    page.begin("ashlar_request_seconds", "histogram", help);
    each_volume(page, all, |page, labels, _, v| {
        for (op, w) in waterfalls(v) {
            page.histogram(&and(labels, "op", &op), &w.total);
        }
    });
    page.begin("ashlar_stage_seconds", "histogram", "How long requests were in each stage");
    each_volume(page, all, |page, labels, _, v| {
        for (op, w) in waterfalls(v) {
            let stages = [
                ("front-end", &w.front_end),
                ("admission", &w.admission),
                ("activity-log", &w.activity_log),
                ("disk", &w.disk.latency),
                ("completion", &w.completion),
            ];
            for (stage, histogram) in stages.iter().filter(|(_, h)| h.count() > 0) {
                page.histogram(&and(&and(labels, "op", &op), "stage", stage), histogram);
            }
        }
        if let Some(replica) = &v.replica {
            for (stage, histogram) in [("wait", &replica.wait), ("disk", &replica.disk)] {
                let op = "replica-write";
                page.histogram(&and(&and(labels, "op", &op), "stage", &stage), histogram);
            }
        }
    });
    let help = "From sending a request to a peer until its answer arrived";
    page.begin("ashlar_peer_seconds", "histogram", help);
    each_volume(page, all, |page, labels, r, v| {
        for (op, w) in waterfalls(v) {
            for p in &w.peers {
                let name = peer_name(r, p.peer);
                let labels = and(labels, "conn_name", &name);
                let labels = and(&labels, "peer_node_id", &p.peer);
                page.histogram(&and(&labels, "op", &op), &p.parallel.latency);
            }
        }
    });
    let help = "Time of requests between start and last end, by whose end was the last";
    page.begin("ashlar_decided_seconds", "counter", help);
    each_volume(page, all, |page, labels, r, v| {
        for (op, w) in waterfalls(v) {
            let labels = and(labels, "op", &op);
            page.counter(&and(&labels, "by", &"disk"), seconds(w.disk.decided()));
            for p in &w.peers {
                let name = peer_name(r, p.peer);
                let labels = and(&labels, "by", &"peer");
                page.counter(&and(&labels, "conn_name", &name), seconds(p.parallel.decided()));
            }
        }
    });
}

fn links(page: &mut Page, all: &[ResourceStatistics]) {
    page.begin("ashlar_connection_queued_bytes", "gauge", "For the peer, not taken by the kernel");
    for r in all {
        for c in &r.connections {
            let peer = &c.peer_node_id;
            let labels = [("name", &r.name as &dyn Display), ("conn_name", &c.name)];
            page.gauge(&and(&labels, "peer_node_id", peer), c.queued_bytes);
        }
    }
    let help = "TCP's round trip: the shortest of the last minutes, and the smoothed estimate";
    page.begin("ashlar_connection_round_trip_seconds", "gauge", help);
    for r in all {
        for c in &r.connections {
            let Some(round_trip) = c.round_trip else { continue };
            let labels = [("name", &r.name as &dyn Display), ("conn_name", &c.name)];
            let labels = and(&labels, "peer_node_id", &c.peer_node_id);
            for (which, us) in
                [("least", round_trip.least_us), ("smoothed", round_trip.smoothed_us)]
            {
                let value = seconds(Duration::from_micros(us.into()));
                page.gauge(&and(&labels, "estimate", &which), value);
            }
        }
    }
}
