//! How long a peer takes to answer the pings that the core sends anyway.
//!
//! Nothing is sent for the sake of measuring: a kernel node may answer several pings at once with
//! one P_PING_ACK, so a ping of our own could take the answer that the core waits for. For the same
//! reason the time runs from the first ping that has no answer yet.

use std::time::Duration;

use vocab::Instant;

/// The pings of one connection.
#[derive(Debug, Default)]
pub(super) struct PingTime {
    state: State,
    /// How long the last answer took.
    pub(super) last: Option<Duration>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Queued, and not sent yet.
    Queued,
    /// Sent then.
    Sent(Instant),
}

impl PingTime {
    pub(super) fn queued(&mut self) {
        if let State::Idle = self.state {
            self.state = State::Queued;
        }
    }

    pub(super) fn flushed(&mut self, now: Instant) {
        if let State::Queued = self.state {
            self.state = State::Sent(now);
        }
    }

    /// A ping has no answer yet.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    pub(super) fn answered(&mut self, now: Instant) {
        if let State::Sent(at) = std::mem::take(&mut self.state) {
            self.last = Some(now.since(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::default() + Duration::from_millis(ms)
    }

    #[test]
    fn time_runs_from_the_first_ping_without_an_answer() {
        let mut ping = PingTime::default();
        // An answer nobody asked for, then a flush with nothing to send.
        ping.answered(at(1));
        ping.flushed(at(2));
        assert_eq!(ping.last, None);
        ping.queued();
        ping.flushed(at(10));
        ping.queued();
        ping.flushed(at(15));
        ping.answered(at(30));
        assert_eq!(ping.last, Some(Duration::from_millis(20)));
        // The second answer, if the peer sends one.
        ping.answered(at(40));
        assert_eq!(ping.last, Some(Duration::from_millis(20)));
    }
}
