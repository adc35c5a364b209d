//! The tokens of the pod's service account that a CSI driver gets with `NodePublishVolume` (`tokenRequests` of its
//! CSIDriver). They are entries of the object of the pod's volume, and are replaced there before they expire.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::object::csi::DriverToken;
use crate::object::token::{DEFAULT_LIFETIME, TokenDemand, renewal_of};
use crate::object::{Entry, ObjectRecord, SecretBytes};
use crate::pod::PodRecord;

/// The prefix of the entries with the tokens; the audience follows.
const TOKEN: &str = "serviceAccountToken/";
/// The prefix of the entries with the times of their expiry; the audience follows.
const EXPIRY: &str = "serviceAccountTokenExpiry/";
/// The entry with the time at which new tokens are requested, in RFC 3339.
const RENEWAL: &str = "serviceAccountTokenRenewal";

/// A token as it was issued.
#[derive(Debug)]
pub struct IssuedToken {
    /// Whom it is for; empty for the apiserver.
    pub audience: String,
    pub token: SecretBytes,
    /// When it expires, as the apiserver says, in RFC 3339.
    pub expiry: String,
    /// How long it is valid, in seconds.
    pub lifetime: i64,
}

/// The tokens to request for the pod's service account.
pub fn demand(pod: &PodRecord, wanted: &DriverToken) -> TokenDemand {
    TokenDemand {
        lifetime: wanted.lifetime.unwrap_or(DEFAULT_LIFETIME),
        audience: Some(wanted.audience.clone()).filter(|audience| !audience.is_empty()),
        ..TokenDemand::new(pod, &Default::default())
    }
}

/// The object with these tokens in place of those it has. `issued` is the node's time at which they were issued.
pub fn with_tokens(object: &ObjectRecord, tokens: Vec<IssuedToken>, issued: Timestamp) -> ObjectRecord {
    let mut object = object.clone();
    object.data.retain(|name, _| !is_of_tokens(name));
    let first = tokens.iter().map(|token| renewal_of(issued, token.lifetime)).min();
    let text = |text: String| Entry { bytes: SecretBytes::new(text.into_bytes()), binary: false };
    object.data.extend(first.map(|at| (RENEWAL.to_owned(), text(at.to_string()))));
    for IssuedToken { audience, token, expiry, .. } in tokens {
        object.data.insert(format!("{TOKEN}{audience}"), Entry { bytes: token, binary: false });
        object.data.insert(format!("{EXPIRY}{audience}"), text(expiry));
    }
    object
}

/// The tokens as the driver gets them: `TokenRequestStatus` by audience, in JSON. `None` if it gets none.
pub fn for_driver(object: &ObjectRecord) -> Option<String> {
    let text = |name: &str| object.data.get(name).and_then(|entry| entry.bytes.expose_text());
    let audiences = object.data.keys().filter_map(|name| name.strip_prefix(TOKEN));
    let status = |audience: &str| json!({ "token": text(&format!("{TOKEN}{audience}")), "expirationTimestamp": text(&format!("{EXPIRY}{audience}")) });
    let all: BTreeMap<&str, Value> = audiences.map(|audience| (audience, status(audience))).collect();
    (!all.is_empty()).then(|| json!(all).to_string())
}

/// When new tokens are requested; `None` if the driver gets none.
pub fn renewal(object: &ObjectRecord) -> Option<Timestamp> {
    let entry = object.data.get(RENEWAL)?;
    Some(entry.bytes.expose_text().and_then(|text| text.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Whether the entry of a claim's object is a token.
pub(super) fn is_token(entry: &str) -> bool {
    entry.starts_with(TOKEN)
}

fn is_of_tokens(entry: &str) -> bool {
    is_token(entry) || entry.starts_with(EXPIRY) || entry == RENEWAL
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::object::{ObjectKey, ObjectKind};

    fn issued(audience: &str, token: &str, lifetime: i64) -> IssuedToken {
        let token = SecretBytes::new(token.as_bytes().to_vec());
        IssuedToken { audience: audience.to_owned(), token, expiry: "2026-01-01T00:10:00Z".to_owned(), lifetime }
    }

    #[test]
    fn tokens_survive_the_disk_and_are_replaced_together() {
        let key = ObjectKey::new(ObjectKind::VolumeClaim, "n", "data@u-1");
        let bare = ObjectRecord::of_texts(key, "apiserver", [("csi", "{}".to_owned())]);
        assert_eq!((for_driver(&bare), renewal(&bare)), (None, None));
        let at = |second| Timestamp::from_second(second).unwrap();
        let all = vec![issued("", "t-1", 3_600), issued("https://vault.example/a b", "t-2", 600)];
        let with = with_tokens(&bare, all, at(1_000));
        let stored: Value = serde_json::from_slice(&with.manifest()).unwrap();
        assert_eq!(crate::object::restore(&stored, "apiserver").unwrap().unwrap(), with);
        let given: Value = serde_json::from_str(&for_driver(&with).unwrap()).unwrap();
        let token_json = |token: &str| json!({"token": token, "expirationTimestamp": "2026-01-01T00:10:00Z"});
        assert_eq!(given, json!({"": token_json("t-1"), "https://vault.example/a b": token_json("t-2")}));
        // The token that expires first decides.
        assert_eq!(renewal(&with), Some(at(1_480)));
        let next = with_tokens(&with, vec![issued("", "t-3", 3_600)], at(2_000));
        assert_eq!(serde_json::from_str::<Value>(&for_driver(&next).unwrap()).unwrap(), json!({"": token_json("t-3")}));
        assert_eq!(with_tokens(&next, Vec::new(), at(0)), bare);
    }

    #[test]
    fn a_token_is_asked_for_by_the_drivers_wish() {
        let pod = crate::fixtures::record_of_spec(json!({"containers": [], "serviceAccountName": "robot"}));
        let demand_for =
            |audience: &str, lifetime| demand(&pod, &DriverToken { audience: audience.to_owned(), lifetime });
        let (plain, vault) = (demand_for("", None), demand_for("vault", Some(600)));
        assert_eq!((&*plain.service_account, plain.lifetime, plain.audience), ("robot", 3_600, None));
        assert_eq!(
            (vault.lifetime, vault.audience.as_deref(), vault.pod_uid),
            (600, Some("vault"), pod.uid.to_string())
        );
    }
}
