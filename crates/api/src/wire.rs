//! How [`link`](crate::link) travels: gRPC, compiled from `proto/link.proto`.
//!
//! Two releases that follow each other understand each other. Envelopes are protobuf, whose unknown
//! fields are skipped; bodies are JSON, for which the same holds. So a new field needs a default,
//! and a new kind of order or news, or a new word in one, a new [`PROTOCOL`], for those who do not
//! know it refuse it. `tests/samples.rs` holds each release to that.

use std::fmt;

use cluster::objects::Generation;

use crate::link;

/// Messages and services as generated.
#[allow(missing_docs, clippy::all, reason = "generated; proto/link.proto has the comments")]
pub mod proto {
    tonic::include_proto!("ashlar.link.v1");
}

/// The newest version of the link that this release speaks.
pub const PROTOCOL: u32 = 7;

/// The oldest one.
pub const PROTOCOL_MIN: u32 = 1;

/// Largest message in bytes: a node with some thousand replicas says hello in less.
pub const MESSAGE_MAX: usize = 64 << 20;

/// Seconds between two signs of life on a link on which nothing else is said.
pub const KEEPALIVE_SECONDS: u64 = 2;

/// Seconds after which a sign of life without an answer means that the link is cut.
pub const KEEPALIVE_TIMEOUT_SECONDS: u64 = 3;

/// The name by which a controller's certificate is known.
pub const CONTROLLER: &str = "controller.ashlar.internal";

/// The name by which a node's certificate is known: node names are host names.
pub fn node_subject(node: &str) -> String {
    format!("{}.node.ashlar.internal", node.to_ascii_lowercase())
}

/// The newest version that both sides speak.
pub fn agreed(min: u32, max: u32) -> Option<u32> {
    let newest = max.min(PROTOCOL);
    (newest >= min.max(PROTOCOL_MIN)).then_some(newest)
}

/// A body that is not understood: it is of a release that says things unknown here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotUnderstood {
    /// What it was to be.
    pub what: &'static str,
    /// Why not, in words.
    pub why: String,
}

impl fmt::Display for NotUnderstood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not understood: {}", self.what, self.why)
    }
}

impl std::error::Error for NotUnderstood {}

fn read<T: serde::de::DeserializeOwned>(
    what: &'static str,
    body: &[u8],
) -> Result<T, NotUnderstood> {
    serde_json::from_slice(body).map_err(|error| NotUnderstood { what, why: error.to_string() })
}

fn body<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("the contract's types have only text and numbers as keys")
}

impl From<&link::Order> for proto::Order {
    fn from(order: &link::Order) -> proto::Order {
        let (generation, resource) = match order {
            link::Order::Pools { generation, .. } => (generation, String::new()),
            link::Order::Step { resource, generation, .. } => (generation, resource.to_string()),
            link::Order::Master { .. } => (&Generation(0), String::new()),
            link::Order::Ask { token, .. } => (&Generation(*token), String::new()),
        };
        proto::Order { body: body(order), generation: generation.0, resource }
    }
}

impl TryFrom<&proto::Order> for link::Order {
    type Error = NotUnderstood;
    fn try_from(order: &proto::Order) -> Result<link::Order, NotUnderstood> {
        read("an order", &order.body)
    }
}

impl From<&link::News> for proto::News {
    fn from(news: &link::News) -> proto::News {
        proto::News { body: body(news) }
    }
}

