//! What of the state goes into a journal that is written anew, and what the engine can drop.

use super::core::Core;
use crate::job::StoreId;
use crate::record::{Record, Tables};
use std::collections::BTreeSet;

/// The first records of a new journal, and the numbers of accepted requests that it takes from the old one.
pub struct Image {
    pub first: Vec<Vec<u8>>,
    pub keep: BTreeSet<u64>,
}

impl Core {
    /// Returns what a new journal begins with.
    pub fn image(&self) -> Image {
        let mut first = vec![Record::Tables(Box::new(self.tables_of_answered())).to_bytes()];
        let mut keep: BTreeSet<u64> =
            self.tables.models.values().flat_map(|row| row.log.iter().copied()).collect();
        for (_, number) in &self.ready.order {
            let Some(future) = self.futures.get(number) else { continue };
            if let Some((ending, time)) = &future.ending {
                let (tenant, key) = (future.tenant.clone(), future.key.clone());
                let kept = Record::Kept { number: *number, tenant, key, time: *time, ending: ending.clone() };
                first.push(kept.to_bytes());
            }
        }
        keep.extend(
            self.futures.iter().filter(|(_, future)| future.ending.is_none()).map(|(number, _)| *number),
        );
        Image { first, keep }
    }

    /// Returns the tables without models whose making is not answered: their requests make them again.
    fn tables_of_answered(&self) -> Tables {
        let mut tables = self.tables.clone();
        tables.models.retain(|_, row| row.answered >= 0 || row.closed.is_some());
        tables
    }

    /// Returns what was saved and is no longer needed by a name, a sampler, a model or a request, and forgets it.
    pub fn take_garbage(&mut self) -> Vec<StoreId> {
        let tables = &self.tables;
        let open = tables.models.values().filter(|row| row.closed.is_none());
        let needed: BTreeSet<StoreId> = (tables.saved.values().map(|row| row.store))
            .chain(tables.samplers.values().filter_map(|row| row.store))
            .chain(open.flat_map(|row| {
                row.recovery.map(|point| point.store).into_iter().chain(row.log_stores.clone())
            }))
            .chain(
                self.futures
                    .values()
                    .filter(|future| future.ending.is_none())
                    .filter_map(|future| future.brief.store()),
            )
            .collect();
        let stores = std::mem::take(&mut self.tables.stores);
        let (keep, drop): (Vec<StoreId>, Vec<StoreId>) =
            stores.into_iter().partition(|store| needed.contains(store));
        self.tables.stores = keep;
        drop
    }

    /// Returns the paths whose time has come.
    pub fn expired(&self, now: u64) -> Vec<String> {
        let is_over = |at: Option<u64>| at.is_some_and(|at| at <= now);
        self.tables
            .saved
            .iter()
            .filter(|(_, row)| is_over(row.expires))
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// Returns the models that a restart makes again, with their tenants.
    pub fn open_models(&self) -> Vec<String> {
        self.tables.models.iter().filter(|(_, row)| row.closed.is_none()).map(|(id, _)| id.clone()).collect()
    }

    /// Returns the samples that are not answered.
    pub fn open_samples(&self) -> Vec<u64> {
        let is_sample =
            |task: &crate::record::RequestTask| matches!(task, crate::record::RequestTask::Sample(_));
        self.tasks.iter().filter(|(_, task)| is_sample(task)).map(|(number, _)| *number).collect()
    }
}
