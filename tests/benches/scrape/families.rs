//! A page of metrics without its values: what a family is, and one sample of each set of labels.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The families of a page in Prometheus' text format, with zero for every value.
pub(crate) fn strip_values(page: &str) -> String {
    let (mut text, mut seen) = (String::new(), BTreeSet::new());
    for line in page.lines() {
        if line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
            continue;
        }
        let sample = without_values(line);
        if seen.insert(sample.clone()) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{sample} 0");
        }
    }
    text
}

/// The name of a sample and those of its labels: `name{label="",other=""}`.
fn without_values(sample: &str) -> String {
    let (mut text, mut in_value, mut escaped) = (String::new(), false, false);
    for character in sample.chars() {
        match character {
            _ if escaped => escaped = false,
            '\\' if in_value => escaped = true,
            '"' => {
                in_value = !in_value;
                text.push('"');
            }
            _ if in_value => {}
            ' ' => break,
            _ => text.push(character),
        }
    }
    text
}
