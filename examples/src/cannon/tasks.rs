//! The product as a graph: a task for each place, on any number of ranks.
//!
//! ```text
//! init, layer 0:  put A_ij and B_ij ("given") to where each layer needs them first
//! execute:        C += A B; put A to (i, j - 1), B to (i - 1, j)     once for each step
//!                 the last step: put C ("part") to layer 0, or there wait for all parts
//! execute:        add the parts, in the order of the layers
//! ```
//!
//! A block that goes to another rank is put before the multiplication, which hides its way; one
//! that stays changes its owner after it, without a copy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use osier::task::{
    Context, Description, Graph, In, Next, Out, Placement, Report, Rule, RunSettings, Task,
    TaskError,
};
use osier::{Communicator, Op, Result};

use super::check::add;
use super::kernel::{Extents, multiply};
use super::matrix::{Factor, fill};
use super::plan::Plan;
use crate::picture_file::PictureFile;
use crate::progress::Progress;
use crate::variant::{lock, zeros};

/// The tasks of a rank, and the graph of all.
pub struct Tasks {
    graph: Graph,
    shared: Arc<Shared>,
}

/// What the tasks of a rank share.
struct Shared {
    plan: Plan,
    ranks: usize,
    /// Number of this rank's first place; its others follow.
    first: usize,
    places: Vec<Mutex<Place>>,
    stepped: AtomicUsize,
    progress: Mutex<Progress>,
}

/// What a place keeps from run to run.
struct Place {
    /// A_ij and B_ij, on layer 0.
    given: Option<[Vec<f64>; 2]>,
    /// The sum of this layer; in the end, on layer 0, C_ij.
    c: Vec<f64>,
}

impl Tasks {
    /// The blocks of a rank and the graph; none if memory is full at any rank. Collective.
    ///
    /// # Errors
    /// Communication fails.
    pub fn new(
        comm: &Communicator,
        plan: &Plan,
        seed: u64,
        progress: Progress,
    ) -> Result<Option<Tasks>> {
        let own = (0..plan.places())
            .filter(|number| plan.rank(plan.place(*number), comm.size()) == comm.rank());
        let own: Vec<usize> = own.collect();
        let places = own.iter().map(|number| {
            let place = Place::new(plan, seed, plan.place(*number))?;
            Some(Mutex::new(place))
        });
        let places: Option<Vec<_>> = places.collect();
        let mut failed = [0u32];
        comm.allreduce(&[u32::from(places.is_none())], &mut failed, Op::Sum)?;
        let Some(places) = places.filter(|_| failed[0] == 0) else {
            return Ok(None);
        };
        let shared = Arc::new(Shared {
            plan: *plan,
            ranks: comm.size(),
            first: own.first().copied().unwrap_or(0),
            places,
            stepped: AtomicUsize::new(0),
            progress: Mutex::new(progress),
        });
        Ok(Some(Tasks {
            graph: Graph::build(comm, describe(&shared))?,
            shared,
        }))
    }

    /// One product.
    ///
    /// # Errors
    /// A task has failed.
    pub fn run(&self, settings: &RunSettings) -> Result<Report> {
        self.graph.run_with(settings)
    }

    /// Draws the graph with the times of a run. Collective.
    ///
    /// # Errors
    /// As [`PictureFile::draw_graph`].
    pub fn draw(&self, file: PictureFile, report: &Report) -> Result<()> {
        file.draw_graph(&self.graph, report)
    }

    /// Ends the progress bar; this rank's blocks of C, and where they lie.
    pub fn into_results(self) -> Vec<((usize, usize), Vec<f64>)> {
        let shared = &self.shared;
        std::mem::replace(&mut *lock(&shared.progress), Progress::Silent).finish();
        let numbered = (shared.first..).zip(&shared.places);
        let placed = numbered.map(|(number, place)| (shared.plan.place(number), place));
        let on_top = placed.filter(|([_, _, layer], _)| *layer == 0);
        on_top
            .map(|([i, j, _], place)| ((i, j), std::mem::take(&mut lock(place).c)))
            .collect()
    }
}

impl Place {
    fn new(plan: &Plan, seed: u64, [i, j, layer]: [usize; 3]) -> Option<Place> {
        let (rows, columns) = (plan.range(i), plan.range(j));
        let given = |factor| {
            let mut block = zeros(rows.len() * columns.len())?;
            let ranges = (rows.clone(), columns.clone());
            fill(plan, seed, factor, ranges, &mut block);
            Some(block)
        };
        Some(Place {
            given: match layer {
                0 => Some([given(Factor::A)?, given(Factor::B)?]),
                _ => None,
            },
            c: zeros(rows.len() * columns.len())?,
        })
    }
}

impl Shared {
    fn count_step(&self) {
        let stepped = self.stepped.fetch_add(1, Ordering::Relaxed) + 1;
        // Another worker draws otherwise.
        if let Ok(mut progress) = self.progress.try_lock() {
            progress.advance(stepped);
        }
    }

