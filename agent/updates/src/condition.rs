//! What holds an update beside the time: a metered link, a lock file, the veto of an application.

use std::path::Path;
use std::time::Duration;

use limpet_host::blocking::{self, DEADLINE};
use limpet_host::program;
use limpet_model::error_chain::error_chain;
use tokio::process::Command;

/// How long a program or an application may take to answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Asks a program whether the link is metered: exit code 0 says yes, 1 no.
///
/// # Errors
/// Why nothing is to be downloaded. Without an answer the link counts as metered: traffic may cost what nobody has agreed to.
pub(crate) async fn unmetered(words: &[String]) -> Result<(), String> {
    let Some((name, arguments)) = words.split_first() else { return Ok(()) };
    let mut command = Command::new(name);
    command.args(arguments);
    match program::run(command, b"", ANSWER_DEADLINE).await {
        Ok(output) => match output.code {
            Some(0) => Err("the link is metered".to_owned()),
            Some(1) => Ok(()),
            Some(code) => Err(format!("{name} ended with {code}: 0 means that the link is metered, 1 that it is not")),
            None => Err(format!("{name} was ended by a signal: whether the link is metered is not known")),
        },
        Err(error) => Err(format!("{name}: {error}: whether the link is metered is not known")),
    }
}

/// Why updates are held by a lock file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Locked {
    /// It exists. Its removal can be watched.
    Exists(String),
    /// Its file system does not tell. It may tell later, although nothing has changed.
    Unknown(String),
}

/// Whether a lock file does not exist.
///
/// # Errors
/// It does, or its file system does not tell.
pub(crate) async fn unlocked(path: &Path) -> Result<(), Locked> {
    let file = path.to_owned();
    match blocking::run(path.to_owned(), DEADLINE, move |_| file.try_exists()).await.flatten() {
        Ok(false) => Ok(()),
        Ok(true) => Err(Locked::Exists(format!("the lock file {} exists", path.display()))),
        Err(error) => Err(Locked::Unknown(format!("the lock file {} cannot be looked for: {error}", path.display()))),
    }
}

/// Asks an application whether an update may take effect.
///
/// # Errors
/// It says no, or does not answer. If nothing listens at its address it does not run, and has no veto: it may be what the
/// update repairs.
pub(crate) async fn permitted(url: &str) -> Result<(), String> {
    // Fails if a provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().timeout(ANSWER_DEADLINE).no_proxy().build();
    let client = client.map_err(|error| error_chain(&error))?;
    match client.get(url).send().await {
        Ok(response) if response.status().is_success() => Ok(()),
        Ok(response) => Err(format!("{url} answers with {}", response.status())),
        Err(error) if is_refused(&error) => Ok(()),
        Err(error) => Err(format!("{url} does not answer: {}", error_chain(&error.without_url()))),
    }
}

/// Whether nothing listens at the address.
fn is_refused(error: &reqwest::Error) -> bool {
    let mut causes = limpet_model::error_chain::causes(error);
    causes.any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    fn sh(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[tokio::test]
    async fn a_link_is_not_metered_only_if_the_program_says_so() {
        assert_eq!(unmetered(&sh("exit 1")).await, Ok(()));
        assert_eq!(unmetered(&sh("exit 0")).await.unwrap_err(), "the link is metered");
        assert!(unmetered(&sh("exit 3")).await.unwrap_err().contains("ended with 3"));
        assert!(unmetered(&["/no/such/program".to_owned()]).await.unwrap_err().contains("is not known"));
    }

    #[tokio::test]
    async fn a_lock_file_holds_as_long_as_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("busy");
        assert_eq!(unlocked(&path).await, Ok(()));
        std::fs::write(&path, "").unwrap();
        assert_eq!(unlocked(&path).await, Err(Locked::Exists(format!("the lock file {} exists", path.display()))));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(unlocked(&path).await, Ok(()));
    }

    /// A server that answers once with that line of status, or hangs up.
    fn answers(status: Option<&'static str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/may-update", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            if let Some(status) = status {
                let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
        });
        url
    }

    #[tokio::test]
    async fn an_application_that_runs_has_to_agree() {
        assert_eq!(permitted(&answers(Some("204 No Content"))).await, Ok(()));
        let refused = permitted(&answers(Some("503 Service Unavailable"))).await.unwrap_err();
        assert!(refused.ends_with("answers with 503 Service Unavailable"), "{refused}");
        assert!(permitted(&answers(None)).await.unwrap_err().contains("does not answer"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        assert_eq!(permitted(&url).await, Ok(()), "nothing listens there");
    }
}
