//! How limpet's pages differ from kubelet's, what they lack, and why.

/// Families that differ from kubelet's of the same name, and how.
pub(super) const DIFFERENT: &[(&str, &str)] = &[(
    "kubernetes_build_info",
    "the Node's version of Kubernetes, with limpet's own behind it; without the labels of a build by Go: `go_version`, `compiler`, `git_commit`, `git_tree_state`, `build_date`",
)];

/// Families that kubelet shows only under certain conditions, so the recorded pages lack them, and what they are.
pub(super) const UNRECORDED: &[(&str, &str)] = &[
    ("container_fs_reads_bytes_total", IO),
    ("container_fs_reads_total", IO),
    ("container_fs_writes_bytes_total", IO),
    ("container_fs_writes_total", IO),
    ("container_pressure_cpu_stalled_seconds_total", PRESSURE),
    ("container_pressure_cpu_waiting_seconds_total", PRESSURE),
    ("container_pressure_io_stalled_seconds_total", PRESSURE),
    ("container_pressure_io_waiting_seconds_total", PRESSURE),
    ("container_pressure_memory_stalled_seconds_total", PRESSURE),
    ("container_pressure_memory_waiting_seconds_total", PRESSURE),
    ("kubelet_certificate_manager_client_expiration_renew_errors", BY_REQUEST),
    ("kubelet_certificate_manager_client_ttl_seconds", BY_REQUEST),
    ("kubelet_certificate_manager_server_ttl_seconds", BY_REQUEST),
    ("kubelet_evictions", "as kubelet's, once a pod was evicted"),
    ("kubelet_image_garbage_collected_total", "as kubelet's, once an image was removed"),
    ("kubelet_image_pull_duration_seconds", "as kubelet's, once an image was pulled"),
    ("kubelet_server_expiration_renew_errors", BY_REQUEST),
    ("kubelet_volume_stats_available_bytes", OF_CLAIMS),
    ("kubelet_volume_stats_capacity_bytes", OF_CLAIMS),
    ("kubelet_volume_stats_inodes", OF_CLAIMS),
    ("kubelet_volume_stats_inodes_free", OF_CLAIMS),
    ("kubelet_volume_stats_inodes_used", OF_CLAIMS),
    ("kubelet_volume_stats_used_bytes", OF_CLAIMS),
    ("kubelet_websocket_streaming_requests_total", "as kubelet's, once a WebSocket was opened"),
    (
        "storage_operation_duration_seconds",
        "as kubelet's, of the volumes of CSI drivers; `run_podsandbox` has the time of the others",
    ),
    (
        "volume_manager_total_volumes",
        "as kubelet's; a claim counts as `kubernetes.io/persistent-claim`, whatever it is bound to",
    ),
    ("prober_probe_total", "kubelet has it on `/metrics/probes` alone"),
    ("rest_client_request_duration_seconds", REST_CLIENT),
    ("rest_client_request_size_bytes", REST_CLIENT),
    ("rest_client_requests_total", REST_CLIENT),
    ("rest_client_response_size_bytes", REST_CLIENT),
];

const BY_REQUEST: &str =
    "as kubelet's, while the node asks for that certificate (`rotateCertificates`, `serverTLSBootstrap`)";
const OF_CLAIMS: &str = "as kubelet's, of the volumes of CSI drivers that report them";
const REST_CLIENT: &str = "in a cluster; `resource` in place of `host`, which is always the same";
const PRESSURE: &str = "as kubelet's, with cgroup v2";

const NO_EXCLUSIVE: &str =
    "exclusive processors are in the file `cpu_manager_state` and in PodResources; memory is never exclusive";
const NO_RELIST: &str = "nothing is listed again and again: events come from containerd and the kernel";
const NO_RECORDS: &str = "alpha; the log names each pod that may not use an image without a pull";
const VOLUMES: &str = "volumes are made by a pod's worker; a failure is an event of the pod";
const CALLS: &str = "the calls are timed: `kubelet_runtime_operations_duration_seconds`";
const NODE_EXPORTER: &str = "of the machine's disks; node_exporter has it";
const DISKS: &str =
    "of the machine's disks; node_exporter has it, and `/stats/summary` has that of containers and volumes";
const IO: &str = "as kubelet's, where the cgroup has the controller of I/O";

