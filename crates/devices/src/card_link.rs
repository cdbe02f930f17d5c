//! A card whose link ranks measure before a run.

use crate::among::{id_of, nccl_version};
use plimsoll_base::Result;
use plimsoll_cuda as cuda;
use plimsoll_ranks::CardLink;

/// Returns the card with this UUID; it is opened when the ranks connect their cards.
pub fn card_link(uuid: String) -> Box<dyn CardLink> {
    Box::new(LinkedCard { uuid, link: None })
}

/// A rank's card, which NCCL connects once all ranks are there.
struct LinkedCard {
    uuid: String,
    link: Option<cuda::CardLink>,
}

impl CardLink for LinkedCard {
    fn library(&mut self) -> Result<String> {
        nccl_version().map(|version| format!("NCCL {version}"))
    }

    fn name(&mut self) -> Result<Vec<u8>> {
        cuda::nccl_id().map(|id| id.0.to_vec())
    }

    fn connect(&mut self, name: &[u8], rank: usize, ranks: usize, bytes: u64) -> Result<()> {
        self.link = Some(cuda::CardLink::open(&self.uuid, id_of(name)?, rank, ranks, bytes)?);
        Ok(())
    }

    fn exchange(&mut self, rank: usize, given: u64, taken: u64) -> Result<()> {
        self.link.as_ref().expect("ranks connect first").exchange(rank, given, taken)
    }
}
