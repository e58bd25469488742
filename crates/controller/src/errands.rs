//! Errands of schedules to remotes' buckets: threads that go there, a few at a time, and come back with
//! what they found. The owner never waits for one.

use std::collections::BTreeSet;

use cluster::errand::{Errand, What};
use cluster::schedule::SeriesKey;
use linstor::controller::State;
use shipping::bucket;
use tokio::sync::mpsc;

use crate::keys;
use crate::log;
use crate::owner::Input;

/// How many are under way at the same time.
const AT_ONCE: usize = 4;

/// The errands that are under way.
pub struct Errands {
    to: mpsc::WeakSender<Input>,
    under_way: BTreeSet<(SeriesKey, bool)>,
}

/// What is under way once: there may be more to remove by the time that the first is gone.
fn identity(errand: &Errand) -> (SeriesKey, bool) {
    (errand.key.clone(), errand.what == What::Look)
}

impl Errands {
    /// None yet; they come back there.
    pub fn new(to: mpsc::WeakSender<Input>) -> Errands {
        Errands { to, under_way: BTreeSet::new() }
    }

    /// Begins those that are not under way; the others have their turn when one is back.
    pub fn go(&mut self, errands: Vec<Errand>, state: &State) {
        for errand in errands {
            let identity = identity(&errand);
            if self.under_way.len() >= AT_ONCE {
                return;
            }
            if self.under_way.contains(&identity) {
                continue;
            }
            let Some(bucket) = state.model.remote(errand.remote()).and_then(|r| r.bucket()) else {
                continue;
            };
            let client = keys::open(state.observed.master.as_ref(), bucket);
            log::debug("schedule", format_args!("{errand}"));
            let to = self.to.clone();
            let thread = std::thread::Builder::new().name("errand".to_owned());
            let thread = thread.spawn(move || {
                let name = errand.key.0.as_str();
                let outcome = match client {
                    Err(failure) => Err(failure.to_string()),
                    Ok(client) => match &errand.what {
                        What::Look => bucket::present(&client, name),
                        What::Remove(backups) => {
                            bucket::delete_with_dependants(&client, name, backups)
                        }
                    }
                    .map_err(|error| format!("{error}; {}", error.correction())),
                };
                // Where nobody listens any more the next controller goes again.
                if let Some(to) = to.upgrade() {
                    let _ = to.blocking_send(Input::Errand(errand, outcome));
                }
            });
            match thread {
                Ok(_) => drop(self.under_way.insert(identity)),
                Err(error) => {
                    log::error("schedule", format_args!("there is no thread to be had: {error}"));
                }
            }
        }
    }

    /// One is back.
    pub fn back(&mut self, errand: &Errand) {
        self.under_way.remove(&identity(errand));
    }
}
