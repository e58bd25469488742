//! The text of a header: what there is of segments, keyslots and digests, as JSON.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Error;
use super::kdf::{Argon2Variant, Hash, Kdf};
use super::keyslot::STRIPES;
use crate::xts::KEY;

const CIPHER: &str = "aes-xts-plain64";
const BINARY: usize = 4096;

/// What is made of it.
#[derive(Debug)]
pub struct Text {
    pub segment: Segment,
    pub digest: Digest,
    /// Those that hold the segment's key.
    pub keyslots: Vec<Keyslot>,
}

/// The sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Segment {
    /// Where they begin, in bytes.
    pub offset: u64,
    pub sector_size: u32,
    pub iv_tweak: u64,
}

/// What tells whether a key is the right one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Digest {
    hash: Hash,
    rounds: u32,
    salt: Vec<u8>,
    digest: Vec<u8>,
}

/// A part of the device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    pub offset: u64,
    pub size: u64,
}

/// A keyslot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keyslot {
    /// What the text calls it; not looked at in new headers, whose only one is `0`.
    pub name: String,
    pub area: Area,
    pub kdf: Kdf,
    pub salt: Vec<u8>,
    /// It is tried first.
    pub preferred: bool,
}

impl Digest {
    pub fn of(key: &[u8], salt: Vec<u8>, rounds: u32) -> Digest {
        let mut digest = vec![0; Hash::Sha256.len()];
        Hash::Sha256.pbkdf2(key, &salt, rounds, &mut digest);
        Digest { hash: Hash::Sha256, rounds, salt, digest }
    }

    /// True if the key is the one.
    pub fn fits(&self, key: &[u8]) -> bool {
        let mut digest = vec![0; self.digest.len()];
        self.hash.pbkdf2(key, &self.salt, self.rounds, &mut digest);
        digest == self.digest
    }
}

// ---- as it is written ---------------------------------------------------------------------

#[derive(Serialize, Deserialize)]
struct Json {
    keyslots: BTreeMap<String, JsonSlot>,
    #[serde(default)]
    tokens: BTreeMap<String, Value>,
    segments: BTreeMap<String, JsonSegment>,
    digests: BTreeMap<String, JsonDigest>,
    config: JsonConfig,
}

#[derive(Serialize, Deserialize)]
struct JsonSlot {
    r#type: String,
    key_size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    af: Option<JsonAf>,
    area: Option<JsonArea>,
    kdf: Option<JsonKdf>,
}

#[derive(Serialize, Deserialize)]
struct JsonAf {
    r#type: String,
    stripes: u64,
    hash: String,
}

#[derive(Serialize, Deserialize)]
struct JsonArea {
    r#type: String,
    offset: String,
    size: String,
    #[serde(default)]
    encryption: String,
    #[serde(default)]
    key_size: u64,
}

#[derive(Serialize, Deserialize)]
struct JsonKdf {
    r#type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iterations: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpus: Option<u32>,
    salt: String,
}

#[derive(Serialize, Deserialize)]
struct JsonSegment {
    r#type: String,
    offset: String,
    size: String,
    #[serde(default)]
    iv_tweak: String,
    #[serde(default)]
    encryption: String,
    #[serde(default)]
    sector_size: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    integrity: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flags: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize)]
struct JsonDigest {
    r#type: String,
    keyslots: Vec<String>,
    segments: Vec<String>,
    hash: String,
    iterations: u32,
    salt: String,
    digest: String,
}

#[derive(Serialize, Deserialize)]
struct JsonConfig {
    json_size: String,
    keyslots_size: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requirements: Option<JsonRequirements>,
}

#[derive(Serialize, Deserialize)]
struct JsonRequirements {
    #[serde(default)]
    mandatory: Vec<String>,
}

