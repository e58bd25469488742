//! Metrics for Prometheus, text format 0.0.4. Where LINSTOR's controller has a metric of the same meaning
//! its name and labels are used (control plane §10); what is Ashlar's own begins with `ashlar_`. The
//! names are in docs/operating.md.

use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use cluster::objects::{Pool, Provider};
use cluster::redundancy;
use serde_json::json;
use vocab::{Bytes, DiskState, Histogram};

use crate::answer::{Answer, Found};
use crate::ask::{App, Asked};
use crate::control;
use crate::controller::{self, ReportFilter};
use crate::resources::Seen;
use crate::routes::{Routes, Says, Table};

/// Buckets of histograms end at the powers of two from 2^9 to 2^25 us: half a millisecond to 34 s.
const BUCKETS: std::ops::RangeInclusive<u32> = 9..=25;
/// The port of the metrics of nodes, as DRBD Reactor has it.
const NODE_PORT: u16 = 9942;

pub fn routes() -> Routes {
    Routes::new()
        .get("/metrics", metrics)
        .asks(&["resource", "storage_pools", "error_reports"])
        .says(Says::Text)
        .get("/metrics/scrape-target", targets)
}

/// What is counted as calls are made.
pub struct Meters {
    /// The calls, with how long they took.
    pub table: Table,
    /// Requests of nobody who is known.
    pub denied: AtomicU64,
    scrapes: AtomicU64,
    /// How long the last scrape took, in nanoseconds.
    scrape: AtomicU64,
}

impl Meters {
    /// Nothing was called yet.
    pub fn new(table: Table) -> Meters {
        let zero = || AtomicU64::new(0);
        Meters { table, denied: zero(), scrapes: zero(), scrape: zero() }
    }
}

async fn metrics(
    State(app): State<App>,
    Extension(meters): Extension<Arc<Meters>>,
    asked: Asked,
) -> Result<Response, Answer> {
    let begun = Instant::now();
    let wanted = |name: &str| !asked.all(name).iter().any(|v| v.eq_ignore_ascii_case("false"));
    let mut page = Page::default();
    controller(&mut page, &meters);
    if wanted("error_reports") {
        let reports = app.reports(ReportFilter::default()).await?;
        page.begin("linstor_error_reports_count", "gauge", "Error reports that are kept");
        page.sample(&[], reports.len());
    }
    {
        let state = app.state();
        nodes(&mut page, &state);
        if wanted("resource") {
            definitions(&mut page, &state);
            resources(&mut page, &state);
        }
        if wanted("storage_pools") {
            pools(&mut page, &state);
        }
    }
    let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    meters.scrape.store(nanos, Ordering::Relaxed);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], page.text).into_response())
}

/// Where nodes offer their metrics, if their engines were told to.
async fn targets(State(app): State<App>) -> Found {
    let state = app.state();
    let addresses = state.model.nodes().filter_map(|node| {
        let interface = node.net_interfaces.values().next()?;
        Some(std::net::SocketAddr::from((interface.address, NODE_PORT)).to_string())
    });
    Found(json!([{ "targets": addresses.collect::<Vec<_>>() }]))
}

/// The text, and the metric whose samples are written.
#[derive(Default)]
struct Page {
    text: String,
    name: &'static str,
}

type Labels<'a> = [(&'a str, &'a dyn Display)];

impl Page {
    /// Begins a metric. Its samples follow before the next one begins.
    fn begin(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.part("", labels, &value);
    }

    fn part(&mut self, end: &str, labels: &Labels<'_>, value: &dyn Display) {
        let name = self.name;
        self.put(format_args!("{name}{end}"));
        let mut before = '{';
        for (label, value) in labels {
            // What would end the value, or its line.
            let value = value.to_string().replace('\\', r"\\");
            let value = value.replace('"', "\\\"").replace('\n', r"\n");
            self.put(format_args!("{before}{label}=\"{value}\""));
            before = ',';
        }
        self.put(format_args!("{} {value}\n", if labels.is_empty() { "" } else { "}" }));
    }

    fn histogram(&mut self, label: (&str, &dyn Display), times: &Histogram) {
        for power in BUCKETS {
            let end = Duration::from_micros(1 << power);
            let labels: &Labels<'_> = &[label, ("le", &end.as_secs_f64())];
            self.part("_bucket", labels, &times.below(end));
        }
        self.part("_bucket", &[label, ("le", &"+Inf")], &times.count());
        self.part("_sum", &[label], &times.sum().as_secs_f64());
        self.part("_count", &[label], &times.count());
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("a String takes everything");
    }
}

