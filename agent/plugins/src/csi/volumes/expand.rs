//! Expands volumes that are mounted for pods.

use std::collections::BTreeMap;

use tonic::Code;

use super::{CsiError, CsiVolumes, key};
use crate::csi::driver::Mounting;
use limpet_host::call_watch::calling;
use limpet_model::object::csi::CsiVolume;
use limpet_model::pod::PodUid;

/// Why a volume was not expanded.
#[derive(Debug, thiserror::Error)]
pub enum ExpandError {
    /// It is not mounted for the pod.
    #[error("the volume is not mounted")]
    NotPublished,
    /// The request failed, or its driver has not expanded it.
    #[error("{0}")]
    Call(#[from] CsiError),
}

impl ExpandError {
    fn code(&self) -> Option<Code> {
        match self {
            Self::Call(CsiError::Call { call, .. }) => Some(call.code()),
            _ => None,
        }
    }

    /// The driver cannot expand volumes.
    pub fn is_unimplemented(&self) -> bool {
        self.code() == Some(Code::Unimplemented)
    }

    /// Whether the driver cannot expand volumes that are in use.
    pub fn is_of_use(&self) -> bool {
        self.code() == Some(Code::FailedPrecondition)
    }

    /// Whether no other call would succeed.
    pub fn is_infeasible(&self) -> bool {
        matches!(self.code(), Some(Code::InvalidArgument | Code::OutOfRange | Code::NotFound))
    }

    /// Whether the driver has ended the call, so that nothing of it continues.
    pub fn is_final(&self) -> bool {
        let open = [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable, Code::ResourceExhausted, Code::Aborted];
        self.code().is_some_and(|code| !open.contains(&code))
    }
}

impl CsiVolumes {
    /// Whether the volume's driver is registered and expands volumes on nodes.
    pub fn expands(&self, volume: &CsiVolume) -> bool {
        self.drivers.get(&volume.driver).is_ok_and(|driver| driver.capabilities().expand)
    }

    /// Has the volume's driver expand what is mounted for the pod to this many bytes.
    ///
    /// # Errors
    ///
    /// It is not mounted, or the driver is missing, refuses, or does not answer.
    pub async fn expand(
        &self,
        uid: &PodUid,
        volume: &CsiVolume,
        bytes: i64,
        secrets: BTreeMap<String, String>,
    ) -> Result<(), ExpandError> {
        let data = self.data(volume);
        let _guard = self.locks.lock(key(&data)).await;
        if !self.is_published(&data, uid).await? {
            return Err(ExpandError::NotPublished);
        }
        let driver = self.drivers.get(&volume.driver).map_err(CsiError::NoDriver)?;
        let staging = driver.capabilities().stage.then(|| self.layout.staging(&data));
        let mounting =
            Mounting { volume, attributes: BTreeMap::new(), secrets, group: None, staging, read_only: false };
        calling("NodeExpandVolume of its CSI driver");
        let expanded = driver.expand(&mounting, &self.layout.target(&data, uid), bytes).await;
        Ok(expanded.map_err(super::call(&data))?)
    }
}
