//! A CUDA driver for machines without a GPU.
//!
//! Built as a library that is loaded in place of `libcuda.so.1`, so that the code
//! which drives a GPU runs unchanged, and is checked more strictly than a real
//! driver checks it.
//!
//! | module | duty |
//! |---|---|
//! | [`abi`] | types and numbers of the C interface |
//! | [`fault`] | named errors, injected failures, pointers of the caller |
//! | [`settings`] | environment variables |
//! | [`driver`] | all objects, behind one lock |
//! | [`memory`], [`ranges`] | addresses, files, what was freed |
//! | [`isolation`] | keeps the host away from device memory |
//! | [`sanitizer`] | tells an address sanitizer where allocations end |
//! | [`waits`] | calls that wait for work that is not theirs |
//! | [`work`], [`worker`] | operations of streams, the thread that runs them out of step, and the one that calls functions of the host |
//! | [`order`], [`record`] | accesses that nothing orders; what kernels touch |
//! | [`kernel_order`] | what blocks of kernels release and acquire |
//! | [`graph`] | captures and graphs |
//! | [`kernels`], [`grid`], [`fiber`] | kernels by name; blocks, threads, barriers, waits in memory |
//! | [`ipc`] | what other processes open |
//! | [`multicast`] | stores of kernels to memory of several devices at once |
//! | [`api`] | the entry points |
//!
//! # Invariants
//! 1. Queued work runs on the worker thread only; entry points copy nothing
//!    themselves, but for snapshots of pageable memory.
//! 2. A named error is printed with the entry point or stream that it belongs to.
//!
//! # What it does not show
//! Speed; data races and memory order between threads of a kernel (they run one
//! after the other), and between kernels of a process (one goes on while all threads of
//! the others sleep or wait); how a real driver orders what its documentation leaves open.
//!
//! # Sources
//! NVIDIA, CUDA Driver API reference, version 12.2.

pub mod abi;
pub mod api;
pub mod driver;
pub mod fault;
pub mod fiber;
pub mod graph;
pub mod grid;
pub mod ipc;
pub mod isolation;
pub mod kernel_order;
pub mod kernels;
pub mod memory;
pub mod multicast;
pub mod order;
pub mod random;
pub mod ranges;
pub mod record;
pub mod sanitizer;
pub mod settings;
pub mod visible;
pub mod waits;
pub mod work;
pub mod worker;
