//! Packages by apt: installed the usual way, or fetched from the machine's own mirror, verified, and unpacked into
//! the cache beside the machine's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use limpet_tests::{process, tools};

/// What the packages of this machine depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) name: String,
    /// `debian` or `ubuntu`.
    id: String,
    /// `bookworm`, `noble`…
    pub(crate) codename: String,
    archive: Archive,
}

/// A package archive as the machine's sources name it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Archive {
    uri: String,
    keyring: Option<String>,
}

impl Machine {
    /// Reads os-release and apt's sources below `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let release = fs::read_to_string(root.join("etc/os-release")).context("/etc/os-release")?;
        let field = |key: &str| {
            let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        let id = field("ID").unwrap_or_default();
        if id != "debian" && id != "ubuntu" {
            bail!("setup supports Debian and Ubuntu, and this is {id:?}; install containerd 1.7 or newer yourself");
        }
        let codename = field("VERSION_CODENAME").context("/etc/os-release has no VERSION_CODENAME")?;
        let archive = sources(root)?.iter().find_map(|text| archive_of(text, &codename));
        let archive = archive.with_context(|| format!("no source in /etc/apt offers {codename}"))?;
        Ok(Self { name: field("PRETTY_NAME").unwrap_or_else(|| id.clone()), id, codename, archive })
    }

    /// Whether it is Debian itself, whose mirror has its other releases, too.
    pub(crate) fn is_debian(&self) -> bool {
        self.id == "debian"
    }

    /// The URL of the mirror from which its packages come.
    pub(crate) fn mirror(&self) -> &str {
        &self.archive.uri
    }

    /// The keys the mirror's lists are signed with, when its source names them.
    pub(crate) fn keyring(&self) -> Option<&str> {
        self.archive.keyring.as_deref()
    }

    /// The archive of Debian's security updates, which is beside the main one.
    fn security(&self) -> Option<Self> {
        let uri = self.archive.uri.trim_end_matches('/').strip_suffix("/debian")?;
        let archive = Archive { uri: format!("{uri}/debian-security"), keyring: self.archive.keyring.clone() };
        self.is_debian().then(|| Self { archive, ..self.clone() })
    }

    /// The private sources.list for `suites`.
    fn source_lines(&self, suites: &[String]) -> String {
        let components = if self.is_debian() { "main" } else { "main universe" };
        let keyring = self.archive.keyring.clone().unwrap_or_else(|| match self.is_debian() {
            true => "/usr/share/keyrings/debian-archive-keyring.gpg".to_owned(),
            false => "/usr/share/keyrings/ubuntu-archive-keyring.gpg".to_owned(),
        });
        let uri = &self.archive.uri;
        suites.iter().map(|suite| format!("deb [signed-by={keyring}] {uri} {suite} {components}\n")).collect()
    }
}

/// The texts of apt's sources, the main file first.
fn sources(root: &Path) -> Result<Vec<String>> {
    let apt = root.join("etc/apt");
    let mut files = vec![apt.join("sources.list")];
    let entries = fs::read_dir(apt.join("sources.list.d")).into_iter().flatten().flatten();
    let mut further: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    further.retain(|path| path.extension().is_some_and(|extension| extension == "list" || extension == "sources"));
    further.sort();
    files.extend(further);
    files.retain(|path| path.is_file());
    files.iter().map(|path| fs::read_to_string(path).with_context(|| format!("{}", path.display()))).collect()
}

/// The archive that offers the suite `codename`, in either of apt's two formats.
fn archive_of(text: &str, codename: &str) -> Option<Archive> {
    let one_line = || text.lines().find_map(|line| archive_of_line(line, codename));
    let without_comments: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let stanzas = without_comments.split(|line| line.trim().is_empty());
    let mut archives = stanzas.filter_map(|stanza| archive_of_stanza(stanza, codename));
    archives.next().or_else(one_line)
}

