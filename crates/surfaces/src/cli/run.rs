//! What each command asks the engine for, and how the answer is printed.
//!
//! - `maps`: those about block devices.

mod convert;
mod maps;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use codec::admin::{
    Answer, Event, ExportStatus, Listen, MapOptions, Request, ResourceStatistics, ResourceStatus,
    TlsListen,
};
use codec::config::{MetaDisk, ResourceConfig};
use serde::Serialize;
use vocab::{ConfigError, NodeId, RefusalCode, Sector, StateError, VolumeNr};

use super::args::{Command, Common, DoctorArgs, FaceName, Objects};
use super::client::Client;
use super::each::EachInTurn;
use super::error::Error;
use super::load::{Loaded, load};
use super::objects::{Object, Selection};
use super::plan::{Limits, Running, plan};
use super::secret::{Ask, Source, Stdin};
use super::top::{self, Sort};
use super::{doctor, events, status, why};

/// Between two tries to have another engine take over: I/O goes on for several times as long as it waits.
const UPGRADE_AGAIN: Duration = Duration::from_secs(2);

const NOT_UP: &str = "bring it up with `ashlar up`, or look with `ashlar status`";
const NOT_CONFIGURED: &str = "check the name, or add it to the configuration";

/// Runs a command; results go to `out`, warnings to `err`. Errors are returned, not printed,
/// except that a command on several objects goes on after one and reports each.
///
/// # Errors
/// See [`Error`]; [`Error::status`] is the exit status.
pub fn run(
    command: &Command,
    common: &Common,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Error> {
    let mut session = Session { common, out, err, client: None, planned: Vec::new() };
    let result = session.command(command);
    if common.json && command.is_dry_run() {
        let planned = std::mem::take(&mut session.planned);
        session.json(&planned)?;
    }
    result
}

struct Session<'a> {
    common: &'a Common,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    client: Option<Client>,
    /// What a dry run would do, where that is printed as JSON.
    planned: Vec<String>,
}

impl EachInTurn for Session<'_> {
    fn err(&mut self) -> &mut dyn Write {
        self.err
    }
}

