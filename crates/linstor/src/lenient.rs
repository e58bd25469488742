//! Reading JSON as LINSTOR does: a number or a truth may come as text. The `linstor` client sends
//! `"place_count": "2"`.

use serde::Deserializer;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer, Visitor};
use serde_json::{Error, Value};

/// Reads a value of JSON text.
///
/// # Errors
/// If it is not JSON, or not what is expected.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    from_value(serde_json::from_slice(text)?)
}

/// Reads a value of JSON.
///
/// # Errors
/// If it is not what is expected.
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    T::deserialize(Lenient(value))
}

struct Lenient(Value);

impl IntoDeserializer<'_, Error> for Lenient {
    type Deserializer = Lenient;
    fn into_deserializer(self) -> Lenient {
        self
    }
}

macro_rules! parsed {
    ($($method:ident $visit:ident),+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            if let Value::String(text) = &self.0 {
                if let Ok(value) = text.trim().to_ascii_lowercase().parse() {
                    return visitor.$visit(value);
                }
            }
            self.deserialize_any(visitor)
        })+
    };
}

impl<'de> Deserializer<'de> for Lenient {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(list) => {
                SeqDeserializer::new(list.into_iter().map(Lenient)).deserialize_any(visitor)
            }
            Value::Object(map) => {
                let map = map.into_iter().map(|(key, value)| (key, Lenient(value)));
                MapDeserializer::new(map).deserialize_any(visitor)
            }
            other => other.deserialize_any(visitor),
        }
    }

    parsed!(
        deserialize_bool visit_bool,
        deserialize_i8 visit_i8,
        deserialize_i16 visit_i16,
        deserialize_i32 visit_i32,
        deserialize_i64 visit_i64,
        deserialize_u8 visit_u8,
        deserialize_u16 visit_u16,
        deserialize_u32 visit_u32,
        deserialize_u64 visit_u64,
        deserialize_f32 visit_f32,
        deserialize_f64 visit_f64
    );

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct enum
        identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, PartialEq, Debug)]
    struct Example {
        count: Option<i64>,
        sizes: Option<Vec<u64>>,
        truth: Option<bool>,
        name: Option<String>,
    }

    #[test]
    fn numbers_and_truth_may_be_text_and_text_stays_text() {
        let text = br#"{"count": "2", "sizes": ["1", 2], "truth": "True", "name": "7", "more": 1}"#;
        let read: Example = from_slice(text).unwrap();
        let (sizes, name) = (Some(vec![1, 2]), Some("7".to_owned()));
        assert_eq!(read, Example { count: Some(2), sizes, truth: Some(true), name });
        assert!(from_slice::<Example>(br#"{"count": "two"}"#).is_err());
        assert!(from_slice::<Example>(b"{").is_err());
        let none: Example = from_slice(b"{\"count\": null}").unwrap();
        assert_eq!(none, Example { count: None, sizes: None, truth: None, name: None });
    }
}
