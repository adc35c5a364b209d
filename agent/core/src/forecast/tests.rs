#![allow(clippy::unwrap_used)]

use super::*;
use crate::source::proposal::{Proposal, Proposed, propose};
use limpet_model::manifest::read;

/// A file: source, name, text.
type File<'a> = (SourceKind, &'a str, String);

fn proposals(files: &[File<'_>]) -> Vec<Proposal> {
    let proposal = |(source, name, text): &File<'_>| Proposal {
        source: *source,
        name: Arc::from(*name),
        manifest: read(text.as_bytes(), name, *source, "edge1"),
    };
    files.iter().map(proposal).collect()
}

fn pod(name: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n")
}

fn web(image: &str, more: &str) -> String {
    pod("web", &format!("containers: [{{name: web, image: 'web:1'}}, {{name: proxy, image: '{image}'}}]{more}"))
}

fn file<'a>(name: &'a str, text: &str) -> File<'a> {
    (SourceKind::File, name, text.to_owned())
}

/// One line per pod: its effect, edits and remarks; then the objects; then `!` and each rejected file with its kept pods.
fn lines(forecast: &Forecast, rejected: &[crate::source::Rejection]) -> Vec<String> {
    let pod = |pod: &PodForecast| {
        let effect = match &pod.effect {
            Effect::Starts => "starts".to_owned(),
            Effect::InPlace(Replacement { restarts, resizes, keeps }) => {
                let resized =
                    if resizes.is_empty() { String::new() } else { format!("resizes [{}] ", resizes.join(" ")) };
                format!("restarts [{}] {resized}keeps [{}]", restarts.join(" "), keeps.join(" "))
            }
            Effect::Recreates { why, grace } => format!("recreates ({}) {}s", why.join("; "), grace.as_secs()),
            Effect::Stops { grace } => format!("stops {}s", grace.as_secs()),
            Effect::Loses => "loses".to_owned(),
        };
        let edits: String = pod.edits.iter().map(|edit| format!(" {}", edit.path)).collect();
        let remarks: String = pod.remarks.iter().map(|remark| format!(" <{remark}>")).collect();
        format!("{}: {effect}{edits}{remarks}", pod.record().unwrap().key.name())
    };
    let object = |object: &ObjectForecast| {
        let text = |side: &Option<Option<String>>| match side {
            None => "-".to_owned(),
            Some(None) => "..".to_owned(),
            Some(Some(text)) => text.clone(),
        };
        let values: Vec<String> = object
            .values
            .iter()
            .map(|value| format!("{}={}>{}", value.key, text(&value.old), text(&value.new)))
            .collect();
        let names = |keys: &[PodKey]| keys.iter().map(PodKey::name).collect::<Vec<_>>().join(" ");
        let record = object.record().unwrap();
        format!(
            "{}: {} files [{}] starts [{}]",
            record.key,
            values.join(" "),
            names(&object.files_of),
            names(&object.starts_of)
        )
    };
    let rejected = rejected.iter().map(|rejection| {
        let kept: String = rejection.kept.iter().map(|key| format!(" {}", key.name())).collect();
        format!("!{}{kept}", rejection.origin)
    });
    forecast.pods.iter().map(pod).chain(forecast.objects.iter().map(object)).chain(rejected).collect()
}

/// The forecast if `before` runs and `after` is proposed.
fn diff(before: &[File<'_>], after: &[File<'_>], whole: bool) -> Vec<String> {
    let Proposed { snapshots: before, .. } = propose(&Snapshots::default(), proposals(before), false);
    let Proposed { snapshots: after, rejected } = propose(&before, proposals(after), whole);
    lines(&forecast(&as_if_running(&before), &before, &after, false, Instant::now()), &rejected)
}

