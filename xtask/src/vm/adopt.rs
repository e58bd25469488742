//! Disks with metadata v08 that kernel DRBD 8.4 and Ashlar take over from each other as they are: two
//! nodes, each now a guest with the kernel, now an engine on the host's side with the guest's disk and
//! address. Every change of hands ends with both disks UpToDate; what was acknowledged is there, and
//! the data areas are equal.
//!
//! Writes that count are blocks of 4 KiB, the n-th at block [`place`]`(n)`, and begin with n.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::engine::Engine;
use super::guest::{Guest, Kind};
use super::image::Images;
use super::interop::SETTLED;
use super::rig::{Rig, address};
use super::{DISK_MIB, PATIENCE};
use crate::process;
use crate::torture::nbd::Client;

/// How long writes go on before the power goes.
const LOAD: Duration = Duration::from_secs(4);
/// Their blocks are the first so many of the volume: six extents of the activity log; a prime number, so
/// that they are spread.
const BLOCKS: u64 = 6133;
/// Pings are answered late on a machine with other work.
const NET: &str = "net { protocol C; ping-timeout 50; after-sb-0pri disconnect; }";
/// What v08 has in front of and behind the data: superblock, activity log, one block of bitmap.
const METADATA: u64 = 4096 + 32768 + 4096;
const DATA: u64 = (DISK_MIB << 20) - METADATA;

/// Where the n-th write that counts goes.
fn place(n: u64) -> u64 {
    n * 613 % BLOCKS
}

/// How far writes got: of n < `acknowledged` each is known to be on the disks.
struct Ledger {
    acknowledged: u64,
}

