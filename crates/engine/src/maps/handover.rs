//! Mapped volumes on their way to another process, which goes on with their devices.
//!
//! The volume stays open all the time, so nobody else can have written. A loop device, or one of the NBD client, is
//! served by a process that keeps its connection. A device of ublk is the kernel's to hand on, once the engine before is gone.

use std::sync::Arc;

use codec::admin::{Face, MapOptions};
use frontend::ublk::DeviceKey;
use serde::{Deserialize, Serialize};
use vocab::VolumeNr;

use super::links::Links;
use super::ublk::{knows, needs};
use super::{Kind, Map, Mapped, State};
use crate::engine::{Done, Engine, Entry, Stop, lock};
use crate::restore::text;
use logging::{Level, log};

/// A mapped volume.
#[derive(Serialize, Deserialize)]
struct FrozenMap {
    resource: String,
    volume: u16,
    options: MapOptions,
    path: String,
    shard: usize,
    key: DeviceKey,
    /// If it is a device of ublk.
    ublk: Option<FrozenUblk>,
}

/// A device of ublk.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(untagged)]
enum FrozenUblk {
    /// The driver's number: any engine can go on with it.
    Plain(u32),
    /// It uses features of the driver that an engine has to know. One from before them does not understand this,
    /// and refuses to take over.
    Special { number: u32, needs: Vec<String> },
}

impl FrozenUblk {
    fn new(number: u32, needs: Vec<String>) -> FrozenUblk {
        match needs.is_empty() {
            true => FrozenUblk::Plain(number),
            false => FrozenUblk::Special { number, needs },
        }
    }

    /// The driver's number.
    ///
    /// # Errors
    /// This engine lacks something.
    fn number(self) -> Result<u32, String> {
        match self {
            FrozenUblk::Plain(number) => Ok(number),
            FrozenUblk::Special { number, needs } => match needs.iter().find(|f| !knows(f)) {
                Some(unknown) => Err(format!(
                    "/dev/ublkb{number} uses {unknown}, which this engine does not know; unmap it first"
                )),
                None => Ok(number),
            },
        }
    }
}

impl Engine {
    /// Refuses while a device has yet to be brought back: this engine is at it.
    pub(crate) fn check_maps_handover(&self) -> Done {
        let maps = lock(&self.maps);
        for ((resource, nr), map) in &maps.by_volume {
            let (_, Some(mapped)) = map.there() else {
                return Err(Stop::invalid(format!(
                    "{resource}/{nr} is to be mapped, and is not yet (`ashlar maps` says why); wait for \
                     that, or `ashlar unmap {resource}/{nr}` first"
                )));
            };
            let Kind::Ublk(number) = mapped.kind else { continue };
            let lasts = self.ublk_outlives(number).map_err(|e| Stop::invalid(e.to_string()))?;
            if !lasts {
                return Err(Stop::invalid(format!(
                    "{} ends with this engine, as all devices of engines that are not root; `ashlar unmap \
                     {resource}/{nr}` first",
                    mapped.path
                )));
            }
        }
        Ok(())
    }

    /// All mapped volumes, for [`Engine::inherit_maps`].
    ///
    /// # Errors
    /// If that can not be put into words.
    pub(crate) fn freeze_maps(&self) -> Result<String, String> {
        let maps = lock(&self.maps);
        let (mut frozen, mut control) = (Vec::new(), None);
        for ((resource, volume), map) in &maps.by_volume {
            let (options, Some(mapped)) = map.there() else { continue };
            let ublk = match mapped.kind {
                Kind::Ublk(number) => {
                    let needs = needs(&mut control, number).map_err(|e| e.to_string())?;
                    Some(FrozenUblk::new(number, needs))
                }
                Kind::Process(_) => None,
            };
            frozen.push(FrozenMap {
                resource: resource.clone(),
                volume: *volume,
                options,
                path: mapped.path.clone(),
                shard: mapped.shard,
                key: mapped.key,
                ublk,
            });
        }
        serde_json::to_string(&frozen).map_err(|e| e.to_string())
    }

