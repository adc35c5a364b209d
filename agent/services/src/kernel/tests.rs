use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use limpet_tests::need;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;

use super::*;
use crate::membership::Definition;
use crate::membership::tests::{definition, named, pod, pods, served};
use crate::settings::tests::settings;
use crate::table_removal::TableRemovals;

/// A process that is killed at the end of the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `test` in a network of its own, in which loopback has the addresses of two pods. Not without root.
fn in_a_network(test: impl FnOnce() + Send + 'static) {
    if need::root("a network namespace").is_none() {
        return;
    }
    let mut command = Command::new("unshare");
    let script = "ip link set lo up && ip addr add 10.1.0.2/32 dev lo && ip addr add 10.1.0.3/32 dev lo && ip addr add fd00::5/128 dev lo nodad && echo; exec cat";
    command.args(["--net", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let network = fs::File::open(format!("/proc/{}/ns/net", child.id())).unwrap();
    let _ended = Ended(child);
    let entered = move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        test();
    };
    thread::spawn(entered).join().unwrap();
}

fn rules(definitions: &[Definition], ends: &[&str]) -> Ruleset {
    let all = ends.iter().enumerate().map(|(index, end)| pod(&format!("p{index}"), end, true, json!({})));
    Ruleset::new(&settings(), &served(definitions, &pods(all)))
}

fn ours() -> io::Result<bool> {
    exists(&nftables::table_request(false, TABLE))
}

#[test]
fn the_removal_of_the_table_is_reported() {
    in_a_network(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            replace(&rules(&[named("plain", json!({}))], &["10.1.0.2"]), BridgeTraffic::Unfiltered).unwrap();
            let mut removals = TableRemovals::listen().unwrap();
            Socket::netfilter().unwrap().perform(&nftables::removal()).unwrap();
            tokio::time::timeout(Duration::from_secs(60), removals.next()).await.unwrap().unwrap();
        });
    });
}

#[test]
fn the_kernel_accepts_every_kind_of_rule_and_removes_all_of_them() {
    in_a_network(|| {
        let both = json!({"ipFamilyPolicy": "PreferDualStack", "type": "LoadBalancer", "sessionAffinity": "ClientIP"});
        let definitions = [definition(both), named("plain", json!({"ipFamilyPolicy": "PreferDualStack"}))];
        let (single, several) = (rules(&definitions, &["10.1.0.2"]), rules(&definitions, &["10.1.0.2", "10.1.0.3"]));
        assert!(!ours().unwrap());
        for rules in [&Ruleset::default(), &single, &several] {
            for bridges in [BridgeTraffic::Filtered, BridgeTraffic::Unfiltered] {
                replace(rules, bridges).unwrap();
                assert!(ours().unwrap());
            }
        }
        let settings = settings();
        local_network::prepare(&settings.name_servers, &settings.ranges).unwrap();
        local_network::prepare(&settings.name_servers, &settings.ranges).unwrap();
        assert_eq!(local_network::overlap(&settings.ranges).unwrap(), None);
        local_network::clear(&settings.name_servers, &settings.ranges).unwrap();
        local_network::clear(&settings.name_servers, &settings.ranges).unwrap();
        Socket::netfilter().unwrap().perform(&nftables::removal()).unwrap();
        Socket::netfilter().unwrap().perform(&nftables::removal()).unwrap();
        assert!(!ours().unwrap());
    });
}

#[test]
fn many_endpoints_fit_into_one_transaction() {
    in_a_network(|| {
        let ends: Vec<String> = (0..2_000).map(|number| format!("10.2.{}.{}", number / 250, number % 250)).collect();
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        replace(&rules(&[definition(json!({}))], &ends), BridgeTraffic::Filtered).unwrap();
    });
}

/// Answers each connection with the address that it has accepted it at.
fn serve_tcp(address: &'static str) {
    let listener = TcpListener::bind((address, 8080)).unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            stream.write_all(address.as_bytes()).unwrap();
        }
    });
}

