//! The exports of a server by name, and where each is served.

use std::collections::BTreeMap;

use super::client::Peer;
use crate::nbd::Catalogue;

/// Behind an export's name: the same volume, only to be read and never promoted for it. (A
/// resource's name can not contain a colon.)
pub const READ_ONLY_SUFFIX: &str = ":ro";

/// Names a target among those of the thread that owns it; chosen by the driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TargetKey(pub u64);

/// Which thread's server serves an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// This one's.
    Here(TargetKey),
    /// Another one's, by the driver's number: clients who ask for the export move there.
    Thread(u32),
}

/// An export as it is configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// For humans; may be empty.
    pub description: String,
    /// Clients may only read, and opening never promotes the volume.
    pub read_only: bool,
    /// Clients of the network get it over encrypted connections only.
    pub encrypted: bool,
    /// Who serves it.
    pub place: Place,
}

/// The exports by name.
#[derive(Debug, Default)]
pub(super) struct Exports {
    by_name: BTreeMap<String, Export>,
}

/// An export a client's name led to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolved<'a> {
    pub(super) name: &'a str,
    pub(super) export: &'a Export,
    pub(super) read_only: bool,
}

impl Exports {
    /// Adds or replaces an export; returns the one replaced.
    pub(super) fn insert(&mut self, name: String, export: Export) -> Option<Export> {
        self.by_name.insert(name, export)
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Export> {
        self.by_name.remove(name)
    }

    /// Those that a client may know of.
    pub(super) const fn shown_to(&self, peer: Peer) -> Shown<'_> {
        Shown { exports: self, clear: matches!(peer, Peer::Tcp(_)) }
    }
}

/// The exports as a client sees them.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    exports: &'a Exports,
    /// It talks in clear text over the network.
    clear: bool,
}

impl<'a> Shown<'a> {
    fn each(self) -> impl Iterator<Item = (&'a String, &'a Export)> {
        self.exports.by_name.iter().filter(move |(_, export)| !(self.clear && export.encrypted))
    }

    /// What a client means: an export's name, that with [`READ_ONLY_SUFFIX`], or nothing at all
    /// if there is only one export.
    pub(super) fn resolve(self, asked: &str) -> Option<Resolved<'a>> {
        let found = |name: &str| {
            let found = self.exports.by_name.get_key_value(name);
            found.filter(|(_, export)| !(self.clear && export.encrypted))
        };
        if let Some((name, export)) = found(asked) {
            return Some(Resolved { name, export, read_only: export.read_only });
        }
        let base = asked.strip_suffix(READ_ONLY_SUFFIX);
        let (name, export) = match base.unwrap_or(asked) {
            "" if self.each().nth(1).is_none() => self.each().next()?,
            name => found(name)?,
        };
        Some(Resolved { name, export, read_only: export.read_only || base.is_some() })
    }
}

impl Catalogue for Shown<'_> {
    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        for (name, export) in self.each() {
            each(name, &export.description);
        }
    }

    fn knows(&self, name: &str) -> bool {
        self.resolve(name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(key: u64, read_only: bool) -> Export {
        let (description, place) = (String::new(), Place::Here(TargetKey(key)));
        Export { description, read_only, encrypted: false, place }
    }

    #[test]
    fn names_lead_to_exports_and_the_suffix_makes_them_read_only() {
        let local = |exports: &Exports, name: &str| {
            let found = exports.shown_to(Peer::Unknown).resolve(name)?;
            Some((found.name.to_owned(), found.read_only))
        };
        let mut exports = Exports::default();
        assert_eq!(local(&exports, ""), None);
        exports.insert("r0/0".into(), export(1, false));
        assert_eq!(local(&exports, "r0/0"), Some(("r0/0".into(), false)));
        assert_eq!(local(&exports, "r0/0:ro"), Some(("r0/0".into(), true)));
        assert_eq!(local(&exports, ""), Some(("r0/0".into(), false)));
        assert_eq!(local(&exports, ":ro"), Some(("r0/0".into(), true)));
        exports.insert("r0/1".into(), export(2, true));
        assert_eq!(local(&exports, ""), None);
        assert_eq!(local(&exports, "r0/1"), Some(("r0/1".into(), true)));
        assert_eq!(local(&exports, "r0/2"), None);
        exports.insert("r0/1:ro".into(), export(3, false));
        assert_eq!(local(&exports, "r0/1:ro"), Some(("r0/1:ro".into(), false)));
        exports.remove("r0/0");
        assert_eq!(local(&exports, "r0/0:ro"), None);
    }
    #[test]
    fn an_encrypted_export_does_not_exist_in_clear_text() {
        let mut exports = Exports::default();
        exports.insert("open".into(), export(1, false));
        exports.insert("secret".into(), Export { encrypted: true, ..export(2, false) });
        let address = "192.0.2.1:1".parse().unwrap();
        let clear = exports.shown_to(Peer::Tcp(address));
        for name in ["secret", "secret:ro"] {
            assert!(!clear.knows(name), "{name}");
            assert!(exports.shown_to(Peer::Tls(address)).knows(name), "{name}");
            assert!(exports.shown_to(Peer::Unix { pid: 1, uid: 0 }).knows(name), "{name}");
        }
        let mut listed = Vec::new();
        clear.list(&mut |name, _| listed.push(name.to_owned()));
        assert_eq!(listed, ["open"]);
        assert_eq!(clear.resolve("").map(|found| found.name), Some("open"));
    }
}
