//! Reductions in one kernel of each rank's device: when inboxes are opened, and what they cost.
//!
//! Where all ranks know that their memory lies on devices, and each has one of its own, they
//! open each other's inboxes and measure a few reductions. From then on the plan of one kernel
//! is a candidate for allreduces of up to 64 KiB, beside those of messages, and the predicted
//! times decide.
//!
//! # Invariants
//! 1. All ranks know the same costs: the longest of any.

use super::ask::Ask;
use crate::comm::Communicator;
use crate::p2p::enqueue::{Enqueued, OnStream};
use osier_collectives::{OneKernel, Piecewise};
use osier_datatype::{Basic, Element, Operator};
use osier_engine::device::UnderWay;
use osier_engine::error::{Error, Result};
use osier_engine::exec::executor::{Driver, NOBODY};
use osier_engine::exec::memory::Pieces;
use osier_engine::exec::program::RunsOn;
use osier_kernels::exchange::{Combination, Exchange, Exchanged, MOST_BYTES, Verdict};
use osier_kernels::{Context, DeviceError, DeviceSlice, DeviceView, Ordered, Stream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// Bytes that are measured: the shortest, the longest that carry numbers, the longest.
const MEASURED: [usize; 3] = [8, 8192, MOST_BYTES];
/// Reductions of each, behind one that is not counted.
const ROUNDS: usize = 5;

impl OnStream<'_> {
    /// Tells the ranks on which devices their streams work. From then on a reduction to all
    /// ranks of at most 64 KiB that is enqueued may be one kernel of each rank, where the
    /// devices reach each other: the stream waits in it for the other ranks, and the host
    /// for nothing. Programs whose calls are all enqueued say so once; blocking calls find it
    /// out by themselves, where costs of devices were measured. Collective: waits for all
    /// ranks, each with a stream.
    ///
    /// Returns whether the devices can; the predicted time decides whether a call does, by
    /// built-in costs of the other plans where none were measured.
    ///
    /// ```no_run
    /// # fn main() -> osier::Result<()> {
    /// # use osier::devices::{Context, DeviceSlice, Stream};
    /// let universe = osier::init()?;
    /// let stream = Stream::new(&Context::new(0)?)?;
    /// let on = universe.world().on_stream(&stream);
    /// on.link()?;
    /// let mut sums = DeviceSlice::<f32>::new(&stream, 1024)?.into_inner();
    /// on.allreduce(&osier::IN_PLACE, &mut sums, osier::Op::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    #[track_caller]
    pub fn link(&self) -> Result<bool> {
        let (comm, stream) = self.parts();
        let runs = comm.runs_on();
        if comm.is_inter() {
            return Ok(false);
        }
        runs.know_devices();
        comm.reported(runs.place_devices(Some(stream.context())))?;
        let linked = runs.0.spaces.exchanges.load(Ordering::Relaxed);
        runs.0.spaces.linked.store(linked, Ordering::Relaxed);
        Ok(linked)
    }
}

impl OnStream<'_> {
    /// Captures a reduction that is one kernel of each rank, if its plan is, and the ranks
    /// can: the graph does it without the host. The calls of one graph have an exchange in
    /// common, if these are the same calls at all ranks. Collective.
    #[track_caller]
    pub(crate) fn capture_exchange(&self, ask: &Ask, tags: u32) -> Result<Option<Enqueued>> {
        let (comm, stream) = self.parts();
        let runs = comm.runs_on();
        let program = comm.reported(runs.program_of(ask))?;
        if program.runs_on != RunsOn::OneKernel {
            return Ok(None);
        }
        // What fails here fails in the way of other calls.
        let able = (ask.error.is_none())
            .then(|| ExchangeInGraph::of(ask, stream))
            .flatten();
        let capture = comm.reported(stream.capture_id().map_err(Error::from))?;
        let exchange = runs.exchange_of_capture(capture, able.as_ref().map(|_| stream.context()));
        let (Some(exchange), Some(able)) = (comm.reported(exchange)?, able) else {
            return Ok(None);
        };
        let captured = (stream.keep(exchange.clone()))
            .and_then(|()| exchange.capture(stream, (able.what, tags), &able.send, &able.recv));
        let in_graph = comm.reported(captured.map_err(Error::from))?;
        let (lane, core) = (runs.lane(), runs.core());
        core.with(lane, |lane| lane.executor.exchange_in_graph(&exchange));
        Ok(Some(self.in_graph(in_graph, ask.name)))
    }
}

/// What a captured kernel works on.
struct ExchangeInGraph {
    what: Combination,
    send: Ordered<DeviceView<u8>>,
    recv: Ordered<DeviceView<u8>>,
}

impl ExchangeInGraph {
    /// Memory of the stream's device, without gaps.
    fn of(ask: &Ask, stream: &Stream) -> Option<ExchangeInGraph> {
        let (combiner, fit) = ask.combiner.as_ref()?;
        let (operator, element) = combiner.get().predefined(fit)?;
        let what = Combination::of(operator, element)?;
        let side = |pieces: &Pieces| {
            let memory = pieces.whole()?.as_device()?;
            let run = memory.run(0..memory.bytes(), &fit.layout(memory.instances().0)?)?;
            let view = run.view().ok()?.clone();
            (view.buffer().memory().context() == stream.context()).then_some(view)
        };
        let recv = side(&ask.buffers.recv)?;
        let send = match ask.call.in_place {
            true => recv.clone(),
            false => side(&ask.buffers.send)?,
        };
        Some(ExchangeInGraph { what, send, recv })
    }
}

