//! The log on standard error: how much of it, in which format, and how that changes at run time.

use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{Handle, Layer};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

/// The variable that says how much is logged.
const VARIABLE: &str = "MERIDIAN_LOG";
/// What SIGUSR1 raises the level to, one after the other.
const MORE: [LevelFilter; 2] = [LevelFilter::DEBUG, LevelFilter::TRACE];
/// The targets of Meridian's own crates begin so, and the text of an error, too.
const OURS: &str = "meridian";

/// What a log looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Lines for people.
    #[default]
    Text,
    /// An object of JSON in each line.
    Json,
}

/// What this process logs in.
static FORMAT: OnceLock<Format> = OnceLock::new();

/// A log that has begun.
#[derive(Debug)]
pub struct Log {
    /// How much was logged at first.
    begun: String,
    filter: Handle<EnvFilter, Registry>,
}

/// Sends the log to standard error as text, as much of it as `MERIDIAN_LOG` says, or else
/// `default`.
pub fn to_stderr(default: &str) {
    Log::begin(default, Format::Text);
}

impl Log {
    /// Sends the log to standard error in that format, as much of it as `MERIDIAN_LOG` says, or
    /// else `default`. What is wrong with that variable is said there, too.
    ///
    /// # Panics
    /// If this process has a log already.
    pub fn begin(default: &str, format: Format) -> Log {
        let (begun, wrong) = match wanted(std::env::var_os(VARIABLE)) {
            Ok(wanted) => (wanted.unwrap_or_else(|| default.into()), None),
            Err(wrong) => (default.to_string(), Some(wrong)),
        };
        let (layer, filter) = Layer::new(EnvFilter::new(&begun));
        let registry = tracing_subscriber::registry().with(layer);
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
        match format {
            Format::Text => registry.with(lines.with_ansi(io::stderr().is_terminal())).init(),
            Format::Json => registry.with(lines.json().flatten_event(true)).init(),
        }
        FORMAT.set(format).expect("a process begins its log once");
        if let Some(wrong) = wrong {
            crate::note!("{OURS}: {wrong}; {default} is logged");
        }
        Log { begun, filter }
    }

