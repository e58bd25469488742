//! Backups as their users meet them: a real controller, agents and engines, pools of kind FILE_THIN, and a
//! small store of objects that checks signatures. What was written comes back from full and incremental
//! backups; what is cut short, by whomever, is no backup, and says why.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::control_support::bare::{Bare, Controller, NODES};
use crate::control_support::{MIB, Node, Pools};
use crate::engine_support::nbd::Client;
use crate::engine_support::{binary, pattern, text};
use crate::server::{ACCESS, BUCKET, REGION, SECRET, Server};
use cluster::change::{Change, Object};
use cluster::objects::Millis;
use controller::store::{Log, Sqlite, Store as _};
use serde_json::Value;

/// Bytes of the volume.
pub const SIZE: u64 = 48 * MIB;

/// A cluster with a volume on two of three nodes, and a store.
pub struct Bed {
    // Ended in this order: the pools last.
    pub nodes: Vec<Node>,
    pub bare: Bare,
    server: Server,
    pub _pools: Pools,
}

impl Bed {
    /// `None`, with the reason printed, where no file system shares blocks.
    pub fn new() -> Option<Bed> {
        let pools = Pools::new();
        if !pools.has_snapshots {
            println!("skipped: no file system with shared blocks for snapshots");
            return None;
        }
        let bare = Bare::new();
        let nodes = bare.join();
        let server = Server::start();
        let bed = Bed { nodes, bare, server, _pools: pools };
        let controller = bed.controller();
        controller.wait("all nodes are online", || {
            let all = controller.json("node list");
            all.as_array().unwrap().iter().all(|node| node["state"] == "online")
        });
        for name in NODES {
            let folder = bed._pools.of(name);
            std::fs::create_dir(&folder).unwrap();
            let folder = folder.display();
            controller.ok(&format!("storage-pool create thin file-thin {folder} --on {name}"));
        }
        assert_eq!(controller.typing("encryption create", "secret\n").0, Some(0));
        bed.remote("vault", SECRET);
        controller.ok("resource-group create db --place 2 --pool thin");
        controller.ok(&format!("resource-group spawn db web {}M", SIZE / MIB));
        Some(bed)
    }

    pub fn controller(&self) -> &Controller {
        &self.bare.controller
    }

    fn remote(&self, name: &str, secret: &str) {
        let line = format!(
            "remote create {name} --endpoint {} --bucket {BUCKET} --region {REGION} \
             --access-key {ACCESS} --path-style",
            self.server.endpoint()
        );
        let (status, said) = self.controller().typing(&line, &format!("{secret}\n"));
        assert_eq!(status, Some(0), "{said}");
    }

    fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).unwrap()
    }

    /// A client of a volume, on a node with a replica.
    pub fn open(&self, volume: &str) -> Client {
        self.open_on(volume, &self.controller().replicas(volume)[0])
    }

    pub fn open_on(&self, volume: &str, on: &str) -> Client {
        let socket = self.node(on).export(volume);
        Client::open(&socket, &format!("{volume}/0")).unwrap()
    }

    pub fn content(&self, volume: &str, on: &str) -> Vec<u8> {
        let mut client = self.open_on(volume, on);
        let content = read(&mut client);
        client.close();
        content
    }

    fn backups(&self) -> Vec<Value> {
        let listed = self.controller().json("backup list vault");
        listed.as_array().unwrap().clone()
    }

    fn objects(&self) -> Vec<String> {
        self.server.kept().objects.keys().cloned().collect()
    }

    /// What the store says of how far a shipment of a snapshot is.
    fn state(&self, snapshot: &str) -> String {
        let all = self.controller().json(&format!("property list snapshot/web/{snapshot}"));
        all["BackupShipping/Source/vault/ShippingStatus"].as_str().unwrap_or_default().to_owned()
    }
}

pub fn read(client: &mut Client) -> Vec<u8> {
    let mut content = Vec::new();
    for offset in (0..SIZE).step_by(4 << 20) {
        content.extend(client.read(offset, 4 << 20).unwrap());
    }
    content
}

