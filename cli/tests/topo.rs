//! `osier topo` as a user types it.

use std::process::Command;

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
