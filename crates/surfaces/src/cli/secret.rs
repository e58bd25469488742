//! Passphrases: asked for on a terminal, otherwise lines of the standard input. They are never
//! arguments, which everybody sees.

use std::io::{self, BufRead, IsTerminal, Read};

use vocab::options::Secret;

use super::error::Error;

/// Bytes of the longest passphrase.
const MAX: u64 = 8192;

/// A passphrase that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// One that there is already; how it is called.
    Known(&'static str),
    /// One that is chosen now, so that it is typed twice.
    New(&'static str),
}

impl Ask {
    fn name(self) -> &'static str {
        let (Ask::Known(name) | Ask::New(name)) = self;
        name
    }
}

/// Where passphrases come from.
pub trait Source {
    /// One passphrase for each that is asked for. `object` names in errors what they are for.
    ///
    /// # Errors
    /// If one is missing, empty or too long, or it can not be read.
    fn read(&mut self, object: &str, asked: &[Ask]) -> Result<Vec<Secret>, Error>;
}

/// The terminal, if the standard input is one, or its lines.
pub struct Stdin;

impl Source for Stdin {
    fn read(&mut self, object: &str, asked: &[Ask]) -> Result<Vec<Secret>, Error> {
        if io::stdin().is_terminal() {
            asked.iter().map(|ask| typed(object, *ask)).collect()
        } else {
            lines(object, asked, &mut io::stdin().lock())
        }
    }
}

fn wrong(object: &str, why: String) -> Error {
    Error::Object { object: object.to_owned(), why }
}

fn typed(object: &str, ask: Ask) -> Result<Secret, Error> {
    let prompt = |text: &str| match rpassword::prompt_password(text) {
        Ok(line) => Ok(Secret::from(line)),
        Err(error) => Err(wrong(object, format!("the terminal can not be read: {error}"))),
    };
    let name = ask.name();
    let secret = prompt(&format!("{name} of {object}: "))?;
    if secret.is_empty() {
        return Err(wrong(object, format!("the {name} is empty; nothing was changed")));
    }
    if matches!(ask, Ask::New(_)) && prompt("once more: ")? != secret {
        return Err(wrong(object, "the two are not the same; nothing was changed".to_owned()));
    }
    Ok(secret)
}

fn lines(object: &str, asked: &[Ask], input: &mut dyn BufRead) -> Result<Vec<Secret>, Error> {
    let mut secrets = Vec::new();
    for (ask, place) in asked.iter().zip(["first", "second"]) {
        let mut line = String::new();
        if let Err(error) = input.take(MAX + 2).read_line(&mut line) {
            return Err(wrong(object, format!("the standard input can not be read: {error}")));
        }
        if line.ends_with('\n') {
            line.pop();
        }
        let secret = Secret::from(line);
        if secret.is_empty() {
            let name = ask.name();
            return Err(wrong(
                object,
                format!("the {place} line of the standard input is empty; it has to be the {name}"),
            ));
        }
        if secret.expose().len() as u64 > MAX {
            let name = ask.name();
            return Err(wrong(object, format!("a {name} has at most {MAX} bytes")));
        }
        secrets.push(secret);
    }
    Ok(secrets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(asked: &[Ask], text: &str) -> Result<Vec<String>, String> {
        let secrets = lines("the master passphrase", asked, &mut text.as_bytes());
        let all = secrets.map_err(|error| error.to_string())?;
        Ok(all.iter().map(|secret| secret.expose().to_owned()).collect())
    }

    #[test]
    fn a_passphrase_is_a_line_as_it_stands() {
        let both = [Ask::Known("present passphrase"), Ask::New("new passphrase")];
        assert_eq!(read(&both[..1], " with spaces \n"), Ok(vec![" with spaces ".to_owned()]));
        assert_eq!(read(&both[..1], "no end of line"), Ok(vec!["no end of line".to_owned()]));
        let two = Ok(vec!["one".to_owned(), "two".to_owned()]);
        assert_eq!(read(&both, "one\ntwo\nthree\n"), two);
    }

    #[test]
    fn a_passphrase_that_is_missing_or_too_long_is_named() {
        let both = [Ask::Known("present passphrase"), Ask::New("new passphrase")];
        let said = read(&both, "one\n").unwrap_err();
        assert!(said.contains("second line") && said.contains("new passphrase"), "{said}");
        assert!(read(&both[..1], "\nlater\n").unwrap_err().contains("first line"));
        let longest = "x".repeat(8192);
        assert_eq!(read(&both[..1], &format!("{longest}\n")), Ok(vec![longest.clone()]));
        let said = read(&both[..1], &format!("{longest}x\n")).unwrap_err();
        assert!(said.contains("8192 bytes") && !said.contains("xxx"), "{said}");
    }
}
