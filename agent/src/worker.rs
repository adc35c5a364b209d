//! One task per pod: decide what to do next, do it, wait for the next event.
//!
//! [`state`] is what is known of one pod, [`plan`] the whole policy as a pure function of it, [`perform`] the executor,
//! [`pod_worker`] the task that joins them, [`supervisor`] the owner of all such tasks.

pub mod clock;
pub mod inbox;
pub mod perform;
pub mod pod_worker;
pub mod process_watch;
pub mod supervisor;
