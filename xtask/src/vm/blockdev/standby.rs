//! A device of ublk that is there while its volume is not open.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::done;
use super::nodes::Nodes;

/// What the peer has written is read: nothing of before is left in memory.
const READ: &str = "[ $(dd if=$dev bs=1M skip=300 count=1 2>/dev/null | tr -d Z | wc -c) = 0 ]";

fn is(nodes: &Nodes<'_>, standby: &str) -> Result<bool> {
    let maps: Value = serde_json::from_str(&nodes.guest_ashlar("maps --json")?)?;
    Ok(maps[0]["standby"] == standby)
}

/// The volume is not open any more, so the peer can have it.
fn wait_closed(nodes: &Nodes<'_>) -> Result<()> {
    nodes.wait("the node is Secondary", |status| status[0]["role"] == "Secondary")?;
    nodes.wait_for("the volume is closed", || is(nodes, "closed"))
}

/// From its first use to its end, with engines that die and hand over.
pub fn has_a_device(nodes: &mut Nodes<'_>) -> Result<()> {
    let begun = Instant::now();
    // What came before has its errors.
    nodes.on_device("dmesg -c > /dev/null")?;
    nodes.map("--standby")?;
    wait_closed(nodes)?;
    nodes.on_device(
        "mkfs.ext4 -q -F $dev && mount -t ext4 $dev /mnt && echo kept > /mnt/file && sync",
    )?;
    ensure!(is(nodes, "writing")? && nodes.is_primary()?, "who writes is Primary");
    std::thread::sleep(std::time::Duration::from_secs(3));
    ensure!(is(nodes, "writing")?, "what is mounted is in use");
    let refused = nodes.guest_ashlar("down r0").err().context("a mounted device stays")?;
    ensure!(format!("{refused:#}").contains("mounted at /mnt"), "{refused:#}");
    nodes.restart_engine()?;
    nodes.wait_mapped()?;
    nodes.wait("the disks are UpToDate", Nodes::is_in_sync)?;
    nodes.on_device("grep -q kept /mnt/file && echo more >> /mnt/file && sync")?;
    println!("{}", nodes.replace_engine()?);
    ensure!(is(nodes, "writing")?, "the next engine has it open");
    nodes.on_device("umount /mnt && ashlar secondary r0")?;
    wait_closed(nodes)?;
    println!("{}", nodes.replace_engine()?);
    // Its first and its second look at what the peer writes meanwhile: from memory it would be the first.
    nodes.on_device("dd if=$dev of=/dev/null bs=1M skip=300 count=1 2>/dev/null")?;
    wait_closed(nodes)?;
    nodes.write_at_peer()?;
    nodes.on_device(READ)?;
    wait_closed(nodes)?;
    nodes.kill_engine()?;
    nodes.write_at_peer()?;
    nodes.start_engine()?;
    nodes.wait_mapped()?;
    nodes.wait("the disks are UpToDate", Nodes::is_in_sync)?;
    nodes.on_device(READ)?;
    nodes.on_device("(sleep 3 < $dev) > /dev/null 2>&1 & mount -t ext4 $dev /mnt && grep -q more /mnt/file && umount /mnt")?;
    nodes.on_device("! dmesg | grep -i 'i/o error' && fsck.ext4 -f -n $dev >/dev/null")?;
    nodes.wait_for("it can be unmapped", || Ok(nodes.guest_ashlar("unmap r0/0").is_ok()))?;
    nodes.map("--standby --face nbd")?;
    nodes.on_device("dd if=/dev/urandom of=$dev bs=1M seek=300 count=1 conv=fsync 2>/dev/null")?;
    wait_closed(nodes)?;
    nodes.write_at_peer()?;
    nodes.on_device(READ)?;
    nodes.wait_for("it can be unmapped", || Ok(nodes.guest_ashlar("unmap r0/0").is_ok()))?;
    done("a device that stands by", begun);
    Ok(())
}
