//! Event lines of changes, plans, explanations, and the small parsers.

use codec::admin::{Event, Note, SyncDetails};
use codec::config::ResourceConfig;
use vocab::{ConnState, DiskState, ReplState, Role};

use super::super::events::{Lines, Style};
use super::super::objects::Object;
use super::super::plan::{Limits, Running, plan};
use super::super::why;
use super::{ResourceStatus, configured, recordings};

fn calm() -> ResourceStatus {
    recordings().remove(0).status()
}

/// A watcher that has seen `status`.
fn watching(status: &ResourceStatus, statistics: bool) -> Lines {
    let mut lines = Lines::new(statistics);
    lines.event(Event::Resource(status.clone()));
    lines.event(Event::Current);
    lines
}

#[test]
fn a_change_line_has_only_the_groups_that_changed() {
    let mut status = calm();
    let mut lines = watching(&status, false);
    assert!(lines.event(Event::Resource(status.clone())).is_empty());

    status.role = Role::Primary;
    status.may_promote = false;
    status.connections[0].connection_state = ConnState::NetworkFailure;
    status.connections[0].peer_role = Role::Unknown;
    status.connections[0].paths[0].established = false;
    let device = &mut status.connections[0].peer_devices[0];
    device.replication_state = ReplState::Off;
    device.peer_disk_state = DiskState::DUnknown;
    assert_eq!(
        lines.event(Event::Resource(status.clone())),
        [
            "change resource name:r0 role:Primary may_promote:no promotion_score:10102",
            "change connection name:r0 peer-node-id:1 conn-name:g12 connection:NetworkFailure role:Unknown",
            "change peer-device name:r0 peer-node-id:1 conn-name:g12 volume:0 replication:Off peer-disk:DUnknown peer-client:no",
            "change path name:r0 peer-node-id:1 conn-name:g12 local:ipv4:10.77.0.11:7788 peer:ipv4:10.77.0.12:7788 established:no",
        ]
    );

    status.devices[0].quorum = false;
    assert_eq!(
        lines.event(Event::Resource(status.clone())),
        [
            "change device name:r0 volume:0 minor:0 backing_dev:/dev/vda disk:UpToDate client:no quorum:no"
        ]
    );

    let device = &mut status.connections[0].peer_devices[0];
    device.sync = Some(SyncDetails { percent_resync_done: 12.345, ..Default::default() });
    assert_eq!(
        lines.event(Event::Resource(status.clone())),
        ["change peer-device name:r0 peer-node-id:1 conn-name:g12 volume:0 done:12.35"]
    );
}

#[test]
fn full_lines_have_all_values_and_differences_the_old_ones() {
    let mut status = calm();
    let mut full = Lines::with(Style { full: true, ..Style::default() });
    let first = full.event(Event::Resource(status.clone()));
    assert!(first.iter().any(|l| l.starts_with("exists device") && l.ends_with("blocked:no")));
    full.event(Event::Current);
    let mut diff = Lines::with(Style { diff: true, ..Style::default() });
    let first = diff.event(Event::Resource(status.clone()));
    assert!(first[0].contains(" role:UNKNOWN->Secondary "), "{}", first[0]);
    assert!(
        first[0].ends_with(" may_promote:UNKNOWN->yes promotion_score:0->10102"),
        "{}",
        first[0]
    );
    diff.event(Event::Current);

    status.devices[0].quorum = false;
    assert_eq!(
        full.event(Event::Resource(status.clone())),
        ["change device name:r0 volume:0 minor:0 backing_dev:/dev/vda disk:UpToDate client:no \
          quorum:no size:16344 read:0 written:0 al-writes:0 bm-writes:1 upper-pending:0 \
          lower-pending:0 al-suspended:no"]
    );
    assert_eq!(
        diff.event(Event::Resource(status.clone())),
        ["change device name:r0 volume:0 minor:0 backing_dev:/dev/vda disk:UpToDate client:no \
          quorum:yes->no"]
    );
    status.devices[0].blocked.upper = true;
    let lines = full.event(Event::Resource(status));
    assert!(lines[0].ends_with(" al-suspended:no blocked:upper"), "{lines:?}");
}

