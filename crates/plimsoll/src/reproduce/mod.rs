//! Published numbers, and repeating them: what `reproduce` fetches, plans, trains, and says in the end.

pub mod book;
pub mod data;
pub mod list;
pub mod record;
pub mod stages;
pub mod verdict;
