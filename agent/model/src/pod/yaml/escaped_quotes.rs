//! `\'` within double quotes. It is not an escape of YAML (spec 1.2.2, section 5.7), but Go's parser accepts it, so
//! manifests have it.

use serde_saphyr::Error;

/// The text without the backslashes of `\'` in the double-quoted string for which the parser refused it; `None` if it
/// was refused for another reason.
pub(super) fn removed(text: &str, error: &Error) -> Option<String> {
    if !error.to_string().contains("unknown escape character") {
        return None;
    }
    let location = error.location()?;
    let (line, column) = (usize::try_from(location.line()).ok()?, usize::try_from(location.column()).ok()?);
    let begins: usize = text.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    // The parser reports the place where the string begins.
    let (within, _) = text[begins..].char_indices().nth(column.checked_sub(1)?)?;
    without_escapes(text, begins + within)
}

fn without_escapes(text: &str, opening: usize) -> Option<String> {
    let string = text[opening..].strip_prefix('"')?;
    let mut plain = text[..=opening].to_owned();
    let (mut characters, mut changed) = (string.char_indices(), false);
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => {
                plain.push_str(&string[at..]);
                break;
            }
            '\\' => match characters.next() {
                Some((_, '\'')) => {
                    plain.push('\'');
                    changed = true;
                }
                Some((_, escaped)) => plain.extend(['\\', escaped]),
                None => plain.push('\\'),
            },
            other => plain.push(other),
        }
    }
    changed.then_some(plain)
}
