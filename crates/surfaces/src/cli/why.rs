//! `why`: what is not as it should be with a resource, for what reason, and what to do.
//!
//! A pure function of the status and of what the engine remembers. It names what can be seen; it
//! guesses nothing.

use std::fmt::Write as _;

use codec::admin::{
    ConnectionStatus, DeviceStatus, Note, PeerDeviceStatus, ResourceStatus, SyncDetails,
};
use serde::Serialize;
use vocab::{Bytes, ConnState, DiskState, ReplState, Role};

/// One thing an operator should know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// The object.
    pub object: String,
    /// What is the case.
    pub fact: String,
    /// For what reason, as far as it can be seen; may be empty.
    pub reason: String,
    /// What to do; empty if nothing.
    pub next: String,
}

fn finding(object: impl Into<String>, fact: String, reason: String, next: &str) -> Finding {
    Finding { object: object.into(), fact, reason, next: next.to_owned() }
}

/// Everything worth knowing about `r`, from the outside in. Empty if all is well.
pub fn explain(r: &ResourceStatus) -> Vec<Finding> {
    let mut all = Vec::new();
    suspension(r, &mut all);
    for device in &r.devices {
        quorum(r, device, &mut all);
        disk(r, device, &mut all);
    }
    for connection in &r.connections {
        if connection.connection_state != ConnState::Connected {
            all.push(absent(connection));
        }
        for device in &connection.peer_devices {
            peer_device(connection, device, &mut all);
        }
    }
    if r.role != Role::Primary && !r.may_promote {
        all.push(no_promotion(r));
    }
    all
}

fn absent_names(r: &ResourceStatus) -> String {
    let absent = r.connections.iter().filter(|c| c.connection_state != ConnState::Connected);
    let names: Vec<_> = absent.map(|c| format!("{} ({})", c.name, c.connection_state)).collect();
    if names.is_empty() {
        "every peer is connected".to_owned()
    } else {
        format!("not connected: {}", names.join(", "))
    }
}

fn suspension(r: &ResourceStatus, all: &mut Vec<Finding>) {
    let s = r.suspended;
    let mut push = |set: bool, reason: String, next: &str| {
        if set {
            let fact = "I/O is suspended: requests wait".to_owned();
            all.push(finding(r.name.as_str(), fact, reason, next));
        }
    };
    push(s.user, "an operator suspended it".to_owned(), "`ashlar resume-io`");
    let reason = format!("no UpToDate data can be reached; {}", absent_names(r));
    push(s.no_data, reason, "attach the disk or connect a peer with UpToDate data");
    push(s.fencing, "a lost peer is not fenced yet".to_owned(), "bring the peer back or fence it");
    let reason = format!("quorum is lost; {}", absent_names(r));
    push(s.quorum || s.uuid_bridge, reason, "bring enough of the missing nodes back");
    if r.force_io_failures {
        let fact = "every I/O fails".to_owned();
        let reason = "it was made Secondary with --force while in use".to_owned();
        all.push(finding(r.name.as_str(), fact, reason, "close the volumes"));
    }
}

fn quorum(r: &ResourceStatus, d: &DeviceStatus, all: &mut Vec<Finding>) {
    if !d.quorum {
        let fact = "this partition has no quorum".to_owned();
        let next = "bring enough of the missing nodes back";
        all.push(finding(format!("volume {}", d.volume), fact, absent_names(r), next));
    }
}

fn disk(r: &ResourceStatus, d: &DeviceStatus, all: &mut Vec<Finding>) {
    let connections = r.connections.iter();
    let mut peers = connections.flat_map(|c| c.peer_devices.iter().map(move |p| (c, p)));
    let source = peers.find(|(_, p)| p.volume == d.volume && p.replication_state.is_target());
    let (reason, next) = match (d.disk_state, source) {
        (DiskState::UpToDate, _) => return,
        (DiskState::Diskless, _) if d.client => return,
        (DiskState::Diskless, _) => (
            "the disk was detached, by an operator or after an I/O error".to_owned(),
            "check the device, then `ashlar attach`",
        ),
        (DiskState::Failed | DiskState::Detaching, _) => {
            ("the disk reported an I/O error or is being detached".to_owned(), "check the device")
        }
        (DiskState::Attaching | DiskState::Negotiating, _) => {
            ("the attach is not complete".to_owned(), "")
        }
        (_, Some((c, p))) => {
            (format!("it is being resynced from {} ({})", c.name, p.replication_state), "")
        }
        (DiskState::Inconsistent, None) => (
            format!("its data is incomplete and no resync runs; {}", absent_names(r)),
            "connect a peer with UpToDate data",
        ),
        (DiskState::Outdated, None) => (
            format!("newer data exists elsewhere; {}", absent_names(r)),
            "connect the node that has it",
        ),
        (DiskState::Consistent | DiskState::DUnknown, None) => (
            format!("it is not known whether newer data exists elsewhere; {}", absent_names(r)),
            "connect the other nodes; `ashlar primary --force` decides it without them",
        ),
    };
    let fact = format!("the disk is {}", d.disk_state);
    all.push(finding(format!("volume {}", d.volume), fact, reason, next));
}

