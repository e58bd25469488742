//! fio on a volume of its own: it writes with checksums and verifies what it wrote, again and
//! again. It does not survive the loss of its server; the next round goes where clients may write,
//! and begins by verifying what the lost one left.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::client::Shared;

/// A round takes some seconds; one that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the end of a round is looked for.
const TICK: Duration = Duration::from_millis(20);
/// Between a failed round and the next.
const RETRY: Duration = Duration::from_millis(100);

/// What fio did and found.
#[derive(Default, Debug)]
pub struct Rounds {
    /// Ended well: everything written was verified.
    pub verified: u64,
    /// Lost their server.
    pub interrupted: u64,
    /// Took so long that they were ended.
    pub hung: u64,
    /// Found other data than was written, with what fio said.
    pub corrupt: Vec<String>,
}

/// How a round ended.
enum End {
    Good,
    Interrupted,
    Hung,
    Stopped,
    Corrupt(String),
}

/// What a round does.
#[derive(Clone, Copy)]
pub enum Job {
    /// Writes every block once, in random order, then verifies all.
    Write,
    /// Verifies every block.
    Read,
}

/// The parts that are the same in every round.
#[derive(Clone)]
pub struct Fio {
    folder: PathBuf,
    exports: Vec<PathBuf>,
    seed: u64,
}

impl Fio {
    /// fio for the volume behind these exports, one per node.
    pub fn new(folder: &Path, exports: Vec<PathBuf>, seed: u64) -> Fio {
        Fio { folder: folder.to_owned(), exports, seed }
    }

    /// A round while all is calm.
    ///
    /// # Errors
    /// If it does not end well.
    pub fn once(&mut self, shared: &Shared, node: usize, job: Job) -> Result<()> {
        match self.round(shared, node, job, false)? {
            End::Good => Ok(()),
            End::Corrupt(text) => bail!("fio found other data than it wrote:\n{text}"),
            End::Stopped => bail!("fio was stopped"),
            End::Interrupted | End::Hung => bail!("fio failed:\n{}", self.said()),
        }
    }

    /// Rounds until told to stop.
    ///
    /// # Errors
    /// If fio can not be started.
    pub fn work(mut self, shared: &Arc<Shared>) -> Result<Rounds> {
        let mut rounds = Rounds::default();
        let mut job = Job::Write;
        while !shared.stop.load(Ordering::Relaxed) {
            let node = shared.current.load(Ordering::Relaxed);
            job = match self.round(shared, node, job, true)? {
                End::Good => {
                    rounds.verified += 1;
                    Job::Write
                }
                End::Stopped => break,
                end => {
                    match end {
                        End::Corrupt(text) => rounds.corrupt.push(text),
                        End::Hung => rounds.hung += 1,
                        _ => rounds.interrupted += 1,
                    }
                    std::thread::sleep(RETRY);
                    Job::Read
                }
            };
        }
        Ok(rounds)
    }

    fn round(&mut self, shared: &Shared, node: usize, job: Job, may_stop: bool) -> Result<End> {
        self.seed += 1;
        let log = File::create(self.log())?;
        let rw = match job {
            Job::Write => "randwrite",
            Job::Read => "read",
        };
        let mut child = Command::new("fio")
            .args(["--name=torture", "--ioengine=nbd", "--thread", "--bs=4k", "--size=24m"])
            .args(["--iodepth=8", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1"])
            .arg(format!("--uri=nbd+unix:///v1?socket={}", self.exports[node].display()))
            .arg(format!("--rw={rw}"))
            .arg(format!("--randseed={}", self.seed % (1 << 31)))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("fio could not be started; `cargo xtask test` installs it")?;
        let begin = Instant::now();
        let end = loop {
            if let Some(status) = child.try_wait()? {
                break match status.success() {
                    true => End::Good,
                    false => judge(&self.said()),
                };
            }
            if may_stop && shared.stop.load(Ordering::Relaxed) {
                break End::Stopped;
            }
            if begin.elapsed() > PATIENCE {
                break End::Hung;
            }
            std::thread::sleep(TICK);
        };
        if matches!(end, End::Hung | End::Stopped) {
            child.kill()?;
            child.wait()?;
        }
        Ok(end)
    }

    fn log(&self) -> PathBuf {
        self.folder.join("fio.log")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }
}

/// A round failed: because of its server, or of what it read?
fn judge(said: &str) -> End {
    // EILSEQ is how fio says that a block is not what it wrote.
    let corrupt = |line: &&str| line.contains("verify:") || line.contains("error=Invalid or incom");
    match said.lines().any(|line| corrupt(&line)) {
        true => End::Corrupt(said.to_owned()),
        false => End::Interrupted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_server_and_wrong_data_are_told_apart() {
        let lost = "fio: io_u error on file v1: Input/output error: write offset=0\n";
        assert!(matches!(judge(lost), End::Interrupted));
        let wrong = "verify: bad magic header 0, wanted acca at file v1 offset 0, length 4096\n";
        assert!(matches!(judge(wrong), End::Corrupt(_)));
    }
}
