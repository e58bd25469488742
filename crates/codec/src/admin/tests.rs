//! Calls and replies survive the socket, and what is not understood is refused.

use std::net::SocketAddr;
use std::time::Duration;

use vocab::options::{DiskOptions, NetOptions, Options, ResourceOptions};
use vocab::{
    ConfigError, ConnState, DiskState, Histogram, Minor, NodeId, Refusal, ReplState, Role, Sector,
    StateError, Suspended, VolumeNr,
};

use super::*;
use crate::config::{Handlers, MetaDisk, PathConfig};

fn node(id: u8) -> NodeId {
    NodeId::new(id).unwrap()
}

fn call(request: Request) -> Call {
    Call { version: VERSION, id: 7, timeout_ms: 5000, request }
}

fn check_call(request: Request) {
    let call = call(request);
    let line = encode_line(&call);
    assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1, "a call is one line");
    assert_eq!(Call::decode(&line[..line.len() - 1]).unwrap(), call);
}

#[test]
fn calls_round_trip() {
    let resource = || "r0".to_owned();
    let path = PathConfig {
        local: "10.0.0.1:7000".parse::<SocketAddr>().unwrap(),
        remote: "[fd00::1]:7000".parse().unwrap(),
    };
    let mut options = ResourceOptions::default();
    options.set("quorum", "majority").unwrap();
    let handlers = Handlers::Helper;
    check_call(Request::NewResource { resource: resource(), node_id: node(31), options, handlers });
    let commands = [("fence-peer".to_owned(), "exit 4".to_owned())].into();
    let handlers = Handlers::Commands(commands);
    check_call(Request::Handlers { resource: resource(), handlers });
    let mut options = NetOptions::default();
    options.set("ping-int", "20").unwrap();
    let name = "bravo \"b\"\n".to_owned();
    check_call(Request::NewPeer { resource: resource(), peer: node(1), name, options });
    check_call(Request::NewPath { resource: resource(), peer: node(1), path });
    let meta_disk = MetaDisk::External { device: "/dev/m".into(), index: Some(3) };
    let options = DiskOptions::default();
    check_call(Request::Attach {
        minor: Minor(5),
        disk: "/dev/a".into(),
        meta_disk,
        options,
        luks: false,
    });
    for from in [None, Some(node(2))] {
        check_call(Request::Invalidate { minor: Minor(5), from, reset_bitmap: true });
    }
    let (start, stop) = (Sector(8), Some(Sector(16)));
    check_call(Request::Verify {
        resource: resource(),
        peer: node(1),
        volume: VolumeNr(0),
        start,
        stop,
    });
    for listen in [Listen::Unix("/run/x".into()), Listen::Tcp(path.local)] {
        let (volume, name) = (VolumeNr(0), "r0/0".to_owned());
        let read_only = volume == VolumeNr(0);
        check_call(Request::Export { resource: resource(), volume, name, listen, read_only });
    }
    check_call(Request::ForgetPeer { resource: resource(), peer: node(3) });
    check_call(Request::Identifiers { resource: resource(), peer: node(3), volume: VolumeNr(1) });
    check_call(Request::Status { resource: None });
    check_call(Request::Statistics { resource: Some(resource()) });
    check_call(Request::Exports);
    let (volume, options) = (VolumeNr(0), MapOptions { drbd_names: true, ..MapOptions::default() });
    check_call(Request::Map {
        resource: resource(),
        volume,
        options: MapOptions { face: Some(Face::Fuse), ..options },
    });
    check_call(Request::Map { resource: resource(), volume, options });
    check_call(Request::Unmap { resource: resource(), volume });
    check_call(Request::Maps);
    check_call(Request::Info);
}

