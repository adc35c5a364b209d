//! Creates a client from a kubeconfig.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use crate::certificate_files;
use limpet_apiserver_client::client::DEADLINE;
use limpet_apiserver_client::{Client, RequestError, kubeconfig};
use limpet_core::certificate::Validity;
use limpet_host::blocking;

/// The deadline of a kubeconfig's program.
const PROGRAM_DEADLINE: Duration = Duration::from_secs(60);

/// A created client.
pub(crate) struct Opened {
    pub(crate) client: Client,
    /// The validity of its certificate; `None` if it has none.
    pub(super) identity: Option<Validity>,
    /// Whether a program printed its credentials.
    pub(super) runs_program: bool,
}

/// Reads the files and the validity of their certificate, and runs the kubeconfig's program if it has one.
/// `certificate` is a file with certificate and key that may take precedence over the kubeconfig's user.
pub(crate) async fn open(path: PathBuf, certificate: Option<PathBuf>) -> Result<Opened, RequestError> {
    let failed = |error: io::Error| RequestError::Credentials(error.to_string());
    let read = path.clone();
    let look = move |_: &_| {
        let certificate = certificate.filter(|path| certificate_files::supersedes(path, &read, Timestamp::now()));
        let runs_program = certificate.is_none() && kubeconfig::runs_program(&read)?;
        Ok::<_, RequestError>((certificate, runs_program))
    };
    let (certificate, runs_program) = blocking::run(path.clone(), DEADLINE, look).await.map_err(failed)??;
    let read = path.clone();
    let open = move |_: &_| {
        let client = Client::open(&read, certificate.as_deref())?;
        let identity = certificate_files::identity(&read, certificate.as_deref());
        Ok::<_, RequestError>(Opened { client, identity, runs_program })
    };
    if !runs_program {
        return blocking::run(path, DEADLINE, open).await.map_err(failed)?;
    }
    let late = |_| {
        let seconds = PROGRAM_DEADLINE.as_secs();
        RequestError::Credentials(format!("the program of users[].user.exec has not ended within {seconds} s"))
    };
    // A separate subject, so that a hanging program does not block reading the file.
    let program = path.join("exec");
    blocking::run(program, PROGRAM_DEADLINE, open).await.map_err(late)?
}
