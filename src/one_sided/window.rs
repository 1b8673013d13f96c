//! Windows of elements, and the epochs in which they are used.

use super::accesses::target_of;
use super::memory::Held;
use super::raw::{Flavor, RawWindow, Updates};
use super::requests::AccessRequest;
use super::words::{value_of, word_of};
use crate::comm::{Communicator, Group};
use osier_datatype::{Datatype, Layout};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::rma::update::Change;
use osier_engine::rma::ways::Way;
use osier_engine::rma::word::Hold;
use osier_engine::view::on_device::DeviceBuffer;
use osier_engine::view::{Buffer, BufferMut, RawView};
use osier_kernels::{Context, DeviceSlice, Event, Ordered, Stream, copy};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

/// Memory of each rank of a communicator that the others read and write without its help.
///
/// Each rank has a *part*, of as many elements as it asked for; an element of it is named by
/// rank and index. Parts are used in *epochs*, whose guards have the calls: between fences
/// ([`Window::fenced`]), by one rank that has locked a part or all of them
/// ([`Window::lock`], [`Window::lock_all`]), or by ranks that its owner has told
/// ([`Window::post`], [`Window::start`]).
///
/// Each call returns when its buffer may be used again and the access is complete, as its target
/// sees it. A part may change at any time, so it is never lent as a slice: [`Window::read`] and
/// [`Window::write`] copy. What two ranks write to the same elements at once may be mixed
/// there; updates ([`Epoch::accumulate`], [`Epoch::fetch_and_op`],
/// [`Epoch::compare_and_swap`]) are atomic for each element.
///
/// Where peers map the memory, which they do with that of [`Communicator::window`] on one
/// machine, an access is a copy or an atomic of the processor; a target that computes delays
/// nobody.
///
/// ```
/// # osier::testing::ranks(4, |comm| {
/// // Everybody counts up a number of rank 0, and fetches the ticket.
/// let window = comm.window::<u64>(if comm.rank() == 0 { 1 } else { 0 })?;
/// let all = window.lock_all();
/// let ticket = all.fetch_and_op(1u64, 0, 0, osier::Op::Sum)?;
/// assert!(ticket < 4);
/// all.unlock()?;
/// window.free()?;
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
///
/// # Sources
/// MPI 5.0, chapter 12. There is one memory model, the unified one: what is in the window is
/// what its owner sees.
pub struct Window<T: Datatype> {
    raw: RawWindow,
    elements: PhantomData<fn(T) -> T>,
}

impl Communicator {
    /// A window with `len` zeroed elements of this rank, which may differ by rank. Collective.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::OutOfMemory`], if there is no room; of kind
    /// [`ErrorKind::Unavailable`] on all ranks but those that are to blame. Of kind
    /// [`ErrorKind::Communicator`] on an intercommunicator.
    #[track_caller]
    pub fn window<T: Datatype>(&self, len: usize) -> Result<Window<T>> {
        self.window_for(len, Updates::default())
    }

