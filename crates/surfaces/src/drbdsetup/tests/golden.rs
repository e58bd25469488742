//! What `show` prints is what drbdsetup printed on real nodes, byte for byte.

use codec::admin::ResourceStatus;
use codec::config::ResourceConfig;
use serde_json::json;
use vocab::options::Options;
use vocab::{ConnState, DiskState};

use super::super::show::{Dialect, json_of, text_of};
use crate::cli::tests::{configured, recordings};

/// The configuration of the recorded nodes; `what` differs between scenarios.
fn r0(host: &str, what: &str, disk_of_g13: &str) -> ResourceConfig {
    let text = format!(
        "resource r0 {{
          {what}
          volume 0 {{ device minor 0; disk /dev/vda; meta-disk internal; }}
          on g11 {{ node-id 0; }}
          on g12 {{ node-id 1; }}
          on g13 {{ node-id 2; volume 0 {{ disk {disk_of_g13}; }} }}
          connection {{ host g11 address 10.77.0.11:7788; host g12 address 10.77.0.12:7788; }}
          connection {{ host g11 address 10.77.0.11:7788; host g13 address 10.77.0.13:7788; }}
          connection {{ host g12 address 10.77.0.12:7788; host g13 address 10.77.0.13:7788; }}
        }}"
    );
    configured(&text, host).remove(0)
}

/// The recorded status of a node in a scenario.
fn status(file: &str) -> ResourceStatus {
    let recording = recordings().into_iter().find(|r| r.file() == file);
    recording.unwrap_or_else(|| panic!("{file} is recorded")).status()
}

const QUORUM: &str = "options { quorum majority; }";

#[test]
fn show_equals_what_drbdsetup_printed() {
    let slow = "disk { c-plan-ahead 0; resync-rate 100k; c-max-rate 100k; }";
    let slow = format!("{QUORUM} {slow}");
    let thin = "disk { rs-discard-granularity 65536; }";
    macro_rules! check {
        ($file:literal, $host:literal, $what:expr, $g13:literal) => {
            let expected = include_str!(concat!("../../../testdata/show/", $file, ".txt"));
            let config = r0($host, $what, $g13);
            let text = text_of(&config, Some(&status($file)), Dialect::Old, false);
            assert_eq!(text, expected, "{}", $file);
        };
    }
    check!("01-connect-skip-initial-sync.g11", "g11", QUORUM, "none");
    check!("07-diskless-client-io.g13", "g13", QUORUM, "none");
    check!("16-split-brain.g11", "g11", "", "/dev/vda");
    check!("17-writes-during-resync.g11", "g11", &slow, "none");
    check!("18-detach-attach-invalidate.g11", "g11", thin, "/dev/vda");
}

#[test]
fn a_newer_drbdadm_gets_the_connection_states_and_the_newer_options() {
    let mut config = r0("g11", "", "/dev/vda");
    config.peers[0].volumes[0].options.set("peer-tiebreaker", "no").unwrap();
    let status = status("16-split-brain.g11");
    let old = text_of(&config, Some(&status), Dialect::Old, false);
    assert!(!old.contains("_cstate") && !old.contains("tiebreaker"), "{old}");
    let new = text_of(&config, Some(&status), Dialect::New, false);
    assert!(new.contains("        _cstate StandAlone;\n"), "{new}");
    assert!(new.contains("                peer-tiebreaker \tno;\n"), "{new}");
    assert!(!new.contains("_is_standalone"), "{new}");
}

#[test]
fn versions_of_drbdadm_decide() {
    for (version, dialect) in [
        ("9.22.0", Some(Dialect::Old)),
        ("9.31.9", Some(Dialect::Old)),
        ("9.32", Some(Dialect::New)),
        ("10.0.0", Some(Dialect::New)),
        ("new", None),
        ("9", None),
    ] {
        assert_eq!(Dialect::of(version), dialect, "{version}");
    }
}

#[test]
fn defaults_are_marked_with_their_units() {
    let config = r0("g11", QUORUM, "none");
    let text = text_of(&config, None, Dialect::Old, true);
    for line in [
        "quorum          \tmajority;\n",
        "on-no-data-accessible\tio-error; # default\n",
        "cpu-mask        \t\"\"; # default\n",
        "peer-ack-window \t4096s; # bytes, default\n",
        "peer-ack-delay  \t100; # milliseconds, default\n",
        "timeout         \t60; # 1/10 seconds, default\n",
        "ping-int        \t10; # seconds, default\n",
        "max-buffers     \t2048; # default\n",
        "c-max-rate      \tauto; # bytes/second, default\n",
        "al-extents      \t1237; # default\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    assert!(!text.contains("tls"), "an older drbdadm does not know it: {text}");
}

#[test]
fn a_disk_that_was_lost_is_not_shown_so_that_it_is_attached_again() {
    let config = r0("g11", "", "/dev/vda");
    let mut status = status("16-split-brain.g11");
    status.devices[0].disk_state = DiskState::Diskless;
    let text = text_of(&config, Some(&status), Dialect::Old, false);
    assert!(!text.contains("/dev/vda") && !text.contains("meta-disk"), "{text}");
    let json = json_of(&config, Some(&status));
    assert_eq!(json["_this_host"]["volumes"][0].get("backing-disk"), None);
}

#[test]
fn names_are_quoted_as_drbdadm_reads_them() {
    let mut config = r0("g11", "", "/dev/vda");
    config.peers[0].name = "a\"b\\c".to_owned();
    let text = text_of(&config, None, Dialect::Old, false);
    assert!(text.contains(r#"_name           	"a\"b\\c";"#), "{text}");
}

#[test]
fn json_is_complete_with_the_types_that_callers_read() {
    let config = r0("g11", QUORUM, "none");
    let mut status = status("01-connect-skip-initial-sync.g11");
    status.connections[1].connection_state = ConnState::StandAlone;
    let json = json_of(&config, Some(&status));
    assert_eq!(json["resource"], "r0");
    assert_eq!(json["options"]["quorum"], "majority");
    assert_eq!(json["options"]["auto-promote"], true);
    assert_eq!(json["options"]["cpu-mask"], "");
    assert_eq!(json["_this_host"]["node-id"], 0);
    let volume = &json["_this_host"]["volumes"][0];
    assert_eq!(volume["backing-disk"], "/dev/vda");
    assert_eq!(volume["meta-disk"], "internal");
    assert_eq!((&volume["volume_nr"], &volume["device_minor"]), (&json!(0), &json!(0)));
    assert_eq!(
        (&volume["disk"]["size"], &volume["disk"]["diskless"]),
        (&json!("0s"), &json!("no"))
    );
    assert_eq!(volume["disk"]["disk-flushes"], true);
    let [up, down] = json["connections"].as_array().unwrap().as_slice() else { panic!("{json}") };
    assert_eq!((&up["_cstate"], up.get("_is_standalone")), (&json!("Connected"), None));
    assert_eq!((&down["_cstate"], &down["_is_standalone"]), (&json!("StandAlone"), &json!(true)));
    assert_eq!(up["net"]["rr-conflict"], "disconnect");
    assert_eq!((&up["net"]["_name"], &up["_peer_node_id"]), (&json!("g12"), &json!(1)));
    assert_eq!(down["volumes"][0]["disk"]["bitmap"], false);
    assert_eq!(up["volumes"][0]["disk"]["c-max-rate"], "auto");
    let end = json!({ "address": "10.77.0.12", "port": 7788, "family": "ipv4" });
    assert_eq!(up["paths"][0]["remote_host"], end);
}