/// Reads the text of a header of which each copy has `copy` bytes.
pub fn read(text: &[u8], copy: u64) -> Result<Text, Error> {
    let json: Json = serde_json::from_slice(text)
        .map_err(|error| Error::damaged(format!("its text is not what it should be: {error}")))?;
    let requirements = json.config.requirements.map(|all| all.mandatory).unwrap_or_default();
    if !requirements.is_empty() {
        return Err(Error::unsupported(format!("requirements {}", requirements.join(", "))));
    }
    let mut segments = json.segments.iter();
    let (Some((name, found)), None) = (segments.next(), segments.next()) else {
        return Err(Error::unsupported(format!("{} segments", json.segments.len())));
    };
    let segment = segment(found)?;
    if segment.offset < 2 * copy {
        return Err(Error::damaged("its sectors begin within it"));
    }
    let mut digests = json.digests.values().filter(|digest| digest.segments.contains(name));
    let (Some(found), None) = (digests.next(), digests.next()) else {
        return Err(Error::damaged("its segment has not one digest"));
    };
    let digest = digest(found)?;
    let mut keyslots = Vec::new();
    let mut unusable = None;
    for name in &found.keyslots {
        let slot = json.keyslots.get(name);
        let slot = slot.ok_or_else(|| Error::damaged(format!("it has no keyslot {name}")))?;
        // One that is not to be used but by its number.
        if slot.priority == Some(0) {
            continue;
        }
        match keyslot(name, slot) {
            Ok(slot) if slot.area.offset < 2 * copy || area_end(slot.area) > segment.offset => {
                return Err(Error::damaged(format!("keyslot {name} is not where keyslots are")));
            }
            Ok(slot) => keyslots.push(slot),
            Err(error @ Error::Damaged(_)) => return Err(error),
            Err(error) => unusable = Some(error),
        }
    }
    match (keyslots.is_empty(), unusable) {
        (true, Some(error)) => Err(error),
        (true, None) => Err(Error::unsupported("no keyslots")),
        (false, _) => Ok(Text { segment, digest, keyslots }),
    }
}

fn area_end(area: Area) -> u64 {
    area.offset.saturating_add(area.size)
}

fn number(text: &str, what: &str) -> Result<u64, Error> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| plain);
    number.ok_or_else(|| Error::damaged(format!("{what} is {text:?}")))
}

fn binary(text: &str, what: &str) -> Result<Vec<u8>, Error> {
    BASE64.decode(text).map_err(|_| Error::damaged(format!("{what} is not base64")))
}

