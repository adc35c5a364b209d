//! Checks whether an executable is for this machine, by comparing the head of its ELF file with that of the running
//! one.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The bytes up to the machine's number: identification (16 bytes), type, machine.
const HEAD_SIZE: usize = 20;
const MAGIC: &[u8] = b"\x7fELF";
/// Names of the `e_machine` values for which limpet is released.
const MACHINES: [(u16, &str); 4] = [(62, "x86_64"), (183, "aarch64"), (40, "arm"), (243, "riscv64")];

/// The kind of processor that an executable needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// 1: 32 bits, 2: 64.
    class: u8,
    /// 1: little-endian, 2: big-endian.
    data: u8,
    machine: u16,
}

impl Target {
    /// The target of a file; `None` if it is not an executable.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut head = Vec::new();
        File::open(path)?.take(HEAD_SIZE as u64).read_to_end(&mut head)?;
        Ok(Self::parse(&head))
    }

    fn parse(head: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD_SIZE] = head.try_into().ok().filter(|head: &&[u8; HEAD_SIZE]| head.starts_with(MAGIC))?;
        let machine = [head[18], head[19]];
        let machine = if head[5] == 2 { u16::from_be_bytes(machine) } else { u16::from_le_bytes(machine) };
        Some(Self { class: head[4], data: head[5], machine })
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = MACHINES.iter().find(|(machine, _)| *machine == self.machine).map(|(_, name)| *name);
        match name {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "machine {} of ELF", self.machine),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn head(class: u8, machine: u16) -> Vec<u8> {
        let mut head = [MAGIC, &[class, 1, 1], &[0; 9], &[3, 0]].concat();
        head.extend(machine.to_le_bytes());
        head
    }

    #[test]
    fn the_head_names_the_processor() {
        let names =
            [(2, 62, "x86_64"), (2, 183, "aarch64"), (1, 40, "arm"), (2, 243, "riscv64"), (2, 8, "machine 8 of ELF")];
        for (class, machine, name) in names {
            assert_eq!(Target::parse(&head(class, machine)).unwrap().to_string(), name);
        }
        assert_ne!(Target::parse(&head(1, 62)), Target::parse(&head(2, 62)));
        for broken in [&b""[..], b"#!/bin/sh\nexec limpet run", &head(2, 62)[..19]] {
            assert_eq!(Target::parse(broken), None);
        }
    }

    #[test]
    fn this_test_is_for_this_machine() {
        let target = Target::read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert_eq!(target.to_string(), std::env::consts::ARCH);
    }
}
