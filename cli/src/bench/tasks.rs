//! `osier bench tasks`: what firings and edges of task graphs cost, beside a bare loop and
//! beside messages: by blocking calls, and received through a [`WaitSet`].
//!
//! The bare loop does what a firing cannot do without: it counts dependences, has a queue of
//! ready tasks, calls through a pointer under `catch_unwind`, and reads and writes 16 bytes for
//! each edge.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use osier::Communicator;
use osier::requests::WaitSet;
use osier::task::{Context, Description, Graph, In, Next, Out, Placement, Task, TaskError};

use super::options::Plan;
use super::timing::median;
use super::{Failure, Result};

/// Tasks of the graph whose firings are timed, in a ring, and firings of each.
const WIDTH: usize = 64;
const FIRINGS: u64 = 1_000;
/// Most dependences of a firing: the task itself and its neighbors.
const MOST_EDGES: usize = 3;
const REPETITIONS: u64 = 25;
/// Messages of a repetition there and back.
const ROUND_TRIPS: [(usize, u64); 3] = [(8, 5_000), (1024, 2_000), (65536, 500)];
const TAG: i32 = 1;
/// Edges into the task of a rank.
const EDGES: usize = 1;
/// Messages of which bars are printed.
const MOST_SHORT: usize = 8;
const LEAST_LONG: usize = 65536;
/// Longer messages are given on with their memory.
const GIVEN_BYTES: usize = 16 << 10;

/// Firings, in this process alone.
pub fn firings(plan: &Plan) -> Result<()> {
    println!("# osier tasks: a firing of a static graph, ns; median and least of repetitions");
    println!(
        "{:>11} {:>8} {:>9} {:>9} {:>9} {:>9} {:>7}",
        "dependences", "workers", "osier", "least", "bare", "least", "ratio"
    );
    let alone = osier::init()?;
    let comm = alone.own();
    for edges in 0..=MOST_EDGES {
        let graph = Graph::build(comm, ring(edges))?;
        for workers in 1..=2 {
            let mut ours = Vec::new();
            let mut bare = Vec::new();
            for _ in 0..plan.effort.repetitions.unwrap_or(REPETITIONS) {
                let report = graph.run_by(workers)?;
                ours.push(report.took.as_nanos() as f64 / (WIDTH as u64 * FIRINGS) as f64);
                bare.push(bare_loop(edges)?);
            }
            let (ours, least) = (median(&mut ours), ours[0]);
            let (bare, bare_least) = (median(&mut bare), bare[0]);
            println!(
                "{edges:>11} {workers:>8} {ours:>9.1} {least:>9.1} {bare:>9.1} {bare_least:>9.1} {:>7.2}",
                ours / bare
            );
        }
    }
    println!("ratio: of the medians, to the bare loop of one thread");
    Ok(())
}

/// Edges between the two ranks of a job; rank 0 reports.
pub fn edges(plan: &Plan) -> ExitCode {
    osier::run_code(|comm| super::exit_code(measure_edges(plan, &comm)))
}

fn measure_edges(plan: &Plan, comm: &Communicator) -> Result<()> {
    super::options::check_ranks(plan.bench, comm.size())?;
    let first = comm.rank() == 0;
    if first {
        println!(
            "# osier tasks: one way from a put to the start of its task on the other rank, us"
        );
        println!(
            "{:>7} {:>8} {:>8} {:>10} {:>8} {:>6} {:>8} {:>8} {:>6}",
            "bytes", "edge", "least", "send/recv", "least", "ratio", "WaitSet", "least", "ratio"
        );
    }
    let mut medians = Vec::new();
    for (bytes, trips) in ROUND_TRIPS {
        let graph = Graph::build(comm, ping_pong(bytes, trips))?;
        let mut edge = Vec::new();
        let mut message = Vec::new();
        let mut in_set = Vec::new();
        for _ in 0..plan.effort.repetitions.unwrap_or(REPETITIONS) {
            comm.barrier()?;
            let since = Instant::now();
            graph.run()?;
            edge.push(since.elapsed().as_secs_f64() * 1e6 / (2 * trips) as f64);
            comm.barrier()?;
            message.push(messages(comm, bytes, trips)?);
            comm.barrier()?;
            in_set.push(messages_in_a_set(comm, bytes, trips)?);
        }
        let (edge, least) = (median(&mut edge), edge[0]);
        let (message, message_least) = (median(&mut message), message[0]);
        let (in_set, set_least) = (median(&mut in_set), in_set[0]);
        if first {
            println!(
                "{bytes:>7} {edge:>8.3} {least:>8.3} {message:>10.3} {message_least:>8.3} {:>6.2} \
                 {in_set:>8.3} {set_least:>8.3} {:>6.2}",
                edge / message,
                edge / in_set
            );
        }
        medians.push((bytes, [edge, message, in_set]));
    }
    if first {
        println!("ratio: of the medians, of the edge to what is at its left");
        print_bars(&medians);
    }
    Ok(())
}

