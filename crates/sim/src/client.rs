//! The users of the volumes: they open, read, write, flush, discard, close and move on.

use replication::io::{BufId, Input, IoError, OpenError, Request, RequestOp};
use vocab::{SectorRange, VolumeNr};

use crate::content::{Data, Tag, ZERO};
use crate::history::{Stamp, Value};
use crate::node::{Origin, Pending};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::world::{Event, World};

/// What a client has in hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// Nothing.
    Closed,
    /// An open that is not answered: node, opener.
    Opening(usize, u64),
    /// An open volume: node, opener.
    Open(usize, u64),
}

/// One client.
#[derive(Debug)]
struct Client {
    volume: usize,
    hold: Hold,
    /// It writes; otherwise it opens for reading only.
    writes: bool,
    in_flight: usize,
    /// Where it was last.
    home: usize,
    /// It has something scheduled.
    scheduled: bool,
}

/// All clients.
#[derive(Debug)]
pub(crate) struct Clients {
    clients: Vec<Client>,
    rng: Rng,
    /// Requests that may still be submitted.
    left: u64,
    /// No new requests: close what is open.
    stopping: bool,
    next_tag: Tag,
}

impl Clients {
    /// The clients of a plan; they act once they are started.
    pub(crate) fn new(plan: &Plan, mut rng: Rng) -> Clients {
        let nodes = &plan.workload.nodes;
        let clients = (0..plan.workload.clients).map(|i| Client {
            volume: i % usize::from(plan.volumes),
            hold: Hold::Closed,
            writes: i == 0 || !rng.one_in(8),
            in_flight: 0,
            home: nodes[i % nodes.len()],
            scheduled: false,
        });
        Clients {
            clients: clients.collect(),
            left: plan.workload.requests,
            stopping: false,
            next_tag: 1,
            rng,
        }
    }

    /// A tag no write has used.
    pub(crate) fn fresh_tag(&mut self) -> Tag {
        self.next_tag += 1;
        self.next_tag
    }

    /// A request was lost with its node.
    pub(crate) fn forget_request(&mut self, client: usize) {
        if let Some(client) = self.clients.get_mut(client) {
            client.in_flight -= 1;
        }
    }

    /// A client has lost what it had on a node.
    pub(crate) fn lost_node(&mut self, client: usize) {
        if let Some(client) = self.clients.get_mut(client) {
            client.hold = Hold::Closed;
        }
    }

    /// True if nothing is open and nothing will be.
    pub(crate) fn idle(&self) -> bool {
        (self.stopping || self.left == 0)
            && self.clients.iter().all(|c| c.hold == Hold::Closed && c.in_flight == 0)
    }

    /// True if no client has anything left to ask for.
    pub(crate) fn exhausted(&self) -> bool {
        self.left == 0
    }
}

impl World {
    /// Lets the clients begin.
    pub(crate) fn start_clients(&mut self) {
        for client in 0..self.clients.clients.len() {
            self.schedule_client(client);
        }
    }

    /// Makes the clients finish what they have and close.
    pub(crate) fn stop_clients(&mut self) {
        self.clients.stopping = true;
        self.start_clients();
    }

    fn schedule_client(&mut self, client: usize) {
        let state = &mut self.clients.clients[client];
        if state.scheduled {
            return;
        }
        state.scheduled = true;
        let pause = self.plan.workload.pause;
        let delay = self.clients.rng.skewed(20_000, pause);
        self.queue.at(self.queue.now() + delay, Event::Client(client));
    }

    pub(crate) fn client_event(&mut self, ix: usize) {
        self.clients.clients[ix].scheduled = false;
        let (hold, in_flight) = (self.clients.clients[ix].hold, self.clients.clients[ix].in_flight);
        let done = self.clients.stopping || self.clients.left == 0;
        match hold {
            Hold::Closed if done => return,
            Hold::Closed => self.client_open(ix),
            Hold::Opening(..) => return,
            Hold::Open(node, opener) => {
                if self.nodes[node].rests(self.now()) {
                    // Its node does nothing for it; neither does it.
                } else if done || self.clients.rng.one_in(60) {
                    if in_flight == 0 {
                        self.client_close(ix, node, opener);
                    } else if done {
                        return; // The last completion brings it back.
                    }
                } else if in_flight < self.plan.workload.depth {
                    self.client_request(ix, node);
                } else {
                    return; // The next completion brings it back.
                }
            }
        }
        self.schedule_client(ix);
    }

