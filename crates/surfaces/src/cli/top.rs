//! `ashlar top`: what each volume does, how long its requests take, and where that time goes.
//!
//! Pure: two lists of statistics make [`Rows`], and rows make [`Line`]s of text with tones. `screen`
//! shows the lines on a terminal, anything else gets their text alone.
//!
//! ```text
//! VOLUME  DEPTH   READ/s   MiB/s     p50     p99  WRITE/s   MiB/s     p50     p99
//! r0/0       32        0     0.0       -       -    34179   133.5   352us  7.17ms
//!   write fff111111111111111111111111111122222222c  bravo 71% 548us (network 1us)  …
//! ```

pub(super) mod screen;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::time::Duration;

use clap::ValueEnum;
use codec::admin::{
    ConnectionStatistics, Parallel, ResourceStatistics, Traffic, VolumeStatistics, Waterfall,
};
use serde::Serialize;
use vocab::{Histogram, NodeId};

/// Characters of a bar.
const BAR: usize = 40;
/// Stages below this share are left out of the text beside a bar.
const SMALL: f64 = 0.005;

/// What volumes are sorted by, the largest first.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// Reads and writes, for this node's users and for peers
    Load,
    /// Name
    Name,
    /// Reads
    Read,
    /// Writes
    Write,
    /// 99th percentile of writes, or of reads where that is longer
    Latency,
}

impl Sort {
    /// All of them, with the key that chooses each.
    pub(super) const KEYS: [(char, Sort); 5] = [
        ('l', Sort::Load),
        ('n', Sort::Name),
        ('r', Sort::Read),
        ('w', Sort::Write),
        ('t', Sort::Latency),
    ];
}

/// A volume over an interval.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Row {
    pub resource: String,
    pub volume: u16,
    pub minor: u32,
    /// The interval.
    pub seconds: f64,
    /// Requests of users under way at its end.
    pub in_flight: u64,
    pub read: Side,
    pub write: Side,
    pub flushes_per_second: f64,
    pub discards_per_second: f64,
    /// Writes that peers sent.
    pub replica: Replica,
}

/// Reads or writes of users.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Side {
    pub requests_per_second: f64,
    pub bytes_per_second: f64,
    /// From received to answered; `null` if no request was timed.
    pub mean_us: Option<f64>,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// In the order in which a request passes them. Their shares add up to 1.
    pub stages: Vec<Stage>,
}

/// Writes that peers sent.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Replica {
    pub requests_per_second: f64,
    pub bytes_per_second: f64,
    /// Until the disk was asked, on average.
    pub wait_mean_us: Option<f64>,
    pub disk_p50_us: Option<f64>,
    pub disk_p99_us: Option<f64>,
}

/// A stage of requests.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Stage {
    pub stage: &'static str,
    /// The peer, in the stage `peer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Its part of the time of all requests: for disk and peers, where it was the last to end.
    pub share: f64,
    /// How long it takes itself on average, also where others take longer.
    pub mean_us: f64,
    pub p99_us: Option<f64>,
    /// Peers: TCP's shortest round trip, the least that is the network's of `mean-us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<f64>,
    /// In bars.
    #[serde(skip)]
    letter: char,
}

/// What volumes did between two lists of statistics of one engine. Volumes that are not in both are
/// left out.
pub(super) fn rows(before: &[ResourceStatistics], after: &[ResourceStatistics]) -> Vec<Row> {
    let mut rows = Vec::new();
    for new in after {
        let Some(old) = before.iter().find(|old| old.name == new.name) else { continue };
        let seconds = Duration::from_nanos(new.taken_ns.saturating_sub(old.taken_ns));
        for volume in &new.volumes {
            let earlier = old.volumes.iter().find(|v| v.volume == volume.volume);
            if let Some(earlier) = earlier.filter(|_| !seconds.is_zero()) {
                rows.push(row(&new.name, &new.connections, earlier, volume, seconds));
            }
        }
    }
    rows
}

