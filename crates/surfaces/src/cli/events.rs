//! `events` as lines: drbdsetup contract §3.5, from the difference of two snapshots.
//!
//! A change line names the object and only the groups of values that changed. Statistics alone
//! make a line only if they were asked for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::SystemTime;

use codec::admin::{
    ConnectionStatus, DeviceStatus, Event, HelperEvent, PathStatus, PeerDeviceStatus,
    ResourceStatus,
};
use vocab::Utc;

use super::status::yes_no;

/// What lines carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Style {
    /// Statistics too, and they alone make a line.
    pub statistics: bool,
    /// Every line of a change has all values, not only those that changed.
    pub full: bool,
    /// Values that changed appear as `key:OLD->NEW`.
    pub diff: bool,
}

/// Turns events into lines; remembers what was printed.
#[derive(Debug, Default)]
pub struct Lines {
    known: BTreeMap<String, ResourceStatus>,
    /// The initial dump is over.
    live: bool,
    style: Style,
}

/// The prefix of a line with a timestamp, in UTC.
pub fn timestamp(now: SystemTime) -> String {
    format!("{}+00:00 ", Utc(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()))
}

impl Lines {
    /// With `statistics`, lines carry them and they alone make a line.
    pub fn new(statistics: bool) -> Lines {
        Lines::with(Style { statistics, ..Style::default() })
    }

    /// Lines in a style.
    pub fn with(style: Style) -> Lines {
        Lines { style, ..Lines::default() }
    }

    /// The lines of newer statistics that were asked for. A snapshot whose states are not those
    /// printed last is left to its event, which comes by another way and may be the older one.
    pub fn refresh(&mut self, new: ResourceStatus) -> Vec<String> {
        let states = |r| -> Vec<_> { objects(r).map(Object::into_states).collect() };
        match self.known.get(&new.name) {
            Some(old) if states(old) == states(&new) => self.event(Event::Resource(new)),
            _ => Vec::new(),
        }
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
            Event::Helper(call) => vec![helper(&call)],
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
        let Style { statistics, full, diff } = self.style;
        let shown = |g: &&Group| statistics || full || g.matter.always_shown();
        let Some(before) = before else {
            let verb = if self.live { "create" } else { "exists" };
            for group in object.groups.iter().filter(shown) {
                match diff && group.matter == Matter::State {
                    true => line.push_str(&difference_of(None, &group.text)),
                    false => line.push_str(&group.text),
                }
            }
            return Some(format!("{verb} {line}"));
        };
        // Groups are compared by their place: an object always has the same ones.
        let pairs = before.groups.iter().zip(&object.groups).filter(|(_, g)| shown(g));
        let changed = |(a, b): &(&Group, &Group)| a.text != b.text;
        if !pairs.clone().any(|pair| changed(&pair)) {
            return None;
        }
        for (old, new) in pairs {
            match (changed(&(old, new)), diff) {
                (true, true) => line.push_str(&difference_of(Some(&old.text), &new.text)),
                (true, false) => line.push_str(&new.text),
                (false, _) if full && new.matter != Matter::Blocked => line.push_str(&new.text),
                (false, _) => {}
            }
        }
        Some(format!("change {line}"))
    }
}

/// Values as `key:OLD->NEW` where they differ from those before.
fn difference_of(old: Option<&str>, new: &str) -> String {
    let mut line = String::new();
    for word in new.split_whitespace() {
        let (key, value) = word.split_once(':').unwrap_or((word, ""));
        let mut words = old.unwrap_or_default().split_whitespace();
        let before = words.find_map(|w| w.strip_prefix(key)?.strip_prefix(':'));
        let unknown = if key == "promotion_score" { "0" } else { "UNKNOWN" };
        let before = before.unwrap_or(unknown);
        line.push_str(&match before == value {
            true => format!(" {word}"),
            false => format!(" {key}:{before}->{value}"),
        });
    }
    line
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

/// What values tell of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Matter {
    State,
    /// How far a resync is.
    Progress,
    Statistic,
    /// Where I/O is blocked: a statistic that full lines have only where it changed.
    Blocked,
}

impl Matter {
    fn always_shown(self) -> bool {
        matches!(self, Matter::State | Matter::Progress)
    }
}

/// Values that are printed together, each preceded by a space.
#[derive(PartialEq, Eq)]
struct Group {
    text: String,
    matter: Matter,
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

impl Object {
    /// What of it is neither counted nor measured.
    fn into_states(self) -> ((Kind, String), Vec<Group>) {
        let states = self.groups.into_iter().filter(|g| g.matter == Matter::State);
        (self.key, states.collect())
    }
}

fn object(kind: Kind, identity: String, groups: Vec<Group>) -> Object {
    Object { kind, key: (kind, identity), always: String::new(), groups }
}

fn group(text: String) -> Group {
    Group { text, matter: Matter::State }
}

fn statistic(text: String) -> Group {
    Group { text, matter: Matter::Statistic }
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
         al-suspended:{}",
        d.size,
        d.read,
        d.written,
        d.al_writes,
        d.bm_writes,
        d.upper_pending,
        d.lower_pending,
        yes_no(d.al_suspended)
    );
    let blocked = Group { text: format!(" blocked:{}", d.blocked), matter: Matter::Blocked };
    let groups = vec![group(state), statistic(statistics), blocked];
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
        Group { text: done.unwrap_or_default(), matter: Matter::Progress },
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

/// A call of a handler, or its end: with as much of the object as it is about.
fn helper(call: &HelperEvent) -> String {
    let verb = if call.status.is_some() { "response" } else { "call" };
    let mut line = format!("{verb} helper name:{}", call.resource);
    let mut add = |text: String| {
        line.push(' ');
        line.push_str(&text);
    };
    if let Some(node) = call.peer_node_id {
        add(format!("peer-node-id:{node}"));
    }
    if let Some(name) = &call.conn_name {
        add(format!("conn-name:{name}"));
    }
    if let Some((local, peer)) = call.path {
        add(format!("local:{} peer:{}", endpoint(local), endpoint(peer)));
    }
    if let Some(volume) = call.volume {
        add(format!("volume:{volume}"));
    }
    if let Some(minor) = call.minor {
        add(format!("minor:{minor}"));
    }
    add(format!("helper:{}", call.helper));
    if let Some(status) = call.status {
        add(format!("status:{status}"));
    }
    line
}

/// `ipv4:ADDR:PORT` or `ipv6:[ADDR]:PORT`.
fn endpoint(address: SocketAddr) -> String {
    format!("{}:{address}", if address.is_ipv4() { "ipv4" } else { "ipv6" })
}