    /// As [`Communicator::window`], where it is known what updates of this rank's part are like.
    /// Collective.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// let counter = comm.window_for::<u64>(1, osier::rma::Updates::Single)?;
    /// let all = counter.lock_all();
    /// all.fetch_and_op(1, 0, 0, osier::Op::Sum)?;
    /// all.unlock()?;
    /// counter.free()?;
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::window`].
    #[track_caller]
    pub fn window_for<T: Datatype>(&self, len: usize, updates: Updates) -> Result<Window<T>> {
        let bytes = bytes_of::<T>(len).map(Flavor::Allocate);
        self.reported(Window::make(self, bytes, updates))
    }

    /// A window without elements, to which ranks attach some when they need them
    /// ([`Window::attach`]). Collective.
    ///
    /// An element is named by its rank, and by its address as a multiple of its size, which
    /// [`Window::attach`] tells and ranks tell each other.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// let window = comm.dynamic_window::<u64>()?;
    /// // Rank 1 tells where its ten elements are.
    /// let mut at = if comm.rank() == 1 { window.attach(10)? } else { 0 };
    /// comm.bcast(&mut at, 1)?;
    /// if comm.rank() == 0 {
    ///     let all = window.lock_all();
    ///     all.put(&[7u64, 8], 1, at + 3)?;
    ///     all.unlock()?;
    /// }
    /// window.fence()?;
    /// let mut there = [0u64; 2];
    /// window.lock_shared(1)?.get(&mut there, 1, at + 3)?;
    /// assert_eq!(there, [7, 8]);
    /// window.free()?;
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::window`].
    #[track_caller]
    pub fn dynamic_window<T: Datatype>(&self) -> Result<Window<T>> {
        let made = Window::make(self, Ok(Flavor::Dynamic), Updates::default());
        self.reported(made)
    }

    /// As [`Communicator::window`], of ranks that share memory: their parts lie one behind the
    /// other, in the order of ranks, and [`Window::as_ptr`] tells each where. Collective.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let window = comm.shared_window::<u32>(2)?;
    /// let (first, second) = (window.as_ptr(0)?.unwrap(), window.as_ptr(1)?.unwrap());
    /// assert_eq!(first.wrapping_add(2), second);
    /// window.free()?;
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::window`]; of kind [`ErrorKind::Unavailable`], if the ranks share no
    /// memory.
    #[track_caller]
    pub fn shared_window<T: Datatype>(&self, len: usize) -> Result<Window<T>> {
        let bytes = bytes_of::<T>(len).map(Flavor::Shared);
        self.reported(Window::make(self, bytes, Updates::default()))
    }

    /// A window whose part of this rank is the elements of a vector, which [`Window::free`]
    /// gives back. Collective.
    ///
    /// Memory of [`Communicator::window`] is mapped by peers; that of a vector is reached
    /// through the system, a call for each access.
    ///
    /// # Errors
    /// As [`Communicator::window`].
    #[track_caller]
    pub fn window_of<T: Datatype>(&self, mut elements: Vec<T>) -> Result<Window<T>> {
        let (at, bytes) = (elements.as_mut_ptr().cast(), size_of_val(&*elements));
        let held = Held::of_value(at, bytes, Box::new(elements));
        let flavor = Ok(Flavor::Create(held));
        self.reported(Window::make(self, flavor, Updates::default()))
    }
}

impl Communicator {
    /// A window with `len` zeroed elements of this rank on a device; devices and numbers of
    /// elements may differ by rank, and ranks whose parts lie on the host take part by
    /// [`Communicator::window`]. Collective.
    ///
    /// Buffers of accesses are those of messages, on hosts and devices. Between devices an access
    /// is one launch, from layout to layout, by a kernel of the origin.
    ///
    /// ```no_run
    /// use osier::devices::{Context, DeviceSlice, Stream};
    ///
    /// # fn main() -> osier::Result<()> {
    /// let universe = osier::init()?;
    /// let world = universe.world();
    /// let context = Context::new(0)?;
    /// let stream = Stream::new(&context)?;
    /// let window = world.device_window::<f64>(&context, 1 << 20)?;
    /// // Any kernel writes `field`; a row of it goes to the next rank's device.
    /// let field = DeviceSlice::<f64>::new(&stream, 1 << 20)?.into_inner();
    /// let next = (world.rank() + 1) % world.size();
    /// window.fenced(|epoch| epoch.put(&field.slice(..1024)?.after_stream(&stream), next, 0))?;
    /// window.free()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::window`]; of kind [`ErrorKind::Device`], if the driver refuses.
    #[track_caller]
    pub fn device_window<T: Datatype>(&self, context: &Context, len: usize) -> Result<Window<T>> {
        self.device_window_for(context, len, Updates::default())
    }

    /// As [`Communicator::device_window`], for updates of some kind: single ones are atomics of
    /// kernels, where the devices of all ranks have them.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn device_window_for<T: Datatype>(
        &self,
        context: &Context,
        len: usize,
        updates: Updates,
    ) -> Result<Window<T>> {
        let part = zeroed_on::<T>(context, len);
        let flavor = part.map(|part| Flavor::Device(part.erased()));
        self.reported(Window::make(self, flavor, updates))
    }

    /// A window whose part of this rank is a slice of a device's memory. Collective.
    ///
    /// Processes open memory of [`Kind::Plain`](crate::devices::Kind::Plain); ranks of one
    /// process reach any.
    ///
    /// # Errors
    /// As [`Communicator::device_window`].
    #[track_caller]
    pub fn device_window_of<T: Datatype>(&self, part: &DeviceSlice<T>) -> Result<Window<T>> {
        let flavor = Ok(Flavor::Device(part.erased()));
        self.reported(Window::make(self, flavor, Updates::default()))
    }
}

/// Zeroed elements on a device.
pub(super) fn zeroed_on<T: Datatype>(context: &Context, len: usize) -> Result<DeviceSlice<T>> {
    let stream = Stream::new(context)?;
    // An allocation has bytes.
    let whole = DeviceSlice::<T>::new(&stream, len.max(1))?;
    copy::fill(&stream, &whole, 0)?.synchronize()?;
    Ok(whole.buffer().slice(..len)?)
}

