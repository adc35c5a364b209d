//! Service accounts and their tokens for image credential providers. `references` keeps the tokens of volumes, and
//! sends the same document.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::link::Link;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::connectivity;
use limpet_model::service_account::{AccountOfPod, ServiceAccount, ServiceAccounts};

/// The longest pause that is requested after a refusal. [`Link::pause`] adds up to half of it, which makes two
/// minutes, as in kubelet.
const MAX_REFUSAL_PAUSE: Duration = Duration::from_secs(80);
/// This many refused requests are repeated as soon as other failures.
const QUICK_RETRIES: u32 = 4;

/// A TokenRequest for a token that is bound to a pod. `lifetime` is in seconds; `None` uses the server's default.
pub(super) fn token_request(audience: Option<&str>, lifetime: Option<i64>, pod: &str, pod_uid: &str) -> Value {
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audience.into_iter().collect::<Vec<_>>(),
            "expirationSeconds": lifetime,
            "boundObjectRef": { "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod_uid },
        },
    })
}

/// The pause to request from [`Link::pause`] after the `failures`th failed TokenRequest in a row. Repeated refusals,
/// as for a deleted service account, are retried rarely, because only a change in the cluster helps. The first
/// refusals may concern an account, or a right of the node, that is just being created.
pub(super) fn retry_pause(error: &RequestError, failures: u32) -> Option<Duration> {
    match error.code() {
        Some(400 | 403 | 404 | 422) if failures > QUICK_RETRIES => {
            Some(connectivity::refusal_pause(failures - QUICK_RETRIES, fastrand::u64(..)).min(MAX_REFUSAL_PAUSE))
        }
        _ => error.retry_after(),
    }
}

impl ServiceAccounts for Link {
    fn account<'a>(&'a self, pod: &'a AccountOfPod) -> BoxFuture<'a, Result<ServiceAccount, String>> {
        let request = Request::get(Resource::ServiceAccount(pod.namespace.clone(), pod.name.clone()));
        async move { Ok(read(&self.send(request).await.map_err(|error| error.to_string())?)) }.boxed()
    }

    fn token<'a>(
        &'a self,
        pod: &'a AccountOfPod,
        uid: &'a str,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<String, String>> {
        let mut document = token_request(Some(audience), None, &pod.pod, &pod.pod_uid);
        // A later account with the same name has no token for this pod.
        document["metadata"] = json!({ "uid": uid });
        let request = Request::create(Resource::ServiceAccountToken(pod.namespace.clone(), pod.name.clone()), document);
        async move {
            let answer = self.send(request).await.map_err(|error| error.to_string())?;
            let token = answer["status"]["token"].as_str().ok_or("a TokenRequest without a token")?;
            Ok(token.to_owned())
        }
        .boxed()
    }
}

/// The used fields of a ServiceAccount.
fn read(object: &Value) -> ServiceAccount {
    let metadata = &object["metadata"];
    let annotations = metadata["annotations"].as_object().into_iter().flatten();
    let annotations = annotations.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    ServiceAccount {
        uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
        annotations: annotations.collect::<BTreeMap<_, _>>(),
    }
}