/// Families that a kubelet in a cluster adds and limpet lacks, and why.
pub(super) const ABSENT_IN_CLUSTER: &[(&str, &str)] = &[
    ("csi_operations_seconds", "the calls have deadlines; a failure is an event of the pod"),
    ("kubelet_admission_rejections_total", "status and event of the pod have the reason"),
    ("kubelet_container_requested_resizes_total", "conditions and events of the pod have each resize"),
    ("kubelet_device_plugin_*", "the log has each registration, the Node the devices"),
    ("kubelet_pod_resources_endpoint_*", "of the socket's requests; nothing on the node depends on their number"),
    ("kubelet_preemptions", "the preempted pod has the reason `Preempting`"),
    ("podcertificate_states", "a pod without its certificate waits, and its status has the reason"),
    ("rest_client_dns_resolution_duration_seconds", "part of `rest_client_request_duration_seconds`"),
    ("rest_client_exec_plugin_*", "a plugin that fails is the cause that `limpet status` shows"),
    ("rest_client_rate_limiter_duration_seconds", "there is no limiter: the server's answer 429 holds requests back"),
    ("rest_client_request_retries_total", "a retry is a request, and is counted in `rest_client_requests_total`"),
    ("rest_client_transport_*", "there is one connection"),
];

/// Families of kubelet's that limpet lacks, by page and name or a prefix before a `*`, and why.
pub(super) const ABSENT: &[(&str, &str, &str)] = &[
    ("/metrics", "aggregator_*", "of an apiserver's libraries"),
    ("/metrics", "apiserver_*", "of an apiserver's libraries"),
    ("/metrics", "cardinality_enforcement_*", "of kubelet's metrics library"),
    ("/metrics", "disabled_metrics_total", "of kubelet's metrics library"),
    ("/metrics", "hidden_metrics_total", "of kubelet's metrics library"),
    ("/metrics", "registered_metrics_total", "of kubelet's metrics library"),
    ("/metrics", "dra_*", "dynamic resources are not supported"),
    ("/metrics", "force_cleaned_*", VOLUMES),
    ("/metrics", "reconstruct_volume_*", VOLUMES),
    ("/metrics", "volume_operation_total_seconds", VOLUMES),
    ("/metrics", "go_*", "there is no Go runtime"),
    ("/metrics", "workqueue_*", "of client-go"),
    ("/metrics", "kubernetes_feature_enabled", "there are no feature gates"),
    ("/metrics", "process_network_*", "it is the whole node's: `/metrics/cadvisor` has it by interface"),
    ("/metrics", "process_virtual_memory_max_bytes", "it has no limit"),
    ("/metrics", "kubelet_container_log_filesystem_used_bytes", "in `/stats/summary`: `/metrics` walks no directory"),
    ("/metrics", "kubelet_containers_per_pod_count", "`kubelet_running_containers` beside `kubelet_running_pods`"),
    ("/metrics", "kubelet_cpu_manager_*", NO_EXCLUSIVE),
    ("/metrics", "kubelet_memory_manager_*", NO_EXCLUSIVE),
    ("/metrics", "kubelet_topology_manager_*", NO_EXCLUSIVE),
    ("/metrics", "kubelet_memory_qos_*", "memory is not reserved by cgroups"),
    ("/metrics", "kubelet_cri_losing_support", "containerd is driven by its own API"),
    ("/metrics", "kubelet_evented_pleg_*", NO_RELIST),
    ("/metrics", "kubelet_pleg_*", NO_RELIST),
    ("/metrics", "kubelet_first_network_pod_start_sli_duration_seconds", "`kubelet_pod_start_duration_seconds`"),
    ("/metrics", "kubelet_http_inflight_requests", "a request is counted when its answer begins"),
    ("/metrics", "kubelet_image_manager_ensure_image_requests_total", NO_RECORDS),
    ("/metrics", "kubelet_imagemanager_*", NO_RECORDS),
    ("/metrics", "kubelet_image_volume_*", "their images are counted as those of containers are"),
    ("/metrics", "kubelet_lifecycle_handler_http_fallbacks_total", "reported as the event `LifecycleHTTPFallback`"),
    ("/metrics", "kubelet_managed_ephemeral_containers", "`kubelet_started_containers_total` counts by type"),
    ("/metrics", "kubelet_metrics_provider", "there is one"),
    ("/metrics", "kubelet_mirror_pods", "`kubelet_desired_pods{static=\"true\"}`, in a cluster"),
    ("/metrics", "kubelet_node_startup_*", "a start takes no phases that would be timed"),
    ("/metrics", "kubelet_orphan_pod_*", "what is left of a pod is removed once, not in sweeps"),
    ("/metrics", "kubelet_orphaned_runtime_pods_total", "what runs is found by its labels and adopted"),
    ("/metrics", "kubelet_pod_in_progress_resizes", "conditions of the pod and events report it"),
    ("/metrics", "kubelet_pod_level_resources_admission_total", "not counted"),
    ("/metrics", "kubelet_pod_status_sync_duration_seconds", "`rest_client_requests_total` has the requests"),
    ("/metrics", "kubelet_pod_watch_events_dropped_total", "watches drop no events"),
    ("/metrics", "kubelet_pod_worker_*", CALLS),
    ("/metrics", "kubelet_restarted_pods_total", "not counted"),
    ("/metrics", "kubelet_run_podsandbox_*", CALLS),
    ("/metrics", "kubelet_sleep_action_terminated_early_total", "not counted"),
    ("/metrics", "kubelet_started_user_namespaced_pods_*", "not counted"),
    ("/metrics", "kubelet_volume_metric_collection_duration_seconds", "not measured"),
    ("/metrics", "kubelet_working_pods", "`kubelet_active_pods`; a worker's phases are not kubelet's"),
    ("/metrics/probes", "prober_probe_duration_seconds", "not measured"),
    ("/metrics/probes", "process_start_time_seconds", "on `/metrics`"),
    ("/metrics/cadvisor", "cadvisor_version_info", "there is no cAdvisor"),
    ("/metrics/cadvisor", "container_cpu_cfs_burst_*", "kubelet sets no burst"),
    ("/metrics/cadvisor", "container_creation_time_seconds", "`container_start_time_seconds`"),
    ("/metrics/cadvisor", "container_file_descriptors", "it takes a walk over every process"),
    ("/metrics/cadvisor", "container_sockets", "it takes a walk over every process"),
    ("/metrics/cadvisor", "container_ulimits_soft", "of the first process alone, and as the image sets it"),
    ("/metrics/cadvisor", "container_fs_inodes_*", NODE_EXPORTER),
    ("/metrics/cadvisor", "container_fs_io_*", NODE_EXPORTER),
    ("/metrics/cadvisor", "container_fs_limit_bytes", NODE_EXPORTER),
    ("/metrics/cadvisor", "container_fs_read_seconds_total", NODE_EXPORTER),
    ("/metrics/cadvisor", "container_fs_reads_merged_total", NODE_EXPORTER),
    ("/metrics/cadvisor", "container_fs_sector_*", NODE_EXPORTER),
    ("/metrics/cadvisor", "container_fs_usage_bytes", DISKS),
    ("/metrics/cadvisor", "container_fs_write_seconds_total", NODE_EXPORTER),
    ("/metrics/cadvisor", "container_fs_writes_merged_total", NODE_EXPORTER),
    ("/metrics/cadvisor", "container_health_state", "of Docker"),
    ("/metrics/cadvisor", "container_memory_events_*", "of cgroup v2 alone"),
    ("/metrics/cadvisor", "container_memory_file_*", "not read"),
    ("/metrics/cadvisor", "container_memory_kernel_usage", "not read"),
    ("/metrics/cadvisor", "container_memory_pg*", "not read"),
    ("/metrics/cadvisor", "container_memory_workingset_*", "not read"),
    ("/metrics/cadvisor", "container_spec_cpu_shares", "it is in the pod's spec"),
    ("/metrics/cadvisor", "container_spec_memory_reservation_limit_bytes", "kubelet sets none"),
    (
        "/metrics/cadvisor",
        "container_spec_memory_swap_limit_bytes",
        "`container_swap_limit_bytes` on `/metrics/resource`",
    ),
    ("/metrics/cadvisor", "machine_cpu_books", "of s390x"),
    ("/metrics/cadvisor", "machine_cpu_drawers", "of s390x"),
    ("/metrics/cadvisor", "machine_nvm_*", "of Intel's memory modules"),
];

