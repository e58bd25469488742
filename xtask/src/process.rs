//! Processes of a command of ours. They end with it, whatever its end is: each asks the kernel to be
//! killed when its parent dies, and Ctrl-C reaches only this process, which then cleans up.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often the end of a process is looked for.
const TICK: Duration = Duration::from_millis(10);
/// How much of a log is shown.
const TAIL: usize = 2_000;

/// Set by SIGINT and SIGTERM, once `watch_signals` was called.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on SIGINT and SIGTERM do not end this process but what it waits for.
pub fn watch_signals() -> Result<()> {
    let flag = Arc::clone(INTERRUPTED.get_or_init(Arc::default));
    for signal in signal_hook::consts::TERM_SIGNALS {
        // A second one ends it at once: the first was not noticed.
        signal_hook::flag::register_conditional_shutdown(*signal, 1, Arc::clone(&flag))?;
        signal_hook::flag::register(*signal, Arc::clone(&flag))?;
    }
    Ok(())
}

/// Fails once the user wants an end.
pub fn check_signals() -> Result<()> {
    match INTERRUPTED.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => bail!("interrupted"),
        _ => Ok(()),
    }
}

/// A program of the measurement. `setpriv` becomes it: the process id is the program's.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command.process_group(0).stdin(Stdio::null());
    command
}

/// The same as a member of a control group from its first instruction on; `members` is the group's
/// `cgroup.procs`.
pub fn command_in_group(members: PathBuf, program: impl AsRef<OsStr>) -> Command {
    let mut shell = command("sh");
    shell.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(members).arg(program);
    shell
}

/// A program in the mount and process namespaces of another process.
pub fn command_within(process: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = command("nsenter");
    command.args(["--target", &process.to_string(), "--mount", "--pid", "--"]);
    // nsenter has the program as its child, which has to end with it.
    command.args(["setpriv", "--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// True if a program is in the search path or where administrators' programs are.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/sbin"].map(Into::into));
    folders.iter().any(|folder| folder.join(program).is_file())
}

/// Runs a program to its end and returns what it printed.
///
/// # Errors
/// If it fails, takes longer than `patience`, or the user wants an end; it does not go on then.
pub fn output(mut command: Command, patience: Duration) -> Result<String> {
    let name = name(&command);
    // Files, not pipes: nobody has to empty them while it runs.
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdout(out.try_clone()?).stderr(err.try_clone()?);
    let child = command.spawn().with_context(|| not_started(&name))?;
    let mut process = Process(child);
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = process.0.try_wait()? {
            break status;
        }
        check_signals()?;
        if begun.elapsed() > patience {
            bail!("{name} takes longer than {} s", patience.as_secs());
        }
        std::thread::sleep(TICK);
    };
    let text = read(&mut out)?;
    if !status.success() {
        bail!("{name} failed: {}{}", read(&mut err)?, tail(&text));
    }
    Ok(text)
}

/// A program that serves until it is dropped.
pub struct Daemon {
    name: String,
    process: Process,
    log: PathBuf,
}

impl Daemon {
    /// Starts it; what it says goes to `log`.
    pub fn start(mut command: Command, log: PathBuf) -> Result<Daemon> {
        let name = name(&command);
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        command.stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| not_started(&name))?;
        Ok(Daemon { name, process: Process(child), log })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Kills it and waits until it is gone; for those who have more to do afterwards.
    pub fn end(&mut self) {
        self.process.end();
    }

    /// Fails, with the end of its log, if it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.process.0.try_wait()? {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            bail!("{} has ended ({status}): {}", self.name, tail(&log));
        }
        Ok(())
    }

    /// Waits until something is true, as long as the process lives.
    pub fn wait(&mut self, what: &str, patience: Duration, done: impl Fn() -> bool) -> Result<()> {
        let begun = Instant::now();
        while !done() {
            self.check()?;
            check_signals()?;
            if begun.elapsed() > patience {
                bail!("{}: waited in vain until {what}", self.name);
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }
}

/// Killed when dropped.
struct Process(Child);

impl Process {
    fn end(&mut self) {
        // Ended or not, it must not outlive the measurement.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// What `command` runs in the end.
fn name(command: &Command) -> String {
    let words: Vec<&OsStr> = command.get_args().collect();
    let marked = words.iter().rposition(|word| *word == "--");
    let program = marked.and_then(|at| words.get(at + 1)).copied();
    let program = program.unwrap_or(command.get_program());
    Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned()
}

fn not_started(name: &str) -> String {
    format!("{name} could not be started by setpriv, which is in the package util-linux")
}

fn read(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(TAIL);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_prints_comes_back_and_its_failure_has_its_words() {
        let shell = |script: &str| {
            let mut command = command("sh");
            command.args(["-c", script]);
            output(command, Duration::from_secs(20))
        };
        assert_eq!(shell("echo one").unwrap(), "one\n");
        let error = shell("echo two >&2; exit 3").unwrap_err().to_string();
        assert!(error.contains("sh failed: two"), "{error}");
    }

    #[test]
    fn a_program_is_a_member_before_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let members = folder.path().join("cgroup.procs");
        let mut command = command_in_group(members.clone(), "sh");
        command.args(["-c", "cat \"$1\"; echo $$", "sh"]).arg(&members);
        let text = output(command, Duration::from_secs(20)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines[0] == lines[1], "{text}");
        let nowhere = command_in_group(folder.path().join("no/group"), "true");
        assert!(output(nowhere, Duration::from_secs(20)).is_err());
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended() {
        let mut command = command("sleep");
        command.arg("600");
        let begun = Instant::now();
        assert!(output(command, Duration::from_millis(50)).is_err());
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_daemon_ends_with_its_owner_and_its_own_end_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let mut sleep = command("sleep");
        sleep.arg("600");
        let daemon = Daemon::start(sleep, folder.path().join("log")).unwrap();
        let process = Path::new("/proc").join(daemon.pid().to_string());
        assert!(process.exists());
        drop(daemon);
        assert!(!process.exists());
        let mut shell = command("sh");
        shell.args(["-c", "echo last words"]);
        let mut daemon = Daemon::start(shell, folder.path().join("log")).unwrap();
        let error = daemon.wait("never", Duration::from_secs(20), || false).unwrap_err();
        assert!(error.to_string().contains("last words"), "{error}");
    }

    #[test]
    fn a_program_has_its_own_name_however_it_is_started() {
        let mut plain = command("/usr/bin/fio");
        plain.arg("--name=global");
        assert_eq!(name(&plain), "fio");
        assert_eq!(name(&command_within(1, "gluster")), "gluster");
    }

    #[test]
    fn the_end_of_a_text_is_cut_between_characters() {
        let text = "ü".repeat(TAIL);
        assert_eq!(tail(&text).len(), TAIL);
        assert_eq!(tail(&format!("{text}x")).len(), TAIL - 1);
    }
}
