//! `/limpet/v1/diff`: a dry run that shows what manifests would change. It writes, pulls and publishes nothing.
//!
//! GET compares the running pods with the sources' current manifests, for which it rereads the manifest directory.
//! POST replaces some of these manifests by those in the request first. GET with the number of a generation compares what is
//! in effect with that generation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::{BoxFuture, join_all};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::json_response::json;
use super::permission::Permission::Read;
use super::routes::Routes;
use super::sources::{SourceView, Sources};
use limpet_core::forecast::{Forecast, forecast, images};
use limpet_core::source::proposal::{Proposal, propose};
use limpet_core::source::{Decoder, Health, Rejection, Snapshots};
use limpet_core::status::observed::Observed;
use limpet_generations::{GenerationView, Outcome, SourceGenerationsView};
use limpet_host::blocking;
use limpet_model::manifest::Manifest;
use limpet_model::source::SourceKind;
use limpet_wire::diff::{DiffDocument, DiffQuery, DiffRequest};

/// The limit of a request body in bytes: enough for a whole directory of manifests.
const MAX_BODY: usize = 64 << 20;
/// The deadline for reading and comparing: enough for thousands of manifests on a slow processor.
const DIFF_TIMEOUT: Duration = Duration::from_secs(60);
/// The deadline for containerd to report which images are present.
const IMAGE_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether an image is present on this node; `None` if that is unknown.
pub type HasImage = dyn Fn(String) -> BoxFuture<'static, Option<bool>> + Send + Sync;

/// Reads every manifest of the directory, with its name there. Called on a blocking thread. The error is one line for
/// users.
pub type ReadDirectory = dyn Fn() -> Result<Vec<(Arc<str>, Manifest)>, String> + Send + Sync;

#[derive(Clone)]
pub struct DiffState {
    /// The settled node name.
    pub node_name: Arc<str>,
    /// `staticPodPath`.
    pub manifest_path: Option<PathBuf>,
    pub decoder: Decoder,
    pub sources: Arc<dyn Sources>,
    pub observed: Observed,
    /// The generations of the sources that have some; `None`: none has.
    pub generations: Option<watch::Receiver<Vec<SourceGenerationsView>>>,
    pub read_directory: Arc<ReadDirectory>,
    pub has_image: Arc<HasImage>,
}

pub(super) fn routes(state: DiffState) -> Routes {
    // A proposal changes nothing, so it needs no permission to write.
    let routes = Routes::default().get("/limpet/v1/diff", Read, current).post("/limpet/v1/diff", Read, proposed);
    routes.body_limit(MAX_BODY).with_state(state)
}

/// The result of the comparison, before images are checked.
struct Comparison {
    forecast: Forecast,
    rejected: Vec<Rejection>,
    remarks: Vec<String>,
}

async fn current(State(state): State<DiffState>, Query(query): Query<DiffQuery>) -> Response {
    match query.generation {
        None => answer(state, |state| Ok(state.current())).await,
        Some(number) => answer(state, move |state| state.generation(number, query.source.as_deref())).await,
    }
}

async fn proposed(State(state): State<DiffState>, Json(request): Json<DiffRequest>) -> Response {
    answer(state, move |state| state.proposed(request)).await
}

/// Reads and compares on a blocking thread, then checks the images.
async fn answer(
    state: DiffState,
    compare: impl FnOnce(&DiffState) -> Result<Comparison, String> + Send + 'static,
) -> Response {
    let comparing = state.clone();
    // The subject differs from the file source's, so neither waits for the other's reading.
    let subject = state.manifest_path.clone().unwrap_or_default().join("limpet diff");
    let comparison = match blocking::run(subject, DIFF_TIMEOUT, move |_| compare(&comparing)).await {
        Ok(Ok(comparison)) => comparison,
        Ok(Err(message)) => return (StatusCode::BAD_REQUEST, message).into_response(),
        Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    };
    let present = state.present(&comparison.forecast).await;
    let document = DiffDocument::new(&comparison.forecast, &comparison.rejected, &present);
    json(&DiffDocument { remarks: comparison.remarks, ..document })
}

