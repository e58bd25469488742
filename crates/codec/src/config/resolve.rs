//! From sections to one node's view: inheritance, implied connections, addresses, uniqueness.
//!
//! Later wins: common → resource → host or volume (disk, device); common → resource → mesh or
//! connection (net); common → resource → volume → connection → connection volume (peer device).
//! A template stands in for common. Source: drbdsetup contract §6, "Rules".

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use vocab::options::{
    DeviceOptions, DiskOptions, NetOptions, Options, PeerDeviceOptions, ResourceOptions,
};
use vocab::{Minor, NodeId, VolumeNr};

use super::ast::{
    CommonSection, Config, ConnectionSection, DiskPath, Group, HostRef, HostSection, PathSection,
    ResourceSection, Settings, VolumeSection,
};
use super::error::{Cause, Error, Place};
use super::model::{
    BackingConfig, Handlers, MetaDisk, PathConfig, PeerConfig, PeerVolumeConfig, ResourceConfig,
    VolumeConfig,
};

/// The node whose view is wanted.
pub struct Host<'a> {
    /// Its host name, matched without regard to case; if it or the name in the configuration has
    /// no domain, first labels are compared.
    pub name: &'a str,
    /// Whether an address is assigned to it; decides which `floating` section is meant.
    pub is_local: &'a dyn Fn(IpAddr) -> bool,
}

/// A configuration as one node sees it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Resolved {
    /// The resources this node takes part in, in file order.
    pub resources: Vec<ResourceConfig>,
    /// Names of the resources that are for other nodes only.
    pub elsewhere: Vec<String>,
}

impl Config {
    /// The view of `host`.
    ///
    /// # Errors
    /// The first violated rule; nothing of the configuration may be used then, because the rules
    /// span resources.
    pub fn resolve(&self, host: &Host<'_>) -> Result<Resolved, Error> {
        let mut resolved = Resolved::default();
        let mut mine = Vec::new();
        let mut claims = Claims::default();
        for section in &self.resources {
            let view = View::new(section, host)?;
            view.claim(&mut claims)?;
            match view.me {
                Some(me) => mine.push((view, me)),
                None => resolved.elsewhere.push(section.name.clone()),
            }
        }
        let minors = Minors::new(&mine);
        for (view, me) in &mine {
            resolved.resources.push(view.resolve(*me, self.common.as_ref(), &minors)?);
        }
        Ok(resolved)
    }
}

/// What only one resource of a host, or one resource at all, may use.
#[derive(Default)]
struct Claims {
    minors: BTreeMap<(String, Minor), Place>,
    devices: BTreeMap<String, (Use, Place)>,
    addresses: BTreeMap<SocketAddr, (String, Place)>,
}

/// What a block device of this node is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Whole,
    Slot(u32),
}

impl Claims {
    fn device(&mut self, path: &str, usage: Use, at: &Place, object: &str) -> Result<(), Error> {
        if let Some((other, first)) = self.devices.get(path) {
            let apart = matches!((other, usage), (Use::Slot(a), Use::Slot(b)) if *a != b);
            if !apart {
                let (what, first) = (format!("device `{path}`"), first.clone());
                return Err(Error::new(at, object, Cause::Duplicate { what, first }));
            }
        }
        // Slots of one device: keyed with the slot, so that the next one meets them all.
        let key = match usage {
            Use::Whole => path.to_owned(),
            Use::Slot(slot) => format!("{path}[{slot}]"),
        };
        if let Some((_, first)) = self.devices.get(&key) {
            let (what, first) = (format!("device `{key}`"), first.clone());
            return Err(Error::new(at, object, Cause::Duplicate { what, first }));
        }
        self.devices.insert(key, (usage, at.clone()));
        self.devices.entry(path.to_owned()).or_insert((usage, at.clone()));
        Ok(())
    }

    fn address(&mut self, address: SocketAddr, at: &Place, resource: &str) -> Result<(), Error> {
        let entry =
            self.addresses.entry(address).or_insert_with(|| (resource.to_owned(), at.clone()));
        if entry.0 == resource {
            return Ok(());
        }
        let (what, first) = (format!("address {address}"), entry.1.clone());
        let object = format!("resource {resource}");
        Err(Error::new(at, object, Cause::Duplicate { what, first }))
    }
}

