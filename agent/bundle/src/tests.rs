//! A bundle from its parts to its reading, and every way in which one may be damaged.

use std::fs;
use std::path::{Path, PathBuf};

use limpet_signature::{PublicKeys, SecretKey};
use serde_json::{Value, json};

use crate::announcement::{ANNOUNCEMENT_BYTES, Announcement};
use crate::bundle::Bundle;
use crate::check::{self, PUBLIC};
use crate::create::{Created, Recipe, create};
use crate::document::{CONFIG_TYPE, MANIFESTS_TYPE, digest};
use crate::envelope::SIGNED_FROM;
use crate::error::BundleError;
use crate::inspect;
use crate::node_key::{NodeKey, NodeKeyError, NodePublicKey};

/// Pairs for tests alone, in the form of minisign -G -W.
const SECRET: &str = "untrusted comment: test\nRWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAbGltcGV0LWGZpTYsjynE0ao7rN8R7i31a/JxNJjKeQpziamPNXp5xHWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkUioi9CjRJmNDvCXD0+q+1bTyjp4D10lC6fH/W74mAgM4=\n";
const FOREIGN: &str = "RWRsaW1wZXQtYtdWIlka9Cp2pXXE7V1NgyG2IWnqeppSx8YgXg5sI5fH";
const NO_LIMIT: u64 = u64::MAX;

struct Bench {
    dir: tempfile::TempDir,
    key: SecretKey,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("secret"), SECRET).unwrap();
        let key = SecretKey::read(&dir.path().join("secret")).unwrap();
        Self { dir, key }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn keys(&self, keys: &[&str]) -> PublicKeys {
        let path = |(index, key): (usize, &&str)| {
            let path = self.path(&format!("key{index}"));
            fs::write(&path, key).unwrap();
            path
        };
        PublicKeys::read(&keys.iter().enumerate().map(path).collect::<Vec<_>>()).unwrap()
    }

    /// An archive with one image of that name and these layers.
    fn archive(&self, file: &str, image: &str, layers: &[&str]) -> PathBuf {
        let descriptor = |media_type: &str, content: &[u8]| {
            json!({ "mediaType": format!("application/vnd.oci.image.{media_type}"), "digest": digest(content),
                "size": content.len() })
        };
        let config =
            json!({ "architecture": "amd64", "os": "linux", "rootfs": { "type": "layers", "diff_ids": layers } });
        let config = config.to_string().into_bytes();
        let layers: Vec<&[u8]> = layers.iter().map(|layer| layer.as_bytes()).collect();
        let listed: Vec<Value> = layers.iter().map(|layer| descriptor("layer.v1.tar", layer)).collect();
        let manifest = json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("config.v1+json", &config), "layers": listed });
        let manifest = manifest.to_string().into_bytes();
        let mut entry = descriptor("manifest.v1+json", &manifest);
        entry["annotations"] = json!({ "io.containerd.image.name": image });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();
        let path = self.path(file);
        let mut tar = tar::Builder::new(fs::File::create(&path).unwrap());
        let mut add = |name: &str, content: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, name, content).unwrap();
        };
        for blob in layers.into_iter().chain([&config[..], &manifest]) {
            add(&format!("blobs/sha256/{}", &digest(blob)[7..]), blob);
        }
        add("index.json", index.as_bytes());
        tar.finish().unwrap();
        path
    }

    fn create(
        &self,
        serial: u64,
        archives: &[PathBuf],
        from: Option<&Path>,
    ) -> Result<(PathBuf, Created), BundleError> {
        self.create_sealed(serial, archives, from, &[])
    }

    fn create_sealed(
        &self,
        serial: u64,
        archives: &[PathBuf],
        from: Option<&Path>,
        seal_to: &[NodePublicKey],
    ) -> Result<(PathBuf, Created), BundleError> {
        let out = self.path(&format!("{serial}.limpet"));
        let recipe = Recipe {
            name: "plant",
            version: "1.4",
            serial,
            rollout: (serial == 7).then_some(10),
            manifests: vec![(PathBuf::from("web.yaml"), MANIFESTS.as_bytes().to_vec())],
            images: archives,
            from,
            seal_to,
            key: &self.key,
        };
        Ok((out.clone(), create(&recipe, &out)?))
    }

    fn refusal(&self, path: &Path, keys: &[&str], limit: u64) -> String {
        Bundle::open(path, path, &self.keys(keys), limit).map(|_| ()).unwrap_err().to_string()
    }
}

