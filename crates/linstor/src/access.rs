//! Who may call, and what was called: every request passes [`check`] before it reaches a call.
//!
//! [`Access`] turns a request into a [`Principal`], and is the only place where that is decided. The
//! table of calls (`routes`) says which role a call needs; one that is not in the table needs
//! [`Role::Read`] to look and [`Role::Admin`] to change.
//!
//! A web browser on this host would carry calls of any page that its user looks at: as calls to another
//! origin, or under a name of the page's own that leads here. Where no token is needed both are
//! refused. Programs do not send an `Origin`, and name this host as they address it; and a page does
//! not know a token.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cluster::change::Change;
use cluster::name::NodeName;
use cluster::objects::Millis;
use cluster::refusal::{Code, Refusal};
use logging::{Level, log};
use serde::{Deserialize, Serialize};

use crate::answer::{self, Answer, Told};
use crate::code::Kind;
use crate::controller::{Failure, Later};
use crate::foretell;
use crate::metrics::Meters;
use crate::routes::Route;

/// LINSTOR's number for a command that is not allowed.
const NOT_ALLOWED: u16 = 412;
/// Paths that answer without credentials: they say nothing of the cluster.
pub const OPEN: &[&str] = &["/health"];
/// Bytes of a path that are written down.
const PATH_MAX: usize = 1024;

/// What somebody may do. Each may do what those before it may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look at everything but tokens and the audit log.
    Read,
    /// Change volumes, resources, snapshots, what they are made from, and key-value stores.
    User,
    /// Change everything.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: &'static [Role] = &[Role::Read, Role::User, Role::Admin];

    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::User => "user",
            Role::Admin => "admin",
        }
    }

    /// The role of a name.
    pub fn from_word(word: &str) -> Option<Role> {
        Role::ALL.iter().copied().find(|role| role.word().eq_ignore_ascii_case(word))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Who calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    /// As the audit log names it: `token NAME`, or `loopback`.
    pub name: String,
    /// What it may do.
    pub role: Role,
}

/// What a request shows of who makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Where it comes from, if the server knows.
    pub peer: Option<SocketAddr>,
    /// The header `Authorization`.
    pub authorization: Option<String>,
    /// It names this host as where it goes to, and no other as where its page is from.
    pub of_this_host: bool,
}

/// Why nobody is known to make a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Denied {
    /// It has no credentials, and needs them.
    Missing,
    /// Its credentials are no good: why, and what to do.
    Wrong(&'static str, &'static str),
    /// It is a browser's, for a page of another site.
    OtherSite,
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let (text, cause, next) = match self {
            Denied::Missing => (
                "this call needs a token",
                "calls without a token are taken from this host only, or not at all",
                "send `Authorization: Bearer TOKEN`; `ashlar controller token create` makes one",
            ),
            Denied::Wrong(cause, next) => ("these credentials are not accepted", cause, next),
            Denied::OtherSite => {
                return refuse(
                    "this call comes from a page of another host",
                    "without a token the API is open only to programs on the controller's host",
                    "call it as localhost or 127.0.0.1, and not from another site's page",
                );
            }
        };
        let answer = Answer::refused(Kind::Controller, NOT_ALLOWED, text, cause, next);
        let mut response = crate::answer::json(StatusCode::UNAUTHORIZED, &answer.entries);
        let realm = HeaderValue::from_static("Bearer realm=\"linstor-controller\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, realm);
        response
    }
}

fn refuse(text: &str, cause: &str, next: &str) -> Response {
    Answer::refused(Kind::Controller, NOT_ALLOWED, text, cause, next).into_response()
}

/// A token, as it is shown: never with its secret, which nobody keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Token {
    /// Its number, by which LINSTOR's calls name it; never 0 in what is shown.
    #[serde(default)]
    pub id: u64,
    /// Its name.
    pub name: String,
    /// What it is for, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// From where alone it is good, if that is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// It is not accepted until somebody switches it on again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub off: bool,
    /// What it allows.
    pub role: Role,
    /// When it was made.
    pub created: Millis,
    /// From when on it is not accepted any more; never if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Millis>,
}

/// A token that is to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewToken {
    /// Its name; one is made of its number if it has none.
    pub name: Option<String>,
    /// What it allows.
    pub role: Role,
    /// From when on it is not accepted any more.
    pub expires: Option<Millis>,
    /// What it is for, in words.
    pub description: String,
    /// From where alone it is good.
    pub address: Option<IpAddr>,
}

