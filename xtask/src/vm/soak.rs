//! A kernel of DRBD 8.4 and an engine replicate for as long as one likes, under load: one of them is
//! Primary, and of the two one leaves and comes back again and again, or loses its power. After a power
//! cut the other one takes over, so that each side is Primary, is left and fails, in turns.
//!
//! The load is fio, which writes blocks with checksums and verifies them, and writes that count: the
//! n-th goes to block [`place`]`(n)` behind fio's, begins with n, and is there for good once it is
//! acknowledged. In the end an online verify finds nothing and the disks are equal.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};

use super::PATIENCE;
use super::guest::Kind;
use super::image::Images;
use super::interop::{Pair, Sections, compare, verify};
use super::rig::Rig;
use crate::arguments::{Words, number};
use crate::process::{self, Daemon};
use crate::torture::nbd::Client;
use crate::torture::random::Random;

/// Faults of half an hour; shorter runs have their share, and not less than one power cut of each
/// side as Primary and as Secondary.
const DISCONNECTS: u64 = 50;
const POWER_CUTS: u64 = 10;
const FULL: u64 = 30;
const FEWEST_CUTS: u64 = 4;
/// Where fio works, and where the writes that count begin.
const FIO_MIB: u64 = 24;
const COUNTED: u64 = 32 << 20;
/// Their blocks; a prime number, so that they are spread.
const BLOCKS: u64 = 6133;
const SECTIONS: Sections =
    Sections { net: "net { protocol C; verify-alg crc32c; ping-timeout 50; }", hurry: true };

/// The command: everything behind `soak`.
///
/// # Errors
/// If an argument is not understood, or the two do not do what they should.
pub fn main(arguments: &[String]) -> Result<()> {
    let (mut minutes, mut seed) = (FULL, 1);
    let mut words = Words::new(arguments);
    while let Some(name) = words.next()? {
        match name {
            "--minutes" => minutes = number(name, words.value(name)?, 1, 24 * 60)?,
            "--seed" => seed = number(name, words.value(name)?, 0, u64::MAX)?,
            other => bail!("vm soak does not know {other}"),
        }
    }
    run(minutes, seed)
}

fn run(minutes: u64, seed: u64) -> Result<()> {
    let begun = Instant::now();
    let images = Images::get(Kind::UserMode)?;
    let rig = Rig::new(&images)?;
    let mut soak = Soak {
        pair: Pair::new(&rig, SECTIONS)?,
        primary: Side::Kernel,
        next: 0,
        random: Random(seed),
        rounds: 0,
    };
    soak.pair.connected()?;
    soak.pair.kernel("drbdadm primary --force r0")?;
    soak.pair.settle("first resync")?;
    soak.pair.kernel("drbdadm secondary r0")?;
    soak.pair.engine.export()?;
    let faults = faults(minutes);
    let pause = Duration::from_secs(minutes * 60) / faults.len() as u32;
    let load_begun = Instant::now();
    let mut load = soak.begin_load(true)?;
    for (nr, fault) in faults.iter().enumerate() {
        // Somewhere in its share of the time, so that it meets load and resyncs at any point.
        let due = pause * nr as u32 + pause.mul_f64(soak.share() / 2.0);
        soak.idle(due.saturating_sub(load_begun.elapsed()))?;
        load = soak.fault(*fault, load)?;
    }
    soak.idle(Duration::from_secs(minutes * 60).saturating_sub(load_begun.elapsed()))?;
    soak.end_load(load)?;
    soak.check()?;
    soak.pair.settle("the load has ended")?;
    verify(&soak.pair)?;
    compare(&soak.pair)?;
    let cuts = faults.iter().filter(|fault| matches!(fault, Fault::PowerCut(_))).count();
    println!(
        "soak: {} disconnects, {cuts} power cuts, {} writes that count, {} rounds of fio verified: all good in {:.0} s",
        faults.len() - cuts,
        soak.next,
        soak.rounds,
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Kernel,
    Ashlar,
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Primary,
    Secondary,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// One leaves by its operator's command and is told to come back.
    Disconnect(Side),
    PowerCut(Role),
}

/// What happens, in that order. Power cuts are spread among the disconnects.
fn faults(minutes: u64) -> Vec<Fault> {
    let share = |of: u64| (of * minutes).div_ceil(FULL);
    let cuts = share(POWER_CUTS).max(FEWEST_CUTS);
    let leaves = share(DISCONNECTS).max(cuts);
    let mut faults = Vec::new();
    let mut cut = 0;
    for nr in 0..leaves {
        faults.push(Fault::Disconnect(if nr % 2 == 0 { Side::Kernel } else { Side::Ashlar }));
        if (nr + 1) * cuts / leaves > cut {
            // Primary, Secondary, Primary, ...: each Primary that fails makes the other one Primary.
            faults.push(Fault::PowerCut(if cut % 2 == 0 {
                Role::Primary
            } else {
                Role::Secondary
            }));
            cut += 1;
        }
    }
    faults
}

fn place(n: u64) -> u64 {
    n * 613 % BLOCKS
}

/// The content of the n-th.
fn block(n: u64) -> Vec<u8> {
    let mut block = format!("{n:08}\n").into_bytes();
    block.resize(4096, 0);
    block
}

/// What writes at a Primary.
struct Load {
    /// On the host's side: fio's rounds, and the writes that count. In the guest both are shells.
    here: Option<(Daemon, Counting)>,
}

/// Writes that count through the engine, until it stops or is stopped.
struct Counting {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Counting {
    /// Stops it; how far it got.
    fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the writer panicked"))
    }
}

struct Soak<'a> {
    pair: Pair<'a>,
    primary: Side,
    /// Writes that count below this are acknowledged.
    next: u64,
    random: Random,
    rounds: u64,
}

