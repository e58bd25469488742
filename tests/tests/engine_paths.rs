//! Two links between two nodes, each in a network namespace of its own: when the one in use is cut under
//! load, writes go on over the other.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this whole file is a test")]

mod engine_support;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use engine_support::nbd::Client;
use engine_support::{Cluster, Node, Setup, list, pattern, text};

/// Two network namespaces with two links between them.
struct Links {
    names: [String; 2],
}

impl Links {
    /// Why there are none, or both.
    fn new() -> Result<Links, String> {
        let pid = std::process::id();
        let links = Links { names: ["a", "b"].map(|side| format!("ashlar-paths-{pid}-{side}")) };
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

/// The link that a connected node uses, as its status shows.
fn used(node: &Node) -> Option<usize> {
    let status = node.status();
    let connection = &list(&status["connections"])[0];
    let mut used = list(&connection["paths"]).iter().filter(|path| path["established"] == true);
    let used = used.next()?["remote_host"].to_string();
    [0, 1].into_iter().find(|link| [0, 1].iter().any(|side| used.contains(&address(*link, *side))))
}

#[test]
fn writes_go_on_over_the_other_link_when_the_one_in_use_is_cut() {
    let links = match Links::new() {
        Ok(links) => links,
        Err(why) => return println!("skipped: no network namespaces: {why}"),
    };
    if let Err(why) = links.cut(0).and_then(|()| links.mend(0)) {
        return println!("skipped: a link can not be cut: {why}");
    }
    let setup = Setup {
        nodes: vec!["alpha", "bravo"],
        // A dead link is noticed in seconds.
        sections: "net { ping-int 2; timeout 15; }".to_owned(),
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
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    assert_eq!((used(alpha), used(bravo)), (Some(0), Some(0)), "the first in the order");

    let (written, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writer = {
        let (socket, written, ended) = (alpha.export(), written.clone(), ended.clone());
        thread::spawn(move || {
            let mut client = Client::open(&socket, "r0/0").unwrap();
            let blocks = client.size / 4096;
            while !ended.load(Ordering::Relaxed) {
                let nr = written.load(Ordering::Relaxed);
                client.write(nr * 7919 % blocks * 4096, &pattern(nr, 4096)).unwrap();
                written.fetch_add(1, Ordering::Relaxed);
            }
            client.close();
        })
    };
    let progress = |what: &str| {
        let before = written.load(Ordering::Relaxed);
        cluster.wait(what, |_| written.load(Ordering::Relaxed) > before + 20);
    };
    progress("writes go over the first link");
    // There and back again: each is once the one that fails.
    for (cut, other) in [(0, 1), (1, 0)] {
        links.cut(cut).unwrap();
        cluster.wait("both nodes use the other link", |_| {
            used(alpha) == Some(other) && used(bravo) == Some(other)
        });
        cluster.wait_connected();
        progress("writes go over the other link");
        links.mend(cut).unwrap();
    }
    ended.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    cluster.wait("all disks are UpToDate", |c| c.all_up_to_date());
    cluster.wait("nothing is out of sync", |c| c.nodes.iter().all(|n| n.out_of_sync() == 0));
    cluster.assert_equal(0, &[0, 1]);
}
