//! Reductions to all ranks in one kernel each: launches in flight.
//!
//! The kernel reads and writes memory of its device without gaps. Anything else goes through
//! pinned memory, which it reaches: bytes are packed there before, and unpacked behind.
//!
//! # Invariants
//! 1. A launch is queued in the call that begins it, whatever memory it is for: launches of
//!    an exchange come in the order of the calls, which all ranks have alike.
//! 2. Views are the run's from its start to its end (invariant 2 of `run`); pinned memory has
//!    as many bytes, and is the launch's.

use crate::device::direct::Direct;
use crate::device::{Devices, UnderWay};
use crate::exec::executor::Gone;
use crate::view::RawView;
use osier_datatype::{Basic, Layout, Type};
use osier_kernels::exchange::{Combination, Exchange, Exchanged, Verdict};
use osier_kernels::{
    After, Context, DeviceError, DeviceSlice, DeviceView, Memory, Ordered, Stream,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two questions whether a peer is lost.
const ASKS: Duration = Duration::from_millis(1);

/// A launch in flight.
#[derive(Debug)]
pub struct Exchanging {
    exchange: Arc<Exchange>,
    launched: Exchanged,
    on_stream: bool,
    /// What packs ahead of it.
    before: Option<Direct>,
    behind: Behind,
    under_way: Option<UnderWay>,
    /// When it is asked again whether a peer is lost, and whether one was before.
    asks: Instant,
    lost: bool,
}

/// What is done with the result.
#[derive(Debug)]
enum Behind {
    /// It lies where it belongs.
    Nothing,
    /// The host unpacks it.
    Host(Arc<Memory>, RawView),
    /// A kernel unpacks it.
    Device(Direct),
}

/// What an exchange reads, or writes.
enum Side {
    There(Ordered<DeviceView<u8>>),
    /// Pinned memory in its place.
    Pinned(Arc<Memory>, Ordered<DeviceView<u8>>),
}

impl Side {
    fn of(context: &Context, view: &RawView) -> Result<Side, DeviceError> {
        let bytes = view.bytes();
        if let Some(memory) = view.as_device().filter(|_| bytes > 0) {
            let there = memory.view()?;
            let run = there.buffer().run(0..bytes, &layout()?);
            if let Some(run) = run.filter(|run| run.memory().context() == context) {
                return Ok(Side::There(there.clone().map(|_| run)));
            }
        }
        let memory = Memory::pinned(context, bytes)?;
        let all = DeviceView::of(&DeviceSlice::<u8>::of(memory.clone())?)?;
        Ok(Side::Pinned(memory, Ordered::new(all, After::Now)))
    }

    fn view(&self) -> &Ordered<DeviceView<u8>> {
        match self {
            Side::There(view) | Side::Pinned(_, view) => view,
        }
    }
}

fn layout() -> Result<Layout, DeviceError> {
    let layout = Type::basic(Basic::U8).commit();
    layout.map_err(|e| DeviceError::Unavailable(e.to_string()))
}

fn host(memory: &Memory) -> Result<*mut u8, DeviceError> {
    let none = || DeviceError::Unavailable("pinned memory has no host address".into());
    memory.host().ok_or_else(none)
}

impl Exchanging {
    /// Launches one: `to` becomes what all ranks have in `from`, combined; `call` is the same
    /// number at all ranks. On a stream of the user's, if one is given and the kernel
    /// reaches the memory of both.
    ///
    /// # Errors
    /// The driver refuses, or the exchange was stopped; nothing is in flight then.
    pub fn begin(
        devices: &Arc<Devices>,
        exchange: &Arc<Exchange>,
        on: Option<&Stream>,
        (combination, call): (Combination, u32),
        [from, to]: [&RawView; 2],
    ) -> Result<Exchanging, DeviceError> {
        let context = exchange.context();
        let mut given = Side::of(context, from)?;
        let taken = match (from.span() == to.span(), &given) {
            (true, Side::There(view)) => Side::There(view.clone()),
            _ => Side::of(context, to)?,
        };
        let mut before = None;
        if let Side::Pinned(pinned, view) = &mut given {
            before = pack(devices, from, pinned, view)?;
        }
        let there = matches!((&given, &taken), (Side::There(_), Side::There(_)));
        let on = on.filter(|stream| there && stream.context() == context);
        let stream = on.unwrap_or(exchange.stream());
        let what = (combination, call);
        let launched = exchange.launch(stream, what, given.view(), taken.view())?;
        let mut begun = Exchanging {
            exchange: exchange.clone(),
            launched,
            on_stream: on.is_some(),
            before,
            behind: Behind::Nothing,
            under_way: Some(UnderWay::new(devices)),
            asks: Instant::now() + ASKS,
            lost: false,
        };
        if let Side::Pinned(pinned, _) = taken {
            begun.behind = unpacking(devices, &begun.launched, to, pinned)?;
        }
        Ok(begun)
    }

    /// Whether the stream of the user has it.
    pub fn is_on_stream(&self) -> bool {
        self.on_stream
    }

    /// Whether it waits for other ranks, and for nothing else.
    pub fn waits_for_ranks(&self) -> bool {
        self.launched.has_begun()
    }

    /// What became of it; none: it is in flight.
    ///
    /// # Errors
    /// A device has failed.
    pub fn poll(&mut self) -> Result<Option<Verdict>, DeviceError> {
        let Some(verdict) = self.launched.verdict()? else {
            return Ok(None);
        };
        match &mut self.behind {
            Behind::Device(unpacking) => {
                if !unpacking.is_over()? {
                    return Ok(None);
                }
            }
            Behind::Host(pinned, into) if verdict == Verdict::Fine => {
                let from = host(pinned)?;
                // SAFETY: invariant 2: as many bytes as the view has, which the kernel has
                // written.
                unsafe { into.unpack(0..into.bytes(), from) };
            }
            Behind::Host(..) | Behind::Nothing => {}
        }
        (self.before, self.under_way) = (None, None);
        Ok(Some(verdict))
    }

    /// Whether to ask, after some time, if a peer is lost.
    pub fn asks(&mut self) -> bool {
        let now = Instant::now();
        let asks = now >= self.asks;
        if asks {
            self.asks = now + ASKS;
        }
        asks
    }

    /// Peers are gone. Those that left in peace have stored what they had to; what one stored
    /// that failed is on its way, and the second time the wait ends. A launch that has not begun
    /// stops none: those before it may come to their end.
    pub fn lost(&mut self, gone: Gone) {
        let again = std::mem::replace(&mut self.lost, true);
        if self.launched.has_begun() && (again || matches!(gone, Gone::Left(_))) {
            gone.stop(&self.exchange);
        }
    }
}

impl Drop for Exchanging {
    /// Ends the wait of one that is given up: the user may use the memory at once.
    fn drop(&mut self) {
        if self.under_way.is_some() {
            self.exchange.stop();
            let _ = self.launched.event().synchronize();
        }
    }
}

/// Packs what a rank gives.
fn pack(
    devices: &Arc<Devices>,
    from: &RawView,
    pinned: &Arc<Memory>,
    view: &mut Ordered<DeviceView<u8>>,
) -> Result<Option<Direct>, DeviceError> {
    let bytes = from.bytes();
    let Some(memory) = from.as_device().filter(|_| bytes > 0) else {
        let to = host(pinned)?;
        // SAFETY: invariant 2: as many bytes as the view has.
        unsafe { from.pack(0..bytes, to) };
        return Ok(None);
    };
    let (there, to) = (memory.view()?, DeviceSlice::<u8>::of(pinned.clone())?);
    let to = Ordered::new(to, After::Now);
    let packing = Direct::queued(
        devices,
        there.buffer().memory().context(),
        |packer, stream| packer.pack(stream, there, 0..bytes, &to, None),
    )?;
    if let Some(event) = packing.event() {
        *view = Ordered::new(view.buffer().clone(), After::from(event));
    }
    Ok(Some(packing))
}

/// Has the result unpacked, where it does not lie where it belongs.
fn unpacking(
    devices: &Arc<Devices>,
    launched: &Exchanged,
    to: &RawView,
    pinned: Arc<Memory>,
) -> Result<Behind, DeviceError> {
    let bytes = to.bytes();
    let Some(memory) = to.as_device().filter(|_| bytes > 0) else {
        return Ok(Behind::Host(pinned, to.clone()));
    };
    let there = memory.view()?;
    let from = DeviceSlice::<u8>::of(pinned)?;
    let from = Ordered::new(from, After::from(launched.event()));
    let unpacking = Direct::queued(
        devices,
        there.buffer().memory().context(),
        |packer, stream| packer.unpack(stream, &from, 0..bytes, there, None),
    );
    unpacking.map(Behind::Device)
}
