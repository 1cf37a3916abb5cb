//! The values in the text format of OpenMetrics.

use crate::Told;
use crate::table::{Kind, METRICS, Metric, Sample, UP};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// What the text is, for the header `Content-Type`.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All values of a node; only that it is not up if it has not answered.
pub fn text(told: Option<Told<'_>>) -> String {
    let families = METRICS.iter().filter_map(|metric| {
        let samples = match told {
            Some(told) => (metric.read)(&told),
            None if metric.name == UP => vec![Sample { labels: Vec::new(), value: 0.0 }],
            None => Vec::new(),
        };
        (!samples.is_empty()).then_some(Family { metric, samples })
    });
    let mut registry = Registry::default();
    families.for_each(|family| registry.register_collector(Box::new(family)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .expect("a string takes what is written to it");
    text
}

/// A metric with its values.
#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    samples: Vec<Sample>,
}

impl Collector for Family {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Metric { name, kind, labels, help, .. } = self.metric;
        // The library writes the end of a counter's name itself.
        let name = name.strip_suffix("_total").unwrap_or(name);
        let value = |encoder: MetricEncoder<'_>, value: f64| match kind {
            Kind::Gauge => ConstGauge::new(value).encode(encoder),
            Kind::Counter => ConstCounter::new(value).encode(encoder),
        };
        let kind = match kind {
            Kind::Gauge => ConstGauge::new(0.0).metric_type(),
            Kind::Counter => ConstCounter::new(0.0).metric_type(),
        };
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        if let ([], [only]) = (*labels, &self.samples[..]) {
            return value(metric, only.value);
        }
        for sample in &self.samples {
            let named = labels.iter().copied().zip(sample.labels.iter().map(String::as_str));
            let labels: Vec<(&str, &str)> = named.collect();
            value(metric.encode_family(&labels)?, sample.value)?;
        }
        Ok(())
    }
}
