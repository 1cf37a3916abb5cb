//! Options of a command from a file: those of its flags, and no others.
//!
//! The command's own definition says which options there are, what they may be, and how they are
//! explained, so a file can say what flags can, and a flag that is given wins over the file.

use crate::init::answers::{line, wrong};
use anyhow::{Context, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// So wide a line of the example is, without what makes it a comment.
const COLUMNS: usize = 90;

/// An option that a file gives.
struct Given {
    option: String,
    line: usize,
    words: Vec<OsString>,
}

/// What the flags of `matches` and the file at `path` say together. `not` are flags that a file
/// cannot give.
///
/// # Errors
/// If the file cannot be read, or says what no flag could, with the line.
pub fn merged(
    command: Command,
    matches: &ArgMatches,
    path: &Path,
    not: &[&str],
) -> anyhow::Result<ArgMatches> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the options {}", path.display()))?;
    merged_with(command, matches, &path.display().to_string(), &text, not)
}

fn merged_with(
    command: Command,
    matches: &ArgMatches,
    name: &str,
    text: &str,
    not: &[&str],
) -> anyhow::Result<ArgMatches> {
    let all = given(&command, name, text, not)?;
    let mut words = vec![OsString::from(command.get_name())];
    for arg in command.get_arguments() {
        let Some(long) = arg.get_long() else { continue };
        if matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine) {
            words.extend(again(arg, long, matches));
        } else if let Some(given) = all.iter().find(|given| given.option == long) {
            words.extend(given.words.iter().cloned());
        }
    }
    command
        .try_get_matches_from(words)
        .map_err(|error| anyhow::anyhow!(explain(name, &all, &error)))
}

/// The options that a file may give.
fn options<'a>(command: &'a Command, not: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a Arg)> {
    let options = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    options.filter(move |(long, _)| !["help", "version"].contains(long) && !not.contains(long))
}

fn given(command: &Command, name: &str, text: &str, not: &[&str]) -> anyhow::Result<Vec<Given>> {
    let table = DeTable::parse(text).map_err(|error| anyhow::anyhow!(wrong(name, text, &error)))?;
    let mut all = Vec::new();
    for (key, value) in table.get_ref() {
        let (option, line) = (key.get_ref().to_string(), line(text, key.span().start));
        let Some((_, arg)) = options(command, not).find(|(long, _)| *long == option) else {
            let known: Vec<_> = options(command, not).map(|(long, _)| long).collect();
            bail!("{name}, line {line}: no option {option}: there are {}", known.join(", "));
        };
        let words =
            words(arg, &option, value).with_context(|| format!("{name}, line {line}: {option}"))?;
        all.push(Given { option, line, words });
    }
    all.sort_by_key(|given| given.line);
    Ok(all)
}

/// The words that say the same on a command line.
fn words(arg: &Arg, long: &str, value: &Spanned<DeValue<'_>>) -> anyhow::Result<Vec<OsString>> {
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
    match value.get_ref() {
        DeValue::Boolean(on) if is_switch => {
            Ok(on.then(|| format!("--{long}").into()).into_iter().collect())
        }
        _ if is_switch => bail!("it is true or false"),
        DeValue::Array(values) if arg.get_value_delimiter().is_some() => {
            let words = values.iter().map(|value| word(long, value.get_ref()));
            words.collect()
        }
        value => Ok(vec![word(long, value)?]),
    }
}

fn word(long: &str, value: &DeValue<'_>) -> anyhow::Result<OsString> {
    let text = match value {
        DeValue::String(text) => text.to_string(),
        // TOML has 0x10 and 1_000, too, which flags have not.
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().replace('_', ""),
        other => bail!("a text or a number is needed, not {} of that kind", other.type_str()),
    };
    Ok(format!("--{long}={text}").into())
}

/// A flag as it was given.
fn again(arg: &Arg, long: &str, matches: &ArgMatches) -> Vec<OsString> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return vec![format!("--{long}").into()];
    }
    let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
    let word = |value: &std::ffi::OsStr| {
        let mut word = OsString::from(format!("--{long}="));
        word.push(value);
        word
    };
    values.map(word).collect()
}