    /// From now on SIGUSR1 has more logged, and SIGUSR2 as much as at first.
    ///
    /// # Errors
    /// If the system refuses the signals, or a thread to wait for them.
    pub fn follow_signals(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let mut more = signal(SignalKind::user_defined1())?;
        let mut back = signal(SignalKind::user_defined2())?;
        drop(entered);
        let steps = steps(&self.begun);
        let follow = async move {
            let mut at = 0;
            loop {
                at = tokio::select! {
                    _ = more.recv() => steps.len().min(at + 2) - 1,
                    _ = back.recv() => 0,
                };
                let logged = &steps[at];
                let filter = EnvFilter::try_new(logged).map_err(|error| error.to_string());
                let set = filter.and_then(|filter| {
                    self.filter.reload(filter).map_err(|error| error.to_string())
                });
                match set {
                    Ok(()) => tracing::warn!(logged, "a signal has changed how much is logged"),
                    Err(error) => tracing::error!(error, "as much is logged as before"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("log".into());
        thread.spawn(move || runtime.block_on(follow)).map(drop)
    }
}

/// What `MERIDIAN_LOG` asks for; nothing if it is empty or not set.
///
/// A word alone that is no level would name a module of which all is logged, and of everything else
/// nothing: `verbose` is not meant so, so it is refused unless it names a module of Meridian.
fn wanted(value: Option<OsString>) -> Result<Option<String>, String> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let wrong = |why: &str| format!("{VARIABLE}={}: {why}", value.to_string_lossy());
    let text = value.to_str().ok_or_else(|| wrong("that is not UTF-8"))?;
    EnvFilter::try_new(text).map_err(|error| wrong(&error.to_string()))?;
    let mut words = text.split(',').map(str::trim).filter(|word| !word.contains(['=', '[', ']']));
    match words.find(|word| word.parse::<LevelFilter>().is_err() && !word.starts_with(OURS)) {
        Some(word) => {
            let why = "is none of off, error, warn, info, debug, trace, nor a module of Meridian";
            Err(wrong(&format!("{word:?} {why}")))
        }
        None => Ok(Some(text.into())),
    }
}

/// How much is logged at first, and after each SIGUSR1: never less than before.
fn steps(begun: &str) -> Vec<String> {
    let bare = |word: &str| word.trim().parse::<LevelFilter>().ok();
    let first = begun.split(',').filter_map(bare).next_back().unwrap_or(LevelFilter::OFF);
    let more = MORE.into_iter().filter(|level| *level > first).map(|level| {
        // All of a module is logged if no level is said.
        let of = |word: &str| word.rsplit('=').next().and_then(bare).unwrap_or(LevelFilter::TRACE);
        let louder = begun.split(',').filter(|word| of(word) > level).map(str::to_string);
        [level.to_string()].into_iter().chain(louder).collect::<Vec<_>>().join(",")
    });
    std::iter::once(begun.to_string()).chain(more).collect()
}

/// What a line of text says, as a line of this process's log. An error begins with `meridian: `.
pub(crate) fn line(text: &str) -> String {
    match FORMAT.get() {
        Some(Format::Json) => json_line(text),
        Some(Format::Text) | None => text.into(),
    }
}

fn json_line(text: &str) -> String {
    let mut timestamp = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp)); // A string takes it.
    let error = text.strip_prefix(OURS).and_then(|rest| rest.strip_prefix(": "));
    let (level, message) = error.map_or(("INFO", text), |error| ("ERROR", error));
    json!({ "timestamp": timestamp, "level": level, "message": message, "target": OURS })
        .to_string()
}

/// What a line of a log says, for people: the message, where it is JSON.
pub fn message(line: &str) -> String {
    let read = serde_json::from_str::<Value>(line).ok();
    let message = read.as_ref().and_then(|line| line["message"].as_str());
    message.unwrap_or(line).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn a_variable_that_means_nothing_is_refused_and_quoted() {
        let right =
            ["debug", "WARN", "off", "warn,meridian_node=debug", "meridian_node", "mio=info"];
        for value in right {
            assert_eq!(wanted(Some(value.into())), Ok(Some(value.into())));
        }
        assert_eq!((wanted(None), wanted(Some("".into()))), (Ok(None), Ok(None)));
        for value in ["verbose", "warn,loud", "meridian_node=loud", "info debug"] {
            let wrong = wanted(Some(value.into())).unwrap_err();
            assert!(wrong.starts_with(&format!("MERIDIAN_LOG={value}: ")), "{wrong}");
        }
        assert!(wanted(Some(OsString::from_vec(vec![0xff]))).unwrap_err().contains("UTF-8"));
    }

    #[test]
    fn no_step_logs_less_than_the_one_before() {
        let cases = [
            ("info", vec!["info", "debug", "trace"]),
            ("debug", vec!["debug", "trace"]),
            ("trace", vec!["trace"]),
            ("meridian=info", vec!["meridian=info", "debug", "trace"]),
            (
                "warn,meridian_node=trace,meridian_host=off",
                vec![
                    "warn,meridian_node=trace,meridian_host=off",
                    "debug,meridian_node=trace",
                    "trace",
                ],
            ),
            ("meridian_node", vec!["meridian_node", "debug,meridian_node", "trace"]),
        ];
        for (begun, expected) in cases {
            assert_eq!(steps(begun), expected, "{begun}");
            assert!(steps(begun).iter().all(|step| EnvFilter::try_new(step).is_ok()), "{begun}");
        }
    }

    #[test]
    fn a_note_in_json_has_a_level_and_its_message_is_found_again() {
        let error: Value = serde_json::from_str(&json_line("meridian: no \"disk\"\n")).unwrap();
        assert_eq!(
            (&error["level"], &error["message"]),
            (&json!("ERROR"), &json!("no \"disk\"\n"))
        );
        assert!(error["timestamp"].as_str().unwrap().ends_with('Z'), "{error}");
        let note = json_line("us-1 was added");
        assert_eq!(serde_json::from_str::<Value>(&note).unwrap()["level"], "INFO");
        assert_eq!(message(&note), "us-1 was added");
        assert_eq!(message("plain, 7"), "plain, 7");
        assert_eq!(message("7"), "7");
    }
}
