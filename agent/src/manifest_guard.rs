//! The manifest guard: BPF programs that keep pods from changing manifests, the agent's state and its configuration.
//!
//! Input: the configuration, and the cgroup above all pods. Output: a guard in the kernel that outlives the agent
//! ([`limpet_bpf::arm`]), and an event for each attempt that it denied. It is armed before any source is read, which
//! adds some tenths of a second to a start. Docs: `docs/guard.md`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use limpet_bpf::{
    Event, Events as GuardEvents, FileChange, GuardError, GuardRules, GuardSettings, GuardState, Guarded, InodeId,
    LoadError, Request,
};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::lifecycle::kernel_types;
use limpet_containerd::image_verifier;
use limpet_host::memory;
use limpet_image_policy::policy::ImagePolicy;
use limpet_model::attribution::WatchObserver;
use limpet_store::KeyLocation;
use limpet_telemetry::event::{EventType, Events};
use limpet_telemetry::metrics::{GuardVerdict, Metrics};
use limpet_watch::actors::cgroup_path;

/// The directory of the guard's pinned links. There is one guard per machine, as there is one agent.
pub const PINS: &str = "/sys/fs/bpf/limpet-guard";

/// How many directories of registries are guarded. The kernel's table has room for some hundred paths.
const MOST_REGISTRIES: usize = 256;
/// How many directories of drivers of flexVolumes are guarded.
const MOST_DRIVERS: usize = 32;

