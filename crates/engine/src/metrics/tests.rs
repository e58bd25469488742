//! The text, and what the server makes of requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use codec::admin::{
    Blocked, ConnectionStatistics, Parallel, ResyncSuspended, RoundTrip, WriteOrdering,
};
use vocab::{Minor, NodeId, ReplState, Suspended, VolumeNr};

use super::*;

fn node(id: u8) -> NodeId {
    NodeId::new(id).unwrap()
}

fn took(each: Duration, requests: u64) -> Histogram {
    let mut histogram = Histogram::default();
    histogram.record(each, requests);
    histogram
}

/// A resource with a name that has to be escaped.
fn snapshot() -> Snapshot {
    let peer_device = PeerDeviceStatus {
        volume: VolumeNr(0),
        replication_state: ReplState::Established,
        peer_disk_state: DiskState::UpToDate,
        peer_client: false,
        resync_suspended: ResyncSuspended::default(),
        received: 1,
        sent: 2,
        out_of_sync: 3,
        pending: 4,
        unacked: 5,
        has_sync_details: false,
        has_online_verify_details: false,
        percent_in_sync: 99.5,
        sync: None,
        verify: None,
    };
    let status = ResourceStatus {
        name: "a\"b\\c".into(),
        node_id: node(0),
        role: Role::Primary,
        suspended: Suspended::default(),
        force_io_failures: false,
        write_ordering: WriteOrdering::Flush,
        may_promote: true,
        promotion_score: 10_101,
        devices: vec![DeviceStatus {
            volume: VolumeNr(0),
            minor: Minor(7),
            disk_state: DiskState::UpToDate,
            client: false,
            open: Some(true),
            backing_dev: None,
            quorum: true,
            size: 4,
            read: 8,
            written: 16,
            al_writes: 17,
            bm_writes: 18,
            sb_writes: Some(19),
            upper_pending: 20,
            lower_pending: 21,
            al_suspended: false,
            blocked: Blocked::default(),
        }],
        connections: vec![ConnectionStatus {
            peer_node_id: node(1),
            name: "bravo".into(),
            connection_state: ConnState::Connected,
            congested: false,
            peer_role: Role::Secondary,
            tls: None,
            ap_in_flight: 8,
            rs_in_flight: 0,
            paths: Vec::new(),
            peer_devices: vec![peer_device],
        }],
    };
    let (ms, us) = (Duration::from_millis(2), Duration::from_micros);
    let mut write = Waterfall {
        total: took(ms, 3),
        front_end: took(us(10), 3),
        admission: took(us(0), 3),
        activity_log: took(us(0), 3),
        disk: Parallel { latency: took(us(500), 3), decided_ns: 0 },
        peers: Vec::new(),
        completion: took(us(10), 3),
    };
    *write.peer_mut(node(1)) = Parallel { latency: took(us(1980), 3), decided_ns: 5_940_000 };
    let none = Traffic::default();
    let statistics = ResourceStatistics {
        name: "a\"b\\c".into(),
        taken_ns: 1,
        volumes: vec![VolumeStatistics {
            volume: VolumeNr(0),
            minor: Minor(7),
            in_flight: 22,
            reads: none,
            writes: Traffic { requests: 3, bytes: 12_288 },
            discards: none,
            zeroes: none,
            flushes: none,
            replica_writes: none,
            read: None,
            write: Some(Box::new(write)),
            replica: None,
        }],
        connections: vec![ConnectionStatistics {
            peer_node_id: node(1),
            name: "bravo".into(),
            queued_bytes: 23,
            round_trip: Some(RoundTrip { least_us: 50, smoothed_us: 80 }),
        }],
    };
    let info = EngineInfo {
        version: "1.2.3".into(),
        pid: 1,
        uptime_seconds: 24,
        protocols: (122, 122),
        resources: 1,
        faces: Vec::new(),
        standby: None,
    };
    Snapshot { info, status: vec![status], statistics: vec![statistics] }
}

