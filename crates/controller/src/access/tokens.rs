//! The tokens, in one file of the controller's folder: names, roles and digests. Who reads the file can
//! not use them: a secret is told once, to whoever makes the token.
//!
//! The first token is made with the file. Its secret is put into a file of its own, for the
//! administrator of this host. Controllers that share a store share the file, too: the one of who led
//! first.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use api::token::hex;
use cluster::objects::Millis;
use cluster::refusal::{Code, Refusal};
use linstor::access::{NewToken, Role, Token, TokenEdit};
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
/// What a token without a name of its own is called, with its number.
const UNNAMED: &str = "linstor-";
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
    /// Of its secret, SHA-256 in hexadecimal digits; empty if it is not good everywhere at any time: older
    /// controllers would not look at that.
    digest: String,
    /// The same of one that is switched off, or good from one address only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    restricted: Option<String>,
}

impl Kept {
    fn new(token: Token, digest: String) -> Kept {
        match token.off || token.address.is_some() {
            true => Kept { token, digest: String::new(), restricted: Some(digest) },
            false => Kept { token, digest, restricted: None },
        }
    }

    fn digest(&self) -> &str {
        self.restricted.as_deref().unwrap_or(&self.digest)
    }

    /// True if it is accepted now, from there.
    fn is_good(&self, now: Millis, from: Option<IpAddr>) -> bool {
        let Token { expires, address, off, .. } = self.token;
        !off && expires.is_none_or(|end| now < end) && address.is_none_or(|only| from == Some(only))
    }
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
        Ok(Tokens::new(path, numbered(list)))
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
        let token = Token {
            id: 1,
            name: FIRST.to_owned(),
            role: Role::Admin,
            created: now,
            expires: None,
            description: String::new(),
            address: None,
            off: false,
        };
        let all = BTreeMap::from([(FIRST.to_owned(), Kept::new(token, digest(&secret)))]);
        write(&path, &all).map_err(|error| named(&path, &error))?;
        Ok(Tokens::new(path, all))
    }

    /// The token of a secret, if it is good now. What is compared are digests: how long it takes says
    /// nothing of the secrets.
    pub fn find(&self, secret: &str, now: Millis, from: Option<IpAddr>) -> Option<Token> {
        let digest = digest(secret);
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let kept = all.values().find(|kept| kept.digest() == digest)?;
        kept.is_good(now, from).then(|| kept.token.clone())
    }

    /// True if there is one by which somebody can call.
    pub fn is_any_good(&self, now: Millis) -> bool {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.values().any(|kept| kept.is_good(now, kept.token.address))
    }

    /// Every token, by name.
    pub fn list(&self) -> Vec<Token> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.values().map(|kept| kept.token.clone()).collect()
    }

    /// Makes a token; returns it, and its secret.
    pub fn create(&self, new: NewToken, now: Millis) -> Result<(Token, String), Failure> {
        let NewToken { name, role, expires, description, address } = new;
        let _changing = self.changing();
        let mut changed = self.all();
        let id = changed.values().map(|kept| kept.token.id).max().unwrap_or_default() + 1;
        let name = &name.unwrap_or_else(|| format!("{UNNAMED}{id}"));
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
        if changed.contains_key(name) {
            return Err(refused(format!("there is a token {name}"))
                .cause("each has a name of its own, for the audit log")
                .correction("use another name, or revoke that one first")
                .into());
        }
        let what = "the token can not be kept";
        let secret = secret().map_err(|error| store(what, &error))?;
        let name = name.to_owned();
        let token = Token {
            id,
            name: name.clone(),
            role,
            created: now,
            expires,
            description,
            address,
            off: false,
        };
        changed.insert(name, Kept::new(token.clone(), digest(&secret)));
        self.write(what, changed)?;
        Ok((token, secret))
    }

    /// Changes the token of a number; false if there is none.
    pub fn modify(&self, id: u64, edit: TokenEdit) -> Result<bool, Failure> {
        let _changing = self.changing();
        let mut changed = self.all();
        let Some(kept) = changed.values_mut().find(|kept| kept.token.id == id) else {
            return Ok(false);
        };
        let (mut token, digest) = (kept.token.clone(), kept.digest().to_owned());
        token.description = edit.description.unwrap_or(token.description);
        token.address = edit.address.unwrap_or(token.address);
        token.off = edit.off.unwrap_or(token.off);
        *kept = Kept::new(token, digest);
        self.write("that the token is changed can not be kept", changed)?;
        Ok(true)
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

/// Tokens by name. Those of older versions have no numbers yet: they get the first that are free, the oldest
/// token the lowest.
fn numbered(mut list: Vec<Kept>) -> BTreeMap<String, Kept> {
    let mut last = list.iter().map(|kept| kept.token.id).max().unwrap_or_default();
    list.sort_by(|a, b| (a.token.created, &a.token.name).cmp(&(b.token.created, &b.token.name)));
    for kept in list.iter_mut().filter(|kept| kept.token.id == 0) {
        last += 1;
        kept.token.id = last;
    }
    list.into_iter().map(|kept| (kept.token.name.clone(), kept)).collect()
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

    fn create(
        tokens: &Tokens,
        name: &str,
        role: Role,
        expires: Option<Millis>,
    ) -> Result<String, Failure> {
        let (name, description) = (Some(name.to_owned()), String::new());
        let new = NewToken { name, role, expires, description, address: None };
        Ok(tokens.create(new, NOW)?.1)
    }

    #[test]
    fn a_token_that_is_off_or_for_one_address_is_not_known_to_older_controllers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        // As an older version has written it: without numbers.
        let old = |name: &str, secret: &str, created: u64| {
            let digest = digest(secret);
            format!(r#"{{"name":"{name}","role":"read","created":{created},"digest":"{digest}"}}"#)
        };
        fs::write(&path, format!("[{},{}]", old("a", "one", 2), old("b", "two", 1))).unwrap();
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        let ids = |tokens: &Tokens| -> Vec<_> {
            tokens.list().into_iter().map(|token| (token.id, token.name)).collect()
        };
        assert_eq!(ids(&tokens), [(2, "a".to_owned()), (1, "b".to_owned())]);
        let (here, there) = ("10.0.0.1".parse().ok(), "10.0.0.2".parse().ok());
        let new = NewToken {
            name: None,
            role: Role::Admin,
            expires: None,
            description: "one host's".to_owned(),
            address: here,
        };
        let (token, secret) = tokens.create(new, NOW).unwrap();
        assert_eq!((token.id, token.name.as_str()), (3, "linstor-3"));
        assert_eq!(tokens.find(&secret, NOW, here), Some(token.clone()));
        assert_eq!(tokens.find(&secret, NOW, there), None);
        assert_eq!(tokens.find(&secret, NOW, None), None);
        let off = |off| TokenEdit { off: Some(off), ..TokenEdit::default() };
        assert_eq!(tokens.modify(2, off(true)), Ok(true));
        assert_eq!(tokens.modify(9, off(true)), Ok(false));
        assert_eq!(tokens.find("one", NOW, here), None);
        // What an older version reads: names and digests.
        let text = fs::read_to_string(&path).unwrap();
        let read: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let digests: Vec<_> = read.iter().map(|kept| kept["digest"].as_str().unwrap()).collect();
        assert_eq!(digests, ["", &digest("two"), ""]);
        // It is so after a restart, and back again.
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        assert_eq!(ids(&tokens).len(), 3);
        assert_eq!(tokens.find("one", NOW, here), None);
        assert!(tokens.find(&secret, NOW, here).is_some());
        assert_eq!(tokens.modify(2, off(false)), Ok(true));
        assert!(tokens.find("one", NOW, there).is_some());
        let anywhere =
            TokenEdit { address: Some(None), description: Some("anybody's".to_owned()), off: None };
        assert_eq!(tokens.modify(3, anywhere), Ok(true));
        assert_eq!(tokens.find(&secret, NOW, there).unwrap().description, "anybody's");
        assert!(tokens.is_any_good(NOW));
        for id in 1..=3 {
            tokens.modify(id, off(true)).unwrap();
        }
        assert!(!tokens.is_any_good(NOW));
    }

    #[test]
    fn the_first_token_is_for_the_administrator_of_this_host_and_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let read = || fs::read_to_string(directory.path().join(ADMIN)).unwrap();
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        let secret = read();
        assert_eq!(tokens.find(secret.trim(), NOW, None).unwrap().role, Role::Admin);
        for file in [ADMIN, FILE] {
            let mode = fs::metadata(directory.path().join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        let again = Tokens::open(directory.path(), NOW).unwrap();
        assert_eq!(read(), secret);
        assert!(again.find(secret.trim(), NOW, None).is_some());
    }

    #[test]
    fn tokens_outlive_a_restart_and_their_secrets_are_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        let secret = create(&tokens, "ci", Role::User, None).unwrap();
        let short = create(&tokens, "short", Role::Read, Some(Millis(2_000))).unwrap();
        let text = fs::read_to_string(directory.path().join(FILE)).unwrap();
        assert!(!text.contains(&secret[PREFIX.len()..]) && !text.contains(&short[PREFIX.len()..]));
        drop(tokens);
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        assert_eq!(tokens.find(&secret, NOW, None).unwrap().name, "ci");
        assert!(tokens.find(&short, Millis(1_999), None).is_some());
        assert_eq!(tokens.find(&short, Millis(2_000), None), None);
        assert_eq!(tokens.revoke("ci"), Ok(true));
        assert_eq!(tokens.revoke("ci"), Ok(false));
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        assert_eq!(tokens.find(&secret, NOW, None), None);
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
        let made = create(&lead(&one), "ci", Role::User, None).unwrap();
        let tokens = lead(&other);
        for (secret, name) in [(admin.trim(), FIRST), (&made, "ci")] {
            assert_eq!(tokens.find(secret, NOW, None).unwrap().name, name);
        }
        assert!(secret(&other).is_err(), "nobody could use it");
        assert_eq!(tokens.revoke(FIRST), Ok(true));
        assert_eq!(lead(&one).find(admin.trim(), NOW, None), None);
        // What can not be kept for all is not so.
        let mut tokens = lead(&one);
        tokens.share(Box::new(|_| Err(Failure::Stopping)));
        assert!(tokens.revoke("ci").is_err() && tokens.find(&made, NOW, None).is_some());
    }

    #[test]
    fn names_are_checked_and_serve_once() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(directory.path(), NOW).unwrap();
        let create = |name: &str, end| super::tests::create(&tokens, name, Role::Read, end);
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
