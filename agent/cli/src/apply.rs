//! `limpet apply`: pushes pods, workloads, ConfigMaps and Secrets to the agent, which stores them until they are deleted. Same
//! conventions and output as kubectl.

use limpet_model::manifest;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::{CliError, EXIT_FAULTS};
use super::screen::{Screen, printable};
use super::validate;
use limpet_core::source::resource::Resource;
use limpet_model::manifest::Manifest;
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::{Fault, PodRecord, Severity};
use limpet_model::source::SourceKind;
use limpet_wire::pods::{self as document, OUTCOME};
use limpet_wire::socket_client::{ClientError, SocketClient};

/// A placeholder for the node name, which only the agent knows; it is never shown.
const SOME_NODE: &str = "node";

/// Arguments of `limpet apply`.
#[derive(Debug, clap::Args)]
pub struct ApplyArgs {
    /// Manifests, directories of manifests, or - for standard input
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE", num_args = 1.., value_delimiter = ',')]
    files: Vec<PathBuf>,
    /// The namespace of documents without one
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Whether fields that do not exist or are given twice are errors; the agent needs fieldValidation.push: warn, too
    #[arg(long, value_enum, default_value = "strict", value_name = "MODE")]
    validate: Validation,
}

/// The values of `--validate`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Validation {
    /// Errors.
    #[default]
    Strict,
    /// Warnings.
    Warn,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct NamedDocument {
    pub(super) resource: Resource,
    pub(super) namespace: String,
    pub(super) name: String,
    /// JSON; includes a Secret's values.
    pub(super) manifest: Vec<u8>,
}

