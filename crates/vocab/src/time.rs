//! The core's clock, a monotonic point in time that only the caller advances; and the time of day
//! as logs show it.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds since an arbitrary start, never going backwards on one node.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Instant(pub u64);

impl Instant {
    /// Time passed since `earlier`; zero if `earlier` lies ahead.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// Time since 1970-01-01 00:00 UTC. Shown as `YYYY-MM-DDTHH:MM:SS.uuuuuu`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Utc(pub Duration);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0.as_secs() / 86_400, self.0.as_secs() % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let (second, micros) = (second % 60, self.0.subsec_micros());
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}")
    }
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Counts from
/// March so that the leap day ends the year; an era is 400 years of 146,097 days.
pub fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_gregorian() {
        for (days, date) in [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (20_778, "2026-11-21"),
            (47_541, "2100-03-01"),
        ] {
            let noon = Utc(Duration::new(days * 86_400 + 43_200, 1_999));
            assert_eq!(noon.to_string(), format!("{date}T12:00:00.000001"));
        }
    }
}
