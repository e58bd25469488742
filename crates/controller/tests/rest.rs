//! The REST API as bytes: statuses, envelopes and the traps that clients fall into (control plane §0,
//! §2), over a plain socket.

use crate::served::Server;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn statuses_and_envelopes_are_those_that_clients_compare() {
    let server = Server::with_volume().await;
    // Absent on GET is 404, absent on DELETE is 200 with a warning.
    let answer = server.call("GET", "/v1/nodes/never", "").await;
    assert_eq!((answer.status, answer.first()), (404, (300, true)));
    let answer = server.call("DELETE", "/v1/resource-definitions/never", "").await;
    assert_eq!((answer.status, answer.first()), (200, (3000, false)));
    // What exists is 500, and names match in any case.
    let answer = server
        .call("POST", "/v1/resource-definitions", r#"{"resource_definition":{"name":"vOL"}}"#)
        .await;
    assert_eq!((answer.status, answer.first()), (500, (501, true)));
    let shown = server.call("GET", "/v1/resource-definitions/VOL", "").await.json();
    assert_eq!(shown["name"], "Vol");
    assert_eq!(shown["layer_data"][0]["data"]["secret"], "(kept)", "clients want the field");
    // Placing what is placed is 201 with warning 1006.
    let answer = server
        .call(
            "POST",
            "/v1/resource-definitions/vol/autoplace",
            r#"{"select_filter":{"place_count":2}}"#,
        )
        .await;
    assert_eq!(answer.status, 201);
    let codes = answer.json();
    let codes = codes.as_array().unwrap().iter().map(|e| e["ret_code"].as_i64().unwrap() & 0x7fff);
    assert!(codes.into_iter().any(|code| code == 1006));
    // Too many replicas is 996.
    let answer = server
        .call(
            "POST",
            "/v1/resource-definitions/vol/autoplace",
            r#"{"select_filter":{"place_count":9}}"#,
        )
        .await;
    assert_eq!((answer.status, answer.first()), (500, (996, true)));
    assert!(answer.json()[0]["details"].as_str().unwrap().contains("pool"));
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_may_be_missing_null_or_without_a_type_but_not_broken() {
    let server = Server::with_volume().await;
    for body in ["", "null", "{}"] {
        let answer = server.call("PUT", "/v1/nodes/n3/evacuate", body).await;
        assert_eq!(answer.status, 200, "{body}");
        assert!(answer.json().is_array());
        assert_eq!(server.call("PUT", "/v1/nodes/n3/restore", body).await.status, 200, "{body}");
    }
    let answer = server.call("POST", "/v1/nodes", "{broken").await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()[0]["ret_code"].as_i64().unwrap() & 0xff, 0xfd);
    // An unknown field is for a newer server; a known one that nothing acts on is refused.
    let answer = server.call("PUT", "/v1/resource-definitions/vol", r#"{"newer":1}"#).await;
    assert_eq!(answer.status, 200);
    let path = "/v1/resource-definitions/vol/resources/n3/make-available";
    let answer = server.call("POST", path, r#"{"copy_all_snaps":true}"#).await;
    assert_eq!((answer.status, answer.first()), (500, (234, true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_says_so() {
    let server = Server::new().await;
    let answer = server.call("GET", "/v1/nonsense", "").await;
    assert_eq!((answer.status, answer.first()), (404, (998, true)));
    let answer = server.call("PATCH", "/v1/nodes", "").await;
    assert_eq!((answer.status, answer.first()), (405, (998, true)));
    for (method, path, status) in
        [("POST", "/v1/remotes/ebs", 501), ("PUT", "/v1/remotes/ebs/vault", 501)]
    {
        let answer = server.call(method, path, "{}").await;
        assert_eq!(answer.status, status, "{method} {path}");
        let entry = &answer.json()[0];
        for part in ["message", "cause", "correction"] {
            assert!(!entry[part].as_str().unwrap().is_empty(), "{method} {path}: {entry}");
        }
    }
    let answer = server.call("GET", "/v1/resource-definitions/aa/clone/bb", "").await;
    assert_eq!((answer.status, answer.first()), (404, (301, true)));
    let health = server.call("GET", "/health", "").await;
    assert_eq!((health.status, health.body.len()), (200, 0));
    assert_eq!(server.call("GET", "/v1/remotes", "").await.status, 200);
    // A path that can not be read is answered like everything else.
    let answer = server.call("GET", "/v1/resource-groups/g/volume-groups/many", "").await;
    assert_eq!(answer.status, 400);
    assert!(answer.json()[0]["cause"].is_string());
    let report = server.call("GET", "/v1/space-report", "").await.json();
    assert!(report["reportText"].as_str().unwrap().starts_with("node "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_is_answered_as_an_object_whether_it_was_begun_or_refused() {
    let server = Server::with_volume().await;
    let clone = async |source: &str, body: &str| {
        let path = format!("/v1/resource-definitions/{source}/clone");
        let answer = server.call("POST", &path, body).await;
        (answer.status, answer.json())
    };
    for (source, body, status, number) in [
        ("never", r#"{"name":"copy"}"#, 404, 301),
        ("vol", r#"{"name":"vol"}"#, 500, 501),
        ("vol", r#"{"name":"copy","use_zfs_clone":true}"#, 500, 234),
        ("vol", r#"{"name":"copy","resource_group":"never"}"#, 404, 317),
        ("vol", "{}", 500, 202),
    ] {
        let (found, answer) = clone(source, body).await;
        assert_eq!(found, status, "{source} {body}: {answer}");
        let first = &answer["messages"][0];
        let code = first["ret_code"].as_i64().unwrap();
        assert!(code < 0 && code & 0x7fff == number, "{source} {body}: {answer}");
        assert!(!first["correction"].as_str().unwrap().is_empty(), "{answer}");
        let asked = ["copy", "vol"].into_iter().find(|name| body.contains(name)).unwrap_or("");
        assert_eq!(
            (&answer["source_name"], &answer["clone_name"]),
            (&json!(source), &json!(asked))
        );
        let location = format!("/v1/resource-definitions/{source}/clone/{asked}");
        assert_eq!(answer["location"], location);
    }
    assert_eq!(server.call("GET", "/v1/resource-definitions/copy", "").await.status, 404);
    let (status, answer) = clone("vol", r#"{"name":"copy"}"#).await;
    assert_eq!((status, &answer["clone_name"]), (201, &json!("copy")), "{answer}");
    assert_eq!(answer["messages"][0]["obj_refs"], json!({ "RscDfn": "copy" }));
    // A dry run is one, too.
    let path = "/v1/resource-definitions/vol/clone?dry_run=true";
    let answer = server.call("POST", path, r#"{"name":"third"}"#).await;
    assert_eq!((answer.status, &answer.json()["clone_name"]), (200, &json!("third")));
    let steps = answer.json()["messages"][0]["dry_run"]["steps"].clone();
    assert!(steps.as_array().is_some_and(|steps| !steps.is_empty()), "{steps}");
    assert_eq!(server.call("GET", "/v1/resource-definitions/third", "").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_name_what_was_made_where_the_controller_has_chosen() {
    let server = Server::with_volume().await;
    let refs = async |path: &str, body: &str| {
        let answer = server.call("POST", path, body).await;
        assert!(answer.status < 300, "{path}: {}", String::from_utf8_lossy(&answer.body));
        answer.json()[0]["obj_refs"].clone()
    };
    // Names that are derived from others.
    let body = r#"{"resource_definition":{"external_name":"an outer name"}}"#;
    let made = refs("/v1/resource-definitions", body).await;
    let name = made["RscDfn"].as_str().unwrap();
    let path = format!("/v1/resource-definitions/{name}");
    let shown = server.call("GET", &path, "").await.json();
    assert_eq!(shown["external_name"], "an outer name", "{made}");
    let body = r#"{"resource_definition_external_name":"another/name","volume_sizes":["1048576"]}"#;
    let made = refs("/v1/resource-groups/DfltRscGrp/spawn", body).await;
    let spawned = format!("/v1/resource-definitions/{}", made["RscDfn"].as_str().unwrap());
    let shown = server.call("GET", &spawned, "").await.json();
    assert_eq!(shown["external_name"], "another/name", "{made}");
    assert_eq!(made["StoragePool/0/0"], "pool,FILE_THIN");
    // Numbers.
    let body = r#"{"volume_definition":{"size_kib":1048576}}"#;
    let volumes = format!("{path}/volume-definitions");
    assert_eq!(refs(&volumes, body).await["VlmNr"], "0");
    assert_eq!(refs(&volumes, body).await["VlmNr"], "1");
    let groups = "/v1/resource-groups/DfltRscGrp/volume-groups";
    assert_eq!(refs(groups, "{}").await, json!({ "RscGrp": "DfltRscGrp", "VlmNr": "0" }));
    // Places, of the replicas and not of the tie-breaker.
    let body = r#"{"select_filter":{"place_count":2}}"#;
    let made = refs(&format!("{path}/autoplace"), body).await;
    let resources = server.call("GET", &format!("{path}/resources"), "").await.json();
    let with_disk = |resource: &&Value| !resource["flags"].to_string().contains("DISKLESS");
    let nodes = resources.as_array().unwrap().iter().filter(with_disk);
    let nodes: Vec<&Value> = nodes.map(|resource| &resource["node_name"]).collect();
    let mut named = vec![&made["Node/0"], &made["Node/1"]];
    named.sort_by_key(|name| name.to_string());
    assert_eq!(named, nodes, "{made}");
    assert_eq!(made["StoragePool/1/0"], "pool,FILE_THIN");
    assert_eq!(made.get("Node/2"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_s_port_is_its_resources_wherever_that_is_free() {
    let server = Server::with_volume().await;
    let create = async |port: i64| {
        let body = format!(r#"{{"resource_definition":{{"name":"ported"}},"drbd_port":{port}}}"#);
        server.call("POST", "/v1/resource-definitions", &body).await
    };
    let answer = create(70_000).await;
    assert_eq!((answer.status, answer.first()), (500, (203, true)));
    // The port of the other resource on two of three nodes.
    assert_eq!(create(7000).await.status, 201);
    let path = "/v1/resource-definitions/ported";
    let shown = server.call("GET", path, "").await.json();
    assert_eq!(shown["layer_data"][0]["data"]["port"], 7000);
    let volume = r#"{"volume_definition":{"size_kib":1048576}}"#;
    assert_eq!(
        server.call("POST", &format!("{path}/volume-definitions"), volume).await.status,
        200
    );
    let place = async |count: u32| {
        let body = format!(r#"{{"select_filter":{{"place_count":{count}}}}}"#);
        server.call("POST", &format!("{path}/autoplace"), &body).await
    };
    let answer = place(3).await;
    assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
    let said = answer.json();
    let taken = |entry: &&Value| entry["ret_code"].as_i64().unwrap() & 0x7fff == 215;
    let said: Vec<String> =
        said.as_array().unwrap().iter().filter(taken).map(|entry| entry.to_string()).collect();
    assert_eq!(said.len(), 3, "every node has a resource with that port: {said:?}");
    assert_eq!(server.call("DELETE", path, "").await.status, 200);
    // Where it is free it is the port.
    let begun = std::time::Instant::now();
    while create(7123).await.status != 201 {
        assert!(begun.elapsed().as_secs() < 20, "it is not deleted");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(
        server.call("POST", &format!("{path}/volume-definitions"), volume).await.status,
        200
    );
    let answer = place(2).await;
    assert!(!String::from_utf8_lossy(&answer.body).contains("taken"));
    let resources = server.call("GET", &format!("{path}/resources"), "").await.json();
    for resource in resources.as_array().unwrap() {
        assert_eq!(resource["layer_object"]["drbd"]["tcp_ports"], json!([7123]), "{resource}");
    }
    // Those that exist keep theirs.
    let answer = server.call("PUT", path, r#"{"drbd_port":7124}"#).await;
    assert_eq!((answer.status, answer.first()), (500, (234, true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_filtered_and_cut_and_compressed() {
    let server = Server::with_volume().await;
    let count =
        async |path: &str| server.call("GET", path, "").await.json().as_array().unwrap().len();
    assert_eq!(count("/v1/nodes").await, 3);
    assert_eq!(count("/v1/nodes?limit=0&offset=0").await, 3);
    assert_eq!(count("/v1/nodes?limit=2147483647").await, 3);
    assert_eq!(count("/v1/nodes?limit=2&offset=2").await, 1);
    assert_eq!(count("/v1/nodes?nodes=N1&nodes=n2").await, 2);
    assert_eq!(count("/v1/nodes?nodes=never").await, 0);
    assert_eq!(count("/v1/view/resources").await, 3);
    assert_eq!(count("/v1/view/resources?resources=vol&nodes=n1").await, 1);
    assert_eq!(count("/v1/view/resources?nodes=n1").await, 1);
    assert_eq!(count("/v1/view/resources?storage_pools=pool").await, 2);
    assert_eq!(count("/v1/view/storage-pools?storage_pools=pool&cached=True").await, 3);
    let all = server.call("GET", "/v1/view/resources", "").await.json();
    for resource in all.as_array().unwrap() {
        assert_eq!(resource["state"]["in_use"], false, "zero and false are kept");
        assert!(resource.get("props").is_none_or(|props| !props.as_object().unwrap().is_empty()));
        assert!(resource["layer_object"]["drbd"]["node_id"].is_u64());
        assert!(resource["layer_object"]["drbd"]["promotion_score"].as_i64().unwrap() > 0);
    }
    let gzip = "Accept-Encoding: gzip\r\n";
    let answer = server.call_with("GET", "/v1/view/resources", gzip, "").await;
    assert!(answer.head.contains("content-encoding: gzip"), "{}", answer.head);
    let answer = server.call_with("GET", "/v1/controller/version", gzip, "").await;
    assert!(!answer.head.contains("content-encoding"), "{}", answer.head);
}

/// What long lists have to say, object by object as each is shown by itself.
async fn one_by_one(server: &Server, names: &[&str]) -> (Vec<Value>, Vec<Value>) {
    let (mut resources, mut definitions) = (Vec::new(), Vec::new());
    for name in names {
        let path = format!("/v1/resource-definitions/{name}");
        let shown = server.call("GET", &format!("{path}?with_volume_definitions=true"), "").await;
        definitions.push(shown.json());
        let shown = server.call("GET", &format!("{path}/resources"), "").await.json();
        for resource in shown.as_array().unwrap() {
            let mut resource = resource.clone();
            let node = resource["node_name"].as_str().unwrap();
            let volumes = format!("{path}/resources/{node}/volumes");
            resource["volumes"] = server.call("GET", &volumes, "").await.json();
            resources.push(resource);
        }
    }
    (resources, definitions)
}

#[tokio::test(flavor = "multi_thread")]
async fn long_lists_show_every_change() {
    let server = Server::with_volume().await;
    let spawn = r#"{"resource_definition_name":"other","volume_sizes":["1048576"]}"#;
    let path = "/v1/resource-groups/DfltRscGrp/spawn";
    assert_eq!(server.call("POST", path, spawn).await.status, 201);
    let same = async |after: &str, names: &[&str]| {
        let begun = std::time::Instant::now();
        loop {
            let list = async |path: &str| match server.call("GET", path, "").await.json() {
                Value::Array(list) => list,
                other => panic!("{other}"),
            };
            let listed = (
                list("/v1/view/resources").await,
                list("/v1/resource-definitions?with_volume_definitions=true").await,
            );
            // What agents still report is in one and not yet in the other.
            let each = one_by_one(&server, names).await;
            if listed == each {
                let pages = ["limit=2", "limit=2&offset=2", "limit=2&offset=4"];
                let mut paged = Vec::new();
                for page in pages {
                    paged.extend(list(&format!("/v1/view/resources?{page}")).await);
                }
                assert_eq!(paged, listed.0, "after {after}");
                let plain = list("/v1/resource-definitions").await;
                assert!(plain.iter().all(|one| one.get("volume_definitions").is_none()));
                return listed;
            }
            assert!(begun.elapsed().as_secs() < 10, "after {after}: {listed:#?}\n{each:#?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let both = ["other", "Vol"];
    let mut before = same("spawning", &both).await;
    let mut changed = async |after: &str, names: &[&str]| {
        let now = same(after, names).await;
        assert_ne!(now, before, "after {after}");
        before = now;
    };
    let path = "/v1/resource-definitions/vol/resources/n1";
    let body = r#"{"override_props":{"Aux/x":"y"}}"#;
    assert_eq!(server.call("PUT", path, body).await.status, 200);
    changed("a property of a resource", &both).await;
    assert_eq!(server.call("PUT", "/v1/resource-definitions/vol", body).await.status, 200);
    changed("a property of a definition", &both).await;
    server.agents.cut(&server.handle, "n1").await;
    changed("the loss of a node", &both).await;
    server.agents.connect(&server.handle, "n1").await;
    changed("its return", &both).await;
    let path = "/v1/resource-definitions/vol/volume-definitions/0";
    assert_eq!(server.call("PUT", path, r#"{"size_kib":2097152}"#).await.status, 200);
    changed("a volume has grown", &both).await;
    let path = "/v1/resource-definitions/other";
    assert_eq!(server.call("DELETE", path, "").await.status, 200);
    changed("a deletion", &["Vol"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_size_of_more_replicas_than_there_are_pools_is_refused() {
    let server = Server::with_volume().await;
    let ask = async |body: &str| server.call("OPTIONS", "/v1/query-max-volume-size", body).await;
    let answer = ask(r#"{"place_count":9}"#).await;
    assert_eq!((answer.status, answer.first()), (500, (996, true)));
    let answer = ask(r#"{"place_count":3}"#).await.json();
    assert_eq!(answer["candidates"][0]["node_names"].as_array().unwrap().len(), 3, "{answer}");
}

/// 720 minutes after it went away, if nobody says otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_away_says_when_it_is_evicted() {
    let server = Server::new().await;
    for name in ["n1", "n2", "n3"] {
        let interface = r#"[{"name":"default","address":"10.0.0.1"}]"#;
        let body = format!(r#"{{"name":"{name}","net_interfaces":{interface}}}"#);
        assert_eq!(server.call("POST", "/v1/nodes", &body).await.status, 201);
    }
    let shown = async || server.call("GET", "/v1/nodes/n1", "").await.json();
    assert!(shown().await.get("eviction_timestamp").is_none());
    server.agents.cut(&server.handle, "n1").await;
    let mut node = shown().await;
    for _ in 0..100 {
        if node["connection_status"] == "OFFLINE" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        node = shown().await;
    }
    let at = node["eviction_timestamp"].as_u64().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let minutes = (at - now.as_millis() as u64) / 60_000;
    assert!((715..=720).contains(&minutes), "{minutes}");
    let body = r#"{"override_props":{"DrbdOptions/AutoEvictAllowEviction":"false"}}"#;
    assert_eq!(server.call("PUT", "/v1/nodes/n1", body).await.status, 200);
    assert!(shown().await.get("eviction_timestamp").is_none());
    // Nor can it come back if none of its interfaces has an agent.
    let interfaces = "/v1/nodes/n1/net-interfaces";
    let other = r#"{"name":"data","address":"10.0.1.1"}"#;
    assert_eq!(server.call("POST", interfaces, other).await.status, 201);
    let gone = server.call("DELETE", &format!("{interfaces}/default"), "").await;
    assert_eq!(gone.status, 200);
    assert_eq!(shown().await["connection_status"], "NO_STLT_CONN");
}

#[tokio::test(flavor = "multi_thread")]
async fn external_files_have_paths_in_the_path() {
    let server = Server::new().await;
    let path = "/v1/files/%2Fetc%2Fexample.conf";
    let answer = server.call("PUT", path, r#"{"content":"aGVsbG8="}"#).await;
    assert_eq!(answer.status, 200);
    let shown = server.call("GET", path, "").await.json();
    assert_eq!(
        (shown["path"].as_str(), shown["content"].as_str()),
        (Some("/etc/example.conf"), Some("aGVsbG8="))
    );
    let listed = server.call("GET", "/v1/files", "").await.json();
    assert!(listed[0].get("content").is_none());
    // Where it is given to is shown there, in lists as well, which are kept.
    let definition = r#"{"resource_definition":{"name":"web"}}"#;
    server.call("POST", "/v1/resource-definitions", definition).await;
    let deploy = "/v1/resource-definitions/web/files/%2Fetc%2Fexample.conf";
    for (method, expected) in [("POST", Some("True")), ("DELETE", None)] {
        assert_eq!(server.call(method, deploy, "").await.status, 200);
        for path in ["/v1/resource-definitions/web", "/v1/resource-definitions"] {
            let shown = server.call("GET", path, "").await.json();
            let one = shown.get(0).unwrap_or(&shown);
            assert_eq!(one["props"]["files/etc/example.conf"].as_str(), expected, "{path}");
        }
    }
    assert_eq!(server.call("DELETE", path, "").await.status, 200);
    assert_eq!(server.call("GET", path, "").await.status, 404);
    let answer = server.call("PUT", path, r#"{"content":"?"}"#).await;
    assert_eq!((answer.status, answer.first()), (500, (234, true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_change_nothing() {
    let server = Server::with_volume().await;
    for headers in ["Origin: http://evil.example\r\n", "Host: evil.example:3370\r\n"] {
        let path = "/v1/resource-definitions/vol";
        let answer = server.call_with("DELETE", path, headers, "").await;
        assert_eq!((answer.status, answer.first()), (403, (412, true)), "{headers}");
    }
    assert_eq!(server.call("GET", "/v1/resource-definitions/vol", "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_present_state_comes_first_in_a_stream_of_promotions() {
    let server = Server::with_volume().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!(
        "GET /v1/events/drbd/promotion HTTP/1.1\r\nHost: {}\r\nLast-Event-ID: current\r\n\r\n",
        server.address
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4096];
    let enough = |text: &str| text.matches("event: may-promote-change").count() == 3;
    let read = async {
        while !enough(&text) {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), read).await.unwrap();
    assert!(text.contains(r#""may_promote":true"#) && text.contains(r#""resource_name":"Vol""#));
    assert!(text.to_ascii_lowercase().contains("content-type: text/event-stream"));
}

#[tokio::test(flavor = "multi_thread")]
async fn any_change_can_be_foretold_and_nothing_is_changed_by_that() {
    let server = Server::with_volume().await;
    let picture = async || {
        let mut all = Vec::new();
        for path in ["nodes", "view/resources", "resource-definitions", "resource-groups"] {
            all.push(server.call("GET", &format!("/v1/{path}"), "").await.json());
        }
        (all, server.agents.disks())
    };
    let before = picture().await;
    let vol = "/v1/resource-definitions/vol";
    let spawn = r#"{"resource_definition_name":"more","volume_sizes":[1048576]}"#;
    let resource = r#"[{"resource":{"node_name":"n3","props":{"StorPoolName":"pool"}}}]"#;
    let snapshot = r#"{"name":"snap"}"#;
    for (method, path, body, steps, copied) in [
        ("POST", "/v1/resource-groups/DfltRscGrp/spawn".to_owned(), spawn, true, 1_048_576),
        ("POST", format!("{vol}/snapshots"), snapshot, true, 0),
        ("PUT", "/v1/nodes/n1/evacuate".to_owned(), "{}", true, 1_048_576),
        ("DELETE", vol.to_owned(), "", true, 0),
        ("PUT", format!("{vol}/volume-definitions/0"), r#"{"size_kib":2097152}"#, true, 0),
        ("PUT", vol.to_owned(), r#"{"override_props":{"Aux/a":"b"}}"#, true, 0),
        ("DELETE", "/v1/resource-groups/never".to_owned(), "", false, 0),
        ("POST", format!("{vol}/resources"), resource, true, 0),
    ] {
        let answer = server.call(method, &format!("{path}?dry_run=true"), body).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!((answer.status, answer.first()), (200, (10_007, false)), "{path}: {text}");
        let first = &answer.json()[0];
        let told = first["dry_run"]["steps"].as_array().unwrap();
        assert_eq!(!told.is_empty(), steps, "{method} {path}: {first}");
        let kib = first["dry_run"]["copied_kib"].as_u64().unwrap();
        assert!(
            kib >= copied && (copied > 0 || kib == 0 || path.ends_with("resources")),
            "{first}"
        );
        for step in told {
            assert!(step["copies_before"].is_u64() && step["copies_after"].is_u64(), "{step}");
            assert!(!step["what"].as_str().unwrap().is_empty(), "{step}");
        }
        assert!(picture().await == before, "{method} {path} has changed something");
    }
    // No copy is removed before there is another.
    let answer = server.call("PUT", "/v1/nodes/n1/evacuate?dry_run=true", "{}").await.json();
    let steps = answer[0]["dry_run"]["steps"].as_array().unwrap().clone();
    let place =
        |text: &str| steps.iter().position(|step| step["what"].as_str().unwrap().starts_with(text));
    assert!(place("resync").unwrap() < place("remove the disk").unwrap(), "{steps:?}");
    assert_eq!(steps.last().unwrap()["copies_after"], 2, "{steps:?}");
    // Every node has its reason, also for one more replica.
    let told = server.call("GET", "/v1/ashlar/placement/vol", "").await;
    let told = told.json().as_array().unwrap().clone();
    let placement = answer[0]["dry_run"]["placement"].as_array().unwrap();
    for all in [&told, placement] {
        let out = all.iter().filter(|one| one["verdict"] == "OUT").count();
        assert!(out > 0 && all.iter().all(|one| one["node_name"].is_string()), "{all:?}");
    }
    assert!(placement.iter().any(|one| one["verdict"] == "CHOSEN"), "{placement:?}");
    assert_eq!(server.call("GET", "/v1/ashlar/placement/never", "").await.status, 404);
    // What would be refused is refused in the same way.
    let group = server.call("DELETE", "/v1/resource-groups/DfltRscGrp?dry_run=true", "").await;
    let really = server.call("DELETE", "/v1/resource-groups/DfltRscGrp", "").await;
    assert_eq!((group.status, group.first()), (really.status, really.first()));
    assert_eq!(group.status, 500);
    // What can not be foretold, and what is not clear, is not done.
    let reports = server.call("PATCH", "/v1/error-reports?dry_run=true", "{}").await;
    assert_eq!((reports.status, reports.first()), (500, (234, true)));
    let unclear = server.call("DELETE", &format!("{vol}?dry_run=1"), "").await;
    assert_eq!(unclear.status, 400);
    assert!(picture().await == before);
}

#[tokio::test(flavor = "multi_thread")]
async fn clones_are_there_at_once_and_say_how_far_they_are() {
    let server = Server::with_volume().await;
    let path = "/v1/resource-definitions/vol/clone";
    let body = r#"{"name":"copy","override_props":{"Aux/of":"vol"}}"#;
    let answer = server.call("POST", path, body).await;
    assert_eq!(answer.status, 201);
    let started = answer.json();
    let location = started["location"].as_str().unwrap().to_owned();
    assert_eq!((&started["clone_name"], &started["source_name"]), (&"copy".into(), &"vol".into()));
    let (code, bits) = (started["messages"][0]["ret_code"].as_i64().unwrap(), 0x7fff);
    assert_eq!((code & bits, code >= 0), (1, true));
    for _ in 0..100 {
        let status = server.call("GET", &location, "").await.json()["status"].clone();
        if status == "COMPLETE" {
            let copy = server.call("GET", "/v1/resource-definitions/copy", "").await.json();
            assert_eq!(copy["props"]["Aux/of"], "vol");
            return;
        }
        assert_eq!(status, "CLONING");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the clone does not come to an end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_is_answered_when_it_is_done() {
    let server = Server::with_volume().await;
    let path = "/v1/resource-definitions/vol/snapshot-rollback/monday";
    let answer = server.call("POST", path, "").await;
    assert_eq!((answer.status, answer.first()), (404, (313, true)));
    let snapshot = r#"{"name":"monday"}"#;
    let made = server.call("POST", "/v1/resource-definitions/vol/snapshots", snapshot).await;
    assert_eq!(made.status, 201);
    let shown = "/v1/resource-definitions/vol/snapshots/monday";
    let shown = server.call("GET", shown, "").await.json();
    assert!(shown["snapshots"][0]["resource_props"]["StorPoolName"].is_string(), "{shown}");
    let answer = server.call("POST", path, r#"{"zfs_rollback_strategy":"clone"}"#).await;
    assert_eq!(answer.first(), (234, true));
    let answer = server.call("POST", path, "").await;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!((answer.status, answer.first()), (200, (3, false)), "{text}");
    let resources = server.call("GET", "/v1/view/resources", "").await.json();
    for resource in resources.as_array().unwrap() {
        for volume in resource["volumes"].as_array().unwrap() {
            let state = volume["state"]["disk_state"].as_str().unwrap();
            assert!(["UpToDate", "Diskless", "TieBreaker"].contains(&state), "{resource}");
        }
    }
}
