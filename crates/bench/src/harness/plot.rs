//! Curves as SVG, with a PDF beside it.

use super::page::write_pdf;
use anyhow::anyhow;
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use std::path::Path;

/// Of a figure, in pixels.
pub const SIZE: (u32, u32) = (1000, 580);
/// How wide a letter of the legend is at most, in pixels, and what stands before its text.
const LETTER: u32 = 10;
const LEGEND_MARK: u32 = 60;
/// How high a line of the legend is, in pixels.
const LEGEND_LINE: i32 = 30;
/// The room below the axis for the caption, in pixels.
const CAPTION: u32 = 26;
/// One for each curve; distinct also for those who see colours differently (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
/// The corners of each curve's marker, in pixels around the point: distinct also without colours.
/// The first is a circle.
const MARKERS: [&[(i32, i32)]; 6] = [
    &[],
    &[(-5, -5), (5, -5), (5, 5), (-5, 5)],
    &[(0, -7), (6, 5), (-6, 5)],
    &[(0, -7), (7, 0), (0, 7), (-7, 0)],
    &[(0, 7), (6, -5), (-6, -5)],
    &[
        (-2, -7),
        (2, -7),
        (2, -2),
        (7, -2),
        (7, 2),
        (2, 2),
        (2, 7),
        (-2, 7),
        (-2, 2),
        (-7, 2),
        (-7, -2),
        (-2, -2),
    ],
];
/// How long the dashes and gaps of each curve are, in pixels; 0 is a line without gaps.
const DASHES: [(u32, u32); 6] = [(0, 0), (10, 5), (3, 4), (16, 6), (6, 8), (2, 8)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One curve.
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// What a figure says beside its curves.
pub struct Labels<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    /// Below the figure: on which machine it was measured, for one.
    pub caption: &'a str,
}

/// How the points of a curve are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lines,
    Dots,
}

/// A place on the horizontal axis, and what happened there.
pub type Moment<'a> = (f64, &'a str);

/// Latency, on a logarithmic axis, over throughput.
pub fn latency_over_throughput(
    path: &Path,
    labels: &Labels<'_>,
    curves: &[Curve],
) -> anyhow::Result<()> {
    let x_max = greatest(curves, |point| point.0).max(1.0) * 1.05;
    let y = Decades::around(curves.iter().flat_map(|c| c.points.iter().map(|point| point.1)));
    draw(path, labels, curves, (Linear(0.0, x_max), y), (Kind::Lines, &[]))
}

/// The share of messages, from 0 to 1, that took at most so long.
pub fn distribution(path: &Path, labels: &Labels<'_>, curves: &[Curve]) -> anyhow::Result<()> {
    let x_max = greatest(curves, |point| point.0).max(1e-3) * 1.05;
    draw(path, labels, curves, (Linear(0.0, x_max), Linear(0.0, 1.0)), (Kind::Lines, &[]))
}

/// Anything over anything, both from 0.
pub fn linear(path: &Path, labels: &Labels<'_>, curves: &[Curve]) -> anyhow::Result<()> {
    let x_max = greatest(curves, |point| point.0).max(1e-3) * 1.05;
    let y_max = greatest(curves, |point| point.1).max(1e-3) * 1.1;
    draw(path, labels, curves, (Linear(0.0, x_max), Linear(0.0, y_max)), (Kind::Lines, &[]))
}

/// The latency of each operation, on a logarithmic axis, over the time at which it began; with
/// lines at the moments at which something was done to the cluster.
pub fn latency_over_time(
    path: &Path,
    labels: &Labels<'_>,
    curves: &[Curve],
    moments: &[Moment<'_>],
) -> anyhow::Result<()> {
    let xs = || curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.0));
    let (x_min, x_max) = (xs().fold(0.0, f64::min), xs().fold(1.0, f64::max));
    let y = Decades::around(curves.iter().flat_map(|c| c.points.iter().map(|point| point.1)));
    draw(path, labels, curves, (Linear(x_min, x_max), y), (Kind::Dots, moments))
}

