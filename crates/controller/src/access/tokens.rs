//! The tokens, in one file of the controller's folder: names, roles and digests. Who reads the file can
//! not use them: a secret is told once, to whoever makes the token.
//!
//! The first token is made with the file. Its secret is put into a file of its own, for the
//! administrator of this host. Controllers that share a store share the file, too: the one of who led
//! first.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use api::token::hex;
use cluster::objects::Millis;
use cluster::refusal::{Code, Refusal};
use linstor::access::{Role, Token};
use linstor::controller::Failure;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::store;
use crate::{files, log};

/// Keeps the file of the tokens where all controllers that share a store find it.
pub type Keep = Box<dyn Fn(String) -> Result<(), Failure> + Send + Sync>;

/// The file of the tokens.
pub const FILE: &str = "tokens.json";
/// The file with the secret of the first one.
const ADMIN: &str = "admin.token";
/// What the first one is called.
const FIRST: &str = "admin";
/// Secrets begin with this, so that whoever finds one knows what it is.
const PREFIX: &str = "ashlar_";
/// Random bytes of a secret.
const SECRET: usize = 32;
/// Bytes of a name.
const NAME_MAX: usize = 64;

/// A token as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    token: Token,
    /// Of its secret, SHA-256 in hexadecimal digits.
    digest: String,
}

/// The tokens of a controller.
pub struct Tokens {
    path: PathBuf,
    /// Where changes are kept, if not in the file.
    shared: Option<Keep>,
    /// Held by whoever changes them. A store elsewhere may take its time; who only asks for a token does
    /// not wait for that.
    changing: Mutex<()>,
    /// By name.
    all: RwLock<BTreeMap<String, Kept>>,
}

