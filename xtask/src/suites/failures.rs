//! The failed cases in a suite's output, for the end of a long run, whose first lines may not be kept.

/// How many lines of a case are repeated. Its error comes last, after the evidence, so the end of a long text is
/// enough.
const LINES: usize = 12;

/// The name of each failed case with the last lines of what it printed. `output` is in libtest's form.
pub(super) fn failed_cases(output: &str) -> Vec<String> {
    let details = output.split_once("\nfailures:\n\n").map_or("", |(_, details)| details);
    let details = details.rsplit_once("\nfailures:\n    ").map_or(details, |(details, _)| details);
    let mut cases: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in details.lines() {
        let name = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" ----"));
        match (name, cases.last_mut()) {
            (Some(name), _) => cases.push((name, Vec::new())),
            (None, Some((_, lines))) if !line.trim().is_empty() => lines.push(line),
            (None, _) => {}
        }
    }
    let text = |(name, lines): (&str, Vec<&str>)| {
        let last = &lines[lines.len().saturating_sub(LINES)..];
        std::iter::once(format!("---- {name}"))
            .chain(last.iter().map(|line| format!("     {line}")))
            .collect::<Vec<_>>()
    };
    cases.into_iter().map(|case| text(case).join("\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failed_case_is_named_with_its_last_lines() {
        let evidence: String = (0..20).map(|line| format!("evidence {line}\n")).collect();
        let output = format!(
            "\nrunning 3 tests\ntest one ... FAILED\ntest two ... ok\ntest three ... FAILED\n\nfailures:\n\n\
             ---- one ----\n{evidence}\nwaited in vain\nbecause: of this\n\n---- three ----\nshort\n\n\n\
             failures:\n    one\n    three\n\ntest result: FAILED. 1 passed; 2 failed\n"
        );
        let failed = failed_cases(&output);
        assert_eq!(failed.len(), 2);
        assert!(failed[0].starts_with("---- one\n     evidence 10\n"), "{}", failed[0]);
        assert!(failed[0].ends_with("\n     waited in vain\n     because: of this"), "{}", failed[0]);
        assert_eq!(failed[1], "---- three\n     short");
        assert!(failed_cases("running 1 test\ntest one ... ok\n\ntest result: ok.").is_empty());
    }
}
