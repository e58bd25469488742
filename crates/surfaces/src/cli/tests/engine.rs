//! Commands from the command line to a scripted engine and back.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use clap::Parser;
use codec::admin::{
    Answer, Call, DiskReads, DoctorFigures, DoctorStep, Event, Failure, FailureKind, Line, Lines,
    MAX_CALL, Machine, Outcome, Reply, Request, Series, Watch, encode_line,
};
use vocab::{ConfigError, Refusal, StateError};

use super::super::{Command, Common, Error, run};
use super::{configured, recordings};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What an engine does with a request; more lines may follow the reply.
pub(crate) type Script = fn(&Request) -> (Outcome, Vec<Line>);

/// Serves one client until it closes; gives back what was asked.
pub(crate) fn serve(socket: &Path, script: Script) -> mpsc::Receiver<Request> {
    let listener = UnixListener::bind(socket).unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut lines, mut chunk) = (Lines::new(MAX_CALL), [0; 4096]);
        while let Ok(n @ 1..) = stream.read(&mut chunk) {
            lines.push(&chunk[..n]);
            while let Some(line) = lines.next_line().unwrap() {
                let call = Call::decode(&line).unwrap();
                let (outcome, more) = script(&call.request);
                let mut out = encode_line(&Line::Reply(Reply { id: call.id, outcome }));
                more.iter().for_each(|line| out.extend(encode_line(line)));
                let _ = stream.write_all(&out);
                let _ = sender.send(call.request);
            }
        }
    });
    receiver
}

struct Ran {
    result: Result<(), Error>,
    out: String,
    err: String,
    asked: Vec<Request>,
}

const CONFIG: &str = "global { disable-ip-verification; } include \"d/*.res\";";
const RESOURCE: &str = "resource r0 {
  volume 0 { device minor 1000; disk /dev/vg/a; }
  on alpha { node-id 0; address 10.0.0.1:7000; }
  on bravo { node-id 1; address 10.0.0.2:7000; }
}";

/// Runs `ashlar WORDS` on host alpha against `script`.
fn ashlar(words: &str, script: Option<Script>) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("d")).unwrap();
    fs::write(path("drbd.conf"), CONFIG).unwrap();
    fs::write(path("d/r0.res"), RESOURCE).unwrap();
    let asked = script.map(|script| serve(&path("socket"), script));
    let mut args = vec!["ashlar".to_owned()];
    args.extend(words.split(' ').map(str::to_owned));
    args.extend(["--node".into(), "alpha".into(), "--timeout".into(), "5".into()]);
    args.extend(["--socket".into(), path("socket").display().to_string()]);
    args.extend(["--config".into(), path("drbd.conf").display().to_string()]);
    let cli = Cli::try_parse_from(args).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let result = run(&cli.command, &cli.common, &mut out, &mut err);
    // A command that failed early never connected: let the engine see a client and end.
    drop(std::os::unix::net::UnixStream::connect(path("socket")));
    let asked = asked.map(|asked| asked.iter().collect()).unwrap_or_default();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { result, out: text(out), err: text(err), asked }
}

pub(crate) fn ok(answer: Answer) -> (Outcome, Vec<Line>) {
    (Outcome::Ok(answer), Vec::new())
}

/// An engine that holds nothing and does everything.
fn empty(request: &Request) -> (Outcome, Vec<Line>) {
    match request {
        Request::Config { .. } => ok(Answer::Config(Vec::new())),
        Request::Status { .. } => ok(Answer::Status(Vec::new())),
        _ => ok(Answer::Done),
    }
}

/// An engine that has r0 up and refuses to promote.
fn up(request: &Request) -> (Outcome, Vec<Line>) {
    match request {
        Request::Config { .. } => ok(Answer::Config(configured(RESOURCE, "alpha"))),
        Request::Primary { .. } => {
            let detail = "volume 0 is Outdated";
            (Refusal::state(StateError::NoUpToDateDisk, detail).into(), Vec::new())
        }
        Request::Status { .. } => ok(Answer::Status(vec![recordings().remove(0).status()])),
        Request::Events { .. } => {
            let status = recordings().remove(0).status();
            let lines = vec![Line::Event(Event::Resource(status)), Line::Event(Event::Current)];
            (Outcome::Ok(Answer::Done), lines)
        }
        Request::CreateMd { .. } => {
            let failure = Failure::new(FailureKind::Timeout, "still writing", "look again");
            (Outcome::Failed(failure), Vec::new())
        }
        Request::Why { .. } => {
            let status = Box::new(recordings().remove(0).status());
            ok(Answer::Why { status, notes: Vec::new() })
        }
        _ => ok(Answer::Done),
    }
}

