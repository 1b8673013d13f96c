//! Values whose `Drop` runs code of the user.

use super::run::Combiner;
use std::any::Any;
use std::task::Waker;

/// A value that must not be dropped under a lane's lock.
pub enum Foreign {
    Waker(Waker),
    /// Memory that an operation owned, or the payload of a panic.
    Value(Box<dyn Any + Send>),
    Operator(Combiner),
}
