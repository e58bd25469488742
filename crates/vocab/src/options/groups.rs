//! The five option tables. Each row is one option: DRBD's name, the field, its default, its kind
//! with range and unit, and, after `|`, which values take effect if not all do.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::choices::*;
use super::secret::Secret;
use super::spec::{Honoured, Kind, OptionError, OptionSpec, Options, Raw, Unit, Value, sealed};
use crate::{Bytes, Minor, Sectors};

const YES_NO: Kind = Kind::Bool;

const fn num(min: u64, max: u64, unit: Unit) -> Kind {
    Kind::Number { min, max, unit }
}

const fn quorum() -> Kind {
    Kind::NumberOrWord { min: 1, max: 32, unit: Unit::One, words: Quorum::WORDS }
}

/// What Ashlar decides by itself unless a number is given, be it DRBD's default.
const fn or_auto(min: u64, max: u64, unit: Unit) -> Kind {
    Kind::NumberOrWord { min, max, unit, words: &["auto"] }
}

const TEXT: Kind = Kind::Text { max_len: 127 };

macro_rules! options {
    (
        $(#[$meta:meta])* $name:ident, $group:literal {
            $(#[doc = $help:literal] $word:literal $field:ident: $type:ty = $default:literal, $kind:expr $(, $honoured:expr)?;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub struct $name { $(#[doc = $help] pub $field: $type,)+ }

        impl Options for $name {
            const GROUP: &'static str = $group;
            const TABLE: &'static [OptionSpec] = &[$(OptionSpec {
                name: $word,
                kind: $kind,
                default: $default,
                honoured: options!(@honoured $($honoured)?),
                help: $help,
            }),+];
        }

        impl Default for $name {
            fn default() -> $name {
                let mut rows = Self::TABLE.iter();
                $name { $($field: {
                    let row = rows.next().expect("one row per field");
                    let raw = row.kind.parse(row.default).expect("defaults are valid values");
                    <$type as Value>::from_raw(raw, row.kind.unit()).expect("the row fits the field")
                },)+ }
            }
        }

        impl sealed::Fields for $name {
            #[allow(private_interfaces, reason = "sealed")]
            fn get_raw(&self, index: usize) -> Raw {
                let unit = Self::TABLE[index].kind.unit();
                let getters: &[fn(&$name, Unit) -> Raw] =
                    &[$(|this, unit| this.$field.to_raw(unit)),+];
                getters[index](self, unit)
            }

            #[allow(private_interfaces, reason = "sealed")]
            fn put_raw(&mut self, index: usize, raw: Raw) {
                let unit = Self::TABLE[index].kind.unit();
                let setters: &[fn(&mut $name, Raw, Unit)] = &[$(|this, raw, unit| {
                    this.$field = Value::from_raw(raw, unit).expect("the row fits the field");
                }),+];
                setters[index](self, raw, unit);
            }
        }
    };
    (@honoured) => { Honoured::Yes };
    (@honoured $honoured:expr) => { $honoured };
}

const NO_RDMA: &str = "the transports are tcp and lb-tcp";

