//! A check: one figure of a target, its limit, and whether it holds.

use std::fmt;

use serde::Serialize;

use crate::bench::statistics::{judge, median};

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// CPU or other time, microseconds.
    Us,
    /// A ratio.
    Times,
    /// A part of something, which is 1.
    Part,
    /// So many for a hundred others.
    PerHundred,
    Mib,
    MibPerSecond,
    PerSecond,
}

/// How far it may go.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// The first of the other figures is not above the second one, beyond noise.
    NotAbove,
}

/// What a check rests on, or what else is of interest: of each round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub name: String,
    pub unit: Unit,
    pub median: Option<f64>,
    pub runs: Vec<f64>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What is measured.
    pub what: String,
    pub unit: Unit,
    pub limit: Limit,
    /// The median of the rounds.
    pub measured: Option<f64>,
    pub runs: Vec<f64>,
    /// `None` if it was not measured.
    pub holds: Option<bool>,
    /// Why it was not, or what a reader has to know.
    pub note: Option<String>,
    pub figures: Vec<Figure>,
}

impl Check {
    /// One figure of each round, with its limit.
    pub fn new(what: impl Into<String>, limit: Limit, unit: Unit, runs: Vec<f64>) -> Check {
        let measured = median(&runs);
        let holds = measured.and_then(|measured| match limit {
            Limit::AtMost(most) => Some(measured <= most),
            Limit::AtLeast(least) => Some(measured >= least),
            Limit::NotAbove => None,
        });
        let (what, note, figures) = (what.into(), None, Vec::new());
        Check { what, unit, limit, measured, runs, holds, note, figures }
    }

    /// `new` is not above `old`, as far as noise lets one say.
    pub fn not_above(what: &str, new: Figure, old: Figure) -> Check {
        let verdict = judge(&new.runs, &old.runs);
        let runs = new.runs.iter().zip(&old.runs).map(|(new, old)| new / old).collect();
        let mut check = Check::new(what, Limit::NotAbove, Unit::Times, runs);
        check.measured = verdict.map(|verdict| verdict.ratio);
        check.holds =
            verdict.and_then(|verdict| Some(!verdict.beyond_noise? || verdict.ratio < 1.0));
        if check.holds.is_none() {
            check.note = Some("it takes 5 rounds to tell a difference from noise".to_owned());
        }
        check.with(new).with(old)
    }

    /// One that could not be measured here.
    pub fn absent(what: impl Into<String>, limit: Limit, unit: Unit, why: String) -> Check {
        let mut check = Check::new(what, limit, unit, Vec::new());
        check.note = Some(why);
        check
    }

    /// The same with one more figure.
    pub fn with(mut self, figure: Figure) -> Check {
        self.figures.push(figure);
        self
    }

    /// The same with what a reader has to know.
    pub fn noted(mut self, note: impl Into<String>) -> Check {
        self.note = Some(note.into());
        self
    }

    /// The limit in words.
    pub fn limit(&self) -> String {
        match self.limit {
            Limit::AtMost(most) => format!("at most {}", Value(most, self.unit)),
            Limit::AtLeast(least) => format!("at least {}", Value(least, self.unit)),
            Limit::NotAbove => "not above noise".to_owned(),
        }
    }

    /// The verdict in words.
    pub fn verdict(&self) -> &'static str {
        match self.holds {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "not measured",
        }
    }
}

impl Figure {
    /// Of each round.
    pub fn new(name: impl Into<String>, unit: Unit, runs: Vec<f64>) -> Figure {
        Figure { name: name.into(), unit, median: median(&runs), runs }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.median {
            Some(median) => write!(f, "{} {}", self.name, Value(median, self.unit)),
            None => write!(f, "{} -", self.name),
        }
    }
}

