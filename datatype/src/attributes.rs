//! Attributes: values that users hang on an object, under keys of their own.
//!
//! A [`Keyval`] is a value that says what happens to an attribute when its
//! object is duplicated (copy function) and when the attribute goes away
//! (delete function). [`Attributes`] is the place for them inside of an object
//! of type `O`: a datatype here, a communicator elsewhere. A key for one kind
//! of object does not fit another, nor a value of another type; the compiler
//! checks both.
//!
//! # Invariants
//! 1. There is no table of keys: a key is found by its address, and every
//!    attribute keeps its key alive. Dropping the last [`Keyval`] frees the key
//!    once no attribute has it, as MPI frees keyvals.
//! 2. The delete function runs exactly once with success for every attribute
//!    that is overwritten or deleted, or whose object goes away, however many
//!    threads try: who takes the attribute out runs it. If it fails, the
//!    attribute is put back (but for the last case, where nothing can be).
//! 3. A key has at most one attribute on an object.
//! 4. No lock is held while a function of the user runs, so it may use the
//!    attributes of the same object.
//!
//! # Sources
//! MPI 5.0, section 7.7 (caching). Deletion order is that which the standard
//! asks for `MPI_COMM_SELF`: the reverse of the order of setting.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a copy or delete function of the user fails with.
pub type AttributeFailure = Box<dyn Error + Send + Sync>;

/// A copy or delete function of the user failed.
#[derive(Debug, Clone)]
pub struct AttributeError {
    function: AttributeFunction,
    source: Arc<AttributeFailure>,
}

/// Which function of a key failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributeFunction {
    /// The copy function: nothing was duplicated.
    Copy,
    /// The delete function: the attribute is still set.
    Delete,
}

impl AttributeError {
    fn copy(source: AttributeFailure) -> Self {
        AttributeError {
            function: AttributeFunction::Copy,
            source: Arc::new(source),
        }
    }

    fn delete(source: AttributeFailure) -> Self {
        AttributeError {
            function: AttributeFunction::Delete,
            source: Arc::new(source),
        }
    }

    /// Which function failed.
    pub fn function(&self) -> AttributeFunction {
        self.function
    }

    /// What it failed with.
    pub fn failure(&self) -> &(dyn Error + Send + Sync + 'static) {
        &**self.source
    }
}

impl PartialEq for AttributeError {
    /// Whether both tell of the same failure.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.source, &other.source)
    }
}

impl Eq for AttributeError {}

impl fmt::Display for AttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = match self.function {
            AttributeFunction::Copy => "copy",
            AttributeFunction::Delete => "delete",
        };
        write!(
            f,
            "{function} function of an attribute failed: {}",
            self.source
        )
    }
}

impl Error for AttributeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&**self.source)
    }
}

type Copy<O, T> = dyn Fn(&O, &Arc<T>) -> Result<Option<Arc<T>>, AttributeFailure> + Send + Sync;
type Delete<T> = dyn Fn(&T) -> Result<(), AttributeFailure> + Send + Sync;
type Value = Arc<dyn Any + Send + Sync>;

/// A key for attributes of type `T` on objects of type `O`.
///
/// Cheap to clone; clones are the same key.
///
/// ```
/// use osier_datatype::{Basic, Keyval, Type};
///
/// // A label that a duplicate inherits.
/// let label = Keyval::<Type, String>::inherited();
/// let ty = Type::basic(Basic::F64);
/// ty.attributes().set(&label, "pressure".to_owned())?;
/// let twin = ty.dup()?;
/// assert_eq!(*twin.attributes().get(&label).unwrap(), "pressure");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A value of another type does not fit:
///
/// ```compile_fail
/// # use osier_datatype::{Basic, Keyval, Type};
/// let label = Keyval::<Type, String>::inherited();
/// Type::basic(Basic::F64).attributes().set(&label, 7);
/// ```
///
/// Nor does the key of another kind of object:
///
/// ```compile_fail
/// # use osier_datatype::{Basic, Keyval, Type};
/// let label = Keyval::<Basic, String>::inherited();
/// Type::basic(Basic::F64).attributes().get(&label);
/// ```
pub struct Keyval<O, T>(Arc<Key<O, T>>);

