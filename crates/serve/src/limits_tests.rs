//! Tests what a server holds grows with what it may be asked for, and not without it.

use super::*;

const SMALL: Limits = Limits { slots: 4, queue: 8, context: 512, new_tokens: 128, listed: 0, biases: 300 };

#[test]
fn more_of_anything_is_more_bytes() {
    let base = SMALL.host_bytes();
    for more in [
        Limits { slots: 5, ..SMALL },
        Limits { queue: 9, ..SMALL },
        Limits { context: 513, ..SMALL },
        Limits { new_tokens: 129, ..SMALL },
    ] {
        assert!(more.host_bytes() > base, "{more:?}");
    }
}

#[test]
fn a_place_in_the_queue_costs_its_connection_and_its_answer_and_no_more_bodies() {
    let one =
        |limits: Limits| limits.host_bytes().0 - Limits { queue: limits.queue - 1, ..limits }.host_bytes().0;
    let place = one(SMALL);
    // A crowd is refused by its places, so the price of one must not grow with the crowd.
    assert_eq!(one(Limits { queue: 5000, ..SMALL }), place);
    assert_eq!(Limits { queue: 5000, ..SMALL }.arrivals_bytes(), SMALL.arrivals_bytes());
    let answer = SMALL.new_tokens * (DRAWN_BYTES + WRITTEN_BYTES);
    assert!(place as usize > answer + 2 * BUFFER_BYTES && place < 1 << 20, "{place}");
}

#[test]
fn a_body_has_room_for_the_longest_prompt_in_its_longest_form() {
    for context in [1, 512, 4096, 131_072] {
        let limits = Limits { context, ..SMALL };
        let ids = serde_json::json!({ "token_ids": vec![151_935; context] }).to_string();
        assert!(ids.len() < limits.body_bytes(), "{context}: {}", ids.len());
    }
}

#[test]
fn prompt_and_response_fit_exactly_when_both_and_their_sum_do() {
    for prompt in 0..=SMALL.context + 2 {
        for new in [1, 2, 127, 128, 129, 383, 384, 385] {
            let fits = prompt < SMALL.context && new <= SMALL.new_tokens && prompt + new <= SMALL.context;
            assert_eq!(SMALL.check_tokens(prompt, new).is_ok(), fits, "{prompt} + {new}");
        }
    }
}
