//! `subPathExpr`: derives a mount's `subPath` from the container's own variables.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::host::HostInput;
use super::{SpecError, SpecInput, environment, expansion};

/// The container with the value of each `subPathExpr` as its `subPath`.
///
/// # Errors
///
/// A variable is unavailable or has no value, or the path leads out of the volume.
pub fn expand_sub_paths<'a>(input: &SpecInput<'a>) -> Result<Cow<'a, Container>, SpecError> {
    let has_expression = |mount: &VolumeMount| mount.sub_path_expr.as_deref().is_some_and(|text| !text.is_empty());
    if !input.container.volume_mounts.iter().flatten().any(has_expression) {
        return Ok(Cow::Borrowed(input.container));
    }
    let variables = environment::pod_variables(input, &HostInput::read(input)?)?;
    let mut container = input.container.clone();
    for mount in container.volume_mounts.iter_mut().flatten().filter(|mount| has_expression(mount)) {
        let expression = mount.sub_path_expr.take().unwrap_or_default();
        mount.sub_path = Some(expanded(expression, &mount.mount_path, &variables)?);
    }
    Ok(Cow::Owned(container))
}

fn expanded(expression: String, mount_path: &str, variables: &environment::Variables) -> Result<String, SpecError> {
    let missing = RefCell::new(BTreeSet::new());
    let path = expansion::expand(&expression, |name| {
        let value = variables.get(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.borrow_mut().insert(name.to_owned());
        }
        value
    });
    let (missing, mount_path) = (missing.into_inner(), mount_path.to_owned());
    if !missing.is_empty() {
        let variables = missing.into_iter().collect::<Vec<_>>().join(", ");
        return Err(SpecError::SubPathVariables { expression, mount_path, variables });
    }
    let stays = Path::new(&path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if stays { Ok(path) } else { Err(SpecError::SubPath { expression, mount_path, path }) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::tests::Fixture;
    use super::*;

    #[test]
    fn a_sub_path_is_made_from_the_containers_variables() {
        let cases = [
            ("logs/$(POD)/$(N)", Ok("logs/web-node/1")),
            ("$$(POD)", Ok("$(POD)")),
            ("$(NONE)/$(EMPTY)/$(POD)", Err("missing value for EMPTY, NONE")),
            ("$(UP)/x", Err("expands to \"../x\", which must be a relative path")),
            ("$(ROOT)", Err("expands to \"/etc\", which must be a relative path")),
        ];
        for (expression, wanted) in cases {
            let env = json!([
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "N", "value": "1"},
                {"name": "EMPTY"}, {"name": "UP", "value": ".."}, {"name": "ROOT", "value": "/etc"},
            ]);
            let mounts = json!([{"name": "v", "mountPath": "/m", "subPathExpr": expression}]);
            let fixture = Fixture::new(json!({"name": "c", "env": env, "volumeMounts": mounts}), json!({}));
            let input = fixture.input();
            match (expand_sub_paths(&input), wanted) {
                (Ok(container), Ok(wanted)) => {
                    let mount = &container.volume_mounts.as_ref().unwrap()[0];
                    assert_eq!((mount.sub_path.as_deref(), &mount.sub_path_expr), (Some(wanted), &None));
                }
                (Err(error), Err(wanted)) => assert!(error.to_string().contains(wanted), "{error}"),
                (opened, wanted) => panic!("{opened:?} is not {wanted:?}"),
            }
        }
    }
}