fn bytes_of<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).ok_or_else(|| {
        Error::new(
            ErrorKind::OutOfMemory,
            format!("{len} elements exceed the address space"),
        )
    })
}

impl<T: Datatype> Window<T> {
    #[track_caller]
    fn make(comm: &Communicator, flavor: Result<Flavor>, updates: Updates) -> Result<Self> {
        let flavor = osier_engine::view::require_dense::<T>().and(flavor);
        Ok(Self {
            raw: RawWindow::make(comm, flavor, size_of::<T>() as u64, updates)?,
            elements: PhantomData,
        })
    }

    /// The window's own communicator: the ranks of the one that it was made on.
    pub fn communicator(&self) -> &Communicator {
        self.raw.comm()
    }

    /// The same window, in bytes.
    #[doc(hidden)]
    pub fn raw(&self) -> &RawWindow {
        &self.raw
    }

    /// Elements of this rank's part.
    pub fn len(&self) -> usize {
        let own = self.raw.comm().rank();
        self.len_of(own).unwrap_or(0)
    }

    /// Whether this rank's part has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of a rank's part.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`], if there is no such rank.
    pub fn len_of(&self, rank: usize) -> Result<usize> {
        let bytes = self.reported(self.raw.bytes_of(rank))?;
        Ok(bytes / size_of::<T>().max(1))
    }

    /// Attaches `len` zeroed elements of this rank to a window of
    /// [`Communicator::dynamic_window`]; the index of the first. They are kept as long as the
    /// window.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::OutOfMemory`]; of kind [`ErrorKind::Argument`], if the window is not
    /// dynamic; of kind [`ErrorKind::Datatype`], if elements are of a size that addresses are no
    /// multiples of.
    pub fn attach(&self, len: usize) -> Result<usize> {
        let core = self.raw.comm().core();
        let held = bytes_of::<T>(len).and_then(|bytes| Held::zeroed(core, bytes.max(1)));
        self.reported(held.and_then(|held| self.attach_held(held)))
    }

    /// As [`Window::attach`], of the elements of a vector.
    ///
    /// # Errors
    /// As [`Window::attach`].
    pub fn attach_vec(&self, mut elements: Vec<T>) -> Result<usize> {
        let (at, bytes) = (elements.as_mut_ptr().cast(), size_of_val(&*elements));
        let held = Held::of_value(at, bytes, Box::new(elements));
        self.reported(self.attach_held(held))
    }

    fn attach_held(&self, held: Held) -> Result<usize> {
        let (at, size) = (held.at().addr(), size_of::<T>().max(1));
        if !at.is_multiple_of(size) {
            return Err(Error::new(
                ErrorKind::Datatype,
                format!("elements of {size} bytes at {at:#x}, which is no multiple of their size"),
            ));
        }
        self.raw.attach_kept(held)?;
        Ok(at / size)
    }

    /// Where a rank's part lies in this process, if it is used by address and has elements.
    ///
    /// Other ranks may write there at any time: dereference it as memory that threads share, by
    /// atomics, or while fences and locks keep the others out.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`], if there is no such rank.
    pub fn as_ptr(&self, rank: usize) -> Result<Option<*mut T>> {
        let at = self.reported(self.raw.address_of(rank))?;
        Ok(at.map(<*mut u8>::cast))
    }

    /// The bytes of this rank's part, if it lies on a device: for kernels of its own.
    pub fn device_part(&self) -> Option<&DeviceSlice<u8>> {
        self.raw.own_on_device()
    }

