//! The live view on a terminal: keys in, frames out.

use std::time::{Duration, Instant};

use codec::admin::ResourceStatistics;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text;
use ratatui::widgets::Paragraph;

use super::{Line, Row, Sort, Tone, legend, lines, rows, sort};
use crate::cli::error::Error;

/// Rows that the view scrolls at a time with a page key.
const PAGE: usize = 10;

/// Gives the terminal back as it was, however the view ends.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What is shown.
pub(super) struct View {
    pub rows: Vec<Row>,
    pub interval: Duration,
    pub by: Sort,
    /// Lines above the first one shown.
    pub scroll: usize,
}

/// Shows volumes until the user ends it; `ask` gets statistics from the engine.
///
/// # Errors
/// If the terminal or the engine fails.
pub(in crate::cli) fn run(
    interval: Duration,
    by: Sort,
    mut ask: impl FnMut() -> Result<Vec<ResourceStatistics>, Error>,
) -> Result<(), Error> {
    // An engine that is not there is said on the usual screen.
    let mut before = ask()?;
    let mut view = View { rows: Vec::new(), interval, by, scroll: 0 };
    let mut terminal = ratatui::try_init()?;
    let _restore = Restore;
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| draw(frame, &view))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && !view.key(key)
            {
                return Ok(());
            }
        }
        if Instant::now() >= next {
            let after = ask()?;
            view.rows = rows(&before, &after);
            sort(&mut view.rows, view.by);
            before = after;
            next = Instant::now() + interval;
        }
    }
}

impl View {
    /// Does what a key asks for. False if that is to end.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::Home => self.scroll = 0,
            KeyCode::Down => self.scroll = (self.scroll + 1).min(self.last()),
            KeyCode::PageDown => self.scroll = (self.scroll + PAGE).min(self.last()),
            KeyCode::Char(letter) => {
                if let Some((_, by)) = Sort::KEYS.iter().find(|(key, _)| *key == letter) {
                    self.by = *by;
                    sort(&mut self.rows, self.by);
                }
            }
            _ => {}
        }
        true
    }

    /// How far it can scroll.
    fn last(&self) -> usize {
        lines(&self.rows).len().saturating_sub(2)
    }
}

/// Draws the view.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let areas = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(areas).areas(frame.area());
    let mut shown = lines(&view.rows);
    let below = shown.split_off(1);
    frame.render_widget(Paragraph::new(shown.iter().map(styled).collect::<Vec<_>>()), head);
    let text = if view.rows.is_empty() {
        vec![text::Line::raw("  no volume has been seen for a whole interval yet")]
    } else {
        below.iter().skip(view.scroll).map(styled).collect()
    };
    frame.render_widget(Paragraph::new(text), body);
    frame.render_widget(Paragraph::new(styled(&foot_line(view))), foot);
}

fn foot_line(view: &View) -> Line {
    let mut line = legend();
    let keys = Sort::KEYS.iter().map(|(key, by)| {
        let name = format!("{by:?}").to_lowercase();
        let tone = if *by == view.by { Tone::Bold } else { Tone::Dim };
        (tone, format!("{key}:{name} "))
    });
    let seconds = view.interval.as_secs();
    line.0.push((Tone::Dim, format!("| each {seconds} s | sort ")));
    line.0.extend(keys);
    line.0.push((Tone::Dim, "| q: quit".to_owned()));
    line
}

fn styled(line: &Line) -> text::Line<'static> {
    let spans = line.0.iter().map(|(tone, text)| text::Span::styled(text.clone(), style(*tone)));
    text::Line::from_iter(spans)
}

fn style(tone: Tone) -> Style {
    let plain = Style::new();
    match tone {
        Tone::Plain => plain,
        Tone::Bold => plain.add_modifier(Modifier::BOLD),
        Tone::Dim => plain.add_modifier(Modifier::DIM),
        Tone::Stage(letter) => plain.fg(Color::Black).bg(match letter {
            'f' => Color::Gray,
            'a' => Color::Magenta,
            'l' => Color::Red,
            'd' => Color::Yellow,
            'c' => Color::White,
            // Neighbours among the peers differ.
            peer if peer.to_digit(36).is_some_and(|id| id % 2 == 0) => Color::Cyan,
            _ => Color::Green,
        }),
    }
}
