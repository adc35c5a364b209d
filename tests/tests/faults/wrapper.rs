//! A script in front of a CNI plugin: it calls the real one, and does harm before or after as planned.
//!
//! Files in a directory control it: `plan` has the call that is hit and what happens. It notes each call in `calls` and
//! the hit in `struck`. The agent is the parent of the plugin that it calls.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use limpet_tests::tools;

/// The script. It names a call by its command: `cni.ADD`.
const SCRIPT: &str = r#"#!/bin/sh
real=REAL dir=DIR
verb=cni.$CNI_COMMAND
echo "$verb" >> "$dir/calls"
harm=
if [ -e "$dir/plan" ]; then
    read -r call number harm < "$dir/plan"
    if [ "$call" = "$verb" ] && [ "$(grep -c "^$verb\$" "$dir/calls")" = "$number" ]; then
        rm "$dir/plan"
        echo "$call#$number $harm" >> "$dir/struck"
    else
        harm=
    fi
fi
fail() {
    echo '{"cniVersion":"1.0.0","code":999,"msg":"a fault was asked for"}'
    exit 1
}
case $harm in
    kill:before) kill -9 $PPID; exit 1 ;;
    fail:before) fail ;;
    hang:before) exec sleep 1000 ;;
    late:before) kill -9 $PPID; exec "$dir/late" "$real" "$dir" ;;
    *:after)
        "$real" > /dev/null
        case $harm in
            kill:after) kill -9 $PPID ;;
            fail:after) fail ;;
            hang:after) exec sleep 1000 ;;
        esac
        exit 1 ;;
esac
exec "$real"
"#;

/// A script that waits until the agent that called it has been replaced, and then does what that one wanted.
const LATE: &str = r#"#!/bin/sh
while [ ! -e "$2/go-on" ]; do sleep 0.05; done
"$1"
"#;

/// The files that control the script of one node.
#[derive(Debug, Clone)]
pub(crate) struct Wrapper {
    dir: PathBuf,
}

impl Wrapper {
    /// Writes the script below `dir`.
    pub(crate) fn write(dir: &Path) -> Result<Self> {
        let plugins = tools::cni_plugins().context("no CNI plugins")?;
        let wrapper = Self { dir: dir.to_owned() };
        fs::create_dir_all(wrapper.plugin_dir())?;
        wrapper.script(&plugins.join("bridge"), &wrapper.plugin_dir().join("bridge"))?;
        executable(&dir.join("late"), LATE)?;
        wrapper.forget()?;
        Ok(wrapper)
    }

    fn script(&self, real: &Path, path: &Path) -> Result<()> {
        let text = SCRIPT.replace("REAL", &real.display().to_string()).replace("DIR", &self.dir.display().to_string());
        executable(path, &text)
    }

    /// The directory with the wrapped plugin; the others are found in the next directory.
    pub(crate) fn plugin_dir(&self) -> PathBuf {
        self.dir.join("cni-bin")
    }

    /// A part of the command line of a plugin that waits until its agent is replaced.
    pub(crate) fn late(&self) -> String {
        self.dir.join("late").display().to_string()
    }

    /// Begins to count anew, with nothing planned.
    pub(crate) fn forget(&self) -> Result<()> {
        for name in ["plan", "struck", "go-on"] {
            fs::remove_file(self.dir.join(name)).ok();
        }
        fs::write(self.dir.join("calls"), "").context("the calls of the wrapped plugin")
    }

    /// Plans `harm` (`kill:before`) for the `number`-th `call` (`cni.ADD`).
    pub(crate) fn plan(&self, call: &str, number: usize, harm: &str) -> Result<()> {
        let partial = self.dir.join(".plan");
        fs::write(&partial, format!("{call} {number} {harm}\n"))?;
        fs::rename(partial, self.dir.join("plan")).context("plan harm")
    }

    /// Lets a plugin continue that has waited until its agent was replaced.
    pub(crate) fn go_on(&self) -> Result<()> {
        fs::write(self.dir.join("go-on"), "").context("let a plugin go on")
    }

    /// The calls so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The harm that has happened.
    pub(crate) fn struck(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.join("struck")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn executable(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).with_context(|| format!("{}", path.display()))
}
