//! How words, ids and options of `vocab` appear in JSON: states by DRBD's name, ids as numbers,
//! options as a map of what differs from the defaults, in DRBD's notation.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};

/// Anything that prints and parses as a word.
pub(crate) mod word {
    use super::*;

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D>(d: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

/// Options as a map. Values are checked against the option table as they come in.
pub(crate) mod options {
    use super::*;

    pub(crate) fn serialize<T: vocab::options::Options, S: Serializer>(
        value: &T,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        s.collect_map(value.show())
    }

    pub(crate) fn deserialize<'de, T, D>(d: D) -> Result<T, D::Error>
    where
        T: vocab::options::Options,
        D: Deserializer<'de>,
    {
        let mut options = T::default();
        for (name, value) in BTreeMap::<String, String>::deserialize(d)? {
            options.set(&name, &value).map_err(D::Error::custom)?;
        }
        Ok(options)
    }
}

/// A histogram as its number of events, their sum in nanoseconds, and the buckets that have any:
/// where each ends in microseconds (`null` for the one without an end), and how many it has.
pub(crate) mod histogram {
    use std::time::Duration;

    use serde::{Deserialize, Serialize};
    use vocab::Histogram;

    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Fields {
        count: u64,
        sum_ns: u64,
        buckets: Vec<(Option<u64>, u64)>,
    }

    pub(crate) fn serialize<S: Serializer>(value: &Histogram, s: S) -> Result<S::Ok, S::Error> {
        // Beyond 584 years nothing is exact any more.
        let number = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        let buckets = value.buckets().map(|(end, n)| (end.map(|end| number(end.as_micros())), n));
        let sum_ns = number(value.sum().as_nanos());
        Fields { count: value.count(), sum_ns, buckets: buckets.collect() }.serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Histogram, D::Error> {
        let Fields { count, sum_ns, buckets } = Fields::deserialize(d)?;
        let buckets = buckets.into_iter().map(|(end, n)| (end.map(Duration::from_micros), n));
        Histogram::from_buckets(Duration::from_nanos(sum_ns), buckets)
            .filter(|histogram| histogram.count() == count)
            .ok_or_else(|| D::Error::custom("a histogram's buckets are not those of this release"))
    }
}

macro_rules! numbers {
    ($($module:ident: $type:ty as $repr:ty, $get:expr, $new:expr;)+) => {$(
        #[doc = concat!("`", stringify!($type), "` as a number.")]
        pub(crate) mod $module {
            use super::*;

            pub(crate) fn serialize<S: Serializer>(value: &$type, s: S) -> Result<S::Ok, S::Error> {
                let get: fn(&$type) -> $repr = $get;
                get(value).serialize(s)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                let new: fn($repr) -> Option<$type> = $new;
                let n = <$repr>::deserialize(d)?;
                new(n).ok_or_else(|| D::Error::custom(format!("{n:?} is out of range")))
            }
        }
    )+};
}

numbers! {
    node_id: vocab::NodeId as u8, |id| id.get(), vocab::NodeId::new;
    maybe_node_id: Option<vocab::NodeId> as Option<u8>, |id| id.map(vocab::NodeId::get),
        |id| match id { None => Some(None), Some(n) => vocab::NodeId::new(n).map(Some) };
    volume: vocab::VolumeNr as u16, |nr| nr.0,
        |n| (n <= vocab::VolumeNr::MAX.0).then_some(vocab::VolumeNr(n));
    minor: vocab::Minor as u32, |m| m.0, |n| Some(vocab::Minor(n));
    maybe_volume: Option<vocab::VolumeNr> as Option<u16>, |nr| nr.map(|nr| nr.0),
        |nr| Some(nr.map(vocab::VolumeNr));
    maybe_minor: Option<vocab::Minor> as Option<u32>, |minor| minor.map(|minor| minor.0),
        |minor| Some(minor.map(vocab::Minor));
    maybe_sector: Option<vocab::Sector> as Option<u64>, |s| s.map(|s| s.0),
        |n| Some(n.map(vocab::Sector));
    sector: vocab::Sector as u64, |s| s.0, |n| Some(vocab::Sector(n));
}

/// A secret, in the clear: the socket is its owner's alone.
pub(crate) mod secret {
    use vocab::options::Secret;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(secret: &Secret, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(secret.expose())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Secret, D::Error> {
        String::deserialize(d).map(Secret::from)
    }
}

/// For fields that are left out where they are not set.
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}
