//! A block device in memory, for tests of front ends and as the model of others.

use std::collections::{BTreeMap, VecDeque};

use vocab::Bytes;

use super::{
    Aspect, Completion, Extent, ExtentKind, Intent, Op, OpenerId, Request, Target, TargetInfo,
};
use crate::{BUF_MAX, Errno};

/// Bytes allocated at a time; a page that is not there is a hole and reads as zeroes.
const PAGE: u64 = 4096;

/// A sparse in-memory device. Requests take effect when submitted and complete at the next poll.
pub struct MemoryTarget {
    info: TargetInfo,
    pages: BTreeMap<u64, Box<[u8]>>,
    openers: BTreeMap<OpenerId, Intent>,
    ready: VecDeque<Completion>,
    refuse_open: Option<Errno>,
    flushes: u64,
}

impl MemoryTarget {
    /// An empty device of `size` bytes (a multiple of 512) that supports every operation.
    ///
    /// # Panics
    /// If the size is not a multiple of 512.
    pub fn new(size: Bytes) -> MemoryTarget {
        assert!(size.0.is_multiple_of(512), "the size is in whole sectors");
        MemoryTarget::with_info(TargetInfo {
            size,
            block_size_min: 512,
            block_size_preferred: 4096,
            max_transfer: BUF_MAX as u32,
            read_only: false,
            can_trim: true,
            can_zero: true,
            can_flush: true,
            can_fua: true,
            multi_conn: true,
            rotational: false,
        })
    }

    /// An empty device with the given properties.
    pub fn with_info(info: TargetInfo) -> MemoryTarget {
        MemoryTarget {
            info,
            pages: BTreeMap::new(),
            openers: BTreeMap::new(),
            ready: VecDeque::new(),
            refuse_open: None,
            flushes: 0,
        }
    }

    /// From now on opens are refused with `errno`, or allowed again with `None`.
    pub fn refuse_open(&mut self, errno: Option<Errno>) {
        self.refuse_open = errno;
    }

    /// Openers at the moment.
    pub fn openers(&self) -> usize {
        self.openers.len()
    }

    /// Flushes carried out.
    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Copies the content from `offset` into `out`.
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        for_pages(offset, out.len(), |page, in_page, range| match self.pages.get(&page) {
            Some(data) => out[range.clone()].copy_from_slice(&data[in_page..][..range.len()]),
            None => out[range].fill(0),
        });
    }

    /// Overwrites the content from `offset`.
    pub fn poke(&mut self, offset: u64, bytes: &[u8]) {
        for_pages(offset, bytes.len(), |page, in_page, range| {
            let data = self.pages.entry(page).or_insert_with(|| vec![0; PAGE as usize].into());
            data[in_page..][..range.len()].copy_from_slice(&bytes[range]);
        });
    }

    fn zero(&mut self, offset: u64, len: usize, keep_allocated: bool) {
        for_pages(offset, len, |page, in_page, range| {
            if keep_allocated {
                self.pages.entry(page).or_insert_with(|| vec![0; PAGE as usize].into());
            }
            if range.len() as u64 == PAGE && !keep_allocated {
                self.pages.remove(&page);
            } else if let Some(data) = self.pages.get_mut(&page) {
                data[in_page..][..range.len()].fill(0);
            }
        });
    }

    pub(super) fn extents(&self, offset: u64, len: usize) -> Box<[Extent]> {
        let mut extents: Vec<Extent> = Vec::new();
        for_pages(offset, len, |page, _, range| {
            let kind = match self.pages.contains_key(&page) {
                true => ExtentKind::Plain,
                false => ExtentKind::Hole,
            };
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.len += range.len() as u64,
                _ => extents.push(Extent { len: range.len() as u64, kind }),
            }
        });
        extents.into_boxed_slice()
    }

    fn execute(&mut self, mut request: Request) -> Completion {
        let mut done = Completion::new(request.opener, request.tag, Ok(()));
        done.result = match self.openers.get(&request.opener) {
            None => Err(Errno::EBADF),
            Some(Intent::Read) if request.op.is_write() => Err(Errno::EPERM),
            Some(_) => self.info.check(&request),
        };
        if done.result.is_ok() {
            let (offset, len) = (request.offset, request.len as usize);
            match request.op {
                Op::Read => {
                    let buf = request.buf.as_mut().and_then(|b| b.as_mut_slice());
                    self.peek(offset, buf.expect("checked: a read has a unique buffer"));
                }
                Op::Write => {
                    let buf = request.buf.take().expect("checked: a write has a buffer");
                    self.poke(offset, &buf);
                    request.buf = Some(buf);
                }
                Op::Flush => self.flushes += 1,
                Op::Trim => self.zero(offset, len, false),
                Op::WriteZeroes { no_hole } => self.zero(offset, len, no_hole),
                Op::BlockStatus(Aspect::Allocation) => {
                    done.extents = Some(self.extents(offset, len));
                }
                // There is one replica.
                Op::BlockStatus(Aspect::OutOfSync) => {
                    let all = Extent { len: len as u64, kind: ExtentKind::Plain };
                    done.extents = Some(all.alone());
                }
            }
        }
        done.buf = request.buf;
        done
    }
}

/// Calls `f(page, offset in page, range of the buffer)` for each page a range touches.
fn for_pages(offset: u64, len: usize, mut f: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let in_page = (at % PAGE) as usize;
        let n = (PAGE as usize - in_page).min(len - done);
        f(at / PAGE, in_page, done..done + n);
        done += n;
    }
}

impl Target for MemoryTarget {
    fn info(&self) -> TargetInfo {
        self.info
    }

    fn open(&mut self, opener: OpenerId, intent: Intent, tag: u64) {
        let result = match self.refuse_open {
            Some(errno) => Err(errno),
            None if self.openers.contains_key(&opener) => Err(Errno::EBUSY),
            None if self.info.read_only && intent == Intent::Write => Err(Errno::EROFS),
            None => Ok(()),
        };
        if result.is_ok() {
            self.openers.insert(opener, intent);
        }
        self.ready.push_back(Completion::new(opener, tag, result));
    }

    fn close(&mut self, opener: OpenerId) {
        self.openers.remove(&opener);
        self.ready.retain(|done| done.opener != opener);
    }

    fn submit(&mut self, request: Request) {
        let done = self.execute(request);
        self.ready.push_back(done);
    }

    fn flush_submissions(&mut self) {}

    fn poll_completions(&mut self, out: &mut Vec<Completion>) {
        out.extend(self.ready.drain(..));
    }
}
