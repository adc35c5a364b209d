//! kubelet's Pods API, `v1alpha1` (KEP-4188): the node's pods with their live statuses, for local controllers and
//! exporters, without an apiserver.

use axum::Router;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use tonic::{Request, Response, Status};

use super::ServerState;
use super::grpc::MAX_MESSAGE;
use super::pod_changes::{ChangeKind, PodChanges, Remarks};
use super::view::{self, Row};
use limpet_node_api::pod::encode_pod;
use limpet_node_api::pods::pods_server::{Pods, PodsServer};
use limpet_node_api::pods::{
    EventType, GetPodRequest, GetPodResponse, ListPodsRequest, ListPodsResponse, WatchPodsEvent, WatchPodsRequest,
};

pub(super) fn services(state: ServerState) -> Router {
    let pods = PodsServer::new(Api(state)).max_decoding_message_size(MAX_MESSAGE);
    Router::new().route_service("/v1alpha1.Pods/{call}", pods)
}

struct Api(ServerState);

type Answer<T> = Result<Response<T>, Status>;

impl Api {
    /// As in kubelet, calls fail before every source has reported, because a missing pod would appear not to exist.
    fn ready(&self) -> Result<(), Status> {
        let views = self.0.sources.views();
        let reading: Vec<&str> = views.iter().filter(|view| !view.snapshot.ready).map(|view| &*view.place).collect();
        if reading.is_empty() {
            return Ok(());
        }
        Err(Status::failed_precondition(format!("limpet has not read {} yet", reading.join(", "))))
    }

    fn rows(&self) -> Vec<Row> {
        let rows = view::rows(&self.0.observed.load(), &self.0.sources.views(), &self.0.desired.load());
        rows.into_values().collect()
    }
}

#[tonic::async_trait]
impl Pods for Api {
    type WatchPodsStream = BoxStream<'static, Result<WatchPodsEvent, Status>>;

    async fn watch_pods(&self, _: Request<WatchPodsRequest>) -> Answer<Self::WatchPodsStream> {
        self.ready()?;
        let mut changes = PodChanges::new(self.0.clone(), Remarks::Ignored);
        let synced = WatchPodsEvent { r#type: EventType::InitialSyncComplete.into(), pod: Vec::new() };
        let first: Vec<_> = changes.first().iter().map(event).chain([Ok(synced)]).collect();
        let later = stream::unfold(changes, async |mut changes| {
            let batch: Vec<_> = changes.next().await?.iter().map(event).collect();
            Some((batch, changes))
        });
        Ok(Response::new(stream::once(async { first }).chain(later).flat_map(stream::iter).boxed()))
    }

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Answer<ListPodsResponse> {
        self.ready()?;
        let pods = self.rows().iter().map(encoded).collect::<Result<_, Status>>()?;
        Ok(Response::new(ListPodsResponse { pods }))
    }

    async fn get_pod(&self, request: Request<GetPodRequest>) -> Answer<GetPodResponse> {
        self.ready()?;
        let uid = request.into_inner().pod_uid;
        let rows = self.rows();
        let row = rows.iter().find(|row| row.record.uid.as_str() == uid);
        let row = row.ok_or_else(|| Status::not_found(format!("pod with UID {uid} not found")))?;
        Ok(Response::new(GetPodResponse { pod: encoded(row)? }))
    }
}

fn event((kind, row): &(ChangeKind, Row)) -> Result<WatchPodsEvent, Status> {
    let kind = match kind {
        ChangeKind::Added => EventType::Added,
        ChangeKind::Modified => EventType::Modified,
        ChangeKind::Deleted => EventType::Deleted,
    };
    Ok(WatchPodsEvent { r#type: kind.into(), pod: encoded(row)? })
}

/// `v1.Pod#Marshal`.
fn encoded(row: &Row) -> Result<Vec<u8>, Status> {
    let pod = serde_json::to_value(row.pod()).map_err(|error| Status::internal(format!("write the pod: {error}")))?;
    encode_pod(&pod).map_err(|error| Status::internal(format!("encode pod {}: {error}", row.record.key)))
}
