//! What the views print.

use anyhow::Result;
use serde::Serialize;

use super::costs::{Case, Costs};
use super::latency::{self, Term};
use super::limits::{Limit, limits};
use super::model::{Disk, Hardware, Load, MEMORY, Service};
use super::options::Options;
use super::sim::{self, Outcome};
use crate::bench::shares::Share;

/// What LINBIT published for its 12 nodes: requests a second of each load, in the order of
/// `Options::loads`.
const PUBLISHED: [f64; 4] = [14.8e6, 22.1e6, 4.37e6, 5.0e6];
/// And the latency of a write that is alone.
const PUBLISHED_US: f64 = 85.0;

/// A load, computed both ways.
#[derive(Debug, Serialize)]
struct Row {
    title: &'static str,
    load: Load,
    /// Of the published run; the same hardware only with the options' defaults.
    published_iops: f64,
    costs: Case,
    limits: Vec<Limit>,
    simulated: Outcome,
}

fn rows(options: &Options, hardware: &Hardware, costs: &Costs) -> Result<Vec<Row>> {
    let loads = options.loads().into_iter().zip(PUBLISHED);
    let row = |(load, published_iops): (Load, f64)| {
        let costs = costs.case(&load)?;
        Ok(Row {
            title: load.title(),
            load,
            published_iops,
            costs,
            limits: limits(hardware, &load, &costs),
            simulated: sim::run(hardware, &load, &costs, options.run),
        })
    };
    loads.map(row).collect()
}

/// The loads of the published run.
pub fn table(options: &Options) -> Result<()> {
    let rows = rows(options, &options.hardware, &options.costs)?;
    if options.json {
        return print_json(&rows);
    }
    println!("{}\n", words(options));
    println!(
        "{:21} {:>9} {:>9}  {:22} {:>9} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>7}",
        "",
        "published",
        "closed",
        "which is the",
        "simulated",
        "cores",
        "client",
        "shard",
        "ports",
        "disks",
        "p50 us",
        "p99 us"
    );
    for row in &rows {
        let Outcome { iops, p50_us, p99_us, cores, client, front, sending, disks, .. } =
            row.simulated;
        println!(
            "{:21} {:>9} {:>9}  {:22} {:>9} {:>6} {:>6} {:>6} {:>6} {:>6} {p50_us:>7.0} \
             {p99_us:>7.0}",
            row.title,
            millions(row.published_iops),
            millions(row.limits[0].iops),
            row.limits[0].resource,
            millions(iops),
            percent(cores),
            percent(client),
            percent(front),
            percent(sending),
            percent(disks)
        );
    }
    println!("\nwhat each resource allows by itself");
    for row in &rows {
        let all =
            row.limits.iter().map(|limit| format!("{} {}", limit.resource, millions(limit.iops)));
        println!("{:21} {}", row.title, all.collect::<Vec<_>>().join(", "));
    }
    println!("\nCPU time: us of a request, and of each wake-up");
    for row in &rows {
        let Case { client, front, peer, .. } = row.costs;
        println!(
            "{:21} client {:.1}, {:.1}; front shard {:.1}, {:.1}; peer {:.1}, {:.1}",
            row.title,
            client.request_us,
            client.wake_us,
            front.request_us,
            front.wake_us,
            peer.request_us,
            peer.wake_us
        );
    }
    Ok(())
}

/// One request that is alone.
pub fn latency(options: &Options) -> Result<()> {
    #[derive(Serialize)]
    struct Budget {
        title: &'static str,
        terms: Vec<Term>,
        sum_us: f64,
        simulated_us: f64,
    }
    let mut budgets = Vec::new();
    for load in options.loads() {
        let load = Load { workloads: 1, depth: 1, ..load };
        let case = options.costs.case(&load)?;
        let terms = latency::terms(&options.hardware, &load, &case);
        let sum_us = terms.iter().map(|term| term.us).sum();
        let simulated_us = sim::run(&options.hardware, &load, &case, options.run).mean_us;
        budgets.push(Budget { title: load.title(), terms, sum_us, simulated_us });
    }
    if options.json {
        return print_json(&budgets);
    }
    for Budget { title, terms, sum_us, simulated_us } in &budgets {
        println!("{title}: {sum_us:.1} us; simulated {simulated_us:.1}");
        for Term { what, us, basis } in terms {
            println!("    {us:6.1}  {what} ({})", format!("{basis:?}").to_lowercase());
        }
    }
    println!("published for a write: {PUBLISHED_US:.0} us");
    Ok(())
}

