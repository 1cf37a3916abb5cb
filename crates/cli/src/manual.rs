//! `meridian man` and `meridian completions`: what commands say of themselves, for others to show.

mod reference;

use crate::Cli;
use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use meridian_terminal::output;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where a page has what is said after the options.
const EXTRA: &str = ".SH EXTRA\n";

/// The shell to write for.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  meridian completions bash > /usr/share/bash-completion/completions/meridian
  meridian completions zsh > /usr/share/zsh/vendor-completions/_meridian
  meridian completions fish > /usr/share/fish/vendor_completions.d/meridian.fish")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Where the pages go.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  meridian man /usr/local/share/man/man1 && man meridian-server
  meridian man --page commands.md")]
pub struct ManArgs {
    /// A directory, which is made if it is not there
    #[arg(required_unless_present = "page")]
    dir: Option<PathBuf>,
    /// Write one page of Markdown with all commands and options
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// Runs `meridian completions`.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "meridian", &mut script);
    output::print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `meridian man`.
///
/// # Errors
/// If the directory or the page cannot be written.
pub fn pages(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build(); // Commands beneath get their full names.
    if let Some(dir) = &args.dir {
        let what = || format!("cannot write pages to {}", dir.display());
        std::fs::create_dir_all(dir).with_context(what)?;
        write_pages(&command, dir).with_context(what)?;
    }
    if let Some(path) = &args.page {
        let what = || format!("cannot write {}", path.display());
        std::fs::write(path, reference::page(&command)).with_context(what)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, and those of the commands beneath it.
fn write_pages(command: &Command, dir: &Path) -> std::io::Result<()> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    // What follows the options has its own lines, as examples have.
    let page = String::from_utf8_lossy(&page).replacen(EXTRA, &format!("{EXTRA}.nf\n"), 1);
    std::fs::write(dir.join(man.get_filename()), page)?;
    let mut beneath = command.get_subcommands().filter(|command| !command.is_hide_set());
    beneath.try_for_each(|command| write_pages(command, dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use std::collections::BTreeSet;

    /// The names of the pages of a command and of those beneath it.
    fn pages_of(command: &Command, above: &str) -> Vec<String> {
        let name = format!("{above}{}", command.get_name());
        let beneath = command.get_subcommands().filter(|command| !command.is_hide_set());
        let beneath = beneath.flat_map(|command| pages_of(command, &format!("{name}-")));
        [format!("{name}.1")].into_iter().chain(beneath).collect()
    }

    #[test]
    fn each_command_has_a_page_with_its_options_and_examples() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("share/man1");
        pages(&ManArgs { dir: Some(dir.clone()), page: None }).unwrap();
        let written = std::fs::read_dir(&dir).unwrap();
        let written = written.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let written: BTreeSet<_> = written.collect();
        let expected = pages_of(&Cli::command(), "");
        assert_eq!(written, expected.into_iter().collect());
        assert!(written.contains("meridian-cluster-add-node.1"), "{written:?}");
        let page = std::fs::read_to_string(dir.join("meridian-server.1")).unwrap();
        for part in [".SH SYNOPSIS", "metrics\\-address", ".SH EXTRA\n.nf\n", "MERIDIAN_LOG"] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    #[cfg(feature = "lab")] // Without it there are fewer commands.
    fn the_page_of_the_documents_is_that_of_the_commands() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("commands.md");
        pages(&ManArgs { dir: None, page: Some(path.clone()) }).unwrap();
        let written = std::fs::read_to_string(path).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let kept = std::fs::read_to_string(root.join("docs/commands.md")).unwrap();
        let differ = written.lines().zip(kept.lines()).find(|(written, kept)| written != kept);
        let how = "write it anew: cargo run -p meridian -- man --page docs/commands.md";
        assert!(written == kept, "{how}; the first line that differs: {differ:?}");
        for (name, says) in [("server", "`--keys-causal PREFIX`"), ("timeline", "`MESSAGE`")] {
            let section =
                written.split("\n## ").find(|of| of.starts_with(&format!("meridian {name}\n")));
            assert!(section.is_some_and(|section| section.contains(says)), "{name}");
        }
        assert!(written.contains("\n#scrub-days = 7\n"), "all options of a server's file");
    }

    #[test]
    fn each_shell_completes_each_command() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "meridian", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
