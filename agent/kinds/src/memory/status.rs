//! What a controller remembers, as the status that the controller of that kind in Kubernetes writes. For people to read.

use serde_json::{Value, json};

use super::{CronMemory, JobMemory, Memory};

impl Memory {
    /// The status of a Job or a CronJob; `None` for other kinds, whose status is that of their pods.
    pub fn status(&self) -> Option<Value> {
        let active = || self.pods.iter().filter(|pod| pod.task.as_ref().is_none_or(|task| task.end.is_none())).count();
        self.job.as_ref().map(|job| job.status(active())).or_else(|| self.cron.as_ref().map(CronMemory::status))
    }
}

impl JobMemory {
    fn status(&self, active: usize) -> Value {
        let mut status = json!({
            "active": active,
            "succeeded": self.succeeded.max(self.succeeded_indexes.count()),
            "failed": self.failed,
        });
        let mut set = |field: &str, value: Value| status[field] = value;
        if let Some(started) = self.started {
            set("startTime", json!(started));
        }
        for (field, indexes) in [("completedIndexes", &self.succeeded_indexes), ("failedIndexes", &self.failed_indexes)]
        {
            if indexes.count() > 0 {
                set(field, json!(indexes));
            }
        }
        let mut conditions = Vec::new();
        if let (Some(verdict), Some(finished)) = (&self.verdict, self.finished) {
            if verdict.complete {
                set("completionTime", json!(finished));
            }
            let kind = if verdict.complete { "Complete" } else { "Failed" };
            conditions.push(json!({
                "type": kind, "status": "True", "reason": verdict.reason, "message": verdict.message,
                "lastTransitionTime": finished,
            }));
        }
        if self.suspended == Some(true) {
            conditions.push(json!({ "type": "Suspended", "status": "True", "reason": "JobSuspended" }));
        }
        set("conditions", Value::from(conditions));
        status
    }
}

impl CronMemory {
    fn status(&self) -> Value {
        let active: Vec<Value> = self
            .jobs
            .iter()
            .filter(|job| job.state.finished.is_none())
            .map(|job| json!({ "kind": "Job", "name": job.name }))
            .collect();
        let ends =
            self.jobs.iter().filter(|job| job.state.outcome() == Some(true)).filter_map(|job| job.state.finished);
        let mut status = json!({ "active": active });
        if let Some(last) = self.last_schedule {
            status["lastScheduleTime"] = json!(last);
        }
        if let Some(last) = ends.max() {
            status["lastSuccessfulTime"] = json!(last);
        }
        status
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use jiff::Timestamp;
    use limpet_model::object::workload::job::Indexes;

    use super::*;
    use crate::memory::{End, MadeJob, Task, Verdict, WantedPod};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn finished(complete: bool) -> JobMemory {
        let verdict = Verdict { complete, reason: "R".to_owned(), message: "M".to_owned() };
        JobMemory { started: Some(at(0)), verdict: Some(verdict), finished: Some(at(60)), ..JobMemory::default() }
    }

    #[test]
    fn a_job_has_its_pods_and_its_end() {
        let pod: WantedPod = serde_json::from_value(json!({
            "name": "j-a", "hash": "h", "serial": 0, "made": at(0),
        }))
        .unwrap();
        let task = Task { job: "j".to_owned(), index: None, failures: None, end: Some(End::Failed) };
        let ended = WantedPod { task: Some(task), ..pod.clone() };
        let running = JobMemory {
            failed: 1,
            succeeded_indexes: Indexes::parse("0-2", 5).unwrap(),
            suspended: Some(true),
            ..JobMemory::default()
        };
        let memory = Memory { pods: vec![pod, ended], job: Some(running), ..Memory::default() };
        let status = memory.status().unwrap();
        assert_eq!((&status["active"], &status["succeeded"], &status["failed"]), (&json!(1), &json!(3), &json!(1)));
        assert_eq!((&status["completedIndexes"], &status["startTime"]), (&json!("0-2"), &Value::Null));
        assert_eq!(status["conditions"][0]["type"], "Suspended");
        for (complete, kind, completion) in [(true, "Complete", json!(at(60))), (false, "Failed", Value::Null)] {
            let status = Memory { job: Some(finished(complete)), ..Memory::default() }.status().unwrap();
            assert_eq!((&status["conditions"][0]["type"], &status["completionTime"]), (&json!(kind), &completion));
            assert_eq!(status["conditions"][0]["lastTransitionTime"], json!(at(60)));
        }
    }

    #[test]
    fn a_cron_job_has_its_jobs_that_run_and_its_last_times() {
        let job = |name: &str, state: JobMemory| MadeJob {
            name: name.to_owned(),
            scheduled: at(0),
            spec: Value::Null,
            hash: String::new(),
            state,
            is_reported: false,
        };
        let jobs = vec![job("a", finished(true)), job("b", finished(false)), job("c", JobMemory::default())];
        let cron = CronMemory { created: None, last_schedule: Some(at(120)), jobs };
        let status = Memory { cron: Some(cron), ..Memory::default() }.status().unwrap();
        let expected = json!({
            "active": [{"kind": "Job", "name": "c"}], "lastScheduleTime": at(120), "lastSuccessfulTime": at(60),
        });
        assert_eq!(status, expected);
        assert_eq!(Memory::default().status(), None);
    }
}
