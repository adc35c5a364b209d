//! Prometheus' text format with a timestamp on each sample, which the registry of the agent's own metrics cannot
//! write.

use std::fmt::{self, Write as _};

use jiff::Timestamp;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Family<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: Kind,
    pub(crate) help: &'a str,
    /// The names of labels that only this family's samples have.
    pub(crate) labels: &'a [&'static str],
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Counter,
    Gauge,
}

#[derive(Debug, Clone)]
pub(crate) struct Sample<'a> {
    pub(crate) labels: Vec<(&'static str, &'a str)>,
    pub(crate) value: f64,
    /// When the value was read; `None` if it does not change.
    pub(crate) at: Option<Timestamp>,
}

/// A page of metrics.
#[derive(Debug, Default)]
pub(super) struct Page(String);

impl Page {
    /// Adds a family with its samples, unless it has none.
    pub(super) fn add<'a>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        samples: impl IntoIterator<Item = Sample<'a>>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for sample in samples {
            let _ = self.sample(name, &sample);
        }
    }

    fn sample(&mut self, name: &str, sample: &Sample<'_>) -> fmt::Result {
        self.0.push_str(name);
        for (number, (label, value)) in sample.labels.iter().enumerate() {
            write!(self.0, "{}{label}=\"{}\"", if number == 0 { '{' } else { ',' }, escaped(value))?;
        }
        if !sample.labels.is_empty() {
            self.0.push('}');
        }
        write!(self.0, " {}", sample.value)?;
        if let Some(at) = sample.at {
            write!(self.0, " {}", at.as_millisecond())?;
        }
        writeln!(self.0)
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_labels_and_times_and_an_empty_family_is_left_out() {
        let mut page = Page::default();
        let at = Some(Timestamp::constant(1, 500_000_000));
        page.add("a_total", Kind::Counter, "Things.", [Sample { labels: vec![], value: 0.25, at }]);
        page.add("nothing", Kind::Gauge, "None.", []);
        let labels = vec![("pod", "web"), ("image", "a\"b\\c\nd")];
        page.add("b_bytes", Kind::Gauge, "Bytes.", [Sample { labels, value: 5e9, at: None }]);
        let expected = "# HELP a_total Things.\n# TYPE a_total counter\na_total 0.25 1500\n\
                        # HELP b_bytes Bytes.\n# TYPE b_bytes gauge\n\
                        b_bytes{pod=\"web\",image=\"a\\\"b\\\\c\\nd\"} 5000000000\n";
        assert_eq!(page.into_text(), expected);
    }
}
