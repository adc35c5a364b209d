//! Resolves a pod argument: `name`, `namespace/name`, or the manifest's name without the node's suffix.

use std::io::Write as _;

use super::error::CliError;
use super::screen::printable;
use limpet_core::source::resource::Resource;
use limpet_wire::objects::ObjectDocument;
use limpet_wire::pods::{DEFAULT_NAMESPACE, PodNames};
use limpet_wire::socket_client::{ClientError, SocketClient};
use serde_json::Value;

/// The most candidates listed in an error.
const MAX_CANDIDATES: usize = 8;

/// Resolves `argument` with the agent's list of pods.
pub(crate) async fn find(client: &SocketClient, argument: &str, namespace: Option<&str>) -> Result<PodNames, CliError> {
    let pods: Vec<PodNames> = client.get_json("/limpet/v1/names").await?;
    resolve(&pods, argument, namespace).cloned()
}

/// The one pod that `argument` names. `namespace` (`-n`) restricts the choice; a full name takes precedence over a
/// manifest's name.
pub(crate) fn resolve<'a>(
    pods: &'a [PodNames],
    argument: &str,
    namespace: Option<&str>,
) -> Result<&'a PodNames, CliError> {
    let (namespace, name) = match argument.split_once('/') {
        Some((inside, _)) if namespace.is_some_and(|asked| asked != inside) => {
            return Err(CliError::Usage(format!("-n and {argument} name different namespaces")));
        }
        // As in kubectl, `pod/web` is the pod web.
        Some(("pod" | "pods", name)) => (namespace, name),
        Some((inside, name)) => (Some(inside), name),
        None => (namespace, argument),
    };
    let inside = |pod: &&PodNames| namespace.is_none_or(|namespace| pod.namespace == namespace);
    let exact: Vec<&PodNames> = pods.iter().filter(inside).filter(|pod| pod.name == name).collect();
    let matching = match exact.is_empty() {
        true => pods.iter().filter(inside).filter(|pod| pod.manifest_name == name).collect(),
        false => exact,
    };
    match matching[..] {
        [pod] => Ok(pod),
        [] => Err(CliError::Target(missing(pods, name, namespace))),
        _ => Err(CliError::Target(format!("{name} is ambiguous: {}; name one of them", list(&matching)))),
    }
}

/// The requested container of `pod`, or its first one, with a remark if there are several.
pub(crate) fn container<'a>(pod: &'a PodNames, asked: Option<&str>) -> Result<&'a str, CliError> {
    let all = || pod.containers.join(", ");
    match (asked, pod.containers.first()) {
        (Some(asked), _) => {
            pod.containers.iter().find(|name| *name == asked).map(String::as_str).ok_or_else(|| {
                CliError::Target(format!("no container {asked} in pod {}; there are: {}", pod.name, all()))
            })
        }
        (None, None) => Err(CliError::Target(format!("pod {} has no containers", pod.name))),
        (None, Some(first)) => {
            if pod.containers.len() > 1 {
                writeln!(std::io::stderr(), "Defaulted container \"{first}\" out of: {}", all())?;
            }
            Ok(first)
        }
    }
}