fn archive_of_line(line: &str, codename: &str) -> Option<Archive> {
    let rest = line.trim().strip_prefix("deb ")?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    let keyring = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by=")).map(str::to_owned);
    (suite == codename && !uri.starts_with("cdrom:")).then(|| Archive { uri: uri.to_owned(), keyring })
}

fn archive_of_stanza(stanza: &[&str], codename: &str) -> Option<Archive> {
    let field = |key: &str| {
        stanza.iter().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(key).then(|| value.trim())
        })
    };
    let has = |key: &str, word: &str| field(key).is_some_and(|value| value.split_whitespace().any(|w| w == word));
    if !has("Types", "deb") || !has("Suites", codename) || has("Enabled", "no") {
        return None;
    }
    let uri = field("URIs")?.split_whitespace().find(|uri| !uri.starts_with("cdrom:"))?;
    // A key may also be in the stanza itself, but only a path is used.
    let keyring = field("Signed-By").filter(|value| value.starts_with('/')).map(str::to_owned);
    Some(Archive { uri: uri.to_owned(), keyring })
}

/// Installs packages the usual way.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    say(&format!("installing {}", packages.join(", ")), || {
        let apt = |args: &[&str]| {
            let mut command = Command::new("apt-get");
            process::checked(command.args(["-q", "-y"]).args(args).env("DEBIAN_FRONTEND", "noninteractive"))
        };
        let install = [&["install", "--no-install-recommends"], packages].concat();
        // The lists may be missing or too old to name what the mirror has.
        apt(&install).or_else(|_| apt(&["update"]).and_then(|_| apt(&install))).map(drop)
    })
}

/// Fetches packages of `suites` from the machine's mirror and unpacks each into the cache as `<package>-<version>`.
pub(crate) fn unpack_beside(machine: &Machine, suites: &[String], packages: &[&str]) -> Result<()> {
    let what = format!("fetching {} of {} into {}", packages.join(", "), suites[0], tools::cache_dir().display());
    say(&what, || {
        let work = tools::cache_dir().join(format!(".apt-{}", std::process::id()));
        let result = fetch_and_unpack(machine, suites, packages, &work);
        fs::remove_dir_all(&work).ok();
        result
    })
}

/// Unpacks into `target` those dependencies of `package` of `suite` whose names begin with one of `prefixes`. A package
/// that depends on the newest of its kind is empty itself.
pub(crate) fn unpack_dependencies(
    machine: &Machine,
    suite: &str,
    package: &str,
    prefixes: &[&str],
    target: &Path,
) -> Result<()> {
    unpack_dependencies_for(None, machine, suite, package, prefixes, target)
}

/// The same for the architecture with this name in Debian; for `None`, for the machine's own.
pub(crate) fn unpack_dependencies_for(
    architecture: Option<&str>,
    machine: &Machine,
    suite: &str,
    package: &str,
    prefixes: &[&str],
    target: &Path,
) -> Result<()> {
    say(&format!("fetching {package} of {suite} into {}", target.display()), || {
        let work = tools::cache_dir().join(format!(".apt-{}", std::process::id()));
        prepare(&work, architecture)?;
        let result = fetch_dependencies(machine, suite, package, prefixes, &work);
        if result.is_ok() {
            fs::rename(work.join("unpacked"), target).with_context(|| format!("{}", target.display()))?;
        }
        fs::remove_dir_all(&work).ok();
        result
    })
}

/// A package that was fetched.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) package: String,
    pub(crate) version: String,
}

/// Packages of Debian for another architecture than the machine's.
#[derive(Debug)]
pub(crate) struct Foreign<'a> {
    pub(crate) suite: &'a str,
    /// Whether the newest versions are taken, which are in the archive of security updates.
    pub(crate) with_security_updates: bool,
    /// Debian's name.
    pub(crate) architecture: &'a str,
    pub(crate) packages: &'a [&'a str],
}

