//! The processes: a controller, and the engine and the agent of each node; and the commands that an
//! operator would type, run in this process.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use surfaces::cli::cluster::Look;

use super::super::cluster::Places;
use super::super::leftovers::Leftovers;
use super::super::{Interrupted, NodeNr};
use super::network::Network;
use super::pools::Pools;

/// The nodes.
pub const NAMES: [&str; 3] = ["alpha", "bravo", "charlie"];

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(40);
/// The same for commands, in seconds.
const TIMEOUT: &str = "40";
/// How often it is looked again.
const POLL: Duration = Duration::from_millis(20);
/// How often the controller is asked again.
const ASK: Duration = Duration::from_millis(150);
/// Where the nodes serve volumes.
pub const NBD: u16 = 10_809;
/// Where agents find the controller.
pub const AGENTS: u16 = 3377;
/// LINSTOR's port, and those that are tried if it is taken.
const REST: std::ops::Range<u16> = 3370..3470;
/// The last byte of the controller's address.
pub const CONTROLLER: u8 = 250;

/// What is left to clean up is kept by numbers: the controller, then engines, then agents.
const CONTROLLER_NR: NodeNr = 0;
const AGENT_NR: NodeNr = 10;

fn number(node: &str) -> NodeNr {
    let index = NAMES.iter().position(|name| *name == node).expect("the node is one of three");
    index as NodeNr + 1
}

/// The name of a process.
fn process(nr: NodeNr) -> String {
    let name = |nr: NodeNr| NAMES[usize::from(nr) - 1];
    match nr {
        CONTROLLER_NR => "controller".to_owned(),
        1..AGENT_NR => format!("engine-{}", name(nr)),
        _ => format!("agent-{}", name(nr - AGENT_NR)),
    }
}

/// A control plane.
pub struct Plane {
    places: Places,
    /// Where volumes are.
    pub pools: Pools,
    /// Where nodes are.
    pub network: Network,
    rest: u16,
    /// Its port, until the controller takes it.
    held: Mutex<Option<TcpListener>>,
    leftovers: Leftovers,
    interrupted: Arc<AtomicBool>,
}

impl Plane {
    /// Finds addresses and makes folders; nothing runs yet.
    ///
    /// # Errors
    /// If there are none, or they can not be made.
    pub fn prepare(
        places: Places,
        keep: bool,
        leftovers: Leftovers,
        interrupted: Arc<AtomicBool>,
    ) -> anyhow::Result<Plane> {
        fs::create_dir_all(places.logs()).context("can not make a folder for logs")?;
        let pools = Pools::prepare(&places.disks, &leftovers)?;
        for name in NAMES {
            let folder = pools.of(name);
            fs::create_dir(&folder)
                .with_context(|| format!("can not make the folder {}", folder.display()))?;
        }
        let network = Network::prepare(&leftovers)?;
        let free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
        // Only who stays is to be found where clients look for it.
        let held = if keep { REST.step_by(10).find_map(free) } else { free(0) };
        let held = held.context("no free port on 127.0.0.1; with --keep, from 3370 to 3469")?;
        let rest = held.local_addr().context("a port has no number")?.port();
        let held = Mutex::new(Some(held));
        Ok(Plane { places, pools, network, rest, held, leftovers, interrupted })
    }

