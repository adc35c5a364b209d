//! `cargo xtask corpus`: the answers of a real apiserver to every manifest of the corpus.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use limpet_tests::apiserver::Apiserver;
use limpet_tests::corpus::{self, Answer, Answers};
use limpet_tests::tools;
use serde_json::{Map, Value};

use crate::kubernetes;

/// Admission plugins that add to a Pod, or check it against other objects of the cluster.
const NO_ADMISSION: &str = "ServiceAccount,DefaultTolerationSeconds,Priority,LimitRanger,RuntimeClass,\
    NamespaceLifecycle,PodSecurity,PodTopologyLabels,TaintNodesByCondition,DefaultStorageClass,ResourceQuota";
/// Fields of the Pod API that are dropped unread while their gate is off.
const GATES: &str = "ContainerStopSignals=true,EmptyDirVolumeMode=true,VolumeBindMountOptions=true,\
    GRPCContainerProbeTLS=true,AtomicWriteVolumeUserFields=true,EvictionRequestAPI=true";
/// The fields of the metadata that an author writes.
const METADATA: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// Sends every manifest to the apiserver and records its answer.
pub(crate) fn run() -> Result<()> {
    kubernetes::apiserver()?;
    let work = tools::cache_dir().join(format!(".apiserver-{}", std::process::id()));
    let recorded = record(&work);
    std::fs::remove_dir_all(&work).ok();
    recorded
}

fn record(work: &std::path::Path) -> Result<()> {
    let options = [format!("--disable-admission-plugins={NO_ADMISSION}"), format!("--feature-gates={GATES}")];
    let server = Apiserver::start(work, &options)?;
    let manifest = corpus::base()?;
    let base = authored(&server.judge(&manifest)?).context("the base is refused")?;
    let mut answers = Answers { version: server.version()?, base, cases: BTreeMap::new() };
    let mut surprises = Vec::new();
    let cases = corpus::cases()?;
    for case in &cases {
        let mut pod = manifest.clone();
        corpus::apply(&mut pod, &case.patch);
        let output = server.judge(&pod).with_context(|| case.id.clone())?;
        let answer = match authored(&output) {
            Some(object) => {
                let mut expected = answers.base.clone();
                corpus::apply(&mut expected, &case.patch);
                Answer::Object(corpus::difference(&only_authored(&expected), &object))
            }
            None => Answer::Refused(refused_fields(&output).with_context(|| case.id.clone())?),
        };
        if matches!(answer, Answer::Object(_)) != case.good {
            surprises.push(format!("{}: {}", case.id, output["message"].as_str().unwrap_or("accepted")));
        }
        answers.cases.insert(case.id.clone(), answer);
    }
    answers.write()?;
    println!("{} manifests checked by kube-apiserver {}", cases.len(), answers.version);
    if !surprises.is_empty() {
        println!("not as their authors expected:\n  {}", surprises.join("\n  "));
    }
    Ok(())
}

/// An accepted Pod without what the server adds; `None` when it was refused.
fn authored(output: &Value) -> Option<Value> {
    (output["kind"] == "Pod").then(|| only_authored(output))
}

fn only_authored(pod: &Value) -> Value {
    let metadata: Map<String, Value> =
        METADATA.iter().filter_map(|key| Some(((*key).to_owned(), pod["metadata"].get(*key)?.clone()))).collect();
    let mut object = Map::new();
    object.insert("metadata".to_owned(), Value::Object(metadata));
    object.insert("spec".to_owned(), pod["spec"].clone());
    Value::Object(object)
}

/// The fields that a refusal names, sorted; none if the manifest could not be decoded.
fn refused_fields(status: &Value) -> Result<Vec<String>> {
    if status["kind"] != "Status" {
        bail!("unexpected answer: {status}");
    }
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let mut fields: Vec<String> = causes.filter_map(|cause| cause["field"].as_str()).map(str::to_owned).collect();
    fields.sort();
    fields.dedup();
    match status["reason"].as_str() {
        Some("Invalid" | "BadRequest") => Ok(fields),
        _ => bail!("unexpected refusal: {status}"),
    }
}
