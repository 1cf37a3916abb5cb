//! How results look on a terminal.

use comfy_table::{Cell, CellAlignment, Table, presets};
use std::io::Write;

/// The cells of one line of a table.
pub type Row = Vec<String>;

/// A table without frames; columns of numbers are aligned right.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Row>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head.to_vec());
    for row in rows {
        table.add_row(row.into_iter().map(|text| {
            let number = text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(':');
            let side = if number { CellAlignment::Right } else { CellAlignment::Left };
            Cell::new(text).set_alignment(side)
        }));
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Writes `text` and a line's end. A reader that has gone (`meridian status | head -1`) is no
/// error.
///
/// # Errors
/// If standard output cannot be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// Says something on standard error, formatted as by `format!`.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => { $crate::output::say(&format!($($text)*)) };
}

/// What `note!` calls: a line of the log, where that is JSON. A terminal that has gone must not
/// keep a demo from unmounting.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", crate::log::line(text));
}

/// A latency for people: three digits that count, and the unit.
pub fn micros(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.1} us"),
        us if us < 1000.0 => format!("{us:.0} us"),
        us if us < 100_000.0 => format!("{:.2} ms", us / 1e3),
        us if us < 1_000_000.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// The error and its causes in one line; a cause that the text before names already is left out.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_have_units() {
        let all = [7.26, 512.0, 1234.0, 250_000.0, 3_600_000.0].map(micros);
        assert_eq!(all, ["7.3 us", "512 us", "1.23 ms", "250 ms", "3.60 s"]);
    }

    #[test]
    fn a_table_lines_up() {
        let text = table(&["node", "pid"], [vec!["us-1".into(), "7".into()]]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].contains("node") && lines[1].contains("us-1"), "{text}");
    }

    #[test]
    fn an_error_is_one_line_that_says_nothing_twice() {
        let error = anyhow::anyhow!("disk full").context("cannot write x: disk full").context("y");
        assert_eq!(one_line(&error), "y: cannot write x: disk full");
    }
}
