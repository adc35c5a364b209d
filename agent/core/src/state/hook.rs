//! What is remembered about a container's hooks. Part of [`super`].

use std::time::Instant;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

/// The hooks that a container's spec has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hooks {
    /// `postStart`.
    pub post_start: bool,
    /// `preStop`.
    pub pre_stop: bool,
}

impl Hooks {
    /// The hooks of `container`.
    pub fn from_container(container: &Container) -> Self {
        let has = |handler: Option<&LifecycleHandler>| {
            handler.is_some_and(|handler| {
                handler.exec.is_some()
                    || handler.http_get.is_some()
                    || handler.sleep.is_some()
                    || handler.tcp_socket.is_some()
            })
        };
        let hooks = container.lifecycle.as_ref();
        Self {
            post_start: has(hooks.and_then(|hooks| hooks.post_start.as_ref())),
            pre_stop: has(hooks.and_then(|hooks| hooks.pre_stop.as_ref())),
        }
    }
}

/// How far an instance's `postStart` hook is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PostStart {
    /// There is no hook, or it has succeeded. This also applies to an instance that was found running, because like
    /// kubelet, an agent runs no hook of a container that another agent has started.
    #[default]
    Done,
    /// It has to run at that time: the container has just started, or containerd went away before the hook began.
    Due(Instant),
    /// It runs.
    Running,
    /// It has failed, and its container must stop. The message is for people.
    Failed(Box<str>),
}