const MANIFESTS: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: 'x/web:1'}]}\n\
    ---\napiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {token: s3cret}\n";

#[test]
fn what_was_put_into_a_bundle_is_read_from_it() {
    let bench = Bench::new();
    let archive = bench.archive("web.tar", "docker.io/x/web:1", &["one", "two"]);
    let (path, created) = bench.create(7, &[archive], None).unwrap();
    assert_eq!((created.documents, created.layers.len(), created.left_out.len()), (2, 2, 0));
    assert_eq!(created.size, fs::metadata(&path).unwrap().len());
    let bundle = Bundle::open(&path, &path, &bench.keys(&[FOREIGN, PUBLIC]), created.size).unwrap();
    assert_eq!((&bundle.config, bundle.config.rollout), (&created.config, Some(10)));
    assert_eq!((bundle.identity.name.as_str(), bundle.identity.serial), ("plant", 7));
    assert!(bundle.key.as_ref().unwrap().ends_with("key1"));
    let images = bundle.images().unwrap();
    let image = &images[0];
    assert_eq!(image.name, format!("docker.io/x/web@{}", image.digest));
    assert_eq!(bundle.config.images[0].name, "docker.io/x/web:1");
    assert!(image.layers.iter().all(|(layer, _)| bundle.contains(layer)));
    let list: Value = serde_json::from_slice(&bundle.manifests).unwrap();
    assert_eq!(list["items"][0]["spec"]["containers"][0]["image"], format!("x/web:1@{}", image.digest));
    let page = inspect::page(&inspect::report(&bundle).unwrap());
    assert!(page.contains("For:         the first 10 % of the nodes"), "{page}");
    assert!(page.contains("Secret default/token") && !page.contains("s3cret") && !page.contains("czNjcmV0"), "{page}");
    let unchecked = inspect::page(&inspect::report(&Bundle::open_unchecked(&path).unwrap()).unwrap());
    assert!(unchecked.contains("not checked"), "{unchecked}");
}

#[test]
fn the_first_bytes_say_what_a_bundle_is_and_nobody_else_can_say_it() {
    let bench = Bench::new();
    let archive = bench.archive("web.tar", "docker.io/x/web:1", &["one"]);
    let (path, _) = bench.create(7, &[archive], None).unwrap();
    let whole = fs::read(&path).unwrap();
    let first = &whole[..ANNOUNCEMENT_BYTES];
    let read = Announcement::read(first, &bench.keys(&[FOREIGN, PUBLIC])).unwrap();
    assert_eq!(read, Announcement { title: "plant 1.4 serial 7".to_owned(), serial: 7, rollout: Some(10) });
    assert_eq!(Announcement::read(first, &bench.keys(&[FOREIGN])), None);
    assert_eq!(Announcement::read(&first[..ANNOUNCEMENT_BYTES - 1], &bench.keys(&[PUBLIC])), None);
    let text = String::from_utf8_lossy(first).replace("serial 7", "serial 8");
    assert_eq!(Announcement::read(text.as_bytes(), &bench.keys(&[PUBLIC])), None);
}

#[test]
fn the_same_parts_make_the_same_bytes() {
    let bench = Bench::new();
    let archives = [bench.archive("web.tar", "docker.io/x/web:1", &["one", "two"])];
    let (path, _) = bench.create(7, &archives, None).unwrap();
    let first = fs::read(&path).unwrap();
    bench.create(7, &archives, None).unwrap();
    assert_eq!(first, fs::read(&path).unwrap());
}

