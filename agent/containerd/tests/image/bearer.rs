//! A minimal registry that requires a bearer token and does not support ranges, with its token server: docker-registry has
//! no token server and always supports ranges.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use limpet_tests::image::{Image, MANIFEST_TYPE};

struct Inner {
    image: Image,
    address: String,
    /// The `Authorization` header that the token server requires.
    login: String,
    asked: Mutex<Vec<String>>,
}

pub(crate) struct Bearer {
    pub(crate) address: String,
    inner: Arc<Inner>,
    task: tokio::task::JoinHandle<()>,
}

impl Bearer {
    pub(crate) async fn start(image: Image, login: String) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let inner = Arc::new(Inner { image, address: address.clone(), login, asked: Mutex::default() });
        let router = Router::new()
            .route("/token", get(token))
            .route("/v2/demo/app/{kind}/{reference}", get(content))
            .with_state(Arc::clone(&inner));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, inner, task }
    }

    /// The queries of the token server.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.inner.asked.lock().unwrap().clone()
    }
}

impl Drop for Bearer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn token(State(inner): State<Arc<Inner>>, headers: HeaderMap, uri: Uri) -> Response {
    inner.asked.lock().unwrap().push(uri.query().unwrap_or_default().to_owned());
    let sent = headers.get("authorization").and_then(|value| value.to_str().ok());
    if sent != Some(&inner.login) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    r#"{"token": "t0ken", "expires_in": 300}"#.into_response()
}

async fn content(
    State(inner): State<Arc<Inner>>,
    Path((kind, reference)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if headers.get("authorization").is_none_or(|value| value != "Bearer t0ken") {
        let challenge = format!(
            "Bearer realm=\"http://{}/token\",service=\"demo\",scope=\"repository:demo/app:pull\"",
            inner.address
        );
        return (StatusCode::UNAUTHORIZED, [("www-authenticate", challenge)]).into_response();
    }
    if kind == "manifests" {
        return ([("content-type", MANIFEST_TYPE)], inner.image.manifest.bytes.clone()).into_response();
    }
    let blobs = inner.image.layers.iter().chain([&inner.image.config]);
    match blobs.into_iter().find(|blob| blob.digest() == reference) {
        Some(blob) => blob.bytes.clone().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
