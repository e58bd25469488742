//! Arguments of commands: words, of which some have a value behind them.

use std::slice;

use anyhow::{Context, Result, bail};

/// The words of a command line, front to back.
pub struct Words<'a> {
    rest: slice::Iter<'a, String>,
    given: Vec<&'a str>,
}

impl<'a> Words<'a> {
    /// Those of `arguments`.
    pub fn new(arguments: &'a [String]) -> Words<'a> {
        Words { rest: arguments.iter(), given: Vec::new() }
    }

    /// The next word that is no value.
    ///
    /// # Errors
    /// If it was there before.
    pub fn next(&mut self) -> Result<Option<&'a str>> {
        let Some(name) = self.rest.next() else { return Ok(None) };
        if self.given.contains(&name.as_str()) {
            bail!("{name} is there twice");
        }
        self.given.push(name);
        Ok(Some(name))
    }

    /// What was there so far, values apart.
    pub fn given(&self) -> &[&'a str] {
        &self.given
    }

    /// The value behind the word `name`, which came last.
    ///
    /// # Errors
    /// If there is none.
    pub fn value(&mut self, name: &str) -> Result<&'a String> {
        self.rest.next().with_context(|| format!("{name} needs a value"))
    }
}

/// A number within bounds.
///
/// # Errors
/// If `value` is none, or beyond.
pub fn number<N>(name: &str, value: &str, least: N, most: N) -> Result<N>
where
    N: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    match value.parse() {
        Ok(number) if (&least..=&most).contains(&&number) => Ok(number),
        _ => bail!("{name} is a number from {least} to {most}, not {value:?}"),
    }
}
