//! Example 1: a token around the ring.

fn main() -> osier::Result<()> {
    let universe = osier::init()?;
    let world = universe.world();
    let (rank, size) = (world.rank(), world.size());
    let next = (rank + 1) % size;
    let previous = (rank + size - 1) % size;

    // Rank 0 begins; everybody adds its number and passes the token on.
    let mut token = [0u64];
    if rank == 0 {
        world.send(&token, next, 0)?;
        world.recv(&mut token, previous, 0)?;
        println!("the token is back from {size} ranks with {}", token[0]);
        assert_eq!(token[0], (0..size as u64).sum::<u64>());
    } else {
        world.recv(&mut token, previous, 0)?;
        token[0] += rank as u64;
        world.send(&token, next, 0)?;
    }
    Ok(())
}
