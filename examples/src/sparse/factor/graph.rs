//! As a task graph: an update for each block above the diagonal, a panel for each supernode.
//!
//! ```text
//!  panel[K] --panel--> update[K, J] --next--> update[K', J] ... --last--> panel[J]
//!           '-factored-'                                         (J's column)
//! ```
//!
//! A column is made by its first task, goes from update to update along a chain, and is
//! factored at its end: on one rank, where it is moved, not copied. A panel goes to the updates
//! of its block row on other ranks, in one message for each rank that has any; those of its own
//! rank are told that it is factored, and read it where it lies. No task has more than two edges
//! into it, and each fires once.
//!
//! # Invariants
//! 1. The chain orders the updates of a column by their sources (invariant 1 of the
//!    variants).
//! 2. A column is kept before anybody is told that it is factored, and is not changed then.
//!
//! # Sources
//! P. Cicotti, S. Baden, "Latency hiding and performance tuning with graph-based execution",
//! DFM 2011, section 3.3 (sparse LU): there as here the grain and the placement are those of
//! the program with explicit messages.

use super::super::analysis::Analysis;
use super::super::analysis::symbolic::Symbolic;
use super::super::meter::Meter;
use super::{Deal, Factors, flops, kernel};
use osier::task::{Context, Description, Graph, In, Next, Out, Placement, Report, Task, TaskError};
use osier::{Communicator, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Priority of the column with the longest path to the root.
const MOST_URGENT: f64 = 1e9;

/// A graph of tasks that factors a matrix.
#[derive(Debug)]
pub struct Built {
    graph: Graph,
    shared: Arc<Shared>,
}

/// A column, once it is finished.
type Finished = Option<Arc<Vec<f64>>>;

/// What the tasks of a rank have in common.
#[derive(Debug)]
struct Shared {
    analysis: Arc<Analysis>,
    meter: Arc<Meter>,
    /// Columns that are finished.
    columns: Box<[Mutex<Finished>]>,
    /// Pivots that were replaced, in these.
    replaced: AtomicU64,
}

/// Builds the graph. Collective.
///
/// # Errors
/// As [`Graph::build`].
pub fn by_graph(
    comm: &Communicator,
    analysis: &Arc<Analysis>,
    deal: Deal,
    meter: &Arc<Meter>,
) -> Result<Built> {
    let shared = Arc::new(Shared {
        analysis: analysis.clone(),
        meter: meter.clone(),
        columns: (0..analysis.symbolic.supernodes())
            .map(|_| Mutex::default())
            .collect(),
        replaced: AtomicU64::new(0),
    });
    let graph = Graph::build(comm, describe(&shared, deal))?;
    Ok(Built { graph, shared })
}

impl Built {
    /// Factors the columns of this rank by this number of workers.
    ///
    /// # Errors
    /// As [`Graph::run`].
    pub fn run(&self, workers: usize) -> Result<(Factors, Report)> {
        let report = self.graph.run_by(workers)?;
        let taken = |k: usize| self.shared.column(k).take().unwrap_or_default();
        let columns = (0..self.shared.columns.len()).map(taken);
        // No task is left that has one.
        let columns = columns.map(Arc::unwrap_or_clone).collect();
        let replaced = self.shared.replaced.swap(0, Relaxed);
        Ok((Factors { columns, replaced }, report))
    }

    /// Tasks of this rank.
    pub fn tasks(&self) -> usize {
        self.graph.tasks()
    }
}

impl Shared {
    /// A column, if it is finished and of this rank.
    fn column(&self, k: usize) -> MutexGuard<'_, Finished> {
        let column = self.columns[k].lock();
        column.unwrap_or_else(PoisonError::into_inner)
    }
}

fn describe(shared: &Arc<Shared>, deal: Deal) -> Description {
    let analysis = &shared.analysis;
    let (supernodes, blocks) = {
        let symbolic = &analysis.symbolic;
        (symbolic.supernodes(), symbolic.blocks().len())
    };
    let mut graph = Description::new();
    let panels = Placement::BlockCyclic {
        block: vec![deal.block],
        grid: vec![deal.ranks],
    };
    let panels = graph.family("panel", &[supernodes], panels);
    let of = analysis.clone();
    let with_target = move |at: &[usize]| deal.owner(target(&of.symbolic, at[0]));
    let with_target = Placement::Function(Arc::new(with_target));
    let updates = graph.family("update", &[blocks], with_target);

    let panel_out = graph.output::<f64>(panels, "panel");
    let panel_in = graph.input::<f64>(updates, "panel");
    let factored = graph.output::<u8>(panels, "factored");
    let has_panel = graph.input::<u8>(updates, "factored");
    let (next, last) = (
        graph.output::<f64>(updates, "next"),
        graph.output::<f64>(updates, "last"),
    );
    let (column, whole) = (
        graph.input::<f64>(updates, "column"),
        graph.input::<f64>(panels, "column"),
    );
    // Each port has one message in all.
    for port in [panel_out, next, last] {
        graph.slots(port, 1);
    }
    graph.slots(factored, 1);

    let of = analysis.clone();
    graph.connect(panel_out, panel_in, move |[k]: [usize; 1]| {
        updates_by(&of.symbolic, deal, k, false)
    });
    let of = analysis.clone();
    graph.connect(factored, has_panel, move |[k]: [usize; 1]| {
        updates_by(&of.symbolic, deal, k, true)
    });
    let of = analysis.clone();
    graph.connect(next, column, move |[b]: [usize; 1]| {
        let chain = of.symbolic.updates_of(target(&of.symbolic, b));
        chain.contains(&(b + 1)).then_some([b + 1])
    });
    let of = analysis.clone();
    graph.connect(last, whole, move |[b]: [usize; 1]| {
        let target = target(&of.symbolic, b);
        (of.symbolic.updates_of(target).end == b + 1).then_some([target])
    });

    graph.exact_priorities();
    let priorities = Arc::new(priorities(&analysis.symbolic));
    let of = priorities.clone();
    graph.priority(panels, move |[k]: [usize; 1]| of[k]);
    let of = analysis.clone();
    graph.priority(updates, move |[b]: [usize; 1]| {
        // Of the panel: those that read it follow each other, while it is in the caches.
        priorities[of.symbolic.blocks()[b].source as usize]
    });

    let of = shared.clone();
    graph.tasks(panels, move |[k]: [usize; 1]| Panel {
        shared: of.clone(),
        supernode: k,
        column: whole,
        panel: panel_out,
        factored,
    });
    let of = shared.clone();
    graph.tasks(updates, move |[b]: [usize; 1]| Update {
        shared: of.clone(),
        block: b,
        panel: panel_in,
        column,
        next,
        last,
    });
    graph
}

