//! Questions to agents that are not answered yet.

use std::collections::BTreeMap;

use api::link::FIRST_TOKEN;
use cluster::name::NodeName;
use cluster::question::Reply;
use linstor::controller::Unanswered;
use tokio::sync::oneshot;

type To = oneshot::Sender<Result<Reply, Unanswered>>;

/// Who was asked what by a token, and who waits for the answer.
#[derive(Default)]
pub struct Questions {
    asked: u64,
    open: BTreeMap<u64, (NodeName, To)>,
}

impl Questions {
    /// The token of a new question.
    pub fn ask(&mut self, node: NodeName, to: To) -> u64 {
        // Nobody waits for those any more.
        self.open.retain(|_, (_, to)| !to.is_closed());
        let token = FIRST_TOKEN + self.asked;
        self.asked += 1;
        self.open.insert(token, (node, to));
        token
    }

    /// True if the node was asked this.
    pub fn is_one(&self, node: &NodeName, token: u64) -> bool {
        self.open.get(&token).is_some_and(|(asked, _)| asked == node)
    }

    /// A node has answered. What it was not asked is not heard.
    pub fn answered(&mut self, node: &NodeName, token: u64, reply: Reply) {
        if !self.is_one(node, token) {
            return;
        }
        if let Some((_, to)) = self.open.remove(&token) {
            // Who has gone away does not want to know.
            let _ = to.send(Ok(reply));
        }
    }

    /// The link of a node is lost, and with it the answers.
    pub fn lost(&mut self, node: &NodeName) {
        let asked =
            |(token, (asked, _)): (&u64, &(NodeName, To))| (asked == node).then_some(*token);
        let tokens: Vec<u64> = self.open.iter().filter_map(asked).collect();
        for (_, to) in tokens.iter().filter_map(|token| self.open.remove(token)) {
            let _ = to.send(Err(Unanswered::Lost));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_to_who_has_asked_that_node_and_a_lost_link_to_all_who_did() {
        let node = |name| NodeName::new(name).unwrap();
        let mut questions = Questions::default();
        let (one, mut first) = oneshot::channel();
        let (two, mut second) = oneshot::channel();
        let (token, other) = (questions.ask(node("n1"), one), questions.ask(node("n2"), two));
        assert!(token >= FIRST_TOKEN && other != token);
        questions.answered(&node("n2"), token, Reply::Done {});
        assert!(first.try_recv().is_err(), "n2 was not asked that");
        questions.answered(&node("N1"), token, Reply::Done {});
        assert_eq!(first.try_recv(), Ok(Ok(Reply::Done {})), "names match in any case");
        questions.answered(&node("n1"), token, Reply::Done {});
        questions.lost(&node("n1"));
        assert!(second.try_recv().is_err());
        questions.lost(&node("n2"));
        assert_eq!(second.try_recv(), Ok(Err(Unanswered::Lost)));
    }
}
