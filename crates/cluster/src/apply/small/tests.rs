//! What is checked of properties, names and sizes beyond their form.

use vocab::Bytes;

use super::*;
use crate::apply::tests::{Bed, node, rd};
use crate::command::{Command, NewDefinition, NewResource, NewVolumeDefinition};
use crate::layer::Layer;
use crate::objects::{Filter, Provider};

fn pool(index: usize, props: &[(&str, &str)]) -> Command {
    let props = props.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Command::CreatePool {
        node: node(index),
        name: PoolName::new("files").unwrap(),
        provider: Provider::File,
        props: props.collect(),
        shared_space: None,
        external_locking: false,
    }
}

fn modify_pool(key: &str, value: &str) -> Command {
    let name = PoolName::new("files").unwrap();
    Command::ModifyPool { node: node(0), name, props: PropsEdit::set(key, value) }
}

#[test]
fn a_pool_says_where_it_is_by_one_property() {
    const PLACE: &str = "StorDriver/StorPoolName";
    const FORMER: &str = "StorDriver/FileDir";
    let mut bed = Bed::new(1);
    let refusal = bed.refused(pool(0, &[(PLACE, "/a"), (FORMER, "/b")]));
    assert_eq!(refusal.code, Code::InvalidProperty, "{refusal}");
    assert!(bed.refused(pool(0, &[])).cause.contains(FORMER));
    bed.ok(pool(0, &[(FORMER, "/a")]));
    let name = PoolName::new("files").unwrap();
    let place = |bed: &Bed| bed.model.pool(&node(0), &name).unwrap().props.clone();
    let is = |place: &str| Props::from([(PLACE.to_owned(), place.to_owned())]);
    assert_eq!(place(&bed), is("/a"));
    bed.ok(modify_pool(FORMER, "/b"));
    assert_eq!(place(&bed), is("/b"));
    bed.ok(modify_pool(PLACE, "/c"));
    assert_eq!(place(&bed), is("/c"));
    assert_eq!(bed.refused(modify_pool(PLACE, "")).code, Code::InvalidProperty);
}

#[test]
fn interfaces_that_properties_name_are_there() {
    let mut bed = Bed::new(3);
    bed.ok(pool(0, &[("StorDriver/StorPoolName", "/a")]));
    let node_is = |props| Command::ModifyNode { name: node(0), kind: None, props };
    let connection = |props| Command::ModifyNodeConnection { a: node(0), b: node(1), props };
    let nic = PropsEdit::set("PrefNic", "eth9");
    for command in [
        node_is(nic.clone()),
        modify_pool("PrefNic", "eth9"),
        connection(PropsEdit::set("Paths/p1/node-0", "eth9")),
        connection(PropsEdit::set("Paths/p1/node-2", "default")),
        connection(PropsEdit::set("Paths/p1", "default")),
    ] {
        assert_eq!(bed.refused(command).code, Code::InvalidProperty);
    }
    bed.ok(node_is(PropsEdit::set("PrefNic", "Default")));
    bed.ok(modify_pool("PrefNic", "default"));
    bed.ok(connection(PropsEdit::set("Paths/p1/NODE-0", "default")));
    bed.ok(connection(PropsEdit::set("Paths/p1/node-0", "")));
}

