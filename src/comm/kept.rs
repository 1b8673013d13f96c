//! State that a layer above keeps on a communicator, which knows no type of it.

use std::any::Any;
use std::sync::OnceLock;

/// One layer's state, made when it is first asked for.
#[derive(Default)]
pub(crate) struct Kept(OnceLock<Box<dyn Any + Send + Sync>>);

impl Kept {
    /// The state, which is of one type always.
    pub fn get<T: Default + Send + Sync + 'static>(&self) -> &T {
        let kept = self.0.get_or_init(|| Box::new(T::default()));
        let state = (**kept).downcast_ref();
        state.expect("one layer keeps one type here")
    }
}
