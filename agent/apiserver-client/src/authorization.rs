//! The `Authorization` header of requests: a password or token from the kubeconfig, a token from a file, which is
//! read again each minute, or from a program, which runs again before its token expires.
//!
//! A token that cannot be sent, such as one with a line break, is a credentials error.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::http::header::HeaderValue;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::config::{AuthInfo, ExecConfig};
use secrecy::ExposeSecret as _;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::credentials_error::CredentialsError;
use crate::program;

/// How long the content of a token file counts: with the time of a request, kubelet's minute.
const MAX_AGE: Duration = Duration::from_secs(50);
/// How long before a token's expiry its program runs again.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);

/// How a client authenticates each request.
#[derive(Debug)]
pub(crate) enum Authorization {
    /// With a value that never changes.
    Fixed(HeaderValue),
    /// With a value that is renewed.
    Renewed(Renewed),
}

impl Authorization {
    /// The authorization of a user; `None` if the user has a certificate or no credentials. `issued` is its program's
    /// output. Blocks.
    ///
    /// # Errors
    ///
    /// There is no usable value, or it cannot be sent.
    pub(crate) fn new(user: &AuthInfo, issued: Option<program::Issued>) -> Result<Option<Self>, CredentialsError> {
        if let Some(name) = &user.username {
            let password = user.password.as_ref().map_or("", |password| password.expose_secret());
            return header("Basic", &BASE64_STANDARD.encode(format!("{name}:{password}"))).map(Self::Fixed).map(Some);
        }
        let fixed = user.token.as_ref().map(|token| bearer("users[].user.token", token.expose_secret())).transpose();
        if let Some(path) = &user.token_file {
            let source = Source::File(path.into());
            // As in client-go, the file takes precedence if it can be read, else the token counts.
            let begun = match (source.read(), fixed) {
                (Err(_), Ok(Some(token))) => (token, Until::Moment(Instant::now() + MAX_AGE)),
                (read, _) => read?,
            };
            return Ok(Some(Self::Renewed(Renewed::new(source, begun))));
        }
        if let Some(token) = fixed? {
            return Ok(Some(Self::Fixed(token)));
        }
        let (Some(exec), Some(issued)) = (&user.exec, issued) else { return Ok(None) };
        let Some(token) = &issued.token else { return Ok(None) };
        let token = bearer(program::FIELD, token)?;
        Ok(Some(match issued.expires {
            None => Self::Fixed(token),
            expires => {
                Self::Renewed(Renewed::new(Source::Program(Box::new(exec.clone())), (token, Until::Time(expires))))
            }
        }))
    }

    /// The header's value.
    ///
    /// # Errors
    ///
    /// A program that has to run again fails.
    pub(crate) async fn header(&self) -> Result<HeaderValue, CredentialsError> {
        match self {
            Self::Fixed(header) => Ok(header.clone()),
            Self::Renewed(renewed) => renewed.header().await,
        }
    }
}

/// A token from this field as a header value, without the line break at the end of most files.
fn bearer(field: &str, token: &str) -> Result<HeaderValue, CredentialsError> {
    match token.trim() {
        "" => Err(CredentialsError(format!("{field}: is empty; write a token"))),
        token => header("Bearer", token).map_err(|_| {
            CredentialsError(format!("{field}: is not a token: there is a line break or a control character in it"))
        }),
    }
}

fn header(scheme: &str, credentials: &str) -> Result<HeaderValue, CredentialsError> {
    let mut value = HeaderValue::try_from(format!("{scheme} {credentials}"))
        .map_err(|error| CredentialsError(format!("the credentials cannot be sent: {error}")))?;
    value.set_sensitive(true);
    Ok(value)
}

#[derive(Debug)]
enum Source {
    File(PathBuf),
    Program(Box<ExecConfig>),
}

/// How long a token counts.
#[derive(Debug, Clone, Copy)]
enum Until {
    Moment(Instant),
    /// `None` means for ever.
    Time(Option<Timestamp>),
}

impl Until {
    fn is_over(self) -> bool {
        match self {
            Self::Moment(moment) => Instant::now() >= moment,
            Self::Time(expires) => expires.is_some_and(|expires| expires.duration_since(Timestamp::now()) <= MARGIN),
        }
    }
}

