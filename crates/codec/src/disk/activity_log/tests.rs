//! Vectors and crash cases of the activity log.

use super::*;

fn ring() -> AlStriping {
    AlStriping::default()
}

/// The raw area of a log initialised and then written with `transactions` in order.
fn area(ring: AlStriping, transactions: &[Transaction<'_>]) -> Vec<u8> {
    let mut area: Vec<u8> = empty_block().repeat(ring.blocks() as usize);
    for transaction in transactions {
        *block_mut(ring, &mut area, transaction.number) = *encode(transaction);
    }
    area
}

fn block_mut(ring: AlStriping, area: &mut [u8], number: u32) -> &mut Block {
    let start = ring.block_of(number) as usize * BLOCK_SIZE;
    (&mut area[start..start + BLOCK_SIZE]).try_into().unwrap()
}

fn encode(transaction: &Transaction<'_>) -> Box<Block> {
    let mut block = crate::disk::zeroed_block();
    transaction.encode_into(&mut block);
    block
}

fn hot(ring: AlStriping, area: &[u8]) -> Vec<u32> {
    recover(ring, area, 1237).unwrap().extents.into_iter().collect()
}

fn update(slot: u16, extent: u32) -> Update {
    Update { slot, extent }
}

fn transaction(number: u32, updates: &[Update]) -> Transaction<'_> {
    Transaction { number, updates, context_size: 67, context_start: 0, context: &[] }
}

#[test]
fn checksum_is_castagnoli_without_final_inversion() {
    assert_eq!(crc32c_raw(b"123456789"), 0x58E3_FA20);
    assert_eq!(crc32c_raw(b""), 0);
}

#[test]
fn blocks_match_the_vectors() {
    assert_eq!(be32(&empty_block(), at::CRC), 0x709C_C651);
    let first = [update(0, 7)];
    assert_eq!(be32(&encode(&transaction(0, &first)), at::CRC), 0x48C1_C708);
    let fifth = Transaction {
        number: 5,
        updates: &[update(0, 7), update(1, 12)],
        context_size: 1237,
        context_start: 0,
        context: &[3],
    };
    assert_eq!(be32(&encode(&fifth), at::CRC), 0x9D8C_60B6);
}

#[test]
fn an_initialised_log_has_no_hot_extents() {
    assert_eq!(recover(ring(), &area(ring(), &[]), 257).unwrap(), HotSet::default());
}

#[test]
fn later_transactions_replace_earlier_ones() {
    let (a, b, c) = ([update(0, 7), update(1, 8)], [update(0, 9)], [update(1, FREE)]);
    let log = [
        transaction(0, &a),
        Transaction { context: &[7, 8], ..transaction(1, &b) },
        Transaction { context: &[9, 8], ..transaction(2, &c) },
    ];
    assert_eq!(hot(ring(), &area(ring(), &log[..1])), [7, 8]);
    assert_eq!(hot(ring(), &area(ring(), &log[..2])), [8, 9]);
    let recovered = recover(ring(), &area(ring(), &log), 257).unwrap();
    assert_eq!(recovered.extents.into_iter().collect::<Vec<_>>(), [9]);
    assert_eq!(recovered.newest, Some(2));
}

#[test]
fn context_rebuilds_slots_whose_update_left_the_ring() {
    let updates = [update(1, 20)];
    let context = [10, 11, 12];
    let log = Transaction { context: &context, ..transaction(77, &updates) };
    assert_eq!(hot(ring(), &area(ring(), &[log])), [10, 12, 20]);
}

#[test]
fn order_follows_the_signed_difference_across_the_wrap() {
    let (old, new) = ([update(0, 1)], [update(0, 2)]);
    // 8 divides 2^32, so positions stay consecutive.
    let log = [transaction(u32::MAX, &old), transaction(0, &new)];
    let recovered = recover(ring(), &area(ring(), &log), 257).unwrap();
    assert_eq!(recovered.extents.into_iter().collect::<Vec<_>>(), [2]);
    assert_eq!(recovered.newest, Some(0));
}

