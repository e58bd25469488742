//! `status` as text: the lines of drbdsetup contract §3.1, a pure function of the status.
//!
//! Colours mark what wants attention and never carry information of their own.

use std::io::{self, IsTerminal};

use codec::admin::{ConnectionStatus, DeviceStatus, PeerDeviceStatus, ResourceStatus, SyncDetails};
use owo_colors::OwoColorize;
use vocab::{ConnState, DiskState, ReplState, Role, VolumeNr};

use super::args::Color;

/// How much is shown, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// 0: what is not as usual; 1: every state; 2: also the counters of a resync.
    pub verbose: u8,
    /// Traffic and pending requests too.
    pub statistics: bool,
    /// Columns of a line.
    pub width: usize,
    /// Whether a person reads it: what goes without saying is left out then.
    pub terminal: bool,
    /// Whether to mark states with colours.
    pub color: bool,
}

impl View {
    /// What standard output and its environment ask for.
    pub fn of_stdout(verbose: u8, statistics: bool, color: Color) -> View {
        let terminal = io::stdout().is_terminal();
        let color = match color {
            Color::Auto => terminal && std::env::var_os("NO_COLOR").is_none(),
            Color::Always => true,
            Color::Never => false,
        };
        let width = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
        let width = width.filter(|w| terminal && *w >= 20).unwrap_or(80);
        View { verbose, statistics, width, terminal, color }
    }
}

impl Default for View {
    /// What a script gets: terse, 80 columns, no colours.
    fn default() -> View {
        View { verbose: 0, statistics: false, width: 80, terminal: false, color: false }
    }
}

/// What a value means for the operator; decides its colour.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tone {
    Plain,
    Good,
    Busy,
    Bad,
}

/// Builds wrapped lines of `key:value` words.
struct Text {
    out: String,
    column: usize,
    indent: usize,
    /// Indent of the lines that continue this one.
    hang: usize,
    view: View,
}

impl Text {
    /// Begins the line of an object at `indent`; what does not fit is indented by four more.
    fn line(&mut self, indent: usize) {
        if self.column > 0 {
            self.out.push('\n');
        }
        (self.column, self.indent, self.hang) = (0, indent, indent + 4);
    }

    /// Continues the object on a line of its own.
    fn more(&mut self) {
        let hang = self.hang;
        self.line(hang);
        self.hang = hang;
    }

    fn toned(&mut self, key: &str, value: impl ToString, tone: Tone) {
        let value = value.to_string();
        let colon = usize::from(!key.is_empty());
        let len = key.chars().count() + colon + value.chars().count();
        if self.column == 0 {
            self.out.push_str(&" ".repeat(self.indent));
            self.column = self.indent;
        } else if self.column + 1 + len > self.view.width {
            self.out.push('\n');
            self.column = self.hang;
            self.out.push_str(&" ".repeat(self.column));
        } else {
            self.out.push(' ');
            self.column += 1;
        }
        self.column += len;
        self.out.push_str(key);
        if colon == 1 {
            self.out.push(':');
        }
        match tone {
            Tone::Good if self.view.color => self.out.push_str(&value.green().to_string()),
            Tone::Busy if self.view.color => self.out.push_str(&value.yellow().to_string()),
            Tone::Bad if self.view.color => self.out.push_str(&value.red().to_string()),
            _ => self.out.push_str(&value),
        }
    }

    fn word(&mut self, key: &str, value: impl ToString) {
        self.toned(key, value, Tone::Plain);
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.word(key, yes_no(value));
    }
}

/// `yes` or `no`.
pub(super) fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// All resources, sorted by name, each followed by an empty line.
pub fn render(resources: &[ResourceStatus], view: View) -> String {
    let mut resources: Vec<_> = resources.iter().collect();
    resources.sort_by(|a, b| a.name.cmp(&b.name));
    let mut text = Text { out: String::new(), column: 0, indent: 0, hang: 4, view };
    for status in resources {
        resource(&mut text, status);
        text.line(0);
        text.out.push('\n');
    }
    text.out
}

