//! How large the next volume of a resource group could be, and how much fits (control plane §4.6).
//!
//! The placer of `cluster` is asked, for a definition without volumes that is in no model.

use axum::extract::State;
use axum::http::Method;
use cluster::change::Key;
use cluster::model::Model;
use cluster::name::{GroupName, NodeName, PoolName, ResourceName};
use cluster::objects::{Definition, Filter, Generation, Pool, Uuid};
use cluster::observed::Observed;
use cluster::place::{self, Verdict, space};
use cluster::props::chain;
use cluster::refusal::Code;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::access::Role;
use crate::answer::{Answer, Entry, Found, Read};
use crate::ask::{App, Body, Path, SelectFilter};
use crate::controller;
use crate::nodes::unknown;
use crate::routes::Routes;

/// How far thin pools are promised unless a property says otherwise.
const RATIO: f64 = 20.0;

pub fn routes() -> Routes {
    const G: &str = "/v1/resource-groups/{group}";
    let all = "/v1/queries/resource-groups/query-all-size-info";
    Routes::new()
        .call(Method::POST, &format!("{G}/query-size-info"), Role::Read, of_group)
        .get(&format!("{G}/query-max-volume-size"), max_of_group)
        .call(Method::POST, all, Role::Read, of_all)
        .call(Method::OPTIONS, "/v1/query-max-volume-size", Role::Read, max)
}

#[derive(Deserialize, JsonSchema)]
struct Query {
    select_filter: Option<SelectFilter>,
}

/// What is asked of the placer.
struct Question<'a> {
    model: &'a Model,
    observed: &'a Observed,
    definition: Definition,
}

