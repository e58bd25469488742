//! Who may use the REST API of a controller, and what they did: tokens, and programs of this host.
//!
//! - `tokens`: the file of the tokens. `audit`: logs of older versions. The log of what was changed is in
//!   the store.
//!
//! A token that is sent has to be good. Without one a program of this host may do everything, unless
//! the controller was started so that it may not. Other ways to know who calls, LDAP or OpenID, belong
//! into [`Gate::principal`](Gate), which is asked before anything else is done with a request.

mod audit;
mod tokens;

use std::fmt;
use std::future::ready;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cluster::command::Command;
use cluster::name::NodeName;
use cluster::objects::{JoinToken, Millis};
use cluster::props::{TOKENS_REQUIRED, is_true};
use cluster::refusal::{Code, Refusal};
use linstor::access::{
    Access, Credentials, Denied, NewToken, Principal, Record, RecordFilter, Token, TokenEdit,
    UnderWay, loopback,
};
use linstor::controller::{Controller as _, Failure, Later};

use crate::handle::Handle;
use crate::link::authority::Authority;
use crate::log;
use tokens::Tokens;

pub use audit::{NotTaken, take_over};
pub use tokens::{FILE, Keep, adopt, own};

/// Decides who may use the REST API.
pub struct Gate {
    tokens: Tokens,
    /// Keeps what was called, and tokens by which nodes join.
    handle: Handle,
    /// Who lets them join, if there is somebody.
    authority: Option<Arc<Authority>>,
    open: bool,
}

impl Gate {
    /// With the tokens of a folder, and the store of that controller. At the first time a token for an
    /// administrator is made, and its secret put into the file `admin.token`. If `open`, programs of
    /// this host need none.
    ///
    /// # Errors
    /// If the files can not be used, with their names.
    pub fn open(directory: &Path, open: bool, handle: Handle) -> io::Result<Gate> {
        let tokens = Tokens::open(directory, now())?;
        Ok(Gate { tokens, handle, authority: None, open })
    }

    /// Has tokens be for nodes that join at that authority.
    pub fn invite_to(&mut self, authority: Arc<Authority>) {
        self.authority = Some(authority);
    }

    /// Has changes of the tokens kept for all controllers that share a store.
    pub fn share(&mut self, keep: Keep) {
        self.tokens.share(keep);
    }

    /// True if clients have said that programs of this host need a token, too. Without any token nobody
    /// could take that back.
    fn is_closed(&self) -> bool {
        let state = self.handle.state();
        let required = state.model.controller().props.get(TOKENS_REQUIRED);
        let required = required.is_some_and(|value| is_true(value));
        drop(state);
        required && self.tokens.is_any_good(now())
    }

    fn known(&self, credentials: &Credentials) -> Result<Principal, Denied> {
        if let Some(authorization) = &credentials.authorization {
            let (kind, secret) = authorization.split_once(' ').unwrap_or_default();
            if !kind.eq_ignore_ascii_case("Bearer") {
                let cause = "only tokens are known here, no names with passwords";
                return Err(Denied::Wrong(cause, "send `Authorization: Bearer TOKEN`"));
            }
            let from = credentials.peer.map(|peer| peer.ip().to_canonical());
            let token = self.tokens.find(secret.trim(), now(), from).ok_or(Denied::Wrong(
                "the token is not known or was revoked, is off or for another address, or its time is over",
                "use another one; `ashlar controller token list` shows which there are",
            ))?;
            return Ok(Principal { name: format!("token {}", token.name), role: token.role });
        }
        let peer = credentials.peer.map(|peer| peer.ip().to_canonical());
        match (
            self.open && !self.is_closed() && peer.is_some_and(|ip| ip.is_loopback()),
            credentials.of_this_host,
        ) {
            (true, true) => Ok(loopback()),
            (true, false) => Err(Denied::OtherSite),
            (false, _) => Err(Denied::Missing),
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Access for Gate {
    fn principal<'a>(
        &'a self,
        credentials: &'a Credentials,
    ) -> Later<'a, Result<Principal, Denied>> {
        Box::pin(ready(self.known(credentials)))
    }

    fn record(&self, call: Arc<UnderWay>, record: Record) -> Later<'_, ()> {
        Box::pin(async move {
            let text = line(&record);
            // Of what the store says the owner has told.
            if self.handle.record(call, record).await == Err(Failure::Stopping) {
                log::error("audit", format_args!("{text} is not written down: nobody is there"));
            }
        })
    }

    fn record_of_nobody(&self, call: Arc<UnderWay>) {
        let text = line(&call.begun);
        if !self.handle.record_later(call) {
            log::error("audit", format_args!("{text} is not written down: too much is to do"));
        }
    }