#[test]
fn effects_on_pods() {
    let base = web("proxy:1", "");
    let two =
        format!("{base}{}", pod("db", "terminationGracePeriodSeconds: 9, containers: [{name: db, image: 'db:1'}]"));
    let huge_pages =
        |amount: &str| format!("name: web, resources: {{limits: {{memory: 1Gi, hugepages-2Mi: {amount}}}}}, image");
    // Case, current files, proposed files, whether those are all, expected lines.
    type Case<'a> = (&'a str, Vec<File<'a>>, Vec<File<'a>>, bool, &'a [&'a str]);
    let cases: Vec<Case<'_>> = vec![
        ("the same", vec![file("w.yaml", &base)], vec![file("w.yaml", &base)], false, &[]),
        ("renamed", vec![file("w.yaml", &base)], vec![file("x.yaml", &base)], true, &[]),
        ("new", vec![], vec![file("w.yaml", &base)], false, &["web-edge1: starts"]),
        (
            "an image",
            vec![file("w.yaml", &base)],
            vec![file("w.yaml", &web("proxy:2", ""))],
            false,
            &["web-edge1: restarts [proxy] keeps [web] spec.containers[proxy].image"],
        ),
        (
            "an image, by a file of another name",
            vec![file("w.yaml", &base)],
            vec![file("standard input", &web("proxy:2", ""))],
            false,
            &["web-edge1: restarts [proxy] keeps [web] spec.containers[proxy].image"],
        ),
        (
            "tolerations",
            vec![file("w.yaml", &base)],
            vec![file("w.yaml", &web("proxy:1", ", tolerations: [{operator: Exists}]"))],
            false,
            &["web-edge1: restarts [] keeps [web proxy] spec.tolerations"],
        ),
        (
            "resources that change the QoS class",
            vec![file("w.yaml", &base)],
            vec![file("w.yaml", &base.replace("name: web, image", "name: web, resources: {limits: {cpu: 1}}, image"))],
            false,
            &[
                "web-edge1: recreates (its QoS class changes from BestEffort to Burstable) 30s spec.containers[web].resources.limits.cpu",
            ],
        ),
        (
            "huge pages",
            vec![file("w.yaml", &base.replace("name: web, image", &huge_pages("2Mi")))],
            vec![file("w.yaml", &base.replace("name: web, image", &huge_pages("4Mi")))],
            false,
            &["web-edge1: recreates (its huge pages change) 30s spec.containers[web].resources.limits.hugepages-2Mi"],
        ),
        (
            "cpu",
            vec![file("w.yaml", &base.replace("name: web, image", "name: web, resources: {limits: {cpu: 1}}, image"))],
            vec![file("w.yaml", &base.replace("name: web, image", "name: web, resources: {limits: {cpu: 2}}, image"))],
            false,
            &["web-edge1: restarts [] resizes [web] keeps [proxy] spec.containers[web].resources.limits.cpu"],
        ),
        (
            "an init container's image",
            vec![file("w.yaml", &web("proxy:1", ", initContainers: [{name: i, image: 'i:1'}]"))],
            vec![file("w.yaml", &web("proxy:2", ", initContainers: [{name: i, image: 'i:2'}]"))],
            false,
            &[
                "web-edge1: recreates (init container i runs again only in a new pod) 30s spec.containers[proxy].image spec.initContainers[i].image",
            ],
        ),
        (
            "an image of a pod that does not always restart",
            vec![file("w.yaml", &web("proxy:1", ", restartPolicy: OnFailure"))],
            vec![file("w.yaml", &web("proxy:2", ", restartPolicy: OnFailure"))],
            false,
            &[
                "web-edge1: recreates (container proxy is not started again under restartPolicy OnFailure) 30s spec.containers[proxy].image",
            ],
        ),
        (
            "the host's network and an image",
            vec![file("w.yaml", &base)],
            vec![file("w.yaml", &web("proxy:2", ", hostNetwork: true"))],
            false,
            &[
                "web-edge1: recreates (hostNetwork cannot change in place) 30s spec.containers[proxy].image spec.hostNetwork",
            ],
        ),
        (
            "a default spelled out",
            vec![file("w.yaml", &base)],
            vec![file("w.yaml", &web("proxy:1", ", restartPolicy: Always"))],
            false,
            &["web-edge1: recreates (restartPolicy cannot change in place) 30s spec.restartPolicy"],
        ),
        ("a file less", vec![file("d.yaml", &two)], vec![], true, &["db-edge1: stops 9s", "web-edge1: stops 30s"]),
        (
            "a pod less in its file",
            vec![file("d.yaml", &two)],
            vec![file("d.yaml", &base)],
            false,
            &["db-edge1: stops 9s"],
        ),
        ("a pod less, in a file of another name", vec![file("d.yaml", &two)], vec![file("w.yaml", &base)], false, &[]),
        (
            "broken",
            vec![file("w.yaml", &base)],
            vec![file("w.yaml", "kind: Pod\nspec: [")],
            true,
            &["!w.yaml web-edge1"],
        ),
        (
            "broken, by a file of another name",
            vec![file("w.yaml", &base)],
            vec![file("x.yaml", &pod("web", "containers: []"))],
            false,
            &["!x.yaml web-edge1"],
        ),
        (
            "two files of one pod",
            vec![file("b.yaml", &base)],
            vec![file("b.yaml", &base), file("c.yaml", &web("proxy:2", ""))],
            true,
            &[
                "web-edge1: restarts [] keeps [web proxy] <file c.yaml also defines this pod; file b.yaml takes precedence>",
                "!c.yaml",
            ],
        ),
    ];
    for (what, before, after, whole, wanted) in cases {
        assert_eq!(diff(&before, &after, whole), wanted, "{what}");
    }
}

