//! Bytes to values; the form is described in `write`.

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::{FrozenError, mark, tag};

type Result<T> = std::result::Result<T, FrozenError>;

/// Takes values from the front.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// Bytes that were not taken.
    pub(super) fn left(&self) -> usize {
        self.bytes.len()
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let split = usize::try_from(length).ok().and_then(|n| self.bytes.split_at_checked(n));
        let (taken, rest) = split.ok_or_else(|| FrozenError::new("the state is cut short"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N as u64)?;
        Ok(bytes.try_into().expect("as many as were asked for"))
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// What [`u32`](Self::u32) would take.
    fn next_u32(&self) -> Result<u32> {
        Reader::new(self.bytes).u32()
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn tag(&mut self) -> Result<u8> {
        self.array::<1>().map(|[tag]| tag)
    }

    fn expect(&mut self, wanted: u8, what: &str) -> Result<()> {
        match self.tag()? {
            found if found == wanted => Ok(()),
            found => Err(FrozenError::new(format!("a value of kind {found} where {what} belongs"))),
        }
    }

    fn number<const N: usize>(&mut self, wanted: u8, what: &str) -> Result<[u8; N]> {
        self.expect(wanted, what)?;
        self.array()
    }

    fn text(&mut self) -> Result<&'a str> {
        self.expect(tag::TEXT, "text")?;
        let length = self.u64()?;
        std::str::from_utf8(self.take(length)?).map_err(|_| FrozenError::new("text is not UTF-8"))
    }

    fn name(&mut self, name: &str) -> Result<()> {
        if self.u32()? == mark(name) {
            Ok(())
        } else {
            Err(FrozenError::new(format!("another name stands where `{name}` belongs")))
        }
    }

    fn length(&mut self, wanted: usize, what: &str) -> Result<()> {
        let found = self.u32()?;
        if found as usize == wanted {
            Ok(())
        } else {
            Err(FrozenError::new(format!("{what} has {found} parts, and {wanted} belong there")))
        }
    }

    fn structure<'de, V: Visitor<'de>>(
        &mut self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.expect(tag::STRUCT, name)?;
        self.name(name)?;
        let left = self.u32()?;
        let mut fields = Fields { reader: self, fields, left, absent: None };
        let value = visitor.visit_seq(&mut fields);
        let value = value.map_err(|e| fields.explain(e)).and_then(|value| match fields.left {
            0 => Ok(value),
            left => Err(FrozenError::new(format!("{left} fields more than are known here"))),
        });
        value.map_err(|e| e.within(name))
    }

    fn tuple<'de, V: Visitor<'de>>(&mut self, length: usize, visitor: V) -> Result<V::Value> {
        self.expect(tag::TUPLE, "a tuple")?;
        self.length(length, "a tuple")?;
        visitor.visit_seq(Elements { reader: self, left: length as u64 })
    }
}

macro_rules! numbers {
    ($($method:ident, $visit:ident: $type:ty = $tag:ident;)+) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            let value = self.number(tag::$tag, stringify!($type))?;
            visitor.$visit(<$type>::from_le_bytes(value))
        }
    )+};
}

