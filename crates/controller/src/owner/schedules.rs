//! What schedules need of the owner: errands to buckets, to be awake in time, and reports of what failed.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use cluster::change::{Change, Object};
use cluster::errand::errands;
use cluster::objects::Millis;

use super::{Owner, TICK, now};

impl Owner {
    /// Sends somebody to the buckets where something is to be done, and looks when the next time is.
    pub(super) fn see_to_schedules(&mut self) {
        let shared = self.shared.clone();
        let state = shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let time = now();
        let all = errands(&state.model, &state.observed, time);
        self.errands.go(all, &state);
        if let Some(wake) = state.model.next_wake(time) {
            let wake = Instant::now() + Duration::from_millis(wake.since(time)).min(TICK);
            self.next_tick = self.next_tick.min(wake);
        }
    }

    /// Keeps a report of each backup that a schedule could not make.
    pub(super) fn report_failed_backups(&mut self, changes: &[Change], since: Millis) {
        for change in changes {
            let Change::Put(object @ Object::Series(series)) = change else { continue };
            let failure = series.failure.as_ref().filter(|failure| failure.at >= since);
            if let Some(failure) = failure {
                let message = format!("{} are not as they should be", object.key());
                let next = "see `ashlar backup schedule list`; what has to be seen to is the cause";
                let (cause, next) = (failure.cause.clone(), next.to_owned());
                self.report("Controller", message, cause, next);
            }
        }
    }
}
