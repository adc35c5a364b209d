//! A query of kubelet's node logs, with kubelet's checks and messages. Pure.

use std::borrow::Cow;

use jiff::Timestamp;

/// The most lines that may be requested.
const MAX_LINES: i64 = 100_000;
const MAX_SERVICES: usize = 4;
/// The longest name of a service, in bytes.
const MAX_NAME: usize = 256;
/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 1_024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) services: Vec<String>,
    /// Files: names that contain a slash.
    pub(super) files: Vec<String>,
    pub(super) options: Options,
}

/// Selects the lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Options {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    tail_lines: Option<i64>,
    boot: Option<i64>,
    pattern: Option<String>,
}

fn invalid(field: &str, value: &str, why: &str) -> String {
    format!("{field}: Invalid value: {value:?}: {why}")
}

impl Query {
    /// Parses the query in a URL's parameters; `None` if there is none.
    pub(super) fn parse<'a>(
        parameters: impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)>,
    ) -> Result<Option<Self>, Vec<String>> {
        let (mut query, mut faults, mut asked) = (Self::default(), Vec::new(), false);
        for (name, value) in parameters {
            let options = &mut query.options;
            match &*name {
                "query" => {
                    asked = true;
                    if value.contains(['/', '\\']) {
                        query.files.push(value.replace('\\', "/"));
                    } else if !value.trim().is_empty() {
                        query.services.push(value.into_owned());
                    }
                }
                _ if value.is_empty() => {}
                "sinceTime" => take(&mut options.since, time(&name, &value), &mut faults),
                "untilTime" => take(&mut options.until, time(&name, &value), &mut faults),
                "tailLines" => take(&mut options.tail_lines, number(&name, &value), &mut faults),
                "boot" => take(&mut options.boot, number(&name, &value), &mut faults),
                "pattern" => drop(options.pattern.get_or_insert(value.into_owned())),
                _ => {}
            }
        }
        if asked && query.files.is_empty() && query.services.is_empty() {
            faults.push(invalid("query", "", "may not be empty"));
        }
        match (faults.is_empty(), query == Self::default()) {
            (false, _) => Err(faults),
            (true, true) => Ok(None),
            (true, false) => Ok(Some(query)),
        }
    }

    /// Whether limpet can answer the query; the error lists every reason why not.
    pub(super) fn validate(&self) -> Result<(), Vec<String>> {
        let mut faults: Vec<String> = self.services.iter().filter_map(|name| unsafe_name(name)).collect();
        let Self { services, files, options } = self;
        if services.len() > MAX_SERVICES {
            faults.push(format!("query: Too many: {}: must have at most {MAX_SERVICES} items", services.len()));
        }
        match (files.len(), services.len()) {
            (0, 0) => faults.push("query: Required value: cannot be empty with options".to_owned()),
            (1.., 1..) => faults.push(invalid("query", &files[0], "cannot specify a file and service")),
            (2.., 0) => faults.push(invalid("query", &files[0], "cannot specify more than one file")),
            (1, 0) if *options != Options::default() => {
                faults.push(invalid("query", &files[0], "cannot specify file with options"));
            }
            _ => {}
        }
        if let (Some(since), Some(until)) = (options.since, options.until)
            && since > until
        {
            faults.push(invalid("untilTime", &until.to_string(), "must be after `sinceTime`"));
        }
        if let Some(boot) = options.boot.filter(|boot| *boot > 0) {
            faults.push(invalid("boot", &boot.to_string(), "must be less than 1"));
        }
        if let Some(lines) = options.tail_lines.filter(|lines| !(0..=MAX_LINES).contains(lines)) {
            faults.push(invalid("tailLines", &lines.to_string(), "must be between 0 and 100000, inclusive"));
        }
        if options.pattern.as_ref().is_some_and(|pattern| pattern.len() > MAX_PATTERN) {
            faults.push(format!("pattern: Too long: may not be more than {MAX_PATTERN} bytes"));
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

impl Options {
    /// Whether all lines are selected.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// journalctl's arguments for the lines of these services.
    pub(super) fn arguments(&self, services: &[String]) -> Vec<String> {
        let mut arguments = ["--utc", "--no-pager", "--output=short-precise"].map(ToOwned::to_owned).to_vec();
        // Seconds since 1970 mean the same in every time zone.
        arguments.extend(self.since.map(|time| format!("--since=@{}", time.as_second())));
        arguments.extend(self.until.map(|time| format!("--until=@{}", time.as_second())));
        if let Some(lines) = self.tail_lines {
            arguments.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        arguments.extend(services.iter().map(|service| format!("--unit={service}")));
        arguments.extend(self.pattern.iter().map(|pattern| format!("--grep={pattern}")));
        arguments.extend(self.boot.map(|boot| format!("--boot={boot}")));
        arguments
    }
}

/// Keeps the first value of a parameter, or its error.
fn take<T>(into: &mut Option<T>, value: Result<T, String>, faults: &mut Vec<String>) {
    match value {
        Ok(value) => drop(into.get_or_insert(value)),
        Err(fault) => faults.push(fault),
    }
}

fn time(field: &str, value: &str) -> Result<Timestamp, String> {
    value.parse().map_err(|_| invalid(field, value, "invalid time format"))
}

fn number(field: &str, value: &str) -> Result<i64, String> {
    value.parse().map_err(|_| invalid(field, value, "not a number"))
}

/// Why a service's name is unsafe: it becomes an argument and the name of a file.
fn unsafe_name(name: &str) -> Option<String> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
    if name.len() > MAX_NAME {
        Some(format!("query: Invalid value: length must be less than {MAX_NAME}"))
    } else if !name.chars().all(is_safe) {
        Some(invalid("query", name, "input contains unsupported characters"))
    } else {
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Query>, Vec<String>> {
        Query::parse(form_urlencoded::parse(text.as_bytes()))
    }

    fn faults(text: &str) -> String {
        match parse(text) {
            Err(faults) => format!("400 {}", faults.join(", ")),
            Ok(None) => "none".to_owned(),
            Ok(Some(query)) => {
                query.validate().err().map_or("ok".to_owned(), |faults| format!("406 {}", faults.join(", ")))
            }
        }
    }

    #[test]
    fn queries_are_judged_as_kubelet_judges_them() {
        let long = format!("query={}", "x".repeat(257));
        let table = [
            ("", "none"),
            ("other=1", "none"),
            ("query=containerd", "ok"),
            ("query=a&query=b&query=c&query=d", "ok"),
            ("query=%2Ffoo.log", "ok"),
            ("query=containerd&tailLines=0&boot=-1&pattern=a.*b", "ok"),
            ("query=", "400 query: Invalid value: \"\": may not be empty"),
            ("query=%20%20", "400 query: Invalid value: \"\": may not be empty"),
            ("sinceTime=now", "400 sinceTime: Invalid value: \"now\": invalid time format"),
            ("query=a&tailLines=many", "400 tailLines: Invalid value: \"many\": not a number"),
            ("tailLines=10", "406 query: Required value: cannot be empty with options"),
            (
                "query=a&tailLines=100001",
                "406 tailLines: Invalid value: \"100001\": must be between 0 and 100000, inclusive",
            ),
            ("query=a&tailLines=-1", "406 tailLines: Invalid value: \"-1\": must be between 0 and 100000, inclusive"),
            ("query=a&boot=1", "406 boot: Invalid value: \"1\": must be less than 1"),
            ("query=a%3Bb", "406 query: Invalid value: \"a;b\": input contains unsupported characters"),
            ("query=-a%20--file", "406 query: Invalid value: \"-a --file\": input contains unsupported characters"),
            (&long, "406 query: Invalid value: length must be less than 256"),
            ("query=a&query=b&query=c&query=d&query=e", "406 query: Too many: 5: must have at most 4 items"),
            ("query=a&query=%2Fb", "406 query: Invalid value: \"/b\": cannot specify a file and service"),
            ("query=%2Fa&query=%2Fb", "406 query: Invalid value: \"/a\": cannot specify more than one file"),
            ("query=%2Fa&tailLines=1", "406 query: Invalid value: \"/a\": cannot specify file with options"),
            (
                "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                "406 untilTime: Invalid value: \"2026-01-01T00:00:00Z\": must be after `sinceTime`",
            ),
        ];
        for (text, expected) in table {
            assert_eq!(faults(text), expected, "{text}");
        }
    }

    #[test]
    fn options_are_arguments_of_journalctl_and_none_is_two() {
        let text = "query=kubelet&sinceTime=2026-01-01T00:00:00Z&untilTime=2026-01-01T01:00:00Z&tailLines=5&boot=-1&pattern=a%20--file%3Db";
        let query = parse(text).unwrap().unwrap();
        assert_eq!(
            query.options.arguments(&query.services)[3..],
            [
                "--since=@1767225600",
                "--until=@1767229200",
                "--pager-end",
                "--lines=5",
                "--unit=kubelet",
                "--grep=a --file=b",
                "--boot=-1"
            ]
        );
    }
}
