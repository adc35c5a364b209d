#![allow(clippy::unwrap_used)]

use super::*;
use limpet_wire::diff::ImageDocument;

const SCREEN: Screen = Screen { color: false, quiet: false };

fn file(name: &str, text: &str) -> DiffFile {
    DiffFile { name: name.to_owned(), text: text.to_owned() }
}

fn gateway(image: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: gateway}}\nspec:\n  containers:\n  - {{name: web, image: 'web:1'}}\n  \
         - {{name: proxy, image: '{image}'}}\n{more}"
    )
}

fn modbus(baud: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: modbus}}\nspec:\n  containers:\n  - name: modbus\n    \
         image: 'modbus:1'\n    env: [{{name: BAUD, value: '{baud}'}}]\n"
    )
}

const OLD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: old, namespace: lab}\nspec: {containers: [{name: a, image: 'a:1'}]}\n";

#[test]
fn the_page_shows_the_effect_of_each_change() {
    let before =
        [file("gateway.yaml", &gateway("proxy:1.4", "")), file("modbus.yaml", &modbus("9600")), file("old.yaml", OLD)];
    let after = [file("gateway.yaml", &gateway("proxy:1.5", "")), file("modbus.yaml", &modbus("19200"))];
    let mut document = offline(&before, &after, "edge1");
    let page = "gateway-edge1 (file gateway.yaml)\n\
                \x20 spec.containers[proxy].image   proxy:1.4 -> proxy:1.5\n\
                \x20 restarts: container proxy (image present: no wait)   keeps: container web, the pod's address and volumes\n\
                modbus-edge1 (file modbus.yaml)\n\
                \x20 spec.containers[modbus].env[BAUD]   9600 -> 19200\n\
                \x20 recreates: the pod (env cannot change in place), grace 30s\n\
                lab/old-edge1 (file old.yaml, gone)\n\
                \x20 stops: the pod, grace 30s\n";
    let unknown = page.replace(" (image present: no wait)", "");
    assert_eq!(page::render(&document, SCREEN), unknown, "whether an image is here is not known without an agent");
    document.pods[0].images[0].present = Some(true);
    assert_eq!(page::render(&document, SCREEN), page);
    assert!(document.differs() && document.rejected.is_empty());

    let back: DiffDocument = serde_json::from_value(serde_json::to_value(&document).unwrap()).unwrap();
    assert_eq!(back, document, "the document is complete");
}

#[test]
fn pulls_are_announced_before_they_delay_a_start() {
    let mut document = offline(&[], &[file("gateway.yaml", &gateway("proxy:1.4", ""))], "edge1");
    let page = |document: &DiffDocument| page::render(document, SCREEN);
    assert_eq!(page(&document), "gateway-edge1 (file gateway.yaml, new)\n  starts: the pod\n");
    let set = |document: &mut DiffDocument, present: [Option<bool>; 2]| {
        let images = document.pods[0].images.iter_mut().zip(present);
        images.for_each(|(image, present): (&mut ImageDocument, _)| image.present = present);
    };
    set(&mut document, [Some(true); 2]);
    assert!(page(&document).contains("starts: the pod (images present: no wait)\n"));
    set(&mut document, [Some(false), Some(true)]);
    assert!(page(&document).contains("starts: the pod (pulls proxy:1.4 first)\n"));

    let before = [file("gateway.yaml", &gateway("proxy:1.4", ""))];
    let mut edited = offline(&before, &[file("gateway.yaml", &gateway("proxy:1.5", ""))], "edge1");
    set(&mut edited, [Some(false), None]);
    assert!(
        page(&edited).contains("container proxy (pulls its image first; the old one keeps running meanwhile)   keeps:")
    );
    let mut recreated =
        offline(&before, &[file("gateway.yaml", &gateway("proxy:1.5", "  hostNetwork: true\n"))], "edge1");
    set(&mut recreated, [Some(false), Some(true)]);
    assert!(
        page(&recreated).contains("(hostNetwork cannot change in place), grace 30s, then pulls proxy:1.5\n"),
        "{}",
        page(&recreated)
    );
}

#[test]
fn a_rejected_manifest_is_shown_with_its_line_and_the_pod_that_keeps_running() {
    let before = [file("gateway.yaml", &gateway("proxy:1.4", ""))];
    let files = [file("gateway.yaml", &gateway("proxy:1.5", "  hostNetwerk: true\n"))];
    let document = offline(&before, &files, "edge1");
    assert!(!document.differs());
    let output = page::rejections(&document, &files, SCREEN);
    assert!(output.starts_with("error: gateway.yaml:8:3: spec.hostNetwerk: no such field\n"), "{output}");
    assert!(
        output.contains("8 |   hostNetwerk: true\n") && output.contains("^^^^^^^^^^^ did you mean hostNetwork?\n"),
        "{output}"
    );
    assert!(output.ends_with("  default/gateway-edge1 would keep running unchanged\n"), "{output}");
    // The agent read it; its text is not available here.
    let output = page::rejections(&document, &[], SCREEN);
    assert!(output.contains("8:3: spec.hostNetwerk: no such field; did you mean hostNetwork?"), "{output}");
}

#[test]
fn a_secret_is_shown_without_its_values() {
    let secret = |value: &str| {
        let text = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{password: {value}}}\n");
        file("s.yaml", &text)
    };
    let document = offline(&[secret("hunter2")], &[secret("hunter3")], "edge1");
    let page = page::render(&document, SCREEN);
    assert_eq!(page, "Secret s (file s.yaml)\n  data[password]   changed\n  reaches: no pod\n  restarts: nothing\n");
    let json = serde_json::to_string(&document).unwrap();
    assert!(!json.contains("hunter"), "{json}");
    let broken = [file("s.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {password: 'hunter2!'}\n")];
    let output = page::rejections(&offline(&[], &broken, "edge1"), &broken, SCREEN);
    assert!(output.contains("is not base64") && !output.contains("hunter"), "{output}");
}

#[test]
fn a_config_map_is_shown_with_its_values() {
    let map = |value: &str, volumes: &str| {
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: 'a:1'}]";
        let text =
            format!("{pod}{volumes}}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {value}\n");
        file("m.yaml", &text)
    };
    let volumes = ", volumes: [{name: v, configMap: {name: m}}]";
    let document = offline(
        &[map("{mode: fast, text: \"a\\nb\\n\"}", volumes)],
        &[map("{mode: slow, text: \"a\\n\"}", volumes)],
        "edge1",
    );
    assert_eq!(
        page::render(&document, SCREEN),
        "ConfigMap m (file m.yaml)\n  data[mode]   fast -> slow\n  data[text]   2 lines -> a\n  \
         changes: files of web-edge1 at once\n  restarts: nothing\n"
    );
}

#[test]
fn a_container_that_is_resized_does_not_restart() {
    let sized = |image: &str, cpu: u32| {
        let sized = format!("name: web, resources: {{limits: {{cpu: {cpu}}}}}");
        file("gateway.yaml", &gateway(image, "").replace("name: web", &sized))
    };
    let page = |before: DiffFile, after: DiffFile| page::render(&offline(&[before], &[after], "edge1"), SCREEN);
    let resized = page(sized("proxy:1", 1), sized("proxy:1", 2));
    let line = "  resizes in place: container web   keeps: container proxy, the pod's address and volumes\n";
    assert!(resized.ends_with(line), "{resized}");
    let both = page(sized("proxy:1", 1), sized("proxy:2", 2));
    let line = "  restarts: container proxy   resizes in place: container web   keeps: the pod's address and volumes\n";
    assert!(both.ends_with(line), "{both}");
}
