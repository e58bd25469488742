//! Command lines against a scripted engine: what it is asked, what is printed, and the exit status.

use std::fs;
use std::path::Path;

use codec::admin::{Answer, Event, Line, Outcome, Request, ResourceStatus};
use serde_json::{Value, json};
use vocab::{ConfigError, ConnState, Refusal, ReplState, StateError};

use super::super::files::Places;
use super::super::show::Dialect;
use super::super::{Machine, help, run, table};
use crate::cli::tests::engine::{Script, ok, serve};
use crate::cli::tests::{configured, recordings};

const RESOURCE: &str = "resource r0 {
  net { max-buffers 8000; }
  volume 0 { device minor 1000; disk /dev/vg/a; disk { al-extents 6007; } }
  on g11 { node-id 0; address 10.0.0.1:7000; }
  on g12 { node-id 1; address 10.0.0.2:7000; }
  on g13 { node-id 2; address 10.0.0.3:7000; volume 0 { disk none; } }
  connection-mesh { hosts g11 g12 g13; }
}";

struct Ran {
    status: u8,
    out: String,
    err: String,
    /// What the engine was asked, but for what it has to be asked for that.
    orders: Vec<Value>,
    /// Below it are the files that drbdadm shares.
    root: tempfile::TempDir,
}

/// Runs `drbdsetup WORDS` with `script` as the engine.
fn drbdsetup(words: &str, script: Option<Script>) -> Ran {
    drbdsetup_below(tempfile::tempdir().unwrap(), words, script)
}

fn drbdsetup_below(root: tempfile::TempDir, words: &str, script: Option<Script>) -> Ran {
    let socket = root.path().join("socket");
    let asked = script.map(|script| serve(&socket, script));
    let machine = Machine {
        socket: socket.clone(),
        places: Places::below(root.path()),
        dialect: Some(Dialect::Old),
    };
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = run(&words, &machine, &mut out, &mut err);
    // A command that failed early never connected: let the engine see a client and end.
    drop(std::os::unix::net::UnixStream::connect(&socket));
    let asked: Vec<Request> = asked.map(|asked| asked.iter().collect()).unwrap_or_default();
    let _ = fs::remove_file(&socket);
    let orders = asked.iter().map(|r| serde_json::to_value(r).unwrap());
    let reads = |r: &Value| ["config", "status"].iter().any(|name| r["command"] == *name);
    let orders = orders.filter(|r| !reads(r)).collect();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { status, out: text(out), err: text(err), orders, root }
}

fn status() -> ResourceStatus {
    let mut status = recordings().remove(0).status();
    status.devices[0].minor = vocab::Minor(1000);
    status
}

/// An engine that has r0 up and does everything.
fn up(request: &Request) -> (Outcome, Vec<Line>) {
    let named = |name: &Option<String>| name.as_deref().is_none_or(|name| name == "r0");
    match request {
        Request::Config { resource } => {
            let mut configs = configured(RESOURCE, "g11");
            configs.retain(|_| named(resource));
            ok(Answer::Config(configs))
        }
        Request::Status { resource } if named(resource) => ok(Answer::Status(vec![status()])),
        Request::Status { .. } => (Refusal::from(ConfigError::UnknownResource).into(), Vec::new()),
        Request::Identifiers { .. } => {
            ok(Answer::Identifiers("74CB3C491C033ED4:0:0:0:1:1:0:0:0:0:0:1:0:0:0:1".to_owned()))
        }
        Request::Events { .. } => {
            let lines = vec![Line::Event(Event::Resource(status())), Line::Event(Event::Current)];
            (Outcome::Ok(Answer::Done), lines)
        }
        _ => ok(Answer::Done),
    }
}

/// An engine that has nothing.
fn empty(request: &Request) -> (Outcome, Vec<Line>) {
    match request {
        Request::Config { .. } => ok(Answer::Config(Vec::new())),
        Request::Status { resource: None } => ok(Answer::Status(Vec::new())),
        Request::Status { .. } => (Refusal::from(ConfigError::UnknownResource).into(), Vec::new()),
        Request::Events { .. } => (Outcome::Ok(Answer::Done), vec![Line::Event(Event::Current)]),
        _ => ok(Answer::Done),
    }
}

