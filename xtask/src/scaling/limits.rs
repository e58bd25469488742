//! The closed forms: what each resource allows, by itself.

use serde::Serialize;

use super::costs::Case;
use super::model::{Hardware, Load};

/// The most requests per second that a resource allows, of all clients together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limit {
    pub resource: &'static str,
    pub iops: f64,
}

/// What each resource allows, the narrowest first. CPU time is that of busy threads, which do not
/// sleep: less is not possible.
pub fn limits(hardware: &Hardware, load: &Load, case: &Case) -> Vec<Limit> {
    let nodes = hardware.nodes as f64;
    let workloads = match hardware.network {
        Some(_) => nodes * load.workloads as f64,
        None => load.workloads as f64,
    };
    let machines = if hardware.network.is_some() { nodes } else { 1.0 };
    let client = case.client.request_us;
    let front = case.front_us(load);
    let peers = case.peers_us(load);
    let mut limits = vec![
        Limit {
            resource: "all cores",
            iops: machines * hardware.cores as f64 / (client + front + peers) * 1e6,
        },
        Limit { resource: "a thread per client", iops: workloads / client * 1e6 },
        Limit { resource: "a shard per volume", iops: workloads / front * 1e6 },
        Limit {
            resource: "requests in flight",
            iops: workloads * load.depth as f64 / alone_us(hardware, load, case) * 1e6,
        },
    ];
    if let Some(network) = hardware.network {
        let bytes = network.bytes_per_request(load);
        if bytes > 0.0 {
            let iops = nodes * network.bytes_per_second() / bytes;
            limits.push(Limit { resource: "network", iops });
        }
    }
    let copies = if load.write { load.replicas as f64 } else { 1.0 };
    let disks = nodes * hardware.disks as f64 * hardware.disk.service(load.write).iops / copies;
    if disks.is_finite() {
        limits.push(Limit { resource: "disks", iops: disks });
    }
    limits.sort_by(|a, b| a.iops.total_cmp(&b.iops));
    limits
}

/// What one request takes that is alone.
fn alone_us(hardware: &Hardware, load: &Load, case: &Case) -> f64 {
    super::latency::terms(hardware, load, case).iter().map(|term| term.us).sum()
}
