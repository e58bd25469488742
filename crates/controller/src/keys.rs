//! The master passphrase: what is kept of it, and what is sealed with the key that it protects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::command::Command;
use cluster::refusal::{Code, Refusal};
use cluster::shipping::{Bucket, OtherCluster};
use crypt::seal::{Error, MasterKey};
use linstor::controller::{Failure, MasterPassphrase};
use shipping::description::LuksInfo;
use shipping::other;
use shipping::s3::{Client, Place};
use vocab::options::Secret;

/// The master key that follows from a passphrase and from what is kept, and the command that keeps it anew, if that
/// is needed. This takes a while, on purpose.
///
/// # Errors
/// If the passphrase is wrong, or there is none, or there is one already.
pub fn derive(
    kept: Option<String>,
    passphrase: &MasterPassphrase,
) -> Result<(MasterKey, Option<Command>), Failure> {
    let set = |wrapped, before| Some(Command::SetMasterKey { wrapped, before });
    match passphrase {
        MasterPassphrase::Create(new) => with_chance(|random| {
            let master = MasterKey::new(random);
            // Where there is one already the command is refused.
            let wrapped = master.wrap(new, random);
            (master, set(wrapped, None))
        }),
        MasterPassphrase::Enter(passphrase) => Ok((unwrap(kept.as_deref(), passphrase)?, None)),
        MasterPassphrase::Modify { old, new } => {
            let master = unwrap(kept.as_deref(), old)?;
            let wrapped = with_chance(|random| master.wrap(new, random))?;
            Ok((master, set(wrapped, kept)))
        }
    }
}

fn unwrap(kept: Option<&str>, passphrase: &Secret) -> Result<MasterKey, Failure> {
    let Some(kept) = kept else {
        return Err(Refusal::no_master_passphrase().into());
    };
    MasterKey::unwrap(kept, passphrase).map_err(|error| match error {
        Error::Wrong => Refusal::new(Code::WrongPassphrase, "the passphrase is not the right one")
            .cause("the master key does not open with it")
            .correction("enter the one that was created, or changed to, last")
            .into(),
        Error::Damaged => Failure::Store(format!("the master key is not had: {error}")),
    })
}

/// Passphrases, each encrypted under the master key.
///
/// # Errors
/// If there are any, and the master key is not known.
pub fn seal(master: Option<&MasterKey>, passphrases: &[Secret]) -> Result<Vec<String>, Failure> {
    let Some(master) = master.filter(|_| !passphrases.is_empty()) else {
        return match passphrases.is_empty() {
            true => Ok(Vec::new()),
            false => Err(Refusal::new(Code::NoMasterKey, "the passphrase can not be kept")
                .cause("the master passphrase was not entered since the controller started")
                .correction("enter it (`ashlar encryption unlock`), or create one")
                .into()),
        };
    };
    with_chance(|random| passphrases.iter().map(|one| master.seal(one, random)).collect())
}

/// Passphrases of a backup's volumes, encrypted under this master key. `origin` is the master passphrase of the
/// cluster that has made it, which is not needed where that is this one. This takes a while, on purpose.
///
/// # Errors
/// If they can not be opened, or the master key is not known.
pub fn adopt(
    master: Option<&MasterKey>,
    keys: &LuksInfo,
    origin: Option<&Secret>,
) -> Result<BTreeMap<u16, String>, Failure> {
    let refuse = |code, cause: String, next: &str| {
        let text = "the backup's encrypted volumes can not be opened";
        Failure::from(Refusal::new(code, text).cause(cause).correction(next))
    };
    let Some(master) = master else {
        let cause = "the master passphrase was not entered since the controller started".to_owned();
        let next = "enter it (`ashlar encryption unlock`), or create one";
        return Err(refuse(Code::NoMasterKey, cause, next));
    };
    let from = match origin {
        None => master.clone(),
        Some(origin) => MasterKey::unwrap(&keys.master_key, origin).map_err(|error| {
            let next =
                "give the master passphrase that the cluster of the backup had when it was made";
            refuse(Code::WrongPassphrase, format!("its master key is not had: {error}"), next)
        })?,
    };
    let open = |(number, sealed): (&u16, &String)| {
        let passphrase = from.unseal(sealed).map_err(|error| match origin {
            None => {
                let cause = "another cluster has made it".to_owned();
                let next = "give the master passphrase of that cluster (`ashlar backup restore --other-cluster`)";
                refuse(Code::WrongPassphrase, cause, next)
            }
            Some(_) => {
                let cause = format!("the passphrase of volume {number} is not had: {error}");
                refuse(Code::InvalidBackup, cause, "restore another backup; this one is damaged")
            }
        })?;
        let sealed = with_chance(|random| master.seal(&passphrase, random))?;
        Ok((*number, sealed))
    };
    keys.passphrases.iter().map(open).collect()
}

