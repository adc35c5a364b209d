//! The tokens of service accounts: which one a projected volume requires, and the issued token as an object of its
//! pod.
//!
//! A token is bound to one pod, so its name contains all that a request for it needs. Like a Secret it is written
//! into volumes, replaced there when a new one is issued, and kept on disk for a start without an apiserver.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccountTokenProjection;

use crate::object::{ObjectKey, ObjectRecord, SecretBytes};
use crate::pod::PodRecord;

/// The key of the token itself among the object's data.
const VALUE: &str = "token";
/// The key of the time at which it expires, in RFC 3339.
const EXPIRY: &str = "expires";
/// The key of the time at which it was issued, by the node's clock.
const ISSUED: &str = "issued";
/// Kubernetes' lifetime of a token whose projection specifies none, in seconds.
pub(super) const DEFAULT_LIFETIME: i64 = 3_600;

/// A token to request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenDemand {
    /// The service account's name.
    pub service_account: String,
    /// The pod that it is bound to.
    pub pod_uid: String,
    /// Its requested lifetime in seconds.
    pub lifetime: i64,
    /// Whom it is for; `None` for the apiserver.
    pub audience: Option<String>,
}

impl TokenDemand {
    /// The token that the projection of `pod` requires.
    pub fn new(pod: &PodRecord, projection: &ServiceAccountTokenProjection) -> Self {
        let account = pod.spec().service_account_name.as_deref().filter(|name| !name.is_empty());
        Self {
            service_account: account.unwrap_or("default").to_owned(),
            pod_uid: pod.uid.to_string(),
            lifetime: projection.expiration_seconds.unwrap_or(DEFAULT_LIFETIME),
            audience: projection.audience.clone().filter(|audience| !audience.is_empty()),
        }
    }

    /// The name of the object. Only the audience, which is last, may contain a slash.
    pub fn name(&self) -> String {
        let Self { service_account, pod_uid, lifetime, audience } = self;
        format!("{service_account}/{pod_uid}/{lifetime}/{}", audience.as_deref().unwrap_or_default())
    }

    /// The reverse of [`Self::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        let mut parts = name.splitn(4, '/');
        let mut next = || parts.next();
        Some(Self {
            service_account: next()?.to_owned(),
            pod_uid: next()?.to_owned(),
            lifetime: next()?.parse().ok()?,
            audience: Some(next()?.to_owned()).filter(|audience| !audience.is_empty()),
        })
    }
}

/// An issued token as an object.
pub fn record(key: ObjectKey, origin: &str, token: String, expires: Timestamp, issued: Timestamp) -> ObjectRecord {
    ObjectRecord::of_texts(key, origin, [(VALUE, token), (EXPIRY, expires.to_string()), (ISSUED, issued.to_string())])
}

/// The token itself.
pub fn value(record: &ObjectRecord) -> Option<&SecretBytes> {
    record.data.get(VALUE).map(|entry| &entry.bytes)
}

/// When the token expires.
pub fn expiry(record: &ObjectRecord) -> Option<Timestamp> {
    time(record, EXPIRY)
}

/// When a new one is requested: after four fifths of its life and at the latest after a day, as in kubelet. A time in
/// the past if its data cannot be read.
pub fn renewal(record: &ObjectRecord) -> Timestamp {
    let (Some(issued), Some(expires)) = (time(record, ISSUED), time(record, EXPIRY)) else {
        return Timestamp::UNIX_EPOCH;
    };
    renewal_of(issued, expires.as_second().saturating_sub(issued.as_second()))
}

/// The same for a token that was issued at that time with a lifetime in seconds.
pub(super) fn renewal_of(issued: Timestamp, lifetime: i64) -> Timestamp {
    const DAY: i64 = 24 * 3_600;
    let lifetime = lifetime.max(0);
    let after = (lifetime - lifetime / 5).min(DAY);
    Timestamp::from_second(issued.as_second().saturating_add(after)).unwrap_or(issued)
}

fn time(record: &ObjectRecord, key: &str) -> Option<Timestamp> {
    record.data.get(key)?.bytes.expose_text()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::object::ObjectKind;

    #[test]
    fn a_name_holds_the_whole_demand() {
        for audience in [None, Some("https://vault.example/a/b".to_owned())] {
            let demand = TokenDemand {
                service_account: "builder".to_owned(),
                pod_uid: "u-1".to_owned(),
                lifetime: 600,
                audience,
            };
            assert_eq!(TokenDemand::from_name(&demand.name()), Some(demand));
        }
        assert_eq!(TokenDemand::from_name("a/b"), None);
    }

    #[test]
    fn a_token_survives_the_disk_and_is_renewed_after_four_fifths_of_its_life() {
        let key = ObjectKey::new(ObjectKind::ServiceAccountToken, "shop", "builder/u-1/3600/");
        let at = |second| Timestamp::from_second(second).unwrap();
        let token = record(key.clone(), "apiserver", "secret".to_owned(), at(5_000 + 3_600), at(5_000));
        let stored: Value = serde_json::from_slice(&token.manifest()).unwrap();
        let restored = super::super::restore(&stored, "apiserver").unwrap().unwrap();
        assert_eq!(restored, token);
        assert_eq!(value(&restored).unwrap().expose_text(), Some("secret"));
        assert_eq!((renewal(&token), expiry(&token)), (at(5_000 + 2_880), Some(at(8_600))));
        let long = record(key, "apiserver", "secret".to_owned(), at(365 * 86_400), at(0));
        assert_eq!(renewal(&long), at(86_400));
    }
}
