//! Archives as builders write them.

use std::thread;

use serde_json::json;

use super::*;

/// The content of a tar archive, read in full.
fn contents(archive: &[u8]) -> Result<ArchiveContents, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar");
    std::fs::write(&path, archive).unwrap();
    let (sender, mut parts) = mpsc::channel(1);
    let reader = thread::spawn(move || read(&path, &sender));
    let mut contents = ArchiveContents::default();
    let mut blob = None;
    while let Some(part) = parts.blocking_recv() {
        match part {
            ArchivePart::List { name, bytes } => drop(contents.lists.insert(name, bytes)),
            ArchivePart::Link { name, target } => drop(contents.links.insert(name, target)),
            ArchivePart::Blob { name, size, digest } => blob = Some((name, size, digest)),
            ArchivePart::Data(_) => {}
            ArchivePart::End(actual) => {
                let (name, size, digest) = blob.take().unwrap();
                assert!(digest.is_none_or(|digest| digest == actual));
                contents.blobs.insert(name, StoredBlob { digest: actual, size, layer_type: layer_type(b"") });
            }
        }
    }
    reader.join().unwrap().map(|()| contents)
}

fn tar_of(files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        // Written unchanged, because the builder would clean the path.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.append(&header, text.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

fn stored(text: &str) -> StoredBlob {
    StoredBlob { digest: document::sha256(text.as_bytes()), size: 1, layer_type: layer_type(b"") }
}

fn names(contents: &ArchiveContents) -> Vec<String> {
    contents.images().unwrap().into_iter().map(|image| image.name).collect()
}

#[test]
fn links_stay_inside_the_archive() {
    assert_eq!(resolve_link("a/layer.tar", "../b/layer.tar"), "b/layer.tar");
    assert_eq!(resolve_link("a/layer.tar", "../../../../etc/passwd"), "etc/passwd");
    assert_eq!(own_name(b"./blobs/sha256/x"), "blobs/sha256/x");
}

#[test]
fn docker_save_names_and_layers_are_found() {
    let list = json!([{"Config": "c.json", "RepoTags": ["demo:1", "127.0.0.1:5000/demo:2"],
        "Layers": ["a/layer.tar", "b/layer.tar"]}, {"Config": "c.json", "RepoTags": null, "Layers": null}]);
    let mut contents = ArchiveContents::default();
    contents.lists.insert("manifest.json", list.to_string().into_bytes());
    contents.blobs.insert("c.json".into(), stored("config"));
    contents.blobs.insert("a/layer.tar".into(), stored("a"));
    assert!(contents.images().unwrap_err().contains("b/layer.tar"));
    contents.links.insert("b/layer.tar".into(), "a/layer.tar".into());
    assert_eq!(names(&contents), ["docker.io/library/demo:1", "127.0.0.1:5000/demo:2"]);
    let Target::Assemble { layers, .. } = contents.images().unwrap().remove(0).target else { panic!() };
    assert_eq!(layers, [stored("a"), stored("a")]);
    contents.links.insert("x".into(), "y".into());
    contents.links.insert("y".into(), "x".into());
    assert!(contents.blob("x").is_err());
}

#[test]
fn an_oci_layout_is_named_by_its_annotations() {
    let entry = |annotations: serde_json::Value| {
        json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": 1,
            "digest": document::sha256(annotations.to_string().as_bytes()), "annotations": annotations})
    };
    let with = |entries: Vec<serde_json::Value>| {
        let mut contents = ArchiveContents::default();
        let index = json!({"schemaVersion": 2, "manifests": entries});
        contents.lists.insert("index.json", index.to_string().into_bytes());
        contents
    };
    let full = entry(json!({"io.containerd.image.name": "q.io/a:1", "org.opencontainers.image.ref.name": "1"}));
    let oci = entry(json!({"org.opencontainers.image.ref.name": "localhost/b:2"}));
    let tag = entry(json!({"org.opencontainers.image.ref.name": "latest"}));
    assert_eq!(names(&with(vec![full.clone(), oci, tag.clone()])), ["localhost/b:2", "q.io/a:1"]);
    assert!(with(vec![tag]).images().unwrap_err().contains("no image in it has a name"));
    assert!(ArchiveContents::default().images().unwrap_err().contains("not an image archive"));
    let mut other = full.clone();
    other["platform"] = json!({"os": "linux", "architecture": "mips"});
    assert_eq!(names(&with(vec![other, full])), ["q.io/a:1"]);
}
#[test]
fn archives_of_every_builder_are_read() {
    let (config, layer) = (document::sha256(b"config"), document::sha256(b"layer"));
    let (config_hex, layer_hex) = (&config[7..], &layer[7..]);
    let table = [
        // crane, ko, kaniko, apko
        (config.clone(), format!("{layer_hex}.tar.gz"), ""),
        // Jib
        ("config.json".to_owned(), format!("{layer_hex}.tar.gz"), ""),
        // podman and buildah
        (format!("{config_hex}.json"), format!("{layer_hex}.tar"), ""),
        // `docker save` before version 25, nix, and the same packed by `tar c .`
        (format!("{config_hex}.json"), format!("{layer_hex}/layer.tar"), ""),
        (format!("{config_hex}.json"), format!("{layer_hex}/layer.tar"), "./"),
        // Bazel, and `docker save` since version 25
        (format!("blobs/sha256/{config_hex}"), format!("blobs/sha256/{layer_hex}"), ""),
        // An unknown builder
        ("the config".to_owned(), "layers//./1".to_owned(), ""),
    ];
    for (config_name, layer_name, before) in &table {
        let list = json!([{"Config": config_name, "RepoTags": ["demo:1"], "Layers": [layer_name]}]).to_string();
        let named = |name: &str| format!("{before}{name}");
        let (config_entry, layer_entry, list_entry) = (named(config_name), named(layer_name), named("manifest.json"));
        let archive = tar_of(&[
            (&named("repositories"), "{}"),
            (&config_entry, "config"),
            (&layer_entry, "layer"),
            (&list_entry, &list),
        ]);
        let images = contents(&archive).unwrap().images().unwrap_or_else(|error| panic!("{config_name}: {error}"));
        let [ArchivedImage { name, target: Target::Assemble { config: images, layers } }] = images.as_slice() else {
            panic!()
        };
        assert_eq!((name.as_str(), images.digest.as_str()), ("docker.io/library/demo:1", config.as_str()));
        assert_eq!(layers.iter().map(|layer| &*layer.digest).collect::<Vec<_>>(), [&*layer], "{layer_name}");
    }
}

/// Go writes such extensions for long names and for layers above 8 GiB.
#[test]
fn extended_headers_are_read_and_bounded() {
    let long = format!("{}/layer", "d".repeat(150));
    let extended = |records: &[(&str, &[u8])], size: u64| {
        let mut tar = tar::Builder::new(Vec::new());
        tar.append_pax_extensions(records.iter().copied()).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_path("short").unwrap();
        header.set_size(size);
        header.set_cksum();
        let mut bytes = tar.get_ref().clone();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[b'x'; 512]);
        bytes.extend_from_slice(&[0; 1024]);
        bytes
    };
    let contents_with_long_name = contents(&extended(&[("path", long.as_bytes()), ("size", b"512")], 0)).unwrap();
    assert_eq!(contents_with_long_name.blobs[&long].size, 512);
    let huge = vec![b'y'; 2 << 20];
    let error = contents(&extended(&[("comment", &huge)], 512)).unwrap_err();
    assert!(error.contains("headers are larger"), "{error}");
}
