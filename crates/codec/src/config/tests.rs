//! The grammar and the rules, on the verified example, captured configurations and mistakes.

use std::net::IpAddr;
use std::time::Duration;

use vocab::options::{KibPerSecond, OnNoQuorum, Options, Protocol, Quorum};
use vocab::{Minor, VolumeNr};

use super::*;

const EXAMPLE: &str = include_str!("../../testdata/config/example.res");
const TEMPLATE: &str = include_str!("../../testdata/config/example-template.res");
const CAPTURES: &str = include_str!("../../testdata/config/captures-9.3-r0.res");

/// Parses `main.conf`, with these files to include.
fn parse_with(text: &str, files: &[(&str, &str)]) -> Result<Config, Error> {
    let mut loader = |_: &str, pattern: &str| {
        let prefix = pattern.trim_end_matches('*');
        let matches = |name: &str| {
            if pattern.ends_with('*') { name.starts_with(prefix) } else { name == pattern }
        };
        let files = files.iter().filter(|(name, _)| matches(name));
        Ok(files
            .map(|(name, text)| SourceFile { name: (*name).into(), text: (*text).into() })
            .collect())
    };
    parse(SourceFile { name: "main.conf".into(), text: text.into() }, &mut loader)
}

fn resolve_on(config: &Config, name: &str) -> Result<Resolved, Error> {
    let local = |ip: IpAddr| ip.to_string() == "10.9.9.1";
    config.resolve(&Host { name, is_local: &local })
}

/// The view of `alpha`, or the error in words.
fn alpha(text: &str) -> Result<Vec<ResourceConfig>, String> {
    let config = parse_with(text, &[]).map_err(|e| e.to_string())?;
    Ok(resolve_on(&config, "alpha").map_err(|e| e.to_string())?.resources)
}

fn check_error(text: &str, expected: &str) {
    let error = alpha(text).expect_err(text);
    assert_eq!(error, expected, "in {text}");
}

/// A valid two-node resource with `extra` statements.
fn pair(extra: &str) -> String {
    format!(
        "resource r0 {{ device minor 1; disk /dev/a; {extra}\n\
         on alpha {{ node-id 0; address 10.0.0.1:7000; }}\n\
         on bravo {{ node-id 1; address 10.0.0.2:7000; }} }}"
    )
}

#[test]
fn the_verified_example_gives_alpha_what_drbdadm_executes() {
    // The global common is replaced by the template, so max-epoch-size must not show up.
    let text = format!("common {{ net {{ max-epoch-size 99; }} }}\n{EXAMPLE}");
    let config = parse_with(&text, &[("example-template.res", TEMPLATE)]).unwrap();
    let resolved = resolve_on(&config, "alpha").unwrap();
    let [r1] = &resolved.resources[..] else { panic!("one resource") };
    assert_eq!((r1.name.as_str(), r1.node_id.get(), r1.host.as_str()), ("r1", 0, "alpha"));
    assert_eq!(r1.options.show(), [("quorum", "majority".to_owned())]);

    let [v0, v1] = &r1.volumes[..] else { panic!("two volumes") };
    assert_eq!((v0.nr, v0.minor, v0.device.as_str()), (VolumeNr(0), Minor(5), "/dev/drbd5"));
    let backing = v1.backing.as_ref().unwrap();
    let indexed = MetaDisk::External { device: "/dev/sdz".into(), index: Some(2) };
    assert_eq!((backing.disk.as_str(), &backing.meta_disk), ("/dev/sdy", &indexed));
    assert_eq!(backing.options.show(), [("disk-flushes", "no".to_owned())]);

    let [bravo, charlie] = &r1.peers[..] else { panic!("two peers") };
    assert_eq!((bravo.node_id.get(), bravo.name.as_str()), (1, "bravo"));
    assert_eq!(bravo.net.ping_int, Duration::from_secs(7));
    assert_eq!(bravo.net.protocol, Protocol::A);
    assert_eq!((bravo.net.max_buffers, bravo.net.max_epoch_size), (8000, 2048));
    assert!(bravo.volumes.iter().all(|v| v.diskless && !v.options.bitmap));
    assert!(bravo.volumes.iter().all(|v| v.options.resync_rate == Some(KibPerSecond(10_240))));
    assert_eq!(bravo.paths.len(), 1);
    assert_eq!(bravo.paths[0].remote.to_string(), "10.0.0.2:7010");

    assert_eq!((charlie.node_id.get(), charlie.net.ping_int.as_secs()), (4, 10));
    let paths: Vec<_> = charlie.paths.iter().map(|p| format!("{} {}", p.local, p.remote)).collect();
    assert_eq!(paths, ["10.0.0.1:7011 10.0.0.3:7011", "[fd00::1]:7012 [fd00::3]:7012"]);
    let max: Vec<_> = charlie.volumes.iter().map(|v| v.options.c_max_rate).collect();
    assert_eq!(max, [None, Some(KibPerSecond(5120))]);

    // The diskless host sees the same from the other side.
    let resolved = resolve_on(&config, "BRAVO.example.com").unwrap();
    let r1 = &resolved.resources[0];
    assert!(r1.volumes.iter().all(|v| v.backing.is_none() && v.device_options.diskless));
    assert_eq!(r1.peers.len(), 1);
    assert_eq!(resolve_on(&config, "delta").unwrap().elsewhere, ["r1"]);
}