fn check(words: &str, expected: Value) {
    let ran = drbdsetup(words, Some(up));
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{words}");
    assert_eq!(ran.orders, [expected], "{words}");
}

#[test]
fn commands_of_drbdadm_become_requests() {
    let peer = |command: &str| json!({ "command": command, "resource": "r0", "peer": 1 });
    let with = |mut base: Value, more: Value| {
        base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        base
    };
    check(
        "new-resource r1 0 --quorum=majority --on-no-quorum=io-error",
        json!({ "command": "new-resource", "resource": "r1", "handlers": "helper", "node-id": 0,
            "options": { "quorum": "majority", "on-no-quorum": "io-error" } }),
    );
    check(
        "new-minor r0 1001 1 --diskless",
        json!({ "command": "new-minor", "resource": "r0", "volume": 1, "minor": 1001,
            "options": { "diskless": "yes" } }),
    );
    check(
        "new-peer r0 3 --_name=bravo --max-buffers=8000 --protocol=a",
        json!({ "command": "new-peer", "resource": "r0", "peer": 3, "name": "bravo",
            "options": { "max-buffers": "8000", "protocol": "A" } }),
    );
    let path = json!({ "local": "10.0.0.1:7000", "remote": "[fd00::2]:7788" });
    check(
        "new-path r0 1 ipv4:10.0.0.1:7000 ipv6:[fd00::2]",
        with(peer("new-path"), json!({ "path": path })),
    );
    check(
        "peer-device-options r0 1 0 --set-defaults --c-max-rate=200M --bitmap=no",
        with(
            peer("peer-device-options"),
            json!({ "volume": 0, "options": { "c-max-rate": "204800k", "bitmap": "no" } }),
        ),
    );
    check(
        "attach 1000 /dev/vg/a /dev/vg/a internal --on-io-error=pass_on",
        json!({ "command": "attach", "minor": 1000, "disk": "/dev/vg/a", "meta-disk": "internal",
            "options": { "on-io-error": "pass_on" } }),
    );
    check(
        "attach 1000 dev/sdx /dev/sdz 2",
        json!({ "command": "attach", "minor": 1000, "disk": "/dev/sdx",
            "meta-disk": { "external": { "device": "/dev/sdz", "index": 2 } }, "options": {} }),
    );
    check("connect r0 1", with(peer("connect"), json!({ "discard-my-data": false })));
    check(
        "connect --discard-my-data r0 1",
        with(peer("connect"), json!({ "discard-my-data": true })),
    );
    check("disconnect r0 1 --force", with(peer("disconnect"), json!({ "force": true })));
    check("del-peer r0 1", with(peer("del-peer"), json!({ "force": false })));
    let detach = json!({ "command": "detach", "minor": 1000, "force": false, "diskless": true });
    check("detach --diskless 1000", detach);
    let primary = json!({ "command": "primary", "resource": "r0", "force": true });
    for words in [
        "primary r0 --force",
        "--force primary r0",
        "r0 primary --force",
        "primary --overwrite-data-of-peer r0",
        "primary r0 --fo=yes",
    ] {
        check(words, primary.clone());
    }
    check("outdate r0 1000", json!({ "command": "outdate", "minor": 1000 }));
    check("outdate /dev/drbd1000", json!({ "command": "outdate", "minor": 1000 }));
    check("suspend-io 1000", json!({ "command": "suspend-io", "resource": "r0" }));
    let invalidate = json!({ "command": "invalidate", "minor": 1000, "from": 1,
        "reset-bitmap": true });
    check("invalidate 1000 --sync-from-peer-node-id=1", invalidate.clone());
    check("invalidate 1000 --sync-from-peer-node-id -1", with(invalidate, json!({ "from": null })));
    check(
        "verify r0 1 0 --start 1M --stop=4096s",
        with(peer("verify"), json!({ "volume": 0, "start": 2048, "stop": 4096 })),
    );
    check("pause-sync r0 1 0", with(peer("pause-sync"), json!({ "volume": 0 })));
    let resize = json!({ "command": "resize", "minor": 1000, "size": null,
        "assume-peer-has-space": false, "assume-clean": false });
    check("resize 1000", resize.clone());
    let larger = json!({ "size": 2097152, "assume-clean": true });
    check("resize 1000 --size=1G --assume-clean", with(resize.clone(), larger));
    let space = json!({ "assume-peer-has-space": true });
    check("resize --size 0 1000 --assume-peer-has-space", with(resize, space));
    check("forget-peer r0 4", json!({ "command": "forget-peer", "resource": "r0", "peer": 4 }));
    check(
        "new-current-uuid --clear-bitmap 1000",
        json!({ "command": "new-current-uuid", "minor": 1000, "clear-bitmap": true }),
    );
}

