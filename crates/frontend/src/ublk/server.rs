//! The ublk devices of one thread.
//!
//! A set of objects for a driver's loop, which owns the ring and the targets, as for
//! [`crate::nbd::server`]:
//!
//! ```text
//! for each completion whose token the devices own: devices.on_completed(..)
//! repeat:
//!     devices.turn_end(..)          devices that lacked buffers go on
//!     for each completion whose opener the devices own: devices.on_target_completion(..)
//! until there were no completions
//! devices.flush(..)
//! ```
//!
//! Answers leave with the ring's next submission, all of a turn in one system call.
//!
//! The life of a device is driven from another thread, which talks to [`super::Control`] too:
//!
//! ```text
//! open(target) ──► the target's limits ──► control: add, set limits
//!              start(character device) ──► control: start
//!                      in use
//!                  control: stop ──► wait_back() ──► close() ──► control: delete
//! ```
//!
//! Another process takes devices over by [`Devices::freeze`] and [`Devices::thaw`]: the open targets go with it,
//! and once this one has ended it starts each device anew, by the kernel's recovery. Nothing may be in flight then;
//! what the kernel has asked meanwhile, it asks the other one again.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

use runtime::{BufPool, Completed, Completion, Errno, Intent, OpenerId, Ring, TargetInfo, Token};

use serde::{Deserialize, Serialize};
use vocab::Instant;

use super::channel::Kernel;
use super::device::Device;
use super::uapi::{DeviceInfo, F_UNPRIVILEGED_DEV};
use crate::nbd::server::{TargetKey, Targets};

/// Names a device among those of its thread. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DeviceKey(u32);

/// Devices on their way to another process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrozenDevices {
    /// How many there have been.
    made: u32,
    open: Vec<DeviceKey>,
}

/// How long a request of an unprivileged device may take. After 30 s (`io_timeout` of the queue, which only root
/// can set) the kernel ends the server.
const UNPRIVILEGED_LIMIT: Duration = Duration::from_secs(20);

/// Answers to an open: the target's limits.
pub type OpenReply = mpsc::Sender<Result<TargetInfo, Errno>>;

/// Most devices of a thread in its life: what the tokens have room for.
const DEVICES_MAX: usize = 1 << 24;

/// The devices of one thread; see the module.
pub struct Devices {
    space: u8,
    pool: BufPool,
    places: Vec<Option<Place>>,
    /// Devices that may have to wait for buffers.
    waiting: Vec<u32>,
    /// Devices whose requests may take only so long.
    limited: Vec<DeviceKey>,
    /// Devices with something for [`Devices::flush`].
    unflushed: Vec<u32>,
    /// No requests are taken.
    paused: bool,
}

struct Place {
    target: TargetKey,
    state: State,
    /// Told once all slots are back.
    back: Option<mpsc::Sender<()>>,
}

enum State {
    Opening(OpenReply),
    Open,
    Serving(Device<Kernel>),
}

impl Devices {
    /// Devices whose tokens and openers have `space` in their highest eight bits. Buffers come from
    /// `pool`.
    pub fn new(space: u8, pool: BufPool) -> Devices {
        let (places, waiting, limited, unflushed) = Default::default();
        Devices { space, pool, places, waiting, limited, unflushed, paused: false }
    }

    /// True if a completion with that token is for [`Devices::on_completed`].
    pub fn owns(&self, token: Token) -> bool {
        token.0 >> 56 == u64::from(self.space)
    }

    /// True if a target's completion for that opener is for [`Devices::on_target_completion`].
    pub fn owns_opener(&self, opener: OpenerId) -> bool {
        opener.0 >> 56 == u64::from(self.space)
    }

    /// Space, device, and room for queue and tag.
    fn bits(&self, index: u32) -> u64 {
        u64::from(self.space) << 56 | u64::from(index) << 32
    }

    fn index(bits: u64) -> usize {
        (bits >> 32 & 0xff_ffff) as usize
    }

    fn place(&mut self, key: DeviceKey) -> Option<&mut Place> {
        self.places.get_mut(key.0 as usize)?.as_mut()
    }

