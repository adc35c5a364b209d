//! Secrets on the disk, encrypted with a key that the machine's TPM alone opens: a pod has its Secret at a boot without
//! the manifests, and has it no more where the disk is in another machine, which runs all other pods.

use anyhow::{Result, ensure};
use limpet_tests::image;
use limpet_tests::vm::Guest;
use serde_json::json;

use crate::leftovers;
use crate::machine::Machine;
use crate::pod::{IDLE, SOON, base_is_back, manifest, noting, running, runs_volume};

/// The commands of docs/configuration.md for a node with a TPM; this one has no openssl.
const SET_UP: &str = "set -e
head -c 32 /dev/urandom | systemd-creds encrypt --with-key=tpm2 --name=limpet - /etc/limpet/secret.cred
echo 'secretEncryptionKey: systemd-creds:/etc/limpet/secret.cred' >> /etc/limpet/config.yaml
systemctl restart limpet
limpet pods";
/// A unit that has systemd load the key.
const LOADING: &str = "systemd-run --wait -p LoadCredentialEncrypted=limpet:/etc/limpet/secret.cred true";
/// The Secret's value.
const WORD: &str = "opensesame";

pub(crate) fn secrets_are_for_one_tpm(machine: &Machine) -> Result<()> {
    let mut guest = machine.boot_with_tpm(None, "tpm")?;
    base_is_back(&mut guest)?;
    guest.run(SET_UP)?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "word" }, "stringData": { "word": WORD },
    });
    guest.run(&format!("cat > /etc/limpet/manifests/word.yaml <<'END'\n{secret}\nEND"))?;
    let mut main = noting("vault", &format!("echo sealed-$(cat /secret/word) >> /runs/list; fsync /runs/list; {IDLE}"));
    main["image"] = image::V1.into();
    main["volumeMounts"] =
        json!([{ "name": "runs", "mountPath": "/runs" }, { "name": "word", "mountPath": "/secret" }]);
    let volumes = json!([runs_volume()[0], { "name": "word", "secret": { "secretName": "word" } }]);
    let spec =
        json!({ "hostNetwork": true, "containers": [main], "volumes": volumes, "terminationGracePeriodSeconds": 1 });
    guest.run(&manifest("vault", &spec))?;
    running(&mut guest, "vault")?;
    ran(&mut guest, 1)?;
    // The manifests are like a card that is missing at the next boot.
    guest.run("systemctl stop limpet && mv /etc/limpet/manifests /root/card && sync")?;

    let mut guest = machine.boot_with_tpm(Some(guest.power_cut()), "tpm")?;
    running(&mut guest, "vault")?;
    ran(&mut guest, 2)?;
    guest.run(LOADING)?;
    leftovers::none(&mut guest)?;

    let mut guest = machine.boot_with_tpm(Some(guest.power_cut()), "another")?;
    running(&mut guest, "stays")?;
    guest.until(SOON, "the reason", "journalctl -u limpet -b --no-pager -o cat", |log| {
        (log.contains("Secrets are neither loaded from disk nor saved: the encryption key is unavailable")
            && log.contains("systemd-creds cannot decrypt"))
        .then_some(())
    })?;
    // The state on the disk is encrypted, because otherwise it would be read nevertheless.
    guest.until(SOON, "the pod to wait for its Secret", "limpet events", |events| {
        events.contains("secret \"word\" not found").then_some(())
    })?;
    ran(&mut guest, 2)?;
    let doctor = guest.attempt("limpet doctor")?.1;
    let names_key = |line: &&str| line.starts_with("degraded") && line.contains("/etc/limpet/secret.cred");
    ensure!(doctor.lines().any(|line| names_key(&line)), "{doctor}");
    // limpet's unit does not load the key like this, because it would not start without it.
    ensure!(guest.attempt(LOADING)?.0 != 0, "a unit starts without its credential");
    guest.power_cut();
    Ok(())
}

/// Waits until the pod has read its Secret so often.
fn ran(guest: &mut Guest, times: usize) -> Result<()> {
    let count = format!("grep -c sealed-{WORD} /var/lib/runs/list");
    guest.until(SOON, "the Secret to be read", &count, |count| (count.trim() == times.to_string()).then_some(()))
}
