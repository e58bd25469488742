//! Properties: which keys there are, what their values may be, and who inherits them from whom.
//!
//! - `keys`: the table. A key that nothing acts on is refused, never kept and ignored; `Aux/…` is
//!   the users' own.
//! - `described`: the table for people.
//! - `chain`: where a value is looked up (control plane §5, first hit wins).

pub mod chain;
mod described;
mod keys;

use serde::{Deserialize, Serialize};

pub use described::{Described, described};
pub use keys::{Owner, SHIPPED, Space, TOKENS_REQUIRED, spaces};

use crate::objects::Props;
use crate::refusal::{Code, Refusal};

/// Who has set the quorum of a resource definition, if a user has. LINSTOR's property, too.
pub const QUORUM_SET_BY: &str = "Internal/Drbd/QuorumSetBy";

/// What LINSTOR had before `quorum` and `on-no-quorum` were options of their own: `disabled` is `quorum
/// off`, and its other values are those of `on-no-quorum`. Storage classes in use have it.
pub const AUTO_QUORUM: &str = "DrbdOptions/auto-quorum";

/// A change of an object's properties. An empty value deletes its key, other than one of the users' own,
/// which is kept as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PropsEdit {
    /// Keys with their new values.
    pub set: Props,
    /// Keys that go.
    pub delete: Vec<String>,
    /// Namespaces of which every key goes.
    pub delete_namespaces: Vec<String>,
}

impl PropsEdit {
    /// An edit that sets one key.
    pub fn set(key: &str, value: &str) -> PropsEdit {
        PropsEdit { set: Props::from([(key.to_owned(), value.to_owned())]), ..Default::default() }
    }

    /// True if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.delete.is_empty() && self.delete_namespaces.is_empty()
    }

    /// True if it touches `key`.
    pub fn touches(&self, key: &str) -> bool {
        self.set.contains_key(key)
            || self.delete.iter().any(|other| other == key)
            || self.delete_namespaces.iter().any(|space| within(key, space))
    }

    /// Carries it out on `props` of an `owner`. Returns the keys to delete that were not there.
    ///
    /// # Errors
    /// If a key is unknown, does not belong there, or its value is out of range. `props` is as
    /// before then.
    pub fn apply(&self, owner: Owner, props: &mut Props) -> Result<Vec<String>, Refusal> {
        for (key, value) in &self.set {
            if is_value(key, value) {
                keys::check(owner, key, value)?;
            }
        }
        let mut missing = Vec::new();
        for key in &self.delete {
            if props.remove(key).is_none() {
                missing.push(key.clone());
            }
        }
        for space in &self.delete_namespaces {
            props.retain(|key, _| !within(key, space));
        }
        for (key, value) in &self.set {
            match is_value(key, value) {
                true => drop(props.insert(key.clone(), value.clone())),
                false => drop(props.remove(key)),
            }
        }
        Ok(missing)
    }
}

/// True if a property is set by this, and not deleted.
fn is_value(key: &str, value: &str) -> bool {
    !value.is_empty() || key.starts_with("Aux/")
}

/// Checks properties that an object is created with.
///
/// # Errors
/// As [`PropsEdit::apply`].
pub fn check_all(owner: Owner, props: &Props) -> Result<(), Refusal> {
    props.iter().try_for_each(|(key, value)| keys::check(owner, key, value))
}

/// True if `key` is in the namespace `space`.
fn within(key: &str, space: &str) -> bool {
    let space = space.trim_end_matches('/');
    key.strip_prefix(space).is_some_and(|rest| rest.starts_with('/'))
}

/// The truth of a value as LINSTOR writes it: `True`, `yes`, in any case.
pub fn is_true(value: &str) -> bool {
    value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("yes")
}

/// The bounds of `low-high`, or of a single number.
///
/// # Errors
/// If it is neither, or out of order.
pub fn range(text: &str) -> Result<(u32, u32), Refusal> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.trim().parse(), high.trim().parse()) {
        (Ok(low), Ok(high)) if low <= high => Ok((low, high)),
        _ => Err(Refusal::new(Code::InvalidProperty, format!("`{text}` is not a range"))
            .cause("a range is two numbers like 7000-7999, the smaller one first")
            .correction("give it like that")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(owner: Owner, key: &str, value: &str) -> Refusal {
        let mut props = Props::from([("Aux/x".to_owned(), "1".to_owned())]);
        let before = props.clone();
        let refusal = PropsEdit::set(key, value).apply(owner, &mut props).unwrap_err();
        assert_eq!(props, before);
        assert_eq!(refusal.code, Code::InvalidProperty, "{refusal}");
        refusal
    }

    #[test]
    fn unknown_keys_and_bad_values_are_refused_with_the_reason() {
        assert!(refused(Owner::Node, "Nonsense", "1").cause.contains("no such property"));
        assert!(refused(Owner::Node, "StorPoolName", "x").cause.contains("3 to 48"));
        assert!(refused(Owner::Pool, "StorPoolName", "pool").cause.contains("belongs to"));
        assert!(
            refused(Owner::Definition, "DrbdOptions/Net/nonsense", "1").cause.contains("nonsense")
        );
        assert!(
            refused(Owner::Definition, "DrbdOptions/Net/ping-timeout", "301").cause.contains("300")
        );
        assert!(
            refused(Owner::Resource, "DrbdOptions/Net/ping-timeout", "5").cause.contains("belongs")
        );
        assert!(refused(Owner::Controller, "Writecache/Size", "5%").cause.contains("WRITECACHE"));
        assert!(
            refused(Owner::Controller, "MaxOversubscriptionRatio", "1001").cause.contains("1000")
        );
    }

    #[test]
    fn drbd_options_are_checked_by_their_tables() {
        let mut props = Props::new();
        for (key, value) in [
            ("DrbdOptions/Net/protocol", "A"),
            ("DrbdOptions/Resource/quorum", "majority"),
            ("DrbdOptions/PeerDevice/c-max-rate", "10M"),
            ("DrbdOptions/Disk/al-extents", "6007"),
            ("Aux/anything", "at all"),
        ] {
            PropsEdit::set(key, value).apply(Owner::Group, &mut props).unwrap();
        }
        assert_eq!(props.len(), 5);
        let refusal = refused(Owner::Definition, "DrbdOptions/Net/transport", "rdma");
        assert!(refusal.cause.contains("tcp and lb-tcp"), "{refusal}");
    }

    #[test]
    fn keys_namespaces_and_empty_values_delete() {
        let mut props: Props =
            [("PrefNic", "eth1"), ("Aux/b/c", "2"), ("Aux/b/d", "3"), ("Aux/bc", "4")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
        let mut edit = PropsEdit::set("PrefNic", "");
        edit.set.insert("Aux/empty".to_owned(), String::new());
        edit.delete_namespaces.push("Aux/b".to_owned());
        edit.delete.push("Aux/never".to_owned());
        assert_eq!(edit.apply(Owner::Node, &mut props).unwrap(), ["Aux/never"]);
        assert_eq!(props.keys().collect::<Vec<_>>(), ["Aux/bc", "Aux/empty"]);
        assert!(edit.touches("Aux/b/x") && !edit.touches("Aux/bc"));
    }
}
