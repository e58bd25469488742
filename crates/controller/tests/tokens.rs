//! Who may call the REST API, and what is written down of it: tokens, roles, programs of this host.

use std::path::Path;
use std::sync::Arc;

use crate::served::{Response, Server};
use controller::Handle;
use controller::access::Gate;
use controller::link::authority::{Authority, VALID};

/// A server with tokens; `open` if programs of this host need none. And the administrator's secret.
async fn guarded(open: bool) -> (Server, String) {
    let router = |handle: Handle, directory: &Path| {
        let authority = Authority::open(&directory.join("link"), VALID).unwrap();
        let mut gate = Gate::open(directory, open, handle.clone()).unwrap();
        gate.invite_to(Arc::new(authority));
        linstor::guarded(Arc::new(handle), Arc::new(gate))
    };
    let server = Server::with(router).await;
    let secret = std::fs::read_to_string(server.directory().join("admin.token")).unwrap();
    (server, secret.trim().to_owned())
}

async fn call(server: &Server, secret: &str, method: &str, path: &str, body: &str) -> Response {
    let header = format!("Authorization: Bearer {secret}\r\n");
    server.call_with(method, path, &header, body).await
}

async fn create(server: &Server, admin: &str, name: &str, role: &str) -> String {
    let body = format!(r#"{{"name":"{name}","role":"{role}"}}"#);
    let made = call(server, admin, "POST", "/v1/ashlar/tokens", &body).await;
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    assert!(made.head.contains("cache-control: no-store"), "{}", made.head);
    made.json()["token"].as_str().unwrap().to_owned()
}

const NODE: &str = r#"{"name":"n1","type":"Satellite",
    "net_interfaces":[{"name":"default","address":"10.0.0.1"}]}"#;