    fn client_open(&mut self, ix: usize) {
        let nodes = self.plan.workload.nodes.clone();
        let client = &mut self.clients.clients[ix];
        if self.clients.rng.percent(self.plan.workload.roam) || !self.nodes[client.home].up() {
            client.home = *self.clients.rng.pick(&nodes);
        }
        let (node, volume, write) = (client.home, client.volume, client.writes);
        if !self.nodes[node].up() || self.nodes[node].rests(self.now()) {
            return;
        }
        let opener = self.fresh_id();
        self.clients.clients[ix].hold = Hold::Opening(node, opener);
        self.nodes[node].openers.insert(opener, (ix, false));
        let volume = VolumeNr(volume as u16);
        let patient = opener.is_multiple_of(2);
        self.input(node, Input::Open { volume, opener, write, patient });
    }

    /// An open was answered.
    pub(crate) fn opened(&mut self, node: usize, opener: u64, result: Result<(), OpenError>) {
        let Some((client, open)) = self.nodes[node].openers.get_mut(&opener) else {
            self.violate("7", format!("n{node} answers the open {opener} that nobody has made"));
            return;
        };
        let client = *client;
        if *open {
            self.violate("7", format!("n{node} answers the open {opener} twice"));
            return;
        }
        *open = result.is_ok();
        if result.is_err() {
            self.nodes[node].openers.remove(&opener);
        }
        if let Some(state) = self.clients.clients.get_mut(client) {
            state.hold = if result.is_ok() { Hold::Open(node, opener) } else { Hold::Closed };
            self.schedule_client(client);
        }
        if result.is_ok() {
            self.check_open(node);
        } else {
            self.answers_of_opens.insert(opener, result);
        }
    }

    fn client_close(&mut self, ix: usize, node: usize, opener: u64) {
        let volume = VolumeNr(self.clients.clients[ix].volume as u16);
        self.clients.clients[ix].hold = Hold::Closed;
        self.nodes[node].openers.remove(&opener);
        self.input(node, Input::Close { volume, opener });
    }

    fn client_request(&mut self, ix: usize, node: usize) {
        let (volume, writes) = (self.clients.clients[ix].volume, self.clients.clients[ix].writes);
        let rng = &mut self.clients.rng;
        let hot = *rng.pick(&self.plan.workload.hot);
        let mut sectors = self.plan.sectors;
        let mut start = (hot + rng.below(12)).min(sectors - 1);
        let told = self.sizes.told[node][volume];
        if told > sectors && rng.one_in(3) {
            start = sectors + rng.below(told - sectors);
            sectors = told;
        }
        let len = match rng.below(20) {
            0 => rng.range(1, 512),
            1..4 => 8 * rng.range(1, 16),
            4..8 => rng.range(1, 16),
            _ => 8,
        };
        let range = SectorRange::new(start, len.min(sectors - start));
        let kind = if writes { rng.weighted(&[60, 25, 6, 3, 3]) } else { 1 };
        let fua = rng.one_in(8);
        let unmap = rng.one_in(2);
        self.clients.left -= 1;
        let op = match kind {
            0 => Op::Write { fua },
            1 => Op::Read,
            2 => Op::Flush,
            3 => Op::Discard,
            _ => Op::Zeroes { unmap },
        };
        self.submit_request(ix, node, volume, op, range);
    }

