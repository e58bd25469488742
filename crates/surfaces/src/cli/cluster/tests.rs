//! Commands from the command line to a scripted controller and back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use clap::Parser;
use serde_json::{Value, json};
use vocab::options::Secret;

use super::super::secret::{Ask, Source};
use super::super::{Common, Error};
use super::{
    Command, Controllers, Look, NodeCommand, Session, create_nodes, new_node, run, run_node,
};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Parser)]
struct NodeCli {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    at: Controllers,
    #[command(subcommand)]
    command: NodeCommand,
}

/// What was asked: method and path, body, the header of the token.
#[derive(Clone, PartialEq, Debug)]
struct Asked {
    call: String,
    body: Value,
    token: Option<String>,
}

/// A controller that answers by a script, for as long as the test runs.
struct Scripted {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Scripted {
    fn new(script: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (all, script) = (asked.clone(), Arc::new(script));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (all, script) = (all.clone(), script.clone());
                thread::spawn(move || serve(stream.unwrap(), &all, &*script));
            }
        });
        Scripted { url, asked }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn calls(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.call).collect()
    }

    fn run(&self, line: &str) -> Ran {
        command(&format!("{line} --controllers {}", self.url))
    }
}

fn serve(
    stream: TcpStream,
    all: &Mutex<Vec<Asked>>,
    script: &(dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync),
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let call = line.rsplit_once(' ').unwrap().0.to_owned();
        let (mut len, mut token) = (0, None);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let Some((name, value)) = header.trim().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => len = value.parse().unwrap(),
                "authorization" => token = Some(value.to_owned()),
                _ => {}
            }
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).unwrap();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        all.lock().unwrap().push(Asked { call: call.clone(), body: body.clone(), token });
        let (status, answer) = script(&call, &body);
        let answer = answer.to_string();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

struct Ran {
    result: Result<(), Error>,
    out: String,
    err: String,
}

impl Ran {
    fn ok(self) -> String {
        let Ran { result, out, err } = self;
        if let Err(error) = result {
            panic!("{error}\n{out}{err}");
        }
        out
    }

    fn error(&self) -> String {
        self.result.as_ref().expect_err(&self.out).to_string()
    }

    fn status(&self) -> u8 {
        self.result.as_ref().expect_err(&self.out).status()
    }
}

fn command(line: &str) -> Ran {
    let words = std::iter::once("ashlar").chain(line.split(' '));
    let Cli { common, command } = Cli::try_parse_from(words).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let result = run(&command, &common, Look::PLAIN, &mut out, &mut err);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { result, out: text(out), err: text(err) }
}

fn node_command(line: &str) -> Ran {
    let words = std::iter::once("ashlar").chain(line.split(' '));
    let NodeCli { common, at, command } = NodeCli::try_parse_from(words).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let result = run_node(&command, &at, &common, Look::PLAIN, &mut out, &mut err);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { result, out: text(out), err: text(err) }
}

fn entry(severity: i64, number: i64, message: &str) -> Value {
    json!([{ "ret_code": severity << 62 | number, "message": message, "created_at": "now" }])
}

fn done() -> (u16, Value) {
    (201, entry(0, 1, "done"))
}

fn replica(node: &str, state: &str) -> Value {
    json!({
        "name": "vol1", "node_name": node, "state": { "in_use": node == "a" },
        "layer_object": { "type": "DRBD", "drbd": { "connections": {} } },
        "volumes": [{
            "volume_number": 0, "storage_pool_name": "ssd", "allocated_size_kib": 1024,
            "state": { "disk_state": state },
        }],
    })
}

fn definition() -> Value {
    let volumes = json!([{ "volume_number": 0, "size_kib": 10 << 20 }]);
    json!({ "name": "vol1", "resource_group_name": "db", "volume_definitions": volumes })
}

fn healthy(call: &str, _: &Value) -> (u16, Value) {
    match call {
        c if c.starts_with("GET /v1/view/resources") => {
            (200, json!([replica("a", "UpToDate"), replica("b", "UpToDate")]))
        }
        c if c.starts_with("GET /v1/resource-definitions/vol1") => (200, definition()),
        c if c.starts_with("GET /v1/resource-definitions") => (200, json!([definition()])),
        c if c.starts_with("GET /v1/nodes") => {
            let node = |name| {
                json!({ "name": name, "type": "SATELLITE", "connection_status": "ONLINE",
                "net_interfaces": [{ "name": "default", "address": "10.0.0.1" }] })
            };
            (200, json!([node("a"), node("b")]))
        }
        _ => done(),
    }
}

