//! `limpet apply`: hands pods to the agent, which keeps them until they are deleted. kubectl's habits and words.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::client::SocketClient;
use super::error::{CliError, EXIT_FAULTS};
use super::screen::{Screen, printable};
use super::validate;
use crate::pod::{self, Fault, PodRecord, Severity};
use crate::server::{OUTCOME, document};
use crate::source::SourceKind;

/// Stands for the node's name, which only the agent knows; no name that is shown holds it.
const SOME_NODE: &str = "node";

/// Arguments of `limpet apply`.
#[derive(Debug, clap::Args)]
pub(super) struct ApplyArgs {
    /// Manifests, directories of manifests, or - for standard input
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE", num_args = 1.., value_delimiter = ',')]
    files: Vec<PathBuf>,
    /// The namespace of pods that name none
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
}

/// One pod of a manifest, as it is named there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) namespace: String,
    pub(super) name: String,
    /// As authored, canonical JSON.
    pub(super) manifest: Vec<u8>,
}

pub(super) async fn run(client: &SocketClient, args: ApplyArgs, screen: Screen) -> Result<u8, CliError> {
    let (pods, mut failed) = read(&args.files, args.namespace.as_deref(), screen)?;
    for pod in &pods {
        let path = path(&pod.namespace, &pod.name);
        match client.put(&path, pod.manifest.clone()).await {
            Ok(response) => {
                let word = response.headers().get(OUTCOME).and_then(|word| word.to_str().ok()).unwrap_or("configured");
                screen.print(&format!("pod/{} {}\n", printable(&pod.name), printable(word)))?;
            }
            Err(CliError::Refused { message, .. }) => {
                failed = true;
                complain(&message);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(if failed { EXIT_FAULTS } else { 0 })
}

/// Where the agent has a pod.
pub(super) fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// One thing that went wrong and stops nothing else.
pub(super) fn complain(message: &str) {
    eprintln!("error: {}", printable(message));
}

/// The pods of all manifests, and whether something could not be read; what is wrong is told with its place.
pub(super) fn read(files: &[PathBuf], namespace: Option<&str>, screen: Screen) -> Result<(Vec<Named>, bool), CliError> {
    let (mut pods, mut failed) = (Vec::new(), false);
    for path in files.iter().flat_map(|path| validate::files(path)) {
        let origin = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        let text = match validate::read(&path) {
            Ok(text) => text,
            Err(error) => {
                failed = true;
                complain(&format!("{origin}: {error}"));
                continue;
            }
        };
        let manifest = pod::read(&text, &origin, SourceKind::Push, SOME_NODE);
        failed |= manifest.faults.iter().any(|fault| fault.severity == Severity::Error);
        let text = String::from_utf8_lossy(&text);
        for fault in &manifest.faults {
            tell(fault, &text, screen);
        }
        for record in &manifest.pods {
            match named(record, namespace) {
                Ok(pod) => pods.push(pod),
                Err(error) => {
                    failed = true;
                    complain(&format!("{origin}: {error}"));
                }
            }
        }
        if manifest.pods.is_empty() && manifest.faults.is_empty() {
            failed = true;
            complain(&format!("{origin} holds no pods"));
        }
    }
    Ok((pods, failed))
}

fn tell(fault: &Fault, text: &str, screen: Screen) {
    if fault.severity == Severity::Error || !screen.quiet {
        eprint!("{}", validate::render(fault, text, screen));
    }
}

/// The pod under the name and namespace of its manifest.
fn named(record: &PodRecord, asked: Option<&str>) -> Result<Named, String> {
    let value: Value = serde_json::from_slice(&record.manifest).unwrap_or_default();
    let written = |field: &str| value["metadata"][field].as_str().filter(|text| !text.is_empty());
    let name = written("name").unwrap_or_default().to_owned();
    let namespace = match (written("namespace"), asked) {
        (Some(own), Some(asked)) if own != asked => {
            return Err(format!("pod {name} is of namespace {own}, not {asked}; pass -n {own}"));
        }
        (Some(namespace), _) | (None, Some(namespace)) => namespace.to_owned(),
        (None, None) => document::DEFAULT_NAMESPACE.to_owned(),
    };
    Ok(Named { namespace, name, manifest: record.manifest.to_vec() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SCREEN: Screen = Screen { color: false, quiet: true };

    fn of(pods: &[Named]) -> Vec<String> {
        pods.iter().map(|pod| path(&pod.namespace, &pod.name)).collect()
    }

    #[test]
    fn pods_of_files_and_directories_are_named_as_authored() {
        let directory = tempfile::tempdir().unwrap();
        let pod = |name: &str, namespace: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{namespace}}}\n\
                 spec: {{containers: [{{name: a, image: 'a:1'}}]}}\n"
            )
        };
        let both = [pod("a", ""), pod("b", ", namespace: lab")].join("---\n");
        std::fs::write(directory.path().join("both.yaml"), both).unwrap();
        std::fs::write(directory.path().join("notes.txt"), "nothing").unwrap();
        let directory = [directory.path().to_owned()];
        let (pods, failed) = read(&directory, None, SCREEN).unwrap();
        assert_eq!(of(&pods), ["/api/v1/namespaces/default/pods/a", "/api/v1/namespaces/lab/pods/b"]);
        assert!(!failed);
        let (pods, failed) = read(&directory, Some("lab"), SCREEN).unwrap();
        assert_eq!(of(&pods), ["/api/v1/namespaces/lab/pods/a", "/api/v1/namespaces/lab/pods/b"]);
        assert!(!failed);
        let (pods, failed) = read(&directory, Some("shop"), SCREEN).unwrap();
        assert_eq!((of(&pods), failed), (vec!["/api/v1/namespaces/shop/pods/a".to_owned()], true));
    }

    #[test]
    fn a_broken_document_stops_only_itself() {
        let directory = tempfile::tempdir().unwrap();
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: 'a:1'}]}\n\
                    ---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: []}\n";
        let path = directory.path().join("two.yaml");
        std::fs::write(&path, text).unwrap();
        let (pods, failed) = read(&[path], None, SCREEN).unwrap();
        assert_eq!((pods.len(), failed), (1, true));
        let missing = directory.path().join("missing.yaml");
        assert_eq!(read(&[missing], None, SCREEN).unwrap(), (Vec::new(), true));
    }
}
