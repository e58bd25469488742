//! Handlers of a resource that are running. Those that fence a peer, and release it again, run one
//! after the other: the last word has to be that of the last call.

use std::collections::VecDeque;

use codec::admin::ResourceStatus;
use replication::io::HandlerCall;
use vocab::{HandlerEvent, NodeId};

use crate::handlers::{Call, Programs};

pub(crate) struct Calls {
    pub(crate) programs: Programs,
    /// Calls about a peer's fencing: the first one of each peer is running, the others wait.
    fencing: VecDeque<(NodeId, u64, Option<Call>)>,
}

impl Calls {
    pub(crate) fn new(programs: Programs) -> Calls {
        Calls { programs, fencing: VecDeque::new() }
    }

    /// The core calls a handler. Gives what is to be run at once.
    pub(crate) fn called(
        &mut self,
        id: (u16, u64),
        status: &ResourceStatus,
        call: &HandlerCall,
    ) -> Option<Call> {
        let run = self.programs.call(id, status, call);
        let fences = matches!(call.event, HandlerEvent::FencePeer | HandlerEvent::UnfencePeer);
        let Some((peer, _)) = call.peer.filter(|_| fences) else { return Some(run) };
        let waits = self.fencing.iter().any(|(of, ..)| *of == peer);
        let (now, later) = if waits { (None, Some(run)) } else { (Some(run), None) };
        self.fencing.push_back((peer, id.1, later));
        now
    }

    /// One has ended. Gives the one that has waited for it.
    pub(crate) fn ended(&mut self, id: u64) -> Option<Call> {
        let at = self.fencing.iter().position(|(_, of, _)| *of == id)?;
        let (peer, ..) = self.fencing.remove(at)?;
        self.fencing.iter_mut().find(|(of, ..)| *of == peer)?.2.take()
    }
}