fn status_of(ran: &Ran) -> u8 {
    ran.result.as_ref().map_or_else(Error::status, |()| 0)
}

#[test]
fn up_sends_the_plan_in_order() {
    let ran = ashlar("up r0", Some(empty));
    ran.result.unwrap();
    let json: Vec<_> = ran.asked.iter().map(|r| serde_json::to_value(r).unwrap()).collect();
    let verbs: Vec<_> = json.iter().map(|r| r["command"].as_str().unwrap()).collect();
    assert_eq!(
        verbs,
        [
            "config",
            "status",
            "new-resource",
            "new-minor",
            "new-peer",
            "new-path",
            "attach",
            "connect"
        ]
    );
    assert_eq!(json[6]["disk"], "/dev/vg/a");
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
}

#[test]
fn a_dry_run_prints_and_changes_nothing() {
    let ran = ashlar("up all --dry-run", Some(empty));
    ran.result.unwrap();
    assert_eq!(ran.asked.len(), 2);
    assert!(
        ran.out.starts_with("r0: create it as node 0\n") && ran.out.ends_with("connect to bravo\n")
    );
    let ran = ashlar("up all --dry-run", None);
    ran.result.unwrap();
    assert!(ran.out.ends_with("connect to bravo\n") && ran.err.contains("no engine answers"));
    let ran = ashlar("create-md r0 -d", None);
    ran.result.unwrap();
    assert_eq!(ran.out, "r0/0: write metadata of /dev/vg/a (internal) for 1 peer(s)\n");
}

#[test]
fn a_conversion_says_whose_metadata_they_are() {
    let ran = ashlar("convert-md r0 -d", None);
    ran.result.unwrap();
    let what =
        "r0/0: convert the metadata of /dev/vg/a to v09 for 1 peer(s), what it knows is of node 1";
    assert_eq!(ran.out.trim_end(), what);
    let ran = ashlar("convert-md r0 --max-peers 3", Some(empty));
    ran.result.unwrap();
    let asked = ran.asked.iter().find_map(|request| match request {
        Request::ConvertMd { node_id, peer, max_peers, .. } => {
            Some((node_id.get(), peer.get(), *max_peers))
        }
        _ => None,
    });
    assert_eq!(asked, Some((0, 1, 3)));
    for (peer, why) in [(0, "names this node"), (9, "names no node")] {
        let ran = ashlar(&format!("convert-md r0 --peer {peer}"), None);
        assert!(ran.result.is_err() && ran.err.contains(why), "{}", ran.err);
    }
}

#[test]
fn a_dry_run_and_an_export_come_as_json_too() {
    for words in [
        "up all --dry-run --json",
        "create-md r0 -d --json",
        "convert-md r0 -d --json",
        "invalidate r0 -d --json",
    ] {
        let text = ashlar(&words.replace(" --json", ""), Some(up));
        let json = ashlar(words, Some(up));
        json.result.unwrap();
        let lines: Vec<String> = serde_json::from_str(&json.out).unwrap();
        assert!(text.out.lines().eq(&lines), "{words}: {}", json.out);
        assert!(!lines.is_empty() || words.starts_with("up"), "{words}");
    }
    let up_anew = ashlar("up all --dry-run --json", Some(empty));
    assert!(up_anew.out.contains("r0: connect to bravo"), "{}", up_anew.out);
    let export = ashlar("export r0 --json --listen 127.0.0.1:10809", Some(up));
    let export: serde_json::Value = serde_json::from_str(&export.out).unwrap();
    assert_eq!(export["uri"], "nbd://127.0.0.1:10809/r0/0");
    assert_eq!(export["name"], "r0/0");
}

#[test]
fn a_refusal_is_told_with_reason_and_next_step() {
    let ran = ashlar("primary r0", Some(up));
    assert_eq!(status_of(&ran), 17);
    assert_eq!(
        ran.err,
        "ashlar: r0: primary: refused (-2): Need access to UpToDate data: volume 0 is Outdated; \
         connect a node with UpToDate data; --force gives newer data elsewhere up\n"
    );
}

