//! A client of a registry and its mirrors for one image: the OCI distribution protocol over HTTP.
//!
//! The hosts in `certs.d` are tried in order; the one that served the manifest is tried first for the rest. A session
//! lives as long as its pull: an idle agent holds no connection, no certificate store and no password in memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, RANGE};
use reqwest::{Response, StatusCode, Url};

use super::auth::Keyring;
use super::certs::{self, Endpoint};
use super::document;
use super::error::ImageError;
use super::failure::{Failure, Kind};
use super::http::{Body, Elsewhere, Http, place, read_bounded};
use super::login::Login;
use limpet_host::throttle::Throttle;
use limpet_model::image_name::ImageName;
use limpet_model::pull_credential::PullCredential;

/// How often all hosts are retried while a registry is busy.
const MAX_ROUNDS: u32 = 4;
/// The first pause if a busy registry asks for none; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause within a pull. Longer ones are left to the back-off of pulls, which delays no other pull.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// The most hosts at which one request may log in: the registry, and those it redirects to.
const MAX_LOGINS: usize = 3;

/// One host of a session.
struct Host {
    endpoint: Endpoint,
    /// As configured, or for an ambiguous URL with and without TLS, as in containerd. The first that answers is kept.
    https: Vec<Http>,
    /// The index of the one that answered.
    spoken: AtomicUsize,
    login: Login,
    elsewhere: Elsewhere,
    /// The source of the credentials in `login`.
    source: PullCredential,
    /// Whether it has served requested content.
    served: AtomicBool,
}

/// The hosts that may have an image.
pub(super) struct Session {
    pub(super) name: ImageName,
    hosts: Vec<Host>,
    /// The index of the host that last answered.
    preferred: AtomicUsize,
    /// The rate at which blobs are read.
    pub(super) throttle: Throttle,
}

/// A document with its media type and digest from the registry.
#[derive(Debug)]
pub(super) struct FetchedDocument {
    pub(super) bytes: Vec<u8>,
    pub(super) digest: String,
    pub(super) media_type: String,
}

/// Which bytes of a document or blob are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Requested {
    From(u64),
    First(u64),
}

impl Requested {
    const ALL: Self = Self::From(0);

    fn offset(self) -> u64 {
        match self {
            Self::From(offset) => offset,
            Self::First(_) => 0,
        }
    }
}

/// A blob being downloaded.
pub(super) struct Download {
    body: Body,
    /// The offset of the first byte in the blob.
    pub(super) offset: u64,
    throttle: Throttle,
}

impl Download {
    /// The next piece; `None` at the end.
    pub(super) async fn chunk(&mut self) -> Result<Option<bytes::Bytes>, String> {
        let chunk = self.body.chunk().await?;
        self.throttle.read(chunk.as_ref().map_or(0, bytes::Bytes::len)).await;
        Ok(chunk)
    }
}

impl Session {
    /// Reads `certs.d` and the certificates it names. Blocks. `turn` selects one of several credentials.
    pub(super) fn prepare(
        name: ImageName,
        certs_d: &std::path::Path,
        keyring: &Keyring,
        turn: usize,
    ) -> Result<Self, ImageError> {
        let mut hosts = Vec::new();
        for endpoint in certs::endpoints(certs_d, &name.host)? {
            // A mirror gets none of the registry's credentials, because its operator need not be trusted with them.
            let mirrors = if endpoint.mirror { keyring.find(&endpoint.host, &name.repository, turn) } else { None };
            let registrys = || keyring.find(&name.host, &name.repository, turn).filter(|_| endpoint.server);
            let candidate = mirrors.or_else(registrys);
            let source = candidate.map_or(PullCredential::Node, |candidate| candidate.source.clone());
            let bases = std::iter::once(&endpoint.base).chain(&endpoint.other_base);
            let https = bases.map(|base| Http::new(&endpoint, base)).collect::<Result<_, _>>()?;
            let login = Login::new(candidate.map(|candidate| candidate.credentials.clone()));
            let (spoken, elsewhere, served) = (AtomicUsize::new(0), Elsewhere::default(), AtomicBool::new(false));
            hosts.push(Host { endpoint, https, spoken, login, elsewhere, source, served });
        }
        Ok(Self { name, hosts, preferred: AtomicUsize::new(0), throttle: Throttle::default() })
    }