#[test]
fn options_keep_what_is_in_force_unless_defaults_are_asked_for() {
    let options = |words: &str| {
        let ran = drbdsetup(words, Some(up));
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{words}");
        ran.orders[0]["options"].clone()
    };
    assert_eq!(
        options("net-options r0 1 --_name=g12 --ping-int=7"),
        json!({ "max-buffers": "8000", "ping-int": "7" })
    );
    assert_eq!(options("net-options r0 1 --set-defaults --ping-int=7"), json!({ "ping-int": "7" }));
    assert_eq!(
        options("disk-options 1000 --on-io-error=pass_on"),
        json!({ "al-extents": "6007", "on-io-error": "pass_on" })
    );
    assert_eq!(options("disk-options 1000 --set-defaults"), json!({}));
    // The abbreviation that a script of DRBD Reactor uses.
    assert_eq!(
        options("resource-options --on-no-quorum suspend-io --on-no-data suspend-io r0"),
        json!({ "on-no-data-accessible": "suspend-io" })
    );
    let ran = drbdsetup("net-options r0 1 --_name=other", Some(up));
    assert_eq!((ran.status, ran.orders.len()), (10, 0), "{}", ran.err);
}

#[test]
fn wrong_command_lines_end_with_20_and_ask_nothing() {
    for words in [
        "teleport r0",
        "primary",
        "primary r0 r1",
        "primary r0 --hurry",
        "primary r0 --force=perhaps",
        "connect r0 one",
        "dstate minor0",
        "net-options r0 1 --ping-int=0",
        "net-options r0 1 --protocol=D",
        "net-options r0 1 --ping-int",
        "net-options r0 1 --transport=tcp",
        "net-options r0 1 --ping=1",
        "new-path r0 1 ipv4:10.0.0:7000 ipv4:10.0.0.2:7000",
        "new-peer r0 3 --max-buffers=8000",
        "attach 1000 /dev/a /dev/b internal",
        "status -x",
        "events2 --color=always",
    ] {
        let ran = drbdsetup(words, Some(up));
        assert_eq!((ran.status, ran.orders.len()), (20, 0), "{words}: {}", ran.err);
        assert!(ran.err.starts_with("drbdsetup ") || ran.err.contains("no command"), "{}", ran.err);
        assert_eq!(ran.out, "", "{words}");
    }
    assert_eq!(drbdsetup("", None).status, 20);
    assert_eq!(drbdsetup("down \u{1}", None).status, 1);
}

