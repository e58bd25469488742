//! What the operator's listings say, in the fields that the story looks at.

use serde::Deserialize;

/// A row of `ashlar volume list --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Volume {
    /// Its name.
    pub volume: String,
    /// What its replicas come to.
    pub state: String,
    /// Nodes with a disk.
    pub replicas: Vec<String>,
}

impl Volume {
    /// True if every replica is current.
    pub fn is_whole(&self) -> bool {
        self.state == "UpToDate"
    }
}

/// A row of `ashlar node list --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    /// Its name.
    pub node: String,
    /// In a word.
    pub state: String,
}

/// What of `ashlar node info --json` is looked at.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeInfo {
    /// What is there of volumes.
    pub volumes: Vec<OnNode>,
}

/// A volume on a node.
#[derive(Clone, Debug, Deserialize)]
pub struct OnNode {
    /// Its name.
    pub volume: String,
    /// What the node has of it.
    pub part: String,
}

/// A row of `ashlar storage-pool list --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Pool {
    /// Its size, once it is known.
    pub total_kib: Option<i64>,
    /// What is wrong with it.
    pub problems: Vec<String>,
}
