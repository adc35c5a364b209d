//! What controllers report: events of workloads.

use std::borrow::Cow;

use limpet_model::object::ObjectKey;

/// Something that has happened to a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The workload, or the Job that it has made.
    pub object: ObjectKey,
    pub uid: String,
    /// Whether it needs attention.
    pub is_warning: bool,
    /// The reason, as Kubernetes' controllers name it.
    pub reason: Cow<'static, str>,
    /// The message for users.
    pub message: String,
}

/// Notices of one turn, whose objects get their UIDs later.
#[derive(Debug, Default)]
pub(crate) struct Notices(pub(crate) Vec<Notice>);

impl Notices {
    /// Reports what was expected.
    pub(crate) fn normal(&mut self, object: &ObjectKey, reason: &'static str, message: String) {
        self.push(object, false, Cow::Borrowed(reason), message);
    }

    /// Reports what needs attention.
    pub(crate) fn warning(&mut self, object: &ObjectKey, reason: impl Into<Cow<'static, str>>, message: String) {
        self.push(object, true, reason.into(), message);
    }

    fn push(&mut self, object: &ObjectKey, is_warning: bool, reason: Cow<'static, str>, message: String) {
        self.0.push(Notice { object: object.clone(), uid: String::new(), is_warning, reason, message });
    }
}
