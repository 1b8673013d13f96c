//! Collective calls: what they ask for, which plan answers, and how it is run.
//!
//! ```text
//! call (buffers, root, operator) -> Ask -> program, kept by the lane -> run
//!                                    '-> choice, plan: once per size
//! ```
//!
//! A call takes the next number of its communicator, whether it succeeds or not, and
//! its messages carry it; so several may be in flight, and the order of the calls says
//! which belong together (MPI 5.0, section 6.1 and 6.12). A call with wrong arguments
//! takes part as one that has failed: the others get an error.
//!
//! | module | duty |
//! |---|---|
//! | `choice` | the cheapest plan, by costs that all ranks share |
//! | `spaces` | whether all ranks' buffers lie on devices |
//! | `inboxes` | inboxes for reductions in one kernel of each rank: who opens them, by multicast or not |
//! | `one_kernel` | such reductions: when inboxes are opened, what they cost |
//! | `placement` | what of a rank's memory stays on devices, what goes through the host |
//! | `ask` | what a call asks for |
//! | `agree` | whether all ranks ask for the same, where that is checked |
//! | `ask::{equal, counts, neighbors}` | from buffers to pieces: equal contributions, different ones, neighborhoods |
//! | `blocking` | the calls that wait |
//! | `inline` | short calls of little data, within the call |
//! | `short` | of these, calls of plain memory that are kept |
//! | `nonblocking` | every call once more: as a future, persistent, and in scopes |
//! | `enqueued` | every call on a stream of a device |
//! | `in_flight` | a run from the side of its waiter |
//! | `requests`, `persistent`, `scoped` | what those forms return |

mod agree;
mod ask;
mod blocking;
mod enqueued;
mod in_flight;
mod inboxes;
mod inline;
mod nonblocking;
mod one_kernel;
mod persistent;
mod placement;
mod plan;
mod requests;
mod scoped;
mod short;
mod spaces;

pub use ask::{Contribution, Destination, IN_PLACE, InPlace, OwnedContribution, OwnedDestination};
pub use enqueued::DeviceContribution;
pub use persistent::{PersistentCollective, ScopedPersistentCollective};
pub use requests::Collective;
pub use scoped::ScopedCollective;

use crate::choice::{Chosen, May, bytes_of};
use crate::comm::Communicator;
use crate::model::calls::SegmentCosts;
use agree::Round;
use ask::{Ask, Staged};
use osier_collectives::{Algorithm, Call, Plan};
use osier_engine::check::Site;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::executor::{self, End};
use osier_engine::exec::in_segment::{At, IN_ORDER};
use osier_engine::exec::lower::{in_one_kernel, lower};
use osier_engine::exec::program::{Program, RunsOn};
use osier_engine::exec::run::Then;
use osier_engine::matching::{INTERNAL_TAG, Pattern};
use osier_engine::progress::cell::LaneGuard;
use osier_engine::view::RawView;
use std::panic::{Location, resume_unwind};
use std::sync::Arc;

/// What a run begins with, besides what is asked.
struct Launch {
    staged: Option<Box<Staged>>,
    program: Arc<Program>,
    tags: u32,
    /// The segment in which its flags lie, of those of the communicator.
    of: u32,
    site: Site,
    /// Asks before whether all ranks make the same call.
    round: Option<Box<Round>>,
}

/// Between the leaders of an intercommunicator.
pub(crate) const BETWEEN: u32 = INTERNAL_TAG | 4;
pub(crate) const TOPOLOGY: u32 = INTERNAL_TAG | 6;
/// As persistent calls, of phase 0.
pub(crate) const IDUP: u32 = INTERNAL_TAG | 0x4000_0000;

