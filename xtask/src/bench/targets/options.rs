//! The arguments of the targets.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::{TARGETS, Target};
use crate::arguments::{Words, number};

const ROUNDS: usize = 5;
const SECONDS: u64 = 2;
const MIB: u64 = 256;
const IDLE: usize = 300;
/// Of the ports, with some to spare.
const MOST_IDLE: usize = 20_000;

/// What is to be measured, and where the result goes.
#[derive(Clone, Debug)]
pub struct Options {
    pub targets: Vec<&'static Target>,
    pub rounds: usize,
    pub seconds: u64,
    pub mib: u64,
    /// Idle volumes where a target asks for some.
    pub idle: usize,
    /// The default places are below the build folder, and not for smoke runs.
    pub json: Option<PathBuf>,
    pub history: Option<PathBuf>,
    pub quick: bool,
}

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// If one is not understood, or they do not fit together.
    pub fn parse(arguments: &[String]) -> Result<Options> {
        let quick = arguments.iter().any(|argument| argument == "--quick");
        let mut options = Options {
            targets: TARGETS.iter().collect(),
            rounds: if quick { 1 } else { ROUNDS },
            seconds: if quick { 1 } else { SECONDS },
            mib: if quick { 32 } else { MIB },
            idle: if quick { 4 } else { IDLE },
            json: None,
            history: None,
            quick,
        };
        let mut words = Words::new(arguments);
        while let Some(name) = words.next()? {
            let mut value = || words.value(name);
            match name {
                "targets" | "--quick" => {}
                "--only" => options.targets = choose(value()?)?,
                "--rounds" => options.rounds = number(name, value()?, 1, 50)?,
                "--seconds" => options.seconds = number(name, value()?, 1, 600)?,
                "--mib" => options.mib = number(name, value()?, 16, 1 << 16)?,
                "--idle-volumes" => options.idle = number(name, value()?, 1, MOST_IDLE)?,
                "--json" => options.json = Some(value()?.into()),
                "--history" => options.history = Some(value()?.into()),
                other => bail!("{other:?} is not understood; cargo xtask bench --help"),
            }
        }
        if quick && options.history.is_some() {
            bail!("--quick has no figures for --history to keep");
        }
        Ok(options)
    }
}

/// Those that a user names, in their own order and once.
fn choose(names: &str) -> Result<Vec<&'static Target>> {
    let known = || TARGETS.iter().map(|target| target.name);
    if let Some(wrong) = names.split(',').find(|name| !known().any(|known| known == *name)) {
        let known: Vec<&str> = known().collect();
        bail!("{wrong:?} is not a target; there are {}", known.join(", "));
    }
    let named = |target: &&Target| names.split(',').any(|name| name == target.name);
    Ok(TARGETS.iter().filter(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn without_arguments_everything_is_measured_five_times() {
        let options = parse("targets").unwrap();
        assert_eq!((options.targets.len(), options.rounds), (TARGETS.len(), 5));
        assert!(!options.quick);
    }

    #[test]
    fn each_option_has_its_effect() {
        let options = parse(
            "targets --only scale,cpu --rounds 7 --seconds 3 --mib 128 --idle-volumes 9 --json a \
             --history b",
        )
        .unwrap();
        let names: Vec<&str> = options.targets.iter().map(|target| target.name).collect();
        assert_eq!(names, ["cpu", "scale"]);
        assert_eq!((options.rounds, options.seconds, options.mib, options.idle), (7, 3, 128, 9));
        assert_eq!((options.json, options.history), (Some("a".into()), Some("b".into())));
        let quick = parse("targets --quick --mib 64").unwrap();
        assert_eq!((quick.rounds, quick.seconds, quick.mib, quick.quick), (1, 1, 64, true));
    }

    #[test]
    fn bad_arguments_are_refused_with_what_would_be_good() {
        for (line, words) in [
            ("targets --only speed", "\"speed\" is not a target; there are cpu, latency"),
            ("targets --rounds", "--rounds needs a value"),
            ("targets --rounds 0", "--rounds is a number from 1 to 50"),
            ("targets --rounds 5 --rounds 5", "--rounds is there twice"),
            ("targets --quick --history x", "no figures"),
            ("targets --disks ram", "\"--disks\" is not understood"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
