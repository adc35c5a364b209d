//! The expected pods, computed in the simplest way.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Pod to image, and `map/<name>` of a pushed ConfigMap to its value.
pub(crate) type State = BTreeMap<String, String>;

/// Few names, so that sources claim the same ones.
const NAMES: usize = 6;
const FILES: usize = 4;

/// A simple random generator: the same seed gives the same run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % limit
    }

    pub(crate) fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap()
    }
}

/// A sent push: the command for the child, and the pushed state once it is acknowledged.
pub(crate) struct Push {
    pub(crate) command: String,
    pub(crate) after: State,
}

/// All sources and their content.
pub(crate) struct Model {
    pub(crate) manifests: PathBuf,
    pub(crate) pushed: State,
    /// Sent when the child was killed: it may or may not have been applied.
    pub(crate) pending: Option<Push>,
    files: BTreeMap<String, (String, String)>,
    broken: Vec<String>,
    listed: State,
    version: u64,
}

impl Model {
    pub(crate) fn new(manifests: PathBuf) -> Self {
        Self {
            manifests,
            pushed: State::new(),
            pending: None,
            files: BTreeMap::new(),
            broken: Vec::new(),
            listed: State::from([("n0".to_owned(), "x:0".to_owned())]),
            version: 0,
        }
    }

    /// Checks the restored state: only what was acknowledged, and perhaps the pending push.
    pub(crate) fn settle(&mut self, came_back: &State, round: u64) {
        let pending = self.pending.take().map(|push| push.after);
        assert!(
            *came_back == self.pushed || pending.as_ref() == Some(came_back),
            "round {round}: {came_back:?} came back, not {:?} or {pending:?}",
            self.pushed
        );
        self.pushed.clone_from(came_back);
    }

    fn image(&mut self) -> String {
        self.version += 1;
        format!("x:{}", self.version)
    }

    pub(crate) fn push(&mut self, dice: &mut Dice) -> Push {
        let (name, value) = (format!("n{}", dice.below(NAMES as u64)), self.image());
        let (key, suffix) = if dice.below(3) == 0 { (format!("map/{name}"), "-map") } else { (name.clone(), "") };
        let mut after = self.pushed.clone();
        if dice.below(3) == 0 {
            after.remove(&key);
            return Push { command: format!("delete{suffix} {name}"), after };
        }
        after.insert(key, value.clone());
        Push { command: format!("put{suffix} {name} {value}"), after }
    }

    pub(crate) fn change_list(&mut self, dice: &mut Dice) {
        let (name, image) = (format!("n{}", dice.below(NAMES as u64)), self.image());
        if self.listed.remove(&name).is_none() {
            self.listed.insert(name, image);
        }
    }

    /// The URL's response.
    pub(crate) fn list(&self) -> String {
        let items: Vec<serde_json::Value> = self.listed.iter().map(|(name, image)| pod(name, image)).collect();
        serde_json::json!({ "apiVersion": "v1", "kind": "PodList", "items": items }).to_string()
    }

    pub(crate) fn change_file(&mut self, dice: &mut Dice) {
        let file = format!("f{}.yaml", dice.below(FILES as u64));
        match dice.below(4) {
            0 => {
                drop(std::fs::remove_file(self.manifests.join(&file)));
                self.files.remove(&file);
                self.broken.retain(|broken| *broken != file);
            }
            1 if self.files.contains_key(&file) => {
                self.write(&file, "apiVersion: v1\nkind: Pod\nmetadata: {");
                self.broken.push(file);
            }
            _ => {
                // One file per name: which of two files wins is tested elsewhere.
                let name = format!("n{}", &file[1..2]);
                let image = self.image();
                self.write(&file, &pod(&name, &image).to_string());
                self.broken.retain(|broken| *broken != file);
                self.files.insert(file, (name, image));
            }
        }
    }

    /// Repairs every broken file.
    pub(crate) fn repair(&mut self) {
        for file in std::mem::take(&mut self.broken) {
            if let Some((name, image)) = self.files.get(&file).cloned() {
                self.write(&file, &pod(&name, &image).to_string());
            }
        }
    }

    /// A change of the directory and of the list that never occurred before: once it is desired, so are all earlier
    /// ones. Without it the expected state might be reached already, from before a change that was reverted.
    pub(crate) fn mark(&mut self) {
        let (file, image) = ("mark.yaml".to_owned(), self.image());
        self.write(&file, &pod("file-mark", &image).to_string());
        self.files.insert(file, ("file-mark".to_owned(), image.clone()));
        self.listed.insert("list-mark".to_owned(), image);
    }

    fn write(&self, file: &str, text: &str) {
        let beside = self.manifests.join(format!(".{file}.new"));
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(beside, self.manifests.join(file)).unwrap();
    }

    /// File, then push, then URL.
    pub(crate) fn desired(&self) -> State {
        let files = self.files.values().cloned().collect::<State>();
        let mut pods = self.listed.clone();
        pods.extend(self.pushed.clone());
        pods.extend(files);
        pods
    }
}

/// A Pod's manifest.
pub(crate) fn pod(name: &str, image: &str) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "a", "image": image}]},
    })
}

/// A ConfigMap's manifest.
pub(crate) fn map(name: &str, value: &str) -> serde_json::Value {
    serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": value}})
}
