//! `doctor`: measures what a volume is made of and says which part limits it.
//!
//! - This file: the steps, in the order of the field's troubleshooting method, within the time given.
//! - Pure, and tested with figures made up: `bottleneck`: which part it is; `findings`: what else
//!   costs speed or safety; `render`: all of it as text.

mod bottleneck;
mod findings;
mod render;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use codec::admin::{
    Answer, DiskReads, DiskWrites, DoctorFigures, DoctorStep, Machine, Network, Request,
    ResourceStatus, Serving, Watch,
};
use codec::config::ResourceConfig;
use serde::Serialize;
use vocab::VolumeNr;

use super::args::DoctorArgs;
use super::client::Client;
use super::error::Error;
use super::objects::Selection;
pub(super) use render::render;

/// Time for all of it unless told otherwise: measuring, serving.
const MEASURING: Duration = Duration::from_secs(30);
const SERVING: Duration = Duration::from_secs(300);
/// How long an engine serves probes if it is not asked again, and how often it is.
const LEASE_MS: u32 = 5000;
const RENEW: Duration = Duration::from_secs(1);
/// Longest time for one thing; more does not make figures better.
const STEP_MAX: Duration = Duration::from_secs(6);

/// What was found out about one resource on one node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Examination {
    pub(super) resource: String,
    pub(super) node: String,
    pub(super) role: String,
    /// Names of the peers by node id.
    pub(super) peers: BTreeMap<u8, String>,
    pub(super) figures: Figures,
    /// What was not measured, and why.
    pub(super) missing: Vec<Missing>,
    /// The first one names the bottleneck, if there is one.
    pub(super) findings: Vec<Finding>,
}

/// Figures of one resource.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Figures {
    pub(super) machine: Machine,
    pub(super) watch: Watch,
    pub(super) reads: Vec<OfVolume<DiskReads>>,
    pub(super) writes: Vec<OfVolume<DiskWrites>>,
    pub(super) networks: Vec<OfPeer>,
}

/// Figures of a volume's disk.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OfVolume<T> {
    pub(super) volume: u16,
    #[serde(flatten)]
    pub(super) figures: T,
}

/// Figures of the network to a peer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OfPeer {
    pub(super) peer: String,
    #[serde(flatten)]
    pub(super) figures: Network,
}

/// Something that was not measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Missing {
    pub(super) what: String,
    pub(super) why: String,
}

/// How much a finding matters, most first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Weight {
    /// It decides how fast the volume is.
    Bottleneck,
    /// Data may be lost.
    Danger,
    /// It costs speed.
    Slow,
    /// Worth knowing.
    Note,
}

/// Something an operator should know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) weight: Weight,
    pub(super) object: String,
    pub(super) evidence: String,
    pub(super) remedy: String,
}

/// A resource, and the part of it that is examined.
pub(super) struct Case<'a> {
    pub(super) config: &'a ResourceConfig,
    pub(super) status: &'a ResourceStatus,
    pub(super) volumes: &'a [VolumeNr],
    pub(super) figures: &'a Figures,
}

/// What is being done, on a terminal.
pub(super) struct Progress {
    shown: bool,
    terminal: bool,
}

impl Progress {
    pub(super) fn new(json: bool) -> Progress {
        Progress { shown: false, terminal: !json && std::io::stderr().is_terminal() }
    }

