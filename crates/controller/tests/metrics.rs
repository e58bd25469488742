//! Metrics and health of a controller with simulated agents, as Prometheus reads them.

use std::collections::{BTreeMap, BTreeSet};

use crate::served::Server;

/// Samples by name and labels; the text is checked on the way.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", "HELP", name, text] => {
                assert!(helped.insert(*name) && !text.is_empty(), "{line}");
            }
            ["#", "TYPE", name, kind] => {
                assert!(helped.contains(name), "no help before {line}");
                assert!(kinds.insert(name, kind).is_none(), "{name} twice");
            }
            _ => {
                let (key, value) = line.rsplit_once(' ').unwrap();
                let name = key.split('{').next().unwrap();
                let ends = ["_bucket", "_sum", "_count"];
                let of_histogram = ends.iter().find_map(|end| name.strip_suffix(end));
                let of_histogram = of_histogram.and_then(|name| kinds.get(name));
                let known = kinds.contains_key(name) || of_histogram == Some(&"histogram");
                assert!(known, "no type before {line}");
                assert!(
                    all.insert(key.to_owned(), value.parse().unwrap()).is_none(),
                    "{key} twice"
                );
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_say_what_there_is_and_how_it_is() {
    let server = Server::with_volume().await;
    let answer = server.call("GET", "/metrics", "").await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    let text = String::from_utf8(answer.body).unwrap();
    let all = samples(&text);
    let value = |key: &str| *all.get(key).unwrap_or_else(|| panic!("{key} is not in {text}"));
    assert_eq!(value("linstor_resource_definition_count"), 1.0);
    assert_eq!(value("linstor_node_state{node=\"n1\",nodetype=\"SATELLITE\"}"), 2.0);
    assert_eq!(value("ashlar_resource_definition_copies{name=\"Vol\"}"), 2.0);
    let labels = "{name=\"Vol\",resource_group=\"DfltRscGrp\",volume_number=\"0\"}";
    assert_eq!(value(&format!("linstor_volume_definition_size_bytes{labels}")), 1073741824.0);
    let labels = "{node=\"n1\",storage_pool=\"pool\",driver=\"FILE_THIN\",backing_pool=\"/srv\"}";
    assert_eq!(
        value(&format!("linstor_storage_pool_capacity_total_bytes{labels}")),
        107374182400.0
    );
    assert_eq!(value(&format!("linstor_storage_pool_error_count{labels}")), 0.0);
    // Two replicas are UpToDate, the tie-breaker is diskless.
    let mut states: Vec<f64> = all
        .iter()
        .filter(|(key, _)| key.starts_with("linstor_volume_state{"))
        .map(|s| *s.1)
        .collect();
    states.sort_by(f64::total_cmp);
    assert_eq!(states, [1.0, 1.0, 4.0]);
    let spawn = "{apicall=\"POST /v1/resource-groups/{group}/spawn\"}";
    let name = "linstor_restapi_request_duration_seconds";
    assert_eq!(value(&format!("{name}_count{spawn}")), 1.0);
    assert!(value(&format!("{name}_sum{spawn}")) > 0.0);
    assert_eq!(value("linstor_scrape_requests_count"), 1.0);

    // A node that goes away, and a request of nobody who is known.
    server.agents.cut(&server.handle, "n1").await;
    let away = async || {
        let node = server.call("GET", "/v1/nodes/n1", "").await.json();
        node["connection_status"] == "OFFLINE"
    };
    for _ in 0..100 {
        if away().await {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    server.call_with("GET", "/v1/nodes", "Host: evil.example\r\n", "").await;
    let query = "/metrics?resource=false&storage_pools=false&error_reports=false";
    let text = String::from_utf8(server.call("GET", query, "").await.body).unwrap();
    let all = samples(&text);
    assert_eq!(all["linstor_node_state{node=\"n1\",nodetype=\"SATELLITE\"}"], 0.0);
    assert_eq!(all["ashlar_controller_denied_total"], 1.0);
    assert_eq!(all["linstor_scrape_requests_count"], 2.0);
    for part in ["linstor_resource_", "linstor_volume_", "linstor_storage_", "linstor_error_"] {
        assert!(!all.keys().any(|key| key.starts_with(part)), "{part}");
    }
    let targets = server.call("GET", "/metrics/scrape-target", "").await.json();
    assert_eq!(targets[0]["targets"][0], "10.0.0.1:9942");
}