#[test]
fn objects_become_requests_about_peers_and_volumes() {
    let asked = |words| {
        let ran = ashlar(words, Some(up));
        ran.result.unwrap();
        serde_json::to_value(&ran.asked[1..]).unwrap()
    };
    let connect = asked("connect r0:bravo --discard-my-data");
    assert_eq!(connect[0]["peer"], 1);
    assert_eq!(connect[0]["discard-my-data"], true);
    assert_eq!(asked("detach r0/0")[0]["minor"], 1000);
    let verify = asked("verify all --start 8");
    assert_eq!((&verify[0]["peer"], &verify[0]["start"]), (&1.into(), &8.into()));
    assert_eq!(asked("invalidate r0:bravo/0")[0]["from"], 1);
    assert!(asked("invalidate r0")[0]["from"].is_null());
    assert_eq!(asked("export r0 --listen 127.0.0.1:10809")[0]["name"], "r0/0");
}

#[test]
fn connecting_a_resource_connects_what_is_not_connected() {
    // bravo is connected, charlie is not.
    fn connected(request: &Request) -> (Outcome, Vec<Line>) {
        let three = RESOURCE.replace(
            "on bravo",
            "on charlie { node-id 2; address 10.0.0.3:7000; }
            connection-mesh { hosts alpha bravo charlie; }
            on bravo",
        );
        match request {
            Request::Config { .. } => ok(Answer::Config(configured(&three, "alpha"))),
            Request::Connect { peer, .. } if peer.get() == 1 => {
                (Refusal::config(ConfigError::NetConfigured, "").into(), Vec::new())
            }
            _ => ok(Answer::Done),
        }
    }
    let ran = ashlar("connect r0", Some(connected));
    ran.result.unwrap();
    assert_eq!(ran.err, "");
    let peer = |request: &Request| match request {
        Request::Connect { peer, .. } => Some(peer.get()),
        _ => None,
    };
    assert_eq!(ran.asked.iter().filter_map(peer).collect::<Vec<_>>(), [1, 2]);
    // Who names a connection that is there is told.
    let ran = ashlar("connect r0:bravo", Some(connected));
    assert!(ran.err.contains("125"), "{}", ran.err);
}

#[test]
fn a_part_is_never_taken_for_the_whole() {
    for words in ["primary r0/0", "down r0:bravo", "suspend-io r0:bravo", "connect r0/0", "up r0/0"]
    {
        let ran = ashlar(words, Some(up));
        assert_eq!(status_of(&ran), 10, "{words}");
        let changes = ran
            .asked
            .iter()
            .filter(|r| !matches!(r, Request::Config { .. } | Request::Status { .. }));
        assert_eq!(changes.count(), 0, "{words}");
    }
}

#[test]
fn exit_statuses_tell_the_kinds_of_failure_apart() {
    assert_eq!(status_of(&ashlar("status", None)), 4);
    assert_eq!(status_of(&ashlar("connect r9", Some(up))), 10);
    assert_eq!(status_of(&ashlar("create-md r0 --force", Some(up))), 5);
    let ran = ashlar("attach r9", Some(up));
    assert_eq!(status_of(&ran), 10);
    assert!(ran.result.unwrap_err().to_string().contains("not in the configuration"));
}

#[test]
fn listings_come_as_text_and_as_json() {
    let text = ashlar("status -v -s r0", Some(up));
    assert_eq!(text.out, recordings()[0].plain);
    let json = ashlar("status --json", Some(up));
    let value: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(value[0]["devices"][0]["disk-state"], "UpToDate");
    assert_eq!(ashlar("status", Some(empty)).out, "# No resource is up.\n");
    assert!(ashlar("why r0", Some(up)).out.contains("as it should be"));
}

#[test]
fn events_now_prints_the_dump_and_ends() {
    let ran = ashlar("events --now --timestamps", Some(up));
    ran.result.unwrap();
    let last = ran.out.lines().last().unwrap();
    assert_eq!(last.len(), "2026-11-21T19:03:07.996093+00:00 exists -".len());
    assert!(last.ends_with("+00:00 exists -") && ran.err.is_empty());
}

