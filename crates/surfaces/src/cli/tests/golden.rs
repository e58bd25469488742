//! The text of status and events is what drbdsetup printed on real nodes, byte for byte.

use codec::admin::{Event, SyncDetails};
use vocab::{ConnState, DiskState, ReplState, Role};

use super::super::events::Lines;
use super::super::status::{View, render};
use super::{ResourceStatus, recordings};

const FULL: View = View { verbose: 1, statistics: true, width: 80, terminal: false, color: false };

#[test]
fn status_text_equals_what_drbdsetup_printed() {
    for recording in recordings() {
        let text = render(&[recording.status()], FULL);
        assert_eq!(text, recording.plain, "{}", recording.file);
    }
}

#[test]
fn verbose_status_without_statistics_equals_what_drbdsetup_printed() {
    let expected = include_str!("../../../testdata/status/08-quorum-lost.g11.plain");
    let recording = recordings().into_iter().find(|r| r.file.starts_with("08")).unwrap();
    let mut status = recording.status();
    status.suspended.quorum = true;
    status.role = Role::Primary;
    status.devices[0].quorum = false;
    status.devices[0].blocked.upper = true;
    for connection in &mut status.connections {
        connection.connection_state = ConnState::Connecting;
        connection.peer_role = Role::Unknown;
        let device = &mut connection.peer_devices[0];
        device.replication_state = ReplState::Off;
        device.peer_disk_state = DiskState::DUnknown;
    }
    let expected = expected.split("\n\n").next().unwrap();
    assert_eq!(render(&[status], View { statistics: false, ..FULL }), format!("{expected}\n\n"));
}

#[test]
fn json_keeps_every_recorded_key_and_value() {
    for recording in recordings() {
        let recorded: serde_json::Value = serde_json::from_str(recording.json).unwrap();
        let ours = serde_json::to_value([recording.status()]).unwrap();
        assert_includes(&ours, &recorded, recording.file);
    }
}

/// Everything in `part` is in `whole`, with the same value.
fn assert_includes(whole: &serde_json::Value, part: &serde_json::Value, at: &str) {
    match part {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                assert_includes(&whole[key], value, &format!("{at}.{key}"));
            }
        }
        serde_json::Value::Array(list) => {
            assert_eq!(whole.as_array().map(Vec::len), Some(list.len()), "{at}");
            for (i, value) in list.iter().enumerate() {
                assert_includes(&whole[i], value, &format!("{at}[{i}]"));
            }
        }
        value => assert_eq!(whole, value, "{at}"),
    }
}

#[test]
fn the_dump_of_events_has_the_recorded_lines() {
    for recording in recordings() {
        let mut lines = Lines::new(true);
        let mut ours = lines.event(Event::Resource(recording.status()));
        ours.extend(lines.event(Event::Current));
        assert_eq!(ours.last().map(String::as_str), Some("exists -"));
        // drbdsetup prints connections in the order of their creation, which is not recorded.
        let mut recorded = recording.events.clone();
        recorded.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, recorded, "{}", recording.file);
    }
}

/// The first three-node status: a Secondary with all peers connected.
fn calm() -> ResourceStatus {
    recordings().remove(0).status()
}

#[test]
fn terse_status_shows_what_is_not_as_usual() {
    let mut status = calm();
    status.role = Role::Primary;
    status.devices[0].open = Some(true);
    let expected = "\
r0 role:Primary
  disk:UpToDate open:yes
  g12 role:Secondary
    peer-disk:UpToDate
  g13 role:Secondary
    peer-disk:Diskless peer-client:yes

";
    assert_eq!(render(&[status.clone()], View::default()), expected);

    let device = &mut status.connections[0].peer_devices[0];
    device.replication_state = ReplState::SyncSource;
    device.peer_disk_state = DiskState::Inconsistent;
    device.sync = Some(SyncDetails { percent_resync_done: 37.5, ..Default::default() });
    device.resync_suspended.user = true;
    status.connections[1].connection_state = ConnState::Connecting;
    status.suspended.no_data = true;
    let expected = "\
r0 role:Primary suspended:no-data
  disk:UpToDate open:yes
  g12 role:Secondary
    replication:SyncSource peer-disk:Inconsistent done:37.50
        resync-suspended:user
  g13 connection:Connecting

";
    assert_eq!(render(&[status], View::default()), expected);
}

#[test]
fn volumes_are_numbered_unless_there_is_only_volume_0() {
    let mut status = calm();
    status.connections.truncate(1);
    status.devices[0].volume = vocab::VolumeNr(1);
    status.connections[0].peer_devices[0].volume = vocab::VolumeNr(1);
    let text = render(&[status], View::default());
    assert!(
        text.contains("  volume:1 disk:UpToDate\n") && text.contains("    volume:1 peer-disk:")
    );
}

#[test]
fn resources_and_connections_are_sorted_by_name() {
    let (mut a, mut b) = (calm(), calm());
    a.name = "a".into();
    b.name = "b".into();
    a.connections.reverse();
    let text = render(&[b, a], View::default());
    let names: Vec<_> = text
        .lines()
        .filter(|l| l.contains(" role:"))
        .map(|l| l.trim().split(' ').next().unwrap())
        .collect();
    assert_eq!(names, ["a", "g12", "g13", "b", "g12", "g13"]);
}

#[test]
fn colour_changes_no_text() {
    let color = View { color: true, ..FULL };
    for recording in recordings() {
        let text = render(&[recording.status()], color);
        assert!(text.contains("\x1b["));
        let mut plain = String::new();
        for (i, part) in text.split("\x1b[").enumerate() {
            plain.push_str(if i == 0 { part } else { part.split_once('m').unwrap().1 });
        }
        assert_eq!(plain, recording.plain, "{}", recording.file);
    }
}

#[test]
fn very_verbose_status_adds_the_counters_of_a_resync() {
    let mut status = calm();
    let device = &mut status.connections[0].peer_devices[0];
    device.sync = Some(SyncDetails {
        rs_total: 160,
        rate1: 81.2,
        estimated_seconds_to_finish: 12,
        ..Default::default()
    });
    let text = render(&[status], View { verbose: 2, ..FULL });
    assert!(text.contains("rs-total:160") && text.contains("dbdt1:81.20 eta:12"), "{text}");
}