/// What is wrong, in one line, with the line of the file if it is a value there.
fn explain(name: &str, all: &[Given], error: &clap::Error) -> String {
    let why = error.to_string();
    let why: Vec<_> = why.lines().take_while(|line| !line.starts_with("Usage")).collect();
    let why = why.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    let why = why.strip_prefix("error: ").unwrap_or(&why);
    let why = why.split(" For more information").next().unwrap_or(why);
    let named = |given: &&Given| why.contains(&format!("'--{}", given.option));
    // The first that is named is the one that is wrong; others may be what it needs.
    let at = |given: &&Given| why.find(&format!("'--{}", given.option));
    match all.iter().filter(named).min_by_key(at) {
        Some(given) => format!("{name}, line {}: {why}", given.line),
        None => format!("{name}: {why}"),
    }
}

/// A file with all options, each explained and with an example, that gives none of them.
pub fn example(command: &Command, not: &[&str], examples: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (long, arg) in options(command, not) {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
        for line in folded(&help.unwrap_or_default(), COLUMNS) {
            text += &format!("# {line}\n");
        }
        for value in arg.get_possible_values().iter().filter(|value| value.get_help().is_some()) {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            for line in folded(&format!("{}: {help}", value.get_name()), COLUMNS) {
                text += &format!("#   {line}\n");
            }
        }
        let default = arg.get_default_values().first().and_then(|value| value.to_str());
        let example = examples.iter().find(|(option, _)| *option == long);
        let value = match (default, example) {
            (_, Some((_, value))) => (*value).to_string(),
            (Some(number), None) if number.parse::<i64>().is_ok() => number.into(),
            (default, None) => format!("{:?}", default.unwrap_or_default()),
        };
        text += &format!("#{long} = {value}\n\n");
    }
    text.trim_end().to_string()
}

/// In lines of at most so many columns.
pub fn folded(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always one");
        if !last.is_empty() && last.len() + word.len() + 1 > columns {
            lines.push(word.into());
        } else {
            *last = format!("{last} {word}").trim().into();
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser, PartialEq)]
    #[command(name = "try")]
    struct Try {
        #[arg(long, required_unless_present = "config")]
        dir: Option<String>,
        #[arg(long)]
        config: Option<String>,
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=9))]
        days: u32,
        #[arg(long, value_delimiter = ',')]
        first: Option<Vec<String>>,
        #[arg(long)]
        quiet: bool,
    }

    fn read(flags: &[&str], text: &str) -> Result<Try, String> {
        use clap::{CommandFactory, FromArgMatches};
        let words = ["try", "--config", "f.toml"].iter().chain(flags);
        let matches = Try::command().try_get_matches_from(words).unwrap();
        let merged = merged_with(Try::command(), &matches, "f.toml", text, &["config"]);
        let matches = merged.map_err(|error| format!("{error:#}"))?;
        Ok(Try::from_arg_matches(&matches).unwrap())
    }

    #[test]
    fn a_file_says_what_flags_can_and_flags_win() {
        let text = "dir = \"a b\"\ndays = 3\nfirst = [\"x\", \"y\"]\nquiet = true\n";
        let all = read(&[], text).unwrap();
        let first = Some(vec!["x".to_string(), "y".into()]);
        let expected = Try {
            dir: Some("a b".into()),
            config: Some("f.toml".into()),
            days: 3,
            first,
            quiet: true,
        };
        assert_eq!(all, expected);
        assert_eq!(read(&["--days", "7"], text).unwrap(), Try { days: 7, ..expected });
        assert_eq!(read(&["--first=a,b"], text).unwrap().first.unwrap(), ["a", "b"]);
        assert_eq!(read(&[], "first = \"a,b\"").unwrap().first.unwrap(), ["a", "b"]);
        assert!(!read(&[], "quiet = false").unwrap().quiet);
    }

    #[test]
    fn what_no_flag_could_say_is_refused_with_its_line() {
        let cases = [
            ("days = 3\ncolour = 1\n", "f.toml, line 2: no option colour: there are dir, days,"),
            ("\n\ndays = 10\n", "f.toml, line 3: invalid value '10' for '--days <DAYS>'"),
            ("days = 3\nquiet = 1\n", "f.toml, line 2: quiet: it is true or false"),
            ("days = [1, 2]\n", "f.toml, line 1: days: a text or a number is needed"),
            ("config = \"x\"\n", "f.toml, line 1: no option config"),
            ("days = 3\ndays = 4\n", "f.toml, line 2: duplicate key"),
            ("dir = \n", "f.toml, line 1: "),
        ];
        for (text, why) in cases {
            let error = read(&[], text).unwrap_err();
            assert!(error.starts_with(why) && !error.contains('\n'), "{why}: {error}");
        }
    }
}