/// What is to be changed of a token.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TokenEdit {
    /// Another description.
    pub description: Option<String>,
    /// Another address, or none any more.
    pub address: Option<Option<IpAddr>>,
    /// Switched off, or on.
    pub off: Option<bool>,
}

/// A call that was made, for the audit log. Bodies are never in it: they may hold secrets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// When.
    pub time: Millis,
    /// By whom: [`Principal::name`].
    pub who: String,
    /// What that one may do.
    pub role: Role,
    /// Where it came from, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<SocketAddr>,
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The HTTP status; 0 if the caller went away before there was one, or the controller ended. What
    /// had begun goes on, and what is in the store is there.
    pub status: u16,
    /// The return codes of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<i64>,
    /// The objects that the answer names; without one, those that were changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objects: BTreeMap<String, String>,
}

/// A call that is under way. What is known of it goes into the store with the first thing that it
/// changes there, so that no crash leaves a change of which nobody knows who made it; when the call
/// ends, the record has its end, too.
#[derive(Debug)]
pub struct UnderWay {
    /// Who calls what, with status 0.
    pub begun: Record,
    /// Its number in the log, once it is there. Only the log's owner sets it.
    pub number: OnceLock<u64>,
}

impl UnderWay {
    /// A call that has changed nothing yet.
    pub const fn new(begun: Record) -> UnderWay {
        UnderWay { begun, number: OnceLock::new() }
    }

    /// The record that is stored with changes that the call makes.
    pub fn changing(&self, changes: &[Change]) -> Record {
        Record { objects: answer::objects(changes), ..self.begun.clone() }
    }
}

tokio::task_local! {
    static CALL: Arc<UnderWay>;
}

/// The call for which something happens, so that no call has to pass it on.
pub fn call() -> Option<Arc<UnderWay>> {
    CALL.try_with(Arc::clone).ok()
}

/// Has everything that happens in `doing` know for which call it does.
pub async fn within<F: Future>(call: Option<Arc<UnderWay>>, doing: F) -> F::Output {
    match call {
        Some(call) => CALL.scope(call, doing).await,
        None => doing.await,
    }
}

/// Which records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordFilter {
    /// Only by these.
    pub who: Vec<String>,
    /// Only from this time on.
    pub since: Option<Millis>,
    /// Only up to this time.
    pub to: Option<Millis>,
    /// At most so many, the newest.
    pub limit: usize,
}

impl RecordFilter {
    /// True if the record is one of those.
    pub fn takes(&self, record: &Record) -> bool {
        (self.who.is_empty() || self.who.contains(&record.who))
            && self.since.is_none_or(|since| record.time >= since)
            && self.to.is_none_or(|to| record.time <= to)
    }
}

/// Who may do what, and who did. The crate `controller` has one with tokens and a log.
///
/// Everything but `principal` may take the time of a file access.
pub trait Access: Send + Sync + 'static {
    /// Who makes a request. Other ways to know that than tokens, such as LDAP or OpenID, go here.
    ///
    /// # Errors
    /// If nobody is known to.
    fn principal<'a>(
        &'a self,
        credentials: &'a Credentials,
    ) -> Later<'a, Result<Principal, Denied>>;

    /// Writes down a call: as it has begun, or, with a status, how it has ended. It goes on after that.
    fn record(&self, _call: Arc<UnderWay>, _record: Record) -> Later<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Writes down a call whose caller has gone away. Waits for nothing.
    fn record_of_nobody(&self, _call: Arc<UnderWay>) {}

    /// What was written down, the newest first.
    ///
    /// # Errors
    /// If it can not be read, or nothing is written down.
    fn records(&self, _filter: RecordFilter) -> Later<'_, Result<Vec<Record>, Failure>> {
        Box::pin(std::future::ready(Err(without("audit log"))))
    }

    /// Makes a token by which a node can join once, within some hours; returns it. `address` is where
    /// nodes reach the controllers. Without a name it is for any node.
    ///
    /// # Errors
    /// If the address is none, or the token can not be kept.
    fn create_join_token<'a>(
        &'a self,
        _node: Option<NodeName>,
        _address: &'a str,
        _hours: u32,
    ) -> Later<'a, Result<String, Failure>> {
        Box::pin(std::future::ready(Err(without("tokens"))))
    }

    /// The tokens there are.
    ///
    /// # Errors
    /// If there is no place for any.
    fn tokens(&self) -> Result<Vec<Token>, Failure> {
        Err(without("tokens"))
    }

    /// Makes a token; returns it, and its secret.
    ///
    /// # Errors
    /// If its name is no good or there is one of that name, or it can not be kept.
    fn create_token(&self, _new: NewToken) -> Result<(Token, String), Failure> {
        Err(without("tokens"))
    }

    /// Changes the token of a number; false if there is none.
    ///
    /// # Errors
    /// If that can not be kept.
    fn modify_token(&self, _id: u64, _edit: TokenEdit) -> Result<bool, Failure> {
        Err(without("tokens"))
    }

    /// Makes a token useless; false if there is none of that name.
    ///
    /// # Errors
    /// If that can not be kept.
    fn revoke_token(&self, _name: &str) -> Result<bool, Failure> {
        Err(without("tokens"))
    }
}

