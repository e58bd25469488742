//! Openers that have a volume open only while they need it: devices that are there all the time (`crate::maps::standby`).
//!
//! ```text
//!             a request                    the core agrees
//!   closed ──────────────► asked, it waits ───────────────► open for reading, or for writing
//!     ▲                         │ it refuses: that request fails        │
//!     └─────────────────────────┴────────── stand_down ◄────────────────┘
//! ```
//!
//! What is open for reading, and is to be written, is opened once more under the same number; closing ends both.

use std::time::Duration;

use runtime::{Errno, Op, OpenerId, Request, clock};
use serde::{Deserialize, Serialize};
use vocab::Instant;

use super::Wish;

/// How a volume is open, or is to be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Access {
    /// Others may read.
    Read,
    /// This node is Primary.
    Write,
}

/// For so long after a refusal nobody waits until another node is no longer Primary: who asks for one block after the
/// other, to find out what is on a device, is told at once.
const IMPATIENT: Duration = Duration::from_secs(5);

/// What becomes of a request.
pub(super) enum Taken {
    /// It can be carried out.
    Now(Request),
    /// It waits for an answer of the core.
    Held,
}

/// Requests after an answer of the core.
#[derive(Default)]
pub(super) struct Answered {
    /// They can be carried out.
    pub(super) ready: Vec<Request>,
    /// They can not.
    pub(super) failed: Vec<Request>,
}

/// What there is to such an opener.
pub(super) struct Standby {
    access: Option<Access>,
    /// What the core was asked for.
    asked: Option<Access>,
    /// They wait for that, or for more.
    held: Vec<Request>,
    /// When the core has refused last.
    refused: Option<Instant>,
}

impl Standby {
    pub(super) fn new() -> Standby {
        Standby::inherited(None)
    }

    /// One that another process had.
    pub(super) fn inherited(access: Option<Access>) -> Standby {
        Standby { access, asked: None, held: Vec::new(), refused: None }
    }

    pub(super) fn access(&self) -> Option<Access> {
        self.access
    }

    /// Nothing waits for the core.
    pub(super) fn is_settled(&self) -> bool {
        self.asked.is_none() && self.held.is_empty()
    }

    /// A flush is not answered without the volume: what it is to make durable may have been written before it was closed,
    /// or before an engine was killed.
    const fn needs(op: Op) -> Access {
        match op {
            Op::Read | Op::BlockStatus(_) => Access::Read,
            Op::Write | Op::Trim | Op::WriteZeroes { .. } | Op::Flush => Access::Write,
        }
    }

    /// A request arrives.
    pub(super) fn take(&mut self, request: Request) -> Taken {
        if self.access < Some(Standby::needs(request.op)) {
            self.held.push(request);
            return Taken::Held;
        }
        Taken::Now(request)
    }

    /// It is to be open at least so, though nobody has asked for anything. What the core is to be asked.
    pub(super) fn want(&mut self, opener: OpenerId, access: Access) -> Option<Wish> {
        if self.asked.is_some() || self.access >= Some(access) {
            return None;
        }
        self.asked = Some(access);
        // The last user of another node may be about to leave, and is noticed a little late.
        let patient = self.refused.is_none_or(|at| clock::now().since(at) >= IMPATIENT);
        Some(Wish::Open { opener: opener.0, write: access == Access::Write, patient })
    }

    /// What the core is to be asked for requests that wait.
    pub(super) fn next(&mut self, opener: OpenerId) -> Option<Wish> {
        let most = self.held.iter().map(|request| Standby::needs(request.op)).max()?;
        self.want(opener, most)
    }

    /// The core has answered.
    pub(super) fn answered(&mut self, result: Result<(), Errno>) -> Answered {
        let asked = self.asked.take();
        match result {
            Ok(()) => (self.access, self.refused) = (self.access.max(asked), None),
            Err(_) => self.refused = Some(clock::now()),
        }
        let mut answered = Answered::default();
        for request in std::mem::take(&mut self.held) {
            let needs = Some(Standby::needs(request.op));
            if self.access >= needs {
                answered.ready.push(request);
            } else if needs == asked && result.is_err() {
                answered.failed.push(request);
            } else {
                self.held.push(request);
            }
        }
        answered
    }

