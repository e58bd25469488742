//! `cargo xtask skew`: this tree's program and another release's in one cluster.
//!
//! What is done with them is in `tests/tests/skew.rs`, and for clients of an export over TLS in
//! `tests/tests/engine_nbd_tls.rs`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::arguments::Words;
use crate::revision;
use crate::workspace::{Metadata, root};

const HELP: &str = "\
cargo xtask skew --from REV | --binary PATH [--test NAME]
    Runs engines, agents and controllers of this tree beside those of the git revision REV, which
    is built first, or of the program at PATH: a running cluster of them is upgraded, both kinds
    replicate, resync and verify, and either's controller drives the other's nodes.
    --test: only tests whose names begin with NAME.";

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    let (mut from, mut binary, mut name) = (None, None, None);
    let mut words = Words::new(arguments);
    while let Some(word) = words.next()? {
        match word {
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(());
            }
            "--from" => from = Some(words.value(word)?),
            "--binary" => binary = Some(words.value(word)?),
            "--test" => name = Some(words.value(word)?),
            other => bail!("{other} is not an option\n{HELP}"),
        }
    }
    let other = match (from, binary) {
        (Some(revision), None) => {
            let commit = revision::commit(revision).context("--from")?;
            let target = Metadata::of(&root().join("Cargo.toml"))?.target_directory;
            revision::build(&commit, &target.join("skew"), "dev")?
        }
        (None, Some(path)) => {
            let path = PathBuf::from(path);
            path.canonicalize().with_context(|| format!("--binary: {}", path.display()))?
        }
        _ => bail!("which release is it to be? Give --from or --binary\n{HELP}"),
    };
    println!("the other release: {}", other.display());
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "-p", "e2e", "--test", "all", "--"]);
    // One after the other: each of them keeps this machine busy.
    cargo.args(["--nocapture", "--test-threads", "1"]);
    let name = name.map_or("", String::as_str);
    cargo.args(["skew", "engine_nbd_tls"].map(|module| format!("{module}::{name}")));
    let status = cargo.env("ASHLAR_OTHER", other).status().context("cargo could not be started")?;
    ensure!(status.success(), "the two releases do not work together");
    Ok(())
}
