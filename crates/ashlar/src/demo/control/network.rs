//! Where the processes are: each node in a network namespace of its own where those can be had, and on
//! addresses of the loopback interface elsewhere.
//!
//! ```text
//! this host: REST on 127.0.0.1, agents' port on A.B.C.250     namespaces, A.B.C from 198.18.0.0/15
//!          interface ashlar<pid> ════ switch (a bridge) ════ alpha .1
//!                                            ╠══════════════ bravo .2
//!                                            ╚══════════════ charlie .3
//! ```
//! The bridge has a namespace of its own: what this host's firewall says of forwarding is not asked there.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::super::leftovers::Leftovers;
use super::plane::{AGENTS, CONTROLLER, NAMES, NBD};

/// Namespaces are named so, then by the process id of their demo, then by what is in them.
const PREFIX: &str = "ashlar-demo-";
const SWITCH: &str = "switch";
/// How long a node may take to reach this host.
const REACH: Duration = Duration::from_secs(3);

/// Addresses, and the way to them.
pub struct Network {
    /// The first three bytes of every address.
    pub bytes: [u8; 3],
    /// Whether nodes are in namespaces; if not, why.
    pub namespaces: Result<(), String>,
}

impl Network {
    /// Makes namespaces, or finds addresses of the loopback interface.
    ///
    /// # Errors
    /// If there are none, either.
    pub fn prepare(leftovers: &Leftovers) -> anyhow::Result<Network> {
        let why = match make(leftovers) {
            Ok(bytes) => return Ok(Network { bytes, namespaces: Ok(()) }),
            Err(error) => format!("{error:#}"),
        };
        remove(leftovers);
        Ok(Network { bytes: of_loopback()?, namespaces: Err(why) })
    }

    /// What has to stand before a command that is to run where a node is.
    pub fn inside(&self, node: &str) -> Vec<OsString> {
        match self.namespaces {
            Ok(()) => ["ip", "netns", "exec", &namespace(node)].map(OsString::from).to_vec(),
            Err(_) => Vec::new(),
        }
    }
}

/// Ends what this demo has made of namespaces.
fn remove(leftovers: &Leftovers) {
    for name in leftovers.take_namespaces() {
        let _ = ip(&["netns", "delete", &name]);
    }
}

fn namespace(of: &str) -> String {
    format!("{PREFIX}{}-{of}", std::process::id())
}

/// Runs `ip`.
fn ip(words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("ip").args(words).stdin(Stdio::null()).output();
    let output = output.context("`ip` could not be started")?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), &output.stderr);
    ensure!(
        output.status.success(),
        "ip {}: {}",
        words.join(" "),
        String::from_utf8_lossy(err).trim()
    );
    Ok(out.into_owned())
}

/// Makes them; what was made so far is in `leftovers` if it fails.
fn make(leftovers: &Leftovers) -> anyhow::Result<[u8; 3]> {
    ensure!(rustix::process::geteuid().is_root(), "they need root");
    sweep();
    let bytes = unused()?;
    let [a, b, c] = bytes;
    let add = |of: &str| -> anyhow::Result<String> {
        let name = namespace(of);
        ip(&["netns", "add", &name])?;
        leftovers.namespace(&name);
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        Ok(name)
    };
    let switch = add(SWITCH)?;
    ip(&["-n", &switch, "link", "add", "bridge", "type", "bridge"])?;
    ip(&["-n", &switch, "link", "set", "bridge", "up"])?;
    // Its end in the switch goes with the switch, and takes this one along.
    let host = format!("ashlar{}", std::process::id());
    ip(&["link", "add", &host, "type", "veth", "peer", "name", "host", "netns", &switch])?;
    ip(&["address", "add", &format!("{a}.{b}.{c}.{CONTROLLER}/24"), "dev", &host])?;
    ip(&["link", "set", &host, "up"])?;
    ip(&["-n", &switch, "link", "set", "host", "master", "bridge", "up"])?;
    for (last, node) in (1..).zip(NAMES) {
        let name = add(node)?;
        let peer = ["type", "veth", "peer", "name", node, "netns", &switch];
        ip(&[&["-n", &name, "link", "add", "eth0"][..], &peer].concat())?;
        let address = format!("{a}.{b}.{c}.{last}/24");
        ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])?;
        ip(&["-n", &name, "link", "set", "eth0", "up"])?;
        ip(&["-n", &switch, "link", "set", node, "master", "bridge", "up"])?;
    }
    reach(Ipv4Addr::new(a, b, c, CONTROLLER))?;
    Ok(bytes)
}

/// A network that this host has no way to but the default one. 198.18.0.0/15 is for tests (RFC 2544).
fn unused() -> anyhow::Result<[u8; 3]> {
    for _ in 0..50 {
        let random = getrandom::u32().context("the kernel gives no random number")?;
        let [b, c, ..] = random.to_le_bytes();
        let network = [198, 18 | (b & 1), c];
        let [a, b, c] = network;
        let routes = ip(&["-4", "route", "show", "match", &format!("{a}.{b}.{c}.0/24")])?;
        if routes.lines().all(|route| route.starts_with("default")) {
            return Ok(network);
        }
    }
    bail!("198.18.0.0/15 is in use")
}

/// That a node reaches this host: a firewall may be in between.
fn reach(address: Ipv4Addr) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind((address, AGENTS)).context("the new interface is not there")?;
    listener.set_nonblocking(true).context("a socket can not be asked")?;
    let program = std::env::current_exe().context("this program can not find itself")?;
    let mut child = Command::new("ip")
        .args(["netns", "exec", &namespace(NAMES[0])])
        .arg(program)
        .args(["node", "list", "--timeout", "3", "--controllers"])
        .arg(format!("http://{address}:{AGENTS}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("`ip` could not be started")?;
    let begin = Instant::now();
    let mut heard = listener.accept();
    while heard.as_ref().is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
        && begin.elapsed() < REACH
    {
        std::thread::sleep(Duration::from_millis(5));
        heard = listener.accept();
    }
    let _ = child.kill();
    let _ = child.wait();
    heard.map(drop).context("what is in them does not reach this host, a firewall may forbid it")
}

/// Removes what demos have left that were killed.
fn sweep() {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}

/// A network of the loopback interface that nobody uses, so that several demos can run.
fn of_loopback() -> anyhow::Result<[u8; 3]> {
    for _ in 0..50 {
        let random = getrandom::u32().context("the kernel gives no random number")?;
        let [b, c, ..] = random.to_le_bytes();
        // 127.0.0.0/24 and its neighbours are what others use.
        let network = [127, b | 16, c];
        let [a, b, c] = network;
        let nodes = (1..=NAMES.len() as u8).map(|last| (Ipv4Addr::new(a, b, c, last), NBD));
        let all = nodes.chain([(Ipv4Addr::new(a, b, c, CONTROLLER), AGENTS)]);
        if all.into_iter().all(|address| TcpListener::bind(address).is_ok()) {
            return Ok(network);
        }
    }
    bail!("no addresses of 127.0.0.0/8 can be listened at")
}
