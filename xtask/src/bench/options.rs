//! The arguments of the table.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::peers::Peer;
use super::rows::{Row, Times};
use crate::arguments::{Words, number};

/// Fewer runs than this say nothing about noise.
const ROUNDS: usize = 5;
const SECONDS: u64 = 3;
const VOLUMES: usize = 8;
const MIB: u64 = 256;
/// Limits: of the ports and of the rank test.
const MOST_VOLUMES: usize = 64;
const MOST_ROUNDS: usize = 50;
/// The activity log has to have something to do.
const LEAST_MIB: u64 = 16;

/// What the disks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disks {
    /// Files on /dev/shm.
    Ram,
    /// Files on a file system of a disk.
    File,
}

impl Disks {
    /// As the user and the history name it.
    pub fn name(self) -> &'static str {
        match self {
            Disks::Ram => "ram",
            Disks::File => "file",
        }
    }

    /// Those that a user names.
    pub fn parse(name: &str) -> Result<Vec<Disks>> {
        match name {
            "ram" => Ok(vec![Disks::Ram]),
            "file" => Ok(vec![Disks::File]),
            "both" => Ok(vec![Disks::Ram, Disks::File]),
            other => bail!("--disks is ram, file or both, not {other:?}"),
        }
    }
}

/// Which node the client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients {
    /// One with a replica.
    pub local: bool,
    /// One without.
    pub diskless: bool,
}