fn segment(json: &JsonSegment) -> Result<Segment, Error> {
    if json.r#type != "crypt" || json.integrity.is_some() {
        return Err(Error::unsupported(format!("a segment of type {:?}", json.r#type)));
    }
    if json.flags.as_ref().is_some_and(|flags| !flags.is_empty()) {
        return Err(Error::unsupported("a segment that is being encrypted anew"));
    }
    if json.encryption != CIPHER {
        return Err(Error::unsupported(format!("cipher {:?}", json.encryption)));
    }
    if json.size != "dynamic" {
        return Err(Error::unsupported("a segment that does not go to the end of the device"));
    }
    let offset = number(&json.offset, "the offset of its segment")?;
    let sector_size = json.sector_size;
    if !matches!(sector_size, 512 | 1024 | 2048 | 4096) {
        return Err(Error::damaged(format!("it says that sectors have {sector_size} bytes")));
    }
    if offset == 0 || !offset.is_multiple_of(4096) {
        return Err(Error::unsupported(format!("sectors from byte {offset} on")));
    }
    let iv_tweak = number(&json.iv_tweak, "the tweak of its segment")?;
    Ok(Segment { offset, sector_size, iv_tweak })
}

fn digest(json: &JsonDigest) -> Result<Digest, Error> {
    if json.r#type != "pbkdf2" {
        return Err(Error::unsupported(format!("a digest of type {:?}", json.r#type)));
    }
    let (hash, rounds) = (Hash::named(&json.hash)?, json.iterations);
    if !(1..=50_000_000).contains(&rounds) {
        return Err(Error::unsupported(format!("a digest of {rounds} rounds")));
    }
    let salt = binary(&json.salt, "the salt of its digest")?;
    let digest = binary(&json.digest, "its digest")?;
    // An empty one would fit any key.
    if digest.len() < Hash::Sha256.len() || digest.len() > hash.len() {
        return Err(Error::damaged(format!("its digest has {} bytes", digest.len())));
    }
    Ok(Digest { hash, rounds, salt, digest })
}

fn keyslot(name: &str, json: &JsonSlot) -> Result<Keyslot, Error> {
    let JsonSlot { r#type, key_size, priority, af, area, kdf } = json;
    let (Some(af), Some(area), Some(kdf), "luks2") = (af, area, kdf, r#type.as_str()) else {
        return Err(Error::unsupported(format!("a keyslot of type {:?}", r#type)));
    };
    if *key_size != KEY as u64 || area.key_size != KEY as u64 {
        return Err(Error::unsupported(format!("a key of {} bits", key_size.saturating_mul(8))));
    }
    if (af.r#type.as_str(), af.stripes, af.hash.as_str()) != ("luks1", STRIPES as u64, "sha256") {
        return Err(Error::unsupported(format!("{} stripes with {:?}", af.stripes, af.hash)));
    }
    if area.r#type != "raw" || area.encryption != CIPHER {
        return Err(Error::unsupported(format!("keyslots with cipher {:?}", area.encryption)));
    }
    let offset = number(&area.offset, "the offset of a keyslot")?;
    let area = Area { offset, size: number(&area.size, "the size of a keyslot")? };
    if area.size < (KEY * STRIPES) as u64 {
        return Err(Error::damaged(format!("a keyslot has {} bytes", area.size)));
    }
    let salt = binary(&kdf.salt, "the salt of a keyslot")?;
    let (name, preferred) = (name.to_owned(), *priority == Some(2));
    Ok(Keyslot { name, area, kdf: derivation(kdf)?, salt, preferred })
}

fn derivation(json: &JsonKdf) -> Result<Kdf, Error> {
    let variant = match json.r#type.as_str() {
        "pbkdf2" => {
            let (Some(hash), Some(rounds)) = (&json.hash, json.iterations) else {
                return Err(Error::damaged("a keyslot does not say how keys are derived"));
            };
            return Ok(Kdf::Pbkdf2 { hash: Hash::named(hash)?, rounds });
        }
        "argon2id" => Argon2Variant::Id,
        "argon2i" => Argon2Variant::I,
        other => return Err(Error::unsupported(format!("keys derived by {other:?}"))),
    };
    match (json.time, json.memory, json.cpus) {
        (Some(passes), Some(memory), Some(lanes)) => {
            Ok(Kdf::Argon2 { variant, passes, memory, lanes })
        }
        _ => Err(Error::damaged("a keyslot does not say how keys are derived")),
    }
}

fn json_slot(slot: &Keyslot) -> JsonSlot {
    let kdf = JsonKdf {
        r#type: String::new(),
        hash: None,
        iterations: None,
        time: None,
        memory: None,
        cpus: None,
        salt: BASE64.encode(&slot.salt),
    };
    let kdf = match slot.kdf {
        Kdf::Argon2 { variant, passes, memory, lanes } => JsonKdf {
            r#type: if variant == Argon2Variant::Id { "argon2id" } else { "argon2i" }.to_owned(),
            time: Some(passes),
            memory: Some(memory),
            cpus: Some(lanes),
            ..kdf
        },
        Kdf::Pbkdf2 { hash, rounds } => JsonKdf {
            r#type: "pbkdf2".to_owned(),
            hash: Some(hash.name().to_owned()),
            iterations: Some(rounds),
            ..kdf
        },
    };
    JsonSlot {
        r#type: "luks2".to_owned(),
        key_size: KEY as u64,
        priority: None,
        af: Some(JsonAf {
            r#type: "luks1".to_owned(),
            stripes: STRIPES as u64,
            hash: "sha256".to_owned(),
        }),
        area: Some(JsonArea {
            r#type: "raw".to_owned(),
            offset: slot.area.offset.to_string(),
            size: slot.area.size.to_string(),
            encryption: CIPHER.to_owned(),
            key_size: KEY as u64,
        }),
        kdf: Some(kdf),
    }
}

/// The text of a new header with one keyslot, whose copies have `copy` bytes each.
pub fn write(segment: &Segment, slot: &Keyslot, digest: &Digest, copy: usize) -> Vec<u8> {
    let one = || vec!["0".to_owned()];
    let keyslot = json_slot(slot);
    let sectors = JsonSegment {
        r#type: "crypt".to_owned(),
        offset: segment.offset.to_string(),
        size: "dynamic".to_owned(),
        iv_tweak: segment.iv_tweak.to_string(),
        encryption: CIPHER.to_owned(),
        sector_size: segment.sector_size,
        integrity: None,
        flags: None,
    };
    let proof = JsonDigest {
        r#type: "pbkdf2".to_owned(),
        keyslots: one(),
        segments: one(),
        hash: digest.hash.name().to_owned(),
        iterations: digest.rounds,
        salt: BASE64.encode(&digest.salt),
        digest: BASE64.encode(&digest.digest),
    };
    let json = Json {
        keyslots: BTreeMap::from([("0".to_owned(), keyslot)]),
        tokens: BTreeMap::new(),
        segments: BTreeMap::from([("0".to_owned(), sectors)]),
        digests: BTreeMap::from([("0".to_owned(), proof)]),
        config: JsonConfig {
            json_size: (copy - BINARY).to_string(),
            keyslots_size: (segment.offset - 2 * copy as u64).to_string(),
            requirements: None,
        },
    };
    serde_json::to_vec(&json).expect("text and numbers can be written")
}

/// A text with keyslots that come or go, and everything else as it is: what is not known here, too.
pub struct Edited {
    json: Value,
    /// The digest of the segment's key.
    digest: String,
}

impl Edited {
    /// The text as it is, which `read` has understood.
    pub fn new(text: &[u8]) -> Result<Edited, Error> {
        let json: Value = serde_json::from_slice(text).map_err(|error| {
            Error::damaged(format!("its text is not what it should be: {error}"))
        })?;
        let segment = json["segments"].as_object().and_then(|all| all.keys().next().cloned());
        let has = |digest: &Value| {
            let segments = digest["segments"].as_array();
            segments.is_some_and(|all| all.iter().any(|name| name.as_str() == segment.as_deref()))
        };
        let digests = json["digests"].as_object();
        let digest = digests.and_then(|all| all.iter().find(|(_, digest)| has(digest)));
        let digest = digest.map(|(name, _)| name.clone());
        let digest = digest.ok_or_else(|| Error::damaged("its segment has not one digest"))?;
        Ok(Edited { json, digest })
    }

    /// The areas of all keyslots, of those that can not be used here, too.
    pub fn areas(&self) -> Result<Vec<Area>, Error> {
        let slots = self.json["keyslots"].as_object().into_iter().flatten();
        let areas = slots.filter(|(_, slot)| slot["area"].is_object()).map(|(name, slot)| {
            let part = |key: &str| {
                let text = slot["area"][key].as_str().unwrap_or_default();
                number(text, &format!("the {key} of keyslot {name}"))
            };
            Ok(Area { offset: part("offset")?, size: part("size")? })
        });
        areas.collect()
    }

    /// Where keyslots end in a header whose copies have `copy` bytes.
    pub fn end(&self, copy: u64) -> Result<u64, Error> {
        let size = self.json["config"]["keyslots_size"].as_str().unwrap_or_default();
        Ok(number(size, "the size of its keyslots")?.saturating_add(2 * copy))
    }

    /// A name that no keyslot has; none if there are as many as there can be.
    pub fn free_name(&self) -> Option<String> {
        let names = (0..super::SLOTS_MAX).map(|number| number.to_string());
        names.into_iter().find(|name| self.json["keyslots"].get(name).is_none())
    }

    /// One more keyslot with the segment's key.
    pub fn add(&mut self, slot: &Keyslot) {
        let json = serde_json::to_value(json_slot(slot)).expect("text and numbers can be written");
        self.json["keyslots"][&slot.name] = json;
        let holders = &mut self.json["digests"][&self.digest]["keyslots"];
        if let Some(holders) = holders.as_array_mut() {
            holders.push(Value::from(slot.name.as_str()));
        }
    }

    /// One keyslot less. Nothing refers to it any more.
    pub fn remove(&mut self, name: &str) {
        if let Some(slots) = self.json["keyslots"].as_object_mut() {
            slots.remove(name);
        }
        for part in ["digests", "tokens"] {
            for one in self.json[part].as_object_mut().into_iter().flat_map(|all| all.values_mut())
            {
                if let Some(names) = one["keyslots"].as_array_mut() {
                    names.retain(|other| other.as_str() != Some(name));
                }
            }
        }
    }

    /// As it is written.
    pub fn text(&self) -> Vec<u8> {
        serde_json::to_vec(&self.json).expect("text and numbers can be written")
    }
}
