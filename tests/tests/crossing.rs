//! Snapshots shipped from cluster to cluster as their users meet them: two controllers, each with agents and
//! engines of its own, and one that ships to itself. What was written is there, to the byte, of all of it and of
//! what has changed; what is cut short, at either end, is nothing there, and says why at both.

use serde_json::Value;

use crate::control_support::MIB;
use crate::control_support::bare::Controller;
use crate::engine_support::binary;
use crate::engine_support::pattern;
use crate::shipping::{Bed, SIZE, read};

const STOP: i32 = 19;
const GO_ON: i32 = 18;

/// Two clusters: what the first one ships the second one gets.
struct Clusters {
    from: Bed,
    to: Bed,
}

impl Clusters {
    fn new() -> Option<Clusters> {
        let clusters = Clusters { from: Bed::new()?, to: Bed::new()? };
        let url = &clusters.to.controller().url;
        clusters.from.controller().ok(&format!("remote create there --url {url}"));
        Some(clusters)
    }

    /// The second one takes what the first one ships.
    fn meet(&self) {
        let (url, id) = (&self.from.controller().url, id(self.from.controller()));
        self.to.controller().ok(&format!("remote create here --url {url} --cluster-id {id}"));
    }

    fn source(&self, snapshot: &str) -> (String, String) {
        told(self.from.controller(), "web", snapshot, "Source/there")
    }

    fn target(&self, snapshot: &str) -> (String, String) {
        told(self.to.controller(), "copy", snapshot, "Target")
    }
}

/// The id of a cluster.
fn id(controller: &Controller) -> String {
    let props = controller.json("property list controller");
    props["Cluster/LocalID"].as_str().unwrap().to_owned()
}

/// Waits until a volume is there, to be used.
fn up(controller: &Controller, volume: &str) {
    controller.wait("it is a volume", || {
        let line = ["volume", "list", volume, "--json"];
        let output = controller.run(&line);
        let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        all[0]["state"] == "UpToDate"
    });
}

/// How far a shipment is at an end, and why.
fn told(controller: &Controller, name: &str, snapshot: &str, end: &str) -> (String, String) {
    let output =
        controller.run(&["property", "list", &format!("snapshot/{name}/{snapshot}"), "--json"]);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let text = |key: &str| {
        all[format!("BackupShipping/{end}/{key}")].as_str().unwrap_or_default().to_owned()
    };
    (text("ShippingStatus"), text("Cause"))
}

