//! The container's init process: arguments, user, environment and capabilities.

use std::path::{Path, PathBuf};

use oci_spec::runtime::{Capabilities, Process, User};

use super::host::HostInput;
use super::{SpecError, SpecInput, capabilities, environment, expansion};
use limpet_model::pod::oom_score::oom_score_adj;

/// `process`, with `granted` as its capabilities.
///
/// # Errors
///
/// There is no command, or a reference in it cannot be resolved.
pub(super) fn process(input: &SpecInput<'_>, host: &HostInput, granted: Capabilities) -> Result<Process, SpecError> {
    let variables = environment::pod_variables(input, host)?;
    let context = input.container.security_context.as_ref();
    let score = oom_score_adj(input.pod, input.container, input.node.memory_capacity);
    let mut process = Process::default();
    process
        .set_terminal(Some(input.container.tty == Some(true)))
        .set_user(user(input))
        .set_args(Some(arguments(input, &variables)?))
        .set_env(Some(environment::environment(input, &variables)))
        .set_cwd(working_directory(input))
        .set_capabilities(Some(capabilities::process_sets(granted)))
        .set_rlimits(None)
        .set_no_new_privileges(Some(context.and_then(|context| context.allow_privilege_escalation) == Some(false)))
        .set_oom_score_adj(Some(score.max(input.node.oom_score_floor)))
        .set_apparmor_profile(host.apparmor.clone())
        .set_selinux_label(input.labels.and_then(|labels| labels.process.clone()));
    Ok(process)
}

fn user(input: &SpecInput<'_>) -> User {
    let mut user = User::default();
    user.set_uid(input.user.uid).set_gid(input.user.gid);
    if !input.user.additional_gids.is_empty() {
        user.set_additional_gids(Some(input.user.additional_gids.clone()));
    }
    user
}

/// The arguments. `command` replaces the image's entrypoint and drops its command; `args` alone replaces its command.
fn arguments(input: &SpecInput<'_>, variables: &environment::Variables) -> Result<Vec<String>, SpecError> {
    let expanded = |list: &Option<Vec<String>>| -> Vec<String> {
        list.iter().flatten().map(|text| expansion::expand(text, |name| variables.get(name))).collect()
    };
    let (mut command, mut args) = (expanded(&input.container.command), expanded(&input.container.args));
    let image = input.image.config.config().as_ref();
    if command.is_empty() {
        if args.is_empty() {
            args = image.and_then(|config| config.cmd().clone()).unwrap_or_default();
        }
        // Some builders write an entrypoint of one empty string instead of none.
        command = image
            .and_then(|config| config.entrypoint().clone())
            .filter(|entrypoint| !matches!(entrypoint.as_slice(), [only] if only.is_empty()))
            .unwrap_or_default();
    }
    command.append(&mut args);
    if command.is_empty() { Err(SpecError::NoCommand) } else { Ok(command) }
}

/// The Pod's working directory, else the image's, else `/`. As under kubelet, a relative path of the Pod fails at the
/// start, because runtimes refuse it; the image's is relative to `/`.
fn working_directory(input: &SpecInput<'_>) -> PathBuf {
    let image = input.image.config.config().as_ref().and_then(|config| config.working_dir().as_deref());
    let pod = input.container.working_dir.as_deref().filter(|directory| !directory.is_empty());
    pod.map_or_else(|| Path::new("/").join(image.unwrap_or_default()), PathBuf::from)
}
