//! The labels of the metrics: closed sets of values, and some that come from manifests.

use std::fmt::Write as _;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

use limpet_model::pod::{Fault, Role};

/// The type of a container, as in kubelet's label `container_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContainerType {
    /// A regular container.
    Container,
    /// An init container, or a sidecar.
    InitContainer,
    EphemeralContainer,
}

impl ContainerType {
    /// The label for a role. Like kubelet, counts a sidecar as an init container, which it is in the spec.
    pub fn role(role: Role) -> Self {
        match role {
            Role::Init | Role::Sidecar => Self::InitContainer,
            Role::Main => Self::Container,
            Role::Ephemeral => Self::EphemeralContainer,
        }
    }
}

/// The kinds of changes that the merge emits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MergeChange {
    /// A pod was added.
    Added,
    /// A pod's manifest changed.
    Updated,
    /// A pod is being deleted.
    Deleting,
    /// A pod was removed from its source.
    Removed,
    /// A pod's status is to be published again.
    Reconciled,
}

/// Why a manifest was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectionReason {
    /// It cannot be read, or is not a manifest.
    Unreadable,
    /// A field is missing, unknown or invalid.
    Invalid,
    /// Another manifest of the source defines the pod's name.
    Duplicate,
}

impl RejectionReason {
    /// The reason for a fault. A fault without a field concerns the whole text.
    pub fn fault(fault: &Fault) -> Self {
        match fault.path.as_str() {
            "" | "kind" | "apiVersion" => Self::Unreadable,
            path if path.ends_with("metadata.name") && fault.message.contains(" is defined ") => Self::Duplicate,
            _ => Self::Invalid,
        }
    }
}

/// What the guard did with a forbidden change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GuardVerdict {
    /// The change was denied.
    Refused,
    /// The change was allowed and reported: mode `audit`.
    Audited,
}

/// Why image garbage collection removed an image: kubelet's label `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageRemoval {
    /// The image was unused for longer than `imageMaximumGCAge`.
    Age,
    /// Disk space was needed.
    Space,
}

/// How an upgrade of limpet ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpgradeOutcome {
    /// The new version runs.
    Installed,
    /// The previous version runs again.
    Undone,
}

/// A label set with one label from a closed set of values.
macro_rules! one_label {
    ($set:ident, $field:ident: $value:ty) => {
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub(super) struct $set {
            pub(super) $field: $value,
        }
    };
}

/// A closed set of label values with their texts.
macro_rules! label_values {
    ($type:ident { $($variant:ident => $text:literal),+ $(,)? }) => {
        impl EncodeLabelValue for $type {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
                encoder.write_str(match self { $(Self::$variant => $text),+ })
            }
        }
    };
}

label_values!(ContainerType {
    Container => "container", InitContainer => "init_container", EphemeralContainer => "ephemeral_container",
});
label_values!(MergeChange {
    Added => "added", Updated => "updated", Deleting => "deleting", Removed => "removed", Reconciled => "reconciled",
});

label_values!(ImageRemoval { Age => "age", Space => "space" });
label_values!(UpgradeOutcome { Installed => "installed", Undone => "undone" });
label_values!(GuardVerdict { Refused => "refused", Audited => "audited" });
label_values!(RejectionReason { Unreadable => "unreadable", Invalid => "invalid", Duplicate => "duplicate" });

/// kubelet's values of `container_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ContainerState {
    Created,
    Running,
    Exited,
    Unknown,
}
label_values!(ContainerState { Created => "created", Running => "running", Exited => "exited", Unknown => "unknown" });

/// kubelet writes `static="true"` for its own pods and an empty value for the apiserver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Static {
    Yes,
    No,
}
label_values!(Static { Yes => "true", No => "" });

one_label!(StateLabel, container_state: ContainerState);
one_label!(StaticLabel, r#static: Static);
one_label!(TypeLabel, container_type: ContainerType);
one_label!(OperationLabel, operation_type: &'static str);
one_label!(ChangeLabel, change: MergeChange);
one_label!(SourceLabel, source: &'static str);
one_label!(NodeLabel, node: String);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StartErrorLabels {
    pub(super) container_type: ContainerType,
    pub(super) code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TerminationLabels {
    pub(super) container_type: ContainerType,
    pub(super) exit_code: i32,
    pub(super) reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct GenerationLabels {
    pub(super) source: &'static str,
    pub(super) change: &'static str,
}

one_label!(BundleLabel, bundle: String);
one_label!(BackendLabel, backend: &'static str);
one_label!(VerdictLabel, verdict: GuardVerdict);
one_label!(RemovalLabel, reason: ImageRemoval);
one_label!(UpgradeLabel, outcome: UpgradeOutcome);
one_label!(SignalLabel, eviction_signal: &'static str);
one_label!(ConditionLabel, condition: &'static str);

/// Pod names come from manifests, so only a limited number has its own labels; the others share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct WriterLabels {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RejectionLabels {
    pub(super) source: &'static str,
    pub(super) reason: RejectionReason,
}
