//! What is asked of agents at once: levels of logs, external files on nodes, drbd-reactor, and SOS
//! reports; and what the controller writes on its own host.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::served::{Response, Server};
use serde_json::{Value, json};

async fn put(server: &Server, path: &str, body: Value) -> Response {
    server.call("PUT", path, &body.to_string()).await
}

async fn post(server: &Server, path: &str, body: Value) -> Response {
    server.call("POST", path, &body.to_string()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_of_logs_are_changed_on_one_node_or_everywhere() {
    const CONFIG: &str = "/v1/controller/config";
    let server = Server::with_volume().await;
    let level = async |path: &str| {
        let config = server.call("GET", path, "").await.json();
        config["log"]["level_linstor"].as_str().unwrap().to_owned()
    };
    let log = |key: &str, level: &str| json!({ "log": { key: level } });
    assert_eq!(level(CONFIG).await, "INFO");
    let answer = put(&server, "/v1/nodes/n2/config", log("level_linstor", "debug")).await;
    assert_eq!((answer.status, answer.first()), (200, (3, false)));
    assert_eq!(level("/v1/nodes/N2/config").await, "DEBUG");
    assert_eq!(level("/v1/nodes/n1/config").await, "INFO");
    // Everywhere, as far as there is somebody.
    server.agents.cut(&server.handle, "n3").await;
    let answer = put(&server, CONFIG, log("level_linstor_global", "WARN")).await;
    assert_eq!(answer.status, 200);
    let entries = answer.json();
    let of: Vec<i64> =
        entries.as_array().unwrap().iter().map(|e| e["ret_code"].as_i64().unwrap()).collect();
    assert_eq!(
        of.iter().map(|code| code & 0x7fff).collect::<Vec<_>>(),
        [3, 3, 3, 1002],
        "{entries}"
    );
    assert_eq!(level(CONFIG).await, "WARN");
    assert_eq!(level("/v1/nodes/n1/config").await, "WARN");
    let answer = put(&server, CONFIG, log("level_linstor", "INFO")).await;
    assert_eq!((answer.status, answer.json().as_array().unwrap().len()), (200, 1));
    assert_eq!(level("/v1/nodes/n2/config").await, "WARN", "the controller's alone");
    // A node that is not there is 503.
    let answer = server.call("GET", "/v1/nodes/n3/config", "").await;
    assert_eq!((answer.status, answer.first()), (503, (995, true)));
    let answer = put(&server, "/v1/nodes/n3/config", log("level_linstor", "INFO")).await;
    assert_eq!((answer.status, answer.first()), (500, (995, true)));
    // What can not be done is refused, and nothing is changed.
    for (path, body, why) in [
        (CONFIG, log("level_linstor", "LOUD"), "not a log level"),
        (CONFIG, log("level", "INFO"), "libraries"),
        (CONFIG, json!({}), "names no level"),
        (CONFIG, json!({ "http": { "port": 1 }, "log": { "level_linstor": "ERROR" } }), "started"),
        ("/v1/nodes/n1/config", log("level_linstor_global", "ERROR"), "controller's"),
        ("/v1/nodes/n1/config", json!({ "net": { "port": 1 } }), "dial the controller"),
        ("/v1/nodes/n1/config", json!({ "log": { "directory": "/x" } }), "standard error"),
    ] {
        let answer = put(&server, path, body).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == 500 && text.contains(why), "{path}: {} {text}", answer.status);
    }
    assert_eq!(level(CONFIG).await, "INFO");
    assert_eq!(level("/v1/nodes/n1/config").await, "WARN");
    assert_eq!(server.call("GET", "/v1/nodes/never/config", "").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn external_files_are_looked_at_where_they_are() {
    const FILE: &str = "/v1/files/%2Fetc%2Fx.conf";
    let server = Server::with_volume().await;
    let get = async |path: &str| {
        let answer = server.call("GET", &format!("{FILE}/{path}"), "").await;
        (answer.status, answer.json())
    };
    assert_eq!(get("check/n1").await, (200, json!({ "allowed": true })));
    let answer = server.call("GET", "/v1/files/%2Fusr%2Fx/check/n1", "").await;
    assert_eq!(answer.json(), json!({ "allowed": false }));
    assert_eq!(get("status/n1").await.0, 404, "nobody has said what should be there");
    put(&server, FILE, json!({ "content": "YWJj" })).await;
    assert_eq!(get("status/n1").await, (200, json!({ "content_match": false })));
    server.agents.put_file("n1", "/etc/x.conf", b"other");
    let there = |same: bool| json!({ "actual_path": "/etc/x.conf", "content_match": same });
    assert_eq!(get("status/n1").await, (200, there(false)));
    server.agents.put_file("n1", "/etc/x.conf", b"abc");
    assert_eq!(get("status/n1").await, (200, there(true)));
    server.agents.cut(&server.handle, "n1").await;
    assert_eq!(get("status/n1").await.0, 503);
    assert_eq!(get("check/n1").await.0, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn drbd_reactor_is_called_on_the_nodes_that_are_named() {
    const EXEC: &str = "/v1/nodes/exec/drbd-reactorctl";
    let server = Server::with_volume().await;
    server.agents.cut(&server.handle, "n3").await;
    let call = async |verb: &str, body: Value| post(&server, &format!("{EXEC}/{verb}"), body).await;
    let answer = call("status", json!({ "nodes": ["n1", "N2", "n3"] })).await;
    let said = answer.json();
    assert_eq!((answer.status, said.as_array().unwrap().len()), (200, 3));
    assert_eq!(
        said[1],
        json!({
            "node": "n2", "exit_code": 3, "stdout_utf8": "drbd-reactorctl status\n",
            "stderr_utf8": "wait true\n",
        })
    );
    assert_eq!(said[2]["exit_code"], -1);
    assert!(said[2]["stderr_utf8"].as_str().unwrap().contains("not connected"), "{said}");
    for (verb, body, line, wait) in [
        ("evict", json!({ "nodes": ["n1"], "resource": "a" }), "evict a", false),
        ("evict", json!({ "nodes": ["n1"], "resource": "a", "wait": true }), "evict a", true),
        ("disable", json!({ "nodes": ["n1"], "config": "a" }), "disable a", true),
        (
            "disable",
            json!({ "nodes": ["n1"], "config": "a", "now": true }),
            "disable --now a",
            true,
        ),
        ("enable", json!({ "nodes": ["n1"], "config": "a" }), "enable a", true),
        ("restart", json!({ "nodes": ["n1"], "config": "a" }), "restart a", true),
    ] {
        let said = call(verb, body).await.json();
        assert_eq!(said[0]["stdout_utf8"], format!("drbd-reactorctl {line}\n"));
        assert_eq!(said[0]["stderr_utf8"], format!("wait {wait}\n"), "{line}");
    }
    for (verb, body, status) in [
        ("status", json!({ "nodes": [] }), 500),
        ("status", json!({ "nodes": ["n1", "never"] }), 404),
        ("evict", json!({ "nodes": ["n1"] }), 500),
        ("evict", json!({ "nodes": ["n1"], "resource": "--force" }), 500),
        ("enable", json!({ "nodes": ["n1"], "config": "a", "now": true }), 500),
        ("disable", json!({ "nodes": ["n1"], "config": "a; reboot" }), 500),
    ] {
        let answer = call(verb, body.clone()).await;
        assert_eq!(answer.status, status, "{verb} {body}");
    }
}

/// The files of an archive.
fn unpacked(archive: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name.split_once('/').unwrap().1.to_owned(), text)
    });
    entries.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sos_report_has_what_the_api_shows_and_what_nodes_tell() {
    let server = Server::with_volume().await;
    server.agents.cut(&server.handle, "n3").await;
    let path = "/v1/sos-report/download?since=1700000000000";
    // Clients that take compressed answers keep the file as it comes.
    let answer = server.call_with("GET", path, "Accept-Encoding: gzip\r\n", "").await;
    assert_eq!(answer.status, 200);
    assert!(!answer.head.contains("content-encoding"), "{}", answer.head);
    assert!(
        answer.head.contains("content-disposition: attachment; filename=sos_"),
        "{}",
        answer.head
    );
    let files = unpacked(&answer.body);
    let names: Vec<&str> =
        files.keys().map(String::as_str).filter(|n| n.starts_with("nodes/")).collect();
    assert_eq!(names, ["nodes/n1/journal.txt", "nodes/n2/journal.txt", "nodes/n3/missing.txt"]);
    assert_eq!(files["nodes/n1/journal.txt"], "1700000000000");
    assert!(files["nodes/n3/missing.txt"].contains("not connected"));
    let resources: Value = serde_json::from_str(&files["controller/resources.json"]).unwrap();
    assert!(resources.as_array().unwrap().iter().any(|r| r["name"] == "Vol"), "{resources}");
    // This controller has no audit log.
    for (name, text) in files.iter().filter(|(name, _)| !name.ends_with("audit.json")) {
        assert!(!text.starts_with("4") && !text.starts_with("5"), "{name}: {text}");
    }
    // The shared secret by which replicas know each other is in the store, and not in a report.
    let secret = {
        use linstor::controller::Controller as _;
        let state = server.handle.state();
        let definition = state.model.definitions().next().unwrap();
        definition.secret.clone()
    };
    assert!(secret.len() > 8 && !files.values().any(|text| text.contains(&secret)));
    // Parts of it.
    let part = async |query: &str| {
        let path = format!("/v1/sos-report/download?include-ctrl=false&{query}");
        let answer = server.call("GET", &path, "").await;
        assert_eq!(answer.status, 200, "{query}");
        unpacked(&answer.body).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(part("nodes=n2").await, ["nodes/n2/journal.txt"]);
    assert_eq!(part("exclude=n2&exclude=n3").await, ["nodes/n1/journal.txt"]);
    assert_eq!(part("rscs=none").await, [""; 0]);
    assert_eq!(server.call("GET", "/v1/sos-report/download?nodes=never", "").await.status, 404);
    // Kept where the controller runs.
    let answer = server.call("GET", "/v1/sos-report", "").await;
    assert_eq!((answer.status, answer.first()), (201, (1, false)));
    let path = answer.json()[0]["obj_refs"]["path"].as_str().unwrap().to_owned();
    assert!(unpacked(&std::fs::read(path).unwrap()).contains_key("controller/nodes.json"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_copied_and_exported_into_a_folder_of_the_controller() {
    const COPY: &str = "/v1/controller/backup/db";
    const EXPORT: &str = "/v1/controller/database/export";
    let server = Server::with_volume().await;
    let folder = server.directory().join("backups");
    for (call, ending) in [(COPY, "db"), (EXPORT, "json")] {
        let answer = post(&server, call, json!({ "backup_name": "monday" })).await;
        assert_eq!((answer.status, answer.first()), (201, (1, false)), "{call}");
        let path = answer.json()[0]["obj_refs"]["path"].as_str().unwrap().to_owned();
        assert_eq!(Path::new(&path), folder.join(format!("monday.{ending}")));
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "there are secrets in it");
        // Nothing is written over.
        let answer = post(&server, call, json!({ "backup_name": "monday" })).await;
        assert_eq!((answer.status, answer.first()), (500, (242, true)), "{call}");
        for name in ["../x", "/etc/x", ".x", "a b", "-x"] {
            let answer = post(&server, call, json!({ "backup_name": name })).await;
            assert_eq!(answer.status, 500, "{name}");
        }
        // Without a name it has the time for one.
        assert_eq!(server.call("POST", call, "").await.status, 201);
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 4);
    // Both have what is wanted.
    let mut copy = controller::store::Sqlite::open(&folder.join("monday.db")).unwrap();
    let rows = controller::store::Store::load(&mut copy).unwrap();
    let text = std::fs::read_to_string(folder.join("monday.json")).unwrap();
    let exported: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(exported["rows"].as_array().unwrap().len(), rows.len());
}
