//! What is shown of statistics that are known.

use codec::admin::{ReplicaWaterfall, RoundTrip};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use vocab::{Minor, VolumeNr};

use super::screen::{View, draw};
use super::*;

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn node(id: u8) -> NodeId {
    NodeId::new(id).unwrap()
}

/// So many requests that took so long.
fn took(each: u64, requests: u64) -> Histogram {
    let mut histogram = Histogram::default();
    histogram.record(us(each), requests);
    histogram
}

/// Writes of 1,000 us of which node 1 decides most.
fn writes(requests: u64) -> Waterfall {
    let part = |each, decided: u64| Parallel {
        latency: took(each, requests),
        decided_ns: decided * 1000 * requests,
    };
    let mut waterfall = Waterfall {
        total: took(1000, requests),
        front_end: took(20, requests),
        admission: took(3, requests),
        activity_log: took(107, requests),
        disk: part(250, 150),
        peers: Vec::new(),
        completion: took(20, requests),
    };
    *waterfall.peer_mut(node(1)) = part(700, 600);
    *waterfall.peer_mut(node(12)) = part(300, 100);
    assert_eq!(waterfall.stages_sum(), waterfall.total.sum());
    waterfall
}

/// Reads of 80 us from the own disk.
fn reads(requests: u64) -> Waterfall {
    Waterfall {
        total: took(80, requests),
        front_end: took(5, requests),
        admission: took(1, requests),
        disk: Parallel { latency: took(70, requests), decided_ns: 70_000 * requests },
        completion: took(4, requests),
        ..Waterfall::default()
    }
}

fn volume(nr: u16) -> VolumeStatistics {
    let none = Traffic::default();
    VolumeStatistics {
        volume: VolumeNr(nr),
        minor: Minor(1000 + u32::from(nr)),
        in_flight: 0,
        reads: none,
        writes: none,
        discards: none,
        zeroes: none,
        flushes: none,
        replica_writes: none,
        read: None,
        write: None,
        replica: None,
    }
}

fn resource(name: &str, taken_ms: u64, volumes: Vec<VolumeStatistics>) -> ResourceStatistics {
    let peer = |id, name: &str, round_trip| ConnectionStatistics {
        peer_node_id: node(id),
        name: name.to_owned(),
        queued_bytes: 0,
        round_trip,
    };
    let round_trip = RoundTrip { least_us: 60, smoothed_us: 900 };
    let connections = vec![peer(1, "bravo", Some(round_trip)), peer(12, "mike", None)];
    let taken_ns = taken_ms * 1_000_000;
    ResourceStatistics { name: name.to_owned(), taken_ns, volumes, connections }
}

/// A second's statistics: before and after, with something before that.
fn statistics() -> [Vec<ResourceStatistics>; 2] {
    let busy = |requests: u64| VolumeStatistics {
        in_flight: 32,
        writes: Traffic { requests, bytes: requests * 4096 },
        flushes: Traffic { requests: requests / 1000, bytes: 0 },
        write: Some(Box::new(writes(requests))),
        ..volume(0)
    };
    let replica = |requests: u64| VolumeStatistics {
        reads: Traffic { requests, bytes: requests * 131_072 },
        read: (requests > 0).then(|| Box::new(reads(requests))),
        replica_writes: Traffic { requests: 2 * requests, bytes: 8192 * requests },
        replica: Some(Box::new(ReplicaWaterfall {
            wait: took(12, 2 * requests),
            disk: took(100, 2 * requests),
        })),
        ..volume(7)
    };
    let at = |ms, busy: VolumeStatistics, replica| {
        vec![resource("r0", ms, vec![busy, volume(3)]), resource("data", ms, vec![replica])]
    };
    [at(5000, busy(1000), replica(0)), at(6000, busy(25_200), replica(150))]
}

fn sorted(by: Sort) -> Vec<Row> {
    let [before, after] = statistics();
    let mut rows = rows(&before, &after);
    sort(&mut rows, by);
    rows
}

fn text(rows: &[Row]) -> String {
    lines(rows).iter().map(|line| line.text() + "\n").collect()
}

const TEXT: &str = include_str!("../../../testdata/top.txt");

#[test]
fn volumes_as_text() {
    let shown = text(&sorted(Sort::Load));
    assert_eq!(shown, TEXT, "\n{shown}");
}