options! {
    /// Options of a resource (`options { }`).
    ResourceOptions, "options" {
        /// CPUs DRBD's threads may run on, a hexadecimal mask.
        "cpu-mask" cpu_mask: String = "", TEXT, Honoured::DefaultOnly("pin the daemon with the service manager instead");
        /// I/O while no UpToDate data can be reached.
        "on-no-data-accessible" on_no_data_accessible: OnNoDataAccessible = "io-error", Kind::Choice(OnNoDataAccessible::WORDS);
        /// Become Primary when a volume is opened for writing, Secondary at the last close.
        "auto-promote" auto_promote: bool = "yes", YES_NO;
        /// Sectors a Primary writes before it tells its peers which peers have them.
        "peer-ack-window" peer_ack_window: Sectors = "4096s", num(2048, 204_800, Unit::Sectors);
        /// Idle time after which peer-acks are sent anyway.
        "peer-ack-delay" peer_ack_delay: Duration = "100", num(1, 10_000, Unit::MilliSeconds);
        /// Longest time a cluster-wide state change may take.
        "twopc-timeout" twopc_timeout: Duration = "300", num(50, 600, Unit::DeciSeconds);
        /// Base of the random wait before a cluster-wide state change is tried again.
        "twopc-retry-timeout" twopc_retry_timeout: Duration = "1", num(1, 50, Unit::DeciSeconds);
        /// How long an open waits for auto-promote to become possible.
        "auto-promote-timeout" auto_promote_timeout: Duration = "20", num(0, 600, Unit::DeciSeconds);
        /// Requests in flight before new ones wait.
        "max-io-depth" max_io_depth: u32 = "8000", num(4, u32::MAX as u64, Unit::One);
        /// Votes this partition needs to write.
        "quorum" quorum: Quorum = "off", quorum();
        /// I/O without quorum.
        "on-no-quorum" on_no_quorum: OnNoQuorum = "suspend-io", Kind::Choice(OnNoQuorum::WORDS);
        /// UpToDate replicas this partition needs to write.
        "quorum-minimum-redundancy" quorum_minimum_redundancy: Quorum = "off", quorum();
        /// What a suspended Primary does when it meets newer data.
        "on-suspended-primary-outdated" on_suspended_primary_outdated: OnSuspendedPrimaryOutdated = "disconnect", Kind::Choice(OnSuspendedPrimaryOutdated::WORDS);
        /// Offer the control interface of DRBD 8.
        "drbd8-api-compatibility" drbd8_api_compatibility: bool = "no", YES_NO, Honoured::DefaultOnly("there is no DRBD 8 control interface");
    }
}

options! {
    /// Options a volume is created with; they can not be changed later.
    DeviceOptions, "device" {
        /// Largest request handed to the backing device.
        "max-bio-size" max_bio_size: Bytes = "1048576", num(512, 1 << 20, Unit::Bytes), Honoured::DefaultOnly("requests are split at 1 MiB");
        /// Diskless by intent: a client of its peers' disks.
        "diskless" diskless: bool = "no", YES_NO;
        /// Logical block size shown to the application.
        "block-size" block_size: Bytes = "512", num(512, 4096, Unit::Bytes), Honoured::DefaultOnly("the logical block size is 512 bytes");
        /// Discard granularity shown to the application.
        "discard-granularity" discard_granularity: Option<Bytes> = "4294967295", Kind::NumberOrWord { min: 0, max: 128 << 20, unit: Unit::Bytes, words: &["4294967295"] }, Honoured::DefaultOnly("the granularity follows the backing devices");
    }
}

options! {
    /// Options of a backing disk (`disk { }`).
    DiskOptions, "disk" {
        /// After an error of the backing device.
        "on-io-error" on_io_error: OnIoError = "detach", Kind::Choice(OnIoError::WORDS);
        /// Order writes with barriers.
        "disk-barrier" disk_barrier: bool = "no", YES_NO, Honoured::DefaultOnly("no current kernel offers barriers; disk-flushes orders the writes");
        /// Order and persist writes with flushes.
        "disk-flushes" disk_flushes: bool = "yes", YES_NO;
        /// Order writes by draining the queue.
        "disk-drain" disk_drain: bool = "yes", YES_NO, Honoured::DefaultOnly("an epoch is always executed before the next one starts");
        /// Flush the device that holds the metadata.
        "md-flushes" md_flushes: bool = "yes", YES_NO;
        /// Resync only after the volume with this minor.
        "resync-after" resync_after: Option<Minor> = "-1", Kind::NumberOrWord { min: 0, max: 1_048_575, unit: Unit::One, words: &["-1"] };
        /// Extents of 4 MiB that may be active at a time.
        "al-extents" al_extents: u32 = "1237", num(67, 65_534, Unit::One);
        /// Keep the activity log.
        "al-updates" al_updates: bool = "yes", YES_NO, Honoured::DefaultOnly("without an activity log a crash costs a full resync");
        /// Treat discards as zeroing where they are aligned.
        "discard-zeroes-if-aligned" discard_zeroes_if_aligned: bool = "yes", YES_NO, Honoured::DefaultOnly("discards are passed on whatever their alignment");
        /// Do not use WRITE SAME. Nobody does, whichever is set.
        "disable-write-same" disable_write_same: bool = "no", YES_NO;
        /// Give a silent backing device up after so long; 0 is never.
        "disk-timeout" disk_timeout: Duration = "0", num(0, 6000, Unit::DeciSeconds);
        /// Which replica serves a read.
        "read-balancing" read_balancing: ReadBalancing = "prefer-local", Kind::Choice(ReadBalancing::WORDS);
        /// Resync whole zeroed ranges of this size as discards; 0 is off.
        "rs-discard-granularity" rs_discard_granularity: Bytes = "0", num(0, 1 << 20, Unit::Bytes);
        /// Keep a bitmap on this disk.
        "bitmap" bitmap: bool = "yes", YES_NO, Honoured::DefaultOnly("every disk keeps a bitmap per diskful peer");
        /// Use only so much of the backing device; 0 is all of it.
        "size" size: Sectors = "0s", num(0, 1 << 41, Unit::Sectors), Honoured::DefaultOnly("a volume takes all of its backing device; give it a smaller one, or say `resize --size`, which is not shown as this option");
    }
}

