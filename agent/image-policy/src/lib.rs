//! Which images may run on this node: rules by the image's name, and what an image's signatures prove.
//!
//! Everything here is a pure function: [`policy::ImagePolicy`] selects the rule of an image, and [`verdict::judge`]
//! decides from the signatures that limpet-containerd has fetched and the keys of the rule. Neither keys nor verdicts
//! have dates, so a wrong clock changes nothing.

pub mod key;
pub mod pattern;
pub mod policy;
pub mod signature;
mod sigstore_bundle;
mod simple_signing;
pub mod verdict;

#[cfg(test)]
mod fixtures;