    fn records(&self, filter: RecordFilter) -> Later<'_, Result<Vec<Record>, Failure>> {
        Box::pin(async move { self.handle.records(&filter).await })
    }

    fn create_join_token<'a>(
        &'a self,
        node: Option<NodeName>,
        address: &'a str,
        hours: u32,
    ) -> Later<'a, Result<String, Failure>> {
        Box::pin(async move {
            let authority = self.authority.as_ref().ok_or(Failure::Stopping)?;
            let invited = authority.invite(address).map_err(|error| {
                Failure::Store(format!("the kernel gives no random bytes: {error}"))
            })?;
            let (token, digest) = invited.ok_or_else(|| {
                Refusal::new(Code::InvalidRequest, format!("`{address}` is no address of a link"))
                    .cause("an agent has to find the controllers by it")
                    .correction("give HOST:PORT, or several with commas between")
            })?;
            let within = Duration::from_secs(3600 * u64::from(hours));
            let expires =
                Millis(now().0 + u64::try_from(within.as_millis()).unwrap_or(u64::MAX / 2));
            let kept = JoinToken { digest, node, expires };
            self.handle.carry_out(Command::CreateJoinToken { token: kept }).await?;
            Ok(token.to_string())
        })
    }

    fn tokens(&self) -> Result<Vec<Token>, Failure> {
        Ok(self.tokens.list())
    }

    fn create_token(&self, new: NewToken) -> Result<(Token, String), Failure> {
        self.tokens.create(new, now())
    }

    fn modify_token(&self, id: u64, edit: TokenEdit) -> Result<bool, Failure> {
        self.tokens.modify(id, edit)
    }

    fn revoke_token(&self, name: &str) -> Result<bool, Failure> {
        self.tokens.revoke(name)
    }
}

fn line(Record { who, method, path, status, .. }: &Record) -> String {
    format!("{who} {method} {path} {status}")
}

fn store(what: &str, error: &io::Error) -> Failure {
    Failure::Store(format!("{what}: {error}; look at the file system of the controller's folder"))
}

/// The time of day.
pub(crate) fn now() -> Millis {
    let passed = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Millis(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Sqlite;
    use api::link::{Agents, Order};
    use linstor::access::Role;

    struct Nobody;

    impl Agents for Nobody {
        fn send(&self, _: &NodeName, _: Order) {}
    }

    fn gate(directory: &Path, open: bool) -> Gate {
        let store = Sqlite::open(&directory.join(format!("{open}.db"))).unwrap();
        let (handle, _) = crate::handle::start(Box::new(store), Arc::new(Nobody)).unwrap();
        Gate::open(directory, open, handle).unwrap()
    }

    fn credentials(peer: &str, authorization: Option<&str>, of_this_host: bool) -> Credentials {
        let authorization = authorization.map(str::to_owned);
        Credentials { peer: Some(peer.parse().unwrap()), authorization, of_this_host }
    }

    #[test]
    fn without_a_token_only_programs_of_this_host_are_let_in_and_only_if_that_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let open = gate(directory.path(), true);
        let closed = gate(directory.path(), false);
        for (peer, of_this_host, expected) in [
            ("127.0.0.1:1", true, Ok(loopback())),
            ("[::1]:1", true, Ok(loopback())),
            ("[::ffff:127.0.0.1]:1", true, Ok(loopback())),
            ("127.0.0.1:1", false, Err(Denied::OtherSite)),
            ("10.0.0.1:1", true, Err(Denied::Missing)),
            ("10.0.0.1:1", false, Err(Denied::Missing)),
        ] {
            let credentials = credentials(peer, None, of_this_host);
            assert_eq!(open.known(&credentials), expected, "{peer} {of_this_host}");
            assert_eq!(closed.known(&credentials), Err(Denied::Missing), "{peer}");
        }
        let nowhere = Credentials { peer: None, authorization: None, of_this_host: true };
        assert_eq!(open.known(&nowhere), Err(Denied::Missing));
    }

    #[test]
    fn a_token_that_is_sent_has_to_be_good_wherever_it_comes_from() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate(directory.path(), true);
        let (name, description) = (Some("ci".to_owned()), String::new());
        let new = NewToken { name, role: Role::User, expires: None, description, address: None };
        let (_, secret) = gate.create_token(new).unwrap();
        let known = |peer: &str, authorization: &str| {
            gate.known(&credentials(peer, Some(authorization), false))
        };
        let ci = Principal { name: "token ci".to_owned(), role: Role::User };
        assert_eq!(known("10.0.0.1:1", &format!("Bearer {secret}")), Ok(ci.clone()));
        assert_eq!(known("10.0.0.1:1", &format!("bearer  {secret} ")), Ok(ci));
        for wrong in ["", "Bearer", "Bearer ", "Bearer nonsense", "Basic cm9vdDpyb290"] {
            let denied = known("127.0.0.1:1", wrong);
            assert!(matches!(denied, Err(Denied::Wrong(..))), "{wrong}: {denied:?}");
        }
        assert_eq!(gate.revoke_token("ci"), Ok(true));
        assert!(known("127.0.0.1:1", &format!("Bearer {secret}")).is_err());
    }
}
