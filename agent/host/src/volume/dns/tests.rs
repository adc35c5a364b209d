//! kubelet's tables for dnsPolicy, dnsConfig and the limits.

use serde_json::json;

use super::*;

const NODE: &str = "# by hand\nnameserver 10.0.0.1\n search lan. .\noptions ndots:2 rotate\n; no\ndomain x\n";

fn pod(policy: &str, host_network: bool, config: serde_json::Value) -> DnsRequest {
    DnsRequest {
        pod: "ns/web".to_owned(),
        namespace: "ns".to_owned(),
        policy: Some(policy.to_owned()),
        host_network,
        config: serde_json::from_value(config).unwrap(),
    }
}

fn cluster(nameservers: &[&str], domain: &str) -> ClusterDns {
    ClusterDns { nameservers: nameservers.iter().map(|ip| ip.parse().unwrap()).collect(), domain: domain.to_owned() }
}

#[test]
fn files_are_parsed() {
    let table = [
        ("", "", "", ""),
        (NODE, "10.0.0.1", "lan", "ndots:2 rotate"),
        ("nameserver\nnameserver  10.0.0.1  x\nnameserver ::1%eth0", "10.0.0.1 ::1%eth0", "", ""),
        ("search a b\nsearch c", "", "c", ""),
        ("options ndots:1 edns0\noptions ndots:3", "", "", "ndots:3 edns0"),
    ];
    for (text, nameservers, searches, options) in table {
        let resolver = Resolver::parse(text);
        assert_eq!(resolver.nameservers.join(" "), nameservers, "{text}");
        assert_eq!(resolver.searches.join(" "), searches, "{text}");
        assert_eq!(resolver.options.join(" "), options, "{text}");
    }
}

#[test]
fn policies() {
    const OF_NODE: &str = "search lan\nnameserver 10.0.0.1\noptions ndots:2 rotate\n";
    const CLUSTER: &str = "search ns.svc.c.local svc.c.local c.local lan\nnameserver 10.96.0.10\noptions ndots:5\n";
    let dns = cluster(&["10.96.0.10"], "c.local");
    let none = cluster(&[], "c.local");
    // policy, hostNetwork, clusterDNS, file, reasons of warnings
    let table: [(&str, bool, &ClusterDns, &str, &[&str]); 9] = [
        ("Default", false, &dns, OF_NODE, &[]),
        ("Default", true, &dns, OF_NODE, &[]),
        ("ClusterFirst", false, &dns, CLUSTER, &[]),
        ("ClusterFirst", true, &dns, OF_NODE, &[]),
        ("ClusterFirstWithHostNet", true, &dns, CLUSTER, &[]),
        ("ClusterFirst", false, &none, OF_NODE, &["MissingClusterDNS"]),
        ("ClusterFirstWithHostNet", true, &none, OF_NODE, &["MissingClusterDNS"]),
        ("ClusterFirst", true, &none, OF_NODE, &[]),
        ("None", false, &dns, "", &[]),
    ];
    for (policy, host_network, cluster, file, reasons) in table {
        let node = Resolver::parse(NODE);
        let (resolved, warnings) = resolve(&pod(policy, host_network, json!(null)), Some(&node), cluster);
        assert_eq!(resolved.render(), file, "{policy}, hostNetwork {host_network}");
        assert_eq!(warnings.iter().map(|warning| warning.reason).collect::<Vec<_>>(), reasons, "{policy}");
    }
}

#[test]
fn no_cluster_domain_adds_no_searches() {
    let node = Resolver::parse(NODE);
    let request = pod("ClusterFirst", false, json!(null));
    let (resolved, _) = resolve(&request, Some(&node), &cluster(&["10.96.0.10"], ""));
    assert_eq!(resolved.render(), "search lan\nnameserver 10.96.0.10\noptions ndots:5\n");
}

#[test]
fn an_empty_resolv_conf_setting_turns_lookups_off() {
    let (resolved, warnings) = resolve(&pod("Default", false, json!(null)), None, &cluster(&[], ""));
    assert_eq!((resolved.render().as_str(), warnings.len()), ("search .\nnameserver 127.0.0.1\n", 0));
}

#[test]
fn dns_config_is_merged() {
    let config = json!({
        "nameservers": ["1.1.1.1", "10.0.0.1"],
        "searches": ["my.domain", "lan"],
        "options": [{"name": "ndots", "value": "7"}, {"name": "edns0"}, {"name": "rotate", "value": ""}],
    });
    let table = [
        ("Default", "search lan my.domain\nnameserver 10.0.0.1\nnameserver 1.1.1.1\noptions ndots:7 rotate edns0\n"),
        ("None", "search my.domain lan\nnameserver 1.1.1.1\nnameserver 10.0.0.1\noptions ndots:7 edns0 rotate\n"),
    ];
    for (policy, file) in table {
        let node = Resolver::parse(NODE);
        let (resolved, _) = resolve(&pod(policy, false, config.clone()), Some(&node), &cluster(&[], ""));
        assert_eq!(resolved.render(), file, "{policy}");
    }
}

#[test]
fn limits() {
    let long = "x".repeat(254);
    let wide: Vec<String> = (0..20).map(|index| format!("{index:03}{}", "y".repeat(147))).collect();
    let many: Vec<String> = (0..40).map(|index| format!("s{index}")).collect();
    // dnsConfig, nameservers left, searches left, warnings
    let table = [
        (json!({"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3"]}), 3, 0, 0),
        (json!({"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]}), 3, 0, 1),
        (json!({"searches": many}), 0, 32, 1),
        (json!({"searches": [long, "a"]}), 0, 1, 1),
        (json!({"searches": wide}), 0, 13, 1),
    ];
    for (config, nameservers, searches, warned) in table {
        let (resolved, warnings) = resolve(&pod("None", false, config.clone()), None, &cluster(&[], ""));
        assert_eq!(resolved.nameservers.len(), nameservers, "{config}");
        assert_eq!(resolved.searches.len(), searches, "{config}");
        assert_eq!(warnings.len(), warned, "{config}");
        assert!(warnings.iter().all(|warning| warning.reason == "DNSConfigForming"));
    }
}

#[test]
fn an_unreachable_stub_resolver_is_reported() {
    let node = Resolver::parse("nameserver 127.0.0.53\n");
    for (host_network, warned) in [(false, 1), (true, 0)] {
        let (_, warnings) = resolve(&pod("Default", host_network, json!(null)), Some(&node), &cluster(&[], ""));
        assert_eq!(warnings.len(), warned);
    }
}