    /// Opens a target for a device to be. The answer, which may take seconds, goes to `reply`;
    /// without success there is no device.
    ///
    /// # Errors
    /// `ENODEV`: there is no such target. `ENOSPC`: this thread has had too many devices.
    pub fn open(
        &mut self,
        targets: &mut dyn Targets,
        target: TargetKey,
        intent: Intent,
        reply: OpenReply,
    ) -> Result<DeviceKey, Errno> {
        let index = self.places.len();
        if index >= DEVICES_MAX {
            return Err(Errno::ENOSPC);
        }
        let opened = targets.target(target).ok_or(Errno::ENODEV)?;
        opened.open(OpenerId(self.bits(index as u32)), intent, 0);
        self.places.push(Some(Place { target, state: State::Opening(reply), back: None }));
        Ok(DeviceKey(index as u32))
    }

    /// Serves the requests of a device by its open character device. `info` is what
    /// [`super::Control::add`] or [`super::Control::info`] gave of it.
    ///
    /// # Errors
    /// `ENODEV` if the device is not open; others are the kernel's.
    pub fn start(
        &mut self,
        ring: &mut Ring,
        key: DeviceKey,
        file: OwnedFd,
        info: &DeviceInfo,
    ) -> Result<(), Errno> {
        let bits = self.bits(key.0);
        let place = self.place(key).filter(|place| matches!(place.state, State::Open));
        let place = place.ok_or(Errno::ENODEV)?;
        let channel = Kernel::new(ring, file, info)?;
        let (token, opener) = (Token(bits), OpenerId(bits));
        // An answer that does not come costs an unprivileged server its life.
        let limit = (info.flags & F_UNPRIVILEGED_DEV != 0).then_some(UNPRIVILEGED_LIMIT);
        let mut device = Device::start(channel, ring, info, token, opener, limit);
        device.flush(ring);
        device.take_fresh();
        place.state = State::Serving(device);
        if limit.is_some() {
            self.limited.push(key);
        }
        Ok(())
    }

    /// Has `told` told, or dropped, once the kernel has given all slots of a stopped device back.
    pub fn wait_back(&mut self, key: DeviceKey, told: mpsc::Sender<()>) {
        let Some(place) = self.place(key) else { return };
        match &place.state {
            State::Serving(device) if !device.is_back() => place.back = Some(told),
            _ => drop(told.send(())),
        }
    }

    /// Takes no more requests, until [`Devices::resume`].
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Goes on; what was asked meanwhile is served at the end of the turn.
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// The devices, for [`Devices::thaw`] in another process. Those whose target is being opened stay.
    pub fn freeze(&self) -> FrozenDevices {
        let is_open = |place: &Place| matches!(place.state, State::Open | State::Serving(_));
        let open = self.places.iter().zip(0..).filter_map(|(place, index)| {
            place.as_ref().filter(|place| is_open(place)).map(|_| DeviceKey(index))
        });
        FrozenDevices { made: self.places.len() as u32, open: open.collect() }
    }

    /// Takes over the devices of another process, none of which is started. `target` says what an opener has
    /// open.
    ///
    /// # Errors
    /// If an opener has nothing.
    ///
    /// # Panics
    /// If there have been devices already.
    pub fn thaw(
        &mut self,
        frozen: &FrozenDevices,
        target: impl Fn(OpenerId) -> Option<TargetKey>,
    ) -> Result<(), String> {
        assert!(self.places.is_empty(), "new devices are thawed");
        self.places.resize_with(frozen.made as usize, || None);
        for key in &frozen.open {
            let opener = OpenerId(self.bits(key.0));
            let found = target(opener).zip(self.places.get_mut(key.0 as usize));
            let (target, place) = found.ok_or_else(|| format!("device {} has no target", key.0))?;
            *place = Some(Place { target, state: State::Open, back: None });
        }
        Ok(())
    }

    /// Requests of a device that its target has.
    pub fn in_flight(&self, key: DeviceKey) -> usize {
        match self.places.get(key.0 as usize) {
            Some(Some(Place { state: State::Serving(device), .. })) => device.in_flight(),
            _ => 0,
        }
    }

    /// Reads of a device that were not copied.
    pub fn placed(&self, key: DeviceKey) -> u64 {
        match self.places.get(key.0 as usize) {
            Some(Some(Place { state: State::Serving(device), .. })) => device.placed(),
            _ => 0,
        }
    }