#[test]
fn the_terminal_shows_the_same_with_a_legend() {
    let mut terminal = Terminal::new(TestBackend::new(180, 12)).unwrap();
    let (interval, by) = (Duration::from_secs(1), Sort::Load);
    let mut view = View { rows: sorted(by), interval, by, scroll: 0 };
    terminal.draw(|frame| draw(frame, &view)).unwrap();
    let screen = |terminal: &Terminal<TestBackend>| {
        let buffer = terminal.backend().buffer();
        let row = |y| (0..180).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..12).map(|y| row(y).trim_end().to_owned()).collect::<Vec<_>>()
    };
    let shown = screen(&terminal);
    let body: Vec<&str> = TEXT.lines().collect();
    assert_eq!(shown[..body.len()], body);
    assert!(shown[11].starts_with("f front end   a admission   l activity log   d disk"));
    assert!(shown[11].contains("each 1 s | sort l:load n:name"), "{}", shown[11]);
    let key = |view: &mut View, code| view.key(KeyEvent::new(code, KeyModifiers::NONE));
    assert!(key(&mut view, KeyCode::Char('n')) && key(&mut view, KeyCode::Down));
    terminal.draw(|frame| draw(frame, &view)).unwrap();
    let shown = screen(&terminal);
    assert_eq!(shown[0], body[0], "the head does not scroll");
    assert!(shown[1].starts_with("  read  "), "{}", shown[1]);
    assert!(!key(&mut view, KeyCode::Char('q')) && !key(&mut view, KeyCode::Esc));
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(!view.key(ctrl_c));
}

#[test]
fn every_key_sorts_by_its_own() {
    let names = |by| sorted(by).iter().map(Row::name).collect::<Vec<_>>();
    assert_eq!(names(Sort::Load), ["r0/0", "data/7", "r0/3"]);
    assert_eq!(names(Sort::Name), ["data/7", "r0/0", "r0/3"]);
    assert_eq!(names(Sort::Read), ["data/7", "r0/0", "r0/3"]);
    assert_eq!(names(Sort::Write), ["r0/0", "data/7", "r0/3"]);
    assert_eq!(names(Sort::Latency), ["r0/0", "data/7", "r0/3"]);
}

#[test]
fn what_came_anew_counts_from_nothing_and_what_is_gone_is_left_out() {
    let [before, mut after] = statistics();
    assert!(rows(&after, &before).is_empty(), "no time has passed");
    after.retain(|resource| resource.name == "r0");
    after[0].volumes[0] = VolumeStatistics {
        writes: Traffic { requests: 10, bytes: 40_960 },
        write: Some(Box::new(writes(10))),
        ..volume(0)
    };
    let rows = rows(&before, &after);
    assert_eq!(rows.len(), 2, "the other resource is gone");
    assert_eq!(rows[0].write.requests_per_second, 10.0);
    assert_eq!(rows[0].write.mean_us, Some(1000.0));
}

#[test]
fn bars_are_full_whatever_the_shares() {
    let stage = |share| Stage {
        stage: "disk",
        peer: None,
        share,
        mean_us: 1.0,
        p99_us: None,
        round_trip_us: None,
        letter: 'd',
    };
    for shares in [vec![1.0], vec![0.333, 0.333, 0.334], vec![0.012; 83], vec![0.99, 0.01]] {
        let sum: f64 = shares.iter().sum();
        let stages: Vec<Stage> = shares.iter().map(|s| stage(s / sum)).collect();
        assert_eq!(cells(&stages).iter().sum::<usize>(), BAR, "{shares:?}");
    }
    assert_eq!(cells(&[]), [0; 0]);
}

#[test]
fn json_has_shares_that_add_up_and_the_networks_part() {
    let rows = sorted(Sort::Load);
    let json = serde_json::to_value(&rows[0]).unwrap();
    let stages = json["write"]["stages"].as_array().unwrap();
    let sum: f64 = stages.iter().map(|s| s["share"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    assert_eq!(stages[4]["peer"], "bravo");
    assert_eq!(stages[4]["round-trip-us"], 60.0);
    assert_eq!(json["write"]["requests-per-second"], 24_200.0);
    assert_eq!(json["read"]["p99-us"], serde_json::Value::Null);
}
