//! A push that is refused is answered, and told as a refused file is: an event, and a count.

use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};

use super::refusal::Refusal;
use crate::server::ServerState;
use crate::status::rejection;
use limpet_core::source::push_error::PushError;
use limpet_core::source::resource::Resource;
use limpet_model::pod::{Fault, PodKey, PodRecord, identity};
use limpet_model::source::SourceKind;

/// What was to be pushed.
pub(super) struct Refused<'a> {
    pub(super) state: &'a ServerState,
    pub(super) resource: Resource,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl Refused<'_> {
    /// The push source refuses it.
    pub(super) fn push(&self, error: &PushError) -> Response {
        self.tell(&error.faults(), Refusal::of(error, self.resource, self.name))
    }

    /// It did not arrive.
    pub(super) fn body(&self, rejection: &BytesRejection, limit: usize) -> Response {
        let refusal = Refusal::of_body(rejection, limit);
        self.tell(&[Fault::error("", refusal.message())], refusal)
    }

    fn tell(&self, faults: &[Fault], refusal: Refusal) -> Response {
        if !faults.is_empty() {
            let views = self.state.sources.views();
            let pushed = views.iter().find(|view| view.kind == SourceKind::Push);
            let names = [
                PodKey::new(self.namespace, self.name),
                identity::key(Some(self.namespace), self.name, &self.state.node_name),
            ];
            let found = || names.iter().find_map(|key| pushed?.snapshot.pods.get(key));
            let kept: Option<&PodRecord> = (self.resource == Resource::Pod).then(found).flatten().map(|pod| &**pod);
            let told = rejection::Told { source: SourceKind::Push, faults, message: refusal.message() };
            rejection::tell(&self.state.events, &self.state.metrics, &told, kept);
        }
        refusal.into_response()
    }
}
