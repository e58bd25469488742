//! Tokens of the configuration grammar, with their places.
//!
//! A word is `[A-Za-z0-9/._-]{1,128}`, a string is `"…"` of at most 255 bytes with `\"` and `\\`,
//! `{ } ; [ ] :` are punctuation, `#` comments to the end of the line.

use std::sync::Arc;

use super::error::{Cause, Error, Place};

pub(super) const MAX_WORD: usize = 128;
pub(super) const MAX_STRING: usize = 255;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token {
    Word(String),
    Text(String),
    Punct(char),
    End,
}

impl Token {
    /// The token as an error message names it.
    pub(super) fn describe(&self) -> String {
        match self {
            Token::Word(word) => format!("`{word}`"),
            Token::Text(text) => format!("{text:?}"),
            Token::Punct(c) => format!("`{c}`"),
            Token::End => "the end of the file".to_owned(),
        }
    }
}

pub(super) struct Lexer<'a> {
    rest: &'a str,
    place: Place,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(file: Arc<str>, text: &'a str) -> Lexer<'a> {
        Lexer { rest: text, place: Place { file, line: 1, column: 1 } }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        if c == '\n' {
            self.place.line += 1;
            self.place.column = 1;
        } else {
            self.place.column += 1;
        }
        Some(c)
    }

    fn skip_blank(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.bump();
                }
            } else if c.is_ascii_whitespace() || c == '\u{feff}' {
                self.bump();
            } else {
                return;
            }
        }
    }

    /// The next token and where it begins.
    pub(super) fn next(&mut self) -> Result<(Token, Place), Error> {
        self.skip_blank();
        let at = self.place.clone();
        let token = match self.peek() {
            None => Token::End,
            Some('"') => Token::Text(self.string(&at)?),
            Some(c) if is_word(c) => Token::Word(self.word(&at)?),
            Some(c @ ('{' | '}' | ';' | '[' | ']' | ':')) => {
                self.bump();
                Token::Punct(c)
            }
            Some(c) => return Err(Error::new(&at, "", Cause::BadCharacter(c))),
        };
        Ok((token, at))
    }

    /// Text up to and without `]`, for IPv6 addresses, whose colons are not punctuation.
    pub(super) fn until_bracket(&mut self) -> Result<String, Error> {
        let at = self.place.clone();
        let mut text = String::new();
        while let Some(c) = self.bump() {
            match c {
                ']' => return Ok(text),
                c if c.is_ascii_graphic() && text.len() < MAX_WORD => text.push(c),
                _ => break,
            }
        }
        let expected = "an IPv6 address and `]`".to_owned();
        Err(Error::new(&at, "", Cause::Unexpected { found: format!("`{text}`"), expected }))
    }

    fn word(&mut self, at: &Place) -> Result<String, Error> {
        let mut word = String::new();
        while let Some(c) = self.peek().filter(|c| is_word(*c)) {
            if word.len() == MAX_WORD {
                return Err(Error::new(at, "", Cause::TooLong { what: "word", limit: MAX_WORD }));
            }
            word.push(c);
            self.bump();
        }
        Ok(word)
    }

    fn string(&mut self, at: &Place) -> Result<String, Error> {
        let unterminated = || Error::new(at, "", Cause::UnterminatedString);
        self.bump();
        let mut text = String::new();
        loop {
            let c = match self.bump().ok_or_else(unterminated)? {
                '"' => return Ok(text),
                '\n' => return Err(unterminated()),
                '\\' => match self.bump().ok_or_else(unterminated)? {
                    c @ ('"' | '\\') => c,
                    c => return Err(Error::new(at, "", Cause::BadCharacter(c))),
                },
                c => c,
            };
            if text.len() + c.len_utf8() > MAX_STRING {
                let cause = Cause::TooLong { what: "string", limit: MAX_STRING };
                return Err(Error::new(at, "", cause));
            }
            text.push(c);
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-')
}
