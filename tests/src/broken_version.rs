//! Versions that do not work: a suite's own executable, installed as limpet. It reports a version, and as an agent
//! does what the file [`MODE`] beside it says.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;

/// The name of the file with the mode.
pub const MODE: &str = "mode";
/// The version that it reports.
pub const VERSION: &str = "9.9.9";
/// The mode in which it ends at once.
pub const EXIT: &str = "exit";
/// The mode in which it does nothing.
pub const HANG: &str = "hang";
/// The mode in which it serves the agent's socket and answers nothing.
pub const DEAF: &str = "deaf";

/// Acts as a broken version if this process has the name of a staged version. Call it first in a suite's `main`.
pub fn main() -> Option<ExitCode> {
    let executable = std::env::current_exe().ok()?;
    if executable.file_name()? != "limpet.new" {
        return None;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--version"] {
        println!("limpet {VERSION}");
        return Some(ExitCode::SUCCESS);
    }
    let mode = fs::read_to_string(executable.with_file_name(MODE)).unwrap_or_default();
    let config = arguments.iter().skip_while(|word| *word != "--config").nth(1);
    match (mode.as_str(), config) {
        (DEAF, Some(config)) => {
            let socket = Path::new(config).with_file_name("run").join("limpet.sock");
            let _ = fs::remove_file(&socket);
            if let Ok(listener) = UnixListener::bind(&socket) {
                let mut held = Vec::new();
                for connection in listener.incoming() {
                    held.push(connection);
                }
            }
        }
        (HANG, _) => loop {
            std::thread::park();
        },
        _ => {}
    }
    Some(ExitCode::FAILURE)
}
