//! A private docker-registry for a test, on loopback.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use reqwest::StatusCode;

use crate::made::{self, Blob, INDEX, MANIFEST, Made};

/// The one user a closed registry knows.
pub(crate) const USER: &str = "limpet";
/// That user's password.
pub(crate) const PASSWORD: &str = "s3cret";
/// Both, as an htpasswd line (bcrypt, the one form the registry takes).
const HTPASSWD: &str = "limpet:$2y$04$CEOf/viZHd4WO.0b0lnO.eEKovBDCkV78gRhAo2I3Qp9Zwv3Uxq5K\n";

pub(crate) struct Registry {
    pub(crate) address: String,
    scheme: &'static str,
    dir: PathBuf,
    child: Child,
    login: Option<(String, String)>,
    http: reqwest::Client,
}

impl Registry {
    /// Starts one that everybody may use.
    pub(crate) async fn start() -> Result<Self, String> {
        Self::start_with(None, false)
    }

    /// Starts one that wants [`USER`] and [`PASSWORD`].
    pub(crate) async fn start_closed() -> Result<Self, String> {
        Self::start_with(Some((USER, PASSWORD)), false)
    }

    /// Starts one that uses TLS with an untrusted certificate.
    pub(crate) async fn start_tls() -> Result<Self, String> {
        Self::start_with(None, true)
    }

    fn start_with(login: Option<(&str, &str)>, tls: bool) -> Result<Self, String> {
        let dir = crate::node::fresh_dir("registry");
        let mut config = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp:\n  addr: 127.0.0.1:0\n",
            dir.join("data").display()
        );
        if tls {
            let (key, certificate) = (dir.join("key.pem"), dir.join("cert.pem"));
            let made = Command::new("openssl")
                .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"])
                .args([
                    "-addext",
                    "subjectAltName=IP:127.0.0.1",
                    "-addext",
                    "basicConstraints=critical,CA:FALSE",
                    "-keyout",
                ])
                .arg(&key)
                .arg("-out")
                .arg(&certificate)
                .output()
                .map_err(|error| format!("openssl: {error}"))?;
            assert!(made.status.success(), "{made:?}");
            config += &format!("  tls: {{certificate: {}, key: {}}}\n", certificate.display(), key.display());
        }
        if login.is_some() {
            std::fs::write(dir.join("htpasswd"), HTPASSWD).unwrap();
            let path = dir.join("htpasswd");
            config += &format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", path.display());
        }
        std::fs::write(dir.join("config.yml"), config).unwrap();
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(dir.join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("docker-registry: {error}"))?;
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "docker-registry exited");
            if let Some((_, rest)) = line.split_once("listening on 127.0.0.1:") {
                let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
                break format!("127.0.0.1:{port}");
            }
        };
        // Keep reading, or the registry blocks on a full pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().tls_certs_only([]).tls_danger_accept_invalid_certs(true).build().unwrap();
        let login = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
        let scheme = if tls { "https" } else { "http" };
        Ok(Self { address, scheme, dir, child, login, http })
    }

    /// The certificate of one that uses TLS.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.dir.join("cert.pem")
    }

    fn request(&self, method: reqwest::Method, url: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, url);
        match &self.login {
            Some((user, password)) => request.basic_auth(user, Some(password)),
            None => request,
        }
    }

    async fn push_blob(&self, repository: &str, blob: &Blob) {
        let url = format!("{}://{}/v2/{repository}/blobs/uploads/", self.scheme, self.address);
        let begun = self.request(reqwest::Method::POST, &url).send().await.unwrap();
        assert_eq!(begun.status(), StatusCode::ACCEPTED);
        let location = begun.headers()["location"].to_str().unwrap().to_owned();
        let url = format!("{location}&digest={}", blob.digest);
        let done = self.request(reqwest::Method::PUT, &url).body(blob.bytes.clone()).send().await.unwrap();
        assert_eq!(done.status(), StatusCode::CREATED);
    }

    async fn push_manifest(&self, repository: &str, reference: &str, media_type: &str, bytes: &[u8]) {
        let url = format!("{}://{}/v2/{repository}/manifests/{reference}", self.scheme, self.address);
        let request = self.request(reqwest::Method::PUT, &url).header("content-type", media_type).body(bytes.to_vec());
        let done = request.send().await.unwrap();
        assert_eq!(done.status(), StatusCode::CREATED, "{}", done.text().await.unwrap());
    }

    async fn push_blobs(&self, repository: &str, made: &Made) {
        for blob in made.layers.iter().chain([&made.config]) {
            self.push_blob(repository, blob).await;
        }
    }

    /// Pushes an image of one platform.
    pub(crate) async fn push(&self, repository: &str, tag: &str, made: &Made) {
        self.push_blobs(repository, made).await;
        self.push_manifest(repository, tag, MANIFEST, &made.manifest.bytes).await;
    }

    /// Pushes it behind an index whose other entry does not exist and must not be requested.
    pub(crate) async fn push_index(&self, repository: &str, tag: &str, made: &Made) {
        self.push_blobs(repository, made).await;
        self.push_manifest(repository, &made.manifest.digest, MANIFEST, &made.manifest.bytes).await;
        self.push_unchecked(repository, tag, &made.index.bytes);
    }

    /// Pushes an index without this machine's platform.
    pub(crate) async fn push_foreign(&self, repository: &str, tag: &str, made: &Made) {
        self.push_blobs(repository, made).await;
        let index = serde_json::json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [made::foreign()]});
        self.push_unchecked(repository, tag, index.to_string().as_bytes());
    }

    /// Writes an index into the registry's files, since it refuses an index whose manifests are missing.
    fn push_unchecked(&self, repository: &str, tag: &str, bytes: &[u8]) {
        let digest = made::sha256(bytes);
        let hex = &digest[7..];
        let root = self.dir.join("data/docker/registry/v2");
        let write = |path: PathBuf, bytes: &[u8]| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        write(root.join(format!("blobs/sha256/{}/{hex}/data", &hex[..2])), bytes);
        let manifests = root.join("repositories").join(repository).join("_manifests");
        write(manifests.join(format!("revisions/sha256/{hex}/link")), digest.as_bytes());
        write(manifests.join(format!("tags/{tag}/current/link")), digest.as_bytes());
        write(manifests.join(format!("tags/{tag}/index/sha256/{hex}/link")), digest.as_bytes());
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
