//! Image references, normalised the way containerd and kubelet do it.
//!
//! The grammar is distribution's (github.com/distribution/reference), parsed by hand: the regular expression that
//! crates use for it takes 17 MiB and 40 ms to compile.

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name \"{image}\": {cause}")]
pub struct InvalidImageName {
    pub image: String,
    pub cause: String,
}

/// The registry of a name without one.
const DEFAULT_HOST: &str = "docker.io";
/// Its older name.
const LEGACY_HOST: &str = "index.docker.io";
/// The prefix of that registry for names of one part.
const OFFICIAL: &str = "library";
/// Maximum length in bytes of a name, and of a tag.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// A parsed reference: registry, repository, and tag or digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    /// The normalised whole: `docker.io/library/busybox:latest`.
    pub whole: String,
    /// The registry: `docker.io`, `127.0.0.1:5000`.
    pub host: String,
    /// The repository: `library/busybox`.
    pub repository: String,
    /// Tag or digest.
    pub target: Target,
}

/// The image in the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Its content may change later.
    Tag(String),
    /// Fixed content: `sha256:…`.
    Digest(String),
}

impl Target {
    /// As in the URL of an image manifest.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Tag(tag) => tag,
            Self::Digest(digest) => digest,
        }
    }
}

impl ImageName {
    /// Parses and normalises; a digest takes precedence over a tag, as in containerd's CRI.
    pub fn parse(reference: &str) -> Result<Self, InvalidImageName> {
        let invalid = |cause: &str| InvalidImageName { image: reference.to_owned(), cause: cause.to_owned() };
        if reference.len() > 1024 {
            return Err(invalid("longer than 1024 characters"));
        }
        // Distribution rejects 64 hexadecimal digits as a name: they could be an image id.
        if reference.len() == 64 && reference.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(invalid("cannot specify a 64-byte hexadecimal string"));
        }
        let (name, tag, digest) = split(reference);
        let (host, repository) = complete(name);
        if !is_host(&host) || repository.len() > MAX_NAME || !repository.split('/').all(is_path_component) {
            let lowercase = repository.to_lowercase();
            let only_case = repository != lowercase && lowercase.split('/').all(is_path_component);
            let what = if only_case { ": repository name must be lowercase" } else { "" };
            return Err(invalid(&format!("invalid reference format{what}")));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(invalid("invalid reference format: bad tag"));
        }
        let target = match digest.map(|digest| digest.split_once(':')) {
            None => Target::Tag(tag.unwrap_or("latest").to_owned()),
            Some(Some(("sha256", hex))) if is_sha256(hex) => Target::Digest(format!("sha256:{hex}")),
            Some(Some(("sha256", _)) | None) => return Err(invalid("invalid reference format: bad digest")),
            Some(Some(_)) => return Err(invalid("unsupported digest algorithm")),
        };
        let whole = match &target {
            Target::Tag(tag) => format!("{host}/{repository}:{tag}"),
            Target::Digest(digest) => format!("{host}/{repository}@{digest}"),
        };
        Ok(Self { whole, host, repository, target })
    }
}

/// A valid reference without its tag and digest, otherwise as written: kubelet's `trimImageTagDigest`.
///
/// # Errors
///
/// The reference is not valid.
pub fn without_tag(reference: &str) -> Result<&str, InvalidImageName> {
    ImageName::parse(reference).map(|_| split(reference).0)
}

/// Name, tag and digest of `name[:tag][@digest]`, not checked.
fn split(reference: &str) -> (&str, Option<&str>, Option<&str>) {
    let (rest, digest) = match reference.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (reference, None),
    };
    // A colon before the last slash belongs to the registry's port.
    let path = rest.rfind('/').map_or(0, |slash| slash + 1);
    match rest[path..].rfind(':') {
        Some(colon) => (&rest[..path + colon], Some(&rest[path + colon + 1..]), digest),
        None => (rest, None, digest),
    }
}

