//! Responses to calls that would change pods or images. Each names limpet's way to do it.

use tonic::Status;

pub(super) fn starts_pods() -> Status {
    refused("limpet runs pods from manifests: put one into the directory of manifests, or: limpet apply -f FILE")
}

pub(super) fn ends_pods() -> Status {
    refused(
        "limpet keeps running what manifests ask for: remove the pod's manifest, or, if it was applied: limpet delete POD",
    )
}

pub(super) fn changes_resources() -> Status {
    refused("resources are what the pod's manifest says: edit it, and cpu and memory change in the running container")
}

pub(super) fn pulls() -> Status {
    refused("limpet pulls what its pods need; to pull an image before: limpet images pull IMAGE")
}

pub(super) fn removes_images() -> Status {
    refused("limpet removes the images that no pod needs when the disk is short; to do so now: limpet images prune")
}

pub(super) fn reopens_logs() -> Status {
    refused("limpet's loggers rotate their logs themselves, by containerLogMaxSize and containerLogMaxFiles")
}

pub(super) fn checkpoints() -> Status {
    Status::unimplemented("limpet has no checkpoints of containers")
}

fn refused(hint: &str) -> Status {
    Status::failed_precondition(hint)
}
