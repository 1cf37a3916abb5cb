//! Curves as SVG.

use anyhow::anyhow;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::path::Path;

/// Of a figure, in pixels.
const SIZE: (u32, u32) = (900, 600);
/// One for each curve; distinct also for those who see colours differently (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

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
}

/// Where on the axis a figure's legend is in nobody's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legend {
    UpperLeft,
    LowerRight,
}

/// Latency, on a logarithmic axis, over throughput.
pub fn latency_over_throughput(
    path: &Path,
    labels: &Labels<'_>,
    curves: &[Curve],
) -> anyhow::Result<()> {
    let xs = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.0));
    let x_max = xs.fold(0.0, f64::max).max(1.0) * 1.05;
    let y = Decades::around(curves.iter().flat_map(|c| c.points.iter().map(|point| point.1)));
    draw(path, labels, curves, (Tens(0.0, x_max), y), Legend::UpperLeft)
}

/// The share of messages, from 0 to 1, that took at most so long.
pub fn distribution(path: &Path, labels: &Labels<'_>, curves: &[Curve]) -> anyhow::Result<()> {
    let xs = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.0));
    let x_max = xs.fold(0.0, f64::max).max(1e-3) * 1.05;
    draw(path, labels, curves, (Tens(0.0, x_max), Tens(0.0, 1.0)), Legend::LowerRight)
}

/// Anything over anything, both from 0.
pub fn linear(path: &Path, labels: &Labels<'_>, curves: &[Curve]) -> anyhow::Result<()> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let x_max = points().map(|point| point.0).fold(1e-3, f64::max) * 1.05;
    let y_max = points().map(|point| point.1).fold(1e-3, f64::max) * 1.1;
    draw(path, labels, curves, (Tens(0.0, x_max), Tens(0.0, y_max)), Legend::LowerRight)
}

fn draw<Y>(
    path: &Path,
    labels: &Labels<'_>,
    curves: &[Curve],
    (x, y): (Tens, Y),
    legend: Legend,
) -> anyhow::Result<()>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let failed = |error: &dyn std::error::Error| anyhow!("cannot draw {}: {error}", path.display());
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let mut chart = ChartBuilder::on(&area)
        .caption(labels.title, ("sans-serif", 26))
        .margin(16)
        .x_label_area_size(60)
        .y_label_area_size(92)
        .build_cartesian_2d(x, y)
        .map_err(|error| failed(&error))?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc(labels.x)
        .y_desc(labels.y)
        .axis_desc_style(("sans-serif", 20))
        .label_style(("sans-serif", 18))
        .draw()
        .map_err(|error| failed(&error))?;
    for (number, curve) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let line = LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2));
        chart
            .draw_series(line)
            .map_err(|error| failed(&error))?
            .label(&curve.name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 2), (x + 18, y + 2)], colour.filled()));
        if curve.points.len() <= MARKED_MAX {
            let marks = curve.points.iter().map(|point| Circle::new(*point, 4, colour.filled()));
            chart.draw_series(marks).map_err(|error| failed(&error))?;
        }
    }
    let position = match legend {
        Legend::UpperLeft => SeriesLabelPosition::UpperLeft,
        Legend::LowerRight => SeriesLabelPosition::LowerRight,
    };
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 19))
        .draw()
        .map_err(|error| failed(&error))?;
    area.present().map_err(|error| failed(&error))
}

/// Points of longer curves are not marked one by one.
const MARKED_MAX: usize = 20;

/// A linear axis with marks at round numbers.
struct Tens(f64, f64);

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

impl Ranged for Tens {
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

impl ValueFormatter<f64> for Tens {
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
        let labels = Labels { title: "Two protocols", x: "messages/s", y: "ms" };
        let curves = [curve("one", 0.4), curve("other", 0.7)];
        latency_over_throughput(&path, &labels, &curves).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["Two protocols", "messages/s", "other", "40k", "0.5", "100"] {
            assert!(svg.contains(&format!("\n{text}\n")), "{text} is missing");
        }
        assert!(svg.matches("<polyline").count() >= 2);
        distribution(&path, &labels, &curves).unwrap();
        linear(&path, &labels, &curves).unwrap();
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.1, 2.0, 0.0, 5000.0, 12_500.0].map(number);
        assert_eq!(all, ["0.1", "2", "0", "5000", "12.5k"]);
    }
}
