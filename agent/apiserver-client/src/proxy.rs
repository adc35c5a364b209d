//! Connects to the server directly or, like client-go, through the kubeconfig's proxy (`proxy-url`).

use std::fmt;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceExt as _};

use crate::dial::Dial;

/// A proxy. Its credentials are never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Proxy {
    kind: Kind,
    /// The proxy's URL without credentials.
    address: Uri,
    user: Option<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Http,
    Https,
    Socks5,
}

impl Proxy {
    /// Parses a `proxy-url`.
    ///
    /// # Errors
    ///
    /// The URL is invalid. The message does not repeat it, because it may contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let url: Uri = text.parse().map_err(|error| format!("is not a URL such as http://10.0.0.1:3128: {error}"))?;
        let kind = match url.scheme_str() {
            Some("http") => Kind::Http,
            Some("https") => Kind::Https,
            Some("socks5") => Kind::Socks5,
            Some(other) => return Err(format!("has the scheme {other:?}; use http, https or socks5")),
            None => return Err("is not a URL such as http://10.0.0.1:3128".to_owned()),
        };
        let host = url.host().filter(|host| !host.is_empty()).ok_or("has no host")?;
        let port = url.port_u16().unwrap_or(match kind {
            Kind::Http => 80,
            Kind::Https => 443,
            Kind::Socks5 => 1_080,
        });
        let given = url.authority().and_then(|authority| authority.as_str().rsplit_once('@'));
        let user = given.map(|(user, _)| user.split_once(':').unwrap_or((user, "")));
        let scheme = if kind == Kind::Https { Scheme::HTTPS } else { Scheme::HTTP };
        let address = at(scheme, host, port).ok_or("is not a URL such as http://10.0.0.1:3128")?;
        Ok(Self { kind, address, user: user.map(|(name, password)| (decoded(name), decoded(password))) })
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.address)
    }
}

#[derive(Clone)]
pub(crate) enum Way {
    Direct(Dial),
    Http(Tunnel<Dial>),
    Https(Tunnel<HttpsConnector<Dial>>),
    Socks5(SocksV5<Dial>),
}

impl Way {
    /// Connects through `proxy`, if there is one. As in client-go, `tls` also applies to the proxy.
    pub(crate) fn new(dial: Dial, proxy: Option<&Proxy>, tls: &ClientConfig) -> Self {
        let Some(Proxy { kind, address, user }) = proxy else { return Self::Direct(dial) };
        let address = address.clone();
        match kind {
            Kind::Http => Self::Http(with_user(Tunnel::new(address, dial), user.as_ref())),
            Kind::Https => {
                let builder = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_only();
                Self::Https(with_user(Tunnel::new(address, builder.enable_http1().wrap_connector(dial)), user.as_ref()))
            }
            Kind::Socks5 => {
                let socks = SocksV5::new(address, dial);
                Self::Socks5(match user.clone() {
                    Some((name, password)) => socks.with_auth(name, password),
                    None => socks,
                })
            }
        }
    }
}

fn with_user<C>(tunnel: Tunnel<C>, user: Option<&(String, String)>) -> Tunnel<C> {
    let header = user.and_then(|(name, password)| {
        HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(format!("{name}:{password}")))).ok()
    });
    match header {
        Some(header) => tunnel.with_auth(header),
        None => tunnel,
    }
}

impl Service<Uri> for Way {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Each connection waits for its own connector.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let way = self.clone();
        async move {
            match way {
                Self::Direct(dial) => dial.oneshot(server).await.map(MaybeHttpsStream::Http),
                Self::Http(tunnel) => Ok(MaybeHttpsStream::Http(tunnel.oneshot(with_port(&server)).await?)),
                Self::Https(tunnel) => Ok(tunnel.oneshot(with_port(&server)).await?),
                Self::Socks5(socks) => Ok(MaybeHttpsStream::Http(socks.oneshot(with_port(&server)).await?)),
            }
        }
        .boxed()
    }
}

/// The server's URL with its port: without one a proxy would connect to port 80, even for TLS.
fn with_port(server: &Uri) -> Uri {
    let port = server.port_u16().unwrap_or(if server.scheme() == Some(&Scheme::HTTP) { 80 } else { 443 });
    let scheme = server.scheme().cloned().unwrap_or(Scheme::HTTPS);
    server.host().and_then(|host| at(scheme, host, port)).unwrap_or_else(|| server.clone())
}

