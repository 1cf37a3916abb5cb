//! The values in the text format of OpenMetrics.

use crate::table::{Head, Kind, METRICS, Sample, UP};
use crate::{Told, mount};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// What the text is, for the header `Content-Type`.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All values of a node; only that it is not up if it has not answered.
pub fn text(told: Option<Told<'_>>) -> String {
    written(METRICS.iter().map(|metric| {
        let samples = match told {
            Some(told) => (metric.read)(&told),
            None if metric.head.name == UP => vec![Sample { labels: Vec::new(), value: 0.0 }],
            None => Vec::new(),
        };
        let value = |sample: Sample| (sample.labels, Value::Number(sample.value));
        Family { head: &metric.head, values: samples.into_iter().map(value).collect() }
    }))
}

/// All values of a mount.
pub fn of_mount(told: &mount::Told<'_>) -> String {
    written(
        mount::METRICS
            .iter()
            .map(|metric| Family { head: &metric.head, values: (metric.read)(told) }),
    )
}

fn written(families: impl Iterator<Item = Family>) -> String {
    let mut registry = Registry::default();
    let told = families.filter(|family| !family.values.is_empty());
    told.for_each(|family| registry.register_collector(Box::new(family)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .expect("a string takes what is written to it");
    text
}

/// What is told of one set of labels.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a gauge or a counter.
    Number(f64),
    /// Of a histogram.
    Times {
        /// All together, in the unit of the metric.
        sum: f64,
        /// Up to where each bucket goes, from the end of the one before, and how often; the last
        /// has no end, which is [`f64::INFINITY`].
        buckets: Vec<(f64, u64)>,
    },
}

/// A metric with its values.
#[derive(Debug)]
struct Family {
    head: &'static Head,
    /// By labels.
    values: Vec<(Vec<String>, Value)>,
}

impl Collector for Family {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Head { name, kind, labels, help } = self.head;
        // The library writes the end of a counter's name itself.
        let name = name.strip_suffix("_total").unwrap_or(name);
        let value = |mut encoder: MetricEncoder<'_>, value: &Value| match (value, kind) {
            (Value::Number(value), Kind::Counter) => ConstCounter::new(*value).encode(encoder),
            (Value::Number(value), _) => ConstGauge::new(*value).encode(encoder),
            (Value::Times { sum, buckets }, _) => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
        };
        let kind = match kind {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
            Kind::Histogram => MetricType::Histogram,
        };
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        if let ([], [(_, only)]) = (*labels, &self.values[..]) {
            return value(metric, only);
        }
        for (named, told) in &self.values {
            let named = labels.iter().copied().zip(named.iter().map(String::as_str));
            let labels: Vec<(&str, &str)> = named.collect();
            value(metric.encode_family(&labels)?, told)?;
        }
        Ok(())
    }
}
