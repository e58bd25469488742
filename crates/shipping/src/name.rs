//! Names of the objects of a backup, as LINSTOR has them (control plane §8.4):
//!
//! ```text
//! <resource><suffix>_<5-digit volume>_back_<yyyyMMdd_HHmmss><S3 suffix>[^<snapshot>]      a volume
//! <resource>_back_<yyyyMMdd_HHmmss><S3 suffix>[^<snapshot>].meta                         its description
//! ```
//!
//! The id of a backup is the second one without `.meta`. The snapshot is in it if it is not called `back_`
//! and the time. Archives have no resource suffix here: metadata are inside the volumes.

use std::fmt;

/// Between what is backed up and when.
const BACK: &str = "_back_";
/// Ends the name of a description.
const META: &str = ".meta";
/// Characters of a time, `yyyyMMdd_HHmmss`.
const STAMP: usize = 15;

/// What identifies a backup in its bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The resource definition that was backed up.
    pub resource: String,
    /// When, `yyyyMMdd_HHmmss`, UTC.
    pub stamp: String,
    /// What an operator has all names of a resource definition end with (`BackupShipping/S3KeySuffix`).
    pub suffix: String,
    /// The snapshot, if its name does not follow from the time.
    pub snapshot: Option<String>,
}

impl Id {
    /// Reads an id.
    pub fn parse(text: &str) -> Option<Id> {
        let (text, snapshot) = match text.rsplit_once('^') {
            Some((text, snapshot)) if is_plain(snapshot) => (text, Some(snapshot.to_owned())),
            Some(_) => return None,
            None => (text, None),
        };
        // The resource's name may have the word in it, too; a time is only where it ends.
        let mut places = text.match_indices(BACK).map(|(place, _)| place);
        let place = places.find(|place| {
            text.get(place + BACK.len()..place + BACK.len() + STAMP).is_some_and(is_stamp)
        })?;
        let (resource, rest) = (&text[..place], &text[place + BACK.len()..]);
        let (stamp, suffix) = rest.split_at(STAMP);
        is_plain(resource).then(|| Id {
            resource: resource.to_owned(),
            stamp: stamp.to_owned(),
            suffix: suffix.to_owned(),
            snapshot,
        })
    }

    /// The id in the name of a description.
    pub fn of_description(object: &str) -> Option<Id> {
        Id::parse(object.strip_suffix(META)?)
    }

    /// The id in the name of a volume's archive, and the volume.
    pub fn of_archive(object: &str) -> Option<(Id, u16)> {
        if object.ends_with(META) {
            return None;
        }
        let mut id = Id::parse(object)?;
        let (resource, number) = id.resource.rsplit_once('_')?;
        let digits = number.len() == 5 && number.bytes().all(|b| b.is_ascii_digit());
        let number = number.parse().ok().filter(|_| digits && !resource.is_empty())?;
        id.resource = resource.to_owned();
        Some((id, number))
    }

    /// The snapshot's name.
    pub fn snapshot_name(&self) -> String {
        self.snapshot.clone().unwrap_or_else(|| format!("back_{}", self.stamp))
    }

    /// The object with the description.
    pub fn description(&self) -> String {
        format!("{self}{META}")
    }

    /// The object with the data of a volume.
    pub fn archive(&self, volume: u16) -> String {
        format!("{}_{volume:05}{}", self.resource, self.rest())
    }

    fn rest(&self) -> String {
        let snapshot = self.snapshot.as_ref().map(|name| format!("^{name}")).unwrap_or_default();
        format!("{BACK}{}{}{snapshot}", self.stamp, self.suffix)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.resource, self.rest())
    }
}

/// True of names of resource definitions and snapshots, as far as it matters here.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn is_stamp(text: &str) -> bool {
    text.bytes().enumerate().all(|(place, byte)| match place {
        8 => byte == b'_',
        _ => byte.is_ascii_digit(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_were_made() {
        for (resource, suffix, snapshot) in [
            ("web", "", None),
            ("web_back_2", "-eu", Some("monday")),
            ("a_00001", "", Some("back_up")),
        ] {
            let id = Id {
                resource: resource.to_owned(),
                stamp: "20261129_072545".to_owned(),
                suffix: suffix.to_owned(),
                snapshot: snapshot.map(str::to_owned),
            };
            assert_eq!(Id::parse(&id.to_string()).as_ref(), Some(&id));
            assert_eq!(Id::of_description(&id.description()).as_ref(), Some(&id));
            assert_eq!(Id::of_archive(&id.archive(7)), Some((id.clone(), 7)));
        }
        let id = Id::parse("web_back_20261129_072545").unwrap();
        assert_eq!(id.snapshot_name(), "back_20261129_072545");
        assert_eq!(id.archive(0), "web_00000_back_20261129_072545");
        assert_eq!(id.description(), "web_back_20261129_072545.meta");
    }

    #[test]
    fn what_is_no_name_of_ours_is_not_taken_for_one() {
        for text in [
            "",
            "web",
            "web_back_",
            "web_back_2026",
            "_back_20261129_072545",
            "web_back_20261129x072545",
            "we b_back_20261129_072545",
            "web_back_20261129_072545^a/b",
            "wéb_back_20261129_072545",
            "web_back_2026112é_072545",
        ] {
            assert_eq!(Id::parse(text), None, "{text}");
        }
        assert_eq!(Id::of_archive("web_back_20261129_072545"), None, "no volume");
        assert_eq!(Id::of_archive("web_1_back_20261129_072545"), None);
        assert_eq!(Id::of_archive("web_99999_back_20261129_072545"), None, "no volume number");
        assert_eq!(Id::of_archive("web_00000_back_20261129_072545.meta"), None);
    }
}
