//! What a run comes to: the table, and the JSON object with the same numbers.

use std::time::Duration;

use serde::Serialize;

use super::super::screen::{Screen, count};

/// The numbers of a run. The field names are the keys of the JSON object.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Each node was in a network namespace of its own.
    pub namespaces: bool,
    /// Volumes spawned.
    pub volumes: u64,
    /// From the command to the volume that is UpToDate on its nodes: half of them took at most so
    /// long.
    pub spawn_ms: u64,
    /// Writes that volumes acknowledged to the applications.
    pub acked_writes: u64,
    /// Blocks that at the end, or in the volume made of the snapshot, hold an older write than the
    /// newest acknowledged one, or bytes that no write explains; and reads that found such bytes.
    pub lost: u64,
    /// Reads during the run that returned an older write than the newest one acknowledged before
    /// the read began.
    pub stale: u64,
    /// Replicas that the drained node had.
    pub drained_replicas: u64,
    /// From the drain to the node that has nothing left.
    pub drain_ms: u64,
    /// Replicas that the lost node had.
    pub lost_replicas: u64,
    /// From the kill to as many UpToDate replicas as before, elsewhere.
    pub replaced_ms: u64,
    /// Blocks read in the volume that was made of a snapshot; none if that step was left out.
    pub snapshot_blocks: Option<u64>,
    /// Why the snapshot was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// The replicas of each volume hold the same bytes.
    pub replicas_identical: bool,
    /// The REST API of the control plane that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
}

impl Summary {
    /// Nothing was lost, nothing was old, all replicas are equal.
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.stale == 0 && self.replicas_identical
    }

    /// Prints the table, and whether all is well after so long a run.
    pub fn show(&self, screen: &mut Screen, took: Duration) {
        let identical = if self.replicas_identical { "identical" } else { "DIFFERENT" };
        let snapshot = match self.snapshot_blocks {
            Some(blocks) => format!("{} blocks read", count(blocks)),
            None => "left out".to_owned(),
        };
        let ms = |ms: u64| format!("{} ms", count(ms));
        let moved =
            |replicas: u64, took: u64| format!("{} replicas, {}", count(replicas), ms(took));
        let rows = [
            ("volumes spawned", count(self.volumes), None),
            ("half of them within", ms(self.spawn_ms), None),
            ("writes acknowledged", count(self.acked_writes), None),
            ("lost", count(self.lost), Some(self.lost == 0)),
            ("stale", count(self.stale), Some(self.stale == 0)),
            ("drained", moved(self.drained_replicas, self.drain_ms), None),
            ("lost and replaced", moved(self.lost_replicas, self.replaced_ms), None),
            ("snapshot restored", snapshot, None),
            ("replicas", identical.to_owned(), Some(self.replicas_identical)),
        ];
        screen.ending(&rows, self.is_good(), took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_loss_spoils_it() {
        let good = Summary { replicas_identical: true, ..Summary::default() };
        assert!(good.is_good());
        assert!(!Summary { lost: 1, ..good.clone() }.is_good());
        assert!(!Summary { stale: 1, ..good.clone() }.is_good());
        assert!(!Summary { replicas_identical: false, ..good }.is_good());
    }

    #[test]
    fn what_was_left_out_is_null_with_its_reason() {
        let summary = Summary { left_out: Some("no XFS".into()), ..Summary::default() };
        let text = serde_json::to_string(&summary).unwrap();
        assert!(text.contains("\"snapshot_blocks\":null,\"left_out\":\"no XFS\""), "{text}");
        assert!(!text.contains("controller"), "{text}");
    }
}
