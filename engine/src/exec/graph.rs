//! Dependency graph of steps, and the schedule of ready ones. Pure.
//!
//! Each step has one instance per segment. An instance waits for others of its
//! own segment, or for those some segments before (`lag`). Instances are numbered
//! `segment * steps + step`.
//!
//! # Invariants
//! 1. Instances of at most [`WINDOW`] segments are in flight at a time: a segment opens
//!    when the one `WINDOW` before is complete. So the size of a schedule does not grow
//!    with the number of segments.
//! 2. Of a segment that is not open, counts are kept as far as dependencies reach.
//! 3. An instance is handed out once, in the order in which it became ready; at first,
//!    in the order of the steps.

use std::collections::VecDeque;

/// Most segments in flight at a time.
pub const WINDOW: u32 = 16;

/// `step` waits, `lag` segments later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub step: u32,
    pub lag: u32,
}

/// Steps and their dependencies.
#[derive(Debug, Default)]
pub struct Graph {
    steps: u32,
    segments: u32,
    /// What each step waits for; ends of the lists.
    before: Vec<Edge>,
    before_ends: Vec<u32>,
    /// Who waits for each step; ends of the lists.
    after: Vec<Edge>,
    after_ends: Vec<u32>,
    /// Number of dependencies, all lags.
    counts: Vec<u32>,
    lag: u32,
}

impl Graph {
    /// A graph of as many steps as `before` gives lists of what each waits for.
    pub fn new<'a>(segments: u32, before: impl Iterator<Item = Vec<Edge>> + 'a) -> Self {
        let mut graph = Graph {
            segments: segments.max(1),
            ..Graph::default()
        };
        for list in before {
            graph.steps += 1;
            graph.counts.push(list.len() as u32);
            graph.before.extend(list);
            graph.before_ends.push(graph.before.len() as u32);
        }
        let steps = graph.steps as usize;
        let mut starts = vec![0u32; steps + 1];
        for edge in &graph.before {
            starts[edge.step as usize + 1] += 1;
            graph.lag = graph.lag.max(edge.lag);
        }
        for at in 0..steps {
            starts[at + 1] += starts[at];
        }
        graph.after = vec![Edge { step: 0, lag: 0 }; graph.before.len()];
        let mut next = starts.clone();
        for step in 0..graph.steps {
            for edge in graph.before_of(step) {
                let at = &mut next[edge.step as usize];
                graph.after[*at as usize] = Edge {
                    step,
                    lag: edge.lag,
                };
                *at += 1;
            }
        }
        graph.after_ends = starts[1..].to_vec();
        graph
    }

    pub fn steps(&self) -> u32 {
        self.steps
    }

    pub fn segments(&self) -> u32 {
        self.segments
    }

    fn list<'a>(all: &'a [Edge], ends: &[u32], step: u32) -> std::slice::Iter<'a, Edge> {
        let step = step as usize;
        let start = if step == 0 { 0 } else { ends[step - 1] };
        all[start as usize..ends[step] as usize].iter()
    }

    fn before_of(&self, step: u32) -> Vec<Edge> {
        Self::list(&self.before, &self.before_ends, step)
            .copied()
            .collect()
    }

    /// Segments for which counts are kept.
    fn ring(&self) -> u32 {
        (WINDOW + self.lag).min(self.segments)
    }

    fn window(&self) -> u32 {
        WINDOW.min(self.segments)
    }
}

/// How far a graph has come.
#[derive(Debug, Default)]
pub struct Schedule {
    /// By segment modulo the ring, and step: pending dependencies.
    waits: Vec<u32>,
    /// By segment modulo the ring: pending steps.
    left: Vec<u32>,
    /// The first pending segment.
    base: u32,
    /// Segments before this one are open.
    opened: u32,
    ready: VecDeque<u32>,
}

impl Schedule {
    /// Begins, or begins again.
    pub fn begin(&mut self, graph: &Graph) {
        self.waits.clear();
        self.left.clear();
        self.ready.clear();
        (self.base, self.opened) = (0, 0);
        if graph.steps == 0 {
            self.base = graph.segments;
            return;
        }
        for segment in 0..graph.ring() {
            self.waits.extend_from_slice(&graph.counts);
            self.left.push(graph.steps);
            if graph.lag > 0 {
                self.prepare(graph, segment);
            }
        }
        for _ in 0..graph.window() {
            self.open(graph);
        }
    }

