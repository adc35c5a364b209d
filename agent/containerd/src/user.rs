//! The user of a container's init process: from the Pod's numbers, the image's names, `/etc/passwd` and `/etc/group`.
//!
//! [`resolve`] decides, as kubelet and containerd's CRI plugin do; [`read_accounts`] reads the account files of an
//! untrusted image.

mod accounts;

use k8s_openapi::api::core::v1::{Container, PodSpec};

pub use self::accounts::{Accounts, AccountsCache, read_accounts};
use super::spec::ProcessUser;

/// The user settings of Pod and image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserRequest {
    /// `runAsUser`.
    pub run_as_user: Option<i64>,
    /// `runAsGroup`.
    pub run_as_group: Option<i64>,
    /// `runAsNonRoot`.
    pub run_as_non_root: bool,
    /// The image's `USER`: empty, a name or number, or `user:group` of either.
    pub image_user: String,
    /// The Pod's groups: `fsGroup` and `supplementalGroups`.
    pub groups: Vec<i64>,
    /// `supplementalGroupsPolicy: Strict`: the image's `/etc/group` adds none.
    pub strict_groups: bool,
}

/// Why a container's user cannot be resolved. The caller names pod and container. None of these errors is fixed
/// without an edit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// `runAsNonRoot` with `runAsUser: 0`.
    #[error("container's runAsUser breaks non-root policy")]
    RootWanted,
    /// `runAsNonRoot`, and the image's user is root or not set.
    #[error("container has runAsNonRoot and image will run as root")]
    ImageIsRoot,
    /// `runAsNonRoot`, and the image's user is a name.
    #[error("container has runAsNonRoot and image has non-numeric user ({0}), cannot verify user is non-root")]
    ImageIsName(String),
    /// The image's `/etc/passwd` does not contain the image's user.
    #[error("user {0:?} of the image is not in its /etc/passwd")]
    NoUser(String),
    /// Not a user or group id.
    #[error("{field} {value} is not between 0 and 2147483647")]
    Range {
        /// The Pod's field, or the image's.
        field: &'static str,
        value: i64,
    },
}

impl UserRequest {
    /// The request of `container` in a pod, with an image that has this `USER`.
    pub fn new(pod: &PodSpec, container: &Container, image_user: Option<&str>) -> Self {
        let (of_pod, of_container) = (pod.security_context.as_ref(), container.security_context.as_ref());
        let either = |containers: Option<i64>, pods: Option<i64>| containers.or(pods);
        let fs_group = of_pod.and_then(|context| context.fs_group);
        let supplemental = of_pod.and_then(|context| context.supplemental_groups.as_ref());
        Self {
            run_as_user: either(of_container.and_then(|c| c.run_as_user), of_pod.and_then(|c| c.run_as_user)),
            run_as_group: either(of_container.and_then(|c| c.run_as_group), of_pod.and_then(|c| c.run_as_group)),
            run_as_non_root: of_container.and_then(|c| c.run_as_non_root).or(of_pod.and_then(|c| c.run_as_non_root))
                == Some(true),
            image_user: image_user.unwrap_or_default().to_owned(),
            groups: fs_group.into_iter().chain(supplemental.into_iter().flatten().copied()).collect(),
            strict_groups: of_pod.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict"),
        }
    }
}

