//! What an operator says of a new cluster, and where that was said.

use serde::Deserialize;
use std::ops::Range;
use toml::Spanned;

/// Something that was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said<T> {
    pub what: T,
    /// A line of a file, or a flag.
    pub place: String,
}

impl<T> Said<T> {
    /// For people: what is wrong with it.
    pub fn wrong(&self, why: &str) -> String {
        format!("{}: {why}", self.place)
    }
}

/// A region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub name: String,
    pub nodes: Vec<Said<Node>>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub address: String,
}

/// All that was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// For people: the file, or the flags.
    pub source: String,
    pub regions: Vec<Said<Region>>,
    /// Who shall keep the configuration.
    pub keepers: Vec<Said<String>>,
    pub order: Option<Said<String>>,
}

impl Answers {
    /// Those of all regions.
    pub fn nodes(&self) -> impl Iterator<Item = &Said<Node>> {
        self.regions.iter().flat_map(|region| &region.what.nodes)
    }
}

/// Reads what `--region` says.
///
/// # Errors
/// All that is not like NAME=HOST:PORT,..
pub fn from_flags(regions: &[String]) -> Result<Answers, Vec<String>> {
    let read = |text: &String| {
        let place = format!("--region {text}");
        let Some((name, addresses)) = text.split_once('=') else {
            return Err(format!("{place}: not like us=10.0.1.1:7000,10.0.1.2:7000"));
        };
        let node = |(at, address): (usize, &str)| Said {
            what: Node { name: format!("{name}-{}", at + 1), address: address.trim().into() },
            place: place.clone(),
        };
        let addresses = addresses.split(',').filter(|address| !address.trim().is_empty());
        let nodes = addresses.enumerate().map(node).collect();
        Ok(Said { what: Region { name: name.into(), nodes }, place })
    };
    let (good, bad): (Vec<_>, Vec<_>) = regions.iter().map(read).partition(Result::is_ok);
    match bad.is_empty() {
        true => {
            let regions = good.into_iter().flatten().collect();
            Ok(Answers { source: "--region".into(), regions, ..Answers::default() })
        }
        false => Err(bad.into_iter().filter_map(Result::err).collect()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileOfAnswers {
    order: Option<Spanned<String>>,
    #[serde(default)]
    keepers: Vec<Spanned<String>>,
    #[serde(default)]
    region: Vec<Spanned<RegionInFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegionInFile {
    name: String,
    #[serde(default)]
    nodes: Vec<Spanned<NodeInFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeInFile {
    name: String,
    address: String,
}

/// Reads the text of a file of that name.
///
/// # Errors
/// If it is not one, with the line.
pub fn from_file(name: &str, text: &str) -> Result<Answers, Vec<String>> {
    let file: FileOfAnswers =
        toml::from_str(text).map_err(|error| vec![wrong(name, text, &error)])?;
    let place = |span: Range<usize>| format!("{name}, line {}", line(text, span.start));
    let said = |of: Spanned<String>| Said { place: place(of.span()), what: of.into_inner() };
    let node = |of: Spanned<NodeInFile>| {
        let place = place(of.span());
        let NodeInFile { name, address } = of.into_inner();
        Said { place, what: Node { name, address } }
    };
    let region = |of: Spanned<RegionInFile>| {
        let place = place(of.span());
        let RegionInFile { name, nodes } = of.into_inner();
        Said { place, what: Region { name, nodes: nodes.into_iter().map(node).collect() } }
    };
    Ok(Answers {
        source: name.into(),
        regions: file.region.into_iter().map(region).collect(),
        keepers: file.keepers.into_iter().map(said).collect(),
        order: file.order.map(said),
    })
}

/// What TOML says is wrong, in one line, with the line.
pub fn wrong(name: &str, text: &str, error: &toml::de::Error) -> String {
    let why = error.message().replace('\n', ", ");
    match error.span() {
        Some(span) => format!("{name}, line {}: {why}", line(text, span.start)),
        None => format!("{name}: {why}"),
    }
}

/// The line in which a byte lies, from 1.
pub fn line(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}
