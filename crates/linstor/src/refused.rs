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
    ("/v1/remotes/s3/{n}", Kind::Remote, "remotes", SHIPPING),
    ("/v1/remotes/linstor/{n}", Kind::Remote, "remotes", SHIPPING),
    ("/v1/remotes/ebs/{n}", Kind::Remote, "remotes", SHIPPING),
    ("/v1/schedules/{n}", Kind::Schedule, "schedules", SHIPPING),
    ("/v1/view/schedules-by-resource/{n}", Kind::Schedule, "schedules", SHIPPING),
];

const PROXY: &str = "there is no DRBD proxy";
const SHIPPING: &str = "snapshots are not shipped";

pub fn routes() -> Router<App> {
    let mut router = Router::new();
    for (path, kind, what, why) in REFUSED.iter().copied() {
        router = router.route(path, any(move || async move { refuse(kind, what, why) }));
    }
    // Lists of what nobody can make are empty; making it is refused.
    for (path, kind, what) in [
        ("/v1/remotes/s3", Kind::Remote, "remotes"),
        ("/v1/remotes/linstor", Kind::Remote, "remotes"),
        ("/v1/remotes/ebs", Kind::Remote, "remotes"),
    ] {
        let none = get(async || Found(json!([])));
        router =
            router.route(path, none.fallback(move || async move { refuse(kind, what, SHIPPING) }));
    }
    let remotes = json!({ "s3_remotes": [], "linstor_remotes": [], "ebs_remotes": [] });
    let none = get(move || async move { Found(remotes) });
    let refuse_remote = || async { refuse(Kind::Remote, "remotes", SHIPPING) };
    let none_scheduled = get(async || Found(json!({ "data": [] })));
    let refuse_schedule = || async { refuse(Kind::Schedule, "schedules", SHIPPING) };
    router
        .route("/v1/remotes", none.fallback(refuse_remote))
        .route("/v1/remotes/{remote}/backups", any(no_remote))
        .route("/v1/remotes/{remote}/backups/{*call}", any(no_remote))
        .route("/v1/schedules", none_scheduled.fallback(refuse_schedule))
        .route("/v1/view/schedules-by-resource", get(async || Found(json!({ "data": [] }))))
        .route("/v1/view/backup/queue", get(async || Found(json!({}))))
}

fn refuse(kind: Kind, what: &str, why: &str) -> Response {
    let text = format!("{what} are not supported");
    let next = "do without; COMPAT.md of this program lists what there is";
    let answer = Answer::refused(kind, number::UNSUPPORTED, &text, why, next);
    answer_json(StatusCode::NOT_IMPLEMENTED, &answer.entries)
}

/// Clients take 239, an invalid name of a remote, for a remote that is not there.
async fn no_remote() -> Answer {
    let text = "there is no such remote";
    Answer::refused(
        Kind::Remote,
        number::NO_REMOTE,
        text,
        SHIPPING,
        "use snapshots inside of this cluster",
    )
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
