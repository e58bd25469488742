//! From a snapshot to the agent of another cluster, which listens and makes a snapshot of it.
//!
//! What is sent of a volume is an archive, as for a backup.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use cluster::shipping::{Peer, Phase, UploadOrder};
use shipping::archive::{Header, Identity, Writer};

use super::line::{Line, Parts};
use super::upload::write;
use super::{Work, of_io};
use crate::failed::Failed;

impl Work<'_> {
    /// Ships a snapshot to who waits for it.
    pub(super) fn send(&mut self, order: &UploadOrder, peer: &Peer) -> Result<(), Failed> {
        // Before anybody is called: it may not be there.
        self.volumes_of(&order.snapshot)?;
        let line = Rc::new(RefCell::new(self.reach(peer)?));
        let sent = self.send_all(order, &line);
        self.remove_copies();
        let Err(failed) = sent else { return Ok(()) };
        // What the receiver says of it is nearer to the cause.
        Err(match line.borrow_mut().verdict() {
            Some(said) => {
                let cause = format!("the node that receives it has ended it: {said}");
                Failed::new(cause, "see to that, then ship it again")
            }
            None => failed,
        })
    }

    fn send_all(&mut self, order: &UploadOrder, line: &Rc<RefCell<Line>>) -> Result<(), Failed> {
        let volumes = self.volumes_of(&order.snapshot)?;
        let total = self.sizes(&order.snapshot, &volumes)?;
        let mut done = 0;
        for (number, (pool, kind)) in &volumes {
            let source = self.open(&order.snapshot, *number, pool, *kind)?;
            let base = self.base(order, *number, "ship all of it")?;
            let header = Header {
                size: source.size,
                own: Identity::new(&order.backup, *number),
                base: base.as_ref().map(|(_, called)| Identity::new(called, *number)),
            };
            let what = format!("ship volume {number} of snapshot {}", order.snapshot);
            let failed = |error: io::Error| of_io(&what, &error);
            let mut writer = Writer::new(Parts::new(line.clone()), header).map_err(failed)?;
            let size = source.size;
            let mut progress = |at: u64| {
                line.borrow_mut().beat()?;
                self.progress(done + at, total)
            };
            write(order, &source, base.as_ref().map(|(base, _)| base), &mut writer, &mut progress)
                .map_err(failed)?;
            writer.finish().and_then(Parts::end).map_err(failed)?;
            done += size;
        }
        self.phase(Phase::Finishing);
        let finished = line.borrow_mut().finish();
        finished.map_err(|error| of_io("end the shipment", &error))
    }
}
