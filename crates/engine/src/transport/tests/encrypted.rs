//! Links that encrypt, and peers that can not, or not as who they should be.

use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::tls::authority::Authority;

/// Two ends, and where their files are.
fn world_of(nets: impl FnOnce(&Path) -> [NetOptions; 2]) -> (World, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (mut world, _) = World::new();
    for (end, tls) in nets(folder.path()).into_iter().enumerate() {
        set_tls(&mut world, end, tls);
    }
    (world, folder)
}

/// Gives one end what `tls` says of TLS.
fn set_tls(world: &mut World, end: usize, tls: NetOptions) {
    let NetOptions { tls, tls_keyring, tls_privkey, tls_certificate, .. } = tls;
    let timeout = Duration::from_secs(5);
    let net = NetOptions { tls, tls_keyring, tls_privkey, tls_certificate, timeout, ..net() };
    let event = world.ends[end].link.set_net(&mut world.io, net);
    world.event(end, event);
}

fn trouble(world: &World, end: usize) -> &str {
    world.ends[end].link.trouble().unwrap_or_default()
}

fn is_up(end: &End) -> bool {
    matches!(end.events.last(), Some(Event::Up { .. }))
}

/// The first end's view of a peer that it should not take; neither ever gets a packet.
fn refused(nets: impl FnOnce(&Path) -> [NetOptions; 2]) -> [String; 2] {
    let (mut world, _folder) = world_of(nets);
    world.connect(0);
    world.connect(1);
    world.run("both have given it up once", |w| {
        let encrypts = |end: &&End| end.link.is_encrypted();
        w.ends.iter().filter(encrypts).all(|end| end.link.trouble().is_some())
    });
    let start = runtime::clock::now();
    world.run("nothing happens", |_| runtime::clock::now().since(start).as_millis() > 500);
    for end in world.ends.iter().filter(|end| end.link.is_encrypted()) {
        assert_eq!(end.events, [], "{}", end.why);
    }
    assert!(world.ends.iter().all(|end| end.packets.is_empty()));
    [0, 1].map(|end| trouble(&world, end).to_owned())
}

#[test]
fn packets_pass_both_ways_and_the_tie_break_is_the_same() {
    let authority = Authority::new();
    let (mut world, _folder) =
        world_of(|folder| ["end0", "end1"].map(|name| authority.equip(folder, name)));
    world.meet();
    assert_eq!(tie_breaks(&world), [false, true]);
    exchange(&mut world);
}

#[test]
fn encrypted_packets_arrive_in_order_while_both_ends_are_swapped() {
    let authority = Authority::new();
    let (mut world, _folder) =
        world_of(|folder| ["end0", "end1"].map(|name| authority.equip(folder, name)));
    world.meet();
    handover::swapped_back_and_forth(&mut world);
}

#[test]
fn digests_are_checked_beneath_encryption_too() {
    let authority = Authority::new();
    let (mut world, _folder) =
        world_of(|folder| ["end0", "end1"].map(|name| authority.equip(folder, name)));
    world.meet();
    world.agree();
    world.send(0, &parameters(Packet::Protocol, "crc32c"), None);
    let buf = world.io.pool.copy_from(&[1; 4096]).unwrap();
    world.send(0, &block(0), Some(buf));
    world.run("they arrived", |w| w.ends[1].packets.len() == 2);
    // Bytes that are put on the socket past the records end the connection.
    let State::Up(up) = &mut world.ends[0].link.state else { panic!("it is up") };
    up.data.sockets[0].conn.tx.push_bytes(&[23, 3, 3, 0, 32]);
    up.data.sockets[0].conn.tx.push_bytes(&[7; 32]);
    world.ends[0].link.flush(&mut world.io);
    world.run("it is noticed", |w| w.ends[1].events.len() == 2);
    assert_eq!(world.ends[1].events[1], Event::Down(LinkLoss::Garbage));
    assert!(world.ends[1].why.contains("not what the peer has sent"), "{}", world.ends[1].why);
    assert_eq!(world.ends[1].packets.len(), 2);
}

#[test]
fn what_was_said_before_the_end_is_heard_encrypted_too() {
    let authority = Authority::new();
    let (mut world, _folder) =
        world_of(|folder| ["end0", "end1"].map(|name| authority.equip(folder, name)));
    world.meet();
    world.agree();
    world.ends[0].link.send(&Packet::Disconnect, None);
    world.close(0);
    world.run("the other end knows", |w| w.ends[1].events.len() == 2);
    assert_eq!(world.ends[1].packets, [(Packet::Disconnect, None)]);
}