fn greatest(curves: &[Curve], of: impl Fn(&(f64, f64)) -> f64) -> f64 {
    curves.iter().flat_map(|curve| &curve.points).map(of).fold(0.0, f64::max)
}

fn draw<Y>(
    path: &Path,
    labels: &Labels<'_>,
    curves: &[Curve],
    axes: (Linear, Y),
    (kind, moments): (Kind, &[Moment<'_>]),
) -> anyhow::Result<()>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    let drawn = draw_on(&area, labels, curves, axes, (kind, moments));
    let drawn = drawn.and_then(|()| area.present());
    drawn.map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))?;
    drop(area); // It is written by then.
    write_pdf(path)
}

type Drawn = Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>>;

fn draw_on<Y>(
    area: &Area<'_>,
    labels: &Labels<'_>,
    curves: &[Curve],
    (x, y): (Linear, Y),
    (kind, moments): (Kind, &[Moment<'_>]),
) -> Drawn
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    area.fill(&WHITE)?;
    let longest = curves.iter().map(|curve| curve.name.chars().count()).max().unwrap_or_default();
    // Dots of one kind are named by the title.
    let named = kind == Kind::Lines || curves.len() > 1;
    let legend = if named { LEGEND_MARK + LETTER * longest as u32 } else { 0 };
    let (upper, lower) = area.split_vertically(SIZE.1 - CAPTION);
    let (left, right) = upper.split_horizontally(SIZE.0 - legend);
    let mut chart = ChartBuilder::on(&left)
        .caption(labels.title, ("sans-serif", 24))
        .margin(16)
        .x_label_area_size(54)
        .y_label_area_size(88)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc(labels.x)
        .y_desc(labels.y)
        .axis_desc_style(("sans-serif", 20))
        .label_style(("sans-serif", 18))
        .draw()?;
    let (xs, ys) = (chart.x_range(), chart.y_range());
    for (at, what) in moments {
        chart.draw_series(DashedLineSeries::new(
            [(*at, ys.start), (*at, ys.end)],
            4,
            4,
            BLACK.stroke_width(1),
        ))?;
        let (x, y) = chart.backend_coord(&(at.clamp(xs.start, xs.end), ys.end));
        area.draw(&Text::new(*what, (x + 5, y + 4), ("sans-serif", 16)))?;
    }
    for (number, curve) in curves.iter().enumerate() {
        let at = |point: &(f64, f64)| chart.backend_coord(point);
        let pixels: Vec<(i32, i32)> = curve.points.iter().map(at).collect();
        if kind == Kind::Lines {
            line(area, number, &pixels)?;
        }
        let marked = kind == Kind::Dots || pixels.len() <= MARKED_MAX;
        pixels.iter().filter(|_| marked).try_for_each(|at| marker(area, number, kind, *at))?;
    }
    for (number, curve) in curves.iter().enumerate().filter(|_| legend > 0) {
        let y = 60 + LEGEND_LINE * number as i32;
        if kind == Kind::Lines {
            line(&right, number, &[(4, y), (44, y)])?;
        }
        marker(&right, number, kind, (24, y))?;
        right.draw(&Text::new(curve.name.as_str(), (52, y - 9), ("sans-serif", 18)))?;
    }
    lower.draw(&Text::new(labels.caption, (16, 2), ("sans-serif", 14)))
}

/// A curve's line through these pixels.
fn line(area: &Area<'_>, number: usize, pixels: &[(i32, i32)]) -> Drawn {
    let style = COLOURS[number % COLOURS.len()].stroke_width(2);
    match DASHES[number % DASHES.len()] {
        (0, _) => area.draw(&PathElement::new(pixels, style)),
        (dash, gap) => {
            let pixels = pixels.iter().copied();
            area.draw(&DashedPathElement::new(pixels, dash, gap, style))
        }
    }
}

/// A curve's marker at a pixel.
fn marker(area: &Area<'_>, number: usize, kind: Kind, (x, y): (i32, i32)) -> Drawn {
    let style = COLOURS[number % COLOURS.len()].filled();
    // Of very many dots each is small.
    let scale = |by: i32| if kind == Kind::Dots { by / 2 } else { by };
    match MARKERS[number % MARKERS.len()] {
        [] => area.draw(&Circle::new((x, y), scale(5), style)),
        corners => {
            let corners = corners.iter().map(|(dx, dy)| (x + scale(*dx), y + scale(*dy)));
            area.draw(&Polygon::new(corners.collect::<Vec<_>>(), style))
        }
    }
}

/// Points of longer curves are not marked one by one.
const MARKED_MAX: usize = 20;

/// A linear axis with marks at round numbers.
struct Linear(f64, f64);

/// A logarithmic axis from one power of ten to another.
struct Decades(i32, i32);

impl Decades {
    /// The powers of ten around all of these.
    fn around(values: impl Iterator<Item = f64>) -> Decades {
        let (mut low, mut high) = (f64::MAX, 0.0f64);
        for value in values.filter(|value| *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high == 0.0 {
            return Decades(0, 1);
        }
        let (low, high) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        Decades(low, high.max(low + 1))
    }
}

impl Ranged for Decades {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let place = value.max(1e-9).log10() - f64::from(self.0);
        low + (place / f64::from(self.1 - self.0) * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        let decades = (self.0..=self.1).map(|power| 10f64.powi(power));
        let top = 10f64.powi(self.1) * 1.001;
        let steps = decades.flat_map(|ten| [1.0, 2.0, 5.0].map(|step| step * ten));
        steps.filter(|value| *value <= top).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        10f64.powi(self.0)..10f64.powi(self.1)
    }
}

impl ValueFormatter<f64> for Decades {
    fn format_ext(&self, value: &f64) -> String {
        number(*value)
    }
}

impl Ranged for Linear {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let place = (value - self.0) / (self.1 - self.0);
        low + (place * f64::from(high - low)).round() as i32
    }

    /// About eight: a step of 1, 2 or 5 times a power of ten.
    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        let wanted = (self.1 - self.0) / 8.0;
        let ten = 10f64.powf(wanted.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * ten).into_iter();
        let step = step.clone().find(|step| *step >= wanted).unwrap_or(10.0 * ten);
        let marks = (0..).map(|count| self.0 + step * f64::from(count));
        marks.take_while(|mark| *mark <= self.1 * 1.0001).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.0..self.1
    }
}

