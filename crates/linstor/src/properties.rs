//! Which properties can be set on what: forms of clients are made of it.

use cluster::props::{Described, Owner, described};
use serde_json::{Map, Value, json};

use crate::answer::{Found, without_empty};
use crate::routes::Routes;

pub fn routes() -> Routes {
    const D: &str = "/v1/resource-definitions";
    const OF: &str = "/v1/resource-definitions/{resource}";
    const INFO: &str = "properties/info";
    let of_groups = "/v1/resource-groups/{group}/volume-groups";
    let of_pools = "/v1/nodes/{node}/storage-pools";
    Routes::new()
        .get(&format!("/v1/controller/{INFO}/all"), all)
        .get(&format!("/v1/controller/{INFO}"), async || of(Owner::Controller))
        .get(&format!("/v1/nodes/{INFO}"), async || of(Owner::Node))
        .get(&format!("/v1/storage-pool-definitions/{INFO}"), async || of(Owner::PoolDefinition))
        .get(&format!("{of_pools}/{INFO}"), async || of(Owner::Pool))
        .get(&format!("/v1/resource-groups/{INFO}"), async || of(Owner::Group))
        .get(&format!("{of_groups}/{INFO}"), async || of(Owner::VolumeGroup))
        .get(&format!("{D}/{INFO}"), async || of(Owner::Definition))
        .get(&format!("{OF}/volume-definitions/{INFO}"), async || of(Owner::VolumeDefinition))
        .get(&format!("{OF}/resources/{INFO}"), async || of(Owner::Resource))
        .get(&format!("{OF}/resources/{{node}}/volumes/{INFO}"), async || of(Owner::Volume))
        .get(&format!("{OF}/resource-connections/{INFO}"), async || of(Owner::ResourceConnection))
}

fn show(owner: Owner) -> Value {
    let one = |found: Described| {
        let shown = without_empty(json!({
            "info": found.help,
            "prop_type": found.kind,
            "value": found.values,
            "dflt": found.default,
            "unit": found.unit,
        }));
        (found.key, shown)
    };
    Value::Object(described(owner).into_iter().map(one).collect())
}

fn of(owner: Owner) -> Found {
    Found(show(owner))
}

async fn all() -> Found {
    let kinds = [
        ("CTRL", Owner::Controller),
        ("NODE", Owner::Node),
        ("NODE_CONN", Owner::NodeConnection),
        ("STOR_POOL_DFN", Owner::PoolDefinition),
        ("STOR_POOL", Owner::Pool),
        ("RSC_GRP", Owner::Group),
        ("VLM_GRP", Owner::VolumeGroup),
        ("RSC_DFN", Owner::Definition),
        ("VLM_DFN", Owner::VolumeDefinition),
        ("RSC", Owner::Resource),
        ("VLM", Owner::Volume),
        ("RSC_CONN", Owner::ResourceConnection),
    ];
    let all = kinds.map(|(word, owner)| (word.to_owned(), show(owner)));
    Found(Value::Object(Map::from_iter(all)))
}
