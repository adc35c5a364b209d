//! The files of `fileKeyRef`: variables in a strict subset of shell syntax, as kubelet reads them.
//!
//! The lines are `NAME='value'`. A value is in single quotes, taken literally, and may span lines; a comment may
//! follow it. Blank lines, and lines that begin with `#`, are skipped. White space after `=` means an empty value.

/// The first error in a file before the requested key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    /// The line, from 1.
    pub line: usize,
    pub reason: &'static str,
}

const BLANKS: [char; 2] = [' ', '\t'];

/// The first value of `key`; `None` if the file does not have it. The rest of the file is not checked.
pub(super) fn value(text: &str, key: &str) -> Result<Option<String>, Fault> {
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let fault = |reason| Fault { line: index + 1, reason };
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, rest) = line.split_once('=').ok_or(fault("it has no \"=\""))?;
        if name.trim_end_matches(BLANKS).is_empty() {
            return Err(fault("it has no name before \"=\""));
        }
        if name.contains(BLANKS) {
            return Err(fault("white space is in the name, or before \"=\""));
        }
        let value = if rest.is_empty() || rest.starts_with(BLANKS) {
            String::new()
        } else {
            let rest = rest.strip_prefix('\'').ok_or(fault("the value is not in single quotes"))?;
            quoted(rest, &mut lines).map_err(fault)?
        };
        if name == key {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// Reads a value after its opening quote; it may continue on the following lines.
fn quoted<'t>(first: &'t str, lines: &mut impl Iterator<Item = (usize, &'t str)>) -> Result<String, &'static str> {
    let mut value = String::new();
    let mut line = first;
    loop {
        if let Some((end, after)) = line.split_once('\'') {
            let after = after.trim_start_matches(BLANKS);
            if !after.is_empty() && !after.starts_with('#') {
                return Err("something follows the closing quote");
            }
            value.push_str(end);
            return Ok(value);
        }
        value.push_str(line);
        value.push('\n');
        line = lines.next().ok_or("its quote is never closed")?.1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_single_quotes() {
        let text = "# settings\n\n  MODE='edge' # the mode\nLIST='a\n  b=c\n'\nEMPTY=''\nBARE=\nAPART= 'x'\nHASH='#1 $HOME \\n'\n\
                    MODE='later'\r\nEND='z'";
        let cases = [
            ("MODE", Some("edge")),
            ("LIST", Some("a\n  b=c\n")),
            ("EMPTY", Some("")),
            ("BARE", Some("")),
            ("APART", Some("")),
            ("HASH", Some("#1 $HOME \\n")),
            ("END", Some("z")),
            ("b", None),
            ("NONE", None),
        ];
        for (key, wanted) in cases {
            assert_eq!(value(text, key), Ok(wanted.map(str::to_owned)), "{key}");
        }
    }

    #[test]
    fn a_fault_before_the_key_is_reported_with_its_line() {
        let cases = [
            ("A='1'\nB", 2, "it has no \"=\""),
            ("='1'", 1, "it has no name before \"=\""),
            ("  ='1'", 1, "it has no name before \"=\""),
            ("A ='1'", 1, "white space is in the name, or before \"=\""),
            ("export A='1'", 1, "white space is in the name, or before \"=\""),
            ("A=1", 1, "the value is not in single quotes"),
            ("A=\"1\"", 1, "the value is not in single quotes"),
            ("A='1'2", 1, "something follows the closing quote"),
            ("\nA='1\n2", 2, "its quote is never closed"),
        ];
        for (text, line, reason) in cases {
            assert_eq!(value(text, "KEY"), Err(Fault { line, reason }), "{text}");
        }
        assert_eq!(value("KEY='1'\nnonsense", "KEY"), Ok(Some("1".to_owned())), "what follows does not matter");
    }
}