struct Key<O, T> {
    copy: Box<Copy<O, T>>,
    delete: Box<Delete<T>>,
}

impl<O: 'static, T: Send + Sync + 'static> Keyval<O, T> {
    /// A key whose attributes a duplicate does not get, and whose values are
    /// only dropped (`MPI_TYPE_NULL_COPY_FN`, `MPI_TYPE_NULL_DELETE_FN`).
    #[allow(clippy::new_without_default, reason = "two keys are never equal")]
    pub fn new() -> Self {
        Self::with(|_, _| Ok(None), |_| Ok(()))
    }

    /// A key whose values a duplicate shares (`MPI_TYPE_DUP_FN`).
    pub fn inherited() -> Self {
        Self::with(|_, value| Ok(Some(value.clone())), |_| Ok(()))
    }

    /// A key with functions of its own. `copy` is called with the object that
    /// is being duplicated and the value there, and returns the duplicate's, if
    /// it gets one. `delete` is called once per attribute, before its value is
    /// dropped; the attribute is taken out while it runs.
    pub fn with(
        copy: impl Fn(&O, &Arc<T>) -> Result<Option<Arc<T>>, AttributeFailure> + Send + Sync + 'static,
        delete: impl Fn(&T) -> Result<(), AttributeFailure> + Send + Sync + 'static,
    ) -> Self {
        Keyval(Arc::new(Key {
            copy: Box::new(copy),
            delete: Box::new(delete),
        }))
    }

    fn address(&self) -> *const () {
        Arc::as_ptr(&self.0).cast()
    }
}

impl<O, T> Clone for Keyval<O, T> {
    fn clone(&self) -> Self {
        Keyval(self.0.clone())
    }
}

impl<O, T> PartialEq for Keyval<O, T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<O, T> Eq for Keyval<O, T> {}

impl<O, T> fmt::Debug for Keyval<O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyval({:p})", Arc::as_ptr(&self.0))
    }
}

/// A key without the type of its values.
trait AnyKey<O>: Send + Sync {
    fn address(&self) -> *const ();
    fn copy(&self, object: &O, value: &Value) -> Result<Option<Value>, AttributeFailure>;
    fn delete(&self, value: &Value) -> Result<(), AttributeFailure>;
}

impl<O: 'static, T: Send + Sync + 'static> AnyKey<O> for Keyval<O, T> {
    fn address(&self) -> *const () {
        Keyval::address(self)
    }

    fn copy(&self, object: &O, value: &Value) -> Result<Option<Value>, AttributeFailure> {
        let copied = (self.0.copy)(object, &typed::<T>(value))?;
        Ok(copied.map(|value| value as Value))
    }

    fn delete(&self, value: &Value) -> Result<(), AttributeFailure> {
        (self.0.delete)(&typed::<T>(value))
    }
}

fn typed<T: Send + Sync + 'static>(value: &Value) -> Arc<T> {
    match value.clone().downcast() {
        Ok(value) => value,
        Err(_) => unreachable!("a key's values have its type: set is the only way in"),
    }
}

struct Entry<O> {
    key: Arc<dyn AnyKey<O>>,
    value: Value,
}

impl<O> Clone for Entry<O> {
    fn clone(&self) -> Self {
        Entry {
            key: self.key.clone(),
            value: self.value.clone(),
        }
    }
}

/// The attributes of one object of type `O`, in the order of setting.
///
/// Dropping them runs the delete functions, the last attribute's first; what
/// these return is ignored then. Call [`Attributes::clear`] before to see it.
pub struct Attributes<O>(Mutex<Vec<Entry<O>>>);

impl<O> Attributes<O> {
    /// None.
    pub const fn new() -> Self {
        Attributes(Mutex::new(Vec::new()))
    }

    /// How many are set.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether none is set.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Deletes all, the last one set first.
    ///
    /// # Errors
    /// Stops where a delete function fails; that attribute and those before it
    /// are still set.
    pub fn clear(&self) -> Result<(), AttributeError> {
        loop {
            // The lock ends with the statement, before the function runs.
            let last = self.lock().pop();
            match last {
                Some(entry) => self.finish(entry)?,
                None => return Ok(()),
            }
        }
    }

