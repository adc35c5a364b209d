//! Sets of manifests as people write them give on limpet alone what they give on a node with a control plane.
//!
//! `tests/sets` has the sets, and what etcd, apiserver, controllers, scheduler, kubelet and CoreDNS of 1.37 made of each; `cargo
//! xtask nightly control-plane` runs them there again and writes that record again.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use limpet_tests::node::NodeOptions;
use limpet_tests::own_network::NODE;
use limpet_tests::sets::alone::Alone;
use limpet_tests::sets::control_plane::ControlPlane;
use limpet_tests::sets::run::Run;
use limpet_tests::sets::stage::Stage;
use limpet_tests::sets::{files, images, record};
use limpet_tests::view::Views;
use limpet_tests::view::record::{Known, differing};
use limpet_tests::{TestNode, case, cluster, suite, wait};

fn main() -> ExitCode {
    let on_a_network = |node: &mut NodeOptions| {
        (node.cni, node.agent, node.images, node.verbosity) = (true, false, false, 2);
        node.kubelet.push("maxPods: 400".to_owned());
        node.limpet.push(format!("nodeIP: {NODE}"));
    };
    let alone = case!(sets_give_on_limpet_alone_what_they_give_beside_a_control_plane).on(on_a_network);
    let recorded = case!(a_control_plane_gives_what_is_recorded).on(on_a_network).on(|node| {
        (node.cluster, node.cri) = (true, true);
    });
    let code = suite::run(std::iter::once(alone).chain(suite::is_long().then_some(recorded)));
    cluster::end();
    code
}

/// The intended differences; docs/kinds.md names them.
const ON_PURPOSE: &[Known] = &[
    ("", "environment", "KUBERNETES_", "there is no apiserver to reach"),
    ("", "files", "/var/run/secrets/kubernetes.io/serviceaccount", "only an apiserver issues tokens"),
    ("", "labels", "pod-template-generation=", "the number of an object that an apiserver has; deprecated since 1.10"),
    ("daemon-of-other-nodes", "", "agent-SUFFIX", "the pod is there, and waits for the node to have the labels"),
];

/// Names the file into which the views of limpet are written.
const SEEN_VARIABLE: &str = "LIMPET_TEST_SETS_SEEN";
/// How long nothing may change on a node with a control plane until its sets have come to rest.
const REST: Duration = Duration::from_secs(20);
/// How long that may take.
const A_WHILE: Duration = Duration::from_secs(400);

fn sets_give_on_limpet_alone_what_they_give_beside_a_control_plane(node: &mut TestNode) -> Result<()> {
    let (sets, recorded) = (files::chosen()?, record::read()?);
    let [first, second] = images()?;
    node.import(&[&first, &second])?;
    let changes = node.dir().join("changes");
    let stage = Alone::start(node)?;
    let mut run = Run::begin(&sets, &stage, &changes)?;
    let (mut findings, mut views) = (Vec::new(), Views::new());
    loop {
        let seen = run.wait(wait::SOON * 2, |views| differing(&recorded, views, ON_PURPOSE).is_empty())?;
        findings.extend(differing(&recorded, &seen, ON_PURPOSE));
        views.extend(seen);
        if run.proceed()? == 0 {
            break;
        }
    }
    let count = views.len();
    if let Some(path) = std::env::var_os(SEEN_VARIABLE) {
        fs::write(path, serde_json::to_string_pretty(&views)?)?;
    }
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    println!("{count} views of {} sets", sets.len());
    Ok(())
}

fn a_control_plane_gives_what_is_recorded(node: &mut TestNode) -> Result<()> {
    let sets = files::chosen()?;
    let [first, second] = images()?;
    node.import(&[&first, &second])?;
    let stage = ControlPlane::start(node)?;
    let views = record_all(&sets, &stage, node).map_err(|error| error.context(stage.evidence()))?;
    let before = record::renew(&views)?;
    println!("{} views of {} sets", views.len(), sets.len());
    let changed = differing(&before, &views, &[]);
    ensure!(changed.is_empty(), "not what was recorded; written again:\n{}", changed.join("\n"));
    Ok(())
}

fn record_all(sets: &[files::Set], stage: &dyn Stage, node: &TestNode) -> Result<Views> {
    let mut run = Run::begin(sets, stage, &node.dir().join("changes"))?;
    let mut views = run.wait_rest(REST, A_WHILE)?;
    while run.proceed()? > 0 {
        views.extend(run.wait_rest(REST, A_WHILE)?);
    }
    Ok(views)
}
