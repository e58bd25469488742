//! Values to bytes. Each is a tag and what the tag says:
//!
//! ```text
//! number         its bytes
//! text, bytes    length u64, bytes
//! some           value
//! sequence       length u64, values       tuple  length u32, values
//! map            length u64, keys and values in turn
//! struct         mark of its name u32, number of fields u32, for each: mark of its name u32, value
//! tuple struct   mark of its name u32, length u32, values
//! variant        mark of the enum's name u32, mark of its own u32, value: unit if it has no
//!                content, the value of the only one in it, tuple, or struct named after it
//! ```

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::{FrozenError, mark, tag};

/// Appends values.
pub(super) struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { out }
    }

    fn put<const N: usize>(&mut self, tag: u8, bytes: [u8; N]) {
        self.out.push(tag);
        self.out.extend_from_slice(&bytes);
    }

    fn put_bytes(&mut self, tag: u8, bytes: &[u8]) {
        self.put(tag, (bytes.len() as u64).to_le_bytes());
        self.out.extend_from_slice(bytes);
    }

    fn put_mark(&mut self, name: &str) {
        self.out.extend_from_slice(&mark(name).to_le_bytes());
    }

    fn put_length(&mut self, length: usize) {
        self.out.extend_from_slice(&(length as u32).to_le_bytes());
    }

    fn variant(&mut self, name: &str, variant: &str) {
        self.out.push(tag::VARIANT);
        self.put_mark(name);
        self.put_mark(variant);
    }

    fn structure(&mut self, name: &str, fields: usize) {
        self.out.push(tag::STRUCT);
        self.put_mark(name);
        self.put_length(fields);
    }

    fn tuple(&mut self, length: usize) {
        self.out.push(tag::TUPLE);
        self.put_length(length);
    }
}

macro_rules! numbers {
    ($($method:ident: $type:ty = $tag:ident;)+) => {$(
        fn $method(self, value: $type) -> Result<(), FrozenError> {
            self.put(tag::$tag, value.to_le_bytes());
            Ok(())
        }
    )+};
}

impl<'a, 'b> Serializer for &'b mut Writer<'a> {
    type Ok = ();
    type Error = FrozenError;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    numbers! {
        serialize_u8: u8 = U8;
        serialize_u16: u16 = U16;
        serialize_u32: u32 = U32;
        serialize_u64: u64 = U64;
        serialize_i8: i8 = I8;
        serialize_i16: i16 = I16;
        serialize_i32: i32 = I32;
        serialize_i64: i64 = I64;
        serialize_f32: f32 = F32;
        serialize_f64: f64 = F64;
    }

    fn serialize_bool(self, value: bool) -> Result<(), FrozenError> {
        self.out.push(if value { tag::TRUE } else { tag::FALSE });
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), FrozenError> {
        self.put(tag::CHAR, u32::from(value).to_le_bytes());
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), FrozenError> {
        self.put_bytes(tag::TEXT, value.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), FrozenError> {
        self.put_bytes(tag::BYTES, value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), FrozenError> {
        self.out.push(tag::NONE);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), FrozenError> {
        self.out.push(tag::SOME);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), FrozenError> {
        self.out.push(tag::UNIT);
        Ok(())
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<(), FrozenError> {
        self.structure(name, 0);
        Ok(())
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), FrozenError> {
        self.variant(name, variant);
        self.serialize_unit()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), FrozenError> {
        self.serialize_tuple_struct(name, 1)?;
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), FrozenError> {
        self.variant(name, variant);
        value.serialize(self)
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Self, FrozenError> {
        let length = length.ok_or_else(|| FrozenError::new("a sequence of unknown length"))?;
        self.put(tag::SEQUENCE, (length as u64).to_le_bytes());
        Ok(self)
    }

    fn serialize_tuple(self, length: usize) -> Result<Self, FrozenError> {
        self.tuple(length);
        Ok(self)
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        length: usize,
    ) -> Result<Self, FrozenError> {
        self.out.push(tag::TUPLE_STRUCT);
        self.put_mark(name);
        self.put_length(length);
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self, FrozenError> {
        self.variant(name, variant);
        self.tuple(length);
        Ok(self)
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Self, FrozenError> {
        let length = length.ok_or_else(|| FrozenError::new("a map of unknown length"))?;
        self.put(tag::MAP, (length as u64).to_le_bytes());
        Ok(self)
    }

    fn serialize_struct(self, name: &'static str, length: usize) -> Result<Self, FrozenError> {
        self.structure(name, length);
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self, FrozenError> {
        self.variant(name, variant);
        self.structure(variant, length);
        Ok(self)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

macro_rules! elements {
    ($($trait:ident::$method:ident;)+) => {$(
        impl $trait for &mut Writer<'_> {
            type Ok = ();
            type Error = FrozenError;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), FrozenError> {
                value.serialize(&mut **self)
            }
            fn end(self) -> Result<(), FrozenError> {
                Ok(())
            }
        }
    )+};
}

elements! {
    SerializeSeq::serialize_element;
    SerializeTuple::serialize_element;
    SerializeTupleStruct::serialize_field;
    SerializeTupleVariant::serialize_field;
}

macro_rules! fields {
    ($($trait:ident;)+) => {$(
        impl $trait for &mut Writer<'_> {
            type Ok = ();
            type Error = FrozenError;
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), FrozenError> {
                self.put_mark(name);
                value.serialize(&mut **self).map_err(|e| e.within(name))
            }
            fn end(self) -> Result<(), FrozenError> {
                Ok(())
            }
        }
    )+};
}

fields! {
    SerializeStruct;
    SerializeStructVariant;
}

impl SerializeMap for &mut Writer<'_> {
    type Ok = ();
    type Error = FrozenError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), FrozenError> {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), FrozenError> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), FrozenError> {
        Ok(())
    }
}
