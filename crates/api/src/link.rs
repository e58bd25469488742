//! What a controller and the agent of a node tell each other.
//!
//! The agent dials the controller and says [`News::Hello`] first: everything it has. From then on
//! the controller sends [`Order`]s, in whatever order plans come to it, and the agent reports what
//! has changed. Both may be lost with the link, or come late: an order that was not carried out is
//! in the next plan again, and one that is older than what the agent has carried out for the
//! resource is refused. Nothing is answered; what became of an order is seen in the state. The exception
//! is [`Order::Ask`], for what is no state and nobody plans: it is answered once, or the link is lost.

use std::collections::BTreeMap;

use cluster::name::{NodeName, PoolName, ResourceName};
use cluster::objects::{Generation, Provider};
use cluster::observed::{NodeState, PoolState, ReplicaState};
use cluster::plan::Action;
use cluster::question::{Question, Reply};
use serde::{Deserialize, Serialize};
use vocab::options::Secret;

/// What a controller tells an agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Order {
    /// The pools that the node is to have, all of them: others are forgotten, never deleted.
    Pools {
        /// Generation of the wanted state; an older one than the last is refused.
        generation: Generation,
        /// The pools by name.
        pools: BTreeMap<PoolName, Pool>,
    },
    /// The key above the passphrases of encrypted volumes, for a node that has such volumes. It is in memory only,
    /// at both ends.
    Master {
        /// The key, as `crypt::seal` writes it.
        #[serde(with = "secret")]
        key: Secret,
    },
    /// A step of a resource definition's plan.
    Step {
        /// The resource definition.
        resource: ResourceName,
        /// The plan's generation.
        generation: Generation,
        /// What to do.
        action: Action,
    },
    /// A question, which is answered by [`News::Answer`].
    Ask {
        /// Names the question; [`FIRST_TOKEN`] or more.
        token: u64,
        /// What is asked.
        question: Question,
    },
}

/// The first token of a question. No generation comes that far: so an agent that does not know the
/// question, and says of which generation the order was, has answered it.
pub const FIRST_TOKEN: u64 = 1 << 63;

/// A storage pool of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pool {
    /// What manages it.
    pub provider: Provider,
    /// What its driver is told: `StorDriver/…` and what the pool inherits, by key.
    pub props: BTreeMap<String, String>,
}

/// What an agent tells its controller.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum News {
    /// Everything; the first on a link.
    Hello {
        /// The node, with its pools.
        node: NodeState,
        /// What it has of resources.
        replicas: BTreeMap<ResourceName, ReplicaState>,
    },
    /// The pools, whenever their space has changed noticeably.
    Pools(BTreeMap<PoolName, PoolState>),
    /// What it has of a resource, whenever that has changed; empty when there is nothing left.
    Replica {
        /// The resource definition.
        resource: ResourceName,
        /// All it has of it.
        state: ReplicaState,
    },
    /// An order could not be carried out. It is not tried again but by another plan.
    Failed {
        /// The resource definition, if it was a step.
        resource: Option<ResourceName>,
        /// Generation of the order.
        generation: Generation,
        /// The order, in words.
        order: String,
        /// Object and cause, in a sentence.
        cause: String,
        /// What to do about it.
        correction: String,
    },
    /// The answer to a question.
    Answer {
        /// That of the question.
        token: u64,
        /// What there is to say.
        reply: Reply,
    },
}

/// What a controller hears of its agents, by node. `link` counts the links of a node: what comes
/// from an older one than the newest is of no use.
#[derive(Clone, PartialEq, Debug)]
pub struct Heard {
    /// The node, known by its certificate.
    pub node: NodeName,
    /// Which link of the node.
    pub link: u64,
    /// What was heard; none when the link is lost.
    pub news: Option<News>,
}

/// The agents, as a controller's loop sees them.
pub trait Agents: Send + Sync {
    /// Sends an order, if the node's agent is connected. Never waits: an order that does not get
    /// there is in the next plan again.
    fn send(&self, node: &NodeName, order: Order);
}

/// A secret, in the clear: only TLS carries it.
mod secret {
    use serde::{Deserialize, Deserializer, Serializer};
    use vocab::options::Secret;

    pub(super) fn serialize<S: Serializer>(secret: &Secret, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(secret.expose())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
        String::deserialize(from).map(Secret::from)
    }
}
