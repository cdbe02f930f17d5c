//! Cases that every device must pass, and the rig that they run on. The tests of `cpu` and `cuda` include this folder.

pub mod activation;
pub mod adapter;
pub mod attention;
pub mod blocks;
pub mod delta;
pub mod experts;
pub mod experts_adapter;
pub mod experts_bias;
pub mod experts_route;
pub mod experts_shared;
pub mod fp8;
pub mod head;
pub mod head_gates;
pub mod heads;
pub mod images;
pub mod muon;
pub mod nf4;
mod rig;
pub mod rotation;
pub mod rows;
pub mod slots;

pub use attention::checks as attends;
pub use experts_bias as biases;
pub use head::{draws, listed, noise, own, whole};
pub use rig::*;

/// Returns every second of some slow cases, the others with the next commit (PLIMSOLL_TURN); all without a turn, and
/// under PLIMSOLL_FULL=1.
pub fn in_turn<T>(cases: impl IntoIterator<Item = T>) -> Vec<T> {
    let is_full = std::env::var("PLIMSOLL_FULL").is_ok_and(|value| value == "1");
    let turn: Option<usize> = std::env::var("PLIMSOLL_TURN").ok().and_then(|number| number.parse().ok());
    let is_due = |index: usize| is_full || turn.is_none_or(|turn| (index + turn).is_multiple_of(2));
    cases.into_iter().enumerate().filter(|(index, _)| is_due(*index)).map(|(_, case)| case).collect()
}

/// A device's rigs over some buffers: one for each way to run it, none where the machine lacks it.
pub type Open<'o, D> = &'o dyn Fn(&[Sized<'_>]) -> Vec<Rig<D>>;

/// Defines a test of each case; `$run` runs one on the crate's device.
macro_rules! cases {
    ($run:path) => {
        cases! { $run:
            activation: activations_and_their_gradients_are_close_also_in_place,
                activations_of_the_ends_are_what_they_should_be;
            attends: chunks_beyond_the_first_are_merged, shared_prefixes_give_whole_sequences_rows,
                gradients_are_close_to_the_f64_reference_and_the_same_bits_each_time,
                rows_of_no_segment_have_no_gradients, values_are_stored_as_the_dtype_holds_them,
                sinks_are_in_every_softmax_once_however_many_chunks_it_has, gradients_of_sinks_agree_with_f64;
            biases: biases_are_added_to_pairs_with_their_weights_or_without,
                a_bias_of_one_output_is_a_number_that_weighs_an_expert,
                gradients_of_biases_are_sums_over_pairs_and_those_of_weights_products,
                clamped_gates_alternate_with_ups_and_have_no_gradient_where_they_are_clamped,
                products_of_experts_in_codes_have_the_bits_of_their_numbers;
            draws: what_is_recorded_equals_the_head_to_the_bit, greedy_takes_the_lowest_id_of_the_largest,
                rows_that_are_not_finite_are_marked, frequencies_follow_the_softmax,
                truncation_keeps_the_sets_that_the_definitions_name,
                draws_stay_inside_the_set_that_sorting_gives, a_draw_depends_on_its_key_alone;
            fp8: products_of_rounded_numbers_are_close_and_rows_are_their_own, gradients_pass_through_the_rounding,
                a_block_that_is_not_finite_is_not_a_number, adapters_are_added_to_rounded_products;
            head: logprobs_and_entropies_agree_with_f64, bits_do_not_depend_on_the_rows_beside,
                gradients_agree_with_the_formula_and_with_differences;
            listed: the_most_likely_tokens_are_those_of_sorting, of_equal_logits_lower_ids_are_listed_first,
                lists_do_not_depend_on_the_rows_beside, rows_that_are_not_finite_have_lists_all_the_same,
                gradients_of_listed_tokens_agree_with_the_formula, a_list_without_a_derivative_changes_no_bit;
            heads: products_of_heads_are_close_and_rows_are_their_own, blocks_of_columns_are_moved_in_each_order;
            images: norms_by_mean_and_variance_are_close_and_rows_are_their_own,
                gelus_and_their_gradients_are_close_also_in_place,
                rows_see_all_of_their_image_and_nothing_of_others,
                pairs_are_rotated_by_the_number_of_a_place_that_they_take,
                rows_are_weighed_and_put_where_they_are_asked_for;
            muon: momentum_is_mixed_twice_with_nesterov, a_step_keeps_the_f32_copy_and_rounds_it_once,
                parts_of_matrices_are_taken_turned_and_put_back;
            noise: what_is_recorded_is_of_the_rows_with_their_noise, rows_without_noise_draw_as_before;
            own: rows_with_masks_and_biases_agree_with_f64_and_others_keep_their_bits,
                masked_tokens_have_no_gradient;
            rotation: rope_is_close_and_rows_are_their_own, copies_of_cache_blocks_take_the_first_slots,
                rope_backward_is_close_and_repeats, gradients_of_bf16_without_norms_are_rounded_once;
            rows: rms_norm_is_close_and_rows_are_their_own, perturbed_norms_have_other_bits_somewhere,
                rms_norm_backward_is_close_and_repeats, gates_and_their_gradients_are_close_also_in_place,
                norms_are_added_to_the_residual_also_in_place,
                gates_of_a_product_are_those_of_both_operations, bent_gates_of_extreme_size_are_finite,
                rows_are_gathered_and_added_back, a_bias_gets_the_sum_of_its_column,
                casts_round_to_nearest_even_also_where_nothing_is_aligned;
            slots: rows_have_the_bits_of_their_own_adapter;
        }
    };
    (whole $run:path) => {
        cases! { $run:
            whole: divergences_agree_with_f64, divergences_do_not_depend_on_the_rows_beside,
                gradients_of_divergences_agree_with_the_formula_and_with_differences,
                a_student_that_is_its_teacher_has_no_divergence_and_no_gradient,
                a_divergence_without_a_derivative_reads_nothing_of_the_teacher,
                values_and_gradients_are_those_of_trl;
        }
    };
    ($run:path: $($module:ident: $($case:ident),*;)*) => {
        $($(#[test]
        fn $case() {
            $run(crate::both::$module::$case);
        })*)*
    };
}
pub(crate) use cases;
