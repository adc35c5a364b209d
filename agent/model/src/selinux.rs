//! SELinux labels of containers and of what they mount: a pure function of the labels that the node's policy
//! specifies for containers, of what the Pod requires, and of the level that separates the pod from others.
//!
//! The rules are those of kubelet and of containerd with `enable_selinux`. A label is `user:role:type:level`. The
//! policy's file `lxc_contexts` has the labels of containers; `seLinuxOptions` replace parts of them. The level is
//! `s0` and two of 1,024 categories, a pair for each pod. One thing differs: a container whose options specify no
//! level gets its pod's, not another one.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, PodSpec, SELinuxOptions};

/// How many categories containers may have.
const CATEGORIES: u32 = 1_024;
/// How many pairs of categories there are, except the last one, which containerd uses for privileged containers.
const CATEGORY_PAIRS: u32 = CATEGORIES * (CATEGORIES - 1) / 2 - 1;

/// A label of SELinux (a "security context").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    user: String,
    role: String,
    kind: String,
    /// `None` if the policy has no levels.
    level: Option<String>,
}

impl Label {
    /// Parses `user:role:type[:level]`; `None` if it is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':').map(str::to_owned);
        let label = Self { user: parts.next()?, role: parts.next()?, kind: parts.next()?, level: parts.next() };
        let is_whole =
            [&label.user, &label.role, &label.kind].into_iter().chain(&label.level).all(|part| !part.is_empty());
        is_whole.then_some(label)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.user, self.role, self.kind)?;
        self.level.as_ref().map_or(Ok(()), |level| write!(f, ":{level}"))
    }
}

/// The labels that a policy has for containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerContexts {
    /// The label of processes.
    pub process: Label,
    pub file: Label,
    /// The label of processes in virtual machines; `None` if it is that of others.
    pub kvm_process: Option<Label>,
}

impl ContainerContexts {
    /// Parses `lxc_contexts`: lines of `name = "label"`.
    ///
    /// # Errors
    ///
    /// It has no label for processes or none for files; the error names what is missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let label = |name: &str| assignment(text, name).and_then(|label| Label::parse(&label));
        let wanted = |name: &str| label(name).ok_or_else(|| format!("it has no label {name:?}"));
        Ok(Self { process: wanted("process")?, file: wanted("file")?, kvm_process: label("kvm_process") })
    }
}

/// The name of the policy (`SELINUXTYPE`) in the text of `/etc/selinux/config`. It is also the name of a directory
/// beside that file.
pub fn policy_name(config: &str) -> Option<String> {
    assignment(config, "SELINUXTYPE").filter(|name| !name.is_empty() && !name.starts_with('.') && !name.contains('/'))
}

/// The last value of `name` among lines of `name = "value"`. Comments begin with `#` or `;`.
fn assignment(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let mut values = lines.filter_map(|line| line.split_once('=').filter(|(key, _)| key.trim() == name));
    values.next_back().map(|(_, value)| value.trim().trim_matches('"').to_owned())
}

/// What the labels of a pod's sandbox are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLabelling {
    /// The label of its files, without the level.
    file: Label,
    /// The level that the Pod specifies; `None` if the node chooses one.
    pub level: Option<String>,
    /// The levels that its containers specify.
    pub container_levels: Vec<String>,
}

impl PodLabelling {
    /// The labels of a pod with `spec` under a policy with these `contexts`.
    ///
    /// # Errors
    ///
    /// The pod's level is malformed; containerd's message.
    pub fn new(contexts: &ContainerContexts, spec: &PodSpec) -> Result<Self, String> {
        let level = |options: &SELinuxOptions| options.level.clone().filter(|level| !level.is_empty());
        let options = spec.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref());
        let named_level = options.and_then(level);
        if let Some(level) = &named_level {
            check_level(level)?;
        }
        let mut file = contexts.file.clone();
        if let Some(user) = options.and_then(|options| options.user.clone()).filter(|user| !user.is_empty()) {
            file.user = user;
        }
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let container_levels = containers.filter_map(|container| own_options(container).and_then(level)).collect();
        Ok(Self { file, level: named_level, container_levels })
    }

    /// The label of the pod's files with its `level`.
    pub fn file_label(&self, level: &str) -> String {
        let level = self.file.level.is_some().then(|| level.to_owned());
        Label { level, ..self.file.clone() }.to_string()
    }
}

