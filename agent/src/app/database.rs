//! Opens the agent's database, with the key with which Secrets in it are sealed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::AppError;
use crate::config::Config;
use limpet_model::error_chain::error_chain;
use limpet_store::{Sealer, SetAside, Store, StoreError};
use limpet_upgrade::state_version;

/// The database below the root directory; a damaged one is replaced and reported.
pub(super) async fn open_store(config: &Config) -> Result<Arc<Store>, AppError> {
    let (path, sealer) = (config.database(), sealer(config).await);
    let copy = config.run_dir.join("limpet.db");
    let root_dir = config.root_dir.clone();
    let open = move || {
        if let Err(error) = state_version::settle(&root_dir) {
            tracing::error!(%error, "the version of the state is not recorded");
        }
        let (store, set_aside) = open_or_copy(&path, &copy)?;
        Ok::<_, StoreError>((store.sealed_by(sealer)?, set_aside))
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let (store, set_aside) = opened.map_err(|error| AppError::Died("opening the database", error))??;
    if let Some(aside) = set_aside {
        tracing::error!(aside = %aside.path.display(), recovered = aside.recovered, "damaged database replaced");
    }
    Ok(Arc::new(store))
}

/// The database at `path`. While its file system is read-only, a copy below the run directory is used, so that the pods
/// that were last known run.
fn open_or_copy(path: &Path, copy: &Path) -> Result<(Store, Option<SetAside>), StoreError> {
    match Store::open(path) {
        Err(error) if error.is_read_only() => {
            let why = format!("the file system of {} is read-only", path.display());
            tracing::error!(
                "{why}: what is saved from now on is kept until the next boot; running pods stay, and new ones cannot start"
            );
            Store::open_copy(path, copy, why)
        }
        Ok(opened) => {
            // The copy is from a time when the database could not be written. What was stored in it is lost, as was
            // reported then.
            let _ = std::fs::remove_file(copy);
            Ok(opened)
        }
        Err(error) => Err(error),
    }
}

/// Seals Secrets on disk. A missing key stops only pods that wait for a Secret that no other source has.
async fn sealer(config: &Config) -> Sealer {
    let Some(key) = &config.secret_key else { return Sealer::Off };
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    match Sealer::open(key, credentials.as_deref()).await {
        Ok(sealer) => {
            tracing::info!(%key, "Secrets are saved encrypted");
            sealer
        }
        Err(error) => {
            let error = error_chain(&error);
            tracing::error!(%key, error, "Secrets are neither loaded from disk nor saved: the encryption key is unavailable");
            Sealer::Locked
        }
    }
}
