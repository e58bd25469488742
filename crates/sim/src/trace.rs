//! The event trace of `--verbose`: what went into and came out of every resource.
//!
//! Nothing is formatted unless a trace is wanted.

use codec::wire::{Operation, Packet, ReqState, TwoPc};
use replication::io::{DiskOp, Input, MetaWrite, Output};
use vocab::SectorRange;

use crate::watch::Watch;

/// Where lines go.
type Sink = Box<dyn FnMut(&str)>;

/// Where trace lines go.
#[derive(Default)]
pub struct Trace {
    sink: Option<Sink>,
    /// The sector whose story is told as well.
    pub(crate) watch: Option<Watch>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("on", &self.on()).finish()
    }
}

/// Writes a line to the trace of a world, if it has one.
#[macro_export]
macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if $world.trace.on() {
            let now = $world.queue.now();
            $world.trace.line(now, &format!($($arg)*));
        }
    };
}

impl Trace {
    /// No trace.
    pub fn off() -> Trace {
        Trace::default()
    }

    /// A trace into `sink`, line by line.
    pub fn to(sink: impl FnMut(&str) + 'static) -> Trace {
        Trace { sink: Some(Box::new(sink)), watch: None }
    }

    /// The same, with the story of a sector.
    pub fn watching(mut self, watch: Option<Watch>) -> Trace {
        self.watch = watch;
        self
    }

    /// True if lines are wanted.
    pub fn on(&self) -> bool {
        self.sink.is_some()
    }

    /// Writes a line.
    pub fn line(&mut self, now: u64, text: &str) {
        if let Some(sink) = &mut self.sink {
            let (seconds, rest) = (now / 1_000_000_000, now % 1_000_000_000);
            sink(&format!("{seconds:4}.{:06} {text}", rest / 1000));
        }
    }

    /// Writes what goes into a resource.
    pub fn input(&mut self, now: u64, node: usize, input: &Input) {
        let text = match input {
            Input::Packet { peer, packet, payload } => {
                format!("n{node} <- {peer:?} {}{}", describe(packet), buffer(*payload))
            }
            Input::Admin { id, command } => {
                let mut text = format!("{command:?}");
                if let replication::io::AdminCommand::Attach { volume, .. } = command {
                    text = format!("Attach {{ volume: {volume} }}");
                }
                format!("n{node} admin {id}: {text}")
            }
            Input::Timeout => format!("n{node} timeout"),
            other => format!("n{node} in  {other:?}"),
        };
        self.line(now, &text);
    }

    /// Writes what comes out of a resource.
    pub fn output(&mut self, now: u64, node: usize, output: &Output) {
        let text = match output {
            Output::Send { peer, packet, payload } => {
                format!("n{node}   -> {peer:?} {}{}", describe(packet), buffer(*payload))
            }
            Output::MetaWrite { volume, op, write } => {
                format!("n{node}   meta v{volume} {op:?} {}", meta(write))
            }
            Output::Disk { volume, op, io } => {
                let io = match io {
                    DiskOp::Read { range, .. } => format!("read {}", at(*range)),
                    DiskOp::Digest { range, .. } => format!("digest {}", at(*range)),
                    DiskOp::ReadWithDigest { range, .. } => {
                        format!("read with digest {}", at(*range))
                    }
                    DiskOp::Write { range, buf, fua } => {
                        format!("write {} {buf:?} fua {fua}", at(*range))
                    }
                    DiskOp::Discard { range } => format!("discard {}", at(*range)),
                    DiskOp::Zeroes { range, .. } => format!("zeroes {}", at(*range)),
                    DiskOp::Flush => "flush".to_owned(),
                };
                format!("n{node}   disk v{volume} {op:?} {io}")
            }
            Output::Free(_) => return,
            Output::Log(level, text) => format!("n{node}   log {level:?}: {text}"),
            other => format!("n{node}   out {other:?}"),
        };
        self.line(now, &text);
    }
}

fn at(range: SectorRange) -> String {
    format!("{}+{}", range.start.0, range.len.0)
}

