//! What is modelled: machines, networks, disks, and what is asked of them.

use serde::Serialize;

/// What a disk does with one kind of request of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Service {
    /// With enough of them in flight. Not 0.
    pub iops: f64,
    /// Of one alone.
    pub latency_us: f64,
}

/// A disk of a node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Disk {
    pub name: &'static str,
    pub read: Service,
    pub write: Service,
}

/// Intel's figures for the P4800X of 375 GB at depth 16, and the latency AnandTech measured at
/// depth 1 for reads; "below 10 us" for writes.
pub const P4800X: Disk = Disk {
    name: "p4800x",
    read: Service { iops: 550_000.0, latency_us: 8.9 },
    write: Service { iops: 500_000.0, latency_us: 10.0 },
};

/// A file in memory: what it costs is CPU time, and in the costs of the engines.
pub const MEMORY: Disk = Disk {
    name: "memory",
    read: Service { iops: f64::INFINITY, latency_us: 0.0 },
    write: Service { iops: f64::INFINITY, latency_us: 0.0 },
};

impl Disk {
    /// For reads or for writes.
    pub fn service(&self, write: bool) -> Service {
        if write { self.write } else { self.read }
    }
}

/// The network between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Network {
    /// Of each node; connections are spread over them.
    pub ports: usize,
    /// Line rate of a port, in each direction.
    pub gbit: f64,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// From the end of sending until the receiving kernel has it: both cards and the switch.
    pub delay_us: f64,
}

/// All machines; they are alike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Hardware {
    /// Nodes that run clients and hold replicas.
    pub nodes: usize,
    /// Of each node; of all together without a network.
    pub cores: usize,
    /// `None`: all nodes are one machine, and talk over its loopback.
    pub network: Option<Network>,
    /// Disks of each node.
    pub disks: usize,
    pub disk: Disk,
}

/// What is asked of them: 4 KiB at random places.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Random writes; else random reads.
    pub write: bool,
    /// No client is on a node that has a replica of its volume; else all are.
    pub diskless: bool,
    /// Volumes with a client and its connection each, on each node.
    pub workloads: usize,
    /// Requests that each client has in flight.
    pub depth: usize,
    /// Of each volume.
    pub replicas: usize,
}

impl Load {
    /// In words.
    pub fn title(&self) -> &'static str {
        match (self.write, self.diskless) {
            (false, true) => "read, remote",
            (false, false) => "read, local replica",
            (true, true) => "write, remote",
            (true, false) => "write, local replica",
        }
    }

    /// Replicas that are reached over the network.
    pub fn peers(&self) -> usize {
        self.replicas - usize::from(!self.diskless)
    }
}

impl Hardware {
    /// Says what is wrong, if these can not run this load.
    pub fn fits(&self, load: &Load) -> Result<(), String> {
        let needed = load.replicas + usize::from(load.diskless);
        if self.nodes < needed {
            return Err(format!(
                "{}: {} replicas need {needed} nodes, there are {}; ask for more nodes or fewer \
                 replicas",
                load.title(),
                load.replicas,
                self.nodes
            ));
        }
        Ok(())
    }

    /// The node of a replica of a workload. Replicas are spread so that each node has as many of
    /// every other node's as the numbers allow.
    pub fn place(&self, load: &Load, node: usize, workload: usize, replica: usize) -> usize {
        if !load.diskless && replica == 0 {
            return node;
        }
        let nth = replica - usize::from(!load.diskless);
        let others = self.nodes - 1;
        (node + 1 + (workload * load.peers() + nth) % others) % self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_on_different_nodes_and_spread_evenly() {
        let network = Network { ports: 2, gbit: 25.0, mtu: 1500, delay_us: 5.0 };
        for (diskless, nodes) in [(true, 4), (false, 3), (true, 12), (false, 12), (true, 7)] {
            let disk = P4800X;
            let hardware = Hardware { nodes, cores: 8, network: Some(network), disks: 4, disk };
            let load = Load { write: true, diskless, workloads: 8, depth: 1, replicas: 3 };
            hardware.fits(&load).unwrap();
            let mut held = vec![0; nodes];
            for node in 0..nodes {
                for workload in 0..load.workloads {
                    let place = |replica| hardware.place(&load, node, workload, replica);
                    let places: Vec<usize> = (0..load.replicas).map(place).collect();
                    let mut different = places.clone();
                    different.sort_unstable();
                    different.dedup();
                    assert_eq!(different.len(), load.replicas, "{places:?}");
                    assert_eq!(places.contains(&node), !diskless);
                    places.iter().for_each(|place| held[*place] += 1);
                }
            }
            assert_eq!(held, vec![load.workloads * load.replicas; nodes]);
        }
    }

    #[test]
    fn a_load_that_does_not_fit_is_refused() {
        let hardware = Hardware { nodes: 3, cores: 2, network: None, disks: 1, disk: MEMORY };
        let load = Load { write: true, diskless: true, workloads: 1, depth: 1, replicas: 3 };
        assert!(hardware.fits(&load).unwrap_err().contains("need 4 nodes, there are 3"));
        assert!(hardware.fits(&Load { diskless: false, ..load }).is_ok());
    }
}