#[test]
fn refusals_have_the_form_and_the_status_of_the_original() {
    let ran = drbdsetup("new-peer r0 3 --_name=c --transport=rdma", Some(up));
    assert_eq!((ran.status, ran.orders.len()), (10, 0));
    assert_eq!(
        ran.err,
        "r0: Failure: (162) The request is invalid\nadditional info from kernel:\noption \
         `transport` can not be `rdma` here: the transports are tcp and lb-tcp; remove it or set \
         `\"\"` or `tcp` or `lb-tcp`\n"
    );
    let ran = drbdsetup("new-peer r0 3 --_name=c --csums-alg=crc32c", Some(up));
    assert_eq!((ran.status, ran.orders.len()), (10, 0));
    assert!(ran.err.starts_with("r0: Failure: (144) "), "{}", ran.err);
    fn refuses(request: &Request) -> (Outcome, Vec<Line>) {
        let state = |code| (Refusal::state(code, "volume 0").into(), Vec::new());
        match request {
            Request::Primary { .. } => state(StateError::NoUpToDateDisk),
            Request::Secondary { .. } => state(StateError::DeviceInUse),
            Request::InvalidateRemote { .. } => state(StateError::NoLocalDisk),
            Request::Outdate { .. } => state(StateError::LowerThanOutdated),
            Request::Connect { .. } => {
                (Refusal::from(ConfigError::NetConfigured).into(), Vec::new())
            }
            request => up(request),
        }
    }
    for (words, status, text) in [
        ("primary r0", 17, "r0: State change failed: (-2) Need access to UpToDate data"),
        ("secondary r0", 11, "r0: State change failed: (-12) Device is held open by someone"),
        ("invalidate-remote r0 1 0", 16, "r0: State change failed: (-4) "),
        ("outdate 1000", 5, "1000: State change failed: (-16) "),
        ("connect r0 1", 10, "r0: Failure: (125) "),
        ("connect r0 32", 10, "r0: Failure: (162) "),
        ("forget-peer r0 32", 10, "r0: Failure: (171) "),
        ("outdate r1 1000", 10, "r1: Failure: (162) "),
        ("dstate 7", 10, "7: Failure: (127) No such minor"),
        ("role r9", 10, "r9: Failure: (158) No such resource"),
        ("cstate r0 9", 10, "r0: Failure: (162) "),
        ("resize 1000 --al-stripes 2", 10, "1000: Failure: (162) "),
        ("rename-resource r0 r1", 10, "r0: Failure: (162) "),
        ("status r9", 10, "r9: Failure: (158) No such resource"),
    ] {
        let ran = drbdsetup(words, Some(refuses));
        assert_eq!(ran.status, status, "{words}: {}", ran.err);
        assert!(ran.err.starts_with(text), "{words}: {}", ran.err);
    }
    let ran = drbdsetup("primary r0", Some(refuses));
    assert!(ran.err.ends_with("\nadditional info from kernel:\nvolume 0\n"), "{}", ran.err);
}

#[test]
fn a_command_in_a_transient_state_is_repeated() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static TIMES: AtomicU32 = AtomicU32::new(0);
    fn busy_at_first(request: &Request) -> (Outcome, Vec<Line>) {
        if matches!(request, Request::Primary { .. }) && TIMES.fetch_add(1, Ordering::Relaxed) < 2 {
            return (Refusal::from(StateError::InTransientState).into(), Vec::new());
        }
        up(request)
    }
    let ran = drbdsetup("primary r0", Some(busy_at_first));
    assert_eq!((ran.status, ran.orders.len()), (0, 3), "{}", ran.err);
}

#[test]
fn without_an_engine_nothing_is_up() {
    for words in ["down r0", "down all", "secondary r0", "disconnect r0 1", "detach 1000"] {
        let ran = drbdsetup(words, None);
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{words}");
    }
    for words in ["status", "show r0", "primary r0", "events2 --now", "dstate 1000"] {
        let ran = drbdsetup(words, None);
        assert_eq!(ran.status, 20, "{words}");
        assert!(ran.err.contains("no engine answers at"), "{}", ran.err);
    }
    // Help needs none.
    for words in ["help primary", "primary --help", "--help", "xml-help new-minor", "xml-help"] {
        let ran = drbdsetup(words, None);
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{words}");
        assert!(!ran.out.is_empty(), "{words}");
    }
}

#[test]
fn an_engine_that_goes_away_is_121() {
    let root = tempfile::tempdir().unwrap();
    let listener = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
    std::thread::spawn(move || drop(listener.accept()));
    let ran = drbdsetup_below(root, "primary r0", None);
    assert_eq!(ran.status, 121, "{}", ran.err);
}

#[test]
fn states_are_words_alone() {
    for (words, out) in [
        ("role r0", "Secondary\n"),
        ("peer-role r0 1", "Secondary\n"),
        ("cstate r0 1", "Connected\n"),
        ("dstate 1000", "UpToDate/UpToDate/Diskless\n"),
        // As drbdmeta asks.
        ("1000 dstate", "UpToDate/UpToDate/Diskless\n"),
        ("get-gi r0 1 0", "74CB3C491C033ED4:0:0:0:1:1:0:0:0:0:0:1:0:0:0:1\n"),
        (
            "udev 1000",
            "DEVICE=drbd1000\nSYMLINK_BY_RES=drbd/by-res/r0/0\nSYMLINK_BY_DISK=drbd/by-disk/vg/a\n",
        ),
    ] {
        let ran = drbdsetup(words, Some(up));
        assert_eq!((ran.status, ran.out.as_str()), (0, out), "{words}: {}", ran.err);
    }
    let ran = drbdsetup("show-gi r0 1 0", Some(up));
    assert!(ran.out.contains("1  the disk is consistent\n"), "{}", ran.out);
}

