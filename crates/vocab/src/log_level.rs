//! Who reads a line of a log.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::UnknownName;

/// Who reads a line: `error` means that something asked for did not happen, `warn` is worth waking
/// someone, `info` is a change a user would notice, `debug` explains one, `trace` is every message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum LogLevel {
    /// Something asked for did not happen.
    Error,
    /// Worth waking someone.
    Warn,
    /// A change a user would notice.
    Info,
    /// What led to a change.
    Debug,
    /// Every message.
    Trace,
}

impl LogLevel {
    /// Every level, from the fewest lines to the most.
    pub const ALL: &'static [LogLevel] =
        &[LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for LogLevel {
    type Err = UnknownName;
    /// In any case: LINSTOR's clients write `INFO`.
    fn from_str(word: &str) -> Result<LogLevel, UnknownName> {
        let found = LogLevel::ALL.iter().find(|level| level.name().eq_ignore_ascii_case(word));
        found.copied().ok_or_else(|| UnknownName {
            kind: "log level: these are error, warn, info, debug and trace",
            word: word.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_an_order_and_names() {
        assert!(LogLevel::Error < LogLevel::Trace);
        for level in LogLevel::ALL {
            assert_eq!(level.name().parse(), Ok(*level));
            assert_eq!(level.name().to_ascii_uppercase().parse(), Ok(*level));
        }
        let unknown = "loud".parse::<LogLevel>().unwrap_err().to_string();
        assert!(unknown.contains("`loud`") && unknown.contains("trace"), "{unknown}");
    }
}
