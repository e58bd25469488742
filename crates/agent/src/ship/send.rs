//! From a snapshot to the agent of another cluster, which listens and makes a snapshot of it.
//!
//! What is sent of a volume is an archive, as for a backup; but its end always goes along: there the receiver
//! has changed something of what it got before (DRBD's metadata, which are of nobody's peer there).

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use cluster::layer::Layer;
use cluster::shipping::{Peer, Phase, UploadOrder};
use shipping::archive::{Header, Identity, Writer};
use shipping::extents;

use super::line::{Line, Parts};
use super::{Work, of_io};
use crate::failed::Failed;

/// Bytes at the end of a volume that are always sent: DRBD's superblock is within them.
const END: u64 = 1 << 20;
/// In what volumes are compared.
const BLOCK: u64 = 4096;

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
            let base = match &order.base {
                Some((base, called)) => {
                    let parts = self.volumes_of(base)?;
                    let Some((pool, kind)) = parts.get(number) else {
                        let text =
                            format!("snapshot {base} of {} has no volume {number}", self.name);
                        return Err(Failed::new(text, "ship all of it"));
                    };
                    Some((self.open(base, *number, pool, *kind)?, called))
                }
                None => None,
            };
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
            match &base {
                None => extents::write_full(&source.file, size, &mut writer, &mut progress),
                Some((base, _)) => {
                    let always = match order.described.layers.contains(&Layer::Drbd) {
                        true => size.saturating_sub(END) / BLOCK * BLOCK,
                        false => size,
                    };
                    extents::write_changed(
                        &source.file,
                        size,
                        &base.file,
                        base.size,
                        always,
                        &mut writer,
                        &mut progress,
                    )
                }
            }
            .map_err(failed)?;
            writer.finish().and_then(Parts::end).map_err(failed)?;
            done += size;
        }
        self.phase(Phase::Finishing);
        let finished = line.borrow_mut().finish();
        finished.map_err(|error| of_io("end the shipment", &error))
    }
}