fn without(what: &str) -> Failure {
    Refusal::new(Code::InvalidConfig, format!("this controller has no {what}"))
        .cause("it is open to every program on its host")
        .correction("run it as `ashlar controller`")
        .into()
}

/// Access for every program on this host. Whoever serves it listens on a loopback address.
#[derive(Clone, Copy, Debug)]
pub struct Open;

impl Access for Open {
    fn principal<'a>(
        &'a self,
        credentials: &'a Credentials,
    ) -> Later<'a, Result<Principal, Denied>> {
        let known = match credentials.of_this_host {
            true => Ok(loopback()),
            false => Err(Denied::OtherSite),
        };
        Box::pin(std::future::ready(known))
    }
}

/// A program on this host that shows no credentials, where it needs none.
pub fn loopback() -> Principal {
    Principal { name: "loopback".to_owned(), role: Role::Admin }
}

/// What the check of every request needs.
pub struct Guard {
    access: Arc<dyn Access>,
    meters: Arc<Meters>,
}

impl Guard {
    /// For the calls of a table.
    pub fn new(access: Arc<dyn Access>, meters: Arc<Meters>) -> Guard {
        Guard { access, meters }
    }
}

/// Passes on what its caller may do, and writes down what changes something. A request of nobody who
/// is known is counted and not written down: strangers could push everything else out of the log.
pub async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let credentials = credentials(&request);
    let principal = match guard.access.principal(&credentials).await {
        Ok(principal) => principal,
        Err(denied) => {
            guard.meters.denied.fetch_add(1, Ordering::Relaxed);
            return denied.into_response();
        }
    };
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    // What is not a path of ours is answered as such.
    let Some(path) = path else { return next.run(request).await };
    let route = guard.meters.table.find(request.method(), path);
    let needed = needed(route, request.method());
    let written = Written::begin(&guard.access, &principal, credentials.peer, &request);
    if principal.role < needed {
        let text = format!("{} may not do this", principal.name);
        let cause = format!("its role is {}, and {needed} is needed", principal.role);
        return written.end(refuse(&text, &cause, "use a token of that role")).await;
    }
    let looks = needed == Role::Read || [Method::GET, Method::HEAD].contains(request.method());
    let dry_run = match foretell::asks(request.uri()) {
        Ok(asked) => asked && !looks,
        Err(_) if looks => false,
        Err(unclear) => return written.end_unwritten(unclear.into_response()),
    };
    if dry_run && !route.is_some_and(|route| route.foretold) {
        return written.end_unwritten(no_dry_run());
    }
    // What is no command about the cluster is not stored as one, with its record.
    if !looks && !dry_run && route.is_some_and(|route| !route.foretold) {
        written.now().await;
    }
    let said = logging::enabled(Level::Debug)
        .then(|| format!("{} {} {}", principal.name, request.method(), request.uri().path()));
    let begun = Instant::now();
    let response = match dry_run {
        true => foretell::only(next.run(request)).await,
        false if looks => next.run(request).await,
        false => within(written.call.clone(), next.run(request)).await,
    };
    if let Some(route) = route {
        route.took(begun.elapsed());
    }
    if let Some(said) = said {
        let took = begun.elapsed().as_secs_f64() * 1e3;
        log!(Level::Debug, "rest", "{said} {} in {took:.1} ms", response.status().as_u16());
    }
    match looks || dry_run {
        true => written.end_unwritten(response),
        false => written.end(response).await,
    }
}

fn no_dry_run() -> Response {
    let text = "this call can not be foretold";
    let cause = "it is no command about the cluster: what it does, it does at once";
    let next = "leave dry_run out; nothing was changed";
    let number = Code::InvalidRequest.number();
    Answer::refused(Kind::Controller, number, text, cause, next).into_response()
}

