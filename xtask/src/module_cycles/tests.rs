//! Whole crates, each a table of files.

#![allow(clippy::unwrap_used)]

use std::io;

use super::*;

/// Reads the crate whose root is `src/lib.rs`.
fn tree_of(files: &[(&str, &str)]) -> Result<Tree> {
    tree::read(Path::new("src/lib.rs"), &|path| {
        let file = files.iter().find(|(name, _)| Path::new("src").join(name) == path);
        file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
    })
}

/// All edges between top-level modules, as `a -> b file:line`.
fn edges(files: &[(&str, &str)]) -> Vec<String> {
    let tree = tree_of(files).unwrap();
    let edge = |reference: &tree::Reference| {
        let (from, to) = tree.siblings(&[], reference)?;
        Some(format!("{from} -> {to} {}:{}", reference.file.display(), reference.line))
    };
    let mut edges: Vec<_> = tree.references.iter().filter_map(edge).collect();
    edges.sort();
    edges
}

/// The edges of module `a` with this text, in a crate with the further modules `b` and `c`.
fn edges_of_a(text: &str) -> Vec<String> {
    edges(&[("lib.rs", "mod a; mod b; mod c;"), ("a.rs", text), ("b.rs", ""), ("c.rs", "")])
}

#[test]
fn a_cycle_is_reported_with_its_members_and_edges() {
    let files = [
        ("lib.rs", "pub mod app;\npub mod pod;\npub mod store;\npub mod wire;\n"),
        ("app.rs", "use crate::pod::Pod;\nuse crate::store;\n"),
        ("pod.rs", "use crate::store::Key;\n\npub struct Pod(Key);\n"),
        ("store.rs", "mod table;\nuse crate::wire;\n"),
        ("store/table.rs", "use super::super::pod;\nuse crate::pod::Pod;\n"),
        ("wire.rs", ""),
    ];
    let cycles = cycles(&tree_of(&files).unwrap());
    let mut report = String::new();
    cycles.iter().for_each(|cycle| describe("limpet (lib)", cycle, &mut report));
    assert_eq!(
        report,
        "limpet (lib): a cycle of 2 modules: pod, store\n    \
             pod -> store  src/pod.rs:1: Key\n    \
             store -> pod  src/store/table.rs:1 and 1 more: Pod, pod\n"
    );
}

#[test]
fn a_crate_without_a_cycle_is_accepted() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; use a::A;"),
        ("a.rs", "mod inner; pub use inner::A; use crate::b;"),
        ("a/inner.rs", "use super::super::c; use super::A;"),
        ("b.rs", "use crate::c;"),
        ("c.rs", ""),
    ];
    assert_eq!(cycles(&tree_of(&files).unwrap()), []);
}

#[test]
fn cycles_below_the_top_level_are_reported() {
    let files =
        [("lib.rs", "mod a;"), ("a.rs", "mod x; mod y;"), ("a/x.rs", "use super::y;"), ("a/y.rs", "use crate::a::x;")];
    let cycles_seen = cycles(&tree_of(&files).unwrap());
    assert_eq!(cycles_seen.iter().map(|cycle| &cycle.members[..]).collect::<Vec<_>>(), [["a::x", "a::y"]]);
}

#[test]
fn paths_are_found_wherever_they_stand() {
    let cases: [(&str, &[&str]); 13] = [
        ("use crate::b::X;", &["a -> b src/a.rs:1"]),
        (
            "use crate::{\n    b::{self, X},\n    c,\n};",
            &["a -> b src/a.rs:2", "a -> b src/a.rs:2", "a -> c src/a.rs:3"],
        ),
        ("use {crate::b, super::c::*};", &["a -> b src/a.rs:1", "a -> c src/a.rs:1"]),
        ("use super::b as other;", &["a -> b src/a.rs:1"]),
        ("pub(crate) use self::super::b;", &["a -> b src/a.rs:1"]),
        ("fn f(x: Vec<crate::b::X>) -> u8 {\n    super::c::f::<u8>(x) }", &["a -> b src/a.rs:1", "a -> c src/a.rs:2"]),
        ("fn f() { info!(\"{}\", crate::b::f()); }", &["a -> b src/a.rs:1"]),
        ("macro_rules! m { () => { $crate::b::f() } }", &["a -> b src/a.rs:1"]),
        ("mod inner { use super::super::b; use super::b as own; }", &["a -> b src/a.rs:1"]),
        ("pub(in crate::a) struct X; use crate::a::Y; use crate::Z; use b::X; use ::b::Y;", &[]),
        ("// crate::b::X\n/// [crate::b::X]\nconst TEXT: &str = \"crate::b::X\";", &[]),
        ("fn f(self: Self) { self.b(); crate::f(); super::f() }", &[]),
        ("#[derive(crate::b::Derive)]\nstruct X;", &["a -> b src/a.rs:1"]),
    ];
    for (text, expected) in cases {
        assert_eq!(edges_of_a(text), expected, "{text}");
    }
}

