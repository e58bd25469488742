//! The rows of the table: what is done to a volume.

use anyhow::{Result, bail};

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    load: Load,
    /// How the load is multiplied.
    pub times: Times,
}

/// What one job does to one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    name: &'static str,
    title: &'static str,
    pattern: &'static str,
    block: &'static str,
    depth: u32,
    /// The size of a block is not what these measure: they are run once only.
    sequential: bool,
}

/// How many do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// One job on one volume.
    One,
    /// Four jobs with a connection each on one volume.
    Jobs,
    /// One job on each volume, all at once.
    Volumes,
}

/// Jobs of `Times::Jobs`.
pub const JOBS: u32 = 4;

const LOADS: &[Load] = &[
    random("randread-64", "4 KiB random read, depth 64", "randread", 64),
    random("randrw-64", "4 KiB random, 70 % reads, depth 64", "randrw", 64),
    random("randwrite-64", "4 KiB random write, depth 64", "randwrite", 64),
    sequential("read-128k", "128 KiB sequential read, depth 16", "read"),
    sequential("write-128k", "128 KiB sequential write, depth 16", "write"),
    random("randread-1", "4 KiB random read, depth 1", "randread", 1),
    random("randwrite-1", "4 KiB random write, depth 1", "randwrite", 1),
    random("randread-32", "4 KiB random read, depth 32", "randread", 32),
    random("randwrite-32", "4 KiB random write, depth 32", "randwrite", 32),
];

/// What a smoke run does: one of each kind.
const QUICK: &[&str] = &[
    "randread-64",
    "randrw-64",
    "randwrite-64",
    "write-128k",
    "randwrite-1",
    "randwrite-32-4jobs",
    "randwrite-32-volumes",
];

const fn random(
    name: &'static str,
    title: &'static str,
    pattern: &'static str,
    depth: u32,
) -> Load {
    Load { name, title, pattern, block: "4k", depth, sequential: false }
}

const fn sequential(name: &'static str, title: &'static str, pattern: &'static str) -> Load {
    Load { name, title, pattern, block: "128k", depth: 16, sequential: true }
}

impl Row {
    /// Every row there is, in the order of the table.
    pub fn all() -> Vec<Row> {
        let mut rows = Vec::new();
        for times in [Times::One, Times::Jobs, Times::Volumes] {
            let loads = LOADS.iter().filter(|load| times == Times::One || !load.sequential);
            rows.extend(loads.map(|load| Row { load: *load, times }));
        }
        rows
    }

    /// Those of a smoke run.
    pub fn quick() -> Vec<Row> {
        let mut rows = Row::all();
        rows.retain(|row| QUICK.contains(&row.name().as_str()));
        rows
    }

    /// Those that a user names, by name or as a group, in the order of the table.
    pub fn choose(names: &str) -> Result<Vec<Row>> {
        let all = Row::all();
        let mut chosen = Vec::new();
        for name in names.split(',') {
            let mut found: Vec<Row> = all
                .iter()
                .copied()
                .filter(|row| row.name() == name || row.group() == name)
                .collect();
            if found.is_empty() {
                let names: Vec<String> = all.iter().map(Row::name).collect();
                bail!(
                    "{name:?} is not a row; the rows are {}, or all of a kind: one, jobs, volumes",
                    names.join(", ")
                );
            }
            chosen.append(&mut found);
        }
        Ok(all.into_iter().filter(|row| chosen.contains(row)).collect())
    }

    /// How a user and the history name it.
    pub fn name(&self) -> String {
        match self.times {
            Times::One => self.load.name.to_owned(),
            Times::Jobs => format!("{}-{JOBS}jobs", self.load.name),
            Times::Volumes => format!("{}-volumes", self.load.name),
        }
    }

    /// In words.
    pub fn title(&self, volumes: usize) -> String {
        match self.times {
            Times::One => self.load.title.to_owned(),
            Times::Jobs => format!("{}, {JOBS} jobs", self.load.title),
            Times::Volumes => format!("{}, {volumes} volumes", self.load.title),
        }
    }

    fn group(&self) -> &'static str {
        match self.times {
            Times::One => "one",
            Times::Jobs => "jobs",
            Times::Volumes => "volumes",
        }
    }

    /// As fio's `rw`.
    pub fn pattern(&self) -> &'static str {
        self.load.pattern
    }

    /// As fio writes sizes.
    pub fn block(&self) -> &'static str {
        self.load.block
    }

    /// Requests in flight of each job.
    pub fn depth(&self) -> u32 {
        self.load.depth
    }

    /// Jobs on each volume.
    pub fn jobs(&self) -> u32 {
        if self.times == Times::Jobs { JOBS } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_choose_their_row() {
        let all = Row::all();
        assert_eq!(all.len(), 9 + 7 + 7);
        for row in &all {
            assert_eq!(Row::choose(&row.name()).unwrap(), [*row]);
        }
    }

    #[test]
    fn rows_come_in_the_order_of_the_table_and_once() {
        let rows = Row::choose("volumes,randwrite-1,randread-64,randwrite-1").unwrap();
        let names: Vec<String> = rows.iter().map(Row::name).collect();
        assert_eq!(names[..3], ["randread-64", "randwrite-1", "randread-64-volumes"]);
        assert_eq!(rows.len(), 2 + 7);
    }

    #[test]
    fn an_unknown_row_is_refused_with_the_known_ones() {
        let error = Row::choose("randwrite-1,randwrite").unwrap_err().to_string();
        assert!(
            error.contains("\"randwrite\" is not a row") && error.contains("randread-64-4jobs")
        );
        assert!(Row::choose("").is_err());
    }

    #[test]
    fn every_row_of_a_smoke_run_exists() {
        assert_eq!(Row::quick().len(), QUICK.len());
    }
}