options! {
    /// Options of a connection (`net { }`).
    NetOptions, "net" {
        /// The transport; empty means tcp. lb-tcp is the same but for load-balance-paths.
        "transport" transport: String = "", TEXT, Honoured::Only(&["", "tcp", "lb-tcp"], NO_RDMA);
        /// Spread traffic over all paths; needs the transport lb-tcp.
        "load-balance-paths" load_balance_paths: bool = "no", YES_NO;
        /// When a write is complete for the application.
        "protocol" protocol: Protocol = "C", Kind::Choice(&["C", "A", "B"]);
        /// A request unanswered for so long counts against ko-count.
        "timeout" timeout: Duration = "60", num(1, 600, Unit::DeciSeconds);
        /// Writes in one epoch.
        "max-epoch-size" max_epoch_size: u32 = "2048", num(1, 20_000, Unit::One);
        /// Time between attempts to connect.
        "connect-int" connect_int: Duration = "10", num(1, 120, Unit::Seconds);
        /// Idle time before a ping.
        "ping-int" ping_int: Duration = "10", num(1, 120, Unit::Seconds);
        /// Socket send buffer; 0 leaves it to the kernel.
        "sndbuf-size" sndbuf_size: Bytes = "0", num(0, 128 << 20, Unit::Bytes);
        /// Socket receive buffer; 0 leaves it to the kernel.
        "rcvbuf-size" rcvbuf_size: Bytes = "0", num(0, 128 << 20, Unit::Bytes);
        /// A peer is dropped after this many timeouts; 0 is never.
        "ko-count" ko_count: u32 = "7", num(0, 200, Unit::One);
        /// Both nodes may be Primary.
        "allow-two-primaries" allow_two_primaries: bool = "no", YES_NO;
        /// Digest by which peers prove that they know the shared secret; no proof if empty.
        "cram-hmac-alg" cram_hmac_alg: String = "", TEXT;
        /// Secret shared with the peer.
        "shared-secret" shared_secret: Secret = "", Kind::Secret { max_len: 64 };
        /// Split brain, nobody Primary.
        "after-sb-0pri" after_sb_0pri: AfterSb0 = "disconnect", Kind::Choice(AfterSb0::WORDS);
        /// Split brain, one node Primary.
        "after-sb-1pri" after_sb_1pri: AfterSb1 = "disconnect", Kind::Choice(AfterSb1::WORDS);
        /// Split brain, both nodes Primary.
        "after-sb-2pri" after_sb_2pri: AfterSb2 = "disconnect", Kind::Choice(AfterSb2::WORDS);
        /// Apply the after-sb policies even where history says more than one node diverged.
        "always-asbp" always_asbp: bool = "no", YES_NO;
        /// A resync direction that contradicts the roles.
        "rr-conflict" rr_conflict: RrConflict = "disconnect", Kind::Choice(RrConflict::WORDS), Honoured::Only(&["disconnect", "retry-connect", "call-pri-lost"], "a Primary never gives in under its users");
        /// Wait for the answer to a ping.
        "ping-timeout" ping_timeout: Duration = "5", num(1, 300, Unit::DeciSeconds);
        /// Digest that protects data on the wire; none if empty.
        "data-integrity-alg" data_integrity_alg: String = "", TEXT;
        /// Gather small packets; what is queued leaves together and at once, whichever is set.
        "tcp-cork" tcp_cork: bool = "yes", YES_NO;
        /// A congested connection under protocol A.
        "on-congestion" on_congestion: OnCongestion = "block", Kind::Choice(OnCongestion::WORDS);
        /// Sectors in flight that count as congestion; 0 is off.
        "congestion-fill" congestion_fill: Sectors = "0s", num(0, 20_971_520, Unit::Sectors);
        /// Active extents that count as congestion.
        "congestion-extents" congestion_extents: u32 = "1237", num(67, 65_534, Unit::One);
        /// Digest that spares identical blocks during a resync.
        "csums-alg" csums_alg: String = "", TEXT, Honoured::Only(&["", "md5", "sha1", "sha256", "sha512"], "by crc32c one of 2^32 requests that differ would count as equal and leave stale blocks, and other digests are not known");
        /// Resync by digest only after a Primary crashed.
        "csums-after-crash-only" csums_after_crash_only: bool = "no", YES_NO;
        /// Digest of the online verify.
        "verify-alg" verify_alg: String = "", TEXT;
        /// Compress the bitmap on the wire.
        "use-rle" use_rle: bool = "yes", YES_NO;
        /// How long a new pair of sockets is looked at; 0: for ping-timeout, or not if it is certain.
        "socket-check-timeout" socket_check_timeout: Duration = "0", num(0, 300, Unit::DeciSeconds);
        /// What a Primary does about a lost peer.
        "fencing" fencing: Fencing = "dont-care", Kind::Choice(Fencing::WORDS);
        /// Resync data that is asked for and not on the target's disk yet, at most.
        "max-buffers" max_buffers: u32 = "2048", num(32, 131_072, Unit::Pages);
        /// May be read from, and counts as access to UpToDate data and for quorum.
        "allow-remote-read" allow_remote_read: bool = "yes", YES_NO;
        /// Encrypt the connection, and believe no peer without a certificate.
        "tls" tls: bool = "no", YES_NO;
        /// File of the trusted certificates, in PEM format.
        "tls-keyring" tls_keyring: String = "", TEXT;
        /// File of the private key, in PEM format.
        "tls-privkey" tls_privkey: String = "", TEXT;
        /// File of this node's certificate and those above it, in PEM format.
        "tls-certificate" tls_certificate: String = "", TEXT;
        /// RDMA receive buffer for control packets.
        "rdma-ctrl-rcvbuf-size" rdma_ctrl_rcvbuf_size: Bytes = "0", num(0, 10_485_760, Unit::Bytes), Honoured::DefaultOnly(NO_RDMA);
        /// RDMA send buffer for control packets.
        "rdma-ctrl-sndbuf-size" rdma_ctrl_sndbuf_size: Bytes = "0", num(0, 10_485_760, Unit::Bytes), Honoured::DefaultOnly(NO_RDMA);
    }
}

