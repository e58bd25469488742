//! The master passphrase: over the REST API, in the store, and on the way to agents.

use crate::served::Server;
use crate::simulated::Simulated;
use controller::start;
use controller::store::Sqlite;
use linstor::controller::{Controller, Failure, MasterPassphrase};
use serde_json::Value;
use vocab::options::Secret;

const PATH: &str = "/v1/encryption/passphrase";

async fn status(server: &Server) -> String {
    let answer = server.call("GET", PATH, "").await.json();
    answer["status"].as_str().unwrap().to_owned()
}

/// An encrypted volume on two of the nodes.
async fn spawn(server: &Server, name: &str, more: &str) -> (u16, (i64, bool)) {
    let body = format!(
        r#"{{"resource_definition_name":"{name}","volume_sizes":["1048576"],{more}
            "select_filter":{{"place_count":2,"layer_stack":["drbd","luks","storage"]}}}}"#
    );
    let answer = server.call("POST", "/v1/resource-groups/DfltRscGrp/spawn", &body).await;
    (answer.status, answer.first())
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_are_encrypted_once_there_is_a_master_passphrase() {
    let server = Server::with_volume().await;
    assert_eq!(status(&server).await, "unset");
    assert_eq!(spawn(&server, "enc", "").await, (404, (312, true)));
    let answer = server.call("PATCH", PATH, r#""swordfish""#).await;
    assert_eq!((answer.status, answer.first()), (500, (512, true)));
    for body in ["", "{}", r#"{"new_passphrase":""}"#] {
        let answer = server.call("POST", PATH, body).await;
        assert_eq!((answer.status, answer.first()), (500, (216, true)), "{body}");
    }
    let answer = server.call("POST", PATH, r#"{"new_passphrase":"swordfish"}"#).await;
    assert_eq!((answer.status, answer.first()), (201, (1, false)));
    let answer = server.call("POST", PATH, r#"{"new_passphrase":"other"}"#).await;
    assert_eq!((answer.status, answer.first()), (500, (512, true)));
    assert_eq!(status(&server).await, "unlocked");

    // The passphrase is made, or given; what it is given for has to be encrypted.
    assert_eq!(spawn(&server, "enc", "").await.0, 201);
    assert_eq!(spawn(&server, "own", r#""volume_passphrases":["my own"],"#).await.0, 201);
    let plain = r#"{"resource_definition_name":"plain","volume_sizes":["1048576"],
        "volume_passphrases":["my own"]}"#;
    let answer = server.call("POST", "/v1/resource-groups/DfltRscGrp/spawn", plain).await;
    assert!(answer.first().1, "{:?}", answer.first());
    let alone = r#"{"resource_definition":{"name":"alone","layer_data":[{"type":"LUKS"}]}}"#;
    let answer = server.call("POST", "/v1/resource-definitions", alone).await;
    assert_eq!((answer.status, answer.first()), (500, (225, true)));

    // Only nodes that have such volumes are told the key.
    {
        let state = server.handle.state();
        let master = state.observed.master.clone().unwrap();
        for (name, given) in [("enc", None), ("own", Some("my own"))] {
            let name = cluster::name::ResourceName::new(name).unwrap();
            let definition = state.model.definition(&name).unwrap();
            let sealed = definition.volumes.values().next().unwrap().passphrase.clone().unwrap();
            let passphrase = master.unseal(&sealed).unwrap();
            assert!(given.is_none_or(|given| passphrase.expose() == given));
            assert!(!sealed.contains(passphrase.expose()));
            for resource in state.model.resources_of(&name).filter(|r| r.is_diskful()) {
                let told = server.agents.told(resource.node.as_str());
                assert_eq!(told.as_ref(), Some(&master.to_secret()), "{}", resource.node);
            }
        }
    }

    let shown = server.call("GET", "/v1/view/resources?resources=enc", "").await.json();
    let diskful = |r: &&Value| r["volumes"][0]["provider_kind"] == "FILE_THIN";
    let resource = shown.as_array().unwrap().iter().find(diskful).unwrap();
    let below = &resource["layer_object"]["children"][0];
    assert_eq!(below["type"], "LUKS");
    assert_eq!(below["luks"]["luks_volumes"][0]["opened"], true, "{below}");
    let layers = resource["volumes"][0]["layer_data_list"].as_array().unwrap();
    let types: Vec<&str> = layers.iter().map(|layer| layer["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["DRBD", "LUKS", "STORAGE"]);
    let luks = &layers[1]["data"];
    let sizes = (luks["allocated_size_kib"].as_u64(), luks["usable_size_kib"].as_u64());
    assert_eq!(sizes.0.unwrap() - sizes.1.unwrap(), 16 << 10);

    // A volume gets another one; no answer has one in it.
    let of = |name: &str| {
        format!("/v1/resource-definitions/{name}/volume-definitions/0/encryption-passphrase")
    };
    let body = r#"{"new_passphrase":"my newest"}"#;
    let foretold = server.call("PUT", &format!("{}?dry_run=true", of("own")), body).await;
    let text = String::from_utf8_lossy(&foretold.body).into_owned();
    assert!(foretold.status == 200 && text.contains("change the passphrase"), "{text}");
    assert!(!text.contains("my newest"), "{text}");
    let answer = server.call("PUT", &of("own"), body).await;
    assert_eq!((answer.status, answer.first()), (200, (3, false)));
    {
        let state = server.handle.state();
        let master = state.observed.master.clone().unwrap();
        let name = cluster::name::ResourceName::new("own").unwrap();
        let definition = state.model.definition(&name).unwrap();
        let sealed = definition.volumes.values().next().unwrap().passphrase.clone().unwrap();
        assert_eq!(master.unseal(&sealed).unwrap().expose(), "my newest");
        for (node, replica) in state.observed.replicas(&name) {
            for volume in replica.volumes.values().filter(|volume| volume.backing.is_some()) {
                assert_eq!(volume.passphrase_changes, 1, "{node}");
            }
        }
    }
    let answer = server.call("PUT", &of("own"), r#"{"new_passphrase":""}"#).await;
    assert_eq!((answer.status, answer.first()), (500, (216, true)));
    assert_eq!(server.call("PUT", &of("never"), body).await.status, 404);

    // It is changed with the old one only, and no answer has one in it.
    let wrong = r#"{"old_passphrase":"goldfish","new_passphrase":"jellyfish"}"#;
    let answer = server.call("PUT", PATH, wrong).await;
    assert_eq!((answer.status, answer.first()), (500, (600, true)));
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(!text.contains("goldfish") && !text.contains("jellyfish"), "{text}");
    let right = r#"{"old_passphrase":"swordfish","new_passphrase":"jellyfish"}"#;
    let answer = server.call("PUT", PATH, right).await;
    assert_eq!((answer.status, answer.first()), (200, (3, false)));
    for (body, expected) in [
        (r#""swordfish""#, (500, (600, true))),
        ("17", (500, (216, true))),
        (r#""jellyfish""#, (200, (4, false))),
    ] {
        let answer = server.call("PATCH", PATH, body).await;
        assert_eq!((answer.status, answer.first()), expected, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_starts_anew_has_to_be_told_the_passphrase() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.db");
    let open = || {
        let (agents, _orders) = Simulated::new();
        start(Box::new(Sqlite::open(&file).unwrap()), agents).unwrap()
    };
    let secret = |text: &str| Secret::from(text);
    let (handle, thread) = open();
    handle.master(MasterPassphrase::Create(secret("swordfish"))).await.unwrap();
    let master = handle.state().observed.master.clone();
    assert!(master.is_some() && handle.seal(&[secret("x")]).is_ok());
    drop(handle);
    thread.join().unwrap().unwrap();

    let kept = std::fs::read(&file).unwrap();
    let key = master.as_ref().unwrap().to_secret();
    for text in ["swordfish", key.expose()] {
        assert!(!kept.windows(text.len()).any(|part| part == text.as_bytes()), "{text}");
    }
    let (handle, thread) = open();
    assert_eq!(handle.state().observed.master, None);
    let locked = handle.seal(&[secret("x")]).unwrap_err();
    assert!(matches!(locked, Failure::Refused(refusal) if refusal.code.number() == 312));
    let wrong = handle.master(MasterPassphrase::Enter(secret("Swordfish"))).await.unwrap_err();
    assert!(matches!(wrong, Failure::Refused(refusal) if refusal.code.number() == 600));
    assert_eq!(handle.state().observed.master, None);
    handle.master(MasterPassphrase::Enter(secret("swordfish"))).await.unwrap();
    assert_eq!(handle.state().observed.master, master, "it is the same key");
    let (old, new) = (secret("swordfish"), secret("jellyfish"));
    handle.master(MasterPassphrase::Modify { old, new }).await.unwrap();
    assert_eq!(handle.state().observed.master, master, "volumes need not be changed");
    drop(handle);
    thread.join().unwrap().unwrap();
}