/// Minors of this node by resource and volume, for `resync-after RES/VOL`.
struct Minors<'a>(BTreeMap<(&'a str, VolumeNr), Minor>);

impl<'a> Minors<'a> {
    fn new(mine: &[(View<'a>, usize)]) -> Minors<'a> {
        let volumes = mine.iter().flat_map(|(view, me)| {
            let name = view.section.name.as_str();
            view.volumes[*me].iter().map(move |(nr, v)| ((name, *nr), v.minor))
        });
        Minors(volumes.collect())
    }

    /// `settings` with every `RES/VOL` replaced by the volume's minor.
    fn translate(&self, settings: &Settings, object: &str) -> Result<Settings, Error> {
        let mut settings = settings.clone();
        let references = |name: &str, value: &str| name == "resync-after" && value.contains('/');
        for setting in settings.0.iter_mut().filter(|s| references(s.name, &s.value)) {
            let minor = setting
                .value
                .rsplit_once('/')
                .and_then(|(name, nr)| self.0.get(&(name, VolumeNr(nr.parse().ok()?))));
            let Some(minor) = minor else {
                let what = format!("volume `{}` that resync-after names", setting.value);
                let next = "name a volume of a resource of this host".to_owned();
                return Err(Error::new(&setting.at, object, Cause::Missing { what, next }));
            };
            setting.value = minor.to_string();
        }
        Ok(settings)
    }
}

/// A volume of one host after the resource's volume and the host's are merged.
struct HostVolume<'a> {
    minor: Minor,
    device: Option<&'a str>,
    /// `None` for `disk none`.
    disk: Option<(&'a str, &'a Place)>,
    meta_disk: MetaDisk,
    meta_at: &'a Place,
    /// Options in the order they apply.
    options: Vec<&'a Settings>,
    tiebreaker: bool,
}

/// A connection of two hosts, by index, explicit or implied.
struct Link<'a> {
    hosts: [usize; 2],
    /// Ends as written, each path in the order of `hosts`; empty if implied.
    paths: Vec<(&'a Place, [&'a HostRef; 2])>,
    net: Option<&'a Settings>,
    section: Option<&'a ConnectionSection>,
}

/// A resource with its hosts' volumes merged and its connections listed.
struct View<'a> {
    section: &'a ResourceSection,
    object: String,
    me: Option<usize>,
    node_ids: Vec<NodeId>,
    volumes: Vec<BTreeMap<VolumeNr, HostVolume<'a>>>,
    links: Vec<Link<'a>>,
}

