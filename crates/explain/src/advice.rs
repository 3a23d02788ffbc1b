//! What several systems' explanations share: what a tensor's shape tells, and whether what is held rises.

use crate::bfc::element_bytes;
use crate::bytes::{Size, percent};
use crate::explanation::Explanation;
use crate::pool::Pool;

/// The least number of reports by which a rise is called one.
const REPORTS: usize = 3;

/// Says that something rose from refusal to refusal.
pub(crate) fn risen(what: &str, refusals: usize, first: u64, last: u64) -> String {
    let (first, last) = (Size(first), Size(last));
    format!("{what} at {refusals} refusals in this log: {first} at the first, {last} at the last")
}

/// The first and last of figures that rise from report to report, each at least nearly as high as the one before, and by a
/// twentieth in all: less is noise between refusals of one step.
pub(crate) fn rise(in_use: &[u64]) -> Option<(u64, u64)> {
    let (&first, &last) = (in_use.first()?, in_use.last()?);
    let rises = in_use.windows(2).all(|pair| match pair {
        [before, after] => u128::from(*after) * 100 >= u128::from(*before) * 99,
        _ => true,
    });
    (in_use.len() >= REPORTS && rises && last > first && percent(last - first, last) >= 5)
        .then_some((first, last))
}

/// A kernel of a convolution has no batch: its first axes are equal and small.
fn looks_like_a_kernel(shape: &[u64]) -> bool {
    matches!(shape, [h, w, _, _] if h == w && *h <= 11)
}

/// Advice that a tensor's shape allows: a smaller batch.
pub(crate) fn for_batch(to: &mut Explanation, shape: &[u64], bytes: u64) {
    if let Some(&batch) = shape.first()
        && shape.len() >= 2
        && batch >= 2
        && !looks_like_a_kernel(shape)
    {
        let each = bytes / batch;
        let half = batch / 2;
        to.advise(
            format!(
                "use a smaller batch: if the first axis of [{}] is the batch, {} a sample here, {half} instead of {batch} takes {} less for \
                 this tensor alone, and every other activation shrinks with it{}",
                join(shape),
                Size(each),
                Size(each.saturating_mul(batch - half)),
                largest_batch(to, each, batch),
            ),
            Some(each.saturating_mul(batch - half)),
        );
    }
}

/// Advice that a tensor's type allows: a narrower one.
pub(crate) fn for_type(to: &mut Explanation, dtype: &str, bytes: u64) {
    if matches!(dtype, "float" | "float32" | "f32") && bytes >= 1 << 20 {
        to.advise(
            format!(
                "use 16-bit activations (mixed precision): this tensor would take {} less",
                Size(bytes / 2)
            ),
            Some(bytes / 2),
        );
    }
    if matches!(dtype, "double" | "float64" | "f64") {
        to.advise(
            format!("this tensor is 64-bit: as float32 it would take {} less", Size(bytes / 2)),
            Some(bytes / 2),
        );
    }
}

/// The batch at which the refused tensor would have fitted, everything else unchanged.
fn largest_batch(to: &Explanation, each: u64, batch: u64) -> String {
    match to.figures.would_have_fitted_bytes.and_then(|bytes| bytes.checked_div(each)) {
        Some(fits) if fits > 0 && fits < batch => {
            format!(
                "; at {fits} this tensor would have fitted into what was free even if nothing else shrank"
            )
        }
        _ => String::new(),
    }
}

/// A tensor in words.
pub(crate) fn tensor(shape: &[u64], dtype: &str) -> String {
    let known = if element_bytes(dtype).is_some() { dtype } else { "a tensor" };
    format!("{known}[{}]", join(shape))
}

fn join(shape: &[u64]) -> String {
    shape.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// Sentences about what a pool holds most of; the bytes of the heaviest row whose chunks are many and alike.
pub(crate) fn repeated(pool: &Pool) -> Option<(String, u64)> {
    let heaviest = pool.heaviest(4);
    let (size, owner, holder) = heaviest.into_iter().find(|(_, _, holder)| holder.count >= 8)?;
    if percent(holder.bytes, pool.used) < 30 {
        return None;
    }
    let by = owner.map_or(String::new(), |owner| format!(" made by {owner}"));
    let text = format!(
        "{} chunks{by} of {} each hold {}, {} % of what is in use",
        holder.count,
        Size(size),
        Size(holder.bytes),
        percent(holder.bytes, pool.used)
    );
    Some((text, holder.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_needs_three_reports_and_a_twentieth() {
        assert_eq!(rise(&[100, 110, 130]), Some((100, 130)));
        assert_eq!(rise(&[100, 130]), None, "two are no series");
        assert_eq!(rise(&[100, 101, 102]), None, "two percent are noise");
        assert_eq!(rise(&[100, 60, 130]), None, "it fell in between");
        assert_eq!(rise(&[]), None);
    }
}
