//! The controller's lines in the log, by level.

use std::fmt::{self, Display};

use logging::Level;

/// Something asked for did not happen.
pub fn error(object: impl Display, text: fmt::Arguments<'_>) {
    write(Level::Error, &object, text);
}

/// A change that a user would notice.
pub fn info(object: impl Display, text: fmt::Arguments<'_>) {
    write(Level::Info, &object, text);
}

/// What led to a change: calls, and what agents are told.
pub fn debug(object: impl Display, text: fmt::Arguments<'_>) {
    write(Level::Debug, &object, text);
}

fn write(level: Level, object: &dyn Display, text: fmt::Arguments<'_>) {
    if logging::enabled(level) {
        logging::write(level, object, text);
    }
}
