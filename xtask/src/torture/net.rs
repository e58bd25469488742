//! Three network namespaces and a pair of virtual links between every two of them.
//!
//! ```text
//!   ns 1 ──────── ns 2        address of node a on its link to node b: 10.77.<pair>.<a>
//!      ╲          ╱           interface of node a towards node b:      to<b>
//!       ╲        ╱
//!          ns 3               nothing leads out of the three
//! ```

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{NODES, Node};

/// Every namespace of this command is named so, then the process id, then the node.
const PREFIX: &str = "ashlar-torture-";

/// The namespaces. They are removed, with everything that runs in them, when this is dropped.
pub struct Network {
    pid: u32,
}

/// The address of `node` on its link to `peer`.
pub fn address(node: Node, peer: Node) -> String {
    let pair = 10 * node.min(peer) + node.max(peer);
    format!("10.77.{pair}.{node}")
}

impl Network {
    /// Makes namespaces and links; what an earlier run could not remove goes first.
    ///
    /// # Errors
    /// If this is not root, or the kernel or `ip` refuses.
    pub fn new() -> Result<Network> {
        sweep();
        let network = Network { pid: std::process::id() };
        for node in 1..=NODES {
            let add = ip(&["netns", "add", &network.name(node)]);
            add.context("network namespaces need root: repeat it as root or with sudo")?;
            ip(&["-n", &network.name(node), "link", "set", "lo", "up"])?;
        }
        for a in 1..=NODES {
            for b in a + 1..=NODES {
                let (from, to) = (network.name(a), network.name(b));
                let (near, far) = (interface(b), interface(a));
                let veth = ["link", "add", &near, "netns", &from, "type", "veth"];
                ip(&[&veth[..], &["peer", "name", &far, "netns", &to]].concat())?;
                for (node, peer) in [(a, b), (b, a)] {
                    let (name, device) = (network.name(node), interface(peer));
                    let address = format!("{}/24", address(node, peer));
                    ip(&["-n", &name, "address", "add", &address, "dev", &device])?;
                    ip(&["-n", &name, "link", "set", &device, "up"])?;
                }
            }
        }
        Ok(network)
    }

    /// The name of a node's namespace.
    pub fn name(&self, node: Node) -> String {
        format!("{PREFIX}{}-{node}", self.pid)
    }

    /// Cuts or mends the link between two nodes. Neither is told of anything: packets vanish.
    ///
    /// # Errors
    /// If `ip` refuses.
    pub fn set_link(&self, a: Node, b: Node, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        ip(&["-n", &self.name(a), "link", "set", &interface(b), state])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for node in 1..=NODES {
            remove(&self.name(node));
        }
    }
}

fn interface(peer: Node) -> String {
    format!("to{peer}")
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("`ip` could not be started")?;
    if !output.status.success() {
        bail!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Kills what runs in a namespace and removes it. Nobody is told of failures: it is what happens
/// on the way out.
fn remove(name: &str) {
    if let Ok(output) = Command::new("ip").args(["netns", "pids", name]).output() {
        for pid in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            let _ = Command::new("kill").args(["-KILL", pid]).status();
        }
    }
    let _ = Command::new("ip").args(["netns", "delete", name]).output();
}

/// Removes the namespaces of runs whose process is gone.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&name);
        }
    }
}