impl<'a> Question<'a> {
    fn new(state: &'a controller::State, group: &GroupName) -> Result<Question<'a>, Answer> {
        let controller::State { model, observed, .. } = state;
        // Longer names than users can give are free.
        let name = ResourceName::new("_size-query-of-the-surface-which-is-in-no-store")?;
        let Some(found) = model.group(group) else {
            return Err(unknown(Code::UnknownGroup, &Key::Group(group.clone())).into());
        };
        let stack = found.filter.layers.clone().unwrap_or_default();
        let stack = if stack.is_empty() { vec![cluster::layer::Layer::Drbd] } else { stack };
        let definition = Definition {
            name,
            external_name: None,
            uuid: Uuid(0),
            group: group.clone(),
            props: Default::default(),
            flags: Default::default(),
            layers: cluster::layer::stack(&stack)?.0,
            secret: String::new(),
            peer_slots: 7,
            port: None,
            next_node_id: 0,
            volumes: Default::default(),
            rollback: None,
            clone_of: None,
            generation: Generation(0),
        };
        Ok(Question { model, observed, definition })
    }

    fn pool(&self, node: &NodeName, pool: &PoolName) -> Option<&Pool> {
        self.model.pool(node, pool)
    }

    fn ratio(&self, pool: &Pool, key: &str) -> f64 {
        let default = if pool.provider.is_thin() { RATIO } else { 1.0 };
        let chain = chain::pool(self.model, pool);
        chain.number(key).or_else(|| chain.number("MaxOversubscriptionRatio")).unwrap_or(default)
    }

    fn answer(&self, group: &GroupName, request: &Filter) -> Result<Value, Answer> {
        let base = self.model.group(group).map(|group| group.filter.clone()).unwrap_or_default();
        let filter = place::merge(request, &base);
        let placed = place::place_for(self.model, self.observed, &self.definition, &filter);
        let placement = match placed {
            Ok(placement) => placement,
            Err(refusal) => {
                let reports = Answer::from(refusal).entries;
                return Ok(info(0, 0, 0, Vec::new(), &reports));
            }
        };
        let kib = |bytes: vocab::Bytes| bytes.0 / 1024;
        let chosen = placement.chosen.iter().filter_map(|c| self.pool(&c.node, &c.pool));
        let chosen: Vec<&Pool> = chosen.collect();
        let estimates = chosen
            .iter()
            .filter_map(|pool| space::estimate(self.model, self.observed, pool).map(kib));
        let max = estimates.min().unwrap_or(0);
        let fitting = placement.candidates.iter().filter(|c| !matches!(c.verdict, Verdict::Out(_)));
        let states = fitting.filter_map(|c| self.observed.pool(&c.node, &c.pool));
        let (free, total): (Vec<u64>, Vec<u64>) =
            states.map(|state| (kib(state.free), kib(state.total))).unzip();
        let count = filter.place_count.unwrap_or(2) as usize;
        let next = chosen.iter().map(|pool| {
            json!({
                "node_name": pool.node.as_str(),
                "stor_pool_name": pool.name.as_str(),
                "stor_pool_oversubscription_ratio": self.ratio(pool, "MaxOversubscriptionRatio"),
                "stor_pool_free_capacity_oversubscription_ratio":
                    self.ratio(pool, "MaxFreeCapacityOversubscriptionRatio"),
                "stor_pool_total_capacity_oversubscription_ratio":
                    self.ratio(pool, "MaxTotalCapacityOversubscriptionRatio"),
            })
        });
        Ok(info(max, sum(free, count), sum(total, count), next.collect(), &[]))
    }
}

/// What fits into pools if every volume is in `count` of them at once: the `count`-th largest
/// remainder is taken off the largest ones as long as there are enough.
fn sum(mut left: Vec<u64>, count: usize) -> u64 {
    let mut sum = 0;
    loop {
        left.retain(|size| *size > 0);
        if count == 0 || left.len() < count {
            return sum;
        }
        left.sort_unstable_by(|a, b| b.cmp(a));
        let step = left[count - 1];
        sum += step;
        left.iter_mut().take(count).for_each(|size| *size -= step);
    }
}

fn info(max: u64, available: u64, capacity: u64, next: Vec<Value>, reports: &[Entry]) -> Value {
    let mut shown = json!({
        "space_info": {
            "max_vlm_size_in_kib": max,
            "available_size_in_kib": available,
            "capacity_in_kib": capacity,
            "default_max_oversubscription_ratio": RATIO,
            "next_spawn_result": next,
        },
    });
    if !reports.is_empty() {
        shown["reports"] = json!(reports);
    }
    shown
}

async fn of_group(
    State(app): State<App>,
    Path(group): Path<String>,
    Body(body): Body<Query>,
) -> Read {
    let group = GroupName::new(&group)?;
    let filter = body.select_filter.unwrap_or_default().filter()?;
    let state = app.state();
    Ok(Found(Question::new(&state, &group)?.answer(&group, &filter)?))
}

async fn of_all(State(app): State<App>, Body(body): Body<Query>) -> Read {
    let filter = body.select_filter.unwrap_or_default().filter()?;
    let state = app.state();
    let mut result = Map::new();
    for group in state.model.groups().map(|group| &group.name) {
        let answer = Question::new(&state, group)?.answer(group, &filter)?;
        result.insert(group.to_string(), answer);
    }
    Ok(Found(json!({ "result": result })))
}

async fn max_of_group(State(app): State<App>, Path(group): Path<String>) -> Read {
    max_sizes(&app, &GroupName::new(&group)?, Filter::default())
}

async fn max(State(app): State<App>, Body(body): Body<SelectFilter>) -> Read {
    max_sizes(&app, &GroupName::default_group(), body.filter()?)
}

/// For each name of pools: the largest volume, and where it would be.
fn max_sizes(app: &App, group: &GroupName, request: Filter) -> Read {
    let state = app.state();
    let question = Question::new(&state, group)?;
    let base = question.model.group(group).map(|group| group.filter.clone()).unwrap_or_default();
    let filter = place::merge(&request, &base);
    let names: Vec<PoolName> =
        question.model.pool_definitions().map(|definition| definition.name.clone()).collect();
    let mut candidates = Vec::new();
    for name in names {
        let excluded = filter.pools.as_ref().is_some_and(|p| !p.is_empty() && !p.contains(&name));
        let filter = Filter { pools: Some(vec![name.clone()]), ..filter.clone() };
        let Question { model, observed, definition } = &question;
        let placed = place::place_for(model, observed, definition, &filter);
        let Some(placement) = placed.ok().filter(|_| !excluded) else { continue };
        let pools = placement.chosen.iter().filter_map(|c| question.pool(&c.node, &c.pool));
        let pools: Vec<&Pool> = pools.collect();
        let estimates = pools.iter().filter_map(|pool| space::estimate(model, observed, pool));
        let Some(max) = estimates.min() else { continue };
        candidates.push(json!({
            "storage_pool": name.as_str(),
            "max_volume_size_kib": max.0 / 1024,
            "node_names": pools.iter().map(|pool| pool.node.as_str()).collect::<Vec<_>>(),
            "all_thin": pools.iter().all(|pool| pool.provider.is_thin()),
        }));
    }
    if candidates.is_empty() {
        let Question { model, observed, definition } = &question;
        place::place_for(model, observed, definition, &filter)?;
    }
    let shown = json!({ "candidates": candidates, "default_max_oversubscription_ratio": RATIO });
    Ok(Found(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_taken_from_the_largest_pools_first() {
        for (pools, count, fits) in [
            (vec![10, 10, 10], 2, 10),
            (vec![10, 10, 4], 2, 10),
            (vec![10], 2, 0),
            (vec![10, 4], 2, 4),
            (vec![10, 4], 1, 14),
            (vec![10, 4], 0, 0),
            (vec![], 1, 0),
        ] {
            assert_eq!(sum(pools.clone(), count), fits, "{pools:?}");
        }
    }
}