    /// How a rank's part is reached, whatever the rank does: short accesses to plain memory of
    /// another process may also be made by its owner while that waits ([`Window::accesses_by`]).
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`], if there is no such rank; of kind
    /// [`ErrorKind::Unavailable`], if it is not reached.
    pub fn reach_of(&self, rank: usize) -> Result<Way> {
        self.reported(self.raw.reach_of(rank))
    }

    /// Accesses of this rank that have gone some way. Of those by address the shortest, which are
    /// a copy or an atomic and nothing more, are not counted. `osier explain rma` tells which way
    /// an access goes, and why.
    pub fn accesses_by(&self, way: Way) -> u64 {
        self.raw.count_of(way)
    }

    /// Copies elements of this rank's own part, from `at` on.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::WindowRange`], if there are not so many.
    #[track_caller]
    pub fn read(&self, at: usize, to: &mut [T]) -> Result<()> {
        let rank = self.raw.comm().rank();
        self.any().get(to, rank, at)
    }

    /// Writes elements of this rank's own part, from `at` on.
    ///
    /// # Errors
    /// As [`Window::read`].
    #[track_caller]
    pub fn write(&self, at: usize, from: &[T]) -> Result<()> {
        let rank = self.raw.comm().rank();
        self.any().put(from, rank, at)
    }

    /// All elements of this rank's own part, as they are now.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::OutOfMemory`].
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let elements = osier_engine::view::zeroed_vec(self.len());
        let mut elements = self.reported(elements)?;
        self.read(0, &mut elements)?;
        Ok(elements)
    }

    /// Accesses to any rank, which the caller allows.
    fn any(&self) -> Epoch<'_, T> {
        Epoch {
            window: self,
            targets: Targets::Any,
        }
    }

    /// Waits until all ranks come here, behind what they have done before. Collective.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    #[track_caller]
    pub fn fence(&self) -> Result<()> {
        let fenced = self.raw.fence();
        self.reported(fenced)
    }

    /// Runs `f` between two fences: all ranks may use all parts. Collective.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let window = comm.window::<u32>(3)?;
    /// let (rank, size) = (comm.rank(), comm.size());
    /// window.fenced(|epoch| {
    ///     (0..size).try_for_each(|target| epoch.put(&(10 * rank as u32), target, rank))
    /// })?;
    /// assert_eq!(window.to_vec()?, [0, 10, 20]);
    /// window.free()?;
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Those of `f`, and as [`Window::fence`].
    #[track_caller]
    pub fn fenced<R>(&self, f: impl FnOnce(&Epoch<'_, T>) -> Result<R>) -> Result<R> {
        self.fence()?;
        let done = f(&self.any());
        self.fence()?;
        done
    }

    /// Locks a rank's part: nobody else has it locked meanwhile.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`], if there is no such rank; of kind [`ErrorKind::RankDead`],
    /// if a rank has died that had the lock: it is free then. Of kind
    /// [`ErrorKind::WindowEpoch`], if this rank has it locked.
    #[track_caller]
    pub fn lock(&self, rank: usize) -> Result<Locked<'_, T>> {
        self.lock_as(rank, Hold::Exclusive)
    }

    /// Locks a rank's part together with others that lock it so.
    ///
    /// # Errors
    /// As [`Window::lock`].
    #[track_caller]
    pub fn lock_shared(&self, rank: usize) -> Result<Locked<'_, T>> {
        self.lock_as(rank, Hold::Shared)
    }

    #[track_caller]
    fn lock_as(&self, rank: usize, hold: Hold) -> Result<Locked<'_, T>> {
        let locked = self.raw.lock(rank, hold);
        self.reported(locked)?;
        Ok(Locked {
            epoch: Epoch {
                window: self,
                targets: Targets::One(rank),
            },
            rank,
            hold,
        })
    }

    /// Opens an epoch on all parts. Each is locked, together with others that share it, when it
    /// is first used; until then [`Window::lock`] of another rank is not kept out.
    pub fn lock_all(&self) -> LockedAll<'_, T> {
        self.raw.lock_all();
        LockedAll {
            epoch: Epoch {
                window: self,
                targets: Targets::All,
            },
        }
    }

    /// Lets the ranks of a group use this rank's part, until each of them has closed its
    /// [`Started`]: see [`Posted::wait`]. Does not wait.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// let window = comm.window::<f64>(1)?;
    /// let both = comm.group();
    /// let other = both.incl(&[1 - comm.rank()])?;
    /// let posted = window.post(&other)?;
    /// let started = window.start(&other)?;
    /// started.put(&1.5, 1 - comm.rank(), 0)?;
    /// started.complete()?;
    /// posted.wait()?;
    /// assert_eq!(window.to_vec()?, [1.5]);
    /// window.free()?;
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Group`], if a member is no rank of the window; of kind
    /// [`ErrorKind::RankDead`], if one has died.
    pub fn post(&self, origins: &Group) -> Result<Posted<'_, T>> {
        let posted = self.raw.ranks_of(origins).and_then(|origins| {
            self.raw.post(&origins)?;
            Ok(origins)
        });
        Ok(Posted {
            window: self,
            origins: self.reported(posted)?,
        })
    }

    /// Waits until all ranks of a group have let this rank use their parts ([`Window::post`]).
    ///
    /// # Errors
    /// As [`Window::post`].
    #[track_caller]
    pub fn start(&self, targets: &Group) -> Result<Started<'_, T>> {
        let targets = self.raw.ranks_of(targets);
        let targets: Arc<[usize]> = self.reported(targets)?.into();
        let started = self.raw.start(&targets);
        self.reported(started)?;
        Ok(Started {
            epoch: Epoch {
                window: self,
                targets: Targets::Some(targets.clone()),
            },
            targets,
            open: true,
        })
    }

    /// Gives the window back, once all ranks do; the vector of [`Communicator::window_of`], or
    /// none. Collective.
    ///
    /// A window that is dropped instead waits for nobody: its memory is kept until all ranks
    /// have given it back.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    #[track_caller]
    pub fn free(self) -> Result<Option<Vec<T>>> {
        let comm = self.raw.comm().clone();
        let value = comm.reported(self.raw.free())?;
        Ok(value.and_then(|value| value.downcast().ok()).map(|v| *v))
    }

    fn reported<R>(&self, result: Result<R>) -> Result<R> {
        self.raw.comm().reported(result)
    }
}

/// Which parts an epoch is for.
enum Targets {
    Any,
    One(usize),
    /// Those that it locks when they are first used.
    All,
    Some(Arc<[usize]>),
}

/// A time in which parts of a window may be used, and the calls that use them.
///
/// Elements are named by the rank that has them and their index there. Buffers are anything
/// that can be sent or received: slices, numbers, and views of any layout.
pub struct Epoch<'w, T: Datatype> {
    window: &'w Window<T>,
    targets: Targets,
}

impl<T: Datatype> Epoch<'_, T> {
    #[inline]
    #[track_caller]
    fn may_use(&self, rank: usize) -> Result<()> {
        let allowed = match &self.targets {
            Targets::Any => true,
            Targets::One(one) => *one == rank,
            Targets::All => return self.window.raw.lock_of_all(rank),
            Targets::Some(some) => some.contains(&rank),
        };
        match allowed {
            true => Ok(()),
            false => Err(of_another(rank)),
        }
    }

    /// Elements of a rank's part from `at` on, as many as there are bytes.
    #[inline]
    fn elements(at: usize, bytes: usize) -> Result<RawView> {
        let at = bytes_of::<T>(at)?;
        Ok(RawView::dense::<T>(
            std::ptr::without_provenance_mut(at),
            bytes,
        ))
    }

    /// Instances of a layout in a rank's part that are to be written.
    fn written(at: usize, layout: &Layout, count: usize) -> Result<RawView> {
        layout.check_receive(count)?;
        target_of(bytes_of::<T>(at)?, layout, count)
    }

    /// Writes the elements of a buffer to a rank's part, from `at` on.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::WindowRange`], if they do not lie inside the part; of kind
    /// [`ErrorKind::WindowEpoch`], if this epoch is for other ranks; of kind
    /// [`ErrorKind::WindowConflict`], if the buffer overlaps them. Of kind
    /// [`ErrorKind::RankDead`], if the rank has died and its memory is not reached any more.
    #[inline]
    #[track_caller]
    pub fn put<B: Buffer + ?Sized>(&self, from: &B, rank: usize, at: usize) -> Result<()> {
        let view = from.view();
        let put = match Self::elements(at, view.as_raw().bytes()) {
            Ok(target) => self.put_raw(view.as_raw(), rank, &target),
            Err(e) => Err(e),
        };
        self.window.reported(put)
    }

    /// Writes the elements of a buffer to `count` instances of a layout in a rank's part, of
    /// which the first has its origin at element `at`.
    ///
    /// # Errors
    /// As [`Epoch::put`]; of kind [`ErrorKind::Datatype`], if the numbers of bytes differ.
    #[track_caller]
    pub fn put_as<B: Buffer + ?Sized>(
        &self,
        from: &B,
        rank: usize,
        at: usize,
        layout: &Layout,
        count: usize,
    ) -> Result<()> {
        let put = match Self::written(at, layout, count) {
            Ok(target) => self.put_raw(from.view().as_raw(), rank, &target),
            Err(e) => Err(e),
        };
        self.window.reported(put)
    }

    #[inline]
    #[track_caller]
    fn put_raw(&self, from: &RawView, rank: usize, target: &RawView) -> Result<()> {
        self.may_use(rank)?;
        // SAFETY: the caller's buffer is borrowed until this returns.
        unsafe { self.window.raw.put(from, rank, target) }
    }

    /// Reads elements of a rank's part, from `at` on, to a buffer.
    ///
    /// # Errors
    /// As [`Epoch::put`].
    #[inline]
    #[track_caller]
    pub fn get<B: BufferMut + ?Sized>(&self, to: &mut B, rank: usize, at: usize) -> Result<()> {
        let view = to.view_mut();
        let got = match Self::elements(at, view.as_raw().bytes()) {
            Ok(target) => self.get_raw(view.as_raw(), rank, &target),
            Err(e) => Err(e),
        };
        self.window.reported(got)
    }

    /// Reads `count` instances of a layout in a rank's part to a buffer, as
    /// [`Epoch::put_as`] writes them.
    ///
    /// # Errors
    /// As [`Epoch::put_as`].
    #[track_caller]
    pub fn get_as<B: BufferMut + ?Sized>(
        &self,
        to: &mut B,
        rank: usize,
        at: usize,
        layout: &Layout,
        count: usize,
    ) -> Result<()> {
        let target = bytes_of::<T>(at).and_then(|at| target_of(at, layout, count));
        let got = match target {
            Ok(target) => self.get_raw(to.view_mut().as_raw(), rank, &target),
            Err(e) => Err(e),
        };
        self.window.reported(got)
    }

    #[inline]
    #[track_caller]
    fn get_raw(&self, to: &RawView, rank: usize, target: &RawView) -> Result<()> {
        self.may_use(rank)?;
        // SAFETY: the caller's buffer is borrowed mutably until this returns.
        unsafe { self.window.raw.get(to, rank, target) }
    }

    /// As [`Epoch::put`], which may go on behind the call where the part is reached by messages or
    /// by the transport; elsewhere it is complete at once. The buffer is free at the return, and is
    /// given back with the end of the access.
    ///
    /// Updates have no such form: they are made under a lock, and end with their call.
    ///
    /// # Errors
    /// As [`Epoch::put`].
    #[track_caller]
    pub fn rput<B: Buffer>(&self, from: B, rank: usize, at: usize) -> Result<AccessRequest<B>> {
        let begun = {
            let view = from.view();
            let elements = Self::elements(at, view.as_raw().bytes());
            elements.and_then(|target| {
                self.may_use(rank)?;
                // SAFETY: the buffer is borrowed until this returns.
                unsafe { self.window.raw.begin_put(view.as_raw(), rank, &target) }
            })
        };
        let begun = self.window.reported(begun)?;
        Ok(AccessRequest::of_put(self.window.raw.comm(), begun, from))
    }

    /// As [`Epoch::get`], which may go on behind the call as [`Epoch::rput`]. The buffer has the
    /// elements when the request gives it back.
    ///
    /// # Errors
    /// As [`Epoch::put`].
    #[track_caller]
    pub fn rget<B: BufferMut>(
        &self,
        mut to: B,
        rank: usize,
        at: usize,
    ) -> Result<AccessRequest<B>> {
        let begun = {
            let view = to.view_mut();
            let elements = Self::elements(at, view.as_raw().bytes());
            elements.and_then(|target| {
                self.may_use(rank)?;
                // SAFETY: the buffer is borrowed mutably until this returns.
                unsafe { self.window.raw.begin_get(view.as_raw(), rank, &target) }
            })
        };
        let begun = self.window.reported(begun)?;
        Ok(AccessRequest::of_get(self.window.raw.comm(), begun, to))
    }

    /// Combines elements of a rank's part, from `at` on, with those of a buffer: each becomes
    /// `there op given`, at once for all that update it. [`Change::Replace`] writes.
    ///
    /// Updates of one rank are in the order of its calls.
    ///
    /// # Errors
    /// As [`Epoch::put`]; of kind [`ErrorKind::Datatype`], if the elements are not of one
    /// predefined type, or the operator is not defined for it.
    #[track_caller]
    pub fn accumulate<B: Buffer + ?Sized>(
        &self,
        given: &B,
        rank: usize,
        at: usize,
        op: impl Into<Change>,
    ) -> Result<()> {
        let view = given.view();
        let updated = match Self::elements(at, view.as_raw().bytes()) {
            Ok(target) => self.update(op.into(), view.as_raw(), rank, &target, None),
            Err(e) => Err(e),
        };
        self.window.reported(updated)
    }

    /// As [`Epoch::accumulate`], of instances of a layout as in [`Epoch::put_as`].
    ///
    /// # Errors
    /// As [`Epoch::accumulate`] and [`Epoch::put_as`].
    #[track_caller]
    pub fn accumulate_as<B: Buffer + ?Sized>(
        &self,
        given: &B,
        rank: usize,
        at: usize,
        (layout, count): (&Layout, usize),
        op: impl Into<Change>,
    ) -> Result<()> {
        let updated = match Self::written(at, layout, count) {
            Ok(target) => self.update(op.into(), given.view().as_raw(), rank, &target, None),
            Err(e) => Err(e),
        };
        self.window.reported(updated)
    }

    /// As [`Epoch::accumulate`], and reads what was there before.
    ///
    /// # Errors
    /// As [`Epoch::accumulate`]; of kind [`ErrorKind::Datatype`], if the buffers have not as
    /// many bytes.
    #[track_caller]
    pub fn get_accumulate<B: Buffer + ?Sized, M: BufferMut + ?Sized>(
        &self,
        given: &B,
        before: &mut M,
        rank: usize,
        at: usize,
        op: impl Into<Change>,
    ) -> Result<()> {
        let (given, before) = (given.view(), before.view_mut());
        let (given, before) = (given.as_raw(), before.as_raw());
        let updated = match Self::elements(at, before.bytes()) {
            Ok(target) => self.update(op.into(), given, rank, &target, Some(before)),
            Err(e) => Err(e),
        };
        self.window.reported(updated)
    }

    #[track_caller]
    fn update(
        &self,
        change: Change,
        given: &RawView,
        rank: usize,
        target: &RawView,
        before: Option<&RawView>,
    ) -> Result<()> {
        self.may_use(rank)?;
        // SAFETY: the caller's buffers are borrowed until this returns.
        unsafe { (self.window.raw).update(change, given, rank, target, before) }
    }

    /// Combines one element with a value, as [`Epoch::accumulate`]; what it was before.
    ///
    /// # Errors
    /// As [`Epoch::accumulate`].
    #[track_caller]
    pub fn fetch_and_op(
        &self,
        value: T,
        rank: usize,
        at: usize,
        op: impl Into<Change>,
    ) -> Result<T> {
        let updated = self.update_one(op.into(), value, rank, at);
        self.window.reported(updated)
    }

    #[track_caller]
    fn update_one(&self, change: Change, value: T, rank: usize, at: usize) -> Result<T> {
        self.may_use(rank)?;
        let target = Self::elements(at, size_of::<T>())?;
        self.window.raw.update_one(change, value, rank, &target)
    }

    /// Replaces one element by `new` if it is `expected`, at once for all that update it; what
    /// it was before.
    ///
    /// # Errors
    /// As [`Epoch::put`]; of kind [`ErrorKind::Datatype`], if elements are no integers of the
    /// library, or longer than eight bytes.
    #[track_caller]
    pub fn compare_and_swap(&self, expected: T, new: T, rank: usize, at: usize) -> Result<T> {
        let swapped = self.swap(expected, new, rank, at);
        self.window.reported(swapped)
    }

    #[track_caller]
    fn swap(&self, expected: T, new: T, rank: usize, at: usize) -> Result<T> {
        let words = (word_of(&expected)?, word_of(&new)?);
        self.may_use(rank)?;
        let at = (bytes_of::<T>(at)?, size_of::<T>());
        let before = (self.window.raw).compare_and_swap(rank, at, words.0, words.1)?;
        Ok(value_of(before))
    }

    /// As [`Epoch::put`], of a buffer on a device to a part on one, enqueued on a stream: in its
    /// order, and complete when the event has passed that is returned. The epoch ends when all
    /// that was enqueued in it is complete.
    ///
    /// In a capture the copy is part of the graph, and there is no event; each launch is to be
    /// complete before the epoch that it belongs to ends. `OSIER_CHECK=windows` does not see
    /// accesses on streams.
    ///
    /// Where the stream's device does not reach the part (it lies on the host, on a device that is
    /// not linked, in a pool of another process, or its owner serves it) a thread of this rank makes
    /// the access when the stream has come to it, and the stream waits meanwhile. Should it fail, the
    /// stream goes on, and the next such call or the end of the epoch returns the error. A stream
    /// waits for 128 of them at most: a call for one more waits until one is complete.
    ///
    /// # Errors
    /// As [`Epoch::put`]; of kind [`ErrorKind::System`], if such a thread cannot be started.
    #[track_caller]
    pub fn put_on<B: DeviceBuffer>(
        &self,
        stream: &Stream,
        from: &Ordered<B>,
        rank: usize,
        at: usize,
    ) -> Result<Option<Event>> {
        let put = self.enqueue(stream, from, (rank, at), true);
        self.window.reported(put)
    }

    /// As [`Epoch::get`], as [`Epoch::put_on`] enqueues.
    ///
    /// # Errors
    /// As [`Epoch::put_on`].
    #[track_caller]
    pub fn get_on<B: DeviceBuffer>(
        &self,
        stream: &Stream,
        to: &Ordered<B>,
        rank: usize,
        at: usize,
    ) -> Result<Option<Event>> {
        let got = self.enqueue(stream, to, (rank, at), false);
        self.window.reported(got)
    }

    #[track_caller]
    fn enqueue<B: DeviceBuffer>(
        &self,
        stream: &Stream,
        local: &Ordered<B>,
        (rank, at): (usize, usize),
        puts: bool,
    ) -> Result<Option<Event>> {
        self.may_use(rank)?;
        let view = local.buffer().device_view()?.erased();
        let target = Self::elements(at, view.packed_bytes())?;
        let local = local.clone().map(|_| view);
        self.window.raw.inside(rank, &target)?;
        self.window
            .raw
            .enqueue(stream, &local, rank, (&target, puts))
    }

    /// What was written to a rank's part before can be seen by it behind this.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`], if there is no such rank.
    #[inline]
    pub fn flush(&self, rank: usize) -> Result<()> {
        self.window.reported(self.window.raw.flush(rank))
    }

    /// As [`Epoch::flush`], of all ranks.
    ///
    /// # Errors
    /// With `OSIER_CHECK=windows`, of kind [`ErrorKind::RankDead`], if a rank has died.
    #[inline]
    pub fn flush_all(&self) -> Result<()> {
        self.window.reported(self.window.raw.flush_all())
    }
}

