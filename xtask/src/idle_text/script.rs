//! Makes the linker script that places functions side by side, from a linker's map and the functions that ran.

use std::collections::{BTreeMap, BTreeSet};

const HEAD: &str = "\
/* What an idle agent runs, side by side. Written by `cargo xtask idle-text`. */
SECTIONS
{
  .text.idle :
  {
";
const END: &str = "  }
}
INSERT BEFORE .text;
";

/// A section of text of one of the objects: most functions of Rust have their own.
#[derive(Debug)]
pub(super) struct Section {
    begin: u64,
    size: u64,
    pattern: Pattern,
}

/// The words of the script for a section, which also match all others that differ only in their hash.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pattern(String);

impl Pattern {
    /// `object`: the object's file, with the archive that it is in before it: `libc.a(malloc.o)`.
    fn new(object: &str, section: &str) -> Self {
        if section.contains("._R") {
            let name = without_hashes(without_number(section));
            return Self(format!("*({name} {name}.*)"));
        }
        let file = object.rsplit('/').next().unwrap_or(object);
        let Some((archive, member)) = file.strip_suffix(')').and_then(|file| file.split_once('(')) else {
            // An object of the program itself has a hash for a name.
            let file = if file.ends_with(".rcgu.o") { "" } else { file };
            return Self(format!("*{file}({section})"));
        };
        // The name of a crate's archive contains a hash, and so do those of its objects.
        let hashed = archive.strip_suffix(".rlib").and_then(|archive| archive.split_once('-'));
        let text = match (hashed, member.split_once('-')) {
            (Some((archive, _)), Some((_, member))) => format!("*{archive}-*:*-{member}({section})"),
            _ => format!("*{archive}:{member}({section})"),
        };
        Self(text)
    }
}

/// The name of a function of Rust (RFC 2603) without what changes with the versions of crates: their hashes, and the
/// positions in the name that refer to a part before, which follow the lengths of the hashes.
fn without_hashes(name: &str) -> String {
    let (before, mut left) = name.split_once("._R").unwrap_or(("", name));
    let mut general = format!("{before}._R");
    while !left.is_empty() {
        let number_end = left.find('_').map_or(left.len(), |end| end + 1);
        let (kept, length) = match left.as_bytes() {
            [b'C', b's', ..] => ("Cs*_", number_end),
            [b'B', ..] => ("B*_", number_end),
            // These are numbers: of an item of the same name, of a lifetime, and a constant's value.
            [b's' | b'L' | b'G', ..] => (&left[..number_end], number_end),
            [b'K', next, ..] if !matches!(next, b'p' | b'B') => (&left[..number_end], number_end),
            // A namespace may be any letter.
            [b'N', _, ..] => (&left[..2], 2),
            [b'0'..=b'9', ..] => identifier(left),
            _ => (&left[..1], 1),
        };
        general.push_str(kept);
        left = &left[length..];
    }
    general
}

/// The identifier at the beginning of a name, which follows its length, and how long both are together.
fn identifier(name: &str) -> (&str, usize) {
    let digits = name.find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len());
    // The length 0 stands alone, because nothing follows it, for example in a closure's name.
    let digits = if name.starts_with('0') { 1 } else { digits };
    let length: usize = name[..digits].parse().unwrap_or_default();
    let separator = usize::from(name[digits..].starts_with('_'));
    let end = (digits + separator + length).min(name.len());
    (&name[..end], end)
}

/// Copies of a function of the standard library are private to each crate, and numbered as the whole program is compiled.
fn without_number(section: &str) -> &str {
    section.rsplit_once('.').filter(|(_, number)| number.parse::<u64>().is_ok()).map_or(section, |(name, _)| name)
}

/// The sections of text in a map of LLD, in the order of their addresses.
pub(super) fn sections(map: &str) -> Vec<Section> {
    map.lines().filter_map(section).collect()
}

/// A line of the map that is of a section in the executable's text: address, address, size, alignment, `object:(section)`.
fn section(line: &str) -> Option<Section> {
    let mut words = line.split_whitespace();
    let (begin, _, size, _) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let (object, section) = words.next()?.strip_suffix(')')?.rsplit_once(":(")?;
    section.starts_with(".text").then_some(())?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Section { begin: number(begin)?, size: number(size)?, pattern: Pattern::new(object, section) })
}