    /// The pod's credential that a host has accepted; the node's if none was needed.
    pub(super) fn credential(&self) -> PullCredential {
        let accepted = |host: &&Host| host.served.load(Ordering::Relaxed) && host.login.was_answered();
        let mut sources = self.hosts.iter().filter(accepted).map(|host| &host.source);
        let of_pod = sources.find(|source| **source != PullCredential::Node);
        of_pod.cloned().unwrap_or(PullCredential::Node)
    }

    /// Which of a pod's credentials may be sent to any host of the image. Blocks.
    pub(super) fn usable(
        name: &ImageName,
        certs_d: &std::path::Path,
        keyring: &Keyring,
    ) -> Result<Vec<PullCredential>, ImageError> {
        let mut usable = Vec::new();
        for endpoint in certs::endpoints(certs_d, &name.host)? {
            let hosts = [endpoint.mirror.then_some(&endpoint.host), endpoint.server.then_some(&name.host)];
            for host in hosts.into_iter().flatten() {
                usable.extend(keyring.candidates(host, &name.repository).map(|candidate| candidate.source.clone()));
            }
        }
        Ok(usable)
    }

    /// Fetches a manifest or index by tag or digest; a digest is verified.
    pub(super) async fn manifest(&self, target: &str) -> Result<FetchedDocument, ImageError> {
        let mut rounds = 0;
        loop {
            let mut hosts = self.attempts(!target.starts_with("sha256:"));
            while let Some(host) = hosts.next() {
                match self.manifest_from(host, target).await {
                    Ok(fetched) => return Ok(hosts.won(fetched)),
                    Err(failure) => hosts.lost(failure),
                }
            }
            hosts.wait_or_fail(&mut rounds).await?;
        }
    }

    async fn manifest_from(&self, host: &Host, target: &str) -> Result<FetchedDocument, Failure> {
        let path = format!("{}/manifests/{target}", self.name.repository);
        let response = self.get(host, &path, Some(document::ACCEPT), Requested::ALL).await?;
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
        let bytes = read_bounded(response, document::MAX_DOCUMENT).await?;
        let (bytes, digest) = document::examine(bytes, document::sha256).await;
        if target.starts_with("sha256:") && target != digest {
            return Err(Failure::new(Kind::Content, format!("asked for {target}, got {digest}")));
        }
        Ok(FetchedDocument { bytes, digest, media_type })
    }

    /// Fetches the list of manifests that refer to an image. A host without a list, or with an empty one, counts as
    /// not having it, because a mirror may lack what the registry has.
    pub(super) async fn referrers(&self, digest: &str) -> Result<Vec<u8>, ImageError> {
        let mut rounds = 0;
        loop {
            let mut hosts = self.attempts(true);
            while let Some(host) = hosts.next() {
                match self.referrers_from(host, digest).await {
                    Ok(bytes) => return Ok(hosts.won(bytes)),
                    Err(failure) => hosts.lost(failure),
                }
            }
            hosts.wait_or_fail(&mut rounds).await?;
        }
    }

    async fn referrers_from(&self, host: &Host, digest: &str) -> Result<Vec<u8>, Failure> {
        let path = format!("{}/referrers/{digest}", self.name.repository);
        let response = self.get(host, &path, Some(document::ACCEPT), Requested::ALL).await?;
        let bytes = read_bounded(response, document::MAX_DOCUMENT).await?;
        let listed = document::examine(bytes, document::lists_manifests).await;
        match listed {
            (bytes, true) => Ok(bytes),
            _ => Err(Failure::new(Kind::NotFound, "no referrers")),
        }
    }

    /// Fetches a small blob completely and verifies it.
    pub(super) async fn small_blob(&self, digest: &str) -> Result<Vec<u8>, ImageError> {
        let mut rounds = 0;
        loop {
            let mut hosts = self.attempts(false);
            while let Some(host) = hosts.next() {
                match self.small_blob_from(host, digest).await {
                    Ok(bytes) => return Ok(hosts.won(bytes)),
                    Err(failure) => hosts.lost(failure),
                }
            }
            hosts.wait_or_fail(&mut rounds).await?;
        }
    }

    async fn small_blob_from(&self, host: &Host, digest: &str) -> Result<Vec<u8>, Failure> {
        let response =
            self.get(host, &format!("{}/blobs/{digest}", self.name.repository), None, Requested::ALL).await?;
        let bytes = read_bounded(response, document::MAX_DOCUMENT).await?;
        let (bytes, actual) = document::examine(bytes, document::sha256).await;
        match actual == digest {
            true => Ok(bytes),
            false => Err(Failure::new(Kind::Content, format!("{digest} is not what was sent"))),
        }
    }