#[cold]
fn of_another(rank: usize) -> Error {
    Error::new(
        ErrorKind::WindowEpoch,
        format!("an access to rank {rank}, which this epoch is not for (hint: lock its part)"),
    )
}

macro_rules! derefs {
    ($($guard:ident)*) => {$(
        impl<'w, T: Datatype> Deref for $guard<'w, T> {
            type Target = Epoch<'w, T>;

            #[inline]
            fn deref(&self) -> &Epoch<'w, T> {
                &self.epoch
            }
        }
    )*};
}

derefs!(Locked LockedAll Started);

/// A part that this rank has locked, until it is dropped.
pub struct Locked<'w, T: Datatype> {
    epoch: Epoch<'w, T>,
    rank: usize,
    hold: Hold,
}

impl<T: Datatype> Locked<'_, T> {
    /// Gives the lock back, as dropping it does.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`], if the rank has died and is not reached any more.
    pub fn unlock(self) -> Result<()> {
        let unlocked = self.unlock_raw();
        let window = self.epoch.window;
        std::mem::forget(self);
        window.reported(unlocked)
    }

    fn unlock_raw(&self) -> Result<()> {
        self.epoch.window.raw.unlock(self.rank, self.hold)
    }
}

impl<T: Datatype> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        // Nobody is left to lock it, if that fails.
        let _ = self.unlock_raw();
    }
}