#[test]
fn full_and_incremental_backups_come_back_as_new_volumes() {
    let Some(bed) = Bed::new() else { return };
    let controller = bed.controller();
    let mut client = bed.open("web");
    client.write(0, &pattern(1, 1 << 20)).unwrap();
    client.write(20 * MIB, &pattern(2, 12 << 20)).unwrap();
    client.flush().unwrap();
    let first = read(&mut client);
    controller.ok("backup create vault web --snapshot first");
    client.write(21 * MIB, &pattern(3, 2 << 20)).unwrap();
    client.zero(26 * MIB, 1 << 20).unwrap();
    client.write(SIZE - 8192, &pattern(4, 8192)).unwrap();
    client.flush().unwrap();
    let second = read(&mut client);
    assert!(first != second);
    controller.ok("backup create vault web --snapshot second");
    client.close();
    assert_eq!(bed.state("second"), "Success");

    let backups = bed.backups();
    let id = |snapshot: &str| {
        let found = backups.iter().find(|backup| backup["snapshot"] == snapshot).unwrap();
        assert_eq!(found["state"], "complete", "{found}");
        (found["id"].as_str().unwrap().to_owned(), found["based_on"].clone())
    };
    let ((full, none), (incremental, base)) = (id("first"), id("second"));
    assert!(none.is_null() && base == full.as_str(), "{backups:?}");
    let bytes = |id: &str| {
        let kept = bed.server.kept();
        kept.objects
            .iter()
            .filter(|(name, _)| name.contains(&id[4..]))
            .map(|(_, o)| o.len())
            .sum::<usize>()
    };
    assert!(bytes(&incremental) < bytes(&full) / 2, "only what has changed is carried");
    let info = controller.json(&format!("backup info vault {incremental}"));
    assert_eq!((&info["count"], &info["full"]), (&2.into(), &full.as_str().into()), "{info}");

    controller.ok(&format!("backup restore vault {full} one --on n3 --group db"));
    controller.ok(&format!("backup restore vault {incremental} two --on n2"));
    assert!(bed.content("one", "n3") == first, "the first backup has what was there then");
    assert!(bed.content("two", "n2") == second, "the second has what was there later");
    // Other replicas get theirs from there.
    controller.ok("volume place one --more 1");
    let two = controller.replicas("one");
    assert_eq!(two.len(), 2);
    let other = two.iter().find(|node| *node != "n3").unwrap();
    controller.wait("the other replica is UpToDate", || {
        controller.json("volume list one")[0]["state"] == "UpToDate"
    });
    assert!(bed.content("one", other) == first);
    controller.ok(&format!("backup restore vault {full} three --on n1 --snapshot-only"));
    let snapshots = controller.json("snapshot list three");
    assert_eq!(
        (&snapshots[0]["snapshot"], &snapshots[0]["state"]),
        (&"first".into(), &"complete".into())
    );

    let said = controller.fails(&format!("backup delete vault {full}"), 10);
    assert!(said.contains("build on it"), "{said}");
    controller.ok(&format!("backup delete vault {full} --cascading"));
    assert_eq!(bed.objects(), Vec::<String>::new());
    // Nothing builds on what is not there any more.
    controller.ok("backup create vault web");
    let backups = bed.backups();
    assert!(backups.len() == 1 && backups[0]["based_on"].is_null(), "{backups:?}");
}