fn controller(page: &mut Page, meters: &Meters) {
    let scrapes = meters.scrapes.fetch_add(1, Ordering::Relaxed) + 1;
    page.begin("linstor_info", "gauge", "Always 1; the labels say what serves the API");
    let labels: &Labels<'_> = &[
        ("version", &control::VERSION),
        ("gitid", &control::GIT_HASH),
        ("buildtime", &control::BUILD_TIME),
    ];
    page.sample(labels, 1);
    page.begin("linstor_scrape_requests_count", "counter", "Times that metrics were asked for");
    page.sample(&[], scrapes);
    page.begin("linstor_scrape_duration_seconds", "gauge", "How long the last answer took");
    let last = Duration::from_nanos(meters.scrape.load(Ordering::Relaxed));
    page.sample(&[], last.as_secs_f64());
    page.begin("ashlar_controller_denied_total", "counter", "Requests of nobody who is known");
    page.sample(&[], meters.denied.load(Ordering::Relaxed));
    let name = "linstor_restapi_request_duration_seconds";
    page.begin(name, "histogram", "How long calls took");
    for route in meters.table.all() {
        let times = route.times();
        if times.count() > 0 {
            let call = format!("{} {}", route.method, route.path);
            page.histogram(("apicall", &call), &times);
        }
    }
}

fn nodes(page: &mut Page, state: &controller::State) {
    page.begin("linstor_node_state", "gauge", "2 if the node's agent is connected, else 0");
    for node in state.model.nodes() {
        // LINSTOR's numbers of its connection states ONLINE and OFFLINE.
        let number = if state.observed.is_connected(&node.name) { 2 } else { 0 };
        page.sample(&[("node", &node.name), ("nodetype", &node.kind.word())], number);
    }
}

fn definitions(page: &mut Page, state: &controller::State) {
    let model = &state.model;
    page.begin("linstor_resource_definition_count", "gauge", "Resource definitions");
    page.sample(&[], model.definitions().count());
    let name = "linstor_resource_definition_resource_count";
    page.begin(name, "gauge", "Resources of a resource definition");
    for definition in model.definitions() {
        let labels: &Labels<'_> =
            &[("name", &definition.name), ("resource_group", &definition.group)];
        page.sample(labels, model.resources_of(&definition.name).count());
    }
    let help = "Copies of the data that are UpToDate and stay";
    page.begin("ashlar_resource_definition_copies", "gauge", help);
    for definition in model.definitions() {
        let copies = redundancy::copies(model, &state.observed, &definition.name).len();
        page.sample(&[("name", &definition.name)], copies);
    }
    page.begin("linstor_volume_definition_size_bytes", "gauge", "Size of a volume definition");
    for definition in model.definitions() {
        for (number, volume) in &definition.volumes {
            let labels: &Labels<'_> = &[
                ("name", &definition.name),
                ("resource_group", &definition.group),
                ("volume_number", &number.0),
            ];
            page.sample(labels, volume.size.0);
        }
    }
}

fn resources(page: &mut Page, state: &controller::State) {
    let all = || {
        state.model.definitions().flat_map(|definition| {
            let resources = state.model.resources_of(&definition.name);
            resources.map(move |resource| Seen::new(state, definition, resource))
        })
    };
    page.begin("linstor_resource_state", "gauge", "1 Primary or open, 0 not, -1 not known");
    for seen in all() {
        let state = match seen.replica {
            None => -1,
            Some(replica) => i32::from(replica.in_use.is_some()),
        };
        page.sample(&[("node", &seen.resource.node), ("name", &seen.definition.name)], state);
    }
    page.begin("linstor_volume_state", "gauge", "State of a volume's disk, as a number");
    for seen in all() {
        each_volume(&seen, |labels, _, state| page.sample(labels, state));
    }
    let name = "linstor_volume_allocated_size_bytes";
    page.begin(name, "gauge", "Bytes that a volume takes in its storage pool");
    for seen in all() {
        each_volume(&seen, |labels, allocated, _| page.sample(labels, allocated.0));
    }
}

/// Labels, allocated size and number of the state of every volume.
fn each_volume(seen: &Seen<'_>, mut take: impl FnMut(&Labels<'_>, Bytes, i32)) {
    for (number, volume, wanted, there) in seen.volumes() {
        let device = seen.device(wanted).unwrap_or_default();
        let labels: &Labels<'_> = &[
            ("resource", &seen.definition.name),
            ("node", &seen.resource.node),
            ("volume", &number.0),
            ("device_path", &device),
            ("storage_pool", &volume.pool),
        ];
        let diskless = seen.provider(volume) == Provider::Diskless;
        let state = match (there.and_then(|there| there.disk), there) {
            (Some(DiskState::UpToDate), _) => 1,
            (Some(DiskState::Diskless), _) if diskless => 4,
            // It has lost its disk, or does not have it yet.
            (Some(DiskState::Diskless), _) => 90,
            (Some(DiskState::Inconsistent), _) => 5,
            (Some(DiskState::Failed), _) => 6,
            (None, Some(there)) if there.backing.is_some() => 2,
            _ => -1,
        };
        let kib = seen.allocated(volume, wanted, there);
        take(labels, Bytes(kib.saturating_mul(1024)), state);
    }
}

