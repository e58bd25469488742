//! `ashlar doctor` with real engines: it names the part that was made slow, writes nowhere it must
//! not, and leaves nothing behind.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::engine_support;
use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, DISK, Node, PATIENCE, Setup, list, pattern};
use serde_json::Value;

fn two() -> Setup {
    Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() }
}

/// Writers of 4 KiB each, all over a volume, until dropped.
struct Load {
    ended: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    fn on(node: &Node, writers: u64) -> Load {
        let socket = node.export();
        let ended = Arc::new(AtomicBool::new(false));
        let writers = (0..writers).map(|writer| {
            let (socket, ended) = (socket.clone(), ended.clone());
            thread::spawn(move || {
                let mut client = Client::open(&socket, "r0/0").unwrap();
                let blocks = client.size / 4096;
                let mut place = writer * 7919;
                while !ended.load(Ordering::Relaxed) {
                    place = (place + 104_729) % blocks;
                    client.write(place * 4096, &pattern(place, 4096)).unwrap();
                }
                client.close();
            })
        });
        let writers = writers.collect();
        thread::sleep(Duration::from_secs(1));
        Load { ended, writers }
    }

    fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.writers.into_iter().for_each(|writer| writer.join().unwrap());
    }
}

fn doctor(node: &Node, args: &[&str]) -> Value {
    let text = node.ok(&[&["doctor", "--json"], args].concat());
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(list(&found).len(), 1, "{text}");
    found[0].clone()
}

/// Has a node answer probes.
fn serve(node: &Node, args: &[&str]) -> Child {
    let serving = node.follow(&[&["doctor", "r0", "--serve", "--seconds", "60"], args].concat());
    let start = Instant::now();
    while !node.log().contains("answers probes") {
        assert!(start.elapsed() < PATIENCE, "no probes are answered");
        thread::sleep(Duration::from_millis(20));
    }
    serving
}

/// Ctrl-C.
fn interrupt(command: &mut Child) {
    run("kill", &["-INT", &command.id().to_string()]).unwrap();
    command.wait().unwrap();
}

/// What the first finding is about, which has to be the bottleneck.
fn bottleneck(found: &Value) -> String {
    assert_eq!(found["findings"][0]["weight"], "bottleneck", "{found:#}");
    found["findings"][0]["object"].as_str().unwrap().to_owned()
}

/// Why something was not measured.
fn missing<'a>(found: &'a Value, what: &str) -> &'a str {
    let all = list(&found["missing"]).iter();
    let mut one = all.filter(|m| m["what"] == what).map(|m| m["why"].as_str().unwrap());
    one.next().unwrap_or_else(|| panic!("{what} is missing: {found:#}"))
}

fn operations(found: &Value, group: &str, series: &str) -> u64 {
    found["figures"][group][0][series]["operations"].as_u64().unwrap_or(0)
}

/// A limit of writes per second for processes, by the kernel (cgroup v1, blkio).
struct SlowDisk {
    group: PathBuf,
    device: String,
}

impl SlowDisk {
    /// Why there is none, or one for the disk below `path`.
    fn below(path: &Path) -> Result<SlowDisk, String> {
        let root = Path::new("/sys/fs/cgroup/blkio");
        if !root.join("blkio.throttle.write_iops_device").exists() {
            return Err("there is no blkio controller of cgroup v1".to_owned());
        }
        let device = fs::metadata(path).unwrap().dev();
        let name = format!("{}:{}", libc::major(device), libc::minor(device));
        let Ok(mut folder) = fs::canonicalize(Path::new("/sys/dev/block").join(&name)) else {
            return Err(format!("{} is not on a block device", path.display()));
        };
        if folder.join("partition").exists() {
            folder.pop();
        }
        let device = fs::read_to_string(folder.join("dev")).unwrap().trim().to_owned();
        let group = root.join(format!("ashlar-doctor-{}", std::process::id()));
        fs::create_dir(&group).map_err(|e| format!("no group can be made: {e}"))?;
        Ok(SlowDisk { group, device })
    }

    /// Limits the processes of the group; 0 is without limit.
    fn limit(&self, writes_per_second: u32) {
        let limit = format!("{} {writes_per_second}", self.device);
        fs::write(self.group.join("blkio.throttle.write_iops_device"), limit).unwrap();
    }

    fn holds(&self, node: &Node) {
        fs::write(self.group.join("cgroup.procs"), node.pid().to_string()).unwrap();
    }

