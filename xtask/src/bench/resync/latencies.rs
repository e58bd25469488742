//! What an application saw, request by request.

use anyhow::{Context, Result};

use super::Seen;
use crate::bench::statistics::median;

/// A resync is to have given way after that.
const GIVEN_MS: u64 = 100;
/// A part of a run.
const WINDOW_MS: u64 = 20;
/// So many windows in a row say how it goes on: single ones jump on any machine.
const FEW: usize = 5;
/// Latency is as usual if it is no more than so much of what it is without a resync.
const USUAL: f64 = 1.2;

/// Requests in the order of their answers: when that came, from the first one on, and how long it
/// took, in microseconds.
pub struct Latencies(Vec<(u64, f64)>);

impl Latencies {
    /// Reads fio's log: milliseconds, nanoseconds and more in each line.
    ///
    /// # Errors
    /// If it is none, or empty.
    pub fn parse(text: &str) -> Result<Latencies> {
        let mut requests = Vec::new();
        for line in text.lines() {
            let mut words = line.split(',').map(str::trim);
            let mut word = || words.next()?.parse::<u64>().ok();
            let (ms, ns) = word().zip(word()).with_context(|| format!("a log with {line:?}"))?;
            requests.push((ms, ns as f64 / 1e3));
        }
        let first = requests.iter().map(|(ms, _)| *ms).min().context("fio has logged nothing")?;
        requests.iter_mut().for_each(|(ms, _)| *ms -= first);
        Ok(Latencies(requests))
    }

    /// Sums it up; `alone` is a run without a resync.
    ///
    /// # Errors
    /// If it is too short.
    pub fn seen(&self, alone: &Latencies) -> Result<Seen> {
        let late = self.0.iter().filter(|(ms, _)| *ms >= GIVEN_MS);
        let mut sorted: Vec<f64> = late.map(|(_, us)| *us).collect();
        sorted.sort_by(f64::total_cmp);
        let last = self.0.iter().map(|(ms, _)| *ms).max().unwrap_or(0);
        let seconds = last.saturating_sub(GIVEN_MS) as f64 / 1e3;
        let at = |percent: usize| sorted.get(sorted.len() * percent / 100).copied();
        let (p50_us, p99_us) = at(50).zip(at(99)).context("fio's run was too short")?;
        let settled_ms = settled(&alone.windows(), &self.windows());
        Ok(Seen { iops: sorted.len() as f64 / seconds, p50_us, p99_us, settled_ms })
    }

    /// Mean latency of each window; one in which nothing was answered is as slow as the next.
    fn windows(&self) -> Vec<f64> {
        let mut sums: Vec<(f64, f64)> = Vec::new();
        for (ms, us) in &self.0 {
            let window = (ms / WINDOW_MS) as usize;
            if sums.len() <= window {
                sums.resize(window + 1, (0.0, 0.0));
            }
            sums[window].0 += us;
            sums[window].1 += 1.0;
        }
        let mut next = 0.0;
        let mean = |(sum, count): &(f64, f64)| {
            if *count > 0.0 {
                next = sum / count;
            }
            next
        };
        let mut means: Vec<f64> = sums.iter().rev().map(mean).collect();
        means.reverse();
        means
    }
}

/// How many milliseconds after its start the latency of `run` is as it is `alone`, and stays so for
/// some windows.
fn settled(alone: &[f64], run: &[f64]) -> Option<u64> {
    let most = USUAL * median(alone)?;
    let usual = |windows: &[f64]| {
        windows[0] <= most && median(windows).is_some_and(|middle| middle <= most)
    };
    let first = run.windows(FEW).position(usual)?;
    Some(first as u64 * WINDOW_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request every two milliseconds, so long each.
    fn run(latencies_ns: impl Iterator<Item = u64>) -> Latencies {
        let line = |(i, ns)| format!("{}, {ns}, 1, 4096, 0\n", 7 + 2 * i);
        Latencies::parse(&latencies_ns.enumerate().map(line).collect::<String>()).unwrap()
    }

    #[test]
    fn latency_is_as_usual_when_it_stays_low() {
        let alone = run(std::iter::repeat_n(100_000, 200));
        let settled = |run: &Latencies| run.seen(&alone).unwrap().settled_ms;
        assert_eq!(settled(&alone), Some(0));
        // Three windows of ten requests are slow, one of the next jumps.
        let slow = |i| if i < 30 || (50..60).contains(&i) { 900_000 } else { 110_000 };
        assert_eq!(settled(&run((0..200).map(slow))), Some(60));
        assert_eq!(settled(&run((0..200).map(|_| 130_000))), None);
    }

    #[test]
    fn percentiles_and_rate_are_of_what_comes_after_a_tenth_of_a_second() {
        let slow = |i: u64| if i < 50 { 9_000_000 } else { 1_000 * (i - 50) };
        let seen = run((0..1050).map(slow)).seen(&run((0..9).map(slow))).unwrap();
        assert_eq!((seen.p50_us, seen.p99_us), (500.0, 990.0));
        assert!((495.0..505.0).contains(&seen.iops), "{}", seen.iops);
        assert!(run((0..40).map(slow)).seen(&run((0..9).map(slow))).is_err());
    }

    #[test]
    fn a_window_without_an_answer_is_as_slow_as_the_next() {
        let latencies = Latencies::parse("5, 1000, 1\n100, 90000000, 1\n").unwrap();
        assert_eq!(latencies.windows(), [1.0, 90_000.0, 90_000.0, 90_000.0, 90_000.0]);
        assert!(Latencies::parse("").is_err());
        assert!(Latencies::parse("fio: no\n").is_err());
    }
}
