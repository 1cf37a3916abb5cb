//! A figure as PDF, made of the SVG that `plot` has drawn.
//!
//! No converter of all SVG: such a one brings fifty crates, and text needs a font of the machine.
//! What plotters draws is six kinds of elements with plain attributes, and each reader of PDF has
//! Helvetica. What is not known here is an error, so nothing is left out in silence.

use anyhow::{Context, bail, ensure};
use pdf_writer::{Content, Name, Pdf, Rect, Ref, Str};
use std::collections::BTreeMap;

/// Points in a pixel.
const POINTS: f32 = 0.75;
/// How far the points that shape a quarter of a circle are from its ends, in radii.
const QUARTER: f32 = 0.5523;
/// The height of a small letter, in font sizes.
const EX: f32 = 0.5;
const FONT: Name<'static> = Name(b"F");

/// How wide each letter from the space to the tilde is, in thousandths of the font size (Adobe's
/// metrics of Helvetica).
const WIDTHS: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556,
    556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667,
    611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667,
    667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500,
    222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];
/// The same of all others.
const WIDTH: u16 = 556;

/// An element of an SVG, and the text in it.
pub struct Element<'a> {
    pub name: &'a str,
    attributes: BTreeMap<&'a str, &'a str>,
    pub text: String,
}

/// The elements of an SVG, in order.
///
/// # Errors
/// If it is none.
pub fn elements(svg: &str) -> anyhow::Result<Vec<Element<'_>>> {
    let tags = svg.split('<').skip(1).filter(|part| !part.starts_with('/'));
    tags.map(element).collect()
}

fn element(part: &str) -> anyhow::Result<Element<'_>> {
    let (tag, text) = part.split_once('>').context("an element does not end")?;
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    let mut attributes = BTreeMap::new();
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"').context("an attribute does not end")?;
        attributes.insert(key.trim(), value);
        rest = after;
    }
    let named = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    let text =
        named.iter().fold(text.trim().to_string(), |text, (from, to)| text.replace(from, to));
    Ok(Element { name, attributes, text })
}

impl Element<'_> {
    fn get(&self, key: &str) -> anyhow::Result<&str> {
        self.attributes.get(key).copied().with_context(|| format!("{} has no {key}", self.name))
    }

    /// A number of pixels, or of something else.
    pub fn number(&self, key: &str) -> anyhow::Result<f32> {
        let text = self.get(key)?;
        text.parse().with_context(|| format!("{key} of {} is {text}", self.name))
    }

    /// A colour as it looks on white; none if nothing is painted.
    fn colour(&self, key: &str) -> anyhow::Result<Option<[f32; 3]>> {
        let opacity = self.number("opacity")?;
        let text = self.attributes.get(key).copied().unwrap_or("none");
        if text == "none" || opacity == 0.0 {
            return Ok(None);
        }
        let hex = text.strip_prefix('#').filter(|hex| hex.len() == 6);
        let hex = hex.with_context(|| format!("{text} is no colour"))?;
        let part = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).map(f32::from);
        let on_white = |part: f32| 1.0 - opacity * (1.0 - part / 255.0);
        Ok(Some([on_white(part(0)?), on_white(part(2)?), on_white(part(4)?)]))
    }

    /// The places that a line or an area goes through.
    fn points(&self) -> anyhow::Result<Vec<(f32, f32)>> {
        let point = |text: &str| -> anyhow::Result<(f32, f32)> {
            let (x, y) = text.split_once(',').context("a point has two numbers")?;
            Ok((x.parse()?, y.parse()?))
        };
        self.get("points")?.split_whitespace().map(point).collect()
    }
}

/// The same figure as PDF.
///
/// # Errors
/// If there is anything in it that plotters does not draw.
pub fn convert(svg: &str) -> anyhow::Result<Vec<u8>> {
    let elements = elements(svg)?;
    let (root, drawn) = elements.split_first().context("it is empty")?;
    ensure!(root.name == "svg", "it begins with {}", root.name);
    let (width, height) = (root.number("width")? * POINTS, root.number("height")? * POINTS);
    let mut content = Content::new();
    // From the upper left corner on, as SVG has it.
    content.transform([POINTS, 0.0, 0.0, -POINTS, 0.0, height]);
    drawn.iter().try_for_each(|element| draw(&mut content, element))?;
    let [catalog, pages, page, font, contents] = [1, 2, 3, 4, 5].map(Ref::new);
    let mut pdf = Pdf::new();
    pdf.catalog(catalog).pages(pages);
    pdf.pages(pages).kids([page]).count(1);
    let mut only = pdf.page(page);
    only.parent(pages).media_box(Rect::new(0.0, 0.0, width, height)).contents(contents);
    only.resources().fonts().pair(FONT, font);
    drop(only);
    let mut helvetica = pdf.type1_font(font);
    helvetica.base_font(Name(b"Helvetica")).encoding_predefined(Name(b"WinAnsiEncoding"));
    drop(helvetica);
    pdf.stream(contents, &content.finish());
    Ok(pdf.finish())
}