impl DiffState {
    /// The sources' current manifests; the manifest directory is reread.
    fn current(&self) -> Comparison {
        let views = self.sources.views();
        let before = snapshots(&views);
        let (mut proposals, mut whole, mut remarks) = (Vec::new(), false, Vec::new());
        for view in &views {
            match (&view.snapshot.health, view.kind) {
                (Health::Unavailable(reason), _) => remarks.push(format!("{} source: {reason}", view.kind)),
                (Health::Starting, _) => {
                    remarks.push(format!("{} source: has not completed its first read", view.kind))
                }
                (Health::Good | Health::Blind(_), SourceKind::File) => match self.read_directory() {
                    Ok(files) => (proposals, whole) = (files, true),
                    Err(reason) => {
                        remarks.push(format!("{} source: {reason}; its last good manifests stay in effect", view.kind))
                    }
                },
                (Health::Good | Health::Blind(_), _) => {}
            }
        }
        let after = propose(&before, proposals, whole).snapshots;
        let rejected = after.iter().flat_map(|snapshot| snapshot.rejected.values());
        let rejected = rejected.map(|refused| Rejection::clone(refused)).collect();
        let forecast = forecast(&self.observed.load(), &before, &after, true, Instant::now().into_std());
        Comparison { forecast, rejected, remarks }
    }

    /// What is in effect, and the same with a generation of one source.
    fn generation(&self, number: u64, source: Option<&str>) -> Result<Comparison, String> {
        let generations = self.generations.as_ref().map(|views| views.borrow().clone()).unwrap_or_default();
        let view = with_generations(&generations, source)?;
        let wanted = view.generation(number).ok_or_else(|| not_kept(view, number))?;
        let newest = snapshots(&self.sources.views());
        let in_effect = |view: &SourceGenerationsView, generation: &GenerationView| {
            Arc::new(generation.content.in_effect(&newest[view.source.index()], view.policy))
        };
        let mut before = newest.clone();
        for view in &generations {
            if let Some(running) = view.running.and_then(|running| view.generation(running)) {
                before[view.source.index()] = in_effect(view, running);
            }
        }
        let mut after = before.clone();
        after[view.source.index()] = in_effect(view, wanted);
        let remarks = match &wanted.outcome {
            Outcome::Refused(why) => vec![format!("generation {number} of {} was undone: {why}", view.source)],
            Outcome::Good | Outcome::OnTrial => Vec::new(),
        };
        let forecast = forecast(&self.observed.load(), &before, &after, false, Instant::now().into_std());
        Ok(Comparison { forecast, rejected: Vec::new(), remarks })
    }

    /// The sources' manifests after the request's have replaced some.
    fn proposed(&self, request: DiffRequest) -> Result<Comparison, String> {
        let views = self.sources.views();
        let before = snapshots(&views);
        let is_manifest_path = request.directory.as_deref().is_some_and(|directory| self.is_manifest_path(directory));
        let whole = request.whole || is_manifest_path;
        let named = request.source.as_deref().or(whole.then_some(SourceKind::File.as_str()));
        let asked = named.map(|name| configured(&views, name)).transpose()?;
        if whole && asked != Some(SourceKind::File) {
            return Err("only the manifest directory is compared whole".to_owned());
        }
        let mut proposals = Vec::new();
        for file in request.files {
            proposals.push(self.proposal(&file.name, file.text.as_bytes(), asked, &views, &before));
        }
        let of_urls = proposals.iter().filter(|proposal| proposal.source == SourceKind::Http).count();
        if of_urls > 1 {
            return Err("a URL has one answer: compare one file with it".to_owned());
        }
        let proposed = propose(&before, proposals, whole);
        let forecast = forecast(&self.observed.load(), &before, &proposed.snapshots, false, Instant::now().into_std());
        Ok(Comparison { forecast, rejected: proposed.rejected, remarks: Vec::new() })
    }

