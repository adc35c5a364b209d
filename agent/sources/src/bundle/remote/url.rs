//! A bundle at a URL: a conditional GET of its first bytes, which say whether the rest is needed, and one of the rest,
//! which goes on with `Range` and `If-Range` where an earlier answer broke off.

use std::sync::Arc;

use jiff::Timestamp;
use limpet_bundle::announcement::ANNOUNCEMENT_BYTES;
use limpet_core::source::http_schedule::ExchangeResult;
use limpet_host::throttle::Throttle;
use reqwest::header::{CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue, IF_RANGE, RANGE};
use reqwest::{Response, StatusCode, Url};

use super::foresight::{Foresight, NotNeeded};
use super::part::Part;
use super::{Fetched, Whole, unwritable};
use crate::http::HttpSettings;
use crate::http::client::Timeouts;
use crate::http::failure::Failure;
use crate::http::fetch::{Asked, Fetcher, Opened, Validators};

/// A file of bytes, as they are.
const ACCEPT: &str = "application/vnd.limpet.bundle.v1+tar, application/octet-stream, */*;q=0.5";

#[derive(Debug)]
pub(super) struct UrlOrigin {
    fetcher: Fetcher,
    throttle: Throttle,
    /// The server sends parts of a file together with a strong `ETag`, as far as is known.
    sends_parts: bool,
}

impl UrlOrigin {
    pub(super) fn new(settings: HttpSettings, throttle: Throttle) -> Self {
        Self { fetcher: Fetcher::new(Arc::new(settings), Timeouts::default()), throttle, sends_parts: true }
    }

    /// One exchange. What was received of an answer that breaks off is kept.
    pub(super) async fn fetch(&mut self, part: &mut Part, foresight: &Foresight) -> Result<Fetched, Failure> {
        // The first bytes alone are requested again: they say whether the rest is needed.
        if let Some((version, size)) = part.partial().await.filter(|(_, size)| *size > ANNOUNCEMENT_BYTES as u64)
            && let Some(version) = serde_json::from_str(&version).ok().filter(|kept: &Validators| kept.etag().is_some())
        {
            return self.go_on(part, foresight, (&version, size), true).await;
        }
        if self.sends_parts
            && let Some(fetched) = self.begin(part, foresight).await?
        {
            return Ok(fetched);
        }
        match self.fetcher.open(known(part).as_ref(), &asked(HeaderMap::new())).await? {
            Opened::NotModified => Ok(Fetched::Known),
            Opened::Response(url, response) => self.whole(&url, *response, part, foresight).await,
        }
    }