impl Source {
    /// Reads a token and how long it counts. Blocks.
    fn read(&self) -> Result<(HeaderValue, Until), CredentialsError> {
        match self {
            Self::File(path) => {
                let field = format!("users[].user.tokenFile: {}", path.display());
                let text = std::fs::read_to_string(path)
                    .map_err(|error| CredentialsError(format!("{field}: cannot be read: {error}")))?;
                Ok((bearer(&field, &text)?, Until::Moment(Instant::now() + MAX_AGE)))
            }
            Self::Program(exec) => {
                let issued = program::run(exec)?;
                let token = issued.token.as_deref().unwrap_or_default();
                Ok((bearer(program::FIELD, token)?, Until::Time(issued.expires)))
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Renewed {
    source: Arc<Source>,
    /// Locked while the token is read, so that other requests wait for the same token.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    header: HeaderValue,
    until: Until,
    pending: Option<JoinHandle<Result<(HeaderValue, Until), CredentialsError>>>,
}

impl Renewed {
    fn new(source: Source, (header, until): (HeaderValue, Until)) -> Self {
        Self { source: Arc::new(source), state: Mutex::new(State { header, until, pending: None }) }
    }

    /// Cancel safe: the next request waits for a reading that a cancelled request began, so a hanging file system
    /// blocks only one thread.
    async fn header(&self) -> Result<HeaderValue, CredentialsError> {
        let mut state = self.state.lock().await;
        if state.until.is_over() {
            let source = Arc::clone(&self.source);
            let pending = state.pending.get_or_insert_with(|| tokio::task::spawn_blocking(move || source.read()));
            let outcome = pending.await;
            state.pending = None;
            match (outcome, &*self.source) {
                (Ok(Ok(read)), _) => (state.header, state.until) = read,
                // As in client-go, the last token still counts: some tools remove the file after it was read.
                (Ok(Err(_)), Source::File(_)) => state.until = Until::Moment(Instant::now() + MAX_AGE),
                (Ok(Err(error)), Source::Program(_)) => return Err(error),
                (Err(error), _) => return Err(CredentialsError(format!("the token was not read: {error}"))),
            }
        }
        Ok(state.header.clone())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What a request by this user sends; for a program, after it has run.
    async fn sent(user: AuthInfo) -> Result<Option<String>, String> {
        let issued = user.exec.as_ref().map(program::run).transpose().map_err(|error| error.to_string())?;
        let Some(made) = Authorization::new(&user, issued).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let header = made.header().await.map_err(|error| error.to_string())?;
        assert!(header.is_sensitive());
        Ok(Some(header.to_str().unwrap().to_owned()))
    }

    fn token(token: &str) -> AuthInfo {
        AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() }
    }

    fn printing(credential: &str) -> AuthInfo {
        let text = |text: &str| text.to_owned();
        let args = Some(vec![text("-c"), format!("printf '%s' '{credential}'")]);
        let exec = ExecConfig { command: Some(text("sh")), args, ..ExecConfig::default() };
        AuthInfo { exec: Some(exec), ..AuthInfo::default() }
    }

    #[tokio::test]
    async fn a_token_is_trimmed_and_one_that_cannot_be_sent_is_an_error() {
        let said = |text: &str| Ok(Some(text.to_owned()));
        let fault = |field: &str, fault: &str| Err(format!("{field}: {fault}"));
        let broken = "is not a token: there is a line break or a control character in it";
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = dir.path().join(name).display().to_string();
            std::fs::write(&path, content).unwrap();
            (
                AuthInfo { token_file: Some(path.clone()), ..AuthInfo::default() },
                format!("users[].user.tokenFile: {path}"),
            )
        };
        let ((plain, _), (split, split_field), (blank, blank_field)) =
            (file("plain", "abc\n"), file("split", "a\nb"), file("blank", " \n"));
        let both = AuthInfo { token_file: Some("/nowhere/token".to_owned()), ..token("t\n") };
        let basic = AuthInfo { username: Some("ada".to_owned()), ..AuthInfo::default() };
        let program = |token: &str| printing(&format!(r#"{{"status": {{"token": "{token}"}}}}"#));
        let expiring = printing(r#"{"status": {"token": "x\n", "expirationTimestamp": "2001-01-01T00:00:00Z"}}"#);
        let table = [
            (token("abc\n"), said("Bearer abc")),
            (token(" abc\r\n"), said("Bearer abc")),
            (token("a\nb"), fault("users[].user.token", broken)),
            (token("\u{7f}"), fault("users[].user.token", broken)),
            (token("\n"), fault("users[].user.token", "is empty; write a token")),
            (plain, said("Bearer abc")),
            (split, fault(&split_field, broken)),
            (blank, fault(&blank_field, "is empty; write a token")),
            (both, said("Bearer t")),
            (basic, said("Basic YWRhOg==")),
            (program("abc\\n"), said("Bearer abc")),
            (program("a\\nb"), fault(program::FIELD, broken)),
            (expiring, said("Bearer x")),
            (printing("{}"), Err("the output of the program of users[].user.exec is not an ExecCredential".to_owned())),
            (AuthInfo::default(), Ok(None)),
        ];
        for (user, expected) in table {
            let shown = format!("{user:?}");
            assert_eq!(sent(user).await, expected, "{shown}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_file_of_a_token_is_read_again_and_the_last_one_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "first\n").unwrap();
        let user = AuthInfo { token_file: Some(path.display().to_string()), ..AuthInfo::default() };
        let made = Authorization::new(&user, None).unwrap().unwrap();
        std::fs::write(&path, "second\n").unwrap();
        assert_eq!(made.header().await.unwrap(), "Bearer first");
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(made.header().await.unwrap(), "Bearer second");
        std::fs::write(&path, "a\nb").unwrap();
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(made.header().await.unwrap(), "Bearer second");
        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(made.header().await.unwrap(), "Bearer second");
    }
}
