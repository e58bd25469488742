//! `volume why`: what is not as it should be with a volume of the control plane, for what reason,
//! and what to do. Pure but for the questions it begins with; it names what the controller says.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::error::Error;
use super::super::why::Finding;
use super::answer::Entry;
use super::view::{Definition, Group, Node, Report, Resource, health, is_any};
use super::{Session, groups, http, resources_of, table, volumes};

/// Error reports that are told.
const REPORTS: usize = 3;

pub(super) fn run(session: &mut Session<'_>, name: &str) -> Result<(), Error> {
    let definition = volumes::definition(&session.http, name)?;
    let resources = resources_of(&session.http, name)?;
    let nodes: Vec<Node> = session.get("nodes", "/v1/nodes")?;
    let path = format!("/v1/resource-groups/{}", http::part(&definition.resource_group_name));
    let group: Group = session.get("its resource group", &path)?;
    let lacking = lacking(&group, &resources);
    let obstacles = match lacking {
        0 => Vec::new(),
        lacking => {
            let filter = filter_without(&group, &nodes, &resources, lacking);
            groups::obstacles(&session.http, &definition.resource_group_name, &filter)?
        }
    };
    let findings = explain(&definition, &resources, &nodes, &group, &obstacles);
    let path = format!("/v1/ashlar/placement/{}", http::part(name));
    let placement: Vec<Candidate> = session.get("where replicas could be", &path)?;
    let all: Vec<Report> = session.get("error reports", "/v1/error-reports?withContent=true")?;
    let reports: Vec<&Report> =
        all.iter().filter(|r| speaks_of(&r.exception_message, name)).take(REPORTS).collect();
    if session.json {
        let reports: Vec<_> = reports
            .iter()
            .map(|r| json!({ "id": r.id(), "node": r.node_name, "message": r.exception_message }))
            .collect();
        let whole = json!({
            "volume": name,
            "findings": findings,
            "placement": placement,
            "error_reports": reports,
        });
        return table::as_json(session.out, &whole);
    }
    let of: Vec<&Resource> = resources.iter().collect();
    writeln!(session.out, "volume {}: {}", definition.name, health(&definition, &of).0)?;
    for resource in &resources {
        let by = resource.props.get("DiskfulBy").map(|by| format!(", placed by the {by}"));
        let (node, part) = (&resource.node_name, resource.part());
        writeln!(session.out, "  {node}: {part}, {}{}", resource.disk(), by.unwrap_or_default())?;
    }
    let has = |found: &&Candidate| {
        let own = resources.iter().filter(|r| r.is_replica());
        own.into_iter().any(|r| r.node_name.eq_ignore_ascii_case(&found.node_name))
    };
    for candidate in placement.iter().filter(|found| !has(found)) {
        writeln!(session.out, "  {candidate}")?;
    }
    if findings.is_empty() {
        writeln!(session.out, "Everything is as it should be.")?;
    }
    for Finding { object, fact, reason, next } in &findings {
        writeln!(session.out, "\n{object}: {fact}")?;
        for (word, text) in [("why: ", reason), ("next:", next)] {
            if !text.is_empty() {
                writeln!(session.out, "  {word} {}", text.replace('\n', "\n        "))?;
            }
        }
    }
    for report in reports {
        writeln!(session.out, "\nerror report {}: {}", report.id(), report.exception_message)?;
        for (word, text) in report.reasons() {
            writeln!(session.out, "  {word} {text}")?;
        }
    }
    Ok(())
}

/// A place for one more replica, and what the placer makes of it.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Candidate {
    node_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_pool_name: Option<String>,
    verdict: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: no replica", self.node_name)?;
        if let Some(pool) = &self.storage_pool_name {
            write!(f, "; pool {pool}")?;
        }
        match (&self.reason, self.score) {
            (Some(reason), _) => write!(f, ": {reason}"),
            (None, Some(score)) => write!(f, " could take one, score {score:.5}"),
            (None, None) => Ok(()),
        }
    }
}

/// True if a sentence names the volume as a word.
fn speaks_of(text: &str, name: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    text.split(|c| !inside(c)).any(|word| word.trim_end_matches('.') == name)
}

/// Replicas that the group wants and that are not there.
fn lacking(group: &Group, resources: &[Resource]) -> u32 {
    let leaves = |r: &&Resource| r.is_leaving() || is_any(&r.flags, &["EVACUATE", "EVICTED"]);
    let stay = resources.iter().filter(|r| r.is_replica() && !leaves(r)).count();
    group.select_filter.place_count.unwrap_or(0).saturating_sub(stay as u32)
}

