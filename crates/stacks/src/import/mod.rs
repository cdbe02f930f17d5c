//! Turns what another stack is started with into a run file, and lists everything that it could not carry over.

pub(crate) mod draft;
pub(crate) mod parts;
mod settle;
mod write;

pub use write::Imported;

use crate::launch;
use crate::setting::Setting;
use crate::stack::Stack;
use draft::Draft;
use plimsoll_base::Result;
use std::path::Path;

/// Reads the file at `path` as `stack` would, up to 1 MiB, and makes a run file of it.
///
/// Errors, exit code 2: `import-unreadable`, `import-nothing-found`, `import-no-method`.
pub fn import(stack: &'static Stack, path: &Path) -> Result<Imported> {
    let (_, settings) = launch::read(stack, path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    translate(stack, settings, &name)?.ok_or_else(|| launch::nothing_found(stack, path, "import"))
}

/// Makes a run file of settings; `None` if there are no settings of `stack` among them, or if it is not imported.
///
/// Errors, exit code 2: `import-no-method`.
pub fn translate(stack: &'static Stack, settings: Vec<Setting>, file: &str) -> Result<Option<Imported>> {
    let Some(import) = stack.import else { return Ok(None) };
    let mut draft = Draft::new(stack.table, import, settings);
    if !draft.knows_any() {
        return Ok(None);
    }
    draft.translate()?;
    draft.settle();
    Ok(Some(draft.finish(file)))
}
