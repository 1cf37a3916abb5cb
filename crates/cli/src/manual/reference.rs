//! One page with all commands and options, for the documents: made of what `--help` is made of.

use crate::options_file::folded;
use crate::server;
use clap::{Arg, Command};

/// So wide a line of the page is, at most.
const COLUMNS: usize = 96;
/// What says how a command is called.
const INTRODUCTION: &str = "\
# Commands and options

All commands, as their `--help` explains them. This page is written by
`meridian man --page docs/commands.md`, and a test compares it with the commands.

Options that are the same everywhere: `-h` and `--help` explain a command, `-V` and `--version` say
which build it is. The last section is the file of options that `meridian server --config` takes.
";

/// The page.
pub fn page(root: &Command) -> String {
    let mut text = INTRODUCTION.to_string();
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        section(&mut text, command, "meridian");
    }
    text.push_str("\n## The file of options of a server\n\n");
    text.push_str("All options of `meridian server`, by the names of their flags:\n\n");
    text.push_str(&format!("```toml\n{}\n```\n", server::example().trim_end()));
    text
}

/// A command, and those beneath it.
fn section(text: &mut String, command: &Command, above: &str) {
    let name = format!("{above} {}", command.get_name());
    text.push_str(&format!("\n## {name}\n\n"));
    let about = command.get_long_about().or(command.get_about());
    paragraph(text, &format!("{}.", about.map(ToString::to_string).unwrap_or_default()), "");
    let shown: Vec<&Arg> = command.get_arguments().filter(|arg| is_shown(arg)).collect();
    if !shown.is_empty() {
        text.push('\n');
    }
    shown.into_iter().for_each(|arg| option(text, arg));
    if let Some(more) = command.get_after_long_help().or(command.get_after_help()) {
        text.push_str(&format!("\n```text\n{}\n```\n", more.to_string().trim_end()));
    }
    let beneath = command.get_subcommands().filter(|command| !command.is_hide_set());
    beneath.for_each(|command| section(text, command, &name));
}

fn is_shown(arg: &Arg) -> bool {
    let everywhere = ["help", "version"].contains(&arg.get_id().as_str());
    !arg.is_hide_set() && !everywhere
}

/// An option, or a word without a flag.
fn option(text: &mut String, arg: &Arg) {
    let names = arg.get_value_names().unwrap_or_default();
    let takes = arg.get_action().takes_values();
    let value = match names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ") {
        name if name.is_empty() => arg.get_id().to_string().to_uppercase(),
        name => name,
    };
    let flag = match (arg.get_short(), arg.get_long()) {
        (_, None) => None,
        (Some(short), Some(long)) => Some(format!("-{short}, --{long}")),
        (None, Some(long)) => Some(format!("--{long}")),
    };
    let called = match flag {
        Some(flag) if takes => format!("{flag} {value}"),
        Some(flag) => flag,
        None => value,
    };
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
    let mut words = format!("`{called}`: {}", help.unwrap_or_default());
    let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let defaults = defaults.collect::<Vec<_>>().join(",");
    if takes && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        words.push_str(&format!(" [default: {defaults}]"));
    }
    text.push_str("- ");
    paragraph(text, &words, "  ");
    for value in arg.get_possible_values().iter().filter(|_| takes) {
        let about = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
        text.push_str("  - ");
        paragraph(text, &format!("`{}`{about}", value.get_name()), "    ");
    }
}

/// Words in lines; all but the first begin so.
fn paragraph(text: &mut String, words: &str, indent: &str) {
    let plain = words.replace('<', "\\<").replace('*', "\\*");
    for (number, line) in folded(&plain, COLUMNS - indent.len()).iter().enumerate() {
        let indent = if number == 0 { "" } else { indent };
        text.push_str(&format!("{indent}{line}\n"));
    }
}