/// The group's filter, for what is lacking, on nodes that have nothing yet.
fn filter_without(
    group: &Group,
    nodes: &[Node],
    resources: &[Resource],
    lacking: u32,
) -> serde_json::Value {
    let has = |node: &Node| {
        let mut own = resources.iter().filter(|r| r.is_replica());
        own.any(|r| r.node_name.eq_ignore_ascii_case(&node.name))
    };
    let listed = &group.select_filter.node_name_list;
    let allowed = |node: &Node| {
        listed.is_empty() || listed.iter().any(|n| n.eq_ignore_ascii_case(&node.name))
    };
    let free = nodes.iter().filter(|node| node.holds_replicas() && !has(node) && allowed(node));
    let names: Vec<&str> = free.map(|node| node.name.as_str()).collect();
    json!({ "place_count": lacking, "node_name_list": names })
}

/// Everything worth knowing. Empty if all is well.
fn explain(
    definition: &Definition,
    resources: &[Resource],
    nodes: &[Node],
    group: &Group,
    obstacles: &[Entry],
) -> Vec<Finding> {
    let mut all = Vec::new();
    let online = |name: &str| {
        nodes.iter().any(|node| node.name.eq_ignore_ascii_case(name) && node.is_online())
    };
    if is_any(&definition.flags, &["DELETE"]) {
        let left: Vec<&str> = resources.iter().map(|r| r.node_name.as_str()).collect();
        all.push(finding(
            &definition.name,
            "it is being deleted".to_owned(),
            format!("it is still on {}", left.join(", ")),
            "",
        ));
    }
    for resource in resources {
        replica(resource, online(&resource.node_name), &mut all);
    }
    if definition.volume_definitions.iter().any(|volume| is_any(&volume.flags, &["RESIZE"])) {
        all.push(finding(
            &definition.name,
            "it grows".to_owned(),
            "not every node has made its disk larger".to_owned(),
            "wait; if error reports below say that a node can not, see to that first",
        ));
    }
    let lacking = lacking(group, resources);
    if lacking > 0 {
        let object = &definition.name;
        let fact = format!("{lacking} of the replicas that its group wants are not there");
        let next = format!("`ashlar volume adjust {object}`");
        if obstacles.is_empty() {
            all.push(finding(object, fact, "nobody has asked for them".to_owned(), &next));
        } else {
            let reasons: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
            all.push(finding(object, fact, reasons.join("\n"), &format!("then {next}")));
        }
    }
    all
}

fn finding(object: &str, fact: String, reason: String, next: &str) -> Finding {
    Finding { object: object.to_owned(), fact, reason, next: next.to_owned() }
}

