//! The program itself, with arguments that it refuses.
#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn a_prefix_that_makes_no_node_name_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limpet-hollow-nodes"));
    let output = command.args(["--kubeconfig", "/nonexistent", "--name-prefix", "Hollow"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: --name-prefix: \"Hollow-0\" is not a valid Node name"), "{said}");
}