    /// Starts to download a blob at `offset`. The answer begins earlier if the registry does not support ranges.
    pub(super) async fn blob(&self, digest: &str, offset: u64) -> Result<Download, ImageError> {
        self.download(digest, Requested::From(offset)).await
    }

    /// Downloads the first `count` bytes of a blob; all of it if the registry does not support ranges.
    pub(super) async fn blob_start(&self, digest: &str, count: u64) -> Result<Download, ImageError> {
        self.download(digest, Requested::First(count)).await
    }

    async fn download(&self, digest: &str, requested: Requested) -> Result<Download, ImageError> {
        let mut rounds = 0;
        loop {
            let mut hosts = self.attempts(false);
            while let Some(host) = hosts.next() {
                match self.blob_from(host, digest, requested).await {
                    Ok(download) => return Ok(hosts.won(download)),
                    Err(failure) => hosts.lost(failure),
                }
            }
            hosts.wait_or_fail(&mut rounds).await?;
        }
    }

    async fn blob_from(&self, host: &Host, digest: &str, requested: Requested) -> Result<Download, Failure> {
        let response = self.get(host, &format!("{}/blobs/{digest}", self.name.repository), None, requested).await?;
        let begins = match response.status() {
            StatusCode::PARTIAL_CONTENT => range_start(response.headers()).filter(|start| *start <= requested.offset()),
            _ => Some(0),
        };
        let refused = || Failure::new(Kind::Registry, "the answer has another range than requested");
        let offset = begins.ok_or_else(refused)?;
        Ok(Download { body: Body::new(response), offset, throttle: self.throttle.clone() })
    }

    /// The hosts to try, the one that last answered first.
    fn attempts(&self, by_tag: bool) -> Attempts<'_> {
        let preferred = self.preferred.load(Ordering::Relaxed);
        let order = std::iter::once(preferred).chain((0..self.hosts.len()).filter(|i| *i != preferred));
        let may = |i: &usize| {
            self.hosts.get(*i).is_some_and(|host| if by_tag { host.endpoint.resolve } else { host.endpoint.pull })
        };
        let mut order: Vec<usize> = order.filter(may).collect();
        order.reverse();
        Attempts { session: self, order, current: 0, failures: Vec::new() }
    }

    /// Sends a GET with the scheme that the host speaks.
    async fn get(&self, host: &Host, path: &str, accept: Option<&str>, bytes: Requested) -> Result<Response, Failure> {
        let spoken = host.spoken.load(Ordering::Relaxed);
        let http = host.https.get(spoken).ok_or_else(|| Failure::new(Kind::Registry, "no URL"))?;
        let failure = match self.get_by(host, http, path, accept, bytes).await {
            Err(failure) if matches!(failure.kind, Kind::Unreachable | Kind::BadRequest) => failure,
            answer => return answer,
        };
        let other = 1 - spoken.min(1);
        let Some(http) = host.https.get(other).filter(|_| !host.served.load(Ordering::Relaxed)) else {
            return Err(failure);
        };
        match self.get_by(host, http, path, accept, bytes).await {
            Err(second) if second.kind == Kind::Unreachable => {
                let Failure { kind, cause } = failure;
                Err(Failure::new(kind, format!("{cause}; {}: {}", place(http.base()), second.cause)))
            }
            answer => {
                host.spoken.store(other, Ordering::Relaxed);
                answer
            }
        }
    }

    /// Sends a GET, with one login at each host that requires it: the registry's, or one to which it redirects.
    async fn get_by(
        &self,
        host: &Host,
        http: &Http,
        path: &str,
        accept: Option<&str>,
        bytes: Requested,
    ) -> Result<Response, Failure> {
        let url = format!("{}/{path}", http.base());
        let mut url = Url::parse(&url).map_err(|error| Failure::new(Kind::Registry, error.to_string()))?;
        if host.endpoint.mirror {
            url.query_pairs_mut().append_pair("ns", &self.name.host);
        }
        let headers = headers(accept, bytes);
        let mut answered = Vec::new();
        let response = loop {
            let response = http.get(url.clone(), &headers, &host.login, &host.elsewhere).await?;
            let asker = response.url();
            if response.status() != StatusCode::UNAUTHORIZED
                || answered.len() >= MAX_LOGINS
                || answered.contains(&asker.origin())
            {
                break response;
            }
            answered.push(asker.origin());
            let repository = &self.name.repository;
            if http.is_own(asker) {
                host.login.answer(http, asker, response.headers(), repository).await?;
            } else {
                let login = host.elsewhere.anonymous(asker);
                login.answer(http, asker, response.headers(), repository).await.map_err(|failure| {
                    Failure::new(failure.kind, format!("redirected to {}: {}", place(asker), failure.cause))
                })?;
            }
        };
        if matches!(response.status(), StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            host.served.store(true, Ordering::Relaxed);
            return Ok(response);
        }
        let is_refused = matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let with = match is_refused {
            true if http.is_own(response.url()) => host.login.description(),
            true => " without credentials",
            false => "",
        };
        Err(Failure::of_status(&response, "", with))
    }
}

