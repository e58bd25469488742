//! States as every release has frozen them, kept in `frozen/`: today's core goes on with each.
//!
//! A field that is new in the core is not in them, so its type has to say what an engine without it
//! has meant (`#[serde(default)]`); a field that is gone makes them unreadable. With `FROZEN_WRITE=1`
//! states that have what no kept one has are added to the file of this version, and what is there
//! stays. A file goes when engines of that version may be refused: two releases later, say.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use replication::Resource;
use sim::plan::{Fault, Plan, SECOND};
use sim::rng::Rng;
use sim::run;
use sim::trace::Trace;

/// How many seeds new samples are looked for in, and how many are held against them.
const SEARCHED: u64 = 1500;
const CHECKED: u64 = 60;
/// magic u64, version u32, length u64, checksum u32
const HEADER: usize = 24;

/// A field or a variant: the marks of what it is in and of its own name.
type Part = (u32, u32);

/// Reads values of any type, by the form that `codec::frozen` describes.
struct Walk<'a> {
    bytes: &'a [u8],
    parts: BTreeSet<Part>,
}

impl Walk<'_> {
    fn parts(state: &[u8]) -> BTreeSet<Part> {
        let mut walk = Walk { bytes: &state[HEADER..], parts: BTreeSet::new() };
        walk.value();
        assert!(walk.bytes.is_empty(), "{} bytes behind the value", walk.bytes.len());
        walk.parts
    }

    fn take(&mut self, length: usize) -> &[u8] {
        let (taken, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn length(&mut self) -> usize {
        u64::from_le_bytes(self.take(8).try_into().unwrap()) as usize
    }

    fn value(&mut self) {
        let tag = self.take(1)[0];
        match tag {
            1..=3 | 17 => {}
            4 | 8 => drop(self.take(1)),
            5 | 9 => drop(self.take(2)),
            6 | 10 | 12 | 14 => drop(self.take(4)),
            7 | 11 | 13 => drop(self.take(8)),
            15 | 16 => {
                let length = self.length();
                self.take(length);
            }
            18 => self.value(),
            19 => (0..self.length()).for_each(|_| self.value()),
            20 => (0..self.u32()).for_each(|_| self.value()),
            21 => (0..2 * self.length()).for_each(|_| self.value()),
            22 => {
                let name = self.u32();
                for _ in 0..self.u32() {
                    let part = (name, self.u32());
                    self.parts.insert(part);
                    self.value();
                }
            }
            23 => {
                self.u32();
                (0..self.u32()).for_each(|_| self.value());
            }
            24 => {
                let part = (self.u32(), self.u32());
                self.parts.insert(part);
                self.value();
            }
            other => panic!("a value of kind {other}"),
        }
    }
}

/// The states that nodes are swapped by in so many seeds.
fn states(seeds: u64, mut take: impl FnMut(Vec<u8>)) {
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let mut plan = match seed % 4 {
            0 => Plan::asynchronous(&mut rng),
            1 => Plan::joint(&mut rng),
            _ => Plan::random(&mut rng),
        };
        if plan.legacy {
            continue;
        }
        plan.faults.push((Fault::Swap, 4));
        plan.fault_pause = plan.fault_pause.min(SECOND);
        let verdict = run::judge(plan, rng, Trace::off(), |w| {
            w.frozen = Some(Vec::new());
            w.run_plan();
            w.frozen.take().into_iter().flatten().for_each(&mut take);
        });
        // What is wrong with a seed is for other tests to say.
        drop(verdict);
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frozen")
}

fn read(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let mut rest = &bytes[..];
    let mut states = Vec::new();
    while let Some((header, _)) = rest.split_at_checked(HEADER) {
        let length = u64::from_le_bytes(header[12..20].try_into().unwrap()) as usize;
        let (state, behind) = rest.split_at(HEADER + length);
        states.push(state.to_vec());
        rest = behind;
    }
    assert!(rest.is_empty(), "{} is cut short", path.display());
    states
}

/// All that is kept, by file.
fn kept() -> Vec<(PathBuf, Vec<Vec<u8>>)> {
    let entries = std::fs::read_dir(folder()).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

/// The names in the sources of the core, by their marks.
fn name(part: Part) -> String {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut names = [part.0, part.1].map(|mark| format!("{mark:08x}"));
    let mut folders: Vec<PathBuf> =
        ["codec/src", "replication/src", "vocab/src"].map(|folder| sources.join(folder)).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for word in text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()) {
                let mark = crc32c::crc32c(word.as_bytes());
                let named = [part.0, part.1].map(|wanted| wanted == mark);
                (0..2).filter(|i| named[*i]).for_each(|i| names[i] = word.to_owned());
            }
        }
    }
    names.join(".")
}

fn writes() -> bool {
    std::env::var_os("FROZEN_WRITE").is_some()
}

#[test]
fn what_any_release_has_frozen_is_thawed() {
    if writes() {
        return println!("skipped: states are being written");
    }
    let kept = kept();
    assert!(!kept.is_empty(), "nothing is kept; FROZEN_WRITE=1 writes it");
    for (path, states) in kept {
        for (number, state) in states.iter().enumerate() {
            let thawed = Resource::from_frozen(state);
            let thawed = thawed.unwrap_or_else(|e| {
                panic!(
                    "{} state {number}: {e}\nengines of that version can not be upgraded to this \
                     one: say what a new field means for them, keep a field that they have",
                    path.display()
                )
            });
            // Whoever goes on with it can hand it on, and nothing of it was lost on the way.
            let again = thawed.freeze().expect("it was at rest");
            let missing = &Walk::parts(state) - &Walk::parts(&again);
            let missing: Vec<String> = missing.into_iter().map(name).collect();
            assert!(missing.is_empty(), "{} state {number}: {missing:?} is lost", path.display());
        }
    }
}

#[test]
fn the_states_that_are_kept_have_all_that_today_s_have() {
    let mut known = BTreeSet::new();
    for state in kept().iter().flat_map(|(_, states)| states) {
        known.extend(Walk::parts(state));
    }
    // Of all that have a part the shortest.
    let mut found: BTreeMap<Part, Rc<Vec<u8>>> = BTreeMap::new();
    states(if writes() { SEARCHED } else { CHECKED }, |state| {
        let state = Rc::new(state);
        for part in &Walk::parts(&state) - &known {
            let kept = found.entry(part).or_insert_with(|| Rc::clone(&state));
            if state.len() < kept.len() {
                *kept = Rc::clone(&state);
            }
        }
    });
    if !writes() {
        let new: Vec<String> = found.into_keys().map(name).collect();
        assert!(
            new.is_empty(),
            "{new:?}: in no state that is kept; FROZEN_WRITE=1 adds states that have it, and they \
             belong into the commit that adds it"
        );
        return;
    }
    let path = folder().join(format!("{}.bin", env!("CARGO_PKG_VERSION")));
    let mut bytes = std::fs::read(&path).unwrap_or_default();
    // Those first that are the longest: they have most of what is in the others.
    while let Some(state) = found.values().max_by_key(|state| state.len()).cloned() {
        let parts = Walk::parts(&state);
        found.retain(|part, _| !parts.contains(part));
        bytes.extend(&*state);
    }
    std::fs::create_dir_all(folder()).unwrap();
    std::fs::write(&path, bytes).unwrap();
}
