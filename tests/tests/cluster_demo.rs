//! The demo of the control plane, as a newcomer starts it: it tells its story, ends well, and leaves
//! nothing behind; and it stays for as long as it is asked to.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this whole file is a test")]

mod engine_support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use engine_support::{binary, text};
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

fn assert_nothing_is_left(folder: &Path) {
    let left: Vec<_> = folder.read_dir().unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
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
    assert_nothing_is_left(folder.path());
    std::fs::remove_file(&log).unwrap();
}

#[test]
fn without_files_that_share_blocks_the_snapshot_is_left_out_and_said() {
    let folder = tempfile::tempdir().unwrap();
    // Without programs no file system can be made. The folder's own may share blocks, though.
    let output = demo(folder.path()).env("PATH", "/nonexistent").output().unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success(), "{}\n{told}", output.status);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_good(&summary);
    if summary["snapshot_blocks"].is_null() {
        let why = summary["left_out"].as_str().unwrap();
        assert!(why.contains("can not share blocks") && told.contains(why), "{why}\n{told}");
    }
    assert_nothing_is_left(folder.path());
}
