//! The lines of Jobs and CronJobs.

use k8s_openapi::api::batch::v1::{CronJobStatus, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use limpet_wire::objects::ObjectDocument;

use super::{optional, text, typed};
use crate::age;
use crate::sheet::Sheet;

pub(super) fn describe(sheet: &mut Sheet, document: &ObjectDocument) {
    let spec = &document.object["spec"];
    let status: JobStatus = typed(&document.object["status"]);
    sheet.field("Parallelism", &text(&spec["parallelism"], "1"));
    sheet
        .field("Completions", &text(&spec["completions"], if spec["parallelism"].is_null() { "1" } else { "<unset>" }));
    sheet.field("Completion Mode", &text(&spec["completionMode"], "NonIndexed"));
    optional(sheet, "Suspend", &spec["suspend"], "");
    sheet.field("Backoff Limit", &text(&spec["backoffLimit"], "6"));
    optional(sheet, "Active Deadline", &spec["activeDeadlineSeconds"], "s");
    optional(sheet, "TTL", &spec["ttlSecondsAfterFinished"], "s after it has finished");
    sheet.time("Start Time", status.start_time.as_ref());
    sheet.time("Completed At", status.completion_time.as_ref());
    if let (Some(Time(start)), Some(Time(end))) = (&status.start_time, &status.completion_time) {
        sheet.field("Duration", &age::since(*start, *end));
    }
    let count = |number: Option<i32>| number.unwrap_or_default();
    let (active, succeeded, failed) = (count(status.active), count(status.succeeded), count(status.failed));
    sheet.field("Pods Statuses", &format!("{active} Active / {succeeded} Succeeded / {failed} Failed"));
    sheet.optional("Completed Indexes", status.completed_indexes.as_deref());
    sheet.optional("Failed Indexes", status.failed_indexes.as_deref());
    for condition in status.conditions.iter().flatten() {
        let why: Vec<&str> =
            [&condition.reason, &condition.message].into_iter().flatten().map(String::as_str).collect();
        sheet.field(&condition.type_, &why.join(": "));
    }
}

pub(super) fn describe_cron(sheet: &mut Sheet, document: &ObjectDocument) {
    let spec = &document.object["spec"];
    let status: CronJobStatus = typed(&document.object["status"]);
    sheet.field("Schedule", &text(&spec["schedule"], ""));
    sheet.field("Time Zone", &text(&spec["timeZone"], "the node's"));
    sheet.field("Concurrency", &text(&spec["concurrencyPolicy"], "Allow"));
    sheet.field("Suspend", &text(&spec["suspend"], "False"));
    sheet.field(
        "Keeps",
        &format!(
            "{} successful and {} failed Jobs",
            text(&spec["successfulJobsHistoryLimit"], "3"),
            text(&spec["failedJobsHistoryLimit"], "1")
        ),
    );
    optional(sheet, "Start Deadline", &spec["startingDeadlineSeconds"], "s");
    match &status.last_schedule_time {
        Some(last) => sheet.time("Last Schedule", Some(last)),
        None => sheet.field("Last Schedule", "<none>"),
    }
    sheet.time("Last Success", status.last_successful_time.as_ref());
    let active: Vec<String> = status.active.into_iter().flatten().filter_map(|job| job.name).collect();
    sheet.field("Active Jobs", if active.is_empty() { "<none>".to_owned() } else { active.join(", ") }.as_str());
}
