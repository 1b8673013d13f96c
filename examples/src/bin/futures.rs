//! Example 3: requests are futures. Each rank asks the next for a number and
//! answers the previous one, both at a time, in straight-line code.

use osier::{Communicator, Result};

const QUESTION: u32 = 1;
const ANSWER: u32 = 2;

async fn ask(comm: &Communicator, whom: usize, n: u64) -> Result<u64> {
    // A request owns its buffer and gives it back when it is over.
    let sent = comm.isend(vec![n], whom, QUESTION)?;
    let (answer, _) = comm.irecv(vec![0u64], whom, ANSWER)?.await?;
    sent.await?;
    Ok(answer[0])
}

async fn answer(comm: &Communicator, whom: usize) -> Result<()> {
    let (question, _) = comm.irecv(vec![0u64], whom, QUESTION)?.await?;
    comm.isend(vec![question[0].pow(2)], whom, ANSWER)?.await?;
    Ok(())
}

fn main() -> Result<()> {
    let universe = osier::init()?;
    let world = universe.world();
    let (rank, size) = (world.rank(), world.size());
    let next = (rank + 1) % size;
    let previous = (rank + size - 1) % size;

    let n = rank as u64 + 10;
    let square = world.block_on(async {
        // Both go on together: a rank that only asked would wait for one that
        // only asks.
        let mut answering = std::pin::pin!(answer(world, previous));
        let mut asking = std::pin::pin!(ask(world, next, n));
        let mut answered = false;
        let mut square = None;
        std::future::poll_fn(|context| {
            use std::task::Poll;
            if !answered && let Poll::Ready(result) = answering.as_mut().poll(context) {
                answered = true;
                result?;
            }
            if square.is_none()
                && let Poll::Ready(result) = asking.as_mut().poll(context)
            {
                square = Some(result?);
            }
            match square {
                Some(square) if answered => Poll::Ready(Ok::<u64, osier::Error>(square)),
                _ => Poll::Pending,
            }
        })
        .await
    })?;
    assert_eq!(square, n * n);
    println!("rank {rank}: rank {next} says that the square of {n} is {square}");
    Ok(())
}
