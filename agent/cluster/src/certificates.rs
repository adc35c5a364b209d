//! Requests and renews the node's certificates, as kubelet does: the one with which it authenticates to the
//! apiserver, and the one that its own API presents. The first CertificateSigningRequest uses the bootstrap
//! kubeconfig's credentials; further ones follow in time before each certificate expires.
//!
//! [`limpet_core::certificate`] decides when. Nothing waits for a certificate: pods run without it.

mod node_names;
mod signing_request;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::link::{self, Link};
use super::seen_node::NodeFromApiserver;
use crate::certificate_files::{Contents, FileError, Files, Purpose, supersedes, validity};
use crate::settings::ClusterSettings;
use limpet_apiserver_client::kubeconfig::{self, KubeconfigError};
use limpet_apiserver_client::watch::{Change, Watch};
use limpet_apiserver_client::{Client, Request, RequestError, Resource, Selector, WatchFrom};
use limpet_core::certificate::{self, CertificateStep, Identity, Validity};
use limpet_core::connectivity;
use limpet_core::node_state::NodeNetwork;
use limpet_host::{blocking, private_file, wall_clock};
use limpet_model::error_chain::error_chain;
use node_names::NodeNames;
use signing_request::{Verdict, verdict};

/// How long a request is watched before it is read again: a human may have to approve it.
const APPROVAL_WATCH_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
enum CertificateError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error("the request cannot be written: {0}")]
    Make(#[from] rcgen::Error),
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The signer or a person has refused the request.
    #[error("CertificateSigningRequest {name} was refused: {reason}")]
    Refused { name: String, reason: String },
    /// The request has not been approved.
    #[error("CertificateSigningRequest {name} is pending; approve it: kubectl certificate approve {name}")]
    Unanswered { name: String },
}

/// Where the node's certificates are stored, and which of them are requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSettings {
    /// `--cert-dir`: the directory of the certificates.
    pub directory: PathBuf,
    /// `serverTLSBootstrap`: the certificate of the node's own API is requested.
    pub serving: bool,
}

/// Requests certificates, as far as this is configured.
pub(super) async fn run(
    link: Link,
    (settings, certificates): (ClusterSettings, CertificateSettings),
    node: String,
    network: watch::Receiver<NodeNetwork>,
    seen: watch::Receiver<NodeFromApiserver>,
) {
    let rotation = |purpose| CertificateRotation {
        link: link.clone(),
        files: Files::new(certificates.directory.clone(), purpose),
        purpose,
        node: node.clone(),
        chance: fastrand::u64(..),
    };
    let client = async {
        if settings.manages_certificate() {
            rotation(Purpose::Client).keep_client(&settings).await;
        }
    };
    let serving = async {
        if certificates.serving {
            let cloud = settings.external_cloud.then_some(seen);
            rotation(Purpose::Serving).keep_serving(NodeNames { node: node.clone(), network, cloud }).await;
        }
    };
    tokio::join!(client, serving);
}

/// Keeps one certificate valid.
struct CertificateRotation {
    link: Link,
    files: Files,
    purpose: Purpose,
    node: String,
    /// Spreads the renewals of nodes that started together; a random number.
    chance: u64,
}

impl CertificateRotation {
    async fn keep_client(self, settings: &ClusterSettings) {
        let Some(kubeconfig) = settings.kubeconfig.clone() else { return };
        let (mut failures, mut issued) = (0, None);
        loop {
            let bootstrap = settings.bootstrap_kubeconfig.clone();
            let identity = self.identity(kubeconfig.clone()).await;
            let held = match identity {
                Identity::Certificate(validity) | Identity::Embedded(validity) => Some(validity),
                Identity::None | Identity::Other => None,
            };
            self.show(held);
            let now = Timestamp::now();
            let (can_bootstrap, rotate) = (bootstrap.is_some(), settings.rotate_certificates);
            let step = certificate::next(identity, can_bootstrap, rotate, self.chance, issued, now);
            let outcome = match (step, bootstrap) {
                (CertificateStep::Wait(at), _) => {
                    let reconnected = async {
                        self.link.lost().await;
                        self.link.online().await;
                    };
                    tokio::select! {
                        () = wait(at) => {}
                        // The connection may use other credentials, given to a node whose own had expired.
                        () = reconnected => {}
                    }
                    continue;
                }
                (CertificateStep::Bootstrap, Some(bootstrap)) => self.bootstrap(bootstrap, kubeconfig.clone()).await,
                (CertificateStep::Bootstrap | CertificateStep::Renew, _) => {
                    tokio::select! {
                        () = self.link.online() => {}
                        // From then on the server refuses the certificate, and only the bootstrap kubeconfig helps.
                        () = wait(held.map(|held| held.not_after)) => continue,
                    }
                    self.obtain(&Requester::Node(self.link.clone()), BTreeSet::new()).await
                }
            };
            if self.record_outcome(outcome, &mut failures).await {
                issued = Some(Timestamp::now());
                self.link.renew_client();
            }
        }
    }

