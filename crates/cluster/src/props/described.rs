//! What can be set on a kind of object, for forms and for people: from the table that values are
//! checked against.

use vocab::options::{
    DeviceOptions, DiskOptions, Honoured, Kind, NetOptions, OptionSpec, Options, PeerDeviceOptions,
    ResourceOptions,
};

use super::keys::{Owner, Spec, TABLE, Value, spaces};

/// A property that can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// Its key; one that ends in `/` is a namespace.
    pub key: String,
    /// What it is for, or what its values are.
    pub help: String,
    /// The kind of its values, in LINSTOR's words.
    pub kind: &'static str,
    /// The values: a range, or words.
    pub values: String,
    /// The value without it; empty if that depends.
    pub default: &'static str,
    /// What numbers count.
    pub unit: &'static str,
}

/// What can be set on an object of that kind, by key.
pub fn described(owner: Owner) -> Vec<Described> {
    let own = TABLE.iter().filter(|Spec(_, _, owners)| owners.contains(&owner));
    let mut all: Vec<Described> = own.map(|Spec(key, value, _)| of_value(key, *value)).collect();
    for space in spaces::ALL.into_iter().filter(|space| space.owners.contains(&owner)) {
        let tables: &[&[OptionSpec]] = match space.prefix {
            prefix if prefix == spaces::NET.prefix => &[NetOptions::TABLE],
            prefix if prefix == spaces::PEER_DEVICE.prefix => &[PeerDeviceOptions::TABLE],
            prefix if prefix == spaces::RESOURCE.prefix => &[ResourceOptions::TABLE],
            _ => &[DiskOptions::TABLE, DeviceOptions::TABLE],
        };
        all.extend(
            tables.iter().copied().flatten().filter_map(|spec| of_option(space.prefix, spec)),
        );
    }
    all.sort_by(|a, b| a.key.cmp(&b.key));
    all
}

fn of_value(key: &str, value: Value) -> Described {
    let number = |kind, min: String, max: String| (kind, format!("({min} - {max})"), "a number");
    let (kind, values, help) = match value {
        Value::Text => ("string", String::new(), "any text"),
        Value::Bool => {
            ("boolean_true_false", "(?i)(?:true|false|yes|no)".to_owned(), "whether it is so")
        }
        Value::Number(min, max) => number("range", min.to_string(), max.to_string()),
        Value::Fraction(min, max) => {
            number("range_float", format!("{min:.1}"), format!("{max:.1}"))
        }
        Value::Word(words) => ("regex", one_of(words), "one of these words"),
        Value::Range(min, max) => ("string", format!("({min} - {max})"), "two numbers with a dash"),
        Value::Threshold => ("string", String::new(), "a percentage like 5%, or a size like 50GB"),
        Value::Pool => ("string", String::new(), "the name of a storage pool"),
        Value::NetIf => ("string", String::new(), "the name of a network interface"),
        Value::Limit => ("long", "-1 or more".to_owned(), "a whole number, or -1 for any number"),
        Value::Suffix(_) => ("string", String::new(), "letters, digits, `.`, `_` and `-`"),
    };
    let (key, help) = (key.to_owned(), help.to_owned());
    Described { key, help, kind, values, default: "", unit: "" }
}

/// Words as the regular expression that LINSTOR makes of them.
fn one_of(words: &[&str]) -> String {
    format!("(?:{})", words.join("|"))
}

/// None if only its default is honoured: there is nothing to set.
fn of_option(prefix: &str, spec: &OptionSpec) -> Option<Described> {
    let range = |min: u64, max: u64| format!("({min} - {max})");
    let (kind, values, unit) = match (spec.honoured, spec.kind) {
        (Honoured::DefaultOnly(_), _) => return None,
        (Honoured::Only(words, _), _) => ("regex", one_of(words), ""),
        (Honoured::Yes, Kind::Bool) => ("boolean", "(?i)(?:yes|no)".to_owned(), ""),
        (Honoured::Yes, Kind::Number { min, max, unit }) => {
            ("range", range(min, max), unit.words())
        }
        (Honoured::Yes, Kind::Choice(words)) => ("regex", one_of(words), ""),
        (Honoured::Yes, Kind::NumberOrWord { min, max, unit, words }) => {
            let values = format!("{} or {}", range(min, max), one_of(words));
            ("numeric_or_symbol", values, unit.words())
        }
        (Honoured::Yes, Kind::Text { .. } | Kind::Secret { .. }) => ("string", String::new(), ""),
    };
    let default = match spec.honoured {
        // What can not be set is none.
        Honoured::Only(words, _) if !words.contains(&spec.default) => "",
        _ => spec.default,
    };
    let (key, help) = (format!("{prefix}{}", spec.name), spec.help.to_owned());
    Some(Described { key, help, kind, values, default, unit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::props::keys::check;

    #[test]
    fn what_is_described_can_be_set() {
        for (owner, least) in [
            (Owner::Controller, 20),
            (Owner::Group, 20),
            (Owner::Definition, 20),
            (Owner::NodeConnection, 20),
            (Owner::Volume, 10),
        ] {
            let all = described(owner);
            assert!(all.len() > least, "{owner:?}: {}", all.len());
            for described in all {
                let value = match (described.kind, described.default) {
                    (_, default) if !default.is_empty() => default.to_owned(),
                    ("boolean" | "boolean_true_false", _) => "yes".to_owned(),
                    ("regex", _) => {
                        let words = described.values.strip_prefix("(?:").unwrap();
                        words.split(['|', ')']).next().unwrap().to_owned()
                    }
                    ("numeric_or_symbol", _) => {
                        assert!(described.values.contains(" or (?:"), "{}", described.values);
                        described.values[1..].split(' ').next().unwrap().to_owned()
                    }
                    ("range" | "range_float", _) => {
                        let least = described.values.trim_start_matches('(');
                        least.split(' ').next().unwrap().to_owned()
                    }
                    // What text is good differs; the keys are checked all the same by `known`.
                    _ => continue,
                };
                let key = match described.key.strip_suffix('/') {
                    Some(space) => format!("{space}/x"),
                    None => described.key.clone(),
                };
                check(owner, &key, &value).unwrap_or_else(|error| panic!("{key}: {error}"));
            }
        }
        let known = described(Owner::Node);
        assert!(known.iter().all(|described| !described.key.starts_with("DrbdOptions/Net/")));
    }
}
