//! The log of every program: one line per event on standard error, `time level object text`. The time is
//! UTC; under systemd it is left out, since the journal has its own.
//!
//! What the levels mean [`Level`] says. Nothing on the I/O path logs above `trace`.
#![forbid(unsafe_code)]

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

use vocab::Utc;

pub use vocab::LogLevel as Level;

/// Set by systemd if standard error goes to the journal.
static JOURNAL: LazyLock<bool> = LazyLock::new(|| std::env::var_os("JOURNAL_STREAM").is_some());

static MOST: AtomicU8 = AtomicU8::new(Level::Info as u8);

/// Lines of higher levels than `most` are left out from now on.
pub fn set_level(most: Level) {
    MOST.store(most as u8, Ordering::Relaxed);
}

/// The highest level of which lines are written.
pub fn level() -> Level {
    let most = MOST.load(Ordering::Relaxed);
    Level::ALL.iter().copied().find(|level| *level as u8 == most).unwrap_or(Level::Trace)
}

/// True if lines of that level are written.
pub fn enabled(level: Level) -> bool {
    level as u8 <= MOST.load(Ordering::Relaxed)
}

/// Writes a line. Use the macro [`log!`], which spares the formatting of what is left out.
pub fn write(level: Level, object: &dyn fmt::Display, text: fmt::Arguments<'_>) {
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

/// `log!(Level::Info, object, "text {}", x)`: object is what the line is about: a resource,
/// `resource/peer`, `resource/volume`, a node, or a part of the program.
#[macro_export]
macro_rules! log {
    ($level:expr, $object:expr, $($text:tt)+) => {{
        let level = $level;
        if $crate::enabled(level) {
            $crate::write(level, &$object, format_args!($($text)+));
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_above_the_level_are_left_out() {
        assert_eq!(level(), Level::Info);
        for most in Level::ALL {
            set_level(*most);
            assert_eq!(level(), *most);
            for other in Level::ALL {
                assert_eq!(enabled(*other), other <= most, "{other} at {most}");
            }
        }
        set_level(Level::Info);
    }
}