impl Soak<'_> {
    /// Where fio works on this side.
    fn folder(&self) -> PathBuf {
        self.pair.engine.rig.file("soak")
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        self.random.below(1000) as f64 / 1000.0
    }

    fn idle(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            process::check_signals()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// fio's rounds as a line of shell: verify what is there, then write and verify, again and again.
    /// `$1` is where it says how many rounds ended well.
    fn rounds(&self, target: &str, folder: &str, fresh: bool) -> String {
        let fio = format!(
            "fio --name=soak --thread --bs=4k --size={FIO_MIB}m --iodepth=8 --verify=crc32c --verify_fatal=1 \
             --do_verify=1 --group_reporting {target}"
        );
        let first = if fresh { "true" } else { &format!("{fio} --rw=read") };
        format!(
            "cd {folder} && echo 0 > rounds && {{ {first} && i=0 && while {fio} --rw=randwrite --randseed=$((i+{})); do \
             i=$((i+1)); echo $i > rounds; done; }} > fio.log 2>&1",
            self.next + 1
        )
    }

    /// The Primary is written to from now on.
    fn begin_load(&mut self, fresh: bool) -> Result<Load> {
        println!("{:?} is Primary", self.primary);
        match self.primary {
            Side::Kernel => {
                self.promote_kernel()?;
                let fio = self.rounds(
                    "--ioengine=libaio --direct=1 --filename=/dev/drbd0",
                    "/tmp",
                    fresh,
                );
                let count = format!(
                    "n={}; echo $n > /tmp/acknowledged; while [ ! -e /tmp/stop ]; do printf '%08d\\n' $n > /tmp/block; \
                     dd if=/tmp/block of=/dev/drbd0 bs=4096 conv=sync,notrunc oflag=direct \
                     seek=$(({}+n*613%{BLOCKS})) 2>/dev/null || exit; n=$((n+1)); echo $n > /tmp/new; \
                     mv /tmp/new /tmp/acknowledged; done",
                    self.next,
                    COUNTED / 4096
                );
                let line = format!(
                    "rm -f /tmp/stop; ({fio}) >/dev/null 2>&1 & echo $! > /tmp/fio.pid; ({count}) >/dev/null 2>&1 & \
                     echo $! > /tmp/count.pid"
                );
                self.pair.kernel(&line)?;
                Ok(Load { here: None })
            }
            Side::Ashlar => {
                let folder = self.folder();
                fs::create_dir_all(&folder)?;
                let target = format!("--ioengine=nbd '--uri={}'", self.pair.engine.uri());
                let mut command = process::command("sh");
                command.arg("-c").arg(self.rounds(&target, &folder.display().to_string(), fresh));
                // The first client promotes.
                let counting = self.count_here()?;
                let fio = Daemon::start(command, folder.join("shell.log"))?;
                Ok(Load { here: Some((fio, counting)) })
            }
        }
    }

    /// The other one may not have heard yet that it is alone, or that a Primary is gone.
    fn promote_kernel(&self) -> Result<()> {
        let begun = Instant::now();
        while let Err(error) = self.pair.kernel("drbdadm primary r0") {
            if begun.elapsed() > PATIENCE {
                return Err(error);
            }
            process::check_signals()?;
        }
        Ok(())
    }

    /// One that may write: the engine is Primary as long as it is there.
    fn client(&self) -> Result<Client> {
        let socket = self.pair.engine.nbd_socket();
        let begun = Instant::now();
        loop {
            match Client::open(&socket, "r0", PATIENCE) {
                Ok(client) => return Ok(client),
                Err(error) if begun.elapsed() > PATIENCE => return Err(error.into()),
                Err(_) => process::check_signals()?,
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn count_here(&self) -> Result<Counting> {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, mut n) = (Arc::clone(&stop), self.next);
        let mut client = self.client()?;
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                // Killed, the engine does not answer the last one.
                if client.write(COUNTED + place(n) * 4096, &block(n)).is_err() {
                    return n;
                }
                n += 1;
            }
            client.close();
            n
        });
        Ok(Counting { stop, thread })
    }

    /// The load ends in good order; what fio has found so far is looked at.
    fn end_load(&mut self, load: Load) -> Result<()> {
        match load.here {
            None => {
                let line = "touch /tmp/stop; while kill -0 $(cat /tmp/count.pid) 2>/dev/null; do sleep 0.1; done; \
                            kill -0 $(cat /tmp/fio.pid) || echo 'fio: has ended' >> /tmp/fio.log; \
                            kill $(cat /tmp/fio.pid); killall -INT fio; while killall -0 fio 2>/dev/null; do sleep 0.1; done";
                let pair = &self.pair;
                pair.kernel(line)?;
                let (acknowledged, rounds, log) = self.seen_there()?;
                self.note(acknowledged, rounds, &log)?;
                ensure!(!log.contains("has ended"), "fio has ended by itself: {log}");
                self.pair.kernel("sync; drbdadm secondary r0").map(drop)
            }
            Some((mut fio, counting)) => {
                let acknowledged = counting.end()?;
                fio.check()?;
                self.end_here(fio, acknowledged)
            }
        }
    }

    /// What is left of the load at an engine, and what it has found.
    fn end_here(&mut self, mut fio: Daemon, acknowledged: u64) -> Result<()> {
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", fio.pid())]).status();
        fio.end();
        let read = |name: &str| fs::read_to_string(self.folder().join(name));
        let (rounds, log) = (read("rounds")?, read("fio.log")?);
        self.note(acknowledged, rounds.trim().parse().unwrap_or(0), &log)
    }

    fn seen_there(&self) -> Result<(u64, u64, String)> {
        let pair = &self.pair;
        let text = pair.kernel("cat /tmp/acknowledged /tmp/rounds")?;
        let mut numbers = text.lines().map(|line| line.trim().parse::<u64>());
        let (Some(Ok(acknowledged)), Some(Ok(rounds))) = (numbers.next(), numbers.next()) else {
            bail!("the guest does not say how far it got: {text:?}");
        };
        Ok((acknowledged, rounds, pair.kernel("cat /tmp/fio.log")?))
    }

    fn note(&mut self, acknowledged: u64, rounds: u64, log: &str) -> Result<()> {
        let wrong = |line: &&str| line.contains("verify:") || line.contains("Invalid or incom");
        if log.lines().any(|line| wrong(&line)) {
            bail!("fio found other data than it wrote at {:?}:\n{log}", self.primary);
        }
        ensure!(acknowledged > self.next, "{:?} wrote nothing as Primary", self.primary);
        self.next = acknowledged;
        self.rounds += rounds;
        Ok(())
    }

    fn fault(&mut self, fault: Fault, load: Load) -> Result<Load> {
        match fault {
            Fault::Disconnect(side) => {
                let away = Duration::from_millis(300 + self.random.below(2500));
                let pair = &self.pair;
                let say = |verb: &str| match side {
                    Side::Kernel => pair.kernel(&format!("drbdadm {verb} r0")),
                    Side::Ashlar => pair.engine.say(&[verb, "r0"]),
                };
                say("disconnect")?;
                self.idle(away)?;
                say("connect")?;
                pair.settle(&format!("{side:?} left for {} ms", away.as_millis()))?;
                Ok(load)
            }
            Fault::PowerCut(Role::Secondary) => {
                match self.primary {
                    Side::Kernel => {
                        self.pair.engine.kill();
                        self.idle(Duration::from_secs(1))?;
                        self.pair.engine.start()?;
                    }
                    Side::Ashlar => {
                        self.pair.cut_kernel()?;
                        self.pair.boot_kernel()?;
                    }
                }
                self.pair.settle("a Secondary lost its power")?;
                Ok(load)
            }
            Fault::PowerCut(Role::Primary) => self.take_over(load),
        }
    }

    /// The Primary loses its power. The survivor is Primary at once, has all that counts, and goes on;
    /// then the other one comes back.
    fn take_over(&mut self, load: Load) -> Result<Load> {
        match load.here {
            None => {
                let (acknowledged, rounds, log) = self.seen_there()?;
                self.pair.cut_kernel()?;
                self.note(acknowledged, rounds, &log)?;
                self.primary = Side::Ashlar;
                self.check()?;
                let load = self.begin_load(false)?;
                self.pair.boot_kernel()?;
                self.pair.settle("the kernel lost its power as Primary")?;
                Ok(load)
            }
            Some((fio, counting)) => {
                self.pair.engine.kill();
                let acknowledged = counting.end()?;
                self.end_here(fio, acknowledged)?;
                self.primary = Side::Kernel;
                self.check()?;
                let load = self.begin_load(false)?;
                self.pair.engine.start()?;
                self.pair.settle("the engine lost its power as Primary")?;
                Ok(load)
            }
        }
    }

    /// All that counts is there, as who is to be Primary, or was it last, reads it.
    fn check(&self) -> Result<()> {
        let size = (BLOCKS * 4096) as usize;
        let data = match self.primary {
            Side::Kernel => {
                self.promote_kernel()?;
                let (skip, count) = (COUNTED / 4096, BLOCKS);
                let line = format!(
                    "dd if=/dev/drbd0 bs=4k skip={skip} count={count} iflag=direct 2>/dev/null; drbdadm secondary r0"
                );
                self.pair.kernel(&line)?.into_bytes()
            }
            Side::Ashlar => {
                let mut client = self.client()?;
                let data = client.read(COUNTED, size)?;
                client.close();
                data
            }
        };
        ensure!(data.len() == size, "{} bytes were read, not {size}", data.len());
        for n in self.next.saturating_sub(BLOCKS)..self.next {
            let start = (place(n) * 4096) as usize;
            let text = String::from_utf8_lossy(&data[start..start + 9]);
            let found = text.trim().parse::<u64>().ok();
            // What was not acknowledged may be there, too.
            ensure!(
                found.is_some_and(|found| found >= n && found % BLOCKS == n % BLOCKS),
                "{:?} has lost the acknowledged write {n}: block {} begins with {text:?}",
                self.primary,
                place(n)
            );
        }
        Ok(())
    }
}