/// What there is to say of one node's part.
fn replica(resource: &Resource, online: bool, all: &mut Vec<Finding>) {
    let node = &resource.node_name;
    let mut push = |fact: &str, reason: String, next: &str| {
        all.push(finding(&format!("node {node}"), fact.to_owned(), reason, next));
    };
    if !online {
        let reason = match resource.is_leaving() {
            true => "its part is removed when its agent is back".to_owned(),
            false => "its agent does not report: what it has may be old".to_owned(),
        };
        let next = format!("start the agent there, or `ashlar node lost {node}`");
        return push("it is offline", reason, &next);
    }
    if resource.is_leaving() {
        return match resource.is_in_use() {
            true => push("its part is to go", "it is in use there".to_owned(), "close it there"),
            false => push("its part is being removed", String::new(), ""),
        };
    }
    if is_any(&resource.flags, &["EVACUATE"]) {
        match resource.is_in_use() {
            true => {
                push("its part is to move away", "it is in use there".to_owned(), "close it there")
            }
            false => push(
                "its part is to move away",
                "the replica elsewhere is not UpToDate yet, or no other node fits".to_owned(),
                "",
            ),
        }
    }
    if resource.is_changing() {
        push("its disk comes or goes", "the node is at work on it".to_owned(), "");
    }
    if resource.is_inactive() {
        let reason = match resource.is_going_down() {
            true => "it goes down when nobody uses it there and another replica is UpToDate",
            false => "it was deactivated: it is down, and gets no writes",
        };
        let next = format!("`ashlar volume activate {} {node}` brings it up", resource.name);
        return push("it is inactive", reason.to_owned(), &next);
    }
    if resource.is_replica() && !resource.is_up_to_date() {
        let resync = resource.volumes.iter().find_map(super::view::Volume::resync);
        let fact = format!("its disk is {}", resource.disk());
        match resync {
            Some((state, percent)) => {
                push(&fact, format!("{state}, {percent:.1} % done"), "");
            }
            None => {
                let next = format!("`ashlar why {}` on that node says more", resource.name);
                push(&fact, String::new(), &next);
            }
        }
    }
    let peers = resource.layer_object.drbd.connections.iter();
    let away: Vec<&str> =
        peers.filter(|(_, c)| !c.connected).map(|(peer, _)| peer.as_str()).collect();
    if !away.is_empty() {
        let next = "check the nodes, their engines, and the network between";
        push(&format!("it is not connected to {}", away.join(", ")), String::new(), next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value};

    fn resource(value: Value) -> Resource {
        from_value(value).unwrap()
    }

    fn online(name: &str) -> Node {
        from_value(json!({ "name": name, "type": "Satellite", "connection_status": "ONLINE" }))
            .unwrap()
    }

    fn up_to_date(node: &str) -> Value {
        json!({
            "name": "v", "node_name": node, "state": { "in_use": false },
            "volumes": [{ "volume_number": 0, "state": { "disk_state": "UpToDate" } }],
        })
    }

    fn found(resources: &[Resource], nodes: &[Node], obstacles: &[Entry]) -> Vec<Finding> {
        let definition: Definition = from_value(json!({ "name": "v" })).unwrap();
        let group: Group =
            from_value(json!({ "name": "g", "select_filter": { "place_count": 2 } })).unwrap();
        explain(&definition, resources, nodes, &group, obstacles)
    }

    #[test]
    fn a_healthy_volume_has_nothing_to_explain() {
        let resources = [resource(up_to_date("a")), resource(up_to_date("b"))];
        assert!(found(&resources, &[online("a"), online("b")], &[]).is_empty());
    }

    #[test]
    fn each_trouble_names_its_node_and_the_next_step() {
        let mut using = up_to_date("b");
        (using["flags"], using["state"]["in_use"]) = (json!(["EVACUATE"]), json!(true));
        let mut syncing = up_to_date("c");
        syncing["volumes"][0]["state"] = json!({
            "disk_state": "Inconsistent",
            "replication_states": { "a": { "replication_state": "SyncTarget", "done_percentage": 41.5 } },
        });
        let resources = [up_to_date("a"), using, syncing].map(resource);
        let all = found(&resources, &[online("b"), online("c")], &[]);
        let told: Vec<String> = all
            .iter()
            .map(|f| format!("{}: {}; {}; {}", f.object, f.fact, f.reason, f.next))
            .collect();
        assert!(
            told[0].contains("node a: it is offline") && told[0].contains("node lost a"),
            "{told:?}"
        );
        assert!(told[1].contains("in use there; close it"), "{told:?}");
        assert!(
            told[2].contains("Inconsistent 42 %") && told[2].contains("41.5 % done"),
            "{told:?}"
        );
        assert_eq!(told.len(), 3, "{told:?}");
    }

    #[test]
    fn an_inactive_replica_is_told_of_and_no_other_is_missed() {
        let mut inactive = up_to_date("b");
        inactive["flags"] = json!(["INACTIVE"]);
        let nodes = [online("a"), online("b")];
        for (state, expected) in
            [(json!({}), "was deactivated"), (json!({ "disk_state": "UpToDate" }), "goes down")]
        {
            inactive["volumes"][0]["state"] = state;
            let resources = [up_to_date("a"), inactive.clone()].map(resource);
            let all = found(&resources, &nodes, &[]);
            assert_eq!(all.len(), 1, "{all:?}");
            assert!(all[0].reason.contains(expected), "{all:?}");
            assert!(all[0].next.contains("volume activate v b"), "{all:?}");
            let definition: Definition = from_value(json!({ "name": "v" })).unwrap();
            let of: Vec<&Resource> = resources.iter().collect();
            assert_eq!(health(&definition, &of).0, "UpToDate; inactive on b");
        }
    }

    #[test]
    fn missing_replicas_are_explained_by_the_placer() {
        let resources = [resource(up_to_date("a"))];
        let full = Entry { message: "pool p of node b: too small".into(), ..Entry::default() };
        let all = found(&resources, &[online("a")], &[full]);
        assert!(
            all[0].fact.starts_with("1 of the replicas") && all[0].reason.contains("too small")
        );
        let all = found(&resources, &[online("a")], &[]);
        assert!(all[0].next.contains("volume adjust v"), "{all:?}");
    }

    #[test]
    fn a_place_without_a_replica_says_why() {
        let said = |value| from_value::<Candidate>(value).unwrap().to_string();
        let fits = json!({ "node_name": "n3", "storage_pool_name": "thin", "verdict": "FITS",
                           "score": 1.00001 });
        assert_eq!(said(fits), "n3: no replica; pool thin could take one, score 1.00001");
        let full = json!({ "node_name": "n3", "storage_pool_name": "thin", "verdict": "OUT",
                           "reason": "the node is not connected" });
        assert_eq!(said(full), "n3: no replica; pool thin: the node is not connected");
    }

    #[test]
    fn reports_are_those_that_name_the_volume() {
        assert!(speaks_of("node n1 could not create volume 0 of vol1", "vol1"));
        assert!(speaks_of("vol1: no space.", "vol1"));
        assert!(!speaks_of("node n1 could not create volume 0 of vol10", "vol1"));
    }
}