impl Session<'_> {
    fn command(&mut self, command: &Command) -> Result<(), Error> {
        match command {
            Command::CreateMd { objects, force, max_peers, dry_run } => {
                self.create_md(objects, *force, *max_peers, dry_run.dry_run)
            }
            Command::ConvertMd { objects, peer, max_peers, dry_run } => {
                self.convert_md(objects, *peer, *max_peers, dry_run.dry_run)
            }
            Command::Up { objects, dry_run } => {
                self.adjust(objects, Limits::default(), dry_run.dry_run)
            }
            Command::Adjust { objects, skip_disk, skip_net, discard_my_data, dry_run } => {
                let limits = Limits {
                    skip_disk: *skip_disk,
                    skip_net: *skip_net,
                    discard_my_data: *discard_my_data,
                };
                self.adjust(objects, limits, dry_run.dry_run)
            }
            Command::Down { objects } => self.down(objects),
            Command::Attach { objects } => self.attach(objects),
            Command::Status { object, verbose, statistics, watch, color } => {
                let view = status::View::of_stdout(*verbose, *statistics, *color);
                self.status(object.as_ref(), view, *watch)
            }
            Command::Events { object, statistics, now, timestamps } => {
                self.events(object.as_ref(), *statistics, *now, *timestamps)
            }
            Command::Top { object, interval, once, sort } => {
                self.top(object.as_ref(), *interval, *once, *sort)
            }
            Command::ForgetPeer { resource, peer } => {
                let what = format!("{resource}: forget node {peer}");
                let (resource, peer) = (resource.clone(), *peer);
                self.simple(&what, Request::ForgetPeer { resource, peer })
            }
            Command::Why { resource } => self.why(resource),
            Command::Doctor(args) => self.doctor(args),
            Command::Export { object, name, listen, tls, vhost_user, read_only } => {
                let listen = match (vhost_user, tls, listen) {
                    (Some(place), ..) => place.clone(),
                    (None, None, listen) => listen.clone(),
                    (None, Some(folder), Listen::Tcp(address)) => {
                        let certificates = folder.clone();
                        Listen::Tls(TlsListen { address: *address, certificates })
                    }
                    (None, Some(_), _) => {
                        let why =
                            "TLS is for clients of the network; say --listen ADDRESS:PORT, too";
                        let (object, why) = (object.to_string(), why.to_owned());
                        return Err(Error::Object { object, why });
                    }
                };
                self.export(object, name.as_deref(), &listen, *read_only)
            }
            Command::Unexport { name } => {
                let request = Request::Unexport { name: name.clone() };
                self.simple(&format!("unexport {name}"), request)
            }
            Command::Exports => self.exports(),
            Command::Map { object, read_only, drbd_names, standby, face, queues, depth } => {
                let (read_only, drbd_names, standby) = (*read_only, *drbd_names, *standby);
                let (queues, depth, face) = (*queues, *depth, face.map(FaceName::face));
                self.map(object, MapOptions { read_only, drbd_names, queues, depth, face, standby })
            }
            Command::Unmap { object } => self.unmap(object),
            Command::Maps => self.maps(),
            Command::Unlock { disk } => self.unlock(disk),
            Command::Lock { disk } => {
                self.simple(&format!("lock {disk}"), Request::Lock { disk: disk.clone() })
            }
            Command::Info => self.info(),
            Command::Upgrade { binary, retry } => self.upgrade(binary.as_deref(), *retry),
            Command::Shutdown { force } => {
                self.simple("shutdown", Request::Shutdown { force: *force })
            }
            running => self.on_running(running),
        }
    }

    fn client(&mut self) -> Result<&mut Client, Error> {
        if self.client.is_none() {
            let Common { socket, timeout, wait_engine, .. } = self.common;
            self.client = Some(Client::connect(socket, *timeout, *wait_engine)?);
        }
        Ok(self.client.as_mut().expect("connected just above"))
    }

    fn ask(&mut self, what: &str, request: Request) -> Result<Answer, Error> {
        self.client()?.ask(what, request)
    }

    /// Asks for something that answers with success alone.
    fn simple(&mut self, what: &str, request: Request) -> Result<(), Error> {
        match self.ask(what, request)? {
            Answer::Done => Ok(()),
            Answer::Remarks(remarks) => {
                for remark in remarks {
                    writeln!(self.err, "{what}: {remark}")?;
                }
                Ok(())
            }
            answer => Err(unfitting(what, &answer)),
        }
    }

    fn running_config(&mut self) -> Result<Vec<ResourceConfig>, Error> {
        let what = "configuration in force";
        match self.ask(what, Request::Config { resource: None })? {
            Answer::Config(config) => Ok(config),
            answer => Err(unfitting(what, &answer)),
        }
    }

    fn states(&mut self, resource: Option<String>) -> Result<Vec<ResourceStatus>, Error> {
        match self.ask("status", Request::Status { resource })? {
            Answer::Status(status) => Ok(status),
            answer => Err(unfitting("status", &answer)),
        }
    }

    fn load(&mut self) -> Result<Loaded, Error> {
        let loaded = load(self.common.config.as_deref(), self.common.node.as_deref())?;
        for warning in &loaded.warnings {
            writeln!(self.err, "warning: {warning}")?;
        }
        Ok(loaded)
    }

    fn json<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        serde_json::to_writer_pretty(&mut *self.out, value).map_err(io::Error::from)?;
        writeln!(self.out)?;
        Ok(())
    }

    /// Says what would be done, in a dry run.
    fn would(&mut self, what: String) -> Result<(), Error> {
        if self.common.json {
            self.planned.push(what);
        } else {
            writeln!(self.out, "{what}")?;
        }
        Ok(())
    }

    /// What the objects name in the configuration of this host.
    fn configured<'c>(
        &self,
        objects: &Objects,
        loaded: &'c Loaded,
    ) -> Result<Vec<Selection<'c>>, Error> {
        let mut selections = Vec::new();
        for object in &objects.objects {
            if let Some(name) = object.resource() {
                loaded.resource(name)?;
            }
            selections.extend(object.select(&loaded.resources, NOT_CONFIGURED)?);
        }
        Ok(selections)
    }
}

fn unfitting(what: &str, answer: &Answer) -> Error {
    let text = format!("{answer:?}");
    let kind = text.split(['(', ' ', '{']).next().unwrap_or_default();
    Error::Protocol { what: what.to_owned(), why: format!("the engine answered with {kind}") }
}