/// What is to be measured, and where the result goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub rows: Vec<Row>,
    pub rounds: usize,
    pub seconds: u64,
    pub volumes: usize,
    pub mib: u64,
    pub disks: Vec<Disks>,
    pub clients: Clients,
    pub peers: Vec<Peer>,
    /// The default places are below the build folder, and not for smoke runs.
    pub json: Option<PathBuf>,
    pub svg: Option<PathBuf>,
    pub history: Option<PathBuf>,
    pub quick: bool,
    pub compare: Option<String>,
}

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// If one is not understood, or they do not fit together.
    pub fn parse(arguments: &[String]) -> Result<Options> {
        let quick = arguments.iter().any(|argument| argument == "--quick");
        let mut options = Options {
            rows: if quick { Row::quick() } else { Row::all() },
            rounds: if quick { 1 } else { ROUNDS },
            seconds: if quick { 1 } else { SECONDS },
            volumes: if quick { 2 } else { VOLUMES },
            mib: if quick { 64 } else { MIB },
            disks: if quick { vec![Disks::Ram] } else { vec![Disks::Ram, Disks::File] },
            clients: Clients { local: true, diskless: true },
            peers: Vec::new(),
            json: None,
            svg: None,
            history: None,
            quick,
            compare: None,
        };
        let mut rows_named = false;
        let mut words = Words::new(arguments);
        while let Some(name) = words.next()? {
            let mut value = || words.value(name);
            match name {
                "table" | "--quick" => {}
                "--rows" => {
                    options.rows = Row::choose(value()?)?;
                    rows_named = true;
                }
                "--rounds" => options.rounds = number(name, value()?, 1, MOST_ROUNDS)?,
                "--seconds" => options.seconds = number(name, value()?, 1, 3600)?,
                "--volumes" => options.volumes = number(name, value()?, 1, MOST_VOLUMES)?,
                "--mib" => options.mib = number(name, value()?, LEAST_MIB, 1 << 20)?,
                "--disks" => options.disks = Disks::parse(value()?)?,
                "--client-node" => {
                    options.clients = match value()?.as_str() {
                        "local" => Clients { local: true, diskless: false },
                        "diskless" => Clients { local: false, diskless: true },
                        "both" => Clients { local: true, diskless: true },
                        other => {
                            bail!("--client-node is local, diskless or both, not {other:?}")
                        }
                    }
                }
                "--peers" => options.peers = Peer::choose(value()?)?,
                "--json" => options.json = Some(value()?.into()),
                "--svg" => options.svg = Some(value()?.into()),
                "--history" => options.history = Some(value()?.into()),
                "--compare" => options.compare = Some(value()?.clone()),
                other => bail!("{other:?} is not understood; cargo xtask bench --help"),
            }
        }
        options.fit(rows_named)?;
        Ok(options)
    }

    /// Arguments that contradict each other are refused.
    fn fit(&mut self, rows_named: bool) -> Result<()> {
        if self.volumes == 1 {
            // It would be the same as the rows of one volume.
            if rows_named && self.rows.iter().any(|row| row.times == Times::Volumes) {
                bail!("rows of several volumes need --volumes of at least 2");
            }
            self.rows.retain(|row| row.times != Times::Volumes);
        }
        if self.quick && self.history.is_some() {
            bail!("--quick has no figures for --history to keep");
        }
        if self.compare.is_some() {
            if self.history.is_some() {
                bail!("--compare runs two revisions, --history keeps one: use them apart");
            }
            if !self.peers.is_empty() {
                bail!("--compare runs two revisions and nothing else: leave out --peers");
            }
        }
        Ok(())
    }

    /// Volumes that any of the rows uses: the others need not be there.
    pub fn volumes_used(&self) -> usize {
        match self.rows.iter().any(|row| row.times == Times::Volumes) {
            true => self.volumes,
            false => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    fn error(line: &str) -> String {
        parse(line).unwrap_err().to_string()
    }

    #[test]
    fn without_arguments_everything_is_measured() {
        let options = parse("").unwrap();
        assert_eq!(options, parse("table").unwrap());
        assert_eq!((options.rows.len(), options.rounds), (Row::all().len(), 5));
        assert_eq!(options.disks, [Disks::Ram, Disks::File]);
        assert_eq!(options.clients, Clients { local: true, diskless: true });
        assert!(!options.quick && options.compare.is_none() && options.peers.is_empty());
    }

    #[test]
    fn each_option_has_its_effect() {
        let options = parse(
            "--rows randwrite-32 --rounds 7 --seconds 2 --volumes 3 --mib 128 --disks file \
             --client-node diskless --peers qemu-nbd,nbdkit --json a --svg b --history c",
        )
        .unwrap();
        assert_eq!(options.rows, Row::choose("randwrite-32").unwrap());
        assert_eq!((options.rounds, options.seconds, options.mib), (7, 2, 128));
        assert_eq!((options.volumes, options.volumes_used()), (3, 1));
        assert_eq!(options.disks, [Disks::File]);
        assert_eq!(options.clients, Clients { local: false, diskless: true });
        assert_eq!(options.peers.len(), 2);
        assert_eq!(options.json, Some("a".into()));
        assert_eq!(options.svg, Some("b".into()));
        assert_eq!(options.history, Some("c".into()));
        assert_eq!(parse("--compare HEAD~1").unwrap().compare, Some("HEAD~1".to_owned()));
    }

    #[test]
    fn a_smoke_run_is_small_but_does_as_it_is_told() {
        let options = parse("--quick").unwrap();
        assert_eq!((options.rounds, options.seconds, options.mib), (1, 1, 64));
        assert_eq!(options.disks, [Disks::Ram]);
        let options = parse("--disks both --mib 32 --quick").unwrap();
        assert_eq!((options.disks.len(), options.mib), (2, 32));
    }

    #[test]
    fn bad_arguments_are_refused_with_what_would_be_good() {
        for (line, words) in [
            ("--rounds", "--rounds needs a value"),
            ("--rounds 0", "--rounds is a number from 1 to 50, not \"0\""),
            ("--seconds x", "--seconds is a number from 1 to 3600, not \"x\""),
            ("--mib 1", "from 16 to"),
            ("--disks tape", "ram, file or both, not \"tape\""),
            ("--client-node remote", "local, diskless or both, not \"remote\""),
            ("--peers nothing", "\"nothing\" is not a peer"),
            ("--frobnicate", "\"--frobnicate\" is not understood"),
            ("--rounds 5 --rounds 6", "--rounds is there twice"),
            ("--volumes 1 --rows volumes", "need --volumes of at least 2"),
            ("--quick --history x", "no figures"),
            ("--compare HEAD --history x", "use them apart"),
            ("--compare HEAD --peers nbdkit", "leave out --peers"),
        ] {
            let error = error(line);
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn one_volume_leaves_out_the_rows_of_several() {
        let options = parse("--volumes 1").unwrap();
        assert!(options.rows.iter().all(|row| row.times != Times::Volumes));
        assert_eq!(options.volumes_used(), 1);
    }
}
