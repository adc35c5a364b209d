//! `limpet version`: shows the versions of this command and of the running agent, or verifies that a downloaded file
//! belongs to a release.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::error::CliError;
use super::output::DocumentFormat;
use super::screen::{Screen, printable};
use limpet_wire::socket_client::SocketClient;

/// The deadline of the agent's response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of `limpet version`.
#[derive(Debug, clap::Args)]
pub struct VersionArgs {
    /// Output format
    #[arg(short, long)]
    output: Option<DocumentFormat>,
    /// Check the signature of a downloaded file, in FILE.minisig, instead
    #[arg(long, value_name = "FILE", requires = "key", conflicts_with = "output")]
    verify: Option<PathBuf>,
    /// The public key for --verify, as minisign writes it
    #[arg(long, value_name = "KEY", requires = "verify")]
    key: Option<PathBuf>,
}

pub(super) async fn run(client: &SocketClient, args: VersionArgs, screen: Screen) -> Result<u8, CliError> {
    if let (Some(file), Some(key)) = (&args.verify, &args.key) {
        return verify(file, key, screen);
    }
    let asked = tokio::time::timeout(RESPONSE_TIMEOUT, client.get_json::<Value>("/limpet/v1/version")).await;
    let agent = asked.ok().and_then(Result::ok).and_then(|document| document["version"].as_str().map(str::to_owned));
    let here = env!("CARGO_PKG_VERSION");
    let text = match args.output {
        Some(format) => format.render(&json!({ "client": here, "agent": agent }))?,
        None => {
            let agent = agent.as_deref().unwrap_or("not reachable");
            format!("limpet   {here}\nagent    {agent}\nPod API  {}\n", limpet_model::POD_API)
        }
    };
    screen.print(&text)?;
    Ok(0)
}

/// Blocks while reading the file, because nothing else runs in the process.
fn verify(file: &Path, key: &Path, screen: Screen) -> Result<u8, CliError> {
    let comment = limpet_signature::verify(file, key).map_err(|error| CliError::Target(error.to_string()))?;
    screen.print(&format!("{}: good signature: {}\n", printable(&file.to_string_lossy()), printable(&comment)))?;
    Ok(0)
}
