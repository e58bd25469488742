//! Steps of a rollback: down everywhere, then the snapshot's data on all who have it, then the other
//! replicas empty. They come up again, and the empty ones are made anew, by the plan that follows.

use super::step::Action;
use super::{Ask, Plan};
use crate::objects::{Rollback, RollbackPhase};

/// Adds the steps of the rollback that is under way.
pub(super) fn plan(ask: &Ask<'_>, rollback: &Rollback, plan: &mut Plan) {
    let (name, token) = (&ask.definition.name, rollback.token);
    let state = |node| ask.observed.rollback(name, node, token);
    let changing = rollback.phase == RollbackPhase::Changing;
    // Nobody's data go before the snapshot's are there.
    let restored = ask
        .resources
        .keys()
        .filter(|node| rollback.holders.contains(*node))
        .all(|node| state(node).is_some_and(|down| down.changed));
    for (node, resource) in &ask.resources {
        let holder = rollback.holders.contains(node);
        let action = match state(node) {
            None => Action::TakeDown { token, guard: None },
            Some(down) if down.changed || !changing || !resource.is_diskful() => continue,
            Some(_) if holder => Action::RollBack { token, snapshot: rollback.snapshot.clone() },
            Some(_) if restored => Action::Discard { token },
            Some(_) => continue,
        };
        if ask.observed.is_connected(node) {
            plan.push(node, action, Vec::new());
        } else {
            plan.wait(
                Some(node),
                format!(
                    "node {node} is not connected: {name} is down until it has been rolled back to \
                     {} there, too; if the node never is back, `node lost {node}` forgets it",
                    rollback.snapshot
                ),
            );
        }
    }
}
