//! The agent's log on stderr: text on a terminal, otherwise one JSON object per line.

use std::fmt;
use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

/// Changes the verbosity of a log that has started.
#[derive(Debug, Clone)]
pub struct Verbosity(reload::Handle<Targets, Registry>);

impl Verbosity {
    /// Logs at kubelet's `verbosity` from now on.
    ///
    /// # Errors
    /// The log has ended.
    pub fn set(&self, verbosity: u8) -> Result<(), String> {
        self.0.reload(levels(verbosity)).map_err(|error| error.to_string())
    }
}

/// Starts logging at kubelet's `verbosity`. A second call does nothing, and the value that it returns has no effect.
pub fn init(verbosity: u8) -> Verbosity {
    let (filter, handle) = reload::Layer::new(levels(verbosity));
    let registry = tracing_subscriber::registry().with(filter);
    let terminal = std::io::stderr().is_terminal();
    let started = if terminal {
        let ansi = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let text = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(ansi).event_format(Text);
        registry.with(text).try_init()
    } else {
        let json = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).json();
        registry.with(json.flatten_event(true).with_target(false).with_span_list(false)).try_init()
    };
    if started.is_err() {
        tracing::debug!("logging has started already");
    }
    Verbosity(handle)
}

/// The level for `--v`: 0 warnings and errors, up to 3 info, 4 and 5 debug, 6 and more trace. Libraries log from 8 on.
fn levels(verbosity: u8) -> Targets {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1..=3 => LevelFilter::INFO,
        4 | 5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let libraries = match verbosity {
        0..=7 => LevelFilter::WARN,
        8 | 9 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    Targets::new().with_default(libraries).with_target("limpet", level)
}

/// `time LEVEL message field=value… span_field=value…`: the message first, as in kubelet's log lines.
struct Text;

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (dim, paint, reset) = match (out.has_ansi_escapes(), *event.metadata().level()) {
            (false, _) => ("", "", ""),
            (true, Level::ERROR) => ("\x1b[2m", "\x1b[31m", "\x1b[0m"),
            (true, Level::WARN) => ("\x1b[2m", "\x1b[33m", "\x1b[0m"),
            (true, Level::INFO) => ("\x1b[2m", "\x1b[32m", "\x1b[0m"),
            (true, _) => ("\x1b[2m", "\x1b[34m", "\x1b[0m"),
        };
        out.write_str(dim)?;
        SystemTime.format_time(&mut out)?;
        write!(out, "{reset} {paint}{:>5}{reset} ", event.metadata().level())?;
        context.field_format().format_fields(out.by_ref(), event)?;
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            if let Some(fields) = extensions.get::<FormattedFields<N>>().filter(|fields| !fields.is_empty()) {
                write!(out, " {dim}{fields}{reset}")?;
            }
        }
        writeln!(out)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_text_line_has_the_message_before_the_fields() {
        let sink = Sink::default();
        let writer = sink.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(levels(2)).with(layer.event_format(Text));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!(target: "limpet_core::plan", "pod", pod = "default/web-edge1");
            let _entered = span.enter();
            tracing::info!(target: "limpet_core::plan", took_ms = 71, "container started");
            tracing::debug!(target: "limpet_core::plan", "not shown");
            tracing::info!(target: "h2", "not shown");
        });
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
        assert_eq!(rest, " INFO container started took_ms=71 pod=\"default/web-edge1\"\n");
    }

    #[test]
    fn verbosity_matches_kubelets() {
        let shown = |verbosity, target, level| levels(verbosity).would_enable(target, &level);
        for (verbosity, target, level, expected) in [
            (0, "limpet_core::plan", Level::INFO, false),
            (0, "limpet_core::plan", Level::WARN, true),
            (2, "limpet", Level::INFO, true),
            (2, "limpet", Level::DEBUG, false),
            (4, "limpet", Level::DEBUG, true),
            (6, "limpet", Level::TRACE, true),
            (6, "h2", Level::INFO, false),
            (8, "h2", Level::DEBUG, true),
            (10, "h2", Level::TRACE, true),
        ] {
            assert_eq!(shown(verbosity, target, level), expected, "--v={verbosity} {target} {level}");
        }
    }
}
