use serde_json::json;

use super::*;

const CARD: &str = "x.io/card";

fn uid(name: &str) -> PodUid {
    PodUid::new(name)
}

fn key(name: &str) -> PodKey {
    PodKey::new("default", name)
}

/// Devices by id; those that begin with `-` are not healthy.
fn devices(ids: &[&str]) -> BTreeMap<String, PluginDevice> {
    let device = |id: &&str| {
        let healthy = !id.starts_with('-');
        (id.trim_start_matches('-').to_owned(), PluginDevice { healthy, ..PluginDevice::default() })
    };
    ids.iter().map(device).collect()
}

fn inventory(ids: &[&str]) -> Inventory {
    let mut inventory = Inventory::default();
    inventory.connected(CARD, 1);
    inventory.listed(CARD, 1, devices(ids));
    inventory
}

/// A pod with these init containers, sidecars (`+name`) and regular containers.
fn spec(init: &[&str], main: &[&str]) -> PodSpec {
    let container = |name: &&str| {
        let always = name.starts_with('+').then_some("Always");
        json!({ "name": name.trim_start_matches('+'), "restartPolicy": always })
    };
    let (init, main): (Vec<_>, Vec<_>) = (init.iter().map(container).collect(), main.iter().map(container).collect());
    serde_json::from_value(json!({ "initContainers": init, "containers": main })).unwrap_or_default()
}

fn allocation(ids: &[String]) -> DeviceAllocation {
    DeviceAllocation { resource: CARD.to_owned(), ids: ids.to_vec(), ..DeviceAllocation::default() }
}

/// Gives the container of `pod` that many devices.
fn allocate(
    inventory: &mut Inventory,
    pod: &str,
    spec: &PodSpec,
    container: &str,
    count: usize,
) -> Result<Vec<String>, AllocationError> {
    let Some(choice) = inventory.choose(&uid(pod), spec, container, CARD, count)? else {
        return Ok(inventory.of_container(&uid(pod), container).flat_map(|devices| devices.ids.clone()).collect());
    };
    let ids = choice.pick(&[]);
    inventory.allocated(&key(pod), &uid(pod), container, allocation(&ids));
    Ok(ids)
}

fn counts(inventory: &Inventory) -> Option<(usize, usize)> {
    inventory.counts().get(CARD).map(|count| (count.capacity, count.allocatable))
}

#[test]
fn containers_have_devices_of_their_own_until_the_pod_ends() {
    let mut inventory = inventory(&["a", "b", "-c"]);
    let pod = spec(&[], &["main"]);
    assert_eq!(counts(&inventory), Some((3, 2)));
    assert_eq!(allocate(&mut inventory, "p", &pod, "main", 1), Ok(vec!["a".to_owned()]));
    assert_eq!(
        allocate(&mut inventory, "p", &pod, "main", 1),
        Ok(vec!["a".to_owned()]),
        "a second call changes nothing"
    );
    assert_eq!(allocate(&mut inventory, "q", &pod, "main", 1), Ok(vec!["b".to_owned()]));
    let none = AllocationError::Unavailable { resource: CARD.to_owned(), requested: 1, available: 0 };
    assert_eq!(allocate(&mut inventory, "r", &pod, "main", 1), Err(none));
    inventory.free(&key("p"));
    assert_eq!(allocate(&mut inventory, "r", &pod, "main", 1), Ok(vec!["a".to_owned()]));
}

/// The container, how many devices it requests, and their ids.
type Allocated<'a> = (&'a str, usize, &'a str);