#[test]
fn a_bundle_that_is_cut_changed_foreign_or_too_large_is_refused() {
    let bench = Bench::new();
    let archive = bench.archive("web.tar", "docker.io/x/web:1", &["one"]);
    let (path, created) = bench.create(7, &[archive], None).unwrap();
    let whole = fs::read(&path).unwrap();
    assert!(bench.refusal(&path, &[FOREIGN], NO_LIMIT).contains("none of the keys"));
    assert!(bench.refusal(&path, &[PUBLIC], created.size - 1).contains("bundle.maxSize"));
    let damaged = bench.path("damaged");
    let cuts = (0..whole.len()).step_by(97).chain([0, 1, 511, 512, 1535, 1536, 1537, whole.len() - 1]);
    for cut in cuts {
        fs::write(&damaged, &whole[..cut]).unwrap();
        let error = bench.refusal(&damaged, &[PUBLIC], NO_LIMIT);
        let expected = if cut as u64 <= SIGNED_FROM { "not a bundle" } else { "not what was signed" };
        assert!(error.contains(expected), "{cut}: {error}");
    }
    for at in (0..whole.len()).step_by(61) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&damaged, &bytes).unwrap();
        let opened = Bundle::open(&damaged, &damaged, &bench.keys(&[PUBLIC]), NO_LIMIT);
        // The first line of a signature is for people, as minisign says, and what fills up its place says nothing.
        let is_remark = (512..SIGNED_FROM as usize).contains(&at);
        assert!(opened.is_err() || is_remark, "byte {at}");
    }
    fs::write(&damaged, [&whole[..], b"x"].concat()).unwrap();
    assert!(bench.refusal(&damaged, &[PUBLIC], NO_LIMIT).contains("not what was signed"));
    fs::write(&damaged, vec![b'a'; 1 << 16]).unwrap();
    assert!(bench.refusal(&damaged, &[PUBLIC], NO_LIMIT).contains("does not begin with"));
}

#[test]
fn a_delta_leaves_out_what_the_bundle_before_had_or_left_out() {
    let bench = Bench::new();
    let archive = |version: u64, layers: &[&str]| bench.archive(&format!("{version}.tar"), "docker.io/x/web:1", layers);
    let (first, _) = bench.create(1, &[archive(1, &["base", "one"])], None).unwrap();
    let (second, created) = bench.create(2, &[archive(2, &["base", "two"])], Some(&first)).unwrap();
    let names = |layers: &std::collections::BTreeMap<String, u64>| layers.keys().cloned().collect::<Vec<_>>();
    assert_eq!((names(&created.layers), names(&created.left_out)), (vec![digest(b"two")], vec![digest(b"base")]));
    let bundle = Bundle::open(&second, &second, &bench.keys(&[PUBLIC]), NO_LIMIT).unwrap();
    assert!(!bundle.contains(&digest(b"base")) && bundle.contains(&digest(b"two")));
    assert_eq!(bundle.images().unwrap()[0].layers.len(), 2);
    let page = inspect::page(&inspect::report(&bundle).unwrap());
    assert_eq!(page.matches("left out").count(), 1, "{page}");
    let (_, created) = bench.create(3, &[archive(3, &["base", "three"])], Some(&second)).unwrap();
    assert_eq!(names(&created.layers), [digest(b"three")]);
    // Nobody can use a delta that leaves out its own layers, or that is no newer than what it leaves out.
    let refused = |serial, from: &Path| {
        bench.create(serial, &[archive(2, &["base", "two"])], Some(from)).map(|_| ()).unwrap_err().to_string()
    };
    let whole = fs::read(&first).unwrap();
    assert!(refused(1, &first).contains("write to another file"));
    assert_eq!(fs::read(&first).unwrap(), whole);
    assert!(refused(1, &second).contains("use a higher --serial"));
    // The whole one and the delta of one content are the same bundle.
    let (whole, _) = bench.create(2, &[archive(2, &["base", "two"])], None).unwrap();
    let whole = Bundle::open(&whole, &whole, &bench.keys(&[PUBLIC]), NO_LIMIT).unwrap();
    assert_eq!(whole.identity, bundle.identity);
}

