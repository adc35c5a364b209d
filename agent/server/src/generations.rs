//! `/limpet/v1/generations` and `/limpet/v1/rollback`: the generations of the sources, and the return to one of them.

use std::fmt;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::{mpsc, oneshot, watch};

use super::json_response::json;
use super::permission::Permission::{Read, Write};
use super::routes::Routes;
use super::status_error::StatusError;
use crate::HeldUpdates;
use limpet_generations::{GenerationView, Order, OrderError, Outcome, RollbackOrder, SourceGenerationsView};
use limpet_model::source::SourceKind;
use limpet_wire::generations::{GenerationDocument, RollbackRequest, RolledBack, SourceGenerationsDocument};
use limpet_wire::status::HeldUpdateDocument;

/// What the routes need.
#[derive(Clone)]
pub struct GenerationsState {
    /// The generations of the sources that have some.
    pub views: watch::Receiver<Vec<SourceGenerationsView>>,
    /// Orders to return to one.
    pub orders: mpsc::Sender<RollbackOrder>,
    /// The updates that wait now.
    pub held_updates: HeldUpdates,
}

impl fmt::Debug for GenerationsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerationsState").field("views", &self.views).finish_non_exhaustive()
    }
}

/// The routes. `None`: no source has generations.
pub(super) fn routes(state: Option<GenerationsState>) -> Routes {
    Routes::default()
        .get("/limpet/v1/generations", Read, generations)
        .post("/limpet/v1/rollback", Write, roll_back)
        .with_state(state)
}

async fn generations(State(state): State<Option<GenerationsState>>) -> Response {
    let Some(state) = state else { return json(&Vec::<SourceGenerationsDocument>::new()) };
    let (views, held) = (state.views.borrow().clone(), (state.held_updates)());
    json(&views.into_iter().map(|view| document(view, &held)).collect::<Vec<_>>())
}

fn document(view: SourceGenerationsView, held: &[HeldUpdateDocument]) -> SourceGenerationsDocument {
    // Its newest version may wait for more than its images.
    let held = held.iter().find(|held| held.source.as_deref() == Some(view.source.as_str()));
    let held = held.map(|held| format!("{} is held: {}", held.phase, held.reason));
    let of_generation = |generation: GenerationView| {
        let (outcome, reason) = match generation.outcome {
            Outcome::OnTrial => ("trial", None),
            Outcome::Good => ("good", None),
            Outcome::Refused(reason) => ("refused", Some(reason)),
        };
        GenerationDocument {
            number: generation.number,
            outcome: outcome.to_owned(),
            reason,
            made: Time(generation.made),
            decided: generation.decided.map(Time),
            pods: generation.pods,
            objects: generation.objects,
        }
    };
    SourceGenerationsDocument {
        source: view.source.as_str().to_owned(),
        policy: view.policy.as_str().to_owned(),
        running: view.running,
        waiting: view.waiting.map(|why| held.unwrap_or_else(|| why.to_string())),
        unready: view.unready.map(|why| why.to_string()),
        refused: view.refused,
        generations: view.generations.into_iter().map(of_generation).collect(),
    }
}

/// Answers once the generation is in effect.
async fn roll_back(State(state): State<Option<GenerationsState>>, Json(request): Json<RollbackRequest>) -> Response {
    let refused = |code, reason, message: String| StatusError::new(code, reason, message, None).into_response();
    let source = match request.source.as_deref().map(|name| (name, SourceKind::from_name(name))) {
        None => None,
        Some((_, Some(source))) => Some(source),
        Some((name, None)) => {
            return refused(
                StatusCode::BAD_REQUEST,
                "BadRequest",
                format!("{name} is not a source: use file, push, bundle or http"),
            );
        }
    };
    let Some(state) = state else {
        let message = "no source has generations: set generations.policy in the configuration".to_owned();
        return refused(StatusCode::CONFLICT, "Conflict", message);
    };
    let (done, answer) = oneshot::channel();
    let order = RollbackOrder { order: Order { source, number: request.generation }, done };
    let sent = state.orders.send(order).await;
    match (sent, answer.await) {
        (Ok(()), Ok(Ok((source, generation)))) => json(&RolledBack { source: source.as_str().to_owned(), generation }),
        (Ok(()), Ok(Err(error @ (OrderError::Off(_) | OrderError::Several(_))))) => {
            refused(StatusCode::BAD_REQUEST, "BadRequest", error.to_string())
        }
        (Ok(()), Ok(Err(error))) => refused(StatusCode::CONFLICT, "Conflict", error.to_string()),
        _ => refused(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "limpet is stopping".to_owned()),
    }
}
