//! What a provider with `tokenAttributes` gets of a pod's service account, and for whom its answers are cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use limpet_model::service_account::{AccountOfPod, ServiceAccount, ServiceAccounts};
use serde_json::{Value, json};

use super::*;

/// An apiserver with one account with these annotations. It counts tokens and issues each for its pod.
#[derive(Debug, Default)]
struct Issuer {
    annotations: BTreeMap<String, String>,
    issued: AtomicUsize,
    is_away: bool,
}

impl ServiceAccounts for Issuer {
    fn account<'a>(&'a self, _: &'a AccountOfPod) -> BoxFuture<'a, Result<ServiceAccount, String>> {
        let account = ServiceAccount { uid: "u1".to_owned(), annotations: self.annotations.clone() };
        let answer = if self.is_away { Err("no route to host".to_owned()) } else { Ok(account) };
        async move { answer }.boxed()
    }

    fn token<'a>(
        &'a self,
        pod: &'a AccountOfPod,
        uid: &'a str,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<String, String>> {
        self.issued.fetch_add(1, Ordering::Relaxed);
        let token = format!("token of {uid} for {} at {audience}", pod.pod_uid);
        async move { Ok(token) }.boxed()
    }
}

fn attributes(cache: TokenCache, require: bool) -> TokenAttributes {
    TokenAttributes {
        audience: "q".to_owned(),
        cache,
        require_service_account: require,
        required_annotations: if require { vec!["role".to_owned()] } else { Vec::new() },
        optional_annotations: vec!["zone".to_owned()],
    }
}

fn annotations(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn account(issuer: &Arc<Issuer>, pod: &str) -> PullAccount {
    let pod = AccountOfPod {
        namespace: "lab".to_owned(),
        pod: pod.to_owned(),
        pod_uid: format!("{pod}-uid"),
        name: "puller".to_owned(),
    };
    PullAccount { pod, issuer: Arc::clone(issuer) as Arc<dyn ServiceAccounts> }
}

/// A provider with these attributes whose program prints `answer`, and its directory.
fn asked(attributes: TokenAttributes, answer: &str) -> (CredentialProviders, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("answer"), answer).unwrap();
    let path = program(dir.path(), &format!("cat {}/answer", dir.path().display()));
    let provider = CredentialProvider { token_attributes: Some(attributes), ..provider(&path, &["q.io"]) };
    (CredentialProviders::new(vec![provider]), dir)
}

fn calls(dir: &Path) -> usize {
    fs::read_to_string(dir.join("calls")).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn a_program_gets_a_token_of_the_pods_account_and_its_annotations() {
    let (providers, dir) = asked(attributes(TokenCache::Token, true), &answer("Image", ""));
    let all = annotations(&[("role", "reader"), ("zone", "a"), ("other", "x")]);
    let issuer = Arc::new(Issuer { annotations: all, ..Issuer::default() });
    let provided = providers.credentials(&name("q.io/a"), Some(&account(&issuer, "web"))).await;
    assert_eq!((provided.entries.len(), provided.failures.len()), (1, 0));
    let request: Value = serde_json::from_slice(&fs::read(dir.path().join("request")).unwrap()).unwrap();
    let wanted = json!({
        "kind": "CredentialProviderRequest", "apiVersion": V1, "image": "q.io/a",
        "serviceAccountToken": "token of u1 for web-uid at q",
        "serviceAccountAnnotations": { "role": "reader", "zone": "a" },
    });
    assert_eq!(request, wanted);
}

#[tokio::test]
async fn answers_are_cached_for_a_pod_or_for_all_of_its_account() {
    for (cache, wanted) in [(TokenCache::Token, 2), (TokenCache::ServiceAccount, 1)] {
        let (providers, dir) = asked(attributes(cache, true), &answer("Global", ""));
        let issuer = Arc::new(Issuer { annotations: annotations(&[("role", "reader")]), ..Issuer::default() });
        for pod in ["web", "web", "db", "db"] {
            let provided = providers.credentials(&name("q.io/a"), Some(&account(&issuer, pod))).await;
            assert_eq!(provided.entries.len(), 1, "{cache:?} {pod}");
        }
        assert_eq!((calls(dir.path()), issuer.issued.load(Ordering::Relaxed)), (wanted, wanted), "{cache:?}");
        // The annotations that the program sees have changed.
        let other = Arc::new(Issuer { annotations: annotations(&[("role", "writer")]), ..Issuer::default() });
        providers.credentials(&name("q.io/a"), Some(&account(&other, "web"))).await;
        assert_eq!(calls(dir.path()), wanted + 1, "{cache:?}");
    }
}

#[tokio::test]
async fn a_pod_without_the_account_or_its_annotation_has_no_credentials_of_the_program() {
    let (providers, dir) = asked(attributes(TokenCache::Token, true), &answer("Image", ""));
    let issuer = Arc::new(Issuer { annotations: annotations(&[("zone", "a")]), ..Issuer::default() });
    for account in [None, Some(account(&issuer, "web"))] {
        let provided = providers.credentials(&name("q.io/a"), account.as_ref()).await;
        assert_eq!((provided.entries.len(), provided.failures.len(), calls(dir.path())), (0, 0, 0));
    }
    // The provider does not require an account, so the program is called without a token.
    let (providers, dir) = asked(attributes(TokenCache::Token, false), &answer("Image", ""));
    assert_eq!(providers.credentials(&name("q.io/a"), None).await.entries.len(), 1);
    let request = fs::read_to_string(dir.path().join("request")).unwrap();
    assert!(!request.contains("serviceAccount"), "{request}");
}

#[tokio::test]
async fn why_there_is_no_token_or_no_use_of_it_is_reported_without_it() {
    let away = Arc::new(Issuer { is_away: true, ..Issuer::default() });
    let (providers, _dir) = asked(attributes(TokenCache::Token, true), &answer("Image", ""));
    let provided = providers.credentials(&name("q.io/a"), Some(&account(&away, "web"))).await;
    let wanted = "credential provider test: service account lab/puller: no route to host";
    assert_eq!(provided.failures, [wanted]);

    let echo = answer("Image", "").replace("hunter2", "token of u1 for web-uid at q");
    for (cache, usable) in [(TokenCache::Token, 1), (TokenCache::ServiceAccount, 0)] {
        let (providers, _dir) = asked(attributes(cache, false), &echo);
        let issuer = Arc::new(Issuer::default());
        let provided = providers.credentials(&name("q.io/a"), Some(&account(&issuer, "web"))).await;
        assert_eq!((provided.entries.len(), provided.failures.len()), (usable, 1 - usable), "{cache:?}");
        assert!(!provided.failures.join("").contains("web-uid"), "{:?}", provided.failures);
    }
}
