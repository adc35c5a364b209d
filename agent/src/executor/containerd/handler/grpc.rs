//! A call of the gRPC health protocol, `grpc.health.v1.Health/Check`, as kubelet's probes make it: with a separate
//! connection, without TLS. Part of [`super`].

use std::net::IpAddr;

use k8s_openapi::api::core::v1::GRPCAction;
use tonic::Code;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::{HandlerError, KUBERNETES, authority};

/// What is checked: a service of the server, or the server itself.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    /// One of the protocol's `ServingStatus`.
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Why a server is not healthy, in kubelet's words.
#[derive(Debug, thiserror::Error)]
pub enum HealthFailure {
    /// There is no connection.
    #[error("error: failed to connect service at {address:?}: {cause}")]
    Connect { address: String, cause: String },
    /// The server has no such service.
    #[error("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {0}")]
    Unimplemented(String),
    #[error("error: health rpc probe failed: rpc error: code = {code:?} desc = {message}")]
    Call { code: Code, message: String },
    /// It answers that it does not serve.
    #[error("service unhealthy (responded with {0:?})")]
    Unhealthy(String),
}

/// Asks the server of `action` whether it serves.
///
/// # Errors
///
/// It does not, or there is no address.
pub async fn check_health(action: &GRPCAction, pod: Option<IpAddr>) -> Result<(), HandlerError> {
    let host = pod.ok_or(HandlerError::NoAddress)?.to_string();
    let port = u16::try_from(action.port).map_err(|_| HandlerError::InvalidPort(action.port))?;
    let address = authority(&host, port);
    let connect = |cause: &dyn std::error::Error| {
        let source = cause.source().map(|source| format!(": {source}")).unwrap_or_default();
        HealthFailure::Connect { address: address.clone(), cause: format!("{cause}{source}") }
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| connect(&error))?;
    let endpoint = endpoint.user_agent(format!("kube-probe/{KUBERNETES}")).map_err(|error| connect(&error))?;
    let mut client = Grpc::new(endpoint.connect().await.map_err(|error| connect(&error))?);
    client.ready().await.map_err(|error| connect(&error))?;
    let request = HealthCheckRequest { service: action.service.clone().unwrap_or_default() };
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let answer =
        client.unary(tonic::Request::new(request), path, codec).await.map_err(|status| match status.code() {
            Code::Unimplemented => HealthFailure::Unimplemented(status.message().to_owned()),
            code => HealthFailure::Call { code, message: status.message().to_owned() },
        })?;
    let status = match answer.into_inner().status {
        1 => return Ok(()),
        0 => "UNKNOWN".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    };
    Err(HealthFailure::Unhealthy(status).into())
}
