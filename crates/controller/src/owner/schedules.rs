//! What schedules and shipments need of the owner: errands to buckets, calls of other clusters, to be awake in
//! time, and reports of what failed.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use cluster::calls::{Call, calls};
use cluster::change::{Change, Object};
use cluster::errand::{Errand, errands};
use cluster::objects::Millis;
use cluster::shipping::Door;

use super::{Owner, TICK, now};
use crate::log;
use crate::store;

impl Owner {
    /// Sends somebody to the buckets where something is to be done, and looks when the next time is.
    pub(super) fn see_to_schedules(&mut self) {
        let shared = self.shared.clone();
        let state = shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let time = now();
        let all = errands(&state.model, &state.observed, time);
        self.errands.go(all, &state);
        self.calls.go(calls(&state.model, &state.observed), &state);
        if let Some(wake) = state.model.next_wake(time) {
            let wake = Instant::now() + Duration::from_millis(wake.since(time)).min(TICK);
            self.next_tick = self.next_tick.min(wake);
        }
    }

    /// Takes note of what was found in a bucket.
    pub(super) fn errand_is_back(
        &mut self,
        errand: Errand,
        outcome: Result<Vec<String>, String>,
    ) -> Result<(), store::Error> {
        self.errands.back(&errand);
        let noted = self.apply(vec![(errand.done(outcome), None)])?;
        for failure in noted.into_iter().filter_map(Result::err) {
            log::error("schedule", format_args!("what was found was not noted: {failure}"));
        }
        Ok(())
    }

    /// Takes note of what another cluster has answered.
    pub(super) fn call_is_back(
        &mut self,
        call: Call,
        outcome: Result<(Door, Option<String>), String>,
    ) -> Result<(), store::Error> {
        self.calls.back(&call);
        let noted = self.apply(vec![(call.done(outcome), None)])?;
        for failure in noted.into_iter().filter_map(Result::err) {
            log::error("shipping", format_args!("an answer was not noted: {failure}"));
        }
        Ok(())
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
