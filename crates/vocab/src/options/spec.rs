//! What an option is, and the one parser and printer all options share.
//!
//! Notation (drbdsetup contract §1): a number is decimal digits and at most one suffix, K M G
//! (powers of 1024, either case) or `s` (512-byte sectors). Without a suffix the option's unit
//! applies; conversion to a coarser unit rounds up. Booleans are `yes` and `no`.

use std::fmt;
use std::time::Duration;

/// Unit in which an option without a suffix is counted, and in which it is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A plain count.
    One,
    /// Bytes.
    Bytes,
    /// KiB per second; printed with `k`.
    KibPerSecond,
    /// 512-byte sectors; printed with `s`.
    Sectors,
    /// Pages of 4 KiB, printed plain.
    Pages,
    /// Tenths of a second.
    DeciSeconds,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    MilliSeconds,
}

impl Unit {
    /// What a suffix is divided by: the bytes in one unit where the unit counts bytes.
    const fn divisor(self) -> u64 {
        match self {
            Unit::KibPerSecond => 1024,
            Unit::Sectors => 512,
            _ => 1,
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            Unit::KibPerSecond => "k",
            Unit::Sectors => "s",
            _ => "",
        }
    }

    /// One unit of time, or `None` if the unit does not count time.
    pub(super) const fn tick(self) -> Option<Duration> {
        match self {
            Unit::DeciSeconds => Some(Duration::from_millis(100)),
            Unit::Seconds => Some(Duration::from_secs(1)),
            Unit::MilliSeconds => Some(Duration::from_millis(1)),
            _ => None,
        }
    }

    /// The unit in words, for messages and generated documentation.
    pub const fn words(self) -> &'static str {
        match self {
            Unit::One => "",
            Unit::Bytes => "bytes",
            Unit::KibPerSecond => "KiB/s",
            Unit::Sectors => "sectors of 512 bytes",
            Unit::Pages => "pages of 4 KiB",
            Unit::DeciSeconds => "tenths of a second",
            Unit::Seconds => "seconds",
            Unit::MilliSeconds => "milliseconds",
        }
    }
}

/// What values an option takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `yes` or `no`.
    Bool,
    /// A number within a range, both ends included, in the unit.
    Number {
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
        /// Unit of both, of the value printed, and of input without a suffix.
        unit: Unit,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// One of these words, or a number as in `Number`.
    NumberOrWord {
        /// Smallest number.
        min: u64,
        /// Largest number.
        max: u64,
        /// As in `Number`.
        unit: Unit,
        /// The words.
        words: &'static [&'static str],
    },
    /// Free text of at most so many bytes, without control characters.
    Text {
        /// Longest value in bytes.
        max_len: usize,
    },
    /// The same, and messages never show it.
    Secret {
        /// Longest value in bytes.
        max_len: usize,
    },
}

/// Whether this program acts on an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Honoured {
    /// Every value in the range takes effect.
    Yes,
    /// Only the default does; the text says why and what holds instead.
    DefaultOnly(&'static str),
    /// Only the named values do; the text says why and what holds instead.
    Only(&'static [&'static str], &'static str),
}

/// One row of an option table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionSpec {
    /// DRBD's name.
    pub name: &'static str,
    /// Type, unit and range.
    pub kind: Kind,
    /// Default in the notation this module prints.
    pub default: &'static str,
    /// Whether other values take effect.
    pub honoured: Honoured,
    /// What the option does, one sentence.
    pub help: &'static str,
}

