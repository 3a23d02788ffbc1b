//! Turns the state of a run into a screen: the memory limit and what is taken of it, the loss, the pipeline, what happened.

use plimsoll::data::StageCount;
use plimsoll::internals::run::record::Ranks;
use plimsoll::prelude::*;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph};

use super::state::State;

/// What is asked for at the moment of drawing.
#[derive(Default)]
pub struct Live {
    /// What the process takes, and took at most, as the system counts it.
    pub resident: Bytes,
    pub peak: Bytes,
    /// What the process takes of the host's memory, now and at most.
    pub host: (Bytes, Bytes),
    /// What each stage of the pipeline has done.
    pub stages: Vec<StageCount>,
    /// Threads and batches of the pipeline.
    pub parallelism: (usize, usize),
    /// The bytes that the pipeline holds, and at most.
    pub pipeline: (Bytes, Bytes),
    pub is_paused: bool,
    pub is_help: bool,
    pub is_stopping: bool,
}

/// Draws one screen.
pub fn draw(frame: &mut Frame<'_>, state: &State, live: &Live) {
    if live.is_help {
        frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" help ")), frame.area());
        return;
    }
    let kinds = state.kinds.len().clamp(4, 10) as u16 + 2;
    let stages = live.stages.len().clamp(2, 6) as u16 + 3;
    // As many ranks as there is room for; the title says how many there are.
    let of_ranks = state.ranks.as_ref().map_or(0, |ranks| ranks.rows.len().min(8) as u16 + 3);
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(kinds),
        Constraint::Length(of_ranks),
        Constraint::Length(stages),
        Constraint::Length(1),
    ]);
    let [head, epoch, load, middle, others, bottom, foot] = rows.areas(frame.area());
    let [left, right] = Layout::horizontal([Constraint::Length(44), Constraint::Min(10)]).areas(middle);
    frame.render_widget(Paragraph::new(heading(state)), head);
    epoch_bar(frame, state, epoch);
    memory_bar(frame, state, live, load);
    by_kind(frame, state, left);
    losses(frame, state, right);
    if let Some(ranks) = &state.ranks {
        by_rank(frame, ranks, state.memory_limit, others);
    }
    let [left, right] = Layout::horizontal([Constraint::Length(44), Constraint::Min(10)]).areas(bottom);
    pipeline(frame, live, left);
    events(frame, state, right);
    let keys = match (live.is_stopping, live.is_paused) {
        (true, _) => "stopping after this step; a checkpoint is written",
        (false, true) => "paused: p draws again   q stops   ? help   (the training goes on)",
        (false, false) => "q stops after this step, with a checkpoint   p pauses the view   ? help",
    };
    frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

const HELP: &str = "\
q, Ctrl-C   end the run after this step, as if it had finished early: a checkpoint is
            written, and the model; `--resume --out DIR` goes on from there
p           stop drawing, and draw again; the training goes on
?           this page, and back

memory      what the process takes now, of the memory limit, which is the end of the bar
by kind     what the plan gives each kind of memory when most is held
waiting     the share of time in which the training waited for its input
pipeline    samples that left each stage, the time its threads worked, and waited";

fn heading(state: &State) -> Line<'static> {
    let strong = Style::new().add_modifier(Modifier::BOLD);
    let Some(step) = &state.step else {
        return Line::from(vec![Span::styled("plimsoll", strong), Span::raw("  waiting for the first step")]);
    };
    let speed = step.seen as f64 / step.seconds.max(1e-9);
    let waiting = 100.0 * step.waiting / step.seconds.max(1e-9);
    Line::from(vec![
        Span::styled("plimsoll", strong),
        Span::raw(format!(
            "  step {}  loss {:.4}  mean {:.4}  {speed:.0} samples/s  waiting {waiting:.0} %  rate {:.2e}",
            step.step, step.loss, step.mean_loss, step.rate
        )),
    ])
}

fn epoch_bar(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let (epoch, seen) = state.step.map_or((0, 0), |step| (step.epoch, step.seen));
    let done = state.samples.map_or(0.0, |samples| seen as f64 / samples.max(1) as f64);
    let of = state.samples.map_or(String::new(), |samples| format!("/{samples}"));
    let left = state.eta.left().map_or(String::new(), |left| format!("  {left}"));
    let label = format!("epoch {}/{}  {seen}{of} samples{left}", epoch + 1, state.epochs);
    let gauge = Gauge::default().ratio(done.clamp(0.0, 1.0)).label(label);
    frame.render_widget(gauge.gauge_style(Style::new().fg(Color::Blue)), area);
}