    async fn keep_serving(self, mut node_names: NodeNames) {
        let (mut failures, mut issued, mut issued_for) = (0, None, None);
        loop {
            let names = node_names.current();
            let held = self.contents().await;
            self.show(held.as_ref().map(|held| held.validity));
            // A certificate with more names than the node has now is still usable. Names that a signer has left out
            // it would leave out again.
            let is_usable = |held: &Contents| held.names.is_superset(&names) || issued_for.as_ref() == Some(&names);
            let usable = held.filter(is_usable).map(|held| held.validity);
            let next = match names.is_empty() {
                true => CertificateStep::Wait(None),
                false => certificate::next_serving(usable, self.chance, issued, Timestamp::now()),
            };
            if let CertificateStep::Wait(at) = next {
                tokio::select! {
                    () = wait(at) => {}
                    () = node_names.changed_from(&names) => {}
                }
                continue;
            }
            let requester = Requester::Node(self.link.clone());
            let obtain = async {
                self.link.online().await;
                self.obtain(&requester, names.clone()).await
            };
            tokio::select! {
                outcome = obtain => if self.record_outcome(outcome, &mut failures).await {
                    (issued, issued_for) = (Some(Timestamp::now()), Some(names));
                },
                // The request may be outdated by now.
                () = node_names.changed_from(&names) => {}
            }
        }
    }

    /// Sets the certificate's expiry in the metrics.
    fn show(&self, held: Option<Validity>) {
        self.link.metrics().certificate_held(self.purpose.metric(), held.map(|held| held.not_after));
    }

    /// The node's current client certificate. Without a kubeconfig it has none yet: a power cut may have come between
    /// writing the two files.
    async fn identity(&self, kubeconfig: PathBuf) -> Identity {
        let current = self.files.current();
        let look = move |_: &_| match kubeconfig::certificate(&kubeconfig) {
            Ok(_) if supersedes(&current, &kubeconfig, Timestamp::now()) => {
                validity(&current).map(Identity::Certificate)
            }
            Ok(user_certificate) => {
                let user_certificate = user_certificate?;
                let identity = if user_certificate.is_embedded { Identity::Embedded } else { Identity::Certificate };
                Contents::parse(&user_certificate.pem).map(|contents| identity(contents.validity))
            }
            Err(_) => Some(Identity::None),
        };
        blocking::run(self.files.current(), blocking::DEADLINE, look).await.ok().flatten().unwrap_or(Identity::Other)
    }

    async fn contents(&self) -> Option<Contents> {
        let files = self.files.clone();
        let look = blocking::run(self.files.current(), blocking::DEADLINE, move |_| files.contents());
        look.await.ok().flatten()
    }

    /// Records the result of a request. Returns whether there is a new certificate. After a failure it pauses first.
    async fn record_outcome(&self, outcome: Result<(), CertificateError>, failures: &mut u32) -> bool {
        let Err(error) = outcome else {
            *failures = 0;
            let file = self.files.current();
            tracing::info!(file = %file.display(), "the node has obtained a certificate");
            return true;
        };
        *failures += 1;
        self.link.metrics().renewal_failed(self.purpose.metric());
        // A refused request is not repeated immediately.
        let retry_after = match &error {
            CertificateError::Request(error) => error.retry_after(),
            CertificateError::Refused { .. } | CertificateError::File(FileError::Over { .. }) => {
                Some(connectivity::MAX_REQUESTED_DELAY)
            }
            _ => None,
        };
        if *failures == 1 || !matches!(error, CertificateError::Request(_)) {
            let purpose = self.purpose.file_name();
            tracing::warn!(purpose, error = error_chain(&error), "obtaining the node's certificate failed");
        }
        self.link.pause(*failures, retry_after).await;
        false
    }

    /// Requests a certificate with the bootstrap kubeconfig, and writes the kubeconfig that refers to it.
    async fn bootstrap(&self, bootstrap: PathBuf, kubeconfig: PathBuf) -> Result<(), CertificateError> {
        let client = link::open(bootstrap.clone(), None).await?.client;
        self.obtain(&Requester::Bootstrap(client), BTreeSet::new()).await?;
        let certificate = self.files.current();
        let write = move |_: &_| {
            let text = kubeconfig::for_node(&bootstrap, &certificate)?;
            private_file::write(&kubeconfig, &text)
                .map_err(|source| CertificateError::Write { path: kubeconfig.clone(), source })
        };
        blocking::run(self.files.current(), blocking::DEADLINE, write).await?
    }