/// A number with its unit.
pub struct Value(pub f64, pub Unit);

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Value(value, unit) = *self;
        match unit {
            Unit::Part => write!(f, "{:.1} %", value * 100.0),
            Unit::Times => write!(f, "{value:.2} x"),
            Unit::Us => write!(f, "{value:.1} us"),
            Unit::PerHundred => write!(f, "{value:.2} %"),
            Unit::Mib => write!(f, "{value:.0} MiB"),
            Unit::MibPerSecond => write!(f, "{value:.0} MiB/s"),
            Unit::PerSecond => write!(f, "{value:.0}/s"),
        }
    }
}

/// By round: one figure by another.
pub fn ratios(of: &[f64], by: &[f64]) -> Vec<f64> {
    of.iter().zip(by).map(|(of, by)| of / by).collect()
}

/// By round: the least of several figures.
pub fn least(figures: &[&[f64]]) -> Vec<f64> {
    by_round(figures, f64::min)
}

/// By round: the greatest of several figures.
pub fn greatest(figures: &[&[f64]]) -> Vec<f64> {
    by_round(figures, f64::max)
}

fn by_round(figures: &[&[f64]], choose: fn(f64, f64) -> f64) -> Vec<f64> {
    let [first, others @ ..] = figures else { return Vec::new() };
    others.iter().fold(first.to_vec(), |chosen, figure| {
        chosen.iter().zip(*figure).map(|(a, b)| choose(*a, *b)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(limit: Limit, runs: &[f64]) -> Option<bool> {
        Check::new("x", limit, Unit::Us, runs.to_vec()).holds
    }

    #[test]
    fn the_median_is_held_against_the_limit_which_itself_is_allowed() {
        assert_eq!(check(Limit::AtMost(2.0), &[1.0, 9.0, 2.0]), Some(true));
        assert_eq!(check(Limit::AtMost(2.0), &[1.0, 9.0, 2.1]), Some(false));
        assert_eq!(check(Limit::AtLeast(2.0), &[1.0, 9.0, 2.0]), Some(true));
        assert_eq!(check(Limit::AtLeast(2.0), &[1.0, 9.0, 1.9]), Some(false));
        assert_eq!(check(Limit::AtLeast(2.0), &[]), None);
    }

    #[test]
    fn only_what_is_above_beyond_noise_breaks_a_limit_of_noise() {
        let verdict = |new: &[f64], old: &[f64]| {
            let figure = |runs: &[f64]| Figure::new("x", Unit::Us, runs.to_vec());
            Check::not_above("x", figure(new), figure(old)).holds
        };
        let old = [100.0, 103.0, 98.0, 101.0, 99.0];
        assert_eq!(verdict(&[110.0, 113.0, 108.0, 112.0, 111.0], &old), Some(false));
        assert_eq!(verdict(&[110.0, 99.5, 108.0, 112.0, 111.0], &old), Some(true));
        assert_eq!(verdict(&[90.0, 93.0, 88.0, 92.0, 91.0], &old), Some(true));
        assert_eq!(verdict(&[110.0], &[100.0]), None);
    }

    #[test]
    fn figures_are_put_together_round_by_round() {
        assert_eq!(ratios(&[1.0, 9.0], &[2.0, 3.0]), [0.5, 3.0]);
        assert_eq!(least(&[&[1.0, 9.0], &[2.0, 3.0]]), [1.0, 3.0]);
        assert_eq!(greatest(&[&[1.0, 9.0], &[2.0, 3.0]]), [2.0, 9.0]);
        assert!(least(&[]).is_empty());
    }

    #[test]
    fn limits_and_values_have_their_unit() {
        let check = Check::new("x", Limit::AtLeast(0.97), Unit::Part, vec![0.954]);
        assert_eq!((check.limit().as_str(), check.verdict()), ("at least 97.0 %", "DOES NOT HOLD"));
        assert_eq!(Value(1.256, Unit::Times).to_string(), "1.26 x");
        assert_eq!(Figure::new("raw", Unit::Us, vec![20.04]).to_string(), "raw 20.0 us");
    }
}
