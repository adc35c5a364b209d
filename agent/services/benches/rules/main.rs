//! Connections a second through a Service with 1 to 1,000 endpoints, by limpet's rules and by those of kube-proxy (nftables), beside
//! the pod's own address; and how long each takes until the kernel follows a change.
//!
//! All of it is in a network of the bench's own. The endpoints are addresses of one interface in another network, where one program
//! answers at all of them, so that what is measured is the kernel's way to them.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "kube_proxy.rs"]
mod kube_proxy;
#[path = "pods.rs"]
mod pods;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use limpet_model::object::local_service::Protocol;
use limpet_services::Settings;
use limpet_services::backend::{Backend as _, Linux};
use limpet_services::membership::Endpoint;
use limpet_services::rules::{Choice, Forward, Ruleset};
use limpet_services::settings::ServiceSettings;
use limpet_tests::footprint::Footprint;
use limpet_tests::{measure, own_network, wait};
use pods::Pods;
use serde_json::{Value, json};

/// The numbers of endpoints.
const ENDPOINTS: [usize; 4] = [1, 10, 100, 1_000];
/// How long connections are counted in each turn, to each of two addresses.
const TURN: Duration = Duration::from_secs(1);
/// The time between two tries to connect.
const INTERVAL: Duration = Duration::from_micros(500);
/// The Service's address under limpet.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 43, 0, 99);

fn main() {
    own_network::enter().unwrap();
    wait::end_on_signal();
    let turns = measure::setting(measure::RUNS_VARIABLE, 5).unwrap().min(5);
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let pods = Pods::start(dir.path(), ENDPOINTS[ENDPOINTS.len() - 1]);
    println!("{turns} turns of {TURN:?} each, one connection after the other");
    let mut rows = by_limpet(dir.path(), &pods, turns);
    rows.extend(kube_proxy::measure(dir.path(), &pods, turns));
    rows.iter().for_each(print);
    measure::write_document(env!("CARGO_TARGET_TMPDIR"), "rules", &json!({ "rows": rows })).unwrap();
}

/// Connections a second to a pod's own address and then to that one, in each turn.
fn rates(pods: &Pods, address: SocketAddr, turns: usize) -> Vec<[f64; 2]> {
    (0..turns).map(|_| [pods.address(0), address].map(rate)).collect()
}

fn rate(address: SocketAddr) -> f64 {
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < TURN {
        pods::connect(address).unwrap();
        count += 1;
    }
    f64::from(count) / begun.elapsed().as_secs_f64()
}

fn row(who: &str, endpoints: usize, follows: Duration, rates: &[[f64; 2]]) -> Value {
    let shares = rates.iter().map(|[plain, through]| through / plain).collect();
    json!({
        "who": who, "endpoints": endpoints, "follows_ms": follows.as_secs_f64() * 1e3, "rates": rates,
        "plain": median(rates.iter().map(|[plain, _]| *plain).collect()),
        "through": median(rates.iter().map(|[_, through]| *through).collect()), "share": median(shares),
    })
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print(row: &Value) {
    let figure = |key: &str| row[key].as_f64();
    let (Some(plain), Some(through), Some(share)) = (figure("plain"), figure("through"), figure("share")) else {
        return;
    };
    let (who, endpoints) = (row["who"].as_str().unwrap_or_default(), row["endpoints"].as_u64().unwrap_or_default());
    let follows = figure("follows_ms").unwrap_or_default();
    println!(
        "{who:<11} {endpoints:>5} endpoints: {through:>7.0} connections/s, {plain:>7.0} to the pod's own address ({:>3.0} %); follows \
         in {follows:.1} ms",
        share * 100.0
    );
}

fn ruleset(settings: &Settings, pods: &Pods, endpoints: usize) -> Ruleset {
    let end = |number: usize| {
        let address = pods.address(number);
        Endpoint { address: address.ip(), port: address.port(), is_of_node: false }
    };
    let forward = Forward {
        protocol: Protocol::Tcp,
        is_ipv4: true,
        service: Some((IpAddr::V4(ADDRESS), 80)),
        node_ports: Vec::new(),
        choice: Choice::Random((0..endpoints).map(end).collect()),
    };
    Ruleset {
        ranges: settings.ranges.clone(),
        name_servers: settings.name_servers.clone(),
        forwards: vec![forward],
        ..Ruleset::default()
    }
}

/// limpet's own rules, written as its agent writes them.
fn by_limpet(dir: &std::path::Path, pods: &Pods, turns: usize) -> Vec<Value> {
    let place = (dir.join("root"), dir.join("run"));
    [&place.0, &place.1].iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let settings = Settings::new(ServiceSettings::default(), (&[], "cluster.local"), None, place);
    let backend = Linux::new(settings.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = SocketAddr::from((ADDRESS, 80));
    let mut rows = Vec::new();
    for endpoints in ENDPOINTS {
        let rules = ruleset(&settings, pods, endpoints);
        // One that is there already is replaced, as after a change.
        runtime.block_on(backend.apply(rules.clone(), false)).unwrap();
        let begun = Instant::now();
        runtime.block_on(backend.apply(rules, false)).unwrap();
        let follows = begun.elapsed();
        rows.push(row("limpet", endpoints, follows, &rates(pods, address, turns)));
    }
    runtime.block_on(backend.clear()).unwrap();
    rows
}

/// Waits until something accepts a connection at the address. Returns how long that took.
fn answers_after(address: SocketAddr, begun: Instant) -> Duration {
    wait::until_every(INTERVAL, wait::SOON * 2, "a connection", || {
        TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()
    })
    .unwrap();
    begun.elapsed()
}

/// The private memory of a process, in KiB.
fn private(pid: u32) -> u64 {
    Footprint::measure(pid).private
}