    /// Where A and B go after a step of this place.
    fn behind(&self, [i, j, layer]: [usize; 3]) -> [[usize; 3]; 2] {
        let q = self.plan.blocks;
        [[i, (j + q - 1) % q, layer], [(i + q - 1) % q, j, layer]]
    }
}

/// Ports of a task; of pairs, the first is of A, the second of B.
#[derive(Clone, Copy)]
struct Ports {
    give: [Out<f64>; 2],
    given: [In<f64>; 2],
    shift: [Out<f64>; 2],
    shifted: [In<f64>; 2],
    part: Out<f64>,
    parts: In<f64>,
}

fn describe(shared: &Arc<Shared>) -> Description {
    let plan = shared.plan;
    let (q, layers, ranks) = (plan.blocks, plan.layers, shared.ranks);
    let mut graph = Description::new();
    let owner = move |at: &[usize]| plan.rank([at[0], at[1], at[2]], ranks);
    let placement = Placement::Function(Arc::new(owner));
    let family = graph.family("block", &[q, q, layers], placement);
    let ports = Ports {
        give: ["give A", "give B"].map(|name| graph.output(family, name)),
        given: ["A given", "B given"].map(|name| graph.input(family, name)),
        shift: ["shift A", "shift B"].map(|name| graph.output(family, name)),
        shifted: ["A", "B"].map(|name| graph.input(family, name)),
        part: graph.output(family, "part"),
        parts: graph.input(family, "parts"),
    };
    for which in 0..2 {
        let given = move |[i, j, layer]: [usize; 3]| {
            let all = 0..if layer == 0 { layers } else { 0 };
            all.map(move |l| match which {
                0 => [i, plan.first_place(i, j, l), l],
                _ => [plan.first_place(j, i, l), j, l],
            })
        };
        graph.begins(ports.give[which]);
        graph.connect(ports.give[which], ports.given[which], given);
        let places = shared.clone();
        let shifted = move |at: [usize; 3]| {
            let again = plan.steps(at[2]).len() > 1;
            again.then(|| places.behind(at)[which])
        };
        graph.connect(ports.shift[which], ports.shifted[which], shifted);
    }
    graph.connect(ports.part, ports.parts, |[i, j, layer]: [usize; 3]| {
        (layer > 0).then_some([i, j, 0])
    });
    graph.rule(family, waits_for(&ports.given));
    let shared = shared.clone();
    graph.tasks(family, move |place: [usize; 3]| Multiplier {
        place,
        ports,
        step: plan.steps(place[2]).start,
        shared: shared.clone(),
    });
    graph
}

fn waits_for(ports: &[In<f64>]) -> Rule {
    Rule::Ports(ports.iter().map(|port| port.number()).collect())
}

/// A task.
struct Multiplier {
    place: [usize; 3],
    ports: Ports,
    step: usize,
    shared: Arc<Shared>,
}

impl Task for Multiplier {
    fn init(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let shared = self.shared.clone();
        let mut own = lock(&shared.places[shared.plan.number(self.place) - shared.first]);
        own.c.fill(0.0);
        for (port, block) in self.ports.give.iter().zip(own.given.iter().flatten()) {
            cx.put(*port, block);
        }
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let shared = self.shared.clone();
        let plan = &shared.plan;
        let [i, j, layer] = self.place;
        let mut own = lock(&shared.places[plan.number(self.place) - shared.first]);
        let c = &mut own.c;
        let steps = plan.steps(layer);
        if self.step == steps.end {
            for part in cx.each(self.ports.parts) {
                add(c, part.elements);
            }
            return Ok(Next::Done);
        }

        let ports = match self.step == steps.start {
            true => self.ports.given,
            false => self.ports.shifted,
        };
        let mut block = |port| cx.take(port).ok_or("a block is missing");
        let factors = [block(ports[0])?, block(ports[1])?];
        let extents = Extents {
            rows: plan.range(i).len(),
            columns: plan.range(j).len(),
            inner: plan.range(plan.inner(i, j, self.step)).len(),
        };
        self.step += 1;
        let again = self.step < steps.end;
        let rank = |place| plan.rank(place, shared.ranks);
        let leaves = shared
            .behind(self.place)
            .map(|behind| rank(behind) != rank(self.place));
        for which in (0..2).filter(|which| again && leaves[*which]) {
            cx.put(self.ports.shift[which], &factors[which]);
        }
        multiply(extents, (&factors[0], &factors[1]), c, || {});
        for (which, block) in factors.into_iter().enumerate() {
            if again && !leaves[which] {
                cx.give(self.ports.shift[which], block);
            }
        }
        shared.count_step();
        Ok(match (again, layer) {
            (true, _) => Next::When(waits_for(&self.ports.shifted)),
            (false, 0) if plan.layers > 1 => Next::When(waits_for(&[self.ports.parts])),
            (false, 0) => Next::Done,
            (false, _) => {
                cx.put(self.ports.part, c);
                Next::Done
            }
        })
    }
}
