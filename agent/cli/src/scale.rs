//! `limpet scale`: changes the number of replicas of an applied workload, with kubectl's conventions and output.

use serde_json::json;

use super::error::CliError;
use super::screen::{Screen, printable};
use super::target;
use limpet_core::source::resource::Resource;
use limpet_model::object::ObjectKind;
use limpet_wire::socket_client::SocketClient;

/// The kinds that have replicas.
const SCALABLE: [ObjectKind; 3] = [ObjectKind::Deployment, ObjectKind::ReplicaSet, ObjectKind::StatefulSet];

/// Arguments of `limpet scale`.
#[derive(Debug, clap::Args)]
pub struct ScaleArgs {
    /// An applied workload: deployment/NAME, statefulset/NAME
    #[arg(value_name = "KIND/NAME")]
    workload: String,
    /// How many pods there are to be
    #[arg(long, value_name = "N")]
    replicas: u32,
    /// The namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
}

/// Writes the number into the applied manifest and applies it again.
///
/// # Errors
///
/// The agent cannot be reached, or refuses.
pub(super) async fn run(client: &SocketClient, args: ScaleArgs, screen: Screen) -> Result<u8, CliError> {
    let (resource, name) = workload(&args.workload)?;
    let remedy = format!("set spec.replicas to {}", args.replicas);
    let (path, mut manifest) = target::applied(client, (resource, name), args.namespace.as_deref(), &remedy).await?;
    manifest["spec"]["replicas"] = json!(args.replicas);
    client.put(&path, manifest.to_string().into_bytes()).await?;
    screen.print(&format!("{}/{} scaled\n", resource.singular(), printable(name)))?;
    Ok(0)
}

/// The kind and the name of a workload that has replicas.
fn workload(argument: &str) -> Result<(Resource, &str), CliError> {
    let Some((kind, name)) = argument.split_once('/').filter(|(_, name)| !name.is_empty()) else {
        return Err(CliError::Usage(format!("{argument} is no KIND/NAME, such as deployment/web")));
    };
    match Resource::from_name(&kind.to_lowercase()) {
        Some(resource @ Resource::Object(object)) if SCALABLE.contains(&object) => Ok((resource, name)),
        Some(resource) => Err(CliError::Usage(format!("a {} has no replicas", resource.kind()))),
        None => {
            Err(CliError::Usage(format!("{kind} is no kind of workload: use deployment, replicaset or statefulset")))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_replicas_is_scaled() {
        let kind = |argument: &str| workload(argument).map(|(resource, name)| (resource.plural(), name.to_owned()));
        assert_eq!(kind("deploy/web").unwrap(), ("deployments", "web".to_owned()));
        assert_eq!(kind("sts/db").unwrap(), ("statefulsets", "db".to_owned()));
        for (argument, message) in [
            ("web", "web is no KIND/NAME, such as deployment/web"),
            ("deploy/", "deploy/ is no KIND/NAME, such as deployment/web"),
            ("ds/web", "a DaemonSet has no replicas"),
            ("job/web", "a Job has no replicas"),
            ("thing/web", "thing is no kind of workload: use deployment, replicaset or statefulset"),
        ] {
            assert_eq!(kind(argument).unwrap_err().to_string(), message);
        }
    }
}