impl Tokens {
    /// Those of a folder; at the first time one for an administrator.
    pub fn open(directory: &Path, now: Millis) -> io::Result<Tokens> {
        let path = directory.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Tokens::begin(directory, path, now);
            }
            Err(error) => return Err(named(&path, &error)),
        };
        let list: Vec<Kept> = serde_json::from_slice(&text).map_err(|error| {
            let text = format!(
                "{}: {error}; restore it from a backup, or remove it: then all tokens are useless, \
                 and a new one for an administrator is made",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        let all = list.into_iter().map(|kept| (kept.token.name.clone(), kept)).collect();
        Ok(Tokens::new(path, all))
    }

    fn new(path: PathBuf, all: BTreeMap<String, Kept>) -> Tokens {
        Tokens { path, shared: None, changing: Mutex::default(), all: RwLock::new(all) }
    }

    /// From now on changes are kept by `keep`, for all controllers that share a store.
    pub fn share(&mut self, keep: Keep) {
        self.shared = Some(keep);
    }

    /// They are so once they are kept.
    fn write(&self, what: &str, all: BTreeMap<String, Kept>) -> Result<(), Failure> {
        let failed = |error: io::Error| store(what, &error);
        match &self.shared {
            Some(keep) => keep(text(&all).map_err(failed)?)?,
            None => write(&self.path, &all).map_err(failed)?,
        }
        *self.all.write().unwrap_or_else(PoisonError::into_inner) = all;
        Ok(())
    }

    /// The secret is written first: cut short in between, it is made again.
    fn begin(directory: &Path, path: PathBuf, now: Millis) -> io::Result<Tokens> {
        let secret = secret()?;
        let file = directory.join(ADMIN);
        files::replace(&file, format!("{secret}\n").as_bytes())
            .map_err(|error| named(&file, &error))?;
        let token =
            Token { name: FIRST.to_owned(), role: Role::Admin, created: now, expires: None };
        let kept = Kept { token, digest: digest(&secret) };
        let all = BTreeMap::from([(FIRST.to_owned(), kept)]);
        write(&path, &all).map_err(|error| named(&path, &error))?;
        Ok(Tokens::new(path, all))
    }

    /// The token of a secret, if it is good now. What is compared are digests: how long it takes says
    /// nothing of the secrets.
    pub fn find(&self, secret: &str, now: Millis) -> Option<Token> {
        let digest = digest(secret);
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let kept = all.values().find(|kept| kept.digest == digest)?;
        let good = kept.token.expires.is_none_or(|end| now < end);
        good.then(|| kept.token.clone())
    }

    /// Every token, by name.
    pub fn list(&self) -> Vec<Token> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.values().map(|kept| kept.token.clone()).collect()
    }

    /// Makes a token; returns its secret.
    pub fn create(
        &self,
        name: &str,
        role: Role,
        now: Millis,
        expires: Option<Millis>,
    ) -> Result<String, Failure> {
        let refused = |text: String| Refusal::new(Code::InvalidRequest, text);
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(fits) {
            return Err(refused(format!("`{name}` can not be the name of a token"))
                .cause(format!("names are 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`"))
                .correction("use another name")
                .into());
        }
        if expires.is_some_and(|end| end <= now) {
            return Err(refused(format!("token {name} would never be good"))
                .cause("its end is in the past")
                .correction("give milliseconds since 1970 that lie ahead, or none")
                .into());
        }
        let _changing = self.changing();
        let mut changed = self.all();
        if changed.contains_key(name) {
            return Err(refused(format!("there is a token {name}"))
                .cause("each has a name of its own, for the audit log")
                .correction("use another name, or revoke that one first")
                .into());
        }
        let what = "the token can not be kept";
        let secret = secret().map_err(|error| store(what, &error))?;
        let token = Token { name: name.to_owned(), role, created: now, expires };
        changed.insert(name.to_owned(), Kept { token, digest: digest(&secret) });
        self.write(what, changed)?;
        Ok(secret)
    }

    /// Makes a token useless; false if there is none.
    pub fn revoke(&self, name: &str) -> Result<bool, Failure> {
        let _changing = self.changing();
        let mut changed = self.all();
        if changed.remove(name).is_none() {
            return Ok(false);
        }
        self.write("that the token is revoked can not be kept", changed)?;
        Ok(true)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> BTreeMap<String, Kept> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The file of a folder as it is; made at the first time.
pub fn own(directory: &Path, now: Millis) -> io::Result<String> {
    let path = Tokens::open(directory, now)?.path;
    fs::read_to_string(&path).map_err(|error| named(&path, &error))
}

/// Puts the file that the controllers of a cluster share in the place of a folder's own. If the token
/// whose secret is in the folder is not in it, that goes: nobody can use it.
pub fn adopt(directory: &Path, shared: &str) -> io::Result<()> {
    let path = directory.join(FILE);
    files::replace(&path, shared.as_bytes()).map_err(|error| named(&path, &error))?;
    let admin = directory.join(ADMIN);
    let Ok(secret) = fs::read_to_string(&admin) else { return Ok(()) };
    if !shared.contains(&digest(secret.trim())) {
        fs::remove_file(&admin).map_err(|error| named(&admin, &error))?;
        let text = format_args!("{} is gone: the tokens are those of the cluster", admin.display());
        log::info("access", text);
    }
    Ok(())
}

fn write(path: &Path, all: &BTreeMap<String, Kept>) -> io::Result<()> {
    files::replace(path, text(all)?.as_bytes())
}

fn text(all: &BTreeMap<String, Kept>) -> io::Result<String> {
    let list: Vec<&Kept> = all.values().collect();
    serde_json::to_string_pretty(&list).map_err(io::Error::other)
}

fn secret() -> io::Result<String> {
    let mut bytes = [0; SECRET];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(format!("{PREFIX}{}", hex(&bytes)))
}

fn digest(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const NOW: Millis = Millis(1_000);

    #[test]
    fn the_first_token_is_for_the_administrator_of_this_host_and_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let read = || fs::read_to_string(directory.path().join(ADMIN)).unwrap();
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        let secret = read();
        assert_eq!(tokens.find(secret.trim(), NOW).unwrap().role, Role::Admin);
        for file in [ADMIN, FILE] {
            let mode = fs::metadata(directory.path().join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        let again = Tokens::open(directory.path(), NOW).unwrap();
        assert_eq!(read(), secret);
        assert!(again.find(secret.trim(), NOW).is_some());
    }

    #[test]
    fn tokens_outlive_a_restart_and_their_secrets_are_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        let secret = tokens.create("ci", Role::User, NOW, None).unwrap();
        let short = tokens.create("short", Role::Read, NOW, Some(Millis(2_000))).unwrap();
        let text = fs::read_to_string(directory.path().join(FILE)).unwrap();
        assert!(!text.contains(&secret[PREFIX.len()..]) && !text.contains(&short[PREFIX.len()..]));
        drop(tokens);
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        assert_eq!(tokens.find(&secret, NOW).unwrap().name, "ci");
        assert!(tokens.find(&short, Millis(1_999)).is_some());
        assert_eq!(tokens.find(&short, Millis(2_000)), None);
        assert_eq!(tokens.revoke("ci"), Ok(true));
        assert_eq!(tokens.revoke("ci"), Ok(false));
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        assert_eq!(tokens.find(&secret, NOW), None);
        let names: Vec<String> = tokens.list().into_iter().map(|token| token.name).collect();
        assert_eq!(names, ["admin", "short"]);
    }

    #[test]
    fn controllers_that_share_a_store_have_the_tokens_of_the_one_that_led_first() {
        use std::sync::{Arc, Mutex};

        let [one, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let shared = Arc::new(Mutex::new(own(one.path(), NOW).unwrap()));
        own(other.path(), NOW).unwrap();
        let secret = |of: &tempfile::TempDir| fs::read_to_string(of.path().join(ADMIN));
        let admin = secret(&one).unwrap();
        let lead = |of: &tempfile::TempDir| {
            adopt(of.path(), &shared.lock().unwrap()).unwrap();
            let mut tokens = Tokens::open(of.path(), NOW).unwrap();
            let shared = shared.clone();
            tokens.share(Box::new(move |text| {
                *shared.lock().unwrap() = text;
                Ok(())
            }));
            tokens
        };
        let made = lead(&one).create("ci", Role::User, NOW, None).unwrap();
        let tokens = lead(&other);
        for (secret, name) in [(admin.trim(), FIRST), (&made, "ci")] {
            assert_eq!(tokens.find(secret, NOW).unwrap().name, name);
        }
        assert!(secret(&other).is_err(), "nobody could use it");
        assert_eq!(tokens.revoke(FIRST), Ok(true));
        assert_eq!(lead(&one).find(admin.trim(), NOW), None);
        // What can not be kept for all is not so.
        let mut tokens = lead(&one);
        tokens.share(Box::new(|_| Err(Failure::Stopping)));
        assert!(tokens.revoke("ci").is_err() && tokens.find(&made, NOW).is_some());
    }

    #[test]
    fn names_are_checked_and_serve_once() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        let create = |name: &str, end| tokens.create(name, Role::Read, NOW, end);
        for name in ["", "a b", "a\nb", "ä", &"x".repeat(NAME_MAX + 1), "admin"] {
            assert!(matches!(create(name, None), Err(Failure::Refused(_))), "{name}");
        }
        assert!(matches!(create("late", Some(NOW)), Err(Failure::Refused(_))));
        assert!(create(&"x".repeat(NAME_MAX), None).is_ok());
    }

    #[test]
    fn a_damaged_file_is_not_taken_for_a_new_beginning() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), "[{").unwrap();
        let error = Tokens::open(directory.path(), NOW).err().unwrap().to_string();
        assert!(error.contains("restore it") && error.contains(FILE), "{error}");
    }
}