/// The object of any source; `None`: there is none of that name.
pub(crate) async fn object(
    client: &SocketClient,
    (resource, name): (Resource, &str),
    namespace: &str,
) -> Result<Option<ObjectDocument>, CliError> {
    match client.get_json(&format!("/limpet/v1/objects/{}/{namespace}/{name}", resource.plural())).await {
        Ok(document) => Ok(Some(document)),
        Err(ClientError::Refused { status: 404, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The path and the manifest of an object that was applied.
///
/// # Errors
///
/// Its manifest comes from elsewhere, and stays as it is there: the message has the `remedy`.
pub(crate) async fn applied(
    client: &SocketClient,
    (resource, name): (Resource, &str),
    namespace: Option<&str>,
    remedy: &str,
) -> Result<(String, Value), CliError> {
    let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE);
    let path = resource.path(namespace, name);
    match client.get_json(&path).await {
        Ok(manifest) => Ok((path, manifest)),
        Err(ClientError::Refused { status: 404, .. }) => match object(client, (resource, name), namespace).await? {
            Some(document) => Err(CliError::Target(elsewhere(resource, name, &document, remedy))),
            None => Err(no_object(resource, name, namespace)),
        },
        Err(error) => Err(error.into()),
    }
}

fn elsewhere(resource: Resource, name: &str, document: &ObjectDocument, remedy: &str) -> String {
    let (kind, name) = (resource.singular(), printable(name));
    let (source, origin) = (printable(&document.source), printable(&document.origin));
    let place = format!("{source} {origin}");
    format!(
        "{kind} {name} was not applied: its manifest is that of {}, which limpet does not change; {remedy} there",
        place.trim_end()
    )
}

/// That no source has the object.
pub(crate) fn no_object(resource: Resource, name: &str, namespace: &str) -> CliError {
    let (kind, name, namespace) = (resource.singular(), printable(name), printable(namespace));
    CliError::Target(format!("no {kind} {name} in namespace {namespace}; -n names another one"))
}

fn missing(pods: &[PodNames], name: &str, namespace: Option<&str>) -> String {
    let location = namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
    let close: Vec<&PodNames> =
        pods.iter().filter(|pod| pod.name.contains(name) || name.contains(&pod.manifest_name)).collect();
    match (pods.is_empty(), close.is_empty()) {
        (true, _) => format!("no pod {name}{location}: there are no pods on this node"),
        (false, true) => {
            format!("no pod {name}{location}; there are: {}", list(&pods.iter().collect::<Vec<_>>()))
        }
        (false, false) => format!("no pod {name}{location}; did you mean: {}?", list(&close)),
    }
}

fn list(pods: &[&PodNames]) -> String {
    let mut text = pods
        .iter()
        .take(MAX_CANDIDATES)
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect::<Vec<_>>()
        .join(", ");
    if pods.len() > MAX_CANDIDATES {
        text.push_str(&format!(" and {} more", pods.len() - MAX_CANDIDATES));
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pods() -> Vec<PodNames> {
        [("default", "web-edge1", "web"), ("default", "web", "web"), ("a", "db-edge1", "db"), ("b", "db-edge1", "db")]
            .into_iter()
            .map(|(namespace, name, manifest_name)| PodNames {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                manifest_name: manifest_name.to_owned(),
                containers: Vec::new(),
            })
            .collect()
    }

    #[test]
    fn names_are_resolved() {
        let pods = pods();
        for (argument, namespace, expected) in [
            ("web-edge1", None, Ok("default/web-edge1")),
            ("web", None, Ok("default/web")),
            ("pod/web-edge1", None, Ok("default/web-edge1")),
            ("a/db-edge1", None, Ok("a/db-edge1")),
            ("b/db", None, Ok("b/db-edge1")),
            ("db", Some("a"), Ok("a/db-edge1")),
            ("db", None, Err("db is ambiguous: a/db-edge1, b/db-edge1; name one of them")),
            ("db", Some("default"), Err("no pod db in namespace default; did you mean: a/db-edge1, b/db-edge1?")),
            (
                "nope",
                Some("c"),
                Err("no pod nope in namespace c; there are: default/web-edge1, default/web, a/db-edge1, b/db-edge1"),
            ),
            ("a/db", Some("b"), Err("-n and a/db name different namespaces")),
        ] {
            let actual = resolve(&pods, argument, namespace).map(|pod| pod.key().unwrap().to_string());
            assert_eq!(actual.as_deref().map_err(ToString::to_string), expected.map_err(str::to_owned), "{argument}");
        }
        assert_eq!(resolve(&[], "web", None).unwrap_err().to_string(), "no pod web: there are no pods on this node");
    }
}