#[test]
fn the_configuration_of_the_captures_resolves_on_each_node() {
    let config = parse_with(&CAPTURES.replace("G13DISK", "none"), &[]).unwrap();
    for (host, id) in [("g11", 0), ("g12", 1), ("g13", 2)] {
        let resolved = resolve_on(&config, host).unwrap();
        let r0 = &resolved.resources[0];
        assert_eq!((r0.node_id.get(), r0.peers.len()), (id, 2));
        assert_eq!(r0.options.quorum, Quorum::Majority);
        assert_eq!(r0.options.on_no_quorum, OnNoQuorum::SuspendIo);
        assert_eq!(r0.volumes[0].backing.is_some(), id != 2);
    }
}

#[test]
fn options_inherit_and_the_later_section_wins() {
    let text = format!(
        "common {{ net {{ ko-count 1; ping-timeout 7; }} disk {{ al-extents 100; c-plan-ahead 1; }} }}\n{}",
        pair(
            "net { ko-count 2; } protocol B; syncer { rate 5M; }\n\
             volume 1 { device minor 2; disk /dev/b; disk { al-extents 200; c-plan-ahead 2; } }\n\
             connection { host alpha; host bravo port 7700; net { ko-count 3; }\n\
               disk { c-plan-ahead 3; } volume 1 { disk { c-plan-ahead 4; } } }"
        )
    );
    let r0 = &alpha(&text).unwrap()[0];
    let peer = &r0.peers[0];
    assert_eq!(peer.net.ko_count, 3);
    assert_eq!(peer.net.ping_timeout, Duration::from_millis(700));
    assert_eq!(peer.net.protocol, Protocol::B);
    assert_eq!(peer.paths[0].remote.port(), 7700);
    let extents = |v: usize| r0.volumes[v].backing.as_ref().unwrap().options.al_extents;
    assert_eq!((extents(0), extents(1)), (100, 200));
    let ahead: Vec<_> = peer.volumes.iter().map(|v| v.options.c_plan_ahead).collect();
    assert_eq!(ahead, [300, 400].map(|ms| Some(Duration::from_millis(ms))));
    assert_eq!(peer.volumes[0].options.resync_rate, Some(KibPerSecond(5120)));
}

#[test]
fn includes_are_read_once_and_skipped_sections_not_at_all() {
    let files =
        [("d/a.res", "include \"d/*\"; skip resource x { on { ; } }"), ("d/b.res", &pair(""))];
    let config = parse_with("include \"d/*\"; include d/b.res;", &files).unwrap();
    assert_eq!(config.resource_names().collect::<Vec<_>>(), ["r0"]);
    assert!(parse_with("include \"none/*\";", &files).is_ok());
    assert_eq!(
        parse_with("\n  include none.res;", &files).unwrap_err().to_string(),
        "main.conf:2:11: can not read `none.res`: there is no such file; create it or remove the \
         statement"
    );
}

#[test]
fn node_ids_are_never_guessed() {
    let text = include_str!("../../testdata/config/captures-8.4-r0.res");
    let error = resolve_on(&parse_with(text, &[]).unwrap(), "g11").unwrap_err().to_string();
    assert_eq!(
        error,
        "main.conf:13:3: resource r0: node-id of host g11 is missing; write `node-id N;`, on an \
         existing resource the id in its metadata"
    );
}

#[test]
fn floating_hosts_are_found_by_local_address() {
    let text = "resource r0 { volume 3 { device /dev/drbd7; disk /dev/a; }\n\
                floating 10.9.9.1:7000 { node-id 3; } floating ipv4 10.9.9.2:7000 { node-id 2; } }";
    let resolved = resolve_on(&parse_with(text, &[]).unwrap(), "whatever").unwrap();
    let r0 = &resolved.resources[0];
    assert_eq!((r0.node_id.get(), r0.host.as_str()), (3, "10.9.9.1:7000"));
    assert_eq!(r0.peers[0].name, "10.9.9.2:7000");
    assert_eq!(r0.volumes[0].minor, Minor(7));
}

