//! Several parts of one buffer under way at the same time: halos.
//!
//! A face that is sent and a ghost face that is received lie in one array, and
//! one `&mut` to the array cannot be lent twice. [`Regions`] proves once that
//! what is received into is disjoint from everything else; then one mutable
//! borrow serves all transfers of a scope.

use super::scope::{Scope, ScopedRequest};
use crate::names::{self, Rank, Source, Tag, TagSelector};
use osier_datatype::{Datatype, Layout};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::lane::Mode;
use osier_engine::progress::window::Handle;
use osier_engine::view::{RawView, View, ViewMut};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;

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
    /// Found when [`RegionSet::read`] first asks.
    written: Vec<OnceLock<Written>>,
    element: std::marker::PhantomData<T>,
}

impl<T: Datatype> Regions<T> {
    /// Checks that no two parts that are received into share a byte, nor one
    /// that is received into and one that is sent. The cost is paid here, once.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if parts share bytes of which one is received into, or
    /// lie too far apart; of kind [`ErrorKind::Datatype`], if a layout that is received into
    /// names a byte twice.
    pub fn new(sends: Vec<Region>, receives: Vec<Region>) -> Result<Self> {
        for (i, r) in receives.iter().enumerate() {
            r.layout.check_receive(1)?;
            let others = receives[i + 1..].iter().map(|o| (o, "receive"));
            for (o, what) in others.chain(sends.iter().map(|s| (s, "send"))) {
                let apart = (o.origin as i128 - r.origin as i128) * size_of::<T>() as i128;
                let apart = isize::try_from(apart).map_err(|_| {
                    let (one, other) = (r.origin, o.origin);
                    Error::new(
                        ErrorKind::Argument,
                        format!(
                            "receive region {i} at element {one} is too far from a {what} region at {other}"
                        ),
                    )
                })?;
                if r.layout.overlaps(1, &o.layout, 1, apart) {
                    return Err(Error::new(
                        ErrorKind::Argument,
                        format!("receive region {i} shares bytes with a {what} region"),
                    ));
                }
            }
        }
        Ok(Self {
            written: receives.iter().map(|_| OnceLock::new()).collect(),
            sends,
            receives,
            element: std::marker::PhantomData,
        })
    }

    fn written(&self, index: usize) -> &Written {
        self.written[index].get_or_init(|| Written::new(&self.receives[index], size_of::<T>()))
    }
}

/// A buffer lent to a scope, part by part.
#[derive(Debug)]
pub struct RegionSet<'scope, 'env, T: Datatype> {
    scope: &'scope Scope<'scope, 'env>,
    regions: &'scope Regions<T>,
    sends: Vec<RawView>,
    /// A part is received into once.
    receives: RefCell<Vec<Receive>>,
    base: *const T,
    len: usize,
}

/// How the receive into a part stands.
#[derive(Debug)]
enum Receive {
    /// It may be posted yet.
    Ahead(RawView),
    Posted(Handle),
    Ended,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Lends a buffer to the scope, to send from some parts while others are
    /// received into.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Datatype`], if a part reaches out of the buffer.
    pub fn regions<T: Datatype>(
        &'scope self,
        buffer: &'scope mut [T],
        regions: &'scope Regions<T>,
    ) -> Result<RegionSet<'scope, 'env, T>> {
        let comm = self.communicator();
        let receives = regions
            .receives
            .iter()
            .map(|r| ViewMut::new(buffer, r.origin, &r.layout, 1).map(|v| Receive::Ahead(v.raw())))
            .collect::<Result<_>>();
        let receives = comm.reported(receives)?;
        let sends = regions
            .sends
            .iter()
            .map(|r| View::new(buffer, r.origin, &r.layout, 1).map(View::raw))
            .collect::<Result<_>>();
        Ok(RegionSet {
            scope: self,
            regions,
            sends: comm.reported(sends)?,
            receives: RefCell::new(receives),
            base: buffer.as_ptr(),
            len: buffer.len(),
        })
    }
}

