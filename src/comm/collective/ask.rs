//! From the buffers of a call to the pieces of a plan.

use crate::error::{Error, ErrorKind, Result};
use crate::exec::memory::{Buffers, Pieces, Sizes};
use crate::exec::operator::{Data, Fit};
use crate::exec::run::{Combiner, Shadow};
use crate::p2p::view::{Buffer, BufferMut, RawView, View, ViewMut};
use osier_collectives::{Association, Call, Operation};

/// What a rank puts into a collective: a buffer, or [`IN_PLACE`].
pub trait Contribution {
    /// The memory; `None`: the data lies where the result will.
    #[doc(hidden)]
    fn contribution(&self) -> Option<View<'_>>;
}

impl<B: Buffer + ?Sized> Contribution for B {
    #[inline]
    fn contribution(&self) -> Option<View<'_>> {
        Some(self.view())
    }
}

/// Where a rank wants its share of a scatter: a buffer, or [`IN_PLACE`].
pub trait Destination {
    /// The memory; `None`: the data stays where it is.
    #[doc(hidden)]
    fn destination(&mut self) -> Option<ViewMut<'_>>;
}

impl<B: BufferMut + ?Sized> Destination for B {
    #[inline]
    fn destination(&mut self) -> Option<ViewMut<'_>> {
        Some(self.view_mut())
    }
}

impl Destination for InPlace {
    fn destination(&mut self) -> Option<ViewMut<'_>> {
        None
    }
}

/// The type of [`IN_PLACE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace;

/// In place of a buffer to send: the data lies where the result will, as MPI 5.0,
/// chapter 6, says of each call.
///
/// ```
/// let universe = osier::init()?;
/// let mut sums = [1.0, 2.0];
/// universe.world().allreduce(&osier::IN_PLACE, &mut sums, osier::Op::Sum)?;
/// # Ok::<(), osier::Error>(())
/// ```
pub const IN_PLACE: InPlace = InPlace;

impl Contribution for InPlace {
    fn contribution(&self) -> Option<View<'_>> {
        None
    }
}

/// What a call asks for.
pub(in crate::comm) struct Ask {
    pub call: Call,
    /// Names the program.
    pub key: u64,
    /// Size class that the plan is chosen for.
    pub class: u32,
    pub buffers: Buffers,
    pub combiner: Option<(Combiner, Fit)>,
    pub shadow: Option<Shadow>,
    pub kept: Vec<Vec<u8>>,
    /// What is copied to the host before, and from there behind.
    pub before: Vec<(RawView, RawView)>,
    pub after: Vec<(RawView, RawView)>,
    /// A call that waits: it may look for a message before it posts a receive.
    pub defers: bool,
    /// What is wrong with the call.
    pub error: Option<Error>,
}

/// Bytes, coarsely: 0, and powers of two rounded up.
pub(super) fn class_of(bytes: usize) -> u32 {
    match bytes {
        0 => 0,
        n => (n - 1).checked_ilog2().map_or(1, |log| log + 2),
    }
}

/// The largest size of a class.
pub(super) fn bytes_of(class: u32) -> u64 {
    match class {
        0 => 0,
        class => 1u64 << (class - 1).min(62),
    }
}

pub(super) fn mismatch(message: String) -> Error {
    Error::new(ErrorKind::Argument, message)
}

impl Ask {
    /// A call with so many bytes, as all ranks know.
    pub fn new(call: Call, bytes: usize, buffers: Buffers) -> Self {
        let class = class_of(bytes);
        Self {
            key: key_of(&call, class),
            call,
            class,
            buffers,
            combiner: None,
            shadow: None,
            kept: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            defers: true,
            error: None,
        }
    }

    /// With an operator.
    pub fn combine(&mut self, (combiner, fit): (Combiner, Fit)) {
        self.call.required = fit.association;
        self.key = key_of(&self.call, self.class);
        self.combiner = Some((combiner, fit));
    }

    /// Puts memory of the host in place of devices'.
    #[inline]
    pub fn stage_devices(&mut self, rank: usize) {
        let on_device = |pieces: &Pieces| match pieces {
            Pieces::None => false,
            Pieces::Equal(view, _) | Pieces::Cut(view) => view.as_device().is_some(),
            Pieces::Listed(views) => views.iter().any(|view| view.as_device().is_some()),
        };
        if on_device(&self.buffers.send) || on_device(&self.buffers.recv) {
            self.stage(rank);
        }
    }

