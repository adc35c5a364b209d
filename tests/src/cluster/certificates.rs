//! The certificates of a cluster, with the names and the contents that `kubeadm init` gives them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context as _, Result, anyhow};
use serde_json::json;

use crate::process;

const CLIENT: &str = "extendedKeyUsage=clientAuth";
const SERVER: &str = "extendedKeyUsage=serverAuth";
/// etcd's members use their certificates both as servers and as clients.
const BOTH: &str = "extendedKeyUsage=serverAuth,clientAuth";
/// Where etcd and the apiserver are reached.
const ON_LOOPBACK: &str = "subjectAltName=IP:127.0.0.1,DNS:localhost";
/// The apiserver's names in pods as well: the first address of the Services belongs to it.
const OF_APISERVER: &str = "subjectAltName=IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,\
     DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local";

/// A certificate: its authority, its name, its subject and its extensions.
type Certificate<'a> = (&'a str, &'a str, &'a str, &'a [&'a str]);

/// A directory of authorities, certificates and keys, and of the kubeconfigs made of them.
#[derive(Debug, Clone)]
pub(super) struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Creates the three authorities, the key of the service accounts, and the certificates of etcd and the
    /// apiserver.
    pub(super) fn make(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir.join("etcd")).with_context(|| format!("{}", dir.display()))?;
        let made = Self { dir: dir.to_owned() };
        let authorities = [("ca", "kubernetes"), ("front-proxy-ca", "front-proxy-ca"), ("etcd/ca", "etcd-ca")];
        in_parallel(authorities.map(|(name, subject)| move |at: &Self| at.authority(name, subject)), &made)?;
        let all: [Certificate<'_>; 7] = [
            ("ca", "apiserver", "/CN=kube-apiserver", &[OF_APISERVER, SERVER]),
            ("ca", "apiserver-kubelet-client", "/O=kubeadm:cluster-admins/CN=kube-apiserver-kubelet-client", &[CLIENT]),
            ("ca", "super-admin", "/O=system:masters/CN=kubernetes-super-admin", &[CLIENT]),
            ("front-proxy-ca", "front-proxy-client", "/CN=front-proxy-client", &[CLIENT]),
            ("etcd/ca", "etcd/server", "/CN=etcd", &[ON_LOOPBACK, BOTH]),
            ("etcd/ca", "etcd/peer", "/CN=etcd", &[ON_LOOPBACK, BOTH]),
            ("etcd/ca", "apiserver-etcd-client", "/CN=kube-apiserver-etcd-client", &[CLIENT]),
        ];
        in_parallel(all.map(|certificate| move |at: &Self| at.certify(certificate, 2)), &made)?;
        made.openssl(&["genrsa", "-out", "sa.key", "2048"])?;
        made.openssl(&["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"])?;
        Ok(made)
    }

    /// A file of them, such as `apiserver.crt`.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A certificate of the cluster's authority for a client; it is valid for so many days from now on.
    pub(super) fn client(&self, name: &str, subject: &str, days: i32) -> Result<()> {
        self.certify(("ca", name, subject, &[CLIENT]), days)
    }

    /// Signs the certificate of an existing client again, valid until then, to the second.
    pub(super) fn shorten(&self, name: &str, until: SystemTime) -> Result<()> {
        let work = self.dir.join(format!("{name}.ca"));
        fs::create_dir_all(work.join("issued")).with_context(|| format!("{}", work.display()))?;
        fs::write(work.join("index.txt"), "")?;
        let [authority, key] = ["ca.crt", "ca.key"].map(|file| self.file(file));
        let settings = format!(
            "[ca]\ndefault_ca = all\n[all]\ndatabase = {0}/index.txt\nnew_certs_dir = {0}/issued\ncertificate = {1}\n\
             private_key = {2}\nrand_serial = yes\ndefault_md = sha256\npolicy = subject\n[subject]\n\
             organizationName = supplied\ncommonName = supplied\n",
            work.display(),
            authority.display(),
            key.display(),
        );
        fs::write(work.join("ca.cnf"), settings)?;
        let seconds = until.duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let end = process::output("date", &["--utc", "--date", &format!("@{seconds}"), "+%Y%m%d%H%M%SZ"])?;
        let [config, request, certificate, extensions] = [
            work.join("ca.cnf"),
            self.file(&format!("{name}.csr")),
            self.file(&format!("{name}.crt")),
            self.file(&format!("{name}.ext")),
        ]
        .map(|path| path.display().to_string());
        let sign = ["ca", "-batch", "-notext", "-config", &config, "-in", &request, "-out", &certificate];
        self.openssl(&[&sign[..], &["-extfile", &extensions, "-enddate", end.trim()]].concat())
    }

    /// A certificate of the cluster's authority for the server of a Service.
    pub(super) fn service(&self, name: &str, service: &str, namespace: &str) -> Result<()> {
        let names = format!("subjectAltName=DNS:{service}.{namespace}.svc,DNS:localhost");
        self.certify(("ca", name, &format!("/CN={service}.{namespace}.svc"), &[&names, SERVER]), 2)
    }

    /// The kubeconfig of the client `name`, whose certificate exists.
    pub(super) fn kubeconfig(&self, server: &str, name: &str) -> Result<PathBuf> {
        let user = json!({
            "client-certificate": self.file(&format!("{name}.crt")),
            "client-key": self.file(&format!("{name}.key")),
        });
        let cluster = json!({ "server": server, "certificate-authority": self.file("ca.crt") });
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "limpet",
            "contexts": [{ "name": "limpet", "context": { "cluster": "limpet", "user": name } }],
            "clusters": [{ "name": "limpet", "cluster": cluster }],
            "users": [{ "name": name, "user": user }],
        });
        let path = self.file(&format!("{name}.conf"));
        fs::write(&path, serde_json::to_vec_pretty(&kubeconfig)?).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    }

    fn authority(&self, name: &str, subject: &str) -> Result<()> {
        let [key, certificate] = ["key", "crt"].map(|end| format!("{name}.{end}"));
        let subject = format!("/CN={subject}");
        let make = ["req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2", "-subj", &subject];
        self.openssl(&[&make[..], &["-keyout", &key, "-out", &certificate]].concat())
    }

    fn certify(&self, (authority, name, subject, extensions): Certificate<'_>, days: i32) -> Result<()> {
        let [key, request, certificate, file] = ["key", "csr", "crt", "ext"].map(|end| format!("{name}.{end}"));
        fs::write(self.file(&file), extensions.join("\n")).with_context(|| file.clone())?;
        self.openssl(&[
            "req", "-new", "-nodes", "-newkey", "rsa:2048", "-keyout", &key, "-out", &request, "-subj", subject,
        ])?;
        let [ca, ca_key] = ["crt", "key"].map(|end| format!("{authority}.{end}"));
        let days = days.to_string();
        // Without a file of serial numbers, openssl uses random ones, so that several can be signed at the same time.
        let sign = ["x509", "-req", "-in", &request, "-CA", &ca, "-CAkey", &ca_key, "-out", &certificate];
        self.openssl(&[&sign[..], &["-days", &days, "-extfile", &file]].concat())
    }

    fn openssl(&self, args: &[&str]) -> Result<()> {
        process::checked(Command::new("openssl").args(args).current_dir(&self.dir)).map(drop)
    }
}

/// Makes several at the same time, because most of the time is spent on keys.
fn in_parallel<const N: usize>(
    all: [impl FnOnce(&Certificates) -> Result<()> + Send; N],
    certificates: &Certificates,
) -> Result<()> {
    std::thread::scope(|scope| {
        let all = all.map(|make| scope.spawn(|| make(certificates)));
        let mut ends =
            all.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))));
        ends.try_for_each(|end| end)
    })
}
