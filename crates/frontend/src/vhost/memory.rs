//! The memory of a guest, mapped here.
//!
//! # A file that gets shorter
//!
//! The file behind the memory is the client's. If it makes it shorter, or the machine has no page left to
//! back it, the kernel answers the next access with SIGBUS, which ends the process: one client would
//! take all volumes along. So each mapping is listed in [`SLOTS`]. The handler of SIGBUS lays empty
//! memory over the whole mapping and marks it as torn; the access goes on, and whoever accessed looks
//! at the mark before using what it got ([`Guest::is_torn`]). A fault elsewhere goes to the handler that was
//! there before.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{fstat, fstatfs};
use vm_memory::mmap::{GuestRegionMmap, MmapRegion};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion};

use super::proto::Region;

/// Most regions of one client.
pub const REGIONS_MAX: usize = 32;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// A mapping that the handler knows.
struct Slot {
    /// First byte; 0 while the slot is free.
    begin: AtomicUsize,
    /// One past the last.
    end: AtomicUsize,
    torn: AtomicBool,
}

impl Slot {
    const fn free() -> Slot {
        let (begin, end) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Slot { begin, end, torn: AtomicBool::new(false) }
    }
}

/// All mappings. The handler may take no lock, so it is a table.
static SLOTS: [Slot; 1024] = [const { Slot::free() }; 1024];
/// Held by those who change the table.
static CHANGES: Mutex<()> = Mutex::new(());
/// What SIGBUS did before; set before the handler is.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping's place in the table.
#[derive(Debug)]
struct Guard(usize);

impl Guard {
    /// Lists `len` bytes at `begin`.
    ///
    /// # Errors
    /// The table is full, or the handler can not be set.
    fn new(begin: usize, len: usize) -> Result<Guard, String> {
        install().map_err(|e| format!("SIGBUS can not be handled: {e}"))?;
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let free = SLOTS.iter().position(|slot| slot.begin.load(Ordering::Relaxed) == 0);
        let index = free.ok_or("all clients together have too many pieces of memory")?;
        SLOTS[index].end.store(begin + len, Ordering::Relaxed);
        SLOTS[index].torn.store(false, Ordering::Relaxed);
        SLOTS[index].begin.store(begin, Ordering::Release);
        Ok(Guard(index))
    }

    fn is_torn(&self) -> bool {
        SLOTS[self.0].torn.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        SLOTS[self.0].begin.store(0, Ordering::Release);
    }
}

/// Sets the handler, once.
fn install() -> io::Result<()> {
    let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: both structures are plain integers, for which zeroes are a value, and live through the
    // calls. The handler does only what may be done in one, see there.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        let _ = BEFORE.set(before);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Lays empty memory over the mapping that an access failed in.
extern "C" fn on_bus_error(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid structure, of which it has set the
    // address for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    let found = SLOTS.iter().find(|slot| {
        let begin = slot.begin.load(Ordering::Acquire);
        begin != 0 && begin <= address && address < slot.end.load(Ordering::Relaxed)
    });
    if let Some(slot) = found {
        let begin = slot.begin.load(Ordering::Relaxed);
        let len = slot.end.load(Ordering::Relaxed) - begin;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is exactly a mapping that its owner has not given back, since it takes
        // it off the table first. It stays mapped, readable and writable; to whoever accesses it by
        // volatile accesses, as all do, other content is nothing new. A system call is all this is.
        let laid = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(begin as *mut libc::c_void, len, prot, flags, -1, 0)
        };
        if laid != libc::MAP_FAILED {
            return slot.torn.store(true, Ordering::Release);
        }
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: that action was in force before. The access is repeated on return, and meets it.
        unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
    }
}

/// The memory of a guest, as one of its threads of requests sees it.
pub struct Guest {
    /// Before the memory, so that a mapping leaves the table before it goes.
    guards: Vec<Arc<Guard>>,
    memory: GuestMemoryMmap<()>,
}

impl Guest {
    /// By addresses of the guest. Whatever is read may change at any moment.
    pub fn memory(&self) -> &GuestMemoryMmap<()> {
        &self.memory
    }

    /// True if a part of it was taken away by its owner: what was read may be made up.
    pub fn is_torn(&self) -> bool {
        self.guards.iter().any(|guard| guard.is_torn())
    }
}

/// The pieces of a guest's memory, as a client tells them.
#[derive(Default)]
pub struct Regions {
    pieces: Vec<Piece>,
}

struct Piece {
    region: Region,
    guard: Arc<Guard>,
    mapping: Arc<GuestRegionMmap<()>>,
}