#[test]
fn what_is_cut_short_is_no_backup() {
    let Some(mut bed) = Bed::new() else { return };
    let mut client = bed.open("web");
    for part in 0..10 {
        client.write(part * 4 * MIB, &pattern(part + 1, 4 << 20)).unwrap();
    }
    client.flush().unwrap();
    client.close();

    // The wrong secret is told at once, and nothing is begun.
    bed.remote("wrong", "wrong");
    let said = bed.controller().fails("backup create wrong web", 10);
    assert!(said.contains("SignatureDoesNotMatch") && said.contains("next:"), "{said}");
    let said = bed.controller().fails("backup list nothing", 10);
    assert!(said.contains("remote nothing does not exist"), "{said}");
    assert_eq!(bed.controller().json("snapshot list web"), Value::Array(Vec::new()));

    // Given up while it is on its way.
    bed.server.kept().slow = Duration::from_secs(2);
    bed.controller().ok("backup create vault web --snapshot given-up --no-wait");
    bed.controller().wait("it is on its way", || bed.state("given-up") == "Shipping");
    let said = bed.controller().fails("snapshot delete web given-up", 10);
    assert!(said.contains("being shipped"), "{said}");
    bed.controller().ok("backup abort vault web");
    bed.controller().wait("it is given up", || bed.state("given-up") == "Aborted");
    bed.server.kept().slow = Duration::ZERO;
    assert!(bed.objects().is_empty() && bed.server.kept().uploads.is_empty(), "nothing is left");
    bed.controller().ok("snapshot delete web given-up");

    // An agent that is killed is no end of it.
    bed.server.kept().slow = Duration::from_secs(1);
    let on = bed.controller().replicas("web")[0].clone();
    bed.controller().ok(&format!("backup create vault web --snapshot killed --on {on} --no-wait"));
    bed.controller().wait("parts are there", || !bed.server.kept().uploads.is_empty());
    let index = bed.nodes.iter().position(|node| node.name == on).unwrap();
    bed.nodes[index].kill_agent();
    assert!(bed.objects().is_empty(), "what is not described is no backup");
    bed.server.kept().slow = Duration::ZERO;
    bed.nodes[index].start_agent();
    bed.controller().wait("it is made anew", || bed.state("killed") == "Success");
    let killed = bed.backups()[0]["id"].as_str().unwrap().to_owned();
    assert!(killed.ends_with("^killed"), "{killed}");

    // Nor is a controller that is started again while it is on its way: the node goes on without it.
    bed.server.kept().slow = Duration::from_secs(1);
    bed.controller().ok("backup create vault web --snapshot restarted --full --no-wait");
    bed.controller().wait("parts are there", || !bed.server.kept().uploads.is_empty());
    bed.bare.controller.replace(binary());
    assert_eq!(bed.controller().typing("encryption unlock", "secret\n").0, Some(0));
    bed.server.kept().slow = Duration::ZERO;
    bed.controller().wait("it is made all the same", || bed.state("restarted") == "Success");

    // What other programs have made is none, either.
    let foreign = "web_back_20200101_000000.meta".to_owned();
    let content = br#"{"rscName":"web","nodeName":"x","backups":{}}"#.to_vec();
    bed.server.kept().objects.insert(foreign, content);
    let line = "backup restore vault web_back_20200101_000000 copy --on n1";
    let said = bed.controller().fails(line, 10);
    assert!(said.contains("not made by Ashlar"), "{said}");
    let listed = bed.backups();
    let found = listed.iter().find(|backup| backup["id"] == "web_back_20200101_000000").unwrap();
    assert_eq!(found["state"], "foreign", "{found}");

    // A damaged archive leaves nothing where it was restored to.
    let of_it = |name: &String| name.contains("_00000_back") && name.ends_with("^killed");
    let archive = bed.objects().into_iter().find(of_it).unwrap();
    bed.server.kept().objects.get_mut(&archive).unwrap()[5000] ^= 1;
    let said = bed.controller().fails(&format!("backup restore vault {killed} copy --on n3"), 10);
    assert!(said.contains("it is damaged"), "{said}");
    assert_eq!(bed._pools.files("n3").iter().filter(|file| file.starts_with("copy")).count(), 0);
    bed.controller().ok("snapshot delete copy killed");

    // The store goes away in the middle, for longer than anybody waits for it.
    let parts = bed.server.kept().parts;
    bed.server.kept().fail_after_parts = Some(parts + 1);
    bed.controller().ok("backup create vault web --snapshot lost --full --no-wait");
    let begun = Instant::now();
    while bed.state("lost") != "Failed" {
        assert!(begun.elapsed() < Duration::from_secs(200), "{}", bed.state("lost"));
        std::thread::sleep(Duration::from_millis(200));
    }
    bed.server.kept().fail_after_parts = None;
    let listed = bed.backups();
    let complete = |backup: &&Value| backup["snapshot"] == "lost" && backup["state"] == "complete";
    assert_eq!(listed.iter().filter(complete).count(), 0, "{listed:?}");
    // What was not deleted then is there to be seen, and to be deleted by an operator.
    bed.controller().ok("backup create vault web --snapshot again --full");
    assert_eq!(bed.state("again"), "Success");
}

/// The time of day in milliseconds.
fn now() -> u64 {
    let passed = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(passed.as_millis()).unwrap()
}

