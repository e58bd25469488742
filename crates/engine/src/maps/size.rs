//! Devices follow the sizes of their volumes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use codec::admin::Event;
use runtime::{Target, TargetInfo};
use vocab::VolumeNr;

use super::Mapped;
use crate::engine::{Done, Engine, Entry};
use crate::hub::{Hub, Subscriber};
use logging::{Level, log};

/// How long a watch waits at a time.
const QUIET: Duration = Duration::from_secs(3600);

/// Hears of a resource for as long as it is there.
pub(super) struct Watch {
    hub: Arc<Hub>,
    subscriber: Arc<Subscriber>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.hub.unsubscribe(self.subscriber.id);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({})", self.subscriber.id)
    }
}

/// A device whose size can be told anew.
pub(super) trait Resize: Send + 'static {
    /// The size that it has, in KiB; `None` if that can not be seen.
    fn kib(&self) -> Option<u64>;

    /// Gives it the size of its volume.
    ///
    /// # Errors
    /// Why it keeps the one it has.
    fn renew(&self, engine: &Engine, entry: &Entry) -> Result<(), String>;
}

impl Engine {
    /// What a volume is like now; `None` if it is gone.
    pub(super) fn geometry(&self, entry: &Entry, nr: VolumeNr) -> Done<Option<TargetInfo>> {
        let id = entry.id;
        self.on(entry.shard, move |shard| {
            let target = shard.hosts.get_mut(id)?.target(nr)?;
            shard.volumes.get_mut(target).map(|volume| volume.info())
        })
    }

    /// For a device of a resource.
    pub(super) fn watch_size(&self, resource: &str) -> Watch {
        let subscriber = self.hub.subscribe(Some(resource.to_owned()));
        Watch { hub: self.hub.clone(), subscriber }
    }

    /// Gives a device its volume's size whenever that has changed.
    pub(super) fn follow_size(
        self: &Arc<Self>,
        entry: &Entry,
        nr: VolumeNr,
        mapped: &Mapped,
        device: impl Resize,
    ) {
        let (engine, resource) = (Arc::downgrade(self), entry.name.clone());
        let (subscriber, path) = (mapped.watch.subscriber.clone(), mapped.path.clone());
        let run = move || {
            let mut known = None;
            while let Some(news) = subscriber.take(QUIET) {
                let mut sizes = news.iter().filter_map(|event| match event {
                    Event::Resource(status) => {
                        status.devices.iter().find(|device| device.volume == nr).map(|d| d.size)
                    }
                    _ => None,
                });
                let Some(size) = sizes.next_back().filter(|size| known != Some(*size)) else {
                    continue;
                };
                let is_first = known.replace(size).is_none();
                let Some(engine) = engine.upgrade() else { return };
                let Ok(entry) = engine.entry(&resource) else { return };
                if is_first && device.kib() == Some(size) {
                    continue;
                }
                match device.renew(&engine, &entry) {
                    Ok(()) => log!(Level::Info, resource, "volume {nr}: {path} has its new size"),
                    Err(why) => log!(Level::Error, resource, "{path} keeps its size: {why}"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("map-size".to_owned()).spawn(run);
        if let Err(e) = thread {
            log!(Level::Error, entry.name, "volume {nr}: no thread to watch its size: {e}");
        }
    }
}