#[test]
fn what_no_node_could_run_is_not_bundled() {
    let bench = Bench::new();
    let refused = |archives: &[PathBuf]| bench.create(7, archives, None).map(|_| ()).unwrap_err().to_string();
    assert!(refused(&[]).contains("in no archive"));
    let other = bench.archive("other.tar", "docker.io/x/web:1", &["two"]);
    let archive = bench.archive("web.tar", "docker.io/x/web:1", &["one"]);
    assert!(refused(&[archive.clone(), other]).contains("another archive has another docker.io/x/web:1"));
    let unnamed = bench.archive("unnamed.tar", "docker.io/x/web:1", &["one"]);
    let text = fs::read(&unnamed).unwrap();
    let at = text.windows(9).position(|window| window == b"\"io.conta").unwrap();
    let mut nameless = text;
    nameless[at + 1] = b'j';
    fs::write(&unnamed, nameless).unwrap();
    assert!(refused(&[unnamed]).contains("no image in it has a name"));
    fs::write(bench.path("x.gz"), [0x1f, 0x8b, 8, 0, 0]).unwrap();
    assert!(refused(&[bench.path("x.gz")]).contains("decompress"));
    assert!(!bench.path("7.limpet").exists() && !bench.path("7.limpet.part").exists());
    bench.create(7, &[archive], None).unwrap();
}

#[test]
fn secrets_that_are_sealed_are_read_by_their_node_alone() {
    let bench = Bench::new();
    let archive = bench.archive("web.tar", "docker.io/x/web:1", &["one"]);
    let [node, other] = [0; 2].map(|_| NodeKey::generate().unwrap());
    let (path, created) = bench.create_sealed(7, &[archive], None, &[node.public()]).unwrap();
    assert_eq!((created.documents, created.sealed), (2, 1));
    let text = fs::read(&path).unwrap();
    for part in ["s3cret", "czNjcmV0"] {
        assert!(!text.windows(part.len()).any(|window| window == part.as_bytes()), "{part}");
    }
    let bundle = Bundle::open(&path, &path, &bench.keys(&[PUBLIC]), NO_LIMIT).unwrap();
    let page = inspect::page(&inspect::report(&bundle).unwrap());
    assert!(page.contains("Secret default/token, sealed") && page.contains(&node.public().id()), "{page}");
    let list = bundle.open_manifests(|| Ok(node)).unwrap();
    let list: Value = serde_json::from_slice(&list).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(list["items"][1]["data"]["token"], "czNjcmV0");
    let id = other.public().id();
    let refused = bundle.open_manifests(|| Ok(other)).unwrap_err().to_string();
    assert!(refused.contains("sealed to other nodes") && refused.contains(&id), "{refused}");
    let missing = bundle.open_manifests(|| NodeKey::read(&bench.path("node.key"))).unwrap_err();
    assert!(matches!(missing, BundleError::NodeKey(NodeKeyError::Read { .. })), "{missing}");
    // Without sealed Secrets no key is needed.
    let (plain, created) = bench.create(7, &[bench.path("web.tar")], None).unwrap();
    assert_eq!(created.sealed, 0);
    let plain = Bundle::open_unchecked(&plain).unwrap();
    assert_eq!(plain.open_manifests(|| unreachable!()).unwrap().as_slice(), plain.manifests);
}

/// The seeds of the fuzz target `bundle`, but those that were damaged.
#[test]
fn the_seeds_of_bundles_are_what_is_made_today() {
    let bench = Bench::new();
    let archive = |layers: &[&str]| bench.archive("web.tar", "docker.io/x/web:1", layers);
    let (plain, _) = bench.create(1, &[archive(&["base", "one"])], None).unwrap();
    let (delta, _) = bench.create(7, &[archive(&["base", "two"])], Some(&plain)).unwrap();
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/bundle");
    for (made, name) in [(plain, "plain.limpet"), (delta, "delta.limpet")] {
        let (made, seed) = (fs::read(made).unwrap(), seeds.join(name));
        if std::env::var_os("LIMPET_UPDATE_DOCS").is_some() {
            fs::write(&seed, &made).unwrap();
        }
        assert!(fs::read(&seed).unwrap() == made, "run LIMPET_UPDATE_DOCS=1 cargo test -p limpet-bundle seeds");
    }
    // Sealing is different each time.
    let sealed = Bundle::open_unchecked(&seeds.join("sealed.limpet")).unwrap();
    fs::write(bench.path("node.key"), check::NODE_KEY).unwrap();
    let list = sealed.open_manifests(|| NodeKey::read(&bench.path("node.key"))).unwrap();
    assert!(String::from_utf8_lossy(&list).contains("czNjcmV0"));
}

fn descriptor(media_type: &str, letter: u8) -> Value {
    json!({ "mediaType": media_type, "digest": format!("@{}", char::from(letter)), "size": 2 })
}

