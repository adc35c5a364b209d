use limpet_generations::{CheckAction, Policies, Settings, StoredManifest};

use super::*;
use crate::app::DECODER;

fn parts(root: &std::path::Path, policy: Policy) -> KeeperParts {
    let policies = Policies::default().with(SourceKind::File, policy).with(SourceKind::Http, Policy::All);
    let settings = Settings { policies, ..Settings::default() };
    KeeperParts {
        store: Arc::new(Store::open(&root.join("limpet.db")).unwrap().0),
        settings: GenerationSettings { settings, boot_check_dir: root.join("boot-check.d") },
        sources: vec![SourceKind::File, SourceKind::Push],
        decoder: DECODER,
        node_name: Arc::from("edge1"),
        health: Health::new().0,
        shutting_down: watch::channel(false).1,
        images: KeptImages::default(),
        updates: Default::default(),
        run_dir: root.to_owned(),
    }
}

#[tokio::test]
async fn what_is_saved_is_there_for_the_next_agent_and_gone_once_it_is_off() {
    let root = tempfile::tempdir().unwrap();
    let (_, keeper) = load(parts(root.path(), Policy::All)).await.unwrap();
    let manifest: Arc<[u8]> = Arc::from(
        &b"{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\",\"namespace\":\"default\"}}"[..],
    );
    let stored = StoredManifest { origin: Arc::from("a.yaml"), manifest };
    let document = br#"{"lastNumber":3,"lastManifest":1,"running":3,"generations":[{"number":3,"made":"1970-01-01T00:00:00Z","outcome":{"is":"good"},"manifests":[1]}]}"#;
    let save = Save { source: SourceKind::File, manifests: vec![(1, Some(stored))], document: document.to_vec() };
    Arc::clone(&keeper).save(vec![save]).await;
    assert!(!keeper.held[SourceKind::File.index()].everything().is_empty());
    drop(keeper);
    let (generations, keeper) = load(parts(root.path(), Policy::All)).await.unwrap();
    let views = generations.views();
    assert_eq!(views.len(), 1, "the URL has a policy and the node has none");
    assert_eq!((views[0].running, views[0].generations[0].objects), (Some(3), 1));
    drop(keeper);
    assert!(load(parts(root.path(), Policy::Off)).await.is_none());
    assert!(load(parts(root.path(), Policy::All)).await.unwrap().0.views()[0].generations.is_empty());
}

#[tokio::test]
async fn a_check_is_passed_by_its_exit_code() {
    let settings = |words: &[&str]| Settings {
        check: Some(CheckAction::Command(words.iter().map(|word| (*word).to_owned()).collect())),
        ..Settings::default()
    };
    let run = async |words: &[&str]| check::run(&settings(words), SourceKind::File, 7).await;
    assert_eq!(run(&["/bin/sh", "-c", "test $LIMPET_GENERATION = 7 && test $LIMPET_SOURCE = file"]).await, Ok(()));
    assert_eq!(run(&["/bin/sh", "-c", "echo no >&2; exit 3"]).await, Err("/bin/sh ended with 3: no".to_owned()));
    assert!(run(&["/nothing/there"]).await.is_err());
}
