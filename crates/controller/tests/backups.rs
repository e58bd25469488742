//! Remotes and what is in them, over REST: a controller with simulated agents, and a small store of objects.

use crate::served::{Response, Server};
use crate::server;
use crate::server::{ACCESS, BUCKET, REGION, SECRET};
use serde_json::{Value, json};
use shipping::description::{
    Archived, Definition, Description, LayerData, Resource, VERSION, Volume, VolumeDefinition,
};
use shipping::name::Id;

const FULL: &str = "web_back_20261129_000000";
const SECOND: &str = "web_back_20261130_000000";

async fn call(server: &Server, method: &str, path: &str, body: Value) -> Response {
    server.call(method, path, &body.to_string()).await
}

fn remote(name: &str, store: &server::Server, secret: &str) -> Value {
    json!({
        "remote_name": name, "endpoint": store.endpoint(), "bucket": BUCKET, "region": REGION,
        "access_key": ACCESS, "secret_key": secret, "use_path_style": true,
    })
}

async fn with_remote(store: &server::Server) -> Server {
    let server = Server::with_volume().await;
    let passphrase = json!({ "new_passphrase": "master" });
    call(&server, "POST", "/v1/encryption/passphrase", passphrase).await;
    let made = call(&server, "POST", "/v1/remotes/s3", remote("vault", store, SECRET)).await;
    assert_eq!((made.status, made.first()), (201, (1, false)));
    server
}