/// How long a store that does not answer is asked again: somebody waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client of a bucket, whose keys are opened for it.
///
/// # Errors
/// If the master key is not known or another one, or the bucket can not be meant.
pub fn open(master: Option<&MasterKey>, bucket: &Bucket) -> Result<Client, Failure> {
    let refuse = |code, cause: String, next: &str| {
        Failure::from(
            Refusal::new(code, "the remote can not be used").cause(cause).correction(next),
        )
    };
    let Some(master) = master else {
        let cause = "its keys are encrypted, and the master passphrase was not entered".to_owned();
        return Err(refuse(Code::NoMasterKey, cause, "enter it (`ashlar encryption unlock`)"));
    };
    let open = |sealed: &str| {
        master.unseal(sealed).map_err(|error| {
            let next = "give the remote its keys again (`ashlar remote modify`)";
            refuse(Code::InvalidBackup, format!("its keys are not had: {error}"), next)
        })
    };
    let place = Place {
        endpoint: bucket.endpoint.clone(),
        bucket: bucket.bucket.clone(),
        region: bucket.region.clone(),
        path_style: bucket.path_style,
        access_key: open(&bucket.access_key)?,
        secret_key: open(&bucket.secret_key)?,
    };
    Client::new(&place, PATIENCE, Arc::default())
        .map_err(|error| refuse(Code::InvalidBackup, error.to_string(), error.correction()))
}

/// What was encrypted under the master key.
///
/// # Errors
/// If that is not known, or another one.
pub fn unseal(master: Option<&MasterKey>, sealed: &str) -> Result<Secret, Failure> {
    let refuse = |code, cause: String, next: &str| {
        Failure::from(
            Refusal::new(code, "the remote can not be used").cause(cause).correction(next),
        )
    };
    let Some(master) = master else {
        let cause =
            "its secrets are encrypted, and the master passphrase was not entered".to_owned();
        return Err(refuse(Code::NoMasterKey, cause, "enter it (`ashlar encryption unlock`)"));
    };
    master.unseal(sealed).map_err(|error| {
        let next = "give them to the remote again (`ashlar remote modify`)";
        refuse(Code::InvalidBackup, format!("its secrets are not had: {error}"), next)
    })
}

/// A client of another cluster, with its token opened.
///
/// # Errors
/// If the master key is not known or another one, or it can not be called.
pub fn call(master: Option<&MasterKey>, cluster: &OtherCluster) -> Result<other::Client, Failure> {
    let token = cluster.token.as_ref().map(|sealed| unseal(master, sealed)).transpose()?;
    other::Client::new(&cluster.url, token, PATIENCE).map_err(|trouble| {
        Refusal::new(Code::InvalidBackup, "the remote can not be used")
            .cause(trouble.to_string())
            .correction(trouble.correction())
            .into()
    })
}

/// Does something with the kernel's random bytes.
fn with_chance<T>(make: impl FnOnce(crypt::Random<'_>) -> T) -> Result<T, Failure> {
    let mut failed = None;
    let made = make(&mut |bytes| {
        if let Err(error) = getrandom::fill(bytes) {
            failed = Some(error);
        }
    });
    match failed {
        None => Ok(made),
        Some(error) => Err(Failure::Store(format!("the kernel gives no random bytes: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(byte: u8) -> MasterKey {
        MasterKey::new(&mut |bytes| bytes.fill(byte))
    }

    #[test]
    fn passphrases_of_a_backup_are_had_by_whoever_has_a_master_passphrase() {
        let (ours, theirs) = (master(1), master(2));
        let mut random = |bytes: &mut [u8]| bytes.fill(3);
        let keys = LuksInfo {
            master_key: theirs.wrap(&"of then".into(), &mut random),
            passphrases: [(0, theirs.seal(&"of the disk".into(), &mut random))].into(),
        };
        let code = |refused: Result<BTreeMap<u16, String>, Failure>| match refused {
            Err(Failure::Refused(refusal)) => refusal.code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(adopt(None, &keys, None)), Code::NoMasterKey);
        assert_eq!(code(adopt(Some(&ours), &keys, None)), Code::WrongPassphrase);
        let wrong = Secret::from("of now");
        assert_eq!(code(adopt(Some(&ours), &keys, Some(&wrong))), Code::WrongPassphrase);
        let origin = Secret::from("of then");
        for (master, origin) in [(&ours, Some(&origin)), (&theirs, Some(&origin)), (&theirs, None)]
        {
            let adopted = adopt(Some(master), &keys, origin).unwrap();
            assert_eq!(master.unseal(&adopted[&0]), Ok("of the disk".into()));
        }
        let damaged = LuksInfo { passphrases: [(0, "1$x$y".into())].into(), ..keys };
        assert_eq!(code(adopt(Some(&ours), &damaged, Some(&origin))), Code::InvalidBackup);
    }
}
