//! Converts the registry's output, OpenMetrics, to the text format in which kubelet shows metrics (Prometheus 0.0.4).
//!
//! The two differ in the description of a family: in OpenMetrics its name lacks `_total` or `_info`, and the registry
//! ends each help text with a full stop. Samples are the same.

use std::fmt::Write as _;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// kubelet's counters whose names lack the suffix `_total`, which OpenMetrics requires.
const WITHOUT_TOTAL: [&str; 3] = [
    "kubelet_evictions",
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "kubelet_server_expiration_renew_errors",
];

/// Converts a page of OpenMetrics to the text format.
pub(super) fn from_open_metrics(open_metrics: &str) -> String {
    let mut page = String::with_capacity(open_metrics.len());
    let (mut help, mut without_total) = ("", None);
    for line in open_metrics.lines() {
        if let Some((_, text)) = line.strip_prefix("# HELP ").and_then(|family| family.split_once(' ')) {
            help = text.strip_suffix('.').unwrap_or(text);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|family| family.split_once(' ')) {
            without_total = WITHOUT_TOTAL.into_iter().find(|counter| *counter == name);
            let (end, kind) = match kind {
                "counter" if without_total.is_none() => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(page, "# HELP {name}{end} {help}\n# TYPE {name}{end} {kind}");
        } else if !line.starts_with('#') {
            let shorter = without_total.and_then(|name| Some((name, line.strip_prefix(name)?.strip_prefix("_total")?)));
            let (name, rest) = shorter.unwrap_or(("", line));
            let _ = writeln!(page, "{name}{rest}");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn families_have_the_names_of_their_samples() {
        let open_metrics = "# HELP a Things.\n# TYPE a counter\na_total{b=\"# x\"} 1\n\
                            # HELP kubernetes_build What. Always 1..\n# TYPE kubernetes_build info\nkubernetes_build_info{} 1\n\
                            # HELP kubelet_evictions Pods.\n# TYPE kubelet_evictions counter\nkubelet_evictions_total 2\n\
                            # HELP g Level.\n# TYPE g gauge\n# UNIT g bytes\ng 3.5\n# EOF\n";
        let expected = "# HELP a_total Things\n# TYPE a_total counter\na_total{b=\"# x\"} 1\n\
                        # HELP kubernetes_build_info What. Always 1.\n# TYPE kubernetes_build_info gauge\n\
                        kubernetes_build_info{} 1\n\
                        # HELP kubelet_evictions Pods\n# TYPE kubelet_evictions counter\nkubelet_evictions 2\n\
                        # HELP g Level\n# TYPE g gauge\ng 3.5\n";
        assert_eq!(super::from_open_metrics(open_metrics), expected);
    }
}