#[test]
fn a_volume_is_spawned_and_where_it_is_is_said() {
    let controller = Scripted::new(healthy);
    let out = controller.run("resource-group spawn db vol1 10G --place 2").ok();
    assert_eq!(out, "volume vol1: 10 GiB, UpToDate on a, b\n");
    let asked = controller.asked();
    let expected = json!({
        "resource_definition_name": "vol1",
        "volume_sizes": [10 << 20],
        "select_filter": { "place_count": 2 },
        "definitions_only": false,
    });
    assert_eq!(asked[0].call, "POST /v1/resource-groups/db/spawn");
    assert_eq!(asked[0].body, expected);
    assert!(asked[1].call.contains("/v1/view/resources?resources=vol1"), "{asked:?}");
}

#[test]
fn the_short_names_and_the_long_ones_are_the_same_commands() {
    let controller = Scripted::new(healthy);
    controller.run("group delete db").ok();
    controller.run("resource-group delete db").ok();
    controller.run("pool delete ssd --on a,b").ok();
    controller.run("storage-pool delete ssd --on a").ok();
    let expected = [
        "DELETE /v1/resource-groups/db",
        "DELETE /v1/resource-groups/db",
        "DELETE /v1/nodes/a/storage-pools/ssd",
        "DELETE /v1/nodes/b/storage-pools/ssd",
        "DELETE /v1/nodes/a/storage-pools/ssd",
    ];
    assert_eq!(controller.calls(), expected);
}

#[test]
fn a_pool_is_made_on_every_node_unless_some_are_named() {
    let controller = Scripted::new(healthy);
    controller.run("pool create ssd file-thin /srv/ssd").ok();
    let expected =
        ["GET /v1/nodes", "POST /v1/nodes/a/storage-pools", "POST /v1/nodes/b/storage-pools"];
    assert_eq!(controller.calls(), expected);
    let props = json!({ "StorDriver/StorPoolName": "/srv/ssd" });
    let body = json!({ "storage_pool_name": "ssd", "provider_kind": "FILE_THIN", "props": props });
    assert_eq!(controller.asked()[1].body, body);
}

#[test]
fn listings_are_tables_or_json() {
    let controller = Scripted::new(healthy);
    let out = controller.run("volume list").ok();
    let expected = "VOLUME\tSIZE\tGROUP\tSTATE\tREPLICAS\tDISKLESS\tIN USE ON\n\
                    vol1\t10 GiB\tdb\tUpToDate\ta b\t\ta\n";
    assert_eq!(out, expected);
    let out: Value = serde_json::from_str(&controller.run("volume list --json").ok()).unwrap();
    assert_eq!(out[0]["replicas"], json!(["a", "b"]));
    assert_eq!((&out[0]["size_kib"], &out[0]["in_use_on"]), (&json!(10 << 20), &json!(["a"])));
    let out = controller.run("volume info vol1").ok();
    assert!(out.contains("vol1/0\ta\treplica\tUpToDate\tssd\tyes\t\n"), "{out:?}");
    let out = node_command(&format!("list --controllers {}", controller.url)).ok();
    assert!(out.contains("a\tonline\t10.0.0.1\tsatellite\n"), "{out:?}");
    let missing = controller.run("volume list vol1 other");
    assert_eq!(missing.status(), 10);
    assert!(missing.err.contains("volume other: there is no such volume"), "{}", missing.err);
}

#[test]
fn a_refusal_is_shown_with_cause_and_next_step() {
    let controller = Scripted::new(|_, _| {
        let entry = json!([{
            "ret_code": -4_611_686_018_407_201_820_i64, "message": "vol1 can not be placed",
            "cause": "no pool fits", "correction": "add nodes", "details": "pool p of node n: full",
        }]);
        (500, entry)
    });
    let ran = controller.run("group spawn db vol1 10G");
    assert_eq!(ran.status(), 10);
    let expected = "volume vol1: create: refused: vol1 can not be placed\n  why:  no pool fits\n  \
                    next: add nodes\n  pool p of node n: full";
    assert_eq!(ran.error(), expected);
    // Reading what is not there is refused, too.
    assert_eq!(controller.run("volume info other").status(), 10);
}

