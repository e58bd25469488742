//! Engines that encrypt what they replicate (`tls yes`), and nodes that are not who they say.

use std::fs;
use std::path::Path;

use crate::engine_support::nbd::Client;
use crate::engine_support::relay::MARK;
use crate::engine_support::{Cluster, Setup, list, pattern};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// Where certificates are, and who has signed them.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        fs::write(folder.path().join("issuers.pem"), pem).unwrap();
        Authority { folder, issuer: Issuer::new(params, key) }
    }

    /// Gives all nodes one certificate with these names.
    fn sign(&self, names: &[&str]) {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap();
        let certificate = certificate.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path("certificate"), certificate.pem()).unwrap();
        fs::write(self.path("key"), key.serialize_pem()).unwrap();
    }

    fn path(&self, kind: &str) -> String {
        self.folder.path().join(format!("{kind}.pem")).display().to_string()
    }

    /// The section that has nodes use it.
    fn section(&self) -> String {
        format!(
            "net {{ tls yes; tls-keyring {}; tls-certificate {}; tls-privkey {}; }}",
            self.path("issuers"),
            self.path("certificate"),
            self.path("key")
        )
    }
}

fn two_nodes(sections: String) -> Setup {
    Setup { nodes: vec!["alpha", "bravo"], sections, ..Setup::default() }
}

#[test]
fn writes_resyncs_and_remote_reads_are_encrypted() {
    let authority = Authority::new();
    authority.sign(&["alpha", "bravo", "charlie"]);
    let sections = authority.section();
    let setup = Setup { clients: vec!["charlie"], sections, ..Setup::default() };
    let mut cluster = Cluster::up(&setup);
    for node in &cluster.nodes {
        let status = node.status();
        assert!(list(&status["connections"]).iter().all(|c| c["tls"] == true), "{status}");
        assert!(node.ok(&["status"]).contains("tls:yes"));
    }
    let socket = cluster.nodes[2].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    let data = pattern(1, 3 << 20);
    client.write(0, &data[..4096]).unwrap();
    cluster.nodes[1].kill();
    client.write(4096, &data[4096..]).unwrap();
    cluster.nodes[1].start();
    cluster.wait_connected();
    cluster.wait("the rest has got there", |c| {
        c.nodes.iter().all(|node| node.out_of_sync() == 0) && c.all_up_to_date()
    });
    assert_eq!(client.read(0, data.len()).unwrap(), data);
    client.close();
    assert_eq!(cluster.content(1, 0, data.len() as u64), data);
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn engines_hand_encrypted_connections_over() {
    let authority = Authority::new();
    authority.sign(&["alpha", "bravo"]);
    let mut cluster = Cluster::up(&two_nodes(authority.section()));
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    let mut last = Vec::new();
    for round in 0..6 {
        last = pattern(round, 1 << 20);
        client.write(0, &last).unwrap();
        // Each of the two, also twice in a row.
        cluster.nodes[[0, 1, 1][round as usize % 3]].upgrade();
        assert_eq!(client.read(0, last.len()).unwrap(), last);
    }
    client.write(1 << 20, &last).unwrap();
    client.close();
    for node in &cluster.nodes {
        assert!(!node.log().contains(" lost"), "{}", node.log());
        assert_eq!(node.status()["connections"][0]["tls"], true);
    }
    assert_eq!(cluster.content(1, 0, last.len() as u64), last);
    cluster.assert_equal(0, &[0, 1]);
    // New connections have keys of their own again.
    cluster.nodes[1].kill();
    cluster.nodes[1].start();
    cluster.wait_connected();
}

#[test]
fn nobody_between_the_nodes_sees_the_data() {
    for encrypted in [true, false] {
        let authority = Authority::new();
        authority.sign(&["alpha", "bravo"]);
        let sections = if encrypted { authority.section() } else { String::new() };
        let (cluster, relay) = Cluster::relayed(&two_nodes(sections));
        let socket = cluster.nodes[0].export();
        let mut client = Client::open(&socket, "r0/0").unwrap();
        relay.damage(1);
        client.write(0, &MARK.repeat(128)).unwrap();
        client.close();
        assert_eq!(relay.damaged(), usize::from(!encrypted), "it looks for a text in the data");
        if encrypted {
            cluster.assert_equal(0, &[0, 1]);
        }
    }
}

#[test]
fn a_node_that_does_not_encrypt_gets_no_data_until_it_does() {
    let authority = Authority::new();
    authority.sign(&["alpha", "bravo"]);
    let cluster = Cluster::up(&two_nodes("net { }".to_owned()));
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    let socket = alpha.export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    cluster.reconfigure(|config| config.replace("net { }", &authority.section()));
    alpha.ok(&["adjust", "r0"]);
    cluster.wait("it is refused", |c| c.nodes[0].ok(&["why", "r0"]).contains("`tls yes`"));
    cluster.wait("the log names the connection", |c| {
        c.nodes[0].log().contains("connection r0/bravo not made")
    });
    client.write(0, &pattern(2, 4096)).unwrap();
    assert!(!alpha.is_connected() && alpha.out_of_sync() > 0);
    bravo.ok(&["adjust", "r0"]);
    cluster.wait_connected();
    cluster.wait("the write has got there", |c| c.nodes[0].out_of_sync() == 0);
    client.close();
    cluster.assert_equal(0, &[0, 1]);
    assert!(!alpha.ok(&["why", "r0"]).contains("`tls yes`"));
}

#[test]
fn a_certificate_for_another_name_is_refused_until_it_is_replaced() {
    let authority = Authority::new();
    authority.sign(&["alpha", "bravo"]);
    let mut cluster = Cluster::up(&two_nodes(authority.section()));
    // Bravo is the one that no certificate is for.
    authority.sign(&["alpha"]);
    assert!(cluster.nodes[1].stop());
    cluster.nodes[1].start();
    cluster.wait("it is refused", |c| {
        c.nodes[0].ok(&["why", "r0"]).contains("not for `bravo`, but for alpha")
    });
    authority.sign(&["alpha", "bravo"]);
    cluster.wait_connected();
}

#[test]
fn files_that_can_not_be_used_are_refused_with_their_names() {
    let authority = Authority::new();
    authority.sign(&["alpha", "bravo"]);
    let cluster = Cluster::up(&two_nodes(authority.section()));
    let node = &cluster.nodes[0];
    let refused = |from: &str, to: &str| {
        cluster.reconfigure(|config| config.replace(from, to));
        let (_, error) = node.fails(&["adjust", "r0"]);
        cluster.reconfigure(|config| config.replace(to, from));
        error
    };
    let error = refused("/key.pem", "/nothing.pem");
    assert!(error.contains("tls-privkey") && error.contains("nothing.pem"), "{error}");
    let error = refused("/certificate.pem", "/key.pem ");
    assert!(error.contains("tls-certificate") && error.contains("no certificates"), "{error}");
    let other = Authority::new();
    other.sign(&["alpha"]);
    let error = refused(&authority.path("key"), &other.path("key"));
    assert!(error.contains("does not belong to tls-certificate"), "{error}");
    let error = refused("tls yes;", "tls no;");
    assert!(error.contains("has no effect without tls"), "{error}");
    assert!(Path::new(&authority.path("key")).exists() && node.is_connected());
}