/// The minute of a time, once a year, as a crontab has it.
fn yearly(time: u64) -> String {
    let minutes = time / 60_000;
    let (_, month, day) = vocab::civil(minutes / 1440);
    format!("{} {} {day} {month} *", minutes % 60, minutes / 60 % 24)
}

/// Has a store say that the times of schedules were last seen to at that time.
fn last_seen_to(data: &Path, time: u64) {
    let mut store = Sqlite::open(&data.join("controller.db")).unwrap();
    let rows = store.load().unwrap();
    let series = rows.into_iter().filter_map(|row| match row {
        Object::Series(mut series) => {
            series.since = Millis(time);
            series.next = series.next.map(|_| Millis(time));
            Some(Change::Put(Object::Series(series)))
        }
        _ => None,
    });
    let changes: Vec<Change> = series.collect();
    assert_eq!(changes.len(), 1);
    store.commit(&changes, &Log::new()).unwrap();
}

impl Bed {
    /// The controller was down since that time.
    fn was_down_since(&mut self, time: u64) {
        self.bare.controller.replace_after(binary(), |data| last_seen_to(data, time));
        let controller = self.controller();
        controller.wait("all nodes are online", || {
            let all = controller.json("node list");
            all.as_array().unwrap().iter().all(|node| node["state"] == "online")
        });
        assert_eq!(controller.typing("encryption unlock", "secret\n").0, Some(0));
    }

    fn ids(&self) -> Vec<String> {
        let ids = self.backups().into_iter().map(|b| b["id"].as_str().unwrap().to_owned());
        ids.collect()
    }

