//! Programs that block for ever in one call each: `exercise blocks NAME`.
//!
//! Rank 0 makes the call; the others wait for a message that nobody sends, so the job
//! hangs. `tests/blocking.rs` says which call of the library each stands for.

use osier::requests::{Callbacks, WaitSet, first_over, wait_all, wait_any, wait_some};
use osier::topology::Edges;
use osier::{Communicator, Result, Universe};

/// More than goes without asking the receiver.
const LARGE: usize = 8 << 20;

fn large() -> Vec<u8> {
    vec![0; LARGE]
}

/// Blocks, with the universe's world; `finalize` blocks in its end.
pub fn run(universe: &Universe, how: &str) {
    let world = universe.world();
    let mut word = [0u64];
    world.barrier().expect("all are here");
    if world.rank() == 0 {
        block(universe, world, how).expect("no error");
    } else if !takes_part(world, how) {
        world.recv(&mut word, 0, 99).expect("no error");
    }
    super::through(world);
}

/// What the other ranks do before they wait, or instead.
fn takes_part(world: &Communicator, how: &str) -> bool {
    if how == "precv-unready" {
        let mut send = world.psend_init(vec![0u64; 8], 4, 0, 3).expect("set up");
        send.start().expect("started");
        send.pready_range(0..=2).expect("ready");
        send.wait().expect("no error");
        return true;
    }
    if how == "tasks" {
        super::halts::run(world, "cycle");
        return true;
    }
    if how == "wait-until" {
        let heap = world.symmetric_heap(4096).expect("a heap");
        let _flag = heap.alloc::<u64>(1).expect("a flag");
        world.recv(&mut [0u64], 0, 99).expect("no error");
        return true;
    }
    if how == "window-lock" {
        let window = world.window::<u64>(1).expect("a window");
        let locked = window.lock(1).expect("nobody has it");
        window.fence().expect("no error");
        world.recv(&mut [0u64], 0, 99).expect("no error");
        drop(locked);
        return true;
    }
    false
}

