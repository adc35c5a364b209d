//! Pauses that differ between the nodes of a fleet, which would otherwise all act at the same moment.
//!
//! Pure: the random number is an argument.

use std::time::Duration;

/// `pause`, up to `permille` thousandths shorter or longer. `dice` is a random number.
pub fn around(pause: Duration, permille: u32, dice: u64) -> Duration {
    pause * (1_000 - permille + spread(2 * permille, dice)) / 1_000
}

/// `pause`, up to `permille` thousandths longer and never shorter. `dice` is a random number.
pub fn above(pause: Duration, permille: u32, dice: u64) -> Duration {
    pause * (1_000 + spread(permille, dice)) / 1_000
}

/// `pause`, up to `permille` thousandths shorter and never longer. `dice` is a random number.
pub fn below(pause: Duration, permille: u32, dice: u64) -> Duration {
    pause * (1_000 - permille + spread(permille, dice)) / 1_000
}

/// A number from 0 to `most`.
fn spread(most: u32, dice: u64) -> u32 {
    u32::try_from(dice % (u64::from(most) + 1)).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_stays_within_its_bounds_and_reaches_both() {
        let pauses = |pause: fn(Duration, u32, u64) -> Duration| {
            let all = (0..1_000).map(|dice| pause(Duration::from_secs(20), 100, dice)).collect::<Vec<_>>();
            (all.iter().min().copied(), all.iter().max().copied())
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(pauses(around), (seconds(18), seconds(22)));
        assert_eq!(pauses(above), (seconds(20), seconds(22)));
        assert_eq!(pauses(below), (seconds(18), seconds(20)));
        assert_eq!(around(Duration::from_secs(20), 100, 100), Duration::from_secs(20), "the middle");
    }
}