    /// The backup that is made next, when there are so many; with those that are there.
    fn next_backup(&self, count: usize, known: &[String]) -> (Value, Vec<String>) {
        let begun = Instant::now();
        loop {
            let all = self.backups();
            let complete = all.iter().all(|backup| backup["state"] == "complete");
            let id = |backup: &Value| backup["id"].as_str().unwrap().to_owned();
            let new = all.iter().find(|backup| !known.contains(&id(backup)));
            if let Some(new) = new.filter(|_| all.len() == count && complete) {
                return (new.clone(), all.iter().map(id).collect());
            }
            let series = self.controller().json("backup schedule list");
            assert!(begun.elapsed() < Duration::from_secs(100), "{all:?} {series}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn backups_are_made_by_schedule_and_old_ones_go() {
    const HOUR: u64 = 3_600_000;
    let Some(mut bed) = Bed::new() else { return };
    let mut client = bed.open("web");
    client.write(0, &pattern(1, 4 << 20)).unwrap();
    client.flush().unwrap();
    let run = |bed: &Bed, words: &[&str]| {
        let output = bed.controller().run(words);
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    let refused = bed.controller().fails("schedule create often --full @daily", 10);
    assert!(refused.contains("five fields") && refused.contains("next:"), "{refused}");
    let far = yearly(now() + 4_000 * HOUR);
    let create = ["schedule", "create", "often", "--full", &far, "--incremental", "* * * * *"];
    let keep = ["--keep-local", "1", "--keep-remote", "1", "--on-failure", "retry"];
    run(&bed, &[&create[..], &keep].concat());
    bed.controller().ok("backup schedule enable vault often web --on n2");
    // With nothing to build on the first is a full one, though none is due.
    let (full, known) = bed.next_backup(1, &[]);
    assert!(full["based_on"].is_null(), "{full}");
    client.write(8 * MIB, &pattern(2, 1 << 20)).unwrap();
    client.flush().unwrap();
    let content = read(&mut client);
    client.close();

    // An incremental one was missed while the controller was down.
    let (ago, long_ago) = (yearly(now() - 2 * HOUR), yearly(now() - 24 * HOUR));
    let modify = ["schedule", "modify", "often", "--full", &long_ago, "--incremental", &ago];
    run(&bed, &modify);
    bed.controller().wait("nothing is under way", || {
        let series = bed.controller().json("backup schedule list web");
        series[0]["state"] == "enabled"
    });
    let known = [known, bed.ids()].concat();
    let count = bed.ids().len();
    bed.was_down_since(now() - 3 * HOUR);
    let (incremental, known) = bed.next_backup(count + 1, &known);
    assert!(incremental["based_on"].is_string(), "{incremental}");
    let id = incremental["id"].as_str().unwrap();
    bed.controller().ok(&format!("backup restore vault {id} copy --on n3"));
    assert!(bed.content("copy", "n3") == content);

    // Now a full one was: the chain before it goes, there and here.
    bed.was_down_since(now() - 48 * HOUR);
    let (full, known) = bed.next_backup(1, &known);
    assert!(full["based_on"].is_null(), "{full}");
    let stamp = &full["id"].as_str().unwrap()["web_back_".len()..];
    assert!(bed.objects().iter().all(|object| object.contains(stamp)), "{:?}", bed.objects());
    bed.controller().wait("old snapshots are gone", || {
        let snapshots = bed.controller().json("snapshot list web");
        snapshots.as_array().unwrap().len() == 1
    });

    // What is disabled makes nothing, whatever was missed.
    bed.controller().ok("backup schedule disable vault often web");
    bed.was_down_since(now() - 48 * HOUR);
    std::thread::sleep(Duration::from_secs(3));
    let series = bed.controller().json("backup schedule list");
    assert_eq!(series[0]["state"], "disabled on resource definition web", "{series}");
    assert_eq!(bed.ids(), known, "{:?}", bed.objects());
    bed.controller().ok("schedule delete often");
    assert_eq!(bed.controller().json("backup schedule list"), Value::Array(Vec::new()));
}

#[test]
fn an_encrypted_volume_comes_back_with_its_passphrase() {
    let Some(bed) = Bed::new() else { return };
    let controller = bed.controller();
    controller.ok("resource-group create secret --place 2 --pool thin --encrypted");
    controller.ok(&format!("resource-group spawn secret safe {}M", SIZE / MIB));
    let on = controller.replicas("safe")[0].clone();
    let mut client = bed.open_on("safe", &on);
    let text = pattern(1, 4096);
    client.write(0, &text).unwrap();
    client.write(20 * MIB, &pattern(2, 12 << 20)).unwrap();
    client.flush().unwrap();
    let first = read(&mut client);
    controller.ok(&format!("backup create vault safe --snapshot first --on {on}"));
    client.write(21 * MIB, &pattern(3, 2 << 20)).unwrap();
    client.flush().unwrap();
    let second = read(&mut client);
    let (status, said) = controller.typing("volume passphrase safe", "another\n");
    assert_eq!(status, Some(0), "{said}");
    controller.ok(&format!("backup create vault safe --snapshot second --on {on}"));
    client.close();
    // Another replica is encrypted with another key, so what is there is of no use to its backup.
    let other = controller.replicas("safe").into_iter().find(|node| *node != on).unwrap();
    controller.ok(&format!("backup create vault safe --snapshot third --on {other}"));

    let backups = bed.backups();
    let id = |snapshot: &str| {
        let found = backups.iter().find(|backup| backup["snapshot"] == snapshot).unwrap();
        assert_eq!(found["state"], "complete", "{found}");
        (found["id"].as_str().unwrap().to_owned(), found["based_on"].clone())
    };
    let ((full, none), (incremental, base), (elsewhere, full_too)) =
        (id("first"), id("second"), id("third"));
    assert!(none.is_null() && base == full.as_str() && full_too.is_null(), "{backups:?}");
    for (name, object) in &bed.server.kept().objects {
        let has = |part: &[u8]| object.windows(part.len()).any(|bytes| bytes == part);
        assert!(!has(&text) && !has(b"another"), "{name} is not encrypted");
    }

    controller.ok(&format!("backup restore vault {full} one --on n3 --group secret"));
    controller.ok(&format!("backup restore vault {incremental} two --on n2"));
    // As if another cluster had made it: whoever has its master passphrase can have its volumes.
    let line = format!("backup restore vault {elsewhere} three --on n1 --other-cluster");
    let (status, said) = controller.typing(&line, "wrong\n");
    assert!(status == Some(10) && said.contains("its master key is not had"), "{said}");
    let (status, said) = controller.typing(&line, "secret\n");
    assert_eq!(status, Some(0), "{said}");
    assert!(bed.content("one", "n3") == first, "the passphrase of then is the one that opens it");
    assert!(bed.content("two", "n2") == second);
    assert!(bed.content("three", "n1") == second);
    controller.ok("volume place one --more 1");
    controller.wait("the other replica is UpToDate", || {
        controller.json("volume list one")[0]["state"] == "UpToDate"
    });
}