#[test]
fn code_for_tests_does_not_count() {
    let texts = [
        "#[cfg(test)]\nmod tests { use crate::b; }",
        "#[cfg(test)]\nmod tests;",
        "#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod tests;",
        "#[cfg(test)]\nuse crate::{b, c};",
        "#[cfg(all(test, unix))]\npub(crate) fn f() -> crate::b::X { crate::c::x() }",
        "struct X;\nimpl X {\n    #[cfg(any(test, all(test, unix)))]\n    fn f() { crate::b::f() }\n}",
        "struct X {\n    #[cfg(test)]\n    pub x: crate::b::X,\n}",
        "#![cfg(test)]\nuse crate::b;",
        "#[tokio::test(start_paused = true)]\nasync fn f() { crate::b::f() }",
        "mod made_tests;",
        "mod fixtures;",
    ];
    for text in texts {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", text),
            ("a/made_tests.rs", "use crate::b;"),
            ("a/fixtures.rs", "mod sample;"),
            ("a/fixtures/sample.rs", "use crate::b;"),
            ("b.rs", ""),
            ("c.rs", ""),
        ];
        assert_eq!(edges(&files), [""; 0], "{text}");
    }
}

#[test]
fn code_after_tests_counts() {
    let texts = [
        "#[cfg(test)]\nmod tests { use crate::c; }\nuse crate::b;",
        "#[cfg(test)]\nuse crate::{c};\nuse crate::b;",
        "struct X {\n    #[cfg(test)] x: crate::c::X,\n    y: crate::b::Y,\n}",
        "#[cfg(not(test))]\n\nuse crate::b;",
        "#[cfg(any(test, unix))]\n\nuse crate::b;",
    ];
    for text in texts {
        let edges = edges_of_a(text);
        assert!(edges.iter().all(|edge| edge.starts_with("a -> b")) && edges.len() == 1, "{text}: {edges:?}");
    }
}

#[test]
fn names_that_the_root_re_exports_lead_to_their_module() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use b::{inner::X, Y as Z};"),
        ("a.rs", "use crate::X;\nuse super::Z;\nuse crate::Y;"),
        ("b.rs", "pub mod inner;"),
        ("b/inner.rs", ""),
    ];
    assert_eq!(edges(&files), ["a -> b src/a.rs:1", "a -> b src/a.rs:2"]);
}

#[test]
fn files_of_modules_are_found_as_the_compiler_finds_them() {
    let files = [
        ("lib.rs", "mod a;\n#[path = \"elsewhere/d.rs\"]\npub(crate) mod b;\nmod c { mod deep; }"),
        ("a/mod.rs", "mod deep;"),
        ("a/deep.rs", "use crate::b;"),
        ("elsewhere/d.rs", "mod deep;"),
        ("elsewhere/deep.rs", "use crate::c;"),
        ("c/deep.rs", "use crate::a;"),
    ];
    assert_eq!(edges(&files), ["a -> b src/a/deep.rs:1", "b -> c src/elsewhere/deep.rs:1", "c -> a src/c/deep.rs:1"]);
}

#[test]
fn what_cannot_be_read_is_an_error_with_its_place() {
    let missing = tree_of(&[("lib.rs", "\nmod a;")]).unwrap_err();
    assert_eq!(format!("{missing:#}"), "src/lib.rs:2: module a has no file");
    let broken = tree_of(&[("lib.rs", "mod a;"), ("a.rs", "fn f() {\n")]).unwrap_err();
    assert!(format!("{broken:#}").starts_with("src/a.rs: line "), "{broken:#}");
}
