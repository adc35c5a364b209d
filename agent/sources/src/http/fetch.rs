//! One exchange: requests the URL, follows redirects, reads a response that is complete and not too large.

use std::sync::Arc;

use jiff::Timestamp;
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, DATE, ETAG, HeaderMap, HeaderName, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    LAST_MODIFIED, LOCATION, RETRY_AFTER, TRANSFER_ENCODING,
};
use reqwest::{Response, StatusCode, Url};
use serde::{Deserialize, Serialize};

use super::body::{BodyFormat, MAX_BODY};
use super::client::{Clients, Timeouts};
use super::failure::Failure;
use super::settings::{HttpSettings, digest, shown};
use limpet_core::source::http_schedule;

/// How many redirects are followed in one exchange.
const MAX_REDIRECTS: usize = 5;
/// The limit of a response's validators, in bytes.
const MAX_VALIDATOR: usize = 1 << 10;

/// What identifies a known response to the server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// Digest of the URL that sent the response, because redirects may lead elsewhere the next time.
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_modified: Option<String>,
}

impl Validators {
    /// Those of a response to that URL; `None`: it has none.
    pub fn new(url: &Url, headers: &HeaderMap) -> Option<Self> {
        let text = |name: HeaderName| {
            let value = headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
            value.filter(|value| value.len() <= MAX_VALIDATOR)
        };
        let validators = Self { url: digest(url.as_str()), etag: text(ETAG), last_modified: text(LAST_MODIFIED) };
        (validators.etag.is_some() || validators.last_modified.is_some()).then_some(validators)
    }

    /// The strong `ETag`: the same bytes have it, and no others.
    pub fn etag(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| !etag.starts_with("W/"))
    }
}

/// The parts of a request that differ between manifests and bundles.
pub struct Asked {
    pub accept: &'static str,
    pub encoding: &'static str,
    /// Further headers, for the URL's own host and others.
    pub further: HeaderMap,
    /// A part of the content is taken, too.
    pub takes_part: bool,
}

/// A response whose body was not read yet.
pub enum Opened {
    /// The response is the known one.
    NotModified,
    /// That of the last URL.
    Response(Url, Box<Response>),
}

/// The result of an exchange that did not fail.
#[derive(Debug)]
pub(super) enum Fetched {
    /// The response is the known one.
    NotModified,
    Body {
        bytes: Vec<u8>,
        validators: Option<Validators>,
    },
}

#[derive(Debug)]
pub struct Fetcher {
    settings: Arc<HttpSettings>,
    timeouts: Timeouts,
    clients: Clients,
}

impl Fetcher {
    pub fn new(settings: Arc<HttpSettings>, timeouts: Timeouts) -> Self {
        let clients = Clients::new(Arc::clone(&settings), timeouts);
        Self { settings, timeouts, clients }
    }

    /// One exchange. `known` identifies the known response. Cancel safe.
    pub(super) async fn fetch(&mut self, known: Option<&Validators>) -> Result<Fetched, Failure> {
        let whole = self.timeouts.whole;
        let fetched = match tokio::time::timeout(whole, self.exchange(known)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(Failure::unreachable(format!("timeout: no complete response within {} s", whole.as_secs()))),
        };
        if fetched.as_ref().is_err_and(|failure| failure.tls) {
            self.clients.reload();
        }
        fetched
    }

    async fn exchange(&mut self, known: Option<&Validators>) -> Result<Fetched, Failure> {
        let accept = "application/yaml, application/json, */*;q=0.5";
        let asked = Asked { accept, encoding: "gzip", further: HeaderMap::new(), takes_part: false };
        match self.follow(known, &asked).await? {
            Opened::NotModified => Ok(Fetched::NotModified),
            Opened::Response(url, response) => read_response(&url, *response).await,
        }
    }

    /// Sends a body to the URL with PUT. Redirects are not followed.
    pub async fn put(&mut self, body: Vec<u8>, headers: HeaderMap) -> Result<(), Failure> {
        let client = self.clients.for_origin().await.map_err(Failure::unreachable)?;
        let request = client.put(self.settings.address.url().clone()).headers(headers).timeout(self.timeouts.whole);
        let sent = request.body(body).send().await.map_err(|error| Failure::new(error, Timestamp::now()));
        if sent.as_ref().is_err_and(|failure| failure.tls) {
            self.clients.reload();
        }
        let response = sent?;
        if response.status().is_success() { Ok(()) } else { Err(bad_status(&response)) }
    }

    /// One exchange without the body, whose reading has no limit of time but that between two reads.
    pub async fn open(&mut self, known: Option<&Validators>, asked: &Asked) -> Result<Opened, Failure> {
        let opened = self.follow(known, asked).await;
        if opened.as_ref().is_err_and(|failure| failure.tls) {
            self.clients.reload();
        }
        opened
    }

