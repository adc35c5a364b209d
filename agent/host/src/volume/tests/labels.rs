//! Which volumes and files get the label of a container that mounts them.
//!
//! With SELinux off, root may write its attribute, and no policy refuses a label.

use super::*;
use crate::selinux;

const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";

fn label(path: &Path) -> Option<String> {
    let mut buffer = [0; 128];
    let length = rustix::fs::lgetxattr(path, "security.selinux", &mut buffer[..]).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

#[tokio::test]
async fn what_is_the_pods_alone_is_labelled() {
    if !root() || selinux::is_enabled() {
        return;
    }
    let node = Node::new();
    let open = node.dir.path().join("open");
    let spec = json!({"volumes": [
        {"name": "disk", "emptyDir": {}},
        {"name": "parts", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "about", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"name": "open", "hostPath": {"path": open, "type": "DirectoryOrCreate"}},
    ]});
    node.prepare(spec.clone()).await.unwrap();
    std::fs::create_dir(node.volume("disk").join("a")).unwrap();
    std::fs::write(node.volume("disk").join("a/file"), "").unwrap();
    std::fs::create_dir(node.volume("parts").join("other")).unwrap();
    let container = json!({"name": "c", "volumeMounts": [
        {"name": "disk", "mountPath": "/disk"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "about", "mountPath": "/about"},
        {"name": "open", "mountPath": "/open"},
        {"name": "parts", "mountPath": "/part", "subPath": "one", "readOnly": true, "recursiveReadOnly": "IfPossible"},
    ]});
    let mounts = |label: Option<&str>| {
        let container = serde_json::from_value(container.clone()).unwrap();
        let progress = Progress::new(&node.pod_dir());
        node.volumes.mounts(&record(spec.clone()), &PodObjects::default(), &container, "id", label, &progress).unwrap()
    };
    mounts(None);
    assert_eq!([node.volume("disk"), node.pod_dir().join("etc-hosts")].map(|path| label(&path)), [None, None]);
    for _restart in 0..2 {
        for mount in mounts(Some(LABEL)) {
            let expected = (mount.container_path != Path::new("/open")).then_some(LABEL);
            assert_eq!(label(&mount.host_path).as_deref(), expected, "{}", mount.container_path.display());
        }
    }
    let about = node.pod_dir().join("volumes/kubernetes.io~downward-api/about");
    for path in
        ["a", "a/file"].map(|path| node.volume("disk").join(path)).into_iter().chain([about.join("..data/name")])
    {
        assert_eq!(label(&path).as_deref(), Some(LABEL), "{}", path.display());
    }
    assert_eq!(label(&node.volume("parts").join("other")), None, "a part that the container does not mount");
    node.volumes.remove(&PodUid::new("uid")).await.unwrap();
}
