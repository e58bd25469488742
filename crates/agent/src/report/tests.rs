//! Answers and events of the engine come by two connections, and may overtake each other.

use codec::admin::WriteOrdering;
use vocab::{NodeId, Role, Suspended};

use super::*;

fn status(role: Role) -> ResourceStatus {
    ResourceStatus {
        name: "web".to_owned(),
        node_id: NodeId::new(0).unwrap(),
        role,
        suspended: Suspended::default(),
        force_io_failures: false,
        write_ordering: WriteOrdering::Flush,
        may_promote: true,
        promotion_score: 1,
        devices: Vec::new(),
        connections: Vec::new(),
    }
}

fn role(view: &View) -> Option<Role> {
    view.lock().statuses.get("web").map(|status| status.role)
}

#[test]
fn an_answer_does_not_replace_what_the_engine_has_told_since() {
    let view = View::default();
    view.asks("web");
    view.told("web", Some(status(Role::Primary)));
    assert!(!view.answered("web", Some(status(Role::Secondary))));
    assert_eq!(role(&view), Some(Role::Primary));
    assert!(view.lock().in_use.contains_key("web"));

    view.asks("web");
    view.told("web", None);
    assert!(!view.answered("web", Some(status(Role::Secondary))));
    assert_eq!(role(&view), None);

    view.asks("web");
    view.told("web", Some(status(Role::Secondary)));
    assert!(!view.answered("web", None));
    assert_eq!(role(&view), Some(Role::Secondary));
}

#[test]
fn an_answer_of_an_engine_that_is_gone_says_nothing() {
    let view = View::default();
    view.asks("web");
    view.clear();
    assert!(!view.answered("web", Some(status(Role::Primary))));
    assert_eq!(role(&view), None);
}

#[test]
fn an_answer_counts_when_nothing_was_told_meanwhile() {
    let view = View::default();
    view.told("web", Some(status(Role::Secondary)));
    view.asks("web");
    view.told("db", None);
    assert!(view.answered("web", Some(status(Role::Primary))));
    assert_eq!(role(&view), Some(Role::Primary));
    view.asks("web");
    assert!(view.answered("web", None));
    assert_eq!(role(&view), None);
    assert!(view.lock().in_use.is_empty());
}
