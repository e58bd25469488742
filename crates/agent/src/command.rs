//! Running other programs: LVM is driven through its own tools.
//!
//! A command has a deadline, and what it started dies with it. Its messages are in English
//! whatever the node's language is, because some of them are looked at.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use logging::{Level, log};
use rustix::process::{Pid, Signal, kill_process_group};
use vocab::options::Secret;

use crate::storage::lvm::filter;

/// How long a command may take unless said otherwise.
pub const DEADLINE: Duration = Duration::from_secs(45);

/// Something that runs programs: this machine, or in tests a guest.
pub trait Runner {
    /// Runs `argv` (the program first) and returns what it wrote to standard output.
    ///
    /// # Errors
    /// If it can not be started, takes too long, or does not exit with 0.
    fn run(&self, argv: &[&str]) -> Result<String, CommandError>;
}

/// A command that was not carried out, or not known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// The command as an operator would type it.
    pub command: String,
    /// What became of it.
    pub why: Failure,
}

/// What became of a command that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no such program on this node.
    NotInstalled,
    /// It could not be started or waited for.
    NotRun(String),
    /// It was still running at the deadline, and was killed; it may have done its work.
    TooLong(Duration),
    /// It said no.
    Exit {
        /// Its exit status; `None` if a signal ended it.
        code: Option<i32>,
        /// What it wrote to standard error, without white space around.
        stderr: String,
    },
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.command, self.why)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NotInstalled => write!(f, "the program is not installed"),
            Failure::NotRun(why) => write!(f, "it could not be run: {why}"),
            Failure::TooLong(limit) => {
                write!(f, "still running after {} s, and was ended", limit.as_secs())
            }
            Failure::Exit { code: Some(code), stderr } => write!(f, "exit {code}: {stderr}"),
            Failure::Exit { code: None, stderr } => write!(f, "ended by a signal: {stderr}"),
        }
    }
}

impl std::error::Error for CommandError {}

/// Programs of this machine.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// How long each may take.
    pub deadline: Duration,
}

impl Default for System {
    fn default() -> System {
        System { deadline: DEADLINE }
    }
}

/// What a command is given besides its arguments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Input<'a> {
    /// What it reads from standard input, to the end. It is in no argument, file or log.
    pub secret: Option<&'a Secret>,
    /// Variables of its environment.
    pub env: &'a [(&'a str, &'a str)],
}

/// What a command that has ended said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Runner for System {
    fn run(&self, argv: &[&str]) -> Result<String, CommandError> {
        self.run_with(argv, &Input::default())
    }
}

impl System {
    /// Runs `argv` (the program first) with an input, and returns what it wrote to standard output.
    ///
    /// # Errors
    /// As for [`Runner::run`].
    pub fn run_with(&self, argv: &[&str], input: &Input<'_>) -> Result<String, CommandError> {
        let Output { status, stdout, stderr } = self.call_with(argv, input)?;
        if status == Some(0) {
            return Ok(stdout);
        }
        let why = Failure::Exit { code: status, stderr: stderr.trim().to_owned() };
        Err(CommandError { command: argv.join(" "), why })
    }

    /// Runs `argv` (the program first), whatever its exit status.
    ///
    /// # Errors
    /// If it can not be started, or takes too long.
    pub fn call(&self, argv: &[&str]) -> Result<Output, CommandError> {
        self.call_with(argv, &Input::default())
    }

    fn call_with(&self, argv: &[&str], input: &Input<'_>) -> Result<Output, CommandError> {
        let began = Instant::now();
        let output = self.called(argv, input);
        if logging::enabled(Level::Debug) {
            let (line, took) = (argv.join(" "), began.elapsed().as_millis());
            let end = match &output {
                Ok(Output { status: Some(status), .. }) => format!("exit {status}"),
                Ok(Output { status: None, .. }) => "ended by a signal".to_owned(),
                Err(error) => error.why.to_string(),
            };
            log!(Level::Debug, "command", "`{line}`: {end} ({took} ms)");
        }
        output
    }