/// The role that a call needs.
fn needed(route: Option<&Route>, method: &Method) -> Role {
    match route {
        Some(route) => route.role,
        None if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) => Role::Read,
        None => Role::Admin,
    }
}

/// A record that is written when the call ends, however it does: whoever makes a call may go away,
/// and what it has begun goes on.
struct Written<'a> {
    access: &'a Arc<dyn Access>,
    call: Option<Arc<UnderWay>>,
}

impl<'a> Written<'a> {
    fn begin(
        access: &'a Arc<dyn Access>,
        principal: &Principal,
        from: Option<SocketAddr>,
        request: &Request,
    ) -> Written<'a> {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        // A path is ASCII, whatever was sent.
        let path: String = request.uri().path().chars().take(PATH_MAX).collect();
        let record = Record {
            time: Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            who: principal.name.clone(),
            role: principal.role,
            from,
            method: request.method().to_string(),
            path,
            status: 0,
            codes: Vec::new(),
            objects: BTreeMap::new(),
        };
        Written { access, call: Some(Arc::new(UnderWay::new(record))) }
    }

    /// It is written down before anything is done.
    async fn now(&self) {
        if let Some(call) = &self.call {
            self.access.record(call.clone(), call.begun.clone()).await;
        }
    }

    /// It was only looked at something.
    fn end_unwritten(mut self, response: Response) -> Response {
        self.call = None;
        response
    }

    async fn end(mut self, response: Response) -> Response {
        let Some(call) = self.call.take() else { return response };
        let status = response.status().as_u16();
        let mut record = Record { status, ..call.begun.clone() };
        if let Some(told) = response.extensions().get::<Told>() {
            record.codes.clone_from(&told.codes);
            record.objects.clone_from(&told.objects);
        }
        // Whoever goes away now does not take the record with it.
        let access = self.access.clone();
        let written = tokio::spawn(async move { access.record(call, record).await });
        let _ = written.await;
        response
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.access.record_of_nobody(call);
        }
    }
}

fn credentials(request: &Request) -> Credentials {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    let authorization = request.headers().get(header::AUTHORIZATION);
    // What is not text is no token of ours, and is not taken for none at all.
    let authorization =
        authorization.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    Credentials { peer, authorization, of_this_host: is_ours(request.headers()) }
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

    #[test]
    fn roles_include_each_other_and_what_is_not_in_the_table_needs_the_most() {
        assert!(Role::Read < Role::User && Role::User < Role::Admin);
        for role in Role::ALL {
            assert_eq!(Role::from_word(role.word()), Some(*role));
        }
        assert_eq!(Role::from_word("root"), None);
        assert_eq!(needed(None, &Method::GET), Role::Read);
        assert_eq!(needed(None, &Method::PATCH), Role::Admin);
    }

    #[derive(Default)]
    struct Kept(std::sync::Mutex<Vec<Record>>);

    impl Access for Kept {
        fn principal<'a>(&'a self, _: &'a Credentials) -> Later<'a, Result<Principal, Denied>> {
            Box::pin(std::future::ready(Ok(loopback())))
        }

        fn record_of_nobody(&self, call: Arc<UnderWay>) {
            self.0.lock().unwrap().push(call.begun.clone());
        }
    }

    #[tokio::test]
    async fn a_call_is_written_down_even_if_its_caller_goes_away() {
        use tower::ServiceExt as _;
        let kept = Arc::new(Kept::default());
        let (_, table) = crate::routes::Routes::new().into_parts();
        let guard = Arc::new(Guard::new(kept.clone(), Arc::new(Meters::new(table))));
        let slow = axum::routing::post(std::future::pending::<StatusCode>);
        let router: axum::Router = axum::Router::new()
            .route("/v1/slow/{what}", slow)
            .layer(axum::middleware::from_fn_with_state(guard, check));
        let request = axum::http::Request::post("/v1/slow/a%20b?secret=1");
        let request = request.body(axum::body::Body::empty()).unwrap();
        let call = router.oneshot(request);
        tokio::time::timeout(std::time::Duration::from_millis(20), call).await.unwrap_err();
        let kept = kept.0.lock().unwrap();
        let told = kept.iter().map(|r| (r.method.as_str(), r.path.as_str(), r.status));
        assert_eq!(told.collect::<Vec<_>>(), [("POST", "/v1/slow/a%20b", 0)]);
    }
}
