//! A shard: one worker thread, and the resources that belong to it.
//!
//! ```text
//! turn:  collect completions, messages, expired timers
//!        feed each to its resource's core, carry out the outputs
//!        answer front ends, until nobody has anything left to say
//!        one gathered write per peer socket, one submission for all disk operations
//!        wait until the earliest deadline
//! ```
//!
//! - `host`: a resource: the core and what its outputs are carried out with.
//! - `disk`, `attach`: local disks. `volume`: volumes as targets of the front ends.
//! - `calls`: handlers of a resource. `handover`: all of it on its way to another process.
//! - `waterfall`: where the time of requests goes.
//! - `io`, `bufs`, `token`: what they share.
//!
//! Nothing on a shard is shared with another thread; others send closures to its mailbox.

mod attach;
mod bufs;
mod calls;
pub(crate) mod disk;
mod handover;
pub(crate) mod host;
pub(crate) mod io;
#[cfg(test)]
mod tests;
pub(crate) mod token;
pub(crate) mod volume;
mod waterfall;

use std::sync::Arc;
use std::time::Duration;

use frontend::nbd::server::{self, CloseReason, Config, Moved, Server};
use frontend::{ublk, vhost};
use replication::config::ResourceConfig;
use runtime::{Completed, Completion, Errno, Mailbox, SendError, Sender, Timers, Worker};
use vocab::Instant;

use crate::handlers::Programs;
use crate::hub::Hub;
use crate::order::Order;
pub(crate) use attach::{placement, superblock_place};
use disk::Finished;
pub(crate) use handover::FrozenShard;
use host::Host;
use io::Io;
use logging::{Level, log};
use token::{MAILBOX, NBD_SPACE, Purpose, UBLK_SPACE, VHOST_SPACE};
use volume::{Volumes, Wish};

/// How soon those who lack memory try again.
const STARVED: Duration = Duration::from_millis(1);

/// A message from another thread.
pub(crate) enum Message {
    /// Run this between two turns.
    Do(Box<dyn FnOnce(&mut Shard) + Send>),
    /// A client of the NBD server whose export is here.
    Adopt(Box<Moved>),
    /// End the thread.
    Stop,
}

/// The state of a shard.
pub(crate) struct Shard {
    pub(crate) io: Io,
    pub(crate) hosts: Hosts,
    pub(crate) volumes: Volumes,
    pub(crate) nbd: Server,
    /// Volumes as block devices of this machine.
    pub(crate) ublk: ublk::Devices,
    /// Volumes as disks of virtual machines.
    pub(crate) vhost: vhost::Devices,
    /// All shards, by number, and this one's.
    pub(crate) peers: Vec<Sender<Message>>,
    nr: usize,
    /// Why the kernel does not pin (all of) the buffers, if it does not.
    pub(crate) pin_refused: Option<Errno>,
    hub: Arc<Hub>,
    pub(crate) order: Order,
    /// Other shards have not all been told that it has changed.
    pub(crate) order_changed: bool,
    timers: Timers<u16>,
    /// Resources that had something to do in this turn.
    busy: Vec<u16>,
    wishes: Vec<Wish>,
    touched: Vec<u32>,
    answers: Vec<Completion>,
    /// Nothing is done.
    pub(crate) frozen: bool,
    /// What was completed meanwhile.
    kept: Vec<Completed>,
}

/// The resources of a shard, by number.
#[derive(Default)]
pub(crate) struct Hosts {
    slots: Vec<Option<Box<Host>>>,
}

impl Hosts {
    pub(crate) fn get_mut(&mut self, id: u16) -> Option<&mut Host> {
        self.slots.get_mut(usize::from(id))?.as_deref_mut()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Host> {
        self.slots.iter_mut().flatten().map(|host| &mut **host)
    }
}

impl Shard {
    fn new(io: Io, nr: usize, hub: Arc<Hub>, order: Order) -> Shard {
        let nbd = Server::new(NBD_SPACE, io.pool.clone(), Config::default());
        let ublk = ublk::Devices::new(UBLK_SPACE, io.pool.clone());
        let vhost = vhost::Devices::new(VHOST_SPACE, io.pool.clone());
        Shard {
            io,
            hosts: Hosts::default(),
            volumes: Volumes::default(),
            nbd,
            ublk,
            vhost,
            peers: Vec::new(),
            nr,
            pin_refused: None,
            hub,
            order,
            order_changed: false,
            timers: Timers::new(),
            busy: Vec::new(),
            wishes: Vec::new(),
            touched: Vec::new(),
            answers: Vec::new(),
            frozen: false,
            kept: Vec::new(),
        }
    }

