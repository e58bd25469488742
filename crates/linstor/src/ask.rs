//! Requests: bodies, queries and names as clients send them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use cluster::layer::{self, Layer};
use cluster::objects::{Filter, Props, Provider};
use cluster::props::PropsEdit;
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::{Answer, Entry};
use crate::code;
use crate::controller::Controller;
use crate::lenient;

/// What every call has at hand.
pub type App = Arc<dyn Controller>;

/// A body of JSON. A missing one, or `null`, is an empty object: clients send that where every field
/// may be left out. The content type does not matter.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Answer;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Answer> {
        let unreadable = |cause: String| {
            let text = "the request can not be read";
            Answer::from(Entry::new(code::UNREADABLE, text).because(cause, "send JSON"))
        };
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|error| unreadable(error.to_string()))?;
        let text = bytes.trim_ascii();
        let text: &[u8] = if text.is_empty() || text == b"null" { b"{}" } else { text };
        lenient::from_slice(text).map(Body).map_err(|error| unreadable(error.to_string()))
    }
}

/// The names in the path of a call.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Answer> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(names)) => Ok(Path(names)),
            Err(error) => {
                let text = "the path can not be read";
                let entry = Entry::new(code::UNREADABLE, text);
                Err(entry.because(error.body_text(), "look at the document of the API").into())
            }
        }
    }
}

/// The query of a call: names may come several times, and truth in any case.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Asked(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Asked, Answer> {
        match Query::<Vec<(String, String)>>::from_request_parts(parts, state).await {
            Ok(Query(pairs)) => Ok(Asked(pairs)),
            Err(error) => {
                let text = "the query can not be read";
                let entry = Entry::new(code::UNREADABLE, text);
                Err(entry.because(error.to_string(), "encode it as a form").into())
            }
        }
    }
}

impl Asked {
    /// Every value of a name. Some clients send lists with commas.
    pub fn all<'a>(&'a self, name: &str) -> Vec<&'a str> {
        let pairs = self.0.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        pairs.flat_map(|(_, value)| value.split(',')).filter(|v| !v.is_empty()).collect()
    }

    /// True if the value is.
    pub fn flag(&self, name: &str) -> bool {
        self.all(name).first().is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// A number, if one was given.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.all(name).first()?.parse().ok()
    }

    /// True if nothing was asked for by that name, or `text` was, in any case.
    pub fn wants(&self, name: &str, text: &str) -> bool {
        let all = self.all(name);
        all.is_empty() || all.iter().any(|value| value.eq_ignore_ascii_case(text))
    }

    /// True if the object has every property that was asked for, `key` or `key=value`.
    pub fn wants_props(&self, props: &Props) -> bool {
        self.all("props").iter().all(|asked| match asked.split_once('=') {
            Some((key, value)) => props.get(key).is_some_and(|found| found == value),
            None => props.contains_key(*asked),
        })
    }

    /// The part of a list that was asked for: how many are left out, and how many there are then. A
    /// limit of 0 is none.
    pub fn part(&self) -> (usize, usize) {
        let limit = self.number("limit").unwrap_or(0);
        if limit == 0 {
            return (0, usize::MAX);
        }
        let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        (number(self.number("offset").unwrap_or(0)), number(limit))
    }

    /// That part of a list.
    pub fn page(&self, list: Vec<Value>) -> Value {
        let (offset, limit) = self.part();
        Value::Array(list.into_iter().skip(offset).take(limit).collect())
    }
}

/// The part of a body that changes properties.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
pub struct Modify {
    /// Keys with their new values.
    #[serde(default)]
    pub override_props: Option<Props>,
    /// Keys that go.
    #[serde(default)]
    pub delete_props: Option<Vec<String>>,
    /// Namespaces of which every key goes.
    #[serde(default)]
    pub delete_namespaces: Option<Vec<String>>,
}

impl From<Modify> for PropsEdit {
    fn from(body: Modify) -> PropsEdit {
        // Keys are paths from the root, with or without a slash in front: clients of the key-value
        // store send one, and expect none in what they read.
        let key = |key: String| key.trim_start_matches('/').to_owned();
        let set = body.override_props.unwrap_or_default().into_iter();
        let delete = body.delete_props.unwrap_or_default().into_iter();
        let spaces = body.delete_namespaces.unwrap_or_default().into_iter();
        PropsEdit {
            set: set.map(|(name, value)| (key(name), value)).collect(),
            delete: delete.map(key).collect(),
            delete_namespaces: spaces.map(key).collect(),
        }
    }
}