impl ValueFormatter<f64> for Linear {
    fn format_ext(&self, value: &f64) -> String {
        number(*value)
    }
}

/// As short as it can be said: 25000 is `25k`.
fn number(value: f64) -> String {
    let (value, unit) = if value >= 10_000.0 { (value / 1000.0, "k") } else { (value, "") };
    let digits = format!("{value:.3}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_its_curves_axes_and_legend() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("figure.svg");
        let curve = |name: &str, y| Curve {
            name: name.into(),
            points: vec![(1000.0, y), (25_000.0, 3.0 * y), (40_000.0, 100.0 * y)],
        };
        let labels =
            Labels { title: "Two protocols", x: "messages/s", y: "ms", caption: "2 cores" };
        let curves = [curve("one", 0.4), curve("other", 0.7)];
        latency_over_throughput(&path, &labels, &curves).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["Two protocols", "messages/s", "other", "40k", "0.5", "100", "2 cores"] {
            assert!(svg.contains(&format!("\n{text}\n")), "{text} is missing");
        }
        assert!(svg.matches("<polyline").count() >= 2);
        // The points of the first and the second curve, and each in the legend.
        assert_eq!(svg.matches("<circle").count(), 4);
        assert_eq!(svg.matches("<polygon").count(), 4);
        distribution(&path, &labels, &curves).unwrap();
        linear(&path, &labels, &curves).unwrap();
        latency_over_time(&path, &labels, &curves, &[(20_000.0, "killed")]).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("\nkilled\n"));
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.1, 2.0, 0.0, 5000.0, 12_500.0].map(number);
        assert_eq!(all, ["0.1", "2", "0", "5000", "12.5k"]);
    }
}
