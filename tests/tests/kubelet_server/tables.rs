//! The requests and expectations of kubelet's tests, by the names of the tests.

pub(crate) const PARTS_OFF: &[(&str, bool)] = &[
    ("enableDebuggingHandlers", true),
    ("enableSystemLogHandler", false),
    ("enableProfilingHandler", false),
    ("enableDebugFlagsHandler", false),
];
pub(crate) const ALL_OFF: &[(&str, bool)] = &[
    ("enableDebuggingHandlers", false),
    ("enableSystemLogHandler", true),
    ("enableProfilingHandler", true),
    ("enableDebugFlagsHandler", true),
];

/// The name of a test of kubelet, one of its requests, and the status and a part of the body that it expects.
pub(crate) type Row<'a> = (&'a str, &'a str, &'a str, u16, &'a str);

/// Kubelet's tests whose server has all handlers. In a path `POD` and `UID` are those of the pod.
pub(crate) const ROWS: [Row<'static>; 22] = [
    ("TestServeLogs", "GET", "/logs/", 200, "<a href="),
    ("TestServeRunInContainer", "POST", "/run/default/POD/runs?cmd=echo%20foo%20bar", 200, "foo bar"),
    ("TestServeRunInContainerWithUID", "POST", "/run/default/POD/UID/runs?cmd=echo%20foo%20bar", 200, "foo bar"),
    ("TestHealthCheck", "GET", "/healthz", 200, "ok"),
    ("TestConfigz", "GET", "/configz", 200, "\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\""),
    ("TestConfigz", "GET", "/configz", 200, "\"kind\":\"KubeletConfiguration\""),
    ("TestContainerLogs", "GET", "/containerLogs/default/POD/baz?tailLines=5", 200, "out1\nerr1\nout2\n"),
    ("TestContainerLogs", "GET", "/containerLogs/default/POD/baz?tail=5", 200, "out1\nerr1\nout2\n"),
    ("TestContainerLogs", "GET", "/containerLogs/default/POD/baz?tail=all", 200, "out1\nerr1\nout2\n"),
    ("TestContainerLogs", "GET", "/containerLogs/default/POD/baz?follow=1", 200, "out1\nerr1\nout2\n"),
    ("TestContainerLogsWithInvalidTail", "GET", "/containerLogs/default/POD/baz?tail=-1", 422, ""),
    ("TestCheckpointContainer", "POST", "/checkpoint/other/POD/baz", 404, ""),
    ("TestCheckpointContainer", "POST", "/checkpoint/default/POD/wrongContainerName", 404, ""),
    (
        "TestCheckpointContainer",
        "POST",
        "/checkpoint/default/POD/runs",
        500,
        "checkpointing of default/POD/runs failed (",
    ),
    ("TestServeExecInContainer", "POST", "/exec/default/POD/runs?ignore=1&command=ls&command=-a", 400, ""),
    ("TestServeAttachContainer", "POST", "/attach/default/POD/runs?ignore=1", 400, ""),
    ("TestFailedParseParamsSummaryHandler", "POST", "/stats/summary", 500, "parse form failed"),
    ("TestNewServerRegistersMetricsSLIsEndpointTwice", "GET", "/metrics/slis", 200, "kubernetes_healthcheck"),
    ("TestGetAllocatedPods", "GET", "/allocatedPods", 404, ""),
    ("TestGetAllocatedPods", "GET", "/allocatedPods/default/POD", 404, ""),
    ("TestServeHTTPRequestDurationMetric", "GET", "/pods/", 200, "\"kind\":\"PodList\""),
    ("TestMetricMethodBuckets", "WEIRD", "/pods/", 405, ""),
];

