//! What a control plane made of the sets, on disk.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::files::dir;
use super::run::names;
use crate::view::Views;

fn path() -> PathBuf {
    dir().join("recorded.json")
}

/// The views that the control plane gave when they were recorded last.
pub fn read() -> Result<Views> {
    let path = path();
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}", path.display()))
}

/// Replaces what is recorded of the sets in `views`. Returns what was recorded before.
pub fn renew(views: &Views) -> Result<Views> {
    let before = read().unwrap_or_default();
    let mut record = before.clone();
    let new = names(views);
    record.retain(|name, _| !new.contains(name.split(',').next().unwrap_or_default()));
    record.extend(views.clone());
    record.values_mut().for_each(|view| view.retain(|_, lines| !lines.is_empty()));
    fs::write(path(), serde_json::to_string_pretty(&record)? + "\n")?;
    Ok(before)
}