fn pools(page: &mut Page, state: &controller::State) {
    let known = || {
        let kept = state.model.pools().filter(|pool| pool.provider != Provider::Diskless);
        kept.map(|pool| (pool, state.observed.pool(&pool.node, &pool.name)))
    };
    let free = "linstor_storage_pool_capacity_free_bytes";
    page.begin(free, "gauge", "Free space of a storage pool, as last reported");
    for (pool, there) in known() {
        if let Some(there) = there {
            of_pool(pool, |labels| page.sample(labels, there.free.0));
        }
    }
    let total = "linstor_storage_pool_capacity_total_bytes";
    page.begin(total, "gauge", "All space of a storage pool, as last reported");
    for (pool, there) in known() {
        if let Some(there) = there {
            of_pool(pool, |labels| page.sample(labels, there.total.0));
        }
    }
    let help = "1 if a thin storage pool is about to be full, of data or of metadata";
    page.begin("ashlar_storage_pool_alarm", "gauge", help);
    for (pool, there) in known() {
        if let Some(there) = there {
            of_pool(pool, |labels| {
                page.sample(labels, u8::from(there.alarm(pool.provider).is_some()));
            });
        }
    }
    page.begin("linstor_storage_pool_error_count", "gauge", "1 if a storage pool has an error");
    for (pool, there) in known() {
        let error = there.is_some_and(|there| there.error.is_some());
        of_pool(pool, |labels| page.sample(labels, u8::from(error)));
    }
}

fn of_pool(pool: &Pool, take: impl FnOnce(&Labels<'_>)) {
    // What the pool is made of on its node: a volume group, a zpool or a folder.
    let backing = ["StorDriver/StorPoolName", "StorDriver/LvmVg", "StorDriver/ThinPool"]
        .into_iter()
        .chain(["StorDriver/ZPool", "StorDriver/ZPoolThin", "StorDriver/FileDir"])
        .find_map(|key| pool.props.get(key));
    let backing = backing.map_or("", String::as_str);
    take(&[
        ("node", &pool.node),
        ("storage_pool", &pool.name),
        ("driver", &pool.provider.word()),
        ("backing_pool", &backing),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_histograms_end_with_everything() {
        let mut page = Page::default();
        page.begin("a", "gauge", "what it is");
        page.sample(&[("b", &"x\"y\\z\n"), ("c", &1)], 2);
        page.sample(&[], 3);
        let mut times = Histogram::default();
        times.record(Duration::from_millis(3), 1);
        times.record(Duration::from_secs(60), 1);
        page.begin("h", "histogram", "how long");
        page.histogram(("call", &"GET /"), &times);
        let text = page.text;
        assert!(text.starts_with("# HELP a what it is\n# TYPE a gauge\n"), "{text}");
        assert!(text.contains("a{b=\"x\\\"y\\\\z\\n\",c=\"1\"} 2\na 3\n"), "{text}");
        assert!(text.contains("h_bucket{call=\"GET /\",le=\"0.000512\"} 0\n"), "{text}");
        assert!(text.contains("h_bucket{call=\"GET /\",le=\"0.004096\"} 1\n"), "{text}");
        assert!(text.contains("h_bucket{call=\"GET /\",le=\"+Inf\"} 2\n"), "{text}");
        assert!(text.ends_with("h_sum{call=\"GET /\"} 60.003\nh_count{call=\"GET /\"} 2\n"));
    }

    #[test]
    fn the_dashboard_asks_for_metrics_that_there_are() {
        let text = include_str!("../../../dist/grafana/ashlar-controller.json");
        let dashboard: serde_json::Value = serde_json::from_str(text).unwrap();
        let source = include_str!("metrics.rs");
        let panels = dashboard["panels"].as_array().unwrap();
        let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        let mut asked = 0;
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            let names = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in names.filter(|n| n.starts_with("linstor_") || n.starts_with("ashlar_")) {
                let name = name.trim_end_matches("_bucket");
                let (name, _) = name.split_once("_seconds_").map_or((name, ""), |(n, e)| (n, e));
                assert!(source.contains(&format!("\"{name}")), "{name} in {expression}");
                asked += 1;
            }
        }
        assert!(asked > 10, "{asked}");
    }
}
