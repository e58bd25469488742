//! The master passphrase, and passphrases of encrypted volumes.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::error::Error;
use super::super::secret::Ask;
use super::args::{EncryptionCommand, VolumeName};
use super::http::Change;
use super::table;
use super::{Session, volumes};

const PATH: &str = "/v1/encryption/passphrase";
const WHAT: &str = "the control plane";
const PRESENT: Ask = Ask::Known("master passphrase");
const NEW: Ask = Ask::New("new master passphrase");

pub(super) fn run(session: &mut Session<'_>, command: &EncryptionCommand) -> Result<(), Error> {
    let at = || PATH.to_owned();
    match command {
        EncryptionCommand::Status => status(session),
        EncryptionCommand::Create => {
            let [new] = session.passphrases(WHAT, [NEW])?;
            let change = Change::Post(at(), json!({ "new_passphrase": new.expose() }));
            session.change("encryption: create the master passphrase", &change, None).map(drop)
        }
        EncryptionCommand::Unlock => {
            let [present] = session.passphrases(WHAT, [PRESENT])?;
            let change = Change::Patch(at(), json!(present.expose()));
            session.change("encryption: unlock", &change, None).map(drop)
        }
        EncryptionCommand::Change => {
            let [old, new] = session.passphrases(WHAT, [PRESENT, NEW])?;
            let body = json!({ "old_passphrase": old.expose(), "new_passphrase": new.expose() });
            let what = "encryption: change the master passphrase";
            session.change(what, &Change::Put(at(), body), None).map(drop)
        }
    }
}

/// What the controller knows of the master passphrase.
#[derive(Serialize, Deserialize)]
struct Status {
    status: String,
}

fn status(session: &mut Session<'_>) -> Result<(), Error> {
    let status: Status = session.get("encryption", PATH)?;
    if session.json {
        return table::as_json(session.out, &status);
    }
    let text = match status.status.as_str() {
        "unset" => "unset: there is no master passphrase; `ashlar encryption create` chooses one",
        "locked" => {
            "locked: the controller lacks the master passphrase; `ashlar encryption unlock`"
        }
        "unlocked" => "unlocked: the controller has the master passphrase",
        other => other,
    };
    writeln!(session.out, "{text}")?;
    Ok(())
}

/// Has another passphrase for a volume's disks.
pub(super) fn change_volume(
    session: &mut Session<'_>,
    volume: &VolumeName,
    no_wait: bool,
) -> Result<(), Error> {
    let VolumeName { name, number } = volume;
    let object = format!("volume {name}/{number}");
    // Not asked for where there is no such volume.
    volumes::definition(&session.http, name)?;
    let [new] = session.passphrases(&object, [Ask::New("new passphrase")])?;
    let path = format!("{}/volume-definitions/{number}/encryption-passphrase", volumes::of(name));
    let change = Change::Put(path, json!({ "new_passphrase": new.expose() }));
    volumes::changed(session, name, &format!("{object}: change the passphrase"), &change, no_wait)
}
