//! The tables agree with their fields, and the notation is DRBD's.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::{Bytes, Minor, Sectors};

/// The option whose default in DRBD is a feature that this program lacks.
const NOT_OUR_DEFAULT: &str = "resync-without-replication";

/// Every row: default is canonical, every limit and word survives set and show.
fn check_table<T: Options>() {
    let mut names = BTreeSet::new();
    for (index, spec) in T::TABLE.iter().enumerate() {
        assert!(names.insert(spec.name), "{} appears twice", spec.name);
        assert!(!spec.help.is_empty());
        assert_eq!(T::default().print(index), spec.default, "default of {}", spec.name);
        let mut values: Vec<String> = Vec::new();
        match spec.kind {
            Kind::Bool => values.extend(["yes".into(), "no".into()]),
            Kind::Choice(words) => values.extend(words.iter().map(|w| w.to_string())),
            Kind::Number { min, max, .. } => values.extend([min.to_string(), max.to_string()]),
            Kind::NumberOrWord { min, max, words, .. } => {
                values.extend([min.to_string(), max.to_string()]);
                values.extend(words.iter().map(|w| w.to_string()));
            }
            Kind::Text { max_len } | Kind::Secret { max_len } => {
                values.extend(["".into(), "x".repeat(max_len)])
            }
        }
        for value in values {
            let mut options = T::default();
            match options.set(spec.name, &value) {
                Ok(()) => {
                    let shown = options.show();
                    let mut again = T::default();
                    for (name, value) in &shown {
                        again.set(name, value).unwrap();
                    }
                    assert_eq!(again, options, "{} {value}", spec.name);
                }
                Err(OptionError::NotHonoured { reason, .. }) => {
                    assert_ne!(spec.honoured, Honoured::Yes);
                    assert!(!reason.is_empty());
                    assert_eq!(options, T::default(), "a refused option changes nothing");
                }
                Err(e) => panic!("{} {value}: {e}", spec.name),
            }
        }
        if let Kind::Number { min, max, .. } = spec.kind {
            let mut options = T::default();
            let above = max + 1;
            assert!(options.set(spec.name, &above.to_string()).is_err(), "{} {above}", spec.name);
            if min > 0 {
                assert!(options.set(spec.name, &(min - 1).to_string()).is_err());
            }
        }
        if spec.name != NOT_OUR_DEFAULT {
            T::default().set(spec.name, spec.default).expect("the default can always be set");
        }
    }
    assert!(T::default().show().is_empty());
}

#[test]
fn every_row_fits_its_field() {
    check_table::<ResourceOptions>();
    check_table::<DeviceOptions>();
    check_table::<DiskOptions>();
    check_table::<NetOptions>();
    check_table::<PeerDeviceOptions>();
}

#[test]
fn defaults_are_drbds_in_their_units() {
    let net = NetOptions::default();
    assert_eq!(net.timeout, Duration::from_secs(6));
    assert_eq!(net.ping_timeout, Duration::from_millis(500));
    assert_eq!(net.ping_int, Duration::from_secs(10));
    assert_eq!(net.protocol, Protocol::C);
    assert!(net.use_rle && net.tcp_cork && net.allow_remote_read && !net.allow_two_primaries);
    let resource = ResourceOptions::default();
    assert_eq!(resource.peer_ack_delay, Duration::from_millis(100));
    assert_eq!(resource.twopc_timeout, Duration::from_secs(30));
    assert_eq!(resource.peer_ack_window, Sectors(4096));
    assert_eq!(resource.quorum, Quorum::Off);
    let disk = DiskOptions::default();
    assert_eq!((disk.al_extents, disk.resync_after, disk.size), (1237, None, Sectors(0)));
    let pd = PeerDeviceOptions::default();
    assert_eq!((pd.c_max_rate, pd.c_fill_target, pd.c_delay_target), (None, None, None));
    assert_eq!(DeviceOptions::default().max_bio_size, Bytes(1 << 20));
}

#[test]
fn suffixes_convert_to_the_options_unit_and_round_up() {
    let mut pd = PeerDeviceOptions::default();
    for (text, rate) in [("200M", 204_800), ("1025", 1025), ("3s", 2), ("1g", 1 << 20)] {
        pd.set("c-max-rate", text).unwrap();
        assert_eq!(pd.c_max_rate, Some(KibPerSecond(rate)), "{text}");
    }
    pd.set("c-fill-target", "1K").unwrap();
    assert_eq!(pd.c_fill_target, Some(Sectors(2)));
    assert_eq!(pd.show(), [("c-fill-target", "2s".to_owned()), ("c-max-rate", "1048576k".into())]);
    let mut net = NetOptions::default();
    net.set("sndbuf-size", "2M").unwrap();
    assert_eq!(net.sndbuf_size, Bytes(2 << 20));
    assert_eq!(net.show(), [("sndbuf-size", "2097152".to_owned())]);
}

#[test]
fn a_default_of_drbd_that_is_set_is_known_from_one_that_is_not() {
    let mut pd = PeerDeviceOptions::default();
    pd.set("c-max-rate", "100M").unwrap();
    assert_eq!(pd.show(), [("c-max-rate", "102400k".to_owned())]);
    pd.set("c-max-rate", "auto").unwrap();
    assert_eq!(pd, PeerDeviceOptions::default());
}

