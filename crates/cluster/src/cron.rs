//! Times of the day as crontabs have them: minute, hour, day of the month, month, day of the week.
//!
//! All of it is UTC: every controller of a cluster agrees, no hour comes twice and none is left out.
//! Crates for this have fields of their own for seconds and years, or signs that no crontab has, and
//! bring a calendar with clocks and time zones.

use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::civil;

use crate::objects::Millis;

const MINUTE: u64 = 60_000;
const DAY: u64 = 1440 * MINUTE;
/// Within so many days every date comes again: 29 February is eight years apart around 2100.
const HORIZON: u64 = 366 * 9;

const MONTHS: &[&str] =
    &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Minutes at which something happens, again and again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cron {
    text: String,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// The field is `*`: then the other one alone says which days.
    any_day: bool,
    any_weekday: bool,
}

/// A field: what it is called, its bounds, and names for its values from the lowest on.
struct Field {
    what: &'static str,
    low: u64,
    high: u64,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { what: "minute", low: 0, high: 59, names: &[] },
    Field { what: "hour", low: 0, high: 23, names: &[] },
    Field { what: "day of the month", low: 1, high: 31, names: &[] },
    Field { what: "month", low: 1, high: 12, names: MONTHS },
    // 7 is Sunday, too.
    Field { what: "day of the week", low: 0, high: 7, names: WEEKDAYS },
];

impl Field {
    fn is_weekday(&self) -> bool {
        self.high == 7
    }

    fn value(&self, text: &str) -> Result<u64, String> {
        let lower = text.to_ascii_lowercase();
        if let Some(found) = (self.low..).zip(self.names).find(|(_, name)| **name == lower) {
            return Ok(found.0);
        }
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        number.filter(|number| (self.low..=self.high).contains(number)).ok_or_else(|| {
            let Field { what, low, high, names } = self;
            let names = match (names.first(), names.last()) {
                (Some(first), Some(last)) => format!(", or {first} to {last}"),
                _ => String::new(),
            };
            format!("`{text}` is no {what}: {low} to {high}{names}")
        })
    }

    /// The values of a field, each as a bit.
    fn values(&self, text: &str) -> Result<u64, String> {
        let mut bits = 0;
        for item in text.split(',') {
            let (range, step) = match item.split_once('/') {
                None => (item, None),
                Some((range, step)) => {
                    let number = step.parse().ok().filter(|step| (1..=99).contains(step));
                    let why = || format!("`{step}` is no step: a number of 1 to 99");
                    (range, Some(number.ok_or_else(why)?))
                }
            };
            let last = if self.is_weekday() { 6 } else { self.high };
            let (first, last) = match range.split_once('-') {
                _ if range == "*" => (self.low, last),
                Some((first, last)) => {
                    let (first, mut last) = (self.value(first)?, self.value(last)?);
                    if self.is_weekday() && last == 0 && first > 0 {
                        last = 7;
                    }
                    (first, last)
                }
                // From there on, as far as it goes.
                None if step.is_some() => (self.value(range)?, last),
                None => (self.value(range)?, self.value(range)?),
            };
            if first > last {
                return Err(format!("`{range}` ends before it begins"));
            }
            let step: u64 = step.unwrap_or(1);
            let mut value = first;
            while value <= last {
                bits |= 1 << if self.is_weekday() { value % 7 } else { value };
                value += step;
            }
        }
        Ok(bits)
    }
}