/// Commands that begin with the configuration.
impl Session<'_> {
    fn create_md(
        &mut self,
        objects: &Objects,
        force: bool,
        max_peers: Option<u8>,
        dry_run: bool,
    ) -> Result<(), Error> {
        let loaded = self.load()?;
        let selections = self.configured(objects, &loaded)?;
        self.all(selections, |s, selection| {
            for volume in &selection.volumes {
                let name = format!("{}/{}", selection.resource.name, volume.nr);
                let Some(backing) = &volume.backing else {
                    if selection.one_volume {
                        let why = "it has no disk on this host, so it has no metadata".to_owned();
                        return Err(Error::Object { object: name, why });
                    }
                    continue;
                };
                let diskful =
                    selection.resource.peers.iter().filter(|peer| {
                        peer.volumes.iter().any(|v| v.nr == volume.nr && !v.diskless)
                    });
                let max_peers = max_peers.unwrap_or_else(|| (diskful.count() as u8).max(1));
                let meta = match &backing.meta_disk {
                    MetaDisk::Internal => "internal".to_owned(),
                    MetaDisk::External { device, index: None } => device.clone(),
                    MetaDisk::External { device, index: Some(i) } => format!("{device}[{i}]"),
                };
                let what = format!(
                    "{name}: write metadata of {} ({meta}) for {max_peers} peer(s)",
                    backing.disk
                );
                if dry_run {
                    s.would(what)?;
                    continue;
                }
                let (disk, meta_disk) = (backing.disk.clone(), backing.meta_disk.clone());
                let luks = backing.luks;
                s.simple(&what, Request::CreateMd { disk, meta_disk, max_peers, force, luks })?;
            }
            Ok(())
        })
    }

    fn adjust(&mut self, objects: &Objects, limits: Limits, dry_run: bool) -> Result<(), Error> {
        let loaded = self.load()?;
        let mut wanted: Vec<&ResourceConfig> = Vec::new();
        for selection in self.configured(objects, &loaded)? {
            if selection.one_peer || selection.one_volume {
                let object = selection.resource.name.clone();
                let why = "up and adjust work on whole resources; give its name alone".to_owned();
                return Err(Error::Object { object, why });
            }
            if !wanted.iter().any(|w| w.name == selection.resource.name) {
                wanted.push(selection.resource);
            }
        }
        let (configs, states) = match self.running_config() {
            Ok(configs) => (configs, self.states(None)?),
            // Without an engine nothing runs, and a plan can still be shown.
            Err(e @ Error::Unreachable { .. }) if dry_run => {
                writeln!(self.err, "warning: {e}")?;
                (Vec::new(), Vec::new())
            }
            Err(e) => return Err(e),
        };
        self.all(wanted, |s, wanted| {
            loaded.check_addresses(wanted)?;
            let config = configs.iter().find(|r| r.name == wanted.name);
            let status = states.iter().find(|r| r.name == wanted.name);
            let running = config.zip(status).map(|(config, status)| Running { config, status });
            let steps = plan(wanted, running, limits).map_err(|e| Error::Object {
                object: format!("resource {}", wanted.name),
                why: e.to_string(),
            })?;
            for step in steps {
                if dry_run {
                    s.would(step.what)?;
                } else {
                    s.simple(&step.what, step.request)?;
                }
            }
            Ok(())
        })
    }

    fn unlock(&mut self, disk: &str) -> Result<(), Error> {
        let secrets = Stdin.read(disk, &[Ask::Known("passphrase")])?;
        secrets.into_iter().try_for_each(|passphrase| {
            let request = Request::Unlock { disk: disk.to_owned(), passphrase };
            self.simple(&format!("unlock {disk}"), request)
        })
    }

    fn attach(&mut self, objects: &Objects) -> Result<(), Error> {
        let loaded = self.load()?;
        let selections = self.configured(objects, &loaded)?;
        self.all(selections, |s, selection| {
            for volume in &selection.volumes {
                let name = format!("{}/{}", selection.resource.name, volume.nr);
                match &volume.backing {
                    Some(backing) => {
                        let (minor, disk) = (volume.minor, backing.disk.clone());
                        let (meta_disk, options) =
                            (backing.meta_disk.clone(), backing.options.clone());
                        let what = format!("{name}: attach {disk}");
                        let luks = backing.luks;
                        let request = Request::Attach { minor, disk, meta_disk, options, luks };
                        s.simple(&what, request)?;
                    }
                    None if selection.one_volume => {
                        let why =
                            "`disk none` is configured; there is nothing to attach".to_owned();
                        return Err(Error::Object { object: name, why });
                    }
                    None => {}
                }
            }
            Ok(())
        })
    }
}