    /// Requests the first bytes, and the rest if it is needed. `None`: the server sends no parts that can be put together.
    async fn begin(&mut self, part: &mut Part, foresight: &Foresight) -> Result<Option<Fetched>, Failure> {
        let first = fields([(RANGE, Some(format!("bytes=0-{}", ANNOUNCEMENT_BYTES - 1)))]);
        let (url, response) = match self.fetcher.open(known(part).as_ref(), &asked(first)).await {
            Ok(Opened::NotModified) => return Ok(Some(Fetched::Known)),
            Ok(Opened::Response(url, response)) => (url, *response),
            Err(failure) if failure.refuses_request => {
                self.sends_parts = false;
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return self.whole(&url, response, part, foresight).await.map(Some);
        }
        let range = ContentRange::read(&response).filter(|range| range.start == 0);
        let version = Validators::new(&url, response.headers()).filter(|version| version.etag().is_some());
        let (Some(range), Some(version)) = (range, version) else {
            self.sends_parts = false;
            return Ok(None);
        };
        let name = serde_json::to_string(&version).ok();
        match self.receive(response, part, name.clone(), (0, foresight)).await? {
            Received::NotNeeded(why) => Ok(Some(Fetched::NotNeeded { version: name, why })),
            Received::Bytes(size) if range.total == Some(size) => {
                Ok(Some(Fetched::Whole(Whole { version: name, resumed: false })))
            }
            Received::Bytes(size) => self.go_on(part, foresight, (&version, size), false).await.map(Some),
        }
    }

    /// Requests the bytes behind the first `size` ones, which are there, of an earlier exchange or of this one.
    async fn go_on(
        &mut self,
        part: &mut Part,
        foresight: &Foresight,
        (version, size): (&Validators, u64),
        resumed: bool,
    ) -> Result<Fetched, Failure> {
        let range = [(RANGE, Some(format!("bytes={size}-"))), (IF_RANGE, version.etag().map(str::to_owned))];
        match self.fetcher.open(None, &asked(fields(range))).await {
            // The request has no condition, so this does not occur.
            Ok(Opened::NotModified) => Ok(Fetched::Known),
            Ok(Opened::Response(url, response)) if response.status() != StatusCode::PARTIAL_CONTENT => {
                self.whole(&url, *response, part, foresight).await
            }
            Ok(Opened::Response(_, response)) => {
                let range = ContentRange::read(&response).filter(|range| range.start == size);
                let Some(range) = range else {
                    return Err(Failure::bad_response("answered with another part than was asked for"));
                };
                // By `If-Range` it is of the version that was asked for.
                let version = serde_json::to_string(version).ok();
                match self.receive(*response, part, version.clone(), (size, foresight)).await? {
                    Received::NotNeeded(why) => Ok(Fetched::NotNeeded { version, why }),
                    Received::Bytes(size) if range.total.is_some_and(|total| size < total) => {
                        Err(Failure::unreachable("answered with a part of what was asked for"))
                    }
                    Received::Bytes(_) => Ok(Fetched::Whole(Whole { version, resumed })),
                }
            }
            Err(failure) => {
                // The server has no such range: what is there is of no use.
                if failure.result != ExchangeResult::Unreachable {
                    let complete = part.complete().map(str::to_owned);
                    part.done(complete).await.map_err(|error| unwritable(&error))?;
                }
                Err(failure)
            }
        }
    }

    /// Receives an answer that has the file from its beginning.
    async fn whole(
        &self,
        url: &Url,
        response: Response,
        part: &mut Part,
        foresight: &Foresight,
    ) -> Result<Fetched, Failure> {
        let version = Validators::new(url, response.headers());
        let version = version.and_then(|version| serde_json::to_string(&version).ok());
        Ok(match self.receive(response, part, version.clone(), (0, foresight)).await? {
            Received::NotNeeded(why) => Fetched::NotNeeded { version, why },
            Received::Bytes(_) => Fetched::Whole(Whole { version, resumed: false }),
        })
    }

    /// Receives the bytes from `offset` on, unless the first of the file say that it is not needed.
    async fn receive(
        &self,
        mut response: Response,
        part: &mut Part,
        version: Option<String>,
        (offset, foresight): (u64, &Foresight),
    ) -> Result<Received, Failure> {
        let mut first = foresight.begin(offset);
        let mut size = offset;
        let mut writer = part.write_from(version, offset).await.map_err(|error| unwritable(&error))?;
        loop {
            match response.chunk().await {
                Ok(Some(bytes)) => {
                    if let Some(why) = first.take(&bytes).await {
                        return Ok(Received::NotNeeded(why));
                    }
                    size += bytes.len() as u64;
                    writer = writer.write(&bytes).await.map_err(|error| unwritable(&error))?;
                    self.throttle.read(bytes.len()).await;
                }
                Ok(None) => {
                    writer.finish().await.map_err(|error| unwritable(&error))?;
                    return Ok(Received::Bytes(size));
                }
                Err(error) => {
                    writer.finish().await.map_err(|error| unwritable(&error))?;
                    return Err(Failure::new(error, Timestamp::now()));
                }
            }
        }
    }
}

/// The result of an answer that was received.
#[derive(Debug)]
enum Received {
    /// The file has this many bytes now.
    Bytes(u64),
    /// The first bytes say that the rest is not needed.
    NotNeeded(NotNeeded),
}

/// `Content-Range: bytes 0-1535/4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ContentRange {
    start: u64,
    /// The size of the whole file; `None` if the server does not say it.
    total: Option<u64>,
}

impl ContentRange {
    fn read(response: &Response) -> Option<Self> {
        Self::parse(response.headers().get(CONTENT_RANGE)?.to_str().ok()?)
    }

    fn parse(value: &str) -> Option<Self> {
        let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
        let (start, _) = range.split_once('-')?;
        Some(Self { start: start.trim().parse().ok()?, total: total.trim().parse().ok() })
    }
}

/// What was handed over before and need not be sent again.
fn known(part: &Part) -> Option<Validators> {
    part.complete().and_then(|version| serde_json::from_str(version).ok())
}

fn asked(further: HeaderMap) -> Asked {
    let takes_part = further.contains_key(RANGE);
    Asked { accept: ACCEPT, encoding: "identity", further, takes_part }
}

fn fields<const N: usize>(fields: [(HeaderName, Option<String>); N]) -> HeaderMap {
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name, HeaderValue::from_str(&value?).ok()?)));
    fields.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_has_a_start_and_perhaps_a_total() {
        let parse = ContentRange::parse;
        assert_eq!(parse("bytes 0-1535/4096"), Some(ContentRange { start: 0, total: Some(4096) }));
        assert_eq!(parse("bytes 1536-4095/*"), Some(ContentRange { start: 1536, total: None }));
        for wrong in ["", "bytes", "bytes */4096", "bytes 5", "lines 0-3/4", "bytes -5/9"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