/// The command.
pub fn main() -> Result<()> {
    let begun = Instant::now();
    let images = Images::get(Kind::UserMode)?;
    let rig = Rig::new(&images)?;
    ensure!(process::is_installed("drbdmeta"), "drbdmeta (drbd-utils) is not installed");

    let guests = boot_pair(&rig, true)?;
    guests[0].run("drbdadm primary --force r0", PATIENCE)?;
    settle_kernels(&guests, "first resync of two kernels")?;
    guests[0].run(
        "mkfs.ext4 -q /dev/drbd0 && mount -t ext4 /dev/drbd0 /mnt && dd if=/dev/urandom of=/mnt/load bs=64k \
         count=500 2>/dev/null && umount /mnt",
        PATIENCE,
    )?;
    leave(guests)?;
    let written = same_data(&rig, "two kernels went")?;

    let mut engines = engines(&rig)?;
    start_pair(&rig, &mut engines)?;
    settle_engines(&engines, "two engines took the disks of two kernels")?;
    ensure!(!resynced(&engines), "nothing was to be resynced\n{}", engines[0].log());
    ensure!(same_data(&rig, "nothing written yet")? == written, "the data have changed");
    let ledger = write_through(&engines[0], 300)?;
    stop_pair(&rig, &mut engines)?;
    check_writes(&rig, &ledger)?;
    let written = same_data(&rig, "two engines went")?;

    let guests = boot_pair(&rig, false)?;
    settle_kernels(&guests, "two kernels took them back")?;
    ensure!(same_data(&rig, "nothing written yet")? == written, "the data have changed");
    let ledger = load_at_kernel(&guests[0])?;
    power_cut(guests)?;

    taken_after_crash(&rig, &mut engines, &ledger)?;
    let ledger = load_at_engine(&mut engines)?;
    go(&rig, &mut engines)?;

    let guests = boot_pair(&rig, false)?;
    settle_kernels(&guests, "two kernels took the disks of engines that were killed")?;
    leave(guests)?;
    check_writes(&rig, &ledger)?;
    same_data(&rig, "after the engines were killed")?;

    beside_each_other(&rig, &mut engines)?;
    println!("disks: all good in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// What both kernels are configured with.
fn configure(guest: &Guest) -> Result<()> {
    let node = |nr| format!("on g{nr} {{ address {}:7788; }}", address(nr));
    let config = format!(
        "global {{ usage-count no; }} resource r0 {{ {NET} device /dev/drbd0; disk /dev/ubda; \
         meta-disk internal; {} {} }}",
        node(1),
        node(2)
    );
    guest.run(&format!("echo '{config}' > /etc/drbd.conf"), PATIENCE).map(drop)
}

/// Boots a guest and gives its kernel the disk.
fn boot(rig: &Rig<'_>, nr: u8, new: bool) -> Result<Guest> {
    let guest = match new {
        true => rig.boot(Kind::UserMode, nr, DISK_MIB, &["drbd"])?,
        false => rig.boot_again(Kind::UserMode, nr, &["drbd"])?,
    };
    configure(&guest)?;
    if new {
        guest.run("yes yes | drbdadm create-md r0 2>&1", PATIENCE)?;
    }
    // drbdadm has drbdmeta apply the activity log first.
    guest.run("drbdadm up r0", PATIENCE)?;
    Ok(guest)
}

fn boot_pair(rig: &Rig<'_>, new: bool) -> Result<[Guest; 2]> {
    let guests = [boot(rig, 1, new)?, boot(rig, 2, new)?];
    let begun = Instant::now();
    while !guests[0].run("cat /proc/drbd", PATIENCE)?.contains("cs:Connected") {
        ensure!(
            begun.elapsed() < SETTLED,
            "the kernels do not connect\n{}",
            kernel_log(&guests[0])
        );
        process::check_signals()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(guests)
}

fn kernel_log(guest: &Guest) -> String {
    guest.run("dmesg | grep drbd | tail -25", PATIENCE).unwrap_or_default()
}

/// Waits until a kernel says that both disks are UpToDate.
fn settle_kernel(guest: &Guest, what: &str, log: impl Fn() -> String) -> Result<()> {
    let begun = Instant::now();
    loop {
        let state = guest.run("grep -A1 ' cs:' /proc/drbd", PATIENCE)?;
        if state.contains("cs:Connected") && state.contains("ds:UpToDate/UpToDate") {
            ensure!(state.contains("oos:0"), "{what}: blocks are left out of sync\n{state}");
            println!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
            return Ok(());
        }
        if begun.elapsed() > SETTLED {
            bail!("{what}: it does not settle\n{state}{}{}", kernel_log(guest), log());
        }
        process::check_signals()?;
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn settle_kernels(guests: &[Guest; 2], what: &str) -> Result<()> {
    settle_kernel(&guests[0], what, || kernel_log(&guests[1]))
}

/// Both kernels give their disks up in order.
fn leave(guests: [Guest; 2]) -> Result<()> {
    guests[0].run("drbdadm secondary r0", PATIENCE)?;
    for guest in &guests {
        guest.run("drbdadm down r0 && sync", PATIENCE)?;
    }
    power_cut(guests)
}

fn power_cut(guests: [Guest; 2]) -> Result<()> {
    guests.into_iter().try_for_each(Guest::power_cut)
}

/// An engine for each node; they have the addresses of the guests that are off.
fn engines<'a>(rig: &'a Rig<'a>) -> Result<[Engine<'a>; 2]> {
    let node = |nr: u8| {
        format!(
            "on g{nr} {{ node-id {}; address {}:7788; volume 0 {{ device minor 0; disk {}; \
             meta-disk internal; }} }}",
            nr - 1,
            address(nr),
            rig.disk(nr).display()
        )
    };
    let config = format!(
        "global {{ disable-ip-verification; }} resource r0 {{ {NET} {} {} }}",
        node(1),
        node(2)
    );
    Ok([Engine::new(rig, "g1", &config)?, Engine::new(rig, "g2", &config)?])
}

fn start(rig: &Rig<'_>, engine: &mut Engine<'_>, nr: u8) -> Result<()> {
    rig.stand_in(nr)?;
    engine.start()?;
    engine.configure(&["up"]).map(drop)
}

fn start_pair(rig: &Rig<'_>, engines: &mut [Engine<'_>; 2]) -> Result<()> {
    for (engine, nr) in engines.iter_mut().zip(1..) {
        start(rig, engine, nr)?;
    }
    Ok(())
}

/// Both engines give their disks up in order.
fn stop_pair(rig: &Rig<'_>, engines: &mut [Engine<'_>; 2]) -> Result<()> {
    for engine in engines.iter_mut() {
        engine.say(&["down", "r0"])?;
    }
    go(rig, engines)
}

/// The engines end, running or not, and the guests' addresses are free.
fn go(rig: &Rig<'_>, engines: &mut [Engine<'_>; 2]) -> Result<()> {
    for (engine, nr) in engines.iter_mut().zip(1..) {
        engine.kill();
        engine.forget()?;
        rig.stand_back(nr)?;
    }
    Ok(())
}

fn settled(engine: &Engine<'_>) -> Result<bool> {
    let status = engine.say(&["status"])?;
    Ok(status.contains("disk:UpToDate")
        && status.contains("peer-disk:UpToDate")
        && !status.contains("replication:"))
}

fn settle_engines(engines: &[Engine<'_>; 2], what: &str) -> Result<()> {
    let begun = Instant::now();
    while !settled(&engines[0])? || !settled(&engines[1])? {
        if begun.elapsed() > SETTLED {
            bail!("{what}: they do not settle\n{}{}", engines[0].log(), engines[1].log());
        }
        process::check_signals()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// One of them has begun a resync since its start.
fn resynced(engines: &[Engine<'_>; 2]) -> bool {
    engines.iter().any(|engine| engine.log().contains("resync"))
}

/// Blocks that count, written through an engine one after the other.
fn write_through(engine: &Engine<'_>, count: u64) -> Result<Ledger> {
    engine.export()?;
    let mut client = Client::open(&engine.nbd_socket(), "r0", PATIENCE)?;
    for n in 0..count {
        client.write(place(n) * 4096, &block(n))?;
    }
    client.close();
    Ok(Ledger { acknowledged: count })
}

/// The content of the n-th.
fn block(n: u64) -> Vec<u8> {
    let mut block = format!("{n:08}\n").into_bytes();
    block.resize(4096, 0);
    block
}

/// A Primary kernel writes blocks that count, and fio others of the same extents; it goes on doing so.
fn load_at_kernel(guest: &Guest) -> Result<Ledger> {
    guest.run("drbdadm primary r0", PATIENCE)?;
    let line = format!(
        "(n=0; while :; do printf '%08d\\n' $n > /tmp/block; \
         dd if=/tmp/block of=/dev/drbd0 bs=4096 conv=sync,notrunc oflag=direct seek=$((n*613%{BLOCKS})) \
         2>/dev/null || exit; n=$((n+1)); echo $n > /tmp/new; mv /tmp/new /tmp/acknowledged; done) \
         >/dev/null 2>&1 & (fio --name=hot --filename=/dev/drbd0 --direct=1 --rw=randwrite --bs=4k \
         --iodepth=8 --ioengine=libaio --offset={} --size=4m --time_based --runtime=60 \
         >/dev/null 2>&1) &",
        8 * (4 << 20)
    );
    guest.run(&line, PATIENCE)?;
    std::thread::sleep(LOAD);
    let acknowledged = guest.run("cat /tmp/acknowledged", PATIENCE)?.trim().parse()?;
    ensure!(acknowledged > 10, "the guest has written {acknowledged} blocks only");
    println!("a Primary kernel under load has written {acknowledged} blocks that count");
    Ok(Ledger { acknowledged })
}

/// The engines take the disks of two kernels that lost their power under load: what the activity log
/// names is marked, neither more nor less than drbdmeta would, and resynced.
fn taken_after_crash(rig: &Rig<'_>, engines: &mut [Engine<'_>; 2], ledger: &Ledger) -> Result<()> {
    let (was, marked) = marked_by_drbdmeta(rig)?;
    ensure!(marked > was, "the activity log names nothing that the bitmap has not");
    start(rig, &mut engines[0], 1)?;
    let status = engines[0].say(&["status", "-v", "--statistics"])?;
    let here = status.split("out-of-sync:").nth(1).and_then(|rest| rest.split_whitespace().next());
    let here: u64 = here.context("the status has no out-of-sync")?.parse()?;
    ensure!(here == 4 * marked, "{here} KiB are marked, by drbdmeta {} KiB\n{status}", 4 * marked);
    println!("the activity log of a crashed kernel marks {here} KiB, as with drbdmeta");
    start(rig, &mut engines[1], 2)?;
    settle_engines(engines, "two engines took the disks of two crashed kernels")?;
    ensure!(resynced(engines), "nothing was resynced");
    check_writes(rig, ledger)?;
    same_data(rig, "after the crash of both kernels").map(drop)
}

/// Bits of the crashed Primary's bitmap, before and after drbdmeta has applied the activity log to it.
fn marked_by_drbdmeta(rig: &Rig<'_>) -> Result<(u64, u64)> {
    let copy = rig.file("copy.img");
    fs::copy(rig.disk(1), &copy)?;
    let was = bits(&copy)?;
    let mut command = process::command("drbdmeta");
    command.args(["--force", "-", "v08"]).arg(&copy).args(["internal", "apply-al"]);
    process::output(command, PATIENCE)?;
    Ok((was, bits(&copy)?))
}

/// Set bits of the volume; what follows in the last block of the bitmap may be anything.
fn bits(disk: &Path) -> Result<u64> {
    let mut bitmap = vec![0u8; 4096];
    File::open(disk)?.read_exact_at(&mut bitmap, DATA)?;
    let set = |bit: &u64| bitmap[(bit / 8) as usize] >> (bit % 8) & 1 == 1;
    Ok((0..DATA / 4096).filter(set).count() as u64)
}

/// Both engines are killed while one of them is Primary and written to.
fn load_at_engine(engines: &mut [Engine<'_>; 2]) -> Result<Ledger> {
    engines[0].export()?;
    let socket = engines[0].nbd_socket();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<u64> {
            let mut client = Client::open(&socket, "r0", PATIENCE)?;
            let mut n = 0;
            // Until it is killed: the answer to the last one never comes.
            while !stop.load(Ordering::Relaxed) {
                if client.write(place(n) * 4096, &block(n)).is_err() {
                    break;
                }
                n += 1;
            }
            Ok(n)
        });
        std::thread::sleep(LOAD);
        engines.iter_mut().for_each(Engine::kill);
        stop.store(true, Ordering::Relaxed);
        let acknowledged = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        ensure!(acknowledged > 10, "{acknowledged} blocks only were written");
        println!("a Primary engine under load has written {acknowledged} blocks that count");
        Ok(Ledger { acknowledged })
    })
}

/// A kernel and an engine with such disks, as Primary in turns; the engine is killed each time.
fn beside_each_other(rig: &Rig<'_>, engines: &mut [Engine<'_>; 2]) -> Result<()> {
    let guest = boot(rig, 1, false)?;
    start(rig, &mut engines[1], 2)?;
    settle_kernel(&guest, "a kernel and an engine", || engines[1].log())?;
    let ledger = load_at_kernel(&guest)?;
    engines[1].kill();
    guest.run("killall fio sh", PATIENCE)?;
    // It has kept what it was told.
    engines[1].start()?;
    settle_kernel(&guest, "the engine was killed as Secondary", || engines[1].log())?;
    // Nothing is written meanwhile. If the disk looked like that of a Primary that crashed, it would
    // claim to be the newer one, and the kernels would not come together.
    stop_second(rig, engines, &guest)?;
    let other = boot(rig, 2, false)?;
    let guests = [guest, other];
    settle_kernels(&guests, "a kernel took it beside the Primary")?;
    let [guest, other] = guests;
    other.run("drbdadm down r0 && sync", PATIENCE)?;
    other.power_cut()?;
    is_alone(&guest)?;
    start(rig, &mut engines[1], 2)?;
    settle_kernel(&guest, "and the engine again", || engines[1].log())?;
    guest.run("drbdadm secondary r0", PATIENCE)?;
    // A Primary that loses its connection, if only for a moment, begins a generation of its own, and
    // so does the next one without it.
    settle_kernel(&guest, "it is Secondary", || engines[1].log())?;
    check_writes(rig, &ledger)?;

    let ledger = write_through(&engines[1], 2000)?;
    stop_second(rig, engines, &guest)?;
    let other = boot(rig, 2, false)?;
    let guests = [guest, other];
    let what = "a kernel took the disk of an engine that was killed as Primary";
    settle_kernel(&guests[0], what, || format!("{}{}", kernel_log(&guests[1]), engines[1].log()))?;
    leave(guests)?;
    check_writes(rig, &ledger)?;
    same_data(rig, "a kernel and an engine went").map(drop)
}

/// A kernel has noticed that its peer is gone: what it says of one is of the next.
fn is_alone(guest: &Guest) -> Result<()> {
    let begun = Instant::now();
    while guest.run("cat /proc/drbd", PATIENCE)?.contains("cs:Connected") {
        ensure!(begun.elapsed() < SETTLED, "a kernel keeps a connection to nobody");
        process::check_signals()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The second engine is killed, and gives its place to a guest.
fn stop_second(rig: &Rig<'_>, engines: &mut [Engine<'_>; 2], first: &Guest) -> Result<()> {
    engines[1].kill();
    // It has to hear of it before the address is gone.
    is_alone(first)?;
    engines[1].forget()?;
    rig.stand_back(2)
}

/// What was acknowledged is on both disks.
fn check_writes(rig: &Rig<'_>, ledger: &Ledger) -> Result<()> {
    for nr in [1, 2] {
        let disk = File::open(rig.disk(nr))?;
        for n in 0..ledger.acknowledged {
            // A later one may have gone to the same place.
            let last = n + (ledger.acknowledged - 1 - n) / BLOCKS * BLOCKS;
            let mut found = [0; 9];
            disk.read_exact_at(&mut found, place(n) * 4096)?;
            let text = String::from_utf8_lossy(&found).into_owned();
            let is = text.trim().parse::<u64>().ok();
            ensure!(
                is.is_some_and(|is| is >= last && is % BLOCKS == n % BLOCKS),
                "disk {nr} has lost the acknowledged write {last}: block {} begins with {text:?}",
                place(n)
            );
        }
    }
    Ok(())
}

/// Both data areas are equal; their digest. The metadata are still v08.
fn same_data(rig: &Rig<'_>, when: &str) -> Result<String> {
    let digests = [digest(&rig.disk(1))?, digest(&rig.disk(2))?];
    for nr in [1, 2] {
        let mut magic = [0; 4];
        File::open(rig.disk(nr))?.read_exact_at(&mut magic, (DISK_MIB << 20) - 4096 + 0x3c)?;
        let is = u32::from_be_bytes(magic);
        ensure!([0x8374_026b, 0x8374_026c].contains(&is), "disk {nr} has the magic {is:#x}");
    }
    ensure!(digests[0] == digests[1], "{when}: the disks differ");
    println!("the disks are equal, {} MiB and the rest ({when})", DATA >> 20);
    let [digest, _] = digests;
    Ok(digest)
}

fn digest(disk: &Path) -> Result<String> {
    let mut command = process::command("sh");
    command.args(["-c", "head -c \"$1\" \"$0\" | sha256sum"]).arg(disk).arg(DATA.to_string());
    process::output(command, PATIENCE)
}
