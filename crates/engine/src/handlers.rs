//! Handlers: programs of the operator's, run beside the threads that move data (drbdsetup contract
//! §7).
//!
//! A resource that was configured by `ashlar` has its commands here. For one that was configured by
//! `drbdadm` the helper program is called, which is `drbdadm` again and finds the command in its own
//! configuration. Either is stopped if it takes too long, with all that it has started.

use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use codec::admin::{HelperEvent, ResourceStatus};
use codec::config::Handlers;
use replication::io::HandlerCall;
use rustix::process::{Pid, Signal, kill_process_group};
use vocab::{ConfigError, HandlerEvent, HandlerSet, NodeId, Refusal, VolumeNr};

use crate::hub::Hub;
use logging::{Level, log};

/// How long a handler may take. Stopping a machine by way of its management board takes a minute or
/// two; I/O may wait for that.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often it is seen whether one has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Handlers that may run at a time.
const MOST: usize = 256;

/// What all handlers of an engine have in common.
pub(crate) struct Setup {
    /// Called for resources that `drbdadm` has configured, if any is.
    pub(crate) helper: Option<PathBuf>,
    /// The control socket, for the programs that handlers call.
    pub(crate) socket: PathBuf,
    /// Name of this host in the configuration.
    pub(crate) host: String,
    pub(crate) hub: Arc<Hub>,
}

/// The handlers of a resource.
#[derive(Clone)]
pub(crate) struct Programs {
    setup: Arc<Setup>,
    of: Handlers,
}

impl Programs {
    /// # Errors
    /// A handler has a name that there is none for.
    pub(crate) fn new(setup: Arc<Setup>, of: Handlers) -> Result<Programs, Refusal> {
        if let Handlers::Commands(commands) = &of {
            for name in commands.keys() {
                if let Err(error) = name.parse::<HandlerEvent>() {
                    return Err(Refusal::config(ConfigError::InvalidRequest, error.to_string()));
                }
            }
        }
        Ok(Programs { setup, of })
    }

    /// Events that something is called for.
    pub(crate) fn events(&self) -> HandlerSet {
        match &self.of {
            Handlers::Helper if self.setup.helper.is_some() => HandlerSet::ALL,
            Handlers::Helper => HandlerSet::NONE,
            Handlers::Commands(commands) => commands.keys().flat_map(|name| name.parse()).collect(),
        }
    }

    /// What is to be run for an event of a resource in that state.
    pub(crate) fn call(
        &self,
        (resource, id): (u16, u64),
        status: &ResourceStatus,
        call: &HandlerCall,
    ) -> Call {
        let mut command = match &self.of {
            Handlers::Helper => {
                let mut command = Command::new(self.setup.helper.clone().unwrap_or_default());
                command.arg(call.event.word()).arg(&status.name);
                command
            }
            Handlers::Commands(commands) => {
                let mut command = Command::new("/bin/sh");
                let text = commands.get(call.event.word()).map_or("", String::as_str);
                command.arg("-c").arg(text);
                command.envs(self.names(status, call.volume));
                command
            }
        };
        command.env("HOME", "/").env("TERM", "linux");
        command.env("PATH", "/sbin:/usr/sbin:/bin:/usr/bin");
        command.env("ASHLAR_SOCKET", &self.setup.socket);
        command.envs(environment(status, call));
        let event = helper_event(status, call);
        Call {
            resource,
            id,
            name: status.name.clone(),
            command,
            event,
            hub: self.setup.hub.clone(),
        }
    }

    /// What `drbdadm` adds on its way to a handler.
    fn names(&self, status: &ResourceStatus, only: Option<VolumeNr>) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([
            ("DRBD_RESOURCE".to_owned(), status.name.clone()),
            ("DRBD_MY_NODE_ID".to_owned(), status.node_id.to_string()),
            (format!("DRBD_NODE_ID_{}", status.node_id), self.setup.host.clone()),
        ]);
        for peer in &status.connections {
            all.insert(format!("DRBD_NODE_ID_{}", peer.peer_node_id), peer.name.clone());
        }
        let devices = status.devices.iter().filter(|d| only.is_none_or(|nr| nr == d.volume));
        let list = |of: &dyn Fn(&codec::admin::DeviceStatus) -> String| {
            devices.clone().map(of).collect::<Vec<_>>().join(" ")
        };
        all.insert("DRBD_MINOR".to_owned(), list(&|d| d.minor.to_string()));
        all.insert("DRBD_VOLUME".to_owned(), list(&|d| d.volume.to_string()));
        let disk = |d: &codec::admin::DeviceStatus| {
            d.backing_dev.clone().unwrap_or_else(|| "none".to_owned())
        };
        all.insert("DRBD_LL_DISK".to_owned(), list(&disk));
        all
    }
}

/// What the kernel module tells its helper.
fn environment(status: &ResourceStatus, call: &HandlerCall) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for device in &status.devices {
        let suffix = match call.volume {
            Some(nr) if nr == device.volume => String::new(),
            Some(_) => continue,
            None => format!("_{}", device.volume),
        };
        all.insert(format!("DRBD_MINOR{suffix}"), device.minor.to_string());
        if call.volume.is_some() {
            all.insert("DRBD_VOLUME".to_owned(), device.volume.to_string());
        }
        if let Some(disk) = &device.backing_dev {
            all.insert(format!("DRBD_BACKING_DEV{suffix}"), disk.clone());
        }
    }
    if let Some((node, state)) = call.peer {
        all.insert("DRBD_PEER_NODE_ID".to_owned(), node.to_string());
        all.insert("DRBD_CSTATE".to_owned(), state.to_string());
        if let Some(path) = path_to(status, node) {
            for (whose, at) in [("MY", path.this_host), ("PEER", path.remote_host)] {
                let family = if at.is_ipv4() { "ipv4" } else { "ipv6" };
                all.insert(format!("DRBD_{whose}_AF"), family.to_owned());
                all.insert(format!("DRBD_{whose}_ADDRESS"), at.ip().to_string());
            }
        }
    }
    if matches!(call.event, HandlerEvent::FencePeer | HandlerEvent::UnfencePeer) {
        let nodes = call.up_to_date.0;
        all.insert("UP_TO_DATE_NODES".to_owned(), format!("0x{nodes:08X}"));
    }
    all
}

