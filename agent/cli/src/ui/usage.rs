//! The screen of the usage of the node and its pods, and of what is short. Pure.

use serde_json::Value;

use super::feed::Figures;
use crate::screen::{Screen, Tone};
use crate::table::{Cell, Table};
use crate::top;
use limpet_model::node::Pressure;

/// The node's conditions and usage, and the pods' usage.
pub(super) fn page(figures: &Figures, screen: &Screen) -> String {
    let pods = match top::page(&figures.before, &figures.after, screen) {
        pods if pods.is_empty() => "Nothing runs.\n".to_owned(),
        pods => pods,
    };
    let conditions = conditions(figures.after.conditions.as_deref(), screen);
    format!("{}\n{conditions}\n{pods}", node(&figures.summary["node"], screen))
}

fn conditions(hold: Option<&[Pressure]>, screen: &Screen) -> String {
    let Some(hold) = hold else { return "Conditions: not measured yet\n".to_owned() };
    let condition = |pressure: Pressure| match hold.contains(&pressure) {
        true => screen.paint(Tone::Bad, &format!("{} True", pressure.as_str())),
        false => format!("{} False", pressure.as_str()),
    };
    format!("Conditions: {}\n", Pressure::ALL.map(condition).join(", "))
}

fn node(node: &Value, screen: &Screen) -> String {
    let fs = |fs_stats: &Value| (fs_stats["usedBytes"].as_u64(), fs_stats["availableBytes"].as_u64());
    let memory = &node["memory"];
    let left = |limit: &Value, used: &Value| limit.as_u64()?.checked_sub(used.as_u64()?);
    let (disk, images, ids) = (&node["fs"], &node["runtime"]["imageFs"], &node["rlimit"]);
    let bytes =
        |(used, available): (Option<u64>, Option<u64>)| (used.map(top::mebibytes), available.map(top::mebibytes));
    let count = |used: &Value, left: Option<u64>| (used.as_u64().map(|n| n.to_string()), left.map(|n| n.to_string()));
    let lines = [
        ("cpu", (node["cpu"]["usageNanoCores"].as_u64().map(top::millicores), None), &node["cpu"]["psi"]),
        ("memory", bytes((memory["workingSetBytes"].as_u64(), memory["availableBytes"].as_u64())), &memory["psi"]),
        (
            "swap",
            bytes((node["swap"]["swapUsageBytes"].as_u64(), node["swap"]["swapAvailableBytes"].as_u64())),
            &Value::Null,
        ),
        ("io", (None, None), &node["io"]["psi"]),
        ("disk", bytes(fs(disk)), &Value::Null),
        ("inodes", count(&disk["inodesUsed"], disk["inodesFree"].as_u64()), &Value::Null),
        ("images", bytes(fs(images)), &Value::Null),
        ("processes", count(&ids["curproc"], left(&ids["maxpid"], &ids["curproc"])), &Value::Null),
    ];
    let row = |(name, (used, available), psi): (&str, (Option<String>, Option<String>), &Value)| {
        let cell = |text: Option<String>| Cell::from(text.unwrap_or_else(|| "-".to_owned()));
        vec![Cell::from(name), cell(used), cell(available), cell(stalled(psi))]
    };
    let known = |line: &(&str, (Option<String>, Option<String>), &Value)| {
        line.0 == "cpu" || line.1.0.is_some() || stalled(line.2).is_some()
    };
    let rows: Vec<Vec<Cell>> = lines.into_iter().filter(known).map(row).collect();
    Table::new(vec!["NODE", "USED", "AVAILABLE", "STALLED(some/full, of 10s)"]).render(screen, &rows)
}

/// The share of the last ten seconds in which some, and in which all processes stalled.
fn stalled(psi: &Value) -> Option<String> {
    Some(format!("{:.1}% / {:.1}%", psi["some"]["avg10"].as_f64()?, psi["full"]["avg10"].as_f64()?))
}
