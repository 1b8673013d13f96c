//! Datatypes: which bytes of memory a message is made of, and in what order.
//!
//! ```text
//! Type (a tree, as MPI builds it) --commit--> Layout (one canonical form)
//!                                               |-- blocks, span, overlaps
//!                                               `-- pack, unpack: any byte range
//! ```
//!
//! A [`Type`] is a value that describes; a [`Layout`] is its committed form,
//! equal for equal layouts however they were spelled. [`Datatype`] names the
//! Rust types that have one. The naive [`Typemap`] is the oracle of all tests
//! and stays out of every fast path.
//!
//! This room knows no device, rank or transport.
//!
//! # Map
//!
//! | module | duty |
//! |---|---|
//! | `basic`, `signature` | predefined types, signatures and their hash |
//! | `tree`, `constructors`, `darray`, `pairs` | the type tree: every constructor of MPI |
//! | `bounds`, `envelope` | size, bounds, alignment; how a type was built |
//! | `address` | displacements that count from address zero |
//! | `attributes`, `labels` | values that users hang on objects; names of types |
//! | `typemap` | the oracle, straight from the definition |
//! | `form`, `lower`, `list`, `compress` | the canonical form and the rewrite rules |
//! | `layout`, `nest`, `blocks`, `overlap` | what users of a committed layout ask |
//! | `copy` | pack and unpack of any byte range |
//! | `cursor` | pack and unpack one thing after the other |
//! | `external32`, `x87` | the portable representation |
//! | `wire` | a layout as bytes, for another process |
//! | `rust` | the [`Datatype`] trait |
//!
//! # Example
//!
//! ```
//! use osier_datatype::{Basic, Type};
//!
//! // Every second f64 of an array: 3 blocks of 8 bytes, 16 bytes apart.
//! let every_second = Type::vector(3, 1, 2, &Type::basic(Basic::F64))?;
//! let layout = every_second.commit()?;
//! assert_eq!(layout.size(), 24);
//! assert_eq!(
//!     layout.blocks(1).collect::<Vec<_>>(),
//!     [(0, 8), (16, 8), (32, 8)]
//! );
//! # Ok::<(), osier_datatype::TypeError>(())
//! ```

mod address;
mod attributes;
mod basic;
mod blocks;
mod bounds;
mod compress;
mod constructors;
mod copy;
mod cursor;
mod darray;
mod envelope;
mod error;
mod external32;
mod form;
mod labels;
mod layout;
mod list;
mod lower;
mod nest;
mod operator;
mod overlap;
mod pairs;
mod rust;
mod signature;
mod tree;
mod typemap;
mod wide;
mod wire;
mod x87;

pub use address::{address, bottom};
pub use attributes::{AttributeError, AttributeFailure, AttributeFunction, Attributes, Keyval};
pub use basic::{Basic, BasicKind, TypeClass};
pub use blocks::Blocks;
pub use copy::copy_bytes;
pub use darray::{DarrayDimension, Distribution};
pub use envelope::Combiner;
pub use error::TypeError;
pub use form::Level;
pub use layout::{Class, Layout};
pub use nest::{Core, Nest, Places, Runs};
pub use operator::{CombineFew, Element, Operator};
pub use pairs::Pair;
pub use rust::Datatype;
pub use signature::{Signature, SignatureDigest, SignatureRuns};
pub use tree::{Constructor, Order, Type};
pub use typemap::Typemap;

#[doc(hidden)]
pub use rust::derive_support;