#[test]
fn deleting_what_is_not_there_is_no_success() {
    let controller = Scripted::new(|_, _| (200, entry(2, 3000, "other does not exist")));
    let ran = controller.run("group delete other");
    assert!(ran.status() == 10 && ran.error().contains("does not exist"), "{}", ran.error());
}

#[test]
fn a_controller_that_does_not_answer_is_told_from_one_that_refuses() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = command(&format!("volume list --controllers http://{closed}"));
    assert_eq!(ran.status(), 4);
    assert!(ran.error().contains("--controllers"), "{}", ran.error());
    // The next one is asked, also by those that change something: the first was not reached.
    let second = Scripted::new(healthy);
    let both = format!("--controllers http://{closed},{}", second.url);
    command(&format!("group delete db {both}")).ok();
    assert_eq!(second.calls(), ["DELETE /v1/resource-groups/db"]);
    // One that waits to take over has not carried anything out either.
    let standby = Scripted::new(|_, _| (503, Value::Null));
    let both = format!("--controllers {},{}", standby.url, second.url);
    command(&format!("group delete db {both}")).ok();
    assert_eq!((standby.calls().len(), second.calls().len()), (1, 2));
}

#[test]
fn a_change_whose_answer_is_lost_is_not_sent_to_another_controller() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let lost = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // It takes the request and goes away.
            let _ = stream.unwrap().read(&mut [0; 4096]);
        }
    });
    let second = Scripted::new(healthy);
    let both = format!("--controllers http://{lost},{}", second.url);
    let ran = command(&format!("group delete db {both}"));
    assert_eq!(ran.status(), 20);
    assert!(ran.error().contains("may have been carried out"), "{}", ran.error());
    assert!(second.calls().is_empty());
    // Whoever only reads asks the next one.
    command(&format!("volume list {both}")).ok();
    assert!(!second.calls().is_empty());
}

#[test]
fn what_is_not_done_in_time_is_said_with_what_is_left() {
    let controller = Scripted::new(|call, body| match call.contains("/v1/view/resources") {
        true => (200, json!([replica("a", "UpToDate"), replica("b", "Inconsistent")])),
        false => healthy(call, body),
    });
    let ran = controller.run("group spawn db vol1 10G --timeout 1");
    assert_eq!(ran.status(), 5);
    assert!(ran.error().contains("vol1 on b: Inconsistent"), "{}", ran.error());
    let out = controller.run("group spawn db vol1 10G --no-wait").ok();
    assert!(out.contains("1 of 2 UpToDate; b Inconsistent"), "{out}");
    // Nobody answers at all.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let ran = command(&format!("volume list --timeout 1 --controllers http://{at}"));
    assert_eq!(ran.status(), 5, "{}", ran.error());
}

#[test]
fn what_a_node_can_not_do_at_first_is_waited_for_since_it_is_tried_again() {
    let trouble = || {
        let mut entries = entry(0, 1, "taken on");
        entries
            .as_array_mut()
            .unwrap()
            .push(entry(3, 998, "node b could not configure")[0].clone());
        (500, entries)
    };
    let controller = Scripted::new(move |call, body| match call.contains("/spawn") {
        true => trouble(),
        false => healthy(call, body),
    });
    controller.run("group spawn db vol1 10G").ok();
    let ran = controller.run("group spawn db vol1 10G --no-wait");
    assert!(ran.status() == 20 && ran.error().contains("node b"), "{}", ran.error());
    let controller = Scripted::new(move |call, body| match call {
        c if c.contains("/spawn") => trouble(),
        c if c.contains("/v1/view/resources") => (200, json!([replica("b", "Inconsistent")])),
        _ => healthy(call, body),
    });
    let ran = controller.run("group spawn db vol1 10G --timeout 1");
    assert!(ran.status() == 20 && ran.error().contains("node b"), "{}", ran.error());
}

#[test]
fn a_drained_node_is_waited_for_and_who_uses_it_is_named() {
    let controller = Scripted::new(healthy);
    let ran = node_command(&format!("drain a --timeout 1 --controllers {}", controller.url));
    assert_eq!(ran.status(), 5);
    assert!(ran.error().contains("vol1 is in use there, close it"), "{}", ran.error());
    let asked = controller.asked();
    assert_eq!(asked[0].call, "PUT /v1/nodes/a/evacuate");
    let empty = Scripted::new(|call, body| match call.contains("/v1/view/resources") {
        true => (200, json!([])),
        false => healthy(call, body),
    });
    node_command(&format!("drain a --controllers {}", empty.url)).ok();
}