#[test]
fn statistics_that_were_asked_for_leave_states_to_their_events() {
    let mut status = calm();
    let mut lines = watching(&status, true);
    status.devices[0].written = 8;
    let line = "change device name:r0 volume:0 minor:0 size:16344 read:0 written:8 al-writes:0 \
                bm-writes:1 upper-pending:0 lower-pending:0 al-suspended:no";
    assert_eq!(lines.refresh(status.clone()), [line]);
    status.role = Role::Primary;
    status.devices[0].written = 16;
    assert!(lines.refresh(status.clone()).is_empty(), "the event of the role is on its way");
    assert_eq!(lines.event(Event::Resource(status.clone())).len(), 2);
    status.name = "r9".to_owned();
    assert!(lines.refresh(status).is_empty(), "its creation is an event, too");
}

#[test]
fn statistics_alone_make_a_line_only_if_asked_for() {
    let mut status = calm();
    let (mut without, mut with) = (watching(&status, false), watching(&status, true));
    status.devices[0].read += 8;
    assert!(without.event(Event::Resource(status.clone())).is_empty());
    assert_eq!(
        with.event(Event::Resource(status)),
        [
            "change device name:r0 volume:0 minor:0 size:16344 read:8 written:0 al-writes:0 bm-writes:1 upper-pending:0 lower-pending:0 al-suspended:no"
        ]
    );
}

#[test]
fn objects_are_created_from_outside_and_destroyed_from_inside() {
    let full = calm();
    let mut bare = full.clone();
    bare.connections.clear();
    let mut lines = watching(&bare, false);
    let created = lines.event(Event::Resource(full.clone()));
    let words: Vec<_> = created.iter().map(|l| l.split(' ').nth(1).unwrap()).collect();
    assert_eq!(words, ["connection", "connection", "peer-device", "path", "peer-device", "path"]);
    assert!(created.iter().all(|l| l.starts_with("create ")));

    let destroyed = lines.event(Event::Gone { resource: "r0".into() });
    assert_eq!(
        destroyed[0],
        "destroy path name:r0 peer-node-id:1 conn-name:g12 local:ipv4:10.77.0.11:7788 peer:ipv4:10.77.0.12:7788"
    );
    let words: Vec<_> = destroyed.iter().map(|l| l.split(' ').nth(1).unwrap()).collect();
    assert_eq!(
        words,
        [
            "path",
            "path",
            "peer-device",
            "peer-device",
            "connection",
            "connection",
            "device",
            "resource"
        ]
    );
    assert_eq!(destroyed[6], "destroy device name:r0 volume:0");
    assert_eq!(destroyed[7], "destroy resource name:r0");
    assert!(lines.event(Event::Gone { resource: "r0".into() }).is_empty());
}

const CONFIG: &str = "resource r0 {
  options { quorum majority; }
  disk { c-max-rate 200M; }
  volume 0 { device minor 1000; disk /dev/vg/a; }
  on alpha { node-id 0; address 10.0.0.1:7000; }
  on bravo { node-id 1; address 10.0.0.2:7000; }
  on charlie { node-id 2; address 10.0.0.3:7000; volume 0 { disk none; } }
  connection-mesh { hosts alpha bravo charlie; }
}";

fn alpha(text: &str) -> ResourceConfig {
    configured(text, "alpha").remove(0)
}

/// What `plan` says to get from the state of `from` to `to`.
fn check_plan(from: Option<&str>, to: &str, standalone: bool, expected: &[&str]) {
    let running = from.map(alpha);
    let mut status = calm();
    for (connection, peer) in status.connections.iter_mut().zip([1, 2]) {
        connection.peer_node_id = vocab::NodeId::new(peer).unwrap();
        if standalone {
            connection.connection_state = ConnState::StandAlone;
        }
    }
    let running = running.as_ref().map(|config| Running { config, status: &status });
    let steps = plan(&alpha(to), running, Limits::default()).unwrap();
    let words: Vec<_> = steps.iter().map(|s| s.what.as_str()).collect();
    assert_eq!(words, expected, "{to}");
}

