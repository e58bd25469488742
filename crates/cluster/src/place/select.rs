//! The best set of candidates that keeps the constraints between replicas.
//!
//! Depth first from the best candidate, with the bound that what is still to come can not beat the
//! best set found: the highest sum of scores wins, and of equal sums the first in order of score,
//! node and pool. The number of steps is bounded; a set found by then is taken though a better one
//! may exist.

use std::collections::BTreeMap;

use super::{Ask, Candidate, Reason, Verdict, mix};
use crate::change::Key;
use crate::name::{NodeName, SharedSpaceName};
use crate::objects::Provider;
use crate::props::chain;
use crate::refusal::{Code, Refusal};

/// Steps after which the best set so far is taken.
const STEPS: u32 = 100_000;

/// The constraints between replicas (control plane §4.2, 2 and 3), with what exists taken in.
pub(super) struct Between {
    /// All replicas have one value of the key; which one, if that is fixed.
    same: Vec<(String, Option<String>)>,
    /// At most so many replicas for a value of the key, and how many there are for each.
    most: Vec<(String, u32, BTreeMap<String, u32>)>,
    /// No replica where the key has this value.
    never: Vec<(String, String)>,
    /// Of `most`, those of which at most one value may end partially used.
    even: usize,
}

impl Between {
    /// The constraints of a request.
    ///
    /// # Errors
    /// If replicas that exist contradict them.
    pub fn new(ask: &Ask<'_>) -> Result<Between, Refusal> {
        let value = |node: &NodeName, key: &str| {
            ask.model.node(node).and_then(|node| node.props.get(key)).cloned()
        };
        let mut between = Between { same: vec![], most: vec![], never: vec![], even: 0 };
        for entry in ask.filter.on_same.iter().flatten() {
            let (key, mut fixed) = match entry.split_once('=') {
                Some((key, value)) => (key, Some(value.to_owned())),
                None => (entry.as_str(), None),
            };
            for node in ask.existing.iter().filter(|_| !entry.contains('=')) {
                let Some(found) = value(node, key) else { continue };
                if fixed.as_ref().is_some_and(|fixed| *fixed != found) {
                    let name = Key::Definition(ask.definition.name.clone());
                    let text = format!("{name} can not be placed");
                    return Err(Refusal::new(Code::UndecidablePlacement, text)
                        .cause(format!("existing replicas have different values of {key}"))
                        .correction("migrate them to nodes with one value first")
                        .about(name));
                }
                fixed = Some(found);
            }
            between.same.push((key.to_owned(), fixed));
        }
        let count = |key: &str| {
            let mut counts = BTreeMap::new();
            for found in ask.existing.iter().filter_map(|node| value(node, key)) {
                *counts.entry(found).or_default() += 1;
            }
            counts
        };
        for (key, most) in ask.filter.x_on_different.iter().flatten() {
            between.most.push((key.clone(), (*most).max(1), count(key)));
        }
        between.even = between.most.len();
        for entry in ask.filter.on_different.iter().flatten() {
            match entry.split_once('=') {
                Some((key, value)) => between.never.push((key.to_owned(), value.to_owned())),
                None => between.most.push((entry.clone(), 1, count(entry))),
            }
        }
        Ok(between)
    }
}

/// What a candidate means for the constraints.
struct Item<'a> {
    index: usize,
    candidate: &'a Candidate,
    provider: Provider,
    space: Option<&'a SharedSpaceName>,
    /// The node's value for each entry of `same`, then of `most`.
    values: Vec<Option<&'a str>>,
}

/// The indexes of the best set of `count` candidates, if there is one.
pub(super) fn select(
    ask: &Ask<'_>,
    between: &Between,
    candidates: &[Candidate],
    count: usize,
) -> Option<Vec<usize>> {
    let mut items: Vec<Item<'_>> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        if candidate.verdict != Verdict::NotNeeded {
            continue;
        }
        let pool = ask.model.pool(&candidate.node, &candidate.pool)?;
        let node = ask.model.node(&candidate.node)?;
        let keys = between.same.iter().map(|(key, _)| key);
        let keys = keys.chain(between.most.iter().map(|(key, _, _)| key));
        items.push(Item {
            index,
            candidate,
            provider: pool.provider,
            space: pool.shared_space.as_ref(),
            values: keys.map(|key| node.props.get(key).map(String::as_str)).collect(),
        });
    }
    items.sort_by(|a, b| {
        let (a, b) = (a.candidate, b.candidate);
        b.score.total_cmp(&a.score).then_with(|| (&a.node, &a.pool).cmp(&(&b.node, &b.pool)))
    });
    let allowed =
        chain::definition(ask.model, ask.definition).is_true("AllowMixingStoragePoolDriver");
    let mut search =
        Search { items: &items, between, count, allowed, steps: 0, picked: vec![], best: None };
    search.descend(0, 0.0);
    search.best.map(|(_, picked)| picked.iter().map(|i| items[*i].index).collect())
}