pub(super) async fn run(client: &SocketClient, args: ApplyArgs, screen: Screen) -> Result<u8, CliError> {
    let (mut all, mut failed) = read(&args.files, args.namespace.as_deref(), args.validate, screen)?;
    // Objects first: a pod that finds its objects need not wait for them.
    all.sort_by_key(|named| named.resource.has_pods());
    for NamedDocument { resource, namespace, name, manifest } in all {
        match client.put(&resource.path(&namespace, &name), manifest).await {
            Ok(response) => {
                let outcome =
                    response.headers().get(OUTCOME).and_then(|outcome| outcome.to_str().ok()).unwrap_or("configured");
                screen.print(&format!("{}/{} {}\n", resource.singular(), printable(&name), printable(outcome)))?;
            }
            Err(ClientError::Refused { message, .. }) => {
                failed = true;
                print_error(&message);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(if failed { EXIT_FAULTS } else { 0 })
}

/// Prints an error that does not stop the command.
pub(super) fn print_error(message: &str) {
    eprintln!("error: {}", printable(message));
}

/// The documents of all manifests, and whether some could not be read; errors are printed with their position.
pub(super) fn read(
    files: &[PathBuf],
    namespace: Option<&str>,
    validation: Validation,
    screen: Screen,
) -> Result<(Vec<NamedDocument>, bool), CliError> {
    let (mut all, mut failed) = (Vec::new(), false);
    for path in files.iter().flat_map(|path| validate::files_of_kubectl(path)) {
        let origin = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        let text = match validate::read(&path) {
            Ok(text) => text,
            Err(error) => {
                failed = true;
                print_error(&format!("{origin}: {error}"));
                continue;
            }
        };
        let manifest = match validation {
            Validation::Strict => manifest::read(&text, &origin, SourceKind::Push, SOME_NODE),
            Validation::Warn => manifest::read_leniently(&text, &origin, SourceKind::Push, SOME_NODE),
        };
        failed |= manifest.faults.iter().any(|fault| fault.severity == Severity::Error);
        let text = validate::shown(&text);
        for fault in &manifest.faults {
            print_fault(fault, &text, screen);
        }
        let holds_nothing = manifest.pods.is_empty() && manifest.objects.is_empty() && manifest.left_out == 0;
        if holds_nothing && manifest.faults.is_empty() {
            failed = true;
            print_error(&format!("{origin} contains no pods, workloads, ConfigMaps or Secrets"));
        }
        for named in named(&manifest, namespace) {
            match named {
                Ok(named) => all.push(named),
                Err(error) => {
                    failed = true;
                    print_error(&format!("{origin}: {error}"));
                }
            }
        }
    }
    Ok((all, failed))
}

fn print_fault(fault: &Fault, text: &str, screen: Screen) {
    if fault.severity == Severity::Error || !screen.quiet {
        eprint!("{}", validate::render(fault, text, screen));
    }
}

/// The documents of a manifest, with the names and namespaces they declare.
fn named(manifest: &Manifest, asked: Option<&str>) -> Vec<Result<NamedDocument, String>> {
    let pods = manifest.pods.iter().map(|pod| named_pod(pod, asked));
    let placed = |key: &ObjectKey| !manifest.unplaced.contains(key);
    pods.chain(manifest.objects.iter().map(|object| named_object(object, placed(&object.key), asked))).collect()
}

fn named_pod(record: &PodRecord, asked: Option<&str>) -> Result<NamedDocument, String> {
    let value: Value = serde_json::from_slice(&record.manifest).unwrap_or_default();
    let written = |field: &str| value["metadata"][field].as_str().filter(|text| !text.is_empty());
    let name = written("name").unwrap_or_default().to_owned();
    let namespace = namespace(Resource::Pod, &name, written("namespace"), asked)?;
    Ok(NamedDocument { resource: Resource::Pod, namespace, name, manifest: record.manifest.to_vec() })
}

fn named_object(record: &ObjectRecord, placed: bool, asked: Option<&str>) -> Result<NamedDocument, String> {
    let (resource, name) = (Resource::Object(record.key.kind), record.key.name.to_string());
    let namespace = namespace(resource, &name, placed.then_some(&*record.key.namespace), asked)?;
    let manifest = record.in_namespace(&namespace).manifest().to_vec();
    Ok(NamedDocument { resource, namespace, name, manifest })
}

/// The namespace: the document's own, the requested one, or the default.
fn namespace(resource: Resource, name: &str, written: Option<&str>, asked: Option<&str>) -> Result<String, String> {
    match (written, asked) {
        (Some(written), Some(asked)) if written != asked => {
            Err(format!("{} {name} is in namespace {written}, not {asked}; pass -n {written}", resource.singular()))
        }
        (Some(namespace), _) | (None, Some(namespace)) => Ok(namespace.to_owned()),
        (None, None) => Ok(document::DEFAULT_NAMESPACE.to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SCREEN: Screen = Screen { color: false, quiet: true };

    fn paths(all: &[NamedDocument]) -> Vec<String> {
        all.iter().map(|named| named.resource.path(&named.namespace, &named.name)).collect()
    }

    #[test]
    fn pods_of_files_and_directories_keep_their_authored_names() {
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
        let (pods, failed) = read(&directory, None, Validation::Strict, SCREEN).unwrap();
        assert_eq!(paths(&pods), ["/api/v1/namespaces/default/pods/a", "/api/v1/namespaces/lab/pods/b"]);
        assert!(!failed);
        let (pods, failed) = read(&directory, Some("lab"), Validation::Strict, SCREEN).unwrap();
        assert_eq!(paths(&pods), ["/api/v1/namespaces/lab/pods/a", "/api/v1/namespaces/lab/pods/b"]);
        assert!(!failed);
        let (pods, failed) = read(&directory, Some("shop"), Validation::Strict, SCREEN).unwrap();
        assert_eq!((paths(&pods), failed), (vec!["/api/v1/namespaces/shop/pods/a".to_owned()], true));
    }

    #[test]
    fn a_broken_document_stops_only_itself() {
        let directory = tempfile::tempdir().unwrap();
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: 'a:1'}]}\n\
                    ---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: []}\n";
        let path = directory.path().join("two.yaml");
        std::fs::write(&path, text).unwrap();
        let (pods, failed) = read(&[path], None, Validation::Strict, SCREEN).unwrap();
        assert_eq!((pods.len(), failed), (1, true));
        let missing = directory.path().join("missing.yaml");
        let (pods, failed) = read(&[missing], None, Validation::Strict, SCREEN).unwrap();
        assert_eq!((pods.len(), failed), (0, true));
    }

    #[test]
    fn objects_are_read_beside_pods_with_their_own_namespace() {
        let directory = tempfile::tempdir().unwrap();
        let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: b}\n\
                    ---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m, namespace: default}\n";
        let path = directory.path().join("both.yaml");
        std::fs::write(&path, text).unwrap();
        let (all, failed) = read(std::slice::from_ref(&path), None, Validation::Strict, SCREEN).unwrap();
        let namespace = "/api/v1/namespaces/default";
        assert_eq!(paths(&all), [format!("{namespace}/secrets/s"), format!("{namespace}/configmaps/m")]);
        assert!(!failed);
        let (all, failed) = read(&[path], Some("lab"), Validation::Strict, SCREEN).unwrap();
        assert_eq!((paths(&all), failed), (vec!["/api/v1/namespaces/lab/secrets/s".to_owned()], true));
        let value: Value = serde_json::from_slice(&all[0].manifest).unwrap();
        assert_eq!((&value["metadata"]["namespace"], &value["data"]["a"]), (&"lab".into(), &"Yg==".into()));
    }
}