impl Regions {
    /// Forgets all pieces.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Maps a piece.
    ///
    /// # Errors
    /// Why it can not be had; nothing has changed then.
    pub fn add(&mut self, region: Region, file: OwnedFd) -> Result<(), String> {
        let Region { guest, size, .. } = region;
        let what = |why: String| format!("{size} bytes of memory at {guest:#x}: {why}");
        if self.pieces.len() >= REGIONS_MAX {
            return Err(what(format!("a device has {REGIONS_MAX} pieces at most")));
        }
        let overlaps =
            |a: u64, b: u64, len: u64| a < b.saturating_add(len) && b < a.saturating_add(size);
        let clash = self.pieces.iter().any(|piece| {
            let there = &piece.region;
            overlaps(guest, there.guest, there.size)
                || overlaps(region.user, there.user, there.size)
        });
        if clash || region.user.checked_add(size).is_none() || size == 0 {
            return Err(what("it is empty, overlaps another piece, or does not end".to_owned()));
        }
        let mapping = map(region, file).map_err(what)?;
        let guard = Guard::new(mapping.as_ptr() as usize, mapping.size()).map_err(what)?;
        let mapping = GuestRegionMmap::new(mapping, GuestAddress(guest))
            .ok_or_else(|| what("it does not end".to_owned()))?;
        self.pieces.push(Piece { region, guard: Arc::new(guard), mapping: Arc::new(mapping) });
        Ok(())
    }

    /// Takes a piece off.
    ///
    /// # Errors
    /// There is none there.
    pub fn remove(&mut self, region: Region) -> Result<(), String> {
        let there =
            |piece: &Piece| (piece.region.guest, piece.region.size) == (region.guest, region.size);
        let index = self.pieces.iter().position(there).ok_or_else(|| {
            format!("there is no memory of {} bytes at {:#x}", region.size, region.guest)
        })?;
        self.pieces.remove(index);
        Ok(())
    }

    /// The memory that the pieces make up.
    ///
    /// # Errors
    /// They do not fit together.
    pub fn guest(&self) -> Result<Arc<Guest>, String> {
        let mut mappings: Vec<_> = self.pieces.iter().map(|piece| piece.mapping.clone()).collect();
        mappings.sort_by_key(|mapping| GuestMemoryRegion::start_addr(&**mapping));
        let guards = self.pieces.iter().map(|piece| piece.guard.clone()).collect();
        let memory = match mappings.is_empty() {
            true => GuestMemoryMmap::new(),
            false => GuestMemoryMmap::from_arc_regions(mappings).map_err(|e| e.to_string())?,
        };
        Ok(Arc::new(Guest { guards, memory }))
    }

    /// All pieces with their files, for [`Regions::add`] in another process.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn files(&self) -> io::Result<Vec<(Region, OwnedFd)>> {
        let file = |piece: &Piece| {
            let file = GuestMemoryRegion::file_offset(&*piece.mapping);
            let file = file.expect("a piece is mapped from a file").file().try_clone()?;
            Ok((piece.region, file.into()))
        };
        self.pieces.iter().map(file).collect()
    }

    /// The guest's address of `len` bytes that the client names by its own.
    pub fn translate(&self, user: u64, len: u64) -> Option<u64> {
        let end = user.checked_add(len)?;
        let piece = self.pieces.iter().find(|piece| {
            let Region { user: begin, size, .. } = piece.region;
            begin <= user && end <= begin + size
        })?;
        Some(user - piece.region.user + piece.region.guest)
    }
}

/// Maps what a client says is memory.
fn map(region: Region, file: OwnedFd) -> Result<MmapRegion<()>, String> {
    let file = File::from(file);
    check_memory_file(&file)?;
    let len = fstat(&file).map_err(|e| e.to_string())?.st_size;
    let end = region.offset.checked_add(region.size);
    if end.is_none_or(|end| i64::try_from(end).map_or(true, |end| end > len)) {
        return Err(format!("its file has {len} bytes only"));
    }
    let size = usize::try_from(region.size).map_err(|e| e.to_string())?;
    MmapRegion::from_file(FileOffset::new(file, region.offset), size).map_err(|e| e.to_string())
}

/// Refuses files whose pages may take long to come, or never do.
///
/// # Errors
/// What is wrong with it.
pub fn check_memory_file(file: &File) -> Result<(), String> {
    let found = fstatfs(file).map_err(|e| e.to_string())?;
    #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
    match found.f_type as i64 {
        TMPFS_MAGIC | HUGETLBFS_MAGIC => Ok(()),
        _ => Err("its file is neither on tmpfs (memfd) nor on hugetlbfs".to_owned()),
    }
}