#[test]
fn a_token_is_read_from_a_file_and_sent_and_never_said() {
    let controller = Scripted::new(|_, _| (401, Value::Null));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "secret-of-alice\n").unwrap();
    let ran = controller.run(&format!("volume list --token-file {}", file.display()));
    assert_eq!(controller.asked()[0].token.as_deref(), Some("Bearer secret-of-alice"));
    assert_eq!(ran.status(), 10);
    assert!(ran.error().contains("--token-file") && !ran.error().contains("alice"));
    let ran = controller.run(&format!("volume list --token-file {}x", file.display()));
    assert!(ran.status() == 3 && ran.error().contains("tokenx"), "{}", ran.error());
    std::fs::write(&file, "two\nlines\n").unwrap();
    let ran = controller.run(&format!("volume list --token-file {}", file.display()));
    assert_eq!(ran.status(), 3, "{}", ran.error());
}

#[test]
fn https_needs_an_authority() {
    let ran = command("volume list --controllers https://127.0.0.1:1");
    assert!(ran.status() == 3 && ran.error().contains("--ca"), "{}", ran.error());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, "nothing").unwrap();
    let ran =
        command(&format!("volume list --controllers https://127.0.0.1:1 --ca {}", file.display()));
    assert!(ran.status() == 3 && ran.error().contains("no certificate"), "{}", ran.error());
}

#[test]
fn names_do_not_leave_their_place_in_the_path() {
    let controller = Scripted::new(healthy);
    let _ = controller.run("group delete ../nodes/a?x=1");
    assert_eq!(controller.calls(), ["DELETE /v1/resource-groups/..%2Fnodes%2Fa%3Fx%3D1"]);
}

#[test]
fn several_objects_go_on_after_a_failure() {
    let controller = Scripted::new(|call, body| match call {
        "DELETE /v1/resource-definitions/bad" => (500, entry(3, 997, "bad is in use")),
        c if c.starts_with("GET /v1/resource-definitions") => (200, json!([])),
        _ => healthy(call, body),
    });
    let ran = controller.run("volume delete bad good");
    assert_eq!(ran.status(), 10);
    assert!(ran.err.contains("bad is in use"), "{}", ran.err);
    assert!(controller.calls().contains(&"DELETE /v1/resource-definitions/good".to_owned()));
}

#[test]
fn a_snapshot_is_restored_in_the_group_of_its_volume_or_not_at_all() {
    let snapshot = json!({ "name": "s", "resource_name": "vol1", "flags": ["SUCCESSFUL"] });
    let view = json!([snapshot]);
    let controller = Scripted::new(move |call, body| match call {
        c if c.starts_with("GET /v1/view/snapshots") => (200, view.clone()),
        c if c.contains("snapshot-restore-resource") => (500, entry(3, 996, "no pool fits")),
        _ => healthy(call, body),
    });
    let ran = controller.run("snapshot restore vol1 s new");
    assert!(ran.status() == 10 && ran.error().contains("no pool fits"), "{}", ran.error());
    let asked = controller.asked();
    let made = asked.iter().find(|a| a.call == "POST /v1/resource-definitions").unwrap();
    assert_eq!(made.body["resource_definition"]["resource_group_name"], "db");
    let last = asked.last().unwrap();
    assert_eq!(last.call, "DELETE /v1/resource-definitions/new", "nothing is left of it");
    let ran = controller.run("snapshot restore vol1 other new");
    assert!(ran.status() == 10 && ran.error().contains("no such snapshot"), "{}", ran.error());
}

