//! Handlers of a run: what is called, and how it ends.
//!
//! A scenario says how they exit. Otherwise they are those of a careful operator of two nodes, with
//! a memory and a network of their own that always work: `fence-peer` notes that only its node may
//! be promoted, unless that is noted of the peer already, and outdates the peer's disks, or takes its
//! power away where the policy is made for that. `unfence-peer` strikes the note out. For a disk that
//! is no more than Consistent, and of which no note says that it was the last one in use, nobody is
//! fenced: that of the peer may be the newer one. Now and then something does not work.

use std::collections::{BTreeMap, BTreeSet};

use replication::io::{AdminCommand, HandlerCall, Input};
use vocab::options::Fencing;
use vocab::{DiskState, HandlerEvent, Role, VolumeNr};

use crate::operator::Phase;
use crate::plan::{MILLISECOND, SECOND};
use crate::rng::Rng;
use crate::trace;
use crate::view::View;
use crate::world::{Event, World};

/// A step of a running handler.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandlerStep {
    /// `fence-peer` does something about a node.
    Fence { call: Running, peer: usize },
    /// It looks at what came of it.
    Look { call: Running, peer: usize },
    /// It ends.
    End { call: Running, exit: Option<u8> },
}

impl HandlerStep {
    const fn call(self) -> Running {
        match self {
            HandlerStep::Fence { call, .. }
            | HandlerStep::Look { call, .. }
            | HandlerStep::End { call, .. } => call,
        }
    }

    /// The node whose handler it is.
    pub(crate) const fn node(self) -> usize {
        self.call().node
    }
}

/// A call of a process of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    node: usize,
    incarnation: u32,
    id: u64,
    event: HandlerEvent,
    /// When it was called.
    at: u64,
}

/// Handlers of a run.
#[derive(Debug)]
pub(crate) struct Handlers {
    rng: Rng,
    /// How they exit in a scenario, if not with 0.
    exits: BTreeMap<HandlerEvent, Option<u8>>,
    /// Those that go on until a scenario says so.
    held: BTreeSet<HandlerEvent>,
    waiting: Vec<Running>,
    /// The only node that may be promoted, and since when that is noted.
    only: Option<(usize, u64)>,
    calls: Vec<(usize, HandlerCall)>,
}

impl Handlers {
    pub(crate) fn new(rng: Rng) -> Handlers {
        Handlers {
            rng,
            exits: BTreeMap::new(),
            held: BTreeSet::new(),
            waiting: Vec::new(),
            only: None,
            calls: Vec::new(),
        }
    }
}

impl World {
    /// In a scenario: what a handler exits with from now on; `None` is one that breaks.
    pub fn handler_exits(&mut self, event: HandlerEvent, exit: Option<u8>) {
        self.handlers.held.remove(&event);
        self.handlers.exits.insert(event, exit);
    }

    /// In a scenario: a handler goes on until [`release_handler`](Self::release_handler).
    pub fn hold_handler(&mut self, event: HandlerEvent) {
        self.handlers.held.insert(event);
    }

    /// In a scenario: all calls of a handler that is held end.
    pub fn release_handler(&mut self, event: HandlerEvent, exit: Option<u8>) {
        self.handlers.held.remove(&event);
        let (ended, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.handlers.waiting)
            .into_iter()
            .partition(|call| call.event == event);
        self.handlers.waiting = waiting;
        for call in ended {
            self.handler_step_in(1, HandlerStep::End { call, exit });
        }
    }

    /// The calls of a handler by a node, in order.
    pub fn calls_of(&self, node: usize, event: HandlerEvent) -> Vec<HandlerCall> {
        let calls = self.handlers.calls.iter();
        calls.filter(|(of, call)| *of == node && call.event == event).map(|(_, c)| *c).collect()
    }