/// The queries of `TestContainerLogsWithSeparateStream`, with the whole of what they get.
pub(crate) const STREAMS: [(&str, &str); 9] = [
    ("", "out1\nerr1\nout2\n"),
    ("?limitBytes=100", "out1\nerr1\nout2\n"),
    ("?stream=Stdout", "out1\nout2\n"),
    ("?stream=Stderr", "err1\n"),
    ("?stream=All", "out1\nerr1\nout2\n"),
    ("?stream=All&tail=1", "out2\n"),
    ("?stream=All&tailLines=2", "err1\nout2\n"),
    ("?stream=Stdout&limitBytes=6", "out1\no"),
    ("?stream=invalid", "{\"message\": \"Invalid request.\"}"),
];

pub(crate) const POSTED: [&str; 5] =
    ["/pods/", "/containerLogs/default/mypod/mycontainer", "/runningpods/", "/logs/", "/debug/pprof/profile?seconds=1"];

/// The requests of `TestMetricBuckets`, each with the label `path` by which it is counted.
pub(crate) const BUCKETS: [(&str, &str); 24] = [
    ("/attach/namespace/pod/container", "attach"),
    ("/attach/namespace/pod/uid/container", "attach"),
    ("/configz", "configz"),
    ("/containerLogs/namespace/pod/container", "containerLogs"),
    ("/debug/flags/v", "debug"),
    ("/debug/pprof/subpath", "debug"),
    ("/exec/namespace/pod/container", "exec"),
    ("/healthz/", "healthz"),
    ("/healthz/log", "healthz"),
    ("/logs/", "logs"),
    ("/logs/logpath", "logs"),
    ("/metrics", "metrics"),
    ("/metrics/cadvisor", "metrics/cadvisor"),
    ("/metrics/probes", "metrics/probes"),
    ("/metrics/resource", "metrics/resource"),
    ("/pods/", "pods"),
    ("/portForward/namespace/pod", "portForward"),
    ("/run/namespace/pod/container", "run"),
    ("/runningpods/", "runningpods"),
    ("/stats/summary", "stats"),
    ("/statusz", "statusz"),
    ("/flagz", "flagz"),
    ("/junk", "other"),
    ("/healthzjunk", "other"),
];

/// The paths that are off without handlers for debugging.
pub(crate) const DEBUGGING: [&str; 8] =
    ["/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/runningpods/", "/debug/pprof/", "/logs/"];

/// Methods, and their verbs in a SubjectAccessReview.
pub(crate) const METHODS: [(&str, &str); 5] =
    [("POST", "create"), ("GET", "get"), ("PUT", "update"), ("PATCH", "patch"), ("DELETE", "delete")];

/// The paths of `AuthzTestCases`, each with the subresources of `nodes` that the caller needs.
pub(crate) const SUBRESOURCES: [(&str, &str); 30] = [
    ("/attach/ns/pod/container", "proxy"),
    ("/attach/ns/pod/uid/container", "proxy"),
    ("/checkpoint/ns/pod/container", "checkpoint"),
    ("/configz", "configz proxy"),
    ("/flagz", "configz"),
    ("/statusz", "statusz"),
    ("/containerLogs/ns/pod/container", "proxy"),
    ("/debug/flags/v", "proxy"),
    ("/debug/pprof/profile", "proxy"),
    ("/exec/ns/pod/container", "proxy"),
    ("/exec/ns/pod/uid/container", "proxy"),
    ("/healthz", "healthz proxy"),
    ("/healthz/log", "healthz proxy"),
    ("/healthz/ping", "healthz proxy"),
    ("/healthz/syncloop", "healthz proxy"),
    ("/logs/", "log"),
    ("/logs/kubelet.log", "log"),
    ("/metrics", "metrics"),
    ("/metrics/slis", "metrics"),
    ("/metrics/cadvisor", "metrics"),
    ("/metrics/probes", "metrics"),
    ("/metrics/resource", "metrics"),
    ("/pods/", "pods proxy"),
    ("/portForward/ns/pod", "proxy"),
    ("/portForward/ns/pod/uid", "proxy"),
    ("/run/ns/pod/container", "proxy"),
    ("/run/ns/pod/uid/container", "proxy"),
    ("/runningpods/", "pods proxy"),
    ("/stats/", "stats"),
    ("/stats/summary", "stats"),
];
