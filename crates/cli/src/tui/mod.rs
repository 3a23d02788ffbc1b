//! A live view of a run on a terminal.
//!
//! The view has a thread of its own, which asks for figures and keys and draws; the training only writes down what it
//! is told, into memory that was taken before the first step. What the view takes is declared ([`MEMORY`]) and counts under the memory limit.

mod draw;
mod state;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use plimsoll::data::Watch;
use plimsoll::internals::device::process;
use plimsoll::prelude::*;
use plimsoll::train::{Ended, EpochEvent, Notice, Result, RunPlan, StepEvent, Verdict};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{self, EnterAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{DefaultTerminal, TerminalOptions, Viewport};

use draw::{Live, draw};
use state::State;

/// What the view takes: two screens of cells, the thread's stack, code that is there for nothing else.
pub const MEMORY: Bytes = Bytes::mib(2);
/// The screen is drawn so often, and keys are looked for in between.
const REDRAW: Duration = Duration::from_millis(200);
const STACK: usize = 512 << 10;
/// No more of a terminal than this is drawn on.
const MOST_COLUMNS: u16 = 200;
const MOST_ROWS: u16 = 60;

/// Whether a view can be shown: the output is a terminal that can place its cursor.
pub fn is_possible() -> bool {
    let named = std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb");
    named && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

/// What the training and the drawing thread share.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    watch: Mutex<Watch>,
    /// Whose memory the limit is of.
    device: Mutex<Option<Device>>,
    is_stopping: AtomicBool,
    is_over: AtomicBool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the process takes of the host's memory, now and at most.
    fn of_host() -> (Bytes, Bytes) {
        (process::resident().unwrap_or(Bytes::ZERO), process::peak_resident().unwrap_or(Bytes::ZERO))
    }

    /// What the memory limit counts, now and at most.
    fn counted(&self) -> (Bytes, Bytes) {
        match &*self.device.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(device) => {
                let counted = device.counted();
                (counted.now, counted.peak)
            }
            None => Shared::of_host(),
        }
    }
}

/// A live view of a run.
#[derive(Default)]
pub struct LiveView {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl LiveView {
    /// A view that begins with the run.
    pub fn new() -> LiveView {
        LiveView::default()
    }

    /// Ends the drawing and gives the terminal back as it was. Whether there was anything to end.
    fn close(&mut self) -> bool {
        let Some(thread) = self.thread.take() else { return false };
        self.shared.is_over.store(true, Relaxed);
        // A thread that panicked has given the terminal back in its panic.
        thread.join().ok();
        ratatui::restore();
        true
    }
}

impl Callback for LiveView {
    fn on_start(&mut self, plan: &RunPlan<'_>) -> Result<()> {
        self.shared.state().start(plan);
        *self.shared.device.lock().unwrap_or_else(PoisonError::into_inner) = Device::current().ok();
        if self.thread.is_some() {
            return Ok(());
        }
        let shared = self.shared.clone();
        shared.is_over.store(false, Relaxed);
        let Ok(terminal) = open() else {
            ratatui::restore();
            return Ok(());
        };
        let thread = std::thread::Builder::new().name("live view".into()).stack_size(STACK);
        match thread.spawn(move || show(&shared, terminal)) {
            Ok(thread) => self.thread = Some(thread),
            // Without a thread there is no view; the run is worth more.
            Err(_) => ratatui::restore(),
        }
        Ok(())
    }

    fn on_pipeline(&mut self, watch: &Watch) -> Result<()> {
        *self.shared.watch.lock().unwrap_or_else(PoisonError::into_inner) = watch.clone();
        Ok(())
    }

    fn on_step(&mut self, step: &StepEvent) -> Result<()> {
        self.shared.state().step(step);
        Ok(())
    }

    fn wants_to_stop(&mut self) -> bool {
        self.shared.is_stopping.load(Relaxed)
    }

    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        self.shared.state().epoch(epoch);
        Ok(Verdict::GoOn)
    }

    fn on_notice(&mut self, notice: &Notice) -> Result<()> {
        self.shared.state().notice(notice);
        Ok(())
    }

    fn on_end(&mut self, _: &Ended) -> Result<()> {
        if self.close() {
            // The screen is gone; what happened stays readable above the prompt.
            self.shared.state().events.iter().for_each(|event| say!("{event}"));
            let (_, peak) = self.shared.counted();
            let state = self.shared.state();
            let limit =
                state.memory_limit.map_or(String::new(), |limit| format!(" of the memory limit {limit}"));
            say!("peak {peak}{limit}; {} planned", state.planned);
            if let Some(host) = &state.host {
                say!("host peak {}; {}", Shared::of_host().1, host.text());
            }
        }
        if self.shared.is_stopping.load(Relaxed) {
            say!("stopped by q; go on with --resume and the same --out");
        }
        Ok(())
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.close();
    }
}

/// Takes the terminal: keys come one by one, the screen is apart from what was on it. A panic gives it back.
fn open() -> std::io::Result<DefaultTerminal> {
    let (width, height) = terminal::size()?;
    let viewport = Viewport::Fixed(area(width, height));
    let terminal = ratatui::try_init_with_options(TerminalOptions { viewport })?;
    execute!(std::io::stdout(), EnterAlternateScreen)?;
    Ok(terminal)
}

/// The part of a terminal that is drawn on. It is bounded, because two copies of every cell are kept.
fn area(width: u16, height: u16) -> Rect {
    Rect::new(0, 0, width.min(MOST_COLUMNS), height.min(MOST_ROWS))
}

/// Draws until the run is over.
fn show(shared: &Shared, mut terminal: DefaultTerminal) {
    let (mut is_paused, mut is_help) = (false, false);
    let mut drawn: Option<Instant> = None;
    while !shared.is_over.load(Relaxed) {
        let mut is_due = drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW) && !is_paused;
        match event::poll(REDRAW / 4).and_then(|there| if there { event::read().map(Some) } else { Ok(None) })
        {
            Ok(Some(Event::Key(key))) if key.kind == KeyEventKind::Press => {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') => shared.is_stopping.store(true, Relaxed),
                    KeyCode::Char('c') if control => shared.is_stopping.store(true, Relaxed),
                    KeyCode::Char('p') => is_paused = !is_paused,
                    KeyCode::Char('?') | KeyCode::Char('h') => is_help = !is_help,
                    _ => continue,
                }
                is_due = true;
            }
            Ok(Some(Event::Resize(width, height))) => {
                terminal.resize(area(width, height)).ok();
                is_due = true;
            }
            Ok(_) => {}
            // Nobody can be asked; the view goes on without keys.
            Err(_) => std::thread::sleep(REDRAW / 4),
        }
        if !is_due {
            continue;
        }
        drawn = Some(Instant::now());
        // Copied, so that the training never waits for the terminal.
        let state = shared.state().clone();
        let watch = shared.watch.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (resident, peak) = shared.counted();
        let live = Live {
            resident,
            peak,
            host: Shared::of_host(),
            stages: watch.stages(),
            parallelism: watch.parallelism(),
            pipeline: watch.bytes(),
            is_paused,
            is_help,
            is_stopping: shared.is_stopping.load(Relaxed),
        };
        terminal.draw(|frame| draw(frame, &state, &live)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cells_of_the_largest_screen_fit_what_is_declared() {
        let cells = area(u16::MAX, u16::MAX).area() as usize;
        // Two screens, and the stack of the thread that draws them.
        assert!(2 * cells * size_of::<ratatui::buffer::Cell>() + STACK < MEMORY.get() as usize);
        assert_eq!(area(80, 24), Rect::new(0, 0, 80, 24));
    }
}
