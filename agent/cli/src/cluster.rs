//! `limpet cluster`: decisions about the node's cluster that only an operator can make.

use super::error::CliError;
use super::screen::Screen;
use limpet_wire::socket_client::SocketClient;
use limpet_wire::status::AcceptedDocument;

/// Arguments of `limpet cluster`.
#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Accept a restored or replaced cluster: end the pods it does not have
    Accept,
}

pub(super) async fn run(client: &SocketClient, args: &ClusterArgs, screen: Screen) -> Result<u8, CliError> {
    match args.action {
        Action::Accept => {
            let accepted: AcceptedDocument = client.post_json("/limpet/v1/cluster/accept", &()).await?;
            screen.print(&render(&accepted))?;
            Ok(0)
        }
    }
}

fn render(accepted: &AcceptedDocument) -> String {
    match accepted.ended.as_slice() {
        [] => "nothing to accept: the cluster has every pod of this node\n".to_owned(),
        ended => ended.iter().map(|pod| format!("pod/{pod} ends\n")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_is_named() {
        let ended = vec!["shop/web".to_owned(), "shop/job".to_owned()];
        assert_eq!(render(&AcceptedDocument { ended }), "pod/shop/web ends\npod/shop/job ends\n");
        assert!(render(&AcceptedDocument::default()).starts_with("nothing to accept"));
    }
}
