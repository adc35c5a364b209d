//! Which credentials are admitted, in and out of a cluster.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};

use super::super::reviewer::tests::{Failure, Scripted};
use super::*;
use crate::settings::AuthorizationMode;

/// A gate in a cluster whose apiserver knows `anna`, who may read metrics.
fn in_cluster(change: impl FnOnce(&mut ServerSettings)) -> (Arc<Gate>, Arc<Scripted>) {
    let mut settings = ServerSettings { reviews: true, ..ServerSettings::default() };
    change(&mut settings);
    let apiserver: Arc<Scripted> = Arc::default();
    let reviews = Arc::clone(&apiserver) as Arc<dyn Reviews>;
    (Arc::new(Gate::new(settings, "edge1".into(), Some(reviews))), apiserver)
}

fn alone(change: impl FnOnce(&mut ServerSettings)) -> Arc<Gate> {
    let mut settings = ServerSettings::default();
    change(&mut settings);
    Arc::new(Gate::new(settings, "edge1".into(), None))
}

pub(crate) fn named(gate: &Arc<Gate>, name: &str) -> NetworkClient {
    NetworkClient::new(Ok(Some(User { name: name.to_owned(), ..User::default() })), Arc::clone(gate))
}

pub(crate) fn unnamed(gate: &Arc<Gate>) -> NetworkClient {
    NetworkClient::new(Ok(None), Arc::clone(gate))
}

/// A client of a gate without an apiserver.
pub(crate) fn admitting(name: &str) -> NetworkClient {
    named(&alone(|settings| settings.allowed_names = vec!["admitted".to_owned()]), name)
}

/// A client without a certificate where tokens are accepted.
pub(crate) fn with_token() -> NetworkClient {
    unnamed(&in_cluster(|_| {}).0)
}

fn request(path: &str, token: Option<&str>) -> Request {
    let mut request = Request::builder().uri(path);
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    request.body(Body::empty()).unwrap()
}

const METRICS: Option<Permission> = Some(Permission::Nodes(Subresource::Metrics));
const PODS: Option<Permission> = Some(Permission::Nodes(Subresource::Pods));

async fn ask(client: &NetworkClient, permission: Option<Permission>, token: Option<&str>) -> Result<(), String> {
    client.admit(permission, &mut request("/x", token)).await.map_err(|refusal| refusal.to_string())
}

/// As in kubelet, such a client is not treated as one without a certificate, but its token counts.
#[tokio::test(start_paused = true)]
async fn a_client_whose_certificate_is_not_valid_needs_a_token() {
    let (gate, _) = in_cluster(|settings| (settings.anonymous, settings.mode) = (true, AuthorizationMode::AlwaysAllow));
    let client = NetworkClient::new(Err("UnknownIssuer".to_owned()), Arc::clone(&gate));
    let refused = ask(&client, METRICS, None).await.unwrap_err();
    assert!(refused.contains("certificate is not valid") && refused.ends_with("UnknownIssuer"), "{refused}");
    assert_eq!(ask(&client, METRICS, Some("anna")).await, Ok(()));
    assert_eq!(ask(&unnamed(&gate), METRICS, None).await, Ok(()));
    let alone = alone(|settings| (settings.anonymous, settings.mode) = (true, AuthorizationMode::AlwaysAllow));
    assert_eq!(NetworkClient::new(Err(String::new()), alone).standing(), Standing::Refused);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_expires_on_a_kept_connection_is_refused() {
    let (gate, _) = in_cluster(|settings| settings.mode = AuthorizationMode::AlwaysAllow);
    let valid = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&valid);
    let check = move || if seen.load(Ordering::Relaxed) { Ok(()) } else { Err("certificate expired".to_owned()) };
    let client = named(&gate, "operator").checked_by(check);
    assert_eq!(ask(&client, METRICS, None).await, Ok(()));
    valid.store(false, Ordering::Relaxed);
    let refused = ask(&client, METRICS, None).await.unwrap_err();
    assert!(refused.ends_with("certificate expired"), "{refused}");
    assert_eq!(ask(&client, METRICS, Some("anna")).await, Ok(()));
}

const FORBIDDEN: &str = "Forbidden (user=anna, verb=get, resource=nodes, subresource(s)=[pods proxy])";