impl Communicator {
    /// The exchange of a capture: the one that it has, if all ranks have it, else another. None:
    /// a rank has no device for it. Collective.
    #[track_caller]
    fn exchange_of_capture(
        &self,
        capture: Option<u64>,
        on: Option<&Context>,
    ) -> Result<Option<Arc<Exchange>>> {
        let of_graphs = || {
            let kept = &self.0.spaces.of_graphs;
            kept.lock().unwrap_or_else(PoisonError::into_inner)
        };
        // The number of the last exchange that was made for a graph, if the graph is this one's.
        let (last, known) = {
            let kept = of_graphs();
            let of_this = kept.last.as_ref().filter(|(id, _)| Some(*id) == capture);
            (
                kept.made,
                of_this.and_then(|(_, exchange)| exchange.upgrade()),
            )
        };
        let mine = known.as_ref().filter(|_| on.is_some()).map_or(0, |_| last);
        let mut all = [mine, u64::MAX - mine];
        self.allreduce_in_place(&mut all, &crate::Op::Min)?;
        if mine != 0 && all == [mine, u64::MAX - mine] {
            return Ok(known);
        }
        let made = self.exchange_on(on)?;
        if let (Some(made), Some(capture)) = (&made, capture) {
            let mut kept = of_graphs();
            kept.made += 1;
            kept.last = Some((capture, Arc::downgrade(made)));
        }
        Ok(made)
    }

    /// Opens the inboxes of all ranks, and measures. None: a rank cannot, or has none.
    /// Collective, each with a device of its own.
    #[track_caller]
    pub(crate) fn open_inboxes(&self, on: Option<&Context>) -> Result<Option<OneKernel>> {
        let Some(exchange) = self.exchange_on(on)? else {
            return Ok(None);
        };
        let tag = self.lane().lock().executor.exchange_tag();
        let mut times = match self.time_exchanges(&exchange, tag) {
            Ok(times) => times,
            Err(_) => {
                self.core().with(self.lane(), |lane| {
                    for peer in (0..self.size()).filter(|peer| *peer != self.rank()) {
                        lane.poison(peer as u32, tag, NOBODY);
                    }
                });
                [u64::MAX; MEASURED.len()]
            }
        };
        self.allreduce_in_place(&mut times, &crate::Op::Max)?;
        if times[0] == u64::MAX {
            return Ok(None);
        }
        let exchange = Some(exchange);
        self.core()
            .with(self.lane(), |lane| lane.executor.exchange_by(exchange));
        let points = MEASURED.iter().zip(times);
        let points: Vec<_> = points.map(|(&b, ns)| (b as f64, ns as f64)).collect();
        Ok(Some(OneKernel {
            ns: Piecewise::through(&points),
            most_bytes: MOST_BYTES as u64,
        }))
    }

    /// The shortest time of a reduction here, of each length, in ns.
    #[track_caller]
    fn time_exchanges(
        &self,
        exchange: &Exchange,
        tag: u32,
    ) -> std::result::Result<[u64; MEASURED.len()], DeviceError> {
        let stream = exchange.stream();
        let element = Element::Basic(Basic::F32);
        let none = || DeviceError::Unavailable("no kernel adds".into());
        let sum = Combination::of(Operator::Sum, element).ok_or_else(none)?;
        let memory = DeviceSlice::<u8>::new(stream, MOST_BYTES)?.into_inner();
        let _under_way = UnderWay::new(&self.core().devices);
        let mut times = [u64::MAX - 1; MEASURED.len()];
        for (bytes, best) in MEASURED.into_iter().zip(&mut times) {
            let view = DeviceView::of(&memory.slice(..bytes)?)?.after_stream(stream);
            for round in 0..=ROUNDS {
                let start = Instant::now();
                let launched = exchange.launch(stream, (sum, 0), &view, &view)?;
                self.await_exchanged(exchange, &launched, tag)?;
                if round > 0 {
                    *best = (*best).min(start.elapsed().as_nanos() as u64);
                }
            }
        }
        Ok(times)
    }

    #[track_caller]
    fn await_exchanged(
        &self,
        exchange: &Exchange,
        launched: &Exchanged,
        tag: u32,
    ) -> std::result::Result<(), DeviceError> {
        let core = self.core();
        let lost = || core.with(self.lane(), |lane| lane.lost(tag));
        let verdict = core.drive(|| match launched.verdict() {
            Ok(None) => {
                if let Some(lost) = lost() {
                    lost.gone.stop(exchange);
                }
                None
            }
            Ok(Some(verdict)) => Some(Ok(verdict)),
            Err(e) => Some(Err(e)),
        })?;
        match verdict {
            Verdict::Fine => Ok(()),
            other => Err(DeviceError::Unavailable(format!(
                "an exchange ended with {other:?}"
            ))),
        }
    }
}