/// Updates by a panel: those of the rank that has it, or of all others.
fn updates_by(symbolic: &Symbolic, deal: Deal, k: usize, own: bool) -> Vec<[usize; 1]> {
    let blocks = symbolic.updates_by(k).iter().map(|block| *block as usize);
    let is_own = |b: &usize| deal.owner(target(symbolic, *b)) == deal.owner(k);
    let some = blocks.filter(|block| is_own(block) == own);
    some.map(|block| [block]).collect()
}

fn target(symbolic: &Symbolic, block: usize) -> usize {
    symbolic.blocks()[block].target as usize
}

/// Applies an update to a column that comes from the update before it.
struct Update {
    shared: Arc<Shared>,
    block: usize,
    panel: In<f64>,
    column: In<f64>,
    next: Out<f64>,
    last: Out<f64>,
}

impl Task for Update {
    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let analysis = &self.shared.analysis;
        let symbolic = &analysis.symbolic;
        let block = &symbolic.blocks()[self.block];
        let target = block.target as usize;
        let mut column = match cx.take(self.column) {
            Some(column) => column,
            None => kernel::fill(analysis, target),
        };
        let own;
        let panel = match cx.get(self.panel) {
            Some(panel) => panel,
            None => {
                own = self.shared.column(block.source as usize).clone();
                own.as_deref().ok_or("an update without a panel")?
            }
        };
        kernel::update(symbolic, block, panel, &mut column);
        let is_last = symbolic.updates_of(target).end == self.block + 1;
        cx.give(if is_last { self.last } else { self.next }, column);
        Ok(Next::Done)
    }
}

/// Factors a column that has all updates, and sends its panel.
struct Panel {
    shared: Arc<Shared>,
    supernode: usize,
    column: In<f64>,
    panel: Out<f64>,
    factored: Out<u8>,
}

impl Task for Panel {
    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let analysis = &self.shared.analysis;
        let (symbolic, k) = (&analysis.symbolic, self.supernode);
        let mut column = match cx.take(self.column) {
            Some(column) => column,
            None => kernel::fill(analysis, k),
        };
        let replaced = kernel::factor(symbolic, k, &mut column, analysis.tiny);
        self.shared.replaced.fetch_add(replaced, Relaxed);
        let column = Arc::new(column);
        *self.shared.column(k) = Some(column.clone());
        cx.put(self.panel, &column[..symbolic.panel_length(k)]);
        cx.put(self.factored, &[]);
        self.shared.meter.factored();
        Ok(Next::Done)
    }
}

/// Priorities of columns: the higher, the more operations are left from there to the root of the
/// elimination tree.
fn priorities(symbolic: &Symbolic) -> Vec<i32> {
    let count = symbolic.supernodes();
    let mut up: Vec<f64> = (0..count).map(|k| flops(symbolic, k)).collect();
    for k in (0..count).rev() {
        if let Some(parent) = symbolic.parent(k) {
            up[k] += up[parent];
        }
    }
    let longest = up.iter().copied().fold(1.0, f64::max);
    let priority = |up: &f64| (MOST_URGENT * (up / longest)) as i32;
    up.iter().map(priority).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::analysis::Ordering;
    use super::super::super::analysis::symbolic::Widths;
    use super::super::super::{grid, read::Source};
    use super::*;

    #[test]
    fn columns_further_from_the_root_are_more_urgent() {
        let source = Source {
            name: "grid".into(),
            line: 0,
            title: String::new(),
            matrix: grid::convection_diffusion(8, 1.0, 0),
        };
        let widths = Widths {
            most: 8,
            relaxed: true,
        };
        let analysis = Analysis::new(&source, Ordering::Dissection(8), widths).expect("regular");
        let symbolic = &analysis.symbolic;
        let priorities = priorities(symbolic);
        for (k, priority) in priorities.iter().enumerate() {
            match symbolic.parent(k) {
                Some(parent) => assert!(priorities[parent] < *priority),
                None => assert!(*priority > 0),
            }
        }
        let most = priorities.iter().max();
        assert_eq!(most, Some(&(MOST_URGENT as i32)));
    }
}