fn row(
    resource: &str,
    connections: &[ConnectionStatistics],
    old: &VolumeStatistics,
    new: &VolumeStatistics,
    interval: Duration,
) -> Row {
    let seconds = interval.as_secs_f64();
    // Less than before: the volume was taken down and came up again.
    let rate = |new: u64, old: u64| new.checked_sub(old).unwrap_or(new) as f64 / seconds;
    let side = |new: Traffic, old: Traffic, waterfall: Option<Waterfall>| Side {
        requests_per_second: rate(new.requests, old.requests),
        bytes_per_second: rate(new.bytes, old.bytes),
        ..waterfall.map(|w| timed(&w, connections)).unwrap_or_default()
    };
    let since = |new: &Option<Box<Waterfall>>, old: &Option<Box<Waterfall>>| {
        new.as_ref().map(|new| old.as_ref().map_or_else(|| (**new).clone(), |old| new.since(old)))
    };
    let replica = new.replica.as_ref().map(|new| match &old.replica {
        Some(old) => new.since(old),
        None => (**new).clone(),
    });
    let replica = replica.unwrap_or_default();
    Row {
        resource: resource.to_owned(),
        volume: new.volume.0,
        minor: new.minor.0,
        seconds,
        in_flight: new.in_flight,
        read: side(new.reads, old.reads, since(&new.read, &old.read)),
        write: side(new.writes, old.writes, since(&new.write, &old.write)),
        flushes_per_second: rate(new.flushes.requests, old.flushes.requests),
        discards_per_second: rate(
            new.discards.requests + new.zeroes.requests,
            old.discards.requests + old.zeroes.requests,
        ),
        replica: Replica {
            requests_per_second: rate(new.replica_writes.requests, old.replica_writes.requests),
            bytes_per_second: rate(new.replica_writes.bytes, old.replica_writes.bytes),
            wait_mean_us: mean(&replica.wait),
            disk_p50_us: replica.disk.quantile(0.5).map(us),
            disk_p99_us: replica.disk.quantile(0.99).map(us),
        },
    }
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

fn mean(histogram: &Histogram) -> Option<f64> {
    (histogram.count() > 0).then(|| us(histogram.mean()))
}

/// What a waterfall says of the requests that were timed.
fn timed(waterfall: &Waterfall, connections: &[ConnectionStatistics]) -> Side {
    let total = us(waterfall.total.sum());
    let share = |part: Duration| if total > 0.0 { us(part) / total } else { 0.0 };
    let serial = |stage, letter, histogram: &Histogram| Stage {
        stage,
        peer: None,
        share: share(histogram.sum()),
        mean_us: us(histogram.mean()),
        p99_us: histogram.quantile(0.99).map(us),
        round_trip_us: None,
        letter,
    };
    let parallel = |stage, letter, part: &Parallel| Stage {
        share: share(part.decided()),
        ..serial(stage, letter, &part.latency)
    };
    let mut stages = vec![
        serial("front-end", 'f', &waterfall.front_end),
        serial("admission", 'a', &waterfall.admission),
        serial("activity-log", 'l', &waterfall.activity_log),
        parallel("disk", 'd', &waterfall.disk),
    ];
    for part in &waterfall.peers {
        let connection = connections.iter().find(|c| c.peer_node_id == part.peer);
        let name = connection.map_or_else(|| format!("node {}", part.peer), |c| c.name.clone());
        let round_trip = connection.and_then(|c| c.round_trip);
        stages.push(Stage {
            peer: Some(name),
            round_trip_us: round_trip.map(|r| f64::from(r.least_us)),
            ..parallel("peer", letter(part.peer), &part.parallel)
        });
    }
    stages.push(serial("completion", 'c', &waterfall.completion));
    stages.retain(|stage| stage.p99_us.is_some());
    Side {
        mean_us: mean(&waterfall.total),
        p50_us: waterfall.total.quantile(0.5).map(us),
        p99_us: waterfall.total.quantile(0.99).map(us),
        stages,
        ..Side::default()
    }
}

/// A peer in a bar: its node id, in digits and capitals.
fn letter(peer: NodeId) -> char {
    char::from_digit(peer.get().into(), 36).unwrap_or('?').to_ascii_uppercase()
}

/// Sorts rows; those that are equal by name.
pub(super) fn sort(rows: &mut [Row], by: Sort) {
    let load = |row: &Row| {
        row.read.requests_per_second
            + row.write.requests_per_second
            + row.replica.requests_per_second
    };
    let p99 = |row: &Row| {
        let [read, write] = [&row.read, &row.write].map(|side| side.p99_us.unwrap_or(0.0));
        read.max(write)
    };
    let key = |row: &Row| match by {
        Sort::Load => load(row),
        Sort::Name => 0.0,
        Sort::Read => row.read.requests_per_second,
        Sort::Write => row.write.requests_per_second,
        Sort::Latency => p99(row),
    };
    rows.sort_by(|a, b| {
        let names = || (&a.resource, a.volume).cmp(&(&b.resource, b.volume));
        key(b).partial_cmp(&key(a)).unwrap_or(Ordering::Equal).then_with(names)
    });
}

/// How a piece of a line looks on a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tone {
    Plain,
    Bold,
    Dim,
    /// A stage, by its letter in bars.
    Stage(char),
}

/// A line of text, in pieces.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Line(pub Vec<(Tone, String)>);

impl Line {
    fn of(tone: Tone, text: String) -> Line {
        Line(vec![(tone, text)])
    }

    /// Without its tones.
    pub fn text(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect::<String>().trim_end().to_owned()
    }
}