    /// Adds a resource. `None` if the shard can not hold more.
    pub(crate) fn add_resource(
        &mut self,
        config: ResourceConfig,
        programs: Programs,
    ) -> Option<u16> {
        // Numbers are not used again: an operation on a disk can outlive its resource.
        let id = u16::try_from(self.hosts.slots.len()).ok()?;
        self.hosts.slots.push(Some(Box::new(Host::new(id, config, programs))));
        self.busy.push(id);
        Some(id)
    }

    /// Removes a resource that has no volumes and no peers left.
    pub(crate) fn remove_resource(&mut self, id: u16) {
        if let Some(host) = self.hosts.slots[usize::from(id)].take() {
            self.hub.gone(&host.name);
        }
        self.timers.cancel(id);
    }

    /// Does something with a resource, which then counts as busy.
    pub(crate) fn with<T>(
        &mut self,
        id: u16,
        f: impl FnOnce(&mut Host, &mut Io, &mut Volumes) -> T,
    ) -> Option<T> {
        let host = self.hosts.get_mut(id)?;
        let result = f(host, &mut self.io, &mut self.volumes);
        if self.busy.last() != Some(&id) {
            self.busy.push(id);
        }
        Some(result)
    }

    fn completed(&mut self, done: Completed) {
        match token::purpose(done.token) {
            Purpose::Nbd => self.nbd.on_completed(&mut self.io.ring, &mut self.volumes, done),
            Purpose::Link(link) => {
                self.with(link.resource, |host, io, volumes| {
                    host.link_completed(io, volumes, link.node, (link.op, link.serial), done);
                });
            }
            Purpose::Disk(job) => {
                if let Some(finished) = disk::completed(&mut self.io, job, done) {
                    self.finished(finished);
                }
            }
            Purpose::Listener(index) => {
                let Io { listeners, ring, pool, .. } = &mut self.io;
                if let Some((who, conn)) = listeners.accepted(ring, index, done, pool) {
                    self.with(who.resource, |host, io, _| host.accepted(io, who.node, conn));
                }
            }
            Purpose::Ublk => {
                let Shard { ublk, io, volumes, .. } = self;
                if let Some(errno) = ublk.on_completed(&mut io.ring, volumes, done) {
                    log!(
                        Level::Error,
                        "engine",
                        "ublk: the kernel has given up a request's slot: {errno}"
                    );
                }
            }
            Purpose::Vhost => self.vhost.on_completed(&mut self.io.ring, &mut self.volumes, done),
            Purpose::Mailbox => unreachable!("the loop sees to the mailbox"),
        }
    }

    fn finished(&mut self, finished: Finished) {
        let resource = match &finished {
            Finished::Disk(owner, _) | Finished::Meta(owner, _) => owner.resource,
            Finished::Attach(job) => job.resource,
            Finished::Measured(resource, ..) => *resource,
            Finished::Looked(look, _) => look.resource,
        };
        self.with(resource, |host, io, volumes| host.finished(io, volumes, finished));
    }

    /// Lets cores and front ends talk until nobody has anything to say.
    fn converse(&mut self) {
        // Once a turn: to try is to look at a volume, which counts as something to say, and buffers come
        // back only with what the ring completes.
        self.io.starved |= self.ublk.turn_end(&mut self.io.ring, &mut self.volumes);
        self.io.starved |= self.vhost.resume(&mut self.io.ring, &mut self.volumes);
        loop {
            let mut quiet = true;
            while let Some(finished) = self.io.jobs.finished.pop() {
                quiet = false;
                self.finished(finished);
            }
            self.nbd.turn_end(&mut self.io.ring, &mut self.volumes);
            self.vhost.turn_end(&mut self.io.ring, &mut self.volumes);
            let mut touched = std::mem::take(&mut self.touched);
            self.volumes.take_touched(&mut touched);
            for key in touched.drain(..) {
                quiet = false;
                self.talk(key);
            }
            self.touched = touched;
            quiet &= !self.run_handlers();
            if quiet {
                return;
            }
        }
    }

