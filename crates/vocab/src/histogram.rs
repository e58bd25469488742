//! How long things took, as counts in fixed buckets.
//!
//! Buckets are log-linear: one per microsecond below 8 us, then eight of equal width per power of
//! two, to 134 s; one more has what took longer. So a value is known to an eighth of itself, and
//! recording is an addition: nothing is allocated, and no bucket ever moves. The sum is exact.

use std::fmt;
use std::time::Duration;

/// Powers of two, of microseconds, that are divided into [`STEPS`] each: 2^3 to 2^26.
const OCTAVES: usize = 24;
/// Buckets of a power of two.
const STEPS: usize = 8;
/// What took so long or longer is in the last bucket, in microseconds.
const END: u64 = 1 << (OCTAVES + 3);

/// Durations in buckets.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; Histogram::BUCKETS],
    /// Nanoseconds.
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; Histogram::BUCKETS], sum: 0 }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("sum", &self.sum())
            .field("buckets", &self.buckets().collect::<Vec<_>>())
            .finish()
    }
}

impl Histogram {
    /// Number of buckets, the one without an end included.
    pub const BUCKETS: usize = STEPS + OCTAVES * STEPS + 1;

    /// Counts something that took so long, as `weight` events.
    pub fn record(&mut self, took: Duration, weight: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos / 1000)] += weight;
        self.sum = self.sum.saturating_add(nanos.saturating_mul(weight));
    }

    /// Events.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What all events took together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// What an event took on average; zero if there were none.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum.checked_div(self.count()).unwrap_or(0))
    }

    /// Upper bound of the bucket in which the share `q` (0 to 1) of all events is reached; `None`
    /// without events. Of the bucket without an end it is the lower bound.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        // The first event for 0, the last one for 1.
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        self.counts.iter().enumerate().find_map(|(index, events)| {
            seen += events;
            (seen >= rank).then(|| Duration::from_micros(upper(index).unwrap_or(END)))
        })
    }

    /// Events that took less than `limit`. Exact where a bucket ends at the limit, as at each power
    /// of two of microseconds; else events of the bucket it lies in are left out.
    pub fn below(&self, limit: Duration) -> u64 {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        let whole =
            (0..Self::BUCKETS).take_while(|index| upper(*index).is_some_and(|u| u <= micros));
        whole.map(|index| self.counts[index]).sum()
    }

    /// What has been added since `earlier`, an older state of the same histogram; all of it if that
    /// is not what `earlier` is, such as after a restart.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let older = self.counts.iter().zip(&earlier.counts).all(|(new, old)| new >= old);
        if !older || self.sum < earlier.sum {
            return self.clone();
        }
        let mut counts = self.counts;
        for (count, old) in counts.iter_mut().zip(&earlier.counts) {
            *count -= old;
        }
        Histogram { counts, sum: self.sum - earlier.sum }
    }

    /// The buckets that have events: where each ends (`None` for the one without an end), and how
    /// many they are.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let some = self.counts.iter().enumerate().filter(|(_, events)| **events > 0);
        some.map(|(index, events)| (upper(index).map(Duration::from_micros), *events))
    }

    /// The histogram that has these buckets. `None` if a bucket does not end where one of ours does,
    /// or if there are more events than can be counted.
    pub fn from_buckets(
        sum: Duration,
        buckets: impl IntoIterator<Item = (Option<Duration>, u64)>,
    ) -> Option<Histogram> {
        let sum = u64::try_from(sum.as_nanos()).ok()?;
        let mut histogram = Histogram { sum, ..Histogram::default() };
        let mut events = 0u64;
        for (end, count) in buckets {
            let end = end.map(|end| u64::try_from(end.as_micros())).transpose().ok()?;
            let index = match end {
                Some(end) => (0..Self::BUCKETS).find(|index| upper(*index) == Some(end))?,
                None => Self::BUCKETS - 1,
            };
            events = events.checked_add(count)?;
            histogram.counts[index] += count;
        }
        Some(histogram)
    }
}

