//! The lines of a PersistentVolumeClaim.

use limpet_wire::objects::ObjectDocument;

use super::{access_modes, text};
use crate::screen::{Screen, Tone};
use crate::sheet::Sheet;

pub(super) fn describe(sheet: &mut Sheet, document: &ObjectDocument, screen: &Screen) {
    let spec = &document.object["spec"];
    sheet.field("StorageClass", &text(&spec["storageClassName"], "local-path"));
    match (document.ending, &document.directory) {
        (true, _) => {
            let why = "Terminating: its files are removed once no pod refers to it";
            sheet.painted("Status", &screen.paint(Tone::Warn, why));
        }
        (false, Some(_)) => sheet.field("Status", "Bound"),
        (false, None) => sheet.painted("Status", &screen.paint(Tone::Warn, "Pending")),
    }
    sheet.optional("Directory", document.directory.as_ref().map(|path| path.display().to_string()).as_deref());
    sheet.field("Capacity", &text(&spec["resources"]["requests"]["storage"], "<unset>"));
    sheet.field("Access Modes", &access_modes(spec));
}