impl Communicator {
    #[track_caller]
    pub(crate) fn take_view(&self, view: RawView, source: usize, tag: u32) -> Result<()> {
        let bytes = view.bytes();
        let pattern = Pattern::exact(source as u32, tag);
        let got = self.recv_raw(view, pattern)?.bytes;
        if got == bytes {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Argument,
            format!(
                "collective: rank {source} sent {got} bytes, rank {} expected {bytes} (hint: all ranks pass the same count)",
                self.rank()
            ),
        ))
    }

    /// Has all calls of this communicator use one algorithm, where it is for them: for
    /// tests and measurements. Collective.
    #[doc(hidden)]
    pub fn use_algorithm(&self, algorithm: Option<(Algorithm, u32)>) {
        self.force(algorithm, RunsOn::ByCost);
    }

    /// The same of calls on memory of devices, which stays there where kernels can do it, or
    /// goes through the host's.
    #[doc(hidden)]
    pub fn use_algorithm_on_devices(&self, algorithm: Algorithm, segments: u32, stays: bool) {
        let runs_on = match (stays, &algorithm) {
            (_, Algorithm::OneKernel) => RunsOn::OneKernel,
            (true, _) => RunsOn::Device,
            (false, _) => RunsOn::Host,
        };
        self.force(Some((algorithm, segments)), runs_on);
    }

    fn force(&self, algorithm: Option<(Algorithm, u32)>, runs_on: RunsOn) {
        let runs = self.runs_on();
        runs.core()
            .with(runs.lane(), |lane| lane.executor.forget_programs());
        let mut forced = runs.0.forced.lock().unwrap_or_else(|e| e.into_inner());
        *forced = algorithm.map(|(algorithm, segments)| Chosen {
            algorithm,
            segments,
            runs_on,
        });
    }

    /// The program of a call, made where it is called for the first time.
    #[cold]
    fn make_program(&self, ask: &Ask) -> Result<Arc<Program>> {
        let unsuitable =
            |e: osier_collectives::Unsuitable| Error::new(ErrorKind::Unavailable, e.to_string());
        let forced = self
            .0
            .forced
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone();
        let forced = forced.filter(|forced| {
            let kept = forced.algorithm.keeps(&ask.call);
            let keeps = |kept| !ask.call.operation.reduces() || kept >= ask.call.required;
            let may = forced.runs_on != RunsOn::OneKernel || ask.in_one_kernel;
            let segment = !forced.algorithm.in_segment() || self.fits_segment(forced, ask);
            may && segment && kept.is_some_and(keeps)
        });
        let chosen = match forced {
            _ if ask.idle => return Ok(Arc::default()),
            Some(forced) => forced,
            // No rank knows the bytes of others, nor of a distributed graph the edges.
            None if ask.call.operation.of_neighbors() => Chosen {
                algorithm: match self.has_cells(ask) {
                    true => Algorithm::OnePhase,
                    false => Algorithm::Linear,
                },
                segments: 1,
                runs_on: RunsOn::ByCost,
            },
            None => self.member().choices.of(
                &self.described(),
                &ask.call,
                ask.class,
                May {
                    on_devices: ask.on_devices,
                    in_one_kernel: ask.in_one_kernel,
                    in_segment: ask.in_segment,
                    reads: ask.reads,
                },
            )?,
        };
        if chosen.runs_on == RunsOn::OneKernel {
            return Ok(Arc::new(in_one_kernel(&ask.call, self.rank() as u32)));
        }
        let rank = self.rank() as u32;
        let make = |call: &Call, chosen: &Chosen| {
            let plan = Plan::new(call.clone(), chosen.algorithm.clone(), chosen.segments);
            let plan = plan.map_err(unsuitable)?;
            let mut program = lower(plan.call(), &plan.part(rank))?;
            program.runs_on = chosen.runs_on;
            Ok(program)
        };
        (self.member().programs).of(&ask.call, chosen, rank, make)
    }

    /// Whether calls of neighbors like this have cells in a segment, as all ranks know.
    fn has_cells(&self, ask: &Ask) -> bool {
        let known = Algorithm::OnePhase.keeps(&ask.call).is_some();
        known && ask.in_segment && !ask.on_devices && self.shares_segment_of_neighbors()
    }

    /// Whether calls like this may have an algorithm whose flags lie in a segment.
    fn fits_segment(&self, forced: &Chosen, ask: &Ask) -> bool {
        let shared = self.shares_segment();
        let (share, pieces) = forced.algorithm.slot(&ask.call).unwrap_or_default();
        let bytes = bytes_of(ask.class).saturating_mul(share.into()) as f64;
        let costs = SegmentCosts::default().planned(&[]);
        let fits = costs.fits(bytes, pieces, forced.segments);
        shared && ask.in_segment && !ask.on_devices && fits
    }

    /// Begins a call. Its memory belongs to the run until that completes.
    #[track_caller]
    fn begin(&self, mut ask: Ask) -> Result<u32> {
        let site = self.core().checks.site(Location::caller());
        self.know_spaces(&mut ask, false)?;
        let round = match ask.agreed {
            None => self.round(&ask, site)?,
            Some(_) => None,
        };
        let mut lane = self.lane().lock();
        let tags = match (&ask.begun, ask.agreed) {
            (Some(begun), _) => begun.tags,
            (None, Some(tags)) => tags,
            (None, None) => lane.executor.next_tags(),
        };
        let program = match lane.executor.program(ask.program_key()) {
            Some(program) => program,
            None => {
                drop(lane);
                let made = self.make_program(&ask);
                lane = self.lane().lock();
                let made = match (made, ask.error.take()) {
                    (Ok(made), error) => {
                        ask.error = error;
                        made
                    }
                    (Err(_), Some(error)) | (Err(error), None) => return Err(error),
                };
                lane.executor.keep_program(ask.program_key(), made.clone());
                made
            }
        };
        let staged = ask.settle(self, &program);
        let call = Launch {
            staged,
            program,
            tags,
            of: IN_ORDER,
            site,
            round,
        };
        self.launch(&mut lane, ask, call)
    }

    /// The program of a call, kept or made.
    pub(crate) fn program_of(&self, ask: &Ask) -> Result<Arc<Program>> {
        let kept = self.lane().lock().executor.program(ask.program_key());
        if let Some(program) = kept {
            return Ok(program);
        }
        let made = self.make_program(ask)?;
        let mut lane = self.lane().lock();
        lane.executor.keep_program(ask.program_key(), made.clone());
        Ok(made)
    }

    /// Begins a run.
    fn launch(&self, lane: &mut LaneGuard<'_>, mut ask: Ask, call: Launch) -> Result<u32> {
        if let Some(e) = lane.revoked_error("collective") {
            match ask.begun {
                None => return Err(e),
                Some(_) => ask.error = Some(e),
            }
        }
        let mut run = lane.executor.spare_run();
        run.number_of = call.of;
        run.number = match call.of {
            IN_ORDER => lane.executor.number_of(call.tags),
            of => lane.next_start(of),
        };
        let begins = (call.program.in_segment && ask.begun.is_none()).then(|| {
            let program = &call.program;
            let (of, call, segment) = (run.number_of, run.number, 0);
            (At { of, call, segment }, program.sets())
        });
        let on = call.staged.as_ref().and_then(|s| s.on_device.as_ref());
        if let Err(e) = run.memory.begin(&call.program, ask.buffers, on) {
            ask.error = ask.error.or(Some(e.into()));
        }
        if let Some(begun) = &ask.begun {
            begun.hand_over(&run.memory);
            run.done = begun.done;
            run.taken = begun.taken;
            if let Some(slot) = begun.slot {
                run.memory
                    .set_slot(std::ptr::with_exposed_provenance_mut(slot));
            }
        }
        if let Some(staged) = call.staged {
            let staged = *staged;
            (run.before, run.after) = (staged.before, staged.after);
            run.shadow = staged.shadow;
            run.on_device = staged.on_device;
            run.kept = staged.kept;
            run.crossings = staged.crossings;
        }
        run.program = call.program;
        run.combiner = ask.combiner;
        run.tags = call.tags;
        run.name = ask.name;
        run.site = Some(call.site);
        run.defers = ask.defers;
        run.stream = ask.stream;
        let begun = match call.round {
            None => {
                if let Some((at, sets)) = begins {
                    lane.begins_at(at, sets);
                }
                executor::begin(&mut **lane, run, ask.error)
            }
            Some(round) => {
                let then = Then {
                    run,
                    error: ask.error,
                    judge: round.judge,
                };
                let mut run = lane.executor.spare_run();
                if let Err(e) = run.memory.begin(&round.program, round.ask.buffers, None) {
                    return Err(e.into());
                }
                run.kept = round.kept;
                run.program = round.program;
                run.combiner = round.ask.combiner;
                run.tags = call.tags;
                run.site = Some(call.site);
                run.defers = round.ask.defers;
                run.then = Some(Box::new(then));
                if let Some((at, sets)) = begins {
                    lane.begins_at(at, sets);
                }
                executor::begin(&mut **lane, run, None)
            }
        };
        self.core().after(lane);
        begun
    }

    /// Waits for the end of a call.
    #[track_caller]
    pub(crate) fn finish(&self, id: u32) -> Result<()> {
        let guard = GivesUp { comm: self, id };
        let end = self.await_run(id);
        std::mem::forget(guard);
        if let Some(panic) = end.panic {
            resume_unwind(panic);
        }
        end.result
    }

    #[track_caller]
    fn await_run(&self, id: u32) -> End {
        let mut lane = self.lane().lock();
        let direct = self.core().trace.is_none();
        loop {
            let ended = executor::is_over(&mut *lane, id);
            if let Some(end) = ended.then(|| executor::take(&mut *lane, id)).flatten() {
                self.core().after(&mut lane);
                return end;
            }
            if lane.owes() {
                // A function of the user takes the next step, without the lane.
                self.core().after(&mut lane);
                drop(lane);
                lane = self.lane().lock();
                continue;
            }
            let Some((view, source, tag)) = lane.executor.sole_receive(id) else {
                break;
            };
            let room = view.bytes();
            if !direct
                || !lane.may_receive_directly(Pattern::exact(source, tag))
                || lane.knows_dead(source)
            {
                break;
            }
            match self.receive_here(&mut lane, &view, source, tag) {
                Some(bytes) => executor::received_directly(&mut *lane, id, source, bytes, room),
                None => break,
            }
        }
        executor::stop_deferring(&mut *lane, id);
        self.core().after(&mut lane);
        drop(lane);
        self.core()
            .wait_on(self.lane(), |lane| executor::take(lane, id))
    }

    /// As [`Communicator::call`], of what may make no sense. No closure: the caller's source
    /// line passes through.
    #[track_caller]
    fn call_ask(&self, ask: Result<Ask>) -> Result<()> {
        self.call(ask?)
    }

    /// Runs a call to its end.
    #[track_caller]
    fn call(&self, mut ask: Ask) -> Result<()> {
        self.may_wait(ask.name)?;
        let runs = self.runs_on();
        runs.know_spaces(&mut ask, true)?;
        let id = runs.begin(ask)?;
        runs.finish(id)
    }
}

/// Ends a run whose caller unwinds: its buffers are about to go.
struct GivesUp<'a> {
    comm: &'a Communicator,
    id: u32,
}

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        let (core, lane) = (self.comm.core(), self.comm.lane());
        core.with(lane, |lane| executor::cancel(lane, self.id));
        drop(core.wait_on(lane, |lane| executor::take(lane, self.id)));
    }
}
