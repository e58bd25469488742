//! Engines that have to prove to each other that they know a secret (`cram-hmac-alg`).

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Setup, pattern};

const SECRET: &str = "s3cret-s3cret";

fn two_nodes() -> Setup {
    Setup {
        nodes: vec!["alpha", "bravo"],
        sections: format!("net {{ cram-hmac-alg sha256; shared-secret \"{SECRET}\"; }}"),
        ..Setup::default()
    }
}

fn rekey(cluster: &Cluster, from: &str, to: &str) {
    cluster.reconfigure(|config| config.replace(from, to));
}

#[test]
fn a_secret_is_kept_over_a_restart_and_shown_to_nobody() {
    let mut cluster = Cluster::up(&two_nodes());
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    cluster.nodes[1].kill();
    client.write(0, &pattern(1, 65536)).unwrap();
    cluster.nodes[1].start();
    cluster.wait_connected();
    cluster.wait("the write has got there", |c| c.nodes[0].out_of_sync() == 0);
    client.close();
    cluster.assert_equal(0, &[0, 1]);

    rekey(&cluster, SECRET, "an0ther-secret");
    let planned = cluster.nodes[0].ok(&["adjust", "--dry-run", "--json", "r0"]);
    assert!(planned.contains("change the options"), "{planned}");
    let shown = planned + &cluster.nodes[0].log() + &cluster.nodes[1].log();
    assert!(!shown.contains(SECRET) && !shown.contains("an0ther-secret"));
    let kept = cluster.nodes[0].directory.join("state/resources/r0.json");
    assert!(fs::read_to_string(&kept).unwrap().contains(SECRET), "else it would not come back");
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o077, 0);
}

#[test]
fn who_does_not_know_the_secret_is_refused_until_an_operator_connects() {
    let cluster = Cluster::up(&two_nodes());
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    rekey(&cluster, SECRET, "an0ther-secret");
    bravo.ok(&["adjust", "r0"]);
    assert!(alpha.is_connected(), "what is connected stays so");
    alpha.ok(&["disconnect", "r0:bravo"]);
    alpha.ok(&["connect", "r0:bravo"]);
    cluster.wait("the connection is given up", |c| {
        c.nodes[0].peer("bravo").0 == "StandAlone" && c.nodes[1].peer("alpha").0 == "StandAlone"
    });
    let logs = alpha.log() + &bravo.log();
    assert!(logs.contains("it does not know the shared secret"), "the log says why");
    assert!(!logs.contains("s3cret") && !logs.contains("an0ther"));
    alpha.ok(&["adjust", "r0"]);
    bravo.ok(&["adjust", "r0"]);
    cluster.wait_connected();
}

#[test]
fn half_of_it_and_unknown_digests_are_refused() {
    let cluster = Cluster::up(&two_nodes());
    let node = &cluster.nodes[0];
    for (from, to, why) in [
        ("sha256", "crc32c", "(120)"),
        ("cram-hmac-alg crc32c;", "", "shared-secret has no effect without cram-hmac-alg"),
        (&format!("shared-secret \"{SECRET}\";"), "cram-hmac-alg md5;", "needs a shared-secret"),
    ] {
        rekey(&cluster, from, to);
        let (_, error) = node.fails(&["adjust", "r0"]);
        assert!(error.contains(why) && !error.contains(SECRET), "{error}");
    }
    let long = "x".repeat(65);
    rekey(&cluster, "cram-hmac-alg md5;", &format!("shared-secret \"{long}\";"));
    let (_, error) = node.fails(&["adjust", "r0"]);
    assert!(error.contains("`shared-secret`") && !error.contains("xxx"), "{error}");
    assert!(node.is_connected());
}