    /// Starts handlers that are called. True if there were any.
    fn run_handlers(&mut self) -> bool {
        let any = !self.io.calls.is_empty();
        for call in std::mem::take(&mut self.io.calls) {
            let (resource, id) = (call.resource, call.id);
            let sender = self.peers.get(self.nr).cloned();
            let ended = move |exit| {
                if let Some(sender) = sender {
                    tell(&sender, move |shard| shard.handler_done(resource, id, exit));
                }
            };
            if call.start(ended).is_err() {
                self.handler_done(resource, id, None);
            }
        }
        any
    }

    fn handler_done(&mut self, resource: u16, id: u64, exit: Option<u8>) {
        self.with(resource, |host, io, volumes| host.handler_done(io, volumes, id, exit));
    }

    /// Carries wishes of a volume to its core, and completions to the front end.
    fn talk(&mut self, key: u32) {
        let mut wishes = std::mem::take(&mut self.wishes);
        let owner = self.volumes.take_wishes(key, &mut wishes);
        if let Some((resource, nr)) = owner {
            for wish in wishes.drain(..) {
                self.with(resource, |host, io, volumes| host.wish(io, volumes, nr, wish));
            }
        }
        self.wishes = wishes;
        let mut answers = std::mem::take(&mut self.answers);
        self.volumes.take_completions(key, &mut answers);
        for done in answers.drain(..) {
            if self.nbd.owns_opener(done.opener) {
                self.nbd.on_target_completion(&mut self.io.ring, &mut self.volumes, done);
            } else if self.ublk.owns_opener(done.opener) {
                self.ublk.on_target_completion(&mut self.io.ring, &mut self.volumes, done);
            } else if self.vhost.owns_opener(done.opener) {
                self.vhost.on_target_completion(&mut self.io.ring, &mut self.volumes, done);
            }
        }
        self.answers = answers;
        if let Some((resource, nr)) = owner
            && let Some(host) = self.hosts.get_mut(resource)
        {
            host.answered(nr);
        }
    }

    /// Ends a turn: sends what is queued, tells subscribers, and sets the next deadlines.
    fn end_turn(&mut self) {
        let mut busy = std::mem::take(&mut self.busy);
        busy.sort_unstable();
        busy.dedup();
        for id in busy.drain(..) {
            let Some(host) = self.hosts.get_mut(id) else { continue };
            host.flush(&mut self.io);
            let deadline = host.deadline(self.io.now());
            self.timers.set(id, deadline);
            if std::mem::take(&mut host.changed) {
                if self.hub.wants(&host.name) {
                    self.hub.publish(host.status());
                }
                self.order_changed |= self.note_resyncs(id);
            }
        }
        self.busy = busy;
        self.ublk.flush(&mut self.io.ring);
        self.tell_order();
        for moved in self.nbd.take_moved() {
            let thread = moved.thread as usize;
            // A shard that is gone takes its clients along.
            let _ = self.peers[thread].send(Message::Adopt(Box::new(moved)));
        }
        for event in self.nbd.take_events() {
            log_nbd(&event);
        }
        for vhost::server::RingBroken { device, ring, why } in self.vhost.take_broken() {
            log!(Level::Warn, device, "ring {ring} of the guest is not served any more: {why}");
        }
    }

    fn deadline(&mut self) -> Option<Instant> {
        if self.frozen {
            return None;
        }
        // A full mailbox is tried again as soon.
        let again = self.io.starved || self.order_changed;
        let starved = again.then(|| self.io.now() + STARVED);
        let devices = self.nbd.deadline().into_iter().chain(self.ublk.deadline()).min();
        let all = [self.timers.next_deadline(), devices, starved, self.io.full_until];
        all.into_iter().flatten().min()
    }

    fn timeouts(&mut self) {
        let now = self.io.now();
        while let Some(id) = self.timers.pop_expired(now) {
            self.with(id, |host, io, volumes| host.timeout(io, volumes));
        }
        if self.io.full_until.is_some_and(|until| until <= now) {
            disk::retry_full(&mut self.io);
        }
        for (owner, full) in std::mem::take(&mut self.io.jobs.full_news) {
            self.with(owner.resource, |host, io, _| host.full(io, owner.volume, full));
        }
        if std::mem::take(&mut self.io.starved) {
            disk::retry_starved(&mut self.io);
            let ids: Vec<u16> = self.hosts.iter_mut().map(|host| host.id).collect();
            for id in ids {
                self.with(id, |host, io, volumes| host.unstarve(io, volumes));
            }
        }
    }

