//! Credential providers: kubelet's file, and what is rejected in it.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use super::*;
use limpet_containerd::image::{CredentialProvider, TokenAttributes, TokenCache};

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n";
const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

fn entry(name: &str) -> String {
    format!(
        "- name: {name}\n  apiVersion: {V1}\n  matchImages: ['*.ecr.example.com', 'q.io:5000/team']\n  defaultCacheDuration: 12h\n"
    )
}

/// The providers that a configuration with these files has and its warnings, or its errors and warnings.
fn providers(files: &[(&str, &str)], path: &str) -> Result<(Vec<CredentialProvider>, Vec<String>, PathBuf), String> {
    let root = tempfile::tempdir().unwrap();
    let prefix = format!("{}/", root.path().display());
    for (file, text) in files {
        let file = root.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        if file.parent().unwrap().ends_with("bin") {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    let flags = RunFlags {
        image_credential_provider_config: Some(root.path().join(path)),
        image_credential_provider_bin_dir: Some(root.path().join("bin")),
        ..RunFlags::default()
    };
    let messages = |faults: Vec<Fault>| -> Vec<String> {
        let faults = faults.iter().filter(|fault| fault.path != "staticPodPath");
        faults.map(|fault| fault.to_string().replace(&prefix, "")).collect()
    };
    match load(&flags) {
        Ok((config, warnings)) => Ok((config.images.credential_providers, messages(warnings), root.path().to_owned())),
        Err(ConfigError::Faults(faults)) => Err(messages(faults).join("\n")),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn kubelets_file_is_read() {
    let text = format!("{HEAD}{}  args: [get, now]\n  env:\n  - name: REGION\n    value: eu\n", entry("ecr"));
    let (read, warnings, root) = providers(&[("c.yaml", &text), ("bin/ecr", "")], "c.yaml").unwrap();
    let wanted = CredentialProvider {
        name: "ecr".to_owned(),
        program: root.join("bin/ecr"),
        match_images: vec!["*.ecr.example.com".to_owned(), "q.io:5000/team".to_owned()],
        default_cache_duration: Duration::from_secs(12 * 3600),
        api_version: V1.to_owned(),
        args: vec!["get".to_owned(), "now".to_owned()],
        env: vec![("REGION".to_owned(), "eu".to_owned())],
        token_attributes: None,
    };
    assert_eq!((read, warnings), (vec![wanted], Vec::new()));
}

/// An entry whose program gets tokens, with these keys of `tokenAttributes`.
fn entry_with_tokens(attributes: &str) -> String {
    format!("{HEAD}{}  tokenAttributes: {{{attributes}}}\n", entry("ecr"))
}

#[test]
fn token_attributes_are_read() {
    let text = entry_with_tokens(
        "serviceAccountTokenAudience: q.io, cacheType: ServiceAccount, requireServiceAccount: true, \
         requiredServiceAccountAnnotationKeys: [Q.io/role], optionalServiceAccountAnnotationKeys: [zone]",
    );
    let (read, ..) = providers(&[("c.yaml", &text), ("bin/ecr", "")], "c.yaml").unwrap();
    let wanted = TokenAttributes {
        audience: "q.io".to_owned(),
        cache: TokenCache::ServiceAccount,
        require_service_account: true,
        required_annotations: vec!["Q.io/role".to_owned()],
        optional_annotations: vec!["zone".to_owned()],
    };
    assert_eq!(read[0].token_attributes, Some(wanted));
    let text = format!("{HEAD}{}  tokenAttributes: null\n", entry("ecr"));
    assert_eq!(providers(&[("c.yaml", &text), ("bin/ecr", "")], "c.yaml").unwrap().0[0].token_attributes, None);
}

#[test]
fn token_attributes_that_kubelet_refuses_are_refused() {
    let good = "serviceAccountTokenAudience: q, cacheType: Token, requireServiceAccount: true";
    let with = |more: &str| entry_with_tokens(&format!("{good}, {more}"));
    let edited = |from: &str, to: &str| entry_with_tokens(&good.replace(from, to));
    let optional = "optionalServiceAccountAnnotationKeys";
    let required = "requiredServiceAccountAnnotationKeys";
    let table = [
        (edited("Audience: q", "Audience: ''"), "tokenAttributes.serviceAccountTokenAudience: is required"),
        (edited("cacheType: Token, ", ""), "tokenAttributes.cacheType: must be Token or ServiceAccount"),
        (edited("cacheType: Token", "cacheType: Pod"), "tokenAttributes.cacheType: must be Token or ServiceAccount"),
        (edited(", requireServiceAccount: true", ""), "tokenAttributes.requireServiceAccount: is required"),
        (
            entry_with_tokens(good).replace(
                "providers:\n- name: ecr\n  apiVersion: credentialprovider.kubelet.k8s.io/v1",
                "providers:\n- name: ecr\n  apiVersion: credentialprovider.kubelet.k8s.io/v1beta1",
            ),
            "tokenAttributes: needs the apiVersion credentialprovider.kubelet.k8s.io/v1",
        ),
        (with(&format!("{required}: ['a b']")), "\"a b\" is not the key of an annotation"),
        (with(&format!("{optional}: [a, a]")), "optionalServiceAccountAnnotationKeys: \"a\" is already listed"),
        (with(&format!("{required}: [a], {optional}: [a]")), "the annotation \"a\" is both required and optional"),
        (
            edited("true", &format!("false, {required}: [a]")),
            "requiredServiceAccountAnnotationKeys: needs requireServiceAccount: true",
        ),
        (with("audience: q"), "providers[0].tokenAttributes.audience: no such key"),
    ];
    for (text, wanted) in table {
        let error = providers(&[("c.yaml", &text), ("bin/ecr", "")], "c.yaml").unwrap_err();
        assert!(error.contains(wanted), "{text}\n{error}");
    }
}

#[test]
fn the_files_of_a_directory_are_read_in_the_order_of_their_names() {
    let text = |name: &str| format!("{HEAD}{}", entry(name));
    let (second, first) = (text("second"), text("first"));
    let files =
        [("c/2.yml", &*second), ("c/1.json", &first), ("c/notes.txt", "?"), ("bin/first", ""), ("bin/second", "")];
    let names = |files: &[(&str, &str)]| {
        providers(files, "c").map(|(read, ..)| read.into_iter().map(|provider| provider.name).collect::<Vec<_>>())
    };
    assert_eq!(names(&files), Ok(vec!["first".to_owned(), "second".to_owned()]));
    let error = names(&[("c/1.yaml", &*first), ("c/2.yaml", &first)]).unwrap_err();
    assert!(error.contains("c/2.yaml:4:3: providers[0].name: \"first\" is already defined"), "{error}");
    let error = names(&[("c/notes.txt", "")]).unwrap_err();
    assert!(error.contains("has no .json, .yaml or .yml file"), "{error}");
}

#[test]
fn a_missing_program_is_named_and_stops_nothing() {
    let (read, warnings, _) = providers(&[("c.yaml", &format!("{HEAD}{}", entry("ecr")))], "c.yaml").unwrap();
    assert_eq!(read.len(), 1);
    let wanted = "c.yaml:4:9: providers[0].name: bin/ecr is not an executable file: its images are pulled without its credentials";
    assert_eq!(warnings, [wanted]);
}

#[test]
fn what_kubelet_refuses_is_refused() {
    let whole = format!("{HEAD}{}", entry("ecr"));
    let edited = |from: &str, to: &str| whole.replace(from, to);
    let table = [
        (edited("name: ecr", "name: ../ecr"), "providers[0].name: \"../ecr\" is not the name of a file"),
        (edited("name: ecr", "name: ''"), "providers[0].name: \"\" is not the name of a file"),
        (
            edited(V1, "v1"),
            "providers[0].apiVersion: \"v1\" is unknown; use one of credentialprovider.kubelet.k8s.io/v1,",
        ),
        (edited("12h", "-12h"), "providers[0].defaultCacheDuration: must be a duration"),
        (edited("  defaultCacheDuration: 12h\n", ""), "providers[0].defaultCacheDuration: must be a duration"),
        (edited("'*.ecr.example.com', 'q.io:5000/team'", ""), "providers[0].matchImages: at least one is required"),
        (edited("q.io:5000/team", "https://q.io"), "providers[0].matchImages: \"https://q.io\" is not a pattern"),
        (edited("matchImages", "matchImage"), "providers[0].matchImage: no such key; did you mean matchImages?"),
        (
            format!("{whole}  env: [{{name: 'A=B', value: c}}]\n"),
            "providers[0].env[0].name: \"A=B\" is not a variable's name",
        ),
        (format!("{HEAD}  []\n"), "providers: at least one is required"),
        (
            edited("kind: CredentialProviderConfig", "kind: KubeletConfiguration"),
            "kind: must be CredentialProviderConfig",
        ),
        (edited("io/v1\nkind", "io/v2\nkind"), "apiVersion: must be kubelet.config.k8s.io/v1 or"),
        (format!("{whole}---\n{whole}"), "is not one document of kind CredentialProviderConfig"),
        ("{".to_owned(), "not YAML"),
    ];
    for (text, wanted) in table {
        let error = providers(&[("c.yaml", &text), ("bin/ecr", "")], "c.yaml").unwrap_err();
        assert!(error.contains(wanted), "{text}\n{error}");
    }
}

#[test]
fn neither_flag_goes_without_the_other() {
    for (given, lacks) in [
        ("--image-credential-provider-config", "--image-credential-provider-bin-dir"),
        ("--image-credential-provider-bin-dir", "--image-credential-provider-config"),
    ] {
        let Err(ConfigError::Faults(faults)) = load(&flags(&[given, "/nonexistent"])) else { panic!("{given}") };
        assert_eq!(faults[0].to_string(), format!("flags: {given}: needs {lacks}"));
    }
    let error = providers(&[], "none.yaml").unwrap_err();
    assert!(error.contains("--image-credential-provider-config: none.yaml: No such file"), "{error}");
}
