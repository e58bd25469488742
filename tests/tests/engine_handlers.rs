//! Handlers of real engines: programs that are called when something happens, what they are told,
//! and what their exit codes do (`fencing`, `before-resync-target`).

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Setup, pattern};

/// A handler that writes down what it is told, waits while there is a file `hold-EVENT`, and exits
/// with what the file `exit-EVENT` says.
const HANDLER: &str = r#"
cd "${0%/*}"
env > "call.$$"
mv "call.$$" "$1.$DRBD_MY_NODE_ID.$$"
while [ -e "hold-$1" ]; do sleep 0.1; done
[ -e "exit-$1" ] && exit "$(cat "exit-$1")"
exit 0
"#;

/// Two nodes with handlers in a directory.
fn with_handlers(directory: &Path, events: &[&str]) -> Setup {
    let script = directory.join("handler");
    fs::write(&script, HANDLER).unwrap();
    let commands = events.iter().map(|e| format!("{e} \"/bin/sh {} {e}\";", script.display()));
    let commands = commands.collect::<Vec<_>>().join(" ");
    Setup {
        nodes: vec!["alpha", "bravo"],
        sections: format!("net {{ fencing resource-and-stonith; }} handlers {{ {commands} }}"),
        ..Setup::default()
    }
}

/// The environments that a node has called a handler with, in no order.
fn calls(directory: &Path, node: u8, event: &str) -> Vec<BTreeMap<String, String>> {
    let prefix = format!("{event}.{node}.");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let files = files.filter(|f| f.file_name().to_string_lossy().starts_with(&prefix));
    let pair = |line: &str| line.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
    files
        .map(|f| fs::read_to_string(f.path()).unwrap().lines().filter_map(pair).collect())
        .collect()
}