/// Host and repository, with Docker's defaults for missing parts.
fn complete(name: &str) -> (String, String) {
    let looks_like_a_host = |part: &str| {
        part.contains(['.', ':']) || part == "localhost" || part.bytes().any(|byte| byte.is_ascii_uppercase())
    };
    let (host, repository) = match name.split_once('/') {
        Some((first, rest)) if looks_like_a_host(first) => (first, rest),
        _ => (DEFAULT_HOST, name),
    };
    let host = if host == LEGACY_HOST { DEFAULT_HOST } else { host };
    if host == DEFAULT_HOST && !repository.contains('/') {
        return (host.to_owned(), format!("{OFFICIAL}/{repository}"));
    }
    (host.to_owned(), repository.to_owned())
}

/// A host name, an IPv4 or a bracketed IPv6 address, with an optional port.
fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    let label = |label: &str| {
        let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    };
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let named = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.split('.').all(label),
    };
    named && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Lower-case letters and digits, with one of `.`, `_`, `__` or any number of `-` between.
fn is_path_component(component: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| alphanumeric(*byte));
    let separators = component.split(|c: char| c.is_ascii() && alphanumeric(c as u8)).filter(|part| !part.is_empty());
    let separates = |part: &str| matches!(part, "." | "_" | "__") || part.bytes().all(|byte| byte == b'-');
    ends(bytes.first()) && ends(bytes.last()) && separators.into_iter().all(separates)
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut bytes = tag.bytes();
    tag.len() <= MAX_TAG
        && bytes.next().is_some_and(word)
        && bytes.all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_sha256(hex: &str) -> bool {
    hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The image's name in containerd: `busybox` is `docker.io/library/busybox:latest`; digests are kept.
///
/// # Errors
/// `InvalidName`, kubelet's `InvalidImageName`.
pub fn normalize(reference: &str) -> Result<String, InvalidImageName> {
    ImageName::parse(reference).map(|name| name.whole)
}

/// The reference's tag, `latest` if it has neither tag nor digest; `None` for a digest alone or an invalid name.
pub fn tag(reference: &str) -> Option<&str> {
    ImageName::parse(reference).ok()?;
    match split(reference) {
        (_, None, None) => Some("latest"),
        (_, tag, _) => tag,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::image_name::*;

    const DIGEST: &str = "sha256:7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";

    #[test]
    fn names_are_completed_as_by_docker() {
        let table = [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("grafana/loki", "docker.io/grafana/loki:latest"),
            ("index.docker.io/library/busybox", "docker.io/library/busybox:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app:1", "localhost:5000/app:1"),
            ("127.0.0.1:5000/a/b/c:v1.2-rc", "127.0.0.1:5000/a/b/c:v1.2-rc"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("[::1]:5000/app", "[::1]:5000/app:latest"),
            ("Host/app", "Host/app:latest"),
            ("a/b__c.d-e---f", "docker.io/a/b__c.d-e---f:latest"),
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
    fn explicit_and_default_tags() {
        let (digest, both) = (format!("a@{DIGEST}"), format!("a:latest@{DIGEST}"));
        for (given, wanted) in [
            ("a", Some("latest")),
            ("q.io:5000/a", Some("latest")),
            ("a:1", Some("1")),
            (&digest, None),
            (&both, Some("latest")),
            ("A", None),
        ] {
            assert_eq!(tag(given), wanted, "{given}");
        }
    }

    #[test]
    fn other_texts_are_invalid_names() {
        let long = "a/".repeat(600);
        let id = &DIGEST[7..];
        let md5 = "a@md5:d41d8cd98f00b204e9800998ecf8427e";
        let further =
            ["a___b", "a..b", "-a", "a-", "a/", "/a", "a//b", "q.io:x/a", "q..io/a", "[::1/a", "a:.b", "a@b@c"];
        for given in ["", "Busybox", "a b", "a:", ":tag", "a@sha256:12", "http://a/b", "../etc", id, &long, md5, "a\nb"]
            .into_iter()
            .chain(further)
        {
            let error = normalize(given).unwrap_err();
            assert!(error.to_string().starts_with("couldn't parse image name"), "{given}: {error}");
        }
        assert!(normalize("Busybox").unwrap_err().to_string().contains("must be lowercase"));
    }
}