fn memory_bar(frame: &mut Frame<'_>, state: &State, live: &Live, area: Rect) {
    let (what, whole) = match state.memory_limit {
        Some(limit) => ("limit", limit),
        None => ("planned", state.planned),
    };
    let part = live.resident.get() as f64 / whole.get().max(1) as f64;
    let label =
        format!("memory {} of {what} {whole}  peak {}  planned {}", live.resident, live.peak, state.planned);
    let label = match state.host {
        None => label,
        Some(host) => {
            let of = host.limit.map_or(String::new(), |limit| format!(" of {limit}"));
            format!("{label}  host {} peak {}{of}", live.host.0, live.host.1)
        }
    };
    let color = if part > 1.0 { Color::Red } else { Color::Green };
    let gauge = Gauge::default().ratio(part.clamp(0.0, 1.0)).label(label);
    frame.render_widget(gauge.gauge_style(Style::new().fg(color)), area);
}

fn by_kind(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let most = state.kinds.iter().map(|(_, bytes)| bytes.get()).max().unwrap_or(1).max(1);
    let room = (area.width as usize).saturating_sub(26);
    let lines: Vec<Line<'_>> = state
        .kinds
        .iter()
        .map(|(name, bytes)| {
            let bar = "█".repeat((bytes.get() as f64 / most as f64 * room as f64).round() as usize);
            let color = if *name == "unused" { Color::DarkGray } else { Color::Cyan };
            Line::from(vec![
                Span::raw(format!("{name:<11}{bytes:>10}  ")),
                Span::styled(bar, Style::new().fg(color)),
            ])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" memory by kind ")), area);
}

fn by_rank(frame: &mut Frame<'_>, ranks: &Ranks, limit: Option<Bytes>, area: Rect) {
    let mut lines = vec![Line::styled(
        format!(
            "{:<6}{:>11}{:>11}{:>12}{:>12}{:>10}{:>10}",
            "rank", "planned", "at most", "sent", "received", "steps", "waiting"
        ),
        Style::new().add_modifier(Modifier::DIM),
    )];
    lines.extend(ranks.rows.iter().map(|row| {
        let bytes = |n: u64| Bytes(n).to_string();
        let text = format!(
            "{:<6}{:>11}{:>11}{:>12}{:>12}{:>8.1} s{:>8.1} s",
            row.rank,
            bytes(row.planned_bytes),
            bytes(row.peak_bytes),
            bytes(row.sent_bytes),
            bytes(row.received_bytes),
            row.step_seconds,
            row.waiting_seconds
        );
        let is_over = limit.is_some_and(|limit| row.peak_bytes > limit.get());
        Line::styled(text, if is_over { Style::new().fg(Color::Red) } else { Style::new() })
    }));
    let title = format!(
        " {} ranks by {}, --parallel {}; after epoch {} ",
        ranks.rows.len(),
        ranks.by,
        ranks.parallel,
        ranks.epoch
    );
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), area);
}

fn losses(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let metrics: Vec<String> =
        state.metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    let block = Block::bordered().title(" loss ").title_bottom(match metrics.is_empty() {
        true => String::new(),
        false => format!(" last epoch: {} ", metrics.join("  ")),
    });
    let points: Vec<(f64, f64)> = state.losses.points().collect();
    let Some(&(last, _)) = points.last() else {
        frame.render_widget(Paragraph::new(state.plan.as_str()).block(block), area);
        return;
    };
    let (low, high) =
        points.iter().fold((f64::MAX, f64::MIN), |(low, high), (_, y)| (low.min(*y), high.max(*y)));
    let high = if high > low { high } else { low + 1.0 };
    let curve = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Style::new().fg(Color::Yellow))
        .data(&points);
    let chart = Chart::new(vec![curve])
        .block(block)
        .x_axis(Axis::default().bounds([0.0, last.max(1.0)]))
        .y_axis(Axis::default().bounds([low, high]).labels([format!("{low:.3}"), format!("{high:.3}")]));
    frame.render_widget(chart, area);
}

