//! Disks of nodes that nobody uses, and the pools that are made of them.

use serde::{Deserialize, Serialize};
use vocab::Bytes;

use crate::objects::Provider;
use crate::refusal::{Code, Refusal};
use crate::row;

/// The smallest disk that is told of.
pub const SMALLEST: Bytes = Bytes(1 << 30);

/// Most disks of one pool, so that a request stays one.
const DEVICES: usize = 128;
/// Longest name of a device, in bytes.
const DEVICE: usize = 255;
/// Longest name of a pool: LVM takes 127 bytes for a group, of which `linstor_` is a part.
const NAME: usize = 100;

/// A disk that nobody uses.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Disk {
    /// Its device, `/dev/…`.
    pub device: String,
    /// What it holds.
    #[serde(with = "row::bytes")]
    pub size: Bytes,
    /// It has moving parts, as far as the kernel knows.
    pub rotational: bool,
    /// What its maker calls it; empty if that is not known, as for what follows.
    pub model: String,
    /// Its serial number.
    pub serial: String,
    /// Its world-wide name.
    pub wwn: String,
}

/// A volume group, a volume group with a thin pool, or a ZFS pool, and what it is made of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DevicePool {
    /// Which of them.
    pub provider: Provider,
    /// Its name.
    pub name: String,
    /// The devices, `/dev/…`.
    pub devices: Vec<String>,
}

impl DevicePool {
    /// Checks what somebody wants to have made.
    ///
    /// # Errors
    /// If the provider is not made of disks, the name fits no pool, or a device can not be one.
    pub fn new(
        provider: Provider,
        name: &str,
        devices: Vec<String>,
    ) -> Result<DevicePool, Refusal> {
        let kinds = [Provider::Lvm, Provider::LvmThin, Provider::Zfs, Provider::ZfsThin];
        if !kinds.contains(&provider) {
            let text = format!("no pool of kind {provider} is made of disks");
            return Err(Refusal::new(Code::ProviderUnsupported, text)
                .cause("LVM, LVM_THIN, ZFS and ZFS_THIN are")
                .correction("use one of these, or create a storage pool on what the node has"));
        }
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
        if !begins || name.len() > NAME || !name.chars().all(good) {
            let text = format!("`{name}` is not a name for a volume group or ZFS pool");
            return Err(Refusal::new(Code::InvalidPoolName, text)
                .cause(format!(
                    "it begins with a letter and has letters, digits, `_`, `-` and `.`, at most {NAME}"
                ))
                .correction("give such a name"));
        }
        check_devices(&devices)?;
        Ok(DevicePool { provider, name: name.to_owned(), devices })
    }

    /// The volume group or the ZFS pool. That of a thin pool has another name, which is LINSTOR's rule.
    pub fn group(&self) -> String {
        match self.provider {
            Provider::LvmThin => format!("linstor_{}", self.name),
            _ => self.name.clone(),
        }
    }

    /// Where it is, as a storage pool's `StorDriver/StorPoolName` says it.
    pub fn place(&self) -> String {
        match self.provider {
            Provider::LvmThin => format!("{}/{}", self.group(), self.name),
            _ => self.name.clone(),
        }
    }
}

impl std::fmt::Display for DevicePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pool {} of {}", self.provider, self.place(), self.devices.join(", "))
    }
}

fn check_devices(devices: &[String]) -> Result<(), Refusal> {
    let refused = |text: String, cause: &str| {
        Refusal::new(Code::InvalidRequest, text)
            .cause(cause)
            .correction("name disks that the list of the node's unused disks has")
    };
    if devices.is_empty() || devices.len() > DEVICES {
        let text = format!("a pool can not be made of {} devices", devices.len());
        return Err(refused(text, &format!("it takes 1 to {DEVICES}")));
    }
    let good = |c: char| c.is_ascii_alphanumeric() || "/_-.:+@=,".contains(c);
    for (index, device) in devices.iter().enumerate() {
        let below = device.strip_prefix("/dev/").filter(|rest| !rest.is_empty());
        let straight =
            below.is_some_and(|rest| rest.split('/').all(|part| !["", ".", ".."].contains(&part)));
        if !straight || device.len() > DEVICE || !device.chars().all(good) {
            let text = format!("`{device}` can not be a device");
            return Err(refused(text, "devices are paths below /dev"));
        }
        if devices[..index].contains(device) {
            return Err(refused(format!("{device} is named twice"), "a disk is used once"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(provider: Provider, name: &str, devices: &[&str]) -> Result<DevicePool, Refusal> {
        DevicePool::new(provider, name, devices.iter().map(|d| (*d).to_owned()).collect())
    }

    #[test]
    fn a_thin_pool_has_a_group_of_its_own_and_others_are_their_group() {
        let thin = pool(Provider::LvmThin, "ssd", &["/dev/sdb"]).unwrap();
        assert_eq!((thin.group(), thin.place()), ("linstor_ssd".into(), "linstor_ssd/ssd".into()));
        assert_eq!(thin.to_string(), "LVM_THIN pool linstor_ssd/ssd of /dev/sdb");
        for provider in [Provider::Lvm, Provider::Zfs, Provider::ZfsThin] {
            let pool = pool(provider, "ssd", &["/dev/sdb", "/dev/disk/by-id/x-1:0"]).unwrap();
            assert_eq!((pool.group(), pool.place()), ("ssd".into(), "ssd".into()));
        }
    }

    #[test]
    fn what_can_not_be_made_is_refused_before_a_node_is_asked() {
        for provider in [Provider::File, Provider::FileThin, Provider::Diskless] {
            let refusal = pool(provider, "ssd", &["/dev/sdb"]).unwrap_err();
            assert_eq!(refusal.code, Code::ProviderUnsupported);
        }
        let long = "x".repeat(101);
        for name in ["", "-x", "1x", "a/b", "a b", "x;y", "--help", ".", &long] {
            let refusal = pool(Provider::Lvm, name, &["/dev/sdb"]).unwrap_err();
            assert_eq!(refusal.code, Code::InvalidPoolName, "{name}");
        }
        let devices: [&[&str]; 9] = [
            &[],
            &["sdb"],
            &["/dev/"],
            &["/dev/../etc/passwd"],
            &["/dev//sdb"],
            &["/dev/./sdb"],
            &["/dev/sd b"],
            &["/etc/passwd"],
            &["/dev/sdb", "/dev/sdb"],
        ];
        for devices in devices {
            let refusal = pool(Provider::Zfs, "tank", devices).unwrap_err();
            assert_eq!(refusal.code, Code::InvalidRequest, "{devices:?}");
            assert!(!refusal.correction.is_empty());
        }
    }
}