/// Why a candidate is out whatever else is chosen.
fn alone(ask: &Ask<'_>, between: &Between, candidate: &Candidate) -> Option<Reason> {
    let node = ask.model.node(&candidate.node)?;
    for (key, fixed) in &between.same {
        let Some(value) = node.props.get(key) else {
            return Some(Reason::PropertyMissing(key.clone()));
        };
        if let Some(wanted) = fixed.as_ref().filter(|fixed| *fixed != value) {
            let (key, value, wanted) = (key.clone(), value.clone(), wanted.clone());
            return Some(Reason::PropertyDiffers { key, value, wanted });
        }
    }
    let taken = |key: &String, value: &String| {
        Some(Reason::ValueTaken { key: key.clone(), value: value.clone() })
    };
    for (key, value) in &between.never {
        if node.props.get(key) == Some(value) {
            return taken(key, value);
        }
    }
    for (key, most, counts) in &between.most {
        let Some(value) = node.props.get(key) else { continue };
        if counts.get(value).is_some_and(|count| count >= most) {
            return taken(key, value);
        }
    }
    None
}

/// Marks the candidates that no choice could take because of what exists.
pub(super) fn rule_out(ask: &Ask<'_>, between: &Between, candidates: &mut [Candidate]) {
    for candidate in candidates.iter_mut().filter(|c| c.verdict == Verdict::NotNeeded) {
        if let Some(reason) = alone(ask, between, candidate) {
            candidate.verdict = Verdict::Out(reason);
        }
    }
}

struct Search<'a> {
    items: &'a [Item<'a>],
    between: &'a Between,
    count: usize,
    allowed: bool,
    steps: u32,
    picked: Vec<usize>,
    best: Option<(f64, Vec<usize>)>,
}

impl Search<'_> {
    /// Tries every set that goes on from what is picked with items from `from` on.
    fn descend(&mut self, from: usize, sum: f64) {
        let missing = self.count - self.picked.len();
        if missing == 0 {
            if self.even() && self.best.as_ref().is_none_or(|(best, _)| sum > *best) {
                self.best = Some((sum, self.picked.clone()));
            }
            return;
        }
        for index in from..self.items.len() {
            self.steps += 1;
            let rest = &self.items[index..];
            if rest.len() < missing || self.steps > STEPS {
                return;
            }
            let bound: f64 = rest[..missing].iter().map(|item| item.candidate.score).sum();
            if self.best.as_ref().is_some_and(|(best, _)| sum + bound <= *best) {
                return;
            }
            if self.fits(&self.items[index]) {
                self.picked.push(index);
                self.descend(index + 1, sum + self.items[index].candidate.score);
                self.picked.pop();
            }
        }
    }

    /// True if an item goes with those that are picked.
    fn fits(&self, item: &Item<'_>) -> bool {
        let mut picked = self.picked.iter().map(|index| &self.items[*index]);
        let pairs = picked.all(|other| {
            other.candidate.node != item.candidate.node
                && (item.space.is_none() || other.space != item.space)
                && mix(other.provider, item.provider, self.allowed)
                && (0..self.between.same.len()).all(|key| other.values[key] == item.values[key])
        });
        let offset = self.between.same.len();
        pairs
            && self.between.most.iter().enumerate().all(|(nr, (_, most, counts))| {
                let Some(value) = item.values[offset + nr] else { return true };
                let new = self.picked.iter();
                let new = new.filter(|i| self.items[**i].values[offset + nr] == Some(value));
                counts.get(value).copied().unwrap_or(0) + (new.count() as u32) < *most
            })
    }

    /// True if of each key with several replicas for a value at most one value is partially used.
    fn even(&self) -> bool {
        let offset = self.between.same.len();
        let keys = self.between.most.iter().enumerate().take(self.between.even);
        keys.into_iter().all(|(nr, (_, most, counts))| {
            let mut counts: BTreeMap<&str, u32> =
                counts.iter().map(|(value, count)| (value.as_str(), *count)).collect();
            for index in &self.picked {
                if let Some(value) = self.items[*index].values[offset + nr] {
                    *counts.entry(value).or_default() += 1;
                }
            }
            counts.values().filter(|count| *count < most).count() <= 1
        })
    }
}
