//! Authentication of a pull: `Basic`, and `Bearer` with a token from the registry's realm.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_auth::parser::ChallengeParser;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, StatusCode, Url};
use serde::Deserialize;

use super::auth::Credentials;
use super::failure::{Failure, Kind};
use super::http::{Http, error_text, is_redirect, read_bounded};
use super::login::Login;

/// The largest answer of a token server, in bytes.
const MAX_ANSWER: u64 = 256 << 10;

/// A registry's authentication challenge.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl Login {
    /// Answers a 401 from `asker`: the host itself, or another one to which it redirected.
    pub(super) async fn answer(
        &self,
        http: &Http,
        asker: &Url,
        headers: &HeaderMap,
        repository: &str,
    ) -> Result<(), Failure> {
        let unauthorized = |cause: &str| Failure::new(Kind::Unauthorized, format!("401 Unauthorized{cause}"));
        let value = match (challenge(headers), self.credentials()) {
            (Some(Challenge::Bearer { realm, service, scope }), credentials) => {
                let scope = scope.unwrap_or_else(|| format!("repository:{repository}:pull"));
                let realm = Url::parse(&realm).map_err(|_| unauthorized(" by a realm that is not a URL"))?;
                // A password is sent over plain HTTP only to a host that is configured for it.
                let plain = |url: &Url| url.scheme() == "http";
                let same = plain(&realm) && plain(asker) && realm.host() == asker.host();
                if realm.scheme() != "https" && !same {
                    return Err(unauthorized(" by a realm without TLS"));
                }
                let client = http.client_for(asker, &realm);
                let request = token_request(client, realm, service.as_deref(), &scope, credentials);
                format!("Bearer {}", fetch_token(request, self.description()).await?)
            }
            (Some(Challenge::Basic), Some(Credentials::Password { user, password })) => basic(user, password),
            (Some(Challenge::Basic), Some(Credentials::IdentityToken(_))) => {
                return Err(unauthorized(": requires a password, and the node has an identity token"));
            }
            _ => return Err(unauthorized(self.description())),
        };
        let mut value: HeaderValue = value.parse().map_err(|_| unauthorized(" by an unusable token"))?;
        value.set_sensitive(true);
        self.authorize(value);
        Ok(())
    }
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// The best of the challenges: `Bearer` before `Basic`.
fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let mut best = None;
    for value in headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()) {
        for challenge in ChallengeParser::new(value).map_while(Result::ok) {
            let param = |name: &str| {
                let mut params = challenge.params.iter();
                params.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_unescaped())
            };
            if challenge.scheme.eq_ignore_ascii_case("bearer") {
                if let Some(realm) = param("realm") {
                    return Some(Challenge::Bearer { realm, service: param("service"), scope: param("scope") });
                }
            } else if challenge.scheme.eq_ignore_ascii_case("basic") {
                best = Some(Challenge::Basic);
            }
        }
    }
    best
}

fn token_request(
    http: &reqwest::Client,
    mut realm: Url,
    service: Option<&str>,
    scope: &str,
    credentials: Option<&Credentials>,
) -> RequestBuilder {
    let service = service.map(|service| ("service", service));
    if let Some(Credentials::IdentityToken(token)) = credentials {
        // A form has the same encoding as a query.
        let mut form = realm.clone();
        let grant =
            [("grant_type", "refresh_token"), ("client_id", "limpet"), ("scope", scope), ("refresh_token", token)];
        form.query_pairs_mut().clear().extend_pairs(grant.into_iter().chain(service));
        let body = form.query().unwrap_or_default().to_owned();
        return http.post(realm).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
    }
    realm.query_pairs_mut().extend_pairs(service.into_iter().chain([("scope", scope)]));
    match credentials {
        Some(Credentials::Password { user, password }) => {
            let mut value = HeaderValue::from_str(&basic(user, password)).unwrap_or(HeaderValue::from_static(""));
            value.set_sensitive(true);
            http.get(realm).header(AUTHORIZATION, value)
        }
        _ => http.get(realm),
    }
}

async fn fetch_token(request: RequestBuilder, with: &str) -> Result<String, Failure> {
    let response = request.send().await;
    let response =
        response.map_err(|error| Failure::new(Kind::Unreachable, format!("token server: {}", error_text(error))))?;
    let status = response.status();
    match status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
            return Err(Failure::new(Kind::Unauthorized, format!("token server: {status}{with}")));
        }
        // A second server would get the password too.
        _ if is_redirect(status) => {
            return Err(Failure::new(Kind::Registry, format!("token server: redirect {status} is not followed")));
        }
        _ => return Err(Failure::of_status(&response, "token server: ", "")),
    }
    let bytes = read_bounded(response, MAX_ANSWER).await?;
    // serde's message could quote the token.
    let answer: TokenAnswer = serde_json::from_slice(&bytes)
        .map_err(|_| Failure::new(Kind::Registry, "token server: the answer is invalid"))?;
    let token = if answer.token.is_empty() { answer.access_token } else { answer.token };
    if token.is_empty() {
        Err(Failure::new(Kind::Registry, "token server: the answer contains no token"))
    } else {
        Ok(token)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parsed(values: &[&'static str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_static(value));
        }
        challenge(&headers)
    }

    #[test]
    fn challenges_are_parsed() {
        let bearer = |service: Option<&str>, scope: Option<&str>| Challenge::Bearer {
            realm: "https://auth.example/token".into(),
            service: service.map(Into::into),
            scope: scope.map(Into::into),
        };
        let full = r#"Bearer realm="https://auth.example/token",service="reg",scope="repository:a/b:pull,push""#;
        assert_eq!(parsed(&[full]), Some(bearer(Some("reg"), Some("repository:a/b:pull,push"))));
        assert_eq!(
            parsed(&["Basic realm=\"x\"", "bearer Realm=\"https://auth.example/token\""]),
            Some(bearer(None, None))
        );
        assert_eq!(parsed(&["Basic realm=\"x\""]), Some(Challenge::Basic));
        assert_eq!(parsed(&["Digest realm=\"x\""]), None);
        assert_eq!(parsed(&["Bearer", "\u{1}"].map(|v| if v.len() == 1 { "=" } else { v })), None);
        assert_eq!(parsed(&[]), None);
    }

    #[test]
    fn tokens_are_requested_by_get_and_by_post() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().tls_certs_only([]).build().unwrap();
        let realm = || Url::parse("https://auth.example/token?a=b").unwrap();
        let scope = "repository:a/b:pull";
        let password = Credentials::Password { user: "u".into(), password: "p".into() };
        let request = token_request(&http, realm(), Some("my reg"), scope, Some(&password)).build().unwrap();
        assert_eq!(request.url().query(), Some("a=b&service=my+reg&scope=repository%3Aa%2Fb%3Apull"));
        assert_eq!(request.headers()[AUTHORIZATION], "Basic dTpw");
        assert!(request.headers()[AUTHORIZATION].is_sensitive());
        let token = Credentials::IdentityToken("t&t".into());
        let request = token_request(&http, realm(), Some("reg"), scope, Some(&token)).build().unwrap();
        let body = String::from_utf8(request.body().unwrap().as_bytes().unwrap().to_vec()).unwrap();
        assert!(body.contains("refresh_token=t%26t") && body.contains("service=reg"), "{body}");
        assert_eq!(request.url().query(), Some("a=b"));
    }
}
