//! Tests of the commands: `golden` compares text with what real nodes printed, `changes` covers
//! event lines, plans and explanations, `engine` runs commands against a scripted engine.

mod changes;
pub(crate) mod engine;
mod golden;

use codec::admin::ResourceStatus;
use codec::config::{Config, Host, ResourceConfig, SourceFile, parse};

/// What one node printed.
pub(crate) struct Recording {
    file: &'static str,
    plain: &'static str,
    json: &'static str,
    pub(crate) events: Vec<&'static str>,
}

macro_rules! recordings {
    ($($file:literal)+) => {
        vec![$(recording($file, include_str!(concat!("../../testdata/status/", $file, ".txt")))),+]
    };
}

fn recording(file: &'static str, text: &'static str) -> Recording {
    let (plain, rest) = text.split_once("---json\n").unwrap();
    let (json, events) = rest.split_once("---events\n").unwrap();
    Recording { file, plain, json, events: events.lines().filter(|l| !l.is_empty()).collect() }
}

pub(crate) fn recordings() -> Vec<Recording> {
    recordings![
        "01-connect-skip-initial-sync.g11" "01-connect-skip-initial-sync.g12"
        "01-connect-skip-initial-sync.g13" "04-disconnect-write-resync.g11"
        "04-disconnect-write-resync.g12" "04-disconnect-write-resync.g13"
        "07-diskless-client-io.g11" "07-diskless-client-io.g12" "07-diskless-client-io.g13"
        "08-quorum-loss-and-return.g11" "08-quorum-loss-and-return.g13"
        "12-primary-crash-reconcile.g12" "12-primary-crash-reconcile.g13"
        "16-split-brain.g11" "16-split-brain.g12" "16-split-brain-solved.g11"
        "16-split-brain-solved.g12" "17-writes-during-resync.g11" "17-writes-during-resync.g12"
        "17-writes-during-resync.g13" "18-detach-attach-invalidate.g11"
        "18-detach-attach-invalidate.g12" "18-detach-attach-invalidate.g13" "19-resize.g11"
        "19-resize.g12" "19-resize.g13"
    ]
}

/// Value of `key` in an event line.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix(':'))
}

impl Recording {
    /// Scenario and host.
    pub(crate) fn file(&self) -> &'static str {
        self.file
    }

    /// The status as recorded, completed with what only the events of this version show.
    pub(crate) fn status(&self) -> ResourceStatus {
        let mut all: Vec<ResourceStatus> = serde_json::from_str(self.json).expect(self.file);
        let mut status = all.remove(0);
        for line in &self.events {
            if line.starts_with("exists resource") {
                status.may_promote = value(line, "may_promote") == Some("yes");
                status.promotion_score = value(line, "promotion_score").unwrap().parse().unwrap();
            } else if line.starts_with("exists device") {
                let path = value(line, "backing_dev").filter(|path| *path != "none");
                status.devices[0].backing_dev = path.map(str::to_owned);
                status.devices[0].blocked = value(line, "blocked").unwrap().parse().unwrap();
            } else if line.starts_with("exists path") {
                let address = |key| value(line, key).unwrap()["ipv4:".len()..].parse().unwrap();
                let peer = value(line, "conn-name").unwrap();
                let path = codec::admin::PathStatus {
                    this_host: address("local"),
                    remote_host: address("peer"),
                    established: value(line, "established") == Some("yes"),
                };
                let mut connections = status.connections.iter_mut();
                connections.find(|c| c.name == peer).unwrap().paths.push(path);
            }
        }
        status
    }
}

/// The resources of `host` in a configuration without includes.
pub(crate) fn configured(text: &str, host: &str) -> Vec<ResourceConfig> {
    let file = SourceFile { name: "test.conf".into(), text: text.into() };
    let config: Config = parse(file, &mut |_, _| Ok(Vec::new())).unwrap();
    config.resolve(&Host { name: host, is_local: &|_| true }).unwrap().resources
}
