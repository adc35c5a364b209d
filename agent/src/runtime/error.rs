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
        match status.code() {
            Code::Unavailable => Self::Unavailable { call, message: status.message().to_owned() },
            // The connection ended under the call, which containerd may never have seen.
            Code::Cancelled if is_connection_lost(&status) => {
                Self::Unavailable { call, message: status.message().to_owned() }
            }
            Code::DeadlineExceeded | Code::Cancelled => Self::Deadline { call, subject },
            code => Self::Refused { call, subject, code, message: status.message().to_owned() },
        }
    }

    /// containerd was not there: the same call may be made again when it is.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

fn is_connection_lost(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Turns `NotFound` into `None`: for everything that ends something, "not there" is success.
pub fn found<T>(result: Result<tonic::Response<T>, Status>) -> Result<Option<T>, Status> {
    match result {
        Ok(response) => Ok(Some(response.into_inner())),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}
