//! The login at one registry host: signs requests with the header that the host has accepted.

use std::sync::{Mutex, PoisonError};

use reqwest::RequestBuilder;
use reqwest::header::{AUTHORIZATION, HeaderValue};

use super::auth::Credentials;

/// One host's login: the credentials, and the header it has accepted so far.
pub(super) struct Login {
    credentials: Option<Credentials>,
    authorization: Mutex<Option<HeaderValue>>,
}

impl Login {
    pub(super) fn new(credentials: Option<Credentials>) -> Self {
        Self { credentials, authorization: Mutex::default() }
    }

    /// Describes whether credentials were sent, for a refusal's message.
    pub(super) fn description(&self) -> &'static str {
        if self.credentials.is_some() { " with the node's credentials" } else { " without credentials" }
    }

    /// Whether the host required a login.
    pub(super) fn was_answered(&self) -> bool {
        self.authorization.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Adds the header that the host has accepted before.
    pub(super) fn sign(&self, request: RequestBuilder) -> RequestBuilder {
        match &*self.authorization.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(value) => request.header(AUTHORIZATION, value.clone()),
            None => request,
        }
    }

    pub(super) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Signs further requests with this header.
    pub(super) fn authorize(&self, header: HeaderValue) {
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(header);
    }
}
