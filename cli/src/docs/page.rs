//! A page of commands and their options, from clap's definitions.
//!
//! Shared by `osier docs` and `xtask`, which has a page of its own commands.

use clap::{Arg, Command};
use std::fmt::Write as _;

/// Head and introduction, and all commands below this one.
pub fn page(mut command: Command, head: &str) -> String {
    // Fills in usage and the options that clap adds.
    command.build();
    let mut text = format!("{}\n", head.trim_end());
    for sub in visible(&command) {
        section(sub, &mut text);
    }
    text
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    let subs = command.get_subcommands();
    subs.filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

fn section(command: &Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let _ = write!(text, "\n## `{name}`\n");
    let about = command.get_long_about().or(command.get_about());
    if let Some(about) = about {
        let _ = write!(text, "\n{}\n", cell(&about.to_string(), "\n\n"));
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let _ = write!(text, "\n```text\n{usage}\n```\n");
    let options: Vec<&Arg> = command.get_arguments().filter(|arg| is_told(arg)).collect();
    if !options.is_empty() {
        text.push_str("\n| option | meaning |\n|---|---|\n");
    }
    for option in options {
        let _ = writeln!(text, "| {} | {} |", spelled(option), meaning(option));
    }
    let behind = command.get_after_long_help().or(command.get_after_help());
    if let Some(behind) = behind {
        let _ = write!(text, "\n```text\n{}\n```\n", behind.to_string().trim_end());
    }
    for sub in visible(command) {
        section(sub, text);
    }
}

fn is_told(arg: &Arg) -> bool {
    !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
}

/// `-n`, `--ranks N`, or `PROG`.
fn spelled(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let takes = arg.get_action().takes_values();
    let value: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let value = value.join(" ");
    if arg.is_positional() {
        return format!("`{value}`");
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let spelled: Vec<String> = short.into_iter().chain(long).collect();
    let mut all = spelled.join("`, `");
    if takes && !value.is_empty() {
        all += &format!(" {value}");
    }
    format!("`{}`", all.replace('|', "\\|"))
}

/// What it does, what it may be, and what holds without it.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let mut text = help.map_or(String::new(), |help| cell(&help.to_string(), "<br>"));
    let values = arg.get_possible_values();
    let takes = arg.get_action().takes_values();
    let values: Vec<String> = values
        .iter()
        .filter(|value| takes && !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}`: {}", value.get_name(), cell(&help.to_string(), " ")),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !values.is_empty() {
        text += &format!("<br>{}", values.join("; "));
    }
    let default = arg.get_default_values().iter();
    let default: Vec<_> = default.map(|value| value.to_string_lossy()).collect();
    if takes && !default.is_empty() && !arg.is_hide_default_value_set() {
        text += &format!(" (default: `{}`)", default.join(","));
    }
    if arg.is_required_set() {
        text += " (required)";
    }
    text.trim_start_matches("<br>").to_owned()
}

/// Lines of a paragraph in one, and paragraphs apart.
fn cell(text: &str, apart: &str) -> String {
    let paragraphs = text.trim().split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ").replace('|', "\\|").replace('<', "&lt;")
    });
    paragraphs.collect::<Vec<_>>().join(apart)
}
