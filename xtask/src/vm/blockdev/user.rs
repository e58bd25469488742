//! A block device of an engine that is not root, in the guest, beside the one that is.
//!
//! There is no udev: a loop does what the rules of `dist/udev` say.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::nodes::Nodes;
use super::{PATIENCE, done};

/// A user, a disk of theirs, a resource of one node, and what gives them their devices.
const PREPARE: &str = "\
mkdir -p /tmp/user && echo 'user:x:1000:1000::/tmp/user:/bin/sh' >> /etc/passwd && echo 'user:x:1000:' >> /etc/group && \
truncate -s 33M /tmp/user/disk && cat > /tmp/user/drbd.conf << 'END'
resource solo {
  on alpha { node-id 0; address 127.0.0.1:7100; volume 0 { device minor 77; disk /tmp/user/disk; meta-disk internal; } }
}
END
chown -R 1000:1000 /tmp/user && chmod 666 /dev/ublk-control
while [ -d /tmp/user ]; do
    for device in /dev/ublk[bc][0-9]*; do
        [ ! -e $device ] || [ \"$(stat -c %u $device)\" != 0 ] || \
            chown $(ashlar ublk-owner ${device#/dev/} | tr ' ' :) $device
    done
    sleep 0.2
done > /tmp/udev 2>&1 < /dev/null &
";

/// By its path: the shell of busybox would take its own, which knows less. `$user` is what a command of the user begins with, `$ashlar` one to their engine.
const WORDS: &str = "user='/usr/bin/setpriv --reuid 1000 --regid 1000 --clear-groups'; ashlar=\"$user ashlar --socket /tmp/user/socket\"; ";

const ENGINE: &str = "\
$ashlar engine --node alpha --buffers 64 --threads 1 --state-dir /tmp/user/state < /dev/null >> /tmp/user/log 2>&1 & \
echo $! > /tmp/user/pid; $ashlar info --wait-engine 60 > /dev/null";

fn run(nodes: &Nodes<'_>, script: &str) -> Result<String> {
    nodes.guest.run(&format!("{WORDS}{script}"), PATIENCE).with_context(|| {
        let log =
            nodes.guest.run("tail -n 20 /tmp/user/log /tmp/udev; dmesg | tail -n 5", PATIENCE);
        format!("the logs end with:\n{}", log.unwrap_or_default())
    })
}

/// Such a device comes, is used, fails what takes too long, and goes with its engine.
pub(super) fn has_a_device(nodes: &Nodes<'_>) -> Result<()> {
    let begun = Instant::now();
    run(nodes, PREPARE)?;
    run(nodes, ENGINE)?;
    run(
        nodes,
        "$ashlar --node alpha --config /tmp/user/drbd.conf create-md solo && \
         $ashlar --node alpha --config /tmp/user/drbd.conf up solo && \
         $ashlar new-current-uuid --clear-bitmap solo/0",
    )?;
    let device = run(nodes, "$ashlar map solo/0")?.trim().to_owned();
    let maps: Value = serde_json::from_str(&run(nodes, "$ashlar maps --json")?)?;
    let features = &maps[0]["features"];
    ensure!(*features == serde_json::json!(["unprivileged-dev"]), "another device: {maps}");
    let dev = format!("dev={device}; ");
    run(
        nodes,
        &format!(
            "{dev} $user fio --minimal --output=/tmp/user/fio --randseed=7 --ioengine=libaio --verify=crc32c \
             --verify_fatal=1 --do_verify=1 --name=raw --filename=$dev --direct=1 --rw=randrw \
             --bsrange=512-512k --blockalign=512 --size=24m --io_size=8m --iodepth=16 --fsync=64 && \
             $user dd if=/bin/busybox of=$dev bs=64k seek=384 oflag=direct conv=sync,fsync 2>/dev/null && \
             $user /usr/sbin/blkdiscard -o 1M -l 1M $dev"
        ),
    )?;
    let refused = run(nodes, "$ashlar upgrade").err().context("the device would not last")?;
    ensure!(format!("{refused:#}").contains("ends with this engine"), "{refused:#}");
    // After 30 s the kernel would kill the engine.
    run(
        nodes,
        &format!(
            "{dev} $ashlar suspend-io solo && ! timeout 60 $user dd if=$dev of=/dev/null bs=4k count=1 \
             iflag=direct 2>/dev/null && sleep 15 && $ashlar resume-io solo && [ -d /proc/$(cat /tmp/user/pid) ] && \
             $user dd if=$dev of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null"
        ),
    )?;
    done("a device of an engine that is not root; what takes too long fails", begun);
    let begun = Instant::now();
    run(
        nodes,
        "kill -9 $(cat /tmp/user/pid); while [ -d /proc/$(cat /tmp/user/pid) ]; do sleep 0.1; done",
    )?;
    run(nodes, ENGINE)?;
    run(
        nodes,
        "until dev=$($ashlar maps --json | grep -o '/dev/ublkb[0-9]*' | head -n 1) && [ -n \"$dev\" ]; do sleep 0.5; \
         done; $user dd if=$dev bs=64k skip=384 iflag=direct 2>/dev/null | head -c $(stat -c %s /bin/busybox) | \
         cmp - /bin/busybox",
    )?;
    run(nodes, "$ashlar unmap solo/0 && $ashlar down solo && $ashlar shutdown && rm -r /tmp/user")?;
    let left = nodes.guest.run("ls /sys/class/ublk-char", PATIENCE)?;
    ensure!(left.trim().lines().count() <= 1, "there is left: {left}");
    done("it ends with its engine, and the next one makes it anew", begun);
    Ok(())
}
