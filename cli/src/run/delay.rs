//! `osier run --delay`: who asks for it, and what is said of it.

use std::ffi::OsString;

use osier_transports::delay::Delay;

/// Parses the option.
pub fn parse(text: &str) -> Result<Delay, String> {
    osier::config::parse_delay(text).map_err(|e| e.to_string())
}

/// By how much messages are delayed: by the option, else by a variable of the ranks, else by
/// the launcher's own.
///
/// # Errors
/// The variable is wrong.
pub fn asked(
    option: Option<Delay>,
    of_ranks: &[(OsString, OsString)],
) -> osier::Result<Option<Delay>> {
    let given = of_ranks.iter().rfind(|(key, _)| key == "OSIER_DELAY");
    match (option, given) {
        (Some(delay), _) => Ok(Some(delay)),
        (None, Some((_, value))) if value.is_empty() => Ok(None),
        (None, Some((_, value))) => osier::config::parse_delay(&value.to_string_lossy())
            .map(Some)
            .map_err(|e| e.context("OSIER_DELAY")),
        (None, None) => osier::config::delay(),
    }
}

/// What the launcher says of it, since timings of the job are not those of the machine.
pub fn note(delay: Delay, processes: usize) -> String {
    let what = match processes {
        1 => "the delay delays nothing in a job of one process, where".to_owned(),
        _ => format!("messages between processes take {delay} longer;"),
    };
    format!("{what} collectives run by messages, and no segment of flags and slots is used")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_comes_before_the_variable_of_ranks() {
        let us = |n: u64| Delay {
            latency_ns: 1_000 * n,
            ns_per_mib: 0,
        };
        let of_ranks = |text: &str| vec![("OSIER_DELAY".into(), text.into())];
        assert_eq!(asked(Some(us(1)), &of_ranks("2us")).ok(), Some(Some(us(1))));
        assert_eq!(asked(None, &of_ranks("2us")).ok(), Some(Some(us(2))));
        assert_eq!(asked(None, &of_ranks("")).ok(), Some(None));
        let wrong = asked(None, &of_ranks("2"))
            .expect_err("no unit")
            .to_string();
        assert!(
            wrong.contains("OSIER_DELAY") && wrong.contains("20us"),
            "{wrong}"
        );
    }

    #[test]
    fn note_says_how_collectives_run() {
        let delay = Delay {
            latency_ns: 20_000,
            ns_per_mib: 1_500,
        };
        let said = note(delay, 2);
        assert!(said.contains("20us and 1500ns per MiB longer; collectives run by messages"));
        assert!(note(delay, 1).contains("nothing in a job of one process"));
    }
}
