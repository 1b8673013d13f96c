//! Task graphs: families of persistent tasks, firing rules, workers.
//!
//! Unpublished. Each module uses those above it in this table only, but that a task is called
//! with a context of its run.
//!
//! | module | duty |
//! |---|---|
//! | [`space`] | coordinates of tasks |
//! | [`placement`] | which rank has which task |
//! | [`layout`] | edges of common shapes |
//! | [`rule`] | firing rules |
//! | [`slot`] | where messages lie |
//! | [`word`] | who may run a task, and when: the words of tasks and edges |
//! | [`inbox`], [`mod@line`] | tasks that other threads have fired; messages without room |
//! | [`failure`] | why a task ended |
//! | [`describe`] | descriptions of graphs |
//! | [`shape`] | the tasks and edges of one rank |
//! | [`build`] | from a description to a shape, over all ranks |
//! | [`firable`] | whether each task can be fired at all |
//! | [`task`], [`context`] | what users write, and what it sees |
//! | [`instance`] | a run: what changes while it runs |
//! | `writing`, `running` | messages on their way to tasks; firings |
//! | [`orphan`] | tasks that can no longer be fired |
//! | `residual` | what tasks wait for, in words |
//! | [`worker`] | what a thread does that runs tasks |
//! | [`graph`] | building a graph on all ranks |
//! | [`linked`] | runs over a lane of the engine |

#![allow(
    missing_docs,
    reason = "not published: `pub` is what the crates above need"
)]

pub mod build;
pub mod context;
pub mod describe;
pub mod failure;
pub mod firable;
pub mod graph;
pub mod inbox;
pub mod instance;
pub mod layout;
pub mod line;
pub mod linked;
pub mod orphan;
pub mod placement;
mod residual;
pub mod rule;
mod running;
pub mod shape;
pub mod slot;
pub mod space;
mod sync;
pub mod task;
pub mod word;
pub mod worker;
mod writing;