#[test]
fn included_files_are_found_next_to_their_includer() {
    let dir = tempfile::Builder::new().prefix("odd[name]").tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("drbd.conf"), CONFIG).unwrap();
    fs::write(dir.path().join("d/r0.res"), RESOURCE).unwrap();
    fs::write(dir.path().join("d/r0.res.bak"), "not read").unwrap();
    let loaded = super::super::load::load(Some(&dir.path().join("drbd.conf")), Some("alpha"));
    let loaded = loaded.unwrap();
    assert!(loaded.trust_addresses);
    assert_eq!(loaded.resources[0].name, "r0");
    let error = loaded.resource("r9").unwrap_err().to_string();
    assert_eq!(error, "resource r9: not in the configuration; check the name, or add it");
}

/// An engine that measures, and whose peer serves no probes.
fn measuring(request: &Request) -> (Outcome, Vec<Line>) {
    let series = Series { block: 4096, depth: 1, operations: 1, ..Series::default() };
    let figures = match request {
        Request::Doctor { step: DoctorStep::Machine, .. } => {
            DoctorFigures::Machine(Machine::default())
        }
        Request::Doctor { step: DoctorStep::Watch { .. }, .. } => {
            DoctorFigures::Watch(Watch::default())
        }
        Request::Doctor { step: DoctorStep::Reads { .. }, .. } => DoctorFigures::Reads(DiskReads {
            path: "/dev/vg/a".to_owned(),
            direct: true,
            volatile_cache: true,
            allocated_percent: 100,
            sequential: series,
            random: series,
            random_deep: series,
            flush: Some(series),
        }),
        Request::Doctor { step: DoctorStep::Probe { .. }, .. } => {
            let failure = Failure::new(FailureKind::Io, "nobody is there", "serve");
            return (Outcome::Failed(failure), Vec::new());
        }
        Request::Doctor { .. } => {
            let detail = "it is no folder";
            return (Refusal::config(ConfigError::InvalidRequest, detail).into(), Vec::new());
        }
        other => return up(other),
    };
    ok(Answer::Doctor(Box::new(figures)))
}

/// The steps asked for, by name, and their times.
fn steps(ran: &Ran) -> Vec<(String, u64)> {
    let json = ran.asked.iter().map(|r| serde_json::to_value(r).unwrap());
    let steps = json.filter(|r| r["command"] == "doctor").map(|r| r["step"].clone());
    steps.map(|s| (s["step"].as_str().unwrap().to_owned(), s["ms"].as_u64().unwrap_or(0))).collect()
}

#[test]
fn doctor_shares_its_time_among_steps_and_goes_on_after_a_failure() {
    let ran = ashlar("doctor r0 --seconds 5 --json", Some(measuring));
    let asked = steps(&ran);
    let names: Vec<&str> = asked.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["machine", "watch", "probe", "reads"]);
    // Two of four shares of four seconds; a step that did not need its share leaves it to others,
    // up to half of the time that an answer may take.
    assert!((100..=2000).contains(&asked[1].1), "{asked:?}");
    assert!(asked[2..].iter().all(|(_, ms)| (100..=2500).contains(ms)), "{asked:?}");
    ran.result.unwrap();
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(found[0]["missing"][0]["what"], "network to bravo");
    assert_eq!(found[0]["missing"][0]["why"], "nobody is there; serve");
    assert_eq!(found[0]["figures"]["reads"][0]["path"], "/dev/vg/a");
    assert_eq!(ran.err, "", "no progress where nobody looks");
    let passive = ashlar("doctor all --passive --seconds 5", Some(measuring));
    assert_eq!(steps(&passive).len(), 2);
    assert!(passive.out.contains("network and disks: --passive was given"), "{}", passive.out);
}

#[test]
fn doctor_refuses_what_it_can_not_do_before_it_measures() {
    for words in ["doctor r0:bravo", "doctor r1", "doctor r0/7"] {
        let ran = ashlar(words, Some(measuring));
        assert_eq!((status_of(&ran), steps(&ran).len()), (10, 0), "{words}");
    }
    // What the engine says of the folder is the answer, whatever else was measured.
    let ran = ashlar("doctor r0 --seconds 5 --scratch /nowhere", Some(measuring));
    assert_eq!(steps(&ran).last().map(|(name, _)| name.as_str()), Some("scratch"));
    assert_eq!((status_of(&ran), ran.out.as_str()), (10, ""));
}
