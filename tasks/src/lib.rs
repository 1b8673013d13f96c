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
//! | [`slot`], [`memory`] | where messages lie |
//! | [`word`] | who may run a task, and when: the words of tasks and edges |
//! | [`inbox`], [`mod@line`] | tasks that other threads have fired; messages without room |
//! | [`failure`] | why a task ended |
//! | [`describe`] | descriptions of graphs |
//! | [`shape`] | the tasks and edges of one rank |
//! | [`build`] | from a description to a shape, over all ranks |
//! | [`firable`] | whether each task can be fired at all |
//! | [`task`], [`context`] | what users write, and what it sees |
//! | `watch` | what is seen of each call of a task: times, timelines |
//! | [`victims`], [`places`] | from whom workers steal; the processors on which they run |
//! | [`instance`] | a run: what changes while it runs |
//! | [`event`] | what tasks wait for besides messages |
//! | `writing`, [`delivery`], `running` | messages on their way to tasks; firings |
//! | `ready` | tasks that are ready to run |
//! | [`orphan`] | tasks that can no longer be fired |
//! | `residual` | what tasks wait for, in words |
//! | [`worker`] | what a thread does that runs tasks |
//! | `idle`, [`report`] | idle time of a worker; what a run did |
//! | `progress` | who handles messages while tasks run |
//! | [`child`] | graphs that tasks begin |
//! | `layered`, `svg`, [`picture`] | layout of directed graphs, drawings, pictures of graphs |
//! | [`graph`] | building a graph on all ranks |
//! | `traffic` | what goes between ranks |
//! | `over_lane`, [`linked`] | the lane of a graph; runs over it |
//! | [`stacks`] | virtual ranks: many ranks on one worker, each on a stack of its own |

#![allow(
    missing_docs,
    reason = "not published: `pub` is what the crates above need"
)]

pub mod build;
pub mod child;
pub mod context;
pub mod delivery;
pub mod describe;
pub mod event;
pub mod failure;
pub mod firable;
pub mod graph;
mod idle;
pub mod inbox;
pub mod instance;
mod layered;
pub mod layout;
pub mod line;
pub mod linked;
pub mod memory;
pub mod orphan;
mod over_lane;
pub mod picture;
pub mod placement;
pub mod places;
mod progress;
mod ready;
pub mod report;
mod residual;
pub mod rule;
mod running;
pub mod shape;
pub mod slot;
pub mod space;
pub mod stacks;
mod svg;
mod sync;
pub mod task;
mod traffic;
pub mod victims;
mod watch;
pub mod word;
pub mod worker;
mod writing;
