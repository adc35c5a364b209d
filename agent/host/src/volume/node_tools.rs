//! The node's own tools that mount volumes: where to find them, and their output in messages.

use std::path::PathBuf;

use crate::program;

/// Directories of system tools that are searched after `PATH`, because a service's `PATH` may lack `sbin`.
const SYSTEM_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The most bytes of a tool's output in a message.
const MAX_OUTPUT: usize = 1_024;

/// The directories in `PATH`, then the system's.
pub(super) fn tool_dirs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(SYSTEM_DIRS.map(PathBuf::from)).collect()
}

/// The output of a failed tool, in one line.
pub(super) fn output_text(output: &program::Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { "it failed without output".to_owned() } else { cut(lines.join("; ")) }
}

/// A program's message, in one line.
pub(super) fn bounded(text: &str) -> String {
    cut(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn cut(mut line: String) -> String {
    while line.len() > MAX_OUTPUT {
        line.pop();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tool_says_is_one_bounded_line() {
        let text_of = |text: &str| {
            let stderr = text.as_bytes().to_vec();
            output_text(&program::Output { success: false, code: Some(1), stdout: Vec::new(), stderr })
        };
        assert_eq!(text_of("mount.nfs: a\n\n  b\n"), "mount.nfs: a; b");
        assert_eq!(text_of(" \n"), "it failed without output");
        assert!(text_of(&"\u{e4}".repeat(MAX_OUTPUT)).len() <= MAX_OUTPUT);
    }
}
