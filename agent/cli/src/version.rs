//! `limpet version`: the versions of this command and of the running agent.

use std::time::Duration;

use serde_json::{Value, json};

use super::error::CliError;
use super::output::DocumentFormat;
use super::screen::Screen;
use limpet_wire::socket_client::SocketClient;

/// The timeout of the agent's response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of `limpet version`.
#[derive(Debug, clap::Args)]
pub struct VersionArgs {
    /// Output format
    #[arg(short, long)]
    output: Option<DocumentFormat>,
}

pub(super) async fn run(client: &SocketClient, args: VersionArgs, screen: Screen) -> Result<u8, CliError> {
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