    /// Submits a request for a client (or a scenario, whose client number is beyond all).
    pub(crate) fn submit_request(
        &mut self,
        client: usize,
        node: usize,
        volume: usize,
        op: Op,
        range: SectorRange,
    ) -> u64 {
        let began = self.tick();
        let id = self.fresh_id();
        if let Some(state) = self.clients.clients.get_mut(client) {
            state.in_flight += 1;
        }
        let history = &mut self.histories[volume];
        let mut write = None;
        let mut at = range;
        let op = match op {
            Op::Read => {
                history.begin_read(began);
                RequestOp::Read
            }
            Op::Write { fua } => {
                let tag = self.clients.fresh_tag();
                write = Some(history.begin(began, range, Value::Tag(tag)));
                let data = Data::Fill { tag, sectors: range.len.0 as u32 };
                let buf: BufId = self.nodes[node].buffers.add(data, Origin::Client);
                RequestOp::Write { buf, fua }
            }
            Op::Discard => {
                write = Some(history.begin(began, range, Value::Undefined));
                RequestOp::Discard
            }
            Op::Zeroes { unmap } => {
                write = Some(history.begin(began, range, Value::Tag(ZERO)));
                RequestOp::Zeroes { unmap }
            }
            Op::Flush => {
                at = SectorRange::new(0, 0);
                RequestOp::Flush
            }
        };
        let request = Request { volume: VolumeNr(volume as u16), id, op, range: at };
        let pending = Pending { request, began, write, client };
        self.nodes[node].requests.insert(id, pending);
        self.request(node, request);
        id
    }

    /// A request was answered.
    pub(crate) fn completed(
        &mut self,
        node: usize,
        volume: VolumeNr,
        id: u64,
        result: Result<Option<Data>, IoError>,
    ) {
        let Some(pending) = self.nodes[node].requests.remove(&id) else {
            self.violate("7", format!("n{node} completes the request {id} that nobody has made"));
            return;
        };
        let request = pending.request;
        if request.volume != volume {
            self.violate("7", format!("n{node} completes {request:?} for volume {volume}"));
            return;
        }
        if let Some(state) = self.clients.clients.get_mut(pending.client) {
            state.in_flight -= 1;
            self.schedule_client(pending.client);
        }
        let ended = self.tick();
        self.record_completion(node, &pending, ended, &result);
        let outcome = result.map(|_| ());
        if pending.client >= self.clients.clients.len() {
            self.answers_of_requests.insert(id, outcome);
        }
    }

    fn record_completion(
        &mut self,
        node: usize,
        pending: &Pending,
        ended: Stamp,
        result: &Result<Option<Data>, IoError>,
    ) {
        let request = pending.request;
        let volume = request.volume.0 as usize;
        if result.is_err() {
            self.stats.failed += 1;
        }
        match (request.op, result) {
            (RequestOp::Read, Ok(Some(data))) if data.sectors() == request.range.len.0 => {
                self.stats.reads += 1;
                self.check_read(node, pending, ended, data);
            }
            (RequestOp::Read, Ok(_)) => {
                self.violate("7", format!("n{node} completes {request:?} without its data"));
            }
            (RequestOp::Read | RequestOp::Flush, Err(_)) => {}
            (RequestOp::Flush, Ok(_)) => {
                self.check_flush(node, pending);
                let by = self.serving(node).filter(|_| self.plan.flushes_are_firm());
                if let Some(by) = by {
                    let covered = self.covered_by_flush(by, pending);
                    self.histories[volume].flushed(covered);
                }
            }
            (op, Ok(_)) => {
                self.stats.writes += 1;
                let write = pending.write.expect("a write has an entry in the history");
                let fua = matches!(op, RequestOp::Write { fua: true, .. });
                let firm = self.plan.acks_are_firm() || fua && self.plan.flushes_are_firm();
                self.check_ack(node, pending, fua);
                match !firm && self.is_lost_already(volume, write) {
                    true => self.histories[volume].fail(ended, write),
                    false => self.histories[volume].ack(ended, write, firm),
                }
            }
            (_, Err(_)) => {
                let write = pending.write.expect("a write has an entry in the history");
                self.histories[volume].fail(ended, write);
            }
        }
        if request.op == RequestOp::Read {
            self.histories[volume].end_read(pending.began);
        }
    }
}

/// A request before it has buffers and numbers.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Read.
    Read,
    /// Write a new tag.
    Write {
        /// Durable at completion.
        fua: bool,
    },
    /// Discard.
    Discard,
    /// Write zeroes.
    Zeroes {
        /// May unmap.
        unmap: bool,
    },
    /// Flush.
    Flush,
}
