//! Two links between two nodes, each in a network namespace of its own: when the one in use is cut under
//! load, writes go on over the other. With `load-balance-paths` they go over both, as soon as both are there.
//! Where only one node has that, both say so.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::engine_support::nbd::Client;
use crate::engine_support::writers::watched;
use crate::engine_support::{Cluster, Node, Setup, list, pattern, text};

/// Two network namespaces with two links between them.
struct Links {
    names: [String; 2],
}

impl Links {
    /// Why there are none that can be cut, or both. Each test has a name of its own for them.
    fn new(test: &str) -> Result<Links, String> {
        let links =
            Links::without_cut(test).map_err(|why| format!("no network namespaces: {why}"))?;
        let cut = links.cut(0).and_then(|()| links.mend(0));
        cut.map_err(|why| format!("a link can not be cut: {why}"))?;
        Ok(links)
    }

    fn without_cut(test: &str) -> Result<Links, String> {
        let pid = std::process::id();
        let names = ["a", "b"].map(|side| format!("ashlar-{test}-{pid}-{side}"));
        let links = Links { names };
        for name in &links.names {
            run("ip", &["netns", "add", name])?;
            run("ip", &["-n", name, "link", "set", "lo", "up"])?;
        }
        let [a, b] = &links.names;
        for link in [0, 1] {
            let device = device(link);
            let veth = ["link", "add", &device, "netns", a, "type", "veth"];
            run("ip", &[&veth[..], &["peer", "name", &device, "netns", b]].concat())?;
            for (side, name) in links.names.iter().enumerate() {
                let address = format!("{}/24", address(link, side));
                run("ip", &["-n", name, "address", "add", &address, "dev", &device])?;
                run("ip", &["-n", name, "link", "set", &device, "up"])?;
            }
        }
        Ok(links)
    }

    /// Nothing goes through a link any more, and nobody is told: its queues have no room for a packet.
    fn cut(&self, link: usize) -> Result<(), String> {
        self.queue(link, "replace", &["bfifo", "limit", "1"])
    }

    fn mend(&self, link: usize) -> Result<(), String> {
        self.queue(link, "delete", &[])
    }

    /// Bytes that the first node has sent over a link.
    fn sent(&self, link: usize) -> u64 {
        let (device, name) = (device(link), &self.names[0]);
        let args = ["-n", name, "-s", "-j", "link", "show", "dev", &device];
        let output = Command::new("ip").args(args).output().unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        shown[0]["stats64"]["tx"]["bytes"].as_u64().unwrap()
    }

    fn queue(&self, link: usize, change: &str, kind: &[&str]) -> Result<(), String> {
        for name in &self.names {
            let (device, netns) = (device(link), ["-n", name, "qdisc"]);
            run("tc", &[&netns[..], &[change, "dev", &device, "root"], kind].concat())?;
        }
        Ok(())
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run("ip", &["netns", "delete", name]);
        }
    }
}

fn device(link: usize) -> String {
    format!("link{link}")
}

fn address(link: usize, side: usize) -> String {
    format!("10.213.{}.{}", 80 + link, 1 + side)
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", text(&output.stderr).trim())),
        Err(e) => Err(format!("{program}: {e}")),
    }
}

/// The links that a connected node uses, as its status shows.
fn used(node: &Node) -> Vec<usize> {
    let status = node.status();
    let connection = &list(&status["connections"])[0];
    let used = list(&connection["paths"]).iter().filter(|path| path["established"] == true);
    let remotes: Vec<String> = used.map(|path| path["remote_host"].to_string()).collect();
    let is_of = |link: usize, remote: &String| {
        [0, 1].iter().any(|side| remote.contains(&address(link, *side)))
    };
    let links = [0, 1].into_iter();
    links.filter(|link| remotes.iter().any(|remote| is_of(*link, remote))).collect()
}

/// Two nodes that know both links.
fn cluster(links: &Links, net: &str) -> Cluster {
    let setup = Setup {
        nodes: vec!["alpha", "bravo"],
        // A dead link is noticed in seconds.
        sections: format!("net {{ ping-int 2; timeout 15; {net} }}"),
        ..Setup::default()
    };
    let mut cluster = Cluster::new(&setup);
    for (name, node) in links.names.iter().zip(&mut cluster.nodes) {
        node.inside = ["ip", "netns", "exec", name].map(str::to_owned).to_vec();
    }
    cluster.reconfigure(|config| {
        let paths = [0, 1].map(|link| {
            let [a, b] = [0, 1].map(|side| address(link, side));
            format!("path {{ host alpha address {a}:7000; host bravo address {b}:7000; }}")
        });
        let mesh = "connection-mesh { hosts alpha bravo; }";
        assert!(config.contains(mesh), "{config}");
        let config = config.replace(mesh, &format!("connection {{ {} }}", paths.join(" ")));
        // Operators' commands run outside of the namespaces.
        format!("global {{ disable-ip-verification; }}\n{config}")
    });
    cluster.bring_up(&setup);
    cluster
}

/// Writes on the first node until it is told to end.
struct Load {
    written: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    writer: thread::JoinHandle<()>,
}

