//! How the story is told: a spinner with live numbers and colours on a terminal, plain lines
//! everywhere else.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use owo_colors::{OwoColorize, Style};

/// Where the story goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// The result of the command.
    Stdout,
    /// Beside it, because the result is JSON.
    Stderr,
}

/// The teller.
#[derive(Debug)]
pub struct Screen {
    stream: Stream,
    terminal: bool,
    color: bool,
    steps: usize,
    step: usize,
    bar: Option<ProgressBar>,
    /// The reader is gone.
    broken: bool,
}

impl Screen {
    /// A story of that many steps.
    pub fn new(stream: Stream, steps: usize) -> Screen {
        let terminal = match stream {
            Stream::Stdout => io::stdout().is_terminal(),
            Stream::Stderr => io::stderr().is_terminal(),
        };
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let terminal = terminal && !dumb;
        let color = terminal && std::env::var_os("NO_COLOR").is_none();
        Screen { stream, terminal, color, steps, step: 0, bar: None, broken: false }
    }

    /// True if nobody can read the story any more.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// A line of its own.
    pub fn line(&mut self, text: &str) {
        let print = || match self.stream {
            Stream::Stdout => writeln!(io::stdout(), "{text}"),
            Stream::Stderr => writeln!(io::stderr(), "{text}"),
        };
        let result = match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        };
        self.broken |= result.is_err();
    }

    /// Begins the next step.
    pub fn step(&mut self, title: &str) {
        self.rest();
        self.step += 1;
        assert!(self.step <= self.steps, "the number of steps is stated correctly");
        let number = format!("[{}/{}]", self.step, self.steps);
        let line = format!("{} {}", self.faint(&number), self.strong(title));
        self.line(&line);
        if self.terminal {
            let target = match self.stream {
                Stream::Stdout => ProgressDrawTarget::stdout(),
                Stream::Stderr => ProgressDrawTarget::stderr(),
            };
            let bar = ProgressBar::with_draw_target(None, target);
            let style = ProgressStyle::with_template("      {spinner} {wide_msg}");
            bar.set_style(style.expect("the template is valid"));
            bar.enable_steady_tick(Duration::from_millis(80));
            self.bar = Some(bar);
        }
    }

    /// Something observed within the step.
    pub fn note(&mut self, text: &str) {
        self.line(&format!("      {text}"));
    }

    /// What goes on at the moment; on a terminal only.
    pub fn now(&self, text: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar {
            bar.set_message(text());
        }
    }

    /// Ends the step's spinner.
    pub fn rest(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// What it came to: a table of names, values and whether those are as they should be, and whether
    /// all is well.
    pub fn ending(&mut self, rows: &[(&str, String, Option<bool>)], good: bool, took: Duration) {
        self.rest();
        let width = rows.iter().map(|(_, value, _)| value.len()).max().unwrap_or(0);
        self.line("");
        for (name, value, good) in rows {
            let value = format!("{value:>width$}");
            let value = match good {
                Some(good) => self.verdict(&value, *good),
                None => value,
            };
            self.line(&format!("  {name:<20}  {value}"));
        }
        self.line("");
        let verdict = match good {
            true => "Nothing was lost",
            false => "Data was lost, stale, or differs",
        };
        let verdict = self.verdict(verdict, good);
        self.line(&format!("{verdict}, after {}.", time(took)));
    }

    fn styled(&self, text: &str, style: Style) -> String {
        if self.color { text.style(style).to_string() } else { text.to_owned() }
    }

    /// Important.
    pub fn strong(&self, text: &str) -> String {
        self.styled(text, Style::new().bold())
    }

    /// Beside the point.
    pub fn faint(&self, text: &str) -> String {
        self.styled(text, Style::new().dimmed())
    }

    /// As it should be, or not.
    pub fn verdict(&self, text: &str, good: bool) -> String {
        let style = if good { Style::new().green() } else { Style::new().red().bold() };
        self.styled(text, style)
    }
}

/// A count with separators: `12,345`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// An amount of data in the unit that fits: `18.9 MiB`, `256 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    // 1023.95 would be printed as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = format!("{value:.1}");
    format!("{} {}", digits.strip_suffix(".0").unwrap_or(&digits), UNITS[unit])
}

/// A time in seconds, or milliseconds if it is short.
pub fn time(duration: Duration) -> String {
    match duration.as_millis() {
        ms @ 0..1000 => format!("{ms} ms"),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(n), text);
        }
        let sizes = [
            (0, "0 bytes"),
            (512, "512 bytes"),
            (4096, "4 KiB"),
            (19_818_086, "18.9 MiB"),
            (256 << 20, "256 MiB"),
            ((1 << 20) - 1, "1 MiB"),
            (3 << 40, "3 TiB"),
        ];
        for (n, text) in sizes {
            assert_eq!(size(n), text);
        }
        assert_eq!(time(Duration::from_micros(212_900)), "212 ms");
        assert_eq!(time(Duration::from_millis(1_249)), "1.2 s");
    }
}