/// Why an option was not set. Nothing changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OptionError {
    /// The group has no option of that name.
    Unknown {
        /// The group, such as `net`.
        group: &'static str,
        /// The name given.
        name: String,
    },
    /// The text is not a value of that option.
    Invalid {
        /// The option.
        name: &'static str,
        /// The text given.
        value: String,
        /// What it takes.
        kind: Kind,
    },
    /// A DRBD value that this program does not act on.
    NotHonoured {
        /// The option.
        name: &'static str,
        /// The value given.
        value: String,
        /// Why, and what holds instead.
        reason: &'static str,
        /// What may be set.
        accepted: Vec<&'static str>,
    },
    /// Two options contradict each other.
    Conflict(String),
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionError::Unknown { group, name } => {
                write!(f, "there is no {group} option `{name}`; check the spelling")
            }
            OptionError::Invalid { name, value, kind } => {
                write!(f, "`{value}` is not a value of option `{name}`; give {kind}")
            }
            OptionError::NotHonoured { name, value, reason, accepted } => {
                write!(
                    f,
                    "option `{name}` can not be `{value}` here: {reason}; remove it or set "
                )?;
                for (i, word) in accepted.iter().enumerate() {
                    let sep = if i == 0 { "" } else { " or " };
                    let word = if word.is_empty() { "\"\"" } else { word };
                    write!(f, "{sep}`{word}`")?;
                }
                Ok(())
            }
            OptionError::Conflict(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for OptionError {}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |f: &mut fmt::Formatter<'_>, min: u64, max: u64, unit: Unit| {
            let space = if unit.words().is_empty() { "" } else { " " };
            write!(f, "a number from {min} to {max}{space}{}", unit.words())
        };
        match *self {
            Kind::Bool => f.write_str("yes or no"),
            Kind::Number { min, max, unit } => number(f, min, max, unit),
            Kind::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Kind::NumberOrWord { min, max, unit, words } => {
                write!(f, "{} or ", words.join(", "))?;
                number(f, min, max, unit)
            }
            Kind::Text { max_len } | Kind::Secret { max_len } => {
                write!(f, "text of at most {max_len} bytes without control characters")
            }
        }
    }
}

/// A parsed value on its way between text and field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Raw {
    Bool(bool),
    Number(u64),
    Word(&'static str),
    Text(String),
}

impl Kind {
    pub(super) const fn unit(&self) -> Unit {
        match *self {
            Kind::Number { unit, .. } | Kind::NumberOrWord { unit, .. } => unit,
            _ => Unit::One,
        }
    }

    /// Parses `text`, or `None` if it is no value of this kind.
    pub(super) fn parse(&self, text: &str) -> Option<Raw> {
        let word =
            |words: &[&'static str]| words.iter().find(|w| **w == text).map(|w| Raw::Word(w));
        match *self {
            Kind::Bool => match text {
                "yes" => Some(Raw::Bool(true)),
                "no" => Some(Raw::Bool(false)),
                _ => None,
            },
            Kind::Number { min, max, unit } => number(text, min, max, unit),
            Kind::Choice(words) => word(words),
            Kind::NumberOrWord { min, max, unit, words } => {
                word(words).or_else(|| number(text, min, max, unit))
            }
            Kind::Text { max_len } | Kind::Secret { max_len } => {
                let fits = text.len() <= max_len && !text.chars().any(char::is_control);
                fits.then(|| Raw::Text(text.to_owned()))
            }
        }
    }

    /// True if `text` is a value of this kind.
    pub fn accepts(&self, text: &str) -> bool {
        self.parse(text).is_some()
    }

    /// The number that `text` is, in the kind's unit; `None` if the kind has no such number.
    pub fn number(&self, text: &str) -> Option<u64> {
        match self.parse(text)? {
            Raw::Number(n) => Some(n),
            _ => None,
        }
    }

    /// Prints `raw` in DRBD's notation.
    pub(super) fn print(&self, raw: &Raw) -> String {
        match raw {
            Raw::Bool(true) => "yes".to_owned(),
            Raw::Bool(false) => "no".to_owned(),
            Raw::Number(n) => format!("{n}{}", self.unit().suffix()),
            Raw::Word(word) => (*word).to_owned(),
            Raw::Text(text) => text.clone(),
        }
    }
}

/// A number with its suffix, converted to `unit` and checked against the range.
fn number(text: &str, min: u64, max: u64, unit: Unit) -> Option<Raw> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    let bytes_per = match &text[digits.len()..] {
        "" => unit.divisor(),
        "s" => 512,
        "K" | "k" => 1 << 10,
        "M" | "m" => 1 << 20,
        "G" | "g" => 1 << 30,
        _ => return None,
    };
    let n = n.checked_mul(bytes_per)?.div_ceil(unit.divisor());
    (min..=max).contains(&n).then_some(Raw::Number(n))
}

