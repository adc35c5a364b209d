//! The agent as the systemd unit that Kubernetes' own specs stop and restart by `sudo systemctl`: two scripts on their search path
//! replace both programs, because the machine of the tests need not have systemd.

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

/// The scripts, and the two pipes by which they request and are answered.
#[derive(Debug)]
pub struct SystemdUnit {
    dir: PathBuf,
    /// Open for reading and writing, so that neither side waits for the other and it has no end between two requests.
    requests: File,
    answers: PathBuf,
}

impl SystemdUnit {
    /// Writes the scripts into `dir`.
    pub fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let (pipe, answers) = (dir.join("requests"), dir.join("answers"));
        process::output("mkfifo", &[&pipe, &answers])?;
        let requests = OpenOptions::new().read(true).write(true).open(&pipe)?;
        let systemctl = format!(
            "#!/bin/sh\ncase \"$1\" in\nlist-units) echo 'kubelet-limpet.service loaded active running limpet' ;;\n\
             restart | kill) echo \"$1\" > {}; read -r _ < {} ;;\nesac\n",
            pipe.display(),
            answers.display()
        );
        for (name, text) in [("sudo", "#!/bin/sh\nexec \"$@\"\n"), ("systemctl", &systemctl)] {
            let script = dir.join(name);
            fs::write(&script, text)?;
            fs::set_permissions(&script, Permissions::from_mode(0o755))?;
        }
        Ok(Self { dir: dir.to_owned(), requests, answers })
    }

    /// The `PATH` on which the scripts come first.
    pub fn search_path(&self) -> Result<std::ffi::OsString> {
        let dirs = std::iter::once(self.dir.clone()).chain(tools::search_path());
        std::env::join_paths(dirs).context("PATH")
    }

    /// Waits until `specs` has ended, at most so long, and meanwhile carries out each request.
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
            // The specs fail by themselves where a request does.
            let mut carried_out = Ok(());
            for request in BufReader::new(&self.requests).lines() {
                let done = match &*request? {
                    "restart" => carry_out(Request::Restart),
                    "kill" => carry_out(Request::Kill),
                    _ => break,
                };
                carried_out = carried_out.and(done);
                writeln!(File::options().write(true).open(&self.answers)?, "done")?;
            }
            let ended = ended.join().unwrap_or_else(|_| bail!("the wait for the specs panicked"));
            ended.and(carried_out)
        })
    }
}