fn pipeline(frame: &mut Frame<'_>, live: &Live, area: Rect) {
    let (threads, batches) = live.parallelism;
    let block = Block::bordered()
        .title(format!(" pipeline: {threads} threads, {batches} batches "))
        .title_bottom(format!(" holds {} of {} ", live.pipeline.0, live.pipeline.1));
    let mut lines = vec![Line::styled(
        format!("{:<12}{:>9}{:>10}{:>10}", "stage", "samples", "working", "waiting"),
        Style::new().add_modifier(Modifier::DIM),
    )];
    lines.extend(live.stages.iter().map(|stage| {
        let (busy, waiting) = (stage.busy.as_secs_f64(), stage.waiting.as_secs_f64());
        let name: String = stage.name.chars().take(12).collect();
        Line::raw(format!("{name:<12}{:>9}{busy:>8.1} s{waiting:>8.1} s", stage.elements))
    }));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn events(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let room = (area.height as usize).saturating_sub(2);
    let skipped = state.events.len().saturating_sub(room);
    let lines: Vec<Line<'_>> =
        state.events.iter().skip(skipped).map(|event| Line::raw(event.as_str())).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" events ")), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll::internals::run::record::RankRow;
    use plimsoll::train::{Notice, StepEvent};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    fn run() -> (State, Live) {
        let kinds =
            vec![("parameter", Bytes::mib(4)), ("activation", Bytes::mib(9)), ("program", Bytes::mib(15))];
        let mut state = State {
            memory_limit: Some(Bytes::mib(32)),
            planned: Bytes::mib(28),
            kinds,
            epochs: 15,
            samples: Some(1000),
            ..State::default()
        };
        for step in 1..=40 {
            state.step(&StepEvent {
                epoch: 2,
                step,
                samples: 10,
                seen: 10 * step,
                loss: 2.0 / step as f64,
                mean_loss: 0.5,
                rate: 1e-3,
                seconds: step as f64,
                waiting: step as f64 / 4.0,
                loss_scale: None,
                gradient_norm: None,
            });
        }
        state.notice(&Notice::Skipped { step: 7, loss_scale: None });
        state.metrics = vec![("accuracy".into(), 0.9375)];
        let count = |name: &str| StageCount {
            name: name.into(),
            elements: 4321,
            bytes: 0,
            busy: Duration::from_secs(3),
            waiting: Duration::from_secs(1),
        };
        let live = Live {
            resident: Bytes::mib(24),
            peak: Bytes::mib(27),
            host: (Bytes::mib(700), Bytes::mib(710)),
            stages: vec![count("source"), count("batch")],
            parallelism: (2, 4),
            pipeline: (Bytes::mib(1), Bytes::mib(3)),
            ..Live::default()
        };
        (state, live)
    }

    fn screen(width: u16, height: u16, state: &State, live: &Live) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, live)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_shows_memory_limit_kinds_loss_speed_stages_and_events() {
        let (state, live) = run();
        let text = screen(110, 30, &state, &live);
        for word in [
            "epoch 3/15",
            "400/1000 samples",
            "step 40",
            "loss 0.0500",
            "10 samples/s",
            "waiting 25 %",
            "memory 24 MiB of limit 32 MiB",
            "peak 27 MiB",
            "planned 28 MiB",
            "parameter",
            "4 MiB",
            "activation",
            "9 MiB",
            "accuracy 0.9375",
            "2 threads, 4 batches",
            "holds 1 MiB of 3 MiB",
            "source",
            "4321",
            "3.0 s",
            "step 7: a batch was left out",
            "q stops after this step",
        ] {
            assert!(text.contains(word), "no {word:?} on\n{text}");
        }
        // The curve: a braille character in the chart.
        assert!(text.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "{text}");
    }

    #[test]
    fn each_of_several_ranks_has_a_row() {
        let (mut state, live) = run();
        assert!(!screen(110, 40, &state, &live).contains("ranks by"));
        let row = |rank: u64| RankRow {
            rank,
            planned_bytes: 28 << 20,
            peak_bytes: (20 + rank) << 20,
            ..RankRow::default()
        };
        let rows = (0..3).map(row).collect();
        state.ranks =
            Some(Ranks { epoch: 2, by: "tcp".into(), parallel: "shard".into(), rows, ..Ranks::default() });
        let text = screen(110, 40, &state, &live);
        for word in ["3 ranks by tcp, --parallel shard; after epoch 2", "20 MiB", "21 MiB", "22 MiB"] {
            assert!(text.contains(word), "no {word:?} on\n{text}");
        }
    }

    #[test]
    fn a_pause_a_stop_and_the_help_are_said() {
        let (state, live) = run();
        let paused = Live { is_paused: true, ..Live::default() };
        assert!(screen(110, 30, &state, &paused).contains("paused: p draws again"));
        let stopping = Live { is_stopping: true, ..live };
        assert!(
            screen(110, 30, &state, &stopping).contains("stopping after this step; a checkpoint is written")
        );
        let help = Live { is_help: true, ..Live::default() };
        assert!(screen(110, 30, &state, &help).contains("end the run after this step"));
    }

    #[test]
    fn any_size_of_terminal_can_be_drawn_on() {
        let (state, live) = run();
        for (width, height) in [(1, 1), (10, 3), (44, 12), (80, 24), (300, 100)] {
            screen(width, height, &state, &live);
            screen(width, height, &State::default(), &Live::default());
        }
    }
}