    /// Requests a certificate, waits for it and saves it.
    async fn obtain(&self, requester: &Requester, names: BTreeSet<String>) -> Result<(), CertificateError> {
        let files = self.files.clone();
        let key = blocking::run(self.files.current(), blocking::DEADLINE, move |_| files.key()).await??;
        let name = request_name(&key, &names, requester);
        let body = self.purpose.object(&name, &signing_request(&self.node, &names, &key)?);
        match requester.send(Request::create(Resource::CertificateSigningRequests, body)).await {
            // An earlier run of the agent has created the request.
            Err(error) if error.is_conflict() => {}
            created => drop(created?),
        }
        tracing::info!(
            name,
            "certificate requested; if the cluster does not approve it automatically: kubectl certificate approve {name}"
        );
        let answered = tokio::time::timeout(APPROVAL_WATCH_TIMEOUT, answer(requester, &name)).await;
        let answer = answered.map_err(|_| CertificateError::Unanswered { name: name.clone() })??;
        let files = self.files.clone();
        let keep = move |_: &_| match answer {
            Ok(certificate) => files.save(&key, &certificate, Timestamp::now()).map(|_| ()).map_err(Into::into),
            Err(reason) => {
                files.forget_key();
                Err(CertificateError::Refused { name, reason })
            }
        };
        blocking::run(self.files.current(), blocking::DEADLINE, keep).await?
    }
}

/// Waits until `at`, or until the clock is set.
async fn wait(at: Option<Timestamp>) {
    if wall_clock::until(at).await.is_err() {
        // Without a timer the clock is checked at intervals, as in kubelet.
        tokio::time::sleep(APPROVAL_WATCH_TIMEOUT).await;
    }
}

/// Waits for the answer to a request: the certificate, or the reason for the refusal.
async fn answer(requester: &Requester, name: &str) -> Result<Result<String, String>, RequestError> {
    loop {
        let request = requester.send(Request::get(Resource::CertificateSigningRequest(name.to_owned()))).await?;
        match verdict(&request) {
            Verdict::Issued(certificate) => return Ok(Ok(certificate)),
            Verdict::Refused(reason) => return Ok(Err(reason)),
            Verdict::Pending => {}
        }
        let version = request["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let mut watch = requester.watch(name, version).await?;
        while let Some(change) = watch.next().await {
            // The request is read again; it no longer exists if it was deleted.
            if !matches!(change?, Change::Bookmark(_)) {
                break;
            }
        }
    }
}

/// The credentials of a request.
enum Requester {
    Bootstrap(Client),
    /// The node's own credentials.
    Node(Link),
}

impl Requester {
    async fn send(&self, request: Request) -> Result<serde_json::Value, RequestError> {
        match self {
            Self::Bootstrap(client) => client.send(request).await,
            Self::Node(link) => link.send(request).await,
        }
    }

    async fn watch(&self, name: &str, version: &str) -> Result<Watch, RequestError> {
        let selector = Selector::of_name(name);
        let (resource, from) = (Resource::CertificateSigningRequests, WatchFrom::Version(version));
        match self {
            Self::Bootstrap(client) => client.watch(resource, &selector, from, APPROVAL_WATCH_TIMEOUT).await,
            Self::Node(link) => link.watch(resource, &selector, from, APPROVAL_WATCH_TIMEOUT).await,
        }
    }
}

/// The request's name: equal for equal keys and names, so that no request is duplicated.
fn request_name(key: &KeyPair, names: &BTreeSet<String>, requester: &Requester) -> String {
    let mut digest = Sha256::new();
    digest.update(key.subject_public_key_info());
    names.iter().for_each(|name| digest.update(format!("{name}\n")));
    let hash: String = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    match requester {
        Requester::Bootstrap(_) => format!("node-csr-{hash}"),
        Requester::Node(_) => format!("csr-{hash}"),
    }
}

/// The request in PEM. The node authorizer requires the group, and the prefix of the name.
fn signing_request(node: &str, names: &BTreeSet<String>, key: &KeyPair) -> Result<String, rcgen::Error> {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{node}"));
    let (addresses, names): (Vec<&String>, Vec<&String>) =
        names.iter().partition(|name| name.parse::<IpAddr>().is_ok());
    let names = names.into_iter().chain(addresses).cloned().collect::<Vec<_>>();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = subject;
    params.serialize_request(key)?.pem()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use x509_parser::prelude::{FromDer as _, X509CertificationRequest};

    use super::*;

    #[test]
    fn a_request_names_the_node_and_its_addresses() {
        let names = BTreeSet::from(["192.0.2.1".to_owned(), "edge1".to_owned(), "2001:db8::1".to_owned()]);
        let pem = signing_request("edge1", &names, &KeyPair::generate().unwrap()).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        assert_eq!(request.certification_request_info.subject.to_string(), "O=system:nodes, CN=system:node:edge1");
        assert_eq!(request.requested_extensions().unwrap().count(), 1);
    }
}
