//! Work of messages is seen to be done by a word, without asking the driver each time; short
//! kernels store it themselves, and are one call of the driver.

mod support;

use osier_datatype::{Basic, Layout, Operator, Type};
use osier_kernels::debug::Debug as _;
use osier_kernels::{
    After, Callback, Context, DeviceSlice, DeviceView, Event, Memory, Ordered, Packer, Pinned,
    Stream, copy,
};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

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

/// Runs a child and gives the calls of the driver that it has made.
fn calls_of(
    child: &str,
    name: &str,
    prepare: impl FnOnce(&mut std::process::Command),
) -> Option<String> {
    let driver = support::emulated()?;
    let trace = std::env::temp_dir().join(format!("osier-{child}-{name}-{}", std::process::id()));
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", child, "--ignored"])
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
    Some(calls)
}

/// Questions of the child to the driver.
fn asked(name: &str, prepare: impl FnOnce(&mut std::process::Command)) -> Option<usize> {
    let calls = calls_of("child_that_looks", name, prepare)?;
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

/// Holds a stream until the sender goes.
fn hold(stream: &Stream) -> mpsc::Sender<()> {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let held = Callback::new(move || {
        let _ = wait.lock().map(|wait| wait.recv());
    });
    stream.call(&held).unwrap();
    go
}

/// With all kernels loaded: a driver may wait for held streams when it loads one.
fn prepared() -> Option<Context> {
    static PREPARED: OnceLock<Option<Context>> = OnceLock::new();
    let made = PREPARED.get_or_init(|| support::context().filter(|context| context.prepare(|| ())));
    made.clone()
}

fn wait_for(event: &Event) {
    while !event.is_passed().unwrap() {
        std::thread::yield_now();
    }
}

fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|i| ((i * 7 + seed) % 251) as u8).collect()
}

/// Every second of so many numbers.
fn strided(count: usize) -> Layout {
    let ty = Type::vector(count, 1, 2, &Type::basic(Basic::F32)).unwrap();
    ty.commit().unwrap()
}

/// Memory whose bytes are valid now.
fn now<B>(buffer: B) -> Ordered<B> {
    Ordered::new(buffer, After::Now)
}

/// Two buffers of strided numbers and one of packed ones, and what works on them.
struct Work {
    stream: Stream,
    packer: Packer,
    numbers: usize,
    views: [DeviceView<u8>; 2],
    packed: DeviceSlice<u8>,
}

impl Work {
    fn new(stream: Stream, numbers: usize) -> Work {
        let layout = strided(numbers);
        let slices = [1, 2].map(|seed| support::upload(&stream, &bytes(8 * numbers, seed)));
        let view = |slice: &DeviceSlice<u8>| DeviceView::new(slice, 0, &layout, 1).unwrap();
        let work = Work {
            packer: Packer::new(stream.context()),
            numbers,
            views: [view(&slices[0]), view(&slices[1])],
            packed: support::upload(&stream, &bytes(4 * numbers, 3)),
            stream,
        };
        work.stream.synchronize().unwrap();
        work
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..4 * self.numbers
    }

    fn pack(&self) -> Event {
        let (from, to) = (now(self.views[0].clone()), now(self.packed.clone()));
        let packed = (self.packer).pack(&self.stream, &from, self.all(), &to, None);
        packed.unwrap()
    }

    fn unpack(&self) -> Event {
        let (from, to) = (now(self.packed.clone()), now(self.views[1].clone()));
        let unpacked = (self.packer).unpack(&self.stream, &from, self.all(), &to, None);
        unpacked.unwrap()
    }

    fn copy(&self) -> Event {
        let (from, to) = (now(self.views[0].clone()), now(self.views[1].clone()));
        let copied = (self.packer).copy(&self.stream, &from, &to, self.all(), None);
        copied.unwrap()
    }

    /// From one run to another: halves of the packed numbers.
    fn copy_run(&self) -> Event {
        let half = self.numbers / 2 * 4;
        let part = |range| {
            let slice = self.packed.slice(range).unwrap();
            now(DeviceView::of(&slice).unwrap())
        };
        let (from, to) = (part(0..half), part(half..2 * half));
        let copied = (self.packer).copy(&self.stream, &from, &to, 0..half, None);
        copied.unwrap()
    }

    fn sum(&self) -> Event {
        let (right, left) = (now(self.views[0].clone()), now(self.views[1].clone()));
        let (stream, operator) = (&self.stream, Operator::Sum);
        let summed = (self.packer).combine(stream, operator, &right, &left, self.all(), None);
        summed.unwrap()
    }