fn headers(accept: Option<&str>, bytes: Requested) -> HeaderMap {
    let range = match bytes {
        Requested::From(0) | Requested::First(0) => None,
        Requested::From(offset) => Some(format!("bytes={offset}-")),
        Requested::First(count) => Some(format!("bytes=0-{}", count - 1)),
    };
    let fields = [(ACCEPT, accept), (RANGE, range.as_deref())];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name, HeaderValue::from_str(value?).ok()?)));
    fields.collect()
}

/// A request that is tried on each host.
struct Attempts<'a> {
    session: &'a Session,
    /// Indexes of the untried hosts, the next at the end.
    order: Vec<usize>,
    current: usize,
    failures: Vec<(usize, Failure)>,
}

impl<'a> Attempts<'a> {
    fn next(&mut self) -> Option<&'a Host> {
        self.current = self.order.pop()?;
        self.session.hosts.get(self.current)
    }

    fn won<T>(&self, answer: T) -> T {
        self.session.preferred.store(self.current, Ordering::Relaxed);
        answer
    }

    fn lost(&mut self, failure: Failure) {
        let host = self.session.hosts.get(self.current).map_or("", |host| host.endpoint.host.as_str());
        let cause = format!("{host}: {}", failure.cause);
        tracing::debug!(image = self.session.name.whole, cause, "registry host did not answer the request");
        self.failures.push((self.current, Failure { kind: failure.kind, cause }));
    }

    /// Returns after a pause if the hosts may answer then; else fails with their answers.
    async fn wait_or_fail(self, rounds: &mut u32) -> Result<(), ImageError> {
        let image = &self.session.name.whole;
        let pause = pause(&self.failures, *rounds);
        let failure = together(self.failures);
        let Some(pause) = pause else { return Err(failure.into_error(image)) };
        *rounds += 1;
        tracing::info!(image, cause = failure.cause, ?pause, "the registry is busy; trying again");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// How long to wait before all hosts are retried; `None` if that would not help, or takes too long for a pull.
fn pause(failures: &[(usize, Failure)], rounds: u32) -> Option<Duration> {
    let is_final = |(_, failure): &(usize, Failure)| !matches!(failure.kind, Kind::Busy(_) | Kind::Unreachable);
    let busy = failures.iter().filter_map(|(_, failure)| match failure.kind {
        Kind::Busy(asked) => Some(asked.unwrap_or(FIRST_PAUSE * 2_u32.saturating_pow(rounds))),
        _ => None,
    });
    // A mirror's refusal is not final while the registry is busy; the registry's is.
    let decides = failures.iter().max_by_key(|(index, _)| *index)?;
    busy.min().filter(|pause| rounds < MAX_ROUNDS && *pause <= LONGEST_PAUSE && !is_final(decides))
}

/// The failure if every host failed. The last in the file, the registry itself, decides the kind, because a mirror
/// without the image proves nothing; all causes are reported.
fn together(mut failures: Vec<(usize, Failure)>) -> Failure {
    failures.sort_by_key(|(i, _)| *i);
    let Some((_, last)) = failures.last() else {
        return Failure::new(Kind::Registry, "no host in certs.d has the capability to serve it");
    };
    let causes: Vec<&str> = failures.iter().map(|(_, failure)| failure.cause.as_str()).collect();
    Failure::new(last.kind, causes.join("; "))
}

/// The first byte of `Content-Range: bytes 5-9/10`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    value.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

#[cfg(test)]
mod tests;
