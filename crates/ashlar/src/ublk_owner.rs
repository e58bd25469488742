//! `ashlar ublk-owner`: who has made a device of ublk. Rules of udev (`dist/udev`) give it to them.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context, Result};
use frontend::ublk::Control;

/// How long the driver may take to answer; udev waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `ashlar ublk-owner`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The kernel's name of the device, such as ublkc0 or ublkb0p1
    name: String,
}

/// Prints the numbers of a user and a group.
pub fn run(args: &Args) -> Result<()> {
    let number = number(&args.name)
        .with_context(|| format!("{} is no device of ublk; give ublkcN or ublkbN", args.name))?;
    let mut control = Control::open(PATIENCE)?;
    let (user, group) = control.info(number).with_context(|| args.name.clone())?.owner;
    writeln!(io::stdout(), "{user} {group}")?;
    Ok(())
}

/// The N of a character device, a block device, or a partition.
fn number(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("ublkc").or_else(|| name.strip_prefix("ublkb"))?;
    let end = rest.find('p').filter(|_| name.starts_with("ublkb"));
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_partitions_have_the_drivers_number() {
        for (name, expected) in [
            ("ublkc0", Some(0)),
            ("ublkb17", Some(17)),
            ("ublkb17p3", Some(17)),
            ("ublkc1p1", None),
            ("ublkb", None),
            ("ublk-control", None),
            ("sda1", None),
        ] {
            assert_eq!(number(name), expected, "{name}");
        }
    }
}
