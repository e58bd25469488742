//! The log: one line per event on standard error, `time level object text`. The time is UTC; under
//! systemd it is left out, since the journal has its own.
//!
//! A level is chosen by who reads it: `error` means that something asked for did not happen,
//! `warn` is worth waking someone, `info` is a change a user would notice, `debug` explains one,
//! `trace` is per packet. Nothing on the I/O path logs above `trace`.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

use vocab::Utc;

/// Who reads a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Something asked for did not happen.
    Error,
    /// Worth waking someone.
    Warn,
    /// A change a user would notice.
    Info,
    /// What led to a change.
    Debug,
    /// Every packet.
    Trace,
}

const NAMES: [(Level, &str); 5] = [
    (Level::Error, "error"),
    (Level::Warn, "warn"),
    (Level::Info, "info"),
    (Level::Debug, "debug"),
    (Level::Trace, "trace"),
];

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(NAMES[*self as usize].1)
    }
}

impl FromStr for Level {
    type Err = String;
    fn from_str(word: &str) -> Result<Level, String> {
        let found = NAMES.iter().find(|(_, name)| *name == word).map(|(level, _)| *level);
        found.ok_or_else(|| "give error, warn, info, debug or trace".to_owned())
    }
}

/// Set by systemd if standard error goes to the journal.
static JOURNAL: LazyLock<bool> = LazyLock::new(|| std::env::var_os("JOURNAL_STREAM").is_some());

static MOST: AtomicU8 = AtomicU8::new(Level::Info as u8);

/// Lines of higher levels than `most` are left out from now on.
pub fn set_level(most: Level) {
    MOST.store(most as u8, Ordering::Relaxed);
}

/// True if lines of that level are written.
pub fn enabled(level: Level) -> bool {
    level as u8 <= MOST.load(Ordering::Relaxed)
}

/// Writes a line. Use the `log!` macro, which spares the formatting of what is left out.
pub(crate) fn write(level: Level, object: &dyn fmt::Display, text: fmt::Arguments<'_>) {
    let mut line = String::new();
    if !*JOURNAL {
        let _ = write!(line, "{} ", Utc(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()));
    }
    let _ = write!(line, "{level:<5} {object} {text}");
    // A line break from outside (a path, a peer's text) must not forge a second line.
    line = line.replace(['\n', '\r'], " ");
    line.push('\n');
    // There is nobody to tell if the log itself can not be written.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// `log!(Level::Info, object, "text {}", x)`: object is the resource, `resource/peer`,
/// `resource/volume`, or `engine`.
macro_rules! log {
    ($level:expr, $object:expr, $($text:tt)+) => {{
        let level = $level;
        if $crate::log::enabled(level) {
            $crate::log::write(level, &$object, format_args!($($text)+));
        }
    }};
}
pub(crate) use log;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_an_order_and_names() {
        assert!(Level::Error < Level::Trace);
        for (level, name) in NAMES {
            assert_eq!(name.parse::<Level>().unwrap(), level);
            assert_eq!(level.to_string(), name);
        }
        assert!("loud".parse::<Level>().is_err());
    }
}
