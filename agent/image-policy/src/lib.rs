//! Which images may run on this node: rules by the image's name, and what the signatures of an image prove.
//!
//! Everything here is a function of values: [`policy::ImagePolicy`] names the rule of an image, [`verdict::judge`] decides
//! from the signatures that limpet-containerd has fetched and from the keys of the rule. Keys have no dates, and neither
//! has a verdict: it is the same with a wrong clock.

pub mod key;
pub mod pattern;
pub mod policy;
pub mod signature;
mod sigstore_bundle;
mod simple_signing;
pub mod verdict;

#[cfg(test)]
mod fixtures;
