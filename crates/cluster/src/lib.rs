//! The control plane's core: what is wanted, where it is placed, and the steps that lead there.
//!
//! Pure and deterministic: facts, time and chance come in as arguments. A controller keeps a
//! [`Model`](model::Model), changes it by [`apply`](apply::apply) and persists the changes; the simulator drives the very same code.
#![forbid(unsafe_code)]

pub mod apply;
pub mod calls;
pub mod change;
pub mod command;
pub mod cron;
pub mod disks;
pub mod dry_run;
pub mod edit;
pub mod errand;
pub mod eviction;
pub mod layer;
pub mod model;
pub mod name;
pub mod objects;
pub mod observed;
pub mod place;
pub mod plan;
pub mod props;
pub mod question;
pub mod redundancy;
pub mod refusal;
mod row;
pub mod schedule;
pub mod shipping;
pub mod size;
