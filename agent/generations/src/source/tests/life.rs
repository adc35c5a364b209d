//! Random lives of a node: what is good returns, and nothing goes back and forth.

use proptest::prelude::*;

use super::*;

/// What may happen to a node.
#[derive(Debug, Clone)]
enum Event {
    Publish(Vec<(&'static str, u8)>, &'static str),
    Wait(u64),
    /// The agent is killed before what it decides reaches the disk.
    KillBeforeWrite,
    Kill,
    Reboot,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let image = prop::sample::select(vec!["good", "never", "crash", "fail", "missing", "config"]);
    let pods = prop::collection::vec((image, 1_u8..3), 1..3);
    let config = prop::sample::select(vec!["good", "never", "crash"]);
    let event = prop_oneof![
        4 => (pods, config).prop_map(|(pods, config)| Event::Publish(pods, config)),
        4 => prop::sample::select(vec![1_u64, 5, 12, 60, 320]).prop_map(Event::Wait),
        1 => Just(Event::KillBeforeWrite),
        1 => Just(Event::Kill),
        1 => Just(Event::Reboot),
    ];
    prop::collection::vec(event, 1..30)
}

/// How many lives are tried: `PROPTEST_CASES`, or some for every run.
fn lives() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: lives(), ..ProptestConfig::default() })]

    /// No life with a good generation ends with neither it nor a better one, and no content that was refused is tried again.
    #[test]
    fn a_good_generation_always_returns(events in events()) {
        let mut node = good_node(Policy::All);
        for event in events {
            match event {
                Event::Publish(pods, config_is) => {
                    let mut documents = vec![config("p0", config_is)];
                    let pods = pods.iter().enumerate();
                    documents.extend(pods.map(|(at, (image, tag))| pod(&format!("p{at}"), &format!("{image}:{tag}"))));
                    node.publish(&documents);
                }
                Event::Wait(seconds) => node.wait(seconds),
                Event::KillBeforeWrite => {
                    node.uptime += Duration::from_secs(400);
                    node.start_pods();
                    node.run(false);
                    node.restart(false);
                }
                Event::Kill => node.restart(false),
                Event::Reboot => node.restart(true),
            }
            let view = &node.generations.views()[0];
            let is_good = |number: Option<u64>| {
                view.generations.iter().any(|generation| Some(generation.number) == number && generation.outcome == Outcome::Good)
            };
            let (state, _) = node.disk.load();
            let base = state.trial.as_ref().and_then(|trial| trial.base);
            prop_assert!(is_good(view.running) || is_good(base), "neither is good: {:?}", node.outcomes());
        }
        // The source rests: then what runs is good, and it stays. There are at most two switches: to its newest version, and
        // back.
        let switched = node.switches.borrow().len();
        node.wait(1_000);
        prop_assert!(node.switches.borrow().len() <= switched + 2, "back and forth: {:?}", &node.switches.borrow()[switched..]);
        let view = node.generations.views()[0].clone();
        let running = view.generations.iter().find(|generation| Some(generation.number) == view.running).unwrap();
        prop_assert_eq!(&running.outcome, &Outcome::Good);
        let (images, numbers) = (node.images(), node.outcomes());
        node.restart(true);
        node.restart(false);
        node.wait(1_000);
        prop_assert_eq!((node.images(), node.outcomes()), (images, numbers));
    }
}