/// Why the configured guard is not on.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// Pod processes cannot be identified by a v2 cgroup.
    #[error(
        "manifestGuard: pods cannot be distinguished from other processes with cgroup v1 or hybrid; boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1), or set manifestGuard: off"
    )]
    CgroupVersion,
    /// A path to be guarded, or an allowed executable, does not exist.
    #[error("manifestGuard: {}: {source}; create it before limpet starts", path.display())]
    Missing { path: PathBuf, source: io::Error },
    /// The kernel loads no programs.
    #[error(
        "manifestGuard: loading its BPF programs failed: {0}; set manifestGuard: off, or manifestGuardRequired: false to run without it"
    )]
    Load(#[from] LoadError),
    /// The kernel rejects some of the guard's programs.
    #[error(
        "manifestGuard: arming it failed: {0}; set manifestGuard: off, or manifestGuardRequired: false to run without it"
    )]
    Arm(#[from] GuardError),
    /// The thread that arms it failed, or waits for a file system.
    #[error("manifestGuard: arming failed: {0}")]
    Failed(#[source] io::Error),
    /// Its events cannot be read.
    #[error("manifestGuard: opening its events failed: {0}")]
    Events(#[source] io::Error),
}

/// An active guard.
#[derive(Debug)]
pub struct Armed {
    events: Option<GuardEvents>,
    guarded: Vec<Guarded>,
}

/// Reports the guard's events.
#[derive(Clone)]
pub struct AttemptReporter {
    /// The node's events.
    pub events: Events,
    pub metrics: Metrics,
    /// Finds the pod of a process.
    pub observer: Arc<dyn WatchObserver>,
}

/// Arms the guard that `config` selects; `pods` is the v2 cgroup above all pods, if any. Blocks for some tenths of a
/// second. Must be called within a tokio runtime.
///
/// # Errors
///
/// It is configured but cannot be armed. The guard that an earlier start pinned stays.
pub fn arm(config: &Config, pods: Option<PathBuf>) -> Result<Option<Armed>, ArmError> {
    let settings = &config.guard;
    let Some(mode) = settings.mode else {
        warn_of_pinned_guard();
        return Ok(None);
    };
    let pods = pods.ok_or(ArmError::CgroupVersion)?;
    let guarded = guarded(config)?;
    let rules = GuardRules {
        mode,
        guarded: guarded.clone(),
        pod_cgroups: vec![cgroup_id(&pods)?],
        allowed_executables: allowed_executables(settings)?,
        allowed_cgroups: settings.cgroups.iter().map(|path| cgroup_id(path)).collect::<Result<_, _>>()?,
    };
    let mut loaded = kernel_types::read().load(&Request { guard: Some(rules), ..Request::default() })?;
    let events = loaded.events().map_err(ArmError::Events)?;
    limpet_bpf::arm(&mut loaded, Path::new(PINS))?;
    memory::release_memory();
    tracing::info!(mode = mode.name(), "the guard is on: every hook is attached and every directory was tested");
    Ok(Some(Armed { events, guarded }))
}

/// Warns of a pinned guard although it is configured off. It is removed manually, never by a start.
fn warn_of_pinned_guard() {
    if let Ok(GuardState::Pinned { mode, .. }) = limpet_bpf::state(Path::new(PINS)) {
        tracing::warn!(
            mode,
            "manifestGuard is off, and an earlier guard is still on; remove it with: limpet guard off"
        );
    }
}

/// The guarded paths of this node.
fn guarded(config: &Config) -> Result<Vec<Guarded>, ArmError> {
    let below_root = ["images", "network"].map(|name| config.root_dir.join(name));
    for path in &below_root {
        // A path that appears later would not be guarded.
        std::fs::create_dir_all(path).map_err(|source| ArmError::Missing { path: path.clone(), source })?;
    }
    let paths = [
        config.sources.manifest_path.clone(),
        Some(config.root_dir.clone()),
        config.files.main.clone(),
        config.files.drop_in_dir.clone(),
    ];
    let mut guarded = Vec::new();
    for path in paths.into_iter().flatten().chain(below_root) {
        let missing = |source| ArmError::Missing { path: path.clone(), source };
        let entry = if path.is_dir() { Guarded::directory(&path) } else { Guarded::file(&path) };
        guarded.push(entry.map_err(missing)?);
        guarded.extend(limpet_bpf::ancestors(&path).map_err(missing)?);
    }
    for path in of_the_host(config) {
        match guarded_from_pods(&path) {
            Ok(below) => guarded.extend(below),
            Err(error) => tracing::info!(path = %path.display(), %error, "a directory cannot be guarded against pods"),
        }
    }
    Ok(guarded)
}

/// Paths besides the manifests that decide what runs as root on the node, or what limpet trusts or keeps secret.
/// Packages and administrators change them.
fn of_the_host(config: &Config) -> Vec<PathBuf> {
    let mut paths = Vec::from_iter(std::env::current_exe());
    paths.extend(keys(config));
    paths.push(config.network.config_dir.clone());
    paths.extend(config.network.binary_dirs.iter().cloned());
    paths.extend(config.plugins.cdi_dirs.iter().cloned());
    paths.extend(config.images.credential_providers.iter().map(|provider| provider.program.clone()));
    paths.extend(config.images.policy.iter().flat_map(ImagePolicy::key_files).map(Path::to_owned));
    paths.push(config.runtime.containerd_config.clone());
    paths.extend(image_verifier::settings(&config.runtime.containerd_config).map(|verifiers| verifiers.directory));
    paths.extend(config.runtime.binary.clone());
    paths.extend(std::env::current_exe().ok().and_then(|executable| config.runtime.shim.program(&executable)));
    paths.extend(
        config.runtime.classes.values().flat_map(|class| [class.binary.clone(), class.config.clone()]).flatten(),
    );
    // A directory for each registry, and for each driver.
    for (above, most) in
        [(&config.images.registry_config_dir, MOST_REGISTRIES), (&config.volumes.plugin_dir, MOST_DRIVERS)]
    {
        paths.push(above.clone());
        let below = std::fs::read_dir(above).into_iter().flatten().flatten();
        paths.extend(below.map(|entry| entry.path()).filter(|path| path.is_dir()).take(most));
    }
    // Programs named without a path are searched for in `PATH`.
    paths.retain(|path| path.is_absolute());
    paths
}

/// Certificates, keys and kubeconfigs.
fn keys(config: &Config) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    if let Some(url) = &config.sources.manifest_url {
        paths.extend(url.ca_file.clone());
        paths.extend(url.client_files.iter().flat_map(|(certificate, key)| [certificate.clone(), key.clone()]));
    }
    let server = &config.server;
    paths.extend(server.certificate.iter().flat_map(|(certificate, key)| [certificate.clone(), key.clone()]));
    paths.extend(server.certificate_dir.iter().chain(&server.client_ca).cloned());
    paths.extend(config.cluster.kubeconfig.iter().chain(&config.cluster.bootstrap_kubeconfig).cloned());
    match &config.secret_key {
        Some(KeyLocation::File(path) | KeyLocation::Encrypted(path)) => paths.push(path.clone()),
        Some(KeyLocation::Credential(_)) | None => {}
    }
    paths
}

/// A file or directory with the directories that keep it in its place.
fn guarded_from_pods(path: &Path) -> io::Result<Vec<Guarded>> {
    let path = path.canonicalize()?;
    let itself = if path.is_dir() { Guarded::directory(&path) } else { Guarded::file(&path) };
    let all = std::iter::once(itself?).chain(limpet_bpf::ancestors(&path)?);
    Ok(all.map(Guarded::from_pods).collect())
}

/// The configured executables, and the agent's own.
fn allowed_executables(settings: &GuardSettings) -> Result<Vec<InodeId>, ArmError> {
    let agent = Path::new("/proc/self/exe");
    settings.executables.iter().map(PathBuf::as_path).chain([agent]).map(id_of).collect()
}

fn id_of(path: &Path) -> Result<InodeId, ArmError> {
    InodeId::read(path).map_err(|source| ArmError::Missing { path: path.to_owned(), source })
}

/// A v2 cgroup's ID is its directory's inode.
fn cgroup_id(path: &Path) -> Result<u64, ArmError> {
    id_of(path).map(|id| id.inode)
}

/// Reports the attempts that the guard denied or audited, until `stop`.
pub async fn report_attempts(mut armed: Armed, reporter: AttemptReporter, stop: CancellationToken) {
    let Some(mut events) = armed.events.take() else { return };
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            // The agent tests its own guard.
            Ok(Event::Refused { change, .. }) if change.actor.pid == std::process::id() => {}
            Ok(Event::Refused { change, refused, attempts }) => armed.report(&change, refused, attempts, &reporter),
            Ok(_) => {}
            Err(error) => {
                return tracing::warn!(%error, "reading the guard's events failed; attempts against it are no longer reported");
            }
        }
        // A ring that is never empty must not occupy the runtime's thread.
        tokio::task::coop::consume_budget().await;
    }
}