    /// Nobody waits for an answer any more.
    pub(super) fn forget(&mut self) {
        self.held.clear();
    }

    /// The core has closed it.
    pub(super) fn closed(&mut self) {
        self.access = None;
    }
}

#[cfg(test)]
mod tests {
    use replication::io::OpenError;
    use runtime::{BufPool, Completion, Intent, Target};
    use vocab::{Refusal, Sectors, StateError, VolumeNr};

    use super::super::{Bufs, Volume};
    use super::*;

    const OPENER: OpenerId = OpenerId(7);

    fn volume() -> Volume {
        let mut volume = Volume::new(0, 0, VolumeNr(0));
        volume.set_size(Sectors(1 << 20));
        volume.open(OPENER, Intent::Standby, 1);
        let opened: Vec<_> = completions(&mut volume);
        assert_eq!(opened, [(1, Ok(()))], "there is nothing to wait for");
        volume
    }

    fn completions(volume: &mut Volume) -> Vec<(u64, Result<(), Errno>)> {
        let mut all: Vec<Completion> = Vec::new();
        volume.poll_completions(&mut all);
        all.into_iter().map(|done| (done.tag, done.result)).collect()
    }

    fn ask(volume: &mut Volume, op: Op, tag: u64) {
        let (len, buf) = match op {
            Op::Read | Op::Write => {
                (4096, Some(BufPool::new(1 << 20).unwrap().alloc(4096).unwrap()))
            }
            Op::Flush => (0, None),
            _ => (4096, None),
        };
        let (offset, fua, place) = (0, false, None);
        volume.submit(Request { opener: OPENER, tag, op, offset, len, fua, buf, place });
    }

    /// What it wants of the core: `r` and `w` to be opened with patience, `R` and `W` without, `c` to be closed, `q`
    /// something of a user.
    fn wishes(volume: &mut Volume) -> (String, Vec<u64>) {
        let (mut words, mut ids) = (String::new(), Vec::new());
        for wish in volume.wishes.drain(..) {
            words.push(match wish {
                Wish::Open { write: false, patient: true, .. } => 'r',
                Wish::Open { write: true, patient: true, .. } => 'w',
                Wish::Open { write: false, patient: false, .. } => 'R',
                Wish::Open { write: true, patient: false, .. } => 'W',
                Wish::Close { .. } => 'c',
                Wish::Request { id, .. } | Wish::Look { id, .. } => {
                    ids.push(id);
                    'q'
                }
            });
        }
        (words, ids)
    }

    fn done(volume: &mut Volume, ids: &[u64]) {
        ids.iter().for_each(|id| volume.completed(*id, Ok(None), &Bufs::default()));
    }

    fn refused() -> Result<(), OpenError> {
        Err(OpenError::PromotionRefused(Refusal::from(StateError::TwoPrimaries)))
    }

    #[test]
    fn a_request_opens_the_volume_as_it_needs_it_and_nobody_keeps_it_open() {
        let mut volume = volume();
        assert_eq!(wishes(&mut volume).0, "");
        assert_eq!(volume.openers(), 0, "it is in nobody's way");
        ask(&mut volume, Op::Read, 3);
        ask(&mut volume, Op::Read, 4);
        assert_eq!(wishes(&mut volume).0, "r");
        assert!(!volume.is_at_rest() && volume.openers() == 1);
        ask(&mut volume, Op::Write, 5);
        assert_eq!(wishes(&mut volume).0, "", "one after the other");
        volume.opened(OPENER.0, &Ok(()));
        let (words, ids) = wishes(&mut volume);
        assert_eq!(words, "qqw", "reads go on, the write asks for more");
        volume.opened(OPENER.0, &Ok(()));
        let (words, more) = wishes(&mut volume);
        assert_eq!(words, "q");
        assert!(!volume.stand_down(3), "some are under way");
        done(&mut volume, &ids);
        done(&mut volume, &more);
        assert_eq!(completions(&mut volume), [(3, Ok(())), (4, Ok(())), (5, Ok(()))]);
        assert!(!volume.stand_down(2), "there has been one that the caller does not know of");
        let all = volume.standby_use().unwrap();
        assert_eq!((all.access, all.requests), (Some(Access::Write), 3));
        assert!(volume.stand_down(3));
        assert_eq!(wishes(&mut volume).0, "c", "one close for both");
        assert_eq!(volume.openers(), 0);
        ask(&mut volume, Op::Flush, 6);
        assert_eq!(wishes(&mut volume).0, "w", "what was written may not be durable");
    }

