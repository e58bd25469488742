//! What the files say, section by section, with the place of every statement.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use vocab::options::{
    DeviceOptions, DiskOptions, Kind, NetOptions, OptionError, OptionSpec, Options,
    PeerDeviceOptions, ResourceOptions,
};
use vocab::{Minor, NodeId, VolumeNr};

use super::error::{Cause, Error, Place};
use super::model::MetaDisk;

/// A parsed configuration; see [`Config::resolve`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Config {
    /// `disable-ip-verification` was stated: local addresses need not be assigned to this node.
    pub disable_ip_verification: bool,
    /// Statements that are understood and have no effect here, for the caller to show.
    pub warnings: Vec<(Place, String)>,
    pub(super) global_at: Option<Place>,
    pub(super) common: Option<CommonSection>,
    pub(super) resources: Vec<ResourceSection>,
}

impl Config {
    /// Names of all resources, whichever hosts they are for, in file order.
    pub fn resource_names(&self) -> impl Iterator<Item = &str> {
        self.resources.iter().map(|r| r.name.as_str())
    }
}

/// The option groups, as a setting names the one it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Group {
    Resource,
    Device,
    Disk,
    Net,
    PeerDevice,
}

impl Group {
    fn table(self) -> &'static [OptionSpec] {
        match self {
            Group::Resource => ResourceOptions::TABLE,
            Group::Device => DeviceOptions::TABLE,
            Group::Disk => DiskOptions::TABLE,
            Group::Net => NetOptions::TABLE,
            Group::PeerDevice => PeerDeviceOptions::TABLE,
        }
    }

    /// The row of `name`. `diskless` is not for configuration files: `disk none` says it.
    pub(super) fn find(self, name: &str) -> Option<&'static OptionSpec> {
        self.table().iter().find(|spec| spec.name == name && name != "diskless")
    }

    /// Checks a value whoever it is for: a value that is valid and merely not honoured by this
    /// program may stand in the section of a host that runs another.
    pub(super) fn check(self, name: &str, value: &str) -> Result<(), OptionError> {
        let result = match self {
            Group::Resource => ResourceOptions::default().set(name, value),
            Group::Device => DeviceOptions::default().set(name, value),
            Group::Disk => DiskOptions::default().set(name, value),
            Group::Net => NetOptions::default().set(name, value),
            Group::PeerDevice => PeerDeviceOptions::default().set(name, value),
        };
        match result {
            Err(OptionError::NotHonoured { .. }) => Ok(()),
            result => result,
        }
    }
}

/// One option statement.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Setting {
    pub(super) group: Group,
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) at: Place,
}

/// The options of one section.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Settings(pub(super) Vec<Setting>);

impl Settings {
    /// Sets in `target` what this section says about its group.
    pub(super) fn apply<T: Options>(
        &self,
        group: Group,
        target: &mut T,
        object: &str,
    ) -> Result<(), Error> {
        for setting in self.0.iter().filter(|s| s.group == group) {
            target
                .set(setting.name, &setting.value)
                .map_err(|e| Error::new(&setting.at, object, Cause::Option(e)))?;
        }
        Ok(())
    }

    /// Adds a statement.
    ///
    /// # Errors
    /// If the section has the option already.
    pub(super) fn add(&mut self, setting: Setting) -> Result<(), Error> {
        let same = |s: &&Setting| s.group == setting.group && s.name == setting.name;
        if let Some(first) = self.0.iter().find(same) {
            let (what, first) = (format!("option `{}`", setting.name), first.at.clone());
            return Err(Error::new(&setting.at, "", Cause::Duplicate { what, first }));
        }
        self.0.push(setting);
        Ok(())
    }
}

/// True for an option whose statement may leave the value out.
pub(super) fn is_bool(spec: &OptionSpec) -> bool {
    spec.kind == Kind::Bool
}

/// Options that `common` and `resource` sections share.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct CommonSection {
    pub(super) at: Option<Place>,
    pub(super) options: Settings,
    pub(super) net: Settings,
    pub(super) disk: Settings,
    /// Commands of the handlers, by their names, with the place of each.
    pub(super) handlers: BTreeMap<&'static str, (String, Place)>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct ResourceSection {
    pub(super) name: String,
    pub(super) at: Place,
    pub(super) template: Option<(CommonSection, Place)>,
    pub(super) own: CommonSection,
    pub(super) volumes: Vec<VolumeSection>,
    pub(super) hosts: Vec<HostSection>,
    pub(super) connections: Vec<ConnectionSection>,
    pub(super) meshes: Vec<MeshSection>,
}

/// `disk PATH` or `disk none`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum DiskPath {
    None,
    Path(String),
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct VolumeSection {
    pub(super) nr: VolumeNr,
    pub(super) at: Place,
    pub(super) device: Option<(Option<String>, Minor, Place)>,
    pub(super) disk: Option<(DiskPath, Place)>,
    pub(super) meta_disk: Option<(MetaDisk, Place)>,
    pub(super) options: Settings,
    pub(super) tiebreaker: Option<(bool, Place)>,
}

impl VolumeSection {
    pub(super) fn new(nr: VolumeNr, at: Place) -> VolumeSection {
        let options = Settings::default();
        VolumeSection {
            nr,
            at,
            device: None,
            disk: None,
            meta_disk: None,
            options,
            tiebreaker: None,
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct HostSection {
    /// Host names, or the address in words of a `floating` section.
    pub(super) names: Vec<String>,
    pub(super) floating: bool,
    pub(super) at: Place,
    pub(super) node_id: Option<(NodeId, Place)>,
    pub(super) address: Option<(SocketAddr, Place)>,
    pub(super) options: Settings,
    pub(super) volumes: Vec<VolumeSection>,
}

impl HostSection {
    /// The connection name peers use for this host.
    pub(super) fn name(&self) -> String {
        self.names.join("_")
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct ConnectionSection {
    pub(super) at: Place,
    pub(super) paths: Vec<PathSection>,
    pub(super) net: Settings,
    pub(super) disk: Settings,
    pub(super) volumes: Vec<(VolumeNr, Place, Settings)>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct PathSection {
    pub(super) at: Place,
    pub(super) ends: Vec<HostRef>,
}

/// One end of a path.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct HostRef {
    pub(super) at: Place,
    /// The host's name; `None` if only an address is given.
    pub(super) host: Option<String>,
    pub(super) address: Option<SocketAddr>,
    pub(super) port: Option<u16>,
    /// What the other side connects to, if that is not the address here (NAT).
    pub(super) outside: Option<SocketAddr>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct MeshSection {
    pub(super) at: Place,
    pub(super) hosts: Vec<(String, Place)>,
    pub(super) net: Settings,
}
