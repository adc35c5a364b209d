//! The cases on a machine's console: which were skipped, and whether its kernel may skip those.

use anyhow::{Context as _, Result, ensure};

/// A case that a kernel cannot run: its name, and part of the reason that it must give.
pub(super) type Skip = (&'static str, &'static str);

/// The summary of a run in which every case passed, or was skipped as declared; before it, the figures found out.
pub(super) fn check(output: &str, declared: &[Skip]) -> Result<String> {
    let summary = output.lines().find(|line| line.starts_with("kernels: ")).context("it ended early")?;
    let failed: Vec<_> = output.lines().filter(|line| line.contains("FAILED") || line.contains("panicked")).collect();
    let skipped: Vec<_> = output.lines().filter_map(skip).collect();
    let (passed, expected) = (cases(output) - skipped.len(), format!(" 0 failed, {} skipped", declared.len()));
    ensure!(failed.is_empty(), "{summary}\n{}", failed.join("\n"));
    for (name, reason) in &skipped {
        let known = declared.iter().any(|(case, part)| case == name && reason.contains(part));
        ensure!(known, "{name:?} was skipped, which is not declared for this kernel: {reason}");
    }
    for (name, _) in declared {
        let is_skipped = skipped.iter().any(|(case, _)| case == name);
        ensure!(is_skipped, "{name:?} is declared as skipped on this kernel, and ran");
    }
    // Counted twice, here and in the machine: a line that the console lost is noticed.
    ensure!(
        summary == format!("kernels: {passed} passed,{expected}"),
        "{summary}, and here {passed} passed,{expected}"
    );
    let figures = output.lines().filter(|line| line.contains(" known"));
    Ok(figures.chain([summary]).collect::<Vec<_>>().join("\n"))
}

fn cases(output: &str) -> usize {
    output.lines().filter(|line| line.starts_with("test ") && line.contains(" ... ")).count()
}

/// The skipped case in a line, and the reason.
fn skip(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.split_once(" ... skipped: ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SAID: &str = "  3 of 3 known\ntest a ... ok (1 s)\ntest b ... skipped: this kernel: no b\n";

    #[test]
    fn only_declared_skips_pass_and_only_those_that_are_skipped() {
        let ended = |output: &str, declared: &[Skip]| check(output, declared).map_err(|error| error.to_string());
        let whole = format!("{SAID}kernels: 1 passed, 0 failed, 1 skipped\n");
        let summary = "  3 of 3 known\nkernels: 1 passed, 0 failed, 1 skipped";
        assert_eq!(ended(&whole, &[("b", "no b")]).unwrap(), summary);
        for (output, declared, why) in [
            (SAID.to_owned(), [("b", "no b")].as_slice(), "ended early"),
            (whole.clone(), &[], "\"b\" was skipped, which is not declared"),
            (whole.clone(), &[("b", "no c")], "\"b\" was skipped, which is not declared"),
            (whole.clone(), &[("b", "no b"), ("a", "")], "\"a\" is declared as skipped on this kernel, and ran"),
            (whole.replace("1 passed", "2 passed"), &[("b", "no b")], "and here 1 passed"),
            (whole.replace("ok (1 s)", "FAILED: x"), &[("b", "no b")], "FAILED: x"),
        ] {
            let error = ended(&output, declared).unwrap_err();
            assert!(error.contains(why), "{error}: not {why}");
        }
    }
}