fn resource(t: &mut Text, r: &ResourceStatus) {
    let verbose = t.view.verbose > 0;
    t.line(0);
    t.word("", &r.name);
    if verbose {
        t.word("node-id", r.node_id);
    }
    t.toned("role", r.role, if r.role == Role::Primary { Tone::Good } else { Tone::Plain });
    if r.suspended.any() || verbose {
        t.toned("suspended", r.suspended, bad_if(r.suspended.any()));
    }
    if r.force_io_failures || verbose {
        t.toned("force-io-failures", yes_no(r.force_io_failures), bad_if(r.force_io_failures));
    }
    if verbose && t.view.statistics {
        t.more();
        t.word("write-ordering", r.write_ordering);
    }
    let lone = matches!(&r.devices[..], [only] if only.volume == VolumeNr(0)) && !verbose;
    for device in &r.devices {
        self::device(t, device, lone);
    }
    let mut connections: Vec<_> = r.connections.iter().collect();
    connections.sort_by(|a, b| a.name.cmp(&b.name));
    for connection in connections {
        self::connection(t, connection, lone);
    }
}

fn device(t: &mut Text, d: &DeviceStatus, lone: bool) {
    let View { verbose, statistics, terminal, .. } = t.view;
    let verbose = verbose > 0;
    t.line(2);
    if !lone {
        t.word("volume", d.volume);
    }
    if verbose {
        t.word("minor", d.minor);
    }
    t.toned("disk", d.disk_state, disk_tone(d.disk_state, d.client));
    if d.disk_state == DiskState::Diskless && (verbose || !terminal) {
        t.flag("client", d.client);
    }
    if verbose {
        t.word("backing_dev", d.backing_dev.as_deref().unwrap_or("none"));
    }
    if !d.quorum || verbose {
        t.toned("quorum", yes_no(d.quorum), bad_if(!d.quorum));
    }
    if let Some(open) = d.open {
        t.flag("open", open);
    }
    if (verbose && !statistics) || (!verbose && d.blocked.any()) {
        t.toned("blocked", d.blocked, bad_if(d.blocked.any()));
    }
    if !statistics {
        return;
    }
    t.more();
    if verbose {
        t.word("size", d.size);
    }
    t.word("read", d.read);
    t.word("written", d.written);
    if verbose {
        t.word("al-writes", d.al_writes);
        t.word("bm-writes", d.bm_writes);
        t.word("upper-pending", d.upper_pending);
        t.word("lower-pending", d.lower_pending);
        t.flag("al-suspended", d.al_suspended);
        t.toned("blocked", d.blocked, bad_if(d.blocked.any()));
    }
}

fn connection(t: &mut Text, c: &ConnectionStatus, lone: bool) {
    let verbose = t.view.verbose > 0;
    let connected = c.connection_state == ConnState::Connected;
    t.line(2);
    t.word("", &c.name);
    if verbose {
        t.word("node-id", c.peer_node_id);
    }
    if !connected || verbose {
        t.toned("connection", c.connection_state, connection_tone(c.connection_state));
    }
    if connected || verbose {
        let tone = if c.peer_role == Role::Primary { Tone::Good } else { Tone::Plain };
        t.toned("role", c.peer_role, tone);
    }
    if c.tls == Some(true) || (verbose && c.tls.is_some()) {
        t.flag("tls", c.tls == Some(true));
    }
    if c.congested || verbose {
        t.toned("congested", yes_no(c.congested), bad_if(c.congested));
        t.word("ap-in-flight", c.ap_in_flight);
        t.word("rs-in-flight", c.rs_in_flight);
    }
    if connected || verbose || t.view.statistics {
        for device in &c.peer_devices {
            peer_device(t, device, lone);
        }
    }
}