impl<'a> View<'a> {
    fn new(section: &'a ResourceSection, host: &Host<'_>) -> Result<View<'a>, Error> {
        let object = format!("resource {}", section.name);
        let mut view = View {
            section,
            object,
            me: None,
            node_ids: Vec::new(),
            volumes: Vec::new(),
            links: Vec::new(),
        };
        view.find_me(host)?;
        view.check_hosts()?;
        for host in &section.hosts {
            let volumes = view.merge_volumes(host)?;
            view.volumes.push(volumes);
        }
        view.check_volume_sets()?;
        view.find_links()?;
        Ok(view)
    }

    fn error<T>(&self, at: &Place, cause: Cause) -> Result<T, Error> {
        Err(Error::new(at, self.object.as_str(), cause))
    }

    fn missing<T>(&self, at: &Place, what: String, next: &str) -> Result<T, Error> {
        self.error(at, Cause::Missing { what, next: next.to_owned() })
    }

    fn find_me(&mut self, host: &Host<'_>) -> Result<(), Error> {
        for (i, section) in self.section.hosts.iter().enumerate() {
            let matches = match section.address {
                Some((address, _)) if section.floating => (host.is_local)(address.ip()),
                _ => section.names.iter().any(|name| same_host(name, host.name)),
            };
            if !matches {
                continue;
            }
            if let Some(other) = self.me {
                let first = self.section.hosts[other].at.clone();
                let what = format!("the section of this host (`{}`)", host.name);
                return self.error(&section.at, Cause::Duplicate { what, first });
            }
            self.me = Some(i);
        }
        Ok(())
    }

    /// Node ids are given and unique, names are unique.
    fn check_hosts(&mut self) -> Result<(), Error> {
        let hosts = &self.section.hosts;
        if hosts.is_empty() {
            return self.missing(
                &self.section.at,
                "the `on` section".to_owned(),
                "add one per host",
            );
        }
        for (i, host) in hosts.iter().enumerate() {
            let Some((id, at)) = &host.node_id else {
                let next = "write `node-id N;`, on an existing resource the id in its metadata";
                return self.missing(&host.at, format!("node-id of host {}", host.name()), next);
            };
            if let Some(other) = self.node_ids.iter().position(|other| other == id) {
                let (what, first) = (format!("node-id {id}"), hosts[other].at.clone());
                return self.error(at, Cause::Duplicate { what, first });
            }
            let taken = |name: &String| hosts[..i].iter().find(|h| h.names.contains(name));
            if let Some((name, other)) = host.names.iter().find_map(|n| Some((n, taken(n)?))) {
                let (what, first) = (format!("host name `{name}`"), other.at.clone());
                return self.error(&host.at, Cause::Duplicate { what, first });
            }
            self.node_ids.push(*id);
        }
        Ok(())
    }

    /// The volumes of `host`: what the resource says, overridden by what the host says.
    fn merge_volumes(
        &self,
        host: &'a HostSection,
    ) -> Result<BTreeMap<VolumeNr, HostVolume<'a>>, Error> {
        let find = |list: &'a [VolumeSection], nr| list.iter().find(move |v| v.nr == nr);
        let mut merged = BTreeMap::new();
        for volume in self.section.volumes.iter().chain(&host.volumes) {
            let nr = volume.nr;
            let own = find(&host.volumes, nr);
            let shared = find(&self.section.volumes, nr);
            let levels = || own.into_iter().chain(shared);
            let what = |thing: &str| format!("{thing} of volume {nr} on host {}", host.name());
            let Some((name, minor, _)) = levels().find_map(|v| v.device.as_ref()) else {
                return self.missing(&volume.at, what("the minor"), "write `device minor N;`");
            };
            let Some((disk, disk_at)) = levels().find_map(|v| v.disk.as_ref()) else {
                return self.missing(
                    &volume.at,
                    what("the disk"),
                    "write `disk PATH;` or `disk none;`",
                );
            };
            let meta = levels().find_map(|v| v.meta_disk.as_ref());
            let disk = match disk {
                DiskPath::None => None,
                DiskPath::Path(path) => Some((path.as_str(), disk_at)),
            };
            merged.insert(
                nr,
                HostVolume {
                    minor: *minor,
                    device: name.as_deref(),
                    disk,
                    meta_disk: meta.map_or(MetaDisk::Internal, |(meta, _)| meta.clone()),
                    meta_at: meta.map_or(disk_at, |(_, at)| at),
                    options: shared.into_iter().chain(own).map(|v| &v.options).collect(),
                    tiebreaker: levels().find_map(|v| v.tiebreaker.as_ref()).is_none_or(|t| t.0),
                },
            );
        }
        Ok(merged)
    }

    fn check_volume_sets(&self) -> Result<(), Error> {
        let first = &self.volumes[0];
        if first.is_empty() {
            let next = "add `volume 0 { device minor N; disk PATH; }`";
            return self.missing(&self.section.at, "every volume".to_owned(), next);
        }
        for (host, volumes) in self.section.hosts.iter().zip(&self.volumes) {
            let (a, b) = (first.keys(), volumes.keys());
            if !a.clone().eq(b.clone()) {
                let odd = a.clone().find(|nr| !volumes.contains_key(nr));
                let odd = odd.or_else(|| b.clone().find(|nr| !first.contains_key(nr)));
                let nr = odd.expect("the sets differ");
                let text = format!(
                    "hosts {} and {} do not have the same volumes: volume {nr} is missing on one; \
                     declare it there, with `disk none;` if it has no disk",
                    self.section.hosts[0].name(),
                    host.name()
                );
                return self.error(&host.at, Cause::Contradiction(text));
            }
        }
        Ok(())
    }

    /// The host a reference means.
    fn host(&self, end: &HostRef) -> Result<usize, Error> {
        let found = self.section.hosts.iter().position(|host| match &end.host {
            Some(name) => host.names.iter().any(|n| same_host(n, name)),
            None => host.address.as_ref().map(|(a, _)| *a) == end.address,
        });
        match (found, &end.host, end.address) {
            (Some(index), ..) => Ok(index),
            (None, Some(name), _) => self.error(&end.at, Cause::UnknownHost(name.clone())),
            (None, None, address) => {
                let address = address.map(|a| a.to_string()).unwrap_or_default();
                self.error(&end.at, Cause::UnknownHost(address))
            }
        }
    }

    fn find_links(&mut self) -> Result<(), Error> {
        let mut links: Vec<Link<'a>> = Vec::new();
        let known = |links: &[Link<'_>], pair: [usize; 2]| {
            links.iter().any(|l| l.hosts == pair || l.hosts == [pair[1], pair[0]])
        };
        let section = self.section;
        for connection in &section.connections {
            let hosts = self.path_hosts(&connection.paths[0])?;
            let mut paths = Vec::new();
            for path in &connection.paths {
                let ends = self.path_hosts(path)?;
                let ordered = if ends == hosts {
                    [&path.ends[0], &path.ends[1]]
                } else if ends == [hosts[1], hosts[0]] {
                    [&path.ends[1], &path.ends[0]]
                } else {
                    let text = "the paths of one connection join different hosts; give each pair \
                                of hosts a connection of its own";
                    return self.error(&path.at, Cause::Contradiction(text.to_owned()));
                };
                paths.push((&path.at, ordered));
            }
            if known(&links, hosts) {
                let [a, b] = hosts.map(|h| section.hosts[h].name());
                let text =
                    format!("hosts {a} and {b} are connected already; merge the two connections");
                return self.error(&connection.at, Cause::Contradiction(text));
            }
            let net = Some(&connection.net);
            links.push(Link { hosts, paths, net, section: Some(connection) });
        }
        for mesh in &section.meshes {
            let mut hosts = Vec::new();
            for (name, at) in &mesh.hosts {
                let end = HostRef {
                    at: at.clone(),
                    host: Some(name.clone()),
                    address: None,
                    port: None,
                    outside: None,
                };
                let host = self.host(&end)?;
                if hosts.contains(&host) {
                    let (what, first) = (format!("host `{name}`"), mesh.at.clone());
                    return self.error(at, Cause::Duplicate { what, first });
                }
                hosts.push(host);
            }
            for (i, a) in hosts.iter().enumerate() {
                for b in &hosts[i + 1..] {
                    if !known(&links, [*a, *b]) {
                        links.push(Link {
                            hosts: [*a, *b],
                            paths: Vec::new(),
                            net: Some(&mesh.net),
                            section: None,
                        });
                    }
                }
            }
        }
        match section.hosts.len() {
            _ if !section.connections.is_empty() || !section.meshes.is_empty() => {}
            2 => links.push(Link { hosts: [0, 1], paths: Vec::new(), net: None, section: None }),
            n if n > 2 => {
                let next = "add `connection-mesh { hosts …; }` or one `connection` per pair";
                return self.missing(&section.at, format!("how the {n} hosts connect"), next);
            }
            _ => {}
        }
        self.links = links;
        Ok(())
    }

    fn path_hosts(&self, path: &PathSection) -> Result<[usize; 2], Error> {
        let ends = [self.host(&path.ends[0])?, self.host(&path.ends[1])?];
        if ends[0] == ends[1] {
            let text = format!(
                "host {} is connected to itself; name two hosts",
                self.section.hosts[ends[0]].name()
            );
            return self.error(&path.at, Cause::Contradiction(text));
        }
        Ok(ends)
    }

    /// What a host listens on for a path.
    fn endpoint(
        &self,
        host: usize,
        end: Option<&HostRef>,
        at: &Place,
    ) -> Result<SocketAddr, Error> {
        let section = &self.section.hosts[host];
        let own = section.address.as_ref().map(|(address, _)| *address);
        let address = end.and_then(|e| e.address).or(own);
        let Some(mut address) = address else {
            let next =
                "write `address ADDR:PORT;` in its section or after `host` in the connection";
            return self.missing(at, format!("the address of host {}", section.name()), next);
        };
        if let Some(port) = end.and_then(|e| e.port) {
            address.set_port(port);
        }
        Ok(address)
    }

    /// The paths of `link` as host `hosts[side]` sees them.
    fn paths(&self, link: &Link<'_>, side: usize) -> Result<Vec<PathConfig>, Error> {
        let (me, peer) = (link.hosts[side], link.hosts[1 - side]);
        let at = link.section.map_or(&self.section.at, |c| &c.at);
        if link.paths.is_empty() {
            let local = self.endpoint(me, None, at)?;
            let remote = self.endpoint(peer, None, at)?;
            return self.same_family(PathConfig { local, remote }, at).map(|path| vec![path]);
        }
        let mut paths = Vec::new();
        for (at, ends) in &link.paths {
            let local = self.endpoint(me, Some(ends[side]), at)?;
            let remote = match ends[1 - side].outside {
                Some(outside) => outside,
                None => self.endpoint(peer, Some(ends[1 - side]), at)?,
            };
            let path = self.same_family(PathConfig { local, remote }, at)?;
            if paths.contains(&path) {
                let (what, first) = ("this pair of addresses".to_owned(), link.paths[0].0.clone());
                return self.error(at, Cause::Duplicate { what, first });
            }
            paths.push(path);
        }
        Ok(paths)
    }

    fn same_family(&self, path: PathConfig, at: &Place) -> Result<PathConfig, Error> {
        if path.local.is_ipv4() == path.remote.is_ipv4() {
            return Ok(path);
        }
        let text = format!(
            "{} and {} are of different families; give both ends IPv4 or both IPv6 addresses",
            path.local, path.remote
        );
        self.error(at, Cause::Contradiction(text))
    }

    /// Registers what this resource uses, so that the next one meets it.
    fn claim(&self, claims: &mut Claims) -> Result<(), Error> {
        for (i, (host, volumes)) in self.section.hosts.iter().zip(&self.volumes).enumerate() {
            for (nr, volume) in volumes {
                let object = format!("{}, volume {nr} on host {}", self.object, host.name());
                let key = (host.name().to_ascii_lowercase(), volume.minor);
                if let Some(first) = claims.minors.get(&key) {
                    let (what, first) = (format!("minor {}", volume.minor), first.clone());
                    return Err(Error::new(&host.at, object, Cause::Duplicate { what, first }));
                }
                claims.minors.insert(key, host.at.clone());
                // Disks of other hosts are often placeholders, so only ours are compared.
                if self.me != Some(i) {
                    continue;
                }
                let Some((disk, at)) = volume.disk else { continue };
                claims.device(disk, Use::Whole, at, &object)?;
                if let MetaDisk::External { device, index } = &volume.meta_disk {
                    let usage = index.map_or(Use::Whole, Use::Slot);
                    claims.device(device, usage, volume.meta_at, &object)?;
                }
            }
        }
        for link in &self.links {
            let at = link.section.map_or(&self.section.at, |c| &c.at);
            for side in [0, 1] {
                for path in self.paths(link, side)? {
                    claims.address(path.local, at, &self.section.name)?;
                }
            }
        }
        Ok(())
    }

    fn resolve(
        &self,
        me: usize,
        common: Option<&CommonSection>,
        minors: &Minors<'_>,
    ) -> Result<ResourceConfig, Error> {
        let section = self.section;
        let common = section.template.as_ref().map(|(t, _)| t).or(common);
        let shared: Vec<&CommonSection> = common.into_iter().chain([&section.own]).collect();
        let handlers = shared.iter().flat_map(|c| &c.handlers);
        let handlers = handlers.map(|(name, (command, _))| ((*name).to_owned(), command.clone()));
        let handlers = Handlers::Commands(handlers.collect());
        let host = &section.hosts[me];
        let mut options = ResourceOptions::default();
        let levels = shared.iter().flat_map(|c| [&c.disk, &c.options]).chain([&host.options]);
        apply_all(levels, Group::Resource, &mut options, &self.object)?;
        let volumes = self.volumes[me]
            .iter()
            .map(|(nr, volume)| self.volume(*nr, volume, &shared, minors))
            .collect::<Result<_, _>>()?;
        let mut peers = Vec::new();
        for link in &self.links {
            if let Some(side) = link.hosts.iter().position(|host| *host == me) {
                peers.push(self.peer(link, side, &shared)?);
            }
        }
        peers.sort_by_key(|peer: &PeerConfig| peer.node_id);
        Ok(ResourceConfig {
            name: section.name.clone(),
            node_id: self.node_ids[me],
            host: host.name(),
            options,
            handlers,
            volumes,
            peers,
        })
    }

    fn volume(
        &self,
        nr: VolumeNr,
        volume: &HostVolume<'_>,
        shared: &[&CommonSection],
        minors: &Minors<'_>,
    ) -> Result<VolumeConfig, Error> {
        let object = format!("{}, volume {nr}", self.object);
        let levels = || shared.iter().map(|c| &c.disk).chain(volume.options.iter().copied());
        let mut device_options = DeviceOptions::default();
        apply_all(levels(), Group::Device, &mut device_options, &object)?;
        device_options.diskless = volume.disk.is_none();
        let mut backing = None;
        if let Some((disk, _)) = volume.disk {
            let mut options = DiskOptions::default();
            for settings in levels() {
                minors.translate(settings, &object)?.apply(Group::Disk, &mut options, &object)?;
            }
            let meta_disk = volume.meta_disk.clone();
            backing =
                Some(BackingConfig { disk: disk.to_owned(), meta_disk, options, luks: false });
        }
        let device = match volume.device {
            None => format!("/dev/drbd{}", volume.minor),
            Some(name) if name.starts_with('/') => name.to_owned(),
            Some(name) => format!("/dev/{name}"),
        };
        Ok(VolumeConfig { nr, minor: volume.minor, device, device_options, backing })
    }

    fn peer(
        &self,
        link: &Link<'_>,
        side: usize,
        shared: &[&CommonSection],
    ) -> Result<PeerConfig, Error> {
        let (me, peer) = (link.hosts[side], link.hosts[1 - side]);
        let name = self.section.hosts[peer].name();
        let object = format!("{}, connection to {name}", self.object);
        let mut net = NetOptions::default();
        let levels = shared.iter().flat_map(|c| [&c.disk, &c.net]).chain(link.net);
        apply_all(levels, Group::Net, &mut net, &object)?;
        if let Err(e) = net.check() {
            let at = link.section.map_or(&self.section.at, |c| &c.at);
            return Err(Error::new(at, object, Cause::Option(e)));
        }
        let own = link.section;
        if let Some((nr, at, _)) =
            own.and_then(|c| c.volumes.iter().find(|(nr, ..)| !self.volumes[me].contains_key(nr)))
        {
            let what = format!("volume {nr} that the connection names");
            return self.missing(at, what, "declare it in the resource");
        }
        let mut volumes = Vec::new();
        for (nr, theirs) in &self.volumes[peer] {
            let mut options = PeerDeviceOptions::default();
            let ours = &self.volumes[me][nr];
            let of_connection = own.into_iter().flat_map(|c| {
                let volume = c.volumes.iter().filter(|(n, ..)| n == nr).map(|(_, _, s)| s);
                [&c.disk].into_iter().chain(volume)
            });
            let levels = shared.iter().map(|c| &c.disk).chain(ours.options.iter().copied());
            apply_all(levels.chain(of_connection), Group::PeerDevice, &mut options, &object)?;
            let diskless = theirs.disk.is_none();
            options.bitmap &= !diskless;
            options.peer_tiebreaker &= theirs.tiebreaker;
            volumes.push(PeerVolumeConfig { nr: *nr, diskless, options });
        }
        let paths = self.paths(link, side)?;
        Ok(PeerConfig { node_id: self.node_ids[peer], name, paths, net, volumes })
    }
}

fn apply_all<'s, T: Options>(
    levels: impl IntoIterator<Item = &'s Settings>,
    group: Group,
    target: &mut T,
    object: &str,
) -> Result<(), Error> {
    levels.into_iter().try_for_each(|settings| settings.apply(group, target, object))
}

/// Host names are equal without regard to case; if either has no domain, first labels count.
fn same_host(a: &str, b: &str) -> bool {
    if a.contains('.') && b.contains('.') {
        return a.eq_ignore_ascii_case(b);
    }
    let label = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    label(a) == label(b)
}
