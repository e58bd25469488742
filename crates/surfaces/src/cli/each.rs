//! Commands on several objects.

use std::io::Write;

use super::error::Error;

/// A command at work that says what went wrong, and goes on.
pub trait EachInTurn {
    /// Where that is said.
    fn err(&mut self) -> &mut dyn Write;

    /// Does `each` for every item; goes on after a failure, reports it, and fails at the end with
    /// the first one's status.
    fn all<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Self, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut first = None;
        for item in items {
            match each(self, item) {
                Ok(()) => {}
                // With nobody to ask, or nowhere to print, the next item can not do better.
                Err(
                    e @ (Error::Unreachable { .. } | Error::NoController { .. } | Error::Output(_)),
                ) => return Err(e),
                Err(e) => {
                    writeln!(self.err(), "ashlar: {e}")?;
                    first.get_or_insert(e.status());
                }
            }
        }
        first.map_or(Ok(()), |status| Err(Error::Several(status)))
    }
}