/// Commands on what runs.
impl Session<'_> {
    fn down(&mut self, objects: &Objects) -> Result<(), Error> {
        let running = self.running_config()?;
        let mut names: Vec<String> = Vec::new();
        for object in &objects.objects {
            match object {
                Object::All => names.extend(running.iter().map(|r| r.name.clone())),
                // What is not up is down.
                Object::Part { resource, peer: None, volume: None } => names.push(resource.clone()),
                other => {
                    let why = "down works on whole resources; give a name or all".to_owned();
                    return Err(Error::Object { object: other.to_string(), why });
                }
            }
        }
        self.all(names, |s, resource| {
            s.simple(&format!("{resource}: take it down"), Request::Down { resource })
        })
    }

    /// Commands that turn each object into one or more requests, by the configuration in force.
    fn on_running(&mut self, command: &Command) -> Result<(), Error> {
        let (verb, objects, dry_run) = describe(command);
        let running = self.running_config()?;
        self.all(&objects.objects, |s, object| {
            for selection in object.select(&running, NOT_UP)? {
                for (target, request) in requests(command, object, &selection)? {
                    if dry_run {
                        s.would(format!("{target}: {verb}"))?;
                        continue;
                    }
                    match s.simple(&format!("{target}: {verb}"), request) {
                        // Who connects a whole resource means the connections that are not.
                        Err(e) if !selection.one_peer && is_connected_already(&e) => {}
                        result => result?,
                    }
                }
            }
            Ok(())
        })
    }
}

/// Name, objects and `--dry-run` of a command on what runs.
fn describe(command: &Command) -> (&'static str, &Objects, bool) {
    match command {
        Command::Detach { objects, .. } => ("detach", objects, false),
        Command::Connect { objects, .. } => ("connect", objects, false),
        Command::Disconnect { objects, .. } => ("disconnect", objects, false),
        Command::Primary { objects, .. } => ("primary", objects, false),
        Command::Secondary { objects, .. } => ("secondary", objects, false),
        Command::Invalidate { objects, dry_run, .. } => ("invalidate", objects, dry_run.dry_run),
        Command::InvalidateRemote { objects, dry_run, .. } => {
            ("invalidate-remote", objects, dry_run.dry_run)
        }
        Command::Verify { objects, .. } => ("verify", objects, false),
        Command::Resize { objects, .. } => ("resize", objects, false),
        Command::PauseSync { objects } => ("pause-sync", objects, false),
        Command::ResumeSync { objects } => ("resume-sync", objects, false),
        Command::SuspendIo { objects } => ("suspend-io", objects, false),
        Command::ResumeIo { objects } => ("resume-io", objects, false),
        Command::NewCurrentUuid { objects, .. } => ("new-current-uuid", objects, false),
        Command::Outdate { objects } => ("outdate", objects, false),
        _ => unreachable!("the other commands have functions of their own"),
    }
}

fn is_connected_already(error: &Error) -> bool {
    let configured = RefusalCode::Config(ConfigError::NetConfigured);
    matches!(error, Error::Refused { refusal, .. } if refusal.code == configured)
}

