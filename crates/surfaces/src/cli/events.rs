//! `events` as lines: drbdsetup contract §3.5, from the difference of two snapshots.
//!
//! A change line names the object and only the groups of values that changed. Statistics alone
//! make a line only if they were asked for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use codec::admin::{
    ConnectionStatus, DeviceStatus, Event, PathStatus, PeerDeviceStatus, ResourceStatus,
};

use super::status::yes_no;

/// Turns events into lines; remembers what was printed.
#[derive(Debug, Default)]
pub struct Lines {
    known: BTreeMap<String, ResourceStatus>,
    /// The initial dump is over.
    live: bool,
    statistics: bool,
}

impl Lines {
    /// With `statistics`, lines carry them and they alone make a line.
    pub fn new(statistics: bool) -> Lines {
        Lines { statistics, ..Lines::default() }
    }

    /// The lines of one event, without newlines.
    pub fn event(&mut self, event: Event) -> Vec<String> {
        match event {
            Event::Current => {
                self.live = true;
                vec!["exists -".to_owned()]
            }
            Event::Gone { resource } => match self.known.remove(&resource) {
                Some(old) => self.difference(Some(&old), None),
                None => Vec::new(),
            },
            Event::Resource(new) => {
                let old = self.known.get(&new.name);
                let lines = self.difference(old, Some(&new));
                self.known.insert(new.name.clone(), new);
                lines
            }
        }
    }

    /// Created and changed objects from the outside in, then destroyed ones from the inside out.
    fn difference(
        &self,
        old: Option<&ResourceStatus>,
        new: Option<&ResourceStatus>,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(new) = new {
            for object in objects(new) {
                let before = old.and_then(|old| objects(old).find(|o| o.key == object.key));
                lines.extend(self.appeared(before, &object));
            }
        }
        if let Some(old) = old {
            let mut gone: Vec<_> = objects(old)
                .filter(|o| !new.is_some_and(|new| objects(new).any(|n| n.key == o.key)))
                .collect();
            gone.sort_by_key(|o| o.kind.destroy_order());
            lines.extend(gone.iter().map(|o| format!("destroy {} {}", o.kind.word(), o.key.1)));
        }
        lines
    }

