//! Kubernetes' rules for CronJobs (`pkg/apis/batch/validation`).

use k8s_openapi::api::batch::v1::CronJobSpec;

use super::Schedule;
use crate::object::workload::{PodTemplate, job};
use crate::pod::{Fault, FaultList};

/// A Job's name is eleven characters longer, and has at most 63.
const MAX_NAME: usize = 52;
const MAX_ZONE_PART: usize = 14;

/// The faults of a CronJob apart from those of its pods' template.
pub(in crate::object::workload) fn check(name: &str, spec: &CronJobSpec, template: &PodTemplate) -> Vec<Fault> {
    let mut faults = FaultList::default();
    if name.len() > MAX_NAME {
        faults.push(Fault::error("metadata.name", "Invalid value: must be no more than 52 characters"));
    }
    schedule(&spec.schedule, &mut faults);
    if let Some(zone) = &spec.time_zone {
        faults.extend(time_zone(zone));
    }
    let policy = spec.concurrency_policy.as_deref().unwrap_or("Allow");
    if !["", "Allow", "Forbid", "Replace"].contains(&policy) {
        let message = format!("Unsupported value: {policy:?}: supported values: \"Allow\", \"Forbid\", \"Replace\"");
        faults.push(Fault::error("spec.concurrencyPolicy", message));
    }
    let numbers = [
        ("startingDeadlineSeconds", spec.starting_deadline_seconds),
        ("successfulJobsHistoryLimit", spec.successful_jobs_history_limit.map(i64::from)),
        ("failedJobsHistoryLimit", spec.failed_jobs_history_limit.map(i64::from)),
    ];
    for (field, value) in numbers {
        if let Some(value) = value.filter(|value| *value < 0) {
            let message = format!("Invalid value: {value}: must be greater than or equal to 0");
            faults.push(Fault::error(format!("spec.{field}"), message));
        }
    }
    let Some(of_job) = &spec.job_template.spec else { return faults.finish() };
    faults.extend(job::check(of_job, template, "spec.jobTemplate.spec"));
    if of_job.selector.is_some() {
        let message = "Invalid value: `selector` will be auto-generated";
        faults.push(Fault::error("spec.jobTemplate.spec.selector", message).with_remedy("remove it"));
    }
    if of_job.manual_selector == Some(true) {
        let message = "Unsupported value: true: supported values: \"nil\", \"false\"";
        faults.push(Fault::error("spec.jobTemplate.spec.manualSelector", message));
    }
    faults.finish()
}

fn schedule(schedule: &str, faults: &mut FaultList) {
    if schedule.is_empty() {
        faults.push(Fault::error("spec.schedule", "Required value").with_remedy("such as \"*/10 * * * *\""));
    } else if schedule.contains("TZ") {
        let message =
            format!("Invalid value: {schedule:?}: cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
        faults.push(Fault::error("spec.schedule", message));
    } else if let Err(error) = Schedule::parse(schedule) {
        faults.push(Fault::error("spec.schedule", format!("Invalid value: {schedule:?}: {error}")));
    }
}

/// The fault of a name that the time zone database cannot have. Whether the node has the zone turns out when it is
/// needed.
fn time_zone(zone: &str) -> Option<Fault> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte);
    let is_part = |part: &str| {
        let is_name = !part.is_empty() && part.len() <= MAX_ZONE_PART && part.bytes().all(is_letter);
        is_name && !part.starts_with('-') && part != "." && part != ".."
    };
    let message = if zone.is_empty() {
        "timeZone must be nil or non-empty string".to_owned()
    } else if !zone.split('/').all(is_part) {
        format!("{zone:?}: unknown time zone {zone}")
    } else if zone.eq_ignore_ascii_case("local") {
        format!("{zone:?}: timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")
    } else {
        return None;
    };
    let fault = Fault::error("spec.timeZone", format!("Invalid value: {message}"));
    Some(fault.with_remedy("such as Europe/Berlin"))
}
