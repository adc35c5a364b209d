//! Local objects: ConfigMap and Secret documents beside the Pods of a source, for the pods of that source alone.
//!
//! In: a decoded document. Out: an [`ObjectRecord`], shared by `Arc` from the source to the worker, and for each pod
//! the [`PodObjects`] it refers to. Pure: no I/O, no clock. Values are [`SecretBytes`] whatever the kind: nothing
//! prints them, and they are erased when the last owner lets go. Faults name fields and keys, never values.

mod decode;
mod pod_objects;
mod record;
mod reference;
mod secret_bytes;

pub use decode::{KEYS_ANNOTATION, decode, restore};
pub use pod_objects::PodObjects;
pub use record::{Entry, ObjectKey, ObjectKind, ObjectRecord};
pub use reference::{mounted, references};
pub use secret_bytes::SecretBytes;
