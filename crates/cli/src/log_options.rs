//! How commands log that run until they are told to stop.

use anyhow::Context;
use clap::{Args, ValueEnum};
use meridian_terminal::log::{Format, Log};

/// Options that such commands have in common.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct LogOptions {
    /// What the log on standard error looks like. SIGUSR1 has more logged: debug, then trace;
    /// SIGUSR2 has as much logged as at the start
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

/// What a log looks like, by the names on a command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// An object of JSON in each line
    Json,
}

impl LogOptions {
    /// The log begins, and signals change how much is logged.
    ///
    /// # Errors
    /// If the system refuses the signals.
    pub fn begin(self, default: &str) -> anyhow::Result<()> {
        let format = match self.log_format {
            LogFormat::Text => Format::Text,
            LogFormat::Json => Format::Json,
        };
        Log::begin(default, format).follow_signals().context("cannot wait for signals")
    }

    /// The word that says the same on a command line.
    pub fn word(self) -> String {
        let value = self.log_format.to_possible_value().expect("all can be named");
        format!("--log-format={}", value.get_name())
    }
}
