//! `osier topo` as a user types it.

use osier_kernels::debug::Debug as _;
use std::process::Command;

#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

#[test]
fn a_described_machine_is_drawn() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("topo-{}.svg", std::process::id()));
    let file = file.display();
    let topo = |line: &str| {
        Command::new(env!("CARGO_BIN_EXE_osier"))
            .arg("topo")
            .args(line.split_whitespace())
            .output()
            .unwrap()
    };
    let out = topo(&format!(
        "--topology 2x2x2 --of bcast --root 3 --bytes 64K --svg {file}"
    ));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{text}");
    assert!(
        text.contains("package 1  ranks 6-7") && text.contains("chosen"),
        "{text}"
    );
    assert!(
        text.contains("runner-up") && text.contains("\n3\n"),
        "{text}"
    );
    let picture = std::fs::read_to_string(file.to_string()).unwrap();
    std::fs::remove_file(file.to_string()).unwrap();
    assert_eq!(picture.matches("<circle").count(), 8);
    let here = String::from_utf8(topo("-n 2").stdout).unwrap();
    assert!(
        here.starts_with("machine") && here.contains("core"),
        "{here}"
    );
    let devices = topo("-n 2 --of bcast --memory device");
    if !devices.status.success() {
        let told = String::from_utf8(devices.stderr).unwrap();
        assert!(told.contains("no GPU is here"), "{told}");
    }
    for (line, hint) in [
        ("--of sum", "allreduce"),
        ("--topology 4x0", "4x2x4"),
        ("--topology 2x2 --of bcast --root 9", "4 ranks"),
        ("--topology 2x2 --of bcast --algorithm bruck", "Bruck"),
    ] {
        let out = topo(line);
        let told = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{line}: {told}");
        assert!(told.contains(hint), "{line}: {told}");
    }
}

/// GPUs of the emulated driver, which reach each other.
#[test]
fn gpus_are_drawn_with_their_ranks() {
    let Some(library) = needs::driver() else {
        return;
    };
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("gpus-{}.svg", std::process::id()));
    let out = Command::new(env!("CARGO_BIN_EXE_osier"))
        .args(["topo", "-n", "4", "--of", "allreduce", "--bytes", "4M"])
        .args(["--memory", "device", "--svg"])
        .arg(&file)
        .debug("cuda-library", &library)
        .env("OSIER_EMULATED_GPUS", "2")
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        out.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(text.contains("gpu 1: ranks 1,3"), "{text}");
    let picture = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(
        picture.contains(">gpu 0<") && picture.contains(">gpu 1<"),
        "{picture}"
    );
    assert_eq!(picture.matches("<circle").count(), 4);
    let out = Command::new(env!("CARGO_BIN_EXE_osier"))
        .args([
            "topo", "-n", "8", "--of", "bcast", "--bytes", "4M", "--memory", "device",
        ])
        .debug("cuda-library", library)
        .env("OSIER_EMULATED_GPUS", "4")
        .env("OSIER_EMULATED_LINKS", "0-1:4,2-3:12,0-3:none")
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("gpu 2") && text.contains("NV12"), "{text}");
    assert!(
        text.contains("NVn: n NVLinks") && text.contains("[...]"),
        "{text}"
    );
}

#[test]
fn links_of_a_described_machine_are_drawn() {
    let topo = |line: &str| {
        Command::new(env!("CARGO_BIN_EXE_osier"))
            .arg("topo")
            .args(line.split_whitespace())
            .output()
            .unwrap()
    };
    let line = "--topology 1x2x4 --of bcast --bytes 64M --memory device --nvlink";
    let out = topo(&format!("{line} 0-5:4,5-2:4,2-7:4,7-1:4,1-4:4,4-3:4,3-6:4"));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{text}");
    assert!(
        text.contains("\n0  X        package") && text.contains("NV4"),
        "{text}"
    );
    assert!(text.contains("the order of links"), "{text}");
    // Along them, one behind the other.
    assert!(text.contains("0\n`- 5\n   `- 2\n"), "{text}");
    let wrong = topo(&format!("{line} 0-8:4"));
    let told = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{told}");
    assert!(told.contains("0 to 7"), "{told}");
}