#[test]
fn properties_are_set_and_listed() {
    let controller = Scripted::new(|call, body| match call {
        "GET /v1/controller/properties" => (200, json!({ "a/b": "1" })),
        "GET /v1/nodes/n" => (200, json!({ "name": "n", "props": { "k": "v" } })),
        _ => healthy(call, body),
    });
    assert_eq!(controller.run("property list controller").ok(), "PROPERTY\tVALUE\na/b\t1\n");
    assert_eq!(controller.run("property list node/n --json").ok(), "{\n  \"k\": \"v\"\n}\n");
    controller.run("property set volume/v/0 DrbdOptions/Net/ping-int=5").ok();
    controller.run("property unset pool/n/p k").ok();
    let asked = controller.asked();
    assert_eq!(asked[2].call, "PUT /v1/resource-definitions/v/volume-definitions/0");
    assert_eq!(asked[2].body, json!({ "override_props": { "DrbdOptions/Net/ping-int": "5" } }));
    assert_eq!(asked[3].call, "PUT /v1/nodes/n/storage-pools/p");
    assert_eq!(asked[3].body, json!({ "delete_props": ["k"] }));
}

#[test]
fn schedules_are_made_changed_and_enabled_on_what_is_named() {
    let controller = Scripted::new(|call, _| match call {
        "GET /v1/schedules" => {
            let one = json!({ "schedule_name": "daily", "full_cron": "0 2 * * 0",
                "inc_cron": "0 2 * * *", "keep_remote": 3, "on_failure": "RETRY", "max_retries": 2 });
            (
                200,
                json!({ "data": [one, { "schedule_name": "s2", "full_cron": "0 0 1 * *",
                "on_failure": "SKIP" }] }),
            )
        }
        "GET /v1/view/schedules-by-resource" => {
            let row = |name: &str, rest: Value| {
                let mut row = json!({ "rsc_name": name, "remote_name": "vault",
                    "schedule_name": "daily" });
                row.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
                row
            };
            let times = json!({ "last_snap_time": 1_764_374_400_000_u64, "last_snap_inc": true,
                "next_exec_time": 1_764_378_000_000_u64, "next_exec_inc": false });
            let mut failed = times.clone();
            failed["failure"] = json!("no space");
            let mut waits = failed.clone();
            waits["waits"] = json!("node a is away");
            (
                200,
                json!({ "data": [
                row("a", times), row("b", failed), row("c", waits),
                row("d", json!({ "last_snap_time": -1, "next_exec_time": -1 })),
                row("e", json!({ "reason": "disabled on resource definition e" })),
                { "rsc_name": "f", "remote_name": "", "schedule_name": "", "reason": "none" },
            ] }),
            )
        }
        _ => done(),
    });
    let out = controller.run("schedule list").ok();
    assert_eq!(
        out,
        "SCHEDULE\tFULL (UTC)\tINCREMENTAL (UTC)\tKEEPS HERE\tIN REMOTE\tON FAILURE\n\
         daily\t0 2 * * 0\t0 2 * * *\tall\t3\tretry 2\n\
         s2\t0 0 1 * *\tnever\tall\tall\tskip\n"
    );
    let out = controller.run("backup schedule list").ok();
    let times = "2025-11-29 00:00:00 incremental\t2025-11-29 01:00:00 full";
    let expected = format!(
        "VOLUME\tREMOTE\tSCHEDULE\tLAST (UTC)\tNEXT (UTC)\tSTATE\n\
         a\tvault\tdaily\t{times}\tenabled\n\
         b\tvault\tdaily\t{times}\tfailed: no space\n\
         c\tvault\tdaily\t{times}\twaits: node a is away\n\
         d\tvault\tdaily\t\t\tbeing made\n\
         e\tvault\tdaily\t\t\tdisabled on resource definition e\n"
    );
    assert_eq!(out, expected);
    let out = controller.run("backup schedule list --remote other --json").ok();
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), json!([]));
    let out = controller.run("backup schedule list --schedule DAILY --json").ok();
    let rows: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&rows[3]["volume"], &rows[3]["next_ms"]), (&json!("d"), &Value::Null));
    assert_eq!(
        (&rows[0]["state"], &rows[0]["last_incremental"]),
        (&json!("enabled"), &json!(true))
    );

    let before = controller.asked().len();
    controller.run("schedule create weekly --full @weekly --keep-local 2 --keep-remote all").ok();
    controller.run("schedule modify weekly --incremental never --on-failure retry").ok();
    controller.run("schedule modify weekly --max-retries forever").ok();
    controller.run("backup schedule enable vault weekly web --on a").ok();
    controller.run("backup schedule disable vault weekly --group db").ok();
    controller.run("backup schedule delete vault weekly --all").ok();
    controller.run("backup schedule delete vault weekly web").ok();
    controller.run("schedule delete weekly").ok();
    let asked = &controller.asked()[before..];
    let calls: Vec<&str> = asked.iter().map(|asked| &asked.call[..]).collect();
    let of = |what: &str| format!("/v1/remotes/vault/backups/schedule/weekly/{what}");
    assert_eq!(
        calls,
        [
            "POST /v1/schedules",
            "PUT /v1/schedules/weekly",
            "PUT /v1/schedules/weekly",
            &format!("PUT {}", of("enable")),
            &format!("PUT {}", of("disable")),
            &format!("DELETE {}", of("delete")),
            &format!("DELETE {}?rsc_dfn_name=web", of("delete")),
            "DELETE /v1/schedules/weekly",
        ]
    );
    let body = &asked[0].body;
    assert_eq!((&body["full_cron"], &body["on_failure"]), (&json!("@weekly"), &json!("SKIP")));
    assert_eq!((&body["keep_local"], &body["keep_remote"]), (&json!(2), &json!(-1)));
    let body = &asked[1].body;
    assert_eq!((&body["inc_cron"], &body["on_failure"]), (&json!(""), &json!("RETRY")));
    assert_eq!((&body["keep_local"], &asked[2].body["max_retries"]), (&Value::Null, &json!(-1)));
    assert_eq!(asked[3].body, json!({ "rsc_name": "web", "grp_name": null, "node_name": "a" }));
    assert_eq!(asked[4].body, json!({ "rsc_name": null, "grp_name": "db" }));
    // Nobody enables it everywhere by leaving something out.
    let parsed = |line: &str| Cli::try_parse_from(std::iter::once("test").chain(line.split(' ')));
    assert!(parsed("backup schedule enable vault weekly").is_err());
    assert!(parsed("backup schedule enable vault weekly web --all").is_err());
    assert!(parsed("schedule create x --full y --keep-local some").is_err());
}

