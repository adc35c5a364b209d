//! The versions of an application: an image of ten layers of which an update changes the last, where registries have it and
//! as a signed bundle.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use limpet_tests::agent::Agent;
use limpet_tests::image::{self, Image, ImageBuilder, noise};
use limpet_tests::life::{Life, OnTerm};
use limpet_tests::manifest::pod;
use serde_json::{Value, json};

/// The name of the pod.
pub(crate) const POD: &str = "app";
/// The layers of the image: busybox below, and these of noise.
const NOISE_LAYERS: usize = 9;
/// The size of each of them.
const LAYER_SIZE: usize = 1 << 20;
/// A pair for benches alone, in the form of `minisign -G -W`.
const SECRET: &str = "untrusted comment: test\nRWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAbGltcGV0LWGZpTYsjynE0ao7rN8R7i31a/JxNJjKeQpziamPNXp5xHWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkUioi9CjRJmNDvCXD0+q+1bTyjp4D10lC6fH/W74mAgM4=\n";
const PUBLIC: &str = "RWRsaW1wZXQtYXWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkU";

/// An image of that name. `who` distinguishes its layers from those of others, which one containerd would share.
pub(crate) fn image(name: &str, who: &str, version: usize) -> Result<Image> {
    let layer = |number: usize| {
        let content = if number + 1 == NOISE_LAYERS { version } else { 0 };
        (format!("noise-{number}"), noise(&format!("{who} {number} {content}"), LAYER_SIZE))
    };
    let layers = (0..NOISE_LAYERS).map(layer);
    layers.fold(ImageBuilder::new(name), |image, (path, content)| image.layer(&path, content)).gzip().build()
}

/// The pod with that image. Its process ends at SIGTERM.
pub(crate) fn app(life: &Life, image: &str) -> Value {
    let mut spec = life.spec(OnTerm::Ends);
    (spec["containers"][0]["image"], spec["containers"][0]["imagePullPolicy"]) = (json!(image), json!("IfNotPresent"));
    spec["terminationGracePeriodSeconds"] = json!(2);
    pod(POD, spec)
}

/// Makes bundles, each as the difference to the one before.
pub(crate) struct Workshop {
    dir: PathBuf,
    /// The last bundle and its serial.
    last: Option<(PathBuf, usize)>,
}

impl Workshop {
    pub(crate) fn open(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
        fs::write(dir.join("secret"), SECRET)?;
        fs::write(dir.join("public"), PUBLIC)?;
        Ok(Self { dir, last: None })
    }

    /// The file of the key that nodes need.
    pub(crate) fn key(&self) -> PathBuf {
        self.dir.join("public")
    }

    /// A bundle of these objects with that image, if there is one.
    pub(crate) fn make(&mut self, agent: &Agent, objects: &[Value], image: Option<&Image>) -> Result<Vec<u8>> {
        let serial = self.last.as_ref().map_or(1, |(_, serial)| serial + 1);
        let file = |kind: &str| self.dir.join(format!("{serial}.{kind}"));
        let (archive, manifests, out) = (file("tar"), file("json"), file("limpet"));
        fs::write(&manifests, json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string())?;
        let mut arguments = vec!["bundle".to_owned(), "create".to_owned()];
        let mut add = |flag: &str, value: &str| arguments.extend([flag.to_owned(), value.to_owned()]);
        let text = |path: &Path| path.display().to_string();
        add("--name", "bench");
        add("--version", &serial.to_string());
        add("--serial", &serial.to_string());
        add("--key", &text(&self.dir.join("secret")));
        add("-f", &text(&manifests));
        add("-o", &text(&out));
        if let Some(image) = image {
            image::write_oci_archive(&[image], &archive)?;
            add("--image", &text(&archive));
        }
        if let Some((last, _)) = self.last.as_ref().filter(|_| image.is_some()) {
            add("--from", &text(last));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        agent.cli(&arguments)?.success()?;
        let bytes = fs::read(&out).with_context(|| format!("{}", out.display()))?;
        self.last = Some((out, serial));
        Ok(bytes)
    }
}
