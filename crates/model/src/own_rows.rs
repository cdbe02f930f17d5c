//! Uploads what the head rows of a pass have of their own, before its head. Legend: R head rows, V vocabulary.

use crate::activations::bufs::HeadBufs;
use crate::decoder::Decoder;
use crate::own_logits::{DrawRun, OwnBufs};
use crate::pass::Pass;
use plimsoll_device::{Device, Logits, NO_MASK, RowMasks};

impl<'p> Pass<'p> {
    fn own(&self) -> OwnBufs<'p> {
        let HeadBufs::Vocabulary { own, .. } = self.acts.head else { panic!("values have no logits") };
        own
    }

    fn masks(&self) -> RowMasks<'p> {
        self.own().masks.expect("a pass whose rows may have masks")
    }

    /// Uploads the mask of a head row: one bit a token, of V / 32 words.
    pub fn put_mask(&self, dev: &dyn Device, row: usize, words: &[u32]) {
        dev.write_u32(self.masks().words, row * words.len(), words);
    }

    /// Uploads which head rows have the mask that was put there; `has`: [R].
    pub fn put_masked(&self, dev: &dyn Device, has: impl Iterator<Item = bool>) {
        let rows: Vec<u32> = (0..).zip(has).map(|(row, has)| if has { row } else { NO_MASK }).collect();
        self.put_masks(dev, &[], &rows);
    }

    /// Uploads masks, one after the other, and which one each head row has. `of_row`: [R], a mask or `NO_MASK`.
    pub fn put_masks(&self, dev: &dyn Device, masks: &[u32], of_row: &[u32]) {
        assert_eq!(of_row.len(), self.head_rows, "a word for each head row");
        dev.write_u32(self.masks().words, 0, masks);
        dev.write_u32(self.masks().rows, 0, of_row);
    }

    /// Uploads the biases of a head row: tokens, ascending, and what is added to their logits before the temperature.
    pub fn put_biases(&self, dev: &dyn Device, decoder: &Decoder<'_>, row: usize, biases: &[(u32, f32)]) {
        let (bufs, most) = (self.own().biases.expect("a pass with biases"), self.acts.limits.own.biases);
        assert!(biases.len() <= most, "{} biases of {most}", biases.len());
        // They are added before the model's own factor.
        let factor = decoder.logits().factor;
        let of = biases.iter().map(|&(id, bias)| (id, bias / factor));
        let none = std::iter::repeat((u32::MAX, 0.0));
        let (ids, values): (Vec<u32>, Vec<f32>) = of.chain(none).take(most).unzip();
        dev.write_u32(bufs.ids, row * most, &ids);
        dev.write_f32(bufs.values, row * most, &values);
    }

    /// Lets the head read the masks that `put_mask` and `put_masked` upload, in a pass that is not drawn from.
    pub fn with_masks(self) -> Pass<'p> {
        Pass { is_masked: true, ..self }
    }

    /// Returns how the pass's logits are finished at a temperature.
    pub(crate) fn logits(&self, decoder: &Decoder<'_>, inv_temperature: f32) -> Logits<'p> {
        let masks = self.is_masked.then(|| self.masks().of_rows(0, self.head_rows));
        Logits { masks, ..decoder.logits().and_times(inv_temperature) }
    }

    /// Returns how the logits of a run from row `first` on are finished.
    pub(crate) fn logits_of_run(&self, decoder: &Decoder<'_>, first: usize, run: &DrawRun) -> Logits<'p> {
        let mut logits: Logits<'p> = decoder.logits();
        if run.masks {
            logits.masks = Some(self.masks().of_rows(first, run.rows));
        }
        if run.biases {
            let all = self.own().biases.expect("a pass with biases");
            logits.biases = Some(all.of_rows(self.acts.limits.head_rows, first, run.rows));
        }
        logits
    }
}
