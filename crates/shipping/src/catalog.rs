//! Which backups a list of objects amounts to: what is whole, what builds on what, and what else is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::description::{Description, NotTaken};
use crate::name::Id;

/// What is known of a backup.
#[derive(Clone, Debug, PartialEq)]
pub struct Backup {
    /// Its id.
    pub id: Id,
    /// Its description, if there is one that is understood.
    pub description: Result<Description, Missing>,
    /// Objects of volumes that are there.
    pub archives: BTreeMap<u16, String>,
    /// All of it is there, and all that it builds on.
    pub restorable: bool,
}

/// Why a backup has no description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is not there: the backup is being uploaded, or that was not finished.
    Absent,
    /// It is not taken.
    NotTaken(NotTaken),
}

/// The backups of a bucket, by their ids as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    /// Backups, and what there is of half-uploaded ones.
    pub backups: BTreeMap<String, Backup>,
    /// Objects of other things, and descriptions of other programs.
    pub other: BTreeSet<String>,
}

impl Catalog {
    /// Objects whose content it needs: all that may be descriptions.
    pub fn descriptions(objects: &BTreeMap<String, u64>) -> impl Iterator<Item = (&String, u64)> {
        let known = |(name, size): (&'_ String, &u64)| -> Option<u64> {
            Id::of_description(name).map(|_| *size)
        };
        objects.iter().filter_map(move |(name, size)| Some((name, known((name, size))?)))
    }