/// What a command on what runs asks of one selection, each with the target's name.
fn requests(
    command: &Command,
    object: &Object,
    selection: &Selection<'_>,
) -> Result<Vec<(String, Request)>, Error> {
    let name = &selection.resource.name;
    let resource = || name.clone();
    let wrong = |takes: &str| {
        let (object, why) = (object.to_string(), format!("this command takes {takes}"));
        Err(Error::Object { object, why })
    };
    // A command on whole resources must not run on all of one because a part was named.
    let whole = |request: Request| match selection.one_peer || selection.one_volume {
        true => wrong("a resource or all"),
        false => Ok(vec![(resource(), request)]),
    };
    let volumes = |make: &dyn Fn(&codec::config::VolumeConfig) -> Request| match selection.one_peer
    {
        true => wrong("RESOURCE, RESOURCE/VOLUME, minor-N or all"),
        false => {
            Ok(selection.volumes.iter().map(|v| (format!("{name}/{}", v.nr), make(v))).collect())
        }
    };
    let peers = |make: &dyn Fn(NodeId) -> Request| match selection.one_volume {
        true => wrong("RESOURCE, RESOURCE:PEER or all"),
        false => Ok(selection
            .peers
            .iter()
            .map(|p| (format!("{name}:{}", p.name), make(p.node_id)))
            .collect()),
    };
    // A client has no copy: commands about copies skip it unless it is named.
    let copies = |make: &dyn Fn(NodeId, VolumeNr) -> Request| {
        let pairs = selection.peers.iter().flat_map(|p| {
            let with_disk = |nr| p.volumes.iter().any(|v| v.nr == nr && !v.diskless);
            let volumes = selection.volumes.iter();
            let chosen = volumes.filter(move |v| selection.one_peer || with_disk(v.nr));
            chosen.map(|v| (format!("{name}:{}/{}", p.name, v.nr), make(p.node_id, v.nr)))
        });
        Ok(pairs.collect())
    };
    match command {
        Command::Detach { force, diskless, .. } => {
            volumes(&|v| Request::Detach { minor: v.minor, force: *force, diskless: *diskless })
        }
        Command::Connect { discard_my_data, .. } => peers(&|peer| Request::Connect {
            resource: resource(),
            peer,
            discard_my_data: *discard_my_data,
        }),
        Command::Disconnect { force, .. } => {
            peers(&|peer| Request::Disconnect { resource: resource(), peer, force: *force })
        }
        Command::Primary { force, .. } => {
            whole(Request::Primary { resource: resource(), force: *force })
        }
        Command::Secondary { force, .. } => {
            whole(Request::Secondary { resource: resource(), force: *force })
        }
        Command::Invalidate { .. } => {
            let from = selection.one_peer.then(|| selection.peers[0].node_id);
            let requests = selection.volumes.iter().map(|v| {
                let request = Request::Invalidate { minor: v.minor, from, reset_bitmap: true };
                (format!("{name}/{}", v.nr), request)
            });
            Ok(requests.collect())
        }
        Command::InvalidateRemote { .. } => copies(&|peer, volume| Request::InvalidateRemote {
            resource: resource(),
            peer,
            volume,
            reset_bitmap: true,
        }),
        Command::Verify { start, stop, .. } => copies(&|peer, volume| Request::Verify {
            resource: resource(),
            peer,
            volume,
            start: Sector(*start),
            stop: stop.map(Sector),
        }),
        Command::PauseSync { .. } => {
            copies(&|peer, volume| Request::PauseSync { resource: resource(), peer, volume })
        }
        Command::ResumeSync { .. } => {
            copies(&|peer, volume| Request::ResumeSync { resource: resource(), peer, volume })
        }
        Command::SuspendIo { .. } => {
            whole(Request::SuspendIo { resource: resource(), for_ms: None })
        }
        Command::ResumeIo { .. } => whole(Request::ResumeIo { resource: resource() }),
        Command::NewCurrentUuid { clear_bitmap, .. } => {
            volumes(&|v| Request::NewCurrentUuid { minor: v.minor, clear_bitmap: *clear_bitmap })
        }
        Command::Outdate { .. } => volumes(&|v| Request::Outdate { minor: v.minor }),
        Command::Resize { size, assume_clean, assume_peer_has_space, .. } => {
            volumes(&|v| Request::Resize {
                minor: v.minor,
                size: *size,
                assume_peer_has_space: *assume_peer_has_space,
                assume_clean: *assume_clean,
            })
        }
        _ => unreachable!("the other commands have functions of their own"),
    }
}

