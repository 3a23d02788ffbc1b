//! Turns a frontier into a small plot of characters: bytes from left to right, time from bottom to top.

use plimsoll::plan::FrontierPoint;
use plimsoll::prelude::*;

const WIDTH: usize = 56;
const HEIGHT: usize = 10;

/// The plot of a frontier, with the place of a plan marked; nothing where there is only one plan to be had.
pub fn frontier(points: &[FrontierPoint], plan: Option<(Bytes, f64)>) -> Vec<String> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    if points.len() < 2 {
        return Vec::new();
    }
    let all = || points.iter().map(|p| (p.planned, p.predicted_seconds)).chain(plan);
    let least = all().map(|(bytes, _)| bytes).min().unwrap_or(first.planned);
    let most = all().map(|(bytes, _)| bytes).max().unwrap_or(last.planned);
    let (fast, slow) = all().fold((f64::MAX, 0.0f64), |(low, high), (_, s)| (low.min(s), high.max(s)));
    let column = |bytes: Bytes| {
        let part = (bytes.get() - least.get()) as f64 / (most.get() - least.get()).max(1) as f64;
        (part * (WIDTH - 1) as f64).round() as usize
    };
    let row = |seconds: f64| {
        let part = (slow - seconds) / (slow - fast).max(f64::MIN_POSITIVE);
        (part * (HEIGHT - 1) as f64).round() as usize
    };
    let mut cells = vec![[' '; WIDTH]; HEIGHT];
    // A limit between two points buys nothing but what the smaller one has.
    for pair in points.windows(2) {
        let (from, to) = (column(pair[0].planned), column(pair[1].planned));
        cells[row(pair[0].predicted_seconds)][from..to].fill('·');
    }
    for point in points {
        cells[row(point.predicted_seconds)][column(point.planned)] = '●';
    }
    if let Some((bytes, seconds)) = plan {
        cells[row(seconds)][column(bytes)] = '◆';
    }
    let mut lines = Vec::new();
    for (i, cells) in cells.iter().enumerate() {
        let label = match i {
            0 => duration(slow),
            i if i == HEIGHT - 1 => duration(fast),
            _ => String::new(),
        };
        let text: String = cells.iter().collect();
        lines.push(format!("{label:>12} │{}", text.trim_end()));
    }
    lines.push(format!("{:>12} └{}", "", "─".repeat(WIDTH)));
    let (left, right) = (least.to_string(), most.to_string());
    lines.push(format!("{:>14}{left}{right:>1$}", "", WIDTH - left.len()));
    lines
}

/// A time as people read it.
pub fn duration(seconds: f64) -> String {
    let ms = seconds * 1e3;
    match ms.abs() {
        most if most >= 10_000.0 => format!("{seconds:.1} s"),
        most if most >= 100.0 => format!("{ms:.0} ms"),
        most if most >= 10.0 => format!("{ms:.1} ms"),
        _ => format!("{ms:.2} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(mib: u64, seconds: f64) -> FrontierPoint {
        let (limit, planned) = (Bytes::mib(mib), Bytes::mib(mib));
        FrontierPoint { limit, planned, predicted_seconds: seconds, micro_batches: 1, recomputed_ops: 0 }
    }

    #[test]
    fn the_plot_falls_from_the_left_to_the_right_and_marks_the_plan() {
        let points = [point(10, 0.3), point(20, 0.2), point(30, 0.1)];
        let lines = frontier(&points, Some((Bytes::mib(20), 0.2)));
        assert_eq!(lines.len(), HEIGHT + 2);
        let at = |mark: char| -> Vec<(usize, usize)> {
            let found = |(i, line): (usize, &String)| line.chars().position(|c| c == mark).map(|at| (i, at));
            lines.iter().enumerate().filter_map(found).collect()
        };
        let (ends, plan) = (at('●'), at('◆'));
        assert_eq!((ends.len(), plan.len()), (2, 1));
        assert!(ends[0].0 < plan[0].0 && plan[0].0 < ends[1].0, "{lines:#?}");
        assert!(ends[0].1 < plan[0].1 && plan[0].1 < ends[1].1, "{lines:#?}");
        assert!(
            lines[0].trim_start().starts_with("300 ms") && lines[HEIGHT + 1].ends_with("30 MiB"),
            "{lines:#?}"
        );
    }

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let texts = [0.001234, 0.0567, 0.789, 1.2, 76.2439].map(duration);
        assert_eq!(texts, ["1.23 ms", "56.7 ms", "789 ms", "1200 ms", "76.2 s"]);
    }

    #[test]
    fn one_plan_is_no_plot() {
        assert!(frontier(&[point(10, 0.3)], None).is_empty());
        assert!(frontier(&[], None).is_empty());
    }
}
