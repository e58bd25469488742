//! The document against the code, against LINSTOR's calls (`testdata/calls.txt`), and against what
//! COMPAT.md claims.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// LINSTOR's calls: method, path, and the names of the query.
const CALLS: &str = include_str!("../../testdata/calls.txt");
const COMPAT: &str = include_str!("../../../../COMPAT.md");

/// Calls of LINSTOR's that have no line in the table, by the beginning of their path, and where the
/// refusal or the empty list is. COMPAT.md has them in rows that say so.
const ELSEWHERE: &[&str] = &["/v1/resource-definitions/{}/drbd-proxy", "/v1/remotes/ebs"];

/// Names of queries that need no line: what they ask for is always so.
const ALWAYS: &[(&str, &str)] = &[
    // Capacities are those that were last reported, and agents report by themselves.
    ("/v1/nodes/{}/storage-pools", "cached"),
    ("/v1/view/storage-pools", "cached"),
    // The path has the node.
    ("/v1/nodes/{}/storage-pools", "nodes"),
];

fn table() -> Table {
    crate::routes().into_parts().1
}

/// A path with its names taken out.
fn bare(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// Method and path to the names of the query.
fn ours() -> BTreeMap<(String, String), BTreeSet<String>> {
    let table = table();
    let all = table.all().map(|route| {
        let names = route.query.iter().map(|name| (*name).to_owned());
        ((route.method.to_string(), bare(&route.path)), names.collect())
    });
    all.collect()
}

#[test]
fn every_call_of_linstors_is_in_the_table_or_said_not_to_be() {
    let ours = ours();
    let mut missing = Vec::new();
    for line in CALLS.lines() {
        let mut words = line.split(' ');
        let (method, path) = (words.next().unwrap(), bare(words.next().unwrap()));
        if ELSEWHERE.iter().any(|p| path.starts_with(p)) {
            continue;
        }
        // One call has the word in the path as a name.
        let path = if path.starts_with("/v1/stats/") { "/v1/stats/{}".to_owned() } else { path };
        let Some(known) = ours.get(&(method.to_owned(), path.clone())) else {
            missing.push(line);
            continue;
        };
        for name in words {
            let always = ALWAYS.contains(&(path.as_str(), name));
            assert!(known.contains(name) != always, "{method} {path}: `{name}` of the query");
        }
    }
    assert!(missing.is_empty(), "in no table: {missing:#?}");
}

#[test]
fn what_is_elsewhere_is_not_in_the_table() {
    for (_, path) in ours().keys() {
        assert!(!ELSEWHERE.iter().any(|p| path.starts_with(p)), "{path} has a line by now");
    }
}

/// The paths that rows of COMPAT.md claim: the words in backticks of their first column.
fn claimed() -> Vec<(String, String)> {
    let table = COMPAT.split("## LINSTOR's REST API").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let mut all = Vec::new();
    for row in table.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let mut columns = row.split(" | ");
        let (calls, state) = (columns.next().unwrap(), columns.next().unwrap());
        for word in calls.split('`').skip(1).step_by(2) {
            let word = word.replace('…', "");
            let long = match word.split_at_checked(1) {
                Some(("D", rest)) => format!("/v1/resource-definitions/{{}}{rest}"),
                Some(("N", rest)) => format!("/v1/nodes/{{}}{rest}"),
                Some(("G", rest)) => format!("/v1/resource-groups/{{}}{rest}"),
                _ => word,
            };
            // `a[/{b}]` is two paths.
            let short = long.split('[').next().unwrap();
            all.push((bare(short.trim_end_matches('/')), state.to_owned()));
            let long = long.replace(['[', ']'], "");
            all.push((bare(long.trim_end_matches('/')), state.to_owned()));
        }
    }
    all
}

#[test]
fn compat_claims_what_there_is_and_nothing_else() {
    let claimed = claimed();
    assert!(claimed.len() > 60, "the table of COMPAT.md is not found: {claimed:?}");
    let ours: BTreeSet<String> = ours().into_keys().map(|(_, path)| path).collect();
    let starts = |path: &str, with: &str| {
        path.strip_prefix(with).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    for (path, state) in &claimed {
        if state == "works" && path.starts_with('/') {
            let there = ours.iter().any(|ours| starts(ours, path));
            assert!(there, "COMPAT.md says that {path} works");
        }
    }
    for path in &ours {
        let there = claimed.iter().any(|(claimed, _)| starts(path, claimed));
        assert!(there, "COMPAT.md has no row with {path}");
    }
}

#[test]
fn the_document_says_what_calls_take() {
    let document = of(&table());
    let at = |path: &str, method: &str| &document["paths"][path][method];
    // A body is described by the type that reads it.
    let create = at("/v1/nodes", "post");
    let schema = &create["requestBody"]["content"]["application/json"]["schema"];
    let name = schema["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
    let schema = &document["components"]["schemas"][name];
    assert_eq!(schema["required"], json!(["name"]), "{schema}");
    assert!(schema["properties"]["net_interfaces"].is_object(), "{schema}");
    // Names in paths, of tuples and structs.
    let volume = at("/v1/resource-definitions/{resource}/volume-definitions/{number}", "get");
    let types = volume["parameters"].as_array().unwrap().iter().map(|p| &p["schema"]["type"]);
    assert_eq!(types.collect::<Vec<_>>(), ["string", "integer"]);
    let disk = "/v1/resource-definitions/{resource}/resources/{node}/toggle-disk/diskful/{pool}";
    let parameters = at(disk, "put")["parameters"].as_array().unwrap();
    for parameter in parameters.iter().filter(|parameter| parameter["in"] == "path") {
        assert_eq!(parameter["schema"]["type"], "string", "{parameter}");
    }
    assert_eq!(at("/v1/controller/properties/{key}", "delete")["x-role"], "admin");
    assert_eq!(at("/v1/nodes", "get")["tags"], json!(["nodes"]));
    // Every operation has an id of its own, and every reference leads somewhere.
    let mut ids = BTreeSet::new();
    for path in document["paths"].as_object().unwrap().values() {
        for operation in path.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} twice");
        }
    }
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name} leads nowhere");
    }
}