#[test]
fn disks_are_listed_by_node_and_made_pools() {
    let controller = Scripted::new(|call, body| match call {
        "GET /v1/physical-storage" => {
            let disk = |device: &str| json!({ "device": device, "model": "M 1", "serial": "S" });
            let two = json!({ "b": [disk("/dev/sdb")], "a": [disk("/dev/sdc"), disk("/dev/sda")] });
            let one = json!({ "a": [{ "device": "/dev/nvme0n1" }] });
            (
                200,
                json!([
                    { "size": 1u64 << 40, "rotational": false, "nodes": one },
                    { "size": 4u64 << 40, "rotational": true, "nodes": two },
                ]),
            )
        }
        c if c.ends_with("physical-storage/b") => (500, entry(3, 990, "/dev/sdb is not unused")),
        _ => healthy(call, body),
    });
    let out = controller.run("physical-storage list").ok();
    let expected = "NODE\tDEVICE\tSIZE\tROTATIONAL\tMODEL\tSERIAL\tWWN\n\
                    a\t/dev/nvme0n1\t1 TiB\tno\t\t\t\na\t/dev/sda\t4 TiB\tyes\tM 1\tS\t\n\
                    a\t/dev/sdc\t4 TiB\tyes\tM 1\tS\t\nb\t/dev/sdb\t4 TiB\tyes\tM 1\tS\t\n";
    assert_eq!(out, expected);
    let out = controller.run("physical-storage list --on B --json").ok();
    let disk = json!({ "node": "b", "device": "/dev/sdb", "size_bytes": 4u64 << 40,
        "rotational": true, "model": "M 1", "serial": "S", "wwn": "" });
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), json!([disk]));
    controller.run("physical-storage create ssd lvm-thin /dev/sda,/dev/sdc --on a").ok();
    let ran = controller.run("physical-storage create ssd zfs /dev/sdb --on a,b --place tank");
    assert!(ran.status() == 10 && ran.err.contains("/dev/sdb is not unused"), "{}", ran.err);
    let asked = controller.asked();
    assert_eq!(asked[2].call, "POST /v1/physical-storage/a");
    let body = json!({ "provider_kind": "LVM_THIN", "device_paths": ["/dev/sda", "/dev/sdc"],
        "pool_name": "ssd", "with_storage_pool": { "name": "ssd" } });
    assert_eq!(asked[2].body, body);
    assert_eq!(asked[4].call, "POST /v1/physical-storage/b");
    assert_eq!(asked[4].body["pool_name"], "tank");
}

