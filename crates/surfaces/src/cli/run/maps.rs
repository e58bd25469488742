//! Volumes as block devices: `map`, `unmap`, `maps`.

use codec::admin::{Answer, MapOptions, MapStatus, Request};
use vocab::VolumeNr;

use super::super::error::Error;
use super::super::objects::{Object, Selection};
use super::{NOT_UP, Session, unfitting};

impl Session<'_> {
    /// The one volume that an object names.
    fn one_volume(&mut self, object: &Object) -> Result<(String, VolumeNr), Error> {
        let running = self.running_config()?;
        let selections = object.select(&running, NOT_UP)?;
        let many = |why: String| Err(Error::Object { object: object.to_string(), why });
        let [Selection { resource, volumes, one_peer: false, .. }] = &selections[..] else {
            return many("one volume is mapped at a time; give RESOURCE/VOLUME".to_owned());
        };
        let [volume] = volumes[..] else {
            return many(format!("it has {} volumes; give RESOURCE/VOLUME", volumes.len()));
        };
        Ok((resource.name.clone(), volume.nr))
    }

    pub(super) fn map(&mut self, object: &Object, options: MapOptions) -> Result<(), Error> {
        let (resource, volume) = self.one_volume(object)?;
        let what = format!("map {resource}/{volume}");
        let maps = match self.ask(&what, Request::Map { resource, volume, options })? {
            Answer::Maps(maps) => maps,
            answer => return Err(unfitting(&what, &answer)),
        };
        if self.common.json {
            return self.json(&maps);
        }
        for device in maps.iter().filter_map(|map| map.device.as_ref()) {
            writeln!(self.out, "{device}")?;
        }
        Ok(())
    }

    pub(super) fn unmap(&mut self, object: &Object) -> Result<(), Error> {
        let (resource, volume) = self.one_volume(object)?;
        self.simple(&format!("unmap {resource}/{volume}"), Request::Unmap { resource, volume })
    }

    pub(super) fn maps(&mut self) -> Result<(), Error> {
        let maps: Vec<MapStatus> = match self.ask("maps", Request::Maps)? {
            Answer::Maps(maps) => maps,
            answer => return Err(unfitting("maps", &answer)),
        };
        if self.common.json {
            return self.json(&maps);
        }
        write!(self.out, "{}", render(&maps))?;
        Ok(())
    }
}

/// A line for each volume, and one more for what is wrong.
fn render(maps: &[MapStatus]) -> String {
    let mut text = String::new();
    for map in maps {
        let device = map.device.as_deref().unwrap_or("-");
        text += &format!("{device} volume:{}/{} face:{}", map.resource, map.volume, map.face);
        if map.read_only {
            text += " read-only";
        }
        if let Some(standby) = map.standby {
            text += &format!(" standby:{}", standby.name());
        }
        if !map.links.is_empty() {
            text += &format!(" links:{}", map.links.join(","));
        }
        if !map.users.is_empty() {
            text += &format!(" used-by:{}", map.users.join(", "));
        }
        text += "\n";
        if let Some(problem) = &map.problem {
            let what = if map.device.is_some() { "problem" } else { "not mapped" };
            text += &format!("  {what}: {problem}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use codec::admin::Standby;

    use super::*;

    #[test]
    fn a_listing_has_devices_names_users_and_problems() {
        let mapped = MapStatus {
            resource: "r0".to_owned(),
            volume: VolumeNr(1),
            device: Some("/dev/ublkb7".to_owned()),
            links: vec!["/dev/ashlar/r0/1".to_owned(), "/dev/drbd7".to_owned()],
            read_only: true,
            face: "ublk".to_owned(),
            users: vec!["mounted at /mnt".to_owned(), "process 7 (fio)".to_owned()],
            problem: None,
            features: vec!["user-copy".to_owned(), "auto-buf-reg".to_owned()],
            reads_in_place: 9,
            standby: Some(Standby::Reading),
        };
        let waiting = MapStatus {
            device: None,
            links: Vec::new(),
            users: Vec::new(),
            read_only: false,
            standby: None,
            problem: Some("there is no peer".to_owned()),
            ..mapped.clone()
        };
        let broken = MapStatus {
            device: Some("/dev/loop0".to_owned()),
            face: "fuse".to_owned(),
            problem: Some("its process is gone".to_owned()),
            ..waiting.clone()
        };
        assert_eq!(
            render(&[mapped, waiting, broken]),
            "/dev/ublkb7 volume:r0/1 face:ublk read-only standby:reading links:/dev/ashlar/r0/1,/dev/drbd7 \
             used-by:mounted at /mnt, process 7 (fio)\n\
             - volume:r0/1 face:ublk\n  not mapped: there is no peer\n\
             /dev/loop0 volume:r0/1 face:fuse\n  problem: its process is gone\n"
        );
    }
}
