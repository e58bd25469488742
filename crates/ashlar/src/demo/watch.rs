//! Listens to a node's events to learn how much it resyncs, since that may be over in a moment.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use codec::admin::{Event, PeerDeviceStatus, Request, ResourceStatus};
use surfaces::cli::Client;
use vocab::{ReplState, Sectors};

use super::NodeNr;
use super::cluster::RESOURCE;

/// How long the engine may take to accept the subscription.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often numbers come while a resync runs.
const INTERVAL_MS: u32 = 20;

/// What a node has resynced from its peers.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<BTreeMap<NodeNr, Source>>>);

/// Resyncs from one peer, in sectors.
#[derive(Clone, Copy, Debug, Default)]
struct Source {
    /// Copied by resyncs that are over.
    done: u64,
    /// One that runs: what was left when it began or went on after a pause, and what is left.
    running: Option<(u64, u64)>,
}

impl Source {
    fn note(&mut self, device: &PeerDeviceStatus) {
        // `out-of-sync` is KiB.
        let left = device.out_of_sync * 2;
        match (device.replication_state, self.running) {
            // Only one source is read from at a time; the others pause.
            (ReplState::SyncTarget, None) => self.running = Some((left, left)),
            (ReplState::SyncTarget, Some((begin, _))) => self.running = Some((begin, left)),
            (_, None) => {}
            // It came to its end between two looks.
            (ReplState::Established, Some((begin, _))) if left == 0 => self.end(begin),
            (_, Some((begin, last))) => self.end(begin.saturating_sub(last)),
        }
    }

    fn end(&mut self, copied: u64) {
        self.done += copied;
        self.running = None;
    }
}

impl Watch {
    /// Watches from now on, until the engine ends.
    ///
    /// # Errors
    /// If the engine does not accept.
    pub fn start(socket: &Path) -> anyhow::Result<Watch> {
        let mut client = Client::connect(socket, PATIENCE, Duration::ZERO)?;
        let resource = Some(RESOURCE.to_owned());
        let request = Request::Events { resource, statistics_ms: Some(INTERVAL_MS) };
        client.ask("events", request).context("the engine does not report events")?;
        let watch = Watch::default();
        let seen = watch.clone();
        thread::spawn(move || {
            while let Ok(Some(event)) = client.event() {
                if let Event::Resource(status) = event {
                    seen.note(&status);
                }
            }
        });
        Ok(watch)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeNr, Source>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, status: &ResourceStatus) {
        let mut sources = self.lock();
        for connection in &status.connections {
            let source = sources.entry(connection.peer_node_id.get()).or_default();
            connection.peer_devices.iter().for_each(|device| source.note(device));
        }
    }

    /// True if no resync runs.
    pub fn is_idle(&self) -> bool {
        self.lock().values().all(|source| source.running.is_none())
    }

    /// What was copied from all peers, in bytes.
    pub fn copied(&self) -> u64 {
        Sectors(self.lock().values().map(|source| source.done).sum()).bytes().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::admin::ResyncSuspended;
    use vocab::{DiskState, VolumeNr};

    fn copied(looks: &[(ReplState, u64)]) -> u64 {
        let mut source = Source::default();
        for (replication_state, out_of_sync) in looks.iter().copied() {
            source.note(&PeerDeviceStatus {
                volume: VolumeNr(0),
                replication_state,
                peer_disk_state: DiskState::UpToDate,
                peer_client: false,
                resync_suspended: ResyncSuspended::default(),
                received: 0,
                sent: 0,
                out_of_sync,
                pending: 0,
                unacked: 0,
                has_sync_details: false,
                has_online_verify_details: false,
                percent_in_sync: 0.0,
                sync: None,
                verify: None,
            });
        }
        source.done / 2
    }

    #[test]
    fn what_a_resync_copies_is_what_was_left_when_it_began() {
        use ReplState::{Established, Off, PausedSyncT, SyncTarget, WFBitMapT};
        let whole = [(WFBitMapT, 0), (SyncTarget, 64), (SyncTarget, 8), (Established, 0)];
        assert_eq!(copied(&whole), 64);
        assert_eq!(copied(&[(SyncTarget, 64), (Established, 0)]), 64, "seen only once");
        assert_eq!(copied(&[(SyncTarget, 64), (SyncTarget, 60), (Off, 60)]), 4, "cut short");
        let paused = [(PausedSyncT, 256), (PausedSyncT, 192), (Established, 0)];
        assert_eq!(copied(&paused), 0, "another source was faster");
        let resumed = [(SyncTarget, 64), (PausedSyncT, 40), (SyncTarget, 40), (Established, 0)];
        assert_eq!(copied(&resumed), 40, "what was copied before the pause was not seen");
        assert_eq!(copied(&[(SyncTarget, 8), (Established, 0), (SyncTarget, 4), (Off, 0)]), 8);
    }
}
