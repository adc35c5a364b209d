//! Which pods do not start while the node is short of something or shuts down. Part of [`super`].

use k8s_openapi::api::core::v1::Taint;

use crate::node_state::{NodePressure, NodeState};
use crate::priority::is_critical;
use crate::state::{PodState, SandboxState};
use crate::taint::tolerates;
use limpet_model::node::Pressure;
use limpet_model::pod::PodRecord;
use limpet_model::pod::qos::QosClass;
use limpet_model::taint::MEMORY_PRESSURE;
use limpet_model::verdict::{EVICTED, NODE_SHUTDOWN, PodVerdict};

/// Refuses a pod that has not begun, as kubelet does, while the node is short of something or shuts down. A pod of
/// the apiserver fails, so that its controller makes another, and any other pod waits. kubelet asks only once, so a
/// pod of the apiserver that was admitted is not checked again. Returns whether it is refused for another reason than
/// before.
pub fn refuse_start(pod: &mut PodState, node: NodeState) -> bool {
    let is_asked = has_not_begun(pod) && !(pod.admitted && pod.record.source.traits().is_replaced);
    let refused = is_asked.then(|| refusal(&pod.record, node)).flatten();
    pod.admitted |= refused.is_none();
    match refused {
        Some(verdict) => pod.refuse(verdict),
        None => {
            pod.verdict.take_if(|verdict| is_wait(verdict));
            false
        }
    }
}

/// Whether the pod waits for the end of a pressure, or of a shutdown.
pub fn waits(pod: &PodState) -> bool {
    pod.verdict.as_ref().is_some_and(is_wait)
}

fn is_wait(verdict: &PodVerdict) -> bool {
    matches!(&*verdict.reason, EVICTED | NODE_SHUTDOWN) && !verdict.is_final()
}

fn has_not_begun(pod: &PodState) -> bool {
    let unused = pod.containers.iter().all(|slot| slot.instance.is_none() && slot.busy.is_none());
    pod.ending.is_none() && !pod.is_failed() && matches!(pod.sandbox, SandboxState::Absent { .. }) && unused
}

fn refusal(record: &PodRecord, node: NodeState) -> Option<PodVerdict> {
    match (node.shutting_down, record.source.traits().is_replaced) {
        (false, _) => under_pressure(record, node.pressure),
        (true, true) => Some(PodVerdict::rejected(NODE_SHUTDOWN, "Pod was rejected as the node is shutting down.")),
        (true, false) => Some(PodVerdict::waiting(NODE_SHUTDOWN, "The node is shutting down. ".to_owned())),
    }
}

/// kubelet's check of a pod before it starts. Under disk or PID pressure only critical pods and those of manifests
/// start; under memory pressure also those that request something or tolerate it.
fn under_pressure(record: &PodRecord, pressure: NodePressure) -> Option<PodVerdict> {
    let conditions: Vec<Pressure> = pressure.iter().collect();
    if conditions.is_empty() || record.source.traits().is_static || is_critical(record) {
        return None;
    }
    let spec = record.spec();
    let taint = || Taint { key: MEMORY_PRESSURE.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let tolerated = || spec.tolerations.iter().flatten().any(|toleration| tolerates(toleration, &taint()));
    if conditions == [Pressure::Memory] && (record.qos_class != QosClass::BestEffort || tolerated()) {
        return None;
    }
    let names: Vec<&str> = conditions.into_iter().map(Pressure::as_str).collect();
    let message = format!("The node had condition: [{}]. ", names.join(" "));
    Some(match record.source.traits().is_replaced {
        true => PodVerdict::rejected(EVICTED, &message),
        false => PodVerdict::waiting(EVICTED, message),
    })
}

#[cfg(test)]
mod tests;
