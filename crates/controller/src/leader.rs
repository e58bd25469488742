//! Several controllers on one store: one leads, the others wait here until they do.
//!
//! ```text
//!            stands for leader
//!   waiting ──────────────────► leading
//!      ▲    others answer REST      │  its term is over, or the store
//!      └────────────────────────────┘  can not be asked any more
//! ```
//!
//! Who waits sends the clients of the REST API to the leader, and does not listen to agents: these try
//! the controllers in turn until one answers. Who leads answers only as long as its term holds: what
//! it says could be out of date afterwards. That nothing is written after a term is for the store to
//! see to.

use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::daemon::Error;
use crate::store::{Electorate, Standing, Store, Term};
use crate::{log, rest};

/// How long a leader leads before it has to be heard of again.
pub const TERM: Duration = Duration::from_secs(8);
/// How often who waits stands for leader.
const POLL: Duration = Duration::from_millis(500);
/// LINSTOR's mask of an error, with the number of what can not be done here.
const NOT_HERE: i64 = (0xc000_0000_0000_0000_u64 | 998).cast_signed();

/// The store of who leads, and the term.
pub type Led = (Box<dyn Store>, Term);

/// What is known of the leader.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Known {
    /// Where its REST API is.
    address: Option<String>,
    /// Why nobody is known.
    trouble: Option<String>,
}

/// Waits until this controller leads. Nothing if it is told to end. Meanwhile clients that come to
/// `listen` are sent to the leader; when this one leads, they are sent to `address`.
///
/// # Errors
/// If it can not listen.
pub fn stand_by(
    electorate: &mut dyn Electorate,
    listen: SocketAddr,
    address: &str,
) -> Result<Option<Led>, Error> {
    let mut known = Known::default();
    // Mostly nobody has to wait.
    match electorate.stand(address, TERM) {
        Ok(Standing::Leads(store, term)) => return Ok(Some((store, term))),
        Ok(Standing::Follows(leader)) => known.address = leader,
        Err(error) => known.trouble = Some(error.to_string()),
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(Error::System)?;
    let shared = Arc::new(RwLock::new(known.clone()));
    let listening = TcpListener::bind(listen);
    let listener = runtime
        .block_on(listening)
        .map_err(|error| Error::Rest(rest::Error::Listen(listen, error)))?;
    let router = elsewhere(shared.clone());
    runtime.spawn(async move { axum::serve(listener, router).await });
    let (end, ended) = channel();
    let mut signals = {
        let _inside = runtime.enter();
        let signal = |kind| signal(kind).map_err(Error::System);
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    runtime.spawn(async move {
        tokio::select! {
            _ = signals.0.recv() => {}
            _ = signals.1.recv() => {}
        }
        // It may have become leader just now.
        let _ = end.send(());
    });
    log_known(&known);
    let led = loop {
        match ended.recv_timeout(POLL) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = match electorate.stand(address, TERM) {
            Ok(Standing::Leads(store, term)) => break Some((store, term)),
            Ok(Standing::Follows(leader)) => Known { address: leader, trouble: None },
            Err(error) => Known { address: None, trouble: Some(error.to_string()) },
        };
        if now != known {
            log_known(&now);
            known = now.clone();
            *shared.write().unwrap_or_else(PoisonError::into_inner) = now;
        }
    };
    // The address is free afterwards.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(led)
}

fn log_known(known: &Known) {
    match known {
        Known { trouble: Some(trouble), .. } => {
            log::error("controller", format_args!("nobody is known to lead: {trouble}"));
        }
        Known { address: Some(leader), .. } => {
            log::info(
                "controller",
                format_args!("the controller at {leader} leads; this one waits"),
            );
        }
        Known { .. } => log::info("controller", format_args!("another controller begins to lead")),
    }
}

/// The URL of who listens there: by this host's name if that is on all of its addresses.
pub fn url(scheme: &str, listen: SocketAddr) -> String {
    if !listen.ip().is_unspecified() {
        return format!("{scheme}://{listen}");
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{scheme}://{}:{}", name.trim(), listen.port())
}

/// The API of who waits.
fn elsewhere(known: Arc<RwLock<Known>>) -> Router {
    Router::new().fallback(send_on).with_state(known)
}

async fn send_on(State(known): State<Arc<RwLock<Known>>>, uri: Uri) -> Response {
    let known = known.read().unwrap_or_else(PoisonError::into_inner).clone();
    match (&known.address, known.trouble) {
        (Some(leader), _) => {
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let place = format!("{leader}{path}");
            let cause = format!("the controller at {leader} leads");
            let body = entry("this controller waits", &cause, "ask that one");
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, place)], body).into_response()
        }
        (None, trouble) => {
            let cause = trouble.unwrap_or_else(|| "another begins to lead".to_owned());
            unavailable("no controller leads", &cause)
        }
    }
}

fn unavailable(message: &str, cause: &str) -> Response {
    let body = entry(message, cause, "try again in a few seconds");
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], body).into_response()
}

fn entry(message: &str, cause: &str, correction: &str) -> axum::Json<serde_json::Value> {
    axum::Json(json!([{
        "ret_code": NOT_HERE,
        "message": message,
        "cause": cause,
        "correction": correction,
    }]))
}

/// The API of who leads: it answers as long as the term holds.
pub fn guard(router: Router, term: Term) -> Router {
    router.layer(middleware::from_fn_with_state(term, while_leading))
}

async fn while_leading(State(term): State<Term>, request: Request, next: Next) -> Response {
    let over = || unavailable("this controller leads no longer", "its term is over");
    if !term.holds() {
        return over();
    }
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let response = next.run(request).await;
    // What was changed was changed, but what was read may be old if this program was stopped meanwhile.
    if reads && !term.holds() {
        return over();
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_sent_where_they_can_get() {
        let of = |text: &str| url("http", text.parse().unwrap());
        assert_eq!(of("127.0.0.1:3370"), "http://127.0.0.1:3370");
        assert_eq!(of("[fd00::1]:3370"), "http://[fd00::1]:3370");
        let name = of("0.0.0.0:3370");
        assert!(name.len() > "http://:3370".len() && name.ends_with(":3370"), "{name}");
    }
}