fn draw(content: &mut Content, element: &Element<'_>) -> anyhow::Result<()> {
    if element.name == "text" {
        return write(content, element);
    }
    let (fill, stroke) = (element.colour("fill")?, element.colour("stroke")?);
    if let Some([red, green, blue]) = fill {
        content.set_fill_rgb(red, green, blue);
    }
    if let Some([red, green, blue]) = stroke {
        content.set_stroke_rgb(red, green, blue).set_line_width(element.number("stroke-width")?);
    }
    let number = |key| element.number(key);
    match element.name {
        "rect" => {
            content.rect(number("x")?, number("y")?, number("width")?, number("height")?);
        }
        "line" => {
            content.move_to(number("x1")?, number("y1")?).line_to(number("x2")?, number("y2")?);
        }
        "circle" => circle(content, number("cx")?, number("cy")?, number("r")?),
        "polyline" | "polygon" => {
            for (at, (x, y)) in element.points()?.into_iter().enumerate() {
                if at == 0 {
                    content.move_to(x, y)
                } else {
                    content.line_to(x, y)
                };
            }
            if element.name == "polygon" {
                content.close_path();
            }
        }
        other => bail!("plotters draws no {other}"),
    }
    match (fill, stroke) {
        (Some(_), Some(_)) => content.fill_nonzero_and_stroke(),
        (Some(_), None) => content.fill_nonzero(),
        (None, Some(_)) => content.stroke(),
        (None, None) => content.end_path(),
    };
    Ok(())
}

/// Of four quarters.
fn circle(content: &mut Content, x: f32, y: f32, radius: f32) {
    content.move_to(x + radius, y);
    // The end of each quarter, and the way to it there.
    for (dx, dy) in [(0.0, 1.0), (-1.0, 0.0), (0.0, -1.0), (1.0, 0.0f32)] {
        let (from_x, from_y) = (dy, -dx);
        let at = |from: f32, to: f32, middle: f32| middle + radius * (from + to);
        content.cubic_to(
            at(from_x, dx * QUARTER, x),
            at(from_y, dy * QUARTER, y),
            at(dx, from_x * QUARTER, x),
            at(dy, from_y * QUARTER, y),
            x + radius * dx,
            y + radius * dy,
        );
    }
}

/// Text, upright or turned.
fn write(content: &mut Content, element: &Element<'_>) -> anyhow::Result<()> {
    let letters = element.text.chars().map(|letter| u8::try_from(u32::from(letter)));
    let letters: Vec<u8> = letters.collect::<Result<_, _>>().context("a letter is not Latin")?;
    let Some([red, green, blue]) = element.colour("fill")? else { return Ok(()) };
    let size = element.number("font-size")?;
    let width_of = |letter: &u8| {
        let known = letter.checked_sub(b' ').and_then(|at| WIDTHS.get(usize::from(at)));
        f32::from(known.copied().unwrap_or(WIDTH)) / 1000.0 * size
    };
    let width: f32 = letters.iter().map(width_of).sum();
    let before = match element.get("text-anchor")? {
        "start" => 0.0,
        "middle" => width / 2.0,
        "end" => width,
        other => bail!("text-anchor is {other}"),
    };
    let down = match element.attributes.get("dy") {
        None => 0.0,
        Some(dy) => match (dy.strip_suffix("em"), dy.strip_suffix("ex")) {
            (Some(number), _) => number.parse::<f32>()? * size,
            (_, Some(number)) => number.parse::<f32>()? * size * EX,
            _ => bail!("dy is {dy}"),
        },
    };
    let (turn, around) = turned(element)?;
    let (sin, cos) = turn.to_radians().sin_cos();
    let (x, y) = (element.number("x")? - before - around.0, element.number("y")? + down - around.1);
    let place = (around.0 + cos * x - sin * y, around.1 + sin * x + cos * y);
    content.begin_text().set_font(FONT, size).set_fill_rgb(red, green, blue);
    content.set_text_matrix([cos, sin, sin, -cos, place.0, place.1]);
    content.show(Str(&letters)).end_text();
    Ok(())
}

