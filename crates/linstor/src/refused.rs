//! Calls of LINSTOR's API that are not there, each with the reason; and calls that nobody knows.

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use serde_json::json;

use crate::answer::{Answer, Entry, Found, json as answer_json};
use crate::ask::App;
use crate::code::{self, Kind, number};

/// Paths, what they are for, and why that is not there.
const REFUSED: &[(&str, Kind, &str, &str)] = &[
    ("/v1/resource-definitions/{r}/drbd-proxy", Kind::Definition, "DRBD Proxy", PROXY),
    ("/v1/resource-definitions/{r}/drbd-proxy/{*p}", Kind::Definition, "DRBD Proxy", PROXY),
    ("/v1/remotes/ebs/{n}", Kind::Remote, "EBS remotes", EBS),
];

const PROXY: &str = "there is no DRBD proxy";
const EBS: &str = "there is no EBS";

pub fn routes() -> Router<App> {
    let mut router = Router::new();
    for (path, kind, what, why) in REFUSED.iter().copied() {
        router = router.route(path, any(move || async move { refuse(kind, what, why) }));
    }
    // Lists of what nobody can make are empty; making it is refused.
    let none = get(async || Found(json!([])));
    router
        .route("/v1/remotes/ebs", none.fallback(async || refuse(Kind::Remote, "EBS remotes", EBS)))
}

fn refuse(kind: Kind, what: &str, why: &str) -> Response {
    let text = format!("{what} are not supported");
    let next = "do without; COMPAT.md of this program lists what there is";
    let answer = Answer::refused(kind, number::UNSUPPORTED, &text, why, next);
    answer_json(StatusCode::NOT_IMPLEMENTED, &answer.entries)
}

/// A path that nobody knows.
pub async fn unknown_path(method: Method, uri: Uri) -> Response {
    let text = format!("{method} {} is not a call of this API", uri.path());
    let cause = "there is no such path in LINSTOR's REST API, or not in this program";
    let entry = Entry::new(code::UNKNOWN_CALL, text).because(cause, "look at COMPAT.md");
    answer_json(StatusCode::NOT_FOUND, &[entry])
}

/// A path with another method.
pub async fn unknown_method(method: Method, uri: Uri) -> Response {
    let text = format!("{} has no {method}", uri.path());
    let cause = "the path is there, with other methods";
    let entry = Entry::new(code::UNKNOWN_CALL, text).because(cause, "look at COMPAT.md");
    (answer_json(StatusCode::METHOD_NOT_ALLOWED, &[entry])).into_response()
}
