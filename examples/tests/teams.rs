//! Kernels of a team whose accesses to ranks elsewhere fail: their waits end, and the host has the
//! reason.

use osier::devices::DeviceSlice;
use osier::rma::{DeviceTeam, Symmetric};
use osier::{Error, ErrorKind};
use osier_examples::gpu::Gpu;
use osier_examples::halo::Steps;
use std::path::PathBuf;
use std::process::Command;

#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

/// A program beside the folder of this test.
fn beside(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let program = test.parent()?.parent()?.join(name);
    program.is_file().then_some(program)
}

/// Runs an ignored test of this file on two ranks that are elsewhere for each other.
fn on_two(case: &str) {
    let (Some(launcher), Some(_)) = (beside("osier"), beside("libosier_emulated_cuda.so")) else {
        return needs::missing(
            "launcher and driver",
            "they were not built beside the tests",
        );
    };
    let job = "run -n 2 --emulate-gpus 1 --delay 10us --bind none --";
    let test = ["--exact", case, "--ignored", "--nocapture"];
    let out = Command::new(launcher)
        .args(job.split_whitespace())
        .arg(std::env::current_exe().expect("this test"))
        .args(test)
        .arg("--test-threads=1")
        .output()
        .expect("osier starts");
    let told = String::from_utf8_lossy(&out.stdout);
    let complaint = String::from_utf8_lossy(&out.stderr);
    let passed = told.matches("1 passed").count();
    assert!(out.status.success() && passed == 2, "{told}{complaint}");
}

#[test]
fn accesses_outside_of_a_heap_are_told() {
    on_two("child_puts_outside");
}

#[test]
fn memory_that_no_launch_has_named_is_told() {
    on_two("child_puts_unnamed_memory");
}

const ROWS: usize = 3;
const COLUMNS: usize = 16;
const ROW: usize = COLUMNS + 2;
const POINTS: usize = (ROWS + 2) * ROW;

/// One step of a kernel on each of two ranks, which both put a row into the last of the other's second
/// field: what the team tells. The fields are at the addresses that are given.
fn one_step(fields: impl FnOnce(&Gpu, &DeviceTeam, &Symmetric<f64>) -> [u64; 2]) -> Error {
    let universe = osier::init().expect("a job");
    let world = universe.world();
    let gpu = Gpu::of(world).expect("a device");
    let heap = world.symmetric_heap_on(&gpu.context, 8192);
    let heap = heap.expect("a heap");
    let arrived = heap.alloc::<u64>(2).expect("two words");
    let team = heap.team().expect("a team");
    let lens = (0..heap.bytes() / size_of::<f64>()).rev();
    let cells = { lens }.find_map(|len| heap.alloc::<f64>(len).ok());
    let cells = cells.expect("the rest of the heap");
    let met: DeviceSlice<u64> = gpu.upload(&[0]).expect("a word");
    let own = world.rank() as u32;
    let plan = Steps {
        team: team.argument(),
        fields: fields(&gpu, &team, &cells),
        arrived: team.address_of(&arrived, 0).expect("a word"),
        met: met.address(),
        rows: ROWS as u64,
        columns: COLUMNS as u64,
        steps: 1,
        neighbors: [1 - own, own],
    };
    let kernel = gpu.kernel("example_halo_steps").expect("a kernel");
    heap.barrier().expect("a barrier");
    // SAFETY: the kernel of this argument; what it touches itself lies in the heap, in `met` and in
    // memory that the caller keeps.
    let event = unsafe { team.launch(&kernel, &gpu.stream, (1, 64), &plan, &[met.memory()]) };
    event.expect("a launch").synchronize().expect("its end");
    let e = team.check().expect_err("an access has failed");
    drop((team, cells, arrived));
    heap.free().expect("the heap is free");
    e
}

/// The last row of the second field lies behind the heap's end: the kernel does not touch it.
#[test]
#[ignore = "a child of accesses_outside_of_a_heap_are_told"]
fn child_puts_outside() {
    let e = one_step(|_, team, cells| {
        let second = cells.len() - (POINTS - ROW);
        [0, second].map(|at| team.address_of(cells, at).expect("an element"))
    });
    assert_eq!(e.kind(), ErrorKind::WindowRange, "{e}");
    let told = e.to_string();
    assert!(
        told.contains("128 bytes") && told.contains("whose heap has 8192"),
        "{e}"
    );
}

/// The fields lie in memory that the launch does not name.
#[test]
#[ignore = "a child of memory_that_no_launch_has_named_is_told"]
fn child_puts_unnamed_memory() {
    let mut kept = None;
    let e = one_step(|gpu, _, _| {
        let apart = gpu.upload(&[0.0f64; 2 * POINTS]).expect("fields");
        gpu.stream.synchronize().expect("zeros");
        let at = apart.address();
        kept = Some(apart);
        [at, at + (POINTS * size_of::<f64>()) as u64]
    });
    assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
    assert!(e.to_string().contains("launch has named"), "{e}");
}
