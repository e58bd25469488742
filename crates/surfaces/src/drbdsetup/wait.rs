//! `wait-connect-*` and `wait-sync-*` (drbdsetup contract §3.6).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use codec::admin::{ConnectionStatus, Event, PeerDeviceStatus, Request, ResourceStatus};
use vocab::{ConnState, DiskState, NodeId, ReplState, VolumeNr};

use super::Session;
use super::error::Stop;
use crate::cli::Error;

/// What is waited for.
struct Subject {
    sync: bool,
    peer: Option<NodeId>,
    volume: Option<VolumeNr>,
    /// How long for a peer device, and for one whose peer is known to be Outdated.
    patience: Option<Duration>,
    patience_outdated: Option<Duration>,
}

impl Subject {
    fn done(&self, device: &PeerDeviceStatus) -> bool {
        match self.sync {
            true => device.replication_state == ReplState::Established,
            false => device.replication_state >= ReplState::Established,
        }
    }

    fn patience(&self, device: &PeerDeviceStatus) -> Option<Duration> {
        match device.peer_disk_state {
            DiskState::Outdated => self.patience_outdated,
            _ => self.patience,
        }
    }

    /// The connections in scope.
    fn connections<'s>(
        &'s self,
        state: &'s ResourceStatus,
    ) -> impl Iterator<Item = &'s ConnectionStatus> {
        state.connections.iter().filter(|c| self.peer.is_none_or(|peer| c.peer_node_id == peer))
    }

    /// The peer devices in scope that are not there yet.
    fn pending<'s>(
        &'s self,
        state: &'s ResourceStatus,
    ) -> impl Iterator<Item = &'s PeerDeviceStatus> {
        let devices = self.connections(state).flat_map(|c| &c.peer_devices);
        let in_scope = devices.filter(|d| self.volume.is_none_or(|volume| d.volume == volume));
        in_scope.filter(|d| !self.done(d))
    }
}

impl Session<'_> {
    pub(super) fn wait(&mut self, sync: bool) -> Result<(), Stop> {
        let arguments = self.parsed.command.arguments.len();
        let peer = if arguments > 1 { Some(self.parsed.node(1)?) } else { None };
        let volume = if arguments > 2 { Some(self.parsed.volume(2)?) } else { None };
        let (patience, patience_outdated) = self.patience()?;
        let subject = Subject { sync, peer, volume, patience, patience_outdated };
        let after_sb = self.parsed.flag("wait-after-sb");
        let start = Instant::now();
        let name = self.parsed.resource();
        self.order(Request::Events { resource: Some(name.clone()), statistics_ms: None })?;
        let mut state: Option<ResourceStatus> = None;
        let mut known: BTreeMap<NodeId, ConnState> = BTreeMap::new();
        let mut live = false;
        loop {
            let deadline = match (&state, live) {
                // Without a resource there is nothing to wait for.
                (None, true) => return Ok(()),
                (Some(state), true) => match self.deadline(&subject, state, start)? {
                    None => return Ok(()),
                    Some(deadline) => deadline,
                },
                (_, false) => None,
            };
            let object = &name;
            let client = self.client().map_err(|e| Stop::of(object, e))?;
            match client.event_before(deadline) {
                Err(Error::NoAnswer { .. }) => return Err(timed_out()),
                Err(error) => return Err(Stop::of(object, error)),
                Ok(None) => {
                    let what = self.parsed.command.name.to_owned();
                    return Err(Stop::of(object, Error::Closed { what }));
                }
                Ok(Some(Event::Current)) => live = true,
                Ok(Some(Event::Helper(_))) => {}
                Ok(Some(Event::Gone { .. })) => return Ok(()),
                Ok(Some(Event::Resource(new))) => {
                    if self.given_up(&subject, &new, &mut known, live, after_sb)? {
                        return Ok(());
                    }
                    state = Some(new);
                }
            }
        }
    }

    /// How long to wait, from the options; `None` is for ever. What does not fit together is
    /// adapted, with a word.
    fn patience(&mut self) -> Result<(Option<Duration>, Option<Duration>), Stop> {
        let wfc = self.parsed.amount("wfc-timeout").unwrap_or(0);
        let degr = self.parsed.amount("degr-wfc-timeout");
        let mut outdated = self.parsed.amount("outdated-wfc-timeout").unwrap_or(0);
        if degr.is_some() {
            // The engine keeps no record of whether it was alone before.
            writeln!(self.err, "--degr-wfc-timeout: has no effect here, --wfc-timeout counts")?;
        }
        if wfc > 0 && (outdated == 0 || outdated > wfc) {
            if outdated > wfc {
                writeln!(self.err, "--outdated-wfc-timeout: lowered to --wfc-timeout, {wfc} s")?;
            }
            outdated = wfc;
        }
        let seconds = |n| (n > 0).then(|| Duration::from_secs(n));
        Ok((seconds(wfc), seconds(outdated)))
    }

    /// Until when to wait for the next event; `None` when there is nothing to wait for any more.
    fn deadline(
        &self,
        subject: &Subject,
        state: &ResourceStatus,
        start: Instant,
    ) -> Result<Option<Option<Instant>>, Stop> {
        let now = Instant::now();
        let mut pending = subject.pending(state).peekable();
        if pending.peek().is_none() {
            return Ok(None);
        }
        let ends: Vec<_> = pending.map(|d| subject.patience(d).map(|p| start + p)).collect();
        // One whose time is over counts as done while others go on.
        let left: Vec<_> = ends.into_iter().filter(|end| end.is_none_or(|e| e > now)).collect();
        if left.is_empty() {
            return Err(timed_out());
        }
        Ok(Some(left.into_iter().flatten().min()))
    }

    /// True if a connection in scope has been given up: nobody must wait at boot for an end of a
    /// split brain. One that was just created has not been.
    fn given_up(
        &mut self,
        subject: &Subject,
        state: &ResourceStatus,
        known: &mut BTreeMap<NodeId, ConnState>,
        live: bool,
        after_sb: bool,
    ) -> Result<bool, Stop> {
        for connection in subject.connections(state) {
            let now = connection.connection_state;
            let before = known.insert(connection.peer_node_id, now);
            if now >= ConnState::Unconnected || before == Some(now) || (live && before.is_none()) {
                continue;
            }
            if !after_sb {
                return Ok(true);
            }
            writeln!(self.err, "{}: {} is {now}; waiting", state.name, connection.name)?;
        }
        Ok(false)
    }
}

fn timed_out() -> Stop {
    Stop::Exit { status: 5, text: String::new() }
}
