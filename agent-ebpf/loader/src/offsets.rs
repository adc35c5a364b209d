//! Offsets of the running kernel's structure fields that the programs read, from its BTF.

use std::collections::HashMap;

use btfparse::{Error, Offset, Readable, Result, TypeInformation, TypeVariant};

use crate::LoadError;

/// The kernel's BTF.
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// A global of the programs: structure, and path in it.
const FIELDS: [(&str, &str, &str); 26] = [
    ("DENTRY_NAME", "dentry", "d_name.name"),
    ("DENTRY_PARENT", "dentry", "d_parent"),
    ("DENTRY_INODE", "dentry", "d_inode"),
    ("INODE_NUMBER", "inode", "i_ino"),
    ("INODE_SUPER_BLOCK", "inode", "i_sb"),
    ("SUPER_BLOCK_DEVICE", "super_block", "s_dev"),
    ("SUPER_BLOCK_ROOT", "super_block", "s_root"),
    ("PATH_DENTRY", "path", "dentry"),
    ("FILE_DENTRY", "file", "f_path.dentry"),
    ("FILE_MODE", "file", "f_mode"),
    ("FILE_MOUNT", "file", "f_path.mnt"),
    ("MOUNT_ROOT", "vfsmount", "mnt_root"),
    ("MOUNT_ITSELF", "mount", "mnt"),
    ("MOUNT_PARENT", "mount", "mnt_parent"),
    ("MOUNT_POINT", "mount", "mnt_mountpoint"),
    ("TASK_PARENT", "task_struct", "real_parent"),
    ("TASK_TGID", "task_struct", "tgid"),
    ("TASK_PID", "task_struct", "pid"),
    ("SIGNAL_CODE", "kernel_siginfo", "si_code"),
    ("TASK_CGROUPS", "task_struct", "cgroups"),
    ("CSS_SET_CGROUP", "css_set", "dfl_cgrp"),
    ("CGROUP_LEVEL", "cgroup", "level"),
    // Removed in 6.1, which has a helper for it.
    ("CGROUP_ANCESTOR_IDS", "cgroup", "ancestor_ids"),
    ("TASK_MM", "task_struct", "mm"),
    ("MM_EXE_FILE", "mm_struct", "exe_file"),
    ("NAME_BYTES", "qstr", "name"),
];
/// Hooks that later kernels pass the mount's id map as first argument: how many arguments they had without it.
const RELOCATED_FIELDS: [(&str, &str, usize); 5] = [
    ("SETATTR_DENTRY", "bpf_lsm_inode_setattr", 2),
    ("SETXATTR_DENTRY", "bpf_lsm_inode_setxattr", 5),
    ("REMOVEXATTR_DENTRY", "bpf_lsm_inode_removexattr", 2),
    // Since 6.2, with the map.
    ("SET_ACL_DENTRY", "bpf_lsm_inode_set_acl", 3),
    ("REMOVE_ACL_DENTRY", "bpf_lsm_inode_remove_acl", 2),
];
/// The function whose arguments are read from the registers, and how many it has: with others it is another one.
const NOTIFIER: (&str, usize) = ("fsnotify", 7);
/// Its arguments that are read, and where the registers that hold them are in `struct pt_regs`: the first, fourth and fifth
/// of the architecture's calling convention.
const ARGUMENTS: &[(&str, u32)] = if cfg!(target_arch = "x86_64") {
    &[("EVENT_MASK", 112), ("EVENT_DIRECTORY", 88), ("EVENT_NAME", 72)]
} else if cfg!(target_arch = "aarch64") {
    &[("EVENT_MASK", 0), ("EVENT_DIRECTORY", 24), ("EVENT_NAME", 32)]
} else if cfg!(target_arch = "riscv64") {
    &[("EVENT_MASK", 80), ("EVENT_DIRECTORY", 104), ("EVENT_NAME", 112)]
} else {
    &[]
};

