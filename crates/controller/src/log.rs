//! The log: one line per event on standard error, `time level object text`, like the engine's.

use std::fmt::{self, Display};
use std::io::Write as _;
use std::time::SystemTime;

use vocab::Utc;

/// Something asked for did not happen.
pub fn error(object: impl Display, text: fmt::Arguments<'_>) {
    write("error", &object, text);
}

/// A change that a user would notice.
pub fn info(object: impl Display, text: fmt::Arguments<'_>) {
    write("info", &object, text);
}

fn write(level: &str, object: &dyn Display, text: fmt::Arguments<'_>) {
    let line = format!("{level:<5} {object} {text}").replace(['\n', '\r'], " ");
    // Under systemd the journal has the time.
    let time = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => String::new(),
        None => format!("{} ", Utc(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default())),
    };
    // There is nobody to tell if the log itself can not be written.
    let _ = writeln!(std::io::stderr().lock(), "{time}{line}");
}