    fn sum_packed(&self) -> Event {
        let (right, left) = (now(self.packed.clone()), now(self.views[1].clone()));
        let (stream, operator) = (&self.stream, Operator::Sum);
        let summed =
            (self.packer).combine_packed(stream, operator, &right, self.all(), &left, None);
        summed.unwrap()
    }

    fn everything(&self) -> [(&'static str, Event); 6] {
        [
            ("pack", self.pack()),
            ("unpack", self.unpack()),
            ("copy", self.copy()),
            ("copy of a run", self.copy_run()),
            ("sum", self.sum()),
            ("sum of packed numbers", self.sum_packed()),
        ]
    }

    fn contents(&self) -> Vec<u8> {
        let stream = Stream::new(self.stream.context()).unwrap();
        let memory = self.views.each_ref().map(|view| {
            let whole = DeviceSlice::of(view.memory().clone()).unwrap();
            support::download(&stream, &whole)
        });
        [memory.concat(), support::download(&stream, &self.packed)].concat()
    }
}

#[test]
#[ignore = "run by short_work_is_one_call"]
fn child_that_works() {
    let context = Context::new(0).unwrap();
    let path = std::env::var("OSIER_EMULATED_TRACE").unwrap();
    let path = format!("{path}.{}", std::process::id());
    let length = || std::fs::metadata(&path).unwrap().len() as usize;
    let since = |from: usize| {
        let calls = std::fs::read_to_string(&path).unwrap();
        calls[from..].lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let _held = context.hold().unwrap();
    // Of words of 4 bytes one block has 1024 at a time.
    for numbers in [2, 1000, 4096, 5000] {
        let work = Work::new(Stream::uncaptured(&context).unwrap(), numbers);
        work.everything()
            .iter()
            .for_each(|(_, event)| wait_for(event));
        let steps: [(&str, &dyn Fn() -> Event); 6] = [
            ("pack", &|| work.pack()),
            ("unpack", &|| work.unpack()),
            ("copy", &|| work.copy()),
            ("run", &|| work.copy_run()),
            ("sum", &|| work.sum()),
            ("packed-sum", &|| work.sum_packed()),
        ];
        for (name, step) in steps {
            let begun = length();
            let event = step();
            println!("{numbers} {name}: {}", since(begun).join(" "));
            let queued = length();
            wait_for(&event);
            assert!(event.is_passed().unwrap());
            let asked = since(queued);
            let known = [
                "cuStreamQuery",
                "cuEventQuery",
                "cuThreadExchangeStreamCaptureMode",
            ];
            assert!(
                asked.iter().all(|call| known.contains(&&**call)),
                "{asked:?}"
            );
        }
    }
}

/// What the steps of `child_that_works` have queued, by numbers and step.
fn queued(how: &str) -> Option<Vec<(usize, String, String)>> {
    let driver = support::emulated()?;
    let trace = std::env::temp_dir().join(format!("osier-works-{how}-{}", std::process::id()));
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_works", "--ignored", "--nocapture"])
        .debug("cuda-library", driver)
        .debug("device-completion", how)
        .env("OSIER_EMULATED_TRACE", &trace)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
    let line = |line: &str| {
        let (which, calls) = line.split_once(": ")?;
        let (numbers, step) = which.split_once(' ')?;
        Some((numbers.parse().ok()?, step.to_owned(), calls.to_owned()))
    };
    let found: Vec<_> = told.lines().filter_map(line).collect();
    assert_eq!(found.len(), 24, "{told}");
    Some(found)
}

#[test]
fn short_work_is_one_call() {
    let (Some(words), Some(events)) = (queued("words"), queued("events")) else {
        return;
    };
    for (numbers, step, calls) in words {
        // A copy of a run is half as long.
        let wanted = match (numbers, &*step) {
            (5000, "run") | (..=4096, _) => "cuLaunchKernel",
            _ => "cuLaunchKernel cuEventRecord cuStreamWriteValue32_v2",
        };
        assert_eq!(calls, wanted, "{step} of {numbers} numbers");
    }
    for (numbers, step, calls) in events {
        let work = match &*step {
            "run" => "cuMemcpyAsync",
            _ => "cuLaunchKernel",
        };
        let wanted = format!("{work} cuEventRecord");
        assert_eq!(calls, wanted, "{step} of {numbers} numbers");
    }
}

/// On a stream for messages all comes out as on any other.
#[test]
fn results_are_the_same() {
    let Some(context) = prepared() else {
        return;
    };
    for numbers in [2, 5, 999, 4096, 5001] {
        let streams = [Stream::uncaptured(&context), Stream::new(&context)];
        let [told, plain] = streams.map(|stream| Work::new(stream.unwrap(), numbers));
        for work in [&told, &plain] {
            for (_, event) in work.everything() {
                wait_for(&event);
            }
        }
        assert_eq!(told.contents(), plain.contents(), "{numbers} numbers");
    }
}

/// Nothing has passed before the kernel has run, and another stream waits for it.
#[test]
fn other_streams_come_behind() {
    let Some(context) = prepared() else {
        return;
    };
    let work = Work::new(Stream::uncaptured(&context).unwrap(), 500);
    let expected = work.contents();
    let expected: Vec<u8> = (0..500)
        .flat_map(|i| expected[8 * i..8 * i + 4].to_vec())
        .collect();
    let other = Stream::new(&context).unwrap();
    for waits in [true, false, true] {
        let mut found = Pinned::from_slice(&context, &[0u8; 2000]).unwrap();
        let go = hold(&work.stream);
        let event = work.pack();
        let copied = |event: &Event| {
            let from = work.packed.slice(..2000).unwrap().after(event);
            copy::copy(&other, &from, &found.on_device(&other)).unwrap()
        };
        if waits {
            let copied = copied(&event);
            std::thread::sleep(Duration::from_millis(5));
            assert!(!event.is_passed().unwrap() && !copied.is_passed().unwrap());
            drop(go);
            wait_for(&copied);
            assert!(event.is_passed().unwrap());
        } else {
            std::thread::sleep(Duration::from_millis(5));
            assert!(!event.is_passed().unwrap());
            drop(go);
            // As soon as the word is there: the kernel may not have ended.
            wait_for(&event);
            copied(&event).synchronize().unwrap();
        }
        assert_eq!(found.host().unwrap(), expected);
        let zeros = support::upload(&other, &vec![0; work.packed.len()]);
        let to = now(work.packed.clone());
        copy::copy(&other, &zeros.after_stream(&other), &to).unwrap();
        other.synchronize().unwrap();
    }
    let go = hold(&work.stream);
    let event = work.pack();
    let waiter = {
        let event = event.clone();
        std::thread::spawn(move || event.synchronize().unwrap())
    };
    std::thread::sleep(Duration::from_millis(5));
    assert!(!waiter.is_finished());
    drop(go);
    waiter.join().unwrap();
    assert!(event.is_passed().unwrap());
}

/// A word that is still raised for a stream that has gone is nobody else's.
#[test]
fn words_are_not_shared_with_streams_that_have_gone() {
    let Some(context) = prepared() else {
        return;
    };
    let old = Stream::uncaptured(&context).unwrap();
    let go_on = hold(&old);
    for _ in 0..5 {
        drop(old.record().unwrap());
    }
    drop(old);
    let work = Work::new(Stream::uncaptured(&context).unwrap(), 10);
    let go = hold(&work.stream);
    let event = work.pack();
    drop(go_on);
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        assert!(!event.is_passed().unwrap());
    }
    drop(go);
    wait_for(&event);
}

#[test]
#[ignore = "run by a_kernel_that_fails_is_noticed"]
fn child_that_fails() {
    let context = Context::new(0).unwrap();
    let work = Work::new(Stream::uncaptured(&context).unwrap(), 100);
    let before = work.pack();
    wait_for(&before);
    // SAFETY: it is not valid: that is the error.
    let nowhere = unsafe { Memory::foreign(&context, 1 << 20, 400) };
    let nowhere = DeviceSlice::<u8>::of(nowhere).unwrap();
    let (from, to) = (now(work.views[0].clone()), now(nowhere));
    let event = (work.packer).pack(&work.stream, &from, work.all(), &to, None);
    let event = event.unwrap();
    // It is asked about now and then, as before it has failed.
    for _ in 0..2 {
        let begun = Instant::now();
        let failed = loop {
            match event.is_passed() {
                Ok(passed) => assert!(!passed && begun.elapsed() < Duration::from_secs(10)),
                Err(failed) => break failed,
            }
        };
        assert!(failed.code().is_some(), "{failed}");
    }
    assert!(event.synchronize().is_err());
    // What was done before has been done.
    assert!(before.is_passed().unwrap());
}

#[test]
fn a_kernel_that_fails_is_noticed() {
    calls_of("child_that_fails", "fails", |_| ());
}
