//! Validation of probes, lifecycle hooks, and their handlers.

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Lifecycle, LifecycleHandler, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::pod::validate::context::Pod;
use crate::pod::validate::field::{At, Faults, items, text};

/// The real-time signals are counted from both ends of their range.
const SIGNALS: [&str; 35] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGRTMIN",
];
const MORE_THAN_ONE: &str = "may not specify more than 1 handler type";

pub(super) fn lifecycle_and_probes(pod: &Pod<'_>, at: &At<'_>, container: &Container, faults: &mut Faults) {
    if let Some(hooks) = &container.lifecycle {
        lifecycle(pod, &at.field("lifecycle"), hooks, faults);
    }
    if let Some(liveness) = &container.liveness_probe {
        let at = at.field("livenessProbe");
        probe(&at, liveness, faults);
        succeeds_once(&at, liveness, faults);
    }
    if let Some(readiness) = &container.readiness_probe {
        let at = at.field("readinessProbe");
        probe(&at, readiness, faults);
        if let Some(seconds) = readiness.termination_grace_period_seconds {
            let at = at.field("terminationGracePeriodSeconds");
            faults.invalid(&at, seconds, "must not be set for readinessProbes");
        }
    }
    if let Some(startup) = &container.startup_probe {
        let at = at.field("startupProbe");
        probe(&at, startup, faults);
        succeeds_once(&at, startup, faults);
    }
}

fn succeeds_once(at: &At<'_>, probe: &Probe, faults: &mut Faults) {
    if let Some(threshold) = probe.success_threshold.filter(|threshold| *threshold != 1) {
        faults.invalid(&at.field("successThreshold"), threshold, "must be 1");
    }
}

fn probe(at: &At<'_>, probe: &Probe, faults: &mut Faults) {
    let mut handlers = Handlers { at, count: 0, faults };
    handlers.check("exec", probe.exec.as_ref(), |at, exec, faults| command(at, exec.command.as_deref(), faults));
    handlers.check("httpGet", probe.http_get.as_ref(), http_get);
    handlers
        .check("tcpSocket", probe.tcp_socket.as_ref(), |at, tcp, faults| port(&at.field("port"), &tcp.port, faults));
    handlers.check("grpc", probe.grpc.as_ref(), |at, grpc, faults| {
        faults.port(&at.field("port"), grpc.port);
        faults.if_set_one_of(&at.field("mode"), grpc.mode.as_deref(), &["Plaintext", "TLS"]);
    });
    handlers.finish();
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        faults.not_negative(&at.field(field), i64::from(value.unwrap_or(0)));
    }
    if let Some(seconds) = probe.termination_grace_period_seconds.filter(|seconds| *seconds <= 0) {
        faults.invalid(&at.field("terminationGracePeriodSeconds"), seconds, "must be greater than 0");
    }
}

fn lifecycle(pod: &Pod<'_>, at: &At<'_>, hooks: &Lifecycle, faults: &mut Faults) {
    let grace = pod.spec.termination_grace_period_seconds;
    for (field, handler) in [("postStart", &hooks.post_start), ("preStop", &hooks.pre_stop)] {
        if let Some(handler) = handler {
            hook(&at.field(field), handler, grace, faults);
        }
    }
    let Some(signal) = hooks.stop_signal.as_deref() else { return };
    let at = at.field("stopSignal");
    match pod.spec.os.as_ref().map(|os| os.name.as_str()) {
        None => faults.forbidden(&at, "may not be set for containers with empty `spec.os.name`"),
        Some("windows") => faults.if_set_one_of(&at, Some(signal), &["SIGKILL", "SIGTERM"]),
        Some(_) if is_real_time(signal) => {}
        Some(_) => faults.if_set_one_of(&at, Some(signal), &SIGNALS),
    }
}

/// `SIGRTMIN+1` to `SIGRTMIN+15`, `SIGRTMAX-14` to `SIGRTMAX-1`, `SIGRTMAX`.
fn is_real_time(signal: &str) -> bool {
    let number = |text: &str| text.parse::<u8>().ok().filter(|number| text == number.to_string());
    let above = signal.strip_prefix("SIGRTMIN+").and_then(number);
    let below = signal.strip_prefix("SIGRTMAX-").and_then(number);
    signal == "SIGRTMAX"
        || above.is_some_and(|number| (1..=15).contains(&number))
        || below.is_some_and(|number| (1..=14).contains(&number))
}

fn hook(at: &At<'_>, handler: &LifecycleHandler, grace: Option<i64>, faults: &mut Faults) {
    let mut handlers = Handlers { at, count: 0, faults };
    handlers.check("exec", handler.exec.as_ref(), |at, exec, faults| command(at, exec.command.as_deref(), faults));
    handlers.check("httpGet", handler.http_get.as_ref(), http_get);
    handlers
        .check("tcpSocket", handler.tcp_socket.as_ref(), |at, tcp, faults| port(&at.field("port"), &tcp.port, faults));
    handlers.check("sleep", handler.sleep.as_ref(), |at, sleep, faults| {
        if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&sleep.seconds)) {
            let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
            faults.invalid(at, sleep.seconds, &detail);
        }
    });
    handlers.finish();
}

/// Exactly one handler must be set.
struct Handlers<'a> {
    at: &'a At<'a>,
    count: usize,
    faults: &'a mut Faults,
}

impl Handlers<'_> {
    fn check<T>(&mut self, field: &str, handler: Option<&T>, validate: impl FnOnce(&At<'_>, &T, &mut Faults)) {
        let Some(handler) = handler else { return };
        self.count += 1;
        let at = self.at.field(field);
        match self.count {
            1 => validate(&at, handler, self.faults),
            _ => self.faults.forbidden(&at, MORE_THAN_ONE),
        }
    }

    fn finish(self) {
        if self.count == 0 {
            self.faults.required(self.at, "must specify a handler type");
        }
    }
}

fn command(at: &At<'_>, command: Option<&[String]>, faults: &mut Faults) {
    if command.unwrap_or_default().is_empty() {
        faults.required(&at.field("command"), "");
    }
}

fn http_get(at: &At<'_>, get: &HTTPGetAction, faults: &mut Faults) {
    faults.not_empty(&at.field("path"), text(&get.path));
    port(&at.field("port"), &get.port, faults);
    let scheme = text(&get.scheme);
    faults.if_set_one_of(&at.field("scheme"), Some(scheme), &["HTTP", "HTTPS"]);
    for (_, header) in items(&get.http_headers) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if header.name.is_empty() || !header.name.bytes().all(plain) {
            let detail = "a valid HTTP header must consist of alphanumeric characters or '-'";
            faults.invalid(&at.field("httpHeaders"), &header.name, detail);
        }
    }
    match get.protocol.as_deref() {
        Some("HTTP2") if scheme != "HTTP" => {
            faults.invalid(&at.field("protocol"), "HTTP2", "is only supported with HTTP (H2C)");
        }
        Some("HTTP2") if !text(&get.host).is_empty() => {
            faults.invalid(&at.field("host"), text(&get.host), "must be empty when `protocol` is \"HTTP2\"");
        }
        protocol => faults.if_set_one_of(&at.field("protocol"), protocol, &["HTTP1", "HTTP2"]),
    }
}

fn port(at: &At<'_>, port: &IntOrString, faults: &mut Faults) {
    match port {
        IntOrString::Int(number) => faults.port(at, *number),
        IntOrString::String(name) => faults.port_name(at, name),
    }
}