#[test]
fn a_nated_host_is_reached_at_its_outside_address() {
    let text = pair(
        "connection { host alpha via outside-address 192.0.2.1:70; host bravo address 10.0.0.9:1; }",
    );
    let config = parse_with(&text, &[]).unwrap();
    let path = |host| resolve_on(&config, host).unwrap().resources[0].peers[0].paths[0];
    assert_eq!(path("alpha").local.to_string(), "10.0.0.1:7000");
    assert_eq!(path("bravo").remote.to_string(), "192.0.2.1:70");
}

#[test]
fn a_volume_that_resync_after_names_is_its_minor_here() {
    let other = "resource r7 { device minor 7; disk /dev/b;
        on alpha { node-id 0; address 10.0.0.1:7007; }
        on bravo { node-id 1; address 10.0.0.2:7007; } }";
    for (value, minor) in [("r7/0", Some(Minor(7))), ("7", Some(Minor(7))), ("-1", None)] {
        let text = format!("{}\n{other}", pair(&format!("disk {{ resync-after {value}; }}")));
        let resolved = resolve_on(&parse_with(&text, &[]).unwrap(), "alpha").unwrap();
        let backing = resolved.resources[0].volumes[0].backing.as_ref().unwrap();
        assert_eq!(backing.options.resync_after, minor, "{value}");
    }
}

#[test]
fn linstor_files_resolve() {
    let text = r#"
    global { usage-count no; disable-ip-verification; }
    resource "pvc-1" {
      handlers { } options { quorum off; } net { protocol C; }
      on "alpha" { volume 0 { disk /dev/vg/a; disk { discard-zeroes-if-aligned yes; }
        meta-disk internal; device minor 1000; } node-id 0; }
      on "bravo" { volume 0 { disk /dev/drbd/this/is/not/used; meta-disk internal;
        device minor 1000; } node-id 1; }
      on "charlie" { volume 0 { disk none; tiebreaker no; device minor 1000; } node-id 2; }
      connection { net { } host "alpha" address ipv4 10.0.0.1:7000; host "bravo" address ipv4 10.0.0.2:7000; }
      connection { host "alpha" address ipv4 10.0.0.1:7000; host "charlie" address ipv4 10.0.0.3:7000; }
    }
    resource "pvc-2" {
      on "bravo" { volume 0 { disk /dev/drbd/this/is/not/used; device minor 1001; } node-id 1; }
      on "alpha" { volume 0 { disk /dev/vg/b; device minor 1001; } node-id 0; }
      connection { host "alpha" address ipv4 10.0.0.1:7001; host "bravo" address ipv4 10.0.0.2:7001; }
    }"#;
    let config = parse_with(text, &[]).unwrap();
    assert!(config.disable_ip_verification && config.warnings.is_empty());
    let resources = resolve_on(&config, "alpha").unwrap().resources;
    assert_eq!(resources.len(), 2);
    let charlie = &resources[0].peers[1].volumes[0];
    assert!(charlie.diskless && !charlie.options.peer_tiebreaker);
    assert!(resources[0].peers[0].volumes[0].options.peer_tiebreaker);
}

