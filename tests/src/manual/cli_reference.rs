//! The page about the command line, made from the definitions that the programs use.

use super::command_lines::programs;
use clap::{Arg, ArgAction, Command};
use std::fmt::Write;

/// The page.
#[must_use]
pub fn page() -> String {
    let mut text =
        "# Command line\n\nData goes to stdout, everything else to stderr. The text of tables is no interface; \
                    JSON and CSV are.\nWhat the exit codes mean stands in [exit codes](exit-codes.md).\n"
            .to_owned();
    for mut program in programs() {
        program.build();
        command(&mut text, &program, program.get_name(), 2);
    }
    text
}

fn command(text: &mut String, command: &Command, name: &str, depth: usize) {
    let _ = writeln!(text, "\n{} {name}\n", "#".repeat(depth.min(4)));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        // Of one paragraph clap has taken the full stop away.
        let _ = writeln!(text, "{}.\n", about.to_string().trim_end_matches('.'));
    }
    let usage = command.clone().bin_name(name).render_usage().to_string();
    let _ = writeln!(text, "```text\n{}\n```", usage.trim_start_matches("Usage:").trim());
    let own: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str()))
        // Global options stand with the program.
        .filter(|argument| depth == 2 || !argument.is_global_set())
        .collect();
    if !own.is_empty() {
        text.push_str("\n| | |\n|---|---|\n");
        own.iter().for_each(|argument| row(text, argument));
    }
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help") {
        self::command(text, inner, &format!("{name} {}", inner.get_name()), depth + 1);
    }
}

fn row(text: &mut String, argument: &Arg) {
    let names: Vec<String> =
        [argument.get_short().map(|short| format!("-{short}")), argument.get_long().map(|long| format!("--{long}"))]
            .into_iter()
            .flatten()
            .collect();
    let takes_value = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    let values: Vec<String> =
        argument.get_value_names().unwrap_or_default().iter().map(|name| name.to_string()).collect();
    let written = match (names.is_empty(), takes_value) {
        (true, _) => values.join(" "),
        (false, true) => format!("{} {}", names.join(", "), values.join(" ")),
        (false, false) => names.join(", "),
    };
    let mut words = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    if takes_value {
        let possible: Vec<String> = argument
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !possible.is_empty() {
            let _ = write!(words, ": {}", possible.join(", "));
        }
        let defaults: Vec<String> =
            argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
        if !defaults.is_empty() {
            let _ = write!(words, "; default {}", defaults.join(", "));
        }
    }
    let _ = writeln!(text, "| `{}` | {} |", written.trim(), words.replace('\n', " ").replace('|', "\\|"));
}
