//! Jobs whose messages between processes are delayed: `osier run --delay`. Times have lower
//! bounds only; the guard of the jobs ends those that hang.

mod support;

use support::{Done, emulated, finish, job};

/// What the launcher says of it is all that is said.
#[track_caller]
fn noted(done: &Done, note: &str) {
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert!(
        matches!(lines[..], [line] if line.contains(note)),
        "{lines:#?}"
    );
}

#[test]
fn messages_take_that_much_longer_each_way() {
    for (delay, latency, per_mib) in [("500us", "500", "0"), ("300us:2ms", "300", "2000")] {
        let what = ["delay", "messages", latency, per_mib];
        let done = finish(&mut job(2, &["--delay", delay], &what));
        done.through(&[0, 1]).code(0);
        let note = match per_mib {
            "0" => "messages between processes take 500us longer; collectives run by messages",
            _ => "take 300us and 2ms per MiB longer",
        };
        noted(&done, note);
    }
}

/// A delay that is longer than any spinning: ranks sleep, and their job does not hang.
#[test]
fn sleeping_ranks_wake_when_a_message_is_due() {
    let what = ["delay", "messages", "150000", "0"];
    let done = finish(&mut job(
        2,
        &["--delay", "150ms", "--on-hang", "kill"],
        &what,
    ));
    done.through(&[0, 1]).code(0);
    noted(&done, "take 150ms longer");
    let what = ["delay", "barrier", "2000000"];
    let done = finish(&mut job(
        2,
        &["--delay", "2s", "--on-hang", "kill-probable"],
        &what,
    ));
    done.through(&[0, 1]).code(0);
    noted(&done, "take 2s longer");
}

#[test]
fn barriers_and_edges_wait_for_messages() {
    for ranks in [2, 3, 5] {
        let done = finish(&mut job(
            ranks,
            &["--delay", "1ms"],
            &["delay", "barrier", "1000"],
        ));
        done.through(&(0..ranks).collect::<Vec<_>>()).code(0);
    }
    let done = finish(&mut job(
        2,
        &["--delay", "2ms"],
        &["delay", "edges", "2000"],
    ));
    done.through(&[0, 1]).code(0);
}

#[test]
fn threads_of_one_process_are_not_delayed() {
    let options = ["--delay", "200ms", "--ranks-per-process", "2"];
    let done = finish(&mut job(3, &options, &["run", "delay", "near", "200000"]));
    done.through(&[0, 1, 2]).code(0);
    let options = ["--delay", "50us", "--ranks-per-process", "2"];
    for ranks in [2, 4] {
        let done = finish(&mut job(ranks, &options, &["run", "sizes"]));
        done.through(&(0..ranks).collect::<Vec<_>>()).code(0);
        if ranks == 2 {
            noted(&done, "delays nothing in a job of one process");
        }
    }
}

#[test]
fn every_size_and_collectives_of_all_kinds_are_right() {
    for delay in ["0us", "100us:1ms"] {
        let done = finish(&mut job(3, &["--delay", delay], &["sizes"]));
        done.through(&[0, 1, 2]).code(0);
        noted(&done, "collectives run by messages");
        for seed in ["1", "2", "3"] {
            let what = ["collectives", seed, "60", "99", "99"];
            let done = finish(&mut job(3, &["--delay", delay, "--check", "all"], &what));
            done.through(&[0, 1, 2]).code(0);
            noted(&done, "collectives run by messages");
        }
    }
}

#[test]
fn what_a_rank_sent_before_it_was_killed_arrives() {
    for delay in ["0us", "300us", "200ms:10ms"] {
        let options = ["--delay", delay, "--on-death", "report"];
        finish(&mut job(3, &options, &["delay", "last-words"]))
            .says("rank 1 of 3")
            .through(&[0, 2])
            .code(137);
    }
    let done = finish(&mut job(2, &["--delay", "300ms"], &["delay", "last-words"]));
    done.says("rank 1 of 2").through(&[]).code(137);
}

#[test]
fn ranks_are_killed_within_delayed_collectives() {
    for (seed, victim, last) in [("1", "1", "8"), ("2", "2", "13"), ("3", "0", "18")] {
        let what = ["collectives", seed, "30", victim, last];
        let options = ["--delay", "200us", "--on-death", "report"];
        let victim: usize = victim.parse().expect("a number");
        let living: Vec<usize> = (0..3).filter(|rank| *rank != victim).collect();
        finish(&mut job(3, &options, &what))
            .through(&living)
            .code(137);
    }
}

/// A rank leaves with messages under way, by its exit or properly.
#[test]
fn what_a_rank_sent_before_it_left_arrives() {
    for what in [&["early", "0"][..], &["parted"]] {
        let options = ["--delay", "100ms", "--on-death", "report"];
        let done = finish(&mut job(2, &options, what));
        assert!(done.stdout.contains("rank 0 is through"), "{}", done.stderr);
    }
}

#[test]
fn a_delayed_job_that_hangs_is_reported() {
    for how in ["recv", "large", "barrier"] {
        let options = ["--delay", "1ms", "--on-hang", "kill"];
        let done = finish(&mut job(3, &options, &["hang", how]));
        done.says("the job hangs").code(125);
    }
}

/// Memory of devices goes through the host, in messages.
#[test]
fn memory_of_devices_goes_by_messages() {
    if !emulated() {
        return;
    }
    let options = ["--delay", "100us", "--emulate-gpus", "1"];
    finish(&mut job(2, &options, &["devices"]))
        .through(&[0, 1])
        .code(0);
}

#[test]
fn variable_asks_for_a_delay_as_the_option_does() {
    let what = ["delay", "messages", "400", "0"];
    let done = finish(job(2, &[], &what).env("OSIER_DELAY", "400us"));
    done.through(&[0, 1]).code(0);
    let done = finish(&mut job(2, &["--env", "OSIER_DELAY=400us"], &what));
    done.through(&[0, 1]).code(0);
}

#[test]
fn bad_values_name_the_expected_form() {
    for bad in ["5", "x:", "20us:", "-1us", "61s"] {
        let option = format!("--delay={bad}");
        let done = finish(&mut job(2, &[&option], &["join"]));
        done.says("20us:100us").says(bad).code(2);
        let done = finish(job(2, &[], &["join"]).env("OSIER_DELAY", bad));
        done.says("OSIER_DELAY").says("20us:100us").code(2);
    }
}