#[tokio::test(start_paused = true)]
async fn the_apiserver_decides_about_certificates_and_tokens() {
    let (gate, apiserver) = in_cluster(|settings| settings.allowed_names = vec!["operator".to_owned()]);
    for (client, token) in [(named(&gate, "anna"), None), (unnamed(&gate), Some("anna"))] {
        assert_eq!(client.standing(), Standing::Asked);
        assert_eq!(ask(&client, METRICS, token).await, Ok(()));
        assert_eq!(ask(&client, PODS, token).await, Err(FORBIDDEN.to_owned()));
    }
    let anonymous = ask(&unnamed(&gate), METRICS, None).await.unwrap_err();
    assert!(anonymous.ends_with("clientCAFile is required, or a token of the cluster"), "{anonymous}");
    assert_eq!(ask(&unnamed(&gate), METRICS, Some("mallory")).await, Err(Refusal::InvalidToken.to_string()));
    // The certificate takes precedence over any token.
    assert_eq!(ask(&named(&gate, "anna"), METRICS, Some("mallory")).await, Ok(()));
    let mut with_token = request("/metrics", Some("anna"));
    unnamed(&gate).admit(METRICS, &mut with_token).await.unwrap();
    assert!(!with_token.headers().contains_key(AUTHORIZATION), "handlers see no token");

    // Listed users need no apiserver. For others the last review's answer is used, or else kubelet's error.
    apiserver.fail(Failure::Unreachable);
    let operator = named(&gate, "operator");
    assert_eq!((operator.standing(), ask(&operator, PODS, None).await), (Standing::Admitted, Ok(())));
    assert_eq!(ask(&unnamed(&gate), METRICS, Some("anna")).await, Ok(()));
    let refusal = named(&gate, "other").admit(METRICS, &mut request("/metrics", None)).await;
    let expected = Refusal::AccessNotReviewed { user: "other".to_owned(), verb: "get", subresource: "metrics" };
    assert_eq!(refusal, Err(expected));
    let refusal = unnamed(&gate).admit(METRICS, &mut request("/metrics", Some("new"))).await;
    assert_eq!(refusal, Err(Refusal::TokenNotReviewed));
}

#[tokio::test(start_paused = true)]
async fn a_token_comes_as_a_subprotocol_too() {
    let (gate, _) = in_cluster(|_| {});
    let mut request = request("/metrics", None);
    request.headers_mut().insert(UPGRADE, "websocket".parse().unwrap());
    let protocols = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YW5uYQ";
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, protocols.parse().unwrap());
    unnamed(&gate).admit(METRICS, &mut request).await.unwrap();
    assert_eq!(request.headers()[SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io");
}

#[tokio::test(start_paused = true)]
async fn anonymous_callers_are_users_where_they_are_let_in_and_a_wrong_token_is_not_anonymous() {
    let (gate, _) = in_cluster(|settings| settings.anonymous = true);
    let refusal = ask(&unnamed(&gate), PODS, None).await.unwrap_err();
    assert!(refusal.contains("user=system:anonymous"), "{refusal}");
    assert_eq!(ask(&unnamed(&gate), PODS, Some("mallory")).await, Err(Refusal::InvalidToken.to_string()));
    let (gate, apiserver) = in_cluster(|settings| settings.mode = AuthorizationMode::AlwaysAllow);
    assert_eq!(named(&gate, "anybody").standing(), Standing::Admitted);
    assert_eq!(ask(&unnamed(&gate), PODS, Some("anna")).await, Ok(()));
    assert_eq!(ask(&unnamed(&gate), PODS, Some("mallory")).await, Err(Refusal::InvalidToken.to_string()));
    assert_eq!(apiserver.asked.load(std::sync::atomic::Ordering::Relaxed), 2, "tokens alone");
}

#[tokio::test(start_paused = true)]
async fn without_a_cluster_names_that_are_listed_get_in_and_no_token_does() {
    let gate = alone(|settings| settings.allowed_names = vec!["operator".to_owned()]);
    assert_eq!(ask(&named(&gate, "operator"), PODS, None).await, Ok(()));
    assert_eq!(ask(&named(&gate, "system:node:edge2"), PODS, None).await, Err(Refusal::NotAdmitted.to_string()));
    let anonymous = unnamed(&gate);
    assert_eq!(anonymous.standing(), Standing::Refused);
    let refusal = ask(&anonymous, PODS, Some("anna")).await.unwrap_err();
    assert!(refusal.ends_with("clientCAFile is required"), "{refusal}");
    let open = alone(|settings| (settings.anonymous, settings.mode) = (true, AuthorizationMode::AlwaysAllow));
    assert_eq!(ask(&unnamed(&open), PODS, Some("anna")).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_network_never_gets_limpets_own_routes_and_unknown_ones_have_kubelets_subresource() {
    let client = admitting("admitted");
    for permission in [Permission::Read, Permission::Write] {
        assert_eq!(ask(&client, Some(permission), None).await, Err(Refusal::NotAdmitted.to_string()));
    }
    assert_eq!(ask(&client, None, None).await, Ok(()));
    let (gate, _) = in_cluster(|_| {});
    let anna = named(&gate, "anna");
    assert_eq!(anna.admit(None, &mut request("/metrics/none", None)).await, Ok(()));
    assert!(anna.admit(None, &mut request("/none", None)).await.is_err());
}
