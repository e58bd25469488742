//! Who may use the REST API of a controller, and what they did: tokens, and programs of this host.
//!
//! - `tokens`: the file of the tokens. `audit`: the log of what was changed.
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
use std::time::SystemTime;

use cluster::objects::Millis;
use linstor::access::{
    Access, Credentials, Denied, Principal, Record, RecordFilter, Role, Token, loopback,
};
use linstor::controller::{Failure, Later};

use crate::log;
use audit::Audit;
use tokens::Tokens;

pub use tokens::{FILE, Keep, adopt, own};

/// Decides who may use the REST API.
pub struct Gate {
    tokens: Tokens,
    audit: Audit,
    open: bool,
}

impl Gate {
    /// With the tokens and the log of a folder. At the first time a token for an administrator is made,
    /// and its secret put into the file `admin.token`. If `open`, programs of this host need none.
    ///
    /// # Errors
    /// If the files can not be used, with their names.
    pub fn open(directory: &Path, open: bool) -> io::Result<Gate> {
        let tokens = Tokens::open(directory, now())?;
        let audit = Audit::open(directory)?;
        Ok(Gate { tokens, audit, open })
    }

    /// Has changes of the tokens kept for all controllers that share a store.
    pub fn share(&mut self, keep: Keep) {
        self.tokens.share(keep);
    }

    fn known(&self, credentials: &Credentials) -> Result<Principal, Denied> {
        if let Some(authorization) = &credentials.authorization {
            let (kind, secret) = authorization.split_once(' ').unwrap_or_default();
            if !kind.eq_ignore_ascii_case("Bearer") {
                let cause = "only tokens are known here, no names with passwords";
                return Err(Denied::Wrong(cause, "send `Authorization: Bearer TOKEN`"));
            }
            let token = self.tokens.find(secret.trim(), now()).ok_or(Denied::Wrong(
                "the token is not known, was revoked, or its time is over",
                "use another one; `ashlar controller token list` shows which there are",
            ))?;
            return Ok(Principal { name: format!("token {}", token.name), role: token.role });
        }
        let peer = credentials.peer.map(|peer| peer.ip().to_canonical());
        match (self.open && peer.is_some_and(|ip| ip.is_loopback()), credentials.of_this_host) {
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

    fn record(&self, record: &Record) {
        // The call is done, or refused; that it could not be written down has to be seen elsewhere.
        if let Err(error) = self.audit.add(record) {
            let Record { who, method, path, status, .. } = record;
            log::error(
                "audit",
                format_args!("{who} {method} {path} {status} is not written down: {error}"),
            );
        }
    }

    fn records(&self, filter: &RecordFilter) -> Result<Vec<Record>, Failure> {
        self.audit.read(filter).map_err(|error| store("the audit log can not be read", &error))
    }

    fn tokens(&self) -> Result<Vec<Token>, Failure> {
        Ok(self.tokens.list())
    }

    fn create_token(
        &self,
        name: &str,
        role: Role,
        expires: Option<Millis>,
    ) -> Result<String, Failure> {
        self.tokens.create(name, role, now(), expires)
    }

    fn revoke_token(&self, name: &str) -> Result<bool, Failure> {
        self.tokens.revoke(name)
    }
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

    fn credentials(peer: &str, authorization: Option<&str>, of_this_host: bool) -> Credentials {
        let authorization = authorization.map(str::to_owned);
        Credentials { peer: Some(peer.parse().unwrap()), authorization, of_this_host }
    }

    #[test]
    fn without_a_token_only_programs_of_this_host_are_let_in_and_only_if_that_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let open = Gate::open(directory.path(), true).unwrap();
        let closed = Gate::open(directory.path(), false).unwrap();
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
        let gate = Gate::open(directory.path(), true).unwrap();
        let secret = gate.create_token("ci", Role::User, None).unwrap();
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
