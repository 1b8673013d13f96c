//! How devices are joined, as the emulated driver has it: two, four and eight of them.

mod support;

use osier_kernels::{
    DeviceLink, NvLinks,
    debug::{self, Debug as _},
    device_links, devices,
};
use std::process::Command;

const GPUS: &str = "OSIER_EMULATED_GPUS";
const LINKS: &str = "OSIER_EMULATED_LINKS";
const CASE: &str = "TEST_CASE";

/// Runs a case of this file on so many devices, joined so.
fn passes(case: &str, devices: usize, variables: &[(&str, &str)]) {
    let Some(driver) = support::emulated() else {
        return;
    };
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(GPUS, devices.to_string())
        .env(CASE, case)
        .envs(variables.iter().copied())
        .debug("cuda-library", driver)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    let also = String::from_utf8_lossy(&child.stderr);
    assert!(
        child.status.success() && told.contains("1 passed"),
        "{case}: {told}{also}"
    );
}

#[test]
#[ignore = "run by the others"]
fn child() {
    match std::env::var(CASE).as_deref() {
        Ok("bus") => bus(),
        Ok("pairs") => pairs(),
        Ok("mesh") => mesh(),
        Ok("switch") => switch(),
        Ok("unknown") => unknown(),
        other => panic!("no case {other:?}"),
    }
}

fn between(one: usize, other: usize) -> DeviceLink {
    let device_links = device_links().unwrap();
    assert_eq!(device_links.unknown, None);
    assert_eq!(device_links.devices, devices().unwrap());
    device_links.between[one][other]
}

#[test]
fn two_devices_on_the_bus() {
    passes("bus", 2, &[]);
}

fn bus() {
    let device_link = between(0, 1);
    assert!(device_link.reached && !device_link.atomics);
    assert_eq!(
        (device_link.rank, device_link.nvlinks),
        (Some(1), NvLinks::None)
    );
    assert!(between(1, 1).reached);
}

#[test]
fn four_devices_in_pairs() {
    passes("pairs", 4, &[(LINKS, "0-1:4,2-3:2,0-3:none")]);
}

fn pairs() {
    let near = between(1, 0);
    assert_eq!(near.nvlinks, NvLinks::Direct(4));
    assert_eq!((near.rank, near.atomics), (Some(0), true));
    assert_eq!(between(2, 3).nvlinks, NvLinks::Direct(2));
    assert_eq!(between(1, 2).nvlinks, NvLinks::None);
    assert!(between(1, 2).reached && !between(0, 3).reached);
    assert_eq!(devices().unwrap()[0].peers, [1, 2]);
}

/// The hybrid cube of eight devices with six links each.
const MESH: &str = "0-1:1,0-2:1,0-3:2,0-4:2,1-2:2,1-3:1,1-5:2,2-3:2,2-6:1,3-7:1,\
                    4-5:1,4-6:1,4-7:2,5-6:2,5-7:1,6-7:2";

#[test]
fn eight_devices_in_a_mesh() {
    passes("mesh", 8, &[(LINKS, MESH)]);
}

fn mesh() {
    let all = device_links().unwrap();
    let each = |row: &Vec<DeviceLink>| -> u32 {
        let count = |device_link: &DeviceLink| match device_link.nvlinks {
            NvLinks::Direct(n) => n,
            _ => 0,
        };
        row.iter().map(count).sum()
    };
    assert!(all.between.iter().all(|row| each(row) <= 6));
    assert_eq!(between(0, 4).nvlinks, NvLinks::Direct(2));
    assert_eq!(between(7, 3).nvlinks, NvLinks::Direct(1));
    assert_eq!(between(0, 7).nvlinks, NvLinks::None);
    assert!(between(0, 7).reached);
    for one in 0..8 {
        for other in 0..8 {
            assert_eq!(all.between[one][other], all.between[other][one]);
        }
    }
}

#[test]
fn eight_devices_on_a_switch() {
    passes("switch", 8, &[(LINKS, "switch:18,0-7:none")]);
}

fn switch() {
    assert_eq!(between(0, 1).nvlinks, NvLinks::Switched(18));
    assert_eq!(between(6, 7).nvlinks, NvLinks::Switched(18));
    assert_eq!(between(0, 7).nvlinks, NvLinks::None);
    assert!(!between(7, 0).reached);
}

/// Without the management library all else is told.
#[test]
fn links_may_be_unknown() {
    let links = (LINKS, "0-1:4");
    passes("unknown", 2, &[links, ("OSIER_EMULATED_NVML", "0")]);
    passes(
        "unknown",
        2,
        &[links, (debug::VARIABLE, "nvml-library=off")],
    );
}

fn unknown() {
    let device_links = device_links().unwrap();
    let why = device_links.unknown.as_ref().expect("a reason");
    assert!(why.contains("nvml") || why.contains("NVML"), "{why}");
    let device_link = device_links.between[0][1];
    assert_eq!(device_link.nvlinks, NvLinks::Unknown);
    assert!(device_link.reached && device_link.rank == Some(0));
}