#[test]
fn a_dry_run_prints_what_would_happen_and_changes_nothing() {
    let controller = Scripted::new(|call, body| match call {
        c if c.contains("dry_run=unclear") => (400, entry(3, 1, "unclear")),
        c if c.contains("dry_run=true") => {
            let told = json!([{
                "ret_code": 1_i64 << 62 | 10_007, "message": "dry run: 2 steps would follow",
                "details": "vol1 on a: remove\nvol1 on b: remove", "dry_run": { "steps": [] },
            }]);
            (200, told)
        }
        _ => healthy(call, body),
    });
    let out = controller.run("volume delete vol1 --dry-run").ok();
    let expected = "volume vol1: delete: dry run: 2 steps would follow\n  vol1 on a: remove\n  \
                    vol1 on b: remove\n";
    assert_eq!(out, expected);
    let expected = [
        "PUT /v1/resource-definitions/-?dry_run=unclear",
        "DELETE /v1/resource-definitions/vol1?dry_run=true",
    ];
    assert_eq!(controller.calls(), expected);
    let out = controller.run("group spawn db vol2 1G --dry-run --json").ok();
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), json!([{ "steps": [] }]));
}

#[test]
fn a_controller_that_knows_no_dry_runs_is_not_asked_for_one() {
    let controller = Scripted::new(|call, body| match call {
        c if c.starts_with("PUT /v1/resource-definitions/-") => {
            (500, entry(3, 200, "no such name"))
        }
        _ => healthy(call, body),
    });
    let ran = controller.run("volume delete vol1 --dry-run");
    assert!(ran.status() == 10 && ran.err.contains("can not foretell"), "{}", ran.err);
    assert_eq!(controller.calls().len(), 1, "nothing is deleted");
}

#[test]
fn nodes_are_created_with_their_addresses() {
    let controller = Scripted::new(healthy);
    let words = ["ashlar", "--controllers", &controller.url, "list"];
    let NodeCli { common, at, .. } = NodeCli::try_parse_from(words).unwrap();
    let nodes = [new_node("a=10.0.0.1").unwrap(), new_node("b=fd00::2").unwrap()];
    create_nodes(&nodes, &at, &common, &mut Vec::new()).unwrap();
    let asked = controller.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[1].body["net_interfaces"][0]["address"], "fd00::2");
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    for line in [
        "volume place v --on a --place 2",
        "volume place v --diskless",
        "volume place v --more 1 --place 2",
        "group spawn g v 1G --definition-only --place 2",
        "volume toggle-disk v a --diskless --pool p",
        "pool delete p",
        "physical-storage create p lvm /dev/sdb",
        "physical-storage create p lvm --on a",
        "physical-storage create p file-thin /dev/sdb --on a",
        "volume create v 10",
        "property set controller key",
        "volume delete v --dry-run --no-wait",
        "snapshot restore v s new --dry-run",
    ] {
        let words = std::iter::once("ashlar").chain(line.split(' '));
        assert!(Cli::try_parse_from(words).is_err(), "{line}");
    }
}

/// Passphrases that somebody types.
struct Typed(&'static [&'static str]);

impl Source for Typed {
    fn read(&mut self, _: &str, asked: &[Ask]) -> Result<Vec<Secret>, Error> {
        assert_eq!(asked.len(), self.0.len(), "{asked:?}");
        Ok(self.0.iter().map(|text| Secret::from(*text)).collect())
    }
}