const DEFINITION: &str = r#"{"resource_definition":{"name":"vol"},"drbd_secret":"hunter2"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_do_its_own_and_nothing_more() {
    let (server, admin) = guarded(false).await;
    let user = create(&server, &admin, "ci", "user").await;
    let read = create(&server, &admin, "eye", "read").await;
    for (method, path, body, may) in [
        // method, path, body, and the status for: read, user, admin
        ("GET", "/v1/nodes", "", [200, 200, 200]),
        ("GET", "/v1/view/resources", "", [200, 200, 200]),
        ("GET", "/v1/ashlar/tokens", "", [403, 403, 200]),
        ("GET", "/v1/ashlar/audit", "", [403, 403, 200]),
        ("POST", "/v1/nodes", NODE, [403, 403, 201]),
        ("POST", "/v1/resource-groups/DfltRscGrp/query-size-info", "", [200, 200, 200]),
        ("POST", "/v1/resource-definitions", DEFINITION, [403, 201, 500]),
        ("PUT", "/v1/key-value-store/kv", r#"{"override_props":{"a":"b"}}"#, [403, 200, 200]),
        ("PUT", "/v1/files/%2Fetc%2Fx", r#"{"content":""}"#, [403, 403, 200]),
        (
            "POST",
            "/v1/controller/properties",
            r#"{"override_props":{"Aux/a":"b"}}"#,
            [403, 403, 201],
        ),
        ("POST", "/v1/ashlar/tokens", r#"{"name":"x","role":"admin"}"#, [403, 403, 201]),
        ("DELETE", "/v1/ashlar/tokens/x", "", [403, 403, 200]),
        ("POST", "/v1/ashlar/join-tokens", r#"{"address":"h:1"}"#, [403, 403, 201]),
        // Calls in no table: changing is for administrators.
        ("POST", "/v1/remotes/ebs", "{}", [403, 403, 501]),
        ("POST", "/v1/remotes/linstor", "{}", [403, 403, 500]),
        ("POST", "/v1/remotes/s3", "{}", [403, 403, 500]),
        ("GET", "/v1/remotes", "", [200, 200, 200]),
        ("GET", "/v1/nonsense", "", [404, 404, 404]),
    ] {
        for (secret, expected) in [&read, &user, &admin].into_iter().zip(may) {
            let answer = call(&server, secret, method, path, body).await;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!(answer.status, expected, "{method} {path}: {text}");
            if expected == 403 {
                assert_eq!(answer.first(), (412, true), "{method} {path}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_known_is_told_how_to_be_and_changes_nothing() {
    let (server, admin) = guarded(false).await;
    for headers in ["", "Authorization: Bearer nonsense\r\n", "Authorization: Basic YTpi\r\n"] {
        for (method, path) in [
            ("GET", "/v1/controller/version"),
            ("POST", "/v1/nodes"),
            ("GET", "/v1/nonsense"),
            ("GET", "/v1/events/nodes"),
        ] {
            let answer = server.call_with(method, path, headers, NODE).await;
            assert_eq!((answer.status, answer.first()), (401, (412, true)), "{headers}{path}");
            let realm = "www-authenticate: bearer realm=\"linstor-controller\"";
            assert!(answer.head.contains(realm), "{}", answer.head);
            assert!(answer.json()[0]["correction"].as_str().unwrap().contains(' '));
        }
    }
    // Load balancers have no token.
    assert_eq!(server.call("GET", "/health", "").await.status, 200);
    let nodes = call(&server, &admin, "GET", "/v1/nodes", "").await;
    assert_eq!(nodes.json(), serde_json::json!([]));
    // A revoked token is good for nothing from then on.
    let user = create(&server, &admin, "ci", "user").await;
    assert_eq!(call(&server, &user, "GET", "/v1/nodes", "").await.status, 200);
    let gone = call(&server, &admin, "DELETE", "/v1/ashlar/tokens/ci", "").await;
    assert_eq!((gone.status, gone.first()), (200, (2, false)));
    assert_eq!(call(&server, &user, "GET", "/v1/nodes", "").await.status, 401);
    let gone = call(&server, &admin, "DELETE", "/v1/ashlar/tokens/ci", "").await;
    assert_eq!((gone.status, gone.first()), (200, (3000, false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_of_this_host_need_no_token_where_that_is_open() {
    let (server, _) = guarded(true).await;
    assert_eq!(server.call("POST", "/v1/nodes", NODE).await.status, 201);
    let answer = server.call_with("GET", "/v1/nodes", "Origin: http://evil.example\r\n", "").await;
    assert_eq!((answer.status, answer.first()), (403, (412, true)));
    // One that shows a bad token is not taken for one without.
    let answer = call(&server, "nonsense", "GET", "/v1/nodes", "").await;
    assert_eq!(answer.status, 401);
    let audit = server.call("GET", "/v1/ashlar/audit", "").await.json();
    assert_eq!(audit[0]["who"], "loopback");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_is_written_down_with_who_did_it_and_without_secrets() {
    let (server, admin) = guarded(false).await;
    let user = create(&server, &admin, "ci", "user").await;
    assert_eq!(call(&server, &user, "GET", "/v1/nodes", "").await.status, 200);
    let made = call(&server, &user, "POST", "/v1/resource-definitions", DEFINITION).await;
    assert_eq!(made.status, 201);
    let again = call(&server, &user, "POST", "/v1/resource-definitions", DEFINITION).await;
    assert_eq!(again.status, 500);
    assert_eq!(call(&server, &user, "POST", "/v1/nodes", NODE).await.status, 403);
    assert_eq!(call(&server, "nonsense", "POST", "/v1/nodes", NODE).await.status, 401);

    let audit = call(&server, &admin, "GET", "/v1/ashlar/audit?limit=0", "").await.json();
    let line = |entry: &serde_json::Value| {
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        format!("{} {} {} {}", text("who"), text("method"), text("path"), entry["status"])
    };
    let lines: Vec<String> = audit.as_array().unwrap().iter().map(line).collect();
    // Reading is not in it, nor what nobody who is known has tried.
    assert_eq!(
        lines,
        [
            "token ci POST /v1/nodes 403",
            "token ci POST /v1/resource-definitions 500",
            "token ci POST /v1/resource-definitions 201",
            "token admin POST /v1/ashlar/tokens 201",
        ]
    );
    assert_eq!(audit[2]["objects"]["RscDfn"], "vol");
    assert_eq!(audit[1]["codes"][0].as_i64().unwrap() & 0x7fff, 501);
    assert_eq!(audit[3]["objects"]["Token"], "ci");
    assert!(audit[0]["from"].as_str().unwrap().starts_with("127.0.0.1:"));

    let of = call(&server, &admin, "GET", "/v1/ashlar/audit?who=token%20ci&limit=1", "").await;
    assert_eq!(of.json().as_array().unwrap().len(), 1);

    // The secrets are in neither.
    let tokens = std::fs::read_to_string(server.directory().join("tokens.json")).unwrap();
    for (text, of) in [(&tokens, "the tokens"), (&audit.to_string(), "the audit log")] {
        for secret in ["hunter2", user.as_str(), admin.as_str()] {
            assert!(!text.contains(secret), "{secret} is in {of}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_a_node_is_told_once_and_kept_as_a_digest() {
    let (server, admin) = guarded(false).await;
    let make =
        async |body: &str| call(&server, &admin, "POST", "/v1/ashlar/join-tokens", body).await;
    for body in [
        r#"{"address":"h:1","hours":0}"#,
        r#"{"address":"h:1","hours":9000}"#,
        r#"{"address":"h"}"#,
        r#"{"address":"h:1","node":"a b"}"#,
        "{}",
    ] {
        let answer = make(body).await;
        assert!(answer.status >= 400 && answer.first().1, "{body}: {}", answer.status);
    }
    let made = make(r#"{"address":"h:1,g:2","node":"alpha","hours":2}"#).await;
    assert_eq!(made.status, 201);
    assert!(made.head.contains("cache-control: no-store"), "{}", made.head);
    let text = made.json()["token"].as_str().unwrap().to_owned();
    let token: api::token::Token = text.parse().unwrap();
    assert_eq!(token.address, "h:1,g:2");
    let kept: Vec<_> = {
        let state = linstor::controller::Controller::state(&server.handle);
        state.model.join_tokens().cloned().collect()
    };
    assert_eq!(kept.len(), 1, "what was refused is not kept");
    assert_eq!(kept[0].digest, controller::link::authority::digest(&token.secret));
    assert_eq!(kept[0].node.as_ref().unwrap().as_str(), "alpha");
    let audit = call(&server, &admin, "GET", "/v1/ashlar/audit", "").await.json();
    assert_eq!(audit[0]["objects"]["Node"], "alpha");
    assert!(!audit.to_string().contains(&text[text.len() - 64..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn linstors_calls_make_tokens_that_are_needed_from_then_on() {
    const AUTH: &str = "/v1/controller/auth";
    let (server, admin) = guarded(true).await;
    let init = format!("{AUTH}/initialize-token-auth");
    let post = async |path: &str, body: &str| server.call("POST", path, body).await;
    assert_eq!(server.call("GET", "/v1/nodes", "").await.status, 200, "from this host");
    // Not in the clear unless that is said, and not for agents.
    let answer = post(&init, r#"{"only_satellites":false}"#).await;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status == 500 && text.contains("--rest-tls"), "{text}");
    let answer = post(&init, r#"{"only_satellites":true,"no_https":true}"#).await;
    assert_eq!(answer.status, 500);
    assert_eq!(server.call("GET", "/v1/nodes", "").await.status, 200, "nothing was changed");
    let answer = post(&init, r#"{"only_satellites":false,"no_https":true}"#).await;
    assert_eq!((answer.status, answer.first()), (201, (1, false)));
    assert!(answer.head.contains("cache-control: no-store"), "{}", answer.head);
    let first = answer.json()[0]["obj_refs"]["token"].as_str().unwrap().to_owned();
    for path in ["/v1/nodes", "/v1/controller/version", "/metrics"] {
        assert_eq!(server.call("GET", path, "").await.status, 401, "{path}");
        assert_eq!(call(&server, &first, "GET", path, "").await.status, 200, "{path}");
    }
    assert_eq!(server.call("GET", "/health", "").await.status, 200);
    let again = call(&server, &first, "POST", &init, r#"{"no_https":true}"#).await;
    assert_eq!(again.status, 500, "once");
    let props = call(&server, &first, "GET", "/v1/controller/properties", "").await.json();
    assert_eq!(props["Auth/TokenAuthenticationEnabled"], "true");
    // Others, by numbers.
    let tokens = format!("{AUTH}/token");
    let made = async |body: &str| {
        let answer = call(&server, &first, "POST", &tokens, body).await;
        assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
        let refs = answer.json()[0]["obj_refs"].clone();
        (refs["id"].as_str().unwrap().to_owned(), refs["token"].as_str().unwrap().to_owned())
    };
    let works =
        async |secret: &str| call(&server, secret, "GET", "/v1/nodes", "").await.status == 200;
    let (far, of_far) = made(r#"{"description":"far","ip_filter":"10.9.9.9"}"#).await;
    let (near, of_near) = made(
        r#"{"description":"near","ip_filter":"127.0.0.1","expires_at":"2099-12-31T00:00:00Z"}"#,
    )
    .await;
    assert!(works(&of_near).await && !works(&of_far).await, "by where it comes from");
    let put = async |id: &str, body: &str| {
        call(&server, &first, "PUT", &format!("{tokens}/{id}"), body).await
    };
    assert_eq!(put(&near, r#"{"is_active":false}"#).await.status, 200);
    assert_eq!(put(&far, r#"{"ip_filter":"","description":"anywhere"}"#).await.status, 200);
    assert!(works(&of_far).await && !works(&of_near).await);
    let list = call(&server, &first, "GET", &tokens, "").await.json();
    assert_eq!((&list["count"], list["list"].as_array().unwrap().len()), (&4.into(), 4), "{list}");
    let [.., far_shown, near_shown] = list["list"].as_array().unwrap().as_slice() else { panic!() };
    assert_eq!(
        (&far_shown["description"], &far_shown["is_active"]),
        (&"anywhere".into(), &true.into())
    );
    assert_eq!(near_shown["expires_at"], "2099-12-31T00:00:00.000000Z");
    assert_eq!(
        (&near_shown["ip_filter"], &near_shown["is_active"]),
        (&"127.0.0.1".into(), &false.into())
    );
    assert!(!list.to_string().contains(&of_near), "no secrets");
    for (body, why) in [
        (r#"{"description":"x","ip_filter":"10.0.0.0/8"}"#, "not an address"),
        (r#"{"description":"x","expires_at":"tomorrow"}"#, "not a time"),
        (r#"{"description":"x","expires_at":"1999-01-01T00:00:00Z"}"#, "in the past"),
    ] {
        let answer = call(&server, &first, "POST", &tokens, body).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == 500 && text.contains(why), "{body}: {text}");
    }
    let delete = async |id: &str| {
        let answer = call(&server, &first, "DELETE", &format!("{tokens}/{id}"), "").await;
        (answer.status, answer.first())
    };
    assert_eq!(delete(&far).await, (200, (2, false)));
    assert_eq!(delete(&far).await, (200, (3000, false)));
    assert_eq!(put(&far, "{}").await.status, 404);
    assert!(!works(&of_far).await);
    // The log has who made what, and no secret.
    let audit = call(&server, &admin, "GET", "/v1/ashlar/audit", "").await;
    let text = String::from_utf8_lossy(&audit.body).into_owned();
    assert!(text.contains("initialize-token-auth") && text.contains("linstor-2"), "{text}");
    for secret in [&first, &of_far, &of_near] {
        assert!(!text.contains(secret.as_str()), "{text}");
    }
    // Without the property it is as before.
    let path = "/v1/controller/properties/Auth%2FTokenAuthenticationEnabled";
    assert_eq!(call(&server, &first, "DELETE", path, "").await.status, 200);
    assert_eq!(server.call("GET", "/v1/nodes", "").await.status, 200);
}
