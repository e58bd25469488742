//! Laws that any such simulation obeys, whatever it simulates.

use super::costs::{Case, Cost};
use super::latency;
use super::limits::limits;
use super::model::{Disk, Hardware, Load, Network, P4800X, Service};
use super::sim::{Outcome, Run, run};

const RUN: Run = Run { seed: 3, warm_up_us: 5_000.0, window_us: 20_000.0 };

fn case() -> Case {
    let cost = |wake_us, request_us| Cost { wake_us, request_us };
    Case {
        client: cost(8.0, 4.0),
        front: cost(10.0, 6.0),
        peer: cost(12.0, 3.0),
        idle_us: 15.0,
        flush_us: 30.0,
    }
}

fn hardware(nodes: usize) -> Hardware {
    let network = Some(Network { ports: 2, gbit: 25.0, mtu: 1500, delay_us: 5.0 });
    Hardware { nodes, cores: 40, network, disks: 4, disk: P4800X }
}

fn load(write: bool, diskless: bool, depth: usize) -> Load {
    Load { write, diskless, workloads: 4, depth, replicas: 3 }
}

fn close(what: &str, is: f64, should: f64, tolerance: f64) {
    assert!((is / should - 1.0).abs() < tolerance, "{what}: {is}, not {should}");
}

fn all() -> impl Iterator<Item = (bool, bool)> {
    [(false, true), (false, false), (true, true), (true, false)].into_iter()
}

/// Requests per second as if nothing but one thing had a limit.
fn endless() -> Disk {
    let service = Service { iops: 1e9, latency_us: 0.1 };
    Disk { name: "endless", read: service, write: service }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_a_similar() {
    let (hardware, load) = (hardware(4), load(true, true, 8));
    let first = run(&hardware, &load, &case(), RUN);
    assert_eq!(first, run(&hardware, &load, &case(), RUN));
    let other = run(&hardware, &load, &case(), Run { seed: 4, ..RUN });
    assert_ne!(first, other);
    close("another seed", other.iops, first.iops, 0.03);
}

#[test]
fn requests_in_flight_are_throughput_times_latency() {
    for (write, diskless) in all() {
        for depth in [1, 8, 64] {
            let (hardware, load) = (hardware(4), load(write, diskless, depth));
            let Outcome { iops, mean_us, .. } = run(&hardware, &load, &case(), RUN);
            let in_flight = (4 * load.workloads * depth) as f64;
            close("in flight", iops * mean_us / 1e6, in_flight, 0.03);
        }
    }
}

#[test]
fn what_is_used_is_throughput_times_demand() {
    // Nobody spends anything on a wake-up: what is spent does not depend on how turns fall.
    let free = |cost: Cost| Cost { wake_us: 0.0, ..cost };
    let Case { client, front, peer, .. } = case();
    let case = Case { client: free(client), front: free(front), peer: free(peer), ..case() };
    for (write, diskless) in all() {
        let (hardware, load) = (hardware(4), load(write, diskless, 16));
        let outcome = run(&hardware, &load, &case, RUN);
        let each_second = |us: f64| outcome.iops * us / 1e6;
        let threads = (hardware.nodes * load.workloads) as f64;
        close("clients", outcome.client, each_second(client.request_us) / threads, 0.03);
        close("shards", outcome.front, each_second(front.request_us) / threads, 0.03);
        let all_us = client.request_us + front.request_us + case.peers_us(&load);
        let cores = (hardware.nodes * hardware.cores) as f64;
        close("cores", outcome.cores, each_second(all_us) / cores, 0.03);
        let service = hardware.disk.service(write);
        let copies = if write { 3.0 } else { 1.0 };
        let disks = (hardware.nodes * hardware.disks) as f64;
        let demand = outcome.iops * copies / service.iops / disks;
        close("disks", outcome.disks, demand, 0.03);
        let network = hardware.network.unwrap();
        let bytes = network.bytes_per_request(&load);
        let line = hardware.nodes as f64 * network.bytes_per_second();
        if bytes == 0.0 {
            assert_eq!(outcome.sending, 0.0);
        } else {
            // Barriers are sent here, and not counted there.
            close("ports", outcome.sending, outcome.iops * bytes / line, 0.04);
        }
    }
}

#[test]
fn no_run_is_faster_than_a_limit_and_each_limit_can_be_reached() {
    let slow_disk = Disk { write: Service { iops: 20_000.0, latency_us: 100.0 }, ..endless() };
    let slow_network = Network { ports: 1, gbit: 10.0, mtu: 1500, delay_us: 5.0 };
    let quick = Cost { wake_us: 0.0, request_us: 0.1 };
    let quick = Case { client: quick, front: quick, peer: quick, idle_us: 0.0, flush_us: 0.0 };
    let slow = Cost { wake_us: 5.0, request_us: 20.0 };
    let fast = Hardware { disk: endless(), ..hardware(4) };
    for (resource, hardware, case) in [
        ("disks", Hardware { disk: slow_disk, ..fast }, quick),
        ("network", Hardware { network: Some(slow_network), ..fast }, quick),
        ("a shard per volume", fast, Case { front: slow, ..quick }),
        ("a thread per client", fast, Case { client: slow, ..quick }),
        ("all cores", Hardware { cores: 2, ..fast }, Case { peer: slow, front: slow, ..quick }),
    ] {
        let load = load(true, true, 64);
        let limit = limits(&hardware, &load, &case)[0];
        assert_eq!(limit.resource, resource);
        let outcome = run(&hardware, &load, &case, RUN);
        let reached = outcome.iops / limit.iops;
        assert!((0.85..1.05).contains(&reached), "{resource}: {reached} of the limit");
    }
}

#[test]
fn a_request_that_is_alone_takes_the_sum_of_its_terms() {
    for (write, diskless) in all() {
        let (hardware, load) = (hardware(4), Load { workloads: 1, ..load(write, diskless, 1) });
        // Barriers are on nobody's way here.
        let terms = latency::terms(&hardware, &load, &case());
        let sum = terms.iter().map(|term| term.us).sum();
        let simulated = run(&hardware, &load, &case(), Run { window_us: 100_000.0, ..RUN });
        close(load.title(), simulated.mean_us, sum, 0.25);
    }
}

#[test]
fn more_nodes_do_as_much_more() {
    let load = load(true, true, 16);
    let few = run(&hardware(4), &load, &case(), RUN);
    let many = run(&hardware(12), &load, &case(), RUN);
    close("three times as many", many.iops, few.iops * 3.0, 0.05);
}

#[test]
fn an_epoch_has_about_as_many_writes_as_are_in_flight() {
    // The first of them is answered when as many have been made since.
    for depth in [1, 32] {
        let load = load(true, false, depth);
        let flushes = run(&hardware(4), &load, &case(), RUN).flushes;
        let writes = load.peers() as f64 / flushes / depth as f64;
        assert!((0.4..2.5).contains(&writes), "depth {depth}: {writes} of it in an epoch");
    }
}
