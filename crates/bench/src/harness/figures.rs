//! A run that draws figures: how long each point is measured, the raw results as lines of JSON, how
//! far the run is, the figures as SVG and PDF. A bench brings its setups, its points and its
//! titles.

use super::plot::{Curve, Labels};
use super::{Machine, page};
use anyhow::Context;
use clap::Args;
use meridian_terminal::{note, output};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long each point is measured.
const LENGTH: Duration = Duration::from_secs(5);
const QUICK_LENGTH: Duration = Duration::from_millis(1500);

/// Where figures go.
#[derive(Debug, Args)]
pub struct Folder {
    /// The folder that the figures and raw results are written to, those of each figure once it is
    /// measured; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// A way to draw curves: one of those in [`super::plot`].
pub type Plot = fn(&Path, &Labels<'_>, &[Curve]) -> anyhow::Result<()>;

/// What a figure says beside its curves.
pub struct Figure<'a> {
    /// `4.2` is `figure-4.2.svg`.
    pub name: &'a str,
    /// What stands above it after its name.
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    /// What stands below it after the machine, if anything does.
    pub note: &'a str,
    pub plot: Plot,
}

/// A run that draws figures.
pub struct Drawing<'a> {
    folder: &'a Folder,
    machine: Machine,
    length: Duration,
    /// How many points are measured, and how many there will be.
    measured: usize,
    all: usize,
}

impl<'a> Drawing<'a> {
    /// Makes the folder and looks at the machine. `all` points will be measured.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn begin(folder: &'a Folder, quick: bool, all: usize) -> anyhow::Result<Drawing<'a>> {
        let dir = &folder.out;
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let length = if quick { QUICK_LENGTH } else { LENGTH };
        Ok(Drawing { folder, machine: Machine::look_and_warn(), length, measured: 0, all })
    }

    /// The machine as it was at the start.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// How long each point is measured.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// A new file for raw results, with `.jsonl` after its name.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn results(&self, name: &str) -> anyhow::Result<Results> {
        let path = self.folder.out.join(format!("{name}.jsonl"));
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Results { path, file })
    }

    /// Shows a point of a figure, and of how many it is which.
    pub fn show(&mut self, figure: &str, point: &str) {
        self.measured += 1;
        let (nth, all) = (self.measured, self.all);
        note!("{nth:>3} of {all}  figure {figure:<4}  {point}");
    }

    /// Draws a figure.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn draw(&self, figure: &Figure<'_>, curves: &[Curve]) -> anyhow::Result<()> {
        let Figure { name, title, x, y, note, plot } = *figure;
        let title = format!("Figure {name}: {title}");
        let caption = match note {
            "" => self.machine.to_string(),
            note => format!("{}; {note}", self.machine),
        };
        let labels = Labels { title: &title, x, y, caption: &caption };
        plot(&self.folder.out.join(format!("figure-{name}.svg")), &labels, curves)
    }

    /// Makes the page of all figures, and says where all is.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn end(self) -> anyhow::Result<ExitCode> {
        page::write_page(&self.folder.out)?;
        let dir = self.folder.out.display();
        output::print(&format!("figures and raw results are in {dir}"))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Raw results: one line of JSON for each point, written as soon as it is measured.
pub struct Results {
    path: PathBuf,
    file: File,
}

impl Results {
    /// Adds a point.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, point: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(point)?;
        line.push(b'\n');
        let written = self.file.write_all(&line);
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// All of these, another one first in each round. The machine's own speed changes within minutes:
/// what is compared is measured one after the other.
pub fn in_turn<T>(all: &[T], round: usize) -> impl Iterator<Item = &T> {
    all.iter().cycle().skip(round % all.len().max(1)).take(all.len())
}

/// One curve for each of these, of the `points` that are `of` it; `at` tells where a point is, or
/// the many places that it stands for.
pub fn curves<K, P, I: IntoIterator<Item = (f64, f64)>>(
    all: &[K],
    name: impl Fn(&K) -> String,
    points: &[P],
    of: impl Fn(&K, &P) -> bool,
    at: impl Fn(&P) -> I,
) -> Vec<Curve> {
    let curve = |one: &K| {
        let points = points.iter().filter(|point| of(one, point)).flat_map(&at).collect();
        Curve { name: name(one), points }
    };
    all.iter().map(curve).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plot::linear;
    use super::*;

    #[test]
    fn a_run_leaves_its_figures_and_a_line_for_each_point() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder { out: dir.path().join("new/figures") };
        let mut drawing = Drawing::begin(&folder, true, 2).unwrap();
        assert_eq!(drawing.length(), QUICK_LENGTH);
        let points = [("one", 1.0), ("other", 2.0)];
        let mut results = drawing.results("results").unwrap();
        for point in &points {
            results.add(point).unwrap();
            drawing.show("7", point.0);
        }
        let names = ["one", "other"];
        let curves = curves(
            &names,
            |name| (*name).into(),
            &points,
            |name, point| point.0 == *name,
            |point| [(point.1, 0.0), (point.1, 1.0)],
        );
        assert_eq!(curves[1].points, [(2.0, 0.0), (2.0, 1.0)]);
        let figure = Figure { name: "7", title: "T", x: "x", y: "y", note: "n", plot: linear };
        drawing.draw(&figure, &curves).unwrap();
        drawing.end().unwrap();
        let read = |name| std::fs::read_to_string(folder.out.join(name)).unwrap();
        assert_eq!(read("results.jsonl"), "[\"one\",1.0]\n[\"other\",2.0]\n");
        assert!(read("figure-7.svg").contains("\nFigure 7: T\n"));
        assert!(read("README.md").contains("[PDF](figure-7.pdf)"));
    }

    #[test]
    fn each_round_begins_with_another() {
        let rounds = (0..4).map(|round| in_turn(&['a', 'b', 'c'], round).collect::<String>());
        assert_eq!(rounds.collect::<Vec<_>>(), ["abc", "bca", "cab", "abc"]);
        assert_eq!(in_turn::<char>(&[], 1).count(), 0);
    }
}
