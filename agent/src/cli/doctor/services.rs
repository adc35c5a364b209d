//! Services of the node's own sources: whether the kernel can serve them. Nothing is examined on a node without any.

use limpet_services::KernelError;
use limpet_services::settings::saved_addresses;

use super::Finding;
use crate::config::Config;

pub(super) async fn examine(config: &Config) -> Option<Finding> {
    let has_services = saved_addresses(&config.root_dir).exists();
    if !has_services { None } else { Some(judge(limpet_services::examine().await)) }
}

/// Judges what the kernel can; true: rules also apply within bridges.
fn judge(examined: Result<bool, KernelError>) -> Finding {
    match examined {
        Ok(true) => Finding::ok("Services", "the kernel has nf_tables"),
        Ok(false) => {
            let text =
                "traffic within bridges does not pass by rules; pods see the node's address instead of their clients'";
            Finding::degraded("Services", text, "Load the kernel module br_netfilter")
        }
        Err(error) => Finding::failed("Services", error.to_string(), "Use a kernel with nf_tables and NAT"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_kernel_without_rules_serves_none() {
        assert_eq!(judge(Ok(true)).level, Level::Ok);
        assert_eq!(judge(Ok(false)).level, Level::Degraded);
        let lacking = judge(Err(KernelError::Unsupported(std::io::ErrorKind::InvalidInput.into())));
        assert!(lacking.level == Level::Failed && lacking.text.contains("nf_tables"), "{lacking:?}");
    }
}
