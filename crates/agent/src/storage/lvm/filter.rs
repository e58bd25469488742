//! What LVM is not to look at when an agent calls it: devices of volumes, ours and DRBD's, and their disks once
//! they are decrypted.
//!
//! LVM reads every block device that it may. One whose I/O is suspended, as it is while a snapshot is taken, does
//! not answer before LVM has: the snapshot would take until that is given up. And what LVM finds on a volume it
//! finds on its disk as well, under the same names. The agent's own calls are kept from it here; those of others
//! are for the operator's `lvm.conf`.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::command::{CommandError, Failure, Runner as _, System};

/// Where each volume that is a block device has a name.
const NAMES: &str = "/dev/ashlar";
/// Names that nobody else's devices have.
const OURS: [&str; 4] =
    ["r|^/dev/ublkb|", "r|^/dev/drbd|", "r|^/dev/ashlar/|", "r|^/dev/mapper/Linstor-Crypt-|"];

/// True of LVM's programs that look at devices.
pub fn concerns(program: &str) -> bool {
    // Those have the programs' words behind them, and look at nothing.
    let looks = !program.contains('/') && !program.starts_with("lvm");
    looks && ["lv", "vg", "pv"].into_iter().any(|kind| program.starts_with(kind))
}

/// What such a program is told with `--config`; nothing while it is not known what the operator has said, which
/// it would take the place of.
pub fn config() -> Option<String> {
    static OPERATORS: OnceLock<String> = OnceLock::new();
    let operators = match OPERATORS.get() {
        Some(known) => known,
        None => {
            let said =
                operators(System::default().run(&["lvm", "lvmconfig", "devices/global_filter"]))?;
            OPERATORS.get_or_init(|| said)
        }
    };
    Some(of(operators, &mapped(Path::new(NAMES))))
}

/// What the operator has said, as far as that is known.
fn operators(said: Result<String, CommandError>) -> Option<String> {
    match said {
        Ok(said) => Some(said),
        // Without that setting it fails.
        Err(CommandError { why: Failure::Exit { code: Some(_), .. }, .. }) => Some(String::new()),
        Err(_) => None,
    }
}

/// The devices that volumes have now, of whatever kind.
fn mapped(names: &Path) -> Vec<String> {
    let folder = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path());
    let links = folder(names).flat_map(|resource| folder(&resource).collect::<Vec<_>>());
    let devices = links.filter_map(|link| fs::canonicalize(link).ok());
    let mut devices: Vec<String> =
        devices.filter_map(|device| device.to_str().map(str::to_owned)).collect();
    devices.sort();
    devices
}

/// The first pattern that matches counts, and a device that none matches is looked at.
fn of(operators: &str, mapped: &[String]) -> String {
    let mut patterns: Vec<String> = OURS.iter().map(|pattern| format!("{pattern:?}")).collect();
    patterns.extend(mapped.iter().map(|device| format!("\"r|^{device}$|\"")));
    let theirs = operators.split_once('[').and_then(|(_, rest)| rest.rsplit_once(']'));
    let theirs = theirs.map_or("", |(patterns, _)| patterns).split(',').map(str::trim);
    // One that takes everything would take our devices by other names that they have.
    patterns.extend(theirs.filter(|p| !p.is_empty() && !takes_all(p)).map(str::to_owned));
    format!("devices/global_filter=[{}]", patterns.join(","))
}

/// True of `a|.*|`, whatever stands around the expression.
fn takes_all(pattern: &str) -> bool {
    let mut inside = pattern.trim_matches('"').strip_prefix('a').unwrap_or_default().chars();
    let (first, last) = (inside.next(), inside.next_back());
    first.is_some() && first == last && [".*", ".*/", "."].contains(&inside.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_look_at_devices_are_kept_from_ours() {
        assert!(
            ["lvs", "vgs", "pvs", "lvcreate", "vgcreate", "pvcreate"].into_iter().all(concerns)
        );
        assert!(
            ["zfs", "cryptsetup", "lvm", "lvmconfig", "/bin/lvs"].into_iter().all(|p| !concerns(p))
        );
    }

    #[test]
    fn what_the_operator_keeps_out_stays_out() {
        let ours = r#""r|^/dev/ublkb|","r|^/dev/drbd|","r|^/dev/ashlar/|","r|^/dev/mapper/Linstor-Crypt-|""#;
        assert_eq!(of("", &[]), format!("devices/global_filter=[{ours}]"));
        assert_eq!(
            of("global_filter=[\"r|^/dev/sdz|\", \"a|.*|\"]\n", &["/dev/loop3".to_owned()]),
            format!(r#"devices/global_filter=[{ours},"r|^/dev/loop3$|","r|^/dev/sdz|"]"#)
        );
        for all in [r#""a/.*/""#, r#""a|.*/|""#, r#""a!.!""#] {
            assert!(takes_all(all), "{all}");
        }
        assert!(!takes_all(r#""a|/dev/sda|""#) && !takes_all(r#""r|.*|""#) && !takes_all(""));
        let chosen = of(r#"global_filter=["a|/dev/sda|","r|.*|"]"#, &[]);
        assert!(chosen.ends_with(r#","a|/dev/sda|","r|.*|"]"#), "{chosen}");
    }

    #[test]
    fn nothing_is_said_in_the_operators_place_before_that_is_known() {
        let failed = |why| Err(CommandError { command: "lvmconfig".to_owned(), why });
        let unset = Failure::Exit { code: Some(5), stderr: "not found".to_owned() };
        assert_eq!(operators(failed(unset)), Some(String::new()));
        assert_eq!(operators(failed(Failure::NotRun("no memory".to_owned()))), None);
        assert_eq!(operators(failed(Failure::Exit { code: None, stderr: String::new() })), None);
    }

    #[test]
    fn a_mapped_volume_is_known_by_its_device() {
        let names = tempfile::tempdir().unwrap();
        fs::create_dir(names.path().join("web")).unwrap();
        let device = names.path().join("loop7");
        fs::write(&device, "").unwrap();
        std::os::unix::fs::symlink(&device, names.path().join("web/0")).unwrap();
        let found = mapped(names.path());
        assert_eq!(found, [fs::canonicalize(device).unwrap().to_str().unwrap()]);
        assert!(mapped(&names.path().join("none")).is_empty());
    }
}