    #[cold]
    fn stage(&mut self, rank: usize) {
        let sends = self.call.operation == Operation::Bcast && rank == self.call.root as usize;
        // What a rank 0 of an exclusive prefix has in place of a result.
        let keeps = self.call.operation == Operation::Exscan;
        let recv_is_read = sends || keeps || self.call.in_place;
        for (pieces, reads, writes) in [
            (&mut self.buffers.send, true, false),
            (&mut self.buffers.recv, recv_is_read, !sends),
        ] {
            let views = match pieces {
                Pieces::None => continue,
                Pieces::Equal(view, _) | Pieces::Cut(view) => std::slice::from_mut(view),
                Pieces::Listed(views) => &mut views[..],
            };
            for view in views.iter_mut().filter(|view| view.as_device().is_some()) {
                let mut bytes = vec![0u8; view.bytes()];
                let host = RawView::untyped(bytes.as_mut_ptr(), bytes.len());
                self.kept.push(bytes);
                let device = std::mem::replace(view, host.clone());
                if reads && device.bytes() > 0 {
                    self.before.push((device.clone(), host.clone()));
                }
                if writes && device.bytes() > 0 {
                    self.after.push((host, device));
                }
            }
        }
    }

    /// Equal shares of one rank's data.
    pub fn scatter(
        size: usize,
        rank: usize,
        root: usize,
        send: RawView,
        recv: Option<RawView>,
    ) -> Self {
        let mut call = Call::new(Operation::Scatter, size as u32).root(root as u32);
        let sends = rank == root;
        let mut error = None;
        if recv.is_none() {
            call = call.in_place();
            if !sends {
                error = Some(mismatch("only the root works in place".into()));
            }
        }
        let each = recv.as_ref().map_or(send.bytes() / size, RawView::bytes);
        if sends && send.bytes() != each * size {
            error = Some(mismatch(format!(
                "{} bytes for {size} shares of {each} (hint: make it {})",
                send.bytes(),
                each * size
            )));
        }
        let buffers = Buffers {
            send: if sends {
                Pieces::Equal(send, each)
            } else {
                Pieces::None
            },
            recv: recv.map_or(Pieces::None, |view| Pieces::Equal(view, each)),
            sizes: Sizes::Equal(each),
            unit: 1,
        };
        Self::new(call, each, buffers).failed(error)
    }

    /// Equal shares of every rank's data.
    pub fn alltoall(size: usize, send: Option<RawView>, recv: RawView) -> Self {
        let mut call = Call::new(Operation::Alltoall, size as u32);
        let (each, bytes) = (recv.bytes() / size, recv.bytes());
        let mut error = None;
        match &send {
            None => call = call.in_place(),
            Some(send) if send.bytes() != bytes => {
                error = Some(mismatch(format!("{} bytes into {bytes}", send.bytes())));
            }
            Some(_) => {}
        }
        if bytes != each * size {
            error = Some(mismatch(format!(
                "{bytes} bytes for {size} ranks (hint: equal shares for each)"
            )));
        }
        let buffers = Buffers {
            send: send.map_or(Pieces::None, |view| Pieces::Equal(view, each)),
            recv: Pieces::Equal(recv, each),
            sizes: Sizes::Equal(each),
            unit: 1,
        };
        Self::new(call, each, buffers).failed(error)
    }

    /// With this wrong.
    pub fn failed(mut self, e: Option<Error>) -> Self {
        self.error = self.error.or(e);
        self
    }

    /// A call without data.
    pub fn barrier(size: usize) -> Self {
        let call = Call::new(Operation::Barrier, size as u32);
        Self::new(
            call,
            0,
            Buffers {
                unit: 1,
                ..Buffers::default()
            },
        )
    }

    pub fn bcast(size: usize, root: usize, data: RawView) -> Self {
        let call = Call::new(Operation::Bcast, size as u32).root(root as u32);
        let bytes = data.bytes();
        let buffers = Buffers {
            recv: Pieces::Cut(data),
            send: Pieces::None,
            sizes: Sizes::Cut(bytes),
            unit: 1,
        };
        Self::new(call, bytes, buffers)
    }