/// Resolves the user from the request and the image's account files, `None` for a missing file.
///
/// The Pod's user takes precedence over the image's. A user name must be in `/etc/passwd`; a number need not, and
/// then has group 0. A group name of the image that is not in `/etc/group` is ignored. The groups include the primary
/// one and are sorted.
///
/// # Errors
///
/// `runAsNonRoot` is violated or cannot be verified, or a name is unknown.
pub fn resolve(request: &UserRequest, passwd: Option<&str>, group: Option<&str>) -> Result<ProcessUser, UserError> {
    let (image_user, image_group) = match request.image_user.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (request.image_user.as_str(), None),
    };
    verify_non_root(request, image_user)?;

    let (wanted, image_group) = match request.run_as_user {
        Some(uid) => (User::Id(id("runAsUser", uid)?), None),
        None => (User::parse(image_user), image_group),
    };
    let entry = passwd_entries(passwd).find(|entry| wanted.is(entry));
    let uid = match (&entry, wanted) {
        (Some(entry), _) => entry.uid,
        (None, User::Id(uid)) => uid,
        (None, User::Name(name)) => return Err(UserError::NoUser(name.to_owned())),
    };
    let uid = id("the image's user", i64::from(uid))?;
    let gid = match (request.run_as_group, image_group.and_then(|name| group_id(name, group))) {
        (Some(gid), _) => id("runAsGroup", gid)?,
        (None, Some(gid)) => gid,
        (None, None) => entry.as_ref().map_or(0, |entry| entry.gid),
    };
    let gid = id("the image's group", i64::from(gid))?;
    let mut groups = vec![gid];
    for gid in &request.groups {
        groups.push(id("supplementalGroups", *gid)?);
    }
    if let (Some(entry), false) = (&entry, request.strict_groups) {
        groups.extend(group_entries(group).filter(|other| other.has_member(entry.name)).map(|other| other.gid));
    }
    groups.sort_unstable();
    groups.dedup();
    Ok(ProcessUser {
        uid,
        gid,
        additional_gids: groups,
        home: entry.map(|entry| entry.home.to_owned()).unwrap_or_default(),
    })
}

/// kubelet's check, with kubelet's messages.
fn verify_non_root(request: &UserRequest, image_user: &str) -> Result<(), UserError> {
    match (request.run_as_non_root, request.run_as_user, User::parse(image_user)) {
        (true, Some(0), _) => Err(UserError::RootWanted),
        (true, None, User::Id(0)) => Err(UserError::ImageIsRoot),
        (true, None, User::Name(name)) => Err(UserError::ImageIsName(name.to_owned())),
        _ => Ok(()),
    }
}

/// A user as written: a number, or a name.
#[derive(Debug, Clone, Copy)]
enum User<'a> {
    Id(u32),
    Name(&'a str),
}

impl<'a> User<'a> {
    /// An empty text is root.
    fn parse(text: &'a str) -> Self {
        if text.is_empty() {
            return Self::Id(0);
        }
        text.parse().map_or(Self::Name(text), Self::Id)
    }

    fn is(self, entry: &PasswdEntry<'_>) -> bool {
        match self {
            Self::Id(uid) => uid == entry.uid,
            Self::Name(name) => name == entry.name,
        }
    }
}

fn id(field: &'static str, value: i64) -> Result<u32, UserError> {
    // Kubernetes' and runc's limit: some APIs use signed ids, and system calls reserve the highest number for "do not
    // change".
    i32::try_from(value).ok().and_then(|value| u32::try_from(value).ok()).ok_or(UserError::Range { field, value })
}

fn group_id(name: &str, group: Option<&str>) -> Option<u32> {
    name.parse().ok().or_else(|| group_entries(group).find(|entry| entry.name == name).map(|entry| entry.gid))
}

/// A line of `/etc/passwd`: `name:password:uid:gid:comment:home:shell`.
struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

/// The valid lines; the others are skipped, as the C library does.
fn passwd_entries(text: Option<&str>) -> impl Iterator<Item = PasswdEntry<'_>> {
    text.unwrap_or_default().lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let _comment = fields.next();
        Some(PasswdEntry { name, uid, gid, home: fields.next().unwrap_or_default() })
    })
}

/// A line of `/etc/group`: `name:password:gid:member,member`.
struct GroupEntry<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

impl GroupEntry<'_> {
    fn has_member(&self, name: &str) -> bool {
        self.members.split(',').any(|member| member == name)
    }
}

fn group_entries(text: Option<&str>) -> impl Iterator<Item = GroupEntry<'_>> {
    text.unwrap_or_default().lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        let gid = fields.next()?.parse().ok()?;
        Some(GroupEntry { name, gid, members: fields.next().unwrap_or_default() })
    })
}

#[cfg(test)]
mod tests;