    /// Closes target and character device. Requests in flight are still carried out, but not
    /// answered.
    pub fn close(&mut self, ring: &mut Ring, targets: &mut dyn Targets, key: DeviceKey) {
        let opener = OpenerId(self.bits(key.0));
        let Some(place) = self.places.get_mut(key.0 as usize).and_then(Option::take) else {
            return;
        };
        self.limited.retain(|limited| *limited != key);
        // Otherwise they are lost: the kernel or a disk may still use them.
        if let State::Serving(device) = &place.state
            && device.is_back()
            && device.in_flight() == 0
        {
            ring.give_places(device.channel().places());
        }
        if let Some(target) = targets.target(place.target) {
            target.close(opener);
        }
    }

    /// When [`Devices::turn_end`] has something to do, whatever else happens.
    pub fn deadline(&self) -> Option<Instant> {
        let limited = self.limited.iter().filter_map(|key| match self.places.get(key.0 as usize) {
            Some(Some(Place { state: State::Serving(device), .. })) => device.deadline(),
            _ => None,
        });
        limited.min()
    }

    /// An operation of a device has completed. Returns the error if the kernel refused a slot.
    pub fn on_completed(
        &mut self,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        done: Completed,
    ) -> Option<Errno> {
        let index = Devices::index(done.token.0);
        let Some(Some(place)) = self.places.get_mut(index) else { return None };
        let State::Serving(device) = &mut place.state else { return None };
        let target = targets.target(place.target);
        device.on_completed(ring, target, &self.pool, done, self.paused);
        if device.is_waiting() {
            self.waiting.push(index as u32);
        }
        if device.take_fresh() {
            self.unflushed.push(index as u32);
        }
        if device.is_back()
            && let Some(told) = place.back.take()
        {
            // Whoever waited may have lost patience.
            let _ = told.send(());
        }
        device.take_refusal()
    }

    /// A target has answered a request or the open of a device.
    pub fn on_target_completion(
        &mut self,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        done: Completion,
    ) {
        let index = Devices::index(done.opener.0);
        let Some(Some(place)) = self.places.get_mut(index) else { return };
        match &mut place.state {
            State::Serving(device) => {
                device.on_target(ring, done);
                if device.take_fresh() {
                    self.unflushed.push(index as u32);
                }
            }
            State::Open => panic!("a target answers what it was asked"),
            State::Opening(_) => {
                let State::Opening(reply) = std::mem::replace(&mut place.state, State::Open) else {
                    unreachable!("just seen")
                };
                let info = targets.target(place.target).map(|target| target.info());
                let result = done.result.and_then(|()| info.ok_or(Errno::ENODEV));
                let failed = result.is_err();
                // If nobody waits for the answer any more, nobody will close it either.
                if reply.send(result).is_err() || failed {
                    self.close(ring, targets, DeviceKey(index as u32));
                }
            }
        }
    }

    /// Sends what was collected in a turn, so that it leaves with the ring's next submission. After all else.
    pub fn flush(&mut self, ring: &mut Ring) {
        for index in self.unflushed.drain(..) {
            if let Some(Some(Place { state: State::Serving(device), .. })) =
                self.places.get_mut(index as usize)
            {
                device.flush(ring);
            }
        }
    }

    /// Goes on with requests that lacked buffers, and ends those that have taken too long. True if some still
    /// lack buffers: call it again soon.
    pub fn turn_end(&mut self, ring: &mut Ring, targets: &mut dyn Targets) -> bool {
        for key in &self.limited {
            if let Some(Some(Place { state: State::Serving(device), .. })) =
                self.places.get_mut(key.0 as usize)
            {
                device.end_overdue(ring);
                if device.take_fresh() {
                    self.unflushed.push(key.0);
                }
            }
        }
        if self.waiting.is_empty() || self.paused {
            return false;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_unstable();
        waiting.dedup();
        waiting.retain(|index| {
            let Some(Some(place)) = self.places.get_mut(*index as usize) else { return false };
            let State::Serving(device) = &mut place.state else { return false };
            device.resume(ring, targets.target(place.target), &self.pool);
            if device.take_fresh() {
                self.unflushed.push(*index);
            }
            device.is_waiting()
        });
        self.waiting = waiting;
        !self.waiting.is_empty()
    }
}
