//! Turns what was measured of steps into a record: rows by op, means by instruction, where the time of a step went.

use plimsoll_record as record;
use plimsoll_record::{Action, ProfileRow, ProfiledCopy, ProfiledRun, ProfiledStep, Spent};
use rustc_hash::FxHashMap;

use super::profiling::Profiling;
use super::variant::Variant;
use crate::device::Device;

/// The record of a profile, of a form whose own record is `step`.
pub(super) fn record(
    profiling: &Profiling,
    form: &Variant,
    step: &record::Step,
    device: &Device,
) -> record::Profile {
    let mut sums = vec![(0.0f64, 0u64); step.instructions.len()];
    // Copies beside kernels, by instruction.
    let mut beside = vec![0.0f64; step.instructions.len()];
    let mut steps = Vec::with_capacity(profiling.kept());
    for (measured, times) in profiling.in_order() {
        let mut spent = measured.spent;
        let (mut runs, mut at) = (Vec::with_capacity(measured.starts.len()), 0);
        for ((section, clock), start_us) in form.clocks().zip(&measured.starts) {
            let first = step.section(section).map_or(0, |range| range.start);
            let times = &times[at..at + clock.numbers()];
            at += clock.numbers();
            let (us, copied) = times.split_at(clock.numbers() - 2 * clock.copies().len());
            for (i, us) in us.iter().enumerate() {
                let (sum, count) = &mut sums[first + i];
                (*sum, *count) = (*sum + f64::from(*us), *count + 1);
                *part_of(&mut spent, step.instructions[first + i].what) += f64::from(*us) / 1e3;
            }
            let timed = clock.copies().iter().zip(copied.chunks_exact(2)).filter(|(_, n)| n[1].is_finite());
            let copy = |((i, _), n): (&(usize, bool), &[f32])| ProfiledCopy {
                instruction: *i as u32,
                start_us: n[0],
                us: n[1],
            };
            let copies: Vec<ProfiledCopy> = timed.map(copy).collect();
            for copy in &copies {
                beside[first + copy.instruction as usize] += f64::from(copy.us);
                spent.beside_ms += f64::from(copy.us) / 1e3;
            }
            runs.push(ProfiledRun { section: section as u32, start_us: *start_us, us: us.to_vec(), copies });
        }
        spent.between_ms = spent.step_ms - spent.measured_ms();
        steps.push(ProfiledStep { step: measured.number as u64, spent, runs });
    }
    let total_ms: f64 = steps.iter().map(|step| step.spent.step_ms).sum();
    let mean = |(sum, count): &(f64, u64)| sum / (*count).max(1) as f64;
    record::Profile {
        device: device.name().into(),
        asked: profiling.asked as u64,
        left_out: profiling.left_out as u64,
        mean: Spent::mean(steps.iter().map(|step| &step.spent)),
        predicted_ms: form.info.predicted_seconds * 1e3,
        memory: record::ProfiledMemory {
            planned_bytes: form.info.planned.get(),
            taken_bytes: device.counted().peak.get(),
            tensor_peak_bytes: profiling.tensor_peak.get(),
            arena_bytes: form.arena_bytes() as u64,
        },
        rows: rows(form, step, &sums, &beside, total_ms),
        instructions_us: sums.iter().map(mean).collect(),
        steps,
        ..record::Profile::default()
    }
}

/// The part of a step's time that an instruction counts to.
fn part_of(spent: &mut Spent, what: Action) -> &mut f64 {
    match what {
        Action::Run | Action::Again => &mut spent.kernel_ms,
        Action::Await => &mut spent.await_ms,
        Action::Check => &mut spent.check_ms,
        // What starting a copy beside kernels takes on the kernels' own queue is next to nothing.
        Action::Copy | Action::Offload | Action::Prefetch => &mut spent.copy_ms,
    }
}

/// Instructions by op and what is done, those that take most first.
fn rows(
    form: &Variant,
    step: &record::Step,
    sums: &[(f64, u64)],
    beside: &[f64],
    total_ms: f64,
) -> Vec<ProfileRow> {
    let mut rows: Vec<ProfileRow> = Vec::new();
    let mut known: FxHashMap<(&str, Action), usize> = FxHashMap::default();
    for (((line, &(sum, count)), copied), bytes) in
        step.instructions.iter().zip(sums).zip(beside).zip(form.instruction_bytes())
    {
        let at = *known.entry((&line.op, line.what)).or_insert_with(|| {
            let predicted_ms = line.what.is_kernel().then_some(0.0);
            rows.push(ProfileRow { predicted_ms, ..ProfileRow::new(line.op.clone(), line.what) });
            rows.len() - 1
        });
        let row = &mut rows[at];
        let is_beside = matches!(line.what, Action::Offload | Action::Prefetch) && *copied > 0.0;
        row.count += count;
        row.total_ms += if is_beside { *copied } else { sum } / 1e3;
        row.bytes += bytes as u64 * count;
        row.predicted_ms = row.predicted_ms.map(|ms| ms + line.us * count as f64 / 1e3);
    }
    ProfileRow::finish(&mut rows, total_ms);
    rows
}