/// A packet in one short line: what matters for following a run.
fn describe(packet: &Packet) -> String {
    match packet {
        Packet::State(volume, word) => {
            let name = |n: Option<String>| n.unwrap_or_else(|| "?".to_owned());
            let mut text = format!(
                "STATE v{} {}/{} conn {} disk {}/{}",
                volume.map_or(-1, |v| i32::from(v.0)),
                name(word.role().map(|r| r.to_string())),
                name(word.peer_role().map(|r| r.to_string())),
                name(word.repl_state().map(|r| r.to_string())),
                name(word.disk().map(|d| d.to_string())),
                name(word.pdsk().map(|d| d.to_string())),
            );
            for (set, flag) in [
                (word.quorum(), "quorum"),
                (word.susp(), "susp"),
                (word.susp_nod(), "susp-nod"),
                (word.aftr_isp(), "aftr"),
                (word.peer_isp(), "peer-isp"),
                (word.user_isp(), "user-isp"),
            ] {
                if set {
                    text.push(' ');
                    text.push_str(flag);
                }
            }
            text
        }
        Packet::Uuids110(volume, uuids) => {
            let bitmaps: Vec<String> = uuids
                .bitmap_uuids
                .iter()
                .filter(|(_, u)| u.0 != 0)
                .map(|(n, u)| format!("{n}:{}", short(u.0)))
                .collect();
            let history: Vec<String> =
                uuids.history.iter().filter(|u| u.0 != 0).map(|u| short(u.0)).collect();
            format!(
                "UUIDS v{volume} {} bits {} flags {:#x} mask {:?} bm [{}] hist [{}]",
                short(uuids.current.0),
                uuids.dirty_bits,
                uuids.flags.0,
                uuids.node_mask,
                bitmaps.join(" "),
                history.join(" ")
            )
        }
        Packet::CurrentUuid(volume, current, weak) => {
            format!("CURRENT_UUID v{volume} {} weak {weak:?}", short(current.0))
        }
        Packet::TwoPcPrepare(_, t) => format!("2PC prepare {}", transaction(t, true)),
        Packet::TwoPcCommit(_, t) => format!("2PC commit {}", transaction(t, false)),
        Packet::TwoPcAbort(_, t) => format!("2PC abort {}", transaction(t, false)),
        Packet::Data(volume, d) => {
            let flags = d.flags.0;
            format!("DATA v{volume} {} id {} flags {flags:#x}", at(d.range), d.block_id.0)
        }
        Packet::RsDataReply(volume, d) => {
            format!("RS_DATA v{volume} {} id {}", at(d.range), d.block_id.0)
        }
        Packet::RsDagtagReq(volume, r) => {
            format!("RS_REQ v{volume} {} id {} dep {:?}", at(r.range), r.block_id.0, r.dep)
        }
        other => format!("{other:?}"),
    }
}

fn transaction(t: &TwoPc, prepare: bool) -> String {
    let rest = match prepare {
        true => match Operation::of(ReqState::from_word28(t.word28)) {
            Some(operation) => format!("{operation:?}"),
            None => format!("{:#x}", t.word28),
        },
        false => format!("primaries {:#x} reachable {:#x}", t.word20, t.word28),
    };
    let flags = t.flags;
    format!("{:#010x} by {} to {} {rest} flags {flags:#x}", t.tid, t.initiator, t.target)
}

/// The first digits of a generation tell it from the others of a run.
fn short(uuid: u64) -> String {
    let digits = format!("{uuid:016X}");
    format!("{}.{}", &digits[..5], uuid & 1)
}

fn buffer(payload: Option<replication::io::BufId>) -> String {
    payload.map_or_else(String::new, |b| format!(" +{b:?}"))
}

fn meta(write: &MetaWrite) -> String {
    let plain: Vec<_> = write.plain.iter().map(|b| b.place).collect();
    let commit = write.commit.as_ref().map(|b| b.place);
    format!("plain {plain:?} commit {commit:?} flush {}", write.flush)
}
