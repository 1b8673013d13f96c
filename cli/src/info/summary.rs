//! What works here, what is missing and why: one screen.

use osier::config::{self, KEYS};

use super::probe::{Entry, Report};
use super::protocols;

/// Columns of a line, and of a name in front.
const WIDTH: usize = 80;
const NAME: usize = 12;
/// Most lines of one kind, so that all fit a screen.
const MOST_DEVICES: usize = 4;
const MOST_SETTINGS: usize = 5;

/// The summary.
pub fn text(report: &Report) -> String {
    let (there, missing) = entries(report);
    let mut lines = vec![head(report), String::new(), "Works here".to_owned()];
    lines.extend(there);
    lines.push("Missing here".to_owned());
    lines.extend(missing);
    lines.push("Set".to_owned());
    lines.extend(settings());
    lines.push(String::new());
    lines.push("more: osier info --all, osier info --protocols".to_owned());
    let mut text = String::new();
    for line in lines {
        text += &cut(line);
        text.push('\n');
    }
    text
}

fn head(report: &Report) -> String {
    let of = |name: &str| {
        let found = report.machine.iter().find(|(what, _)| *what == name);
        found.map_or("?", |(_, value)| value.as_str())
    };
    let memory = of("memory").split(',').next().unwrap_or_default();
    format!(
        "osier {}: {}, {} processors, {memory}, Linux {}",
        env!("CARGO_PKG_VERSION"),
        of("cpu"),
        of("processors").split(',').next().unwrap_or_default(),
        of("kernel"),
    )
}

/// Lines of what is there and of what is not.
fn entries(report: &Report) -> (Vec<String>, Vec<String>) {
    let all = report.transports.iter().chain(&report.system);
    let (there, missing): (Vec<&Entry>, Vec<&Entry>) = all.partition(|entry| entry.available);
    let mut there: Vec<String> = there.iter().map(|e| line(e.name, &e.note)).collect();
    match osier::model::cached() {
        Ok(cached) => there.push(line("costs", &protocols::origin(&cached))),
        Err(e) => there.push(line("costs", &e.to_string())),
    }
    // Those of a later version in one line.
    let (later, missing): (Vec<&Entry>, Vec<&Entry>) =
        missing.iter().partition(|entry| entry.is_of_later());
    let mut missing: Vec<String> = missing.iter().map(|e| line(e.name, &e.note)).collect();
    match &report.devices {
        Ok(devices) => {
            for device in devices.iter().take(MOST_DEVICES) {
                let gib = device.memory_bytes as f64 / f64::from(1 << 30);
                let name = format!("gpu {}", device.ordinal);
                there.push(line(&name, &format!("{}, {gib:.1} GiB", device.name)));
            }
            if devices.len() > MOST_DEVICES {
                let more = devices.len() - MOST_DEVICES;
                there.push(line("", &format!("and {more} more")));
            }
        }
        Err(why) => {
            let why = why.trim_start_matches("unavailable: ");
            missing.insert(0, line("gpu", why));
        }
    }
    let names: Vec<&str> = later.iter().map(|entry| entry.name).collect();
    if !names.is_empty() {
        missing.push(line("later", &format!("{}: not yet", names.join(", "))));
    }
    (there, missing)
}

/// What is set in the environment.
fn settings() -> Vec<String> {
    let variables = config::variables().filter(|v| v.name != "OSIER_DEBUG");
    let variables = variables.filter_map(|v| Some((v.name.to_owned(), config::value(v.name)?)));
    let keys = KEYS.iter().filter_map(|key| {
        let name = format!("OSIER_DEBUG={}", key.name);
        Some((name, config::debug_value(key.name)?))
    });
    let all: Vec<(String, String)> = variables.chain(keys).collect();
    let shown = all.iter().take(MOST_SETTINGS);
    let mut lines: Vec<String> = shown.map(|(k, v)| format!("  {k}={v}")).collect();
    match all.len() {
        0 => lines.push("  no variable".to_owned()),
        n if n > MOST_SETTINGS => lines.push(format!("  and {} more", n - MOST_SETTINGS)),
        _ => {}
    }
    lines
}

fn line(name: &str, note: &str) -> String {
    format!("  {name:NAME$} {note}")
}

/// One line of the screen's width.
fn cut(line: String) -> String {
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    if line.chars().count() <= WIDTH {
        return line;
    }
    let start: String = line.chars().take(WIDTH - 3).collect();
    format!("{}...", start.trim_end())
}