    fn proposal(
        &self,
        name: &str,
        text: &[u8],
        asked: Option<SourceKind>,
        views: &[SourceView],
        before: &Snapshots,
    ) -> Proposal {
        let read = |origin: &str, source| self.decoder.read(text, origin, source, &self.node_name);
        let manifest = read(name, SourceKind::File);
        let source = asked.unwrap_or_else(|| source_of(&manifest, views, before));
        let place = views.iter().find(|view| view.kind == source).map(|view| Arc::clone(&view.place));
        match (source, place) {
            (SourceKind::File, _) => Proposal { source, name: Arc::from(name), manifest },
            (SourceKind::Http, Some(place)) => Proposal { source, manifest: read(&place, source), name: place },
            _ => Proposal { source, name: Arc::from(name), manifest: read(name, source) },
        }
    }

    fn read_directory(&self) -> Result<Vec<Proposal>, String> {
        let proposal = |(name, manifest)| Proposal { source: SourceKind::File, name, manifest };
        Ok((self.read_directory)()?.into_iter().map(proposal).collect())
    }

    fn is_manifest_path(&self, directory: &Path) -> bool {
        let real = |path: &Path| path.canonicalize().ok();
        self.manifest_path.as_deref().and_then(real).is_some_and(|manifests| real(directory) == Some(manifests))
    }

    /// Which of the required images are present. Images that containerd does not report in time are left out.
    async fn present(&self, forecast: &Forecast) -> BTreeMap<String, bool> {
        let needed: BTreeSet<String> =
            forecast.pods.iter().flat_map(|pod| images(pod).into_values().map(|(image, _)| image)).collect();
        let ask = |image: String| async {
            let here = timeout(IMAGE_CHECK_TIMEOUT, (self.has_image)(image.clone())).await;
            Some((image, here.ok().flatten()?))
        };
        join_all(needed.into_iter().map(ask)).await.into_iter().flatten().collect()
    }
}

/// The generations of the source of that name, or of the only one that has some.
fn with_generations<'a>(
    all: &'a [SourceGenerationsView],
    source: Option<&str>,
) -> Result<&'a SourceGenerationsView, String> {
    let names = || all.iter().map(|view| view.source.as_str()).collect::<Vec<_>>().join(", ");
    match (source, all) {
        (_, []) => Err("no source has generations: set generations.policy in the configuration".to_owned()),
        (None, [only]) => Ok(only),
        (None, _) => Err(format!("several sources have generations: name one of them with --source: {}", names())),
        (Some(name), _) => {
            let kind = SourceKind::from_name(name);
            let view = all.iter().find(|view| Some(view.source) == kind);
            view.ok_or_else(|| format!("{name} has no generations, only {}", names()))
        }
    }
}

fn not_kept(view: &SourceGenerationsView, number: u64) -> String {
    let numbers: Vec<String> = view.generations.iter().map(|generation| generation.number.to_string()).collect();
    format!("{} has no generation {number}, only {}", view.source, numbers.join(", "))
}

fn snapshots(views: &[SourceView]) -> Snapshots {
    let mut snapshots = Snapshots::default();
    for view in views {
        snapshots[view.kind.index()] = Arc::clone(&view.snapshot);
    }
    snapshots
}

fn configured(views: &[SourceView], name: &str) -> Result<SourceKind, String> {
    let source = SourceKind::from_name(name).filter(|kind| views.iter().any(|view| view.kind == *kind));
    source.ok_or_else(|| {
        let names: Vec<&str> = views.iter().map(|view| view.kind.as_str()).collect();
        format!("no source {name} is configured, only {}", names.join(", "))
    })
}

/// The source that currently defines the manifest's pods. New pods go to the first source.
fn source_of(manifest: &Manifest, views: &[SourceView], before: &Snapshots) -> SourceKind {
    let has = |kind: &SourceKind| {
        let snapshot = &before[kind.index()];
        manifest.pods.iter().any(|pod| snapshot.pods.contains_key(&pod.key))
            || manifest.refused.iter().any(|key| snapshot.pods.contains_key(key))
            || manifest.objects.iter().any(|object| snapshot.objects.contains_key(&object.key))
    };
    let kinds = || views.iter().map(|view| view.kind);
    kinds().find(has).or_else(|| kinds().next()).unwrap_or(SourceKind::File)
}

#[cfg(test)]
mod tests;