impl Armed {
    fn report(&self, change: &FileChange, refused: bool, attempts: u32, reporter: &AttemptReporter) {
        let actor = &change.actor;
        let directory = self.guarded.iter().find(|guarded| guarded.id == change.directory).map(|guarded| &guarded.path);
        let name = String::from_utf8_lossy(&change.name);
        let unknown = if change.directory.inode == 0 { "a file opened by its handle" } else { "a guarded directory" };
        let directory = directory.map_or_else(|| unknown.into(), |directory| directory.to_string_lossy());
        let cgroup = cgroup_path(actor.cgroup);
        let pod = cgroup.as_deref().and_then(|cgroup| reporter.observer.resident(cgroup)?.pod_identity());
        let reason = if refused { "ManifestGuardRefused" } else { "ManifestGuardAudit" };
        let verb = if refused { "refused" } else { "allowed, and reported" };
        // The message contains nothing that the process chooses, because its name and the file's would make every
        // attempt a different event.
        let message = format!("{} in {directory} was {verb}", change.operation.name());
        reporter
            .metrics
            .manifest_guarded(if refused { GuardVerdict::Refused } else { GuardVerdict::Audited }, attempts);
        let count = reporter.events.emit(pod, None, EventType::Warning, reason, message.clone());
        // A writer that retries causes one line for each doubling of its count.
        if count.is_power_of_two() {
            let (executable, command) = (change.executable.as_deref(), &actor.command);
            let (pid, parent, uid) = (actor.pid, actor.parent, actor.uid);
            tracing::warn!(%name, pid, parent, uid, command, executable, cgroup, attempts, count, "guard: {message}");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_bpf::GuardMode;
    use limpet_containerd::container::runtime::RuntimeClass;
    use limpet_containerd::image::CredentialProvider;
    use limpet_containerd::settings::ImageSettings;
    use limpet_host::network::CniSettings;
    use limpet_host::volume::VolumeSettings;
    use limpet_plugins::settings::PluginSettings;

    use crate::config::ConfigFiles;
    use limpet_sources::http::Address;
    use limpet_sources::http::HttpSettings;
    use limpet_sources::settings::SourceSettings;

    use super::*;

    fn config(dir: &Path) -> Config {
        Config {
            root_dir: dir.join("state"),
            files: ConfigFiles {
                main: Some(dir.join("config.yaml")),
                drop_in_dir: Some(dir.join("drop-ins")),
                ..ConfigFiles::default()
            },
            sources: SourceSettings { manifest_path: Some(dir.join("manifests")), ..SourceSettings::default() },
            network: CniSettings {
                config_dir: dir.join("cni/net.d"),
                binary_dirs: vec![dir.join("cni/bin"), dir.join("cni/none")],
            },
            images: ImageSettings { registry_config_dir: dir.join("certs.d"), ..ImageSettings::default() },
            plugins: PluginSettings { cdi_dirs: vec![dir.join("cdi")], ..PluginSettings::default() },
            volumes: VolumeSettings { plugin_dir: dir.join("flex"), ..VolumeSettings::default() },
            guard: GuardSettings { mode: Some(GuardMode::Containers), ..GuardSettings::default() },
            ..Config::default()
        }
    }

    fn provider(program: &Path) -> CredentialProvider {
        CredentialProvider {
            name: "provider".to_owned(),
            program: program.to_owned(),
            match_images: Vec::new(),
            default_cache_duration: std::time::Duration::ZERO,
            api_version: "credentialprovider.kubelet.k8s.io/v1".to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            token_attributes: None,
        }
    }

    #[test]
    fn manifests_state_configuration_and_their_parents_are_guarded() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        std::fs::create_dir_all(dir.path().join("state/pods")).unwrap();
        std::fs::write(dir.path().join("config.yaml"), "").unwrap();
        std::fs::create_dir(dir.path().join("drop-ins")).unwrap();
        let error = guarded(&config).unwrap_err().to_string();
        assert!(error.contains("manifests") && error.contains("create it before limpet starts"), "{error}");
        std::fs::create_dir(dir.path().join("manifests")).unwrap();
        let guarded = guarded(&config).unwrap();
        let paths = |directory: bool| {
            let of_kind = guarded.iter().filter(move |entry| entry.is_directory() == directory);
            of_kind.map(|entry| entry.path.clone()).collect::<Vec<_>>()
        };
        let directories = ["manifests", "state", "drop-ins", "state/images", "state/network"];
        assert_eq!(paths(true), directories.map(|name| dir.path().join(name)));
        // The pods' own directories are not guarded, because containers write there.
        assert!(
            paths(false).contains(&dir.path().join("config.yaml")) && paths(false).contains(&dir.path().to_owned())
        );
    }

    #[test]
    fn what_is_the_hosts_is_guarded_from_pods_as_far_as_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in
            ["state", "manifests", "drop-ins", "cni/net.d", "cni/bin", "certs.d/registry.test", "cdi", "flex/a~b"]
        {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        let files = [
            "config.yaml",
            "certs.d/registry.test/hosts.toml",
            "ca.pem",
            "key.pem",
            "tls.crt",
            "tls.key",
            "clients.pem",
            "kubeconfig",
            "secrets.key",
            "provider",
            "runc",
            "crun",
            "runsc.toml",
        ];
        for name in files {
            std::fs::write(at(name), "").unwrap();
        }
        let url = HttpSettings {
            address: Address::parse("https://fleet.example/pods").unwrap(),
            headers: Default::default(),
            frequency: std::time::Duration::from_secs(20),
            ca_file: Some(at("ca.pem")),
            client_files: Some((at("missing.pem"), at("key.pem"))),
        };
        let class = RuntimeClass {
            binary: Some(at("crun")),
            config: Some(at("runsc.toml")),
            ..RuntimeClass::with_runtime("io.containerd.runsc.v1")
        };
        let mut config = config(dir.path());
        config.sources.manifest_url = Some(url);
        config.runtime.binary = Some(at("runc"));
        config.runtime.classes = [("sandboxed".to_owned(), class)].into();
        config.images.credential_providers = vec![provider(&at("provider"))];
        config.secret_key = Some(KeyLocation::File(at("secrets.key")));
        config.server.certificate = Some((at("tls.crt"), at("tls.key")));
        config.server.client_ca = Some(at("clients.pem"));
        config.cluster.kubeconfig = Some(at("kubeconfig"));
        let guarded = guarded(&config).unwrap();
        let names = |from_pods: bool| {
            let matching = guarded.iter().filter(move |entry| entry.is_from_pods() == from_pods);
            let below = matching.filter_map(|entry| entry.path.strip_prefix(dir.path()).ok());
            below.map(|path| path.display().to_string()).filter(|path| !path.is_empty()).collect::<Vec<_>>()
        };
        let hosts = [
            "ca.pem",
            "key.pem",
            "tls.crt",
            "tls.key",
            "clients.pem",
            "kubeconfig",
            "secrets.key",
            "cni/net.d",
            "cni",
            "cni/bin",
            "cni",
            "cdi",
            "provider",
            "runc",
            "crun",
            "runsc.toml",
            "certs.d",
            "certs.d/registry.test",
            "certs.d",
            "flex",
            "flex/a~b",
            "flex",
        ];
        assert_eq!(names(true), hosts);
        let names_of_agent =
            ["manifests", "state", "config.yaml", "drop-ins", "state/images", "state", "state/network", "state"];
        assert_eq!(names(false), names_of_agent);
        let program = std::env::current_exe().unwrap().canonicalize().unwrap();
        assert!(guarded.iter().any(|entry| entry.path == program && entry.is_from_pods()));
    }

    #[test]
    fn without_cgroup_v2_only_it_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(arm(&config(dir.path()), None), Err(ArmError::CgroupVersion)));
    }
}