impl NetOptions {
    /// Checks what no single option can: DRBD wants `timeout` below `connect-int` and `ping-int`
    /// (semantics §11), or a healthy but idle connection would count as silent. Authentication takes
    /// a digest and a secret: half of it would authenticate nobody. TLS takes three files, which do
    /// nothing without it. Load is balanced by lb-tcp alone, which does not encrypt (wire §1.3).
    ///
    /// # Errors
    /// [`OptionError::Conflict`] naming both options.
    pub fn check(&self) -> Result<(), OptionError> {
        for (name, interval) in [("connect-int", self.connect_int), ("ping-int", self.ping_int)] {
            if self.timeout >= interval {
                return Err(OptionError::Conflict(format!(
                    "timeout ({} tenths of a second) must be shorter than {name} ({} seconds); \
                     lower timeout or raise {name}",
                    self.timeout.as_millis() / 100,
                    interval.as_secs()
                )));
            }
        }
        let text = match (self.cram_hmac_alg.is_empty(), self.shared_secret.is_empty()) {
            (false, true) => {
                "cram-hmac-alg needs a shared-secret; give the same one on both nodes, or remove \
                 cram-hmac-alg"
            }
            (true, false) => {
                "shared-secret has no effect without cram-hmac-alg; add `cram-hmac-alg sha256`, or \
                 remove shared-secret"
            }
            _ => return self.check_transport(),
        };
        Err(OptionError::Conflict(text.to_owned()))
    }