/// A filter of placement.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[allow(missing_docs, reason = "the fields are LINSTOR's")]
pub struct SelectFilter {
    pub place_count: Option<i64>,
    pub additional_place_count: Option<i64>,
    pub node_name_list: Option<Vec<String>>,
    pub storage_pool: Option<String>,
    pub storage_pool_list: Option<Vec<String>>,
    pub storage_pool_diskless_list: Option<Vec<String>>,
    pub not_place_with_rsc: Option<Vec<String>>,
    pub not_place_with_rsc_regex: Option<String>,
    pub replicas_on_same: Option<Vec<String>>,
    pub replicas_on_different: Option<Vec<String>>,
    pub x_replicas_on_different_map: Option<BTreeMap<String, u32>>,
    pub layer_stack: Option<Vec<String>>,
    pub provider_list: Option<Vec<String>>,
    pub diskless_on_remaining: Option<bool>,
    pub diskless_type: Option<String>,
    pub overprovision: Option<f64>,
    pub port_count: Option<u32>,
}

/// Names of a list.
///
/// # Errors
/// The refusal of the first that is not one.
pub fn names<T>(
    list: Option<Vec<String>>,
    new: impl Fn(&str) -> Result<T, Refusal>,
) -> Result<Option<Vec<T>>, Refusal> {
    list.map(|list| list.iter().map(|name| new(name)).collect()).transpose()
}

impl SelectFilter {
    /// As the control plane has it.
    ///
    /// # Errors
    /// If a name is none, or a field has a value that nothing acts on.
    pub fn filter(self) -> Result<Filter, Refusal> {
        use cluster::name::*;
        let not_here = |field: &str, cause: &str| {
            Refusal::new(Code::InvalidRequest, format!("`{field}` of the filter is not supported"))
                .cause(cause)
                .correction("leave it out")
        };
        if self.overprovision.is_some() {
            return Err(not_here(
                "overprovision",
                "the properties of pools say how far they are promised",
            ));
        }
        if self.port_count.is_some_and(|count| count > 1) {
            return Err(not_here("port_count", "a resource has one port on each node"));
        }
        let kind = self.diskless_type.filter(|kind| !kind.is_empty());
        if kind.as_ref().is_some_and(|kind| !kind.eq_ignore_ascii_case("DRBD")) {
            return Err(not_here("diskless_type", "diskless resources use DRBD"));
        }
        // Nothing is placed for 0 or less; where that makes no sense it is refused.
        let count = |count: i64| u32::try_from(count.max(0)).unwrap_or(u32::MAX);
        let place_count = self.place_count.map(count);
        let more = self.additional_place_count.map(count);
        let pools = match (self.storage_pool_list, self.storage_pool) {
            (Some(list), _) => Some(list),
            (None, Some(one)) if !one.is_empty() => Some(vec![one]),
            _ => None,
        };
        let providers = self.provider_list.map(|list| list.iter().map(|p| provider(p)).collect());
        Ok(Filter {
            place_count,
            additional_place_count: more.filter(|more| *more > 0),
            nodes: names(self.node_name_list, NodeName::new)?,
            pools: names(pools, PoolName::new)?,
            diskless_pools: names(self.storage_pool_diskless_list, PoolName::new)?,
            not_with: names(self.not_place_with_rsc, ResourceName::new)?,
            not_with_regex: self.not_place_with_rsc_regex,
            on_same: self.replicas_on_same,
            on_different: self.replicas_on_different,
            x_on_different: self.x_replicas_on_different_map,
            layers: names(self.layer_stack, layer::parse)?,
            providers: providers.transpose()?,
            diskless_on_remaining: self.diskless_on_remaining,
            diskless: kind.map(|_| true),
        })
    }
}

/// A kind of pool.
///
/// # Errors
/// If there is none of that name here.
pub fn provider(word: &str) -> Result<Provider, Refusal> {
    Provider::from_word(word).ok_or_else(|| {
        let all: Vec<&str> = Provider::ALL.iter().map(|provider| provider.word()).collect();
        let text = format!("the storage provider `{word}` is not supported");
        Refusal::new(Code::ProviderUnsupported, text)
            .cause(format!("there are {}", all.join(", ")))
            .correction("use one of these")
    })
}

/// Layers of a list; none if it is empty.
///
/// # Errors
/// If one is not supported.
pub fn layers(list: Option<Vec<String>>) -> Result<Option<Vec<Layer>>, Refusal> {
    Ok(names(list, layer::parse)?.filter(|layers| !layers.is_empty()))
}

/// A size in KiB as bytes.
///
/// # Errors
/// If it is negative or too large.
pub fn kib(size: i64) -> Result<u64, Refusal> {
    let bytes = u64::try_from(size).ok().and_then(|size| size.checked_mul(1024));
    bytes.ok_or_else(|| {
        Refusal::new(Code::InvalidVolumeSize, format!("a volume can not have {size} KiB"))
            .cause("sizes are whole KiB, 1 or more")
            .correction("give such a size")
    })
}

/// Refuses fields that nothing acts on.
///
/// # Errors
/// If one of them is given: `(field, given, reason)`.
pub fn unsupported(fields: &[(&str, bool, &str)]) -> Result<(), Refusal> {
    match fields.iter().find(|(_, given, _)| *given) {
        None => Ok(()),
        Some((field, _, reason)) => {
            Err(Refusal::new(Code::InvalidRequest, format!("`{field}` is not supported"))
                .cause(*reason)
                .correction("leave it out"))
        }
    }
}
