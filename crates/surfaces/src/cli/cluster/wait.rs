//! Waiting until what was taken on is done: by looking again, with a bar on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::error::Error;
use super::answer::Done;
use super::http::{Change, Http};
use super::table::Look;

/// How often it is looked again.
const POLL: Duration = Duration::from_millis(300);
/// How fine the bar is.
const STEPS: u64 = 1000;

/// How far something is.
#[derive(Clone, PartialEq, Debug)]
pub enum Progress {
    /// All of it is done.
    Done,
    /// It goes on.
    Going {
        /// What is not done, in words.
        left: String,
        /// The part that is done, 0 to 1.
        share: f64,
    },
}

impl Progress {
    /// Something that goes on.
    pub fn going(left: &str, share: f64) -> Progress {
        Progress::Going { left: left.to_owned(), share: share.clamp(0.0, 1.0) }
    }
}

/// Looks how far it is.
pub type Follow<'a> = &'a (dyn Fn(&Http) -> Result<Progress, Error> + Sync);

/// A bar on standard error, if that is a terminal.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar for what is done.
    pub fn new(look: Look, what: &str) -> Bar {
        if !look.progress {
            return Bar(None);
        }
        let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{spinner} {prefix} {bar:20} {elapsed} {wide_msg}");
        bar.set_style(style.expect("the template is valid"));
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        Bar(Some(bar))
    }

    fn show(&self, progress: &Progress) {
        if let (Some(bar), Progress::Going { left, share }) = (&self.0, progress) {
            bar.set_message(left.clone());
            bar.set_position((share * STEPS as f64) as u64);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Has the controller carry out a change; it answers when agents have followed, or after half a
/// minute. The bar shows meanwhile how far it is.
///
/// # Errors
/// As [`Http::change`].
pub fn carry_out(
    http: &Http,
    bar: &Bar,
    what: &str,
    change: &Change,
    follow: Option<Follow<'_>>,
) -> Result<Done, Error> {
    let (Some(_), Some(follow)) = (&bar.0, follow) else { return http.change(what, change) };
    std::thread::scope(|scope| {
        let call = scope.spawn(|| http.change(what, change));
        while !call.is_finished() {
            std::thread::sleep(POLL);
            // What can not be seen yet is not worth a word: the answer of the call is what counts.
            if let Ok(progress) = follow(http) {
                bar.show(&progress);
            }
        }
        match call.join() {
            Ok(answer) => answer,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Looks again until it is done.
///
/// # Errors
/// [`Error::Unfinished`] if the time is over before that.
pub fn until_done(http: &Http, bar: &Bar, what: &str, follow: Follow<'_>) -> Result<(), Error> {
    loop {
        let progress = follow(http)?;
        let Progress::Going { left, .. } = &progress else { return Ok(()) };
        bar.show(&progress);
        if http.left() <= POLL {
            return Err(Error::Unfinished { what: what.to_owned(), left: left.clone() });
        }
        std::thread::sleep(POLL);
    }
}
