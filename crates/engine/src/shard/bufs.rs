//! The blocks of data that a core holds by number.
//!
//! One table per thread: a number is unique among all its resources. The entry is the core's own
//! reference; operations in flight hold theirs, so bytes live until the last of them is done.

use replication::io::BufId;
use runtime::Buf;

/// What is behind a number.
#[derive(Clone, Debug)]
pub(crate) enum Block {
    /// Bytes.
    Bytes(Buf),
    /// The answer to a user's read, which is where the user wants it. The core hands it on, and does not
    /// look at what it reads.
    Placed,
}

/// Buffers by number.
#[derive(Default)]
pub(crate) struct Bufs {
    slots: Vec<Option<Block>>,
    free: Vec<u32>,
}

impl Bufs {
    /// Takes a buffer into the table.
    pub(crate) fn insert(&mut self, buf: Buf) -> BufId {
        self.insert_block(Block::Bytes(buf))
    }

    /// Takes something into the table.
    pub(crate) fn insert_block(&mut self, block: Block) -> BufId {
        match self.free.pop() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                debug_assert!(slot.is_none());
                *slot = Some(block);
                BufId(index)
            }
            None => {
                self.slots.push(Some(block));
                BufId(self.slots.len() as u32 - 1)
            }
        }
    }

    /// Another reference to a buffer.
    ///
    /// # Panics
    /// If the core has given it back already, or it has no bytes.
    pub(crate) fn share(&self, id: BufId) -> Buf {
        match self.block(id) {
            Block::Bytes(buf) => buf,
            Block::Placed => panic!("the answer to a user's read is only the user's"),
        }
    }

    /// Another reference to what is behind a number.
    ///
    /// # Panics
    /// If the core has given it back already.
    pub(crate) fn block(&self, id: BufId) -> Block {
        self.slots[id.0 as usize].clone().expect("the core uses a buffer before it frees it")
    }

    /// Drops the core's reference.
    ///
    /// # Panics
    /// If the core gives it back twice.
    pub(crate) fn free(&mut self, id: BufId) {
        let buf = self.slots[id.0 as usize].take();
        assert!(buf.is_some(), "the core frees a buffer once");
        self.free.push(id.0);
    }

    /// Buffers held.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::BufPool;

    #[test]
    fn a_number_names_its_buffer_until_it_is_freed() {
        let pool = BufPool::new(1 << 20).unwrap();
        let mut bufs = Bufs::default();
        let a = bufs.insert(pool.copy_from(b"a").unwrap());
        let b = bufs.insert(pool.copy_from(b"b").unwrap());
        let shared = bufs.share(a);
        bufs.free(a);
        assert_eq!(&shared[..], b"a");
        let c = bufs.insert(pool.copy_from(b"c").unwrap());
        assert_eq!(c, a);
        assert_eq!((&bufs.share(b)[..], &bufs.share(c)[..]), (&b"b"[..], &b"c"[..]));
        assert_eq!(bufs.len(), 2);
    }
}
