//! `cargo xtask scaling`: what many nodes would do, computed from what one machine measures.
//! docs/scaling.md is made of what this prints.
//!
//! - `model`: what is modelled; `wire`: bytes on the wire; `costs`: CPU time, from
//!   `cargo xtask bench shares`.
//! - `limits`: what each resource allows, in closed form; `latency`: a request that is alone.
//! - `sim`, on `station`: the same by simulation.
//! - `options`: the arguments; `report`: what is printed.

mod costs;
mod latency;
mod limits;
mod model;
mod options;
mod report;
mod sim;
mod station;
#[cfg(test)]
mod tests;
mod wire;

use anyhow::{Result, bail};

use options::{Options, View};

const HELP: &str = "\
cargo xtask scaling [VIEW] [OPTION...]
    table              the four loads of the published run, by closed form and by simulation
                       (default)
    latency            one request that is alone, term by term
    sensitivity        the table with one thing changed at a time; a minute or two
    validate           this machine: what the simulation says against what was measured
    --nodes N          nodes, each with clients and replicas (default 12)
    --cores N          of each node (default 56)
    --ports N          network ports of each node (default 2)
    --gbit G           line rate of each (default 25)
    --mtu BYTES        largest packet (default 1500)
    --delay-us US      both cards and the switch, one way (default 5)
    --disks N          of each node (default 4)
    --disk-iops R,W    of each disk: random reads and writes of 4 KiB a second (default
                       550000,500000)
    --disk-us R,W      and what one takes that is alone (default 8.9,10)
    --workloads N      volumes with a client each, on each node (default 8)
    --depth N          requests that each client has in flight (default 64)
    --replicas N       of each volume (default 3)
    --cpu FACTOR       CPU time of everything, by what was measured (default 1)
    --idle-us US       until an idle core notices that a thread is to run (default 5)
    --flush-us US      of a flush of a disk that has nothing to flush (default 20)
    --measured FILE    what `cargo xtask bench shares --json` printed, instead of what
                       docs/scaling.md rests on
    --seed N           of the simulation (default 1)
    --millis MS        simulated time that is counted (default 20)
    --json             for programs";

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{HELP}");
        return Ok(());
    }
    let options = Options::parse(arguments)?;
    if options.view != View::Validate {
        for load in options.loads() {
            if let Err(reason) = options.hardware.fits(&load) {
                bail!("{reason}");
            }
        }
    }
    match options.view {
        View::Table => report::table(&options),
        View::Latency => report::latency(&options),
        View::Sensitivity => report::sensitivity(&options),
        View::Validate => report::validate(&options),
    }
}