#[test]
fn a_peer_that_does_not_encrypt_is_refused() {
    let authority = Authority::new();
    for clear in [0, 1] {
        let why = refused(|folder| {
            [0, 1].map(|end| match end == clear {
                true => NetOptions::default(),
                false => authority.equip(folder, &format!("end{end}")),
            })
        });
        let why = &why[1 - clear];
        assert!(why.contains("set `tls yes`") || why.contains("`tls yes`"), "{why}");
    }
}

#[test]
fn certificates_of_others_and_of_another_time_are_refused() {
    let (ours, other) = (Authority::new(), Authority::new());
    let of = |folder: &Path| ours.equip(folder, "end0");
    let why = refused(|folder| [of(folder), other.equip(folder, "end1")]);
    assert!(why.iter().any(|why| why.contains("of no issuer that tls-keyring names")), "{why:?}");
    let why = refused(|folder| [of(folder), ours.equip_until(folder, "end1", 2001)]);
    assert!(why[0].contains("has expired"), "{why:?}");
    let why = refused(|folder| [of(folder), ours.equip(folder, "end2")]);
    assert!(why[0].contains("is not for `end1`, but for end2;"), "{why:?}");
    assert!(why.iter().all(|why| why.contains("end0") || why.contains("end1")), "{why:?}");
}

#[test]
fn a_key_that_is_missing_when_it_is_needed_is_named() {
    let authority = Authority::new();
    let why = refused(|folder| {
        let [good, bad] = ["end0", "end1"].map(|name| authority.equip(folder, name));
        let gone = format!("{}-gone", bad.tls_privkey);
        [good, NetOptions { tls_privkey: gone, ..bad }]
    });
    assert!(why[1].contains("tls-privkey") && why[1].contains("-gone"), "{why:?}");
}

#[test]
fn encryption_that_is_switched_on_does_not_wait_for_the_next_connection() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::connected();
    let tls = authority.equip(folder.path(), "end0");
    set_tls(&mut world, 0, tls);
    assert_eq!(world.ends[0].events[1..], [Event::Down(LinkLoss::Broken)]);
    world.run("the other end has noticed", |w| w.ends[1].events.len() == 2);
    let tls = authority.equip(folder.path(), "end1");
    set_tls(&mut world, 1, tls);
    for end in [0, 1] {
        world.ends[end].events.clear();
        world.connect(end);
    }
    world.run("both are up", |w| w.ends.iter().all(is_up));
    exchange(&mut world);
}

#[test]
fn certificates_are_renewed_by_replacing_files() {
    let authority = Authority::new();
    let (mut world, folder) = world_of(|folder| {
        [authority.equip(folder, "end0"), authority.equip_until(folder, "end1", 2001)]
    });
    world.connect(0);
    world.connect(1);
    world.run("it is refused", |w| trouble(w, 0).contains("has expired"));
    authority.equip(folder.path(), "end1");
    world.run("both are up", |w| w.ends.iter().all(is_up));
    assert_eq!(trouble(&world, 0), "");
    exchange(&mut world);
}

#[test]
fn data_of_encrypted_links_allocate_nothing_once_it_runs() {
    let authority = Authority::new();
    let (mut world, _folder) =
        world_of(|folder| ["end0", "end1"].map(|name| authority.equip(folder, name)));
    world.meet();
    world.agree();
    let data = world.io.pool.copy_from(&[1; 4096]).unwrap();
    let round = |world: &mut World| {
        for nr in 0..40 {
            world.ends[0].link.send(&block(nr), Some(data.clone()));
        }
        world.ends[0].link.flush(&mut world.io);
        let mut arrived = 0;
        while arrived < 40 {
            let mut events = Vec::with_capacity(64);
            world.io.ring.wait(None, &mut events).unwrap();
            let before = runtime::counting::allocations();
            for done in events.drain(..) {
                let Purpose::Link(link) = token::purpose(done.token) else { panic!("a link's") };
                let end = &mut world.ends[usize::from(link.resource)].link;
                end.completed(&mut world.io, link.op, link.serial, done);
                while let Next::Packet(..) = world.ends[1].link.read(&mut world.io, Stream::Data) {
                    arrived += 1;
                }
            }
            ALLOCATED.set(ALLOCATED.get() + runtime::counting::allocations() - before);
        }
    };
    (0..20).for_each(|_| round(&mut world));
    ALLOCATED.set(0);
    (0..20).for_each(|_| round(&mut world));
    assert_eq!(ALLOCATED.get(), 0);
}

thread_local! {
    static ALLOCATED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}
