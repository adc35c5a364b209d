//! A bundle at a URL: a conditional GET, which goes on with `Range` and `If-Range` where an earlier answer broke off.

use std::sync::Arc;

use jiff::Timestamp;
use limpet_host::throttle::Throttle;
use reqwest::header::{CONTENT_RANGE, HeaderMap, HeaderValue, IF_RANGE, RANGE};
use reqwest::{Response, StatusCode};

use super::foresight::{FirstBytes, Foresight, NotNeeded};
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
}

impl UrlOrigin {
    pub(super) fn new(settings: HttpSettings, throttle: Throttle) -> Self {
        Self { fetcher: Fetcher::new(Arc::new(settings), Timeouts::default()), throttle }
    }

    /// One exchange. What was received of an answer that breaks off is kept.
    pub(super) async fn fetch(&mut self, part: &mut Part, foresight: &Foresight) -> Result<Fetched, Failure> {
        let begun = part.partial().await.and_then(|(version, size)| Some((serde_json::from_str(&version).ok()?, size)));
        let resumed: Option<(Validators, u64)> =
            begun.filter(|(version, _): &(Validators, u64)| version.etag().is_some());
        let known: Option<Validators> = part.complete().and_then(|version| serde_json::from_str(version).ok());
        let (known, further) = match &resumed {
            Some((version, size)) => (None, range(version, *size)),
            None => (known.as_ref(), HeaderMap::new()),
        };
        let asked = Asked { accept: ACCEPT, encoding: "identity", further, takes_part: resumed.is_some() };
        match self.fetcher.open(known, &asked).await {
            Ok(Opened::NotModified) => Ok(Fetched::Known),
            Ok(Opened::Response(url, response)) => {
                let version = Validators::new(&url, response.headers());
                let offset = resumed.map(|(_, size)| size).filter(|size| goes_on(&response, *size));
                let version = version.and_then(|version| serde_json::to_string(&version).ok());
                let offset = offset.unwrap_or(0);
                let first = foresight.begin(offset);
                let not_needed = receive(*response, part, version.clone(), offset, (first, &self.throttle)).await?;
                Ok(match not_needed {
                    Some(why) => Fetched::NotNeeded { version, why },
                    None => Fetched::Whole(Whole { version, resumed: offset > 0 }),
                })
            }
            Err(failure) => {
                // The server has no such range: what is there is of no use.
                if resumed.is_some()
                    && !matches!(failure.result, limpet_core::source::http_schedule::ExchangeResult::Unreachable)
                {
                    let complete = part.complete().map(str::to_owned);
                    part.done(complete).await.map_err(|error| unwritable(&error))?;
                }
                Err(failure)
            }
        }
    }
}

fn range(version: &Validators, size: u64) -> HeaderMap {
    let fields = [(RANGE, Some(format!("bytes={size}-"))), (IF_RANGE, version.etag().map(str::to_owned))];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name, HeaderValue::from_str(&value?).ok()?)));
    fields.collect()
}

/// Whether the answer goes on at `size`.
fn goes_on(response: &Response, size: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let begins = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok());
    response.status() == StatusCode::PARTIAL_CONTENT && begins == Some(size)
}

/// Receives a file, unless its first bytes say that it is not needed.
async fn receive(
    mut response: Response,
    part: &mut Part,
    version: Option<String>,
    offset: u64,
    (mut first, throttle): (FirstBytes<'_>, &Throttle),
) -> Result<Option<NotNeeded>, Failure> {
    if offset == 0 && response.status() == StatusCode::PARTIAL_CONTENT {
        return Err(Failure::bad_response("answered with another part than was asked for"));
    }
    let mut writer = part.write_from(version, offset).await.map_err(|error| unwritable(&error))?;
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) => {
                if let Some(why) = first.take(&bytes).await {
                    return Ok(Some(why));
                }
                writer = writer.write(&bytes).await.map_err(|error| unwritable(&error))?;
                throttle.read(bytes.len()).await;
            }
            Ok(None) => return writer.finish().await.map(|()| None).map_err(|error| unwritable(&error)),
            Err(error) => {
                writer.finish().await.map_err(|error| unwritable(&error))?;
                return Err(Failure::new(error, Timestamp::now()));
            }
        }
    }
}
