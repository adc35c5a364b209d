//! `--image-credential-provider-config` and `--image-credential-provider-bin-dir`: kubelet's CredentialProviderConfig, a
//! file or a directory of files, with kubelet's checks.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::flags::RunFlags;
use super::super::keys::{
    CREDENTIAL_PROVIDER, CREDENTIAL_PROVIDER_CONFIG, CREDENTIAL_PROVIDER_VARIABLE, TOKEN_ATTRIBUTES,
};
use super::super::tree::{Map, Node, Position, Value};
use super::{ConfigDiagnostics, read_capped};
use limpet_containerd::image::{CredentialProvider, TokenAttributes, TokenCache};
use limpet_model::go_duration;
use limpet_model::pod::is_qualified_name;

const CONFIG_FLAG: &str = "--image-credential-provider-config";
const DIRECTORY_FLAG: &str = "--image-credential-provider-bin-dir";
const KIND: &str = "CredentialProviderConfig";
const VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
/// The versions of request and response.
const REQUEST_VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];
/// The files of a directory that are read.
const ENDINGS: [&str; 3] = ["json", "yaml", "yml"];
/// More files than this in a directory are an error.
const MAX_FILES: usize = 64;

impl ConfigDiagnostics {
    /// Applies the two flags, each of which requires the other, and reads the files.
    pub(super) fn credential_provider_flags(&mut self, flags: &RunFlags, providers: &mut Vec<CredentialProvider>) {
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let (path, directory) =
            match (given(&flags.image_credential_provider_config), given(&flags.image_credential_provider_bin_dir)) {
                (None, None) => return,
                (Some(path), Some(directory)) => (path, directory),
                (Some(_), None) => return self.error(None, CONFIG_FLAG, format!("needs {DIRECTORY_FLAG}")),
                (None, Some(_)) => return self.error(None, DIRECTORY_FLAG, format!("needs {CONFIG_FLAG}")),
            };
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        let files = match files(&path) {
            Ok(files) => files,
            Err(error) => return self.error(None, CONFIG_FLAG, format!("{}: {error}", path.display())),
        };
        let flags = Arc::clone(&self.origin);
        let mut names = HashSet::new();
        for file in files {
            self.origin = Arc::from(file.to_string_lossy());
            match read_capped(&file) {
                Ok(text) => self.credential_providers(&text, &directory, &mut names, providers),
                Err(error) => self.error(None, "", format!("cannot be read: {error}")),
            }
        }
        self.origin = flags;
    }

    fn credential_providers(
        &mut self,
        text: &str,
        directory: &Path,
        names: &mut HashSet<String>,
        providers: &mut Vec<CredentialProvider>,
    ) {
        let before = self.faults.len();
        let documents = self.documents(text);
        let [Node { value: Value::Map(entries), position }] = documents.as_slice() else {
            if self.faults.len() == before {
                self.error(None, "", format!("is not one document of kind {KIND}"));
            }
            return;
        };
        let map = Map { entries };
        for (key, wanted) in [("kind", &[KIND][..]), ("apiVersion", &VERSIONS)] {
            let written = map.text(key);
            if !written.is_some_and(|(text, _)| wanted.contains(&text)) {
                let at = written.map_or(*position, |(_, at)| at);
                return self.error(Some(at), key, format!("must be {}", wanted.join(" or ")));
            }
        }
        self.keys(entries, CREDENTIAL_PROVIDER_CONFIG, "");
        let entries = map.maps("providers");
        if entries.is_empty() {
            self.error(Some(*position), "providers", "at least one is required");
        }
        for (index, (provider, at)) in entries.into_iter().enumerate() {
            let path = format!("providers[{index}]");
            self.keys(provider.entries, CREDENTIAL_PROVIDER, &path);
            if let Some(provider) = self.credential_provider(provider, at, &path, directory) {
                if !names.insert(provider.name.clone()) {
                    self.error(Some(at), &format!("{path}.name"), format!("{:?} is already defined", provider.name));
                }
                providers.push(provider);
            }
        }
    }

    fn credential_provider(
        &mut self,
        map: Map<'_>,
        at: Position,
        path: &str,
        directory: &Path,
    ) -> Option<CredentialProvider> {
        let field = |key: &str| format!("{path}.{key}");
        let before = self.faults.len();
        let (name, name_at) = map.text("name").unwrap_or(("", at));
        if matches!(name, "" | "." | "..") || name.contains(['/', ' ']) {
            self.error(Some(name_at), &field("name"), format!("{name:?} is not the name of a file"));
        }
        let (version, version_at) = map.text("apiVersion").unwrap_or(("", at));
        if !REQUEST_VERSIONS.contains(&version) {
            let message = format!("{version:?} is unknown; use one of {}", REQUEST_VERSIONS.join(", "));
            self.error(Some(version_at), &field("apiVersion"), message);
        }
        let images = map.texts("matchImages");
        if images.is_empty() {
            self.error(Some(at), &field("matchImages"), "at least one is required");
        }
        for (image, at) in &images {
            if !is_pattern(image) {
                self.error(
                    Some(*at),
                    &field("matchImages"),
                    format!("{image:?} is not a pattern such as *.example.com"),
                );
            }
        }
        let lasts = map.text("defaultCacheDuration").map(|(text, at)| (go_duration::parse(text), at));
        let Some((Some(default_cache_duration), _)) = lasts else {
            let at = lasts.map_or(at, |(_, at)| at);
            self.error(Some(at), &field("defaultCacheDuration"), "must be a duration of 0s or more such as 10m");
            return None;
        };
        let token_attributes = self.token_attributes(map, at, version, &field("tokenAttributes"));
        let env = self.variables(map, &field("env"));
        let program = directory.join(name);
        if self.faults.len() == before && !is_executable(&program) {
            let message = format!(
                "{} is not an executable file: its images are pulled without its credentials",
                program.display()
            );
            self.warn(Some(name_at), &field("name"), message);
        }
        Some(CredentialProvider {
            name: name.to_owned(),
            program,
            match_images: images.into_iter().map(|(image, _)| image.to_owned()).collect(),
            default_cache_duration,
            api_version: version.to_owned(),
            args: map.texts("args").into_iter().map(|(arg, _)| arg.to_owned()).collect(),
            env,
            token_attributes,
        })
    }

