#![allow(clippy::unwrap_used)]

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn disk(capacity: u64, available: u64) -> DiskSpace {
    DiskSpace { capacity, available }
}

/// An unused image that was present before the agent started, with its last use in seconds.
fn image(digest: &str, last_used: i64) -> Image {
    Image {
        digest: digest.into(),
        names: vec![digest.to_owned()],
        needed: false,
        pinned: false,
        last_used: at(last_used),
        unused_for: DAY,
        known_for: Duration::MAX,
    }
}

fn digests(images: Vec<&Image>) -> Vec<&str> {
    images.into_iter().map(|image| &*image.digest).collect()
}

#[test]
fn the_disk_is_made_room_on_from_the_high_mark_down_to_the_low_one() {
    // Capacity, available, high, low, and how much has to be available. kubelet rounds the used space up.
    let cases = [
        (1_000, 500, 85, 80, None),
        (1_000, 151, 85, 80, Some(200)),
        (1_000, 160, 85, 80, None),
        (1_000, 159, 85, 80, Some(200)),
        (1_000, 0, 85, 80, Some(200)),
        (1_000, 0, 100, 80, None),
        (1_000, 2_000, 1, 0, None),
        (1_000, 999, 0, 0, Some(1_000)),
        (1 << 60, 1 << 50, 85, 50, Some(1 << 59)),
    ];
    for (capacity, available, high_percent, low_percent, goal) in cases {
        let policy = ImageGcPolicy { high_percent, low_percent, ..ImageGcPolicy::default() };
        let case = format!("{available} of {capacity}, {high_percent} to {low_percent}");
        assert_eq!(policy.goal(disk(capacity, available)), goal, "{case}");
    }
}

#[test]
fn the_least_recently_used_goes_first_and_what_is_needed_pinned_or_young_never() {
    let policy = ImageGcPolicy::default();
    let images = [
        image("b", 20),
        image("a", 10),
        Image { known_for: DAY * 3, ..image("tie-younger", 5) },
        Image { known_for: DAY * 4, ..image("tie-older", 5) },
        Image { needed: true, ..image("needed", 0) },
        Image { pinned: true, ..image("pinned", 0) },
        Image { known_for: Duration::from_secs(119), ..image("young", 0) },
        Image { known_for: Duration::from_secs(120), ..image("old-enough", 30) },
    ];
    assert_eq!(digests(to_make_room(&images, &policy)), ["tie-older", "tie-younger", "a", "b", "old-enough"]);
}

#[test]
fn an_image_that_is_long_unused_goes_whatever_the_disk() {
    let images = [
        Image { unused_for: DAY * 8, ..image("newer", 2) },
        Image { unused_for: DAY * 9, ..image("older", 1) },
        Image { unused_for: DAY * 7, ..image("at-the-limit", 3) },
        Image { unused_for: DAY * 9, needed: true, ..image("needed", 1) },
        Image { unused_for: DAY * 9, pinned: true, ..image("pinned", 1) },
    ];
    let policy = ImageGcPolicy { max_age: Some(DAY * 7), ..ImageGcPolicy::default() };
    assert_eq!(digests(too_old(&images, &policy)), ["older", "newer"]);
    assert!(too_old(&images, &ImageGcPolicy::default()).is_empty());
}

#[test]
fn the_next_look_is_when_an_age_is_reached_and_never_without_one() {
    let young = Image { known_for: Duration::from_secs(30), ..image("young", 0) };
    let aging = Image { unused_for: DAY * 6, ..image("aging", 0) };
    let due = Image { unused_for: DAY * 9, ..image("due", 0) };
    let needed = Image { needed: true, ..young.clone() };
    let (plain, aged) = (ImageGcPolicy::default(), ImageGcPolicy { max_age: Some(DAY * 7), ..Default::default() });
    let moment = Duration::from_millis(1);
    let cases = [
        (&young, &plain, false, None),
        (&young, &plain, true, Some(Duration::from_secs(90))),
        (&needed, &plain, true, None),
        (&aging, &plain, true, None),
        (&aging, &aged, false, Some(DAY + moment)),
        // What could not be removed is tried again at the next event.
        (&due, &aged, true, None),
        (&young, &aged, true, Some(Duration::from_secs(90))),
    ];
    for (image, policy, short, wanted) in cases {
        assert_eq!(next_look(std::slice::from_ref(image), policy, short), wanted, "{} {short}", image.digest);
    }
    assert_eq!(next_look(&[aging, young], &aged, false), Some(DAY + moment));
}

fn stored_image(digest: &str) -> StoredImage {
    StoredImage { digest: digest.into(), names: vec![digest.to_owned()], ..StoredImage::default() }
}

/// Updates the ledger `second` seconds after `start`.
fn looked(ledger: &mut Ledger, start: Now, second: u64, stored: Vec<StoredImage>, needed: &[&str]) -> ImageUsage {
    let wall = start.wall + jiff::SignedDuration::from_secs(second as i64);
    let now = Now { mono: start.mono + Duration::from_secs(second), wall };
    ledger.update(stored, |image| needed.contains(&&*image.digest), now)
}

