//! The cut of a model's flat buffer into buckets.

use plimsoll_device::{BUCKET_ELEMENTS_MAX, CODE_BLOCK, Run};
use plimsoll_model::{Param, ParamTable};
use std::iter::once;

/// Returns buckets that cover the whole buffer, in order: small neighbours together, a large parameter in equal parts.
pub(crate) fn buckets(table: &ParamTable) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    let starts = table.params.iter().map(|param| param.offset);
    for (start, end) in starts.clone().zip(starts.skip(1).chain([table.elements])) {
        let elements = end - start;
        match out.last_mut() {
            Some(last) if last.elements + elements <= BUCKET_ELEMENTS_MAX => last.elements += elements,
            _ => out.extend(parts(start, elements)),
        }
    }
    out
}

/// Cuts a run of elements into equal parts of whole blocks, each at most a bucket.
fn parts(start: u64, elements: u64) -> impl Iterator<Item = Run> {
    let part = elements.div_ceil(elements.div_ceil(BUCKET_ELEMENTS_MAX)).next_multiple_of(CODE_BLOCK as u64);
    let of = move |at: u64| Run { start: start + at, elements: part.min(elements - at) };
    (0..elements).step_by(part as usize).map(of)
}

/// Returns what a backward pass may leave unwritten: padding of parameters to whole blocks, and, whole, matrices with
/// padding within; and parameters that no training changes. The optimizer and the norm read it.
pub(crate) fn padding(table: &ParamTable) -> Vec<Run> {
    let mut out = Vec::new();
    let starts = table.params.iter().map(|param| param.offset);
    for (param, next) in table.params.iter().zip(starts.skip(1).chain([table.elements])) {
        let is_padded = param.is_fixed() || param.elements != u64::from(param.n) * u64::from(param.k.max(1));
        let start = param.offset + if is_padded { 0 } else { param.elements };
        out.extend((start < next).then_some(Run { start, elements: next - start }));
    }
    out
}

/// Returns the elements of parameters that no training changes, in whole blocks, ascending.
pub(crate) fn fixed(table: &ParamTable) -> Vec<Run> {
    let of = |param: &Param| Run {
        start: param.offset,
        elements: param.elements.next_multiple_of(CODE_BLOCK as u64),
    };
    table.params.iter().filter(|param| param.is_fixed()).map(of).collect()
}

/// Returns the parts of `run` outside of `fixed` runs.
pub(crate) fn outside(fixed: &[Run], run: Run) -> impl Iterator<Item = Run> + '_ {
    let starts = once(run.start).chain(fixed.iter().map(move |fixed| fixed.end().max(run.start)));
    let ends = fixed.iter().map(move |fixed| fixed.start.min(run.end())).chain(once(run.end()));
    let parts = starts.zip(ends).filter(|(start, end)| start < end);
    parts.map(|(start, end)| Run { start, elements: end - start })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_arch::ModelSpec;
    use plimsoll_base::DType;

    #[test]
    fn padding_is_what_no_number_is_written_to() {
        let spec = ModelSpec::preset("qwen2.5-0.5b").unwrap();
        let table = ParamTable::new(&spec, &plimsoll_cuda::LAYOUTS, DType::Bf16);
        let numbers: u64 = table.params.iter().map(|p| u64::from(p.n) * u64::from(p.k.max(1))).sum();
        let padding = padding(&table);
        assert_eq!(padding.iter().map(|run| run.elements).sum::<u64>(), table.elements - numbers);
        assert!(!padding.is_empty() && padding.iter().all(|run| run.elements < CODE_BLOCK as u64));
    }

    #[test]
    fn buckets_cover_every_parameter_once_and_are_bounded() {
        for name in ["nano", "smollm2-135m", "qwen2.5-0.5b", "qwen2.5-7b"] {
            let spec = ModelSpec::preset(name).unwrap();
            for kind in [&plimsoll_cpu::LAYOUTS, &plimsoll_cuda::LAYOUTS] {
                let table = ParamTable::new(&spec, kind, DType::Bf16);
                let mut next = 0;
                for bucket in buckets(&table) {
                    assert_eq!(bucket.start, next, "{name}");
                    assert!(
                        bucket.start.is_multiple_of(CODE_BLOCK as u64)
                            && bucket.elements <= BUCKET_ELEMENTS_MAX
                    );
                    next += bucket.elements;
                }
                assert_eq!(next, table.elements, "{name}");
            }
        }
    }
}