/// The bucket of a number of microseconds.
const fn bucket(micros: u64) -> usize {
    if micros < STEPS as u64 {
        return micros as usize;
    }
    if micros >= END {
        return Histogram::BUCKETS - 1;
    }
    // The top bit says which power of two, the three bits behind it which eighth of that.
    let octave = micros.ilog2() as usize - 3;
    STEPS * (octave + 1) + ((micros >> octave) as usize - STEPS)
}

/// Where a bucket ends, in microseconds; a value at the end is in the next one.
const fn upper(index: usize) -> Option<u64> {
    if index + 1 >= Histogram::BUCKETS {
        None
    } else if index < STEPS {
        Some(index as u64 + 1)
    } else {
        let octave = index / STEPS - 1;
        Some(((index % STEPS + STEPS + 1) as u64) << octave)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        let ends: Vec<u64> = (0..).map_while(upper).collect();
        assert_eq!(ends.len(), Histogram::BUCKETS - 1);
        assert_eq!(ends.last(), Some(&END));
        for (index, end) in ends.iter().enumerate() {
            assert_eq!(bucket(end - 1), index, "the last microsecond before {end}");
            assert_eq!(bucket(*end), index + 1, "{end}");
        }
        assert_eq!(bucket(u64::MAX), Histogram::BUCKETS - 1);
        for (before, end) in ends.iter().zip(&ends[1..]) {
            assert!(end - before <= (before / 8).max(1), "{before} to {end} is too wide");
        }
    }

    #[test]
    fn quantiles_are_where_the_events_are() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for us in 1..=100 {
            histogram.record(US * us, 1);
        }
        assert_eq!((histogram.count(), histogram.mean()), (100, Duration::from_nanos(50_500)));
        // The 50th is 50 us, in the bucket from 48 to 52; the 99th in that from 96 to 104.
        assert_eq!(histogram.quantile(0.5), Some(US * 52));
        assert_eq!(histogram.quantile(0.99), Some(US * 104));
        assert_eq!(histogram.quantile(0.0), Some(US * 2));
        histogram.record(US * 1000, 300);
        assert_eq!((histogram.count(), histogram.quantile(0.5)), (400, Some(US * 1024)));
        assert_eq!(histogram.below(US * 64), 63);
        assert_eq!(histogram.below(US * 1024), 400);
    }

    #[test]
    fn what_takes_for_ever_is_counted() {
        let mut histogram = Histogram::default();
        histogram.record(Duration::MAX, 3);
        histogram.record(Duration::from_secs(200), 1);
        assert_eq!((histogram.count(), histogram.quantile(0.1)), (4, Some(US * END as u32)));
        assert_eq!(histogram.below(Duration::MAX), 0);
        assert_eq!(histogram.buckets().collect::<Vec<_>>(), [(None, 4)]);
    }

    #[test]
    fn a_difference_is_what_came_in_between() {
        let mut histogram = Histogram::default();
        histogram.record(US * 10, 2);
        let before = histogram.clone();
        histogram.record(US * 10, 1);
        histogram.record(US * 500, 4);
        let mut new = Histogram::default();
        new.record(US * 10, 1);
        new.record(US * 500, 4);
        assert_eq!(histogram.since(&before), new);
        assert_eq!(before.since(&histogram), before, "started anew");
    }

    #[test]
    fn buckets_make_the_histogram_again() {
        let mut histogram = Histogram::default();
        for us in [0, 3, 8, 9, 100, 5_000_000] {
            histogram.record(US * us, u64::from(us) + 1);
        }
        histogram.record(Duration::from_secs(1000), 2);
        let again = Histogram::from_buckets(histogram.sum(), histogram.buckets());
        assert_eq!(again.as_ref(), Some(&histogram));
        assert_eq!(Histogram::from_buckets(US, [(Some(US * 17), 1)]), None, "16 to 18 is one");
        let twice = [(None, u64::MAX), (None, 1)];
        assert_eq!(Histogram::from_buckets(US, twice), None, "more than can be counted");
    }
}
