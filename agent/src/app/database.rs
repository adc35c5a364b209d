//! Opens the agent's database, with the key that Secrets in it are sealed with.

use std::path::PathBuf;
use std::sync::Arc;

use super::AppError;
use crate::config::Config;
use crate::store::{Sealer, Store, StoreError};
use limpet_model::error_chain::error_chain;

/// The database below the root directory; a damaged one is replaced and reported.
pub(super) async fn open_store(config: &Config) -> Result<Arc<Store>, AppError> {
    let (path, sealer) = (config.database(), sealer(config).await);
    let open = move || {
        let (store, set_aside) = Store::open(&path)?;
        Ok::<_, StoreError>((store.sealed_by(sealer)?, set_aside))
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let (store, set_aside) = opened.map_err(|error| AppError::Died("opening the database", error))??;
    if let Some(aside) = set_aside {
        tracing::error!(aside = %aside.path.display(), recovered = aside.recovered, "damaged database replaced");
    }
    Ok(Arc::new(store))
}

/// What seals Secrets on disk. A key that is missing stops only pods that wait for a Secret from no other source.
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
