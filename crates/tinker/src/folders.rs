//! Where the engine has what was saved.

use crate::job::StoreId;
use std::path::PathBuf;
use std::sync::Arc;

/// Says in which folder the engine has a store, whose files are what clients download.
#[derive(Clone)]
pub struct StoreFolders(pub Arc<dyn Fn(StoreId) -> PathBuf + Send + Sync>);

impl std::fmt::Debug for StoreFolders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreFolders")
    }
}