/// The documents of a bundle without images, for [`check::unsigned`], and the entry of its manifest in the index.
fn bare(config: &str) -> (Vec<String>, Value) {
    let manifest = json!({ "schemaVersion": 2, "config": descriptor(CONFIG_TYPE, b'a'),
        "layers": [descriptor(MANIFESTS_TYPE, b'b')] });
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", b'c');
    entry["artifactType"] = json!(crate::ARTIFACT_TYPE);
    (vec![config.to_owned(), r#"{"items":[]}"#.to_owned(), manifest.to_string()], entry)
}

fn unsigned(documents: &[String]) -> check::MemoryFile {
    check::unsigned(&documents.iter().map(String::as_bytes).collect::<Vec<_>>()).unwrap()
}

/// A bundle with one image of that configuration under so many names, behind so many indexes, each of which lists the next
/// one `times` times.
fn listed(config: &str, names: usize, depth: u8, times: usize) -> check::MemoryFile {
    let (mut documents, entry) = bare(r#"{"name":"plant","version":"1","serial":1,"images":[]}"#);
    let layer = json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(b"layer"), "size": 5 });
    let image = json!({ "schemaVersion": 2, "config": descriptor("a/config", b'd'), "layers": [layer] });
    documents.extend([config.to_owned(), image.to_string()]);
    let index = |above| json!({ "schemaVersion": 2, "manifests": vec![descriptor("a/b", b'e' + above); times] });
    documents.extend((0..depth).map(|above| index(above).to_string()));
    let named = |number: usize| {
        let mut entry = descriptor("a/b", b'e' + depth);
        entry["annotations"] = json!({ "io.containerd.image.name": format!("x/web{number}") });
        entry
    };
    let entries: Vec<Value> = [entry].into_iter().chain((0..names).map(named)).collect();
    documents.push(json!({ "schemaVersion": 2, "manifests": entries }).to_string());
    unsigned(&documents)
}

#[test]
fn what_is_listed_again_and_again_is_read_once() {
    // Read each time, they would be read ten thousand million times.
    let file = listed("{}", 1, 4, 316);
    let images = Bundle::open_unchecked(&file.path()).unwrap().images().unwrap();
    assert_eq!((images[0].documents.len(), images[0].layers.len()), (6, 1));
    let error = Bundle::open_unchecked(&listed("{}", 1, 5, 1).path()).unwrap().images().unwrap_err();
    assert!(error.to_string().contains("nested indexes"), "{error}");
}

#[test]
fn the_documents_of_all_images_have_a_limit_together() {
    let config = format!("{{\"a\":\"{}\"}}", "a".repeat(8 << 20));
    let images = |names: usize| Bundle::open_unchecked(&listed(&config, names, 0, 0).path()).unwrap().images();
    assert_eq!(images(7).unwrap().len(), 7);
    let error = images(8).unwrap_err().to_string();
    assert!(error.contains("configurations of its images have more than 64 MiB"), "{error}");
    // Lists of 4 MiB are not even parsed.
    let file = listed("{}", 1, 1, (4 << 20) / 60);
    let error = Bundle::open_unchecked(&file.path()).unwrap().images().unwrap_err().to_string();
    assert!(error.contains("too many for a list of documents"), "{error}");
    let error = Bundle::open_unchecked(&listed("{}", 30_000, 0, 0).path()).unwrap_err().to_string();
    assert!(error.contains("index.json of") && error.contains("too large"), "{error}");
}

#[test]
fn a_name_that_no_bundle_may_have_is_refused_when_it_is_read() {
    for (name, is_refused) in [("plant", false), ("", true), ("a\u{7}", true), (&*"a".repeat(129), true)] {
        let config = json!({ "name": name, "version": "1", "serial": 1, "images": [] });
        let (mut documents, entry) = bare(&config.to_string());
        documents.push(json!({ "schemaVersion": 2, "manifests": [entry] }).to_string());
        let opened =
            Bundle::open_unchecked(&unsigned(&documents).path()).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(opened.as_ref().is_err_and(|error| error.contains("name or version")), is_refused, "{opened:?}");
        assert_eq!(opened.is_err(), is_refused);
    }
}