#[test]
fn listings_of_nothing_have_the_words_that_callers_know() {
    let nothing = "# No currently configured DRBD found.\n";
    for (words, status, out) in [
        ("status", 0, nothing),
        ("status all", 0, nothing),
        ("status --json", 0, "[ ]\n"),
        ("status r0 --json", 10, "[ ]\n"),
        ("status r0", 10, ""),
        ("show", 0, nothing),
        ("show r0", 0, ""),
        ("show --json", 0, "[ ]\n"),
        ("events2 --now", 0, "exists -\n"),
        ("events2 r0 --now", 0, "exists -\n"),
        ("down r0", 0, ""),
        ("wait-connect-resource r0", 0, ""),
    ] {
        let ran = drbdsetup(words, Some(empty));
        assert_eq!((ran.status, ran.out.as_str()), (status, out), "{words}: {}", ran.err);
    }
}

#[test]
fn the_dump_of_events_is_the_recorded_one() {
    let recording = recordings().remove(0);
    let ran = drbdsetup("events2 r0 --now --statistics", Some(up));
    let mut ours: Vec<_> = ran.out.lines().map(|l| l.replace("minor:1000", "minor:0")).collect();
    let mut recorded = recording.events.clone();
    assert_eq!(ours.last().map(String::as_str), Some("exists -"));
    // drbdsetup prints connections in the order of their creation, which is not recorded.
    ours.sort_unstable();
    recorded.sort_unstable();
    assert_eq!(ours, recorded);
    let stamped = drbdsetup("events2 -nT", Some(up)).out;
    for line in stamped.lines() {
        let (stamp, rest) = line.split_once(' ').unwrap();
        assert!(stamp.len() == 32 && stamp.ends_with("+00:00"), "{stamp}");
        assert!(rest.starts_with("exists "), "{line}");
    }
}

#[test]
fn files_of_drbdadm_go_with_their_objects() {
    let links = |root: &Path| -> Vec<String> {
        let entries = fs::read_dir(root.join("run/drbd")).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".conf")).collect()
    };
    for (words, left) in [
        ("down r0", vec![]),
        ("del-minor 1000", vec!["drbd-resource-r0.conf"]),
        ("del-resource r0", vec!["drbd-minor-1000.conf"]),
        ("detach 1000", vec!["drbd-minor-1000.conf", "drbd-resource-r0.conf"]),
    ] {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/drbd")).unwrap();
        for name in ["drbd-minor-1000.conf", "drbd-resource-r0.conf"] {
            std::os::unix::fs::symlink("/etc/drbd.conf", root.path().join("run/drbd").join(name))
                .unwrap();
        }
        let ran = drbdsetup_below(root, words, Some(up));
        assert_eq!(ran.status, 0, "{words}: {}", ran.err);
        let mut there = links(ran.root.path());
        there.sort_unstable();
        assert_eq!(there, left, "{words}");
    }
}

#[test]
fn a_minor_of_the_kernel_is_not_taken() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("sys/block/drbd1001")).unwrap();
    let ran = drbdsetup_below(root, "new-minor r0 1001 1", Some(up));
    assert_eq!((ran.status, ran.orders.len()), (10, 0), "{}", ran.err);
    assert!(ran.err.starts_with("r0: Failure: (161) "), "{}", ran.err);
}

#[test]
fn where_internal_metadata_is_gets_noted() {
    fn file_backed(request: &Request) -> (Outcome, Vec<Line>) {
        let Request::Config { .. } = request else { return up(request) };
        let mut configs = configured(RESOURCE, "g11");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        configs[0].volumes[0].backing.as_mut().unwrap().disk = path.to_owned();
        ok(Answer::Config(configs))
    }
    let ran = drbdsetup("check-resize 1000", Some(file_backed));
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let note = ran.root.path().join("var/lib/drbd/drbd-minor-1000.lkbd");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let size = fs::metadata(path).unwrap().len();
    assert_eq!(fs::read_to_string(note).unwrap(), format!("{size}\t{path}\n"));
    assert_eq!(drbdsetup("check-resize 1000", Some(up)).status, 1, "/dev/vg/a does not exist");
}

