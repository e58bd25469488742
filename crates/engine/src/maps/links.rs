//! Names of a device that stay the same: symbolic links below `/dev`.
//!
//! ```text
//! /dev/ashlar/RESOURCE/VOLUME               always
//! /dev/drbdMINOR                            as DRBD's, if they are wished for
//! /dev/drbd/by-res/RESOURCE/VOLUME
//! ```

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use vocab::{Minor, VolumeNr};

/// The names of a device. Links go with it.
#[derive(Debug)]
pub(super) struct Links {
    paths: Vec<PathBuf>,
}

impl Links {
    /// The names a volume's device is to have, with DRBD's if there is a minor.
    ///
    /// # Errors
    /// Something is there that is not a link, such as a device of the kernel's DRBD.
    pub(super) fn new(resource: &str, nr: VolumeNr, minor: Option<Minor>) -> Result<Links, String> {
        Links::below(Path::new("/dev"), resource, nr, minor)
    }

    fn below(
        dev: &Path,
        resource: &str,
        nr: VolumeNr,
        minor: Option<Minor>,
    ) -> Result<Links, String> {
        let mut paths = Vec::new();
        // A resource may have a name that means another folder; it does without.
        if ![".", ".."].contains(&resource) {
            paths.push(dev.join("ashlar").join(resource).join(nr.to_string()));
            if minor.is_some() {
                paths.push(dev.join("drbd/by-res").join(resource).join(nr.to_string()));
            }
        }
        paths.extend(minor.map(|minor| dev.join(format!("drbd{minor}"))));
        for path in &paths {
            match fs::symlink_metadata(path) {
                Ok(there) if !there.is_symlink() => {
                    return Err(format!("{} exists and is not a link", path.display()));
                }
                _ => {}
            }
        }
        Ok(Links { paths })
    }

    /// Lets the names lead to a device. Links that led elsewhere are replaced.
    ///
    /// # Errors
    /// What could not be made, and why.
    pub(super) fn make(&self, device: &str) -> Result<(), String> {
        for path in &self.paths {
            let failed = |e| format!("{} can not be made a link to {device}: {e}", path.display());
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(failed)?;
            }
            match fs::remove_file(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
                _ => {}
            }
            symlink(device, path).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes the links that lead to the device, and folders that are empty then.
    pub(super) fn remove(&self, device: &str) {
        for path in &self.paths {
            if fs::read_link(path).is_ok_and(|to| to == Path::new(device)) {
                // One that can not be removed leads nowhere, and is replaced by the next map.
                let _ = fs::remove_file(path);
                let _ = path.parent().map(fs::remove_dir);
            }
        }
    }

    /// Those that are there, as they are shown.
    pub(super) fn names(&self) -> Vec<String> {
        let there = self.paths.iter().filter(|path| fs::symlink_metadata(path).is_ok());
        there.map(|path| path.display().to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_come_and_go_with_the_device_and_spare_what_is_not_theirs() {
        let dev = tempfile::tempdir().unwrap();
        let links = |minor| Links::below(dev.path(), "r0", VolumeNr(1), minor);
        let all = links(Some(Minor(7))).unwrap();
        let names = ["ashlar/r0/1", "drbd/by-res/r0/1", "drbd7"].map(|name| dev.path().join(name));
        assert_eq!(all.paths, names);
        all.make("/dev/ublkb3").unwrap();
        all.make("/dev/ublkb7").unwrap();
        for name in &names {
            assert_eq!(fs::read_link(name).unwrap(), Path::new("/dev/ublkb7"));
        }
        all.remove("/dev/ublkb3");
        assert!(fs::read_link(&names[0]).is_ok(), "it leads to another device");
        all.remove("/dev/ublkb7");
        assert!(names.iter().all(|name| fs::symlink_metadata(name).is_err()));
        assert!(!dev.path().join("ashlar/r0").exists(), "empty folders go too");
        fs::write(dev.path().join("drbd7"), "a device").unwrap();
        assert!(links(Some(Minor(7))).unwrap_err().contains("drbd7"));
        assert_eq!(links(None).unwrap().paths, names[..1]);
        let outside = Links::below(dev.path(), "..", VolumeNr(1), None).unwrap();
        assert!(outside.paths.is_empty());
    }
}
