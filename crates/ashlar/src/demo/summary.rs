//! What a run comes to: the table, and the JSON object with the same numbers.

use std::time::Duration;

use serde::Serialize;

use super::screen::{Screen, count, size};

/// The numbers of a run. The field names are the keys of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Writes the volume acknowledged to the application.
    pub acked_writes: u64,
    /// Blocks that at the end hold an older write than the newest acknowledged one, or bytes that
    /// no write explains; and reads during the run that found such bytes.
    pub lost: u64,
    /// Reads during the run that returned an older write than the newest one acknowledged before
    /// the read began.
    pub stale: u64,
    /// From the SIGKILL of the primary to the first write acknowledged by its successor.
    pub takeover_ms: u64,
    /// What the secondary that was killed and came back had to copy.
    pub resync_bytes: u64,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// The three disks hold the same bytes from the first to the last of the volume.
    pub replicas_identical: bool,
    /// Where the kept cluster serves the volume; the node that was Primary last comes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nbd_uris: Vec<String>,
    /// The processes of the kept cluster, in the order of `nbd_uris`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub engine_pids: Vec<u32>,
}

impl Summary {
    /// Nothing was lost, nothing was old, all replicas are equal.
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.stale == 0 && self.replicas_identical
    }

    /// Prints the table, and whether all is well after so long a run.
    pub fn show(&self, screen: &mut Screen, took: Duration) {
        let Summary { acked_writes, lost, stale, takeover_ms, .. } = *self;
        let resync = format!("{} of {}", size(self.resync_bytes), size(self.volume_bytes));
        let identical = if self.replicas_identical { "identical" } else { "DIFFERENT" };
        let rows = [
            ("writes acknowledged", count(acked_writes), None),
            ("lost", count(lost), Some(lost == 0)),
            ("stale", count(stale), Some(stale == 0)),
            ("take-over", format!("{} ms", count(takeover_ms)), None),
            ("resynced", resync, None),
            ("replicas", identical.to_owned(), Some(self.replicas_identical)),
        ];
        screen.ending(&rows, self.is_good(), took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        Summary {
            acked_writes: 10,
            lost: 0,
            stale: 0,
            takeover_ms: 200,
            resync_bytes: 4096,
            volume_bytes: 1 << 20,
            replicas_identical: true,
            nbd_uris: Vec::new(),
            engine_pids: Vec::new(),
        }
    }

    #[test]
    fn the_keys_are_those_that_were_promised() {
        let text = serde_json::to_string(&summary()).unwrap();
        let expected = "{\"acked_writes\":10,\"lost\":0,\"stale\":0,\"takeover_ms\":200,\
                        \"resync_bytes\":4096,\"volume_bytes\":1048576,\"replicas_identical\":true}";
        assert_eq!(text, expected);
        let kept = Summary { nbd_uris: vec!["nbd://a".into()], engine_pids: vec![7], ..summary() };
        let text = serde_json::to_string(&kept).unwrap();
        assert!(text.ends_with("\"nbd_uris\":[\"nbd://a\"],\"engine_pids\":[7]}"), "{text}");
    }

    #[test]
    fn one_loss_spoils_it() {
        assert!(summary().is_good());
        assert!(!Summary { lost: 1, ..summary() }.is_good());
        assert!(!Summary { stale: 1, ..summary() }.is_good());
        assert!(!Summary { replicas_identical: false, ..summary() }.is_good());
    }
}