#[test]
fn mistakes_are_named_with_place_object_cause_and_next_step() {
    check_error(
        "resorce r0 {}",
        "main.conf:1:1: there is no `resorce` in a top-level section; check the spelling and the section",
    );
    check_error(
        &pair("net { timeout 601; }"),
        "main.conf:1:50: resource r0: `601` is not a value of option `timeout`; give a number from 1 to 600 tenths of a second",
    );
    check_error(
        &pair("net { ko-count 1; ko-count 2; }"),
        "main.conf:1:62: resource r0: option `ko-count` is used already at main.conf:1:50; change or remove one of the two",
    );
    check_error(
        &pair("net { load-balance-paths; }"),
        "main.conf:1:1: resource r0, connection to bravo: load-balance-paths has no effect without the transport lb-tcp; add `transport lb-tcp` on both nodes, or remove load-balance-paths",
    );
    check_error(
        &pair("net { transport rdma; }"),
        "main.conf:1:50: resource r0, connection to bravo: option `transport` can not be `rdma` here: the transports are tcp and lb-tcp; remove it or set `\"\"` or `tcp` or `lb-tcp`",
    );
    check_error(
        &pair("net { ping-int 6; }"),
        "main.conf:1:1: resource r0, connection to bravo: timeout (60 tenths of a second) must be shorter than ping-int (6 seconds); lower timeout or raise ping-int",
    );
    check_error(
        &pair("handlers { split-brains \"mail\"; }"),
        "main.conf:1:55: resource r0: there is no handler `split-brains`; give one of fence-peer, unfence-peer, before-resync-target, after-resync-target, before-resync-source, initial-split-brain, split-brain, pri-lost, pri-lost-after-sb, pri-on-incon-degr, local-io-error, quorum-lost, out-of-sync, disconnected",
    );
    check_error(
        &pair("handlers { fence-peer a; outdate-peer b; }"),
        "main.conf:1:69: resource r0: handler `fence-peer` is used already at main.conf:1:55; change or remove one of the two",
    );
    check_error(
        &pair("connection { host alpha; host zulu; }"),
        "main.conf:1:69: resource r0: no `on` or `floating` section of this resource declares `zulu`; add one or correct the name",
    );
    check_error(
        &pair("connection { host alpha; }"),
        "main.conf:1:44: resource r0: a connection joins two hosts and this names 1; give two `host` statements",
    );
    check_error(
        &pair("on charlie { node-id 1; }"),
        "main.conf:3:12: resource r0: node-id 1 is used already at main.conf:1:44; change or remove one of the two",
    );
    check_error(
        &pair("on charlie { node-id 2; }"),
        "main.conf:1:1: resource r0: how the 3 hosts connect is missing; add `connection-mesh { hosts …; }` or one `connection` per pair",
    );
    check_error(
        &pair("on alpha.x { node-id 2; }"),
        "main.conf:2:1: resource r0: the section of this host (`alpha`) is used already at main.conf:1:44; change or remove one of the two",
    );
    check_error(
        &pair("proxy { }"),
        "main.conf:1:44: resource r0: DRBD Proxy is not supported; remove the proxy section",
    );
    check_error(
        &pair("disk { resync-after r9/0; }"),
        "main.conf:1:51: resource r0, volume 0: volume `r9/0` that resync-after names is missing; name a volume of a resource of this host",
    );
    check_error(
        "resource r0 { on alpha { node-id 32; } }",
        "main.conf:1:34: resource r0: `32` is not a node id; give a number from 0 to 31",
    );
    check_error(
        "resource all { }",
        "main.conf:1:10: resource all: \"all\" is not a resource name; use up to 127 of 0-9 A-Z a-z + . _ - and not `all`",
    );
    check_error(
        "resource r0 { on alpha { node-id 0; address 10.0.0.256:1; } }",
        "main.conf:1:45: resource r0: `10.0.0.256` is not an address: give an IPv4 address, or an IPv6 address without zone in brackets",
    );
    check_error(
        "resource r0 { volume 0 { disk relative; } }",
        "main.conf:1:31: resource r0: \"relative\" is not an absolute path; begin it with `/`",
    );
    check_error(
        "resource r0 { on alpha { node-id 0; } volume 0 { device minor 1; } }",
        "main.conf:1:39: resource r0: the disk of volume 0 on host alpha is missing; write `disk PATH;` or `disk none;`",
    );
    check_error(
        "global { usage-count \"yes\"; }",
        "main.conf:1:22: found \"yes\" where yes, no or ask belongs",
    );
    check_error(
        "resource \"r0",
        "main.conf:1:10: the string does not end on its line; close it with a quote",
    );
    check_error(
        "resource r0 {\n  disk {",
        "main.conf:2:9: resource r0: found the end of the file where a keyword or `}` belongs",
    );
    check_error(
        "common { } common { }",
        "main.conf:1:12: section `common` is used already at main.conf:1:1; change or remove one of the two",
    );
}

