//! The power is cut in an upgrade: wherever that is, one of the two versions runs after the boot, as a whole, and the
//! pods run again.
//!
//! The machine resets itself when a condition holds, without a sync: a signal to the emulator would come later than
//! the step that is meant. What a boot brings back is the beginning of the next upgrade.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::broken_version;

use super::{SLOT, Version, installed};
use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{SOON, base_is_back_after};

/// A moment of an upgrade.
#[derive(Debug, Clone, Copy)]
struct Moment {
    name: &'static str,
    /// The condition of bash that holds from then on.
    reached: &'static str,
    /// The outcomes that the journal may have after a cut; none if the cut was before the journal.
    outcomes: &'static [Option<&'static str>],
    /// What is wrong with the new version; nothing if that is empty.
    fault: &'static str,
}

/// One before the journal is written. A later cut in it may find the journal.
const fn staging(name: &'static str, reached: &'static str) -> Moment {
    Moment { name, reached, outcomes: &[None, Some("installed")], fault: "" }
}

/// One of a trial that ends well.
const fn trial(name: &'static str, reached: &'static str) -> Moment {
    Moment { name, reached, outcomes: &[Some("installed")], fault: "" }
}

/// One of a trial of a version with this fault.
const fn failing(name: &'static str, reached: &'static str, fault: &'static str) -> Moment {
    Moment { name, reached, outcomes: &[Some("undone")], fault }
}

/// The moments, in the order of an upgrade; at the end those of versions that are undone.
const MOMENTS: [Moment; 17] = [
    staging("the file is being copied", "[[ -e limpet-upgrade.download ]]"),
    staging("the signature is being copied", "[[ -e limpet-upgrade.download.minisig ]]"),
    staging("the agent is being unpacked", "[[ -e limpet.new ]]"),
    staging("the shim is being unpacked", "[[ -e containerd-shim-limpet-v1.new ]]"),
    staging("the new version is asked for its number", "[[ -e limpet.new && ! -e limpet-upgrade.download ]]"),
    staging("the journal is being written", "[[ -e limpet-upgrade.json.tmp ]]"),
    trial("the trial is about to begin", r#"journal '"attempts":0'"#),
    trial("the first attempt is counted", r#"journal '"attempts":1'"#),
    trial("the new version starts", "runs limpet.new"),
    trial("the new version answers", "runs limpet.new && limpet pods > /dev/null"),
    trial("the new version is accepted", r#"journal '"accepted"'"#),
    trial("the shim is in its place", r#"journal '"accepted"' && [[ ! -e containerd-shim-limpet-v1.new ]]"#),
    trial("the agent is in its place", r#"journal '"accepted"' && [[ ! -e limpet.new ]]"#),
    trial("the upgrade is over", r#"journal '"installed"'"#),
    failing("the second attempt is counted", r#"journal '"attempts":2'"#, broken_version::EXIT),
    failing("the new version hangs", "runs limpet.new", broken_version::HANG),
    failing("the new version is undone", r#"journal '"undone"'"#, broken_version::EXIT),
];

/// How many cuts a long run makes, each time a little later in the same moments.
const CUTS: usize = 50;
/// How many of these are one case.
pub(crate) const CUTS_OF_A_CASE: usize = 10;

/// The deadline in seconds of a version that hangs.
const FAILING_DEADLINE: u64 = 20;

/// Has the unit record what a boot has found before the agent starts.
const RECORD: &str = "set -e
mkdir -p /etc/systemd/system/limpet.service.d
cat > /etc/systemd/system/limpet.service.d/record.conf <<'END'
[Service]
ExecStartPre=/usr/local/sbin/record
END
cat > /usr/local/sbin/record <<'END'
#!/bin/bash
[[ -e /run/at-boot ]] && exit
cd /usr/bin
echo $(ls | grep ^limpet; ls | grep ^containerd-shim-limpet; head -c 40 limpet-upgrade.json 2> /dev/null) > /run/at-boot
END
chmod +x /usr/local/sbin/record
systemctl daemon-reload";

/// The numbers of the first cuts of each case of a long run.
pub(crate) fn cases() -> impl Iterator<Item = usize> {
    (0..CUTS).step_by(CUTS_OF_A_CASE)
}

/// Ten cuts, from this number on.
pub(crate) fn from(machine: &Machine, first_cut: usize) -> Result<()> {
    let mut guest = machine.resume()?;
    guest.run(RECORD)?;
    let first = installed(&mut guest)?;
    let versions = [first.sizes(), first.successor()];
    let mut present = 0;
    for (boots, number) in (first_cut..CUTS.min(first_cut + CUTS_OF_A_CASE)).enumerate() {
        let (moment, round) = (MOMENTS[number % MOMENTS.len()], number / MOMENTS.len());
        let to = match moment {
            Moment { fault: "", .. } if present == 0 => Version::Second,
            Moment { fault: "", .. } => Version::First,
            _ => Version::Broken,
        };
        guest.send(&upgrade_and_reset(moment, to, round))?;
        guest = machine.boot(guest.wait_off()?)?;
        let what = format!("cut {number}, {} s after the moment in which {}", pause(round), moment.name);
        let after = installed(&mut guest).with_context(|| what.clone())?;
        let at_boot = guest.run("cat /run/at-boot; cat /var/log/upgrade 2> /dev/null || true")?;
        let outcome = after.step.as_deref();
        println!("{what}: the boot found {}; outcome: {}", at_boot.trim(), outcome.unwrap_or("none"));
        ensure!(moment.outcomes.contains(&outcome), "{what}: {after:?}, at the boot {at_boot}");
        let expected = if outcome == Some("installed") { 1 - present } else { present };
        ensure!(after.sizes() == versions[expected], "{what}: {after:?}, of {versions:?}");
        base_is_back_after(&mut guest, boots + 1).with_context(|| what.clone())?;
        present = expected;
    }
    leftovers::none(&mut guest)?;
    guest.power_cut();
    Ok(())
}

/// How many seconds after its moment a cut is.
fn pause(round: usize) -> String {
    let tenths = 4 * round;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// The script that upgrades and resets the machine. If the upgrade ends before its moment, it does so then.
fn upgrade_and_reset(moment: Moment, to: Version, round: usize) -> String {
    format!(
        "cd {SLOT} && rm -f limpet-upgrade.json && printf '{fault}' > {mode} && sync
journal() {{ line=; read -r line < limpet-upgrade.json; [[ $line == *\"$1\"* ]]; }}
runs() {{ [[ /proc/$(systemctl show -P MainPID limpet)/exe -ef $1 ]]; }}
{upgrade} --deadline {deadline} > /var/log/upgrade 2>&1 &
upgrade=$!
until {reached} || ! kill -0 $upgrade; do :; done 2> /dev/null
{pause}
echo b > /proc/sysrq-trigger",
        fault = moment.fault,
        mode = broken_version::MODE,
        upgrade = to.upgrade(),
        deadline = if moment.fault.is_empty() { SOON.as_secs() } else { FAILING_DEADLINE },
        reached = moment.reached,
        pause = if round == 0 { String::new() } else { format!("sleep {}", pause(round)) },
    )
}
