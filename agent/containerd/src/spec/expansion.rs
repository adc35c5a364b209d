//! `$(VARIABLE)` references in commands, arguments and environment values (kubelet's expansion rules).

use k8s_openapi::api::core::v1::EnvVar;

/// The longest string that the kernel passes to a program (`MAX_ARG_STRLEN`). Nested references grow exponentially,
/// so no reference is replaced beyond it: the text is then too long for the kernel, and the container fails as under
/// kubelet.
const MAX_LENGTH: usize = 128 * 1024;

/// Replaces every `$(NAME)` for which `lookup` has a value.
///
/// An unknown name, an unclosed `$(` and a single `$` are left unchanged; `$$` becomes `$`, so `$$(NAME)` escapes a
/// reference. The value of a reference is not expanded again.
pub(super) fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let reference = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        rest = match reference {
            Some((name, tail)) => {
                match lookup(name) {
                    Some(value) => expanded.push_str(value),
                    None => expanded.extend(["$(", name, ")"]),
                }
                tail
            }
            None => {
                expanded.push('$');
                after.strip_prefix('$').unwrap_or(after)
            }
        };
        if expanded.len() > MAX_LENGTH {
            break;
        }
    }
    expanded.push_str(rest);
    expanded
}

/// Expands references in the command of an exec probe to variables whose value is in the container's `env`. As in
/// kubelet, a variable whose value comes from elsewhere is empty, and those of `envFrom` and the image are unknown.
pub fn expand_probe_command(command: &[String], env: &[EnvVar]) -> Vec<String> {
    let value = |name: &str| {
        let last = env.iter().rfind(|variable| variable.name == name)?;
        Some(last.value.as_deref().unwrap_or_default())
    };
    command.iter().map(|text| expand(text, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_expand_as_kubelet_does() {
        let lookup = |name: &str| match name {
            "VAR_A" => Some("A"),
            "VAR_B" => Some("B"),
            "VAR_C" => Some("C"),
            "VAR_REF" => Some("$(VAR_A)"),
            "VAR_EMPTY" => Some(""),
            _ => None,
        };
        let cases = [
            ("$(VAR_A)", "A"),
            ("___$(VAR_B)___", "___B___"),
            ("___$(VAR_C)", "___C"),
            ("$(VAR_A)-$(VAR_A)", "A-A"),
            ("$(VAR_A)-1", "A-1"),
            ("f000-$VAR_A", "f000-$VAR_A"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("%%$(VAR_REF)--$(VAR_REF)%%", "%%$(VAR_A)--$(VAR_A)%%"),
            ("foo$(VAR_EMPTY)bar", "foobar"),
            ("foo$(VAR_Awhoops!", "foo$(VAR_Awhoops!"),
            ("f00__(VAR_A)__", "f00__(VAR_A)__"),
            ("$?_boo_$!", "$?_boo_$!"),
            ("$VAR_A", "$VAR_A"),
            ("$(VAR_DNE)", "$(VAR_DNE)"),
            ("$$$$$$(BIG_MONEY)", "$$$(BIG_MONEY)"),
            ("$$$$$$(VAR_A)", "$$$(VAR_A)"),
            ("$$$$$$$(GOOD_ODDS)", "$$$$(GOOD_ODDS)"),
            ("$$$$$$$(VAR_A)", "$$$A"),
            ("$VAR_A)", "$VAR_A)"),
            ("${VAR_A}", "${VAR_A}"),
            ("$(VAR_B)_______$(A", "B_______$(A"),
            ("$(VAR_C)_______$(", "C_______$("),
            ("$(VAR_A)foobarzab$", "Afoobarzab$"),
            ("foo-\\$(VAR_A", "foo-\\$(VAR_A"),
            ("--$($($($($--", "--$($($($($--"),
            ("$($($($($--foo$(", "$($($($($--foo$("),
            ("foo0--$($($($(", "foo0--$($($($("),
            ("$(foo$$var)", "$(foo$$var)"),
            ("$$(VAR_A)", "$(VAR_A)"),
            ("$()", "$()"),
            ("$ä$", "$ä$"),
            ("", ""),
        ];
        for (text, wanted) in cases {
            assert_eq!(expand(text, lookup), wanted, "{text}");
        }
    }

    #[test]
    fn a_probes_command_has_the_values_of_the_pod_itself() {
        let variable = |name: &str, value: Option<&str>| EnvVar {
            name: name.to_owned(),
            value: value.map(str::to_owned),
            ..EnvVar::default()
        };
        let env =
            [variable("A", Some("old")), variable("A", Some("new")), variable("B", Some("$(A)")), variable("C", None)];
        let command = ["ping", "$(A)", "$(B)", "-$(C)-", "$(D)", "$$(A)", "$A"].map(str::to_owned);
        let expanded = expand_probe_command(&command, &env);
        assert_eq!(expanded, ["ping", "new", "$(A)", "--", "$(D)", "$(A)", "$A"]);
    }

    #[test]
    fn growth_is_bounded() {
        let half = "x".repeat(MAX_LENGTH / 2);
        assert_eq!(expand("$(A)$(A)", |_| Some(&half)).len(), MAX_LENGTH);
        // The result is slightly too long for the kernel.
        let text = "$(A)".repeat(1_000);
        let expanded = expand(&text, |_| Some(&half));
        assert!((MAX_LENGTH..=MAX_LENGTH * 2).contains(&expanded.len()), "{}", expanded.len());
        // A long text without references is left for the kernel to refuse.
        let long = "x".repeat(MAX_LENGTH + 1);
        assert_eq!(expand(&long, |_| None), long);
    }
}
