use limpet_model::object::local_service::{Families, Port, Target};

use super::*;
use crate::settings::tests::settings;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service(kind: ServiceKind) -> LocalService {
    let port = |number| Port {
        name: "".into(),
        protocol: Protocol::Tcp,
        number,
        target: Target::Number(number),
        node_port: None,
    };
    LocalService { kind, ports: vec![port(80)], ..LocalService::default() }
}

fn asking(address: &str) -> LocalService {
    LocalService { addresses: vec![ip(address)], ..service(ServiceKind::ClusterIp) }
}

fn name(name: &str) -> Name {
    ("shop".to_owned(), name.to_owned())
}

fn assign(book: &mut Book, services: &[(&str, LocalService)]) -> BTreeMap<Name, String> {
    let services = services.iter().map(|(known, service)| (name(known), service)).collect();
    book.assign(&settings(), &services, false)
}

#[test]
fn addresses_derive_from_the_name_and_stay() {
    let mut book = Book::default();
    let web = || ("web", service(ServiceKind::ClusterIp));
    assert!(assign(&mut book, &[web()]).is_empty());
    let address = book.assigned[&name("web")].addresses.clone();
    // Pinned: another value would move the Services of all nodes.
    assert_eq!(address, [ip("10.43.225.189")]);
    let mut other = Book::default();
    assign(&mut other, &[("db", service(ServiceKind::ClusterIp)), web()]);
    assert_eq!(other.assigned[&name("web")].addresses, address);
    let claimed = ("thief", asking("10.43.225.189"));
    assert_eq!(
        assign(&mut book, &[claimed.clone(), web()])[&name("thief")],
        "clusterIP 10.43.225.189: the provided IP is already allocated"
    );
    assert_eq!(book.assigned[&name("web")].addresses, address);
    // Without a memory the one that asks for it has it, and what derives it gets the next one.
    let mut fresh = Book::default();
    assert!(assign(&mut fresh, &[claimed, web()]).is_empty());
    let next = fresh.assigned[&name("web")].addresses.clone();
    assert_eq!(next, [ip("10.43.225.190")]);
    // It keeps that when the other one is gone.
    assign(&mut fresh, &[web()]);
    assert_eq!(fresh.assigned[&name("web")].addresses, next);
}

#[test]
fn what_is_asked_for_is_checked() {
    let faults = |service: LocalService| assign(&mut Book::default(), &[("web", service)]).remove(&name("web"));
    assert_eq!(faults(asking("10.43.0.20")), None);
    assert!(faults(asking("10.44.0.20")).unwrap().contains("not in the valid range, which is 10.43.0.0/16"));
    assert!(faults(asking("10.43.0.10")).unwrap().contains("already allocated"), "the name server's");
    let mut on_port = service(ServiceKind::NodePort);
    on_port.ports[0].node_port = Some(80);
    assert!(faults(on_port.clone()).unwrap().contains("not in the valid range, which is 30000-32767"));
    on_port.ports[0].node_port = Some(30_080);
    let two = [("a", on_port.clone()), ("b", on_port)];
    let mut book = Book::default();
    let refused = assign(&mut book, &two);
    assert_eq!(refused.keys().collect::<Vec<_>>(), [&name("b")]);
    assert_eq!(book.assigned[&name("a")].node_ports["TCP/80"], 30_080);
}

#[test]
fn node_ports_differ_by_protocol_and_load_balancers_have_their_own_ports() {
    let mut both = service(ServiceKind::LoadBalancer);
    both.ports.push(Port { protocol: Protocol::Udp, ..both.ports[0].clone() });
    let mut book = Book::default();
    assert!(assign(&mut book, &[("dns", both.clone())]).is_empty());
    let ports = &book.assigned[&name("dns")].node_ports;
    assert_eq!((ports["TCP/80/balanced"], ports["UDP/80/balanced"]), (80, 80));
    assert!(ports["TCP/80"] >= 30_086 && ports["UDP/80"] >= 30_086, "{ports:?}");
    assert!(assign(&mut book, &[("aaa", both.clone()), ("dns", both)])[&name("aaa")].contains("port 80 (TCP)"));
    assert!(book.assigned.contains_key(&name("dns")));
}

#[test]
fn families_follow_the_policy() {
    let with = |named: &[bool], policy| LocalService {
        families: Families { named: named.to_vec(), policy },
        ..service(ServiceKind::ClusterIp)
    };
    let both = settings().ranges;
    let of_ranges = |ranges: &[Cidr], service: &LocalService| {
        families(ranges, service).map(|ranges| ranges.iter().map(Cidr::is_ipv4).collect::<Vec<_>>())
    };
    assert_eq!(of_ranges(&both, &with(&[], FamilyPolicy::SingleStack)), Ok(vec![true]));
    assert_eq!(of_ranges(&both, &with(&[false], FamilyPolicy::SingleStack)), Ok(vec![false]));
    assert_eq!(of_ranges(&both, &with(&[], FamilyPolicy::PreferDualStack)), Ok(vec![true, false]));
    assert_eq!(of_ranges(&both, &with(&[false], FamilyPolicy::RequireDualStack)), Ok(vec![false, true]));
    assert_eq!(of_ranges(&both[..1], &with(&[], FamilyPolicy::PreferDualStack)), Ok(vec![true]));
    assert!(of_ranges(&both[..1], &with(&[], FamilyPolicy::RequireDualStack)).is_err());
    assert!(of_ranges(&both[..1], &with(&[false], FamilyPolicy::SingleStack)).unwrap_err().contains("IPv6"));
}

#[test]
fn what_a_service_has_that_may_still_come_is_not_given_away() {
    let mut book = Book::default();
    let first = asking("10.43.0.20");
    assign(&mut book, &[("web", first.clone())]);
    let thief = [(name("thief"), &first)].into();
    assert!(book.assign(&settings(), &thief, true).contains_key(&name("thief")));
    assert!(book.assigned.contains_key(&name("web")));
    assert!(book.assign(&settings(), &thief, false).is_empty());
    assert!(!book.assigned.contains_key(&name("web")));
}

#[test]
fn a_full_range_says_so() {
    let services: Vec<(String, LocalService)> =
        (0..20).map(|number| (format!("s{number}"), service(ServiceKind::ClusterIp))).collect();
    let map = services.iter().map(|(known, service)| (name(known), service)).collect();
    let small = Settings { ranges: vec!["10.43.0.0/28".parse().unwrap()], ..settings() };
    let mut book = Book::default();
    let faults = book.assign(&small, &map, false);
    // Without the first and the last one, and the name server's.
    assert_eq!((book.assigned.len(), faults.len()), (13, 7));
    assert!(faults.values().all(|fault| fault == "all addresses of 10.43.0.0/28 are allocated"), "{faults:?}");
}

#[test]
fn a_port_of_the_node_that_was_derived_is_in_the_range_of_today() {
    let mut book = Book::default();
    let services = [(name("web"), service(ServiceKind::NodePort))];
    let services: BTreeMap<Name, &LocalService> = services.iter().map(|(name, known)| (name.clone(), known)).collect();
    let mut assigned = |settings: &Settings| {
        assert!(book.assign(settings, &services, false).is_empty());
        book.assigned[&name("web")].node_ports["TCP/80"]
    };
    let before = assigned(&settings());
    assert_eq!(assigned(&settings()), before);
    let other = Settings { node_ports: 20_000..=20_099, ..settings() };
    assert!(other.node_ports.contains(&assigned(&other)));
}
