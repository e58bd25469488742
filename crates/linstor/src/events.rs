//! Events as they happen (server-sent events, control plane §10).

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use cluster::eviction::evictions;
use cluster::name::{NodeName, ResourceName};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::ask::App;
use crate::controller::{self, NodeEvent};
use crate::routes::{Routes, Says};
use crate::{may_promote, nodes};

/// How often a silent stream says that it is alive.
const ALIVE: Duration = Duration::from_secs(15);

pub fn routes() -> Routes {
    Routes::new()
        .get("/v1/events/drbd/promotion", promotion)
        .says(Says::Events)
        .get("/v1/events/nodes", of_nodes)
        .says(Says::Events)
}

fn event(name: &str, data: &Value) -> Event {
    Event::default().event(name).data(data.to_string())
}

fn promotion_event(resource: &ResourceName, node: &NodeName, may: bool) -> Event {
    let (resource, node) = (resource.as_str(), node.as_str());
    let data = json!({ "resource_name": resource, "node_name": node, "may_promote": may });
    event("may-promote-change", &data)
}

async fn promotion(
    State(app): State<App>,
    headers: HeaderMap,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    // First the subscription, then the present state: nothing falls in between.
    let events = app.events();
    let mut first = Vec::new();
    if headers.get("last-event-id").is_some_and(|id| id == "current") {
        let state = app.state();
        for definition in state.model.definitions() {
            for resource in state.model.resources_of(&definition.name) {
                let may = may_promote(&state, &definition.name, &resource.node);
                first.push(promotion_event(&definition.name, &resource.node, may));
            }
        }
    }
    follow(app, first, events, |_, happened| match happened {
        controller::Event::MayPromote { resource, node, may } => {
            Some(promotion_event(&resource, &node, may))
        }
        controller::Event::Node { .. } => None,
    })
}

async fn of_nodes(State(app): State<App>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let events = app.events();
    follow(app, Vec::new(), events, |app, happened| {
        let controller::Event::Node { node, what } = happened else { return None };
        let state = app.state();
        let shown = match state.model.node(&node) {
            Some(node) => nodes::show(&state, &evictions(&state.model, &state.observed), node),
            None => json!({ "name": node.as_str() }),
        };
        Some(match what {
            NodeEvent::Created => event("node-create", &json!({ "node": shown })),
            NodeEvent::Deleted => event("node-delete", &json!({ "node": shown })),
            NodeEvent::Evacuated => event("node-evacuate", &json!({ "node": shown })),
            NodeEvent::Evicted => event("node-evicted", &json!({ "node": shown })),
            NodeEvent::Restored => event("node-restored", &json!({ "node": shown })),
            NodeEvent::Modified => event("node-modified", &json!({ "new_node": shown })),
        })
    })
}

/// Sends what is there, then what happens and is of interest, until the controller is gone.
fn follow(
    app: App,
    first: Vec<Event>,
    events: Receiver<controller::Event>,
    show: impl Fn(&App, controller::Event) -> Option<Event> + Copy + Send + 'static,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let news = stream::unfold((app, events), move |(app, mut events)| async move {
        loop {
            match events.recv().await {
                Ok(happened) => {
                    if let Some(event) = show(&app, happened) {
                        return Some((Ok(event), (app, events)));
                    }
                }
                // The client reads too slowly: it has missed some, and should read the state again.
                Err(RecvError::Lagged(missed)) => {
                    let text = format!("{missed} events were lost");
                    return Some((Ok(Event::default().comment(text)), (app, events)));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    });
    let all = stream::iter(first.into_iter().map(Ok)).chain(news);
    Sse::new(all).keep_alive(KeepAlive::new().interval(ALIVE))
}
