//! The agent as the systemd unit that Kubernetes' own specs stop and restart by `sudo systemctl`. Two scripts on
//! their search path replace both programs, because the machine of the tests need not have systemd.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process::{self, Daemon};
use crate::tools;

/// What the specs request of the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// `systemctl restart`
    Restart,
    /// `systemctl kill`
    Kill,
}

/// The scripts, and the pipe for their requests. Each makes a pipe for its answer, and names it in the request.
#[derive(Debug)]
pub struct SystemdUnit {
    dir: PathBuf,
    requests: File,
}

impl SystemdUnit {
    /// Writes the scripts into `dir`.
    pub fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let pipe = dir.join("requests");
        process::output("mkfifo", &[&pipe])?;
        let requests = open(&pipe)?;
        let systemctl = format!(
            "#!/bin/sh\ncase \"$1\" in\nlist-units) echo 'kubelet-limpet.service loaded active running limpet' ;;\n\
             restart | kill)\n    answer={}/answer.$$\n    mkfifo \"$answer\"\n    echo \"$1 $answer\" > {}\n    \
             read -r done < \"$answer\"\n    rm \"$answer\"\n    [ \"$done\" = done ] ;;\nesac\n",
            dir.display(),
            pipe.display()
        );
        for (name, text) in [("sudo", "#!/bin/sh\nexec \"$@\"\n"), ("systemctl", &systemctl)] {
            let script = dir.join(name);
            fs::write(&script, text)?;
            fs::set_permissions(&script, Permissions::from_mode(0o755))?;
        }
        Ok(Self { dir: dir.to_owned(), requests })
    }

    /// The `PATH` on which the scripts come first.
    pub fn search_path(&self) -> Result<std::ffi::OsString> {
        let dirs = std::iter::once(self.dir.clone()).chain(tools::search_path());
        std::env::join_paths(dirs).context("PATH")
    }

    /// Waits until `specs` has ended, for at most this long, and carries out each request meanwhile.
    pub fn serve(
        &self,
        specs: &mut Daemon,
        limit: Duration,
        mut carry_out: impl FnMut(Request) -> Result<()>,
    ) -> Result<()> {
        thread::scope(|scope| {
            let ended = scope.spawn(|| {
                let ended = specs.wait(limit);
                writeln!(&self.requests, "end").context("end the unit")?;
                ended
            });
            let mut carried_out = Ok(());
            // What was written stays until a late script reads it.
            let mut answers = Vec::new();
            for request in BufReader::new(&self.requests).lines() {
                let request = request.unwrap_or_default();
                let (verb, answer) = request.split_once(' ').unwrap_or((&request, ""));
                let done = match verb {
                    "restart" => carry_out(Request::Restart),
                    "kill" => carry_out(Request::Kill),
                    _ => break,
                };
                let answered = open(Path::new(answer)).and_then(|mut pipe| {
                    writeln!(pipe, "{}", if done.is_ok() { "done" } else { "failed" })?;
                    Ok(pipe)
                });
                carried_out = carried_out.and(done).and(answered.map(|pipe| answers.push(pipe)));
            }
            let ended = ended.join().unwrap_or_else(|_| bail!("the wait for the specs panicked"));
            // The specs also fail if a request does.
            carried_out.and(ended.map(drop))
        })
    }
}

/// A pipe, open for reading and writing: neither end waits for the other.
fn open(pipe: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(pipe).with_context(|| pipe.display().to_string())
}
