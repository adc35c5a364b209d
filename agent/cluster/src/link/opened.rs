//! Makes a client of a kubeconfig.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use crate::certificate_files;
use limpet_apiserver_client::client::DEADLINE;
use limpet_apiserver_client::{Client, RequestError, kubeconfig};
use limpet_core::certificate::Validity;
use limpet_host::blocking;

/// How long the program of a kubeconfig may take.
const PROGRAM_DEADLINE: Duration = Duration::from_secs(60);

/// A client that was made.
pub(crate) struct Opened {
    pub(crate) client: Client,
    /// When its certificate is valid; `None`: it has none.
    pub(super) identity: Option<Validity>,
    /// A program was run for it.
    pub(super) runs_program: bool,
}

/// Reads the files, and when the certificate among them is valid; runs the program of the kubeconfig, if it has one.
/// `certificate`: a file with certificate and key that may count instead of the kubeconfig's user.
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
    // A subject of its own: a program that hangs does not keep the file from being read.
    let program = path.join("exec");
    blocking::run(program, PROGRAM_DEADLINE, open).await.map_err(late)?
}
