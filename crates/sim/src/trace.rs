//! The event trace of `--verbose`: what went into and came out of every resource.
//!
//! Nothing is formatted unless a trace is wanted.

use replication::io::{Input, MetaWrite, Output};

/// Where trace lines go.
#[derive(Default)]
pub struct Trace {
    sink: Option<Box<dyn FnMut(&str)>>,
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
        Trace { sink: Some(Box::new(sink)) }
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
                format!("n{node} <- {peer:?} {packet:?}{}", buffer(*payload))
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
                format!("n{node}   -> {peer:?} {packet:?}{}", buffer(*payload))
            }
            Output::MetaWrite { volume, op, write } => {
                format!("n{node}   meta v{volume} {op:?} {}", meta(write))
            }
            Output::Log(level, text) => format!("n{node}   log {level:?}: {text}"),
            other => format!("n{node}   out {other:?}"),
        };
        self.line(now, &text);
    }
}

fn buffer(payload: Option<replication::io::BufId>) -> String {
    payload.map_or_else(String::new, |b| format!(" +{b:?}"))
}

fn meta(write: &MetaWrite) -> String {
    let plain: Vec<_> = write.plain.iter().map(|b| b.place).collect();
    let commit = write.commit.as_ref().map(|b| b.place);
    format!("plain {plain:?} commit {commit:?} flush {}", write.flush)
}