#[test]
fn what_an_init_container_has_goes_to_those_after_it_and_a_sidecar_keeps_it() {
    let cases: [(&[&str], &[Allocated<'_>]); 4] = [
        (&["i"], &[("i", 2, "ab"), ("one", 1, "a"), ("two", 1, "b")]),
        (&["i", "+s"], &[("i", 2, "ab"), ("s", 1, "a"), ("one", 1, "b"), ("two", 1, "c")]),
        (&["+s", "i"], &[("s", 1, "a"), ("i", 1, "b"), ("one", 1, "b"), ("two", 1, "c")]),
        (&["i", "j"], &[("i", 1, "a"), ("j", 2, "ab"), ("one", 3, "abc")]),
    ];
    for (init, steps) in cases {
        let mut inventory = inventory(&["a", "b", "c"]);
        let spec = spec(init, &["one", "two"]);
        for (container, count, ids) in steps {
            let got = allocate(&mut inventory, "p", &spec, container, *count).map(|ids| ids.concat());
            assert_eq!(got.as_deref(), Ok(*ids), "{init:?}: {container}");
        }
    }
}

#[test]
fn the_plugin_chooses_among_what_is_free() {
    let free: BTreeSet<String> = ["a", "b", "c"].map(str::to_owned).into();
    let choice = |needed| Choice { reused: vec!["r".to_owned()], free: free.clone(), needed };
    let cases: [(usize, &[&str], &str); 6] = [
        (1, &[], "ar"),
        (1, &["c"], "cr"),
        (2, &["c"], "acr"),
        (1, &["r", "x", "b"], "br"),
        (2, &["c", "c", "b", "a"], "bcr"),
        (0, &["c"], "r"),
    ];
    for (needed, preferred, ids) in cases {
        let preferred: Vec<String> = preferred.iter().map(|id| (*id).to_owned()).collect();
        assert_eq!(choice(needed).pick(&preferred).concat(), ids, "{needed} {preferred:?}");
    }
}

#[test]
fn without_its_plugin_a_resource_is_unhealthy_and_then_gone() {
    let (mut inventory, now) = (inventory(&["a", "b"]), Instant::now());
    let pod = spec(&[], &["main"]);
    assert_eq!(allocate(&mut inventory, "p", &pod, "main", 1), Ok(vec!["a".to_owned()]));
    assert_eq!(inventory.expire(now), None);
    assert!(inventory.disconnected(CARD, 1, now) && !inventory.disconnected(CARD, 1, now));
    assert_eq!((counts(&inventory), inventory.offer(CARD), inventory.plugin(CARD)), (Some((2, 0)), 0, None));
    assert_eq!(inventory.unhealthy_of(&key("p"), CARD), 1);
    let refused = Err(AllocationError::NoneHealthy(CARD.to_owned()));
    assert_eq!(allocate(&mut inventory, "q", &pod, "main", 1), refused);
    assert_eq!(inventory.of_container(&uid("p"), "main").count(), 1, "a restart of the container gets the same");
    assert_eq!(inventory.expire(now + STOP_GRACE_PERIOD / 2), Some(now + STOP_GRACE_PERIOD));
    assert_eq!(counts(&inventory), Some((2, 0)));
    assert_eq!((inventory.expire(now + STOP_GRACE_PERIOD), counts(&inventory)), (None, Some((0, 0))));
    let gone = Err(AllocationError::Unregistered(CARD.to_owned()));
    assert_eq!(allocate(&mut inventory, "q", &pod, "main", 1), gone);

    inventory.connected(CARD, 2);
    assert!(inventory.listed(CARD, 2, devices(&["-a", "b"])) && !inventory.listed(CARD, 1, devices(&["z"])));
    let unhealthy = Err(AllocationError::Unhealthy(CARD.to_owned()));
    assert_eq!(allocate(&mut inventory, "p", &pod, "main", 1), unhealthy);
    assert_eq!(allocate(&mut inventory, "q", &pod, "main", 1), Ok(vec!["b".to_owned()]));
}

#[test]
fn a_plugin_that_is_replaced_takes_nothing_with_it() {
    let (mut inventory, now) = (inventory(&["a"]), Instant::now());
    inventory.connected(CARD, 2);
    assert!(inventory.listed(CARD, 2, devices(&["a", "b"])));
    inventory.disconnected(CARD, 1, now);
    assert_eq!((counts(&inventory), inventory.plugin(CARD)), (Some((2, 2)), Some(2)));
}

#[test]
fn what_is_recorded_on_containers_is_theirs_again_once_their_pod_claims_it() {
    let mut inventory = Inventory::default();
    inventory.adopt(&uid("p"), "main", &[allocation(&["a".to_owned()])]);
    inventory.adopt(&uid("q"), "main", &[allocation(&["b".to_owned()])]);
    let pod = spec(&[], &["main"]);
    let early = AllocationError::Unregistered(CARD.to_owned());
    assert_eq!(allocate(&mut inventory, "n", &pod, "main", 1), Err(early));
    inventory.connected(CARD, 1);
    inventory.listed(CARD, 1, devices(&["a", "b"]));
    assert!(inventory.has_had(&uid("p")));
    inventory.listed(CARD, 1, devices(&["a", "b", "c"]));
    assert_eq!(allocate(&mut inventory, "first", &pod, "main", 1), Ok(vec!["c".to_owned()]), "a and b are p's and q's");
    inventory.restore(&key("p"), &uid("p"));
    assert_eq!(allocate(&mut inventory, "p", &pod, "main", 1), Ok(vec!["a".to_owned()]));
    assert_eq!(allocate(&mut inventory, "n", &pod, "main", 1), Ok(vec!["b".to_owned()]), "q has ended");
    inventory.restore(&key("q"), &uid("q"));
    assert_eq!(inventory.of_container(&uid("q"), "main").count(), 0, "another pod has it now");
}

#[test]
fn an_edit_of_the_number_keeps_what_there_is() {
    let mut inventory = inventory(&["a", "b", "c"]);
    let pod = spec(&[], &["main"]);
    for (count, ids) in [(2, "ab"), (3, "abc"), (1, "a")] {
        let got = allocate(&mut inventory, "p", &pod, "main", count).map(|ids| ids.concat());
        assert_eq!(got.as_deref(), Ok(ids));
    }
    inventory.withdraw(&uid("p"), "main", &[]);
    assert_eq!(inventory.of_container(&uid("p"), "main").count(), 0, "it asks for none");
}

#[test]
fn what_a_plugin_did_not_give_is_free_again() {
    let mut inventory = inventory(&["a"]);
    let pod = spec(&[], &["main"]);
    inventory.reserve(&key("p"), &uid("p"), "main", CARD, vec!["a".to_owned()]);
    assert!(allocate(&mut inventory, "q", &pod, "main", 1).is_err());
    assert_eq!(inventory.of_container(&uid("p"), "main").count(), 0);
    inventory.withdraw(&uid("p"), "main", &[(CARD, 1)]);
    assert_eq!(allocate(&mut inventory, "q", &pod, "main", 1), Ok(vec!["a".to_owned()]));
}
