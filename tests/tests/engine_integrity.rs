//! A bit flips between two engines: written by the peer without `data-integrity-alg`, never with.

use crate::engine_support::nbd::Client;
use crate::engine_support::relay::{MARK, Relay};
use crate::engine_support::{Cluster, Setup};

const BLOCK: u64 = 4096;

fn two_nodes(sections: &str) -> Setup {
    Setup { nodes: vec!["alpha", "bravo"], sections: sections.to_owned(), ..Setup::default() }
}

/// A block in which the relay finds its mark wherever a chunk ends.
fn marked(nr: u64) -> Vec<u8> {
    let mut block = MARK.repeat(BLOCK as usize / MARK.len());
    block[4088..].copy_from_slice(&nr.to_le_bytes());
    block
}

fn block_of(cluster: &Cluster, node: usize, nr: u64) -> Vec<u8> {
    cluster.content(node, 0, (nr + 1) * BLOCK).split_off((nr * BLOCK) as usize)
}

/// Writes a block that is damaged on its way.
fn write_damaged(client: &mut Client, relay: &Relay, nr: u64, chunks: usize) {
    let before = relay.damaged();
    relay.damage(chunks);
    client.write(nr * BLOCK, &marked(nr)).unwrap();
    assert!(relay.damaged() > before, "the relay has seen the write");
}

fn wait_in_sync(cluster: &Cluster) {
    cluster.wait("everything is in sync again", |c| {
        c.nodes.iter().all(|n| n.is_connected() && n.out_of_sync() == 0) && c.all_up_to_date()
    });
}

fn set_digest(cluster: &Cluster, from: &str, to: &str) {
    let line = |name: &str| format!("data-integrity-alg {name};");
    cluster.reconfigure(|config| config.replace(&line(from), &line(to)));
}

#[test]
fn a_flipped_bit_is_written_without_a_digest_and_never_with_one() {
    let none = "data-integrity-alg \"\";";
    let (cluster, relay) = Cluster::relayed(&two_nodes(&format!("net {{ {none} }}")));
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    write_damaged(&mut client, &relay, 0, 1);
    assert_eq!(block_of(&cluster, 0, 0), marked(0));
    let (ours, theirs) = (marked(0), block_of(&cluster, 1, 0));
    let flipped: u32 = ours.iter().zip(&theirs).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!(flipped, 1, "nobody can notice, and the bit is on the peer's disk");
    assert!(cluster.nodes[0].is_connected());
    client.write(0, &marked(0)).unwrap();
    // What a peer has not made stable when its connection ends is resynced, too.
    client.flush().unwrap();

    // Under the same clients and connection.
    for (old, name) in ["\"\"", "crc32c", "md5", "sha1", "sha256"]
        .iter()
        .zip(["crc32c", "md5", "sha1", "sha256", "sha512"])
    {
        set_digest(&cluster, old, name);
        cluster.nodes.iter().for_each(|node| _ = node.ok(&["adjust", "r0"]));
        let logged = cluster.nodes[1].log().len();
        let before = relay.damaged();
        // The write, and the block of the resync that is to bring it.
        write_damaged(&mut client, &relay, 1, 2);
        wait_in_sync(&cluster);
        cluster.wait("both were damaged", |_| relay.damaged() == before + 2);
        wait_in_sync(&cluster);
        assert_eq!(block_of(&cluster, 1, 1), marked(1));
        let log = cluster.nodes[1].log().split_off(logged);
        let line = format!("do not have the {name} digest");
        let damaged: Vec<&str> = log.lines().filter(|l| l.contains(&line)).collect();
        assert_eq!(damaged.len(), 2, "{damaged:?}");
        for (line, packet) in damaged.iter().zip(["P_DATA", "P_RS_DATA_REPLY"]) {
            assert!(line.contains("volume 0, sectors 8+8") && line.contains(packet), "{line}");
        }
        // What the operator is told.
        assert!(cluster.nodes[1].ok(&["why", "r0"]).contains(&line));
        // Gone again, so that the next round has something to resync.
        client.write(BLOCK, &[0; BLOCK as usize]).unwrap();
        client.flush().unwrap();
    }
    client.close();
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_node_without_disk_never_reads_a_flipped_bit() {
    let setup = Setup {
        clients: vec!["bravo"],
        ..two_nodes(
            "net { data-integrity-alg crc32c; } options { on-no-data-accessible suspend-io; }",
        )
    };
    let (cluster, relay) = Cluster::relayed(&setup);
    let socket = cluster.nodes[1].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    write_damaged(&mut client, &relay, 3, 1);
    relay.damage(1);
    assert_eq!(client.read(3 * BLOCK, BLOCK as usize).unwrap(), marked(3));
    assert_eq!(relay.damaged(), 2);
    cluster.wait_logged(1, "of this P_DATA_REPLY do not have the crc32c digest");
    client.close();
}

#[test]
fn different_digests_refuse_the_connection_and_unknown_ones_are_refused() {
    let cluster = Cluster::up(&two_nodes("net { data-integrity-alg crc32c; }"));
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    set_digest(&cluster, "crc32c", "crc64");
    let (_, error) = bravo.fails(&["adjust", "r0"]);
    assert!(error.contains("(141)") && error.contains("crc32c, md5"), "{error}");
    set_digest(&cluster, "crc64", "sha1");
    alpha.ok(&["disconnect", "r0:bravo"]);
    bravo.ok(&["adjust", "r0"]);
    alpha.ok(&["connect", "r0:bravo"]);
    cluster.wait("the connection is given up", |c| {
        c.nodes[0].peer("bravo").0 == "StandAlone" && c.nodes[1].peer("alpha").0 == "StandAlone"
    });
    let logs = alpha.log() + &bravo.log();
    assert!(
        logs.contains("data-integrity-alg differs between the nodes: `crc32c` here, `sha1` there")
            || logs.contains("data-integrity-alg differs between the nodes: `sha1` here"),
        "the log says why"
    );
    // The same on both, and they meet.
    alpha.ok(&["adjust", "r0"]);
    bravo.ok(&["adjust", "r0"]);
    cluster.wait_connected();
}
