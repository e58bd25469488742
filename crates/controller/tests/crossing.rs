//! Other clusters as remotes, over REST: two controllers with simulated agents.

use crate::served::{Response, Server};
use serde_json::{Value, json};

async fn call(server: &Server, method: &str, path: &str, body: Value) -> Response {
    server.call(method, path, &body.to_string()).await
}

fn text(response: &Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

/// A cluster whose master passphrase is entered.
async fn unlocked() -> Server {
    let server = Server::with_volume().await;
    let passphrase = json!({ "new_passphrase": "master" });
    call(&server, "POST", "/v1/encryption/passphrase", passphrase).await;
    server
}

async fn id(server: &Server) -> String {
    let props = server.call("GET", "/v1/controller/properties", "").await.json();
    props["Cluster/LocalID"].as_str().unwrap().to_owned()
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address)
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_kept_without_telling_their_secrets() {
    const P: &str = "/v1/remotes/linstor";
    let server = Server::with_volume().await;
    let plain = json!({ "remote_name": "plain", "url": "10.0.0.9" });
    let made = call(&server, "POST", P, plain.clone()).await;
    assert_eq!((made.status, made.first()), (200, (1, false)), "it has nothing to keep secret");
    let again = call(&server, "POST", P, plain).await;
    assert_eq!((again.status, again.first()), (500, (527, true)));
    let secret = json!({ "remote_name": "dr", "url": "https://t0ken@b.example.com/",
                         "passphrase": "hidden", "cluster_id": "b" });
    let early = call(&server, "POST", P, secret.clone()).await;
    assert_eq!((early.status, early.first()), (404, (312, true)), "no master passphrase");
    let passphrase = json!({ "new_passphrase": "master" });
    call(&server, "POST", "/v1/encryption/passphrase", passphrase).await;
    assert_eq!(call(&server, "POST", P, secret).await.status, 200);
    for wrong in
        ["ftp://x", "http://", "http://a:b@x", "http://x/y", "http://t0ken@x", "http://x?y"]
    {
        let body = json!({ "remote_name": "wrong", "url": wrong });
        let refused = call(&server, "POST", P, body).await;
        assert_eq!((refused.status, refused.first()), (500, (238, true)), "{wrong}");
    }
    let missing = call(&server, "POST", P, json!({ "remote_name": "none" })).await;
    assert_eq!(missing.first(), (238, true));
    let expected = json!([
        { "remote_name": "dr", "url": "https://b.example.com:3371", "cluster_id": "b" },
        { "remote_name": "plain", "url": "http://10.0.0.9:3370" },
    ]);
    assert_eq!(server.call("GET", P, "").await.json(), expected);
    let all = server.call("GET", "/v1/remotes", "").await;
    assert_eq!(all.json()["linstor_remotes"], expected);
    assert_eq!(all.json()["s3_remotes"], json!([]));
    assert!(!text(&all).contains("hidden") && !text(&all).contains("t0ken"), "{}", text(&all));

    let change = json!({ "url": "http://[fd00::1]", "cluster_id": "", "passphrase": "" });
    let modified = call(&server, "PUT", &format!("{P}/dr"), change).await;
    assert_eq!((modified.status, modified.first()), (200, (3, false)));
    let shown = server.call("GET", P, "").await.json();
    assert_eq!(shown[0], json!({ "remote_name": "dr", "url": "http://[fd00::1]:3370" }));
    let none = call(&server, "PUT", &format!("{P}/never"), json!({})).await;
    assert_eq!((none.status, none.first()), (404, (321, true)));
    let bucket = call(&server, "PUT", "/v1/remotes/s3/dr", json!({ "region": "x" })).await;
    assert_eq!(bucket.first(), (238, true), "it is no bucket");
    // What is about buckets refuses it.
    const B: &str = "/v1/remotes/dr/backups";
    for (method, path, body) in [
        ("GET", B.to_owned(), json!({})),
        ("POST", B.to_owned(), json!({ "rsc_name": "vol" })),
        ("DELETE", format!("{B}?all=true"), json!({})),
        ("POST", format!("{B}/restore"), json!({ "node_name": "n1", "src_rsc_name": "x" })),
        ("POST", format!("{B}/info"), json!({ "src_rsc_name": "x" })),
    ] {
        let refused = call(&server, method, &path, body).await;
        assert!(text(&refused).contains("it is another cluster"), "{path}: {}", text(&refused));
    }
    let new = json!({ "schedule_name": "daily", "full_cron": "0 2 * * *" });
    call(&server, "POST", "/v1/schedules", new).await;
    let enable = call(&server, "PUT", &format!("{B}/schedule/daily/enable"), json!({})).await;
    assert!(text(&enable).contains("it is another cluster"), "{}", text(&enable));
    let gone = server.call("DELETE", "/v1/remotes?remote_name=dr", "").await;
    assert_eq!((gone.status, gone.first()), (200, (2, false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_takes_from_those_that_it_knows_what_it_understands() {
    const SHIP: &str = "/v1/remotes/there/backups/ship";
    const OURS: &str = "/v1/ashlar/shipments";
    let (from, to) = (unlocked().await, unlocked().await);
    let there = json!({ "remote_name": "there", "url": url(&to) });
    assert_eq!(call(&from, "POST", "/v1/remotes/linstor", there).await.status, 200);
    let body = json!({ "src_rsc_name": "vol", "dst_rsc_name": "copy", "download_only": true });
    let unknown = call(&from, "POST", SHIP, body.clone()).await;
    assert_eq!((unknown.status, unknown.first()), (500, (238, true)));
    assert!(text(&unknown).contains("has no remote with the cluster id"), "{}", text(&unknown));
    let snapshots = from.call("GET", "/v1/view/snapshots", "").await.json();
    assert_eq!(snapshots, json!([]), "nothing was begun");
    let here = json!({ "remote_name": "here", "url": url(&from), "cluster_id": id(&from).await });
    assert_eq!(call(&to, "POST", "/v1/remotes/linstor", here).await.status, 200);
    // Simulated agents are of an older release.
    let old = call(&from, "POST", SHIP, body.clone()).await;
    assert!(text(&old).contains("its agent is too old"), "{}", text(&old));
    for field in ["force_restore", "force_mv_rsc_grp"] {
        let mut body = body.clone();
        body[field] = json!(true);
        assert_eq!(call(&from, "POST", SHIP, body).await.first(), (234, true), "{field}");
    }
    // It is another cluster than was said, or is not there at all.
    let put = "/v1/remotes/linstor/there";
    call(&from, "PUT", put, json!({ "cluster_id": "another" })).await;
    let another = call(&from, "POST", SHIP, body.clone()).await;
    assert!(text(&another).contains("and not another"), "{}", text(&another));
    call(&from, "PUT", put, json!({ "cluster_id": "", "url": "http://127.0.0.1:1" })).await;
    let away = call(&from, "POST", SHIP, body.clone()).await;
    assert!(away.status == 500 && text(&away).contains("127.0.0.1:1"), "{}", text(&away));
    let never = call(&from, "POST", "/v1/remotes/never/backups/ship", body).await;
    assert_eq!((never.status, never.first()), (500, (239, true)));

    let own = id(&from).await;
    let terms = to.call("GET", &format!("{OURS}?cluster={own}"), "").await;
    assert_eq!((terms.status, &terms.json()["version"]), (200, &json!(1)));
    assert_eq!(to.call("GET", OURS, "").await.status, 500, "nobody is asked about");
    let offer = json!({
        "version": 1, "cluster_id": own, "remote": "there", "shipment": "s", "label": "vol",
        "origin": "u/n1", "bases": [], "secret": "5e", "resource": "copy", "snapshot": "snap",
        "node": null, "net_if": null, "pool": null, "pools": {}, "group": null,
        "download_only": true, "layers": ["DRBD", "STORAGE"], "node_id": 0, "peer_slots": 7,
        "props": {}, "volumes": { "0": {
            "size": 1 << 30, "gross_size": false, "props": {}, "pool": "pool",
        } },
    });
    let offered = call(&to, "POST", OURS, offer.clone()).await;
    assert!(text(&offered).contains("its agent is too old"), "{}", text(&offered));
    for (field, value, words) in [
        ("version", json!(2), "another version"),
        ("cluster_id", json!("nobody"), "has no remote with the cluster id"),
        ("volumes", json!({}), "it has no volumes"),
        ("volumes", json!("x"), "is not understood"),
        ("layers", json!(["NVME"]), "a layer that is not known"),
        ("layers", json!(["DRBD", "LUKS", "STORAGE"]), "lacks them"),
        ("resource", json!("a/b"), "a/b"),
        ("node", json!("n9"), "n9"),
        ("node_id", json!(77), "node id"),
    ] {
        let mut offer = offer.clone();
        offer[field] = value;
        let refused = call(&to, "POST", OURS, offer).await;
        assert!(refused.status >= 400 && text(&refused).contains(words), "{}", text(&refused));
    }
    let definitions = to.call("GET", "/v1/resource-definitions", "").await.json();
    assert_eq!(definitions.as_array().unwrap().len(), 1, "nothing is left of any");
    let state = to.call("GET", &format!("{OURS}/{own}/s"), "").await;
    assert_eq!(state.status, 404);
    let closed = to.call("DELETE", &format!("{OURS}/{own}/s"), "").await;
    assert_eq!(closed.status, 200, "there is nothing to close");
}