/// One thing changed at a time.
pub fn sensitivity(options: &Options) -> Result<()> {
    #[derive(Serialize)]
    struct Variant {
        change: String,
        rows: Vec<Row>,
    }
    let (hardware, costs) = (&options.hardware, &options.costs);
    let network = hardware.network.expect("it has a default");
    let with_network = |change: &dyn Fn(&mut super::model::Network)| {
        let mut network = network;
        change(&mut network);
        Hardware { network: Some(network), ..*hardware }
    };
    let mut variants: Vec<(String, Hardware, Costs, usize)> = Vec::new();
    let mut add = |change: &str, hardware: Hardware, costs: Costs, depth: usize| {
        variants.push((change.to_owned(), hardware, costs, depth));
    };
    let depth = options.depth;
    add("as given", *hardware, costs.clone(), depth);
    for factor in [2.0, 0.5] {
        let cpu = costs.cpu * factor;
        add(&format!("CPU time x {factor}"), *hardware, Costs { cpu, ..costs.clone() }, depth);
    }
    let gbit = |gbit| with_network(&|network| network.gbit = gbit);
    add("ports of 100 Gbit/s", gbit(100.0), costs.clone(), depth);
    add("MTU 9000", with_network(&|network| network.mtu = 9000), costs.clone(), depth);
    add(
        "disks twice as fast",
        Hardware { disk: faster(hardware.disk), ..*hardware },
        costs.clone(),
        depth,
    );
    let disk = faster(hardware.disk);
    let both = Hardware { disk, ..gbit(100.0) };
    add("100 Gbit/s and such disks", both, costs.clone(), depth);
    add("idle cores notice at once", *hardware, Costs { idle_us: 0.0, ..costs.clone() }, depth);
    add("flushes take nothing", *hardware, Costs { flush_us: 0.0, ..costs.clone() }, depth);
    for depth in [16, 256] {
        add(&format!("depth {depth}"), *hardware, costs.clone(), depth);
    }
    for nodes in [4, 6, 24, 48] {
        add(&format!("{nodes} nodes"), Hardware { nodes, ..*hardware }, costs.clone(), depth);
    }
    let mut results = Vec::new();
    for (change, hardware, costs, depth) in variants {
        let options = Options { depth, ..options.clone() };
        let rows = rows(&options, &hardware, &costs)?;
        results.push(Variant { change, rows });
    }
    if options.json {
        return print_json(&results);
    }
    println!("{}\n", words(options));
    let titles: Vec<_> = options.loads().iter().map(Load::title).collect();
    println!("{:27} {:>28} {:>28} {:>28} {:>28}", "", titles[0], titles[1], titles[2], titles[3]);
    for Variant { change, rows } in &results {
        let cells = rows.iter().map(|row| {
            let cell = format!("{}, {}", millions(row.simulated.iops), row.limits[0].resource);
            format!("{cell:>28}")
        });
        println!("{change:27} {}", cells.collect::<Vec<_>>().join(" "));
    }
    println!("\nsimulated requests a second, and the narrowest limit of the closed forms");
    Ok(())
}

fn faster(disk: Disk) -> Disk {
    let twice = |Service { iops, latency_us }: Service| Service {
        iops: iops * 2.0,
        latency_us: latency_us / 2.0,
    };
    Disk { name: "twice as fast", read: twice(disk.read), write: twice(disk.write) }
}

/// Rows of `cargo xtask bench` with disks in memory, of another sitting on the same machine, nothing
/// else running: writes, diskless, depth, requests a second (medians of five).
const TABLE: [(bool, bool, u32, f64); 12] = [
    (false, false, 1, 17_611.0),
    (false, false, 32, 261_066.0),
    (false, false, 64, 267_227.0),
    (true, false, 1, 7_994.0),
    (true, false, 32, 71_902.0),
    (true, false, 64, 90_718.0),
    (false, true, 1, 16_344.0),
    (false, true, 32, 123_396.0),
    (false, true, 64, 136_572.0),
    (true, true, 1, 7_057.0),
    (true, true, 32, 67_307.0),
    (true, true, 64, 78_623.0),
];