#[test]
fn a_call_that_is_not_understood_is_answered_with_its_id() {
    let id_of = |text: &str| {
        let reply = Call::decode(text.as_bytes()).expect_err(text);
        let Outcome::Failed(failure) = reply.outcome else { panic!("{text}") };
        assert_eq!(failure.kind, FailureKind::BadCall);
        (reply.id, failure.text)
    };
    assert_eq!(id_of("").0, 0);
    assert_eq!(id_of("{\"id\":3,\"version\":1}").0, 3);
    let (id, text) =
        id_of(r#"{"id":4,"version":2,"timeout-ms":1,"request":{"command":"teleport"}}"#);
    assert_eq!((id, text.as_str()), (4, "the call is of version 2, the engine's is 1"));
    for request in [
        r#"{"command":"teleport"}"#,
        r#"{"command":"primary","resource":"r0"}"#,
        r#"{"command":"primary","resource":"r0","force":false,"hurry":true}"#,
        r#"{"command":"del-peer","resource":"r0","peer":32,"force":false}"#,
        r#"{"command":"new-resource","resource":"r0","node-id":0,"options":{"quorum":"33"}}"#,
    ] {
        let text = format!(r#"{{"id":5,"version":1,"timeout-ms":1,"request":{request}}}"#);
        assert_eq!(id_of(&text).0, 5, "{request}");
    }
}

#[test]
fn truncated_calls_are_refused_without_panic() {
    let meta_disk = MetaDisk::Internal;
    let options = DiskOptions::default();
    let request =
        Request::Attach { minor: Minor(5), disk: "/dev/a".into(), meta_disk, options, luks: false };
    let line = encode_line(&call(request));
    for end in 0..line.len() - 1 {
        assert!(Call::decode(&line[..end]).is_err());
    }
}

#[test]
fn refusals_keep_number_and_detail() {
    let refusals = [
        Refusal::state(StateError::NoQuorum, "volume 0 of r0 has 1 of 3 votes"),
        Refusal::config(ConfigError::UnknownResource, ""),
    ];
    for refusal in refusals {
        let reply = Line::Reply(Reply { id: 1, outcome: refusal.clone().into() });
        let line = encode_line(&reply);
        assert_eq!(serde_json::from_slice::<Line>(&line).unwrap(), reply);
        let text = String::from_utf8(line).unwrap();
        assert!(text.contains(&format!("\"number\":{}", refusal.number())), "{text}");
    }
}

/// A resource with every optional part present.
fn status() -> ResourceStatus {
    let sync = SyncDetails { rs_total: 100, percent_resync_done: 37.5, ..Default::default() };
    let path = PathStatus {
        this_host: "10.0.0.1:7000".parse().unwrap(),
        remote_host: "[fd00::1]:7000".parse().unwrap(),
        established: true,
    };
    let peer_device = PeerDeviceStatus {
        volume: VolumeNr(0),
        replication_state: ReplState::VerifyS,
        peer_disk_state: DiskState::UpToDate,
        peer_client: false,
        resync_suspended: ResyncSuspended { user: true, max_parallel: true, ..Default::default() },
        received: 1,
        sent: 2,
        out_of_sync: 3,
        pending: 4,
        unacked: 5,
        has_sync_details: true,
        has_online_verify_details: true,
        percent_in_sync: 99.5,
        sync: Some(sync),
        verify: Some(VerifyDetails { ov_left: 9, ..Default::default() }),
    };
    ResourceStatus {
        name: "r0".into(),
        node_id: node(0),
        role: Role::Primary,
        suspended: Suspended { no_data: true, quorum: true, ..Default::default() },
        force_io_failures: false,
        write_ordering: WriteOrdering::Drain,
        may_promote: false,
        promotion_score: 10_101,
        devices: vec![DeviceStatus {
            volume: VolumeNr(0),
            minor: Minor(1000),
            disk_state: DiskState::UpToDate,
            client: false,
            open: Some(true),
            backing_dev: Some("/dev/a".into()),
            quorum: true,
            size: 1,
            read: 2,
            written: 3,
            al_writes: 4,
            bm_writes: 5,
            sb_writes: Some(8),
            upper_pending: 6,
            lower_pending: 7,
            al_suspended: true,
            blocked: Blocked { upper: true, lower: false },
        }],
        connections: vec![ConnectionStatus {
            peer_node_id: node(1),
            name: "bravo".into(),
            connection_state: ConnState::Connected,
            congested: true,
            peer_role: Role::Secondary,
            tls: Some(false),
            ap_in_flight: 1,
            rs_in_flight: 2,
            paths: vec![path],
            peer_devices: vec![peer_device],
        }],
    }
}

#[test]
fn events_round_trip_with_every_optional_part_present_or_absent() {
    let full = status();
    let mut bare = full.clone();
    bare.devices[0].open = None;
    bare.devices[0].backing_dev = None;
    bare.connections[0].tls = None;
    let peer_device = &mut bare.connections[0].peer_devices[0];
    (peer_device.sync, peer_device.verify) = (None, None);
    let gone = Event::Gone { resource: "r0".into() };
    let helper = Event::Helper(HelperEvent {
        resource: "r0".into(),
        peer_node_id: Some(node(1)),
        conn_name: Some("bravo".into()),
        path: None,
        volume: Some(VolumeNr(0)),
        minor: None,
        helper: "before-resync-target".into(),
        status: Some(256),
    });
    for event in [Event::Resource(full), Event::Resource(bare), gone, Event::Current, helper] {
        let line = Line::Event(event);
        assert_eq!(serde_json::from_slice::<Line>(&encode_line(&line)).unwrap(), line);
    }
}

#[test]
fn status_has_drbdsetups_keys() {
    let json = serde_json::to_value(status()).unwrap();
    assert_eq!(json["suspended"], true);
    assert_eq!(json["suspended-no-data"], true);
    assert_eq!(json["suspended-user"], false);
    let connection = &json["connections"][0];
    assert_eq!(connection["paths"][0]["remote_host"]["family"], "ipv6");
    let peer_device = &connection["peer_devices"][0];
    assert_eq!(peer_device["resync-suspended"], "user,max-parallel");
    assert_eq!(peer_device["db/dt [MiB/s]"], 0.0);
    assert_eq!(peer_device["rs-dt-start-ms"], 0);
    assert_eq!(json["devices"][0]["blocked"], "upper");
}

#[test]
fn lines_are_cut_wherever_the_stream_is_split() {
    let stream = b"one\n\ntwo and more\nthree";
    for step in 1..stream.len() {
        let mut lines = Lines::new(12);
        let mut found = Vec::new();
        for chunk in stream.chunks(step) {
            lines.push(chunk);
            while let Some(line) = lines.next_line().unwrap() {
                found.push(String::from_utf8(line).unwrap());
            }
        }
        assert_eq!(found, ["one", "", "two and more"]);
    }
}

#[test]
fn a_line_beyond_the_limit_is_an_error_even_before_it_ends() {
    for tail in ["", "\n"] {
        let mut lines = Lines::new(4);
        lines.push(b"1234\n12345");
        lines.push(tail.as_bytes());
        assert_eq!(lines.next_line().unwrap().unwrap(), b"1234");
        assert_eq!(lines.next_line(), Err(LineTooLong { limit: 4 }));
    }
}

fn histogram(took: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    for us in took {
        histogram.record(Duration::from_micros(*us), 2);
    }
    histogram
}

/// A write that waited for the disk, and one that waited for a peer.
fn waterfall() -> Waterfall {
    let mut waterfall = Waterfall {
        total: histogram(&[130, 230]),
        front_end: histogram(&[10, 10]),
        admission: histogram(&[5, 5]),
        activity_log: histogram(&[0, 0]),
        disk: Parallel { latency: histogram(&[100, 20]), decided_ns: 200_000 },
        peers: Vec::new(),
        completion: histogram(&[15, 15]),
    };
    *waterfall.peer_mut(node(2)) = Parallel { latency: histogram(&[60, 200]), decided_ns: 400_000 };
    waterfall
}

fn statistics() -> ResourceStatistics {
    let writes = Traffic { requests: 4, bytes: 16384 };
    let round_trip = Some(RoundTrip { least_us: 80, smoothed_us: 110 });
    ResourceStatistics {
        name: "r0".into(),
        taken_ns: 7,
        volumes: vec![VolumeStatistics {
            volume: VolumeNr(0),
            minor: Minor(1000),
            in_flight: 3,
            reads: Traffic::default(),
            writes,
            discards: Traffic::default(),
            zeroes: Traffic::default(),
            flushes: Traffic { requests: 1, bytes: 0 },
            replica_writes: Traffic::default(),
            read: None,
            write: Some(Box::new(waterfall())),
            replica: Some(Box::new(ReplicaWaterfall {
                wait: histogram(&[1]),
                disk: histogram(&[2, 200_000_000]),
            })),
        }],
        connections: vec![ConnectionStatistics {
            peer_node_id: node(2),
            name: "charlie".into(),
            queued_bytes: 12,
            round_trip,
        }],
    }
}

#[test]
fn statistics_round_trip() {
    let reply = Reply { id: 1, outcome: Outcome::Ok(Answer::Statistics(vec![statistics()])) };
    let line = Line::Reply(reply);
    assert_eq!(serde_json::from_slice::<Line>(&encode_line(&line)).unwrap(), line);
    let json = serde_json::to_value(statistics()).unwrap();
    let volume = &json["volumes"][0];
    assert!(volume.get("read").is_none());
    let write = &volume["write"];
    assert_eq!(write["total"]["buckets"], serde_json::json!([[144, 2], [240, 2]]));
    assert_eq!(write["peers"][0]["decided-ns"], 400_000);
    assert_eq!(volume["replica"]["disk"]["buckets"][1], serde_json::json!([null, 2]));
    let mut wrong = json.clone();
    wrong["volumes"][0]["write"]["total"]["count"] = 5.into();
    assert!(serde_json::from_value::<ResourceStatistics>(wrong).is_err());
}

#[test]
fn stages_of_a_waterfall_add_up_also_in_differences() {
    let before = waterfall();
    assert_eq!(before.stages_sum(), before.total.sum());
    let mut after = before.clone();
    let took = Duration::from_micros;
    after.total.record(took(70), 3);
    after.front_end.record(took(20), 3);
    after.peer_mut(node(1)).latency.record(took(50), 3);
    after.peer_mut(node(1)).decided_ns += 150_000;
    let new = after.since(&before);
    assert_eq!((new.total.count(), new.total.sum()), (3, took(210)));
    assert_eq!(new.stages_sum(), took(210));
    assert_eq!(new.peers.len(), 2);
    assert_eq!(new.peers[0].parallel.decided_ns, 0);
}