    #[test]
    fn what_can_not_be_opened_fails_and_the_next_one_asks_anew() {
        let mut volume = volume();
        ask(&mut volume, Op::Write, 2);
        ask(&mut volume, Op::Read, 3);
        assert_eq!(wishes(&mut volume).0, "w");
        volume.opened(OPENER.0, &refused());
        assert_eq!(completions(&mut volume), [(2, Err(Errno::EROFS))]);
        assert_eq!(wishes(&mut volume).0, "R", "reading needs less, and nobody waits twice");
        volume.opened(OPENER.0, &Err(OpenError::NoData));
        assert_eq!(completions(&mut volume), [(3, Err(Errno(libc::ENODATA)))]);
        assert!(volume.is_at_rest() && volume.openers() == 0);
        ask(&mut volume, Op::Trim, 4);
        assert_eq!(wishes(&mut volume).0, "W");
        volume.opened(OPENER.0, &Ok(()));
        assert_eq!(wishes(&mut volume).0, "q");
    }

    /// Also by an opener that has written nothing: an engine before may have, and was killed.
    #[test]
    fn a_flush_is_not_answered_without_the_volume() {
        let mut volume = volume();
        ask(&mut volume, Op::Flush, 2);
        assert_eq!((wishes(&mut volume).0.as_str(), completions(&mut volume)), ("w", vec![]));
        volume.opened(OPENER.0, &Ok(()));
        assert_eq!(wishes(&mut volume).0, "q");
    }

    #[test]
    fn who_closes_hears_nothing_more_whatever_the_core_answers() {
        for result in [Ok(()), refused()] {
            let mut volume = volume();
            ask(&mut volume, Op::Read, 2);
            volume.opened(OPENER.0, &Ok(()));
            let (_, ids) = wishes(&mut volume);
            ask(&mut volume, Op::Write, 3);
            assert_eq!(wishes(&mut volume).0, "w");
            volume.close(OPENER);
            assert_eq!(wishes(&mut volume).0, "", "a read is under way");
            volume.opened(OPENER.0, &result);
            done(&mut volume, &ids);
            assert_eq!(wishes(&mut volume).0, "c");
            assert_eq!(completions(&mut volume), []);
            assert!(volume.is_at_rest() && volume.openers() == 0);
        }
    }

    #[test]
    fn another_process_has_it_open_as_it_was() {
        let mut volume = volume();
        assert_eq!(volume.at_rest().standby, [(7, None)]);
        volume.stand_up(Access::Read);
        assert_eq!(wishes(&mut volume).0, "r");
        assert_eq!(volume.standby_is_open(), None);
        volume.opened(OPENER.0, &refused());
        assert_eq!(volume.standby_is_open(), Some(false));
        volume.stand_up(Access::Read);
        assert_eq!(wishes(&mut volume).0, "R");
        volume.opened(OPENER.0, &Ok(()));
        assert_eq!(volume.standby_is_open(), Some(true));
        assert!(volume.is_at_rest());
        let at_rest = volume.at_rest();
        assert_eq!((&at_rest.openers, at_rest.openers().next()), (&Vec::new(), Some(7)));
        let mut heir = Volume::new(0, 0, VolumeNr(0));
        heir.set_at_rest(at_rest);
        ask(&mut heir, Op::Read, 2);
        assert_eq!(wishes(&mut heir).0, "q");
        ask(&mut heir, Op::Flush, 3);
        assert_eq!(wishes(&mut heir).0, "w", "the one before may have written");
    }
}