    fn called(&self, argv: &[&str], input: &Input<'_>) -> Result<Output, CommandError> {
        let failed = |why| CommandError { command: argv.join(" "), why };
        let Some((program, arguments)) = argv.split_first() else {
            return Err(failed(Failure::NotRun("no program was named".into())));
        };
        let mut command = Command::new(program);
        if let Some(config) = filter::concerns(program).then(filter::config).flatten() {
            command.arg("--config").arg(config);
        }
        let mut child = command
            .args(arguments)
            .env("LC_ALL", "C")
            // LVM complains on standard error of descriptors that it inherits, whoever left them
            // open: what it has to say would drown in that.
            .env("LVM_SUPPRESS_FD_WARNINGS", "1")
            .envs(input.env.iter().copied())
            .stdin(if input.secret.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, so that at the deadline its children end as well: they would
            // keep the pipes open.
            .process_group(0)
            .spawn()
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => failed(Failure::NotInstalled),
                _ => failed(Failure::NotRun(error.to_string())),
            })?;
        if let (Some(secret), Some(pipe)) = (input.secret, child.stdin.take()) {
            feed(pipe, secret.clone());
        }
        let stdout = drain(child.stdout.take());
        let stderr = drain(child.stderr.take());
        let status = wait(&mut child, self.deadline).map_err(failed)?;
        let (stdout, stderr) = (collected(&stdout), collected(&stderr));
        let status = if status.signal().is_some() { None } else { status.code() };
        Ok(Output { status, stdout, stderr })
    }
}

/// Writes a secret to a pipe and closes it, on a thread: a program that does not read is not waited for.
fn feed(mut pipe: impl Write + Send + 'static, secret: Secret) {
    thread::spawn(move || {
        // If it has ended, or wants no more, its exit status says what that means.
        let _ = pipe.write_all(secret.expose().as_bytes());
    });
}

/// Reads a pipe to its end on a thread, so that a program that writes much is not held up.
fn drain(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (done, result) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read until an error is better than nothing; the exit status decides.
            let _ = pipe.read_to_end(&mut text);
        }
        let _ = done.send(text);
    });
    result
}

/// What `drain` read. A process that left the group may hold the pipe: it is not waited for.
fn collected(pipe: &mpsc::Receiver<Vec<u8>>) -> String {
    let text = pipe.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

fn wait(child: &mut Child, deadline: Duration) -> Result<ExitStatus, Failure> {
    let began = Instant::now();
    // Most commands take some milliseconds; long ones need not be looked at so often.
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if began.elapsed() >= deadline => break,
            Ok(None) => thread::sleep(pause),
            Err(error) => return Err(Failure::NotRun(error.to_string())),
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended in this very moment: then there is nobody to end.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
    Err(Failure::TooLong(deadline))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(argv: &[&str]) -> Result<String, CommandError> {
        System::default().run(argv)
    }

    #[test]
    fn what_a_command_writes_is_returned() {
        assert_eq!(run(&["printf", "%s-%s", "a b", "c"]).unwrap(), "a b-c");
    }

    #[test]
    fn messages_are_in_english_and_lvm_does_not_speak_of_descriptors() {
        let script = "echo $LC_ALL $LVM_SUPPRESS_FD_WARNINGS";
        assert_eq!(run(&["sh", "-c", script]).unwrap(), "C 1\n");
    }

    #[test]
    fn a_secret_is_read_to_its_end_and_a_program_may_leave_it() {
        let long = Secret::from("x".repeat(200_000));
        let input = Input { secret: Some(&long), env: &[("ASHLAR_TEST", "yes")] };
        let system = System::default();
        let count = system.run_with(&["sh", "-c", "wc -c; echo $ASHLAR_TEST"], &input).unwrap();
        assert_eq!(count.split_whitespace().collect::<Vec<_>>(), ["200000", "yes"]);
        assert_eq!(system.run_with(&["true"], &input).unwrap(), "");
    }

    #[test]
    fn much_output_does_not_hold_a_command_up() {
        let text = run(&["head", "-c", "1000000", "/dev/zero"]).unwrap();
        assert_eq!(text.len(), 1_000_000);
    }

    #[test]
    fn a_failure_says_what_the_program_said() {
        let error = run(&["sh", "-c", "echo no such group >&2; exit 5"]).unwrap_err();
        let stderr = "no such group".to_owned();
        assert_eq!(error.why, Failure::Exit { code: Some(5), stderr });
        assert!(error.to_string().ends_with("exit 5: no such group"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_installed_is_named() {
        let error = run(&["ashlar-no-such-program", "-x"]).unwrap_err();
        assert_eq!(error.why, Failure::NotInstalled);
        assert_eq!(error.command, "ashlar-no-such-program -x");
    }

    #[test]
    fn a_command_that_takes_too_long_dies_with_its_children() {
        let deadline = Duration::from_millis(200);
        let began = Instant::now();
        let error = System { deadline }.run(&["sh", "-c", "sleep 600 & sleep 600"]).unwrap_err();
        assert_eq!(error.why, Failure::TooLong(deadline));
        // The pipes are closed as well, or reading them would have been waited for.
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}