#[test]
fn sources_take_precedence_in_their_order() {
    let base = web("proxy:1", "");
    let push = |text: &str| (SourceKind::Push, "web.yaml", text.to_owned());
    let claimed = diff(&[file("w.yaml", &base)], &[push(&web("proxy:2", ""))], false);
    assert_eq!(claimed, ["!web.yaml"]);
    let taken = diff(&[push(&base)], &[file("w.yaml", &base)], false);
    let remark = "push web.yaml also defines this pod; file w.yaml takes precedence";
    assert_eq!(taken, [format!("web-edge1: recreates (from push to file) 30s <{remark}>")]);
    let pushed = diff(&[push(&base)], &[push(&web("proxy:2", ""))], false);
    assert_eq!(pushed, ["web-edge1: restarts [proxy] keeps [web] spec.containers[proxy].image"]);
    let propose = |before: &Snapshots, files: &[File<'_>], whole| propose(before, proposals(files), whole).snapshots;
    let pushed = propose(&Snapshots::default(), &[push(&web("proxy:2", ""))], false);
    let both = propose(&pushed, &[file("w.yaml", &base)], false);
    let reverted = all_changes(&both, &propose(&both, &[], true));
    assert_eq!(reverted, ["web-edge1: recreates (from file to push) 30s spec.containers[proxy].image"]);
}

fn all_changes(before: &Snapshots, after: &Snapshots) -> Vec<String> {
    lines(&forecast(&as_if_running(before), before, after, true, Instant::now()), &[])
}

#[test]
fn changes_in_progress_are_included_only_when_all_are_requested() {
    let Proposed { snapshots, .. } =
        propose(&Snapshots::default(), proposals(&[file("w.yaml", &web("proxy:1", ""))]), false);
    let nothing_runs = ObservedPods::default();
    let all = forecast(&nothing_runs, &snapshots, &snapshots, true, Instant::now());
    assert_eq!(lines(&all, &[]), ["web-edge1: starts"]);
    let started = forecast(&nothing_runs, &snapshots, &snapshots, false, Instant::now());
    assert_eq!(lines(&started, &[]), [""; 0]);
}

#[test]
fn objects_are_listed_with_the_pods_they_affect_and_secrets_without_values() {
    let pods = pod("files", "containers: [{name: a, image: 'a:1'}], volumes: [{name: v, configMap: {name: m}}]")
        + &pod(
            "env",
            "containers: [{name: a, image: 'a:1', envFrom: [{configMapRef: {name: m}}, {secretRef: {name: s}}]}]",
        );
    let objects = |mode: &str, password: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {{mode: {mode}, same: x}}\n---\n\
             apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{password: {password}}}\n"
        )
    };
    let before = [file("p.yaml", &pods), file("o.yaml", &objects("fast", "hunter2"))];
    let edited = diff(&before, &[file("o.yaml", &objects("slow", "hunter3"))], false);
    assert_eq!(
        edited,
        [
            "ConfigMap default/m: mode=fast>slow files [files-edge1] starts [env-edge1]",
            "Secret default/s: password=..>.. files [] starts [env-edge1]",
        ]
    );
    assert_eq!(diff(&before, &[file("o.yaml", &objects("fast", "hunter2"))], false), [""; 0]);
    let gone = diff(&before, &[file("p.yaml", &pods)], true);
    assert_eq!(
        gone,
        [
            "ConfigMap default/m: mode=fast>- same=x>- files [files-edge1] starts [env-edge1]",
            "Secret default/s: password=..>- files [] starts [env-edge1]",
        ]
    );
    assert!(edited.iter().chain(&gone).all(|line| !line.contains("hunter")));
}

#[test]
fn images_are_those_of_the_containers_that_start() {
    let images_for = |before: &[File<'_>], after: &[File<'_>]| -> Vec<String> {
        let Proposed { snapshots: before, .. } = propose(&Snapshots::default(), proposals(before), false);
        let after = propose(&before, proposals(after), false).snapshots;
        let predicted = forecast(&as_if_running(&before), &before, &after, false, Instant::now());
        let images = predicted.pods.iter().flat_map(images);
        images
            .map(|(container, (image, policy))| format!("{container} {image} {}", policy.unwrap_or_default()))
            .collect()
    };
    let base = [file("w.yaml", &web("proxy:1", ""))];
    assert_eq!(images_for(&[], &base), ["proxy proxy:1 IfNotPresent", "web web:1 IfNotPresent"]);
    assert_eq!(images_for(&base, &[file("w.yaml", &web("proxy:2", ""))]), ["proxy proxy:2 IfNotPresent"]);
}
