//! Metadata interchange with the real `drbdmeta` (Debian: package drbd-utils).
//!
//! What the tool writes is read by our codec with every field and place right; what we write is
//! accepted by the tool, which prints the same dump, the same generation identifiers, and applies
//! our activity log to the bits we expect. All on sparse files, which the tool takes with
//! `--force`; one test repeats the essentials on a loop device. Without the tool, or without
//! loop devices, a test prints why and passes.
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use codec::disk::activity_log::{
    self, EXTENT_SECTORS, FREE, Transaction, Update, empty_block, recover,
};
use codec::disk::dump::{self, Comments, Dump, DumpV08, DumpV09};
use codec::disk::{
    AlStriping, BLOCK_SIZE, Block, Layout, MdFlags, MdParams, PeerFlags, PeerSlot, Placement,
    Rules, Superblock, SuperblockV8, zeroed_block,
};
use replication::activity_log::{ActivityLog, Begin};
use replication::bitmap::{Bitmap, Changed};
use vocab::{Bytes, Dagtag, GenUuid, NodeId, NodeMask, SectorRange, Sectors};

/// The tool's path, or `None` with the reason printed.
fn drbdmeta() -> Option<PathBuf> {
    for directory in ["/usr/sbin", "/sbin", "/usr/local/sbin"] {
        let path = Path::new(directory).join("drbdmeta");
        if path.exists() {
            return Some(path);
        }
    }
    println!("skipped: drbdmeta is not installed (package drbd-utils)");
    None
}

/// A metadata device and the tool to work on it.
struct Disk {
    tool: PathBuf,
    path: PathBuf,
    file: File,
    placement: Placement,
    size: Bytes,
    /// Removed with the test.
    _directory: tempfile::TempDir,
}

impl Disk {
    fn new(tool: &Path, placement: Placement, size: u64) -> Disk {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        Disk {
            tool: tool.to_owned(),
            path,
            file,
            placement,
            size: Bytes(size),
            _directory: directory,
        }
    }

    /// Runs `drbdmeta --force - FORMAT DEVICE PLACEMENT arguments…`.
    fn run(&self, format: &str, arguments: &[&str]) -> Output {
        Command::new(&self.tool)
            .args(["--force", "-", format])
            .arg(&self.path)
            .arg(self.placement.to_string())
            .args(arguments)
            .env("TZ", "UTC")
            .output()
            .unwrap()
    }

    /// Runs a v09 command that must succeed; returns what it printed.
    fn v09(&self, arguments: &[&str]) -> String {
        check(self.run("v09", arguments))
    }

    fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        self.file.read_exact_at(&mut buffer, offset).unwrap();
        buffer
    }

    fn read_block(&self, offset: u64) -> Box<Block> {
        let mut block = zeroed_block();
        self.file.read_exact_at(block.as_mut_slice(), offset).unwrap();
        block
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }

    fn superblock(&self, layout: &Layout) -> Superblock {
        Superblock::decode(&self.read_block(layout.superblock)).unwrap()
    }

    fn al_area(&self, layout: &Layout, al: AlStriping) -> Vec<u8> {
        self.read(layout.activity_log, al.blocks() as usize * BLOCK_SIZE)
    }

    fn bitmap(&self, layout: &Layout, superblock: &Superblock) -> Bitmap {
        let mut bitmap = Bitmap::new(
            superblock.max_peers,
            superblock.effective_size,
            superblock.bm_bytes_per_bit,
        );
        for index in 0..bitmap.blocks() {
            bitmap.load_block(index, &self.read_block(layout.bitmap_block(index)));
        }
        bitmap
    }

    fn write_bitmap(&self, layout: &Layout, bitmap: &mut Bitmap) {
        let mut blocks = Vec::new();
        bitmap.take_dirty(0..bitmap.blocks(), Changed::Any, usize::MAX, &mut blocks);
        for index in blocks {
            let mut block = zeroed_block();
            bitmap.encode_block(index, &mut block);
            self.write(layout.bitmap_block(index), block.as_slice());
            bitmap.block_written(index, true);
        }
    }

    /// Everything `create-md` writes, written by us.
    fn create(&self, params: &MdParams) -> (Superblock, Layout) {
        let (superblock, layout) = Superblock::create(self.placement, self.size, params).unwrap();
        self.write(layout.superblock, superblock.encode().as_slice());
        for index in 0..params.al.blocks() {
            self.write(layout.al_block(index), empty_block().as_slice());
        }
        (superblock, layout)
    }
}