/// What the container's label is made from: its own options, or else the pod's, as in kubelet; they are not merged.
pub fn options_of<'a>(spec: &'a PodSpec, container: &'a Container) -> Option<&'a SELinuxOptions> {
    own_options(container).or_else(|| spec.security_context.as_ref()?.se_linux_options.as_ref())
}

fn own_options(container: &Container) -> Option<&SELinuxOptions> {
    container.security_context.as_ref()?.se_linux_options.as_ref()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerLabels {
    /// The label of its processes; `None` if it is privileged, in which case the policy labels them by the runtime.
    pub process: Option<String>,
    /// The label of its files, and of its pod's volumes when they are mounted into it.
    pub file: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContainerKind {
    pub privileged: bool,
    /// Whether it runs in a virtual machine.
    pub virtual_machine: bool,
}

/// The labels of a container with these `options` in a pod with that `level`. Only the kernel can tell whether the
/// policy has them.
///
/// # Errors
/// The options' level is malformed; containerd's message.
pub fn labels(
    contexts: &ContainerContexts,
    options: Option<&SELinuxOptions>,
    level: &str,
    kind: ContainerKind,
) -> Result<ContainerLabels, String> {
    let part = |part: fn(&SELinuxOptions) -> &Option<String>| {
        options.and_then(|options| part(options).clone()).filter(|part| !part.is_empty())
    };
    let (mut process, mut file) = (contexts.process.clone(), contexts.file.clone());
    let named_level = part(|options| &options.level);
    if let Some(level) = &named_level {
        check_level(level)?;
    }
    // A policy without levels accepts none, unless the Pod insists.
    if let Some(level) = named_level.or_else(|| process.level.is_some().then(|| level.to_owned())) {
        process.level = Some(level.clone());
        file.level = Some(level);
    }
    if let Some(user) = part(|options| &options.user) {
        process.user.clone_from(&user);
        file.user = user;
    }
    if let Some(role) = part(|options| &options.role) {
        process.role = role;
    }
    if let Some(kind) = part(|options| &options.type_) {
        process.kind = kind;
    }
    if kind.virtual_machine
        && let Some(label) = &contexts.kvm_process
    {
        process.kind.clone_from(&label.kind);
    }
    Ok(ContainerLabels { process: (!kind.privileged).then(|| process.to_string()), file: file.to_string() })
}

/// Whether the level has the form that containerd requires: `s0`, `s0-s0:c0.c1023`, `s0:c1,c2`.
fn check_level(level: &str) -> Result<(), String> {
    let digits =
        |text: &str, most: usize| (1..=most).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit());
    let sensitivity = |text: &str| text.strip_prefix('s').is_some_and(|number| digits(number, 1));
    let category = |text: &str| text.strip_prefix('c').is_some_and(|number| digits(number, 4));
    let range = |text: &str| text.split_once('.').map_or(category(text), |(low, high)| category(low) && category(high));
    let (sensitivities, categories) =
        level.split_once(':').map_or((level, None), |(before, after)| (before, Some(after)));
    let fits = sensitivities
        .split_once('-')
        .map_or(sensitivity(sensitivities), |(low, high)| sensitivity(low) && sensitivity(high))
        && categories.is_none_or(|categories| categories.split(',').all(range));
    if fits { Ok(()) } else { Err(format!("the format of 'level' {level:?} is not correct")) }
}

/// The first free level that is not among `used`, starting at the pair of `seed`; `None` if all are used.
pub fn allocate(seed: u32, used: &BTreeSet<String>) -> Option<String> {
    (0..CATEGORY_PAIRS)
        .map(|offset| level((seed % CATEGORY_PAIRS + offset) % CATEGORY_PAIRS))
        .find(|level| !used.contains(level))
}

/// The level with the pair of categories of that number: 0 is `c0,c1`, 1 is `c0,c2`, 2 is `c1,c2`.
fn level(number: u32) -> String {
    // The pairs whose higher category is `high` are numbered from `high * (high - 1) / 2` on.
    let high = (1 + 8 * number).isqrt().div_ceil(2);
    format!("s0:c{},c{high}", number - high * (high - 1) / 2)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