    /// The attributes that a duplicate of `object`, which holds these, gets:
    /// the copy functions in the order of setting.
    ///
    /// # Errors
    /// A copy function failed; what had been copied before is deleted again.
    pub fn duplicate(&self, object: &O) -> Result<Attributes<O>, AttributeError> {
        let entries = self.lock().clone();
        let copies = Attributes::new();
        for Entry { key, value } in entries {
            if let Some(value) = key.copy(object, &value).map_err(AttributeError::copy)? {
                copies.lock().push(Entry { key, value });
            }
        }
        Ok(copies)
    }

    /// Runs the delete function of an entry that was taken out; puts it back if
    /// that fails, unless another thread has set the key since.
    fn finish(&self, entry: Entry<O>) -> Result<(), AttributeError> {
        let failed = entry.key.delete(&entry.value).err();
        failed.map_or(Ok(()), |failure| {
            let mut entries = self.lock();
            if !entries
                .iter()
                .any(|e| e.key.address() == entry.key.address())
            {
                entries.push(entry);
            }
            Err(AttributeError::delete(failure))
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry<O>>> {
        // No function of the user runs under the lock, so nothing is half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O: 'static> Attributes<O> {
    /// Sets the attribute under `key`. One that is there is deleted first.
    ///
    /// # Errors
    /// The delete function of the old value failed, which then stays.
    pub fn set<T: Send + Sync + 'static>(
        &self,
        key: &Keyval<O, T>,
        value: T,
    ) -> Result<(), AttributeError> {
        let entry = Entry {
            key: Arc::new(key.clone()) as Arc<dyn AnyKey<O>>,
            value: Arc::new(value) as Value,
        };
        loop {
            let old = {
                let mut entries = self.lock();
                let Some(old) = take(&mut entries, key) else {
                    entries.push(entry);
                    return Ok(());
                };
                old
            };
            self.finish(old)?;
        }
    }

    /// The attribute under `key`, if it is set.
    pub fn get<T: Send + Sync + 'static>(&self, key: &Keyval<O, T>) -> Option<Arc<T>> {
        let entries = self.lock();
        let entry = entries
            .iter()
            .find(|entry| entry.key.address() == key.address());
        entry.map(|entry| typed(&entry.value))
    }

    /// Deletes the attribute under `key`; says whether there was one.
    ///
    /// # Errors
    /// The delete function failed; the attribute is still set.
    pub fn delete<T: Send + Sync + 'static>(
        &self,
        key: &Keyval<O, T>,
    ) -> Result<bool, AttributeError> {
        let old = take(&mut self.lock(), key);
        match old {
            Some(entry) => self.finish(entry).map(|()| true),
            None => Ok(false),
        }
    }
}

fn take<O: 'static, T: Send + Sync + 'static>(
    entries: &mut Vec<Entry<O>>,
    key: &Keyval<O, T>,
) -> Option<Entry<O>> {
    let mine = |entry: &Entry<O>| entry.key.address() == key.address();
    entries.iter().position(mine).map(|i| entries.remove(i))
}

impl<O> Default for Attributes<O> {
    fn default() -> Self {
        Self::new()
    }
}

impl<O> fmt::Debug for Attributes<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attributes({} set)", self.len())
    }
}

