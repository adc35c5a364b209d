//! A rejected push: the client gets an error, and, as for a rejected manifest file, an event and a metric record it.

use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};

use crate::ServerState;
use crate::status_error::StatusError;
use limpet_core::source::push_error::PushError;
use limpet_core::source::resource::Resource;
use limpet_model::pod::{Fault, PodKey, PodRecord, identity};
use limpet_model::source::SourceKind;
use limpet_telemetry::rejection;

pub(super) struct RejectedPush<'a> {
    pub(super) state: &'a ServerState,
    pub(super) resource: Resource,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl RejectedPush<'_> {
    /// The response to a push that the push source rejects.
    pub(super) fn push(&self, error: &PushError) -> Response {
        self.report(&error.faults(), StatusError::from_push_error(error, self.resource, self.name))
    }

    /// The response to a push whose body did not arrive in full.
    pub(super) fn body(&self, rejection: &BytesRejection, limit: usize) -> Response {
        let error = StatusError::of_body(rejection, limit);
        self.report(&[Fault::error("", error.message())], error)
    }

    fn report(&self, faults: &[Fault], error: StatusError) -> Response {
        if !faults.is_empty() {
            let views = self.state.sources.views();
            let pushed = views.iter().find(|view| view.kind == SourceKind::Push);
            let names = [
                PodKey::parse(self.namespace, self.name),
                identity::key(Some(self.namespace), self.name, &self.state.node_name),
            ];
            let known_pod = || names.iter().flatten().find_map(|key| pushed?.snapshot.pods.get(key));
            let kept: Option<&PodRecord> = (self.resource == Resource::Pod).then(known_pod).flatten().map(|pod| &**pod);
            let details = rejection::RejectedManifest { source: SourceKind::Push, faults, message: error.message() };
            rejection::report(&self.state.events, &self.state.metrics, &details, kept);
        }
        error.into_response()
    }
}
