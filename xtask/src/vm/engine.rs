//! An engine on the host's side of a rig, and the operator's commands to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::PATIENCE;
use super::rig::Rig;
use crate::process::{self, Daemon};
use crate::workspace;

/// How long copying a volume may take.
const COPY_PATIENCE: Duration = Duration::from_secs(60);
/// How much of its log is shown.
const TAIL: usize = 4000;

/// An engine for the resource r0, which runs or not.
pub struct Engine<'a> {
    pub rig: &'a Rig<'a>,
    /// Its node in the configuration.
    name: String,
    binary: PathBuf,
    daemon: Option<Daemon>,
    /// The process that has taken over from it.
    heir: Option<u32>,
    starts: u32,
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        self.kill();
        for direction in ['<', '>'] {
            let kinds = self.packets(direction);
            if !kinds.is_empty() {
                println!("packets {direction} {}", Vec::from_iter(kinds).join(" "));
            }
        }
    }
}

/// The binary that `ASHLAR_BINARY` names, or else that of this tree, built.
pub(super) fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("ASHLAR_BINARY") {
        return Ok(PathBuf::from(path));
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet", "--workspace", "--bins"]).current_dir(workspace::root());
    ensure!(cargo.status()?.success(), "the binary can not be built");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace::root().join("target"), PathBuf::from);
    Ok(target.join("debug").join("ashlar"))
}

/// True until all threads of a process have ended.
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !stat.is_empty() && (!stat.contains(") Z") || threads > 1)
}

impl<'a> Engine<'a> {
    /// One of that name, with that configuration; it does not run yet.
    ///
    /// # Errors
    /// If the binary can not be built, or its files not written.
    pub fn new(rig: &'a Rig<'a>, name: &str, config: &str) -> Result<Engine<'a>> {
        let engine = Engine {
            rig,
            name: name.to_owned(),
            binary: binary()?,
            daemon: None,
            heir: None,
            starts: 0,
        };
        fs::write(engine.file("conf"), config)?;
        fs::create_dir_all(engine.file("state"))?;
        Ok(engine)
    }

    fn file(&self, what: &str) -> PathBuf {
        self.rig.file(&format!("{}.{what}", self.name))
    }

    fn log_file(&self) -> PathBuf {
        self.file(&format!("log{}", self.starts))
    }

    /// Kinds of packets that it has received (`<`) or sent (`>`). Told with `ASHLAR_ENGINE_LOG=trace` only, by
    /// its logs.
    fn packets(&self, direction: char) -> BTreeSet<String> {
        let logs = (1..=self.starts).map(|start| self.file(&format!("log{start}")));
        let texts: Vec<String> = logs.filter_map(|log| fs::read_to_string(log).ok()).collect();
        let mark = format!(" {direction} P_");
        let kind = |line: &str| {
            let (_, rest) = line.split_once(&mark)?;
            Some(format!("P_{}", rest.split(' ').next()?))
        };
        texts.iter().flat_map(|text| text.lines()).filter_map(kind).collect()
    }

    /// Starts it, with what it has kept of an earlier run.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn start(&mut self) -> Result<()> {
        self.starts += 1;
        let mut command = self.rig.command(&self.binary);
        command.args(["engine", "--threads", "1", "--buffers", "64", "--node", &self.name]);
        command.arg("--socket").arg(self.file("sock"));
        command.arg("--state-dir").arg(self.file("state"));
        // Shown only after a failure, which has to be understood from it.
        let level = std::env::var_os("ASHLAR_ENGINE_LOG").unwrap_or("debug".into());
        command.arg("--log-level").arg(level);
        self.daemon = Some(Daemon::start(command, self.log_file())?);
        self.say(&["info", "--wait-engine", "30"]).map(drop)
    }

    /// Ends it without a word, as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.end();
        }
        if let Some(heir) = self.heir.take() {
            let mut command = process::command("kill");
            command.args(["-KILL", &heir.to_string()]);
            // It may have ended by itself.
            let _ = process::output(command, PATIENCE);
            let begun = Instant::now();
            while is_running(heir) && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Has another process take over, and returns how long I/O waited, in milliseconds.
    ///
    /// # Errors
    /// If it does not.
    pub fn upgrade(&mut self) -> Result<f64> {
        let said = self.say(&["upgrade"])?;
        let mut words = said.split_whitespace();
        let pid = words.nth(1).and_then(|word| word.parse().ok());
        let waited = words.rev().nth(1).and_then(|word| word.parse().ok());
        let (Some(pid), Some(waited)) = (pid, waited) else { bail!("`ashlar upgrade`: {said}") };
        self.heir = Some(pid);
        Ok(waited)
    }

    /// What it has kept is gone: its next start begins with nothing.
    ///
    /// # Errors
    /// If its folder can not be emptied.
    pub fn forget(&self) -> Result<()> {
        fs::remove_dir_all(self.file("state"))?;
        Ok(fs::create_dir_all(self.file("state"))?)
    }

    /// A command of the operator.
    ///
    /// # Errors
    /// If it fails.
    pub fn say(&self, words: &[&str]) -> Result<String> {
        let mut command = self.rig.command(&self.binary);
        command.env("ASHLAR_SOCKET", self.file("sock")).args(words);
        process::output(command, PATIENCE).with_context(|| format!("ashlar {}", words.join(" ")))
    }

    /// The same for one that reads the configuration.
    ///
    /// # Errors
    /// If it fails.
    pub fn configure(&self, words: &[&str]) -> Result<String> {
        let config = self.file("conf").display().to_string();
        self.say(&[words, &["--node", &self.name, "--config", &config, "r0"]].concat())
    }

    /// Offers the volume over NBD.
    ///
    /// # Errors
    /// If it fails.
    pub fn export(&self) -> Result<()> {
        let socket = self.nbd_socket().display().to_string();
        self.say(&["export", "r0", "--name", "r0", "--listen", &socket]).map(drop)
    }

    /// Where it is offered.
    pub fn nbd_socket(&self) -> PathBuf {
        self.file("nbd")
    }

    /// The same for clients that want a URI.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///r0?socket={}", self.nbd_socket().display())
    }

    /// Copies a file into the volume over NBD, or the volume into a file.
    ///
    /// # Errors
    /// If nbdcopy fails.
    pub fn copy(&self, from: &str, to: &str) -> Result<()> {
        let mut command = process::command("nbdcopy");
        command.args(["--flush", from, to]);
        process::output(command, COPY_PATIENCE).map(drop)
    }

    /// It has logged that, since whichever start.
    pub fn has_logged(&self, what: &str) -> bool {
        let log = |start| fs::read_to_string(self.file(&format!("log{start}"))).unwrap_or_default();
        (1..=self.starts).any(|start| log(start).contains(what))
    }

    /// The end of what it has logged since its last start.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.log_file()).unwrap_or_default();
        let start = text.len().saturating_sub(TAIL);
        text.get(start..).unwrap_or(&text).to_owned()
    }
}