    fn appeared(&self, before: Option<Object>, object: &Object) -> Option<String> {
        let mut line = format!("{} {}{}", object.kind.word(), object.key.1, object.always);
        let Some(before) = before else {
            let verb = if self.live { "create" } else { "exists" };
            for group in object.groups.iter().filter(|g| self.statistics || !g.statistic) {
                line.push_str(&group.text);
            }
            return Some(format!("{verb} {line}"));
        };
        let shown = |g: &&Group| self.statistics || !g.statistic;
        // Groups are compared by their place: an object always has the same ones.
        let changed = |(a, b): (&Group, &Group)| a.text != b.text;
        let old = before.groups.iter().filter(shown);
        if !old.zip(object.groups.iter().filter(shown)).any(changed) {
            return None;
        }
        for (old, new) in before.groups.iter().zip(&object.groups).filter(|(_, g)| shown(g)) {
            if old.text != new.text {
                line.push_str(&new.text);
            }
        }
        Some(format!("change {line}"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Resource,
    Connection,
    Device,
    PeerDevice,
    Path,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Resource => "resource",
            Kind::Connection => "connection",
            Kind::Device => "device",
            Kind::PeerDevice => "peer-device",
            Kind::Path => "path",
        }
    }

    fn destroy_order(self) -> u8 {
        match self {
            Kind::Path => 0,
            Kind::PeerDevice => 1,
            Kind::Connection => 2,
            Kind::Device => 3,
            Kind::Resource => 4,
        }
    }
}

/// Values that are printed together, each preceded by a space.
struct Group {
    text: String,
    statistic: bool,
}

/// An object as a line shows it.
struct Object {
    kind: Kind,
    /// Kind and identity, the latter as printed.
    key: (Kind, String),
    /// Printed after the identity on every line but that of destruction.
    always: String,
    groups: Vec<Group>,
}

fn object(kind: Kind, identity: String, groups: Vec<Group>) -> Object {
    Object { kind, key: (kind, identity), always: String::new(), groups }
}

fn group(text: String) -> Group {
    Group { text, statistic: false }
}

fn statistic(text: String) -> Group {
    Group { text, statistic: true }
}

/// The objects of a resource: itself, connections, devices, then per connection peer devices and
/// paths. A peer device's line thus never precedes those of its connection and device.
fn objects(r: &ResourceStatus) -> impl Iterator<Item = Object> {
    let name = format!("name:{}", r.name);
    let of = |c: &ConnectionStatus| {
        format!("{name} peer-node-id:{} conn-name:{}", c.peer_node_id, c.name)
    };
    let mut all = vec![resource(r, &name)];
    all.extend(r.connections.iter().map(|c| connection(c, of(c))));
    all.extend(r.devices.iter().map(|d| device(d, &name)));
    for c in &r.connections {
        all.extend(c.peer_devices.iter().map(|p| peer_device(p, &of(c))));
        all.extend(c.paths.iter().map(|p| path(p, &of(c))));
    }
    all.into_iter()
}

fn resource(r: &ResourceStatus, name: &str) -> Object {
    let promotion =
        format!(" may_promote:{} promotion_score:{}", yes_no(r.may_promote), r.promotion_score);
    let groups = vec![
        group(format!(" role:{}", r.role)),
        group(format!(" suspended:{}", r.suspended)),
        group(format!(" force-io-failures:{}", yes_no(r.force_io_failures))),
        statistic(format!(" write-ordering:{}", r.write_ordering)),
        group(promotion),
    ];
    object(Kind::Resource, name.to_owned(), groups)
}

fn connection(c: &ConnectionStatus, identity: String) -> Object {
    let traffic = format!(
        " congested:{} ap-in-flight:{} rs-in-flight:{}",
        yes_no(c.congested),
        c.ap_in_flight,
        c.rs_in_flight
    );
    let groups = vec![
        group(format!(" connection:{}", c.connection_state)),
        group(format!(" role:{}", c.peer_role)),
        statistic(traffic),
    ];
    object(Kind::Connection, identity, groups)
}

fn device(d: &DeviceStatus, name: &str) -> Object {
    let open = d.open.map(|open| format!(" open:{}", yes_no(open))).unwrap_or_default();
    let state = format!(
        " backing_dev:{} disk:{} client:{}{open} quorum:{}",
        d.backing_dev.as_deref().unwrap_or("none"),
        d.disk_state,
        yes_no(d.client),
        yes_no(d.quorum)
    );
    let statistics = format!(
        " size:{} read:{} written:{} al-writes:{} bm-writes:{} upper-pending:{} lower-pending:{} \
         al-suspended:{} blocked:{}",
        d.size,
        d.read,
        d.written,
        d.al_writes,
        d.bm_writes,
        d.upper_pending,
        d.lower_pending,
        yes_no(d.al_suspended),
        d.blocked
    );
    let groups = vec![group(state), statistic(statistics)];
    let always = format!(" minor:{}", d.minor);
    Object { always, ..object(Kind::Device, format!("{name} volume:{}", d.volume), groups) }
}

fn peer_device(p: &PeerDeviceStatus, connection: &str) -> Object {
    let done = p.sync.as_ref().map(|s| format!(" done:{:.2}", s.percent_resync_done));
    let mut statistics = format!(
        " received:{} sent:{} out-of-sync:{} pending:{} unacked:{}",
        p.received, p.sent, p.out_of_sync, p.pending, p.unacked
    );
    if let Some(sync) = &p.sync {
        let (rate, eta) = (sync.rate1, sync.estimated_seconds_to_finish);
        write!(statistics, " dbdt1:{rate:.2} eta:{eta}").expect("a String takes everything");
    }
    let disk = format!(" peer-disk:{} peer-client:{}", p.peer_disk_state, yes_no(p.peer_client));
    let groups = vec![
        group(format!(" replication:{}", p.replication_state)),
        group(disk),
        group(format!(" resync-suspended:{}", p.resync_suspended)),
        group(done.unwrap_or_default()),
        statistic(statistics),
    ];
    object(Kind::PeerDevice, format!("{connection} volume:{}", p.volume), groups)
}

fn path(p: &PathStatus, connection: &str) -> Object {
    let (local, peer) = (endpoint(p.this_host), endpoint(p.remote_host));
    let identity = format!("{connection} local:{local} peer:{peer}");
    let groups = vec![group(format!(" established:{}", yes_no(p.established)))];
    object(Kind::Path, identity, groups)
}

/// `ipv4:ADDR:PORT` or `ipv6:[ADDR]:PORT`.
fn endpoint(address: SocketAddr) -> String {
    format!("{}:{address}", if address.is_ipv4() { "ipv4" } else { "ipv6" })
}