impl Cron {
    /// The times that five fields say.
    ///
    /// # Errors
    /// Why they say none: the field, and what it may be.
    pub fn new(text: &str) -> Result<Cron, String> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let Ok(words) = <[&str; 5]>::try_from(words) else {
            return Err(
                "there are five fields, with spaces between them: minute, hour, day of the \
                        month, month, day of the week"
                    .to_owned(),
            );
        };
        let mut bits = [0; 5];
        for ((bits, field), word) in bits.iter_mut().zip(&FIELDS).zip(words) {
            *bits = field.values(word)?;
        }
        let [minutes, hours, days, months, weekdays] = bits;
        let (any_day, any_weekday) = (words[2] == "*", words[4] == "*");
        let text = words.join(" ");
        let cron = Cron { text, minutes, hours, days, months, weekdays, any_day, any_weekday };
        match cron.next(Millis(0)) {
            Some(_) => Ok(cron),
            None => Err("no month has such a day".to_owned()),
        }
    }

    /// The first of its times that comes after that one.
    pub fn next(&self, after: Millis) -> Option<Millis> {
        let from = (after.0 / MINUTE).checked_add(1)?;
        let today = from / 1440;
        (today..today + HORIZON).filter(|day| self.has_day(*day)).find_map(|day| {
            let first = if day == today { from % 1440 } else { 0 };
            let minute = (first..1440).find(|minute| self.has_minute(*minute))?;
            Some(Millis(day.checked_mul(DAY)?.checked_add(minute * MINUTE)?))
        })
    }

    fn has_minute(&self, minute: u64) -> bool {
        has(self.hours, minute / 60) && has(self.minutes, minute % 60)
    }

    fn has_day(&self, day: u64) -> bool {
        let (_, month, of_month) = civil(day);
        // 1970 began on a Thursday.
        let (in_month, in_week) = (has(self.days, of_month), has(self.weekdays, (day + 4) % 7));
        // Where both say something, either is enough.
        let either = match (self.any_day, self.any_weekday) {
            (false, false) => in_month || in_week,
            _ => in_month && in_week,
        };
        has(self.months, month) && either
    }
}

fn has(bits: u64, value: u64) -> bool {
    bits >> value & 1 == 1
}

impl TryFrom<String> for Cron {
    type Error = String;
    fn try_from(text: String) -> Result<Cron, String> {
        Cron::new(&text)
    }
}

