//! `device-plugins/kubelet.sock`: where device plugins register themselves, `v1beta1.Registration`.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use tonic::{Request, Response, Status};

use super::{DevicePlugins, RegisterError};
use limpet_host::selinux;
use limpet_node_api::device_plugin::registration_server::{Registration, RegistrationServer};
use limpet_node_api::device_plugin::{Empty, RegisterRequest};

/// The socket's name in the directory.
pub const SOCKET: &str = "kubelet.sock";
/// The largest message of a registration, in bytes.
const MAX_MESSAGE: usize = 64 << 10;

/// Removes the sockets that plugins left before the agent started, as kubelet does; plugins then register again.
/// Blocks.
///
/// # Errors
///
/// The directory cannot be created or read.
pub fn clear(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    selinux::open_to_plugins(directory);
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == SOCKET || !entry.file_type()?.is_socket() {
            continue;
        }
        if let Err(error) = std::fs::remove_file(entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "removing an old socket of a device plugin failed");
        }
    }
    Ok(())
}

/// The services of the socket in `directory`.
pub fn services(plugins: Arc<DevicePlugins>, directory: PathBuf) -> Router {
    let registrar = RegistrationServer::new(Registrar { plugins, directory }).max_decoding_message_size(MAX_MESSAGE);
    Router::new().route_service("/v1beta1.Registration/{call}", registrar)
}

struct Registrar {
    plugins: Arc<DevicePlugins>,
    directory: PathBuf,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let RegisterRequest { version, endpoint, resource_name, .. } = request.into_inner();
        let registered = match inside(&self.directory, &endpoint) {
            Some(socket) => self.plugins.register(&resource_name, &[version], socket).await,
            None => Err(RegisterError::Endpoint(endpoint)),
        };
        match registered {
            Ok(_) => Ok(Response::new(Empty {})),
            Err(error) => {
                tracing::warn!(resource = resource_name, %error, "device plugin refused");
                Err(Status::unknown(error.to_string()))
            }
        }
    }
}

/// The path of the socket `endpoint` in `directory`, joined as in kubelet.
fn inside(directory: &Path, endpoint: &str) -> Option<PathBuf> {
    let mut path = directory.to_owned();
    let mut names = 0;
    for part in Path::new(endpoint).components() {
        match part {
            Component::Normal(name) => (path.push(name), names += 1).1,
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    (names > 0).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_in_the_directory() {
        let cases = [
            ("dp.sock", Some("/d/dp.sock")),
            ("/dp.sock", Some("/d/dp.sock")),
            ("a/b", Some("/d/a/b")),
            ("../x", None),
            ("", None),
            ("/", None),
        ];
        for (endpoint, path) in cases {
            assert_eq!(inside(Path::new("/d"), endpoint), path.map(PathBuf::from), "{endpoint}");
        }
    }
}
