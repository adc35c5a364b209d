//! CRI's runtime service: each call is answered from the observed snapshot or from the kernel's counters, or refused.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use serde_json::json;
use tonic::{Request, Response, Status};

use super::container::Run;
use super::{Answer, CriState, events, exec, metrics, refusal, sandbox, selection, stats};
use limpet_core::status::observed::ObservedPods;
use limpet_host::cgroup::CgroupDriver;
use limpet_host::cgroup::usage::Depth;
use limpet_host::network::NetworkStatus;
use limpet_node_api::runtime as cri;
use limpet_node_api::runtime::runtime_service_server::RuntimeService;
use limpet_telemetry::usage::NodeUsage;
use limpet_telemetry::usage::rates::NanoCores;

/// The version of CRI.
const API_VERSION: &str = "v1";
/// The version of kubelet's runtime API, which is fixed.
const KUBELET_API_VERSION: &str = "0.1.0";

pub(super) struct Runtime(pub(super) CriState);

type Items<T> = BoxStream<'static, Result<T, Status>>;

/// Streams each item in a message of its own.
fn each<T, M: Send + 'static>(items: Vec<T>, message: fn(Vec<T>) -> M) -> Answer<Items<M>>
where
    T: Send + 'static,
{
    Ok(Response::new(stream::iter(items.into_iter().map(move |item| Ok(message(vec![item])))).boxed()))
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    type StreamPodSandboxesStream = Items<cri::StreamPodSandboxesResponse>;
    type StreamContainersStream = Items<cri::StreamContainersResponse>;
    type StreamContainerStatsStream = Items<cri::StreamContainerStatsResponse>;
    type StreamPodSandboxStatsStream = Items<cri::StreamPodSandboxStatsResponse>;
    type StreamPodSandboxMetricsStream = Items<cri::StreamPodSandboxMetricsResponse>;
    type GetContainerEventsStream = Items<cri::ContainerEventResponse>;

    async fn version(&self, _: Request<cri::VersionRequest>) -> Answer<cri::VersionResponse> {
        Ok(Response::new(cri::VersionResponse {
            version: KUBELET_API_VERSION.to_owned(),
            runtime_name: "limpet".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: API_VERSION.to_owned(),
        }))
    }

    async fn status(&self, request: Request<cri::StatusRequest>) -> Answer<cri::StatusResponse> {
        Ok(Response::new(self.runtime_status(request.into_inner().verbose)))
    }

    async fn runtime_config(&self, _: Request<cri::RuntimeConfigRequest>) -> Answer<cri::RuntimeConfigResponse> {
        let driver = match self.0.server.settings.cgroup_driver {
            CgroupDriver::Systemd => cri::CgroupDriver::Systemd,
            CgroupDriver::Cgroupfs => cri::CgroupDriver::Cgroupfs,
        };
        let linux = cri::LinuxRuntimeConfiguration { cgroup_driver: driver as i32 };
        Ok(Response::new(cri::RuntimeConfigResponse { linux: Some(linux) }))
    }

    async fn update_runtime_config(
        &self,
        _: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Answer<cri::UpdateRuntimeConfigResponse> {
        // Pods get their addresses from the CNI configuration, as with a containerd that has no CNI template.
        Ok(Response::new(cri::UpdateRuntimeConfigResponse {}))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Answer<cri::ListPodSandboxResponse> {
        Ok(Response::new(cri::ListPodSandboxResponse { items: self.sandboxes(request.into_inner().filter) }))
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<cri::StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        let message = |pod_sandboxes| cri::StreamPodSandboxesResponse { pod_sandboxes };
        each(self.sandboxes(request.into_inner().filter), message)
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Answer<cri::PodSandboxStatusResponse> {
        let cri::PodSandboxStatusRequest { pod_sandbox_id, verbose } = request.into_inner();
        let observed = self.observed();
        let pod = selection::pod(&observed, &pod_sandbox_id)?;
        Ok(Response::new(cri::PodSandboxStatusResponse {
            status: Some(sandbox::status(pod)),
            info: if verbose { sandbox::info(pod) } else { HashMap::new() },
            containers_statuses: Run::all(pod).iter().map(Run::status).collect(),
            timestamp: super::identity::nanoseconds(jiff::Timestamp::now()),
        }))
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Answer<cri::ListContainersResponse> {
        Ok(Response::new(cri::ListContainersResponse { containers: self.containers(request.into_inner().filter) }))
    }

    async fn stream_containers(
        &self,
        request: Request<cri::StreamContainersRequest>,
    ) -> Answer<Self::StreamContainersStream> {
        let message = |containers| cri::StreamContainersResponse { containers };
        each(self.containers(request.into_inner().filter), message)
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Answer<cri::ContainerStatusResponse> {
        let cri::ContainerStatusRequest { container_id, verbose } = request.into_inner();
        let observed = self.observed();
        let run = selection::container(&observed, &container_id)?;
        let info = if verbose { run.info() } else { HashMap::new() };
        Ok(Response::new(cri::ContainerStatusResponse { status: Some(run.status()), info }))
    }

    async fn container_stats(
        &self,
        request: Request<cri::ContainerStatsRequest>,
    ) -> Answer<cri::ContainerStatsResponse> {
        let id = request.into_inner().container_id;
        let run = selection::container(&self.observed(), &id)?.id.to_owned();
        let filter = cri::ContainerStatsFilter { id: run, ..cri::ContainerStatsFilter::default() };
        let stats = self.container_figures(Some(filter)).await?.into_iter().next();
        Ok(Response::new(cri::ContainerStatsResponse { stats }))
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> Answer<cri::ListContainerStatsResponse> {
        let stats = self.container_figures(request.into_inner().filter).await?;
        Ok(Response::new(cri::ListContainerStatsResponse { stats }))
    }

    async fn stream_container_stats(
        &self,
        request: Request<cri::StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        let message = |container_stats| cri::StreamContainerStatsResponse { container_stats };
        each(self.container_figures(request.into_inner().filter).await?, message)
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<cri::PodSandboxStatsRequest>,
    ) -> Answer<cri::PodSandboxStatsResponse> {
        let id = super::identity::sandbox_id(selection::pod(&self.observed(), &request.into_inner().pod_sandbox_id)?);
        let filter = cri::PodSandboxStatsFilter { id, ..cri::PodSandboxStatsFilter::default() };
        let stats = self.pod_figures(Some(filter)).await?.into_iter().next();
        Ok(Response::new(cri::PodSandboxStatsResponse { stats }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Answer<cri::ListPodSandboxStatsResponse> {
        let stats = self.pod_figures(request.into_inner().filter).await?;
        Ok(Response::new(cri::ListPodSandboxStatsResponse { stats }))
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<cri::StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        let message = |pod_sandbox_stats| cri::StreamPodSandboxStatsResponse { pod_sandbox_stats };
        each(self.pod_figures(request.into_inner().filter).await?, message)
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<cri::ListMetricDescriptorsRequest>,
    ) -> Answer<cri::ListMetricDescriptorsResponse> {
        let (_, usage, _) = self.usage().await?;
        Ok(Response::new(cri::ListMetricDescriptorsResponse { descriptors: metrics::descriptors(&usage) }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> Answer<cri::ListPodSandboxMetricsResponse> {
        let (_, usage, _) = self.usage().await?;
        Ok(Response::new(cri::ListPodSandboxMetricsResponse { pod_metrics: metrics::pods(&usage) }))
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<cri::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        let (_, usage, _) = self.usage().await?;
        let message = |pod_sandbox_metrics| cri::StreamPodSandboxMetricsResponse { pod_sandbox_metrics };
        each(metrics::pods(&usage), message)
    }

    async fn get_container_events(&self, _: Request<cri::GetEventsRequest>) -> Answer<Self::GetContainerEventsStream> {
        Ok(Response::new(events::events(self.0.server.observed.clone())))
    }

    async fn exec_sync(&self, request: Request<cri::ExecSyncRequest>) -> Answer<cri::ExecSyncResponse> {
        let request = request.into_inner();
        let container = self.running(&request.container_id)?;
        exec::exec_sync(&self.0.exec, container, request).await.map(Response::new)
    }

    async fn exec(&self, request: Request<cri::ExecRequest>) -> Answer<cri::ExecResponse> {
        let cri::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr } = request.into_inner();
        let route = self.route("exec", &container_id)?;
        let command = cmd.iter().map(|argument| ("command", argument.as_str()));
        let query: Vec<_> = streams(stdin, stdout, stderr, tty)?.into_iter().chain(command).collect();
        let url = self.0.streaming.url(&route, &query).await?;
        Ok(Response::new(cri::ExecResponse { url }))
    }

    async fn attach(&self, request: Request<cri::AttachRequest>) -> Answer<cri::AttachResponse> {
        let cri::AttachRequest { container_id, stdin, tty, stdout, stderr } = request.into_inner();
        let route = self.route("attach", &container_id)?;
        let url = self.0.streaming.url(&route, &streams(stdin, stdout, stderr, tty)?).await?;
        Ok(Response::new(cri::AttachResponse { url }))
    }

    async fn port_forward(&self, request: Request<cri::PortForwardRequest>) -> Answer<cri::PortForwardResponse> {
        let observed = self.observed();
        let record = &selection::pod(&observed, &request.into_inner().pod_sandbox_id)?.record;
        let route = ["portForward", record.key.namespace(), record.key.name(), record.uid.as_str()];
        let url = self.0.streaming.url(&route.map(str::to_owned), &[]).await?;
        Ok(Response::new(cri::PortForwardResponse { url }))
    }

    async fn reopen_container_log(
        &self,
        _: Request<cri::ReopenContainerLogRequest>,
    ) -> Answer<cri::ReopenContainerLogResponse> {
        Err(refusal::reopens_logs())
    }

    async fn run_pod_sandbox(&self, _: Request<cri::RunPodSandboxRequest>) -> Answer<cri::RunPodSandboxResponse> {
        Err(refusal::starts_pods())
    }

    async fn create_container(&self, _: Request<cri::CreateContainerRequest>) -> Answer<cri::CreateContainerResponse> {
        Err(refusal::starts_pods())
    }

    async fn start_container(&self, _: Request<cri::StartContainerRequest>) -> Answer<cri::StartContainerResponse> {
        Err(refusal::starts_pods())
    }

    async fn stop_pod_sandbox(&self, _: Request<cri::StopPodSandboxRequest>) -> Answer<cri::StopPodSandboxResponse> {
        Err(refusal::ends_pods())
    }

    async fn remove_pod_sandbox(
        &self,
        _: Request<cri::RemovePodSandboxRequest>,
    ) -> Answer<cri::RemovePodSandboxResponse> {
        Err(refusal::ends_pods())
    }

    async fn stop_container(&self, _: Request<cri::StopContainerRequest>) -> Answer<cri::StopContainerResponse> {
        Err(refusal::ends_pods())
    }

    async fn remove_container(&self, _: Request<cri::RemoveContainerRequest>) -> Answer<cri::RemoveContainerResponse> {
        Err(refusal::ends_pods())
    }

    async fn update_container_resources(
        &self,
        _: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Answer<cri::UpdateContainerResourcesResponse> {
        Err(refusal::changes_resources())
    }

    async fn update_pod_sandbox_resources(
        &self,
        _: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<cri::UpdatePodSandboxResourcesResponse> {
        Err(refusal::changes_resources())
    }

    async fn checkpoint_container(
        &self,
        _: Request<cri::CheckpointContainerRequest>,
    ) -> Answer<cri::CheckpointContainerResponse> {
        Err(refusal::checkpoints())
    }

    async fn checkpoint_pod(&self, _: Request<cri::CheckpointPodRequest>) -> Answer<cri::CheckpointPodResponse> {
        Err(refusal::checkpoints())
    }

    async fn restore_pod(&self, _: Request<cri::RestorePodRequest>) -> Answer<cri::RestorePodResponse> {
        Err(refusal::checkpoints())
    }
}

fn running<'a>(observed: &'a ObservedPods, id: &str) -> Result<Run<'a>, Status> {
    let run = selection::container(observed, id)?;
    match run.is_running() {
        true => Ok(run),
        false => Err(Status::failed_precondition(format!("container {} is not running", run.id))),
    }
}

/// The requested streams as a query for kubelet's routes.
fn streams(stdin: bool, stdout: bool, stderr: bool, tty: bool) -> Result<Vec<(&'static str, &'static str)>, Status> {
    if tty && stderr {
        return Err(Status::invalid_argument("tty and stderr cannot both be true"));
    }
    if !(stdin || stdout || stderr) {
        return Err(Status::invalid_argument("one of stdin, stdout, or stderr must be set"));
    }
    let all = [("input", stdin), ("output", stdout), ("error", stderr), ("tty", tty)];
    Ok(all.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| (name, "1")).collect())
}

impl Runtime {
    fn observed(&self) -> Arc<ObservedPods> {
        self.0.server.observed.load()
    }

    fn sandboxes(&self, filter: Option<cri::PodSandboxFilter>) -> Vec<cri::PodSandbox> {
        selection::pods(&self.observed(), filter.as_ref()).map(sandbox::item).collect()
    }

    fn containers(&self, filter: Option<cri::ContainerFilter>) -> Vec<cri::Container> {
        selection::containers(&self.observed(), filter.as_ref()).map(|run| run.item()).collect()
    }

    /// The full id of a running container.
    fn running(&self, id: &str) -> Result<String, Status> {
        Ok(running(&self.observed(), id)?.id.to_owned())
    }

    /// kubelet's route to a running container.
    fn route(&self, kind: &str, id: &str) -> Result<[String; 4], Status> {
        let observed = self.observed();
        let run = running(&observed, id)?;
        let key = &run.pod.record.key;
        Ok([kind, key.namespace(), key.name(), run.name()].map(str::to_owned))
    }

    /// A measurement, and the pods that it covers.
    async fn usage(&self) -> Result<(Arc<ObservedPods>, NodeUsage, NanoCores), Status> {
        let observed = self.observed();
        let read = self.0.server.meter.usage_and_rates(Arc::clone(&observed), Depth::Whole).await;
        let (usage, rates) = read.map_err(|error| Status::unavailable(format!("usage cannot be read: {error}")))?;
        Ok((observed, usage, rates))
    }

    async fn pod_figures(
        &self,
        filter: Option<cri::PodSandboxStatsFilter>,
    ) -> Result<Vec<cri::PodSandboxStats>, Status> {
        let (observed, usage, rates) = self.usage().await?;
        let mut figures = stats::pods(&observed, &usage, &rates);
        figures.retain(|figures| stats::lets_pod(filter.as_ref(), figures));
        Ok(figures)
    }

    async fn container_figures(
        &self,
        filter: Option<cri::ContainerStatsFilter>,
    ) -> Result<Vec<cri::ContainerStats>, Status> {
        let (observed, usage, rates) = self.usage().await?;
        let filter = filter.map(|filter| cri::ContainerFilter {
            id: filter.id,
            pod_sandbox_id: filter.pod_sandbox_id,
            label_selector: filter.label_selector,
            state: None,
        });
        let wanted: Vec<_> = selection::containers(&observed, filter.as_ref()).map(|run| run.id).collect();
        let mut figures = stats::containers(&observed, &usage, &rates);
        figures.retain(|usage| usage.attributes.as_ref().is_some_and(|attributes| wanted.contains(&&*attributes.id)));
        Ok(figures)
    }

    fn runtime_status(&self, verbose: bool) -> cri::StatusResponse {
        let settings = &self.0.server.settings;
        let condition = |kind: &str, problem: Option<(&str, String)>| cri::RuntimeCondition {
            r#type: kind.to_owned(),
            status: problem.is_none(),
            reason: problem.as_ref().map(|(reason, _)| (*reason).to_owned()).unwrap_or_default(),
            message: problem.map(|(_, message)| message).unwrap_or_default(),
        };
        let absent = || ("ContainerdNotConnected", format!("{} does not answer", settings.runtime_endpoint.display()));
        let runtime = (!self.0.server.health.has_containerd()).then(absent);
        let network = match &*self.0.network.borrow() {
            NetworkStatus::Ready { .. } => None,
            NetworkStatus::NotReady { reason } => Some(("NetworkPluginNotReady", reason.clone())),
        };
        let conditions = vec![condition("RuntimeReady", runtime), condition("NetworkReady", network)];
        let handler = |name: &str| cri::RuntimeHandler { name: name.to_owned(), features: None };
        let info = json!({
            "nodeName": &*self.0.server.node_name,
            "runtimeEndpoint": settings.runtime_endpoint,
            "rootDirectory": settings.root_dir,
            "snapshotter": settings.snapshotter,
            "cniConfigDirectory": settings.cni_conf_dir,
        });
        cri::StatusResponse {
            status: Some(cri::RuntimeStatus { conditions }),
            info: if verbose { HashMap::from([("config".to_owned(), info.to_string())]) } else { HashMap::new() },
            runtime_handlers: [""]
                .into_iter()
                .chain(settings.runtime_classes.iter().map(String::as_str))
                .map(handler)
                .collect(),
            features: None,
        }
    }
}
