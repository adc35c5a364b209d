//! `/limpet/v1/images`: lists the node's images and who needs them, pulls, imports, pins and removes them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use tokio_util::task::AbortOnDropHandle;

use super::json_response::json;
use super::permission::Permission::{Read, Write};
use super::pods::WatchQuery;
use super::routes::Routes;
use super::watch::{self, Lines};
use limpet_containerd::image::{ImageError, ImageReport, Images, PullAccess, PullStep, RunningPull};
use limpet_containerd::image_verifier::Judgement;
use limpet_core::image_gc::DiskSpace;
use limpet_core::known_pods::{KnownPods, is_named};
use limpet_model::image::StoredImage;
use limpet_wire::images::{
    ImageDiskDocument, ImageDocument, ImageNames, ImageRequest, ImageVerdictDocument, KeyVerdict, PolicyVerdict,
    PullEvent, VerifierVerdict,
};

#[derive(Debug, Clone)]
pub struct ImagesState {
    pub images: Images,
    /// The pods that need images.
    pub pods: Arc<KnownPods>,
    /// Removes and measures images.
    pub collection: Arc<dyn ImageCollection>,
}

/// Garbage collection of images, as far as users request it.
pub trait ImageCollection: fmt::Debug + Send + Sync {
    /// Removes every image that no pod and no container needs, and returns their names; `None` if a source has not
    /// been read yet.
    fn prune(&self) -> BoxFuture<'_, Result<Option<Vec<String>>, ImageError>>;

    /// The space of the disk with a directory of images. The error is one line for users.
    fn space(&self, directory: PathBuf) -> BoxFuture<'_, Result<DiskSpace, String>>;
}

pub(super) fn routes(state: ImagesState) -> Routes {
    let routes = Routes::default()
        .get("/limpet/v1/images", Read, list)
        .get("/limpet/v1/images/disk", Read, disk)
        .post("/limpet/v1/images/pull", Write, pull)
        .post("/limpet/v1/images/import", Write, import)
        .post("/limpet/v1/images/pin", Write, pin)
        .post("/limpet/v1/images/verify", Write, verify)
        .post("/limpet/v1/images/prune", Write, remove_unneeded);
    routes.with_state(state)
}

async fn list(State(state): State<ImagesState>) -> Response {
    answer(documents(&state).await)
}

async fn documents(state: &ImagesState) -> Result<Vec<ImageDocument>, ImageError> {
    let users = state.pods.users();
    let of_containers = state.images.of_containers().await?;
    let mut documents = Vec::new();
    for image in state.images.stored().await? {
        let size = state.images.size(&image).await?;
        let named = |name: &String| is_named(&image, &[name.clone()].into());
        let pods: BTreeSet<_> = users.iter().filter(|(name, _)| named(name)).flat_map(|(_, pods)| pods).collect();
        documents.push(ImageDocument {
            size,
            in_use: is_named(&image, &of_containers),
            pods: pods.into_iter().map(ToString::to_string).collect(),
            pinned: image.pinned,
            created: image.created.map(Time),
            last_used: image.last_used.map(Time),
            names: display_names(&image),
            digest: image.digest.to_string(),
        });
    }
    documents.sort_by(|a, b| a.names.cmp(&b.names));
    Ok(documents)
}

/// The names that users gave the image. containerd's CRI plugin adds the digest of its configuration as another name.
fn display_names(image: &StoredImage) -> Vec<String> {
    let mut names: Vec<String> = image.names.iter().filter(|name| !name.starts_with("sha256:")).cloned().collect();
    names.sort();
    names
}