impl<'scope, T: Datatype> RegionSet<'scope, '_, T> {
    /// Begins to send the part with the given index.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if there is no such part; else as [`Scope::isend`].
    #[track_caller]
    pub fn isend(
        &self,
        index: usize,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<ScopedRequest<'scope>> {
        let view = self.sends.get(index).cloned();
        let view = view.ok_or_else(|| missing("send", index, self.regions.sends.len()));
        let view = self.scope.communicator().reported(view)?;
        self.scope
            .send_raw(view, dest.into(), tag.into(), Mode::Standard)
    }

    /// Begins to receive into the part with the given index, once.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if there is no such part, or it was received into
    /// before; else as [`Scope::irecv`].
    #[track_caller]
    pub fn irecv(
        &self,
        index: usize,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<ScopedRequest<'scope>> {
        let comm = self.scope.communicator();
        let pattern = names::pattern(source.into(), tag.into(), comm.peer_count());
        let pattern = comm.reported(pattern)?;
        let mut receives = self.receives.borrow_mut();
        let count = receives.len();
        let receive = receives
            .get_mut(index)
            .ok_or_else(|| missing("receive", index, count));
        let receive = comm.reported(receive)?;
        let Receive::Ahead(view) = receive else {
            return Err(comm.raise(Error::new(
                ErrorKind::Argument,
                format!(
                    "receive region {index} is in use already (hint: each is received into once per set)"
                ),
            )));
        };
        let view = view.clone();
        let request = self.scope.recv_raw(view, pattern)?;
        *receive = match request.handle() {
            Some(handle) => Receive::Posted(handle),
            None => Receive::Ended,
        };
        Ok(request)
    }

    /// Elements of the buffer, to compute with while transfers are in flight.
    /// A part whose receive is complete can be read, too.
    ///
    /// ```
    /// # use osier::{Datatype, Type};
    /// # use osier::buffers::{Region, Regions};
    /// # osier::testing::ranks(2, |comm| {
    /// let peer = 1 - comm.rank();
    /// // Ghost, six of our own, ghost.
    /// let mut row = vec![comm.rank() as f64; 8];
    /// let one = f64::datatype().commit()?;
    /// let at = |origin| Region { layout: one.clone(), origin };
    /// let regions: Regions<f64> = Regions::new(vec![at(1), at(6)], vec![at(0), at(7)])?;
    /// comm.scope(|s| {
    ///     let set = s.regions(&mut row, &regions)?;
    ///     assert!(set.read(0..7).is_err()); // a ghost is still to come
    ///     let left = set.irecv(0, peer, 0)?;
    ///     let right = set.irecv(1, peer, 1)?;
    ///     set.isend(0, peer, 1)?;
    ///     set.isend(1, peer, 0)?;
    ///     let inner: f64 = set.read(1..7)?.iter().sum(); // meanwhile
    ///     left.wait()?;
    ///     right.wait()?;
    ///     assert_eq!(set.read(0..8)?.iter().sum::<f64>(), inner + 2.0 * peer as f64);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the elements lie outside of the buffer, or a receive
    /// that is pending, or may still be posted, writes any of them.
    pub fn read(&self, elements: Range<usize>) -> Result<&'scope [T]> {
        let slice = self.read_unreported(elements);
        self.scope.communicator().reported(slice)
    }

    fn read_unreported(&self, elements: Range<usize>) -> Result<&'scope [T]> {
        if elements.start > elements.end || elements.end > self.len {
            return Err(Error::new(
                ErrorKind::Argument,
                format!("elements {elements:?} of a buffer of {}", self.len),
            ));
        }
        let bytes = elements.start * size_of::<T>()..elements.end * size_of::<T>();
        let comm = self.scope.communicator();
        let mut receives = self.receives.borrow_mut();
        for (index, receive) in receives.iter_mut().enumerate() {
            if let Receive::Posted(handle) = *receive
                && comm.core().with(comm.lane(), |lane| lane.is_over(handle))
            {
                *receive = Receive::Ended;
            }
            if !matches!(receive, Receive::Ended) && self.regions.written(index).meets(&bytes) {
                return Err(Error::new(
                    ErrorKind::Argument,
                    format!(
                        "elements {elements:?} share bytes with receive region {index}, which is not complete (hint: wait for it first)"
                    ),
                ));
            }
        }
        let from = self.base.wrapping_add(elements.start);
        // SAFETY: inside the buffer, which the scope borrows mutably; sends
        // only read it, and no receive that is pending or to come writes
        // these bytes, as was just checked: a part is received into once.
        Ok(unsafe { std::slice::from_raw_parts(from, elements.len()) })
    }
}

/// The bytes of a buffer that a receive writes, as sorted runs.
#[derive(Clone, Debug)]
struct Written(Vec<Range<usize>>);

impl Written {
    fn new(region: &Region, element_bytes: usize) -> Self {
        let origin = (region.origin * element_bytes) as isize;
        let mut runs: Vec<Range<usize>> = region
            .layout
            .blocks(1)
            .map(|(at, bytes)| {
                let start = (origin + at) as usize;
                start..start + bytes
            })
            .collect();
        runs.sort_unstable_by_key(|run| run.start);
        Self(runs)
    }

    /// Whether any byte lies in the range. Takes time in the logarithm of the
    /// number of runs, which do not overlap.
    fn meets(&self, bytes: &Range<usize>) -> bool {
        let at = self.0.partition_point(|run| run.end <= bytes.start);
        !bytes.is_empty() && self.0.get(at).is_some_and(|run| run.start < bytes.end)
    }
}

fn missing(what: &str, index: usize, count: usize) -> Error {
    Error::new(
        ErrorKind::Argument,
        format!("no {what} region {index} of {count} (hint: they count from 0)"),
    )
}
