//! Volumes that were there before the cluster was.

use super::*;
use crate::record::Volume;

fn adopt(size: u64, node_id: Option<u8>) -> Action {
    let Action::CreateVolume { volume, backing } = create(size) else { panic!("it is one") };
    let node_id = node_id.and_then(NodeId::new);
    Action::AdoptVolume { volume, backing, size: Bytes(60 * MIB), metadata: true, node_id }
}

/// A bed on which an agent of another cluster has made a volume, and is gone.
fn left_by_others() -> Bed {
    let bed = Bed::new();
    let node = bed.start();
    for step in [create(64 * MIB), create_metadata()] {
        node.carry_out(&name(), Generation(3), &step).unwrap();
    }
    drop(node);
    fs::remove_dir_all(bed.path("agent")).unwrap();
    bed
}

fn bytes(bed: &Bed) -> Vec<u8> {
    fs::read(bed.path("pool").join("web_00000.img")).unwrap()
}

fn volume(node: &Node) -> Option<Volume> {
    node.store.get(&name())?.volumes.get(&0).cloned()
}

#[test]
fn a_volume_is_taken_with_its_metadata_and_not_written_to() {
    let bed = left_by_others();
    let before = bytes(&bed);
    let node = bed.start();
    for _ in 0..2 {
        node.carry_out(&name(), Generation(1), &adopt(64 * MIB, Some(0))).unwrap();
    }
    assert_eq!(bytes(&bed), before);
    let taken = volume(&node).unwrap();
    assert_eq!((taken.size, taken.metadata, taken.fresh), (64 * MIB, Metadata::Made, false));
    node.carry_out(&name(), Generation(2), &configure()).unwrap();
    assert_eq!(bed.fake.lock().unwrap().resources["web"].disk, DiskState::UpToDate);
    // It is this agent's from now on.
    node.carry_out(&name(), Generation(3), &Action::Remove(Guard::default())).unwrap();
    assert_eq!(bed.files(), Vec::<String>::new());
}

#[test]
fn what_is_not_as_it_was_is_refused_and_stays() {
    let refused = |bed: &Bed, step: &Action, cause: &str| {
        let files = bed.files();
        let node = bed.start();
        let failed = node.carry_out(&name(), Generation(1), step).unwrap_err().to_string();
        assert!(failed.contains(cause) && failed.contains("volume 0 of web"), "{failed}");
        assert_eq!((volume(&node), bed.files()), (None, files), "{cause}");
    };
    let bed = left_by_others();
    let before = bytes(&bed);
    refused(&bed, &adopt(64 * MIB, Some(1)), "its metadata are of DRBD node 0, and this is 1");
    let Action::AdoptVolume { volume, backing, metadata, node_id, .. } = adopt(64 * MIB, Some(0))
    else {
        panic!("it is one")
    };
    let large = Action::AdoptVolume { volume, backing, size: Bytes(65 * MIB), metadata, node_id };
    refused(&bed, &large, "has 67108864 bytes, and 68157440 are to be used");
    assert_eq!(bytes(&bed), before);

    // Nothing is made in the place of what is not there, and nothing without metadata is taken for a disk.
    refused(&Bed::new(), &adopt(64 * MIB, Some(0)), "pool thin has no web_00000");
    let file = fs::File::create(bed.path("pool").join("web_00000.img")).unwrap();
    file.set_len(64 * MIB).unwrap();
    let node = bed.start();
    let failed = node.carry_out(&name(), Generation(1), &adopt(64 * MIB, Some(0))).unwrap_err();
    assert!(failed.to_string().contains("can not be used"), "{failed:?}");
}