impl Load {
    fn begin(cluster: &Cluster) -> Load {
        let (written, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let socket = cluster.nodes[0].export();
        let (count, end) = (written.clone(), ended.clone());
        let writer = thread::spawn(move || {
            let mut client = Client::open(&socket, "r0/0").unwrap();
            let blocks = client.size / 4096;
            while !end.load(Ordering::Relaxed) {
                let nr = count.load(Ordering::Relaxed);
                client.write(nr * 7919 % blocks * 4096, &pattern(nr, 4096)).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
            client.close();
        });
        Load { written, ended, writer }
    }

    fn goes_on(&self, cluster: &Cluster, what: &str) {
        let before = self.written.load(Ordering::Relaxed);
        cluster.wait(what, |_| self.written.load(Ordering::Relaxed) > before + 20);
    }

    /// Both disks are found to be equal behind it.
    fn end(self, cluster: &Cluster) {
        self.ended.store(true, Ordering::Relaxed);
        self.writer.join().unwrap();
        cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
        cluster.wait("nothing is out of sync", |c| c.nodes.iter().all(|n| n.out_of_sync() == 0));
        cluster.assert_equal(0, &[0, 1]);
    }
}

#[test]
fn writes_go_on_over_the_other_link_when_the_one_in_use_is_cut() {
    let links = match Links::new("paths") {
        Ok(links) => links,
        Err(why) => return println!("skipped: {why}"),
    };
    let cluster = cluster(&links, "");
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    assert_eq!((used(alpha), used(bravo)), (vec![0], vec![0]), "the first in the order");
    let load = Load::begin(&cluster);
    load.goes_on(&cluster, "writes go over the first link");
    // There and back again: each is once the one that fails.
    for (cut, other) in [(0, 1), (1, 0)] {
        links.cut(cut).unwrap();
        cluster.wait("both nodes use the other link", |_| {
            used(alpha) == [other] && used(bravo) == [other]
        });
        cluster.wait_connected();
        load.goes_on(&cluster, "writes go over the other link");
        links.mend(cut).unwrap();
    }
    load.end(&cluster);
}

#[test]
fn writes_go_over_both_links_and_over_one_while_the_other_is_cut() {
    let links = match Links::new("balance") {
        Ok(links) => links,
        Err(why) => return println!("skipped: {why}"),
    };
    let net = "transport lb-tcp; load-balance-paths yes; connect-int 3;";
    let mut cluster = cluster(&links, net);
    let use_just = |cluster: &Cluster, links: &[usize]| {
        cluster.wait("both nodes use the links that are there", |c| {
            c.nodes.iter().all(|node| used(node) == links)
        });
    };
    let both_carry = |cluster: &Cluster, load: &Load| {
        use_just(cluster, &[0, 1]);
        let before = [0, 1].map(|link| links.sent(link));
        cluster.wait("writes go over both links", |_| {
            [0, 1].iter().all(|link| links.sent(*link) > before[*link] + 500_000)
        });
        load.goes_on(cluster, "writes go on");
    };
    let load = Load::begin(&cluster);
    both_carry(&cluster, &load);
    // Another engine takes over with the connection as it is, and so the peer sees nothing.
    let watcher = cluster.nodes[1].follow(&["events"]);
    for _ in 0..3 {
        cluster.nodes[0].upgrade();
        load.goes_on(&cluster, "writes go on");
    }
    both_carry(&cluster, &load);
    let seen = watched(watcher);
    let lost = |line: &&str| line.starts_with("change") && line.contains(" connection:");
    assert_eq!(seen.lines().find(lost), None, "{seen}");
    for cut in [0, 1] {
        links.cut(cut).unwrap();
        use_just(&cluster, &[1 - cut]);
        cluster.wait_connected();
        load.goes_on(&cluster, "writes go over the other link");
        links.mend(cut).unwrap();
        both_carry(&cluster, &load);
    }
    load.end(&cluster);
}

#[test]
fn load_balancing_is_switched_on_node_by_node_and_the_first_one_says_what_it_waits_for() {
    let setup = Setup {
        nodes: vec!["alpha", "bravo"],
        sections: "net { timeout 10; connect-int 2; }".to_owned(),
        ..Setup::default()
    };
    let cluster = Cluster::up(&setup);
    cluster.reconfigure(|config| {
        let balanced = "net { transport lb-tcp; load-balance-paths yes; timeout 10;";
        let changed = config.replace("net { timeout 10;", balanced);
        assert_ne!(changed, config);
        changed
    });
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    alpha.ok(&["adjust", "r0"]);
    cluster.wait("both say why there is no connection", |c| {
        c.nodes.iter().all(|node| node.ok(&["why", "r0"]).contains("set `transport lb-tcp`"))
    });
    bravo.ok(&["adjust", "r0"]);
    cluster.wait_connected();
    cluster.wait("nobody has to say anything", |c| {
        c.nodes.iter().all(|node| !node.ok(&["why", "r0"]).contains("not made"))
    });
    let mut client = Client::open(&alpha.export(), "r0/0").unwrap();
    client.write(0, &pattern(1, 4096)).unwrap();
    client.close();
    cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
    cluster.assert_equal(0, &[0, 1]);
}
