//! What can go wrong between limpet and containerd, and what that means for whoever asked.

use tonic::{Code, Status};

/// A call to containerd that did not succeed. Names the call and the container or image it was about.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// containerd is not there: wait for it, nothing is known to be wrong with the pod.
    #[error("containerd is not reachable ({call}): {message}")]
    Unavailable {
        /// The call, e.g. `Tasks.Create`.
        call: &'static str,
        /// The transport's words.
        message: String,
    },
    /// No answer in time: the shim or containerd hangs.
    #[error("{call} on {subject} got no answer in time: the container's shim or containerd hangs")]
    Deadline {
        /// The call.
        call: &'static str,
        /// What it was about.
        subject: String,
    },
    /// containerd or runc said no.
    #[error("{call} on {subject}: {message}")]
    Refused {
        /// The call.
        call: &'static str,
        /// What it was about.
        subject: String,
        /// containerd's code.
        code: Code,
        /// containerd's words.
        message: String,
    },
    /// containerd answered something this agent cannot read.
    #[error("{call} on {subject}: unreadable answer: {message}")]
    Unreadable {
        /// The call.
        call: &'static str,
        /// What it was about.
        subject: String,
        /// What is wrong with it.
        message: String,
    },
}

impl RuntimeError {
    /// The error of `call` on `subject`, judged by containerd's status.
    pub fn of(call: &'static str, subject: &str, status: Status) -> Self {
        let subject = subject.to_owned();
        match judged(&status) {
            Code::Unavailable => Self::Unavailable { call, message: status.message().to_owned() },
            Code::DeadlineExceeded | Code::Cancelled => Self::Deadline { call, subject },
            code => Self::Refused { call, subject, code, message: status.message().to_owned() },
        }
    }

    /// containerd was not there: the same call may be made again when it is.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// The code of `status`; [`Code::Unavailable`] when the connection ended under the call, which containerd may or may
/// not have seen. tonic gives that codes of all kinds; what containerd itself has answered has no cause.
pub fn judged(status: &Status) -> Code {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::TimeoutExpired>() {
            return Code::DeadlineExceeded;
        }
        cause = error.source();
    }
    if std::error::Error::source(status).is_some() { Code::Unavailable } else { status.code() }
}

/// Turns `NotFound` into `None`: for everything that ends something, "not there" is success.
pub fn found<T>(result: Result<tonic::Response<T>, Status>) -> Result<Option<T>, Status> {
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
    fn a_connection_that_ends_under_a_call_is_no_answer_of_containerds() {
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let error = RuntimeError::of("Tasks.Start", "web", Status::from_error(Box::new(broken)));
        assert!(error.is_unavailable(), "{error}");
        let error = RuntimeError::of("Tasks.Start", "web", Status::unknown("runc: no such file or directory"));
        assert!(matches!(error, RuntimeError::Refused { code: Code::Unknown, .. }), "{error}");
    }
}
