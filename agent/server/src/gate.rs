//! The gate of kubelet's API on the network: identifies the user of each request and decides whether the request is
//! admitted.
//!
//! The order is kubelet's: the certificate of the connection, then a token, then the anonymous user, where
//! `authentication.anonymous` admits it. An invalid token is refused even then, and so is an invalid certificate,
//! unless the request also has a valid token.

use std::sync::Arc;

use axum::extract::Request;

use super::authentication::{self, Malformed, Token};
use super::permission::{Permission, Refusal, Standing, Subresource, standing, verb};
use super::reviewer::Reviewer;
use crate::settings::ServerSettings;
use limpet_cluster::{Access, Reviews, User};

/// Decides about the clients of a listener.
pub(super) struct Gate {
    settings: ServerSettings,
    node_name: Arc<str>,
    /// `None` outside a cluster.
    reviewer: Option<Reviewer>,
}

impl Gate {
    /// Decides by `settings` and, where there is an apiserver, by `reviews`.
    pub(super) fn new(settings: ServerSettings, node_name: Arc<str>, reviews: Option<Arc<dyn Reviews>>) -> Self {
        let reviewer = reviews.filter(|_| settings.reviews).map(|reviews| Reviewer::new(reviews, &settings));
        Self { settings, node_name, reviewer }
    }

    /// The user of the request's token, which is removed from the request; `None` if it has no token, or tokens are
    /// not accepted.
    async fn of_token(&self, request: &mut Request) -> Result<Option<Arc<User>>, Refusal> {
        let Some(reviewer) = self.reviewer.as_ref().filter(|_| self.settings.takes_tokens()) else { return Ok(None) };
        let tokens = Token::all(request.headers()).map_err(|Malformed| Refusal::InvalidToken)?;
        let mut refusal = None;
        for token in tokens {
            match reviewer.user(token.text()).await {
                Ok(Some(user)) => {
                    token.remove(request.headers_mut());
                    return Ok(Some(Arc::new(authentication::known(User::clone(&user)))));
                }
                Ok(None) => refusal = refusal.or(Some(Refusal::InvalidToken)),
                Err(error) => {
                    tracing::debug!(%error, "reviewing a token failed");
                    refusal = Some(Refusal::TokenNotReviewed);
                }
            }
        }
        refusal.map_or(Ok(None), Err)
    }

    /// Whether the user may use the subresource with this verb.
    async fn decide(&self, user: &User, verb: &'static str, subresource: Subresource) -> Result<(), Refusal> {
        match standing(&self.settings, user) {
            Standing::Admitted => return Ok(()),
            Standing::Refused => return Err(Refusal::NotAdmitted),
            Standing::Asked => {}
        }
        let Some(reviewer) = &self.reviewer else { return Err(Refusal::NotAdmitted) };
        for name in subresource.names() {
            let access = Access { verb, node: &self.node_name, subresource: name };
            match reviewer.is_allowed(user, access).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(%error, user = user.name, verb, subresource = name, "reviewing an access failed");
                    return Err(Refusal::AccessNotReviewed { user: user.name.clone(), verb, subresource: name });
                }
            }
        }
        Err(Refusal::Forbidden { user: user.name.clone(), verb, subresources: subresource.names() })
    }
}

/// A client that has connected.
pub(super) struct NetworkClient {
    /// The user in its certificate, if there is one; the error says why the certificate is invalid.
    certificate: Result<Option<Arc<User>>, String>,
    /// Checks that the certificate is still valid; `None` without a certificate.
    check: Option<CertificateCheck>,
    gate: Arc<Gate>,
}

/// Verifies the certificate of a client that stays connected.
type CertificateCheck = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

impl NetworkClient {
    /// A client that has connected with a certificate of this user, without a certificate, or with an invalid one.
    pub(super) fn new(certificate: Result<Option<User>, String>, gate: Arc<Gate>) -> Self {
        Self { certificate: certificate.map(|user| user.map(Arc::new)), check: None, gate }
    }

    /// Has `check` verify the certificate before each request, as in kubelet, because a connection may outlast the
    /// certificate.
    pub(super) fn checked_by(self, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { check: Some(Box::new(check)), ..self }
    }

    /// Whether its certificate names a user.
    pub(super) fn is_named(&self) -> bool {
        matches!(self.certificate, Ok(Some(_)))
    }

    /// What the configuration says about the client before its first request.
    pub(super) fn standing(&self) -> Standing {
        let settings = &self.gate.settings;
        match &self.certificate {
            Ok(Some(user)) => standing(settings, user),
            _ if settings.takes_tokens() => Standing::Asked,
            Ok(None) if settings.anonymous => standing(settings, &authentication::anonymous()),
            _ => Standing::Refused,
        }
    }

    /// Checks whether the client may send this request to a route with this permission; `None` means that no such
    /// route exists. Removes the request's token.
    pub(super) async fn admit(&self, permission: Option<Permission>, request: &mut Request) -> Result<(), Refusal> {
        let user = self.user(request).await?;
        let subresource = match permission {
            Some(Permission::Nodes(subresource)) => subresource,
            None => Subresource::of_path(request.uri().path()),
            // No listener on the network serves limpet's own routes.
            Some(Permission::Read | Permission::Write) => return Err(Refusal::NotAdmitted),
        };
        self.gate.decide(&user, verb(request.method()), subresource).await
    }

    async fn user(&self, request: &mut Request) -> Result<Arc<User>, Refusal> {
        let certificate = match (&self.certificate, &self.check) {
            (Ok(Some(user)), Some(check)) => check().map(|()| Some(Arc::clone(user))),
            (certificate, _) => certificate.clone(),
        };
        if let Ok(Some(user)) = certificate {
            return Ok(user);
        }
        match (self.gate.of_token(request).await?, certificate) {
            (Some(user), _) => Ok(user),
            (None, Err(why)) => Err(Refusal::InvalidCertificate { why }),
            (None, Ok(_)) if self.gate.settings.anonymous => Ok(Arc::new(authentication::anonymous())),
            (None, Ok(_)) => Err(Refusal::Unauthenticated { tokens: self.gate.settings.takes_tokens() }),
        }
    }
}

impl std::fmt::Debug for NetworkClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetworkClient").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests;