    /// Sends the request, to the place to which a server redirects it if it does.
    async fn follow(&mut self, known: Option<&Validators>, asked: &Asked) -> Result<Opened, Failure> {
        let mut url = self.settings.address.url().clone();
        for _ in 0..=MAX_REDIRECTS {
            let (response, conditional) = self.ask(&url, known, asked).await?;
            let status = response.status();
            match status {
                StatusCode::OK => return Ok(Opened::Response(url, Box::new(response))),
                StatusCode::PARTIAL_CONTENT if asked.takes_part => {
                    return Ok(Opened::Response(url, Box::new(response)));
                }
                StatusCode::NOT_MODIFIED if conditional => return Ok(Opened::NotModified),
                _ if is_redirect(status) => url = self.target(&url, &response)?,
                _ => return Err(bad_status(&response)),
            }
        }
        Err(Failure::bad_response(format!("more than {MAX_REDIRECTS} redirects, the last one to {}", shown(&url))))
    }

    /// Sends one request. Returns whether it was a conditional one.
    async fn ask(&mut self, url: &Url, known: Option<&Validators>, asked: &Asked) -> Result<(Response, bool), Failure> {
        let is_own_origin = url.origin() == self.settings.address.url().origin();
        let client = if is_own_origin { self.clients.for_origin().await } else { self.clients.foreign().await };
        let client = client.map_err(Failure::unreachable)?;
        let mut headers = asked.further.clone();
        let known = known.filter(|known| known.url == digest(url.as_str()));
        let validators = known.map(|known| [(IF_NONE_MATCH, &known.etag), (IF_MODIFIED_SINCE, &known.last_modified)]);
        for (name, value) in validators.into_iter().flatten() {
            if let Some(value) = value.as_ref().and_then(|value| value.parse().ok()) {
                headers.insert(name, value);
            }
        }
        if is_own_origin {
            for (name, value) in &self.settings.headers {
                headers.append(name, value.clone());
            }
        }
        let request = client
            .get(url.clone())
            .header(ACCEPT, asked.accept)
            .header(ACCEPT_ENCODING, asked.encoding)
            .headers(headers);
        let response = request.send().await.map_err(|error| Failure::new(error, Timestamp::now()))?;
        Ok((response, known.is_some()))
    }

    /// The target of a redirect.
    fn target(&self, from: &Url, response: &Response) -> Result<Url, Failure> {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location =
            location.ok_or_else(|| Failure::bad_response(format!("{} without a Location", response.status())))?;
        let to = from.join(location).map_err(|_| Failure::bad_response("redirected to an invalid URL"))?;
        match (from.scheme(), to.scheme()) {
            (_, "https") | ("http", "http") if to.has_host() => Ok(to),
            _ => Err(Failure::bad_response(format!(
                "redirected from {} to {}, which is not followed",
                shown(from),
                shown(&to)
            ))),
        }
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    )
}

fn bad_status(response: &Response) -> Failure {
    let text = |name: HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok());
    let asked = text(RETRY_AFTER).and_then(|value| http_schedule::retry_after(value, text(DATE), Timestamp::now()));
    let refuses_request = matches!(
        response.status(),
        StatusCode::BAD_REQUEST | StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::NOT_IMPLEMENTED
    );
    Failure { refuses_request, ..Failure::bad_response(format!("answered {}", response.status())).after(asked) }
}

async fn read_response(url: &Url, response: Response) -> Result<Fetched, Failure> {
    let headers = response.headers();
    let encoding = headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?").trim().to_ascii_lowercase());
    let open_ended = response.content_length().is_none()
        && !headers.contains_key(TRANSFER_ENCODING)
        && response.version() <= reqwest::Version::HTTP_11;
    let format = BodyFormat { encoding, open_ended };
    let validators = Validators::new(url, headers);
    let bytes = read(response).await?;
    let bytes = match format.is_plain() {
        true => bytes,
        false => {
            let decoded = tokio::task::spawn_blocking(move || format.decode(bytes)).await;
            decoded.map_err(|error| Failure::bad_response(error.to_string()))??
        }
    };
    Ok(Fetched::Body { bytes, validators })
}

async fn read(mut response: Response) -> Result<Vec<u8>, Failure> {
    let too_large = || Failure::bad_response(format!("a response larger than {} MiB", MAX_BODY >> 20));
    if response.content_length().is_some_and(|length| length > MAX_BODY as u64) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| Failure::new(error, Timestamp::now()))? {
        if bytes.len() + chunk.len() > MAX_BODY {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