    /// The REST API.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.rest)
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        let [a, b, c] = self.network.bytes;
        Ipv4Addr::new(a, b, c, last)
    }

    /// Where replication and clients find a node.
    pub fn of(&self, node: &str) -> Ipv4Addr {
        self.address(number(node))
    }

    /// Where a node serves volumes.
    pub fn nbd(&self, node: &str) -> SocketAddr {
        (self.of(node), NBD).into()
    }

    /// Where agents find the controller.
    pub fn link(&self) -> SocketAddr {
        (self.address(CONTROLLER), AGENTS).into()
    }

    /// The controller's folder.
    pub fn data(&self) -> PathBuf {
        self.places.run.join("controller")
    }

    fn folder(&self, kind: &str, node: &str) -> PathBuf {
        self.places.run.join(format!("{kind}-{node}"))
    }

    /// The engine's control socket.
    pub fn socket(&self, node: &str) -> PathBuf {
        self.places.run.join(format!("{node}.sock"))
    }

    /// The agent's folder.
    pub fn agent(&self, node: &str) -> PathBuf {
        self.folder("agent", node)
    }

    /// Starts a process that goes on until it is told to end.
    fn start(&self, nr: NodeNr, arguments: Vec<OsString>) -> anyhow::Result<()> {
        let name = process(nr);
        let mut words = match name.split_once('-') {
            Some((_, node)) => self.network.inside(node),
            None => Vec::new(),
        };
        let path = self.places.logs().join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(path);
        let log = log.context("can not open the log")?;
        let program = std::env::current_exe().context("this program can not find itself")?;
        words.push(program.into());
        words.extend(arguments);
        // Ctrl-C is for the demo alone: it ends the others in its own time. `ip` becomes what it runs.
        let child = Command::new(&words[0])
            .args(&words[1..])
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("can not share the log")?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("can not start {name}"))?;
        self.leftovers.child(nr, child);
        Ok(())
    }

    /// Starts the controller and waits until it answers.
    ///
    /// # Errors
    /// If it does not.
    pub fn start_controller(&self) -> anyhow::Result<()> {
        let listen = format!("127.0.0.1:{}", self.rest);
        let arguments: Vec<OsString> = vec![
            "controller".into(),
            "--data-dir".into(),
            self.data().into(),
            "--listen".into(),
            listen.into(),
            "--listen-agents".into(),
            self.link().to_string().into(),
        ];
        drop(self.held.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.start(CONTROLLER_NR, arguments)?;
        // Another demo may have taken the port in between: what answers there would be its controller.
        let log = self.places.logs().join("controller.log");
        let serves = format!("the REST API is on {}", self.url());
        self.until("the controller to serve", || {
            Ok(fs::read_to_string(&log).is_ok_and(|text| text.contains(&serves)))
        })
    }

    /// Starts the engine of a node and waits until it answers.
    ///
    /// # Errors
    /// If it does not.
    pub fn start_engine(&self, node: &str) -> anyhow::Result<()> {
        let mut arguments: Vec<OsString> =
            ["engine", "--threads", "1", "--buffers", "64", "--node"].map(OsString::from).to_vec();
        arguments.extend([node.into(), "--log-level".into()]);
        arguments.extend([self.places.log_level.to_string().into(), "--socket".into()]);
        arguments.extend([self.socket(node).into(), "--state-dir".into()]);
        arguments.push(self.folder("engine", node).into());
        self.start(number(node), arguments)?;
        self.on(node, &["info", "--wait-engine", "20"]).map(drop)
    }

    /// Starts the agent of a node.
    ///
    /// # Errors
    /// If it can not be started.
    pub fn start_agent(&self, node: &str) -> anyhow::Result<()> {
        let arguments: Vec<OsString> = vec![
            "agent".into(),
            "--suspend-timeout".into(),
            "10".into(),
            "--socket".into(),
            self.socket(node).into(),
            "--state-dir".into(),
            self.agent(node).into(),
        ];
        self.start(AGENT_NR + number(node), arguments)
    }

    /// Kills engine and agent of a node, as a power cut would.
    ///
    /// # Errors
    /// If they do not run.
    pub fn kill(&self, node: &str) -> anyhow::Result<Instant> {
        let moment = self.leftovers.kill(number(node));
        let moment = moment.with_context(|| format!("can not kill the engine of {node}"))?;
        let agent = self.leftovers.kill(AGENT_NR + number(node));
        agent.with_context(|| format!("can not kill the agent of {node}"))?;
        Ok(moment)
    }

    /// A command to the engine of a node.
    ///
    /// # Errors
    /// What it would have printed.
    pub fn on(&self, node: &str, words: &[&str]) -> anyhow::Result<String> {
        let socket = self.socket(node);
        self.command(words, &[OsStr::new("--socket"), socket.as_os_str()])
            .with_context(|| format!("on {node}"))
    }

    /// Makes a node a member, as `ashlar node join` on it would.
    ///
    /// # Errors
    /// What that would have printed.
    pub fn join(&self, node: &str, token: &str, agent: &str) -> anyhow::Result<()> {
        let words = ["node", "join", token, "--node", node, "--state-dir", agent];
        self.command(&words, &[]).map(drop).with_context(|| format!("{node} does not join"))
    }

    /// A command to the controller.
    ///
    /// # Errors
    /// What it would have printed.
    pub fn ask(&self, words: &[&str]) -> anyhow::Result<String> {
        let url = self.url();
        let more = ["--controllers", &url, "--timeout", TIMEOUT];
        self.command(words, &more.map(OsStr::new))
    }

    /// A listing of the controller.
    ///
    /// # Errors
    /// As [`Plane::ask`].
    pub fn listed<T: DeserializeOwned>(&self, words: &[&str]) -> anyhow::Result<T> {
        let text = self.ask(&[words, &["--json"][..]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("reading `ashlar {}`", words.join(" ")))
    }

    /// Runs `ashlar WORDS MORE` in this process. Ctrl-C does not wait for it.
    fn command(&self, words: &[&str], more: &[&OsStr]) -> anyhow::Result<String> {
        // Not all of it: there are tokens among the words.
        let shown = format!("ashlar {}", words[..words.len().min(2)].join(" "));
        let mut line: Vec<OsString> = vec!["ashlar".into()];
        line.extend(words.iter().map(OsString::from));
        line.extend(more.iter().map(OsString::from));
        let running = std::thread::spawn(move || -> anyhow::Result<String> {
            let crate::Cli { common, command } = crate::parse(line)?;
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let result = crate::carry_out(&command, &common, Look::PLAIN, &mut out, &mut err);
            match result {
                Ok(()) => Ok(String::from_utf8_lossy(&out).into_owned()),
                Err(failure) => bail!("{failure}\n{}", String::from_utf8_lossy(&err).trim_end()),
            }
        });
        while !running.is_finished() {
            self.check()?;
            std::thread::sleep(Duration::from_millis(2));
        }
        match running.join() {
            Ok(result) => result.context(shown),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// That the run may go on.
    ///
    /// # Errors
    /// If a process has ended by itself, or the run is interrupted.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            bail!(Interrupted);
        }
        let Some((nr, status)) = self.leftovers.casualty() else { return Ok(()) };
        let name = process(nr);
        let path = self.places.logs().join(format!("{name}.log"));
        let log = fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(5)..].join("\n");
        bail!("{name} ended by itself ({status}):\n{last}")
    }

    /// Waits until `condition` holds.
    ///
    /// # Errors
    /// If it does not within `PATIENCE`, or the run can not go on.
    pub fn until(
        &self,
        what: &str,
        mut condition: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            self.check()?;
            if condition()? {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("waited {} s for {what}, in vain", PATIENCE.as_secs());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits until what the controller says fits, asking now and then.
    ///
    /// # Errors
    /// As [`Plane::until`].
    pub fn until_told<T: DeserializeOwned>(
        &self,
        what: &str,
        words: &[&str],
        mut fits: impl FnMut(&T) -> bool,
    ) -> anyhow::Result<T> {
        let mut found = None;
        let mut last = None::<Instant>;
        self.until(what, || {
            if last.is_some_and(|last| last.elapsed() < ASK) {
                return Ok(false);
            }
            let told: T = self.listed(words)?;
            last = Some(Instant::now());
            if fits(&told) {
                found = Some(told);
            }
            Ok(found.is_some())
        })?;
        found.context("it was found")
    }
}