#[test]
fn a_primary_waits_for_its_handler_to_fence_a_lost_peer() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let events = ["fence-peer", "unfence-peer", "before-resync-target", "after-resync-target"];
    let mut cluster = Cluster::up(&with_handlers(at, &events));
    cluster.wait("they are released", |_| !calls(at, 0, "unfence-peer").is_empty());
    let before = calls(at, 0, "unfence-peer").len();
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    client.write(0, &pattern(1, 65536)).unwrap();
    let mut events = cluster.nodes[0].follow(&["events"]);
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.by_ref().find(|line| line == "exists -").expect("the states come first");
    fs::write(at.join("hold-fence-peer"), "").unwrap();
    fs::write(at.join("exit-fence-peer"), "7").unwrap();
    cluster.nodes[1].kill();
    let suspended = |c: &Cluster| c.nodes[0].status()["suspended-fencing"] == true;
    cluster.wait("I/O is suspended", suspended);
    cluster.wait("the handler is called", |_| calls(at, 0, "fence-peer").len() == 1);
    let writer = std::thread::spawn(move || {
        let result = client.write(65536, &pattern(2, 65536));
        (client, result)
    });
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(!writer.is_finished() && suspended(&cluster), "it waits for the handler");
    fs::remove_file(at.join("hold-fence-peer")).unwrap();
    let (client, written) = writer.join().unwrap();
    written.unwrap();
    assert_eq!(cluster.nodes[0].peer("bravo").3, "Outdated");

    let told = &calls(at, 0, "fence-peer")[0];
    let is = |key: &str, value: &str| assert_eq!(told.get(key).map(String::as_str), Some(value));
    is("DRBD_RESOURCE", "r0");
    is("DRBD_MY_NODE_ID", "0");
    is("DRBD_NODE_ID_0", "alpha");
    is("DRBD_NODE_ID_1", "bravo");
    is("DRBD_PEER_NODE_ID", "1");
    is("DRBD_PEER_AF", "ipv4");
    is("DRBD_MINOR", "0");
    is("DRBD_MINOR_0", "0");
    is("DRBD_VOLUME", "0");
    is("UP_TO_DATE_NODES", "0x00000001");
    is("HOME", "/");
    assert!(told["DRBD_LL_DISK"].ends_with("alpha-0.img"));
    assert!(told["DRBD_BACKING_DEV_0"].ends_with("alpha-0.img"));
    assert_ne!(told["DRBD_CSTATE"], "Connected");
    assert!(!told.contains_key("CARGO"), "nothing else is passed on");
    let call = lines.by_ref().find(|line| line.starts_with("call helper")).unwrap();
    assert!(call.contains("name:r0 peer-node-id:1 conn-name:bravo local:ipv4:"), "{call}");
    assert!(call.ends_with("helper:fence-peer"), "{call}");
    let response = lines.by_ref().find(|line| line.starts_with("response helper")).unwrap();
    assert!(response.ends_with("helper:fence-peer status:1792"), "{response}");
    events.kill().unwrap();
    events.wait().unwrap();

    cluster.nodes[1].start();
    cluster.wait_connected();
    cluster.wait("it is released", |_| calls(at, 0, "unfence-peer").len() > before);
    cluster.wait("both were asked and told", |_| {
        !calls(at, 1, "before-resync-target").is_empty()
            && !calls(at, 1, "after-resync-target").is_empty()
    });
    client.close();
    cluster.wait("all disks are UpToDate", Cluster::all_up_to_date);
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_handler_that_fails_keeps_io_waiting_until_the_peer_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let mut cluster = Cluster::up(&with_handlers(at, &["fence-peer"]));
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    client.write(0, &pattern(1, 65536)).unwrap();
    fs::write(at.join("exit-fence-peer"), "1").unwrap();
    cluster.nodes[1].kill();
    cluster.wait("the handler has failed", |c| c.nodes[0].log().contains("handler is broken"));
    assert_eq!(cluster.nodes[0].status()["suspended-fencing"], true);
    let why = cluster.nodes[0].ok(&["why", "r0"]);
    assert!(why.contains("fence"), "{why}");
    let writer = std::thread::spawn(move || {
        let result = client.write(65536, &pattern(2, 65536));
        (client, result)
    });
    cluster.nodes[1].start();
    let (client, written) = writer.join().unwrap();
    written.unwrap();
    client.close();
    cluster.wait("all disks are UpToDate", Cluster::all_up_to_date);
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_handler_keeps_its_disk_from_a_resync_until_it_agrees() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let mut setup = with_handlers(at, &["before-resync-target"]);
    setup.sections = setup.sections.replace("resource-and-stonith", "dont-care");
    let mut cluster = Cluster::up(&setup);
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    cluster.nodes[1].kill();
    client.write(0, &pattern(1, 65536)).unwrap();
    fs::write(at.join("exit-before-resync-target"), "3").unwrap();
    cluster.nodes[1].start();
    cluster.wait("it has given up", |c| c.nodes[1].peer("alpha").0 == "StandAlone");
    cluster.wait_logged(1, "before-resync-target exited 3");
    fs::remove_file(at.join("exit-before-resync-target")).unwrap();
    cluster.nodes[1].ok(&["connect", "r0:alpha"]);
    cluster.wait_connected();
    client.close();
    cluster.wait("all disks are UpToDate", Cluster::all_up_to_date);
    cluster.assert_equal(0, &[0, 1]);
    // Changed while it runs: no handler any more, and one that does not exist.
    let with = fs::read_to_string(cluster.nodes[0].config()).unwrap();
    let handlers = &with[with.find("handlers {").unwrap()..];
    let handlers = handlers[..=handlers.find('}').unwrap()].to_owned();
    cluster.reconfigure(|config| config.replace(&handlers, "handlers { fence-peers x; }"));
    let (_, error) = cluster.nodes[0].fails(&["adjust", "r0"]);
    assert!(error.contains("fence-peers"), "{error}");
    cluster.reconfigure(|config| config.replace("handlers { fence-peers x; }", ""));
    let planned = cluster.nodes[0].ok(&["adjust", "--dry-run", "r0"]);
    assert!(planned.contains("change its handlers"), "{planned}");
    cluster.nodes[0].ok(&["adjust", "r0"]);
    assert!(!cluster.nodes[0].ok(&["adjust", "--dry-run", "r0"]).contains("handlers"));
}
