//! The demo of the control plane, as a newcomer starts it: it tells its story, ends well, and leaves
//! nothing behind; and it stays for as long as it is asked to.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::engine_support::{binary, text};
use serde_json::Value;

fn demo(folder: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(["demo", "--cluster", "--json", "--seed", "1", "--dir"]).arg(folder);
    // Sockets and logs go there, too.
    command.env("TMPDIR", folder).stdin(Stdio::null());
    command
}

fn assert_good(summary: &Value) {
    for key in ["lost", "stale"] {
        assert_eq!(summary[key], 0, "{summary}");
    }
    assert_eq!(summary["replicas_identical"], true, "{summary}");
    assert_eq!(summary["volumes"], 20, "{summary}");
    let number = |key: &str| summary[key].as_u64().unwrap();
    assert!(number("acked_writes") > 2_000, "{summary}");
    assert!(number("drained_replicas") > 0 && number("lost_replicas") > 0, "{summary}");
}

fn namespaces_of(pid: u32) -> String {
    format!("ashlar-demo-{pid}-")
}

/// Whether network namespaces can be had here.
fn has_namespaces() -> bool {
    let name = format!("ashlar-test-{}", std::process::id());
    let ip = |words: &[&str]| {
        let output = Command::new("ip").args(words).output();
        output.is_ok_and(|output| output.status.success())
    };
    let has = ip(&["netns", "add", &name]) && ip(&["netns", "exec", &name, "true"]);
    ip(&["netns", "delete", &name]);
    has
}

fn assert_nothing_is_left(folder: &Path, pid: u32) {
    let left: Vec<_> = folder.read_dir().unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
    let netns = Path::new("/run/netns").read_dir().into_iter().flatten();
    let names = netns.map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
    let left: Vec<String> = names.filter(|name| name.starts_with(&namespaces_of(pid))).collect();
    assert!(left.is_empty(), "{left:?}");
    // The kernel takes interfaces of a namespace away a moment after it.
    let interface = Path::new("/sys/class/net").join(format!("ashlar{pid}"));
    let begin = Instant::now();
    while interface.exists() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} is left", interface.display());
        std::thread::sleep(Duration::from_millis(50));
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(folder.to_str().unwrap()), "{mounts}");
}

#[test]
fn the_demo_of_a_cluster_loses_nothing_and_stays_until_it_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().with_extension("told");
    let told = std::fs::File::create(&log).unwrap();
    let mut running =
        demo(folder.path()).arg("--keep").stdout(Stdio::piped()).stderr(told).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let told = || std::fs::read_to_string(&log).unwrap();
    if line.is_empty() {
        running.wait().unwrap();
        panic!("{}", told());
    }
    let summary: Value = serde_json::from_str(&line).unwrap();
    let url = summary["controller"].as_str().unwrap().to_owned();
    let ask = |words: &[&str]| {
        let output =
            Command::new(binary()).args(words).args(["--controllers", &url]).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let nodes: Value = serde_json::from_str(&ask(&["node", "list", "--json"])).unwrap();
    let spawned = ask(&["resource-group", "spawn", "db", "mine", "16M"]);
    // Its nodes are where they were said to be.
    let namespaces = has_namespaces();
    assert_eq!(summary["namespaces"], namespaces, "{summary}\n{}", told());
    let processes = |node: &str| {
        let name = namespaces_of(running.id()) + node;
        let output = Command::new("ip").args(["netns", "pids", &name]).output();
        output.map_or(0, |output| text(&output.stdout).lines().count())
    };
    // Engine and agent of each node but the one that was lost.
    let all: usize = ["alpha", "bravo", "charlie"].into_iter().map(processes).sum();
    assert_eq!(all, if namespaces { 4 } else { 0 });
    let pid = running.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = running.wait().unwrap();
    println!("{}", told());
    assert!(status.success(), "{status}\n{}", told());
    assert_good(&summary);
    assert_eq!(nodes.as_array().unwrap().len(), 2, "one of three was lost: {nodes}");
    assert!(spawned.contains("UpToDate"), "{spawned}");
    let restored = summary["snapshot_blocks"].as_u64().is_some_and(|blocks| blocks > 0);
    assert!(restored || summary["left_out"].is_string(), "{summary}");
    assert_nothing_is_left(folder.path(), running.id());
    std::fs::remove_file(&log).unwrap();
}

#[test]
fn without_files_that_share_blocks_the_snapshot_is_left_out_and_said() {
    let folder = tempfile::tempdir().unwrap();
    // Without programs no file system can be made. The folder's own may share blocks, though.
    let mut child = demo(folder.path());
    let child = child
        .env("PATH", "/nonexistent")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success(), "{}\n{told}", output.status);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_good(&summary);
    if summary["snapshot_blocks"].is_null() {
        let why = summary["left_out"].as_str().unwrap();
        assert!(why.contains("can not share blocks") && told.contains(why), "{why}\n{told}");
    }
    assert_eq!(summary["namespaces"], false, "{summary}");
    assert!(told.contains("without network namespaces: "), "{told}");
    assert_nothing_is_left(folder.path(), pid);
}
