//! The table and the sentence of what `async.partial_rollouts` brings.

use super::gain::{Gain, Gains};
use crate::duration::duration;
use plimsoll_base::Bytes;

impl Gains {
    /// Returns the table that `plan --lengths` prints.
    pub fn table(&self) -> String {
        let on_card = self.rows.iter().any(|gain| gain.device_bytes > Bytes(0));
        let mut text = format!(
            "carry: {}\n{:>7} {:>9} {:>6} {:>6} {:>6} {:>6} {:>6} {:>12} {:>10} {:>12}  {:>11}\n",
            self.lengths,
            "carry",
            "ticks",
            "idle",
            "tail",
            "older",
            "age",
            "again",
            "tokens/tick",
            "step",
            "tokens/s",
            if on_card { "card" } else { "host" }
        );
        for gain in &self.rows {
            let carry = format!("{}{}", gain.carry, if gain.carry == self.now { "*" } else { "" });
            if let Some(why) = &gain.refused {
                text += &format!("{carry:>7}  refused: {why}\n");
                continue;
            }
            let [idle, tail, older, again] =
                [gain.idle_share, gain.tail_share, gain.stale_share, gain.recomputed_share].map(percent);
            let fits = if gain.fits { "" } else { ", does not fit" };
            text += &format!(
                "{carry:>7} {:>9.0} {idle:>6} {tail:>6} {older:>6} {:>6.2} {again:>6} {:>12.1} {:>10} {:>12.0}  {:>11}{fits}\n",
                gain.ticks,
                gain.staleness,
                gain.trained_tokens_per_tick,
                duration(gain.predicted_step_s),
                gain.trained_tokens_per_second,
                memory(gain).to_string(),
            );
        }
        text + &format!("  * the run file's; seconds are predicted, with these lengths\n{}\n", self.words)
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Returns the memory of the pool that the model is in.
fn memory(gain: &Gain) -> Bytes {
    if gain.device_bytes > Bytes(0) { gain.device_bytes } else { gain.host_bytes }
}

/// Returns the recommendation. `rows` begin with the one without carried prompts.
pub(super) fn sentence(rows: &[Gain], recommended: Option<u32>, now: u32) -> String {
    let none = &rows[0];
    let find = |carry: u32| rows.iter().find(|gain| gain.carry == carry);
    let Some(best) = recommended.and_then(find) else {
        return "recommended: nothing yet, because the run does not fit with any of these".to_string();
    };
    let kept = if best.carry == now { ", as the run file has it" } else { "" };
    if best.carry == 0 {
        let most = rows.iter().filter(|gain| gain.fits && gain.carry > 0);
        let most = most.max_by(|a, b| a.trained_tokens_per_second.total_cmp(&b.trained_tokens_per_second));
        let why = match most {
            Some(most) => format!(
                "{} would train {:.2} times as many tokens a second, with {} of them drawn by older weights",
                most.carry,
                most.trained_tokens_per_second / none.trained_tokens_per_second,
                percent(most.stale_share)
            ),
            None => "no other number fits".to_string(),
        };
        return format!("recommended: async.partial_rollouts = 0{kept}: {why}");
    }
    let without = if none.fits {
        format!("{} without", memory(none))
    } else {
        format!("{} without, which does not fit", memory(none))
    };
    format!(
        "recommended: async.partial_rollouts = {}{kept}: {:.2} times as many trained tokens a second, a step of {} instead of {}; \
         {} of the tokens are then drawn by older weights, {:.2} updates before they are trained on average, \
         and it takes {} ({without})",
        best.carry,
        best.trained_tokens_per_second / none.trained_tokens_per_second,
        duration(best.predicted_step_s),
        duration(none.predicted_step_s),
        percent(best.stale_share),
        best.staleness,
        memory(best),
    )
}
