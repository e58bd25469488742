//! The master passphrase: what is kept of it, and what is sealed with the key that it protects.

use std::sync::Arc;
use std::time::Duration;

use cluster::command::Command;
use cluster::refusal::{Code, Refusal};
use cluster::shipping::Bucket;
use crypt::seal::{Error, MasterKey};
use linstor::controller::{Failure, MasterPassphrase};
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