impl OptionSpec {
    /// Parses a value, enforcing range and [`Honoured`].
    fn parse(&self, value: &str) -> Result<Raw, OptionError> {
        let shown = if matches!(self.kind, Kind::Secret { .. }) { "(not shown)" } else { value };
        let invalid =
            || OptionError::Invalid { name: self.name, value: shown.to_owned(), kind: self.kind };
        // `protocol` is the one choice whose words DRBD takes in either case.
        let upper = value.to_ascii_uppercase();
        let text = if self.name == "protocol" { &upper } else { value };
        let raw = self.kind.parse(text).ok_or_else(invalid)?;
        let printed = self.kind.print(&raw);
        let (accepted, reason) = match self.honoured {
            Honoured::Yes => return Ok(raw),
            Honoured::DefaultOnly(reason) => (vec![self.default], reason),
            Honoured::Only(values, reason) => (values.to_vec(), reason),
        };
        if accepted.contains(&printed.as_str()) {
            return Ok(raw);
        }
        let value = shown.to_owned();
        Err(OptionError::NotHonoured { name: self.name, value, reason, accepted })
    }
}

/// A field type that a [`Raw`] value converts to and from.
pub(super) trait Value: Sized {
    /// The field's value; `None` if the table gives the option another kind than the field has.
    fn from_raw(raw: Raw, unit: Unit) -> Option<Self>;
    /// The raw value.
    fn to_raw(&self, unit: Unit) -> Raw;
}

pub(super) mod sealed {
    //! Access by table index, used by the provided methods of `Options` only.
    use super::Raw;

    pub trait Fields {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "sealed: only this module's macro implements it")]
        fn get_raw(&self, index: usize) -> Raw;
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "sealed: only this module's macro implements it")]
        fn put_raw(&mut self, index: usize, raw: Raw);
    }
}

/// A group of options: a struct declared by its table.
pub trait Options: Default + Clone + PartialEq + fmt::Debug + sealed::Fields {
    /// DRBD's word for the group: `options`, `net`, `disk`, …
    const GROUP: &'static str;
    /// The table, in the order options are printed.
    const TABLE: &'static [OptionSpec];

    /// The row of `name` and its index.
    fn find(name: &str) -> Option<(usize, &'static OptionSpec)> {
        Self::TABLE.iter().enumerate().find(|(_, spec)| spec.name == name)
    }

    /// Sets one option from DRBD's notation.
    ///
    /// # Errors
    /// If the name is unknown, the value is outside the table's range, or this program does not
    /// act on it. Nothing changes then.
    fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let unknown = || OptionError::Unknown { group: Self::GROUP, name: name.to_owned() };
        let (index, spec) = Self::find(name).ok_or_else(unknown)?;
        self.put_raw(index, spec.parse(value)?);
        Ok(())
    }

    /// The value of the option in row `index` of the table, in DRBD's notation.
    fn print(&self, index: usize) -> String {
        Self::TABLE[index].kind.print(&self.get_raw(index))
    }

    /// Name and value of every option that differs from its default, in DRBD's notation, in
    /// table order. Text is not quoted: each pair may be given back to [`Options::set`].
    fn show(&self) -> Vec<(&'static str, String)> {
        let all = Self::TABLE.iter().enumerate().map(|(i, spec)| (spec, self.print(i)));
        all.filter(|(spec, value)| *value != spec.default)
            .map(|(s, value)| (s.name, value))
            .collect()
    }
}