/// A command of somebody who types these passphrases.
fn typing(line: &str, controller: &str, typed: &'static [&'static str]) -> Ran {
    let line = format!("ashlar {line} --controllers {controller}");
    let Cli { common, command } = Cli::try_parse_from(line.split(' ')).unwrap();
    let (Command::Encryption { at, .. } | Command::Volume { at, .. } | Command::Remote { at, .. }) =
        &command
    else {
        panic!("{line}")
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut session = Session::new(at, &common, Look::PLAIN, &mut out, &mut err).unwrap();
    session.secrets = Box::new(Typed(typed));
    let result = session.command(&command);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { result, out: text(out), err: text(err) }
}

#[test]
fn passphrases_are_typed_and_sent_in_bodies() {
    let volumes = json!({ "name": "vol1", "volume_definitions": [{ "volume_number": 0 }] });
    let script = Scripted::new(move |call, _| match call {
        "GET /v1/encryption/passphrase" => (200, json!({ "status": "locked" })),
        "GET /v1/resource-definitions/vol1?with_volume_definitions=true" => (200, volumes.clone()),
        _ => (200, json!([{ "ret_code": 1, "message": "done" }])),
    });
    let url = &script.url;
    let status = typing("encryption status", url, &[]).ok();
    assert!(status.contains("locked") && status.contains("encryption unlock"), "{status}");
    typing("encryption create", url, &["first"]).ok();
    typing("encryption unlock", url, &["first"]).ok();
    typing("encryption change", url, &["first", "second"]).ok();
    typing("volume passphrase vol1 --no-wait", url, &["own"]).ok();
    let sent: Vec<(String, Value)> =
        script.asked().into_iter().map(|asked| (asked.call, asked.body)).collect();
    let at = "/v1/encryption/passphrase";
    let own = "PUT /v1/resource-definitions/vol1/volume-definitions/0/encryption-passphrase";
    let expected = [
        (format!("POST {at}"), json!({ "new_passphrase": "first" })),
        (format!("PATCH {at}"), json!("first")),
        (format!("PUT {at}"), json!({ "old_passphrase": "first", "new_passphrase": "second" })),
        (own.to_owned(), json!({ "new_passphrase": "own" })),
    ];
    for call in expected {
        assert!(sent.contains(&call), "{call:?} is not among {sent:?}");
    }
    // Not for everybody between here and there to read.
    for line in ["encryption unlock", "volume passphrase vol1"] {
        let refused = typing(line, "http://10.0.0.1:3370", &["first"]);
        assert!(!refused.error().contains("first"), "{}", refused.error());
    }
    let refused = typing("encryption unlock", "http://10.0.0.1:3370", &["first"]);
    let said = refused.error();
    assert!(said.contains("for everybody to read") && said.contains("https"), "{said}");
}

/// Arguments of a process are for everybody on its host to read.
#[test]
fn tokens_of_other_clusters_are_typed() {
    let script = Scripted::new(|_, _| (200, json!([{ "ret_code": 1, "message": "done" }])));
    let url = &script.url;
    let line = "remote create two --url https://ctl.two --token --passphrase";
    typing(line, url, &["abc", "secret"]).ok();
    typing("remote modify two --passphrase", url, &["other"]).ok();
    let asked: Vec<Value> = script.asked().into_iter().map(|asked| asked.body).collect();
    let created = json!({ "remote_name": "two", "url": "https://abc@ctl.two", "passphrase": "secret",
        "cluster_id": null });
    assert!(asked.contains(&created), "{asked:?}");
    let changed = json!({ "url": null, "passphrase": "other", "cluster_id": null });
    assert!(asked.contains(&changed), "{asked:?}");
    let refused = typing("remote create two --url https://abc@ctl.two", url, &[]);
    let said = refused.error();
    assert!(said.contains("--token") && !said.contains("abc"), "{said}");
}

#[test]
fn encrypted_volumes_have_luks_among_their_layers() {
    let script = Scripted::new(|call, _| match call {
        "GET /v1/resource-groups" => {
            let filter = json!({ "place_count": 2, "layer_stack": ["DRBD", "LUKS", "STORAGE"] });
            (200, json!([{ "name": "db", "select_filter": filter }]))
        }
        "GET /v1/resource-definitions" | "GET /v1/view/resources?resources=vol1" => {
            (200, json!([]))
        }
        "GET /v1/resource-definitions/vol1?with_volume_definitions=true" => {
            (200, json!({ "name": "vol1" }))
        }
        _ => (201, json!([{ "ret_code": 1, "message": "done" }])),
    });
    script.run("resource-group create db --place 2 --encrypted").ok();
    script.run("resource-group spawn db vol1 32M --encrypted --no-wait").ok();
    script.run("volume create vol1 32M --no-wait").ok();
    let bodies: Vec<Value> = script.asked().into_iter().map(|asked| asked.body).collect();
    let luks = json!(["DRBD", "LUKS", "STORAGE"]);
    let with: Vec<bool> = bodies
        .iter()
        .filter(|body| !body["select_filter"].is_null())
        .map(|body| body["select_filter"]["layer_stack"] == luks)
        .collect();
    assert_eq!(with, [true, true, false], "{bodies:?}");
    let list = script.run("resource-group list").ok();
    assert!(list.contains("layers DRBD,LUKS,STORAGE"), "{list}");
}
