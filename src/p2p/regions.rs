//! Several parts of one buffer under way at the same time: halos.
//!
//! A face that is sent and a ghost face that is received lie in one array, and
//! one `&mut` to the array cannot be lent twice. [`Regions`] proves once that
//! what is received into is disjoint from everything else; then one mutable
//! borrow serves all transfers of a scope.

use super::names::{self, Rank, Source, Tag, TagSelector};
use super::scope::{Scope, ScopedRequest};
use super::view::{RawView, View, ViewMut};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::lane::Mode;
use osier_datatype::{Datatype, Layout};
use std::cell::RefCell;

/// Part of a buffer: a layout with its origin at an element.
#[derive(Clone, Debug)]
pub struct Region {
    /// The layout.
    pub layout: Layout,
    /// Element at which the layout's origin lies.
    pub origin: usize,
}

impl Region {
    /// A layout whose origin is the buffer's first element.
    pub fn new(layout: Layout) -> Self {
        Self { layout, origin: 0 }
    }
}

/// Parts of a buffer of `T` to send from and to receive into, checked to be
/// disjoint.
#[derive(Clone, Debug)]
pub struct Regions<T: Datatype> {
    sends: Vec<Region>,
    receives: Vec<Region>,
    element: std::marker::PhantomData<T>,
}

impl<T: Datatype> Regions<T> {
    /// Checks that no two parts that are received into share a byte, nor one
    /// that is received into and one that is sent. The cost is paid here, once.
    pub fn new(sends: Vec<Region>, receives: Vec<Region>) -> Result<Self> {
        for (i, r) in receives.iter().enumerate() {
            r.layout.check_receive(1)?;
            let others = receives[i + 1..].iter().map(|o| (o, "receive"));
            for (o, what) in others.chain(sends.iter().map(|s| (s, "send"))) {
                let apart = (o.origin as i128 - r.origin as i128) * size_of::<T>() as i128;
                let apart = isize::try_from(apart)
                    .map_err(|_| Error::new(ErrorKind::Argument, "regions lie too far apart"))?;
                if r.layout.overlaps(1, &o.layout, 1, apart) {
                    return Err(Error::new(
                        ErrorKind::Argument,
                        format!("receive region {i} shares bytes with a {what} region"),
                    ));
                }
            }
        }
        Ok(Self {
            sends,
            receives,
            element: std::marker::PhantomData,
        })
    }
}

/// A buffer lent to a scope, part by part.
#[derive(Debug)]
pub struct RegionSet<'scope, 'env, T: Datatype> {
    scope: &'scope Scope<'scope, 'env>,
    regions: &'scope Regions<T>,
    sends: Vec<RawView>,
    /// A part is received into once.
    receives: RefCell<Vec<Option<RawView>>>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Lends a buffer to the scope, to send from some parts while others are
    /// received into.
    pub fn regions<T: Datatype>(
        &'scope self,
        buffer: &'scope mut [T],
        regions: &'scope Regions<T>,
    ) -> Result<RegionSet<'scope, 'env, T>> {
        let receives = regions
            .receives
            .iter()
            .map(|r| ViewMut::new(buffer, r.origin, &r.layout, 1).map(|v| Some(v.raw())))
            .collect::<Result<_>>()?;
        let sends = regions
            .sends
            .iter()
            .map(|r| View::new(buffer, r.origin, &r.layout, 1).map(View::raw))
            .collect::<Result<_>>()?;
        Ok(RegionSet {
            scope: self,
            regions,
            sends,
            receives: RefCell::new(receives),
        })
    }
}

impl<'scope, T: Datatype> RegionSet<'scope, '_, T> {
    /// Begins to send the part with the given index.
    #[track_caller]
    pub fn isend(
        &self,
        index: usize,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<ScopedRequest<'scope>> {
        let view = self.sends.get(index).cloned();
        let view = view.ok_or_else(|| missing("send", index, self.regions.sends.len()))?;
        self.scope
            .send_raw(view, dest.into(), tag.into(), Mode::Standard)
    }

    /// Begins to receive into the part with the given index, once.
    #[track_caller]
    pub fn irecv(
        &self,
        index: usize,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<ScopedRequest<'scope>> {
        let size = self.scope.communicator().peer_count();
        let pattern = names::pattern(source.into(), tag.into(), size)?;
        let mut receives = self.receives.borrow_mut();
        let count = receives.len();
        let view = receives
            .get_mut(index)
            .ok_or_else(|| missing("receive", index, count))?
            .take();
        let view = view.ok_or_else(|| {
            Error::new(
                ErrorKind::Argument,
                format!("receive region {index} is in use already"),
            )
        })?;
        self.scope.recv_raw(view, pattern)
    }
}

fn missing(what: &str, index: usize, count: usize) -> Error {
    Error::new(
        ErrorKind::Argument,
        format!("{what} region {index} of {count}"),
    )
}