/// Published rules and panels that match nothing: the family they query, what they are, and what to query instead.
pub(super) const RULES: &[(&str, &str, &str)] = &[
    (
        "container_fs_limit_bytes",
        "panels of the use of disks by `id=\"/\"`",
        "`node_filesystem_size_bytes` of node_exporter",
    ),
    (
        "container_fs_usage_bytes",
        "panels of the use of disks by `id=\"/\"`",
        "`node_filesystem_avail_bytes` of node_exporter; `/stats/summary` for pods",
    ),
    ("go_goroutines", "Kubelet: Goroutines", "`process_resident_memory_bytes`, `process_cpu_seconds_total`"),
    (
        "kubelet_node_config_error",
        "Kubelet: Config Error Count; kubelet has none since 1.24",
        "`limpet_manifests_rejected`",
    ),
    (
        "kubelet_pleg_relist_duration_seconds",
        "KubeletPlegDurationHigh, `node_quantile:kubelet_pleg_relist_duration_seconds:histogram_quantile`; Kubelet: PLEG \
         relist duration",
        "`limpet_containerd_connected == 0`",
    ),
    ("kubelet_pleg_relist_interval_seconds", "Kubelet: PLEG relist interval", "`limpet_containerd_connected == 0`"),
    (
        "kubelet_pod_worker_duration_seconds",
        "KubeletPodStartUpLatencyHigh; Kubelet: Pod Start Rate, Pod Start Duration (worker)",
        "`kubelet_pod_start_duration_seconds`",
    ),
    (
        "storage_operation_errors_total",
        "Kubelet: Storage Operation Error Rate; kubelet has none since 1.21",
        "`storage_operation_duration_seconds_count{status!=\"success\"}`",
    ),
];