#[test]
fn samples_have_drbd_reactors_names_and_labels() {
    let text = render(&snapshot(), Format::Prometheus);
    let device = r#"name="a\"b\\c",volume="0",minor="7""#;
    let peer = r#"name="a\"b\\c",conn_name="bravo",peer_node_id="1""#;
    for line in [
        r#"drbd_resource_role{name="a\"b\\c",drbd_resource_role="Primary"} 1"#.to_owned(),
        r#"drbd_resource_role{name="a\"b\\c",drbd_resource_role="Secondary"} 0"#.to_owned(),
        format!("drbd_device_state{{{device},drbd_device_state=\"UpToDate\"}} 1"),
        format!("drbd_device_read_bytes_total{{{device}}} 8192"),
        format!("drbd_device_alwrites_total{{{device}}} 17"),
        format!("drbd_device_upperpending{{{device}}} 20"),
        format!("drbd_connection_state{{{peer},drbd_connection_state=\"Connected\"}} 1"),
        format!("drbd_connection_apinflight_bytes{{{peer}}} 4096"),
        format!("drbd_peerdevice_outofsync_bytes{{{peer},volume=\"0\"}} 3072"),
        "ashlar_version{version=\"1.2.3\"} 1".to_owned(),
        "ashlar_uptime_seconds 24".to_owned(),
        format!("ashlar_requests_total{{{device},op=\"write\"}} 3"),
        format!("ashlar_requests_in_flight{{{device}}} 22"),
        format!("ashlar_request_seconds_bucket{{{device},op=\"write\",le=\"0.001024\"}} 0"),
        format!("ashlar_request_seconds_bucket{{{device},op=\"write\",le=\"0.002048\"}} 3"),
        format!("ashlar_request_seconds_bucket{{{device},op=\"write\",le=\"+Inf\"}} 3"),
        format!("ashlar_request_seconds_sum{{{device},op=\"write\"}} 0.006"),
        format!("ashlar_request_seconds_count{{{device},op=\"write\"}} 3"),
        format!("ashlar_stage_seconds_count{{{device},op=\"write\",stage=\"disk\"}} 3"),
        format!("ashlar_decided_seconds_total{{{device},op=\"write\",by=\"disk\"}} 0"),
        format!(
            "ashlar_decided_seconds_total{{{device},op=\"write\",by=\"peer\",conn_name=\"bravo\"}} \
             0.00594"
        ),
        format!("ashlar_connection_round_trip_seconds{{{peer},estimate=\"least\"}} 0.00005"),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
    }
}

/// Every metric is declared once, and its samples follow it.
#[test]
fn both_formats_are_in_order() {
    for format in [Format::Prometheus, Format::OpenMetrics] {
        let text = render(&snapshot(), format);
        let (mut declared, mut current, mut kind) = (Vec::new(), "", "");
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                (current, kind) = rest.split_once(' ').unwrap();
                assert!(!declared.contains(&current), "{current} twice");
                declared.push(current);
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let suffix = name.strip_prefix(current).expect(line);
                let expected: &[&str] = match (kind, format) {
                    ("histogram", _) => &["_bucket", "_sum", "_count"],
                    ("counter", Format::OpenMetrics) => &["_total"],
                    _ => &[""],
                };
                assert!(expected.contains(&suffix), "{line}: {kind} {current}");
                assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
        assert_eq!(text.ends_with("\n# EOF\n"), format == Format::OpenMetrics);
        assert!(declared.len() > 30, "{declared:?}");
    }
}

/// Sends bytes to a server and gives back what it answers.
fn ask(request: &[u8], patience: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.write_all(request).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let server = std::thread::spawn(move || {
        let _ = server::client(accepted, patience, || Some(snapshot()));
    });
    let mut answer = Vec::new();
    // What the server did not read makes the end an error; the answer has come before.
    let _ = stream.read_to_end(&mut answer);
    let _ = stream.shutdown(Shutdown::Both);
    server.join().unwrap();
    String::from_utf8(answer).unwrap()
}

#[test]
fn the_server_answers_what_it_understands() {
    let long = Duration::from_secs(30);
    let get =
        |headers: &str| ask(format!("GET /metrics HTTP/1.1\r\n{headers}\r\n").as_bytes(), long);
    let answer = get("Host: x\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    assert_eq!(body, render(&snapshot(), Format::Prometheus));
    let open = get("accept: application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1\r\n");
    assert!(open.ends_with("# EOF\n") && open.contains("application/openmetrics-text"));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("GET /metrics?x=1 HTTP/1.0\r\n\r\n".to_owned(), "200"),
        ("POST /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
        ("\0\0\0\0\r\n\r\n".to_owned(), "400"),
        (format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(20_000)), "431"),
        (format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100)), "431"),
    ] {
        let answer = ask(request.as_bytes(), long);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.60}: {answer:.60}");
    }
}

#[test]
fn a_request_that_does_not_end_is_ended() {
    let answer = ask(b"GET /metrics HTTP/1.1\r\n", Duration::from_millis(20));
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}
