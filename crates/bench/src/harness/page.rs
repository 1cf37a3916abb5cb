//! A folder of figures: a PDF beside each SVG, and a page that shows them all.

use super::pdf::{self, Element};
use super::plot;
use anyhow::Context;
use meridian_terminal::note;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// What the page is called: what is shown of a folder by who shows repositories.
const PAGE: &str = "README.md";
/// How it begins; what begins otherwise is another's.
const BEGIN: &str = "\
# Figures

`meridian bench figures` has made this page of what benches have drawn into its folder. Below each
figure stands where it was measured, and by which build.
";

/// Writes the PDF of a figure beside its SVG.
///
/// # Errors
/// If it cannot be written, or there is more in the SVG than `plot` draws.
pub fn write_pdf(svg: &Path) -> anyhow::Result<()> {
    let pdf =
        pdf::convert(&read(svg)?).with_context(|| format!("cannot convert {}", svg.display()));
    let path = svg.with_extension("pdf");
    fs::write(&path, pdf?).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the page of all figures in `dir` that a bench has drawn, in the order of their names;
/// how many they are. Another page of that name stays as it is.
///
/// # Errors
/// If something cannot be read or written.
pub fn write_page(dir: &Path) -> anyhow::Result<usize> {
    let figures = figures(dir)?;
    let path = dir.join(PAGE);
    if path.exists() && !read(&path)?.starts_with(BEGIN) {
        note!("meridian: {} is no page of figures, and stays as it is", path.display());
        return Ok(figures.len());
    }
    let mut page = String::from(BEGIN);
    figures.iter().try_for_each(|name| show(&mut page, dir, name))?;
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(figures.len())
}

/// Writes the PDF of each figure in `dir` anew, and the page; how many figures there are.
///
/// # Errors
/// If something cannot be read or written.
pub fn write_all(dir: &Path) -> anyhow::Result<usize> {
    let svg = |name: &String| dir.join(format!("{name}.svg"));
    figures(dir)?.iter().try_for_each(|name| write_pdf(&svg(name)))?;
    write_page(dir)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The figures of a folder by their names, without other pictures that lie there.
fn figures(dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let is_svg = path.extension().is_some_and(|end| end == "svg");
        if let Some(name) = name.filter(|_| is_svg)
            && is_drawn(&read(&path)?)
        {
            names.push(name.to_string());
        }
    }
    names.sort();
    Ok(names)
}

/// Whether `plot` has drawn it.
fn is_drawn(svg: &str) -> bool {
    let size = |root: &Element<'_>| Some((root.number("width").ok()?, root.number("height").ok()?));
    let elements = pdf::elements(svg).unwrap_or_default();
    let (width, height) = plot::SIZE;
    elements.first().and_then(size) == Some((width as f32, height as f32))
}

/// Adds a figure: its title and its caption are the first and the last text in it.
fn show(page: &mut String, dir: &Path, name: &str) -> anyhow::Result<()> {
    let svg = read(&dir.join(format!("{name}.svg")))?;
    let elements = pdf::elements(&svg)?;
    let mut texts = elements.iter().filter(|of| of.name == "text").map(|of| of.text.as_str());
    let title = texts.next().with_context(|| format!("{name}.svg has no title"))?;
    let caption = texts.next_back().with_context(|| format!("{name}.svg has no caption"))?;
    write!(page, "\n## {title}\n\n![{title}]({name}.svg)\n\n{caption}.\n\n")?;
    write!(page, "[SVG]({name}.svg), [PDF]({name}.pdf)")?;
    let raw = ["json", "jsonl"].map(|end| format!("{name}.{end}"));
    match raw.iter().find(|raw| dir.join(raw).exists()) {
        Some(raw) => writeln!(page, ", [raw results]({raw})")?,
        None => writeln!(page)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::plot::{Curve, Labels, linear};
    use super::*;

    #[test]
    fn a_page_shows_what_was_drawn_and_where_its_files_are() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let curves = [Curve { name: "one".into(), points: vec![(1.0, 2.0), (3.0, 4.0)] }];
        for (name, title) in [("b", "Second"), ("a", "First: x < y")] {
            let labels = Labels { title, x: "x", y: "y", caption: "2 cores, commit 1234" };
            linear(&at(&format!("{name}.svg")), &labels, &curves).unwrap();
        }
        fs::write(at("b.jsonl"), "{}\n").unwrap();
        fs::write(at("other.svg"), "<svg viewBox=\"0 0 9 9\"><path d=\"M0 0\"/></svg>").unwrap();
        assert!(fs::read(at("a.pdf")).unwrap().starts_with(b"%PDF-"), "drawn with the SVG");
        let before = fs::read(at("b.pdf")).unwrap();
        fs::remove_file(at("b.pdf")).unwrap();
        assert_eq!(write_all(dir.path()).unwrap(), 2);
        assert_eq!(fs::read(at("b.pdf")).unwrap(), before);
        assert!(!at("other.pdf").exists());
        let page = fs::read_to_string(at("README.md")).unwrap();
        let first = "## First: x < y\n\n![First: x < y](a.svg)\n\n2 cores, commit 1234.\n\n\
                     [SVG](a.svg), [PDF](a.pdf)\n\n## Second\n";
        assert!(page.contains(first), "{page}");
        fs::write(at("README.md"), "# Another\n").unwrap();
        write_all(dir.path()).unwrap();
        assert_eq!(fs::read(at("README.md")).unwrap(), b"# Another\n");
        assert!(page.ends_with("[SVG](b.svg), [PDF](b.pdf), [raw results](b.jsonl)\n"), "{page}");
    }
}
