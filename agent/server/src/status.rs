//! The document of `limpet status`: the state of the agent, its connection to the apiserver and the node's
//! credentials.

use std::path::PathBuf;

use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::ServerState;
use super::json_response::json;
use crate::settings::ServedNode;
use limpet_cluster::{Link, Unsent, certificate_files};
use limpet_core::certificate::Validity;
use limpet_core::connectivity::Connectivity;
use limpet_host::blocking;
use limpet_host::proc_files::boot_time;
use limpet_model::object::{ObjectKind, token};
use limpet_wire::status::{ApiserverDocument, CertificateDocument, StatusDocument, TokensDocument, UnsentDocument};

pub(super) async fn status(State(state): State<ServerState>) -> Response {
    let pressure = *state.pressure.borrow();
    json(&StatusDocument {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: state.node_name.to_string(),
        started: Time(state.started),
        booted: boot_time().map(Time),
        containerd: state.health.has_containerd(),
        apiserver: state.cluster.as_ref().map(|link| apiserver(link, &state.node_name)),
        certificates: certificates(&state).await,
        tokens: tokens(&state),
        shutting_down: *state.shutting_down.borrow(),
        upgrade: state.upgrade.borrow().clone(),
        held_updates: (state.held_updates)(),
        report: state.report.borrow().clone(),
        conditions: pressure.is_known().then(|| pressure.iter().collect()),
    })
}

fn apiserver(link: &Link, node: &str) -> ApiserverDocument {
    let view = link.view();
    let (state, since, cause, message) = match view.state {
        Connectivity::Connecting => ("connecting", None, None, None),
        Connectivity::Online { since } => ("online", Some(since), None, None),
        Connectivity::Offline { since, cause, message } => ("offline", Some(since), Some(cause), Some(message)),
    };
    let Unsent { statuses, mirrors, events } = link.unsent(node);
    ApiserverDocument {
        server: view.server,
        state: state.to_owned(),
        cause: cause.map(|cause| cause.to_string()),
        message,
        since: since.map(Time),
        last_sync: link.last_answer().map(Time),
        unsent: UnsentDocument { statuses, mirrors, events },
    }
}

/// The node's certificates. One that cannot be read is logged and omitted.
async fn certificates(state: &ServerState) -> Vec<CertificateDocument> {
    let client = state.cluster.as_ref().and_then(Link::identity);
    let serving = match serving_file(&state.settings) {
        Some(file) => {
            let read = blocking::run(file.clone(), blocking::DEADLINE, move |_| certificate_files::validity(&file));
            read.await.ok().flatten()
        }
        None => None,
    };
    let document = |(purpose, held): (&str, Option<Validity>)| {
        let Validity { not_before, not_after } = held?;
        Some(CertificateDocument {
            purpose: purpose.to_owned(),
            not_before: Time(not_before),
            not_after: Time(not_after),
        })
    };
    [("client", client), ("serving", serving)].into_iter().filter_map(document).collect()
}

/// The certificate of kubelet's API if it needs renewal. The self-signed one does not, because no client trusts it.
fn serving_file(config: &ServedNode) -> Option<PathBuf> {
    config.server.api()?;
    match &config.server.certificate {
        _ if config.server.certificate_by_request => Some(certificate_files::serving_certificate(&config.pki_dir)),
        Some((certificate, _)) => Some(certificate.clone()),
        None => None,
    }
}

/// The tokens of the apiserver's pods.
pub(super) fn tokens(state: &ServerState) -> TokensDocument {
    let views = state.sources.views();
    let connected = views.iter().filter(|view| view.kind.traits().is_connection);
    let expiries: Vec<Option<Timestamp>> = connected
        .flat_map(|view| view.snapshot.objects.iter())
        .filter(|(key, _)| key.kind == ObjectKind::ServiceAccountToken)
        .map(|(_, record)| token::expiry(record))
        .collect();
    TokensDocument { count: expiries.len(), first_expiry: expiries.into_iter().flatten().min().map(Time) }
}