impl TryFrom<&proto::News> for link::News {
    type Error = NotUnderstood;
    fn try_from(news: &proto::News) -> Result<link::News, NotUnderstood> {
        read("what an agent says", &news.body)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cluster::name::{PoolName, ResourceName};
    use cluster::objects::{Generation, Provider};
    use cluster::observed::{NodeState, ReplicaState, VolumeState};
    use cluster::plan::{Action, Backing, Begin, Guard, ResourceConfig, VolumeConfig};
    use prost::Message;
    use vocab::{Bytes, DiskState, GenUuid, Minor, NodeId, VolumeNr};

    use super::*;
    use crate::link::{News, Order, Pool};

    fn resource() -> ResourceName {
        ResourceName::new("web").unwrap()
    }

    fn step(action: Action) -> Order {
        Order::Step { resource: resource(), generation: Generation(7), action }
    }

    fn orders() -> Vec<Order> {
        let pool = PoolName::new("thin").unwrap();
        let backing = Backing {
            pool: pool.clone(),
            provider: Provider::FileThin,
            size: Bytes(1 << 40),
            layers: vec![cluster::layer::Layer::Storage],
            passphrase: None,
            passphrase_changes: 0,
            options: BTreeMap::new(),
        };
        let volume = VolumeConfig {
            minor: Some(Minor(1000)),
            pool: Some(pool.clone()),
            size: Bytes(1 << 30),
            options: BTreeMap::new(),
            props: BTreeMap::new(),
        };
        let config = ResourceConfig {
            layers: vec![cluster::layer::Layer::Drbd, cluster::layer::Layer::Storage],
            node_id: NodeId::new(3),
            options: BTreeMap::new(),
            secret: "s".into(),
            volumes: [(0, volume)].into(),
            connections: BTreeMap::new(),
            files: BTreeMap::new(),
        };
        let pools = [(
            pool,
            Pool { provider: Provider::FileThin, props: [("a".into(), "b".into())].into() },
        )];
        vec![
            Order::Pools { generation: Generation(3), pools: pools.into() },
            step(Action::CreateVolume { volume: 0, backing }),
            step(Action::CreateMetadata {
                volume: 0,
                peer_slots: 7,
                node_id: NodeId::new(0),
                day_0: GenUuid(0xfedc_ba98_7654_3210),
                begin: Begin::First,
            }),
            step(Action::Configure(config)),
            step(Action::Remove(Guard { at_least: 1, of: vec![] })),
            step(Action::RollBack {
                token: Generation(5),
                snapshot: cluster::name::SnapshotName::new("monday").unwrap(),
            }),
        ]
    }

    #[test]
    fn orders_and_news_arrive_as_they_were_sent() {
        for order in orders() {
            let bytes = proto::Order::from(&order).encode_to_vec();
            let back = proto::Order::decode(&bytes[..]).unwrap();
            assert_eq!(Order::try_from(&back), Ok(order));
        }
        let volume = VolumeState { disk: Some(DiskState::UpToDate), ..VolumeState::default() };
        let state =
            ReplicaState { volumes: [(VolumeNr(0), volume)].into(), ..ReplicaState::default() };
        let news =
            News::Hello { node: NodeState::default(), replicas: [(resource(), state)].into() };
        let bytes = proto::News::from(&news).encode_to_vec();
        assert_eq!(News::try_from(&proto::News::decode(&bytes[..]).unwrap()), Ok(news));
    }

    #[test]
    fn what_a_newer_release_adds_is_skipped() {
        // The same tags with more beside them, in the envelope and in the body.
        #[derive(Clone, PartialEq, prost::Message)]
        struct Newer {
            #[prost(bytes, tag = "1")]
            body: Vec<u8>,
            #[prost(uint64, tag = "2")]
            generation: u64,
            #[prost(string, tag = "3")]
            resource: String,
            #[prost(string, tag = "900")]
            priority: String,
        }
        for order in orders() {
            let old = proto::Order::from(&order);
            let mut body: serde_json::Value = serde_json::from_slice(&old.body).unwrap();
            let fields = body.as_object_mut().unwrap().values_mut().next().unwrap();
            fields.as_object_mut().unwrap().insert("tracing".into(), "abc".into());
            let newer = Newer {
                body: serde_json::to_vec(&body).unwrap(),
                generation: old.generation,
                resource: old.resource,
                priority: "high".into(),
            };
            let read = proto::Order::decode(&newer.encode_to_vec()[..]).unwrap();
            assert_eq!(Order::try_from(&read), Ok(order));
        }
    }

    #[test]
    fn an_order_of_an_unknown_kind_still_says_what_it_is_about() {
        let body = br#"{"Step":{"resource":"web","generation":7,"action":{"Polish":{}}}}"#;
        let order = proto::Order { body: body.to_vec(), generation: 7, resource: "web".to_owned() };
        let why = Order::try_from(&order).unwrap_err();
        assert!(why.to_string().contains("Polish"), "{why}");
    }

    #[test]
    fn neighbouring_versions_agree_and_strangers_do_not() {
        assert_eq!(agreed(PROTOCOL, PROTOCOL + 1), Some(PROTOCOL));
        assert_eq!(agreed(PROTOCOL_MIN, PROTOCOL), Some(PROTOCOL));
        assert_eq!(agreed(PROTOCOL + 1, PROTOCOL + 2), None);
    }
}