#[test]
fn a_volume_that_drbd_has_no_room_in_is_refused_and_leaves_nothing() {
    let mut bed = Bed::new(2);
    let new = |name: &str, layers: Option<Vec<Layer>>| {
        let definition = NewDefinition { name: Some(rd(name)), layers, ..NewDefinition::default() };
        Command::CreateDefinition { definition }
    };
    let volume = |name: &str, size, gross_size| Command::CreateVolumeDefinition {
        name: rd(name),
        volume: NewVolumeDefinition {
            size: Bytes(size),
            gross_size,
            ..NewVolumeDefinition::default()
        },
    };
    bed.ok(new("disk", None));
    for (size, gross) in
        [(1024, false), (3072, false), (4096, true), (40960, true), (1044480, true)]
    {
        let refusal = bed.refused(volume("disk", size, gross));
        assert_eq!(refusal.code, Code::InvalidVolumeSize, "{refusal}");
    }
    bed.ok(volume("disk", 4096, false));
    bed.ok(volume("disk", 1 << 20, true));
    let definition = bed.model.definition(&rd("disk")).unwrap();
    let sizes = definition.volumes.values().map(|volume| crate::size::backing(definition, volume));
    assert_eq!(sizes.collect::<Vec<_>>(), [Bytes(1 << 20); 2], "no disk is smaller");
    // Without DRBD there are smaller ones, to which DRBD can not be added then.
    bed.ok(new("plain", Some(vec![Layer::Storage])));
    bed.ok(volume("plain", 1024, false));
    bed.ok(Command::ModifyDefinition {
        name: rd("plain"),
        props: PropsEdit::default(),
        group: None,
        layers: Some(vec![Layer::Drbd, Layer::Storage]),
        peer_slots: None,
    });
    let resource =
        NewResource { pool: Some(crate::apply::tests::pool()), ..NewResource::default() };
    let create = Command::CreateResource { name: rd("plain"), node: node(0), resource };
    assert_eq!(bed.refused(create).code, Code::InvalidVolumeSize);
}

#[test]
fn external_names_are_unique_and_an_empty_one_is_drawn() {
    let mut bed = Bed::new(1);
    let external = |name: &str| {
        let external_name = Some(name.to_owned());
        let definition = NewDefinition { external_name, ..NewDefinition::default() };
        Command::CreateDefinition { definition }
    };
    bed.ok(external("my disk"));
    assert_eq!(bed.refused(external("my disk")).code, Code::ExternalNameExists);
    assert_eq!(bed.refused(external("my_disk")).code, Code::DefinitionExists);
    bed.ok(external(""));
    bed.ok(external(""));
    let drawn = bed.model.definitions().filter(|d| d.name.as_str().starts_with("LS_"));
    let drawn: Vec<_> = drawn.map(|d| (d.name.as_str().len(), &d.external_name)).collect();
    assert_eq!(drawn, [(39, &None), (39, &None)]);
}

#[test]
fn what_is_not_there_or_leads_to_nothing_is_said() {
    let mut bed = Bed::new(2);
    let codes = |bed: &mut Bed, command| -> Vec<NoteCode> {
        bed.ok(command).notes.iter().map(|note| note.code).collect()
    };
    let nope = NodeName::new("nope").unwrap();
    let name = NetIfName::new("default").unwrap();
    let command = Command::DeleteNetInterface { node: nope, name };
    assert_eq!(codes(&mut bed, command), [NoteCode::NotFound]);
    let command = Command::DeleteVolumeDefinition { name: rd("nope"), number: 0 };
    assert_eq!(codes(&mut bed, command), [NoteCode::NotFound]);
    let definition = NewDefinition { name: Some(rd("empty")), ..NewDefinition::default() };
    bed.ok(Command::CreateDefinition { definition });
    let resource =
        NewResource { pool: Some(crate::apply::tests::pool()), ..NewResource::default() };
    let create = Command::CreateResource { name: rd("empty"), node: node(0), resource };
    assert!(codes(&mut bed, create).contains(&NoteCode::NotFound));
    let filter = Filter {
        pools: Some(vec![PoolName::new("later").unwrap(), crate::apply::tests::pool()]),
        ..Filter::default()
    };
    let group = Command::CreateGroup {
        name: GroupName::new("group").unwrap(),
        description: String::new(),
        props: Props::new(),
        filter,
        peer_slots: None,
    };
    assert_eq!(codes(&mut bed, group), [NoteCode::NotFound]);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let toggle = |diskful| Command::ToggleDisk {
        name: rd("disk"),
        node: node(0),
        diskful,
        pool: None,
        migrate_from: None,
        client: false,
    };
    assert!(codes(&mut bed, toggle(true)).contains(&NoteCode::HasDisk));
    bed.ok(toggle(false));
    bed.settle("disk");
    assert!(codes(&mut bed, toggle(false)).contains(&NoteCode::IsDiskless));
}