/// An epoch on all parts, until it is dropped.
pub struct LockedAll<'w, T: Datatype> {
    epoch: Epoch<'w, T>,
}

impl<T: Datatype> LockedAll<'_, T> {
    /// Gives all locks back, as dropping it does.
    ///
    /// # Errors
    /// As [`Locked::unlock`].
    pub fn unlock(self) -> Result<()> {
        let window = self.epoch.window;
        let unlocked = window.raw.unlock_all();
        std::mem::forget(self);
        window.reported(unlocked)
    }
}

impl<T: Datatype> Drop for LockedAll<'_, T> {
    fn drop(&mut self) {
        let _ = self.epoch.window.raw.unlock_all();
    }
}

/// Parts that their ranks have let this one use, until it is dropped.
pub struct Started<'w, T: Datatype> {
    epoch: Epoch<'w, T>,
    targets: Arc<[usize]>,
    open: bool,
}

impl<T: Datatype> Started<'_, T> {
    /// Tells the ranks that their parts are used no more, as dropping it does.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`], if one has died.
    pub fn complete(mut self) -> Result<()> {
        self.open = false;
        let window = self.epoch.window;
        window.reported(window.raw.complete(&self.targets))
    }
}

impl<T: Datatype> Drop for Started<'_, T> {
    fn drop(&mut self) {
        if self.open {
            let _ = self.epoch.window.raw.complete(&self.targets);
        }
    }
}

/// This rank's part, which others use.
#[must_use = "the others may use the part until `wait` returns"]
pub struct Posted<'w, T: Datatype> {
    window: &'w Window<T>,
    origins: Vec<usize>,
}

impl<T: Datatype> Posted<'_, T> {
    /// Waits until the others use it no more.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`], if one has died.
    #[track_caller]
    pub fn wait(self) -> Result<()> {
        let waited = self.window.raw.wait(&self.origins);
        self.window.reported(waited)
    }

    /// Whether the others use it no more.
    ///
    /// # Errors
    /// As [`Posted::wait`].
    pub fn test(&mut self) -> Result<bool> {
        let tested = self.window.raw.test(&mut self.origins);
        self.window.reported(tested)
    }
}
