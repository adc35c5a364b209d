//! Image references, normalised the way containerd and kubelet do it.

use oci_spec::distribution::Reference;

use super::error::ImageError;

/// A reference taken apart: where to ask, for which repository, for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageName {
    /// The normalised whole: `docker.io/library/busybox:latest`.
    pub(super) whole: String,
    /// The registry: `docker.io`, `127.0.0.1:5000`.
    pub(super) host: String,
    /// The repository: `library/busybox`.
    pub(super) repository: String,
    /// Tag or digest.
    pub(super) target: Target,
}

/// What in a repository is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// A name that may move.
    Tag(String),
    /// Content that cannot: `sha256:…`.
    Digest(String),
}

impl Target {
    /// As it stands in a manifest's URL.
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Tag(tag) => tag,
            Self::Digest(digest) => digest,
        }
    }
}

impl ImageName {
    /// Parses and normalises; of a reference with tag and digest the digest counts, as for containerd's CRI.
    pub(super) fn parse(reference: &str) -> Result<Self, ImageError> {
        let invalid = |cause: &str| ImageError::InvalidName { image: reference.to_owned(), cause: cause.to_owned() };
        if reference.len() > 1024 {
            return Err(invalid("longer than 1024 characters"));
        }
        // Distribution refuses 64 hexadecimal digits as a name: it would be taken for an image id.
        if reference.len() == 64 && reference.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(invalid("cannot specify a 64-byte hexadecimal string"));
        }
        let parsed: Reference = reference.parse().map_err(|error| {
            if reference.bytes().any(|b| b.is_ascii_uppercase())
                && reference.to_lowercase().parse::<Reference>().is_ok()
            {
                invalid("invalid reference format: repository name must be lowercase")
            } else {
                invalid(&format!("{error}"))
            }
        })?;
        let target = match (parsed.digest(), parsed.tag()) {
            (Some(digest), _) if digest.starts_with("sha256:") => Target::Digest(digest.to_owned()),
            (Some(_), _) => return Err(invalid("unsupported digest algorithm")),
            (None, tag) => Target::Tag(tag.unwrap_or("latest").to_owned()),
        };
        let (host, repository) = (parsed.registry().to_owned(), parsed.repository().to_owned());
        let whole = match &target {
            Target::Tag(tag) => format!("{host}/{repository}:{tag}"),
            Target::Digest(digest) => format!("{host}/{repository}@{digest}"),
        };
        Ok(Self { whole, host, repository, target })
    }
}

/// The name under which containerd keeps the image: `busybox` is `docker.io/library/busybox:latest`; digests are kept.
///
/// # Errors
/// `InvalidName`, kubelet's `InvalidImageName`.
pub fn normalize(reference: &str) -> Result<String, ImageError> {
    ImageName::parse(reference).map(|name| name.whole)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";

    #[test]
    fn names_are_completed_as_docker_does() {
        let table = [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("grafana/loki", "docker.io/grafana/loki:latest"),
            ("index.docker.io/library/busybox", "docker.io/library/busybox:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app:1", "localhost:5000/app:1"),
            ("127.0.0.1:5000/a/b/c:v1.2-rc", "127.0.0.1:5000/a/b/c:v1.2-rc"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
        ];
        for (given, wanted) in table {
            assert_eq!(normalize(given).unwrap(), wanted, "{given}");
        }
    }

    #[test]
    fn a_digest_wins_over_a_tag() {
        assert_eq!(normalize(&format!("busybox@{DIGEST}")).unwrap(), format!("docker.io/library/busybox@{DIGEST}"));
        assert_eq!(normalize(&format!("q.io/a:1@{DIGEST}")).unwrap(), format!("q.io/a@{DIGEST}"));
    }

    #[test]
    fn what_is_no_name_is_invalid() {
        let long = "a/".repeat(600);
        let id = &DIGEST[7..];
        let md5 = "a@md5:d41d8cd98f00b204e9800998ecf8427e";
        for given in ["", "Busybox", "a b", "a:", ":tag", "a@sha256:12", "http://a/b", "../etc", id, &long, md5, "a\nb"]
        {
            let error = normalize(given).unwrap_err();
            assert_eq!(error.reason(), "InvalidImageName", "{given}: {error}");
        }
        assert!(normalize("Busybox").unwrap_err().to_string().contains("must be lowercase"));
    }
}