impl<O> Drop for Attributes<O> {
    fn drop(&mut self) {
        let entries = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        while let Some(Entry { key, value }) = entries.pop() {
            // Nobody is left to hear of a failure.
            let _ = key.delete(&value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object of some kind, with a log of what the functions saw.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Log {
        fn say(&self, word: impl Into<String>) {
            self.0.lock().unwrap().push(word.into());
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }

        fn key(&self, name: &'static str) -> Keyval<Log, i32> {
            let (copies, deletes) = (self.clone(), self.clone());
            Keyval::with(
                move |_, value: &Arc<i32>| {
                    copies.say(format!("copy {name} {value}"));
                    match **value {
                        i32::MIN..0 => Err("negative".into()),
                        0 => Ok(None),
                        _ => Ok(Some(Arc::new(**value + 1))),
                    }
                },
                move |value| {
                    deletes.say(format!("delete {name} {value}"));
                    if *value == 99 {
                        return Err("not yet".into());
                    }
                    Ok(())
                },
            )
        }
    }

    #[test]
    fn functions_run_when_the_standard_says() {
        let log = Log::default();
        let (a, b, zero) = (log.key("a"), log.key("b"), log.key("zero"));
        let attributes = Attributes::new();
        attributes.set(&a, 1).unwrap();
        attributes.set(&b, 10).unwrap();
        attributes.set(&zero, 0).unwrap();
        assert_eq!(log.take(), [""; 0]);
        attributes.set(&a, 2).unwrap();
        assert_eq!(log.take(), ["delete a 1"]);
        assert_eq!(attributes.get(&a).as_deref(), Some(&2));

        let copies = attributes.duplicate(&log).unwrap();
        assert_eq!(log.take(), ["copy b 10", "copy zero 0", "copy a 2"]);
        assert_eq!(copies.get(&a).as_deref(), Some(&3));
        assert_eq!(copies.get(&zero), None);
        assert_eq!(copies.len(), 2);

        assert!(copies.delete(&b).unwrap());
        assert!(!copies.delete(&b).unwrap());
        assert_eq!(log.take(), ["delete b 11"]);
        // A key lives as long as attributes do.
        drop((a, b, zero));
        drop(copies);
        assert_eq!(log.take(), ["delete a 3"]);
        drop(attributes);
        assert_eq!(log.take(), ["delete a 2", "delete zero 0", "delete b 10"]);
    }

    #[test]
    fn failures_change_nothing() {
        let log = Log::default();
        let (a, b) = (log.key("a"), log.key("b"));
        let attributes = Attributes::new();
        attributes.set(&a, 5).unwrap();
        attributes.set(&b, -1).unwrap();
        let error = attributes.duplicate(&log).unwrap_err();
        assert_eq!(
            error.to_string(),
            "copy function of an attribute failed: negative"
        );
        assert_eq!(log.take(), ["copy a 5", "copy b -1", "delete a 6"]);
        attributes.set(&b, 99).unwrap();
        assert!(attributes.set(&b, 3).is_err());
        assert!(attributes.delete(&b).is_err());
        assert!(attributes.clear().is_err());
        assert_eq!(attributes.get(&b).as_deref(), Some(&99));
        assert_eq!(attributes.len(), 2);
    }

    /// Threads that set and delete one key: every value is deleted once.
    #[test]
    fn threads_delete_every_value_once() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let log = deleted.clone();
        let key = Keyval::<(), usize>::with(
            |_, _| Ok(None),
            move |&value| {
                log.lock().unwrap().push(value);
                Ok(())
            },
        );
        let attributes = Attributes::new();
        std::thread::scope(|s| {
            for thread in 0..4 {
                let (attributes, key) = (&attributes, &key);
                s.spawn(move || {
                    for i in 0..200 {
                        attributes.set(key, thread * 1000 + i).unwrap();
                        assert!(attributes.len() <= 1);
                        if i % 3 == 0 {
                            attributes.delete(key).unwrap();
                        }
                    }
                });
            }
        });
        drop(attributes);
        let mut deleted = std::mem::take(&mut *deleted.lock().unwrap());
        deleted.sort_unstable();
        let all = (0..4).flat_map(|thread| (0..200).map(move |i| thread * 1000 + i));
        assert!(deleted.into_iter().eq(all));
    }

    #[test]
    fn functions_may_use_the_attributes_of_their_object() {
        let attributes = Arc::new(Attributes::<()>::new());
        let seen = Keyval::<(), i32>::inherited();
        let inside = attributes.clone();
        let key = seen.clone();
        let nosy =
            Keyval::<(), i32>::with(|_, _| Ok(None), move |value| Ok(inside.set(&key, *value)?));
        attributes.set(&nosy, 7).unwrap();
        attributes.delete(&nosy).unwrap();
        assert_eq!(attributes.get(&seen).as_deref(), Some(&7));
        let copies = attributes.duplicate(&()).unwrap();
        assert!(Arc::ptr_eq(
            &copies.get(&seen).unwrap(),
            &attributes.get(&seen).unwrap()
        ));
    }
}
