//! The places of linear attention states in a pass: how many there are, and which of them its segments use.

use plimsoll_device::{NO_STATE, STATE_CHUNK, edges};

/// Words per segment in the places of a pass.
pub(crate) const PLACE_FIELDS: usize = 2;

/// Returns the places of a pass over whole sequences, enough for segments of one chunk on average. If they are shorter,
/// a micro-batch ends before its rows do; two responses and their prompt always fit.
pub fn places_for(rows: usize, segments: usize) -> usize {
    let segments = segments.min(rows);
    (2 * segments + (rows - segments) / STATE_CHUNK).min(2 * rows.div_ceil(STATE_CHUNK) + 6)
}

/// Returns the places of a pass without gradients: one per segment, which would otherwise take two or more of `places`.
pub(crate) fn places_of_scores(segments: usize, places: usize) -> usize {
    segments.min(places / 2)
}

/// Adds places for a segment of `rows` rows when any will do: a pass's places in turn, then the first again.
pub(crate) fn push_any(places: &mut Vec<u32>, next: &mut usize, rows: usize, limit: usize) {
    let first = if *next + edges(rows) <= limit { *next } else { 0 };
    *next = first + edges(rows);
    places.extend([NO_STATE, first as u32]);
}

#[cfg(test)]
mod tests {
    use crate::{Mode, PassLimits, Recompute, Target, activations_layout};
    use plimsoll_arch::{Cache, ModelSpec};
    use plimsoll_base::DType;
    use plimsoll_memory::Pool;

    #[test]
    fn a_pass_without_gradients_has_one_state_of_a_segment_and_no_rest() {
        let spec = ModelSpec::preset("qwen3.5-0.8b").unwrap();
        let target = Target { kind: &plimsoll_cpu::LAYOUTS, pool: Pool::Host, threads: 1 };
        let limits = PassLimits {
            rows: 1024,
            head_rows: 1024,
            listed: 0,
            taught: 0,
            own: crate::OwnLogits::NONE,
            segments: 9,
            table_entries: 80,
            copies: 8,
            caches: [(Cache::Paged, 80), (Cache::State, super::places_for(1024, 9))].into_iter().collect(),
        };
        let layout =
            |mode| activations_layout(&spec, DType::Bf16, target, mode, limits).expect("a layout that fits");
        let states = |mode: Mode| {
            let layout = layout(mode);
            let of =
                |name| layout.find(&format!("{}.delta.{name}", mode.prefix())).map(|region| region.shape[0]);
            (of("states"), of("rest"))
        };
        assert_eq!(limits.caches.units(Cache::STATE), 33);
        assert_eq!(states(Mode::Update(Recompute::Cheap)), (Some(33), Some(1024)));
        assert_eq!(states(Mode::Score), (Some(9), None));
        assert_eq!(states(Mode::Reward(0)), (Some(9), None));
    }
}