impl<'de> Deserializer<'de> for &mut Reader<'_> {
    type Error = FrozenError;

    numbers! {
        deserialize_u8, visit_u8: u8 = U8;
        deserialize_u16, visit_u16: u16 = U16;
        deserialize_u32, visit_u32: u32 = U32;
        deserialize_u64, visit_u64: u64 = U64;
        deserialize_i8, visit_i8: i8 = I8;
        deserialize_i16, visit_i16: i16 = I16;
        deserialize_i32, visit_i32: i32 = I32;
        deserialize_i64, visit_i64: i64 = I64;
        deserialize_f32, visit_f32: f32 = F32;
        deserialize_f64, visit_f64: f64 = F64;
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
        Err(FrozenError::new("a type that does not say what it is can not be read"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_any(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_any(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.tag()? {
            tag::FALSE => visitor.visit_bool(false),
            tag::TRUE => visitor.visit_bool(true),
            found => {
                let what = format!("a value of kind {found} where yes or no belongs");
                Err(FrozenError::new(what))
            }
        }
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let number = u32::from_le_bytes(self.number(tag::CHAR, "a character")?);
        let value = char::from_u32(number);
        visitor.visit_char(value.ok_or_else(|| FrozenError::new("this is no character"))?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.expect(tag::BYTES, "bytes")?;
        let length = self.u64()?;
        visitor.visit_bytes(self.take(length)?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.tag()? {
            tag::NONE => visitor.visit_none(),
            tag::SOME => visitor.visit_some(self),
            found => {
                let what = format!("a value of kind {found} where one or none belongs");
                Err(FrozenError::new(what))
            }
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.expect(tag::UNIT, "nothing")?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        self.expect(tag::STRUCT, name)?;
        self.name(name)?;
        self.length(0, name)?;
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        self.expect(tag::TUPLE_STRUCT, name)?;
        self.name(name)?;
        self.length(1, name)?;
        visitor.visit_newtype_struct(self).map_err(|e| e.within(name))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.expect(tag::SEQUENCE, "a sequence")?;
        let left = self.u64()?;
        visitor.visit_seq(Elements { reader: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value> {
        self.tuple(length, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.expect(tag::TUPLE_STRUCT, name)?;
        self.name(name)?;
        self.length(length, name)?;
        let elements = Elements { reader: self, left: length as u64 };
        visitor.visit_seq(elements).map_err(|e| e.within(name))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.expect(tag::MAP, "a map")?;
        let left = self.u64()?;
        visitor.visit_map(Elements { reader: self, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.structure(name, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.expect(tag::VARIANT, name)?;
        self.name(name)?;
        visitor.visit_enum(Variant { reader: self, variants }).map_err(|e| e.within(name))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The fields of a struct, each behind its name, in the order in which this program has them.
struct Fields<'a, 'b> {
    reader: &'a mut Reader<'b>,
    /// Those that were not asked for yet.
    fields: &'static [&'static str],
    /// How many are there still.
    left: u32,
    /// The last one that was asked for and is not there.
    absent: Option<&'static str>,
}

impl Fields<'_, '_> {
    /// Serde knows the absent field by its position only.
    fn explain(&self, error: FrozenError) -> FrozenError {
        match self.absent {
            Some(name) if error.is_length() => {
                FrozenError::new("it is not there, and has no value that stands for that")
                    .within(name)
            }
            _ => error,
        }
    }
}

impl<'de> SeqAccess<'de> for &mut Fields<'_, '_> {
    type Error = FrozenError;

    /// `None` is no end here, but a field that the other program does not have.
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        let Some((name, rest)) = self.fields.split_first() else { return Ok(None) };
        self.fields = rest;
        let found = if self.left > 0 { Some(self.reader.next_u32()?) } else { None };
        if found != Some(mark(name)) {
            if found.is_some_and(|found| !rest.iter().any(|name| mark(name) == found)) {
                let what = format!("a field that is not known here stands where `{name}` belongs");
                return Err(FrozenError::new(what));
            }
            self.absent = Some(name);
            return Ok(None);
        }
        self.left -= 1;
        self.reader.name(name)?;
        seed.deserialize(&mut *self.reader).map(Some).map_err(|e| e.within(name))
    }
}

/// So many values in a row, or keys and values.
struct Elements<'a, 'b> {
    reader: &'a mut Reader<'b>,
    left: u64,
}

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = FrozenError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        // Every value takes a byte at least.
        usize::try_from(self.left).ok().map(|left| left.min(self.reader.left()))
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_> {
    type Error = FrozenError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value> {
        seed.deserialize(&mut *self.reader)
    }
}

/// One of several.
struct Variant<'a, 'b> {
    reader: &'a mut Reader<'b>,
    variants: &'static [&'static str],
}

impl<'a, 'b, 'de> EnumAccess<'de> for Variant<'a, 'b> {
    type Error = FrozenError;
    type Variant = Content<'a, 'b>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Content<'a, 'b>)> {
        let found = self.reader.u32()?;
        let index = self.variants.iter().position(|name| mark(name) == found);
        let index = index.ok_or_else(|| FrozenError::new("a variant that is not known"))?;
        let value = seed.deserialize((index as u32).into_deserializer())?;
        Ok((value, Content { reader: self.reader, name: self.variants[index] }))
    }
}

/// What is in it.
struct Content<'a, 'b> {
    reader: &'a mut Reader<'b>,
    name: &'static str,
}

impl<'de> VariantAccess<'de> for Content<'_, '_> {
    type Error = FrozenError;

    fn unit_variant(self) -> Result<()> {
        self.reader.expect(tag::UNIT, self.name)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value> {
        seed.deserialize(&mut *self.reader).map_err(|e| e.within(self.name))
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value> {
        self.reader.tuple(length, visitor).map_err(|e| e.within(self.name))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.reader.structure(self.name, fields, visitor)
    }
}