fn check(output: Output) -> String {
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn striping(stripes: u32, stripe_size_4k: u32) -> AlStriping {
    AlStriping::new(stripes, stripe_size_4k).unwrap()
}

/// Every placement with a few sizes, numbers of peers and stripings.
fn shapes() -> Vec<(Placement, u64, MdParams)> {
    let wide = MdParams { al: striping(4, 16), ..MdParams::new(5) };
    vec![
        (Placement::Internal, 2 * MIB, MdParams::new(1)),
        (Placement::Internal, 16 * MIB + 512, MdParams::new(3)),
        (Placement::Internal, 100 * MIB + 7 * 512, MdParams::new(7)),
        (Placement::Internal, GIB, MdParams::new(31)),
        (Placement::Internal, 333 * GIB + 4096, MdParams::new(2)),
        (Placement::Internal, 64 * MIB, wide),
        (Placement::FlexExternal, MIB, MdParams::new(1)),
        (Placement::FlexExternal, 4 * MIB, MdParams::new(3)),
        (Placement::FlexExternal, 10 * MIB + 512, wide),
        (Placement::Indexed(0), 128 * MIB, MdParams::new(1)),
        (Placement::Indexed(2), 400 * MIB, MdParams::new(7)),
    ]
}

fn create_arguments(params: &MdParams) -> Vec<String> {
    let mut arguments = vec!["create-md".to_owned()];
    if params.al != AlStriping::default() {
        arguments.push(format!("--al-stripes={}", params.al.stripes()));
        arguments.push(format!("--al-stripe-size-kB={}", params.al.stripe_size_4k() * 4));
    }
    arguments.push(params.max_peers.to_string());
    arguments
}

/// A superblock with something to say in every field that the tool's version keeps.
fn used(mut superblock: Superblock, layout: &Layout, data: Sectors) -> Superblock {
    superblock.effective_size = layout.usable_on(data);
    superblock.current_uuid = GenUuid(0xA1B2_C3D4_E5F6_0718);
    superblock.device_uuid = 0x1122_3344_5566_7788;
    superblock.flags =
        MdFlags::CONSISTENT | MdFlags::WAS_UP_TO_DATE | MdFlags::AL_CLEAN | MdFlags::HAVE_QUORUM;
    superblock.la_peer_max_bio_size = 1 << 20;
    superblock.node_id = NodeId::new(4);
    superblock.members = NodeMask::EMPTY;
    superblock.history[0] = GenUuid(0xDEAD_0000_0000_0000);
    superblock.history[31] = GenUuid(0xDEAD_0000_0000_0002);
    for slot in 0..superblock.max_peers.min(3) as u8 {
        superblock.peers[usize::from(slot) * 9] = PeerSlot {
            bitmap_uuid: GenUuid(0x1000_0000_0000_0010 + u64::from(slot)),
            bitmap_dagtag: Dagtag(0x55),
            flags: PeerFlags::DEVICE_SEEN | PeerFlags::CONNECTED | PeerFlags::NODE_EXISTS,
            bitmap_index: Some(slot),
        };
    }
    // The node's own slot, which the format leaves unused.
    let own = &mut superblock.peers[4];
    own.bitmap_uuid = GenUuid(0x2000_0000_0000_0020);
    own.bitmap_dagtag = Dagtag(0xABCD_EF01_2345_6789);
    superblock
}

/// Runs and single bits in every slot.
fn random_bitmap(rng: &mut Rng, superblock: &Superblock) -> Bitmap {
    let mut bitmap =
        Bitmap::new(superblock.max_peers, superblock.effective_size, superblock.bm_bytes_per_bit);
    for slot in 0..bitmap.slots() {
        for _ in 0..rng.below(30) {
            let start = rng.below(bitmap.bits());
            let len = if rng.below(3) == 0 { rng.below(20_000) } else { 1 };
            bitmap.set_bits(slot, start, len);
        }
    }
    bitmap.mark_all();
    bitmap
}

/// Our text for what a real dump shows, with the tool's own date and command line.
fn our_dump(theirs: &str, dump: &Dump, layout: &Layout, al_nr_extents: u32) -> String {
    let mut lines = theirs.lines().skip(1).map(|line| line.strip_prefix("# ").unwrap());
    let date = lines.next().unwrap();
    let (host, command) = lines.next().unwrap().split_once("> ").unwrap();
    let mut text = String::new();
    dump.write(&mut text, &Comments { date, host, command, layout, al_nr_extents }).unwrap();
    text
}

fn assert_same_lines(ours: &str, theirs: &str) {
    for (number, (ours, theirs)) in (1..).zip(ours.lines().zip(theirs.lines())) {
        assert_eq!(ours, theirs, "line {number}");
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn what_create_md_writes_is_what_we_would_write() {
    let Some(tool) = drbdmeta() else { return };
    for (placement, size, params) in shapes() {
        let disk = Disk::new(&tool, placement, size);
        let arguments = create_arguments(&params);
        disk.v09(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let (expected, layout) = Superblock::create(placement, Bytes(size), &params).unwrap();
        assert_eq!(*disk.read_block(layout.superblock), *expected.encode(), "{placement} {size}");
        let superblock = disk.superblock(&layout);
        assert_eq!(superblock, expected);
        assert_eq!(superblock.validate(placement, Bytes(size), Rules::Drbdmeta), Ok(layout));
        assert_eq!(superblock.validate(placement, Bytes(size), Rules::Kernel), Ok(layout));
        let empty_ring = empty_block().repeat(params.al.blocks() as usize);
        assert_eq!(disk.al_area(&layout, params.al), empty_ring, "{placement} {size}");
        let hot = recover(params.al, &empty_ring, superblock.al_nr_extents).unwrap();
        assert!(hot.extents.is_empty());
    }
}

#[test]
fn what_we_write_is_dumped_by_the_tool_as_by_us() {
    let Some(tool) = drbdmeta() else { return };
    let mut rng = Rng(0x5EED);
    for (placement, size, params) in shapes() {
        let disk = Disk::new(&tool, placement, size);
        let (created, layout) = disk.create(&params);
        // A volume of up to 10 GiB keeps the texts short.
        let superblock = used(created, &layout, Sectors(10 * GIB / 512 - 3));
        disk.write(layout.superblock, superblock.encode().as_slice());
        let mut bitmap = random_bitmap(&mut rng, &superblock);
        disk.write_bitmap(&layout, &mut bitmap);

        let theirs = disk.v09(&["dump-md"]);
        let dump = DumpV09::new(&superblock, false, |slot, word| bitmap.word(slot as usize, word));
        let mut ours = our_dump(&theirs, &Dump::V09(dump.clone()), &layout, 257);
        // The tool counts the half word that it does not print, so let it have that line.
        ours.truncate(ours.rfind("# bits-set").unwrap());
        let text = &theirs[..theirs.rfind("# bits-set").unwrap()];
        assert_same_lines(&ours, text);
        assert_eq!(dump::parse(&theirs).unwrap(), Dump::V09(dump));

        for peer in [0, 9, 18, 31].map(|id| NodeId::new(id).unwrap()) {
            let theirs = disk.v09(&["get-gi", &format!("--node-id={peer}")]);
            assert_eq!(theirs.trim_end(), superblock.gi_string(peer));
        }
        disk.v09(&["apply-al"]);
        assert_eq!(disk.superblock(&layout), superblock, "nothing was to be applied");
    }
}

#[test]
fn our_dump_is_restored_by_the_tool() {
    let Some(tool) = drbdmeta() else { return };
    let mut rng = Rng(0xD0_0D);
    for (placement, size, params) in shapes() {
        let (created, layout) = Superblock::create(placement, Bytes(size), &params).unwrap();
        let superblock = used(created, &layout, Sectors(4 * GIB / 512));
        let bitmap = random_bitmap(&mut rng, &superblock);
        let dump = DumpV09::new(&superblock, false, |slot, word| bitmap.word(slot as usize, word));
        let mut text = String::new();
        let comments = Comments {
            date: "1970-01-01 00:00:00 +0000 [0]",
            host: "host",
            command: "drbdmeta",
            layout: &layout,
            al_nr_extents: 257,
        };
        dump.write(&mut text, &comments).unwrap();

        let disk = Disk::new(&tool, placement, size);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &text).unwrap();
        let name = file.path().to_str().unwrap();
        disk.v09(&["verify-dump", name]);
        disk.v09(&["restore-md", name]);
        assert_eq!(disk.superblock(&layout), superblock, "{placement} {size}");
        let (by_us, _) = dump.superblock(placement, Bytes(size)).unwrap();
        assert_eq!(by_us, superblock);
        let restored = disk.bitmap(&layout, &superblock);
        for slot in 0..bitmap.slots() {
            // A trailing half word of the area is in no dump.
            for word in 0..bitmap.words64().saturating_sub(1) {
                assert_eq!(restored.word(slot, word), bitmap.word(slot, word));
            }
        }
    }
}

/// A crashed Primary: the tool applies our log to exactly the bits we would set.
#[test]
fn our_activity_log_is_applied_by_the_tool() {
    let Some(tool) = drbdmeta() else { return };
    let mut rng = Rng(0xC0FFEE);
    let shapes = [
        (Placement::Internal, 3 * GIB, MdParams::new(3), 67),
        (Placement::Internal, GIB + 512, MdParams { al: striping(3, 5), ..MdParams::new(1) }, 100),
        (
            Placement::FlexExternal,
            32 * MIB,
            MdParams { al: striping(4, 8), ..MdParams::new(7) },
            67,
        ),
        (Placement::Indexed(1), 256 * MIB, MdParams::new(2), 1237),
    ];
    for (placement, size, params, al_extents) in shapes {
        let disk = Disk::new(&tool, placement, size);
        let (created, layout) = disk.create(&params);
        // Not a multiple of an extent: the last one is partial.
        let mut superblock = used(created, &layout, Sectors(5 * GIB / 512 + 12345));
        superblock.flags = MdFlags::CONSISTENT
            | MdFlags::WAS_UP_TO_DATE
            | MdFlags::PRIMARY_IND
            | MdFlags::CRASHED_PRIMARY;
        disk.write(layout.superblock, superblock.encode().as_slice());
        let mut bitmap = random_bitmap(&mut rng, &superblock);
        disk.write_bitmap(&layout, &mut bitmap);

        let extents = superblock.effective_size.0.div_ceil(EXTENT_SECTORS);
        let mut log = ActivityLog::new(al_extents, params.al);
        let write = |write: &replication::activity_log::AlWrite| {
            disk.write(layout.al_block(write.block_index), write.block.as_slice());
        };
        for round in 0..40 {
            let mut ended = Vec::new();
            for _ in 0..rng.below(90) {
                let extent = if rng.below(9) == 0 { extents - 1 } else { rng.below(extents) };
                let range = SectorRange::new(extent * EXTENT_SECTORS, 8);
                if log.begin(range) != Begin::Wait {
                    ended.push(range);
                }
            }
            if let Some(transaction) = log.start_transaction() {
                write(&transaction);
                log.transaction_done();
            }
            if round < 39 {
                ended.into_iter().for_each(|range| _ = log.end(range));
            }
        }

        let area = disk.al_area(&layout, params.al);
        let hot = recover(params.al, &area, 257).unwrap();
        assert_eq!(hot.extents.iter().copied().collect::<Vec<_>>(), log.hot_extents());
        assert!(hot.extents.len() > 60);
        disk.v09(&["apply-al"]);
        for extent in hot.extents {
            let range = SectorRange::new(u64::from(extent) * EXTENT_SECTORS, EXTENT_SECTORS);
            for slot in 0..bitmap.slots() {
                bitmap.set_range(slot, range);
            }
        }
        assert_same_bits(&disk.bitmap(&layout, &superblock), &bitmap);
        let applied = disk.superblock(&layout);
        superblock.flags.set(MdFlags::AL_CLEAN, true);
        assert_eq!(applied, superblock, "the other flags stay");
        let empty_ring = empty_block().repeat(params.al.blocks() as usize);
        assert_eq!(disk.al_area(&layout, params.al), empty_ring);
    }
}

fn assert_same_bits(theirs: &Bitmap, ours: &Bitmap) {
    for slot in 0..ours.slots() {
        for word in 0..ours.words64() {
            let (theirs, ours) = (theirs.word(slot, word), ours.word(slot, word));
            assert_eq!(theirs, ours, "slot {slot} word {word}");
        }
    }
}

/// Rings that no sane writer leaves behind: torn blocks anywhere, contexts of any place and
/// size, contradicting transactions. Both must come to the same hot set, or both give up.
#[test]
fn recovery_agrees_with_the_tool_on_arbitrary_rings() {
    let Some(tool) = drbdmeta() else { return };
    let mut rng = Rng(0xBAD_5EED);
    let (mut recovered, mut refused) = (0, 0);
    for case in 0..60 {
        let params = if case % 3 == 0 {
            MdParams { al: striping(2, 6), ..MdParams::new(1) }
        } else {
            MdParams::new(1)
        };
        let disk = Disk::new(&tool, Placement::Internal, GIB);
        let (created, layout) = disk.create(&params);
        let mut superblock = used(created, &layout, Sectors(GIB / 512 / 2));
        superblock.flags = MdFlags::CONSISTENT | MdFlags::PRIMARY_IND;
        disk.write(layout.superblock, superblock.encode().as_slice());
        let extents = superblock.effective_size.0.div_ceil(EXTENT_SECTORS);

        let first = [0, 5, u32::MAX - 4, 1 << 31][rng.below(4) as usize];
        let transactions = if case % 10 == 0 { 0 } else { rng.below(20) as u32 };
        for i in 0..transactions {
            let number = first.wrapping_add(i);
            let updates: Vec<Update> = (0..rng.below(65))
                .map(|_| Update {
                    slot: random_slot(&mut rng),
                    extent: random_extent(&mut rng, extents),
                })
                .collect();
            let context: Vec<u32> =
                (0..rng.below(920)).map(|_| random_extent(&mut rng, extents)).collect();
            let transaction = Transaction {
                number,
                updates: &updates,
                context_size: random_slot(&mut rng),
                context_start: random_slot(&mut rng),
                context: &context,
            };
            let mut block = zeroed_block();
            transaction.encode_into(&mut block);
            if rng.below(6) == 0 {
                block[rng.below(4096) as usize] ^= 0x10;
            }
            disk.write(layout.al_block(params.al.block_of(number)), block.as_slice());
        }
        if case % 5 == 0 {
            let block = layout.al_block(rng.below(u64::from(params.al.blocks())) as u32);
            disk.write(block + 8, &[0; 4]);
        }
        let ours = recover(params.al, &disk.al_area(&layout, params.al), 257);
        let theirs = disk.run("v09", &["apply-al"]);
        match ours {
            Ok(hot) => {
                check(theirs);
                let mut expected =
                    Bitmap::new(1, superblock.effective_size, superblock.bm_bytes_per_bit);
                for extent in &hot.extents {
                    let start = u64::from(*extent) * EXTENT_SECTORS;
                    expected.set_range(0, SectorRange::new(start, EXTENT_SECTORS));
                }
                assert_same_bits(&disk.bitmap(&layout, &superblock), &expected);
                recovered += u32::from(!hot.extents.is_empty());
            }
            Err(error) => {
                assert!(!theirs.status.success(), "case {case}: only we refuse: {error}");
                refused += 1;
            }
        }
    }
    println!("{recovered} recovered, {refused} refused");
    assert!(recovered > 20 && refused > 2);
}

fn random_slot(rng: &mut Rng) -> u16 {
    match rng.below(5) {
        0 => rng.below(1 << 16) as u16,
        1 => [65533, 65534, 65535, 0][rng.below(4) as usize],
        _ => rng.below(1500) as u16,
    }
}

fn random_extent(rng: &mut Rng, extents: u64) -> u32 {
    if rng.below(3) == 0 { FREE } else { rng.below(extents) as u32 }
}

#[test]
fn v08_metadata_is_read_dumped_and_converted_alike() {
    let Some(tool) = drbdmeta() else { return };
    let size = 64 * MIB;
    let disk = Disk::new(&tool, Placement::Internal, size);
    check(disk.run("v08", &["create-md"]));
    let layout = Layout::new(Placement::Internal, Bytes(size), &MdParams::new(1)).unwrap();
    let mut block = disk.read_block(layout.superblock);
    block[..8].copy_from_slice(&100_000u64.to_be_bytes());
    for (i, uuid) in [0x11u64, 0x20, 0x30, 0x40].into_iter().enumerate() {
        block[8 + 8 * i..16 + 8 * i].copy_from_slice(&uuid.to_be_bytes());
    }
    block[0x38..0x3C].copy_from_slice(&0x0000_00ADu32.to_be_bytes());
    disk.write(layout.superblock, block.as_slice());
    let words: Vec<u8> = (0..=255).cycle().take(BLOCK_SIZE).collect();
    disk.write(layout.bitmap, &words);

    let v8 = SuperblockV8::decode(&block).unwrap();
    assert!(v8.clean);
    assert_eq!((v8.al_offset, v8.bm_offset), (layout.al_offset, layout.bm_offset));
    let gi = check(disk.run("v08", &["get-gi"]));
    assert_eq!(gi.trim_end(), v8.gi_string());

    let theirs = check(disk.run("v08", &["dump-md"]));
    let word = |i: u64| {
        let start = i as usize * 8;
        u64::from_le_bytes(words[start..start + 8].try_into().unwrap())
    };
    let mut dump = DumpV08::new(&v8, word);
    // Tools up to 9.32 print v08 flags as zero.
    if theirs.contains("flags 0x00000000;") {
        dump.flags = MdFlags::EMPTY;
    }
    let ours = our_dump(&theirs, &Dump::V08(dump), &layout, v8.al_nr_extents);
    assert_same_lines(&ours, &theirs);

    disk.v09(&["create-md", "1"]);
    let converted = disk.superblock(&layout);
    assert_eq!(converted, v8.to_v09().unwrap());
    assert_eq!(disk.read(layout.bitmap, BLOCK_SIZE), words, "the bitmap is kept");
}

/// Disks of DRBD 8 that engines of ours had in use when they were killed.
#[test]
fn what_we_write_as_v08_is_applied_and_dumped_by_the_tool() {
    let Some(tool) = drbdmeta() else { return };
    let pair = NodeId::new(0).zip(NodeId::new(1));
    let log = MdFlags::CONSISTENT | MdFlags::WAS_UP_TO_DATE | MdFlags::PRIMARY_IND;
    let places = [
        (Placement::Internal, 3 * GIB),
        (Placement::FlexExternal, 32 * MIB),
        (Placement::Indexed(1), 256 * MIB),
    ];
    for ((placement, size), primary) in places.into_iter().flat_map(|p| [(p, true), (p, false)]) {
        let disk = Disk::new(&tool, placement, size);
        check(disk.run("v08", &["create-md"]));
        let layout = Layout::new(placement, Bytes(size), &MdParams::new(1)).unwrap();
        let created = disk.read_block(layout.superblock);
        let mut superblock = Superblock::decode_any(&created, pair).unwrap();
        assert_eq!(superblock.validate(placement, Bytes(size), Rules::Drbdmeta), Ok(layout));
        superblock.effective_size = layout.usable.min(Sectors(GIB / 512 + 12345));
        superblock.current_uuid = GenUuid(0x1234_5678_9ABC_DEF0);
        superblock.peers[1].bitmap_uuid = GenUuid(0x20);
        superblock.peers[1].flags = PeerFlags::CONNECTED;
        superblock.flags = if primary { log | MdFlags::CRASHED_PRIMARY } else { log };
        disk.write(layout.superblock, superblock.encode().as_slice());
        let v8 = SuperblockV8::decode(&disk.read_block(layout.superblock)).unwrap();
        assert_eq!(check(disk.run("v08", &["get-gi"])).trim_end(), v8.gi_string());

        let mut bitmap = random_bitmap(&mut Rng(0xC0FFEE), &superblock);
        disk.write_bitmap(&layout, &mut bitmap);
        let mut al = ActivityLog::new(67, superblock.al);
        let ranges = [0, 3, 100].map(|extent| SectorRange::new(extent * EXTENT_SECTORS, 8));
        for range in ranges {
            assert!(al.begin(range) != Begin::Wait);
        }
        let transaction = al.start_transaction().unwrap();
        disk.write(layout.al_block(transaction.block_index), transaction.block.as_slice());

        check(disk.run("v08", &["apply-al"]));
        // Of a Secondary it goes by what the Primary knows, as after a kernel.
        for range in ranges.iter().filter(|_| primary) {
            bitmap.set_range(0, SectorRange::new(range.start.0, EXTENT_SECTORS));
        }
        assert_same_bits(&disk.bitmap(&layout, &superblock), &bitmap);
        let applied = Superblock::decode_any(&disk.read_block(layout.superblock), pair).unwrap();
        superblock.flags.set(MdFlags::AL_CLEAN, true);
        superblock.flags.set(MdFlags::PRIMARY_IND, primary);
        assert_eq!(applied, superblock);
        let dump = check(disk.run("v08", &["dump-md"]));
        assert!(dump.contains(&format!("# bits-set {};", bitmap.count(0))), "{dump}");
    }
}

#[test]
fn a_block_device_is_handled_like_a_file() {
    let Some(tool) = drbdmeta() else { return };
    let mut disk = Disk::new(&tool, Placement::Internal, 32 * MIB);
    let attached = Command::new("losetup").args(["--find", "--show"]).arg(&disk.path).output();
    let device = match attached {
        Ok(output) if output.status.success() => {
            PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
        }
        other => {
            println!("skipped: no loop device (needs root and the loop module): {other:?}");
            return;
        }
    };
    let _guard = LoopDevice(device.clone());
    disk.file = OpenOptions::new().read(true).write(true).open(&device).unwrap();
    disk.path = device;
    disk.v09(&["create-md", "3"]);
    let (expected, layout) =
        Superblock::create(Placement::Internal, disk.size, &MdParams::new(3)).unwrap();
    let stored = disk.read_block(layout.superblock);
    assert_eq!(*stored, *expected.encode());
    let superblock = used(expected, &layout, Sectors(u64::MAX));
    let mut bitmap = random_bitmap(&mut Rng(0xB10C), &superblock);
    disk.write(layout.superblock, superblock.encode().as_slice());
    disk.write_bitmap(&layout, &mut bitmap);
    disk.file.sync_all().unwrap();
    let gi = disk.v09(&["get-gi", "--node-id=9"]);
    assert_eq!(gi.trim_end(), superblock.gi_string(NodeId::new(9).unwrap()));

    let theirs = disk.v09(&["dump-md"]);
    let dump = DumpV09::new(&superblock, false, |slot, word| bitmap.word(slot as usize, word));
    assert_eq!(dump::parse(&theirs).unwrap(), Dump::V09(dump.clone()));
    let ours = our_dump(&theirs, &Dump::V09(dump), &layout, 257);
    let bits = ours.rfind("# bits-set").unwrap();
    assert_same_lines(&ours[..bits], &theirs[..theirs.rfind("# bits-set").unwrap()]);

    // What we print of it is restored where nothing of it is left.
    disk.write(layout.superblock, &[0; BLOCK_SIZE]);
    disk.write(layout.bitmap, &vec![0; BLOCK_SIZE]);
    disk.file.sync_all().unwrap();
    let text = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(text.path(), &ours).unwrap();
    disk.v09(&["restore-md", text.path().to_str().unwrap()]);
    // The tool writes past the cache that this file was read through before.
    disk.file = OpenOptions::new().read(true).write(true).open(&disk.path).unwrap();
    assert_eq!(disk.superblock(&layout), superblock);
    let restored = disk.bitmap(&layout, &superblock);
    assert_same_bits(&restored, &bitmap);
}

/// Detaches the loop device when the test ends.
struct LoopDevice(PathBuf);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_log_that_was_never_initialised_is_refused_by_both() {
    let Some(tool) = drbdmeta() else { return };
    let disk = Disk::new(&tool, Placement::Internal, 64 * MIB);
    let (created, layout) = disk.create(&MdParams::new(1));
    let mut superblock = used(created, &layout, Sectors(u64::MAX));
    superblock.flags = MdFlags::CONSISTENT | MdFlags::PRIMARY_IND;
    disk.write(layout.superblock, superblock.encode().as_slice());
    disk.write(layout.activity_log, &[0x5A; 8 * BLOCK_SIZE]);
    let area = disk.al_area(&layout, superblock.al);
    assert_eq!(recover(superblock.al, &area, 257), Err(activity_log::AlError::NoValidBlock));
    assert!(!disk.run("v09", &["apply-al"]).status.success());
}
