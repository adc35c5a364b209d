//! Whether docs/security.md tells the truth about its tests: each row of its tables names tests that exist.
//!
//! Only a test itself: nothing of it is part of the program.

use std::path::Path;

use limpet_tests::agent::workspace_dir;

#[test]
fn each_row_names_tests_that_exist() {
    let directory = workspace_dir().join("docs");
    let page = std::fs::read_to_string(directory.join("security.md")).unwrap_or_else(|error| panic!("{error}"));
    let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| test |")).collect();
    let faults: Vec<_> = rows.iter().flat_map(|row| faults(row, &directory)).collect();
    assert!(rows.len() > 30, "{}", rows.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What is wrong with the last cell of a row: [`test`](file), …
fn faults(row: &str, directory: &Path) -> Vec<String> {
    let cell = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or_default();
    let links = cell.split(", ").map(|link| link.strip_prefix("[`")?.strip_suffix(')')?.split_once("`]("));
    links
        .filter_map(|link| {
            let Some((test, file)) = link else { return Some(format!("no test: {row}")) };
            let source = std::fs::read_to_string(directory.join(file)).unwrap_or_default();
            (!source.contains(&format!("fn {test}("))).then(|| format!("{file} has no test {test}"))
        })
        .collect()
}

#[test]
fn a_row_without_a_test_or_with_an_unknown_one_is_found() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(faults("| a | b | none |", here), ["no test: | a | b | none |"]);
    assert_eq!(faults("| a | b | [`gone`](src/main.rs) |", here), ["src/main.rs has no test gone"]);
    assert_eq!(faults("| a | b | [`main`](src/main.rs) |", here), Vec::<String>::new());
}