    /// Takes over what another process had mapped; the devices wait for [`Engine::go_on_with_maps`].
    ///
    /// # Errors
    /// Why that is not possible.
    pub(crate) fn inherit_maps(&self, maps: &str) -> Result<(), String> {
        let maps: Vec<FrozenMap> = serde_json::from_str(maps).map_err(|e| e.to_string())?;
        for map in maps {
            let FrozenMap { resource, volume, options, path, shard, key, ublk } = map;
            let nr = VolumeNr(volume);
            let entry = self.entry(&resource).map_err(|stop| text(&stop))?;
            let minor = self.minor_of(&entry, nr).map_err(|stop| text(&stop))?;
            let links = Links::new(&resource, nr, options.drbd_names.then_some(minor))?;
            let kind = match ublk.map(FrozenUblk::number).transpose()? {
                Some(number) => Kind::Ublk(number),
                None => {
                    // It was chosen when the volume was mapped.
                    let face = options.face.unwrap_or(Face::Fuse);
                    Kind::Process(self.adopt_process(&entry, nr, minor, face))
                }
            };
            let watch = self.watch_size(&resource);
            let state = State::Mapped(Arc::new(Mapped { path, links, shard, key, kind, watch }));
            lock(&self.maps).by_volume.insert((resource, volume), Map { options, state });
        }
        Ok(())
    }

    /// Goes on with all devices of an engine that is gone.
    pub(crate) fn go_on_with_maps(self: &Arc<Self>) {
        let all: Vec<(String, u16)> = lock(&self.maps).by_volume.keys().cloned().collect();
        for (resource, volume) in all {
            let Ok(entry) = self.entry(&resource) else { continue };
            let _pass = entry.pass();
            let found = lock(&self.maps).by_volume.get(&(resource.clone(), volume)).map(Map::there);
            // Somebody may have unmapped it meanwhile.
            let Some((options, Some(mapped))) = found else { continue };
            let nr = VolumeNr(volume);
            match &mapped.kind {
                Kind::Process(_) => self.follow_process(&entry, nr, options, &mapped),
                Kind::Ublk(number) => {
                    if let Err(why) = self.go_on_with_ublk(&entry, nr, &mapped, *number) {
                        self.give_up(&entry, nr, options, &mapped, *number, &why);
                    }
                }
            }
        }
    }

    /// The device goes away under its users, and is made anew.
    fn give_up(
        self: &Arc<Self>,
        entry: &Entry,
        nr: VolumeNr,
        options: MapOptions,
        mapped: &Mapped,
        number: u32,
        why: &str,
    ) {
        log!(Level::Error, entry.name, "{} goes away under its users: {why}", mapped.path);
        if let Err(stop) = self.stop_ublk(mapped, number) {
            return log!(Level::Error, entry.name, "{} stays: {}", mapped.path, text(&stop));
        }
        self.delete_ublk(mapped, number, false);
        let (key, state) = ((entry.name.clone(), nr.0), State::Failed(why.to_owned()));
        lock(&self.maps).by_volume.insert(key, Map { options, state });
        if let Err(stop) = self.map_entry(entry, nr, options) {
            log!(Level::Error, entry.name, "volume {nr} is not mapped: {}", text(&stop));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_an_engine_does_not_know_how_to_serve_is_not_taken_over() {
        let plain = FrozenUblk::new(7, Vec::new());
        assert_eq!(serde_json::to_string(&plain).unwrap(), "7", "as earlier engines have it");
        assert_eq!(serde_json::from_str::<FrozenUblk>("7").unwrap().number(), Ok(7));
        let special = FrozenUblk::new(7, vec!["batch-io".to_owned()]);
        let text = serde_json::to_string(&special).unwrap();
        assert!(
            serde_json::from_str::<Option<u32>>(&text).is_err(),
            "earlier engines refuse {text}"
        );
        assert_eq!(serde_json::from_str::<FrozenUblk>(&text).unwrap().number(), Ok(7));
        let newer = text.replace("batch-io", "from-the-future");
        let refused = serde_json::from_str::<FrozenUblk>(&newer).unwrap().number();
        assert!(refused.unwrap_err().contains("from-the-future"));
    }
}
