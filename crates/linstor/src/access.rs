//! Who may call. There are no tokens yet, so the API is open to everybody on this host, and to nobody
//! else.
//!
//! A web browser on this host would carry calls of any page that its user looks at: as calls to another
//! origin, or under a name of the page's own that leads here. Both are refused. Programs do not send
//! an `Origin`, and name this host as they address it.

use axum::extract::Request;
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::answer::Answer;
use crate::code::Kind;

/// LINSTOR's number for a command that is not allowed.
const NOT_ALLOWED: u16 = 412;

/// Passes calls of this host on, and refuses others.
pub async fn only_this_host(request: Request, next: Next) -> Response {
    if is_ours(request.headers()) {
        return next.run(request).await;
    }
    let text = "this call comes from a page of another host";
    let cause = "without tokens the API is open only to programs on the controller's host";
    let correction = "call it as localhost or 127.0.0.1, and not from another site's page";
    Answer::refused(Kind::Controller, NOT_ALLOWED, text, cause, correction).into_response()
}

/// True if host and origin, where they are given, are this host.
fn is_ours(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str());
    let host = match text(header::HOST) {
        None => true,
        Some(Ok(host)) => is_this_host(host),
        Some(Err(_)) => false,
    };
    let origin = match text(header::ORIGIN) {
        None => true,
        Some(Ok(origin)) => origin.split_once("://").is_some_and(|(_, host)| is_this_host(host)),
        Some(Err(_)) => false,
    };
    host && origin
}

/// True if `host`, with a port or not, is a name or an address of the loopback interface.
fn is_this_host(host: &str) -> bool {
    let Ok(uri) = host.parse::<Uri>() else { return false };
    let Some(host) = uri.host() else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_other_hosts_are_not_passed_on() {
        for (host, origin, ours) in [
            ("127.0.0.1:3370", "", true),
            ("localhost:3370", "", true),
            ("[::1]:3370", "", true),
            ("localhost:3370", "http://localhost:3370", true),
            ("localhost:3370", "http://evil.example", false),
            ("localhost:3370", "null", false),
            ("evil.example:3370", "http://evil.example:3370", false),
            ("evil.example:3370", "", false),
            ("localhost.evil.example", "", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if !origin.is_empty() {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            assert_eq!(is_ours(&headers), ours, "{host} {origin}");
        }
    }
}
