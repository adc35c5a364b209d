//! Errors of calls to containerd, and how callers have to treat them.

use tonic::{Code, Status};

/// A failed call to containerd. Names the call and its container or image.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// containerd is unreachable: wait for it, the pod itself may be fine.
    #[error("containerd is not reachable ({call}): {message}")]
    Unavailable {
        /// The call, e.g. `Tasks.Create`.
        call: &'static str,
        message: String,
    },
    /// There was no answer in time: the shim or containerd hangs.
    #[error("{call} on {subject} got no answer in time: the container's shim or containerd hangs")]
    Deadline { call: &'static str, subject: String },
    /// containerd or runc refused the call.
    #[error("{call} on {subject}: {message}")]
    Refused {
        call: &'static str,
        subject: String,
        /// gRPC's code.
        code: Code,
        message: String,
    },
    /// This agent cannot parse containerd's answer.
    #[error("{call} on {subject}: unreadable answer: {message}")]
    Unreadable { call: &'static str, subject: String, message: String },
}

impl RuntimeError {
    /// The error of `call` on `subject`, by containerd's status.
    pub fn from_status(call: &'static str, subject: &str, status: Status) -> Self {
        let subject = subject.to_owned();
        match effective_code(&status) {
            Code::Unavailable => Self::Unavailable { call, message: status.message().to_owned() },
            Code::DeadlineExceeded | Code::Cancelled => Self::Deadline { call, subject },
            code => Self::Refused { call, subject, code, message: status.message().to_owned() },
        }
    }
}

/// The code of `status`; [`Code::Unavailable`] if the connection was lost during the call, which containerd may or
/// may not have executed. tonic uses various codes for that; a status from containerd itself has no source.
pub fn effective_code(status: &Status) -> Code {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::TimeoutExpired>() {
            return Code::DeadlineExceeded;
        }
        cause = error.source();
    }
    if std::error::Error::source(status).is_some() { Code::Unavailable } else { status.code() }
}

/// Converts `NotFound` to `None`: for calls that stop or delete something it is success.
pub fn none_if_missing<T>(result: Result<tonic::Response<T>, Status>) -> Result<Option<T>, Status> {
    match result {
        Ok(response) => Ok(Some(response.into_inner())),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_lost_during_a_call_is_unavailable() {
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let error = RuntimeError::from_status("Tasks.Start", "web", Status::from_error(Box::new(broken)));
        assert!(matches!(error, RuntimeError::Unavailable { .. }), "{error}");
        let error = RuntimeError::from_status("Tasks.Start", "web", Status::unknown("runc: no such file or directory"));
        assert!(matches!(error, RuntimeError::Refused { code: Code::Unknown, .. }), "{error}");
    }
}
