//! The document of the API (OpenAPI 3.1), made from the table of calls and from the types that they
//! read: nothing of it is written down twice.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, Method};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::access::Role;
use crate::answer::Found;
use crate::ask::{App, Asked, Body, Path};
use crate::metrics::Meters;
use crate::routes::{Route, Routes, Says, Table};

/// What a call may take of the query: the name, its type, and what it is for.
const QUERY: &[(&str, &str, &str)] = &[
    ("active-only", "boolean", "Only where backups are made"),
    ("all", "boolean", "Whatever they are, also those of other clusters"),
    ("all_local_cluster", "boolean", "All that this cluster has made"),
    ("cascading", "boolean", "Also those that build on them"),
    ("cluster", "string", "The id of the cluster that would ship something"),
    ("content", "boolean", "With what is in the files"),
    ("dry_run", "boolean", "Say what it would lead to, and change nothing"),
    ("dryrun", "boolean", "Only say what would be done"),
    ("error_reports", "boolean", "Count error reports; the default"),
    ("exclude", "list", "Not of these nodes"),
    ("id", "list", "Only these error reports"),
    ("id_prefix", "string", "Only those whose ids begin so"),
    ("include-ctrl", "boolean", "With what the controller shows; the default"),
    ("keep_snaps", "boolean", "Snapshots stay here; they do in any case"),
    ("keep_tiebreaker", "boolean", "The node stays as tie-breaker if there has to be one"),
    ("limit", "integer", "At most so many; 0 for all of them"),
    ("node", "list", "Only of these nodes"),
    ("node_a", "list", "Only connections of these nodes"),
    ("node_b", "list", "Only connections of these nodes"),
    ("node_name", "list", "Only those of these nodes"),
    ("nodes", "list", "Only on these nodes, in any case; unknown names are no mistake"),
    ("offset", "integer", "Leaves out so many at the beginning; with a limit only"),
    ("props", "list", "Only with these properties, KEY or KEY=VALUE"),
    ("remote", "list", "Only with these remotes"),
    ("remote_name", "string", "The remote"),
    ("remotes", "list", "Only to these remotes"),
    ("resource", "boolean", "Tell of resource definitions and resources; the default"),
    ("resource_definitions", "list", "Only these resource definitions"),
    ("resource_groups", "list", "Only these resource groups"),
    ("resource_name", "list", "Only of these resource definitions"),
    ("resources", "list", "Only of these resource definitions"),
    ("rsc", "list", "Only of these resource definitions"),
    ("rsc_dfn_name", "string", "What this resource definition says"),
    ("rsc_grp_name", "string", "What this resource group says"),
    ("rsc_name", "list", "Only of these resource definitions"),
    ("rscs", "list", "Also of nodes where one of these resources is"),
    ("s3key", "list", "Objects that belong to no backup"),
    ("s3key_force", "list", "Objects, whatever they belong to"),
    ("schedule", "list", "Only by these schedules"),
    ("since", "integer", "Only from this time on, in milliseconds since 1970"),
    ("snap_name", "list", "Only of these snapshots"),
    ("snap_to_node", "boolean", "By snapshots, with the nodes of each"),
    ("snapshots", "list", "Only of these snapshots"),
    ("storage_pools", "list", "Only in these storage pools; with metrics, false for none at all"),
    ("timestamp", "string", "Only those from before, yyyyMMdd_HHmmss"),
    ("to", "integer", "Only up to this time, in milliseconds since 1970"),
    ("who", "list", "Only calls by these: `token NAME` or `loopback`"),
    ("with_volume_definitions", "boolean", "With their volume definitions"),
    ("withContent", "boolean", "With the text of the error reports"),
];

pub fn routes() -> Routes {
    Routes::new().get("/v1/openapi.json", document)
}

async fn document(Extension(meters): Extension<Arc<Meters>>) -> Found {
    Found(of(&meters.table))
}

/// What one parameter of a handler takes of a request.
pub trait Extract {
    /// The schema of the body, if it reads that.
    fn body(_: &mut SchemaGenerator) -> Option<Schema> {
        None
    }

    /// The schema of the names in the path, if it reads those.
    fn path(_: &mut SchemaGenerator) -> Option<Schema> {
        None
    }
}

impl Extract for State<App> {}
impl<T> Extract for Extension<T> {}
impl Extract for HeaderMap {}
impl Extract for Asked {}

impl<T: JsonSchema> Extract for Path<T> {
    fn path(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(T::json_schema(generator))
    }
}

impl<T: JsonSchema> Extract for Body<T> {
    fn body(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<T>())
    }
}

/// What a handler takes of a request, by the types of its parameters.
#[derive(Default)]
pub struct Taken {
    body: Option<Schema>,
    path: Option<Schema>,
}

/// Handlers' parameters, as axum puts their types together.
pub trait Extracts {
    /// What they take.
    fn taken(generator: &mut SchemaGenerator) -> Taken;
}

impl Extracts for ((),) {
    fn taken(_: &mut SchemaGenerator) -> Taken {
        Taken::default()
    }
}

macro_rules! extracts {
    ($($parameter:ident),+) => {
        impl<Via, $($parameter: Extract),+> Extracts for (Via, $($parameter,)+) {
            fn taken(generator: &mut SchemaGenerator) -> Taken {
                let mut taken = Taken::default();
                $(
                    taken.body = taken.body.or($parameter::body(generator));
                    taken.path = taken.path.or($parameter::path(generator));
                )+
                taken
            }
        }
    };
}

