//! limpet's decisions: what is desired, what to do next with each pod, what to report of it.
//!
//! Pure functions of values and of time, which is always an argument: no I/O, no clock, no runtime. What is desired flows
//! through [`source`] (what each source holds) and [`merge`] (one desired state of all); [`plan`] decides the next actions
//! of a pod from its [`state`], [`outcome`] takes in what came of them, [`adopt`] what is found running; [`status`] says
//! what people and machines see, and [`forecast`] what other manifests would change.

pub mod adopt;
pub mod backoff;
pub mod exit_cause;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod forecast;
pub mod last_good;
pub mod merge;
#[cfg(test)]
mod objects_tests;
pub mod outcome;
pub mod plan;
pub mod provisional;
pub mod source;
pub mod state;
pub mod status;
