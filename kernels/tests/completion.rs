//! Work of messages is seen to be done by a word, without asking the driver each time.

mod support;

use osier_kernels::debug::Debug as _;
use osier_kernels::{Callback, Context, Stream};
use std::sync::mpsc;
use std::time::Duration;

const LOOKS: usize = 10_000;

#[test]
#[ignore = "run by looking_does_not_ask_the_driver"]
fn child_that_looks() {
    let context = Context::new(0).unwrap();
    let stream = Stream::uncaptured(&context).unwrap();
    for _ in 0..3 {
        let (go, wait) = mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let hold = Callback::new(move || {
            let _ = wait.lock().map(|wait| wait.recv());
        });
        let before = stream.record().unwrap();
        stream.call(&hold).unwrap();
        let event = stream.record().unwrap();
        for _ in 0..LOOKS {
            assert!(!event.is_passed().unwrap());
        }
        drop(go);
        while !event.is_passed().unwrap() {
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..LOOKS {
            assert!(event.is_passed().unwrap() && before.is_passed().unwrap());
        }
        stream.synchronize().unwrap();
    }
}

/// Questions of the child to the driver.
fn asked(name: &str, prepare: impl FnOnce(&mut std::process::Command)) -> Option<usize> {
    let driver = support::emulated()?;
    let trace = std::env::temp_dir().join(format!("osier-looks-{name}-{}", std::process::id()));
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child_that_looks", "--ignored"])
        .debug("cuda-library", driver)
        .env("OSIER_EMULATED_QUIET", "1")
        .env("OSIER_EMULATED_TRACE", &trace);
    prepare(&mut command);
    let child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let file = trace.with_extension(child.id().to_string());
    let run = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
    let calls = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    Some(calls.lines().filter(|call| *call == "cuEventQuery").count())
}

#[test]
fn looking_does_not_ask_the_driver() {
    let Some(questions) = asked("words", |_| ()) else {
        return;
    };
    // Now and then all the same, in case of an error.
    assert!(
        (3 * LOOKS / 1000..LOOKS).contains(&questions),
        "{questions}"
    );
    let events = asked("events", |command| {
        command.debug("device-completion", "events");
    });
    assert!(events > Some(3 * LOOKS));
}

#[test]
fn a_driver_that_stores_no_words_is_asked() {
    let refused: Vec<String> = (1..10)
        .map(|n| format!("cuStreamWriteValue32:{n}:801"))
        .collect();
    let questions = asked("refused", |command| {
        command.env("OSIER_EMULATED_FAIL", refused.join(","));
    });
    assert!(questions.is_none_or(|questions| questions > 3 * LOOKS));
}