/// Commands that show something.
impl Session<'_> {
    fn status(
        &mut self,
        object: Option<&Object>,
        view: status::View,
        watch: Option<Duration>,
    ) -> Result<(), Error> {
        let resource = only_resource(object)?;
        loop {
            let states = self.states(resource.clone())?;
            if watch.is_some() && view.terminal {
                // Home, then clear what is below the new text, so that nothing flickers.
                write!(self.out, "\x1b[H\x1b[J")?;
            }
            if self.common.json {
                self.json(&states)?;
            } else if states.is_empty() {
                writeln!(self.out, "# No resource is up.")?;
            } else {
                write!(self.out, "{}", status::render(&states, view))?;
            }
            self.out.flush()?;
            match watch {
                Some(interval) => std::thread::sleep(interval),
                None => return Ok(()),
            }
        }
    }

    fn events(
        &mut self,
        object: Option<&Object>,
        statistics: bool,
        now: bool,
        timestamps: bool,
    ) -> Result<(), Error> {
        let resource = only_resource(object)?;
        let statistics_ms = statistics.then_some(1000);
        self.simple("events", Request::Events { resource, statistics_ms })?;
        let mut lines = events::Lines::new(statistics);
        loop {
            let Some(event) = self.client()?.event()? else {
                let why = io::Error::other("the engine ended");
                return Err(Error::Unreachable { socket: self.common.socket.clone(), why });
            };
            let last = now && event == Event::Current;
            if self.common.json {
                serde_json::to_writer(&mut *self.out, &event).map_err(io::Error::from)?;
                writeln!(self.out)?;
            } else {
                let stamp =
                    if timestamps { events::timestamp(SystemTime::now()) } else { String::new() };
                for line in lines.event(event) {
                    writeln!(self.out, "{stamp}{line}")?;
                }
            }
            self.out.flush()?;
            if last {
                return Ok(());
            }
        }
    }

    fn statistics(&mut self, resource: Option<String>) -> Result<Vec<ResourceStatistics>, Error> {
        match self.ask("statistics", Request::Statistics { resource })? {
            Answer::Statistics(statistics) => Ok(statistics),
            answer => Err(unfitting("statistics", &answer)),
        }
    }

    /// On a terminal a live view; else one JSON array, or some lines of text, for each interval.
    fn top(
        &mut self,
        object: Option<&Object>,
        interval: Duration,
        once: bool,
        by: Sort,
    ) -> Result<(), Error> {
        let resource = only_resource(object)?;
        if !once && !self.common.json && io::stdout().is_terminal() {
            return top::screen::run(interval, by, || self.statistics(resource.clone()));
        }
        let mut before = self.statistics(resource.clone())?;
        loop {
            std::thread::sleep(interval);
            let after = self.statistics(resource.clone())?;
            let mut rows = top::rows(&before, &after);
            top::sort(&mut rows, by);
            if self.common.json && once {
                self.json(&rows)?;
            } else if self.common.json {
                serde_json::to_writer(&mut *self.out, &rows).map_err(io::Error::from)?;
                writeln!(self.out)?;
            } else {
                for line in top::lines(&rows) {
                    writeln!(self.out, "{}", line.text())?;
                }
            }
            self.out.flush()?;
            if once {
                return Ok(());
            }
            before = after;
        }
    }

    fn why(&mut self, resource: &str) -> Result<(), Error> {
        let what = format!("why {resource}");
        match self.ask(&what, Request::Why { resource: resource.to_owned() })? {
            Answer::Why { status, notes } => {
                let findings = why::explain(&status);
                if self.common.json {
                    return self.json(&serde_json::json!({
                        "resource": resource, "findings": findings, "notes": notes,
                    }));
                }
                write!(self.out, "{}", why::render(&status, &findings, &notes))?;
                Ok(())
            }
            answer => Err(unfitting(&what, &answer)),
        }
    }

    fn doctor(&mut self, args: &DoctorArgs) -> Result<(), Error> {
        let running = self.running_config()?;
        let selections = args.object.select(&running, NOT_UP)?;
        let timeout = self.common.timeout;
        if args.serve {
            return doctor::serve(self.client()?, args, &selections);
        }
        let mut progress = doctor::Progress::new(self.common.json);
        let found = doctor::examine(self.client()?, args, &selections, timeout, &mut progress)?;
        drop(progress);
        if self.common.json {
            return self.json(&found);
        }
        for examination in &found {
            write!(self.out, "{}", doctor::render(examination))?;
        }
        Ok(())
    }

    fn export(
        &mut self,
        object: &Object,
        name: Option<&str>,
        listen: &Listen,
        read_only: bool,
    ) -> Result<(), Error> {
        let running = self.running_config()?;
        let selections = object.select(&running, NOT_UP)?;
        let [Selection { resource, volumes, one_peer: false, .. }] = &selections[..] else {
            let why = "one volume is exported at a time; give RESOURCE/VOLUME".to_owned();
            return Err(Error::Object { object: object.to_string(), why });
        };
        let [volume] = volumes[..] else {
            let why = format!("it has {} volumes; give RESOURCE/VOLUME", volumes.len());
            return Err(Error::Object { object: object.to_string(), why });
        };
        let default = format!("{}/{}", resource.name, volume.nr);
        let name = name.unwrap_or(&default).to_owned();
        let request = Request::Export {
            resource: resource.name.clone(),
            volume: volume.nr,
            name: name.clone(),
            listen: listen.clone(),
            read_only,
        };
        self.simple(&format!("export {default}"), request)?;
        let uri = uri(&name, listen);
        if self.common.json {
            return self.json(&serde_json::json!({ "name": name, "uri": uri }));
        }
        writeln!(self.out, "{uri}")?;
        Ok(())
    }

    fn exports(&mut self) -> Result<(), Error> {
        let exports: Vec<ExportStatus> = match self.ask("exports", Request::Exports)? {
            Answer::Exports(exports) => exports,
            answer => return Err(unfitting("exports", &answer)),
        };
        if self.common.json {
            return self.json(&exports);
        }
        for e in exports {
            let uri = uri(&e.name, &e.listen);
            let how = if e.read_only { " read-only" } else { "" };
            let (resource, volume, clients) = (e.resource, e.volume, e.clients);
            writeln!(self.out, "{uri} volume:{resource}/{volume} clients:{clients}{how}")?;
        }
        Ok(())
    }

    fn upgrade(&mut self, binary: Option<&Path>, retry: Duration) -> Result<(), Error> {
        // The engine has another working directory.
        let absolute = binary.map(std::path::absolute).transpose()?;
        let binary = absolute.map(|path| path.display().to_string());
        let end = Instant::now() + retry;
        let answer = loop {
            match self.ask("upgrade", Request::Upgrade { binary: binary.clone() }) {
                Err(Error::Refused { what, refusal })
                    if refusal.code == RefusalCode::State(StateError::InTransientState)
                        && Instant::now() < end =>
                {
                    writeln!(self.err, "{what}: {}; it is tried again", refusal.detail)?;
                    std::thread::sleep(UPGRADE_AGAIN.min(end - Instant::now()));
                }
                other => break other?,
            }
        };
        match answer {
            Answer::Upgraded(report) => {
                let pause = report.pause_us as f64 / 1e3;
                writeln!(
                    self.out,
                    "process {} has taken over; I/O waited {pause:.1} ms",
                    report.pid
                )?;
                Ok(())
            }
            answer => Err(unfitting("upgrade", &answer)),
        }
    }

    fn info(&mut self) -> Result<(), Error> {
        let info = match self.ask("info", Request::Info)? {
            Answer::Info(info) => info,
            answer => return Err(unfitting("info", &answer)),
        };
        if self.common.json {
            return self.json(&info);
        }
        let (oldest, newest) = info.protocols;
        writeln!(self.out, "version:{}", info.version)?;
        writeln!(self.out, "pid:{}", info.pid)?;
        writeln!(self.out, "uptime-seconds:{}", info.uptime_seconds)?;
        writeln!(self.out, "protocols:{oldest}-{newest}")?;
        writeln!(self.out, "resources:{}", info.resources)?;
        for face in &info.faces {
            let usable = if face.usable { "yes" } else { "no" };
            write!(self.out, "face:{} usable:{usable}", face.name)?;
            if !face.features.is_empty() {
                write!(self.out, " features:{}", face.features.join(","))?;
            }
            writeln!(self.out)?;
            if let Some(problem) = &face.problem {
                writeln!(self.out, "  {problem}")?;
            }
        }
        // An engine of an older release does not say it.
        if let Some(standby) = &info.standby {
            let usable = if standby.usable { "yes" } else { "no" };
            writeln!(self.out, "standby usable:{usable}")?;
            if let Some(problem) = &standby.problem {
                writeln!(self.out, "  {problem}")?;
            }
        }
        Ok(())
    }
}

/// The resource a listing is limited to.
fn only_resource(object: Option<&Object>) -> Result<Option<String>, Error> {
    match object {
        None | Some(Object::All) => Ok(None),
        Some(Object::Part { resource, peer: None, volume: None }) => Ok(Some(resource.clone())),
        Some(other) => {
            let why = "give the name of a resource, or all".to_owned();
            Err(Error::Object { object: other.to_string(), why })
        }
    }
}

/// The export as clients name it.
fn uri(name: &str, listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => format!("nbd://{address}/{name}"),
        Listen::Tls(TlsListen { address, .. }) => format!("nbds://{address}/{name}"),
        Listen::Unix(path) => format!("nbd+unix:///{name}?socket={path}"),
        Listen::VhostUser(path) => format!("vhost-user-blk:{path}"),
    }
}
