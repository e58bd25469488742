//! `events2`: the states, then every change as a line (drbdsetup contract §3.5). Nothing is written
//! to standard error while it works: some callers take that for a failure.

use std::io::{self, Read};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime};

use codec::admin::{Event, Request, ResourceStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vocab::{ConfigError, RefusalCode};

use super::Session;
use super::error::Stop;
use crate::cli::Error;
use crate::cli::events::{Lines, Style, timestamp};

/// How often it is seen whether anybody still reads the output.
const LOOK: Duration = Duration::from_secs(1);
/// How often the engine tells how far a resync is.
const PROGRESS_MS: u32 = 3000;
/// How often it tells counters to those who do not ask for them.
const STATISTICS_MS: u32 = 1000;

/// What the stream waits for.
enum News {
    Event(Event),
    /// The engine has ended, or said something wrong.
    Over(Option<Error>),
    /// Standard input asks for counters.
    Poll,
    /// Standard input has ended.
    Enough,
}

impl Session<'_> {
    pub(super) fn events(&mut self) -> Result<(), Stop> {
        let p = &self.parsed;
        let (full, now, asked) = (p.flag("full"), p.flag("now"), p.flag("poll"));
        let statistics = p.flag("statistics") || full;
        if p.text("color") == Some("always") {
            let text = "the lines of events2 are for programs: they are never coloured";
            return Err(Stop::usage(p.command, text));
        }
        let style = Style { statistics, full, diff: p.flag("diff") };
        let (sender, news) = mpsc::channel();
        if asked {
            let sender = sender.clone();
            thread::spawn(move || read_input(&sender));
        }
        if now {
            self.dump(style)?;
            // Nothing else comes, and without input nobody asks for more.
            drop(sender);
            while let Ok(News::Poll) = news.recv() {
                self.dump(style)?;
            }
            return Ok(());
        }
        let interval = if statistics && !asked { STATISTICS_MS } else { PROGRESS_MS };
        let resource = self.parsed.resource_or_all();
        self.order(Request::Events { resource, statistics_ms: Some(interval) })?;
        // From here on this connection carries events; counters are asked for on another one.
        let mut client = self.client.take().expect("it was just used");
        thread::spawn(move || {
            loop {
                let event = match client.event() {
                    Ok(Some(event)) => News::Event(event),
                    Ok(None) => News::Over(None),
                    Err(error) => News::Over(Some(error)),
                };
                let over = matches!(event, News::Over(_));
                if sender.send(event).is_err() || over {
                    return;
                }
            }
        });
        let mut lines = Lines::with(style);
        loop {
            match news.recv_timeout(LOOK) {
                Ok(News::Event(event)) => {
                    let text = lines.event(event);
                    self.print(&text)?;
                }
                Ok(News::Poll) => {
                    for state in self.present()? {
                        let text = lines.refresh(state);
                        self.print(&text)?;
                    }
                }
                Ok(News::Enough) => return Ok(()),
                Ok(News::Over(error)) => {
                    let what = self.parsed.command.name.to_owned();
                    let error = error.unwrap_or(Error::Closed { what });
                    return Err(Stop::of(&self.parsed.object(), error));
                }
                Err(RecvTimeoutError::Timeout) if nobody_reads() => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// The states, of nothing if the resource does not exist.
    fn present(&mut self) -> Result<Vec<ResourceStatus>, Stop> {
        let unknown = RefusalCode::Config(ConfigError::UnknownResource);
        match self.states(self.parsed.resource_or_all()) {
            Err(Stop::Refused { refusal, .. }) if refusal.code == unknown => Ok(Vec::new()),
            result => result,
        }
    }

    /// All states, then the end of them.
    fn dump(&mut self, style: Style) -> Result<(), Stop> {
        let mut lines = Lines::with(style);
        let states = self.present()?;
        let events = states.into_iter().map(Event::Resource).chain([Event::Current]);
        let text: Vec<_> = events.flat_map(|event| lines.event(event)).collect();
        self.print(&text)
    }

    fn print(&mut self, lines: &[String]) -> Result<(), Stop> {
        let stamps = self.parsed.flag("timestamps");
        let stamp = if stamps { timestamp(SystemTime::now()) } else { String::new() };
        for line in lines {
            writeln!(self.out, "{stamp}{line}")?;
        }
        Ok(self.out.flush()?)
    }
}

/// Hands on what callers of `--poll` write: `n` asks for counters, anything else ends.
fn read_input(news: &mpsc::Sender<News>) {
    for byte in io::stdin().lock().bytes() {
        let sent = match byte {
            Ok(b'n') => news.send(News::Poll),
            Ok(b'\n') => Ok(()),
            _ => break,
        };
        if sent.is_err() {
            return;
        }
    }
    // Who does not listen any more has ended by itself.
    let _ = news.send(News::Enough);
}

/// True if the other end of standard output is closed.
fn nobody_reads() -> bool {
    let out = io::stdout();
    let mut watched = [PollFd::new(&out, PollFlags::empty())];
    let closed = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    poll(&mut watched, Some(&Timespec::default())).is_ok()
        && watched[0].revents().intersects(closed)
}
