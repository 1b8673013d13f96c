//! Reductions whose shares differ, in slots.

use super::*;

/// How each rank's run has ended, whether all results are right, and what is left.
fn play_shares(
    counts: &[usize],
    segments: u32,
    seed: u64,
    faults: (Option<usize>, Option<(u32, usize)>),
) -> (Vec<(u32, Result<()>)>, bool, usize) {
    let size = counts.len() as u32;
    let call = Call::new(Operation::ReduceScatter, size).varying();
    let plan = Plan::new(call, Algorithm::OnePhase, segments).expect("for the call");
    let total: usize = counts.iter().sum();
    let term = |rank: u32, at: usize| u64::from(rank + 1) * 1000 + at as u64;
    let mut sends: Vec<Vec<u8>> = (0..size)
        .map(|rank| {
            (0..total)
                .flat_map(|at| term(rank, at).to_le_bytes())
                .collect()
        })
        .collect();
    let mut results: Vec<Vec<u8>> = counts.iter().map(|n| vec![0; n * UNIT]).collect();
    let each: Arc<[usize]> = counts.iter().map(|n| n * UNIT).collect();
    let starts = |rank: usize| each[..rank].iter().sum::<usize>();
    let ranges: Arc<[_]> = (0..size as usize)
        .map(|rank| starts(rank)..starts(rank + 1))
        .collect();
    let buffers = sends.iter_mut().zip(&mut results).map(|(send, recv)| {
        let view = |bytes: &mut Vec<u8>| RawView::untyped(bytes.as_mut_ptr(), bytes.len());
        let own = recv.len();
        Buffers {
            send: Pieces::Ranges(view(send), ranges.clone()),
            recv: Pieces::Equal(view(recv), own),
            sizes: Sizes::Each(each.clone()),
            unit: UNIT,
        }
    });
    let sum = || {
        let sum = Combiner::Owned(Arc::new(Sum));
        Some((sum, Fit::of_unit(UNIT, Association::Any)))
    };
    let (ends, left) = play_plan(&plan, buffers.collect(), sum, seed, faults);
    let right = |(rank, end): &(u32, Result<()>)| {
        let first = starts(*rank as usize) / UNIT;
        let sums = results[*rank as usize].chunks_exact(UNIT).enumerate();
        let wanted = |at: usize| (0..size).map(|of| term(of, first + at)).sum::<u64>();
        end.is_err() || { sums }.all(|(at, sum)| number(sum) == wanted(at))
    };
    let all = ends.iter().all(right);
    (ends, all, left)
}

fn cases() -> impl Iterator<Item = (Vec<usize>, u32)> {
    (2..6usize).flat_map(|size| {
        (0..12u64).map(move |seed| {
            let mut random = Random(seed * 31 + size as u64);
            let most = [2, 40, 900][random.below(3)];
            let counts = (0..size).map(|_| random.below(most + 1)).collect();
            (counts, [1, 1, 3][random.below(3)])
        })
    })
}

#[test]
fn shares_that_differ_are_combined() {
    for (counts, segments) in cases() {
        for seed in 0..6 {
            let told = format!("{counts:?} in {segments}, {seed}");
            let (ends, right, left) = play_shares(&counts, segments, seed, (None, None));
            assert!(right && left == 0, "{told}: {left} left");
            ends.into_iter().for_each(|(_, end)| end.expect(&told));
        }
    }
}

/// Whatever fails, and whichever rank dies: all others end, with their sums or an error.
#[test]
fn failures_and_deaths_end_every_run_of_shares() {
    let (mut failed, mut fine) = (0, 0);
    for (counts, segments) in cases() {
        for at in 0..16usize {
            let dies = (at as u32 % counts.len() as u32, at * 2);
            for faults in [(Some(at), None), (None, Some(dies))] {
                let told = format!("{counts:?} in {segments}, {faults:?}");
                let (ends, right, left) = play_shares(&counts, segments, at as u64, faults);
                assert!(right && left == 0, "{told}: {left} left");
                failed += ends.iter().filter(|(_, end)| end.is_err()).count();
                fine += ends.iter().filter(|(_, end)| end.is_ok()).count();
            }
        }
    }
    assert!(failed > 200 && fine > 200, "{failed} failed, {fine} fine");
}