/// Puts a backup of one volume into the store.
fn put(store: &server::Server, id: &str, based_on: Option<&str>) {
    let name = Id::parse(id).unwrap();
    let volume = VolumeDefinition { size: 1024, gross_size: false, props: Default::default() };
    let backing = Volume {
        stor_pool: "thin".to_owned(),
        provider_kind: "LVM_THIN".to_owned(),
        device_size: 2 << 20,
        allocated_size: 1 << 20,
    };
    let archived = Archived {
        name: name.archive(0),
        node: "n1".to_owned(),
        finished_timestamp: 1_764_374_400_000,
        size: 4000,
    };
    let description = Description {
        ashlar_version: VERSION,
        rsc_name: name.resource.clone(),
        node_name: "n1".to_owned(),
        start_timestamp: 1_764_374_400_000,
        finish_timestamp: 1_764_374_400_000,
        based_on: based_on.map(|id| format!("{id}.meta")),
        layer_data: LayerData {
            layers: vec!["DRBD".to_owned(), "STORAGE".to_owned()],
            node_id: Some(0),
            peer_slots: 7,
        },
        rsc_dfn: Definition { props: Default::default(), vlm_dfns: [(0, volume)].into() },
        rsc: Resource { vlms: [(0, backing)].into() },
        backups: [(0, vec![archived])].into(),
        cluster_id: "another".to_owned(),
        snap_dfn_uuid: "u".to_owned(),
        snap_name: name.snapshot_name(),
        luks_info: None,
    };
    let mut kept = store.kept();
    kept.objects.insert(name.archive(0), vec![0; 4000]);
    kept.objects.insert(name.description(), description.to_json().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn remotes_are_kept_without_telling_their_keys() {
    let store = server::Server::start();
    let server = Server::with_volume().await;
    let early = call(&server, "POST", "/v1/remotes/s3", remote("vault", &store, SECRET)).await;
    assert_eq!((early.status, early.first()), (404, (312, true)), "no master passphrase");
    drop(server);
    let server = with_remote(&store).await;
    let again = call(&server, "POST", "/v1/remotes/s3", remote("VAULT", &store, SECRET)).await;
    assert_eq!((again.status, again.first()), (500, (527, true)));
    for missing in ["endpoint", "bucket", "region", "access_key", "secret_key"] {
        let mut body = remote("other", &store, SECRET);
        body.as_object_mut().unwrap().remove(missing);
        let refused = call(&server, "POST", "/v1/remotes/s3", body).await;
        assert_eq!((refused.status, refused.first()), (500, (238, true)), "{missing}");
    }
    for path in ["/v1/remotes", "/v1/remotes/s3"] {
        let shown = server.call("GET", path, "").await;
        let text = String::from_utf8_lossy(&shown.body).into_owned();
        assert!(text.contains("vault") && !text.contains("secret"), "{text}");
        assert!(!text.contains(ACCESS) && !text.contains("_key"), "{text}");
    }
    let all = server.call("GET", "/v1/remotes", "").await.json();
    assert_eq!((&all["linstor_remotes"], &all["ebs_remotes"]), (&json!([]), &json!([])));
    let s3 = &all["s3_remotes"][0];
    for field in ["remote_name", "endpoint", "bucket", "region"] {
        assert!(s3[field].is_string(), "{field}");
    }
    let modified = call(&server, "PUT", "/v1/remotes/s3/vault", json!({ "region": "x" })).await;
    assert_eq!((modified.status, modified.first()), (200, (3, false)));
    let none = call(&server, "PUT", "/v1/remotes/s3/never", json!({ "region": "x" })).await;
    assert_eq!((none.status, none.first()), (404, (321, true)));
    let gone = server.call("DELETE", "/v1/remotes?remote_name=vault", "").await;
    assert_eq!((gone.status, gone.first()), (200, (2, false)));
    let gone = server.call("DELETE", "/v1/remotes?remote_name=vault", "").await;
    assert_eq!((gone.status, gone.first()), (200, (3000, false)));
    let listed = server.call("GET", "/v1/remotes/vault/backups", "").await;
    assert_eq!((listed.status, listed.first()), (500, (239, true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_are_listed_told_of_and_deleted_in_their_order() {
    const B: &str = "/v1/remotes/vault/backups";
    let store = server::Server::start();
    let server = with_remote(&store).await;
    let empty = server.call("GET", B, "").await.json();
    assert_eq!(empty, json!({ "linstor": {}, "other": { "files": [] } }));
    put(&store, FULL, None);
    put(&store, SECOND, Some(FULL));
    store.kept().objects.insert("notes.txt".to_owned(), vec![1]);
    store.kept().objects.insert("half_00000_back_20261129_000000".to_owned(), vec![1]);
    let foreign = b"{\"rscName\":\"old\"}".to_vec();
    store.kept().objects.insert("old_back_20261129_000000.meta".to_owned(), foreign);

    let all = server.call("GET", B, "").await.json();
    assert_eq!(all["other"]["files"], json!(["notes.txt"]));
    let second = &all["linstor"][SECOND];
    assert_eq!(second["based_on_id"], format!("{FULL}.meta"));
    assert_eq!((&second["restorable"], &second["success"]), (&json!(true), &json!(true)));
    assert_eq!(second["vlms"][0]["s3"]["key"], "web_00000_back_20261130_000000");
    let half = &all["linstor"]["half_back_20261129_000000"];
    assert_eq!((&half["restorable"], &half["success"]), (&json!(false), &json!(false)));
    let old = &all["linstor"]["old_back_20261129_000000"];
    assert!(old["fail_messages"].as_str().unwrap().contains("not made by Ashlar"), "{old}");
    let some = server.call("GET", &format!("{B}?rsc_name=web&snap_name="), "").await.json();
    assert_eq!(some["linstor"].as_object().unwrap().len(), 2);

    let info = call(&server, "POST", &format!("{B}/info"), json!({ "src_rsc_name": "web" })).await;
    assert_eq!(info.status, 200);
    let info = info.json();
    assert_eq!((&info["full"], &info["latest"]), (&json!(FULL), &json!(SECOND)));
    assert_eq!((&info["count"], &info["dl_size_kib"]), (&json!(2), &json!(8)));
    assert_eq!(info["storpools"][0]["target_name"], "thin");
    for (body, expected) in [
        (json!({ "last_backup": "web_back_20200101_000000" }), (404, (322, true))),
        (json!({ "last_backup": "old_back_20261129_000000" }), (500, (978, true))),
        (json!({ "last_backup": "half_back_20261129_000000" }), (500, (238, true))),
    ] {
        let answer = call(&server, "POST", &format!("{B}/info"), body.clone()).await;
        assert_eq!((answer.status, answer.first()), expected, "{body}");
        let restore = json!({ "node_name": "n1", "target_rsc_name": "copy" });
        let mut restore = restore;
        restore["last_backup"] = body["last_backup"].clone();
        let answer = call(&server, "POST", &format!("{B}/restore"), restore).await;
        assert_eq!((answer.status, answer.first()), expected, "{body}");
    }
    let restore = json!({ "node_name": "n1", "last_backup": FULL, "target_rsc_name": "copy" });
    let old = call(&server, "POST", &format!("{B}/restore"), restore).await;
    let text = String::from_utf8_lossy(&old.body).into_owned();
    assert!(old.status == 500 && text.contains("n1: its agent is too old"), "{text}");
    let create = call(&server, "POST", B, json!({ "rsc_name": "Vol" })).await;
    let text = String::from_utf8_lossy(&create.body).into_owned();
    assert!(create.status == 500 && text.contains("its agent is too old"), "{text}");
    let fields = [
        ("force_restore", json!(true)),
        ("force_mv_rsc_grp", json!(true)),
        // Of a backup that has nothing to open.
        ("passphrase", json!("secret")),
    ];
    for (field, value) in fields {
        let body = json!({ "node_name": "n1", "last_backup": FULL, field: value });
        let refused = call(&server, "POST", &format!("{B}/restore"), body).await;
        assert_eq!(refused.first(), (234, true), "{field}");
    }

    let delete = async |query: &str| server.call("DELETE", &format!("{B}?{query}"), "").await;
    let refused = delete(&format!("id={FULL}")).await;
    assert_eq!((refused.status, refused.first()), (500, (977, true)));
    assert_eq!(delete("").await.first(), (238, true), "nothing says which");
    assert_eq!(delete("id=web_back_20200101_000000").await.first(), (3000, false));
    let ours = delete("all_local_cluster=true&dryrun=true").await.json();
    assert_eq!(ours.as_array().unwrap().len(), 1, "another cluster has made them: {ours}");
    let dry = delete(&format!("id={FULL}&cascading=true&dryrun=true")).await.json();
    assert_eq!(dry.as_array().unwrap().len(), 2, "{dry}");
    assert_eq!(store.kept().objects.len(), 7);
    let part = delete("s3key=web_00000_back_20261130_000000").await;
    assert_eq!((part.status, part.first()), (500, (997, true)));
    assert_eq!(delete("s3key=notes.txt").await.status, 200);
    assert_eq!(delete(&format!("id={FULL}.meta&cascading=True")).await.status, 200);
    assert_eq!(store.kept().objects.len(), 2, "what is half or foreign stays");
    assert_eq!(delete("id=half_back_20261129_000000").await.status, 200);
    let queue = server.call("GET", "/v1/view/backup/queue", "").await.json();
    assert_eq!(queue, json!({ "node_queues": [] }));

    // The bucket is not to be used any more.
    let wrong = json!({ "access_key": ACCESS, "secret_key": "wrong" });
    call(&server, "PUT", "/v1/remotes/s3/vault", wrong).await;
    let listed = server.call("GET", B, "").await;
    let text = String::from_utf8_lossy(&listed.body).into_owned();
    assert!(listed.status == 500 && text.contains("SignatureDoesNotMatch"), "{text}");
    assert_eq!(listed.first(), (238, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_made_enabled_and_shown() {
    const OF: &str = "/v1/remotes/vault/backups/schedule/yearly";
    let store = server::Server::start();
    let server = with_remote(&store).await;
    assert_eq!(server.call("GET", "/v1/schedules", "").await.json(), json!({ "data": [] }));
    let new = json!({
        "schedule_name": "yearly", "full_cron": " 0 0 31 12 *", "inc_cron": "0 0 30 12 *",
        "keep_local": "2", "keep_remote": null, "on_failure": "retry", "max_retries": 3,
    });
    let made = call(&server, "POST", "/v1/schedules", new.clone()).await;
    assert_eq!((made.status, made.first()), (200, (1, false)));
    assert_eq!(made.json()[0]["ret_code"], 0x0154_0001);
    let again = call(&server, "POST", "/v1/schedules", new).await;
    assert_eq!((again.status, again.first()), (500, (528, true)));
    for (body, number) in [
        (json!({ "schedule_name": "x", "full_cron": "0 0 1 1 *" }), 241),
        (json!({ "schedule_name": "other" }), 240),
        (json!({ "schedule_name": "other", "full_cron": "0 0 30 2 *" }), 240),
        (json!({ "schedule_name": "other", "full_cron": "0 0 1 1 *", "keep_local": 0 }), 238),
        (json!({ "schedule_name": "other", "full_cron": "0 0 1 1 *", "on_failure": "x" }), 234),
    ] {
        let refused = call(&server, "POST", "/v1/schedules", body.clone()).await;
        assert_eq!((refused.status, refused.first()), (500, (number, true)), "{body}");
    }
    let all = server.call("GET", "/v1/schedules", "").await.json();
    let expected = json!([{
        "schedule_name": "yearly", "full_cron": "0 0 31 12 *", "inc_cron": "0 0 30 12 *",
        "keep_local": 2, "on_failure": "RETRY", "max_retries": 3,
    }]);
    assert_eq!(all["data"], expected);
    let change = json!({ "inc_cron": "", "keep_local": -1, "keep_remote": 7 });
    let modified = call(&server, "PUT", "/v1/schedules/yearly", change).await;
    assert_eq!((modified.status, modified.first()), (200, (3, false)));
    let all = server.call("GET", "/v1/schedules", "").await.json();
    let expected = json!([{
        "schedule_name": "yearly", "full_cron": "0 0 31 12 *", "keep_remote": 7,
        "on_failure": "RETRY", "max_retries": 3,
    }]);
    assert_eq!(all["data"], expected);
    let none = call(&server, "PUT", "/v1/schedules/never", json!({})).await;
    assert_eq!((none.status, none.first()), (404, (323, true)));

    // Nothing is said of any volume yet.
    const VIEW: &str = "/v1/view/schedules-by-resource";
    let view = async |query: &str| {
        let rows = server.call("GET", &format!("{VIEW}{query}"), "").await.json();
        rows["data"].as_array().unwrap().clone()
    };
    assert_eq!(view("").await[0]["reason"], "no schedule is enabled on it");
    assert_eq!(view("?active-only=True").await, Vec::<Value>::new());
    for field in ["dst_stor_pool", "dst_rsc_grp", "dst_rsc_name"] {
        let refused = call(&server, "PUT", &format!("{OF}/enable"), json!({ field: "x" })).await;
        assert_eq!(refused.first(), (234, true), "{field}");
    }
    for field in ["force_restore", "force_mv_rsc_grp"] {
        let refused = call(&server, "PUT", &format!("{OF}/enable"), json!({ field: true })).await;
        assert_eq!(refused.first(), (234, true), "{field}");
    }
    let both = json!({ "rsc_name": "Vol", "grp_name": "DfltRscGrp" });
    assert_eq!(call(&server, "PUT", &format!("{OF}/enable"), both).await.first(), (234, true));
    let never = "/v1/remotes/never/backups/schedule/yearly/enable";
    let refused = call(&server, "PUT", never, json!({})).await;
    assert_eq!((refused.status, refused.first()), (404, (321, true)));

    let on = json!({ "rsc_name": "vol", "node_name": "n1", "force_restore": false });
    let enabled = call(&server, "PUT", &format!("{OF}/enable"), on).await;
    assert_eq!((enabled.status, enabled.first()), (200, (3, false)));
    let row = view("").await[0].clone();
    assert_eq!((&row["rsc_name"], &row["remote_name"]), (&json!("Vol"), &json!("vault")));
    assert_eq!((&row["last_snap_time"], &row["next_planned_inc"]), (&json!(-1), &json!(-1)));
    assert!(row["next_exec_time"].as_i64().unwrap() > 1_764_374_400_000, "{row}");
    assert_eq!(row["next_exec_time"], row["next_planned_full"]);
    assert_eq!((&row["next_exec_inc"], &row["reason"]), (&json!(false), &Value::Null));
    assert_eq!(view("?rsc=VOL&schedule=yearly&remote=vault&active-only=true").await.len(), 1);
    assert_eq!(view("?remote=other").await, Vec::<Value>::new());
    let off = json!({ "grp_name": "DfltRscGrp" });
    assert_eq!(call(&server, "PUT", &format!("{OF}/disable"), off).await.status, 200);
    let details = server.call("GET", &format!("{VIEW}/vol"), "").await.json();
    let expected = json!([{
        "remote_name": "vault", "schedule_name": "yearly", "rsc_dfn": true, "rsc_grp": false,
    }]);
    assert_eq!(details["data"], expected);
    let none = server.call("GET", &format!("{VIEW}/never"), "").await;
    assert_eq!((none.status, none.first()), (404, (301, true)));
    let unset = server.call("DELETE", &format!("{OF}/delete?rsc_dfn_name=vol"), "").await;
    assert_eq!((unset.status, unset.first()), (200, (2, false)));
    assert_eq!(view("").await[0]["reason"], "disabled on resource group DfltRscGrp");
    let unset = server.call("DELETE", &format!("{OF}/delete"), "").await;
    assert_eq!((unset.status, unset.first()), (200, (3000, false)));
    let gone = server.call("DELETE", "/v1/schedules/yearly", "").await;
    assert_eq!((gone.status, gone.first()), (200, (2, false)));
    let gone = server.call("DELETE", "/v1/schedules/yearly", "").await;
    assert_eq!((gone.status, gone.first()), (200, (3000, false)));
}
