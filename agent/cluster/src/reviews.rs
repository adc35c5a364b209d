//! Reviews: the apiserver decides whose token a client of kubelet's API sends, and whether a user may do what it
//! requests. kubelet calls this authentication and authorization by webhook.
//!
//! Nothing is cached or retried here: the server caches answers and bounds the number of reviews.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use serde::Serialize;
use serde_json::Value;

use super::link::Link;
use limpet_apiserver_client::{Request, RequestError, Resource};

/// A user as Kubernetes has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct User {
    pub name: String,
    /// Distinguishes the user from an earlier one of the same name; may be empty.
    pub uid: String,
    pub groups: Vec<String>,
    /// Further attributes from authenticators.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A requested access: a verb on a subresource of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Access<'a> {
    /// `get`, `create`, …; empty for a method without a verb in Kubernetes.
    pub verb: &'a str,
    pub node: &'a str,
    /// `proxy`, `metrics`, …
    pub subresource: &'a str,
}

#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The apiserver did not answer, or refused.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The apiserver was unreachable a moment ago, so no request is sent yet.
    #[error("the apiserver cannot be reached")]
    Offline,
    /// The apiserver answered that it could not decide.
    #[error("{0}")]
    Undecided(String),
    /// Too many other reviews are in progress.
    #[error("too many reviews are waited for")]
    Busy,
}

impl ReviewError {
    /// Whether the apiserver is unreachable: the next request would time out as well.
    pub fn is_unreachable(&self) -> bool {
        use RequestError::{Certificate, Credentials, Unreachable};
        matches!(self, Self::Request(Credentials(_) | Unreachable(_) | Certificate { .. }))
    }
}

/// Decides about users.
pub trait Reviews: Send + Sync {
    /// The user of a token; `None` if the token is not valid.
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, ReviewError>>;

    /// Whether the user may have this access.
    fn access<'a>(&'a self, user: &'a User, access: Access<'a>) -> BoxFuture<'a, Result<bool, ReviewError>>;
}

impl Reviews for Link {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, ReviewError>> {
        Box::pin(async move { user_of(self.review(Resource::TokenReviews, token_review(token)?).await?) })
    }

    fn access<'a>(&'a self, user: &'a User, access: Access<'a>) -> BoxFuture<'a, Result<bool, ReviewError>> {
        Box::pin(async move {
            let review = access_review(user, access)?;
            is_allowed(self.review(Resource::SubjectAccessReviews, review).await?)
        })
    }
}

impl Link {
    /// Sends a review, with the deadline of every request.
    async fn review(&self, resource: Resource, review: Value) -> Result<Value, ReviewError> {
        Ok(self.send(Request::create(resource, review)).await?)
    }
}

fn unreadable(error: serde_json::Error) -> ReviewError {
    ReviewError::Request(RequestError::Unreadable(error.to_string()))
}

fn token_review(token: &str) -> Result<Value, ReviewError> {
    // Without an audience the token has to be meant for the apiserver, as in kubelet.
    let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
    serde_json::to_value(TokenReview { spec, ..TokenReview::default() }).map_err(unreadable)
}

fn user_of(answer: Value) -> Result<Option<User>, ReviewError> {
    let status = serde_json::from_value::<TokenReview>(answer).map_err(unreadable)?.status.unwrap_or_default();
    if status.authenticated == Some(true) {
        let UserInfo { username, uid, groups, extra } = status.user.unwrap_or_default();
        return Ok(Some(User {
            name: username.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            extra: extra.unwrap_or_default(),
        }));
    }
    match status.error.filter(|error| !error.is_empty()) {
        Some(error) => Err(ReviewError::Undecided(error)),
        None => Ok(None),
    }
}

fn access_review(user: &User, access: Access<'_>) -> Result<Value, ReviewError> {
    let attributes = ResourceAttributes {
        verb: Some(access.verb.to_owned()),
        version: Some("v1".to_owned()),
        resource: Some("nodes".to_owned()),
        subresource: Some(access.subresource.to_owned()),
        name: Some(access.node.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    serde_json::to_value(SubjectAccessReview { spec, ..SubjectAccessReview::default() }).map_err(unreadable)
}

fn is_allowed(answer: Value) -> Result<bool, ReviewError> {
    let status = serde_json::from_value::<SubjectAccessReview>(answer).map_err(unreadable)?.status.unwrap_or_default();
    match (status.allowed, status.denied == Some(true)) {
        (true, true) => Err(ReviewError::Undecided("the review both allows and denies it".to_owned())),
        (allowed, denied) => Ok(allowed && !denied),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reviews_are_what_kubelet_sends() {
        let review = token_review("abc").unwrap();
        let (kind, version) = (&review["kind"], &review["apiVersion"]);
        assert_eq!((kind, version), (&json!("TokenReview"), &json!("authentication.k8s.io/v1")));
        assert_eq!(review["spec"], json!({ "token": "abc" }));

        let extra = BTreeMap::from([("x".to_owned(), vec!["y".to_owned()])]);
        let user = User { name: "anna".to_owned(), uid: "u1".to_owned(), groups: vec!["readers".to_owned()], extra };
        let review = access_review(&user, Access { verb: "get", node: "edge1", subresource: "metrics" }).unwrap();
        assert_eq!(review["kind"], "SubjectAccessReview");
        let attributes = json!({
            "verb": "get", "version": "v1", "resource": "nodes", "subresource": "metrics", "name": "edge1",
        });
        let spec = json!({
            "user": "anna", "uid": "u1", "groups": ["readers"], "extra": { "x": ["y"] }, "resourceAttributes": attributes,
        });
        assert_eq!(review["spec"], spec);
    }

    #[test]
    fn an_answer_is_a_decision_only_if_it_allows_or_denies() {
        let token = |status: Value| user_of(json!({ "spec": {}, "status": status }));
        let anna = json!({ "username": "anna", "groups": ["readers"], "uid": "u1" });
        let user = token(json!({ "authenticated": true, "user": anna })).unwrap().unwrap();
        assert_eq!((&*user.name, &*user.uid, &*user.groups), ("anna", "u1", &["readers".to_owned()][..]));
        assert_eq!(token(json!({ "authenticated": false })).unwrap(), None);
        assert_eq!(token(json!({ "user": { "username": "anna" } })).unwrap(), None);
        assert!(matches!(token(json!({ "error": "no" })), Err(ReviewError::Undecided(error)) if error == "no"));
        assert!(user_of(json!([])).is_err());

        let access = |status: Value| is_allowed(json!({ "spec": {}, "status": status }));
        assert!(access(json!({ "allowed": true })).unwrap());
        assert!(!access(json!({ "allowed": false })).unwrap());
        assert!(!access(json!({ "allowed": false, "denied": true })).unwrap());
        assert!(access(json!({ "allowed": true, "denied": true })).is_err());
        assert!(is_allowed(json!({ "spec": {} })).is_ok_and(|allowed| !allowed));
    }
}
