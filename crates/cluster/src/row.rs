//! How values of `vocab`, which knows no serialisation, stand in a row: as plain numbers.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use vocab::{Bytes, DiskState, GenUuid, Minor, NodeId, VolumeNr};

/// True of what is not written.
pub fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// True of what is not written.
pub fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A size in bytes.
pub mod bytes {
    use super::*;

    pub fn serialize<S: Serializer>(size: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        size.0.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        u64::deserialize(from).map(Bytes)
    }
}

/// A size in bytes, if there is one.
pub mod some_bytes {
    use super::*;

    pub fn serialize<S: Serializer>(size: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
        size.map(|size| size.0).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Bytes))
    }
}

/// The state of a disk, by DRBD's word, if there is one.
pub mod disk_state {
    use super::*;

    pub fn serialize<S: Serializer>(state: &Option<DiskState>, to: S) -> Result<S::Ok, S::Error> {
        state.map(DiskState::name).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DiskState>, D::Error> {
        let Some(word) = Option::<String>::deserialize(from)? else { return Ok(None) };
        word.parse().map(Some).map_err(D::Error::custom)
    }
}

/// A data generation.
pub mod generation {
    use super::*;

    pub fn serialize<S: Serializer>(generation: &GenUuid, to: S) -> Result<S::Ok, S::Error> {
        generation.0.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GenUuid, D::Error> {
        u64::deserialize(from).map(GenUuid)
    }
}

/// A minor number, if there is one.
pub mod minor {
    use super::*;

    pub fn serialize<S: Serializer>(minor: &Option<Minor>, to: S) -> Result<S::Ok, S::Error> {
        minor.map(|minor| minor.0).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Minor>, D::Error> {
        Ok(Option::<u32>::deserialize(from)?.map(Minor))
    }
}

/// A DRBD node id, if there is one.
pub mod node_id {
    use super::*;

    pub fn serialize<S: Serializer>(id: &Option<NodeId>, to: S) -> Result<S::Ok, S::Error> {
        id.map(NodeId::get).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NodeId>, D::Error> {
        let Some(id) = Option::<u8>::deserialize(from)? else { return Ok(None) };
        let id = NodeId::new(id).ok_or_else(|| D::Error::custom("a node id is below 32"))?;
        Ok(Some(id))
    }
}

/// Values by volume number.
pub mod by_volume {
    use super::*;

    pub fn serialize<T: Serialize, S: Serializer>(
        map: &BTreeMap<VolumeNr, T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(map.iter().map(|(number, value)| (number.0, value)))
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<VolumeNr, T>, D::Error> {
        let map = BTreeMap::<u16, T>::deserialize(from)?;
        Ok(map.into_iter().map(|(number, value)| (VolumeNr(number), value)).collect())
    }
}

/// Sizes in bytes by volume number.
pub mod sizes {
    use super::*;

    pub fn serialize<S: Serializer>(
        map: &BTreeMap<VolumeNr, Bytes>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(map.iter().map(|(number, size)| (number.0, size.0)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<VolumeNr, Bytes>, D::Error> {
        let map = BTreeMap::<u16, u64>::deserialize(from)?;
        Ok(map.into_iter().map(|(number, size)| (VolumeNr(number), Bytes(size))).collect())
    }
}