/// The path that a connection uses, or would use first.
fn path_to(status: &ResourceStatus, node: NodeId) -> Option<&codec::admin::PathStatus> {
    let connection = status.connections.iter().find(|c| c.peer_node_id == node)?;
    let used = connection.paths.iter().find(|path| path.established);
    used.or(connection.paths.first())
}

fn helper_event(status: &ResourceStatus, call: &HandlerCall) -> HelperEvent {
    let peer = call.peer.map(|(node, _)| node);
    let connection = status.connections.iter().find(|c| Some(c.peer_node_id) == peer);
    let device = status.devices.iter().find(|d| Some(d.volume) == call.volume);
    let path = peer.and_then(|node| path_to(status, node));
    HelperEvent {
        resource: status.name.clone(),
        peer_node_id: peer,
        conn_name: connection.map(|c| c.name.clone()),
        path: path.map(|path| (path.this_host, path.remote_host)),
        volume: device.map(|d| d.volume),
        minor: device.map(|d| d.minor),
        helper: call.event.word().to_owned(),
        status: None,
    }
}

/// A handler that is to be run.
pub(crate) struct Call {
    /// The number of the resource on its shard.
    pub(crate) resource: u16,
    /// As the core gave it.
    pub(crate) id: u64,
    name: String,
    command: Command,
    event: HelperEvent,
    hub: Arc<Hub>,
}

static RUNNING: AtomicUsize = AtomicUsize::new(0);

impl Call {
    /// Starts it on a thread of its own, which hands its exit code to `done`.
    ///
    /// # Errors
    /// It is given back to be answered at once: too many are running, or there is no thread.
    pub(crate) fn start(
        mut self,
        done: impl FnOnce(Option<u8>) + Send + 'static,
    ) -> Result<(), ()> {
        if RUNNING.fetch_add(1, Ordering::AcqRel) >= MOST {
            RUNNING.fetch_sub(1, Ordering::AcqRel);
            let what = &self.event.helper;
            log!(Level::Error, self.name, "handler {what}: not run, {MOST} are running already");
            return Err(());
        }
        let (name, what) = (self.name.clone(), self.event.helper.clone());
        let run = move || {
            self.hub.helper(self.event.clone());
            let result = run(&mut self.command, PATIENCE);
            let exit = match &result {
                Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()),
                Err(_) => None,
            };
            match &result {
                Ok(status) => {
                    log!(Level::Info, self.name, "handler {}: {status}", self.event.helper)
                }
                Err(why) => log!(Level::Error, self.name, "handler {}: {why}", self.event.helper),
            }
            let status = result.map_or(-1, ExitStatusExt::into_raw);
            self.hub.helper(HelperEvent { status: Some(status), ..self.event });
            RUNNING.fetch_sub(1, Ordering::AcqRel);
            done(exit);
        };
        std::thread::Builder::new().name("handler".to_owned()).spawn(run).map(drop).map_err(|e| {
            RUNNING.fetch_sub(1, Ordering::AcqRel);
            log!(Level::Error, name, "handler {what}: no thread to run it: {e}");
        })
    }
}

/// Runs a command to its end, or until it has taken too long.
fn run(command: &mut Command, patience: Duration) -> Result<std::process::ExitStatus, String> {
    // Inherited would be what the engine has for itself alone.
    let path = command.get_program().to_owned();
    let envs: Vec<_> = command
        .get_envs()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())))
        .collect();
    command.env_clear().envs(envs).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    let failed = |e| format!("{}: can not be run: {e}", path.display());
    let mut child = command.spawn().map_err(failed)?;
    let end = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(LOOK),
            Ok(None) => {
                stop(child);
                return Err(format!("did not end within {} seconds", patience.as_secs()));
            }
            Err(e) => return Err(format!("can not be waited for: {e}")),
        }
    }
}

/// Kills it and what it has started. One that the kernel does not let go of is left behind.
fn stop(mut child: Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let reap = move || _ = child.wait();
    let _ = std::thread::Builder::new().name("handler".to_owned()).spawn(reap);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(text).env("PATH", "/bin:/usr/bin");
        command
    }

    #[test]
    fn a_handler_exits_with_its_code_and_sees_only_what_it_is_told() {
        let long = Duration::from_secs(60);
        let status = run(&mut shell("exit 5"), long).expect("it ends");
        assert_eq!(status.code(), Some(5));
        let mut told = shell("test \"$TOLD\" = yes && test -z \"$CARGO\"");
        assert_eq!(run(told.env("TOLD", "yes"), long).expect("it ends").code(), Some(0));
        let missing = run(&mut Command::new("/does/not/exist"), long);
        assert!(missing.expect_err("it is not there").contains("/does/not/exist"));
    }

    #[test]
    fn one_that_hangs_is_stopped_with_all_it_has_started() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pid");
        let text = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let result = run(&mut shell(&text), Duration::from_secs(2));
        assert!(result.expect_err("it hangs").contains("did not end"));
        let pid = std::fs::read_to_string(&file).expect("it has started one");
        let there = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        let end = Instant::now() + Duration::from_secs(60);
        while there() {
            assert!(Instant::now() < end, "it goes on");
            std::thread::sleep(LOOK);
        }
    }
}
