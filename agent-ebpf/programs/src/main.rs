//! limpet's BPF programs, one object. What they write is in `limpet-events`; who loads them is `limpet-bpf`.
//!
//! Rust's BPF target has no relocations by the kernel's types: every offset is a global that the loader sets from the
//! running kernel's BTF, and pointers are read by the helper that cannot fault.
//!
//! What is no program and not inlined has a name of its own: a mangled one would differ by the path of the checkout, and
//! the object is compared byte by byte.
#![no_std]
#![no_main]

mod actor;
mod files;
mod guard;
mod kernel;
mod lifecycle;
mod maps;
mod watch;

/// GPL, because the helpers that read kernel memory ask for it; the sources are under Apache-2.0 all the same.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