#[test]
fn up_creates_in_stages_and_connects_last() {
    check_plan(
        None,
        CONFIG,
        false,
        &[
            "r0: create it as node 0",
            "r0: create volume 0 (minor 1000)",
            "r0: create the connection to bravo",
            "r0: create the connection to charlie",
            "r0: add path 10.0.0.1:7000 to 10.0.0.2:7000 of bravo",
            "r0: add path 10.0.0.1:7000 to 10.0.0.3:7000 of charlie",
            "r0: set options of volume 0 towards bravo (c-max-rate)",
            "r0: set options of volume 0 towards charlie (c-max-rate, bitmap)",
            "r0: attach /dev/vg/a to volume 0",
            "r0: connect to bravo",
            "r0: connect to charlie",
        ],
    );
}

#[test]
fn adjust_does_what_differs_and_nothing_else() {
    let to = |from: &str, to: &str| CONFIG.replace(from, to);
    let check = |text: String, expected: &[&str]| check_plan(Some(CONFIG), &text, false, expected);
    check(CONFIG.to_owned(), &[]);
    check(to("quorum majority", "quorum off"), &["r0: change its options"]);
    check(to("200M;", "200M; al-extents 99;"), &["r0: change the disk options of volume 0"]);
    check(
        to("disk { c-max", "net { ping-int 20; } disk { c-max"),
        &[
            "r0: change the options of the connection to bravo",
            "r0: change the options of the connection to charlie",
        ],
    );
    check(
        to("/dev/vg/a", "/dev/vg/b"),
        &[
            "r0: detach the disk of volume 0 (another disk is configured)",
            "r0: attach /dev/vg/b to volume 0",
        ],
    );
    check(
        to("10.0.0.2:7000", "10.0.0.2:7001"),
        &[
            "r0: disconnect from bravo (its paths are replaced)",
            "r0: remove path 10.0.0.1:7000 to 10.0.0.2:7000 of bravo",
            "r0: add path 10.0.0.1:7000 to 10.0.0.2:7001 of bravo",
            "r0: connect to bravo",
        ],
    );
    check(
        to("hosts alpha bravo charlie", "hosts alpha bravo"),
        &["r0: remove the connection to charlie"],
    );
    check(
        to("minor 1000", "minor 1001"),
        &[
            "r0: detach the disk of volume 0 (remove the volume)",
            "r0: remove volume 0 (minor 1000)",
            "r0: create volume 0 (minor 1001)",
            "r0: attach /dev/vg/a to volume 0",
        ],
    );
    check(
        to("on alpha { node-id 0;", "on alpha { node-id 0; disk none;"),
        &["r0: detach the disk of volume 0 (no disk is configured)"],
    );
    check_plan(Some(CONFIG), CONFIG, true, &["r0: connect to bravo", "r0: connect to charlie"]);
}

#[test]
fn a_node_id_can_not_be_adjusted() {
    let (running, wanted) = (alpha(CONFIG), alpha(&CONFIG.replace("node-id 0", "node-id 5")));
    let status = calm();
    let running = Running { config: &running, status: &status };
    let error = plan(&wanted, Some(running), Limits::default()).unwrap_err().to_string();
    assert_eq!(error, "it runs as node 0 and is configured as node 5; take it down first");
}

