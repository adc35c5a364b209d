//! Tokens of service accounts, requested for volumes.

use std::time::Duration;

use jiff::Timestamp;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_model::object::token::TokenDemand;

use super::link::Link;
use super::service_accounts::token_request;

/// The longest sleep until a renewal, so that a clock that was set meanwhile is noticed.
const MAX_RENEWAL_SLEEP: Duration = Duration::from_secs(600);

/// The shortest time between two tokens, whatever the clocks say.
pub(super) const MIN_RENEWAL_INTERVAL: Duration = Duration::from_secs(60);

/// Sleeps until this wall-clock time. The clock may jump.
pub(super) async fn sleep_until(at: Timestamp) {
    let left = || u64::try_from(at.as_second().saturating_sub(Timestamp::now().as_second())).ok();
    while let Some(left) = left().filter(|left| *left > 0) {
        tokio::time::sleep(MAX_RENEWAL_SLEEP.min(Duration::from_secs(left))).await;
    }
}

/// A token issued by the apiserver.
pub(super) struct Issued {
    pub(super) token: String,
    /// Its expiry by the server's clock.
    pub(super) expiry: String,
    /// Its lifetime in seconds.
    pub(super) lifetime: i64,
    /// When it was requested, by the node's clock, which may differ from the server's.
    pub(super) at: Timestamp,
}

/// Requests a token of the pod's service account that is bound to the pod.
pub(super) async fn request_token(
    link: &Link,
    namespace: &str,
    demand: &TokenDemand,
    pod: &str,
) -> Result<Issued, RequestError> {
    let at = Timestamp::now();
    let document = token_request(demand.audience.as_deref(), Some(demand.lifetime), pod, &demand.pod_uid);
    let account = Resource::ServiceAccountToken(namespace.to_owned(), demand.service_account.clone());
    let answer = link.send(Request::create(account, document)).await?;
    let (status, lifetime) = (&answer["status"], answer["spec"]["expirationSeconds"].as_i64());
    match (status["token"].as_str(), status["expirationTimestamp"].as_str(), lifetime) {
        (Some(token), Some(expiry), Some(lifetime)) => {
            Ok(Issued { token: token.to_owned(), expiry: expiry.to_owned(), lifetime, at })
        }
        _ => Err(RequestError::Unreadable("a TokenRequest without a token".to_owned())),
    }
}