    fn releases(&self, node: &Node) {
        let outside = self.group.parent().unwrap().join("cgroup.procs");
        fs::write(outside, node.pid().to_string()).unwrap();
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.limit(0);
        let outside = self.group.parent().unwrap().join("cgroup.procs");
        for pid in fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(&outside, pid);
        }
        let start = Instant::now();
        while fs::remove_dir(&self.group).is_err() && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_slow_disk_is_named_wherever_it_is() {
    let cluster = Cluster::up(&two());
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    let disk = match SlowDisk::below(&cluster.disk(0, 0)) {
        Ok(disk) => disk,
        Err(why) => return println!("skipped: {why}"),
    };
    disk.limit(60);
    disk.holds(bravo);
    let load = Load::on(alpha, 8);
    let found = doctor(alpha, &["r0", "--passive", "--seconds", "10"]);
    assert_eq!(bottleneck(&found), "disk of bravo", "{found:#}");
    // The one who has it names it, too, and says who sees more.
    let found = doctor(bravo, &["r0", "--passive", "--seconds", "10"]);
    let own = list(&found["findings"]).iter().find(|f| {
        let object = f["object"].as_str().unwrap();
        object.starts_with("disk of bravo (/")
    });
    let own = own.unwrap_or_else(|| panic!("it names its disk: {found:#}"));
    assert!(own["remedy"].as_str().unwrap().contains("on alpha"), "{found:#}");

    disk.releases(bravo);
    disk.holds(alpha);
    // What was queued under the limit has to leave first.
    thread::sleep(Duration::from_secs(2));
    let found = doctor(alpha, &["r0", "--passive", "--seconds", "10"]);
    assert!(bottleneck(&found).starts_with("disk of alpha (/"), "{found:#}");
    disk.limit(0);
    load.end();
}

/// Two network namespaces with a link between them.
struct Link {
    names: [String; 2],
}

impl Link {
    const ADDRESSES: [&'static str; 2] = ["10.213.77.1", "10.213.77.2"];

    /// Why there is none, or one.
    fn new() -> Result<Link, String> {
        let pid = std::process::id();
        let link = Link { names: ["a", "b"].map(|side| format!("ashlar-doctor-{pid}-{side}")) };
        for name in &link.names {
            run("ip", &["netns", "add", name])?;
            run("ip", &["-n", name, "link", "set", "lo", "up"])?;
        }
        let [a, b] = &link.names;
        let veth = ["link", "add", "link0", "netns", a, "type", "veth"];
        run("ip", &[&veth[..], &["peer", "name", "link0", "netns", b]].concat())?;
        for (name, address) in link.names.iter().zip(Link::ADDRESSES) {
            run("ip", &["-n", name, "address", "add", &format!("{address}/24"), "dev", "link0"])?;
            run("ip", &["-n", name, "link", "set", "link0", "up"])?;
        }
        Ok(link)
    }

    /// Makes both directions slow.
    fn limit(&self, rate: &str) -> Result<(), String> {
        for name in &self.names {
            let tbf = ["tbf", "rate", rate, "burst", "16kb", "latency", "200ms"];
            let replace = ["-n", name, "qdisc", "replace", "dev", "link0", "root"];
            run("tc", &[&replace[..], &tbf[..]].concat())?;
        }
        Ok(())
    }

    /// Runs a node at one of the ends.
    fn place(&self, node: &mut Node, side: usize) {
        node.inside = ["ip", "netns", "exec", &self.names[side]].map(str::to_owned).to_vec();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run("ip", &["netns", "delete", name]);
        }
    }
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", engine_support::text(&output.stderr).trim())),
        Err(e) => Err(format!("{program}: {e}")),
    }
}

