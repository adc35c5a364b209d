//! The results, as a table and as JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::whole_way::Whole;
use super::{ReadBeside, Samples};

/// The duration of kubelet's own merge for one changed pod, in microseconds, measured separately with one source.
const KUBELET: [(usize, f64); 4] = [(10, 190.0), (100, 1_700.0), (1_000, 12_700.0), (10_000, 136_000.0)];
/// The limit for one changed pod among 10,000, in microseconds, and relative to the time among 100.
const CHANGE_BUDGET: (f64, f64) = (10.0, 3.0);
/// The limit of the 99th percentile of the whole path, in microseconds.
const WHOLE_BUDGET: f64 = 2_000.0;

/// The results of one implementation.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) first: Samples,
    pub(crate) change: Samples,
    pub(crate) read_beside: ReadBeside,
}

/// Both implementations with so many pods.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) count: usize,
    pub(crate) limpet: Figures,
    pub(crate) plain: Figures,
}

fn kubelet(count: usize) -> f64 {
    KUBELET.iter().find(|(known, _)| *known == count).map_or(f64::NAN, |(_, took)| *took)
}

/// Writing to a string cannot fail.
macro_rules! line {
    ($text:expr, $($arguments:tt)*) => { writeln!($text, $($arguments)*).ok() };
}

pub(crate) fn print(rows: &[Row]) -> String {
    let mut text = String::new();
    line!(text, "first full merge of all sources, us (p50)");
    line!(text, "{:>8} {:>12} {:>12} {:>8}", "pods", "limpet", "plain", "ratio");
    for row in rows {
        let (limpet, plain) = (row.limpet.first.permille(500), row.plain.first.permille(500));
        line!(text, "{:>8} {limpet:>12.1} {plain:>12.1} {:>8.1}", row.count, plain / limpet);
    }
    line!(text, "\none changed pod, from publication to the receiver, us (p50 / p99); kubelet for reference");
    line!(text, "{:>8} {:>20} {:>20} {:>8} {:>10}", "pods", "limpet", "plain", "ratio", "kubelet");
    for row in rows {
        let (limpet, plain) = (pair(&row.limpet.change), pair(&row.plain.change));
        let ratio = row.plain.change.permille(500) / row.limpet.change.permille(500);
        line!(text, "{:>8} {limpet:>20} {plain:>20} {ratio:>8.1} {:>10.0}", row.count, kubelet(row.count));
    }
    line!(text, "\nthe same while two threads read, us (p50 / p99), and reads a second");
    line!(text, "{:>8} {:>20} {:>12} {:>20} {:>12}", "pods", "limpet", "reads/s", "plain", "reads/s");
    for row in rows {
        let [limpet, plain] = [&row.limpet.read_beside, &row.plain.read_beside];
        let (ours, theirs) = (pair(&limpet.changes), pair(&plain.changes));
        let [reads, other] = [limpet.reads_per_second, plain.reads_per_second];
        line!(text, "{:>8} {ours:>20} {reads:>12.2e} {theirs:>20} {other:>12.2e}", row.count);
    }
    let took =
        |count| rows.iter().find(|row| row.count == count).map_or(f64::NAN, |row| row.limpet.change.permille(500));
    let (many, few, (budget, times)) = (took(10_000), took(100), CHANGE_BUDGET);
    let verdict = if many <= budget && many <= times * few { "kept" } else { "MISSED" };
    line!(
        text,
        "\nbudget {verdict}: among 10,000 at most {budget} us ({many:.1}) and {times} x among 100 ({:.1})",
        many / few
    );
    text
}

pub(crate) fn print_whole(whole: &Whole) -> String {
    let Whole { files, changes, renaming, waking, reads, renames } = whole;
    let p99 = changes.permille(990);
    let verdict = if p99 <= WHOLE_BUDGET && *reads == *renames as u64 { "kept" } else { "MISSED" };
    format!(
        "\nfrom the rename of one manifest among {files} to the change received by the supervisor, us: p50 {:.0}, p99 {p99:.0}, max \
         {:.0} (and the rename itself: {}; to wake a sleeping thread and be woken by it: {})\nbudget {verdict}: p99 at most {WHOLE_BUDGET} us, one file read a rename ({reads} for {renames})\n",
        changes.permille(500),
        changes.permille(1_000),
        pair(renaming),
        pair(waking),
    )
}

fn pair(samples: &Samples) -> String {
    format!("{:.1} / {:.1}", samples.permille(500), samples.permille(990))
}

pub(crate) fn write_json(rows: &[Row], whole: &Whole, file: &Path) {
    let samples = |samples: &Samples| json!({ "p50": samples.permille(500), "p99": samples.permille(990) });
    let figures = |figures: &Figures| -> Value {
        json!({
            "first_merge": samples(&figures.first),
            "one_change": samples(&figures.change),
            "one_change_while_read": samples(&figures.read_beside.changes),
            "reads_per_second": figures.read_beside.reads_per_second,
        })
    };
    let row = |row: &Row| {
        json!({
            "pods": row.count, "limpet": figures(&row.limpet), "plain": figures(&row.plain),
            "kubelet": { "one_change": { "p50": kubelet(row.count) } },
        })
    };
    let document = json!({
        "unit": "us",
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "rename_to_change": {
            "files": whole.files, "renames": whole.renames, "files_read": whole.reads, "took": samples(&whole.changes),
            "rename_itself": samples(&whole.renaming), "thread_woken_and_back": samples(&whole.waking),
        },
    });
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, serde_json::to_vec_pretty(&document).unwrap()).unwrap();
}