#[test]
fn a_use_ends_when_nothing_needs_the_image_and_is_written_down_once() {
    let start = Now { mono: Instant::now(), wall: at(0) };
    let mut ledger = Ledger::default();
    let all = || vec![stored_image("a"), stored_image("b")];
    let first = looked(&mut ledger, start, 0, all(), &["a", "b"]);
    assert_eq!(first.images.iter().map(|image| image.last_used).collect::<Vec<_>>(), [at(0), at(0)]);
    let ended = looked(&mut ledger, start, 50, all(), &["b"]);
    assert_eq!(ended.fallen_out_of_use, ["a".into()]);
    let later = looked(&mut ledger, start, 80, all(), &["b"]);
    assert!(later.fallen_out_of_use.is_empty());
    let ages: Vec<_> = later.images.iter().map(|image| (image.needed, image.last_used, image.unused_for)).collect();
    assert_eq!(ages, [(false, at(50), Duration::from_secs(30)), (true, at(80), Duration::ZERO)]);
    // If it is removed and pulled again, nothing is left of its history.
    looked(&mut ledger, start, 90, vec![stored_image("b")], &["b"]);
    let again = looked(&mut ledger, start, 100, all(), &["b"]);
    assert_eq!((again.images[0].known_for, again.images[0].last_used), (Duration::ZERO, at(100)));
}

#[test]
fn an_image_that_was_taken_between_two_looks_was_used() {
    let start = Now { mono: Instant::now(), wall: at(0) };
    let mut ledger = Ledger::default();
    let taken = |second| StoredImage { taken: Some(start.mono + Duration::from_secs(second)), ..stored_image("a") };
    let mut look = |second, image| {
        let look = looked(&mut ledger, start, second, vec![image], &[]);
        (look.fallen_out_of_use.len(), look.images[0].last_used, look.images[0].known_for)
    };
    assert_eq!(look(0, stored_image("a")), (0, at(0), Duration::MAX));
    assert_eq!(look(20, taken(15)), (1, at(20), Duration::from_secs(5)));
    assert_eq!(look(40, taken(15)), (0, at(20), Duration::from_secs(25)));
    assert_eq!(look(60, taken(50)), (1, at(60), Duration::from_secs(10)));
}

#[test]
fn a_restarted_agent_reads_the_last_use_that_was_written_down() {
    let start = Now { mono: Instant::now(), wall: at(1_000) };
    let cases = [
        // Recorded use, creation, taken in this run; then last used, unused for, known for.
        (Some(at(400)), Some(at(100)), None, at(400), 600, None),
        (None, Some(at(100)), None, at(100), 900, None),
        (Some(at(50)), Some(at(100)), None, at(100), 900, None),
        (None, None, None, at(1_000), 0, None),
        (Some(at(400)), None, Some(start.mono), at(1_000), 0, Some(0)),
        // It was recorded by a clock that was not set, so it has no age.
        (Some(Timestamp::UNIX_EPOCH), None, None, Timestamp::UNIX_EPOCH, 0, None),
        (Some(at(2_000)), None, None, at(2_000), 0, None),
    ];
    for (last_used, created, taken, used, unused, known) in cases {
        let image = StoredImage { last_used, created, taken, ..stored_image("a") };
        let look = looked(&mut Ledger::default(), start, 0, vec![image], &[]);
        let wanted = (used, Duration::from_secs(unused), known.map_or(Duration::MAX, Duration::from_secs));
        let image = &look.images[0];
        assert_eq!((image.last_used, image.unused_for, image.known_for), wanted, "{last_used:?} {created:?}");
    }
}

#[test]
fn a_wall_clock_that_jumps_makes_no_image_older() {
    let start = Now { mono: Instant::now(), wall: Timestamp::UNIX_EPOCH };
    let mut ledger = Ledger::default();
    looked(&mut ledger, start, 0, vec![stored_image("a")], &["a"]);
    looked(&mut ledger, start, 10, vec![stored_image("a")], &[]);
    let now = Now { mono: start.mono + Duration::from_secs(20), wall: at(0) };
    let look = ledger.update(vec![stored_image("a")], |_| false, now);
    assert_eq!(look.images[0].unused_for, Duration::from_secs(10));
}

#[test]
fn a_disk_that_stays_short_is_reported_as_kubelet_does() {
    let disk = DiskSpace { capacity: 3 << 30, available: 300 << 20 };
    let message = "Insufficient free disk space on the node's image filesystem (91% of 3.0 GiB used). Failed to free \
                   sufficient space by deleting unused images (freed 1048576 bytes). Investigate disk usage, as it could be \
                   used by active images, logs, volumes, or other data.";
    assert_eq!(disk.stays_short(1 << 20), message);
}