#[test]
fn malformed_values_are_refused() {
    let mut net = NetOptions::default();
    for text in ["", "K", "1KK", "0x10", "-1", "+5", "5 ", "1e3", "18446744073709551616", "9é"] {
        assert!(
            matches!(net.set("timeout", text), Err(OptionError::Invalid { .. })),
            "accepted {text:?}"
        );
    }
    assert!(net.set("use-rle", "true").is_err());
    assert!(net.set("verify-alg", "a\nb").is_err());
    assert!(net.set("after-sb-0pri", "Disconnect").is_err(), "words are case-sensitive");
    net.set("protocol", "a").unwrap();
    assert_eq!(net.protocol, Protocol::A);
    assert_eq!(net.show(), [("protocol", "A".to_owned())]);
    assert_eq!(
        net.set("tieout", "1").unwrap_err().to_string(),
        "there is no net option `tieout`; check the spelling"
    );
    assert_eq!(
        net.set("ko-count", "201").unwrap_err().to_string(),
        "`201` is not a value of option `ko-count`; give a number from 0 to 200"
    );
}

#[test]
fn options_without_effect_are_refused_with_the_reason() {
    let mut net = NetOptions::default();
    assert_eq!(
        net.set("transport", "rdma").unwrap_err().to_string(),
        "option `transport` can not be `rdma` here: the transports are tcp and lb-tcp; remove it or \
         set `\"\"` or `tcp` or `lb-tcp`"
    );
    net.set("transport", "tcp").unwrap();
    let mut disk = DiskOptions::default();
    disk.set("resync-after", "3").unwrap();
    assert_eq!(disk.resync_after, Some(Minor(3)));
    disk.set("resync-after", "-1").unwrap();
    assert_eq!(disk.resync_after, None::<Minor>);
}

#[test]
fn what_is_never_used_can_be_disabled() {
    let mut disk = DiskOptions::default();
    disk.set("disable-write-same", "yes").unwrap();
    assert_eq!(disk.show(), [("disable-write-same", "yes".to_owned())]);
    disk.set("disable-write-same", "no").unwrap();
    assert_eq!(disk, DiskOptions::default());
}

#[test]
fn a_resync_always_replicates_and_says_so() {
    let mut pd = PeerDeviceOptions::default();
    let refused = pd.set("resync-without-replication", "yes").unwrap_err().to_string();
    assert!(refused.contains("writes are replicated during a resync"), "{refused}");
    pd.set("resync-without-replication", "no").unwrap();
}

#[test]
fn timeout_must_stay_below_the_intervals() {
    let mut net = NetOptions::default();
    net.check().unwrap();
    net.set("ping-int", "6").unwrap();
    assert!(net.check().unwrap_err().to_string().contains("ping-int (6 seconds)"));
}

#[test]
fn a_secret_is_printed_for_set_and_in_no_message() {
    let mut net = NetOptions::default();
    net.set("shared-secret", "between us").unwrap();
    assert_eq!(net.show(), [("shared-secret", "between us".to_owned())]);
    assert!(!format!("{net:?}").contains("between us"));
    let long = "between us".repeat(7);
    let refused = net.set("shared-secret", &long).unwrap_err();
    assert!(!format!("{refused} {refused:?}").contains("between"), "{refused}");
    assert!(refused.to_string().contains("at most 64 bytes"), "{refused}");
    assert!(net.check().unwrap_err().to_string().contains("without cram-hmac-alg"));
    net.set("cram-hmac-alg", "sha256").unwrap();
    net.check().unwrap();
    net.set("shared-secret", "").unwrap();
    assert!(net.check().unwrap_err().to_string().contains("needs a shared-secret"));
}

#[test]
fn tls_takes_three_absolute_paths_or_none() {
    let mut net = NetOptions::default();
    let refused = |net: &NetOptions| net.check().unwrap_err().to_string();
    net.set("tls-keyring", "/etc/ca.pem").unwrap();
    assert!(refused(&net).contains("tls-keyring has no effect without tls"));
    net.set("tls", "yes").unwrap();
    assert!(refused(&net).contains("tls needs tls-privkey"));
    net.set("tls-privkey", "4711").unwrap();
    assert!(refused(&net).contains("tls-privkey `4711` is not an absolute path"));
    net.set("tls-privkey", "/etc/key.pem").unwrap();
    net.set("tls-certificate", "/etc/certificate.pem").unwrap();
    net.check().unwrap();
}

#[test]
fn load_is_balanced_by_lb_tcp_alone_and_in_clear() {
    let mut net = NetOptions::default();
    net.set("load-balance-paths", "yes").unwrap();
    let refused = net.check().unwrap_err().to_string();
    assert!(refused.contains("no effect without the transport lb-tcp"), "{refused}");
    net.set("transport", "lb-tcp").unwrap();
    net.check().unwrap();
    net.set("tls", "yes").unwrap();
    let refused = net.check().unwrap_err().to_string();
    assert!(refused.contains("lb-tcp does not encrypt"), "{refused}");
    net.set("load-balance-paths", "no").unwrap();
    assert!(net.check().is_err(), "nor without balancing");
}

#[test]
fn quorum_takes_words_and_counts() {
    let mut options = ResourceOptions::default();
    for (text, quorum) in
        [("majority", Quorum::Majority), ("all", Quorum::All), ("3", Quorum::Count(3))]
    {
        options.set("quorum", text).unwrap();
        assert_eq!(options.quorum, quorum);
        assert_eq!(options.show(), [("quorum", text.to_owned())]);
    }
    assert!(options.set("quorum", "0").is_err() && options.set("quorum", "33").is_err());
}
