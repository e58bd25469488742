//! The vhost-user devices of one thread.
//!
//! A set of objects for a driver's loop, which owns the ring and the targets, as for
//! [`crate::ublk::server`]. The life of a device is driven by its [`super::session`], from another thread:
//!
//! ```text
//! open(target) ──► start(ring), stop(ring), set_... ──► close()
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use runtime::{
    BufPool, Completed, Completion, Errno, Intent, OpenerId, Ring, Target, TargetInfo, Token,
};

use serde::{Deserialize, Serialize};

use super::QUEUES_MAX;
use super::memory::Guest;
use super::queue::{Context, Setup, Terms, Tokens, Vring};
use super::request::ID_LEN;
use super::split::Broken;
use crate::nbd::server::{TargetKey, Targets};

/// Names a device among those of its thread. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DeviceKey(u32);

/// Answers to an open: the target's limits.
pub type OpenReply = mpsc::Sender<Result<TargetInfo, Errno>>;

/// Something an operator should read: a ring of that device is not served any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingBroken {
    /// The device's name.
    pub device: String,
    /// The ring.
    pub ring: u16,
    /// Why.
    pub why: Broken,
}

/// Devices at rest, on their way to another process; their clients go separately ([`super::session`]).
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenDevices {
    next: u32,
    devices: Vec<FrozenDevice>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FrozenDevice {
    key: u32,
    name: String,
    read_only: bool,
    write_through: bool,
    gone: bool,
    /// Rings that are served, and their next chains.
    rings: Vec<(u16, u16)>,
}

/// The devices of one thread; see the module.
pub struct Devices {
    space: u8,
    pool: BufPool,
    next: u32,
    devices: BTreeMap<u32, Device>,
    /// Devices with something to be done at the end of the turn.
    touched: Vec<u32>,
    /// Rings that lack buffers.
    waiting: Vec<(u32, u16)>,
    broken: Vec<RingBroken>,
    /// No chains are taken, and no kicks waited for.
    paused: bool,
}

struct Device {
    name: String,
    target: TargetKey,
    /// Until the target is open.
    opening: Option<OpenReply>,
    terms: Terms,
    guest: Option<Arc<Guest>>,
    rings: Vec<Option<Vring>>,
    /// Next chains of rings that another process has served, until they are served here.
    inherited: BTreeMap<u16, u16>,
}

/// Bits of tokens, below the space and the device.
const KIND_SHIFT: u32 = 16;
const RING_SHIFT: u32 = 18;
const DEVICE_SHIFT: u32 = 24;
const KICK: u64 = 0;
const CALL: u64 = 1;
const AGAIN: u64 = 2;
const ERR: u64 = 3;
/// Where the ring is in the tags of requests.
const TAG_RING_SHIFT: u32 = 16;

impl Device {
    fn new(
        name: &str,
        target: TargetKey,
        opener: OpenerId,
        read_only: bool,
        opening: Option<OpenReply>,
    ) -> Device {
        let mut id = [0; ID_LEN];
        name.bytes().zip(&mut id).for_each(|(byte, into)| *into = byte);
        let (part_max, write_through, gone) = (0, true, false);
        Device {
            name: name.to_owned(),
            target,
            opening,
            terms: Terms { opener, part_max, write_through, read_only, gone, id },
            guest: None,
            rings: (0..QUEUES_MAX).map(|_| None).collect(),
            inherited: BTreeMap::new(),
        }
    }
}

impl Devices {
    /// Devices whose tokens and openers have `space` in their highest eight bits. Buffers come from
    /// `pool`.
    pub fn new(space: u8, pool: BufPool) -> Devices {
        let (devices, touched, waiting) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (broken, paused) = (Vec::new(), false);
        Devices { space, pool, next: 0, devices, touched, waiting, broken, paused }
    }

    /// True if a completion with that token is for [`Devices::on_completed`].
    pub fn owns(&self, token: Token) -> bool {
        token.0 >> 56 == u64::from(self.space)
    }

    /// True if a target's completion for that opener is for [`Devices::on_target_completion`].
    pub fn owns_opener(&self, opener: OpenerId) -> bool {
        opener.0 >> 56 == u64::from(self.space)
    }

    fn bits(&self, key: u32) -> u64 {
        u64::from(self.space) << 56 | u64::from(key) << DEVICE_SHIFT
    }

    /// Opens a target for a client. The answer, which may take seconds, goes to `reply`; without
    /// success there is no device. The guest can ask for `name`, as far as it has room.
    ///
    /// # Errors
    /// `ENODEV`: there is no such target. `ENOSPC`: this thread has had too many devices.
    pub fn open(
        &mut self,
        targets: &mut dyn Targets,
        target: TargetKey,
        intent: Intent,
        name: &str,
        reply: OpenReply,
    ) -> Result<DeviceKey, Errno> {
        let key = self.next;
        let opener = OpenerId(self.bits(key));
        let opened = targets.target(target).ok_or(Errno::ENODEV)?;
        self.next = key.checked_add(1).ok_or(Errno::ENOSPC)?;
        opened.open(opener, intent, 0);
        let read_only = intent == Intent::Read;
        self.devices.insert(key, Device::new(name, target, opener, read_only, Some(reply)));
        Ok(DeviceKey(key))
    }

    /// Takes no more chains, and no kicks either.
    pub fn pause(&mut self, ring: &mut Ring) {
        if !std::mem::replace(&mut self.paused, true) {
            let rings = self.devices.values_mut().flat_map(|device| &mut device.rings);
            rings.flatten().for_each(|vring| vring.pause(ring));
        }
    }

    /// What keeps the devices from being handed over, once they are paused.
    pub fn unfrozen(&self) -> Option<String> {
        let why = |device: &Device| match device.opening {
            Some(_) => Some("the volume is being opened"),
            None => device.rings.iter().flatten().find_map(Vring::unfrozen),
        };
        let named = |device: &Device| Some(format!("{}: {}", device.name, why(device)?));
        self.devices.values().find_map(named)
    }

    /// A device with a ring that broke: what the guest did to it is not known any more.
    pub fn never_frozen(&self) -> Option<String> {
        let is_broken = |device: &&Device| device.rings.iter().flatten().any(Vring::is_broken);
        let device = self.devices.values().find(is_broken)?;
        Some(format!("a guest has broken a ring of {}; reset it first", device.name))
    }

    /// The devices, for [`Devices::thaw`] in another process.
    ///
    /// # Errors
    /// What is under way.
    pub fn freeze(&self) -> Result<FrozenDevices, String> {
        if let Some(why) = self.unfrozen() {
            return Err(why);
        }
        let freeze = |(key, device): (&u32, &Device)| FrozenDevice {
            key: *key,
            name: device.name.clone(),
            read_only: device.terms.read_only,
            write_through: device.terms.write_through,
            gone: device.terms.gone,
            rings: (0..)
                .zip(&device.rings)
                .filter_map(|(index, vring)| Some((index, vring.as_ref()?.next_chain())))
                .collect(),
        };
        Ok(FrozenDevices { next: self.next, devices: self.devices.iter().map(freeze).collect() })
    }

    /// Takes over the devices of another process, paused. `target` says what an opener has open. Memory
    /// and rings come with their sessions.
    ///
    /// # Errors
    /// If an opener has nothing.
    ///
    /// # Panics
    /// If there have been devices already.
    pub fn thaw(
        &mut self,
        frozen: FrozenDevices,
        targets: &mut dyn Targets,
        target: impl Fn(OpenerId) -> Option<TargetKey>,
    ) -> Result<(), String> {
        assert!(self.next == 0, "new devices are thawed");
        (self.next, self.paused) = (frozen.next, true);
        for device in frozen.devices {
            let FrozenDevice { key, name, read_only, write_through, gone, rings } = device;
            let opener = OpenerId(self.bits(key));
            let target = target(opener).filter(|_| key < frozen.next);
            let target = target.ok_or_else(|| format!("device {name} has no target"))?;
            let mut device = Device::new(&name, target, opener, read_only, None);
            let info = targets.target(target).map(|target| target.info());
            let info = info.ok_or_else(|| format!("device {name} has no target"))?;
            device.terms.part_max = info.max_transfer;
            (device.terms.write_through, device.terms.gone) = (write_through, gone);
            device.inherited = rings.into_iter().collect();
            self.devices.insert(key, device);
        }
        Ok(())
    }

    /// Goes on: nobody has taken over, or this is who has.
    pub fn go_on(&mut self, ring: &mut Ring, targets: &mut dyn Targets) {
        if !std::mem::replace(&mut self.paused, false) {
            return;
        }
        let served = |(key, device): (&u32, &Device)| {
            let rings = (0..).zip(&device.rings).filter(|(_, vring)| vring.is_some());
            rings.map(|(index, _)| (*key, index)).collect::<Vec<_>>()
        };
        let all: Vec<(u32, u16)> = self.devices.iter().flat_map(served).collect();
        for (key, index) in all {
            self.run(ring, targets, key, index, |vring, cx, _| {
                vring.go_on(cx);
                Ok(())
            });
        }
    }

    /// The target as it is now.
    pub fn info(&mut self, targets: &mut dyn Targets, key: DeviceKey) -> Option<TargetInfo> {
        let device = self.devices.get(&key.0)?;
        targets.target(device.target).map(|target| target.info())
    }

    /// From now on this is the guest's memory.
    pub fn set_memory(&mut self, key: DeviceKey, guest: Arc<Guest>) {
        if let Some(device) = self.devices.get_mut(&key.0) {
            device.guest = Some(guest);
        }
    }

    /// Whether the guest relies on each write being durable once it is answered.
    pub fn set_write_through(&mut self, key: DeviceKey, write_through: bool) {
        if let Some(device) = self.devices.get_mut(&key.0) {
            device.terms.write_through = write_through;
        }
    }

    /// Whether every request fails from now on.
    pub fn set_gone(&mut self, key: DeviceKey, gone: bool) {
        if let Some(device) = self.devices.get_mut(&key.0) {
            device.terms.gone = gone;
        }
    }

    /// Does something with a ring that is served.
    fn with<T>(
        &mut self,
        ring: &mut Ring,
        key: DeviceKey,
        index: u16,
        run: impl FnOnce(&mut Vring, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let bits = self.bits(key.0);
        let device = self.devices.get_mut(&key.0)?;
        let Device { rings, guest, terms, .. } = device;
        let vring = rings.get_mut(usize::from(index))?.as_mut()?;
        let guest = guest.as_deref()?;
        let mut cx = context(ring, &self.pool, guest, terms, bits, index);
        cx.paused = self.paused;
        let result = run(vring, &mut cx);
        self.touched.push(key.0);
        Some(result)
    }

    /// Serves a ring from now on.
    ///
    /// # Errors
    /// Why it can not be served.
    pub fn start(
        &mut self,
        ring: &mut Ring,
        key: DeviceKey,
        index: u16,
        mut setup: Setup,
    ) -> Result<(), String> {
        let bits = self.bits(key.0);
        let device = self.devices.get_mut(&key.0).ok_or("the device is closed")?;
        let guest = device.guest.as_deref().ok_or("the guest's memory is not known")?;
        let place = device.rings.get_mut(usize::from(index)).ok_or("there is no such ring")?;
        if place.is_some() {
            return Err("it is served already".to_owned());
        }
        if let Some(base) = device.inherited.remove(&index) {
            setup.base = base;
        }
        let mut cx = context(ring, &self.pool, guest, &device.terms, bits, index);
        cx.paused = self.paused;
        *place = Some(Vring::start(&mut cx, setup)?);
        self.touched.push(key.0);
        Ok(())
    }

    /// Serves a ring no longer. `told` gets the index of the next chain once all that were taken are
    /// used; it is dropped if the ring is not served.
    pub fn stop(&mut self, ring: &mut Ring, key: DeviceKey, index: u16, told: mpsc::Sender<u16>) {
        self.with(ring, key, index, |vring, cx| vring.stop(cx.ring, told));
    }

    /// Calls go there from now on.
    pub fn set_call(&mut self, ring: &mut Ring, key: DeviceKey, index: u16, call: Option<OwnedFd>) {
        self.with(ring, key, index, |vring, _| vring.set_call(call));
    }

    /// Errors go there from now on.
    pub fn set_err(&mut self, ring: &mut Ring, key: DeviceKey, index: u16, err: Option<OwnedFd>) {
        self.with(ring, key, index, |vring, _| vring.set_err(err));
    }

    /// Chains are taken from now on, or not.
    pub fn set_enabled(&mut self, ring: &mut Ring, key: DeviceKey, index: u16, enabled: bool) {
        self.with(ring, key, index, |vring, cx| vring.set_enabled(cx, enabled));
    }

    /// Requests that are taken and not answered.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        let rings = self.devices.values().flat_map(|device| &device.rings);
        rings.flatten().map(Vring::in_flight).sum()
    }

    /// Closes the target. Requests in flight are still carried out, but not answered.
    pub fn close(&mut self, ring: &mut Ring, targets: &mut dyn Targets, key: DeviceKey) {
        let Some(device) = self.devices.remove(&key.0) else { return };
        for mut vring in device.rings.into_iter().flatten() {
            vring.stop(ring, mpsc::channel().0);
        }
        if let Some(target) = targets.target(device.target) {
            target.close(device.terms.opener);
        }
    }

    /// An operation of a device has completed.
    pub fn on_completed(&mut self, ring: &mut Ring, targets: &mut dyn Targets, done: Completed) {
        let bits = done.token.0;
        let index = (bits >> RING_SHIFT & 0x3f) as u16;
        self.run(
            ring,
            targets,
            (bits >> DEVICE_SHIFT) as u32,
            index,
            |vring, cx, target| match bits >> KIND_SHIFT & 3 {
                KICK => vring.on_kick(cx, target, done.payload, done.result),
                AGAIN => vring.on_again(cx, target),
                CALL => {
                    vring.on_called(cx);
                    Ok(())
                }
                _ => Ok(()),
            },
        );
    }

    /// A target has answered a request or the open of a device.
    pub fn on_target_completion(
        &mut self,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        done: Completion,
    ) {
        let key = (done.opener.0 >> DEVICE_SHIFT) as u32;
        let Some(device) = self.devices.get_mut(&key) else { return };
        if let Some(reply) = device.opening.take() {
            let info = targets.target(device.target).map(|target| target.info());
            let result = done.result.and_then(|()| info.ok_or(Errno::ENODEV));
            if let Ok(info) = result {
                device.terms.part_max = info.max_transfer;
            }
            let failed = result.is_err();
            // If nobody waits for the answer any more, nobody will close it either.
            if reply.send(result).is_err() || failed {
                self.close(ring, targets, DeviceKey(key));
            }
            return;
        }
        let index = (done.tag >> TAG_RING_SHIFT) as u16;
        self.run(ring, targets, key, index, |vring, cx, target| vring.on_target(cx, target, done));
    }

    /// Has a ring do something with its target, and notes if that breaks it.
    fn run(
        &mut self,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        key: u32,
        index: u16,
        step: impl FnOnce(&mut Vring, &mut Context<'_>, &mut dyn Target) -> Result<(), Broken>,
    ) {
        let bits = self.bits(key);
        let Some(device) = self.devices.get_mut(&key) else { return };
        let Device { name, target, rings, guest, terms, .. } = device;
        let place = rings.get_mut(usize::from(index));
        let Some(place) = place else { return };
        let (Some(vring), Some(guest)) = (place.as_mut(), guest.as_deref()) else { return };
        let Some(target) = targets.target(*target) else { return };
        let mut cx = context(ring, &self.pool, guest, terms, bits, index);
        cx.paused = self.paused;
        if let Err(why) = step(vring, &mut cx, target) {
            self.broken.push(RingBroken { device: name.clone(), ring: index, why });
        }
        if vring.is_waiting() {
            self.waiting.push((key, index));
        }
        if self.touched.last() != Some(&key) {
            self.touched.push(key);
        }
    }

    /// Goes on with requests that lacked buffers. True if some still do: call it again soon, and once a
    /// turn at most, since buffers come back with what the ring completes.
    pub fn resume(&mut self, ring: &mut Ring, targets: &mut dyn Targets) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_unstable();
        waiting.dedup();
        for (key, index) in waiting.drain(..) {
            self.run(ring, targets, key, index, |vring, cx, target| vring.resume(cx, target));
        }
        waiting.append(&mut self.waiting);
        self.waiting = waiting;
        !self.waiting.is_empty()
    }

    /// Ends the turn of those that did something in it: sends off what their targets collected, and
    /// calls guests.
    pub fn turn_end(&mut self, ring: &mut Ring, targets: &mut dyn Targets) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for key in touched.drain(..) {
            self.end_device(ring, targets, key);
        }
        self.touched = touched;
    }

    fn end_device(&mut self, ring: &mut Ring, targets: &mut dyn Targets, key: u32) {
        let bits = self.bits(key);
        let Some(device) = self.devices.get_mut(&key) else { return };
        let Device { name, target, rings, guest, terms, .. } = device;
        if let Some(target) = targets.target(*target) {
            target.flush_submissions();
        }
        let Some(guest) = guest.as_deref() else { return };
        for (index, place) in rings.iter_mut().enumerate() {
            let Some(vring) = place else { continue };
            let index = index as u16;
            let mut cx = context(ring, &self.pool, guest, terms, bits, index);
            if let Err(why) = vring.call(&mut cx) {
                self.broken.push(RingBroken { device: name.clone(), ring: index, why });
            }
            if vring.tell_stopped() {
                *place = None;
            }
        }
    }

    /// Takes what an operator should read.
    pub fn take_broken(&mut self) -> impl Iterator<Item = RingBroken> {
        std::mem::take(&mut self.broken).into_iter()
    }
}

fn context<'a>(
    ring: &'a mut Ring,
    pool: &'a BufPool,
    guest: &'a Guest,
    terms: &'a Terms,
    bits: u64,
    index: u16,
) -> Context<'a> {
    let token = |kind| Token(bits | u64::from(index) << RING_SHIFT | kind << KIND_SHIFT);
    let tokens =
        Tokens { kick: token(KICK), call: token(CALL), again: token(AGAIN), err: token(ERR) };
    let tag = u64::from(index) << TAG_RING_SHIFT;
    Context { ring, pool, guest, terms, paused: false, tag, tokens }
}
