//! What is done to the nodes, drawn from the seed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::net::Network;
use super::nodes::Nodes;
use super::random::Random;
use super::{NODES, Node};

/// Kinds of events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// SIGKILL, and a start after a while.
    Kill,
    /// SIGSTOP, and SIGCONT after a while.
    Freeze,
    /// SIGTERM, and a start after a while.
    Restart,
    /// One link loses all packets for a while.
    Cut,
    /// All links of a node do.
    Isolate,
}

/// All of them, with their names.
pub const KINDS: [(Kind, &str); 5] = [
    (Kind::Kill, "SIGKILL"),
    (Kind::Freeze, "SIGSTOP"),
    (Kind::Restart, "restart"),
    (Kind::Cut, "link cut"),
    (Kind::Isolate, "isolation"),
];

/// Events that last at the same time.
const OVERLAP: usize = 2;
/// From one event's begin to the next, in milliseconds: at least, and at random up to.
const PAUSE: (u64, u64) = (500, 4000);
/// How long an event lasts, likewise. Shorter than the patience of clients.
const LAST: (u64, u64) = (50, 3000);

#[derive(Debug)]
struct Active {
    kind: Kind,
    node: Node,
    /// Of a cut: the other end.
    peer: Node,
    end: Instant,
}

/// The events of a run.
pub struct Events {
    random: Random,
    /// Kinds that come next: every kind as often as the others.
    deck: Vec<Kind>,
    active: Vec<Active>,
    next: Instant,
    begin: Instant,
    /// Events that were begun.
    pub counts: BTreeMap<Kind, u64>,
}

impl Events {
    /// The events of that seed.
    pub fn new(seed: u64, begin: Instant) -> Events {
        let (deck, active, counts) = (Vec::new(), Vec::new(), BTreeMap::new());
        Events { random: Random(seed), deck, active, next: Instant::now(), begin, counts }
    }

    fn draw(&mut self) -> Kind {
        if self.deck.is_empty() {
            self.deck = KINDS.iter().map(|(kind, _)| *kind).collect();
            for i in (1..self.deck.len()).rev() {
                let j = self.random.below(i as u64 + 1) as usize;
                self.deck.swap(i, j);
            }
        }
        self.deck.pop().expect("filled above")
    }

    fn between(&mut self, (least, spread): (u64, u64)) -> Duration {
        Duration::from_millis(least + self.random.below(spread))
    }

    /// Ends what is over and begins what is due.
    pub fn turn(&mut self, nodes: &mut Nodes, network: &Network) -> Result<()> {
        let now = Instant::now();
        while let Some(over) = self.active.iter().position(|active| active.end <= now) {
            let active = self.active.remove(over);
            self.end(&active, nodes, network)?;
        }
        if now < self.next || self.active.len() >= OVERLAP {
            return Ok(());
        }
        let kind = self.draw();
        let node = self.random.below(NODES.into()) as Node + 1;
        let peer = (node + self.random.below(NODES as u64 - 1) as Node) % NODES + 1;
        let (lasts, pause) = (self.between(LAST), self.between(PAUSE));
        let of_links = |kind| matches!(kind, Kind::Cut | Kind::Isolate);
        let busy = self.active.iter().any(|active| match of_links(kind) {
            true => of_links(active.kind),
            false => !of_links(active.kind) && active.node == node,
        });
        if busy {
            // Its turn comes when what is in its way has ended.
            self.deck.push(kind);
            return Ok(());
        }
        *self.counts.entry(kind).or_default() += 1;
        let what = match kind {
            Kind::Cut => format!("n{node} from n{peer}"),
            _ => format!("n{node}"),
        };
        self.say(&format!("{} {what} for {} ms", name(kind), lasts.as_millis()));
        match kind {
            Kind::Kill => nodes.kill(node)?,
            Kind::Freeze => nodes.signal(node, "STOP")?,
            Kind::Restart => nodes.stop(node)?,
            Kind::Cut => network.set_link(node, peer, false)?,
            Kind::Isolate => self.isolate(node, network, false)?,
        }
        let now = Instant::now();
        self.active.push(Active { kind, node, peer, end: now + lasts });
        self.next = now + pause;
        Ok(())
    }

    /// Ends everything that lasts.
    pub fn finish(&mut self, nodes: &mut Nodes, network: &Network) -> Result<()> {
        for active in std::mem::take(&mut self.active) {
            self.end(&active, nodes, network)?;
        }
        Ok(())
    }

    /// True if the node can be asked for its status.
    pub fn answers(&self, node: Node) -> bool {
        !self.active.iter().any(|a| a.node == node && !matches!(a.kind, Kind::Cut | Kind::Isolate))
    }

    fn end(&self, active: &Active, nodes: &mut Nodes, network: &Network) -> Result<()> {
        let Active { kind, node, peer, .. } = *active;
        match kind {
            Kind::Kill | Kind::Restart => nodes.start(node),
            Kind::Freeze => nodes.signal(node, "CONT"),
            Kind::Cut => network.set_link(node, peer, true),
            Kind::Isolate => self.isolate(node, network, true),
        }?;
        self.say(&format!("  end of {} n{node}", name(kind)));
        Ok(())
    }

    fn isolate(&self, node: Node, network: &Network, up: bool) -> Result<()> {
        (1..=NODES).filter(|peer| *peer != node).try_for_each(|p| network.set_link(node, p, up))
    }

    /// A line of the story.
    pub fn say(&self, text: &str) {
        println!("{:8.3} {text}", self.begin.elapsed().as_secs_f64());
    }
}

fn name(kind: Kind) -> &'static str {
    KINDS.iter().find(|(k, _)| *k == kind).expect("all are listed").1
}
