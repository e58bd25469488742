//! Layers between a user and the storage, and the stacks they form (control plane §7).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::objects::words;
use crate::refusal::{Code, Refusal};

words! {
    /// A layer. Others of LINSTOR's (NVME, WRITECACHE, CACHE, BCACHE) are refused.
    Layer {
        /// Replication.
        Drbd = "DRBD",
        /// Encryption.
        Luks = "LUKS",
        /// Volumes of a pool; always the lowest.
        Storage = "STORAGE",
    }
}

/// Reads a layer's name.
///
/// # Errors
/// If there is no such layer here.
pub fn parse(word: &str) -> Result<Layer, Refusal> {
    Layer::from_word(word).ok_or_else(|| {
        Refusal::new(Code::InvalidLayerKind, format!("the layer `{word}` is not supported"))
            .cause("the layers of this program are DRBD, LUKS and STORAGE")
            .correction("use a stack of these, such as DRBD,LUKS,STORAGE")
    })
}

/// The stack with STORAGE added where it was left out, which is the second value.
///
/// # Errors
/// If a layer is named twice or stands where it can not.
pub fn stack(layers: &[Layer]) -> Result<(Vec<Layer>, bool), Refusal> {
    let mut stack = layers.to_vec();
    let added = stack.last() != Some(&Layer::Storage);
    if added {
        stack.push(Layer::Storage);
    }
    if stack.contains(&Layer::Luks) && !stack.contains(&Layer::Drbd) {
        return Err(Refusal::new(Code::InvalidLayerStack, "invalid layer stack LUKS,STORAGE")
            .cause("volumes are encrypted by the engine, which serves those with a layer DRBD")
            .correction("use DRBD,LUKS,STORAGE; one replica is enough"));
    }
    // The order of the enum is the only order that layers can have: replication is above
    // encryption, and both are above storage.
    if stack.windows(2).all(|pair| pair[0] < pair[1]) {
        return Ok((stack, added));
    }
    let names: Vec<&str> = layers.iter().map(|layer| layer.word()).collect();
    Err(Refusal::new(Code::InvalidLayerStack, format!("invalid layer stack {}", names.join(",")))
        .cause("from top to bottom a stack is DRBD, LUKS, STORAGE, each at most once")
        .correction("leave layers out, but do not change their order"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Layer::*;

    #[test]
    fn storage_is_added_and_the_order_is_fixed() {
        assert_eq!(stack(&[Drbd]).unwrap(), (vec![Drbd, Storage], true));
        assert_eq!(stack(&[Drbd, Luks, Storage]).unwrap(), (vec![Drbd, Luks, Storage], false));
        assert_eq!(stack(&[Drbd, Luks]).unwrap(), (vec![Drbd, Luks, Storage], true));
        assert_eq!(stack(&[]).unwrap(), (vec![Storage], true));
        for wrong in
            [&[Luks, Drbd][..], &[Drbd, Drbd], &[Storage, Drbd], &[Storage, Storage], &[Luks]]
        {
            assert_eq!(stack(wrong).unwrap_err().code, Code::InvalidLayerStack, "{wrong:?}");
        }
        assert_eq!(parse("luks").unwrap(), Luks);
        assert_eq!(parse("NVME").unwrap_err().code.number(), 224);
    }
}
