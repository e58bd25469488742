//! SPDX licence expressions, as far as manifests use them, judged against a list.
//!
//! `OR` asks for one acceptable side, `AND` for both, and `WITH` names an exception, which makes a
//! licence of its own here. The old `MIT/Apache-2.0` means `OR`. `AND` binds closer than `OR`.

/// Licences under which we take code: permissive ones, without a duty to publish.
const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "NCSA",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];

/// Whether code under `expression` may be used.
///
/// # Errors
/// If the expression can not be read; the text says where.
pub fn acceptable(expression: &str) -> Result<bool, String> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, at: 0 };
    let verdict = parser.any()?;
    match parser.next() {
        None => Ok(verdict),
        Some(word) => Err(format!("`{word}` is not expected in licence `{expression}`")),
    }
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.at).copied();
        self.at += usize::from(word.is_some());
        word
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }

    fn any(&mut self) -> Result<bool, String> {
        let mut verdict = self.all()?;
        while self.take("OR") {
            verdict |= self.all()?;
        }
        Ok(verdict)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut verdict = self.one()?;
        while self.take("AND") {
            verdict &= self.one()?;
        }
        Ok(verdict)
    }

    fn one(&mut self) -> Result<bool, String> {
        let word = self.next().ok_or("a licence is missing at the end")?;
        match word {
            "(" => {
                let verdict = self.any()?;
                if self.take(")") { Ok(verdict) } else { Err("a `)` is missing".to_owned()) }
            }
            ")" | "OR" | "AND" | "WITH" => Err(format!("a licence is missing before `{word}`")),
            name if self.take("WITH") => {
                let exception = self.next().ok_or("an exception is missing after `WITH`")?;
                Ok(ACCEPTED.contains(&format!("{name} WITH {exception}").as_str()))
            }
            name => Ok(ACCEPTED.contains(&name)),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Expressions found in the wild, and broken ones.
    use super::*;

    #[test]
    fn expressions_are_judged() {
        for (expression, verdict) in [
            ("MIT", true),
            ("GPL-2.0-only", false),
            ("MIT/Apache-2.0", true),
            ("MIT OR Apache-2.0 OR LGPL-2.1-or-later", true),
            ("MIT AND GPL-3.0-only", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("GPL-2.0-only OR MIT AND MPL-2.0", false),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
            ("GPL-2.0-only WITH Classpath-exception-2.0", false),
            ("Apache-2.0 WITH Something", false),
        ] {
            assert_eq!(acceptable(expression), Ok(verdict), "{expression}");
        }
    }

    #[test]
    fn broken_expressions_are_errors() {
        for expression in ["", "MIT OR", "(MIT", "MIT)", "OR MIT", "MIT Apache-2.0", "MIT WITH"] {
            assert!(acceptable(expression).is_err(), "{expression}");
        }
    }
}