#[test]
fn a_slow_link_is_named_under_load_and_at_rest() {
    let link = match Link::new() {
        Ok(link) => link,
        Err(why) => return println!("skipped: no network namespaces: {why}"),
    };
    let mut cluster = Cluster::new(&two());
    for (side, node) in cluster.nodes.iter_mut().enumerate() {
        link.place(node, side);
    }
    cluster.reconfigure(|text| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let sides = lines.iter_mut().filter(|line| line.contains("address "));
        for (line, address) in sides.zip(Link::ADDRESSES) {
            let (before, rest) = line.split_once("address ").unwrap();
            let (_, port) = rest.split_once(':').unwrap();
            *line = format!("{before}address {address}:{port}");
        }
        // Operators' commands run outside of the namespaces.
        format!("global {{ disable-ip-verification; }}\n{}", lines.join("\n"))
    });
    cluster.bring_up(&two());
    if let Err(why) = link.limit("8mbit") {
        return println!("skipped: the link can not be made slow: {why}");
    }
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    let load = Load::on(alpha, 8);
    let found = doctor(alpha, &["r0", "--passive", "--seconds", "10"]);
    assert_eq!(bottleneck(&found), "network from alpha to bravo", "{found:#}");
    load.end();

    let mut serving = serve(bravo, &[]);
    let folder = alpha.directory.display().to_string();
    let found = doctor(alpha, &["r0", "--scratch", &folder, "--seconds", "12"]);
    assert_eq!(bottleneck(&found), "network from alpha to bravo", "{found:#}");
    let stream = &found["figures"]["networks"][0]["to-peer"];
    let (bytes, nanoseconds) = (stream["operations"].as_f64(), stream["nanoseconds"].as_f64());
    let rate = bytes.unwrap() / nanoseconds.unwrap() * 1e9;
    // 8 Mbit/s are a million bytes; a burst goes through unhindered.
    assert!((500_000.0..2_000_000.0).contains(&rate), "{found:#}");

    // Whoever asked for it is gone, and soon after nobody listens any more.
    interrupt(&mut serving);
    let start = Instant::now();
    while !bravo.log().contains("answers no probes") {
        assert!(start.elapsed() < PATIENCE, "probes are served for ever");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn without_spare_space_writes_are_not_measured() {
    let cluster = Cluster::up(&two());
    let alpha = &cluster.nodes[0];
    let mut client = Client::open(&alpha.export(), "r0/0").unwrap();
    client.write(0, &pattern(1, 1 << 20)).unwrap();
    client.close();
    let before = [0, 1].map(|node| fs::read(cluster.disk(node, 0)).unwrap());

    let found = doctor(alpha, &["r0/0", "--seconds", "6"]);
    assert!(missing(&found, "writes of the disks").contains("--scratch"), "{found:#}");
    assert!(missing(&found, "network to bravo").contains("ashlar doctor --serve"), "{found:#}");
    assert!(operations(&found, "reads", "random") > 0, "{found:#}");
    assert_eq!(operations(&found, "writes", "random"), 0);

    // Places that say nothing of the disk, or do not exist.
    for (folder, why) in [("/sys", "another disk"), ("/nonexistent", "no folder")] {
        let (status, text) = alpha.fails(&["doctor", "r0", "--scratch", folder, "--seconds", "6"]);
        assert_eq!(status, 10, "{text}");
        assert!(text.contains(folder) && text.contains(why), "{text}");
    }
    let own = cluster.disk(0, 0).display().to_string();
    let (_, text) = alpha.fails(&["doctor", "r0", "--scratch", &own, "--seconds", "6"]);
    assert!(text.contains("no folder"), "{text}");
    let (_, text) = alpha.fails(&["doctor", "r0:bravo", "--seconds", "6"]);
    assert!(text.contains("give RESOURCE"), "{text}");

    let found = doctor(alpha, &["r0", "--passive", "--seconds", "5"]);
    assert_eq!(operations(&found, "reads", "random"), 0);
    assert_eq!(missing(&found, "network and disks"), "--passive was given");
    let after = [0, 1].map(|node| fs::read(cluster.disk(node, 0)).unwrap());
    let data = (DISK - (2 << 20)) as usize;
    assert!(before.iter().zip(&after).all(|(b, a)| b[..data] == a[..data]), "data was changed");
}

#[test]
fn a_measurement_that_is_interrupted_leaves_nothing_behind() {
    let cluster = Cluster::up(&two());
    let alpha = &cluster.nodes[0];
    let folder = alpha.directory.join("scratch");
    fs::create_dir(&folder).unwrap();
    // What the engine has open that has no name.
    let nameless = || {
        let open = fs::read_dir(format!("/proc/{}/fd", alpha.pid())).unwrap().flatten();
        let names = open.filter_map(|fd| fs::read_link(fd.path()).ok());
        names.filter(|name| name.starts_with(&folder)).count()
    };
    let path = folder.display().to_string();
    let mut measuring = alpha.follow(&["doctor", "r0", "--scratch", &path, "--seconds", "20"]);
    let start = Instant::now();
    while nameless() == 0 {
        assert!(start.elapsed() < PATIENCE, "no scratch file is written");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "it never has a name");
    interrupt(&mut measuring);
    while nameless() > 0 {
        assert!(start.elapsed() < PATIENCE, "the scratch file stays open");
        thread::sleep(Duration::from_millis(100));
    }
    // And the next one is not told that somebody measures.
    let found = doctor(alpha, &["all", "--scratch", &path, "--seconds", "8"]);
    assert!(operations(&found, "writes", "flush") > 0, "{found:#}");
    assert!(operations(&found, "writes", "random-deep") > 0, "{found:#}");
    let text = alpha.ok(&["doctor", "r0", "--passive", "--seconds", "5"]);
    assert!(text.contains("Seen in") && text.contains("Findings"), "{text}");
}

#[test]
fn probes_are_served_at_the_addresses_of_the_resource_alone() {
    let cluster = Cluster::up(&two());
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    let mut serving = serve(bravo, &["--probe-port", "7321"]);
    let found = doctor(alpha, &["r0", "--probe-port", "7321", "--seconds", "6"]);
    for series in ["round-trip", "to-peer", "from-peer"] {
        assert!(operations(&found, "networks", series) > 0, "{series}: {found:#}");
    }
    assert!(TcpStream::connect("127.0.0.1:7321").is_err(), "at no other address");
    interrupt(&mut serving);
}