/// Unpacks packages for another architecture into `target`.
pub(crate) fn unpack_foreign(machine: &Machine, foreign: &Foreign<'_>, target: &Path) -> Result<Vec<Fetched>> {
    let Foreign { suite, architecture, packages, .. } = foreign;
    say(&format!("fetching {} of {suite} for {architecture}", packages.join(", ")), || {
        let work = tools::cache_dir().join(format!(".apt-{}", std::process::id()));
        let result = fetch_foreign(machine, foreign, &work, target);
        fs::remove_dir_all(&work).ok();
        result
    })
}

fn fetch_foreign(machine: &Machine, foreign: &Foreign<'_>, work: &Path, target: &Path) -> Result<Vec<Fetched>> {
    let Foreign { suite, architecture, packages, .. } = foreign;
    prepare(work, Some(architecture))?;
    let mut sources = machine.source_lines(&[(*suite).to_owned()]);
    if let Some(security) = machine.security().filter(|_| foreign.with_security_updates) {
        sources.push_str(&security.source_lines(&[format!("{suite}-security")]));
    }
    fs::write(work.join("sources.list"), sources)?;
    private_apt(work, &["update"])?;
    private_apt(work, &[&["download"], *packages].concat())?;
    let mut fetched = Vec::new();
    for entry in fs::read_dir(work.join("debs"))? {
        let deb = entry?.path();
        let field = |name| process::checked(Command::new("dpkg-deb").arg("--field").arg(&deb).arg(name));
        let [package, version] = [field("Package")?, field("Version")?].map(|text| text.trim().to_owned());
        process::checked(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(target))?;
        fetched.push(Fetched { package, version });
    }
    fetched.sort_by(|left, other| left.package.cmp(&other.package));
    Ok(fetched)
}

fn fetch_dependencies(machine: &Machine, suite: &str, package: &str, prefixes: &[&str], work: &Path) -> Result<()> {
    update(machine, &[suite.to_owned()], work)?;
    let (mut packages, mut seen) = (Vec::new(), 0);
    let mut dependent = package.to_owned();
    loop {
        let output = process::checked(private(work, "apt-cache").args(["depends", "--important", &dependent]))?;
        let names = output.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let names = names.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        packages.extend(names.map(str::to_owned));
        let Some(next) = packages.get(seen) else { break };
        dependent.clone_from(next);
        seen += 1;
    }
    if packages.is_empty() {
        bail!("{package} of {suite} has no dependency that begins with {}", prefixes.join(" or "));
    }
    let names: Vec<_> = packages.iter().map(String::as_str).collect();
    private_apt(work, &[&["download"], names.as_slice()].concat())?;
    for entry in fs::read_dir(work.join("debs"))? {
        process::checked(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(work.join("unpacked")))?;
    }
    Ok(())
}

fn fetch_and_unpack(machine: &Machine, suites: &[String], packages: &[&str], work: &Path) -> Result<()> {
    prepare(work, None)?;
    update(machine, suites, work)?;
    private_apt(work, &[&["download"], packages].concat())?;
    for entry in fs::read_dir(work.join("debs"))? {
        let deb = entry?.path();
        let name = deb.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let target = unpacked_name(&name).with_context(|| format!("unexpected package name: {name}"))?;
        let (partial, target) = (work.join(&target), tools::cache_dir().join(target));
        process::checked(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&partial))?;
        if !target.exists() {
            fs::rename(&partial, &target).with_context(|| format!("{}", target.display()))?;
        }
    }
    Ok(())
}

/// Fetches the lists of `suites` into `work`, which is prepared.
fn update(machine: &Machine, suites: &[String], work: &Path) -> Result<()> {
    fs::write(work.join("sources.list"), machine.source_lines(suites))?;
    private_apt(work, &["update"]).with_context(|| {
        format!("the package lists of {} (a key that is not known: update the archive keyring package)", suites[0])
    })
}

/// Makes the directories of an apt in `work` that has nothing installed, for this architecture or the machine's own.
fn prepare(work: &Path, architecture: Option<&str>) -> Result<()> {
    for dir in ["state/lists/partial", "cache/archives/partial", "debs"] {
        fs::create_dir_all(work.join(dir)).with_context(|| format!("{}", work.join(dir).display()))?;
    }
    let settings = architecture.map(|name| format!("APT::Architecture \"{name}\";\nAPT::Architectures \"{name}\";\n"));
    fs::write(work.join("apt.conf"), settings.unwrap_or_default())?;
    fs::write(work.join("status"), "").with_context(|| format!("{}", work.display()))
}

