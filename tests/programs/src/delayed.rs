//! What `osier run --delay` promises, measured by the ranks: only lower bounds, since a machine
//! that is busy may take any longer.

use osier::task::{Context, Description, Graph, In, Next, Out, Placement, Task, TaskError};
use osier::{Communicator, ErrorKind};
use osier_transports::shm::monotonic_ns;
use std::time::{Duration, Instant};

/// Round trips of each size.
const ROUNDS: usize = 3;

pub fn run(comm: &Communicator, what: &[&str]) {
    let number = |text: &str| -> u64 { text.parse().expect("a number") };
    match *what {
        ["messages", latency_us, us_per_mib] => {
            messages(comm, number(latency_us), number(us_per_mib));
        }
        ["near", latency_us] => near(comm, number(latency_us)),
        ["edges", latency_us] => edges(comm, number(latency_us)),
        ["barrier", latency_us] => barrier(comm, number(latency_us)),
        ["last-words"] => last_words(comm),
        _ => panic!("exercise delay {what:?}?"),
    }
    super::through(comm);
}

/// The sender's clock stands in front of what it sends: each way takes no less than it must.
fn messages(comm: &Communicator, latency_us: u64, us_per_mib: u64) {
    assert_eq!(
        comm.transport(1 - comm.rank()).expect("a peer"),
        "delayed shm"
    );
    // Eager and whole, in a ring, in fragments; announced, which takes three messages.
    for (bytes, synchronous, steps) in [
        (8, false, 1),
        (4_000, false, 1),
        (8, true, 1),
        (3 << 20, false, 3),
        (3 << 20, true, 3),
    ] {
        for heap in [false, true] {
            let least_ns = steps * 1_000 * latency_us + ((bytes as u64 * 1_000 * us_per_mib) >> 20);
            let mut own = comm.alloc::<u8>(bytes).expect("heap");
            let mut plain = vec![0; bytes];
            for round in 0..2 * ROUNDS {
                if round % 2 == comm.rank() {
                    let bytes = super::pattern(bytes, round);
                    let memory: &mut [u8] = if heap { &mut own } else { &mut plain };
                    memory.copy_from_slice(&bytes);
                    memory[..8].copy_from_slice(&monotonic_ns().to_le_bytes());
                    match synchronous {
                        true => comm.ssend(memory, 1 - comm.rank(), round),
                        false => comm.send(memory, 1 - comm.rank(), round),
                    }
                    .expect("sent");
                } else {
                    let memory: &mut [u8] = if heap { &mut own } else { &mut plain };
                    comm.recv(memory, 1 - comm.rank(), round).expect("received");
                    let mut sent = [0; 8];
                    sent.copy_from_slice(&memory[..8]);
                    let took = monotonic_ns() - u64::from_le_bytes(sent);
                    assert!(
                        took >= least_ns,
                        "{bytes} bytes took {took} ns, at least {least_ns} (heap: {heap})"
                    );
                    assert!(memory[8..] == super::pattern(bytes, round)[8..], "{bytes}");
                }
            }
        }
    }
}

/// Ranks 0 and 1 are threads of one process, rank 2 is elsewhere.
fn near(comm: &Communicator, latency_us: u64) {
    const TRIPS: u32 = 100;
    let latency = Duration::from_micros(latency_us);
    let mut word = [0u64; 20_000];
    let begin = Instant::now();
    match comm.rank() {
        0 => {
            for trip in 0..TRIPS as usize {
                comm.send(&word, 1, trip).expect("sent");
                comm.recv(&mut word, 1, trip).expect("received");
            }
            assert!(
                begin.elapsed() < latency * TRIPS,
                "threads wait for no delay"
            );
            comm.send(&[7u8], 2, 0).expect("sent");
            comm.recv(&mut [0u8], 2, 0).expect("received");
            assert!(begin.elapsed() >= 2 * latency);
        }
        1 => {
            for trip in 0..TRIPS as usize {
                comm.recv(&mut word, 0, trip).expect("received");
                comm.send(&word, 0, trip).expect("sent");
            }
        }
        _ => {
            comm.recv(&mut [0u8], 0, 0).expect("received");
            comm.send(&[7u8], 0, 0).expect("sent");
        }
    }
    let mut sum = [0u64];
    let own = [1u64 << comm.rank()];
    comm.allreduce(&own, &mut sum, osier::Op::Sum).expect("sum");
    assert_eq!(sum, [7]);
}

