//! Texts of the real tool, byte for byte, and the freedom the grammar gives.

use super::*;
use crate::disk::SuperblockV8;

const UNCLEAN_DUMP: &str = include_str!("../../../testdata/disk/dump-md-unclean.txt");
const RUNS: &str = include_str!("../../../testdata/disk/dump-md-runs.txt");
const V08: &str = include_str!("../../../testdata/disk/dump-md-v08.txt");

/// Date, host and command line of a real dump.
fn head(text: &str) -> (&str, &str, &str) {
    let mut lines = text.lines().skip(1).map(|line| line.strip_prefix("# ").unwrap());
    let date = lines.next().unwrap();
    let (host, command) = lines.next().unwrap().split_once("> ").unwrap();
    (date, host, command)
}

fn rewritten(text: &str, dump: &Dump, layout: &Layout, al_nr_extents: u32) -> String {
    let (date, host, command) = head(text);
    let mut out = String::new();
    dump.write(&mut out, &Comments { date, host, command, layout, al_nr_extents }).unwrap();
    out
}

fn v09(text: &str) -> DumpV09 {
    match parse(text).unwrap() {
        Dump::V09(dump) => dump,
        Dump::V08(_) => panic!("expected v09"),
    }
}

#[test]
fn the_dump_of_a_kernel_node_is_read_and_written_alike() {
    let dump = v09(UNCLEAN_DUMP);
    assert!(dump.unclean);
    assert_eq!(dump.max_peers, 3);
    assert_eq!(dump.node_id, NodeId::new(0));
    assert_eq!(dump.current_uuid, GenUuid(0x9BD5_999C_66B6_8650));
    assert_eq!(dump.members, None);
    assert_eq!(dump.peers[1].bitmap_dagtag.0, 0x1C0);
    assert_eq!(dump.peers[1].bitmap_index, Some(0));
    assert_eq!(dump.peers[2].flags, PeerFlags::NODE_EXISTS);
    assert_eq!(dump.peers[31].bitmap_uuid, GenUuid(0xF107_D4E3_FB10_A436));
    assert_eq!(dump.tail.la_size, Sectors(32688));
    assert_eq!(dump.slots[0].count_ones(), 0);
    assert_eq!(dump.slots[2].count_ones(), 101);

    let (superblock, layout) = dump.superblock(Placement::Internal, Bytes(16 << 20)).unwrap();
    assert_eq!(superblock.effective_size, Sectors(32688));
    assert_eq!(
        superblock.gi_string(NodeId::new(1).unwrap()),
        "9BD5999C66B68650:0000000000000000:BB8C732E1F96AA40:74CB3C491C033ED4\
         :1:1:1:1:0:0:1:0:0:0:0:1"
    );
    assert_eq!(rewritten(UNCLEAN_DUMP, &Dump::V09(dump), &layout, 1237), UNCLEAN_DUMP);
}

#[test]
fn runs_are_abbreviated_where_the_tool_does() {
    let dump = v09(RUNS);
    let (superblock, layout) = dump.superblock(Placement::Internal, Bytes(1 << 30)).unwrap();
    assert_eq!(rewritten(RUNS, &Dump::V09(dump.clone()), &layout, 257), RUNS);

    // Dumped again from superblock and words, the text is the same.
    let words: Vec<Vec<u64>> = dump.slots.iter().map(expand).collect();
    let again = DumpV09::new(&superblock, false, |slot, i| words[slot as usize][i as usize]);
    assert_eq!(again, dump);
}

fn expand(runs: &WordRuns) -> Vec<u64> {
    let words = runs.runs().iter();
    words.flat_map(|run| std::iter::repeat_n(run.word, run.count as usize)).collect()
}

#[test]
fn v08_dumps_are_read_and_written_alike() {
    let dump = parse(V08).unwrap();
    let Dump::V08(v08) = &dump else { panic!("expected v08") };
    assert_eq!(v08.uuids, [0x11, 0x20, 0x30, 0x40].map(GenUuid));
    let words = expand(&v08.slot);
    assert_eq!(words[..2], [0x0706_0504_0302_0100, 0x0F0E_0D0C_0B0A_0908]);
    let layout = Layout::new(Placement::Internal, Bytes(64 << 20), &MdParams::new(1)).unwrap();
    assert_eq!(rewritten(V08, &dump, &layout, 257), V08);

    let superblock = SuperblockV8 {
        effective_size: Sectors(100000),
        current_uuid: GenUuid(0x11),
        bitmap_uuid: GenUuid(0x20),
        history: [GenUuid(0x30), GenUuid(0x40)],
        device_uuid: 0,
        flags: MdFlags::EMPTY,
        clean: true,
        log_of_secondary: false,
        md_size: layout.md_size,
        al_offset: layout.al_offset,
        al_nr_extents: 257,
        bm_offset: layout.bm_offset,
        la_peer_max_bio_size: 0,
        al: AlStriping::default(),
    };
    assert_eq!(DumpV08::new(&superblock, |i| words[i as usize]), *v08);
}