    /// What objects (with their sizes in bytes) amount to, given the content of those that may be
    /// descriptions.
    pub fn new(objects: &BTreeMap<String, u64>, contents: &BTreeMap<String, Vec<u8>>) -> Catalog {
        let mut catalog = Catalog::default();
        for object in objects.keys() {
            if let Some(id) = Id::of_description(object) {
                let content = contents.get(object).map(|text| Description::from_json(text));
                let description = match content {
                    Some(read) => read.map_err(Missing::NotTaken),
                    None => Err(Missing::Absent),
                };
                catalog.entry(id).description = description;
            } else if let Some((id, volume)) = Id::of_archive(object) {
                catalog.entry(id).archives.insert(volume, object.clone());
            } else {
                catalog.other.insert(object.clone());
            }
        }
        let whole: Vec<String> = catalog
            .backups
            .iter()
            .filter(|(_, backup)| {
                let Ok(description) = &backup.description else { return false };
                description.objects().all(|(_, archive)| {
                    objects.get(&archive.name).is_some_and(|size| *size == archive.size)
                })
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in &whole {
            let chain = catalog.chain(id);
            let all = chain.is_some_and(|chain| chain.iter().all(|one| whole.contains(one)));
            if let Some(backup) = catalog.backups.get_mut(id) {
                backup.restorable = all;
            }
        }
        catalog
    }

    fn entry(&mut self, id: Id) -> &mut Backup {
        self.backups.entry(id.to_string()).or_insert_with(|| Backup {
            id,
            description: Err(Missing::Absent),
            archives: BTreeMap::new(),
            restorable: false,
        })
    }

    /// The id of the backup that one builds on.
    pub fn base(&self, id: &str) -> Option<&str> {
        let description = self.backups.get(id)?.description.as_ref().ok()?;
        let base = description.based_on.as_deref()?;
        Some(base.strip_suffix(".meta").unwrap_or(base))
    }

    /// What has to be restored for a backup, the full one first; none if something of it is not there.
    pub fn chain(&self, id: &str) -> Option<Vec<String>> {
        let mut chain = vec![id.to_owned()];
        let mut at = id;
        loop {
            self.backups.get(at)?.description.as_ref().ok()?;
            let Some(base) = self.base(at) else { break };
            // A circle was made by nobody who meant well.
            if chain.iter().any(|one| one == base) {
                return None;
            }
            chain.push(base.to_owned());
            at = base;
        }
        chain.reverse();
        Some(chain)
    }

    /// Backups that build on one, directly or not.
    pub fn dependants(&self, id: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        loop {
            let before = found.len();
            for other in self.backups.keys() {
                let on = self.base(other).is_some_and(|base| base == id || found.contains(base));
                if on && other != id {
                    found.insert(other.clone());
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// All objects of a backup. The description comes first: without it the rest is no backup.
    pub fn objects_of(&self, id: &str) -> Vec<String> {
        let Some(backup) = self.backups.get(id) else { return Vec::new() };
        let described = !matches!(backup.description, Err(Missing::Absent));
        let description = described.then(|| backup.id.description());
        description.into_iter().chain(backup.archives.values().cloned()).collect()
    }

    /// The newest restorable backup of a resource definition; of a snapshot, if one is named.
    pub fn newest(&self, resource: &str, snapshot: Option<&str>) -> Option<&Backup> {
        let wanted = |backup: &&Backup| {
            backup.restorable
                && backup.id.resource.eq_ignore_ascii_case(resource)
                && snapshot.is_none_or(|name| backup.id.snapshot_name() == name)
        };
        self.backups.values().filter(wanted).max_by(|a, b| a.id.stamp.cmp(&b.id.stamp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::tests::sample;

    const FULL: &str = "web_back_20261127_000000";
    const SECOND: &str = "web_back_20261128_000000";
    const THIRD: &str = "web_back_20261129_000000^third";

    fn bucket(ids: &[(&str, Option<&str>)]) -> (BTreeMap<String, u64>, BTreeMap<String, Vec<u8>>) {
        let (mut objects, mut contents) = (BTreeMap::new(), BTreeMap::new());
        for (id, base) in ids {
            let base = base.map(|base| format!("{base}.meta"));
            let description = sample(id, base.as_deref());
            let text = description.to_json().expect("it can be written");
            let id = Id::parse(id).expect("the tests name backups");
            objects.insert(id.description(), text.len() as u64);
            objects.insert(id.archive(0), 5);
            contents.insert(id.description(), text);
        }
        (objects, contents)
    }

    #[test]
    fn a_chain_is_as_whole_as_what_it_builds_on() {
        let all = [(FULL, None), (SECOND, Some(FULL)), (THIRD, Some(SECOND))];
        let (mut objects, contents) = bucket(&all);
        objects.insert("notes.txt".to_owned(), 3);
        let catalog = Catalog::new(&objects, &contents);
        assert_eq!(catalog.chain(THIRD), Some([FULL, SECOND, THIRD].map(str::to_owned).into()));
        assert_eq!(catalog.dependants(FULL), [SECOND, THIRD].map(str::to_owned).into());
        assert!(catalog.dependants(THIRD).is_empty());
        assert_eq!(catalog.other, ["notes.txt".to_owned()].into());
        assert_eq!(catalog.newest("WEB", None).map(|b| b.id.to_string()).as_deref(), Some(THIRD));
        let second = catalog.newest("web", Some("back_20261128_000000"));
        assert_eq!(second.map(|b| b.id.to_string()).as_deref(), Some(SECOND));
        let third = ["web_back_20261129_000000^third.meta", "web_00000_back_20261129_000000^third"];
        assert_eq!(catalog.objects_of(THIRD), third);

        objects.remove("web_00000_back_20261128_000000");
        let catalog = Catalog::new(&objects, &contents);
        let restorable = |id: &str| catalog.backups[id].restorable;
        assert_eq!([restorable(FULL), restorable(SECOND), restorable(THIRD)], [true, false, false]);
    }

    #[test]
    fn what_is_half_uploaded_or_foreign_is_not_restorable() {
        let (mut objects, mut contents) = bucket(&[(FULL, None), (SECOND, None)]);
        contents.insert(format!("{FULL}.meta"), b"{\"rscName\":\"web\"}".to_vec());
        objects.remove(&format!("{SECOND}.meta"));
        let catalog = Catalog::new(&objects, &contents);
        let foreign = &catalog.backups[FULL];
        assert_eq!(foreign.description, Err(Missing::NotTaken(NotTaken::Foreign)));
        assert_eq!(catalog.backups[SECOND].description, Err(Missing::Absent));
        assert!(catalog.backups.values().all(|backup| !backup.restorable));
        assert_eq!(catalog.objects_of(SECOND), ["web_00000_back_20261128_000000"]);
        // An object that is shorter than it was: it was replaced by somebody.
        let (mut objects, contents) = bucket(&[(FULL, None)]);
        objects.insert("web_00000_back_20261127_000000".to_owned(), 4);
        assert!(!Catalog::new(&objects, &contents).backups[FULL].restorable);
    }

    #[test]
    fn a_circle_is_no_chain() {
        let (objects, contents) = bucket(&[(FULL, Some(SECOND)), (SECOND, Some(FULL))]);
        let catalog = Catalog::new(&objects, &contents);
        assert_eq!(catalog.chain(FULL), None);
        assert_eq!(catalog.dependants(FULL), [SECOND.to_owned()].into());
    }
}