/// One of two tasks that hand a number to and fro.
struct Hand {
    first: bool,
    left: u64,
    out: Out<u64>,
    into: In<u64>,
}

const HANDS: u64 = 6;

impl Task for Hand {
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        if self.first {
            cx.put(self.out, &[0]);
        }
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        let mut found = 0;
        for message in cx.each(self.into) {
            found = message.elements[0];
        }
        assert_eq!(found, 2 * (HANDS - self.left) + u64::from(self.first));
        self.left -= 1;
        if self.left > 0 || !self.first {
            cx.put(self.out, &[found + 1]);
        }
        Ok(if self.left > 0 {
            Next::Wait
        } else {
            Next::Done
        })
    }
}

/// Messages along edges of a graph, from task to task on two ranks.
fn edges(comm: &Communicator, latency_us: u64) {
    let mut graph = Description::new();
    let hands = graph.family("hand", &[2], Placement::Cyclic);
    let (out, into) = (graph.output(hands, "out"), graph.input(hands, "in"));
    graph.begins(out);
    graph.connect(out, into, |[i]: [usize; 1]| [[1 - i]]);
    graph.tasks(hands, move |[i]: [usize; 1]| Hand {
        first: i == 0,
        left: HANDS,
        out,
        into,
    });
    let graph = Graph::build(comm, graph).expect("a graph");
    let begin = Instant::now();
    graph.run().expect("no failure");
    let least = Duration::from_micros(latency_us) * (2 * HANDS as u32 - 1);
    assert!(
        begin.elapsed() >= least,
        "{:?}, at least {least:?}",
        begin.elapsed()
    );
}

/// No rank leaves a barrier before the last has entered it and its message has come.
fn barrier(comm: &Communicator, latency_us: u64) {
    for round in 0..comm.size() {
        comm.barrier().expect("all are here");
        let mut entered = monotonic_ns();
        if round == comm.rank() {
            // The others wait for this one.
            while monotonic_ns() < entered + 1_000 * latency_us {
                std::hint::spin_loop();
            }
            entered = monotonic_ns();
        }
        comm.barrier().expect("all are here");
        let left = monotonic_ns();
        let mut last = [0];
        comm.allreduce(&[entered], &mut last, osier::Op::Max)
            .expect("the last");
        let least = last[0] + 1_000 * latency_us;
        assert!(
            last[0] == entered || left >= least,
            "{left}, at least {least}"
        );
    }
}

/// Rank 1 is killed right after it has sent: all of it arrives before its end is told.
fn last_words(comm: &Communicator) {
    const WORDS: usize = 40;
    comm.barrier().expect("all are here");
    if comm.rank() == 1 {
        for word in 0..WORDS {
            comm.send(&super::pattern(100 * word, word), 0, 1)
                .expect("sent");
        }
        super::kill_me();
    }
    if comm.rank() == 0 {
        for word in 0..WORDS {
            let mut got = vec![0; 100 * WORDS];
            let status = comm.recv(&mut got, 1, 1).expect("sent before its end");
            let expected = super::pattern(100 * word, word);
            assert!(got[..expected.len()] == expected && status.bytes() == expected.len());
        }
    }
    let e = comm.recv(&mut [0u8], 1, 2).expect_err("it is dead");
    assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
    assert!(
        e.to_string().contains("rank 1 was killed by signal 9"),
        "{e}"
    );
}