#[test]
fn bits_behind_the_end_of_the_volume_are_neither_written_nor_counted() {
    let layout = Layout::new(Placement::Internal, Bytes(1 << 30), &MdParams::new(1)).unwrap();
    for text in [V08, UNCLEAN_DUMP] {
        let longer = match parse(text).unwrap() {
            Dump::V08(mut dump) => {
                dump.slot.push(1000, 1);
                Dump::V08(dump)
            }
            Dump::V09(mut dump) => {
                dump.slots.last_mut().unwrap().push(1_000_000, 1);
                Dump::V09(dump)
            }
        };
        let written = rewritten(text, &longer, &layout, 0);
        let again = rewritten(text, &parse(&written).unwrap(), &layout, 0);
        assert_eq!(written, again);
    }
}

#[test]
fn members_are_printed_when_known_and_read_back() {
    let mut dump = v09(RUNS);
    dump.members = Some(NodeMask(7));
    let (_, layout) = dump.superblock(Placement::Internal, Bytes(1 << 30)).unwrap();
    let text = rewritten(RUNS, &Dump::V09(dump.clone()), &layout, 257);
    assert!(text.contains("flags 0x00000491;\nmembers 0x0000000000000007;\npeer[0] {"));
    assert_eq!(v09(&text), dump);
}

#[test]
fn white_space_comments_and_splitting_of_runs_are_free() {
    let squeezed: String = RUNS
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .map(|line| line.split('#').next().unwrap().trim().to_owned() + " ")
        .collect();
    assert_eq!(v09(&squeezed), v09(RUNS));
    let split = RUNS.replace(
        "    3524 times 0x0000000000000000;",
        "3000 times 0x0000000000000000;0 times 0x0123456789ABCDEF;\n\t0x0000000000000000;\
         523 times 0x0000000000000000;",
    );
    assert_ne!(split, RUNS);
    assert_eq!(v09(&split), v09(RUNS));
    // The last peer may come first.
    let start = RUNS.find("peer[31]").unwrap();
    let end = RUNS.find("history-uuids").unwrap();
    let first = RUNS.find("peer[0]").unwrap();
    let moved = [&RUNS[..first], &RUNS[start..end], &RUNS[first..start], &RUNS[end..]].concat();
    assert_eq!(v09(&moved), v09(RUNS));
}

#[test]
fn the_agreed_size_is_cut_to_the_target_device() {
    let dump = v09(RUNS);
    let (superblock, layout) = dump.superblock(Placement::Internal, Bytes(512 << 20)).unwrap();
    assert_eq!(superblock.effective_size, layout.usable);
    assert_eq!(superblock.al_nr_extents, 257);
}

#[test]
fn errors_name_line_and_expectation() {
    let error = |from: &str, to: &str| {
        assert!(RUNS.contains(from), "{from}");
        parse(&RUNS.replacen(from, to, 1)).unwrap_err().to_string()
    };
    assert_eq!(error("\"v09\"", "\"v07\""), "line 6: expected \"v08\" or \"v09\", found \"v07\"");
    assert_eq!(error("max-peers 3", "max-peers 32"), "line 8: max-peers must be 1 to 31");
    assert_eq!(error("node-id 0", "node-id 32"), "line 14: node-id must be -1 to 31");
    assert_eq!(error("node-id 0", "node-id -2"), "line 14: node-id must be -1 to 31");
    assert_eq!(error("peer[7]", "peer[6]"), "line 59: peer[6] is given twice or out of order");
    assert_eq!(error("peer[7]", "peer[32]"), "line 59: peer[32] is given twice or out of order");
    assert_eq!(
        error("flags 0x00000491;", "flags 0x0491;"),
        "line 16: expected 0x and 8 hexadecimal digits, found 0x0491"
    );
    assert_eq!(
        error("bm-byte-per-bit 4096", "bm-byte-per-bit 4095"),
        "line 221: bm-byte-per-bit must be a power of two from 4096 to 1048576"
    );
    assert!(error("al-stripes 1", "al-stripes 0").contains("8 to 4194304 blocks"));
    assert!(error("bitmap[1]", "bitmap[2]").contains("bitmap[2] is given twice or out of order"));
    assert!(error("la-size-sect 2000000", "la-size-sect -1").contains("non-negative"));
    assert!(error("max-peers 3;", "max-peers 3").contains("expected `;`, found node-id"));
    assert!(error("\"v09\"", "\"v09").contains("a string of 1 to 20 characters"));
    assert!(
        parse(&[RUNS, "more"].concat())
            .unwrap_err()
            .to_string()
            .ends_with("expected the end of the file, found more")
    );
}

#[test]
fn every_truncation_is_refused() {
    // Only comments follow the last brace.
    let end = V08.rfind('}').unwrap();
    for cut in 0..end {
        assert!(parse(&V08[..cut]).is_err(), "cut at {cut}");
    }
    assert!(parse(&V08[..=end]).is_ok());
}

#[test]
fn absurd_run_lengths_cost_no_memory() {
    let text = RUNS.replacen("3524 times", "9999999999999999999 times", 1);
    let dump = v09(&text);
    assert_eq!(dump.slots[0].clipped(10).runs().iter().map(|r| r.count).sum::<u64>(), 10);
    let (_, layout) = dump.superblock(Placement::Internal, Bytes(1 << 30)).unwrap();
    assert_eq!(rewritten(RUNS, &Dump::V09(dump), &layout, 257), RUNS);
    // Nor does an absurd size overflow while writing.
    let text = text.replacen("la-size-sect 2000000", "la-size-sect 9999999999999999999", 1);
    rewritten(RUNS, &parse(&text).unwrap(), &layout, 257);
}
