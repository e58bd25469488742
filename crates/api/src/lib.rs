//! Contracts between the processes of the control plane: data only, no behaviour.
#![forbid(unsafe_code)]

pub mod link;
pub mod token;
pub mod wire;
