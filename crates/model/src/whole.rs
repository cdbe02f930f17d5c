//! Divergences of a pass's head rows from a teacher's head over the whole vocabulary.
//!
//! The teacher's head reads rows that it kept when it scored the samples, so its logits are those of scoring, whatever
//! has become of its layers since. Legend: R head rows, V the student's vocabulary, t the teacher's hidden elements.

use crate::activations::taught::{TeacherHead, WholeBufs};
use crate::decoder::Decoder;
use crate::forward::normed;
use crate::pass::Pass;
use plimsoll_device::{Device, DivergenceBackward, HeadDivergence, HeadOut, HeadSide, Measure};
use plimsoll_memory::Buf;

impl<'x> TeacherHead<'x> {
    /// Returns a decoder's head over the first `vocab` tokens, those of the student: q is its distribution among them.
    pub fn new(of: &Decoder<'x>, vocab: u32, inv_temperature: f32, how: Measure) -> TeacherHead<'x> {
        let logits = of.logits().and_times(inv_temperature);
        TeacherHead { w: of.head_over(vocab), logits, how }
    }
}

impl<'p> Pass<'p> {
    /// Adds the teacher whose head its head rows are compared with.
    pub fn with_teacher(self, teacher: Option<TeacherHead<'p>>) -> Pass<'p> {
        Pass { teacher, ..self }
    }

    /// Returns its buffers of a teacher's rows, cut to its head rows, and the teacher.
    fn whole(&self) -> Option<(WholeBufs<'p>, TeacherHead<'p>)> {
        let bufs = self.acts.backward?.whole()?;
        let teacher = self.teacher?;
        let of = |buf: Buf<'p>| buf.slice(0, self.head_rows);
        let HeadOut { logprobs, lse, entropy } = bufs.out;
        let bufs = WholeBufs {
            x: bufs.x.slice(0, self.head_rows * teacher.w.k),
            out: HeadOut { logprobs: of(logprobs), lse: of(lse), entropy: of(entropy) },
            values: of(bufs.values),
            means: of(bufs.means),
            d: of(bufs.d),
            ..bufs
        };
        Some((bufs, teacher))
    }

    /// Returns how its divergences follow from its logits; none without a teacher.
    pub(crate) fn divergence_backward(&self) -> Option<DivergenceBackward<'p>> {
        let (bufs, TeacherHead { w, logits, how }) = self.whole()?;
        let WholeBufs { x, out, tile, means, d, .. } = bufs;
        Some(DivergenceBackward { teacher: HeadSide { x, w, lse: out.lse, logits, tile }, how, means, d })
    }
}

/// Computes the divergence of each head row from the pass's teacher, after `head` at the same temperature: [R] f32, in
/// nats. `rows`: [R, t], what the teacher's head reads, as it is stored. `None` without a teacher.
pub fn head_divergence<'p>(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    pass: &Pass<'p>,
    inv_temperature: f32,
    rows: &[u8],
) -> Option<Buf<'p>> {
    let (bufs, TeacherHead { w, logits, how }) = pass.whole()?;
    assert_eq!(rows.len() as u64, bufs.x.bytes(), "a row of the teacher's for each head row");
    if pass.head_rows == 0 {
        return Some(bufs.values);
    }
    dev.write_bytes(bufs.x, 0, rows);
    let targets = pass.acts.targets.expect("the update has targets").slice(0, pass.head_rows);
    dev.head(bufs.x, w, targets, logits, bufs.tile, bufs.out);
    let (x, w_own, lse) = (normed(decoder, pass), decoder.params.head, pass.head_out().lse);
    let own = pass.logits(decoder, inv_temperature);
    dev.head_divergence(HeadDivergence {
        student: HeadSide { x, w: w_own, lse, logits: own, tile: pass.vocabulary().1 },
        teacher: HeadSide { x: bufs.x, w, lse: bufs.out.lse, logits, tile: bufs.tile },
        how,
        values: bufs.values,
        means: bufs.means,
    });
    Some(bufs.values)
}

/// Returns what a teacher's head read in a pass: [R, t] e.
pub fn teacher_rows<'p>(decoder: &Decoder<'_>, pass: &Pass<'p>) -> Buf<'p> {
    normed(decoder, pass)
}