impl From<Cron> for String {
    fn from(cron: Cron) -> String {
        cron.text
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time of 2026-11-29, a Sunday, and others: `yyyy-mm-dd hh:mm`.
    fn at(text: &str) -> Millis {
        let days = (0..100_000).find(|day| {
            let (year, month, day) = civil(*day);
            text.starts_with(&format!("{year:04}-{month:02}-{day:02}"))
        });
        let (hour, minute) = (&text[11..13], &text[14..16]);
        let minutes = hour.parse::<u64>().unwrap() * 60 + minute.parse::<u64>().unwrap();
        Millis(days.unwrap() * DAY + minutes * MINUTE)
    }

    fn shown(time: Millis) -> String {
        let text = vocab::Utc(std::time::Duration::from_millis(time.0)).to_string();
        text[..16].replace('T', " ")
    }

    /// The first times after one.
    fn times(cron: &str, after: &str, count: usize) -> Vec<String> {
        let cron = Cron::new(cron).unwrap();
        let mut time = at(after);
        let next = |_| {
            time = cron.next(time).unwrap();
            shown(time)
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn times_follow_from_fields() {
        const NOW: &str = "2026-11-29 11:08";
        for (cron, expected) in [
            ("* * * * *", vec!["2026-11-29 11:09", "2026-11-29 11:10"]),
            ("0 2 * * *", vec!["2026-11-30 02:00", "2026-12-01 02:00"]),
            ("*/20 * * * *", vec!["2026-11-29 11:20", "2026-11-29 11:40", "2026-11-29 12:00"]),
            ("5/25 11 * * *", vec!["2026-11-29 11:30", "2026-11-29 11:55", "2026-11-30 11:05"]),
            ("8,9,50-52/2 11 * * *", vec!["2026-11-29 11:09", "2026-11-29 11:50"]),
            ("0 0 1 1 *", vec!["2027-01-01 00:00", "2028-01-01 00:00"]),
            ("0 0 1 JAN,jul *", vec!["2027-01-01 00:00", "2027-07-01 00:00"]),
            ("0 0 29 2 *", vec!["2028-02-29 00:00", "2032-02-29 00:00"]),
            ("0 0 31 * *", vec!["2026-12-31 00:00", "2027-01-31 00:00", "2027-03-31 00:00"]),
            ("0 0 * * 0", vec!["2026-12-06 00:00", "2026-12-13 00:00"]),
            ("0 0 * * 7", vec!["2026-12-06 00:00"]),
            ("0 0 * * sat-sun", vec!["2026-12-05 00:00", "2026-12-06 00:00", "2026-12-12 00:00"]),
            ("0 0 * * 5-7/2", vec!["2026-12-04 00:00", "2026-12-06 00:00"]),
            ("0 0 * * MON-fri", vec!["2026-11-30 00:00", "2026-12-01 00:00"]),
            ("0 12 * * */3", vec!["2026-11-29 12:00", "2026-12-02 12:00", "2026-12-05 12:00"]),
            // Where both say which days, either is enough.
            ("0 0 13 * fri", vec!["2026-12-04 00:00", "2026-12-11 00:00", "2026-12-13 00:00"]),
            ("0 0 */30 * mon", vec!["2026-11-30 00:00", "2026-12-01 00:00", "2026-12-07 00:00"]),
            ("0 0 * 2 wed", vec!["2027-02-03 00:00"]),
            ("  0\t0 1  * * ", vec!["2026-12-01 00:00"]),
        ] {
            assert_eq!(times(cron, NOW, expected.len()), expected, "{cron}");
        }
        // A leap day that is left out.
        assert_eq!(times("0 0 29 2 *", "2096-02-29 00:00", 1), ["2104-02-29 00:00"]);
    }

    #[test]
    fn a_time_comes_after_and_not_at() {
        let cron = Cron::new("9 11 * * *").unwrap();
        let time = at("2026-11-29 11:09");
        assert_eq!(cron.next(Millis(time.0 - 1)), Some(time));
        assert_eq!(cron.next(time), Some(at("2026-11-30 11:09")));
        assert_eq!(cron.next(Millis(time.0 + 59_999)), Some(at("2026-11-30 11:09")));
        assert_eq!(cron.next(Millis(u64::MAX)), None, "time ends");
    }

    #[test]
    fn what_is_no_time_says_why() {
        for (cron, why) in [
            ("", "five fields"),
            ("* * * *", "five fields"),
            ("* * * * * *", "five fields"),
            ("@daily", "five fields"),
            ("60 * * * *", "`60` is no minute: 0 to 59"),
            ("* 24 * * *", "`24` is no hour: 0 to 23"),
            ("* * 0 * *", "`0` is no day of the month: 1 to 31"),
            ("* * * 13 *", "`13` is no month: 1 to 12, or jan to dec"),
            ("* * * * 8", "`8` is no day of the week: 0 to 7, or sun to sat"),
            ("* * * * jan", "`jan` is no day of the week"),
            ("mon * * * *", "`mon` is no minute"),
            ("+5 * * * *", "`+5` is no minute"),
            ("? * * * *", "`?` is no minute"),
            ("5, * * * *", "`` is no minute"),
            ("-5 * * * *", "`` is no minute"),
            ("10-5 * * * *", "`10-5` ends before it begins"),
            ("*/0 * * * *", "`0` is no step"),
            ("*/x * * * *", "`x` is no step"),
            ("*/5/5 * * * *", "`5/5` is no step"),
            ("99999999999999999999 * * * *", "is no minute"),
            ("0 0 L * *", "`L` is no day of the month"),
            ("0 0 30 2 *", "no month has such a day"),
        ] {
            let error = Cron::new(cron).unwrap_err();
            assert!(error.contains(why), "{cron}: {error}");
        }
    }

    #[test]
    fn it_is_kept_as_its_text() {
        let cron = Cron::new(" 0 2  * * mon ").unwrap();
        let row = serde_json::to_string(&cron).unwrap();
        assert_eq!(row, "\"0 2 * * mon\"");
        assert_eq!(serde_json::from_str::<Cron>(&row).unwrap(), cron);
        assert!(serde_json::from_str::<Cron>("\"0 2\"").is_err());
    }
}
