//! What a request costs each of those who serve it, from what was measured on this machine.

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::model::Load;
use crate::bench::shares::{Share, Shares, Spent};

/// Replicas of the measurement.
const MEASURED_REPLICAS: usize = 3;
/// What was measured for docs/scaling.md.
pub const RECORDED: &str = include_str!("../../testdata/shares.json");

/// CPU time of one who serves requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Of each turn after a pause, whatever it works on.
    pub wake_us: f64,
    /// Of each request, over all of its messages.
    pub request_us: f64,
}

/// Costs of a load, and how soon a core notices that it has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Case {
    pub client: Cost,
    /// The shard that serves the client: a Primary, or a node without a disk.
    pub front: Cost,
    /// The shard of one replica on another node.
    pub peer: Cost,
    /// From the moment a thread is woken until it runs, on a core that was idle.
    pub idle_us: f64,
    /// Of a flush of a disk that has nothing to flush: the way to a worker of io_uring and back.
    pub flush_us: f64,
}

/// Costs of all loads.
#[derive(Clone, Debug)]
pub struct Costs {
    pub measured: Shares,
    /// As in `Case`.
    pub idle_us: f64,
    pub flush_us: f64,
    /// Every CPU time is multiplied by it.
    pub cpu: f64,
}

impl Case {
    /// Messages of a request that the front shard works on: the request, and each disk's answer.
    fn front_messages(load: &Load, replicas: usize) -> f64 {
        if load.write { 1.0 + replicas as f64 } else { 2.0 }
    }

    /// What the front shard spends on each of them.
    pub fn front_message_us(&self, load: &Load) -> f64 {
        self.front.request_us / Case::front_messages(load, MEASURED_REPLICAS)
    }

    /// What the front shard spends on a request.
    pub fn front_us(&self, load: &Load) -> f64 {
        self.front_message_us(load) * Case::front_messages(load, load.replicas)
    }

    /// What all peers together spend on a request.
    pub fn peers_us(&self, load: &Load) -> f64 {
        match (load.write, load.diskless) {
            (true, _) => self.peer.request_us * load.peers() as f64,
            (false, true) => self.peer.request_us,
            (false, false) => 0.0,
        }
    }
}

impl Costs {
    /// Reads what `cargo xtask bench shares --json` has printed.
    pub fn read(text: &str) -> Result<Shares> {
        serde_json::from_str(text).context("it is not what `cargo xtask bench shares --json` says")
    }

    /// The costs of a load.
    ///
    /// # Errors
    /// If the measurement has too little of it.
    pub fn case(&self, load: &Load) -> Result<Case> {
        let runs = self.measured.runs.iter();
        let runs: Vec<&Share> =
            runs.filter(|run| (run.write, run.diskless) == (load.write, load.diskless)).collect();
        if runs.len() < 2 {
            bail!(
                "the measurement has no two depths of {:?}; cargo xtask bench shares --json takes \
                 all",
                load.title()
            );
        }
        let fitted = |spent: &dyn Fn(&Share) -> Spent| {
            let cost = fit(&runs.iter().map(|run| spent(run)).collect::<Vec<_>>());
            Cost { wake_us: cost.wake_us * self.cpu, request_us: cost.request_us * self.cpu }
        };
        let front = if load.diskless { MEASURED_REPLICAS } else { 0 };
        for run in &runs {
            if run.engines.len() != MEASURED_REPLICAS + 1 {
                bail!(
                    "the measurement has {} engines, not 3 replicas and one without a disk; \
                       leave out --nodes",
                    run.engines.len()
                );
            }
        }
        Ok(Case {
            client: fitted(&|run| run.client),
            front: fitted(&|run| run.engines[front]),
            peer: fitted(&|run| peer(run)),
            idle_us: self.idle_us,
            flush_us: self.flush_us,
        })
    }
}

/// What a peer spends: each of them on every write, all of them together on a read.
fn peer(run: &Share) -> Spent {
    let peers = match run.diskless {
        true => &run.engines[..MEASURED_REPLICAS],
        false => &run.engines[1..MEASURED_REPLICAS],
    };
    let share = if run.write { 1.0 / peers.len() as f64 } else { 1.0 };
    let sum = |figure: &dyn Fn(&Spent) -> f64| peers.iter().map(figure).sum::<f64>() * share;
    Spent { cpu_us: sum(&|spent| spent.cpu_us), pauses: sum(&|spent| spent.pauses) }
}

/// The line through CPU time over pauses that fits best; neither cost is less than nothing. Squares
/// of relative errors: depth 1 costs ten times as much as depth 64, and is not ten times as
/// important.
fn fit(runs: &[Spent]) -> Cost {
    let mut sums = [0.0; 5];
    for Spent { cpu_us, pauses } in runs.iter().filter(|run| run.cpu_us > 0.0) {
        let weight = 1.0 / (cpu_us * cpu_us);
        let terms = [1.0, *pauses, *cpu_us, pauses * pauses, pauses * cpu_us];
        for (sum, term) in sums.iter_mut().zip(terms) {
            *sum += weight * term;
        }
    }
    let [n, x, y, xx, xy] = sums;
    let spread = n * xx - x * x;
    if n == 0.0 || spread <= f64::EPSILON * n * xx {
        return Cost { wake_us: 0.0, request_us: if n == 0.0 { 0.0 } else { y / n } };
    }
    let wake_us = (n * xy - x * y) / spread;
    let request_us = (y - wake_us * x) / n;
    match (wake_us < 0.0, request_us < 0.0) {
        (true, _) => Cost { wake_us: 0.0, request_us: y / n },
        (_, true) => Cost { wake_us: xy / xx, request_us: 0.0 },
        _ => Cost { wake_us, request_us },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(cpu_us: f64, pauses: f64) -> Spent {
        Spent { cpu_us, pauses }
    }

    #[test]
    fn what_lies_on_a_line_is_found() {
        let runs = [0.05, 0.3, 2.0].map(|pauses| spent(4.0 + 12.0 * pauses, pauses));
        let cost = fit(&runs);
        assert!((cost.request_us - 4.0).abs() < 1e-9 && (cost.wake_us - 12.0).abs() < 1e-9);
    }

    #[test]
    fn no_cost_is_negative() {
        let falling = fit(&[spent(9.0, 0.1), spent(3.0, 1.0)]);
        assert!(falling.wake_us == 0.0 && falling.request_us > 0.0);
        let steep = fit(&[spent(1.0, 0.5), spent(30.0, 2.0)]);
        assert!(steep.request_us == 0.0 && steep.wake_us > 0.0);
        assert_eq!(fit(&[spent(0.0, 0.0)]), Cost { wake_us: 0.0, request_us: 0.0 });
    }
}