/// The call of rank 0. Its peer is rank 1.
fn block(universe: &Universe, world: &Communicator, how: &str) -> Result<()> {
    let mut word = [0u64];
    match how {
        "recv" => drop(world.recv(&mut word, 1, 7)?),
        "recv-any" => drop(world.recv(&mut word, osier::ANY_SOURCE, osier::ANY_TAG)?),
        "recv-vec" => drop(world.recv_vec::<u64>(1, 7)?),
        "send" => world.send(&large(), 1, 7)?,
        "ssend" => world.ssend(&word, 1, 7)?,
        "sendrecv" => drop(world.sendrecv(&[1u64], 1, 7, &mut word, 1, 7)?),
        "sendrecv-replace" => drop(world.sendrecv_replace(&mut word, 1, 7, 1, 7)?),
        "tasks" => super::halts::run(world, "cycle"),
        "probe" => drop(world.probe(1, 7)?),
        "mprobe" => drop(world.mprobe(1, 7)?),
        "request" => drop(world.irecv(word.to_vec(), 1, 7)?.wait()?),
        "exchange" => drop(
            world
                .isendrecv(word.to_vec(), 1, 7, word.to_vec(), 1, 7)?
                .wait()?,
        ),
        "wait-all" => drop(wait_all([world.irecv(word.to_vec(), 1, 7)?])?),
        "wait-any" => drop(wait_any(&mut vec![world.irecv(word.to_vec(), 1, 7)?])),
        "wait-some" => drop(wait_some(&mut vec![world.irecv(word.to_vec(), 1, 7)?])),
        "first-over" => {
            let mut request = world.irecv(word.to_vec(), 1, 7)?;
            first_over(&mut [&mut request]);
        }
        "set" => {
            let mut set = WaitSet::new();
            set.add((), world.irecv(word.to_vec(), 1, 7)?)
                .expect("ours");
            drop(set.wait());
        }
        "persistent" => {
            let mut recv = world.recv_init(word.to_vec(), 1, 7)?;
            recv.start()?;
            recv.wait()?;
        }
        "scope" => world.scope(|s| s.irecv(&mut word, 1, 7).map(drop))?,
        "scoped-request" => {
            world.scope(|s| s.irecv(&mut word, 1, 7)?.wait().map(drop))?;
        }
        "scoped-psend" => {
            let mut bytes = large();
            world.scope(|s| {
                let mut send = s.psend_init(&mut bytes, 1, 1, 3)?;
                send.start()?;
                send.pready(0)
            })?;
        }
        "scoped-precv" => world.scope(|s| s.precv_init(&mut word, 1, 1, 3)?.start())?,
        "pready" => {
            let mut send = world.psend_init(vec![0u64; 8], 4, 1, 3)?;
            send.start()?;
            send.pready_range(0..=2)?;
            send.wait()?;
        }
        "psend" => {
            let mut send = world.psend_init(large(), 2, 1, 3)?;
            send.start()?;
            send.pready_range(0..=1)?;
            send.wait()?;
        }
        "precv" | "precv-unready" => {
            let mut recv = world.precv_init(vec![0u64; 8], 2, 1, 3)?;
            recv.start()?;
            recv.wait()?;
        }
        "pready-any" => {
            let mut send = world.psend_init(vec![0u64; 8], 4, 1, 3)?;
            send.start()?;
            drop(wait_any(&mut vec![send]));
        }
        "precv-set" => {
            let mut recv = world.precv_init(vec![0u64; 8], 2, 1, 3)?;
            recv.start()?;
            let mut set = WaitSet::new();
            set.add((), recv).expect("ours");
            drop(set.wait());
        }
        "generalized" => {
            let (request, _completer) = world.generalized_request(Callbacks::new());
            request.wait()?;
        }
        "generalized-any" => {
            let (request, _completer) = world.generalized_request(Callbacks::new());
            drop(wait_any(&mut vec![request]));
        }
        "detach" | "flush" | "iflush" | "iflush-any" => {
            world.attach_buffer(large())?;
            world.bsend(&large(), 1, 7)?;
            match how {
                "detach" => drop(world.detach_buffer()),
                "flush" => world.flush_buffer(),
                "iflush" => drop(world.iflush_buffer().wait()?),
                _ => drop(wait_any(&mut vec![world.iflush_buffer()])),
            }
        }
        "flush-sends" | "finalize" => {
            drop(world.isend(large(), 1, 7)?);
            if how == "flush-sends" {
                world.flush_sends();
            }
        }
        "session" => {
            let session = universe.session();
            let group = session.group("mpi://WORLD")?.clone();
            drop(session.create_from_group(&group, "lonely")?);
        }
        "two-sessions" => {
            // The second thread to come finds the first at the meeting.
            let session = universe.session();
            let group = session.group("mpi://WORLD")?.clone();
            std::thread::scope(|s| {
                s.spawn(|| drop(session.create_from_group(&group, "lonely")));
                drop(session.create_from_group(&group, "alone"));
            });
        }
        "wait-until" => {
            let heap = world.symmetric_heap(4096)?;
            let flag = heap.alloc::<u64>(1)?;
            flag.wait_until(0, |flag| flag == 1)?;
        }
        "window-lock" => {
            let window = world.window::<u64>(1)?;
            window.fence()?;
            drop(window.lock(1)?);
        }
        "barrier" => world.barrier()?,
        "agree" => drop(world.agree(1)?),
        "shrink" => drop(world.shrink()?),
        "ibarrier" => world.ibarrier()?.wait()?,
        "scoped-barrier" => world.scope(|s| s.ibarrier()?.wait())?,
        "persistent-barrier" => {
            let mut barrier = world.barrier_init()?;
            barrier.start()?;
            barrier.wait()?;
        }
        "split" => drop(world.split(Some(0), 0)?),
        "graph" => {
            let none = Edges {
                sources: &[],
                degrees: &[],
                destinations: &[],
                weights: None,
            };
            drop(world.dist_graph_create(none, false)?);
        }
        "block-on" => drop(world.block_on(world.irecv(word.to_vec(), 1, 7)?)?),
        _ => panic!("blocks {how}?"),
    }
    Ok(())
}