    /// Publishes the state of a resource, or of all, to one subscriber.
    pub(crate) fn publish_to(&mut self, subscriber: u64, resource: Option<&str>) {
        for host in self.hosts.iter_mut() {
            if resource.is_none_or(|name| name == host.name) {
                self.hub.publish_to(subscriber, host.status());
            }
        }
    }
}

/// Has a shard do something, from another thread.
fn tell(sender: &Sender<Message>, task: impl FnOnce(&mut Shard) + Send + 'static) {
    let mut message = Message::Do(Box::new(task));
    while let Err(SendError::Full(back)) = sender.send(message) {
        message = back;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The main function of a shard's thread.
pub(crate) fn run(worker: Worker<Message>, nr: usize, hub: Arc<Hub>, order: Order) {
    match serve(worker, nr, hub, order) {
        Ok(()) => {}
        Err(errno) => {
            log!(Level::Error, "engine", "thread {nr} can not go on: {errno}; the engine ends");
            // Half an engine would hold its resources without serving them.
            std::process::exit(1);
        }
    }
}

fn serve(worker: Worker<Message>, nr: usize, hub: Arc<Hub>, order: Order) -> Result<(), Errno> {
    let Worker { ring, pool, inbox, .. } = worker;
    let mut shard = Shard::new(Io::new(ring, pool)?, nr, hub, order);
    let mut mailbox = Mailbox::new(inbox, MAILBOX)?;
    mailbox.arm(&mut shard.io.ring);
    let (mut events, mut messages) = (Vec::new(), Vec::new());
    loop {
        let deadline = shard.deadline();
        shard.io.ring.wait(deadline, &mut events)?;
        for done in events.drain(..) {
            if done.token == MAILBOX {
                mailbox.on_completed(&mut shard.io.ring, &mut messages);
            } else if shard.frozen {
                shard.kept.push(done);
            } else {
                shard.completed(done);
            }
        }
        for message in messages.drain(..) {
            match message {
                Message::Do(task) => task(&mut shard),
                Message::Adopt(moved) => {
                    shard.nbd.adopt(&mut shard.io.ring, &mut shard.volumes, *moved);
                }
                Message::Stop => return Ok(()),
            }
        }
        if shard.frozen {
            continue;
        }
        shard.timeouts();
        shard.converse();
        shard.end_turn();
        if let Some(errno) = shard.io.ring.take_pin_refusal() {
            shard.pin_refused = Some(errno);
            log!(
                Level::Warn,
                "engine",
                "thread {nr} can not pin more of its buffers: {errno}; the disks work, and cost a \
                 little more CPU time. Raise the limit of locked memory (LimitMEMLOCK, ulimit -l)."
            );
        }
    }
}

fn log_nbd(event: &server::Event) {
    match event {
        server::Event::Opened { peer, export, read_only } => {
            let how = if *read_only { "to read" } else { "to read and write" };
            log!(Level::Info, export, "opened {how} by {peer}");
        }
        server::Event::Refused { peer, export, errno } => {
            log!(Level::Warn, export, "not opened for {peer}: {errno}");
        }
        server::Event::Closed { peer, export, reason, in_flight } => {
            let export = export.as_deref().unwrap_or("engine");
            let level = match reason {
                CloseReason::Left | CloseReason::ExportRemoved | CloseReason::Stopped => {
                    Level::Info
                }
                CloseReason::Lost(_) => Level::Info,
                CloseReason::Violation(_) | CloseReason::NegotiationIdle => Level::Warn,
            };
            log!(
                level,
                export,
                "NBD client {peer} is gone ({reason:?}), {in_flight} requests left"
            );
        }
        server::Event::TooManyClients => {
            log!(Level::Warn, "engine", "an NBD client was turned away: there are too many");
        }
        server::Event::AcceptFailed(errno) => {
            log!(Level::Warn, "engine", "can not accept NBD clients: {errno}");
        }
    }
}