#[test]
fn another_cluster_has_what_was_written_full_and_incremental() {
    let Some(clusters) = Clusters::new() else { return };
    let (from, to) = (clusters.from.controller(), clusters.to.controller());
    let mut client = clusters.from.open("web");
    client.write(0, &pattern(1, 1 << 20)).unwrap();
    client.write(20 * MIB, &pattern(2, 12 << 20)).unwrap();
    client.flush().unwrap();
    let first = read(&mut client);

    // Nothing is taken from who is not known, and nothing is left of it.
    let said = from.fails("backup ship there web --snapshot first --to copy --snapshot-only", 10);
    assert!(said.contains("has no remote with the cluster id"), "{said}");
    assert_eq!(from.json("snapshot list web"), Value::Array(Vec::new()));
    clusters.meet();
    let remotes = to.json("remote list");
    let here = remotes.as_array().unwrap().iter().find(|one| one["remote"] == "here").unwrap();
    assert_eq!(here["cluster_id"], id(from));
    let said = from.fails("backup create there web", 10);
    assert!(said.contains("it is another cluster"), "{said}");
    let said = from.fails("backup ship vault web", 10);
    assert!(said.contains("it is a bucket"), "{said}");

    from.ok("backup ship there web --snapshot first --to copy --snapshot-only");
    assert_eq!(clusters.source("first"), ("Success".to_owned(), String::new()));
    assert_eq!(clusters.target("first"), ("Success".to_owned(), String::new()));
    client.write(21 * MIB, &pattern(3, 2 << 20)).unwrap();
    client.zero(26 * MIB, 1 << 20).unwrap();
    client.write(SIZE - 8192, &pattern(4, 8192)).unwrap();
    client.flush().unwrap();
    let second = read(&mut client);
    from.ok("backup ship there web --snapshot second --to copy --snapshot-only");
    client.write(30 * MIB, &pattern(5, 1 << 20)).unwrap();
    client.flush().unwrap();
    let third = read(&mut client);
    from.ok("backup ship there web --snapshot third --to copy --snapshot-only --full");
    client.close();
    let based = |snapshot: &str| {
        let all = to.json(&format!("property list snapshot/copy/{snapshot}"));
        all["BackupShipping/Target/BasedOn"].as_str().map(str::to_owned)
    };
    assert_eq!(based("first"), None);
    assert_eq!(based("second").as_deref(), Some("first"));
    assert_eq!(based("third"), None);

    // What is made of them has what was there then, DRBD's metadata in order.
    for (snapshot, new, content) in
        [("second", "two", &second), ("first", "one", &first), ("third", "three", &third)]
    {
        to.ok(&format!("snapshot restore copy {snapshot} {new}"));
        let on = to.replicas(new)[0].clone();
        assert!(clusters.to.content(new, &on) == *content, "{snapshot}");
    }
    // A snapshot that is there is not made again.
    from.fails("backup ship there web --snapshot first --to copy --snapshot-only", 10);
    let (status, cause) = clusters.source("first");
    assert!(status == "Failed" && cause.contains("it has a snapshot first"), "{cause}");

    // The whole way: a volume there, to be used, and other replicas of it.
    from.ok(
        "backup ship there web --snapshot second --to whole --to-node n2 --pool thin=thin --group db",
    );
    up(to, "whole");
    to.ok("volume place whole --more 1");
    assert!(clusters.to.content("whole", "n2") == second);
    let said = from.fails("backup ship there web --snapshot third --to whole", 10);
    assert!(said.contains("it has resources"), "{said}");
    for (option, words) in [
        ("--to-node n9", "node n9 does not exist"),
        ("--to-pool none", "has no pool none"),
        ("--to-node n1 --to-interface none", "it has no network interface none"),
    ] {
        let line = format!("backup ship there web --snapshot third --to other {option}");
        let said = from.fails(&line, 10);
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_cluster_ships_to_itself() {
    let Some(bed) = Bed::new() else { return };
    let controller = bed.controller();
    let url = &controller.url;
    controller.ok(&format!("remote create self --url {url}"));
    let mut client = bed.open("web");
    client.write(5 * MIB, &pattern(7, 3 << 20)).unwrap();
    client.flush().unwrap();
    let content = read(&mut client);
    client.close();
    controller.ok("backup ship self web --snapshot now --to copy --to-node n3");
    up(controller, "copy");
    assert!(bed.content("copy", "n3") == content);
    controller.ok("remote delete self");
}

#[test]
fn what_is_cut_short_is_nothing_there() {
    let Some(mut clusters) = Clusters::new() else { return };
    clusters.meet();
    let mut client = clusters.from.open("web");
    client.write(0, &pattern(1, 4 << 20)).unwrap();
    client.flush().unwrap();
    let content = read(&mut client);
    client.close();
    let on = clusters.from.controller().replicas("web")[0].clone();
    let sender = clusters.from.nodes.iter().position(|node| node.name == on).unwrap();
    let begin = |clusters: &Clusters, snapshot: &str| {
        let from = clusters.from.controller();
        from.ok(&format!("snapshot create web {snapshot}"));
        // It does not begin: its agent takes no orders.
        clusters.from.nodes[sender].signal_agent(STOP);
        from.ok(&format!(
            "backup ship there web --snapshot {snapshot} --on {on} --to copy --to-node n3 \
             --snapshot-only --no-wait"
        ));
        clusters
            .to
            .controller()
            .wait("it is waited for", || clusters.target(snapshot).0 == "Shipping");
        from.wait("it is known where", || clusters.source(snapshot).0 == "Shipping");
        std::thread::sleep(std::time::Duration::from_secs(3));
    };
    let ended = |clusters: &Clusters, snapshot: &str, source: &str, target: &str| {
        let from = clusters.from.controller();
        from.wait("it has ended here", || clusters.source(snapshot).0 == source);
        from.wait("it has ended there", || clusters.target(snapshot).0 == target);
        let files = clusters.to._pools.files("n3");
        assert!(!files.iter().any(|file| file.contains(snapshot)), "{files:?}");
        (clusters.source(snapshot).1, clusters.target(snapshot).1)
    };

    // Given up where it is to come from.
    begin(&clusters, "one");
    let said = clusters.to.controller().fails("snapshot delete copy one", 10);
    assert!(said.contains("being made"), "{said}");
    clusters.from.controller().ok("backup abort there web");
    clusters.to.controller().wait("it is given up", || clusters.target("one").0 == "Aborted");
    clusters.from.nodes[sender].signal_agent(GO_ON);
    ended(&clusters, "one", "Aborted", "Aborted");

    // Given up where it is to go.
    begin(&clusters, "two");
    clusters.to.controller().ok("backup abort here copy");
    clusters.to.controller().wait("it is given up", || clusters.target("two").0 == "Aborted");
    clusters.from.nodes[sender].signal_agent(GO_ON);
    let (cause, _) = ended(&clusters, "two", "Failed", "Aborted");
    assert!(cause.contains("can not be reached"), "{cause}");

    // The node that waits is started again meanwhile, and waits elsewhere: nobody is led there.
    begin(&clusters, "three");
    let receiver = clusters.to.nodes.iter().position(|node| node.name == "n3").unwrap();
    clusters.to.nodes[receiver].kill_agent();
    clusters.to.nodes[receiver].start_agent();
    clusters.from.nodes[sender].signal_agent(GO_ON);
    let (cause, _) = ended(&clusters, "three", "Failed", "Aborted");
    assert!(cause.contains("can not be reached"), "{cause}");

    // A controller that is started again while it is on its way changes nothing.
    begin(&clusters, "four");
    clusters.from.bare.controller.replace(binary());
    assert_eq!(clusters.from.controller().typing("encryption unlock", "secret\n").0, Some(0));
    clusters.from.nodes[sender].signal_agent(GO_ON);
    let from = clusters.from.controller();
    from.wait("it is there all the same", || clusters.source("four").0 == "Success");
    let to = clusters.to.controller();
    to.ok("snapshot restore copy four back");
    assert!(clusters.to.content("back", "n3") == content);
    from.ok("remote delete there");
    from.wait("the remote is gone", || {
        let remotes = from.json("remote list");
        remotes.as_array().unwrap().iter().all(|remote| remote["remote"] != "there")
    });
}

#[test]
fn an_encrypted_volume_opens_there_with_its_passphrase() {
    let Some(clusters) = Clusters::new() else { return };
    clusters.meet();
    let (from, to) = (clusters.from.controller(), clusters.to.controller());
    from.ok("resource-group create secret --place 2 --pool thin --encrypted");
    from.ok(&format!("resource-group spawn secret safe {}M", SIZE / MIB));
    let mut client = clusters.from.open("safe");
    client.write(20 * MIB, &pattern(2, 12 << 20)).unwrap();
    client.flush().unwrap();
    from.ok("snapshot create safe before");
    let line = "backup ship there safe --snapshot before --to safe --snapshot-only";
    let said = from.fails(line, 10);
    assert!(said.contains("the master passphrase of the cluster that ships"), "{said}");
    let (status, said) = to.typing("remote modify here --passphrase", "wrong\n");
    assert_eq!(status, Some(0), "{said}");
    let said = from.fails(line, 10);
    assert!(said.contains("its master key is not had"), "{said}");
    assert_eq!(to.typing("remote modify here --passphrase", "secret\n").0, Some(0));
    from.ok(line);
    client.write(21 * MIB, &pattern(3, 2 << 20)).unwrap();
    client.flush().unwrap();
    let content = read(&mut client);
    client.close();
    from.ok("backup ship there safe --snapshot later --to safe --snapshot-only");
    let all = to.json("property list snapshot/safe/later");
    assert_eq!(all["BackupShipping/Target/BasedOn"], "before");
    to.ok("resource-group create secret --place 1 --pool thin --encrypted");
    to.ok("snapshot restore safe later opened --group secret");
    let on = to.replicas("opened")[0].clone();
    assert!(clusters.to.content("opened", &on) == content);
}