/// What an edge is to cost at most, by the medians of edge, send and recv, and WaitSet.
fn print_bars(medians: &[(usize, [f64; 3])]) {
    for (bytes, [edge, message, in_set]) in medians {
        let bars = match bytes {
            ..=MOST_SHORT => vec![
                ("edge / WaitSet", edge / in_set, 1.0),
                ("edge - send/recv, near cores, us", edge - message, 0.06),
                ("edge / send/recv, far cores", edge / message, 1.3),
            ],
            LEAST_LONG.. => vec![("edge / send/recv", edge / message, 1.1)],
            _ => Vec::new(),
        };
        for (what, measured, most) in bars {
            let kept = if measured <= most { "yes" } else { "no" };
            println!("{bytes:>7} bytes: {what:<34} {measured:>6.3}, at most {most:.2}: {kept}");
        }
    }
}

/// us of a message one way.
fn messages(comm: &Communicator, bytes: usize, trips: u64) -> Result<f64> {
    let (peer, mut buffer) = (1 - comm.rank(), vec![0u8; bytes]);
    let since = Instant::now();
    for _ in 0..trips {
        if comm.rank() == 0 {
            comm.send(&buffer, peer, TAG)?;
            comm.recv(&mut buffer, peer, TAG)?;
        } else {
            comm.recv(&mut buffer, peer, TAG)?;
            comm.send(&buffer, peer, TAG)?;
        }
    }
    Ok(since.elapsed().as_secs_f64() * 1e6 / (2 * trips) as f64)
}

/// us of a message one way that is received by a request in a set of as many as a rank of the
/// graph has edges, posted before the peer sends.
fn messages_in_a_set(comm: &Communicator, bytes: usize, trips: u64) -> Result<f64> {
    let peer = 1 - comm.rank();
    let mut set = WaitSet::new();
    for edge in 0..EDGES {
        set.add(edge, comm.irecv(vec![0u8; bytes], peer, TAG)?)?;
    }
    let mut spare = vec![0u8; bytes];
    let since = Instant::now();
    if comm.rank() == 0 {
        comm.send(&spare, peer, TAG)?;
    }
    for left in (0..trips).rev() {
        let (edge, received) = set
            .wait()
            .ok_or_else(|| Failure::failed("a set of requests is empty"))?;
        let (message, _) = received?;
        if left > 0 {
            set.add(edge, comm.irecv(spare, peer, TAG)?)?;
        }
        if left > 0 || comm.rank() == 1 {
            comm.send(&message, peer, TAG)?;
        }
        spare = message;
    }
    Ok(since.elapsed().as_secs_f64() * 1e6 / (2 * trips) as f64)
}

/// Two tasks, each of which sends on what comes.
fn ping_pong(bytes: usize, trips: u64) -> Description {
    let mut graph = Description::new();
    let ends = graph.family("end", &[2], Placement::Block);
    let (out, into) = (
        graph.output::<u8>(ends, "out"),
        graph.input::<u8>(ends, "in"),
    );
    graph.begins(out);
    graph.connect(out, into, |[i]: [usize; 1]| [[1 - i]]);
    graph.tasks(ends, move |[i]: [usize; 1]| End {
        serves: i == 0,
        message: vec![0; bytes],
        left: trips,
        out,
        into,
    });
    graph
}

struct End {
    serves: bool,
    message: Vec<u8>,
    left: u64,
    out: Out<u8>,
    into: In<u8>,
}

impl Task for End {
    fn init(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        if self.serves {
            cx.put(self.out, &self.message);
        }
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        self.left -= 1;
        let sends_on = self.left > 0 || !self.serves;
        if self.message.len() > GIVEN_BYTES {
            // Its memory goes on with the message.
            let message = cx.take(self.into).ok_or("no message")?;
            if sends_on {
                cx.give(self.out, message);
            }
        } else {
            let message = cx.get(self.into).ok_or("no message")?;
            self.message.copy_from_slice(message);
            if sends_on {
                cx.put(self.out, &self.message);
            }
        }
        Ok(if self.left > 0 {
            Next::Wait
        } else {
            Next::Done
        })
    }
}

/// The tasks that one of a ring sends to.
fn consumers(i: usize, edges: usize) -> Vec<usize> {
    [i, (i + 1) % WIDTH, (i + WIDTH - 1) % WIDTH][..edges].to_vec()
}