/// What was measured of a load on one machine, and what is simulated.
#[derive(Serialize)]
struct Compared {
    title: &'static str,
    depth: u32,
    /// In the sitting that the costs are from.
    measured_iops: f64,
    measured_mean_us: f64,
    measured_p99_us: f64,
    /// In that of `TABLE`.
    table_iops: Option<f64>,
    /// Client, front shard, all peers.
    measured_pauses: [f64; 3],
    simulated: Outcome,
}

/// This machine.
pub fn validate(options: &Options) -> Result<()> {
    let measured = &options.costs.measured;
    let cores = measured.cores;
    let hardware = Hardware { nodes: 4, cores, network: None, disks: 1, disk: MEMORY };
    // One machine does little in a moment.
    let run = sim::Run { window_us: options.run.window_us.max(200_000.0), ..options.run };
    let mut compared = Vec::new();
    for share in &measured.runs {
        let Share { write, diskless, depth, iops, mean_us, p99_us, .. } = *share;
        let load = Load { write, diskless, workloads: 1, depth: depth as usize, replicas: 3 };
        let case = options.costs.case(&load)?;
        let of_table = TABLE.iter().find(|row| (row.0, row.1, row.2) == (write, diskless, depth));
        compared.push(Compared {
            title: load.title(),
            depth,
            measured_iops: iops,
            measured_mean_us: mean_us,
            measured_p99_us: p99_us,
            table_iops: of_table.map(|row| row.3),
            measured_pauses: share.pauses(),
            simulated: sim::run(&hardware, &load, &case, run),
        });
    }
    if options.json {
        return print_json(&compared);
    }
    println!(
        "{} cores ({}), Linux {}, commit {}; one volume of three replicas, disks in memory\n",
        measured.cores, measured.cpu, measured.kernel, measured.commit
    );
    println!(
        "{:21} {:>5} {:>9} {:>5} {:>9} {:>5} {:>9} {:>15} {:>15} {:>6}  pauses of client, shard, peers",
        "", "depth", "simulated", "by", "measured", "by", "in table", "mean us", "99 % us", "cores"
    );
    for row in &compared {
        let Outcome { iops, mean_us, p99_us, cores, pauses, .. } = row.simulated;
        let (by_table, table) = match row.table_iops {
            Some(table) => (format!("{:.2}", iops / table), format!("{table:.0}")),
            None => (String::new(), String::new()),
        };
        let [client, front, peers] = row.measured_pauses;
        println!(
            "{:21} {:>5} {iops:>9.0} {:>5.2} {:>9.0} {by_table:>5} {table:>9} {:>15} {:>15} {:>6}  \
             {:.2}/{client:.2} {:.2}/{front:.2} {:.2}/{peers:.2}",
            row.title,
            row.depth,
            iops / row.measured_iops,
            row.measured_iops,
            format!("{mean_us:.0}/{:.0}", row.measured_mean_us),
            format!("{p99_us:.0}/{:.0}", row.measured_p99_us),
            percent(cores),
            pauses[0],
            pauses[1],
            pauses[2]
        );
    }
    println!("\nof two figures the first is simulated; pauses and CPU time are per request");
    Ok(())
}

fn words(options: &Options) -> String {
    let Hardware { nodes, cores, disks, disk, .. } = options.hardware;
    let network = options.hardware.network.expect("it has a default");
    format!(
        "{nodes} nodes of {cores} cores, {} x {} Gbit/s (MTU {}, {} us one way) and {disks} disks \
         ({}: {:.0}/{:.0} IOPS, {}/{} us); {} clients on each at depth {}, {} replicas",
        network.ports,
        network.gbit,
        network.mtu,
        network.delay_us,
        disk.name,
        disk.read.iops,
        disk.write.iops,
        disk.read.latency_us,
        disk.write.latency_us,
        options.workloads,
        options.depth,
        options.replicas
    )
}

fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

fn millions(iops: f64) -> String {
    format!("{:.2} M", iops / 1e6)
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}
