//! How editors and tools write a manifest: its pod is updated and never disappears, and the pod of another file is
//! not affected.

use std::io::Write as _;

use limpet_tests::need;

use super::*;

/// Writes the text to `a.yaml` of a directory. Returns false if the program is not installed.
type Writer = fn(&Path, &str) -> bool;

const WRITERS: [(&str, Writer); 12] = [
    ("truncate and write", |directory, text| {
        let mut file = fs::File::create(directory.join("a.yaml")).unwrap();
        let (half, rest) = text.split_at(text.len() / 2);
        for part in [half, rest] {
            file.write_all(part.as_bytes()).unwrap();
            file.sync_all().unwrap();
        }
        true
    }),
    ("write over, then cut", |directory, text| {
        let mut file = fs::File::options().write(true).open(directory.join("a.yaml")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.set_len(text.len() as u64).unwrap();
        true
    }),
    ("probe, rename away, write, remove", |directory, text| {
        let (file, backup) = (directory.join("a.yaml"), directory.join("a.yaml~"));
        fs::write(directory.join("4913"), "").unwrap();
        fs::remove_file(directory.join("4913")).unwrap();
        fs::rename(&file, &backup).unwrap();
        fs::write(&file, text).unwrap();
        fs::remove_file(&backup).unwrap();
        true
    }),
    ("rename away and leave it", |directory, text| {
        fs::write(directory.join("#a.yaml#"), text).unwrap();
        fs::rename(directory.join("a.yaml"), directory.join("a.yaml~")).unwrap();
        fs::write(directory.join("a.yaml"), text).unwrap();
        fs::remove_file(directory.join("#a.yaml#")).unwrap();
        true
    }),
    ("swap file and backup copy", |directory, text| {
        fs::write(directory.join(".a.yaml.swp"), text).unwrap();
        fs::copy(directory.join("a.yaml"), directory.join("a.yaml.bak")).unwrap();
        fs::write(directory.join("a.yaml"), text).unwrap();
        fs::remove_file(directory.join(".a.yaml.swp")).unwrap();
        true
    }),
    ("temporary file, rename", |directory, text| {
        fs::write(directory.join(".ansible_tmp42a.yaml"), text).unwrap();
        fs::rename(directory.join(".ansible_tmp42a.yaml"), directory.join("a.yaml")).unwrap();
        true
    }),
    ("remove, write", |directory, text| {
        fs::remove_file(directory.join("a.yaml")).unwrap();
        fs::write(directory.join("a.yaml"), text).unwrap();
        true
    }),
    ("remove, link", |directory, text| {
        fs::write(directory.join("new"), text).unwrap();
        fs::remove_file(directory.join("a.yaml")).unwrap();
        fs::hard_link(directory.join("new"), directory.join("a.yaml")).unwrap();
        fs::remove_file(directory.join("new")).unwrap();
        true
    }),
    ("sed -i", |directory, text| run(directory, "sed", &["-i", &format!("s/.*/{text}/"), "a.yaml"])),
    ("cp", |directory, text| {
        fs::write(directory.join(".source"), text).unwrap();
        run(directory, "cp", &[".source", "a.yaml"])
    }),
    ("install", |directory, text| {
        fs::write(directory.join(".source"), text).unwrap();
        run(directory, "install", &["-m", "600", ".source", "a.yaml"])
    }),
    ("vim", |directory, text| {
        let change = format!("%s/.*/{text}/");
        run(directory, "vim", &["-u", "NONE", "-es", "-c", "set backup", "-c", &change, "-c", "wq", "a.yaml"])
    }),
];

fn run(directory: &Path, program: &str, args: &[&str]) -> bool {
    let Some(mut command) = need::program(program) else { return false };
    let status = command.args(args).current_dir(directory).status().unwrap();
    assert!(status.success(), "{program}: {status}");
    true
}

#[tokio::test]
async fn every_way_of_writing_results_in_the_new_version() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 0");
    bench.write("b.yaml", "pod b 0");
    bench.start();
    let before = bench.until(|now| now.pods.len() == 2).await;
    let seen = bench.running.as_ref().unwrap().0.clone();
    let fewest = tokio::spawn(async move {
        let (mut seen, mut fewest) = (seen, 2);
        while seen.changed().await.is_ok() {
            fewest = fewest.min(seen.borrow_and_update().pods.len());
        }
        fewest
    });
    let neighbour = |snapshot: &SourceSnapshot| Arc::clone(snapshot.pods.values().nth(1).unwrap());
    for (version, (name, writer)) in (1..).zip(WRITERS) {
        println!("{name}");
        if writer(&bench.directory, &format!("pod a {version}")) {
            let now = bench.until_pods(&[&format!("a {version} @ a.yaml"), "b 0 @ b.yaml"]).await;
            assert!(Arc::ptr_eq(&neighbour(&now), &neighbour(&before)), "{name}");
        }
    }
    bench.stop().await;
    assert_eq!(fewest.await.unwrap(), 2, "a pod disappeared temporarily");
}

#[tokio::test]
async fn a_file_is_read_when_its_writer_closes_it_and_again_when_more_is_written() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.start();
    bench.until_pods(&["a 1 @ a.yaml"]).await;
    let mut open = fs::File::create(bench.directory.join("a.yaml")).unwrap();
    open.write_all(b"pod a 2\npo").unwrap();
    bench.write("b.yaml", "pod b 1");
    let snapshot = bench.until_pods(&["a 1 @ a.yaml", "b 1 @ b.yaml"]).await;
    assert!(snapshot.rejected.is_empty(), "half a file was read");
    drop(open);
    let snapshot = bench.until(|now| !now.rejected.is_empty()).await;
    assert_eq!(shape(&snapshot), ["a 2 @ a.yaml", "b 1 @ b.yaml"]);
    let mut open = fs::File::options().append(true).open(bench.directory.join("a.yaml")).unwrap();
    open.write_all(b"d c 1").unwrap();
    drop(open);
    let snapshot = bench.until_pods(&["a 2 @ a.yaml", "b 1 @ b.yaml", "c 1 @ a.yaml"]).await;
    assert!(snapshot.rejected.is_empty());
}

/// A power cut leaves an empty file; this is not meant to remove pods.
#[tokio::test]
async fn an_empty_file_is_rejected_and_its_pod_keeps_running() {
    let mut bench = Bench::new();
    for (name, text) in [("a.yaml", "pod a 1"), ("b.yaml", "pod b 1"), ("c.yaml", "pod c 1")] {
        bench.write(name, text);
    }
    bench.start();
    bench.until(|now| now.pods.len() == 3).await;
    for _ in 0..2 {
        for (name, left) in [("a.yaml", ""), ("b.yaml", "\n \n"), ("c.yaml", "\0\0\0\0")] {
            bench.write(name, left);
        }
        let snapshot = bench.until(|now| now.rejected.len() == 3).await;
        assert_eq!(shape(&snapshot), ["a 1 @ a.yaml", "b 1 @ b.yaml", "c 1 @ c.yaml"]);
        assert_eq!(
            snapshot.rejected["a.yaml"].faults[0].to_string(),
            "a.yaml: the file is empty; remove the file to stop its pods"
        );
        bench.stop().await;
        bench.start();
    }
    bench.write("a.yaml", "pod a 2");
    fs::remove_file(bench.directory.join("b.yaml")).unwrap();
    fs::remove_file(bench.directory.join("c.yaml")).unwrap();
    bench.until_pods(&["a 2 @ a.yaml"]).await;
}
