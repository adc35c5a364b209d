//! The values of flags, as Go and pflag read them.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::config::strconv::{boolean, integer};

/// A path, which may be empty.
pub fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// The value of a switch.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    boolean(text).ok_or_else(|| "not a boolean: true or false".to_owned())
}

/// A port.
pub(super) fn port(text: &str) -> Result<u16, String> {
    let number = integer(text).ok_or_else(|| "not a number".to_owned())?;
    u16::try_from(number).map_err(|_| "not a port: 0 to 65535".to_owned())
}

/// klog's verbosity, limited to limpet's range.
pub(super) fn verbosity(text: &str) -> Result<u8, String> {
    let level: i32 = text.parse().map_err(|_| "not a verbosity: 0 to 10".to_owned())?;
    Ok(u8::try_from(level.clamp(0, 10)).unwrap_or_default())
}
