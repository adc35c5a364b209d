//! `limpet doctor`: checks whether this machine can run pods. Works without the agent.
//!
//! Each check is a small function that returns a [`Finding`]; its module reads the data: [`machine`] (rights, clock,
//! disk), [`pressure`] (eviction), [`modes`] (who may read and write the node's files), [`file_systems`], [`kernel`]
//! (notification, BPF programs, security modules), [`attribution`] (who changes manifests), [`profiles`] (seccomp,
//! AppArmor, SELinux), [`guard`], [`cgroups`], [`runtime`] (containerd, runc), [`network`] (CNI), [`services`], [`node`]
//! (configuration, other agents, the service), [`secrets`] (the key of Secrets on disk),
//! [`images`] (which images may be used), [`bundles`] (the keys of bundles), [`updates`] (programs that updates ask).

mod attribution;
mod bundles;
mod cgroups;
mod file_systems;
mod guard;
mod images;
mod kernel;
mod kernel_events;
mod machine;
mod modes;
mod network;
mod node;
mod pressure;
mod profiles;
mod runtime;
mod scratch;
mod secrets;
mod services;
mod updates;

use serde::Serialize;
use std::path::PathBuf;

use crate::config::{Config, RunFlags};
use limpet_cli::error::{CliError, EXIT_FAULTS};
use limpet_cli::output::DocumentFormat;
use limpet_cli::screen::{Screen, Tone, printable};

/// Arguments of `limpet doctor`. They are those of `limpet run`, so that it checks what the agent would use.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    flags: RunFlags,
    /// Output format
    #[arg(short, long, value_name = "FORM")]
    output: Option<DocumentFormat>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// Works as intended.
    Ok,
    /// Works with restrictions, or not for every pod.
    Degraded,
    /// Pods will not run.
    Failed,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    /// What was checked: `kernel`, `containerd`, …
    name: &'static str,
    /// The result.
    text: String,
    /// What to do about it; empty if nothing.
    remedy: String,
}

impl Finding {
    fn new(level: Level, name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level, name, text: text.into(), remedy: remedy.into() }
    }

    fn ok(name: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Ok, name, text, "")
    }

    fn degraded(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Level::Degraded, name, text, remedy)
    }

    fn failed(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Level::Failed, name, text, remedy)
    }
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    findings: &'a [Finding],
    failed: usize,
    degraded: usize,
    ok: usize,
}

impl<'a> Report<'a> {
    fn new(findings: &'a [Finding]) -> Self {
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        Self { findings, failed: count(Level::Failed), degraded: count(Level::Degraded), ok: count(Level::Ok) }
    }
}

/// `socket` is `--socket`, as for the agent.
pub(super) async fn run(args: DoctorArgs, socket: Option<PathBuf>, screen: Screen) -> Result<u8, CliError> {
    let (_, findings) = examine(&args.flags, socket).await;
    let report = Report::new(&findings);
    let text = match args.output {
        Some(format) => format.render(&report)?,
        None => render(&report, &screen),
    };
    screen.print(&text)?;
    Ok(if report.failed > 0 { EXIT_FAULTS } else { 0 })
}

/// The configuration in effect and the report as text, for a support bundle.
pub(super) async fn report(flags: &RunFlags, socket: Option<PathBuf>) -> (Config, String) {
    let (config, findings) = examine(flags, socket).await;
    (config, render(&Report::new(&findings), &Screen { color: false, quiet: false }))
}

/// The configuration, and all checks, ordered so that each comes after those it depends on.
async fn examine(flags: &RunFlags, socket: Option<PathBuf>) -> (Config, Vec<Finding>) {
    let (config, mut findings) = node::configuration(flags, socket);
    findings.extend(modes::examine(&config, node::config_file(flags).as_deref()));
    findings.extend(machine::examine(&config));
    findings.push(file_systems::examine(&config));
    findings.extend(pressure::examine(&config));
    findings.extend(attribution::left_out());
    findings.extend(kernel::examine(&config).await);
    findings.extend(profiles::examine(&config));
    findings.push(guard::examine(&config).await);
    findings.extend(machine::clock().await);
    findings.extend(cgroups::examine(config.cgroups.driver));
    findings.extend(runtime::examine(&config).await);
    findings.extend(network::examine(&config));
    findings.extend(services::examine(&config).await);
    findings.extend(node::examine(&config).await);
    findings.extend(secrets::examine(&config).await);
    findings.extend(images::examine(&config));
    findings.extend(bundles::examine(&config));
    findings.extend(updates::examine(&config));
    (config, findings)
}

fn render(report: &Report<'_>, screen: &Screen) -> String {
    let mut text = String::new();
    for finding in report.findings {
        let (word, tone) = match finding.level {
            Level::Ok if screen.quiet => continue,
            Level::Ok => ("ok", Tone::Good),
            Level::Degraded => ("degraded", Tone::Warn),
            Level::Failed => ("failed", Tone::Bad),
        };
        text.push_str(&screen.paint(tone, word));
        text.push_str(&" ".repeat(10 - word.len()));
        text.push_str(&format!("{}: {}", finding.name, printable(&finding.text)));
        if !finding.remedy.is_empty() {
            text.push_str(&format!(". {}", printable(&finding.remedy)));
        }
        text.push('\n');
    }
    let parts = [(report.failed, "failed"), (report.degraded, "degraded"), (report.ok, "ok")];
    let summary: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    text.push_str(&format!("\n{}\n", summary.join(", ")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_listed_with_remedies_and_counted() {
        let findings = [
            Finding::ok("kernel", "Linux 6.1"),
            Finding::degraded("clock", "not synchronised", "Install chrony"),
            Finding::failed("CNI", "no configuration in /etc/cni/net.d", "Install one"),
        ];
        let report = Report { findings: &findings, failed: 1, degraded: 1, ok: 1 };
        let screen = Screen { color: false, quiet: false };
        assert_eq!(
            render(&report, &screen),
            "ok        kernel: Linux 6.1\n\
             degraded  clock: not synchronised. Install chrony\n\
             failed    CNI: no configuration in /etc/cni/net.d. Install one\n\n\
             1 failed, 1 degraded, 1 ok\n"
        );
        assert!(!render(&report, &Screen { quiet: true, ..screen }).contains("kernel"), "only problems");
    }
}
