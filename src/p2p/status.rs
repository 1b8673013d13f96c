//! Status of a completed request: source, tag and size of its message.
//!
//! Counts follow MPI 5.0, sections 3.2.5, 3.8.4 and 5.1.11: `count` is the
//! number of complete items of a type, `elements` that of predefined types, which
//! also counts a partial last item.

use osier_datatype::{Datatype, Layout};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::lane::Outcome;

/// What a receive says about its message.
///
/// ```
/// use osier::{Datatype, Status, Type};
///
/// // An i32 and two f64, and a message that ends within the second item.
/// let pair = Type::structure(&[(1, 0, i32::datatype()), (2, 8, f64::datatype())])?.commit()?;
/// let mut status = Status::new(3, 7, 20 + 12);
/// assert_eq!(status.count_of(&pair), None);
/// assert_eq!(status.elements_of(&pair), Some(3 + 2));
/// status.set_elements(&pair, 6)?;
/// assert_eq!(status.count_of(&pair), Some(2));
/// # Ok::<(), osier::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    source: Option<usize>,
    tag: Option<u32>,
    bytes: usize,
    cancelled: bool,
}

impl Status {
    /// Status of a receive from [`PROC_NULL`](crate::PROC_NULL), and of a
    /// request that is inactive.
    pub(crate) const EMPTY: Status = Status {
        source: None,
        tag: None,
        bytes: 0,
        cancelled: false,
    };

    /// Status of a receive that was cancelled.
    pub(crate) const CANCELLED: Status = Status {
        cancelled: true,
        ..Status::EMPTY
    };

    /// A status as if `bytes` bytes had come from `source` with `tag`, for
    /// generalised requests and layers above.
    pub fn new(source: usize, tag: u32, bytes: usize) -> Self {
        Status {
            source: Some(source),
            tag: Some(tag),
            bytes,
            cancelled: false,
        }
    }

    /// The status of no message at all: no source, no tag, no bytes.
    pub fn empty() -> Self {
        Self::EMPTY
    }

    /// Rank of the sender; `None` if it was [`PROC_NULL`](crate::PROC_NULL).
    pub fn source(&self) -> Option<usize> {
        self.source
    }

    /// Tag of the message; `None` if it came from
    /// [`PROC_NULL`](crate::PROC_NULL).
    pub fn tag(&self) -> Option<u32> {
        self.tag
    }

    /// Packed size of the message in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the request was cancelled: then nothing was received.
    pub fn cancelled(&self) -> bool {
        self.cancelled
    }

    /// Number of elements of a type; `None` if the message is no whole number
    /// of them.
    pub fn count<T: Datatype>(&self) -> Option<usize> {
        if T::DENSE {
            return whole(self.bytes, size_of::<T>());
        }
        self.count_of(&T::layout())
    }

    /// Number of items of a layout; `None` if the message is no whole number
    /// of them.
    pub fn count_of(&self, layout: &Layout) -> Option<usize> {
        whole(self.bytes, layout.size())
    }

    /// Number of predefined elements of a layout's items, the last of which
    /// may be there in part; `None` if the message ends within an element.
    pub fn elements_of(&self, layout: &Layout) -> Option<usize> {
        let signature = layout.signature();
        let (size, per_item) = (layout.size(), signature.elements() as usize);
        if size == 0 {
            return (self.bytes == 0).then_some(0);
        }
        let mut left = self.bytes % size;
        let mut elements = self.bytes / size * per_item;
        for (basic, n) in signature.runs() {
            if left == 0 {
                break;
            }
            let run = n as usize * basic.size();
            if left < run {
                return Some(elements + whole(left, basic.size())?);
            }
            left -= run;
            elements += n as usize;
        }
        Some(elements)
    }

    /// Sets the source; `None` as from [`PROC_NULL`](crate::PROC_NULL).
    pub fn set_source(&mut self, source: Option<usize>) {
        self.source = source;
    }

    /// Sets the tag.
    pub fn set_tag(&mut self, tag: Option<u32>) {
        self.tag = tag;
    }

    /// Sets the packed size in bytes.
    pub fn set_bytes(&mut self, bytes: usize) {
        self.bytes = bytes;
    }

    /// Sets the size to that of `elements` predefined elements of a layout's
    /// items.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the items have no elements, or the size exceeds the
    /// address space.
    pub fn set_elements(&mut self, layout: &Layout, elements: usize) -> Result<()> {
        let signature = layout.signature();
        let per_item = signature.elements() as usize;
        if per_item == 0 && elements == 0 {
            self.bytes = 0;
            return Ok(());
        }
        let overflow = || {
            Error::new(
                ErrorKind::Argument,
                format!("{elements} elements of a datatype that has {per_item} per item"),
            )
        };
        if per_item == 0 {
            return Err(overflow());
        }
        let items = elements / per_item;
        let mut left = elements % per_item;
        let mut bytes = items.checked_mul(layout.size()).ok_or_else(overflow)?;
        for (basic, n) in signature.runs() {
            let here = left.min(n as usize);
            bytes = bytes
                .checked_add(here * basic.size())
                .ok_or_else(overflow)?;
            left -= here;
            if left == 0 {
                break;
            }
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Says that the request was cancelled, or was not.
    pub fn set_cancelled(&mut self, cancelled: bool) {
        self.cancelled = cancelled;
    }
}

fn whole(bytes: usize, size: usize) -> Option<usize> {
    match size {
        0 => (bytes == 0).then_some(0),
        n => bytes.is_multiple_of(n).then_some(bytes / n),
    }
}

impl From<Outcome> for Status {
    #[inline]
    fn from(o: Outcome) -> Self {
        Status {
            source: Some(o.source as usize),
            tag: Some(o.tag),
            bytes: o.bytes,
            cancelled: false,
        }
    }
}

/// Forgets the buffer that a request gives back.
impl<B> From<(B, Status)> for Status {
    fn from((_, status): (B, Status)) -> Self {
        status
    }
}