    /// Sets the counts of a segment, whose place in the ring is free.
    fn prepare(&mut self, graph: &Graph, segment: u32) {
        let slot = (segment % graph.ring()) as usize;
        let steps = graph.steps as usize;
        let waits = &mut self.waits[slot * steps..][..steps];
        waits.copy_from_slice(&graph.counts);
        if segment < graph.lag {
            // Nothing lies so far back.
            for (step, waits) in waits.iter_mut().enumerate() {
                let edges = Graph::list(&graph.before, &graph.before_ends, step as u32);
                *waits = edges.filter(|edge| edge.lag <= segment).count() as u32;
            }
        }
        self.left[slot] = graph.steps;
    }

    fn open(&mut self, graph: &Graph) {
        let segment = self.opened;
        self.opened += 1;
        let slot = segment % graph.ring();
        for step in 0..graph.steps {
            if self.waits[(slot * graph.steps + step) as usize] == 0 {
                self.ready.push_back(segment * graph.steps + step);
            }
        }
    }

    /// The next instance that may begin.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// How many instances one waits for, of a segment that is open.
    #[inline]
    pub fn pending(&self, graph: &Graph, instance: u32) -> u32 {
        let (segment, step) = (instance / graph.steps, instance % graph.steps);
        self.waits[((segment % graph.ring()) * graph.steps + step) as usize]
    }

    /// Completes an instance.
    pub fn complete(&mut self, graph: &Graph, instance: u32) {
        let (segment, step) = (instance / graph.steps, instance % graph.steps);
        let ring = graph.ring();
        for edge in Graph::list(&graph.after, &graph.after_ends, step) {
            let then = segment + edge.lag;
            if then >= graph.segments {
                continue;
            }
            let waits = &mut self.waits[((then % ring) * graph.steps + edge.step) as usize];
            *waits -= 1;
            if *waits == 0 && then < self.opened {
                self.ready.push_back(then * graph.steps + edge.step);
            }
        }
        self.left[(segment % ring) as usize] -= 1;
        while self.base < graph.segments && self.left[(self.base % ring) as usize] == 0 {
            self.base += 1;
            let next = self.base + ring - 1;
            if next < graph.segments {
                self.prepare(graph, next);
            }
            if self.opened < graph.segments.min(self.base + WINDOW) {
                self.open(graph);
            }
        }
    }

    /// Whether all instances are complete.
    #[inline]
    pub fn is_over(&self, graph: &Graph) -> bool {
        self.base >= graph.segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A naive twin: it checks all instances each time.
    fn naive_ready(before: &[Vec<Edge>], ended: &[bool], segment: u32, step: u32) -> bool {
        before[step as usize].iter().all(|edge| {
            segment < edge.lag
                || ended[((segment - edge.lag) * before.len() as u32 + edge.step) as usize]
        })
    }

    #[test]
    fn every_instance_comes_once_after_what_it_waits_for() {
        let mut seed = 1u64;
        let mut random = |below: u32| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((seed >> 33) % u64::from(below)) as u32
        };
        for case in 0..400 {
            let steps = 1 + random(8);
            let segments = 1 + random(60);
            let before: Vec<Vec<Edge>> = (0..steps)
                .map(|step| {
                    let mut list: Vec<Edge> = (0..step)
                        .filter(|_| random(3) == 0)
                        .map(|step| Edge { step, lag: 0 })
                        .collect();
                    if random(2) == 0 {
                        let (step, lag) = (random(steps), 1 + random(5));
                        list.push(Edge { step, lag });
                    }
                    list
                })
                .collect();
            let graph = Graph::new(segments, before.iter().cloned());
            let mut schedule = Schedule::default();
            for _again in 0..2 {
                schedule.begin(&graph);
                let mut ended = vec![false; (steps * segments) as usize];
                let mut under_way: Vec<u32> = Vec::new();
                let mut begun = 0;
                loop {
                    while random(3) != 0 {
                        let Some(instance) = schedule.next() else {
                            break;
                        };
                        let (segment, step) = (instance / steps, instance % steps);
                        assert!(naive_ready(&before, &ended, segment, step), "case {case}");
                        under_way.push(instance);
                        begun += 1;
                    }
                    if under_way.is_empty() {
                        match schedule.next() {
                            Some(instance) => {
                                under_way.push(instance);
                                begun += 1;
                            }
                            None => break,
                        }
                    }
                    let instance = under_way.swap_remove(random(under_way.len() as u32) as usize);
                    assert!(!std::mem::replace(&mut ended[instance as usize], true));
                    schedule.complete(&graph, instance);
                }
                assert_eq!(begun, steps * segments, "case {case}");
                assert!(schedule.is_over(&graph) && ended.iter().all(|o| *o));
            }
        }
    }
}
