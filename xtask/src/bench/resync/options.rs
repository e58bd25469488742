//! The arguments of the measurement.

use anyhow::{Result, bail};
use serde::Serialize;

use crate::arguments::{Words, number};
use crate::bench::options::Disks;

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Options {
    pub rounds: usize,
    /// Of each run of the application.
    pub seconds: u64,
    pub mib: u64,
    /// Lines of the section `disk`.
    pub disk: String,
    #[serde(skip)]
    pub disks: Vec<Disks>,
    #[serde(skip)]
    pub json: bool,
}

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// If one is not understood.
    pub fn parse(arguments: &[String]) -> Result<Options> {
        let mut options = Options {
            rounds: 5,
            seconds: 3,
            mib: 2048,
            disk: String::new(),
            disks: vec![Disks::Ram, Disks::File],
            json: false,
        };
        let mut words = Words::new(arguments);
        while let Some(name) = words.next()? {
            let mut value = || words.value(name);
            match name {
                "resync" => {}
                "--rounds" => options.rounds = number(name, value()?, 1, 50)?,
                "--seconds" => options.seconds = number(name, value()?, 2, 600)?,
                "--mib" => options.mib = number(name, value()?, 256, 1 << 20)?,
                "--disk-options" => options.disk = value()?.clone(),
                "--disks" => options.disks = Disks::parse(value()?)?,
                "--json" => options.json = true,
                other => bail!("{other:?} is not understood; cargo xtask bench --help"),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options> {
        Options::parse(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn each_argument_has_its_effect_and_a_wrong_one_is_named() {
        let options =
            parse(&["resync", "--rounds", "7", "--disks", "ram", "--mib", "512"]).unwrap();
        assert_eq!((options.rounds, options.mib, options.seconds), (7, 512, 3));
        assert_eq!(options.disks, [Disks::Ram]);
        let options = parse(&["--disk-options", "c-max-rate 1M;", "--json"]).unwrap();
        assert_eq!((options.disk.as_str(), options.json), ("c-max-rate 1M;", true));
        for (words, error) in [
            (&["--rounds"][..], "--rounds needs a value"),
            (&["--mib", "16"], "--mib is a number from 256"),
            (&["--disks", "tape"], "not \"tape\""),
            (&["--nodes", "3"], "\"--nodes\" is not understood"),
        ] {
            assert!(parse(words).unwrap_err().to_string().contains(error), "{error}");
        }
    }
}
