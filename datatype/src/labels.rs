//! Name and attributes of a type.
//!
//! Neither changes what the type describes. They belong to the type, not to a
//! clone of it, and go when its last clone goes (or the last type that was
//! constructed from it).

use crate::{AttributeError, Attributes, Constructor, Type};
use std::sync::{Arc, Mutex, PoisonError};

/// Name and attributes of one type.
#[derive(Default)]
pub(crate) struct Labels {
    name: Mutex<Option<Arc<str>>>,
    attributes: Attributes<Type>,
}

impl Type {
    /// The name that was set, else the name of a predefined type, else empty.
    pub fn name(&self) -> Arc<str> {
        let set = self.0.labels.get().and_then(|labels| {
            let name = labels.name.lock().unwrap_or_else(PoisonError::into_inner);
            name.clone()
        });
        set.unwrap_or_else(|| match self.constructor() {
            Constructor::Basic(basic) => basic.mpi_name().unwrap_or(basic.name()).into(),
            Constructor::Pair(pair) => pair.mpi_name().into(),
            _ => "".into(),
        })
    }

    /// Names the type and all clones of it, for messages and debuggers. A
    /// duplicate has no name.
    pub fn set_name(&self, name: &str) {
        let mut place = self
            .labels()
            .name
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Some(name.into());
    }

    /// The attributes of the type and all clones of it.
    ///
    /// The type of a Rust number (`f64::datatype()`) is one for all users in the
    /// process: duplicate it to have one's own.
    pub fn attributes(&self) -> &Attributes<Type> {
        &self.labels().attributes
    }

    /// Sets what the attributes of `old` hand on to a duplicate.
    pub(crate) fn inherit_attributes(&self, old: &Type) -> Result<(), AttributeError> {
        if let Some(labels) = old.0.labels.get() {
            let attributes = labels.attributes.duplicate(old)?;
            if !attributes.is_empty() {
                self.0.labels.get_or_init(|| {
                    Box::new(Labels {
                        name: Mutex::default(),
                        attributes,
                    })
                });
            }
        }
        Ok(())
    }

    fn labels(&self) -> &Labels {
        self.0.labels.get_or_init(Box::default)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Basic, Keyval, Pair, Type};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn names_belong_to_a_type() {
        let ty = Type::contiguous(3, &Type::basic(Basic::F64)).unwrap();
        assert_eq!(&*ty.name(), "");
        assert_eq!(&*Type::basic(Basic::F64).name(), "MPI_DOUBLE");
        assert_eq!(&*Type::pair(Pair::TwoInt).name(), "MPI_2INT");
        let clone = ty.clone();
        clone.set_name("triple");
        assert_eq!(&*ty.name(), "triple");
        assert_eq!(&*ty.dup().unwrap().name(), "");
    }

    #[test]
    fn attributes_go_with_the_last_handle() {
        let deleted = Arc::new(AtomicUsize::new(0));
        let count = deleted.clone();
        let key = Keyval::<Type, u32>::with(
            |ty, value| Ok((ty.size() == 8).then(|| value.clone())),
            move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            },
        );
        let ty = Type::basic(Basic::F64);
        ty.attributes().set(&key, 1).unwrap();
        let twin = ty.dup().unwrap();
        assert_eq!(twin.attributes().get(&key).as_deref(), Some(&1));
        let longer = Type::contiguous(2, &twin).unwrap();
        assert!(longer.attributes().is_empty());
        drop((ty, twin));
        // `longer` remembers how it was built, hence holds both.
        assert_eq!(deleted.load(Ordering::Relaxed), 0);
        drop(longer);
        assert_eq!(deleted.load(Ordering::Relaxed), 2);
    }
}
