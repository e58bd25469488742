//! The demo, as a newcomer starts it: it tells its story, ends well and leaves nothing behind.

use std::path::Path;
use std::process::{Command, Output};

use crate::engine_support::binary;
use serde_json::Value;

fn demo(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new("timeout");
    command.arg("300").arg(binary()).arg("demo").args(arguments);
    // Sockets and logs go there, too.
    command.arg("--dir").arg(folder).env("TMPDIR", folder).output().unwrap()
}

#[test]
fn the_demo_loses_nothing_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(&["--json", "--size", "64M", "--seed", "1"], folder.path());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}\n{told}", output.status);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["lost", "stale"] {
        assert_eq!(summary[key], 0, "{summary}");
    }
    assert_eq!(summary["replicas_identical"], true, "{summary}");
    assert!(summary["acked_writes"].as_u64().unwrap() > 1_000, "{summary}");
    assert!(summary["takeover_ms"].is_u64(), "{summary}");
    let number = |key: &str| summary[key].as_u64().unwrap();
    assert!((1..=64 << 20).contains(&number("volume_bytes")), "{summary}");
    assert!(number("resync_bytes") > 0, "{summary}");
    let left: Vec<_> = folder.path().read_dir().unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_demo_that_can_not_begin_says_why_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(&["--json", "--size", "1K"], folder.path());
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("--size"), "{told}");
    assert!(output.stdout.is_empty());
    assert!(folder.path().read_dir().unwrap().next().is_none());
}