fn at(scheme: Scheme, host: &str, port: u16) -> Option<Uri> {
    let authority: Authority = format!("{host}:{port}").parse().ok()?;
    Uri::builder().scheme(scheme).authority(authority).path_and_query(PathAndQuery::from_static("/")).build().ok()
}

/// Decodes percent-encoded text of a URL.
fn decoded(text: &str) -> String {
    // `+` and `&` have no special meaning here, unlike in a form.
    let field = text.replace('+', "%2B").replace('&', "%26");
    form_urlencoded::parse(format!("={field}").as_bytes())
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_proxy_has_one_of_three_schemes_and_a_port() {
        let shown = |text: &str| Proxy::parse(text).map(|proxy| format!("{proxy:?}"));
        for (text, expected) in [
            ("http://p", "Http http://p:80/"),
            ("https://p.example:8443/x", "Https https://p.example:8443/"),
            ("socks5://user:secret@[::1]", "Socks5 http://[::1]:1080/"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, message) in [
            ("ftp://p", "has the scheme \"ftp\"; use http, https or socks5"),
            ("p:3128", "is not a URL such as http://10.0.0.1:3128"),
            ("/p", "is not a URL such as http://10.0.0.1:3128"),
        ] {
            assert_eq!(shown(text).unwrap_err(), message, "{text}");
        }
        let user = Proxy::parse("http://a%40b:p%3A+&%25@p").unwrap().user;
        assert_eq!(user, Some(("a@b".to_owned(), "p:+&%".to_owned())));
        assert_eq!(Proxy::parse("http://a@p").unwrap().user, Some(("a".to_owned(), String::new())));
    }

    fn tls() -> ClientConfig {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
    }

    /// Connects to `server` through a proxy that `proxy` simulates.
    async fn connect<F: Future<Output = ()>>(scheme: &str, server: &str, proxy: impl FnOnce(TcpStream) -> F) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{scheme}://u:p@{}", listener.local_addr().unwrap());
        let way =
            Way::new(Dial::new(|connector| connector.enforce_http(false)), Some(&Proxy::parse(&url).unwrap()), &tls());
        let accept = async { proxy(listener.accept().await.unwrap().0).await };
        let (connected, ()) = tokio::join!(way.oneshot(server.parse().unwrap()), accept);
        assert!(connected.is_ok(), "{:?}", connected.err());
    }

    /// What the other side has written so far.
    async fn received(stream: &mut TcpStream) -> Vec<u8> {
        let mut bytes = vec![0; 1_024];
        let count = stream.read(&mut bytes).await.unwrap();
        bytes.truncate(count);
        bytes
    }

    #[tokio::test]
    async fn an_http_proxy_is_asked_for_a_tunnel() {
        for (server, asked) in
            [("https://10.0.0.1:6443", "10.0.0.1:6443"), ("http://api", "api:80"), ("https://api", "api:443")]
        {
            let proxy = |mut stream: TcpStream| async move {
                let request = received(&mut stream).await;
                let request = String::from_utf8_lossy(&request).to_ascii_lowercase();
                assert!(request.starts_with(&format!("connect {asked} http/1.1\r\n")), "{request}");
                assert!(request.contains("proxy-authorization: basic dtpw\r\n"), "{request}");
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            };
            connect("http", server, proxy).await;
        }
    }

    #[tokio::test]
    async fn a_socks_proxy_resolves_the_servers_name() {
        let proxy = |mut stream: TcpStream| async move {
            let methods = received(&mut stream).await;
            assert_eq!(methods[0], 5);
            stream.write_all(&[5, 2]).await.unwrap();
            assert_eq!(received(&mut stream).await, [1, 1, b'u', 1, b'p']);
            stream.write_all(&[1, 0]).await.unwrap();
            let name = [&[5, 1, 0, 3, 3][..], b"api", &6443_u16.to_be_bytes()].concat();
            assert_eq!(received(&mut stream).await, name);
            stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
        };
        connect("socks5", "https://api:6443", proxy).await;
    }
}