    /// `tokenAttributes`, with kubelet's checks.
    fn token_attributes(
        &mut self,
        provider: Map<'_>,
        at: Position,
        version: &str,
        path: &str,
    ) -> Option<TokenAttributes> {
        let entry = provider.entries.iter().find(|entry| entry.key == "tokenAttributes");
        let Value::Map(entries) = &entry?.node.value else { return None };
        let map = Map { entries };
        self.keys(entries, TOKEN_ATTRIBUTES, path);
        let field = |key: &str| format!("{path}.{key}");
        if version != REQUEST_VERSIONS[0] {
            self.error(Some(at), path, format!("needs the apiVersion {}", REQUEST_VERSIONS[0]));
        }
        let audience = map.text("serviceAccountTokenAudience").map_or("", |(text, _)| text);
        if audience.is_empty() {
            self.error(Some(at), &field("serviceAccountTokenAudience"), "is required");
        }
        let require = map.bool("requireServiceAccount").map(|(require, _)| require);
        if require.is_none() {
            self.error(Some(at), &field("requireServiceAccount"), "is required");
        }
        let cache = match map.text("cacheType").map(|(text, _)| text) {
            Some("Token") => TokenCache::Token,
            Some("ServiceAccount") => TokenCache::ServiceAccount,
            _ => {
                self.error(Some(at), &field("cacheType"), "must be Token or ServiceAccount");
                TokenCache::Token
            }
        };
        let (required, optional) = ("requiredServiceAccountAnnotationKeys", "optionalServiceAccountAnnotationKeys");
        let required_annotations = self.annotation_keys(map, required, &field(required));
        let optional_annotations = self.annotation_keys(map, optional, &field(optional));
        if require == Some(false) && !required_annotations.is_empty() {
            self.error(Some(at), &field(required), "needs requireServiceAccount: true");
        }
        if let Some(both) = required_annotations.iter().find(|key| optional_annotations.contains(key)) {
            self.error(Some(at), path, format!("the annotation {both:?} is both required and optional"));
        }
        Some(TokenAttributes {
            audience: audience.to_owned(),
            cache,
            require_service_account: require.unwrap_or(true),
            required_annotations,
            optional_annotations,
        })
    }

    fn annotation_keys(&mut self, map: Map<'_>, key: &str, path: &str) -> Vec<String> {
        let mut keys: Vec<String> = Vec::new();
        for (text, at) in map.texts(key) {
            if !is_qualified_name(&text.to_lowercase()) {
                self.error(Some(at), path, format!("{text:?} is not the key of an annotation"));
            }
            if keys.iter().any(|known| known == text) {
                self.error(Some(at), path, format!("{text:?} is already listed"));
            }
            keys.push(text.to_owned());
        }
        keys
    }

    fn variables(&mut self, map: Map<'_>, path: &str) -> Vec<(String, String)> {
        let mut variables = Vec::new();
        for (index, (variable, at)) in map.maps("env").into_iter().enumerate() {
            self.keys(variable.entries, CREDENTIAL_PROVIDER_VARIABLE, &format!("{path}[{index}]"));
            let text = |key| variable.text(key).map(|(text, _)| text).unwrap_or_default();
            let (name, value) = (text("name"), text("value"));
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                self.error(Some(at), &format!("{path}[{index}].name"), format!("{name:?} is not a variable's name"));
            }
            variables.push((name.to_owned(), value.to_owned()));
        }
        variables
    }
}

/// The file, or those of a directory, by name.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| ENDINGS.contains(&ending)) && !path.is_dir() {
            files.push(path);
        }
        if files.len() > MAX_FILES {
            return Err(io::Error::other(format!("more than {MAX_FILES} files")));
        }
    }
    files.sort();
    if files.is_empty() { Err(io::Error::other("has no .json, .yaml or .yml file")) } else { Ok(files) }
}

fn is_executable(program: &Path) -> bool {
    std::fs::metadata(program).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Whether the text is a host with globs and optionally a port and a path, but without a scheme.
fn is_pattern(text: &str) -> bool {
    let host = text.split('/').next().unwrap_or_default();
    let (name, port) = host.split_once(':').unwrap_or((host, "0"));
    let of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '*' | '?');
    !name.is_empty() && name.chars().all(of_name) && port.parse::<u16>().is_ok() && !text.contains(char::is_whitespace)
}