fn absent(c: &ConnectionStatus) -> Finding {
    let paths: Vec<_> =
        c.paths.iter().map(|p| format!("{} to {}", p.this_host, p.remote_host)).collect();
    let paths = match &paths[..] {
        [] => "it has no path".to_owned(),
        paths => format!("tried: {}", paths.join(", ")),
    };
    let (reason, next) = match c.connection_state {
        ConnState::StandAlone => (
            "nobody tries to connect: an operator disconnected it, or the handshake failed for \
             good (split brain, unrelated data, different options)"
                .to_owned(),
            "look at what happened below, then `ashlar connect`",
        ),
        ConnState::Connecting | ConnState::Unconnected => (
            format!("the peer does not answer; {paths}"),
            "check the node, its engine, and the network between",
        ),
        ConnState::Connected => unreachable!("only called for connections that are not"),
        _ => (format!("the connection was just lost; {paths}"), "wait: it is tried again"),
    };
    let fact = format!("not connected ({})", c.connection_state);
    finding(format!("connection to {}", c.name), fact, reason, next)
}

fn peer_device(c: &ConnectionStatus, p: &PeerDeviceStatus, all: &mut Vec<Finding>) {
    let object = format!("volume {} towards {}", p.volume, c.name);
    let differ = Bytes(p.out_of_sync * 1024);
    if let Some(sync) = &p.sync {
        let mut fact = format!("{}, {:.2} % done", p.replication_state, sync.percent_resync_done);
        if sync.estimated_seconds_to_finish != SyncDetails::ETA_UNKNOWN {
            write!(fact, ", {} s left", sync.estimated_seconds_to_finish)
                .expect("a String takes everything");
        }
        let (reason, next) = match p.resync_suspended.any() {
            false => (format!("{differ} differ"), ""),
            true => (format!("it rests: {}", p.resync_suspended), "`ashlar resume-sync` if paused"),
        };
        all.push(finding(object, fact, reason, next));
    } else if p.replication_state == ReplState::Established && p.out_of_sync > 0 {
        let fact = format!("{differ} differ and no resync runs");
        let reason = "a verify found them, or writes failed on one side".to_owned();
        all.push(finding(object, fact, reason, "disconnect and connect to resync them"));
    } else if p.replication_state == ReplState::Off && p.out_of_sync > 0 {
        let fact = format!("{differ} are to be resynced");
        let reason = "they were written while the peer was away".to_owned();
        all.push(finding(object, fact, reason, ""));
    }
}

fn no_promotion(r: &ResourceStatus) -> Finding {
    let primary = r.connections.iter().find(|c| c.peer_role == Role::Primary);
    let (reason, next) = match primary {
        Some(peer) => (
            format!("{} is Primary", peer.name),
            "nothing while it is used there; to move it here, close its clients there, or run \
             `ashlar secondary` there",
        ),
        None if r.devices.is_empty() => {
            ("it has no volume".to_owned(), "configure one, then `ashlar adjust`")
        }
        None if r.devices.iter().any(|d| !d.quorum) => {
            ("there is no quorum".to_owned(), "bring enough of the missing nodes back")
        }
        None => (
            "not every volume has UpToDate data in reach".to_owned(),
            "attach the disk or connect a node with UpToDate data; `ashlar primary --force` gives \
             newer data elsewhere up",
        ),
    };
    finding(r.name.as_str(), "it could not become Primary now".to_owned(), reason, next)
}

/// The explanation as text.
pub fn render(r: &ResourceStatus, findings: &[Finding], notes: &[Note]) -> String {
    let mut out = format!("{} is {} on node {}\n", r.name, r.role, r.node_id);
    if findings.is_empty() {
        out.push_str("Everything is as it should be.\n");
    }
    for f in findings {
        let _ = writeln!(out, "\n{}: {}", f.object, f.fact);
        if !f.reason.is_empty() {
            let _ = writeln!(out, "  why:  {}", f.reason);
        }
        if !f.next.is_empty() {
            let _ = writeln!(out, "  next: {}", f.next);
        }
    }
    if !notes.is_empty() {
        out.push_str("\nWhat happened:\n");
    }
    for note in notes {
        let _ = writeln!(out, "  {:>9} ago  {}: {}", age(note.age_seconds), note.object, note.text);
    }
    out
}

/// A rough age: the two largest units.
fn age(seconds: u64) -> String {
    let (m, h, d) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{m} m {} s", seconds % 60),
        3600..86_400 => format!("{h} h {} m", m % 60),
        _ => format!("{d} d {} h", h % 24),
    }
}