#[test]
fn striped_rings_are_walked_in_logical_order() {
    let striped = AlStriping::new(4, 8).unwrap();
    let updates: Vec<[Update; 1]> = (0..40).map(|i| [update(i % 3, u32::from(i))]).collect();
    let contexts: Vec<[u32; 3]> = (0..40u32)
        .map(|i| {
            let before = |slot| (0..i).rev().find(|j| j % 3 == slot).unwrap_or(FREE);
            [before(0), before(1), before(2)]
        })
        .collect();
    let log: Vec<_> = (0u32..)
        .zip(updates.iter().zip(&contexts))
        .map(|(i, (u, c))| Transaction { context: c, ..transaction(i, u) })
        .collect();
    assert_eq!(hot(striped, &area(striped, &log)), [37, 38, 39]);
}

#[test]
fn a_torn_block_falls_back_to_the_transaction_before() {
    let (a, b) = ([update(0, 7)], [update(0, 9)]);
    let mut torn = area(ring(), &[transaction(0, &a), transaction(1, &b)]);
    block_mut(ring(), &mut torn, 1)[2000] ^= 1;
    let recovered = recover(ring(), &torn, 257).unwrap();
    assert_eq!(recovered.extents.into_iter().collect::<Vec<_>>(), [7]);
    assert_eq!(recovered.invalid_blocks, 1);
}

#[test]
fn a_torn_first_write_means_nothing_was_active() {
    let mut torn = area(ring(), &[]);
    block_mut(ring(), &mut torn, 0)[0] ^= 1;
    let recovered = recover(ring(), &torn, 257).unwrap();
    assert!(recovered.extents.is_empty() && recovered.invalid_blocks == 1);
}

#[test]
fn damage_that_no_crash_explains_is_an_error() {
    let mut damaged = area(ring(), &[]);
    block_mut(ring(), &mut damaged, 3)[0] ^= 1;
    assert_eq!(recover(ring(), &damaged, 257), Err(AlError::Damaged { invalid: 1 }));
    assert_eq!(recover(ring(), &[0; 8 * BLOCK_SIZE], 257), Err(AlError::NoValidBlock));
    assert!(matches!(recover(ring(), &damaged[1..], 257), Err(AlError::WrongSize { .. })));
    assert!(matches!(recover(ring(), &[], 257), Err(AlError::WrongSize { .. })));
}

#[test]
fn slots_that_cannot_exist_are_ignored() {
    let updates = [update(65534, 1), update(65535, 2), update(65533, 3)];
    let context = [5; CONTEXT_SLOTS];
    let log = Transaction {
        number: 0,
        updates: &updates,
        context_size: u16::MAX,
        context_start: u16::MAX,
        context: &context,
    };
    assert_eq!(hot(ring(), &area(ring(), &[log])), [3]);
}

#[test]
fn the_pmem_form_is_recognised_by_its_first_word() {
    let mut pmem = vec![0xFF; 8 * BLOCK_SIZE];
    pmem[..4].copy_from_slice(&PMEM_MAGIC.to_be_bytes());
    pmem[4..8].copy_from_slice(&42u32.to_be_bytes());
    pmem[12..16].copy_from_slice(&43u32.to_be_bytes());
    assert_eq!(hot(ring(), &pmem), [42, 43]);
    assert_eq!(recover(ring(), &pmem, 1).unwrap().extents.len(), 1);
    let too_many = recover(ring(), &pmem, u32::MAX);
    assert_eq!(too_many, Err(AlError::PmemTooSmall { slots: u32::MAX }));
}

#[test]
fn logs_of_old_drbd_are_recognised() {
    assert!(!is_pre_v84(ring(), &area(ring(), &[])));
    assert!(is_pre_v84(ring(), &[0; 8 * BLOCK_SIZE]));
    assert!(!is_pre_v84(AlStriping::new(2, 8).unwrap(), &[0; 16 * BLOCK_SIZE]));
}