#[test]
fn waits_end_by_states_and_by_time() {
    fn behind(request: &Request) -> (Outcome, Vec<Line>) {
        let Request::Events { .. } = request else { return up(request) };
        let mut before = status();
        before.connections[0].connection_state = ConnState::Connecting;
        before.connections[0].peer_devices[0].replication_state = ReplState::Off;
        let lines = [Event::Resource(before), Event::Current].map(Line::Event);
        (Outcome::Ok(Answer::Done), lines.into())
    }
    fn comes(request: &Request) -> (Outcome, Vec<Line>) {
        let (outcome, mut lines) = behind(request);
        let mut syncing = status();
        syncing.connections[0].peer_devices[0].replication_state = ReplState::SyncSource;
        lines.push(Line::Event(Event::Resource(syncing)));
        (outcome, lines)
    }
    fn parted(request: &Request) -> (Outcome, Vec<Line>) {
        let (outcome, mut lines) = behind(request);
        let mut alone = status();
        alone.connections[0].connection_state = ConnState::StandAlone;
        alone.connections[0].peer_devices[0].replication_state = ReplState::Off;
        lines.push(Line::Event(Event::Resource(alone)));
        (outcome, lines)
    }
    for (script, words, status) in [
        (up as Script, "wait-connect-resource r0", 0),
        (up, "wait-sync-resource r0", 0),
        (behind, "wait-connect-resource r0 --wfc-timeout=1", 5),
        (behind, "wait-connect-connection r0 2 -t 1", 0),
        (behind, "wait-connect-volume r0 1 0 --wfc-timeout 1", 5),
        (comes, "wait-connect-resource r0 --wfc-timeout=60", 0),
        (comes, "wait-sync-resource r0 --wfc-timeout=1", 5),
        (parted, "wait-connect-resource r0", 0),
        (parted, "wait-connect-resource r0 --wait-after-sb --wfc-timeout=1", 5),
    ] {
        let ran = drbdsetup(words, Some(script));
        assert_eq!(ran.status, status, "{words}: {}", ran.err);
        let waits_on = words.contains("after-sb");
        assert_eq!(ran.err.is_empty(), !waits_on, "{words}: {}", ran.err);
    }
    let ran = drbdsetup("wait-connect-resource r0 --degr-wfc-timeout=1 -o 9 -t 5", Some(up));
    assert_eq!((ran.status, ran.err.lines().count()), (0, 2), "{}", ran.err);
}

#[test]
fn xml_help_has_the_forms_that_linstor_reads() {
    let xml = help::xml(table::Command::find("resource-options").unwrap());
    for part in [
        "<command name=\"resource-options\">\n",
        "\t<argument>resource</argument>\n",
        "\t<option name=\"set-defaults\" type=\"flag\"></option>\n",
        "<option name=\"auto-promote\" type=\"boolean\">\n\t\t<default>yes</default>\n",
        "<option name=\"cpu-mask\" type=\"string\"></option>\n",
        "type=\"handler\">\n\t\t<handler>io-error</handler>\n\t\t<handler>suspend-io</handler>\n",
        "<option name=\"peer-ack-window\" type=\"numeric\">\n\t\t<min>2048</min>\n\t\t<max>204800</max>\n\t\t<default>4096</default>\n\t\t<unit_prefix>s</unit_prefix>\n\t\t<unit>bytes</unit>\n\t</option>\n",
        "<option name=\"quorum\" type=\"numeric-or-symbol\">\n\t\t<min>1</min>\n\t\t<max>32</max>\n\t\t<default>off</default>\n\t\t<unit_prefix>1</unit_prefix>\n\t\t<symbol>off</symbol>\n",
    ] {
        assert!(xml.contains(part), "{part}{xml}");
    }
    for command in table::COMMANDS {
        assert_balanced(&help::xml(command));
    }
}

/// Every element ends where it should.
fn assert_balanced(xml: &str) {
    let mut open = Vec::new();
    for tag in xml.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap();
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{xml}"),
            None => open.push(tag.split(' ').next().unwrap()),
        }
    }
    assert!(open.is_empty(), "{xml}");
}