/// Runs apt-get with its sources, lists, cache and list of installed packages below `work`; proxies stay the machine's.
fn private_apt(work: &Path, args: &[&str]) -> Result<()> {
    let mut command = private(work, "apt-get");
    command.args(["-q", "-y"]).args(args).current_dir(work.join("debs"));
    process::checked(&mut command).map(drop)
}

/// A program of apt with the same directories, not started.
fn private(work: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("APT_CONFIG", work.join("apt.conf"));
    for (key, place) in [
        ("Dir::Etc::sourcelist", "sources.list"),
        ("Dir::State", "state"),
        ("Dir::State::status", "status"),
        ("Dir::Cache", "cache"),
    ] {
        command.arg("-o").arg(format!("{key}={}", work.join(place).display()));
    }
    for option in ["Dir::Etc::sourceparts=-", "Dir::Etc::preferences=-", "Dir::Etc::preferencesparts=-"] {
        command.args(["-o", option]);
    }
    // apt's own user could not read a cache below root's home.
    command.args(["-o", "APT::Sandbox::User=root"]);
    command
}

/// The directory for a package: `containerd_1.7.24~ds1-6_amd64.deb` is unpacked to `containerd-1.7.24~ds1-6`; an epoch
/// (`1%3a`) is left out.
fn unpacked_name(deb: &str) -> Option<String> {
    let mut parts = deb.split('_');
    let (package, version) = (parts.next()?, parts.next()?);
    let version = version.split_once("%3a").map_or(version, |(_, version)| version);
    Some(format!("{package}-{version}"))
}

/// Runs `act`, and prints what begins and how long it took.
pub(crate) fn say<T>(what: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    eprintln!("setup: {what}");
    let done = act().with_context(|| what.to_owned())?;
    eprintln!("setup: done in {:.1} s", start.elapsed().as_secs_f64());
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "# mirrors\nTypes: deb\n# a comment\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-updates\n\
        Components: main\nSigned-By: /usr/share/keyrings/k.gpg\n\nTypes: deb\nURIs: http://mirror.test/debian-security\n\
        Suites: bookworm-security\n";

    #[test]
    fn the_archive_is_read_from_both_formats() {
        let archive = |uri: &str, keyring: Option<&str>| {
            Some(Archive { uri: uri.to_owned(), keyring: keyring.map(str::to_owned) })
        };
        let cases = [
            (DEB822, archive("http://mirror.test/debian", Some("/usr/share/keyrings/k.gpg"))),
            ("deb http://mirror.test/debian bookworm main\n", archive("http://mirror.test/debian", None)),
            (
                "deb cdrom:[x]/ bookworm main\n# deb http://no.test bookworm main\n\
                 deb [arch=amd64 signed-by=/k.gpg] http://mirror.test/debian bookworm main contrib\n",
                archive("http://mirror.test/debian", Some("/k.gpg")),
            ),
            ("deb http://mirror.test/debian bookworm-updates main\n", None),
            ("deb-src http://mirror.test/debian bookworm main\n", None),
            ("Types: deb\nURIs: http://a.test\nSuites: bookworm\nEnabled: no\n", None),
        ];
        for (text, expected) in cases {
            assert_eq!(archive_of(text, "bookworm"), expected, "{text}");
        }
    }

    #[test]
    fn packages_are_unpacked_under_their_version() {
        assert_eq!(unpacked_name("containerd_1.7.24~ds1-6_amd64.deb").as_deref(), Some("containerd-1.7.24~ds1-6"));
        assert_eq!(unpacked_name("busybox-static_1%3a1.35.0-4_arm64.deb").as_deref(), Some("busybox-static-1.35.0-4"));
        assert_eq!(unpacked_name("odd.deb"), None);
    }
}