async fn disk(State(state): State<ImagesState>) -> Response {
    let directory = match state.images.directory().await {
        Ok(directory) => directory,
        Err(error) => return failure(&error),
    };
    match state.collection.space(directory.clone()).await {
        Ok(space) => json(&ImageDiskDocument {
            capacity: space.capacity,
            available: space.available,
            used_percent: space.used_percent(),
            directory,
        }),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Pulls an image. With `watch=1` the response has its progress first, one document per line.
async fn pull(
    State(state): State<ImagesState>,
    Query(query): Query<WatchQuery>,
    Json(request): Json<ImageRequest>,
) -> Response {
    // The pull ends if the caller disconnects. The next one resumes it.
    if !query.wanted() {
        let pulled = state.images.pull(&request.image).await;
        return answer(pulled.map(|image| ImageNames { images: vec![image.name.to_string()] }));
    }
    match state.images.start_pull(&request.image, PullAccess::of_node()) {
        Ok(pull) => watch::lines(PullWatch::new(pull)),
        Err(error) => failure(&error),
    }
}

/// A pull as lines of `PullEvent` documents; a slow reader misses some of them, but not the last. The pull continues
/// until this is dropped, even while the reader is stopped. `None` after its end.
struct PullWatch {
    events: tokio::sync::watch::Receiver<Option<PullEvent>>,
    _pull: AbortOnDropHandle<()>,
}

impl PullWatch {
    fn new(mut pull: RunningPull) -> Self {
        let (sender, events) = tokio::sync::watch::channel(None);
        let pull = async move {
            loop {
                match pull.next().await {
                    PullStep::Progress(progress) => drop(sender.send_replace(Some(PullEvent::Progress(progress)))),
                    PullStep::Ended(result) => {
                        sender.send_replace(Some(match result {
                            Ok(pulled) => PullEvent::Pulled(ImageNames { images: vec![pulled.image.name.to_string()] }),
                            Err(error) => PullEvent::Failed(error.to_string()),
                        }));
                        return;
                    }
                }
            }
        };
        Self { events, _pull: AbortOnDropHandle::new(tokio::spawn(pull)) }
    }
}

impl Lines for PullWatch {
    async fn next(&mut self) -> Option<Vec<u8>> {
        self.events.changed().await.ok()?;
        let event = self.events.borrow_and_update().clone()?;
        let mut line = Vec::new();
        watch::push(&mut line, &event);
        Some(line)
    }
}

async fn import(State(state): State<ImagesState>, Json(request): Json<ImageRequest>) -> Response {
    let path = PathBuf::from(request.image);
    if !path.is_absolute() {
        let message = format!("{} is not an absolute path", path.display());
        return (StatusCode::BAD_REQUEST, message).into_response();
    }
    answer(state.images.import_archive(&path).await.map(|images| ImageNames { images }))
}

async fn pin(State(state): State<ImagesState>, Json(request): Json<ImageRequest>) -> Response {
    match state.images.pin(&request.image, request.pinned).await {
        Ok(true) => {
            if !request.pinned {
                state.images.released();
            }
            json(&ImageNames { images: vec![request.image] })
        }
        Ok(false) => {
            let message = format!("no image {:?} on this node; limpet images lists them", request.image);
            (StatusCode::NOT_FOUND, message).into_response()
        }
        Err(error) => failure(&error),
    }
}

/// Judges an image without using it. Asks its registry with the node's credentials.
async fn verify(State(state): State<ImagesState>, Json(request): Json<ImageRequest>) -> Response {
    answer(state.images.report(&request.image).await.map(verdict))
}

fn verdict(report: ImageReport) -> ImageVerdictDocument {
    let policy = report.verdict.map(|verdict| PolicyVerdict {
        rule: verdict.rule,
        requirement: verdict.requirement.to_owned(),
        accepted: verdict.accepted,
        cause: verdict.cause,
        keys: verdict
            .keys
            .into_iter()
            .map(|key| KeyVerdict { key: key.file, accepted: key.accepted, detail: key.detail })
            .collect(),
    });
    let verifiers = report.verifiers.map(|judgement| match judgement {
        Judgement::Accepted(detail) => VerifierVerdict { accepted: true, detail },
        Judgement::Refused(detail) => VerifierVerdict { accepted: false, detail },
    });
    ImageVerdictDocument {
        image: report.image,
        digest: report.digest,
        local: report.is_local,
        accepted: policy.as_ref().is_none_or(|policy| policy.accepted)
            && verifiers.as_ref().is_none_or(|verifiers| verifiers.accepted),
        policy,
        verifiers,
    }
}

async fn remove_unneeded(State(state): State<ImagesState>) -> Response {
    match state.collection.prune().await {
        Ok(Some(images)) => json(&ImageNames { images }),
        Ok(None) => {
            let message = "not every source of pods has been read yet, so it is not known which images are needed";
            (StatusCode::CONFLICT, message).into_response()
        }
        Err(error) => failure(&error),
    }
}

fn answer(result: Result<impl Serialize, ImageError>) -> Response {
    match result {
        Ok(document) => json(&document),
        Err(error) => failure(&error),
    }
}

fn failure(error: &ImageError) -> Response {
    let code = match error {
        error if error.is_invalid_name() => StatusCode::BAD_REQUEST,
        error if error.is_runtime_unavailable() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (code, error.to_string()).into_response()
}
