//! The times of the last shutdown, in the file that kubelet has for them: after the boot the metrics show them.

use std::path::Path;

use jiff::Timestamp;
use limpet_host::{blocking, private_file};
use serde::{Deserialize, Serialize};

/// When the pods began to end, and when they had ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ShutdownRecord {
    pub(crate) start_time: Option<Timestamp>,
    pub(crate) end_time: Option<Timestamp>,
}

/// The last shutdown's times; empty if the file is missing or damaged.
pub(crate) async fn load(path: &Path) -> ShutdownRecord {
    let file = path.to_owned();
    let read = blocking::run(path.to_owned(), blocking::DEADLINE, move |_| std::fs::read(file)).await;
    let text = read.ok().and_then(Result::ok).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Stores the times. A failing disk delays no shutdown.
pub(crate) async fn store(path: &Path, record: ShutdownRecord) {
    let Ok(text) = serde_json::to_string(&record) else { return };
    let file = path.to_owned();
    let write = move |_: &_| private_file::write(&file, &text);
    if let Err(error) = blocking::run(path.to_owned(), blocking::DEADLINE, write).await.flatten() {
        tracing::warn!(file = %path.display(), %error, "cannot keep the times of the shutdown");
    }
}
