//! Looking into a bucket, and deleting from it, as a controller does.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::Catalog;
use crate::description;
use crate::name::Id;
use crate::s3::{Client, Error};

/// Descriptions that are read at the same time.
const AT_ONCE: usize = 8;

/// What is in a bucket, of objects whose names begin so.
///
/// # Errors
/// If it can not be read.
pub fn load(client: &Client, prefix: &str) -> Result<Catalog, Error> {
    let objects = client.list(prefix)?;
    let described: Vec<(String, u64)> =
        Catalog::descriptions(&objects).map(|(name, size)| (name.clone(), size)).collect();
    let mut contents = BTreeMap::new();
    for part in described.chunks(AT_ONCE) {
        let read = |name: &str, size: u64| match size > description::LIMIT {
            // It is none, whatever it is called.
            true => Ok(Some(Vec::new())),
            false => match client.get(name, description::LIMIT) {
                Ok(content) => Ok(Some(content)),
                // It was deleted meanwhile.
                Err(Error::NotFound(_)) => Ok(None),
                Err(error) => Err(error),
            },
        };
        let read = &read;
        let all: Vec<Result<Option<Vec<u8>>, Error>> = std::thread::scope(|scope| {
            let reading: Vec<_> =
                part.iter().map(|(name, size)| scope.spawn(move || read(name, *size))).collect();
            let ended = reading.into_iter().map(|thread| {
                let gone = || Err(Error::Answer("a description could not be read".to_owned()));
                thread.join().unwrap_or_else(|_| gone())
            });
            ended.collect()
        });
        for ((name, _), content) in part.iter().zip(all) {
            if let Some(content) = content? {
                contents.insert(name.clone(), content);
            }
        }
    }
    Ok(Catalog::new(&objects, &contents))
}

/// What the names of a resource definition's objects begin with.
fn prefix(resource: &str) -> String {
    format!("{resource}_")
}

/// The backups of a resource definition that have data and a description, by their ids. Also a look
/// whether the bucket can be used at all.
///
/// # Errors
/// If it can not be read.
pub fn present(client: &Client, resource: &str) -> Result<Vec<String>, Error> {
    let objects = client.list(&prefix(resource))?;
    let with_data: BTreeSet<String> =
        objects.keys().filter_map(|key| Some(Id::of_archive(key)?.0.to_string())).collect();
    let described = objects.keys().filter_map(|key| Some(Id::of_description(key)?.to_string()));
    Ok(described.filter(|id| with_data.contains(id)).collect())
}

/// Deletes backups. Those that build on others go first: what is left is whole, whenever this is cut
/// short.
///
/// # Errors
/// If one can not be deleted; others may be gone by then.
pub fn delete(client: &Client, catalog: &Catalog, ids: &BTreeSet<String>) -> Result<(), Error> {
    let mut order: Vec<&String> = ids.iter().collect();
    order.sort_by_key(|id| catalog.dependants(id).len());
    let objects = order.into_iter().flat_map(|id| catalog.objects_of(id));
    objects.into_iter().try_for_each(|object| client.delete(&object))
}

/// Deletes backups of a resource definition and all that builds on them; returns what is gone then.
///
/// # Errors
/// As [`delete`], or if the bucket can not be read.
pub fn delete_with_dependants(
    client: &Client,
    resource: &str,
    ids: &[String],
) -> Result<Vec<String>, Error> {
    let catalog = load(client, &prefix(resource))?;
    let mut all: BTreeSet<String> = ids.iter().cloned().collect();
    all.extend(ids.iter().flat_map(|id| catalog.dependants(id)));
    delete(client, &catalog, &all)?;
    Ok(all.into_iter().collect())
}