/// The text of the script. What ran in the first period comes first. Within a period, the sections that were used whole
/// come first, and those last of which most belongs to other instances of the same function.
pub(super) fn text(sections: &[Section], periods: &[Vec<u64>]) -> String {
    let mut sizes: BTreeMap<&Pattern, u64> = BTreeMap::new();
    for section in sections {
        *sizes.entry(&section.pattern).or_default() += section.size;
    }
    let (mut named, mut lines) = (BTreeSet::new(), String::new());
    for executed in periods {
        let used: BTreeSet<u64> = executed.iter().filter_map(|address| of_address(sections, *address)).collect();
        let mut used_sizes: BTreeMap<&Pattern, u64> = BTreeMap::new();
        for section in sections.iter().filter(|section| used.contains(&section.begin)) {
            *used_sizes.entry(&section.pattern).or_default() += section.size;
        }
        let mut ordered: Vec<_> = used_sizes.into_iter().filter(|(pattern, _)| named.insert(*pattern)).collect();
        ordered.sort_by_key(|(pattern, used)| (100 - 100 * used / sizes[pattern].max(1), *pattern));
        lines.extend(ordered.into_iter().map(|(pattern, _)| format!("    {}\n", pattern.0)));
    }
    format!("{HEAD}{lines}{END}")
}

/// Where the section begins that has the address.
fn of_address(sections: &[Section], address: u64) -> Option<u64> {
    let after = sections.partition_point(|section| section.begin <= address);
    let section = sections.get(after.checked_sub(1)?)?;
    (address < section.begin + section.size).then_some(section.begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "\
             VMA              LMA     Size Align Out     In      Symbol
           10000            10000      100    16 .text
           10000            10000       40    16         /t/limpet.o:(.text._RNvMNtCs4fqI_3abcB2_)
           10000            10000       40     1                 _RNvMNtCs4fqI_3abcB2_
           10040            10040       c0    16         /t/limpet.o:(.text._RNvMNtCsgEmfK_3abcB3_)
           10100            10100       40    16         /t/limpet.o:(.text._RNvMNtCsgEmfK_4noneB3_)
           10140            10140       20    16         /u/libc.a(malloc.o):(.text)
           10160            10160       20    16         /t/libring-0a1b.rlib(2c3d-aes-x86_64.o):(.text)
           10180            10180       20    16         /t/limpet.o:(.text._RNvX3std5clone.71)
           101a0            101a0       20    16         /t/limpet.o:(.text._RNvX3std5clone)
           101c0            101c0       20    16         /t/limpet-0a1b.limpet.2c3d-cgu.0.rcgu.o:(.text.main)
           101e0            101e0       20    16         /u/crt1.o:(.text)
           10200            10200       20    16         /t/limpet.o:(.rodata.x)
";

    #[test]
    fn names_have_no_hashes_and_keep_their_identifiers() {
        for (name, general) in [
            (
                ".text._RINvNtCsgEmfK2I1SDS_4core3ptr13drop_in_placeNtNtCs4fqI_5alloc3set8BTreeSetECsfe0_6limpet",
                ".text._RINvNtCs*_4core3ptr13drop_in_placeNtNtCs*_5alloc3set8BTreeSetECs*_6limpet",
            ),
            (
                ".text._RNCNvMs7_NtNtCslN_5alloc5boxed4Cs_b5queryB1Y_Kj8_0B5_",
                ".text._RNCNvMs7_NtNtCs*_5alloc5boxed4Cs_b5queryB*_Kj8_0B*_",
            ),
            (".text._RNvC1_", ".text._RNvC1_"),
        ] {
            assert_eq!(without_hashes(name), general);
        }
    }

    #[test]
    fn functions_are_named_without_hashes_of_crates_and_those_used_whole_come_first() {
        let sections = sections(MAP);
        assert_eq!(sections.len(), 9);
        let executed = [vec![0x10000, 0x10150, 0x90000], vec![0x10040, 0x10160, 0x10190, 0x101c0, 0x101e0]];
        let text = text(&sections, &executed);
        let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("    ")).collect();
        let first = ["*libc.a:malloc.o(.text)", "*(.text._RNvMNtCs*_3abcB*_ .text._RNvMNtCs*_3abcB*_.*)"];
        let second = [
            "*(.text.main)",
            "*crt1.o(.text)",
            "*libring-*:*-aes-x86_64.o(.text)",
            "*(.text._RNvX3std5clone .text._RNvX3std5clone.*)",
        ];
        assert_eq!(names, [&first[..], &second].concat());
    }
}
