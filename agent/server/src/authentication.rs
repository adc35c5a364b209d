//! Reads whom a client of kubelet's API claims to be, as kubelet does: from the subject of its certificate, or from a
//! bearer token in the `Authorization` header or among the subprotocols of a WebSocket. Pure: whether a token is
//! valid is the apiserver's decision.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::http::header::{AUTHORIZATION, HeaderMap, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use limpet_cluster::User;

/// The prefix of a subprotocol that carries a token.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
/// The group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";
/// The group of all other callers.
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// A token as a client sends it, with its place in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Header(String),
    /// A subprotocol. The server chooses one of the others, which stay in the request.
    Subprotocol {
        token: String,
        others: HeaderValue,
    },
}

/// The client sent a token that is not base64url.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Token {
    /// The tokens of a request, in the order in which kubelet tries them.
    pub(super) fn all(headers: &HeaderMap) -> Result<Vec<Self>, Malformed> {
        let mut tokens = Vec::new();
        tokens.extend(bearer(headers).map(|token| Self::Header(token.to_owned())));
        tokens.extend(of_websocket(headers)?);
        Ok(tokens)
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Header(token) | Self::Subprotocol { token, .. } => token,
        }
    }

    /// Removes the token from the request, because no later stage needs it.
    pub(super) fn remove(self, headers: &mut HeaderMap) {
        match self {
            Self::Header(_) => drop(headers.remove(AUTHORIZATION)),
            Self::Subprotocol { others, .. } => drop(headers.insert(SEC_WEBSOCKET_PROTOCOL, others)),
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, rest) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    // The token ends at the next space. As in kubelet, a second space before it means that there is no token.
    let token = rest.split(' ').next()?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn of_websocket(headers: &HeaderMap) -> Result<Option<Token>, Malformed> {
    let is_websocket = headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !is_websocket {
        return Ok(None);
    }
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter().filter_map(|value| value.to_str().ok());
    let protocols = values.flat_map(|value| value.split(',')).map(str::trim);
    let (tokens, others): (Vec<_>, Vec<_>) = protocols.partition(|protocol| protocol.starts_with(TOKEN_PROTOCOL));
    let [token] = tokens[..] else {
        return if tokens.is_empty() { Ok(None) } else { Err(Malformed) };
    };
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(&token[TOKEN_PROTOCOL.len()..]).map_err(|_| Malformed)?;
    let token = String::from_utf8(bytes).map_err(|_| Malformed)?;
    if token.is_empty() {
        return Ok(None);
    }
    // The server responds with one of the other subprotocols, so there has to be one.
    if others.is_empty() {
        return Err(Malformed);
    }
    let others = HeaderValue::from_str(&others.join(",")).map_err(|_| Malformed)?;
    Ok(Some(Token::Subprotocol { token, others }))
}

/// The user in a verified certificate's subject: common name and organizations. `None` if the subject names no user.
pub(super) fn of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok().filter(|name| !name.is_empty())?;
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok()).map(ToOwned::to_owned);
    let fingerprint = Sha256::digest(der).iter().fold("X509SHA256=".to_owned(), |mut text, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    let extra = BTreeMap::from([("authentication.kubernetes.io/credential-id".to_owned(), vec![fingerprint])]);
    Some(known(User { name: name.to_owned(), uid: String::new(), groups: groups.collect(), extra }))
}

/// Adds the group of all authenticated users.
pub(super) fn known(mut user: User) -> User {
    let is_in = |user: &User, group: &str| user.groups.iter().any(|listed| listed == group);
    if user.name != ANONYMOUS && !is_in(&user, AUTHENTICATED) && !is_in(&user, UNAUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

/// The name of a user without credentials.
const ANONYMOUS: &str = "system:anonymous";

/// A caller without credentials.
pub(super) fn anonymous() -> User {
    User { name: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..User::default() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value.parse().unwrap());
            all
        })
    }

    #[test]
    fn a_bearer_token_is_read_as_kubelet_reads_it() {
        let table = [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            ("  BEARER abc def ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearer  abc", None),
            ("Basic abc", None),
            ("", None),
        ];
        for (value, token) in table {
            assert_eq!(bearer(&headers(&[(AUTHORIZATION, value)])), token, "{value:?}");
        }
    }

    #[test]
    fn a_subprotocol_is_a_token_beside_another_subprotocol() {
        let (upgrade, protocol) = ((UPGRADE, "WebSocket"), SEC_WEBSOCKET_PROTOCOL);
        let abc = format!("{TOKEN_PROTOCOL}YWJj");
        let token = |values: &[&str]| {
            let protocols = values.iter().map(|value| (protocol.clone(), *value));
            Token::all(&headers(&[upgrade.clone()].into_iter().chain(protocols).collect::<Vec<_>>()))
        };
        let first = token(&[&format!("v5.channel.k8s.io, {abc}"), "v4.channel.k8s.io"]).unwrap().remove(0);
        assert_eq!(first.text(), "abc");
        let mut kept = headers(&[(protocol.clone(), &abc)]);
        first.remove(&mut kept);
        assert_eq!(kept, headers(&[(protocol.clone(), "v5.channel.k8s.io,v4.channel.k8s.io")]));

        assert_eq!(token(&[&abc]), Err(Malformed), "nothing is left to choose");
        assert_eq!(token(&["v5", &abc, &abc]), Err(Malformed), "two tokens");
        assert_eq!(token(&["v5", &format!("{TOKEN_PROTOCOL}Y!")]), Err(Malformed));
        assert_eq!(token(&["v5", &format!("{TOKEN_PROTOCOL}_w")]), Err(Malformed), "not UTF-8");
        assert_eq!(token(&["v5", TOKEN_PROTOCOL]), Ok(Vec::new()));
        let plain = headers(&[(protocol, &abc)]);
        assert_eq!(Token::all(&plain), Ok(Vec::new()), "not a WebSocket");
    }

    #[test]
    fn those_who_are_known_are_in_a_group_together() {
        let user = |groups: &[&str]| User {
            name: "anna".to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..User::default()
        };
        assert_eq!(known(user(&["a"])).groups, ["a", AUTHENTICATED]);
        assert_eq!(known(user(&[AUTHENTICATED])).groups, [AUTHENTICATED]);
        assert_eq!(known(anonymous()).groups, [UNAUTHENTICATED]);
    }
}
