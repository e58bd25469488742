//! Listens to a node's events, to see resyncs that are over in a moment.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use codec::admin::{Event, Request, ResourceStatus};
use surfaces::cli::Client;
use vocab::Sectors;

use super::NodeNr;
use super::cluster::RESOURCE;

/// How long the engine may take to accept the subscription.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes each resync with a peer had to copy when it began; the largest seen.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<BTreeMap<NodeNr, u64>>>);

impl Watch {
    /// Watches from now on, until the engine ends.
    ///
    /// # Errors
    /// If the engine does not accept.
    pub fn start(socket: &Path) -> anyhow::Result<Watch> {
        let mut client = Client::connect(socket, PATIENCE, Duration::ZERO)?;
        let resource = Some(RESOURCE.to_owned());
        let request = Request::Events { resource, statistics_ms: None };
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

    fn note(&self, status: &ResourceStatus) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for connection in &status.connections {
            for sync in connection.peer_devices.iter().filter_map(|p| p.sync.as_ref()) {
                let bytes = seen.entry(connection.peer_node_id.get()).or_default();
                *bytes = (*bytes).max(Sectors(sync.rs_total).bytes().0);
            }
        }
    }

    /// What the largest resync with `peer` had to copy, in bytes; `None` if there was none.
    pub fn resynced(&self, peer: NodeNr) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&peer).copied()
    }
}