/// The known offsets of the running kernel.
#[derive(Debug, Default)]
pub(crate) struct Offsets(HashMap<&'static str, u32>);

impl Offsets {
    /// Reads the kernel's BTF; the parsed form, some tens of megabytes, is freed afterwards.
    pub(crate) fn of_kernel() -> std::result::Result<Self, LoadError> {
        let bytes = std::fs::read(VMLINUX).map_err(|error| LoadError::Btf(error.to_string()))?;
        let types = TypeInformation::new(&Bytes(&bytes)).map_err(|error| LoadError::Btf(format!("{error:?}")))?;
        Ok(Self::from_types(&types))
    }

    fn from_types(types: &TypeInformation) -> Self {
        let structures = ids(types, |variant| match variant {
            TypeVariant::Struct(structure) => structure.name().clone(),
            _ => None,
        });
        let functions = ids(types, |variant| match variant {
            TypeVariant::Func(function) => function.name().clone(),
            _ => None,
        });
        let mut known = HashMap::new();
        for (global, structure, path) in FIELDS {
            let offset = structures.get(structure).and_then(|id| types.offset_of(*id, path).ok());
            if let Some((_, Offset::ByteOffset(offset))) = offset {
                known.insert(global, offset);
            }
        }
        for (global, function, without) in RELOCATED_FIELDS {
            let parameters = functions.get(function).and_then(|id| parameter_count(types, *id));
            if let Some(count) = parameters.filter(|count| *count == without || *count == without + 1) {
                known.insert(global, u32::from(count > without));
            }
        }
        let (function, count) = NOTIFIER;
        if functions.get(function).and_then(|id| parameter_count(types, *id)) == Some(count) {
            known.extend(ARGUMENTS.iter().copied());
        }
        Self(known)
    }

    /// One line per offset, for another process.
    pub(crate) fn to_text(&self) -> String {
        self.iter().map(|(global, offset)| format!("{global} {offset}\n")).collect()
    }

    /// Parses the text of another process; unknown lines are ignored.
    pub(crate) fn from_text(text: &str) -> Self {
        let fields =
            || FIELDS.iter().map(|(global, ..)| *global).chain(RELOCATED_FIELDS.iter().map(|(global, ..)| *global));
        let names = || fields().chain(ARGUMENTS.iter().map(|(global, _)| *global));
        let known = text.lines().filter_map(|line| {
            let (name, offset) = line.split_once(' ')?;
            Some((names().find(|global| *global == name)?, offset.parse().ok()?))
        });
        Self(known.collect())
    }

    /// The known offsets, by global.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &u32)> {
        self.0.iter().map(|(global, offset)| (*global, offset))
    }

    /// Whether this kernel's BTF has the field or function of `global`.
    pub(crate) fn has(&self, global: &str) -> bool {
        self.0.contains_key(global)
    }

    /// The first of `needs` that this kernel's BTF does not have.
    pub(crate) fn missing(&self, needs: &[&[&'static str]]) -> Option<String> {
        let global = needs.iter().copied().flatten().find(|global| !self.0.contains_key(*global))?;
        let field = FIELDS.iter().find(|(known, ..)| known == global);
        let hook = RELOCATED_FIELDS.iter().find(|(known, ..)| known == global);
        let what = field.map(|(_, structure, path)| format!("{structure}.{path}"));
        let what = what.or_else(|| hook.map(|(_, function, _)| format!("the arguments of {function}")));
        Some(what.unwrap_or_else(|| format!("the arguments of {}", NOTIFIER.0)))
    }
}

/// The ids of the wanted names.
fn ids(types: &TypeInformation, name: impl Fn(&TypeVariant) -> Option<String>) -> HashMap<String, u32> {
    let wanted = |name: &String| {
        FIELDS.iter().any(|(_, structure, _)| structure == name)
            || RELOCATED_FIELDS.iter().any(|(_, function, _)| function == name)
            || name == NOTIFIER.0
    };
    types.get().iter().filter_map(|(id, variant)| Some((name(variant).filter(wanted)?, *id))).collect()
}

fn parameter_count(types: &TypeInformation, function: u32) -> Option<usize> {
    let Some(TypeVariant::Func(function)) = types.from_id(function) else { return None };
    match types.from_id(*function.prototype_tid())? {
        TypeVariant::FuncProto(prototype) => Some(prototype.parameter_list().len()),
        _ => None,
    }
}

/// Bytes in memory, as the parser reads them.
struct Bytes<'a>(&'a [u8]);

impl Readable for Bytes<'_> {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let source = start.checked_add(buffer.len()).and_then(|end| self.0.get(start..end));
        match source {
            Some(source) => {
                buffer.copy_from_slice(source);
                Ok(())
            }
            None => Err(Error::new(btfparse::ErrorKind::EOF, "the BTF ends in the middle of a type")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::unwrap_used)]
    fn this_kernels_btf_has_all_needed_offsets() {
        if !std::path::Path::new(VMLINUX).exists() {
            eprintln!("skipped: this kernel has no {VMLINUX}");
            return;
        }
        let offsets = Offsets::of_kernel().unwrap();
        for (global, ..) in FIELDS.iter().filter(|(global, ..)| *global != "CGROUP_ANCESTOR_IDS") {
            assert_eq!(offsets.missing(&[&[global]]), None);
        }
        for (global, _) in ARGUMENTS {
            assert_eq!(offsets.missing(&[&[global]]), None);
        }
        assert_ne!(offsets.0["DENTRY_PARENT"], offsets.0["DENTRY_INODE"]);
        assert_eq!(Offsets::from_text(&offsets.to_text()).0, offsets.0);
    }

    #[test]
    fn a_missing_field_is_named_as_in_the_kernel() {
        let none = Offsets::default();
        assert_eq!(none.missing(&[&["FILE_DENTRY"]]).as_deref(), Some("file.f_path.dentry"));
        assert_eq!(none.missing(&[&["SETATTR_DENTRY"]]).as_deref(), Some("the arguments of bpf_lsm_inode_setattr"));
        assert_eq!(none.missing(&[&["EVENT_MASK"]]).as_deref(), Some("the arguments of fsnotify"));
        assert_eq!(none.missing(&[]), None);
    }
}
