//! Listings: columns on a terminal, values between tabs in a pipe, or JSON.

use std::io::{self, IsTerminal, Write};

use owo_colors::{OwoColorize, Style};
use serde::Serialize;

use super::super::error::Error;

/// How things are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// Columns are aligned.
    pub aligned: bool,
    /// States have colours.
    pub color: bool,
    /// What takes long shows how far it is, on standard error.
    pub progress: bool,
}

impl Look {
    /// As it suits standard output and standard error.
    pub fn of_stdout() -> Look {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let aligned = io::stdout().is_terminal();
        let color = aligned && !dumb && std::env::var_os("NO_COLOR").is_none();
        Look { aligned, color, progress: io::stderr().is_terminal() && !dumb }
    }

    /// For programs.
    pub const PLAIN: Look = Look { aligned: false, color: false, progress: false };
}

/// How a cell is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// Neither good nor bad.
    Plain,
    /// As it should be.
    Good,
    /// Under way.
    Busy,
    /// To be looked at.
    Bad,
}

/// A value in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The text.
    pub text: String,
    /// How it is meant.
    pub tone: Tone,
}

impl Cell {
    /// A cell with a tone.
    pub fn toned(text: impl Into<String>, tone: Tone) -> Cell {
        Cell { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::toned(text, Tone::Plain)
    }
}

/// A row of a listing. As JSON it is the object itself.
pub trait Row: Serialize {
    /// The columns.
    const COLUMNS: &'static [&'static str];
    /// The values, one for each.
    fn cells(&self) -> Vec<Cell>;
}

/// Writes a listing.
///
/// # Errors
/// If it can not be written.
pub fn list<R: Row>(out: &mut dyn Write, look: Look, json: bool, rows: &[R]) -> Result<(), Error> {
    if json {
        return as_json(out, rows);
    }
    let cells: Vec<Vec<Cell>> = rows.iter().map(R::cells).collect();
    if !look.aligned {
        writeln!(out, "{}", R::COLUMNS.join("\t"))?;
        for row in &cells {
            let texts: Vec<&str> = row.iter().map(|cell| cell.text.as_str()).collect();
            writeln!(out, "{}", texts.join("\t"))?;
        }
        return Ok(());
    }
    let width = |column: usize| {
        let own =
            cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.chars().count());
        own.max().unwrap_or(0).max(R::COLUMNS[column].len())
    };
    let widths: Vec<usize> = (0..R::COLUMNS.len()).map(width).collect();
    let header = R::COLUMNS.iter().map(|text| Cell::from(*text)).collect::<Vec<_>>();
    writeln!(out, "{}", aligned(&header, &widths, look.color, true))?;
    for row in &cells {
        writeln!(out, "{}", aligned(row, &widths, look.color, false))?;
    }
    Ok(())
}

/// A point in time in a cell, to the second.
pub fn time(unix_ms: u64) -> String {
    let text = vocab::Utc(std::time::Duration::from_millis(unix_ms)).to_string();
    text.split('.').next().unwrap_or_default().replace('T', " ")
}

/// Writes a value as JSON.
///
/// # Errors
/// If it can not be written.
pub fn as_json<T: Serialize + ?Sized>(out: &mut dyn Write, value: &T) -> Result<(), Error> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

fn aligned(row: &[Cell], widths: &[usize], color: bool, header: bool) -> String {
    let mut line = String::new();
    for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
        let last = index + 1 == row.len();
        let padding = if last { 0 } else { width - cell.text.chars().count() + 2 };
        let style = match (header, cell.tone) {
            (true, _) => Style::new().bold(),
            (false, Tone::Plain) => Style::new(),
            (false, Tone::Good) => Style::new().green(),
            (false, Tone::Busy) => Style::new().yellow(),
            (false, Tone::Bad) => Style::new().red(),
        };
        match color {
            true => line.push_str(&cell.text.style(style).to_string()),
            false => line.push_str(&cell.text),
        }
        line.push_str(&" ".repeat(padding));
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Named(&'static str, u32);

    impl Row for Named {
        const COLUMNS: &'static [&'static str] = &["NAME", "N"];
        fn cells(&self) -> Vec<Cell> {
            vec![Cell::toned(self.0, Tone::Good), self.1.to_string().into()]
        }
    }

    fn shown(look: Look, json: bool) -> String {
        let mut out = Vec::new();
        list(&mut out, look, json, &[Named("long-name", 1), Named("a", 22)]).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_aligned_on_a_terminal_and_between_tabs_in_a_pipe() {
        let terminal = Look { aligned: true, color: false, progress: false };
        assert_eq!(shown(terminal, false), "NAME       N\nlong-name  1\na          22\n");
        assert_eq!(shown(Look::PLAIN, false), "NAME\tN\nlong-name\t1\na\t22\n");
        let colored = shown(Look { color: true, ..terminal }, false);
        assert!(colored.contains("\u{1b}[32mlong-name\u{1b}"), "{colored:?}");
        assert!(!shown(Look { color: true, ..terminal }, true).contains('\u{1b}'));
    }

    #[test]
    fn an_empty_listing_has_its_columns_and_json_is_an_array() {
        let mut out = Vec::new();
        list::<Named>(&mut out, Look::PLAIN, false, &[]).unwrap();
        list::<Named>(&mut out, Look::PLAIN, true, &[]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME\tN\n[]\n");
    }
}
