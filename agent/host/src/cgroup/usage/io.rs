//! What a group has read and written, by block device.

use std::collections::BTreeMap;
use std::fs;

/// What a group has done on a device, since the group was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// The device's file: `/dev/sda`.
    pub device: String,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// By the device's number, `8:0`.
pub(super) type Counters = BTreeMap<String, DeviceIo>;

/// `io.stat` of v2: `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …`.
pub(super) fn v2(stat: &str) -> Counters {
    let mut all = Counters::new();
    for line in stat.lines() {
        let Some((number, values)) = line.split_once(' ') else { continue };
        let value = |name: &str| -> Option<u64> {
            values.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        // A line of another kind only, such as `cost.usage`, has no counters.
        let Some(read_bytes) = value("rbytes") else { continue };
        let counter = |name| value(name).unwrap_or_default();
        let io = DeviceIo {
            device: String::new(),
            read_bytes,
            written_bytes: counter("wbytes"),
            reads: counter("rios"),
            writes: counter("wios"),
        };
        all.insert(number.to_owned(), io);
    }
    all
}

/// `blkio.throttle.io_service_bytes` and `blkio.throttle.io_serviced` of v1: `8:0 Read 1`.
pub(super) fn v1(bytes: &str, operations: &str) -> Counters {
    let mut all = Counters::new();
    for (text, of_bytes) in [(bytes, true), (operations, false)] {
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(number), Some(kind), Some(Ok(value))) =
                (words.next(), words.next(), words.next().map(str::parse))
            else {
                continue;
            };
            let io = all.entry(number.to_owned()).or_default();
            match (kind, of_bytes) {
                ("Read", true) => io.read_bytes = value,
                ("Write", true) => io.written_bytes = value,
                ("Read", false) => io.reads = value,
                ("Write", false) => io.writes = value,
                _ => {}
            }
        }
    }
    all
}

/// The counters with their devices' names. A removed device keeps its number.
pub(super) fn named(counters: Counters) -> Vec<DeviceIo> {
    let name = |number: &str| {
        let properties = fs::read_to_string(format!("/sys/dev/block/{number}/uevent")).ok()?;
        let name = properties.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
        Some(format!("/dev/{name}"))
    };
    let with_name = |(number, io): (String, DeviceIo)| DeviceIo { device: name(&number).unwrap_or(number), ..io };
    counters.into_iter().map(with_name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_count_the_same() {
        let stat = "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n7:1 \n259:0 cost.usage=1\n";
        let io = DeviceIo { device: String::new(), read_bytes: 4096, written_bytes: 8192, reads: 1, writes: 2 };
        assert_eq!(v2(stat), Counters::from([("8:0".to_owned(), io.clone())]));
        let bytes = "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 1\n8:0 Total 12288\nTotal 12288\n";
        let operations = "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n";
        assert_eq!(v1(bytes, operations), Counters::from([("8:0".to_owned(), io)]));
        assert_eq!(v1("Total 0\n", "Total 0\n"), Counters::new());
    }

    #[test]
    fn a_device_that_is_gone_has_its_number() {
        let counters = Counters::from([("4095:7".to_owned(), DeviceIo::default())]);
        assert_eq!(named(counters).first().map(|io| io.device.as_str()), Some("4095:7"));
    }
}