/// What is shown of the rows, in their order.
pub(super) fn lines(rows: &[Row]) -> Vec<Line> {
    let names = rows.iter().map(|row| row.name().chars().count());
    let width = names.max().unwrap_or(0).max("VOLUME".len());
    let mut lines = vec![Line::of(
        Tone::Bold,
        format!(
            "{:width$}  {:>5} {:>8} {:>7} {:>7} {:>7} {:>8} {:>7} {:>7} {:>7}",
            "VOLUME", "DEPTH", "READ/s", "MiB/s", "p50", "p99", "WRITE/s", "MiB/s", "p50", "p99"
        ),
    )];
    for row in rows {
        let quiet = row.read.is_idle() && row.write.is_idle() && row.in_flight == 0;
        let [read, write] = [&row.read, &row.write].map(Side::columns);
        let text = format!("{:width$}  {:>5}{read}{write}", row.name(), row.in_flight);
        lines.push(Line::of(if quiet { Tone::Dim } else { Tone::Plain }, text));
        for (what, side) in [("read", &row.read), ("write", &row.write)] {
            if !side.stages.is_empty() {
                lines.push(side.bar(what));
            }
        }
        let other = row.other();
        if !other.is_empty() {
            lines.push(Line::of(Tone::Plain, format!("  {other}")));
        }
    }
    lines
}

/// What the letters of bars mean.
pub(super) fn legend() -> Line {
    let stages = [
        ('f', "front end"),
        ('a', "admission"),
        ('l', "activity log"),
        ('d', "disk"),
        ('0', "peer by node id"),
        ('c', "completion"),
    ];
    let mut line = Line::default();
    for (letter, name) in stages {
        line.0.push((Tone::Stage(letter), letter.to_string()));
        line.0.push((Tone::Dim, format!(" {name}   ")));
    }
    line
}

impl Row {
    fn name(&self) -> String {
        format!("{}/{}", self.resource, self.volume)
    }

    /// What has no columns.
    fn other(&self) -> String {
        let mut parts = Vec::new();
        let replica = &self.replica;
        if replica.requests_per_second > 0.0 {
            let mut part = format!(
                "for peers: {} writes/s, {} MiB/s",
                count(replica.requests_per_second),
                mib(replica.bytes_per_second)
            );
            if let (Some(wait), Some(p50), Some(p99)) =
                (replica.wait_mean_us, replica.disk_p50_us, replica.disk_p99_us)
            {
                let [wait, p50, p99] = [wait, p50, p99].map(time);
                part += &format!(", waiting {wait}, disk p50 {p50}, p99 {p99}");
            }
            parts.push(part);
        }
        for (what, rate) in
            [("flushes/s", self.flushes_per_second), ("discards/s", self.discards_per_second)]
        {
            if rate > 0.0 {
                parts.push(format!("{} {what}", count(rate)));
            }
        }
        parts.join("   ")
    }
}

impl Side {
    fn is_idle(&self) -> bool {
        self.requests_per_second == 0.0
    }

    fn columns(&self) -> String {
        let [p50, p99] = [self.p50_us, self.p99_us].map(|t| t.map_or("-".to_owned(), time));
        let (rate, bytes) = (count(self.requests_per_second), mib(self.bytes_per_second));
        format!(" {rate:>8} {bytes:>7} {p50:>7} {p99:>7}")
    }

    /// The waterfall as a bar, and its stages in words, the longest first.
    fn bar(&self, what: &str) -> Line {
        let mut line = Line::of(Tone::Plain, format!("  {what:<5} "));
        for (stage, cells) in self.stages.iter().zip(cells(&self.stages)) {
            let cells: String = std::iter::repeat_n(stage.letter, cells).collect();
            line.0.push((Tone::Stage(stage.letter), cells));
        }
        let mut stages: Vec<&Stage> = self.stages.iter().filter(|s| s.share >= SMALL).collect();
        stages.sort_by(|a, b| b.share.partial_cmp(&a.share).unwrap_or(Ordering::Equal));
        for (index, stage) in stages.into_iter().enumerate() {
            let tone = if index == 0 { Tone::Bold } else { Tone::Plain };
            line.0.push((tone, format!("  {}", stage.words())));
        }
        line
    }
}

/// How many characters of a bar each stage gets: all together [`BAR`], by the largest remainders.
fn cells(stages: &[Stage]) -> Vec<usize> {
    let exact: Vec<f64> = stages.iter().map(|s| s.share * BAR as f64).collect();
    let mut cells: Vec<usize> = exact.iter().map(|cells| *cells as usize).collect();
    let rest = BAR.saturating_sub(cells.iter().sum());
    let mut order: Vec<usize> = (0..cells.len()).collect();
    order.sort_by(|a, b| {
        let remainder = |i: usize| exact[i] - exact[i].floor();
        remainder(*b).partial_cmp(&remainder(*a)).unwrap_or(Ordering::Equal)
    });
    for index in order.into_iter().take(rest) {
        cells[index] += 1;
    }
    cells
}

impl Stage {
    fn words(&self) -> String {
        let name = self.peer.as_deref().unwrap_or(self.stage);
        let mut words = format!("{name} {:.0}% {}", 100.0 * self.share, time(self.mean_us));
        if let Some(round_trip) = self.round_trip_us {
            words += &format!(" (network {})", time(round_trip.min(self.mean_us)));
        }
        words
    }
}

/// A rate in at most six characters.
fn count(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}

/// Microseconds, in at most six characters.
fn time(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{us:.0}us"),
        us if us < 9_995.0 => format!("{:.2}ms", us / 1e3),
        us if us < 99_950.0 => format!("{:.1}ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        us => format!("{:.1}s", us / 1e6),
    }
}