    fn check_transport(&self) -> Result<(), OptionError> {
        let is_balancing = self.transport == "lb-tcp";
        if self.load_balance_paths && !is_balancing {
            let text = "load-balance-paths has no effect without the transport lb-tcp; add \
                        `transport lb-tcp` on both nodes, or remove load-balance-paths";
            return Err(OptionError::Conflict(text.to_owned()));
        }
        if self.tls && is_balancing {
            let text = "the transport lb-tcp does not encrypt, whatever `tls` says; remove \
                        `transport lb-tcp` and load-balance-paths, or set `tls no`";
            return Err(OptionError::Conflict(text.to_owned()));
        }
        self.check_tls()
    }

    fn check_tls(&self) -> Result<(), OptionError> {
        for (name, path) in [
            ("tls-keyring", &self.tls_keyring),
            ("tls-privkey", &self.tls_privkey),
            ("tls-certificate", &self.tls_certificate),
        ] {
            let text = match (self.tls, path.is_empty()) {
                (false, false) => {
                    format!("{name} has no effect without tls; add `tls yes`, or remove it")
                }
                (true, true) => format!("tls needs {name}; give the path of a file in PEM format"),
                (true, false) if !path.starts_with('/') => format!(
                    "{name} `{path}` is not an absolute path; give that of a file in PEM format \
                     (serials of keys in the kernel's keyring mean nothing to a process)"
                ),
                _ => continue,
            };
            return Err(OptionError::Conflict(text));
        }
        Ok(())
    }
}

options! {
    /// Options of one volume towards one peer (`disk { }` inside `connection { }`).
    PeerDeviceOptions, "peer-device" {
        /// Resync rate without DRBD's controller, and its start. A number here or in the next four turns that controller on.
        "resync-rate" resync_rate: Option<KibPerSecond> = "auto", or_auto(1, 8_388_608, Unit::KibPerSecond);
        /// Horizon of DRBD's controller; 0 is a fixed rate.
        "c-plan-ahead" c_plan_ahead: Option<Duration> = "auto", or_auto(0, 300, Unit::DeciSeconds);
        /// Delay DRBD's controller aims at where c-fill-target is 0.
        "c-delay-target" c_delay_target: Option<Duration> = "auto", or_auto(1, 100, Unit::DeciSeconds);
        /// Resync data in flight DRBD's controller aims at; 0 means c-delay-target.
        "c-fill-target" c_fill_target: Option<Sectors> = "auto", or_auto(0, 1_048_576, Unit::Sectors);
        /// Fastest resync by DRBD's controller; 0 is unlimited.
        "c-max-rate" c_max_rate: Option<KibPerSecond> = "auto", or_auto(0, 4_194_304, Unit::KibPerSecond);
        /// While users work a resync gets so much and no more, 0 is all it can; `auto` is 250k or more.
        "c-min-rate" c_min_rate: Option<KibPerSecond> = "auto", or_auto(0, 4_194_304, Unit::KibPerSecond);
        /// Keep a bitmap slot for the peer; `no` if it is diskless by intent.
        "bitmap" bitmap: bool = "yes", YES_NO;
        /// Writes of users reach a resync's target by the resync alone, until it is nearly done.
        "resync-without-replication" resync_without_replication: bool = "yes", YES_NO, Honoured::Only(&["no"], "the feature is not negotiated: writes are replicated during a resync, as with `no`");
        /// A diskless peer may break ties of quorum.
        "peer-tiebreaker" peer_tiebreaker: bool = "yes", YES_NO;
    }
}