extracts!(A);
extracts!(A, B);
extracts!(A, B, C);
extracts!(A, B, C, D);

/// The document of a table.
pub fn of(table: &Table) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for route in table.all() {
        let operation = operation(route, &mut generator);
        let path = paths.entry(named(&route.path)).or_default();
        path.insert(route.method.as_str().to_ascii_lowercase(), operation);
    }
    let mut schemas = generator.take_definitions(true);
    schemas.insert("Entries".to_owned(), entries());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Ashlar's controller",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "LINSTOR's REST API, as far as there is something here that acts on it, and \
                calls of our own below /v1/ashlar. Numbers and truth may come as text; names match in \
                any case. `x-role` says which role a token needs.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        // A program on the controller's host may need none.
        "security": [{ "token": [] }, {}],
    })
}

/// A path as the document has it.
fn named(path: &str) -> String {
    path.replace("{*", "{")
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let taken = (route.takes)(generator);
    let path = taken.path.map(Value::from);
    let names = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let names = names.map(|name| name.trim_start_matches('*')).enumerate();
    let in_path = names.map(|(index, name)| {
        let schema = name_schema(path.as_ref(), index, name);
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    });
    let asked = route.query.iter().chain(route.foretold.then_some(&"dry_run")).map(query);
    let parameters: Vec<Value> = in_path.chain(asked).collect();
    // linstor::nodes::create_interface; what has no name is of one kind in its module.
    let place = route.handler.split("::").nth(1).unwrap_or_default();
    let what = route.handler.rsplit("::").next().filter(|name| !name.starts_with('{'));
    let what = what.unwrap_or("list").replace('_', " ");
    let id = named(&route.path).replace(['{', '}', '.'], "").replace(['/', '-'], "_");
    let mut operation = json!({
        "operationId": format!("{}{id}", route.method.as_str().to_ascii_lowercase()),
        "tags": [place],
        "summary": format!("{place}: {what}"),
        "x-role": route.role.word(),
        "parameters": parameters,
        "responses": responses(route),
    });
    if let Some(body) = taken.body {
        // Clients leave it out where every field may be.
        operation["requestBody"] =
            json!({ "required": false, "content": { "application/json": { "schema": body } } });
    }
    if route.role == Role::Read && crate::access::OPEN.contains(&route.path.as_str()) {
        operation["security"] = json!([]);
    }
    operation
}

/// The schema of a name in a path: part of a tuple, field of a struct, or all there is.
fn name_schema(path: Option<&Value>, index: usize, name: &str) -> Value {
    let any = || json!({ "type": "string" });
    let Some(path) = path else { return any() };
    let part = match (path.get("prefixItems"), path.get("properties")) {
        (Some(items), _) => items.get(index).cloned(),
        (None, Some(fields)) => fields.get(name).cloned(),
        (None, None) => Some(path.clone()),
    };
    let mut part = part.unwrap_or_else(any);
    // Where there is a name it is one, even if other paths leave it out.
    if part["type"].is_array() {
        part["type"] = part["type"][0].clone();
    }
    if part["type"] == "string" {
        part["minLength"] = json!(1);
    }
    part
}

fn query(name: &&str) -> Value {
    let known = QUERY.iter().find(|(known, ..)| known == name);
    let (_, kind, text) = known.expect("every name of a query has its line in the table");
    let schema = match *kind {
        "list" => json!({ "type": "array", "items": { "type": "string" } }),
        "integer" => json!({ "type": "integer", "minimum": 0 }),
        kind => json!({ "type": kind }),
    };
    json!({ "name": name, "in": "query", "description": text, "schema": schema })
}

fn responses(route: &Route) -> Value {
    let entries = json!({
        "application/json": { "schema": { "$ref": "#/components/schemas/Entries" } },
    });
    let any = json!({ "application/json": { "schema": {} } });
    let (text, good) = match route.says {
        Says::Json => ("What was asked for", any.clone()),
        Says::Entries => ("What was done, and what there is to say of it", entries.clone()),
        Says::Text => ("Metrics, as Prometheus reads them", json!({ "text/plain": {} })),
        Says::File => ("A file of bytes", json!({ "application/octet-stream": {} })),
        Says::Events => ("What happens from now on", json!({ "text/event-stream": {} })),
        Says::Nothing => ("It serves", json!({})),
    };
    let mut responses = json!({ "200": { "description": text, "content": good } });
    // The report that is kept on the controller's host is made by a GET.
    let made = route.method == Method::POST || route.role == Role::Admin;
    if route.says != Says::Nothing && made {
        responses["201"] = json!({ "description": text, "content": good });
    }
    let said = if route.says == Says::Json { any } else { entries };
    let said = if route.says == Says::Nothing { json!({}) } else { said };
    let text = "Why not, what is wrong, and what to do about it; statuses are LINSTOR's";
    responses["default"] = json!({ "description": text, "content": said });
    responses
}

/// An answer as [`crate::answer::Entry`] writes it.
fn entries() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["ret_code", "message", "created_at"],
            "properties": {
                "ret_code": {
                    "type": "integer",
                    "format": "int64",
                    "description": "Bits 62 and 63: success, information, warning, error",
                },
                "message": text,
                "cause": text,
                "details": text,
                "correction": text,
                "created_at": { "type": "string", "format": "date-time" },
                "error_report_ids": { "type": "array", "items": text },
                "obj_refs": { "type": "object", "additionalProperties": text },
                "dry_run": { "type": "object", "description": "Steps, what is copied, and waits" },
            },
        },
    })
}
