//! Three network namespaces and a pair of virtual links between every two of them.
//!
//! ```text
//!   ns 1 ──────── ns 2        address of node a on its link to node b: 10.77.<pair>.<a>
//!      ╲          ╱           interface of node a towards node b:      to<b>
//!       ╲        ╱
//!          ns 3               nothing leads out of the three
//! ```

use anyhow::{Context, Result};

use super::{NODES, Node};
use crate::netns::{ip, remove, sweep};

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
        sweep(PREFIX);
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