/// A ring whose tasks check what they get, as Task Bench does.
fn ring(edges: usize) -> Description {
    let mut graph = Description::new();
    let cells = graph.family("cell", &[WIDTH], Placement::Block);
    let mut ports = None;
    if edges > 0 {
        let (out, into) = (graph.output(cells, "out"), graph.input(cells, "in"));
        graph.begins(out);
        graph.connect(out, into, move |[i]: [usize; 1]| {
            consumers(i, edges).into_iter().map(|to| [to])
        });
        ports = Some((out, into));
    }
    graph.tasks(cells, move |[i]: [usize; 1]| Cell {
        at: i as u64,
        left: FIRINGS,
        ports,
    });
    graph
}

struct Cell {
    at: u64,
    left: u64,
    ports: Option<(Out<u64>, In<u64>)>,
}

impl Task for Cell {
    fn init(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        if let Some((out, _)) = self.ports {
            cx.put(out, &[0, self.at]);
        }
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let step = cx.firing();
        if let Some((_, into)) = self.ports {
            for message in cx.each(into) {
                if message.elements != [step, message.from_number()] {
                    return Err("a message of another step".into());
                }
            }
        }
        self.left -= 1;
        if self.left == 0 {
            return Ok(Next::Done);
        }
        if let Some((out, _)) = self.ports {
            cx.put(out, &[step + 1, self.at]);
        }
        Ok(Next::Wait)
    }
}

/// A task of the bare loop.
struct Bare {
    lacking: [AtomicU32; 2],
    /// By edge and parity of the step.
    inputs: [[[u64; 2]; 2]; MOST_EDGES],
    step: u64,
}

/// Consumers, with the number of the edge into each.
type Outputs = Vec<(usize, usize)>;
type Body = Box<dyn FnMut(&mut [Bare], &mut VecDeque<u32>) -> std::result::Result<bool, ()>>;

fn bare_body(i: usize, from: Vec<u64>, to: Outputs) -> Body {
    let edges = from.len();
    Box::new(move |tasks, ready| {
        let step = tasks[i].step;
        let parity = (step % 2) as usize;
        for (edge, producer) in from.iter().enumerate() {
            if tasks[i].inputs[edge][parity] != [step, *producer] {
                return Err(());
            }
        }
        tasks[i].step += 1;
        if step + 1 == FIRINGS {
            return Ok(true);
        }
        tasks[i].lacking[parity].store(edges as u32, Ordering::Relaxed);
        for (to, edge) in &to {
            tasks[*to].inputs[*edge][1 - parity] = [step + 1, i as u64];
            let lacking = &tasks[*to].lacking[1 - parity];
            if lacking.fetch_sub(1, Ordering::AcqRel) == 1 {
                ready.push_back(*to as u32);
            }
        }
        if edges == 0 {
            ready.push_back(i as u32);
        }
        Ok(false)
    })
}

/// ns of a firing of the bare loop.
fn bare_loop(edges: usize) -> Result<f64> {
    let mut from: Vec<Vec<u64>> = vec![Vec::new(); WIDTH];
    let mut to: Vec<Outputs> = vec![Vec::new(); WIDTH];
    for (i, to) in to.iter_mut().enumerate() {
        for consumer in consumers(i, edges) {
            to.push((consumer, from[consumer].len()));
            from[consumer].push(i as u64);
        }
    }
    let task = |i: usize| Bare {
        lacking: [AtomicU32::new(0), AtomicU32::new(edges as u32)],
        inputs: std::array::from_fn(|edge| [[0, from[i].get(edge).copied().unwrap_or(0)], [0; 2]]),
        step: 0,
    };
    let mut tasks: Vec<Bare> = (0..WIDTH).map(task).collect();
    let bodies = from.into_iter().zip(to).enumerate();
    let mut bodies: Vec<Body> = bodies
        .map(|(i, (from, to))| bare_body(i, from, to))
        .collect();
    let mut ready: VecDeque<u32> = (0..WIDTH as u32).collect();
    let since = Instant::now();
    let mut ended = 0;
    while ended < WIDTH {
        let task = ready.pop_front().ok_or_else(halted)?;
        let body = &mut bodies[task as usize];
        let called = catch_unwind(AssertUnwindSafe(|| body(&mut tasks, &mut ready)));
        ended += usize::from(
            called
                .ok()
                .and_then(std::result::Result::ok)
                .ok_or_else(halted)?,
        );
    }
    Ok(since.elapsed().as_nanos() as f64 / (WIDTH as u64 * FIRINGS) as f64)
}

fn halted() -> Failure {
    Failure::failed("the bare loop halted")
}