    /// Equal contributions to one rank, or to all if there is no root.
    pub fn gather(
        size: usize,
        rank: usize,
        root: Option<usize>,
        send: Option<RawView>,
        recv: RawView,
    ) -> Self {
        let receives = root.is_none_or(|root| root == rank);
        let mut call = match root {
            Some(root) => Call::new(Operation::Gather, size as u32).root(root as u32),
            None => Call::new(Operation::Allgather, size as u32),
        };
        let name = call.operation.name();
        let mut error = None;
        if send.is_none() {
            call = call.in_place();
            if !receives {
                error = Some(mismatch(format!("{name}: only the root works in place")));
            }
        }
        let each = send.as_ref().map_or(recv.bytes() / size, RawView::bytes);
        if receives && recv.bytes() != each * size {
            error = Some(mismatch(format!(
                "{name}: {each} bytes from each of {size} ranks into {} bytes (hint: make it {})",
                recv.bytes(),
                each * size
            )));
        }
        let buffers = Buffers {
            send: send.map_or(Pieces::None, |view| Pieces::Equal(view, each)),
            recv: if receives {
                Pieces::Equal(recv, each)
            } else {
                Pieces::None
            },
            sizes: Sizes::Equal(each),
            unit: 1,
        };
        Self::new(call, each, buffers).failed(error)
    }

    /// A combination of vectors, at one rank or all.
    pub fn reduce(
        call: Call,
        rank: usize,
        send: Option<RawView>,
        recv: Option<RawView>,
        combiner: Combiner,
    ) -> Self {
        let mut call = call;
        let name = call.operation.name();
        let mut kept = Vec::new();
        let mut shadow = None;
        let data = send.as_ref().or(recv.as_ref());
        let bytes = data.map_or(0, RawView::bytes);
        let mut error = None;
        let fit = match data.map(|view| combiner.get().fit(&Data(view))) {
            Some(Ok(fit)) => Some(fit),
            Some(Err(e)) => {
                error = Some(e);
                None
            }
            None => None,
        };
        call.required = fit.map_or(Association::Balanced, |fit| fit.association);
        if send.is_none() {
            call = call.in_place();
            if call.operation == Operation::Reduce && rank != call.root as usize {
                error = Some(mismatch("only the root works in place".into()));
            }
        }
        if let (Some(send), Some(recv)) = (&send, &recv)
            && send.bytes() != recv.bytes()
        {
            error = Some(mismatch(format!(
                "{name}: {} bytes into {} (hint: both have the same count)",
                send.bytes(),
                recv.bytes()
            )));
        }
        let failed = error.is_some();
        let send = send.filter(|_| !failed).map(|view| packed(view, &mut kept));
        let recv = recv.filter(|_| !failed).map(|view| {
            if view.as_contiguous().is_some() || view.as_device().is_some() {
                return view;
            }
            // In place the input lies there, too.
            let packed = packed(view.clone(), &mut kept);
            shadow = Some(Shadow {
                packed: packed.clone(),
                into: view,
            });
            packed
        });
        let buffers = Buffers {
            send: send.map_or(Pieces::None, Pieces::Cut),
            recv: recv.map_or(Pieces::None, Pieces::Cut),
            sizes: Sizes::Cut(bytes),
            unit: fit.map_or(1, |fit| fit.unit),
        };
        let mut ask = Self::new(call, bytes, buffers).failed(error);
        ask.combiner = fit.map(|fit| (combiner, fit));
        ask.kept = kept;
        ask.shadow = shadow;
        ask
    }
}

/// The same bytes without gaps; a copy where there are any.
fn packed(view: RawView, kept: &mut Vec<Vec<u8>>) -> RawView {
    if view.as_contiguous().is_some() || view.as_device().is_some() {
        return view;
    }
    let mut bytes = vec![0u8; view.bytes()];
    let packed = RawView::untyped(bytes.as_mut_ptr(), bytes.len());
    kept.push(bytes);
    // Both are of the host, and as long as each other.
    let _ = crate::exec::run::copy(&view, &packed);
    packed
}

/// A number for what programs depend on, but for the communicator.
fn key_of(call: &Call, class: u32) -> u64 {
    let operation = Operation::ALL
        .iter()
        .position(|o| *o == call.operation)
        .unwrap_or(0) as u64;
    operation
        | u64::from(call.in_place) << 5
        | u64::from(call.varying) << 6
        | (call.required as u64) << 7
        | u64::from(class) << 10
        | u64::from(call.root) << 18
}

/// Refuses memory of devices.
pub(super) fn host(view: RawView) -> Result<RawView> {
    match view.as_device() {
        None => Ok(view),
        Some(_) => Err(Error::new(
            ErrorKind::Unavailable,
            "memory of devices in collectives on intercommunicators, not yet",
        )),
    }
}
