//! Peers that have to prove that they know a secret (wire §4.1 step 3), with links that come and go.

use codec::wire::Packet;
use replication::io::AdminCommand;
use sim::World;
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use vocab::ConnState;
use vocab::options::{NetOptions, Secret};

fn net(plan: &Plan, alg: &str, secret: &str) -> NetOptions {
    NetOptions {
        cram_hmac_alg: alg.to_owned(),
        shared_secret: Secret::from(secret),
        ..plan.net.clone()
    }
}

fn with_secret(alg: &str, mut plan: Plan) -> Plan {
    plan.net = net(&plan, alg, "of both");
    plan
}

/// Gives one end of the connection of two nodes another digest and secret.
fn rekey(w: &mut World, node: usize, alg: &str, secret: &str) {
    let net = net(&w.plan, alg, secret);
    w.granted(node, AdminCommand::NetOptions(node_id(1 - node), Box::new(net)));
}

fn connect(w: &mut World, node: usize) {
    let command = AdminCommand::Connect { peer: node_id(1 - node), discard_my_data: false };
    w.granted(node, command);
}

fn stands_alone(w: &World, node: usize) -> bool {
    let peer = |view: &sim::view::View| view.peers[1 - node].clone();
    w.view(node).and_then(|view| peer(&view)).is_some_and(|p| p.conn == ConnState::StandAlone)
}

fn both_stand_alone(w: &World) -> bool {
    stands_alone(w, 0) && stands_alone(w, 1)
}

fn is_proof(packet: &Packet) -> bool {
    matches!(packet, Packet::AuthResponse(_))
}

#[test]
fn nodes_with_one_secret_connect_by_any_digest_and_resync() {
    for alg in ["md5", "sha1", "sha256", "sha512"] {
        scenario(with_secret(alg, Plan::quiet(2, 0)), |w| {
            let proofs = w.tap(0, 1, is_proof);
            w.form();
            w.expect("it was asked for a proof", |w| w.tapped(proofs) > 0);
            let opener = w.open(0);
            w.kill(1);
            w.wait_lost(0, 1);
            w.write(0, 800);
            w.start_node(1);
            w.wait("they are connected again", |w| w.connected(0, 1) && w.connected(1, 0));
            w.close(0, opener);
            w.settle();
        });
    }
}

#[test]
fn nodes_with_different_secrets_give_up_and_do_not_try_again() {
    for (alg, secret) in [("sha256", "of one"), ("sha1", "of both"), ("", "")] {
        scenario(with_secret("sha256", Plan::quiet(2, 0)), |w| {
            w.form();
            rekey(w, 1, alg, secret);
            w.expect("what is connected stays so", |w| w.connected(0, 1) && w.connected(1, 0));
            w.reset(0, 1);
            w.wait("both have given up", both_stand_alone);
            let tries = w.tap(0, 1, |p| matches!(p, Packet::ConnectionFeatures(_)));
            w.run_seconds(60);
            w.expect("they do not try again", |w| w.tapped(tries) == 0 && both_stand_alone(w));
            rekey(w, 0, alg, secret);
            connect(w, 0);
            connect(w, 1);
            w.wait("with one secret they connect", |w| w.connected(0, 1) && w.connected(1, 0));
            w.settle();
        });
    }
}

#[test]
fn a_secret_that_is_changed_on_both_while_connected_is_the_one_of_the_next_connection() {
    scenario(with_secret("sha256", Plan::quiet(2, 0)), |w| {
        w.form();
        let opener = w.open(0);
        for node in [0, 1] {
            rekey(w, node, "sha512", "a new one");
            w.write(0, 8);
        }
        w.expect("nobody has noticed", |w| w.connected(0, 1) && w.connected(1, 0));
        let long = w.tap(0, 1, |p| matches!(p, Packet::AuthResponse(proof) if proof.len() == 64));
        w.reset(0, 1);
        w.wait("they are connected again", |w| w.tapped(long) > 0 && w.connected(0, 1));
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_secret_that_is_changed_between_challenge_and_proof_is_proved_anew() {
    scenario(with_secret("sha256", Plan::quiet(2, 0)), |w| {
        w.form();
        w.reset(0, 1);
        w.wait_sent(0, 1, "a challenge", |p| matches!(p, Packet::AuthChallenge(_)));
        rekey(w, 0, "sha256", "a new one");
        rekey(w, 1, "sha256", "a new one");
        w.run_seconds(30);
        for node in [0, 1] {
            // One of them may have proved the old one to a peer that had the new one already.
            if stands_alone(w, node) {
                connect(w, node);
            }
        }
        w.wait("they connect", |w| w.connected(0, 1) && w.connected(1, 0));
        w.settle();
    });
}
