//! Sessions on their way to another process, which goes on with the conversation, the guest's memory and
//! its rings. The devices go with their thread ([`super::server::FrozenDevices`]).
//!
//! What a client has passed are descriptors; so are the memory, the eventfds and the log of requests. All of
//! them travel beside the words, in the order in which [`Session::freeze`] has them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use super::QUEUES_MAX;
use super::inflight::Inflight;
use super::proto::{InflightArea, Region, RingAddress};
use super::server::DeviceKey;
use super::session::{Owner, RingState, Session, Signals};

/// A session that rests.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenSession {
    key: DeviceKey,
    read_only: bool,
    features: u64,
    protocol: u64,
    cached: bool,
    settled: bool,
    goes_on: bool,
    regions: Vec<Region>,
    rings: Vec<FrozenRing>,
    inflight: Option<InflightArea>,
    /// The client has given a socket to hear of a new size.
    news: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FrozenRing {
    size: u16,
    address: Option<RingAddress>,
    base: u16,
    enabled: bool,
    started: bool,
    /// Which of the eventfds there are.
    kick: bool,
    call: bool,
    err: bool,
}

impl FrozenSession {
    /// Its device.
    pub const fn key(&self) -> DeviceKey {
        self.key
    }

    /// How many descriptors belong to it.
    pub fn descriptors(&self) -> usize {
        let events = |ring: &FrozenRing| {
            usize::from(ring.kick) + usize::from(ring.call) + usize::from(ring.err)
        };
        let events: usize = self.rings.iter().map(events).sum();
        let others = usize::from(self.inflight.is_some()) + usize::from(self.news);
        1 + self.regions.len() + events + others
    }
}

impl Session<'_> {
    /// The session as it is, with its descriptors once more. True for as long as it rests.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn freeze(&self) -> io::Result<(FrozenSession, Vec<OwnedFd>)> {
        let mut files = vec![self.socket.try_clone()?];
        let mut regions = Vec::new();
        for (region, file) in self.regions.files()? {
            regions.push(region);
            files.push(file);
        }
        let mut rings = Vec::new();
        for ring in &self.rings {
            for event in [&ring.kick, &ring.call, &ring.err].into_iter().flatten() {
                files.push(event.try_clone()?);
            }
            rings.push(FrozenRing {
                size: ring.size,
                address: ring.address,
                base: ring.base,
                enabled: ring.enabled,
                started: ring.started,
                kick: ring.kick.is_some(),
                call: ring.call.is_some(),
                err: ring.err.is_some(),
            });
        }
        let mut inflight = None;
        if let Some(log) = &self.inflight {
            let (area, file) = log.file()?;
            inflight = Some(area);
            files.push(file);
        }
        if let Some(news) = &self.news {
            files.push(news.try_clone()?.into());
        }
        let frozen = FrozenSession {
            key: self.key,
            read_only: self.read_only,
            features: self.features,
            protocol: self.protocol,
            cached: self.cached,
            settled: self.settled,
            goes_on: self.goes_on,
            regions,
            rings,
            inflight,
            news: self.news.is_some(),
        };
        Ok((frozen, files))
    }

    /// The client is served by this process from now on, under this lease.
    pub fn take_lease(&self) {
        if let (Some(log), true) = (&self.inflight, self.settled && self.goes_on) {
            log.set_lease(self.owner.lease());
        }
    }
}

impl<'a> Session<'a> {
    /// Takes over a session of another process, whose devices are here already, paused. Nothing is read
    /// from the client, and nothing done with its rings, before it is served and the devices go on.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn thaw(
        frozen: FrozenSession,
        files: Vec<OwnedFd>,
        signals: Signals<'a>,
        owner: &'a dyn Owner,
    ) -> Result<Session<'a>, String> {
        let mut files = files.into_iter();
        let mut next = || files.next().ok_or_else(|| "a descriptor is missing".to_owned());
        let stream = UnixStream::from(next()?);
        let (key, read_only) = (frozen.key, frozen.read_only);
        if frozen.rings.len() != usize::from(QUEUES_MAX) {
            return Err(format!("it has {} rings", frozen.rings.len()));
        }
        let info =
            super::session::ask(owner, move |devices, _, targets| devices.info(targets, key));
        let info = info.map_err(|e| e.to_string())?.ok_or("it has no device")?;
        let session = Session::new(stream, signals, owner, (key, info, read_only));
        let mut session = session.map_err(|e| e.to_string())?;
        (session.features, session.protocol) = (frozen.features, frozen.protocol);
        (session.cached, session.settled) = (frozen.cached, frozen.settled);
        session.goes_on = frozen.goes_on;
        for region in frozen.regions {
            session.regions.add(region, next()?)?;
        }
        session.hand_memory().map_err(|e| e.to_string())?;
        let mut started = Vec::new();
        for (index, ring) in (0..).zip(frozen.rings) {
            let mut event = |there: bool| there.then(&mut next).transpose();
            let FrozenRing { size, address, base, enabled, started: served, .. } = ring;
            let (kick, call, err) = (event(ring.kick)?, event(ring.call)?, event(ring.err)?);
            let state = RingState { size, address, base, kick, call, err, enabled, started: false };
            session.rings[index as usize] = state;
            if served {
                started.push(index);
            }
        }
        if let Some(area) = frozen.inflight {
            session.inflight = Some(Inflight::open(area, next()?)?);
        }
        if frozen.news {
            session.hear(next()?).map_err(|e| e.to_string())?;
        }
        for index in started {
            let handed =
                session.described_ring(index).and_then(|split| session.hand_ring(index, split));
            handed.map_err(|e| e.to_string())?;
        }
        Ok(session)
    }
}
