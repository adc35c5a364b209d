//! Patterns of image names, as in sigstore's policy controller: `*` matches within a path component, `**` any number
//! of components.

use std::fmt;

use limpet_model::image_name::ImageName;

/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 512;

/// A pattern of `registry/repository`, without tag and digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePattern {
    text: String,
}

impl fmt::Display for ImagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ImagePattern {
    /// Parses a pattern such as `registry.example/plant/*`.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_PATTERN {
            return Err(format!("a pattern has 1 to {MAX_PATTERN} characters"));
        }
        if let Some(wrong) = text.chars().find(|c| !is_allowed(*c)) {
            return Err(format!("{text:?} has {wrong:?}, which no image name has"));
        }
        let repository = text.split_once('/').map_or("", |(_, repository)| repository);
        if text.contains('@') || repository.contains(':') {
            return Err(format!("{text:?} has a tag or digest; write the name alone"));
        }
        let registry = text.split('/').next().unwrap_or_default();
        let names_registry = registry.contains(['.', ':', '*']) || registry == "localhost";
        if !names_registry || (repository.is_empty() && !text.contains("**")) {
            return Err(format!("{text:?} does not name the registry; write docker.io/library/{text}, or {text}/**"));
        }
        Ok(Self { text: text.to_owned() })
    }

    /// Whether it matches the image's name without tag and digest.
    pub fn matches(&self, name: &ImageName) -> bool {
        matches(self.text.as_bytes(), format!("{}/{}", name.host, name.repository).as_bytes())
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | ':' | '*' | '@' | '[' | ']')
}

/// Whether `pattern` matches `name`; takes at most time proportional to the product of both lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // reached[i]: the pattern so far matches the first `i` bytes of the name.
    let mut reached = vec![false; name.len() + 1];
    reached.iter_mut().take(1).for_each(|first| *first = true);
    let mut rest = pattern;
    while let Some((&byte, after)) = rest.split_first() {
        let crosses = rest.starts_with(b"**");
        rest = if crosses { after.split_first().map_or(after, |(_, rest)| rest) } else { after };
        let mut next = vec![false; name.len() + 1];
        for (length, is_reached) in reached.iter().enumerate() {
            if byte != b'*' {
                let fits = *is_reached && name.get(length) == Some(&byte);
                next.iter_mut().skip(length + 1).take(1).for_each(|reached| *reached |= fits);
                continue;
            }
            let from_before =
                length > 0 && next.get(length - 1) == Some(&true) && (crosses || name.get(length - 1) != Some(&b'/'));
            next.iter_mut().skip(length).take(1).for_each(|reached| *reached = *is_reached || from_before);
        }
        reached = next;
    }
    reached.last() == Some(&true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_within_a_part_of_the_name() {
        let cases = [
            ("registry.example/plant/*", "registry.example/plant/pump:1", true),
            ("registry.example/plant/*", "registry.example/plant/line/pump:1", false),
            ("registry.example/plant/**", "registry.example/plant/line/pump:1", true),
            ("registry.example/**", "registry.example/pump", true),
            ("registry.example/**", "registry.example.evil/pump", false),
            ("docker.io/library/busybox", "busybox", true),
            (
                "docker.io/library/busybox",
                "busybox@sha256:0123456789012345678901234567890123456789012345678901234567890123",
                true,
            ),
            ("docker.io/library/busy*", "busybox", true),
            ("docker.io/library/*box", "busybox", true),
            ("docker.io/library/b*s*x", "busybox", true),
            ("docker.io/library/b*z*x", "busybox", false),
            ("docker.io/library/busybo", "busybox", false),
            ("*/plant/pump", "registry.example/plant/pump", true),
            ("127.0.0.1:5000/*", "127.0.0.1:5000/pump:2", true),
            ("**", "registry.example/a/b/c:1", true),
            ("**/pump", "registry.example/a/b/pump:1", true),
        ];
        for (pattern, image, expected) in cases {
            let name = ImageName::parse(image).unwrap();
            assert_eq!(ImagePattern::parse(pattern).unwrap().matches(&name), expected, "{pattern} {image}");
        }
    }

    #[test]
    fn what_could_never_match_is_refused() {
        for (pattern, remedy) in [
            ("", "1 to 512"),
            ("busybox", "docker.io/library/busybox"),
            ("plant/pump", "does not name the registry"),
            ("registry.example", "registry.example/**"),
            ("registry.example/pump:1", "the name alone"),
            ("registry.example/pump@sha256:1", "the name alone"),
            ("registry.example/pu mp", "' '"),
        ] {
            let error = ImagePattern::parse(pattern).unwrap_err();
            assert!(error.contains(remedy), "{pattern}: {error}");
        }
    }
}