#[test]
fn what_may_be_used_once_is_used_once() {
    let second = |replace: &[(&str, &str)]| {
        let mut second = pair("").replace("r0", "r1").replace("minor 1", "minor 2");
        second = second.replace("/dev/a", "/dev/b").replace(":7000", ":7001");
        for (from, to) in replace {
            second = second.replace(from, to);
        }
        alpha(&format!("{}\n{second}", pair("")))
    };
    assert_eq!(second(&[]).unwrap().len(), 2);
    let cases = [
        (("minor 2", "minor 1"), "minor 1 is used"),
        (("/dev/b", "/dev/a"), "device `/dev/a` is used"),
        ((":7001", ":7000"), "address 10.0.0.1:7000 is used"),
        (("r1", "r0"), "resource name `r0` is used"),
        (("/dev/b;", "/dev/b; meta-disk /dev/a[1];"), "device `/dev/a` is used"),
    ];
    for (replace, expected) in cases {
        let error = second(&[replace]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let slots = "resource r0 { on alpha { node-id 0;\n\
        volume 0 { device minor 1; disk /dev/a; meta-disk /dev/m[0]; }\n\
        volume 1 { device minor 2; disk /dev/b; meta-disk /dev/m[1]; }\n\
        volume 2 { device minor 3; disk /dev/c; meta-disk /dev/m[SLOT]; } } }";
    assert!(alpha(&slots.replace("SLOT", "2")).is_ok());
    for slot in ["0", "1"] {
        assert!(alpha(&slots.replace("SLOT", slot)).unwrap_err().contains("`/dev/m"));
    }
    assert!(alpha(&slots.replace("[SLOT]", "")).unwrap_err().contains("`/dev/m` is used"));
}

#[test]
fn options_of_other_hosts_may_be_ones_this_program_does_not_honour() {
    let text = "resource r0 { device minor 1;\n\
        on alpha { node-id 0; address 10.0.0.1:1; disk /dev/a; }\n\
        on bravo { node-id 1; address 10.0.0.2:1; volume 0 { disk /dev/a; disk { disk-drain no; } } } }";
    let config = parse_with(text, &[]).unwrap();
    assert!(resolve_on(&config, "alpha").is_ok());
    assert!(resolve_on(&config, "bravo").is_err());
    assert!(parse_with(&text.replace("disk-drain no", "disk-drain maybe"), &[]).is_err());
}

#[test]
fn statements_without_effect_are_reported() {
    let text = pair("startup { wfc-timeout 5; become-primary-on both; }");
    let config =
        parse_with(&format!("require-drbd-module-version-ge 9.0.16; {text}"), &[]).unwrap();
    let warnings: Vec<_> =
        config.warnings.iter().map(|(at, text)| format!("{at} {text}")).collect();
    assert_eq!(warnings.len(), 2);
    assert!(warnings[1].contains("startup settings have no effect"));
}

#[test]
fn global_settings_without_effect_are_reported_once_per_cause() {
    let warnings = |global: &str| -> Vec<String> {
        let text = format!("global {{ {global} }} {}", pair(""));
        parse_with(&text, &[]).unwrap().warnings.into_iter().map(|(_, text)| text).collect()
    };
    assert_eq!(warnings("usage-count no; disable-ip-verification;"), [""; 0]);
    let stock = "usage-count yes; minor-count 32; dialog-refresh 1; udev-always-use-vnr;";
    let stock = warnings(stock);
    assert_eq!(stock.len(), 1, "{stock:?}");
    for word in ["usage-count yes", "minor-count", "dialog-refresh", "udev-always-use-vnr"] {
        assert!(stock[0].contains(&format!("`{word}`")), "{stock:?}");
    }
    let timeouts = warnings("cmd-timeout-short 9; cmd-timeout-long 9; usage-count ask;");
    assert_eq!(timeouts.len(), 2, "{timeouts:?}");
    assert!(timeouts[1].contains("`cmd-timeout-short`, `cmd-timeout-long`: use --timeout"));
}

#[test]
fn damaged_text_never_panics() {
    let whole = EXAMPLE.replace("disk none", "disk none; tiebreaker no") + CAPTURES;
    let files = [("example-template.res", TEMPLATE)];
    let try_text = |text: &str| {
        if let Ok(config) = parse_with(text, &files) {
            let _ = resolve_on(&config, "alpha");
            let _ = resolve_on(&config, "g11");
        }
    };
    for (end, _) in whole.char_indices() {
        try_text(&whole[..end]);
    }
    // Token-wise damage with a seeded generator: drop, double, swap, replace.
    let mut seed = 0x5eed_u64;
    let mut random = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    let spaced = whole.replace(';', " ; ").replace('{', " { ").replace('}', " } ");
    let tokens: Vec<&str> = spaced.split_whitespace().filter(|t| !t.starts_with('#')).collect();
    for _ in 0..3000 {
        let mut damaged = tokens.clone();
        for _ in 0..=random(3) {
            let (i, j) = (random(damaged.len()), random(damaged.len()));
            match random(4) {
                0 => drop(damaged.remove(i)),
                1 => damaged.insert(i, damaged[j]),
                2 => damaged.swap(i, j),
                _ => {
                    damaged[i] =
                        ["\"", "{", "}", ";", "[", "-1", "99999999999999999999", "é"][random(8)]
                }
            }
        }
        try_text(&damaged.join(" "));
    }
}