    fn say(&mut self, what: &str, left: Duration) {
        if self.terminal {
            self.shown = true;
            let seconds = left.as_secs();
            let _ = write!(std::io::stderr(), "\r\x1b[K{what} (at most {seconds} s to go)");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Answers probes of peers until the time is over.
pub(super) fn serve(
    client: &mut Client,
    args: &DoctorArgs,
    selections: &[Selection<'_>],
) -> Result<(), Error> {
    let end = Instant::now() + args.seconds.unwrap_or(SERVING);
    let mut said = String::new();
    let mut progress = Progress::new(false);
    loop {
        let mut all = Serving { addresses: Vec::new(), answered: 0 };
        for selection in selections {
            let step = DoctorStep::Serve { port: args.probe_port, ms: LEASE_MS };
            if let DoctorFigures::Serving(serving) = ask(client, selection.resource, step)? {
                all.addresses.extend(serving.addresses);
                all.answered += serving.answered;
            }
        }
        all.addresses.sort_unstable();
        all.addresses.dedup();
        let addresses: Vec<String> = all.addresses.iter().map(ToString::to_string).collect();
        let text = format!("answering probes of peers at {}", addresses.join(", "));
        let left = end.saturating_duration_since(Instant::now());
        if progress.terminal {
            progress.say(&format!("{text}; {} so far; Ctrl-C ends it", all.answered), left);
        } else if said != text {
            writeln!(std::io::stderr(), "{text}")?;
            said = text;
        }
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(RENEW.min(left));
    }
}

/// Examines what is selected within the time given.
pub(super) fn examine(
    client: &mut Client,
    args: &DoctorArgs,
    selections: &[Selection<'_>],
    timeout: Duration,
    progress: &mut Progress,
) -> Result<Vec<Examination>, Error> {
    check(args, selections)?;
    let end = Instant::now() + args.seconds.unwrap_or(MEASURING);
    let mut found = Vec::new();
    for (nr, selection) in selections.iter().enumerate() {
        let rest = end.saturating_duration_since(Instant::now());
        let share = rest / (selections.len() - nr) as u32;
        let mut steps = Steps {
            client: &mut *client,
            selection,
            progress: &mut *progress,
            // An answer comes in time if the step takes half of it.
            step_max: STEP_MAX.min(timeout / 2),
            end: Instant::now() + share,
            figures: Figures::default(),
            missing: Vec::new(),
        };
        steps.run(args)?;
        let Steps { figures, missing, .. } = steps;
        let status = status(client, &selection.resource.name)?;
        let volumes: Vec<VolumeNr> = selection.volumes.iter().map(|v| v.nr).collect();
        let case = Case {
            config: selection.resource,
            status: &status,
            volumes: &volumes,
            figures: &figures,
        };
        let findings = findings::findings(&case);
        found.push(Examination {
            resource: status.name.clone(),
            node: selection.resource.host.clone(),
            role: status.role.to_string(),
            peers: status
                .connections
                .iter()
                .map(|c| (c.peer_node_id.get(), c.name.clone()))
                .collect(),
            findings,
            figures,
            missing,
        });
    }
    Ok(found)
}

/// Refuses what can not be meant, before anything is measured.
fn check(args: &DoctorArgs, selections: &[Selection<'_>]) -> Result<(), Error> {
    let wrong =
        |why: &str| Err(Error::Object { object: args.object.to_string(), why: why.to_owned() });
    if selections.iter().any(|s| s.one_peer) {
        return wrong(
            "doctor examines a resource with all its peers; give RESOURCE or RESOURCE/VOLUME",
        );
    }
    if args.scratch.is_some() {
        let disks = selections.iter().flat_map(|s| &s.volumes).filter(|v| v.backing.is_some());
        match disks.count() {
            0 => {
                return wrong(
                    "it has no disk on this node, so --scratch has nothing to compare with",
                );
            }
            1 => {}
            _ => return wrong("--scratch stands for one disk; give RESOURCE/VOLUME"),
        }
    }
    Ok(())
}

/// The steps for one resource.
struct Steps<'a, 'c> {
    client: &'a mut Client,
    selection: &'a Selection<'c>,
    progress: &'a mut Progress,
    step_max: Duration,
    end: Instant,
    figures: Figures,
    missing: Vec<Missing>,
}

impl Steps<'_, '_> {
    fn run(&mut self, args: &DoctorArgs) -> Result<(), Error> {
        let resource = self.selection.resource;
        let disks: Vec<_> = self.selection.volumes.iter().filter(|v| v.backing.is_some()).collect();
        if let DoctorFigures::Machine(machine) = ask(self.client, resource, DoctorStep::Machine)? {
            self.figures.machine = machine;
        }
        // What is left is shared by the steps to come, looking on getting twice as much.
        let loads = resource.peers.len() + disks.len() + usize::from(args.scratch.is_some());
        let mut to_come = 2 + if args.passive { 0 } else { loads };
        let time = self.time(to_come).saturating_mul(2);
        let step = DoctorStep::Watch { ms: ms(time.min(self.step_max)) };
        self.say(&format!("{}: looking on", resource.name));
        if let DoctorFigures::Watch(watch) = ask(self.client, resource, step)? {
            self.figures.watch = watch;
        }
        to_come -= 2;
        if args.passive {
            self.miss("network and disks", "--passive was given");
            return Ok(());
        }
        for peer in &resource.peers {
            let time = self.time(to_come).min(self.step_max);
            to_come -= 1;
            let what = format!("network to {}", peer.name);
            let step =
                DoctorStep::Probe { peer: peer.node_id, port: args.probe_port, ms: ms(time) };
            if let Some(DoctorFigures::Network(figures)) = self.measure(&what, step)? {
                self.figures.networks.push(OfPeer { peer: peer.name.clone(), figures });
            }
        }
        for volume in &disks {
            let time = self.time(to_come).min(self.step_max);
            to_come -= 1;
            let what = format!("reads of the disk of volume {}", volume.nr);
            let step = DoctorStep::Reads { volume: volume.nr, ms: ms(time) };
            if let Some(DoctorFigures::Reads(figures)) = self.measure(&what, step)? {
                self.figures.reads.push(OfVolume { volume: volume.nr.0, figures });
            }
        }
        match (&args.scratch, disks.first()) {
            (Some(folder), Some(volume)) => {
                let folder = std::path::absolute(folder)?.display().to_string();
                let time = self.time(to_come).min(self.step_max);
                let step = DoctorStep::Scratch { volume: volume.nr, folder, ms: ms(time) };
                self.say("writes");
                // The operator asked for it by name: a refusal is his answer.
                if let DoctorFigures::Writes(figures) = ask(self.client, resource, step)? {
                    self.figures.writes.push(OfVolume { volume: volume.nr.0, figures });
                }
            }
            (None, Some(_)) => self.miss(
                "writes of the disks",
                "there is no spare space on a disk that is in use; --scratch FOLDER measures them in \
                 a new file, if the folder is in a file system on the same disks",
            ),
            (_, None) => {}
        }
        Ok(())
    }

    /// Does one step. A failure is written down, and the others go on.
    fn measure(&mut self, what: &str, step: DoctorStep) -> Result<Option<DoctorFigures>, Error> {
        if self.end.saturating_duration_since(Instant::now()).is_zero() {
            self.miss(what, "the time was over; give more --seconds");
            return Ok(None);
        }
        self.say(what);
        match ask(self.client, self.selection.resource, step) {
            Ok(figures) => Ok(Some(figures)),
            Err(Error::Failed { failure, .. }) => {
                let why = if failure.next.is_empty() {
                    failure.text
                } else {
                    format!("{}; {}", failure.text, failure.next)
                };
                self.miss(what, &why);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn say(&mut self, what: &str) {
        self.progress.say(what, self.end.saturating_duration_since(Instant::now()));
    }

    fn miss(&mut self, what: &str, why: &str) {
        self.missing.push(Missing { what: what.to_owned(), why: why.to_owned() });
    }

    /// The time for one of the steps to come.
    fn time(&self, to_come: usize) -> Duration {
        // The rest is for connecting, and for disks that are slow to end.
        let left = self.end.saturating_duration_since(Instant::now()).mul_f64(0.8);
        left / to_come.max(1) as u32
    }
}

fn ms(time: Duration) -> u32 {
    (time.as_millis() as u32).max(100)
}

fn ask(
    client: &mut Client,
    resource: &ResourceConfig,
    step: DoctorStep,
) -> Result<DoctorFigures, Error> {
    let what = format!("doctor {}", resource.name);
    let request = Request::Doctor { resource: resource.name.clone(), step };
    match client.ask(&what, request)? {
        Answer::Doctor(figures) => Ok(*figures),
        _ => {
            Err(Error::Protocol { what, why: "the engine did not answer with figures".to_owned() })
        }
    }
}

fn status(client: &mut Client, resource: &str) -> Result<ResourceStatus, Error> {
    let request = Request::Status { resource: Some(resource.to_owned()) };
    let found = match client.ask("status", request)? {
        Answer::Status(mut status) if status.len() == 1 => status.pop(),
        _ => None,
    };
    found.ok_or_else(|| Error::Object {
        object: resource.to_owned(),
        why: "it was taken down while it was examined".to_owned(),
    })
}
