//! `limpet images verify`: whether an image may be used, with the verdict of each key.

use crate::error::{CliError, EXIT_FAULTS};
use crate::output::DocumentFormat;
use crate::screen::{Screen, Tone, printable};
use limpet_wire::images::{ImageRequest, ImageVerdictDocument};
use limpet_wire::socket_client::SocketClient;

pub(super) async fn run(
    client: &SocketClient,
    image: String,
    format: Option<DocumentFormat>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let request = ImageRequest { image, pinned: false };
    let verdict: ImageVerdictDocument = client.post_json("/limpet/v1/images/verify", &request).await?;
    screen.print(&match format {
        Some(format) => format.render(&verdict)?,
        None => page(&verdict, screen),
    })?;
    Ok(if verdict.accepted { 0 } else { EXIT_FAULTS })
}

fn page(verdict: &ImageVerdictDocument, screen: &Screen) -> String {
    let mark = |accepted: bool| {
        let (word, tone) = if accepted { ("accepted", Tone::Good) } else { ("refused", Tone::Bad) };
        screen.paint(tone, word)
    };
    let place = if verdict.local { "on this node" } else { "not on this node" };
    let mut page =
        format!("{} {}\n  {} ({place})\n", printable(&verdict.image), mark(verdict.accepted), verdict.digest);
    match &verdict.policy {
        None => page.push_str("  no imagePolicy: every image may be used\n"),
        Some(policy) => {
            page.push_str(&format!(
                "  {}: {} {}\n",
                printable(&policy.rule),
                policy.requirement,
                mark(policy.accepted)
            ));
            for key in &policy.keys {
                let file = key.key.display().to_string();
                page.push_str(&format!(
                    "    {} {}: {}\n",
                    printable(&file),
                    mark(key.accepted),
                    printable(&key.detail)
                ));
            }
            if let Some(cause) = policy.cause.as_ref().filter(|_| policy.keys.is_empty()) {
                page.push_str(&format!("    {}\n", printable(cause)));
            }
        }
    }
    if let Some(verifiers) = &verdict.verifiers {
        page.push_str(&format!("  image verifiers {}: {}\n", mark(verifiers.accepted), printable(&verifiers.detail)));
    }
    page
}

#[cfg(test)]
mod tests {
    use limpet_wire::images::{KeyVerdict, PolicyVerdict, VerifierVerdict};

    use super::*;

    #[test]
    fn the_verdict_of_each_key_is_shown() {
        let key = |name: &str, accepted: bool, detail: &str| KeyVerdict {
            key: name.into(),
            accepted,
            detail: detail.to_owned(),
        };
        let policy = PolicyVerdict {
            rule: "imagePolicy rule 1 (registry.example/**)".to_owned(),
            requirement: "cosign".to_owned(),
            accepted: true,
            cause: None,
            keys: vec![
                key("/keys/old.pub", false, "cannot be read: \u{1b}[2J"),
                key("/keys/new.pub", true, "signed (sha256-ab.sig)"),
            ],
        };
        let verifiers =
            VerifierVerdict { accepted: false, detail: "10-verify refused it (exit code 1): no".to_owned() };
        let verdict = ImageVerdictDocument {
            image: "registry.example/pump:1".to_owned(),
            digest: "sha256:ab".to_owned(),
            local: true,
            accepted: false,
            policy: Some(policy),
            verifiers: Some(verifiers),
        };
        let screen = Screen { color: false, quiet: false };
        let wanted = "registry.example/pump:1 refused\n  sha256:ab (on this node)\n  \
                      imagePolicy rule 1 (registry.example/**): cosign accepted\n    \
                      /keys/old.pub refused: cannot be read: \\u{1b}[2J\n    \
                      /keys/new.pub accepted: signed (sha256-ab.sig)\n  \
                      image verifiers refused: 10-verify refused it (exit code 1): no\n";
        assert_eq!(page(&verdict, &screen), wanted);
        let none = ImageVerdictDocument { accepted: true, local: false, policy: None, verifiers: None, ..verdict };
        let wanted = "registry.example/pump:1 accepted\n  sha256:ab (not on this node)\n  \
                      no imagePolicy: every image may be used\n";
        assert_eq!(page(&none, &screen), wanted);
    }
}
