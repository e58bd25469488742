//! What a second Primary makes of answers that nobody waits for.

use codec::wire::{JointWord, Packet, feature};
use vocab::options::ResourceOptions;
use vocab::{ConnState, Role};

use super::*;
use crate::io::Output;
use crate::resource::Link;
use crate::testing::attached;

/// A node that is connected to a Primary beside which it may be one.
fn beside_a_primary() -> Resource {
    let mut resource = attached(ResourceOptions::default(), |_| {});
    resource.peers[0].link = Link::Up;
    resource.peers[0].agreed_features = feature::OURS;
    resource.peers[0].net.allow_two_primaries = true;
    resource.st.peers[0].conn = ConnState::Connected;
    resource.st.peers[0].role = Role::Primary;
    resource
}

/// What it says of joining.
fn said(resource: &mut Resource) -> Vec<JointWord> {
    let word = |output| match output {
        Output::Send { packet: Packet::Joint(word), .. } => Some(word),
        _ => None,
    };
    std::iter::from_fn(|| resource.poll()).filter_map(word).collect()
}

#[test]
fn who_has_given_up_does_not_become_primary() {
    let mut resource = beside_a_primary();
    let job = resource.want(JobKind::Primary { force: false }, Some(7));
    assert!(matches!(resource.start_joining(job, 0), Start::At(_)));
    resource.joint_word(0, JointWord::Joined).unwrap();
    assert_eq!(
        (resource.joint(), said(&mut resource)),
        (Some(Some(resource.peers[0].node)), vec![JointWord::Join])
    );
    let mut resource = beside_a_primary();
    let job = resource.want(JobKind::Primary { force: false }, Some(7));
    assert!(matches!(resource.start_joining(job, 0), Start::At(_)));
    resource.finish_job(job, Err(StateError::Timeout.into()));
    resource.joint_word(0, JointWord::Joined).unwrap();
    assert_eq!(
        (resource.joint(), said(&mut resource)),
        (None, vec![JointWord::Join, JointWord::Leave])
    );
}

#[test]
fn a_primary_that_does_not_answer_is_asked_again_by_who_comes_next() {
    let mut resource = beside_a_primary();
    let first = resource.want(JobKind::Primary { force: false }, Some(7));
    let next = resource.want(JobKind::Primary { force: false }, Some(8));
    let Start::At(until) = resource.start_joining(first, 0) else { panic!("it waits") };
    assert!(matches!(resource.start_joining(next, 0), Start::At(at) if at == until));
    resource.now = until;
    let Start::At(later) = resource.start_joining(next, 0) else { panic!("it waits") };
    assert!(later > until);
    assert_eq!(said(&mut resource), [JointWord::Join, JointWord::Join]);
    resource.now = later;
    let refused = resource.start_joining(next, 0);
    assert!(matches!(refused, Start::Done(Err(_))));
}
