//! Whether the node works after a boot, for who may return to another system: greenboot, RAUC, Mender.

use std::time::Duration;

use crate::Moment;
use crate::settings::Settings;

/// The check of one boot. It ends once, with a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BootCheck {
    /// Since when it is judged.
    began: Option<Duration>,
    good_since: Option<Duration>,
    pub(crate) due: Option<Duration>,
}

impl BootCheck {
    /// `works`: what all sources say. `is_settled`: no generation is on trial, which decides for itself. Returns the verdict
    /// once there is one.
    pub(crate) fn judge(
        &mut self,
        works: Result<(), String>,
        is_settled: bool,
        settings: &Settings,
        now: Moment,
    ) -> Option<Result<(), String>> {
        if !is_settled {
            *self = Self::default();
            return None;
        }
        let deadline = *self.began.get_or_insert(now.uptime) + settings.progress_deadline;
        match works {
            Ok(()) => {
                let settled = *self.good_since.get_or_insert(now.uptime) + settings.min_ready;
                self.due = Some(settled);
                (now.uptime >= settled).then_some(Ok(()))
            }
            Err(why) => {
                (self.good_since, self.due) = (None, Some(deadline));
                (now.uptime >= deadline).then_some(Err(why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_boot_is_good_once_all_works_for_a_while_and_bad_at_the_deadline() {
        let settings = Settings::default();
        let at = |seconds| Moment { uptime: Duration::from_secs(seconds), wall: Timestamp::UNIX_EPOCH };
        let why = || Err("not ready".to_owned());
        let mut check = BootCheck::default();
        assert_eq!(check.judge(Ok(()), true, &settings, at(20)), None);
        assert_eq!(check.judge(why(), true, &settings, at(25)), None);
        assert_eq!(check.judge(Ok(()), true, &settings, at(26)), None);
        assert_eq!(
            (check.due, check.judge(Ok(()), true, &settings, at(36))),
            (Some(Duration::from_secs(36)), Some(Ok(())))
        );
        let mut check = BootCheck::default();
        assert_eq!(check.judge(why(), true, &settings, at(20)), None);
        assert_eq!(check.judge(why(), false, &settings, at(400)), None, "a trial decides");
        assert_eq!(check.judge(why(), true, &settings, at(410)), None);
        assert_eq!(check.judge(why(), true, &settings, at(710)), Some(why()));
    }
}
