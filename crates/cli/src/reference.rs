//! `plimsoll reference`: the command line as a page of Markdown, for the guide (`docs/guide/src/commands.md`).

use std::fmt::Write;

use clap::{Arg, Args, Command, CommandFactory};

use crate::Cli;
use crate::config::Config;

/// Prints the page.
pub fn run() {
    say!("{}", page(&Cli::command()).trim_end());
}

/// All commands that are not hidden, in the order of the help.
fn page(cli: &Command) -> String {
    let mut text = String::from(
        "# Commands\n\nThis page is made from the program itself: `plimsoll reference > docs/guide/src/commands.md`.\n",
    );
    let commands = || cli.get_subcommands().filter(|command| !command.is_hide_set());
    text.push_str("\n| command | what it does |\n| --- | --- |\n");
    for command in commands() {
        let name = command.get_name();
        writeln!(text, "| [`plimsoll {name}`](#plimsoll-{name}) | {} |", about(command)).ok();
    }
    if let Some(after) = cli.get_after_help() {
        writeln!(text, "\n{after}").ok();
    }
    let settings = Config::augment_args(Command::new("settings"));
    let takes_settings: Vec<String> = commands()
        .filter(|command| has_settings(command))
        .map(|command| format!("`{}`", command.get_name()))
        .collect();
    let takes = takes_settings.join(", ");
    writeln!(
        text,
        "\n## Settings of a run\n\nThese mean the same to {takes}, and are the keys of a `run.toml`."
    )
    .ok();
    list(&shown(&settings), &mut text);
    commands().for_each(|command| describe(command, &mut text));
    text
}

/// Whether a command takes the settings of a run.
fn has_settings(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == "micro_batch")
}

fn shown(command: &Command) -> Vec<&Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set()).collect()
}

fn about(command: &Command) -> String {
    command.get_about().map_or(String::new(), |about| about.to_string())
}

/// One command: what it does, how it is called, what it takes.
fn describe(command: &Command, text: &mut String) {
    let (name, mut named) =
        (command.get_name(), command.clone().bin_name(format!("plimsoll {}", command.get_name())));
    let usage = named.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    writeln!(
        text,
        "\n## plimsoll {name}\n\n{}.\n\n```text\n{usage}\n```",
        about(command).trim_end_matches('.')
    )
    .ok();
    let settings = Config::augment_args(Command::new("settings"));
    let is_setting = |arg: &Arg| settings.get_arguments().any(|setting| setting.get_id() == arg.get_id());
    let mut own = shown(command);
    if has_settings(command) {
        own.retain(|arg| !is_setting(arg));
        text.push_str("\nTakes all [settings of a run](#settings-of-a-run), and:\n");
    }
    list(&own, text);
    if let Some(after) = command.get_after_help() {
        writeln!(text, "\n{after}").ok();
    }
}

/// Arguments under their headings.
fn list(args: &[&Arg], text: &mut String) {
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in args {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        match heading {
            Some(heading) => writeln!(text, "\n{heading}:\n").ok(),
            None => writeln!(text).ok(),
        };
        for arg in args.iter().filter(|arg| arg.get_help_heading() == heading) {
            writeln!(text, "- {}", explain(arg)).ok();
        }
    }
}

/// One argument, with what it stands for.
fn explain(arg: &Arg) -> String {
    let takes_value = arg.get_action().takes_values();
    let values: Vec<String> = match arg.get_value_names() {
        Some(names) if takes_value => names.iter().map(|name| name.to_string()).collect(),
        _ => Vec::new(),
    };
    let name = match (arg.get_long(), arg.get_short()) {
        (Some(long), Some(short)) => format!("-{short}, --{long}"),
        (Some(long), None) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => String::new(),
    };
    let words: Vec<String> = [name].into_iter().chain(values).filter(|word| !word.is_empty()).collect();
    let mut text = format!("`{}`", words.join(" "));
    if let Some(help) = arg.get_long_help().or(arg.get_help()) {
        write!(text, ": {}", help.to_string().replace('\n', " ")).ok();
    }
    let default: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if takes_value && !default.is_empty() {
        write!(text, " [default: {}]", default.join(", ")).ok();
    }
    let possible: Vec<String> = match takes_value {
        true => arg.get_possible_values().iter().map(|value| value.get_name().to_string()).collect(),
        false => Vec::new(),
    };
    if !possible.is_empty() {
        write!(text, " (one of {})", possible.join(", ")).ok();
    }
    text
}