    pub(crate) fn handler_called(&mut self, node: usize, id: u64, call: HandlerCall) {
        trace!(self, "n{node} calls {call:?}");
        if !self.plan.handlers.contains(call.event) {
            let text = format!("n{node} calls {}, which is not there", call.event);
            return self.violate("driver", text);
        }
        self.handlers.calls.push((node, call));
        let incarnation = self.nodes[node].incarnation;
        let running = Running { node, incarnation, id, event: call.event, at: self.now() };
        if self.phase() == Phase::Manual {
            if self.handlers.held.contains(&call.event) {
                return self.handlers.waiting.push(running);
            }
            let exit = self.handlers.exits.get(&call.event).copied().unwrap_or(Some(0));
            return self.handler_step_in(MILLISECOND, HandlerStep::End { call: running, exit });
        }
        let delay = self.handlers.rng.skewed(MILLISECOND, 10 * SECOND);
        let step = match (call.event, call.peer) {
            (HandlerEvent::FencePeer, Some((peer, _))) => {
                HandlerStep::Fence { call: running, peer: peer.index() }
            }
            (HandlerEvent::BeforeResyncTarget, _) => {
                // An operator sees to that only later.
                let refuses = self.phase() != Phase::Forming && self.handlers.rng.one_in(20);
                let exit = Some(u8::from(refuses));
                HandlerStep::End { call: running, exit }
            }
            _ => HandlerStep::End { call: running, exit: Some(0) },
        };
        self.handler_step_in(delay, step);
    }

    fn handler_step_in(&mut self, delay: u64, step: HandlerStep) {
        self.queue.at(self.now() + delay, Event::Handler(step));
    }

    pub(crate) fn handler_event(&mut self, step: HandlerStep) {
        let call = step.call();
        if self.nodes[call.node].incarnation != call.incarnation {
            return;
        }
        match step {
            HandlerStep::Fence { peer, .. } => self.fence_node(call, peer),
            HandlerStep::Look { peer, .. } => {
                let exit = match self.view(peer) {
                    Some(view) if view.role == Role::Primary => 6,
                    Some(view) if view.volumes.iter().all(|v| v.disk <= DiskState::Outdated) => 4,
                    _ => 1,
                };
                self.handler_ends(call, Some(exit));
            }
            HandlerStep::End { exit, .. } => {
                if call.event == HandlerEvent::UnfencePeer {
                    // What was noted since, it knows nothing of.
                    self.handlers.only.take_if(|(_, since)| *since <= call.at);
                }
                self.handler_ends(call, exit);
            }
        }
    }

    /// A machine without power, or an engine that does not run, writes nothing. What runs is asked;
    /// what does not answer there may go on any time.
    fn fence_node(&mut self, call: Running, peer: usize) {
        let broken = self.handlers.rng.one_in(20);
        let stonith = self.plan.net.fencing == Fencing::ResourceAndStonith;
        let stops = stonith && self.handlers.rng.one_in(2);
        let current = |v: &View| v.volumes.iter().all(|v| v.disk == DiskState::UpToDate);
        let current = self.view(call.node).as_ref().is_some_and(current);
        let noted = self.handlers.only.is_some_and(|(node, _)| node == call.node);
        if !broken && !current && !noted {
            // One without its disk does not know what that holds.
            let behind = |disk| matches!(disk, DiskState::Outdated | DiskState::Inconsistent);
            let exit = match self.view(peer) {
                Some(view) if view.role == Role::Primary => 6,
                Some(view) if view.volumes.iter().all(|v| behind(v.disk)) => 4,
                Some(_) => 1,
                None => 5,
            };
            return self.handler_ends(call, Some(exit));
        }
        if broken || self.handlers.only.is_some_and(|(node, _)| node == peer) {
            let primary = self.view(peer).is_some_and(|v| v.role == Role::Primary);
            return self.handler_ends(call, Some(if primary && !broken { 6 } else { 1 }));
        }
        let down = !self.nodes[peer].up();
        if !stops && (down && !current || self.nodes[peer].paused_until > self.now()) {
            return self.handler_ends(call, Some(if down { 5 } else { 1 }));
        }
        self.handlers.only = Some((call.node, self.now()));
        if stops {
            trace!(self, "n{} takes the power of n{peer}", call.node);
            self.crash(peer, true);
            let delay = self.handlers.rng.skewed(5 * MILLISECOND, 30 * SECOND);
            let incarnation = self.nodes[peer].incarnation;
            self.queue.at(self.now() + delay, Event::Boot { node: peer, incarnation });
            return self.handler_ends(call, Some(7));
        }
        if down {
            return self.handler_ends(call, Some(5));
        }
        for volume in 0..self.plan.volumes {
            self.admin(peer, AdminCommand::Outdate { volume: VolumeNr(volume) });
        }
        self.handler_step_in(10 * MILLISECOND, HandlerStep::Look { call, peer });
    }

    fn handler_ends(&mut self, call: Running, exit: Option<u8>) {
        trace!(self, "n{}: handler {} exits {exit:?}", call.node, call.id);
        self.input(call.node, Input::HandlerDone { id: call.id, exit });
    }
}