/// By how many degrees a text is turned, clockwise, and around what.
fn turned(element: &Element<'_>) -> anyhow::Result<(f32, (f32, f32))> {
    let Some(turned) = element.attributes.get("transform") else { return Ok((0.0, (0.0, 0.0))) };
    let numbers = turned.strip_prefix("rotate(").and_then(|rest| rest.strip_suffix(')'));
    let numbers = numbers.with_context(|| format!("transform is {turned}"))?;
    let numbers: Vec<f32> =
        numbers.split(',').map(|of| of.trim().parse()).collect::<Result<_, _>>()?;
    let [degrees, x, y] = numbers[..] else { bail!("transform is {turned}") };
    Ok((degrees, (x, y)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn svg(inside: &str) -> String {
        format!("<svg width=\"1000\" height=\"580\" viewBox=\"0 0 1000 580\">\n{inside}\n</svg>\n")
    }

    fn pdf(inside: &str) -> String {
        String::from_utf8_lossy(&convert(&svg(inside)).unwrap()).into_owned()
    }

    #[test]
    fn each_element_is_drawn_where_it_was() {
        let text = "<text x=\"100\" y=\"50\" dy=\"0.5em\" text-anchor=\"end\" font-size=\"20\" \
                    opacity=\"1\" fill=\"#000000\">\n(a &lt; 1)\n</text>";
        let drawn = pdf(text);
        assert!(drawn.starts_with("%PDF-") && drawn.ends_with("%%EOF"), "{drawn}");
        assert!(drawn.contains("/MediaBox [0 0 750 435]"), "{drawn}");
        assert!(drawn.contains("0.75 0 0 -0.75 0 435 cm"), "{drawn}");
        // Seven letters: 333, 556, 278, 584, 278, 556 and 333.
        assert!(drawn.contains("1 0 0 -1 41.64"), "{drawn}");
        assert!(drawn.contains(" 60 Tm\n((a < 1)) Tj"), "{drawn}");
        let line = "<line opacity=\"0.5\" stroke=\"#000000\" stroke-width=\"2\" x1=\"1\" y1=\"2\" \
                    x2=\"3\" y2=\"4\"/>";
        let drawn = pdf(line);
        assert!(drawn.contains("0.5 0.5 0.5 RG\n2 w\n1 2 m\n3 4 l\nS"), "{drawn}");
        let area = "<polygon opacity=\"1\" fill=\"#FF0000\" points=\"1,1 2,1 2,2 \"/>";
        let drawn = pdf(area);
        assert!(drawn.contains("1 0 0 rg\n1 1 m\n2 1 l\n2 2 l\nh\nf"), "{drawn}");
        let dot = "<circle cx=\"10\" cy=\"20\" r=\"5\" opacity=\"1\" fill=\"#000000\"/>";
        let drawn = pdf(dot);
        assert!(drawn.contains("15 20 m\n15 22.761"), "{drawn}");
        let unseen = "<line opacity=\"0\" stroke=\"#000000\" stroke-width=\"2\" x1=\"1\" y1=\"2\" \
                      x2=\"3\" y2=\"4\"/>";
        assert!(pdf(unseen).contains("3 4 l\nn"), "nothing is painted");
    }

    #[test]
    fn a_text_is_turned_around_its_place() {
        let text = "<text x=\"16\" y=\"265\" dy=\"1em\" text-anchor=\"start\" font-size=\"10\" \
                    opacity=\"1\" fill=\"#000000\" transform=\"rotate(270, 16, 265)\">up</text>";
        let drawn = pdf(text);
        let line = drawn.lines().find(|line| line.ends_with(" Tm")).unwrap();
        let numbers: Vec<f32> = line.split(' ').filter_map(|of| of.parse().ok()).collect();
        let wanted = [0.0, -1.0, -1.0, 0.0, 26.0, 265.0];
        let near = |(one, other): (&f32, f32)| (one - other).abs() < 1e-3;
        assert!(numbers.iter().zip(wanted).all(near), "{line}");
    }

    #[test]
    fn what_is_not_known_is_no_figure() {
        let wrong = |inside: &str| convert(&svg(inside)).unwrap_err().to_string();
        let path = "<path opacity=\"1\" d=\"M0 0\"/>";
        assert!(wrong(path).contains("draws no path"));
        assert!(wrong("<line opacity=\"1\" x1=\"1\"/>").contains("has no y1"));
        assert!(wrong("<rect opacity=\"1\" fill=\"red\"/>").contains("no colour"));
        assert!(convert("").is_err() && convert("<html></html>").is_err());
        let letter = "<text x=\"1\" y=\"2\" text-anchor=\"start\" font-size=\"9\" opacity=\"1\" \
                      fill=\"#000000\">\u{2192}</text>";
        assert!(wrong(letter).contains("not Latin"));
    }
}
