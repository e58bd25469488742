//! Remotes: buckets in which backups are, and other clusters (control plane §8.4).

use crate::change::{Key, Object};
use crate::command::{BucketEdit, ClusterEdit};
use crate::edit::{Edit, unknown};
use crate::name::*;
use crate::refusal::{Code, Refusal};
use crate::shipping::*;

use super::{schedules, shipping, small};

/// Most characters of what is given of another cluster.
const LONGEST: usize = 1024;

pub fn create(edit: &mut Edit<'_>, name: RemoteName, place: Place) -> Result<(), Refusal> {
    let key = Key::Remote(name.clone());
    if edit.model.remote(&name).is_some() {
        return Err(Refusal::new(Code::RemoteExists, format!("{key} exists"))
            .cause("names of remotes are unique, without regard to case")
            .correction("choose another name, or delete that one first")
            .about(key));
    }
    check(&key, &place)?;
    let uuid = edit.uuid();
    edit.put(Object::Remote(Remote { name, uuid, place, deleting: false }));
    Ok(())
}

/// One that is there, to be changed.
fn found(edit: &Edit<'_>, name: &RemoteName) -> Result<Remote, Refusal> {
    let found = edit.model.remote(name).cloned();
    found.ok_or_else(|| unknown(Code::UnknownRemote, Key::Remote(name.clone())))
}

pub fn modify_bucket(
    edit: &mut Edit<'_>,
    name: &RemoteName,
    new: BucketEdit,
) -> Result<(), Refusal> {
    let mut remote = found(edit, name)?;
    let Place::Bucket(bucket) = &mut remote.place else { return Err(no_bucket(name)) };
    let texts = [
        (&mut bucket.endpoint, new.endpoint),
        (&mut bucket.bucket, new.bucket),
        (&mut bucket.region, new.region),
        (&mut bucket.access_key, new.access_key),
        (&mut bucket.secret_key, new.secret_key),
    ];
    for (old, new) in texts {
        if let Some(new) = new {
            *old = new;
        }
    }
    bucket.path_style = new.path_style.unwrap_or(bucket.path_style);
    check(&Key::Remote(name.clone()), &remote.place)?;
    edit.put(Object::Remote(remote));
    Ok(())
}

pub fn modify_cluster(
    edit: &mut Edit<'_>,
    name: &RemoteName,
    new: ClusterEdit,
) -> Result<(), Refusal> {
    let mut remote = found(edit, name)?;
    let Place::Cluster(cluster) = &mut remote.place else { return Err(no_cluster(name)) };
    if let Some((url, token)) = new.url {
        // A token is for the address with which it was given.
        (cluster.url, cluster.token) = (url, token);
    }
    for (old, new) in [(&mut cluster.id, new.id), (&mut cluster.passphrase, new.passphrase)] {
        if let Some(new) = new {
            *old = Some(new).filter(|new| !new.is_empty());
        }
    }
    check(&Key::Remote(name.clone()), &remote.place)?;
    edit.put(Object::Remote(remote));
    Ok(())
}

/// Why backups are not made with a remote that is a cluster.
pub fn no_bucket(name: &RemoteName) -> Refusal {
    let key = Key::Remote(name.clone());
    Refusal::new(Code::InvalidBackup, format!("{key} has no backups"))
        .cause("it is another cluster, and not a bucket")
        .correction("name a remote that is a bucket, or ship snapshots (`ashlar backup ship`)")
        .about(key)
}

/// Why snapshots are not shipped with a remote that is a bucket.
pub fn no_cluster(name: &RemoteName) -> Refusal {
    let key = Key::Remote(name.clone());
    Refusal::new(Code::InvalidBackup, format!("{key} is no other cluster"))
        .cause("it is a bucket, in which backups are kept")
        .correction("name a remote that is a cluster, or make backups (`ashlar backup create`)")
        .about(key)
}

fn check(key: &Key, place: &Place) -> Result<(), Refusal> {
    let refuse = |cause: &str, next: &str| {
        Err(Refusal::new(Code::InvalidBackup, format!("{key} can not be so"))
            .cause(cause)
            .correction(next)
            .about(key.clone()))
    };
    let plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    match place {
        Place::Bucket(bucket) => {
            let next =
                "give the store's address, the bucket's name and the region as the store has them";
            let scheme = bucket.endpoint.split_once("://").map(|(scheme, _)| scheme);
            if !plain(&bucket.endpoint) {
                return refuse("the endpoint is a URL such as https://s3.example.com", next);
            }
            if scheme.is_some_and(|scheme| scheme != "http" && scheme != "https") {
                return refuse("endpoints are called by https or http", next);
            }
            if !plain(&bucket.bucket) || bucket.bucket.contains('/') {
                return refuse("the bucket's name is one word", next);
            }
            if !plain(&bucket.region) {
                return refuse("the region is one word; stores without any take any", next);
            }
        }
        Place::Cluster(cluster) => {
            let next = "give the address of its REST API, such as https://cluster.example.com:3371";
            let rest = ["http://", "https://"].iter().find_map(|s| cluster.url.strip_prefix(s));
            let host = rest.map(|rest| rest.split('/').next().unwrap_or_default());
            let good = |host: &str| !host.is_empty() && !host.contains(['@', '?', '#']);
            let long = cluster.url.len() > LONGEST;
            if !plain(&cluster.url) || long || !host.is_some_and(good) {
                return refuse("its URL is http:// or https://, a host and perhaps a port", next);
            }
            if cluster.url.contains(['?', '#']) {
                return refuse("its URL has no query", next);
            }
            if cluster.token.is_some() && !cluster.url.starts_with("https://") {
                return refuse("a token is not sent to where others could read it", next);
            }
            let id = cluster.id.as_deref();
            if id.is_some_and(|id| !plain(id) || id.len() > LONGEST) {
                let next = "give what that cluster has as its property Cluster/LocalID";
                return refuse("the id of a cluster is one word", next);
            }
        }
    }
    Ok(())
}

pub fn delete(edit: &mut Edit<'_>, name: &RemoteName) -> Result<(), Refusal> {
    let key = Key::Remote(name.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    let all = shipping::Which { name: None, snapshot: None, uploads: true, downloads: true };
    shipping::abort(edit, name, &all)?;
    if let Some(mut remote) = edit.model.remote(name).cloned() {
        remote.deleting = true;
        edit.put(Object::Remote(remote));
    }
    drop_if_unused(edit, name);
    Ok(())
}

/// Removes a remote that is to go, once nothing is shipped with it.
pub fn drop_if_unused(edit: &mut Edit<'_>, name: &RemoteName) {
    let deleting = edit.model.remote(name).is_some_and(|remote| remote.deleting);
    let used = || {
        edit.model.snapshots().any(|snapshot| {
            let with = |upload: &Upload| upload.phase.is_active() || upload.call().is_some();
            snapshot.uploads.get(name).is_some_and(with)
                || snapshot
                    .download
                    .as_ref()
                    .is_some_and(|d| d.remote == *name && d.phase.is_active())
        })
    };
    if deleting && !used() {
        schedules::forget_remote(edit, name);
        edit.remove(Key::Remote(name.clone()));
    }
}