fn reached(address: &str, port: u16) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&format!("{address}:{port}").parse().unwrap(), Duration::from_secs(5))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn connections_reach_the_endpoints_and_are_refused_where_there_is_none() {
    in_a_network(|| {
        let settings = settings();
        local_network::prepare(&settings.name_servers, &settings.ranges).unwrap();
        let node_port = json!([{"name": "http", "port": 80, "targetPort": "web", "nodePort": 30080}]);
        let web = || definition(json!({"clusterIP": "10.43.0.9", "type": "NodePort", "ports": node_port}));
        let sticky = || named("sticky", json!({"clusterIP": "10.43.0.8", "sessionAffinity": "ClientIP"}));
        serve_tcp("10.1.0.2");
        serve_tcp("10.1.0.3");
        replace(&rules(&[web(), sticky()], &["10.1.0.2", "10.1.0.3"]), BridgeTraffic::Filtered).unwrap();
        let reach = |address| (0..40).map(|_| reached(address, 80).unwrap()).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(reach("10.43.0.9").len(), 2, "both endpoints");
        assert_eq!(reach("10.43.0.8").len(), 1, "the client's own endpoint");
        assert!(reached("10.1.0.2", 30_080).is_ok(), "by the node's port");
        let server = TcpListener::bind(("10.43.0.10", 30_080)).unwrap();
        let _to_name_server = TcpStream::connect(("10.43.0.10", 30_080)).unwrap();
        assert!(server.accept().is_ok(), "the name server's address has no ports of the node");
        replace(&rules(&[web()], &["10.1.0.3"]), BridgeTraffic::Filtered).unwrap();
        assert_eq!(reach("10.43.0.9").into_iter().collect::<Vec<_>>(), ["10.1.0.3"]);
        replace(&rules(&[web()], &[]), BridgeTraffic::Filtered).unwrap();
        assert_eq!(reached("10.43.0.9", 80).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(reached("10.43.7.7", 80).unwrap_err().kind(), io::ErrorKind::ConnectionRefused, "no Service");
    });
}

#[test]
fn both_families_reach_the_pods_addresses() {
    in_a_network(|| {
        let settings = settings();
        local_network::prepare(&settings.name_servers, &settings.ranges).unwrap();
        let both = json!({"ipFamilyPolicy": "PreferDualStack", "clusterIPs": ["10.43.0.9", "fd00:43::9"]});
        serve_tcp("10.1.0.2");
        serve_tcp("fd00::5");
        for bridges in [BridgeTraffic::Filtered, BridgeTraffic::Unfiltered] {
            replace(&rules(&[definition(both.clone())], &["10.1.0.2"]), bridges).unwrap();
            assert_eq!(reached("10.43.0.9", 80).unwrap(), "10.1.0.2");
            assert_eq!(reached("[fd00:43::9]", 80).unwrap(), "fd00::5");
        }
        assert_eq!(reached("[fd00:43::8]", 80).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_pod_sees_its_client_unless_that_comes_by_a_port_of_the_node() {
    in_a_network(|| {
        let settings = settings();
        local_network::prepare(&settings.name_servers, &settings.ranges).unwrap();
        let port = json!([{"name": "log", "port": 5140, "protocol": "UDP", "targetPort": 5141}]);
        let by_address = definition(json!({"clusterIP": "10.43.0.9", "ports": port}));
        // Its number is a port of the node, too.
        let balanced = named("balanced", json!({"clusterIP": "10.43.0.8", "type": "LoadBalancer", "ports": port}));
        let server = UdpSocket::bind(("10.1.0.2", 5141)).unwrap();
        thread::spawn(move || {
            let mut bytes = [0; 16];
            while let Ok((_, client)) = server.recv_from(&mut bytes) {
                server.send_to(client.ip().to_string().as_bytes(), client).unwrap();
            }
        });
        replace(&rules(&[by_address, balanced], &["10.1.0.2"]), BridgeTraffic::Filtered).unwrap();
        let seen = |by: &str| {
            let client = UdpSocket::bind("10.1.0.3:0").unwrap();
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            client.connect((by, 5140)).unwrap();
            client.send(b"?").unwrap();
            let mut bytes = [0; 16];
            let length = client.recv(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        assert_eq!(["10.43.0.9", "10.43.0.8"].map(seen), ["10.1.0.3", "10.1.0.3"]);
        assert_ne!(seen("10.1.0.3"), "10.1.0.3", "by the node's port");
    });
}

#[test]
fn a_client_by_udp_follows_to_an_endpoint_that_is_there() {
    in_a_network(|| {
        let settings = settings();
        local_network::prepare(&settings.name_servers, &settings.ranges).unwrap();
        let ports = json!([{"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353}]);
        let service = || definition(json!({"clusterIP": "10.43.0.9", "ports": ports}));
        for address in ["10.1.0.2", "10.1.0.3"] {
            let socket = UdpSocket::bind((address, 5353)).unwrap();
            thread::spawn(move || {
                let mut bytes = [0; 16];
                while let Ok((_, client)) = socket.recv_from(&mut bytes) {
                    socket.send_to(address.as_bytes(), client).unwrap();
                }
            });
        }
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.connect("10.43.0.9:53").unwrap();
        let ask = || {
            client.send(b"?").unwrap();
            let mut bytes = [0; 16];
            let length = client.recv(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        replace(&rules(&[service()], &["10.1.0.2"]), BridgeTraffic::Filtered).unwrap();
        assert_eq!(ask(), "10.1.0.2");
        let next = rules(&[service()], &["10.1.0.3"]);
        replace(&next, BridgeTraffic::Filtered).unwrap();
        assert_eq!(ask(), "10.1.0.2", "the kernel remembers it");
        assert_eq!(conntrack::forget_others(&next.udp()).unwrap(), 1);
        assert_eq!(ask(), "10.1.0.3");
        assert_eq!(conntrack::forget_others(&next.udp()).unwrap(), 0);
    });
}

#[test]
fn kube_proxy_and_networks_in_the_range_are_found() {
    in_a_network(|| {
        check(&settings()).unwrap();
        let add = Command::new("ip").args(["link", "add", "eth0", "type", "veth", "peer", "name", "p0"]).status();
        assert!(add.unwrap().success());
        let add = Command::new("ip").args(["addr", "add", "10.43.1.1/24", "dev", "eth0"]).status();
        assert!(add.unwrap().success());
        assert_eq!(
            check(&settings()).unwrap_err().to_string(),
            "10.43.1.1 of eth0 is in a range of Services: set services.clusterIPRanges to one that no network here has"
        );
    });
}