#[test]
fn limits_leave_disks_or_connections_alone() {
    let wanted = alpha(CONFIG);
    let all = plan(&wanted, None, Limits::default()).unwrap();
    let without = |limits| {
        let steps = plan(&wanted, None, limits).unwrap();
        let left_out = all.iter().filter(|step| !steps.contains(step));
        left_out.map(|step| step.what.split(' ').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(without(Limits { skip_disk: true, ..Limits::default() }), ["attach"]);
    assert_eq!(without(Limits { skip_net: true, ..Limits::default() }).len(), 8);
}

#[test]
fn why_says_that_all_is_well_or_names_cause_and_next_step() {
    let mut status = calm();
    assert_eq!(
        why::render(&status, &why::explain(&status), &[]),
        "r0 is Secondary on node 0\nEverything is as it should be.\n"
    );
    status.role = Role::Primary;
    status.suspended.quorum = true;
    status.devices[0].quorum = false;
    status.connections[1].connection_state = ConnState::StandAlone;
    let device = &mut status.connections[0].peer_devices[0];
    device.replication_state = ReplState::SyncSource;
    device.out_of_sync = 2048;
    device.sync = Some(SyncDetails {
        percent_resync_done: 50.0,
        estimated_seconds_to_finish: 9,
        ..Default::default()
    });
    let notes = [Note {
        age_seconds: 3700,
        object: "connection to g13".into(),
        text: "split brain".into(),
    }];
    let expected = "\
r0 is Primary on node 0

r0: I/O is suspended: requests wait
  why:  quorum is lost; not connected: g13 (StandAlone)
  next: bring enough of the missing nodes back

volume 0: this partition has no quorum
  why:  not connected: g13 (StandAlone)
  next: bring enough of the missing nodes back

volume 0 towards g12: SyncSource, 50.00 % done, 9 s left
  why:  2 MiB differ

connection to g13: not connected (StandAlone)
  why:  nobody tries to connect: an operator disconnected it, or the handshake failed for good (split brain, unrelated data, different options)
  next: look at what happened below, then `ashlar connect`

What happened:
    1 h 1 m ago  connection to g13: split brain
";
    assert_eq!(why::render(&status, &why::explain(&status), &notes), expected);
}

#[test]
fn whoever_can_not_become_primary_is_told_what_to_do() {
    let next = |change: fn(&mut ResourceStatus)| {
        let mut status = calm();
        status.may_promote = false;
        change(&mut status);
        let findings = why::explain(&status);
        let finding = findings.iter().find(|f| f.fact.contains("could not become Primary"));
        finding.expect("it is explained").next.clone()
    };
    assert!(next(|s| s.connections[0].peer_role = Role::Primary).contains("ashlar secondary"));
    assert!(next(|s| s.devices.clear()).contains("ashlar adjust"));
    assert!(next(|s| s.devices[0].quorum = false).contains("missing nodes"));
    assert!(next(|_| {}).contains("connect a node with UpToDate data"));
}

#[test]
fn every_recorded_state_can_be_explained() {
    for recording in recordings() {
        let status = recording.status();
        let findings = why::explain(&status);
        let disconnected =
            status.connections.iter().any(|c| c.connection_state != ConnState::Connected);
        assert_eq!(findings.iter().any(|f| f.fact.starts_with("not connected")), disconnected);
    }
}

#[test]
fn objects_are_named_as_drbdadm_names_them() {
    for text in ["all", "r0", "r0/1", "r0:bravo", "r0:bravo/65534", "minor-7"] {
        assert_eq!(text.parse::<Object>().unwrap().to_string(), text);
    }
    for text in ["", "/0", "r0/x", "r0/65535", "r0:", ":bravo"] {
        assert!(text.parse::<Object>().is_err(), "{text}");
    }
}

#[test]
fn an_object_selects_by_name_number_or_minor() {
    let resources = configured(CONFIG, "alpha");
    let select = |text: &str| {
        let selections = text.parse::<Object>().unwrap().select(&resources, "look again");
        selections.map(|s| (s[0].peers.len(), s[0].volumes.len())).map_err(|e| e.to_string())
    };
    assert_eq!(select("all"), Ok((2, 1)));
    assert_eq!(select("r0:charlie"), Ok((1, 1)));
    assert_eq!(select("r0:2/0"), Ok((1, 1)));
    assert_eq!(select("minor-1000"), Ok((2, 1)));
    assert_eq!(select("r1").unwrap_err(), "r1: there is no such resource; look again");
    assert_eq!(
        select("r0:delta").unwrap_err(),
        "r0:delta: no such peer; its peers are bravo, charlie"
    );
    assert_eq!(select("r0/3").unwrap_err(), "r0/3: no such volume; its volumes are 0");
}