fn peer_device(t: &mut Text, p: &PeerDeviceStatus, lone: bool) {
    let View { verbose: level, statistics, terminal, .. } = t.view;
    let verbose = level > 0;
    t.line(4);
    if !lone {
        t.word("volume", p.volume);
    }
    if p.replication_state > ReplState::Established || verbose {
        let busy = p.replication_state > ReplState::Established;
        let tone = if busy { Tone::Busy } else { Tone::Plain };
        t.toned("replication", p.replication_state, tone);
    }
    t.toned("peer-disk", p.peer_disk_state, disk_tone(p.peer_disk_state, p.peer_client));
    if p.peer_disk_state == DiskState::Diskless && (verbose || !terminal) {
        t.flag("peer-client", p.peer_client);
    }
    if let Some(sync) = &p.sync {
        t.toned("done", format!("{:.2}", sync.percent_resync_done), Tone::Busy);
    }
    if p.resync_suspended.any() || verbose {
        t.toned("resync-suspended", p.resync_suspended, bad_if(p.resync_suspended.any()));
    }
    if statistics {
        t.more();
        t.word("received", p.received);
        t.word("sent", p.sent);
        if p.out_of_sync > 0 || verbose {
            t.toned("out-of-sync", p.out_of_sync, bad_if(p.out_of_sync > 0));
        }
        if verbose {
            t.word("pending", p.pending);
            t.word("unacked", p.unacked);
            speed(t, p.sync.as_ref());
        }
    }
    if level > 1 {
        details(t, p);
    }
}

/// Rate and time left, where they are known.
fn speed(t: &mut Text, sync: Option<&SyncDetails>) {
    let Some(sync) = sync else { return };
    t.word("dbdt1", format!("{:.2}", sync.rate1));
    if sync.estimated_seconds_to_finish != SyncDetails::ETA_UNKNOWN {
        t.word("eta", sync.estimated_seconds_to_finish);
    }
}

/// The counters behind a resync or verify.
fn details(t: &mut Text, p: &PeerDeviceStatus) {
    if let Some(s) = &p.sync {
        t.more();
        for (key, value) in [
            ("rs-total", s.rs_total),
            ("rs-dt-start-ms", s.rs_dt_start_ms),
            ("rs-paused-ms", s.rs_paused_ms),
            ("rs-dt0-ms", s.rs_dt0_ms),
            ("rs-db0-sectors", s.rs_db0_sectors),
            ("rs-dt1-ms", s.rs_dt1_ms),
            ("rs-db1-sectors", s.rs_db1_sectors),
            ("rs-failed", s.rs_failed),
            ("rs-same-csum", s.rs_same_csum),
        ] {
            t.word(key, value);
        }
        for (key, value) in [("want", s.want), ("dbdt", s.rate), ("dbdt0", s.rate0)] {
            t.word(key, format!("{value:.2}"));
        }
    }
    if let Some(v) = &p.verify {
        t.more();
        t.word("ov-start-sector", v.ov_start_sector);
        t.word("ov-stop-sector", v.ov_stop_sector);
        t.word("ov-position", v.ov_position);
        t.word("ov-left", v.ov_left);
        t.word("ov-skipped", v.ov_skipped);
    }
}

fn bad_if(bad: bool) -> Tone {
    if bad { Tone::Bad } else { Tone::Plain }
}

fn disk_tone(state: DiskState, client: bool) -> Tone {
    match state {
        DiskState::UpToDate => Tone::Good,
        DiskState::Diskless if client => Tone::Plain,
        DiskState::Attaching | DiskState::Detaching | DiskState::Negotiating => Tone::Busy,
        DiskState::Consistent => Tone::Busy,
        DiskState::DUnknown => Tone::Plain,
        DiskState::Diskless | DiskState::Failed | DiskState::Inconsistent | DiskState::Outdated => {
            Tone::Bad
        }
    }
}

fn connection_tone(state: ConnState) -> Tone {
    match state {
        ConnState::Connected => Tone::Good,
        ConnState::Connecting | ConnState::Unconnected => Tone::Busy,
        _ => Tone::Bad,
    }
}
