//! The headers for a kubeconfig's `as` fields, which have the server treat a request as another user's.

use hyper::http::header::{HeaderName, HeaderValue};
use kube::config::AuthInfo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::credentials_error::CredentialsError;

/// The characters that client-go escapes in a header's name: all but those of a token (RFC 9110, section 5.6.2), and
/// `%`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// The headers for a user; none without `as` fields.
///
/// # Errors
///
/// A name has a character that a header cannot contain.
pub(crate) fn headers(user: &AuthInfo) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialsError> {
    let fixed = [("impersonate-user", &user.impersonate), ("impersonate-uid", &user.impersonate_uid)];
    let fixed = fixed.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.as_ref()?)));
    let groups = user.impersonate_groups.iter().flatten().map(|group| ("impersonate-group".to_owned(), group));
    let extra = user.impersonate_user_extra.iter().flatten().flat_map(|(key, values)| {
        let name = format!("impersonate-extra-{}", utf8_percent_encode(key, ESCAPED));
        values.iter().map(move |value| (name.clone(), value))
    });
    fixed.chain(groups).chain(extra).map(|(name, value)| header(&name, value)).collect()
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), CredentialsError> {
    let cannot = |error: &dyn std::fmt::Display| CredentialsError(format!("users[].user: {name}: {error}"));
    let name = HeaderName::try_from(name).map_err(|error| cannot(&error))?;
    Ok((name, HeaderValue::try_from(value).map_err(|error| cannot(&error))?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_a_header_and_a_key_of_extra_is_escaped() {
        let user = AuthInfo {
            impersonate: Some("ada".to_owned()),
            impersonate_uid: Some("7".to_owned()),
            impersonate_groups: Some(vec!["lab".to_owned(), "field".to_owned()]),
            impersonate_user_extra: Some([("Lab/a%b".to_owned(), vec!["x".to_owned(), "y".to_owned()])].into()),
            ..AuthInfo::default()
        };
        let made = headers(&user).unwrap();
        let made: Vec<_> = made.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let expected = [
            ("impersonate-user", "ada"),
            ("impersonate-uid", "7"),
            ("impersonate-group", "lab"),
            ("impersonate-group", "field"),
            ("impersonate-extra-lab%2fa%25b", "x"),
            ("impersonate-extra-lab%2fa%25b", "y"),
        ];
        assert_eq!(made, expected);
        assert!(headers(&AuthInfo::default()).unwrap().is_empty());
    }

    #[test]
    fn a_name_with_a_line_break_cannot_be_sent() {
        let user = AuthInfo { impersonate: Some("a\nb".to_owned()), ..AuthInfo::default() };
        assert!(headers(&user).unwrap_err().to_string().starts_with("users[].user: impersonate-user: "));
    }
}
