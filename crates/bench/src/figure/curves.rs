//! Throughput and latency for shares of writes and numbers of workers (figures 5 and 8).

use super::Telling;
use super::board::{Board, Span};
use super::crew::{self, Asking};
use super::line::{Line, Measured, Rate, Series};
use super::setup::LOGGED_BYTES;
use super::stand::{Stage, Stand, has_dynamic_roles, has_logs};
use super::stream::Writes;
use crate::subject::Error;
use crate::timing::Spread;
use everdram::options::BulletSystem;

/// A curve: what its stores are.
#[derive(Clone, Copy)]
struct Curve {
    system: BulletSystem,
    log_bytes: u64,
}

/// All rounds of one point.
#[derive(Clone, Default)]
pub(super) struct Rounds(Vec<Span>);

impl Rounds {
    pub(super) fn add(&mut self, span: Span) {
        self.0.push(span);
    }

    /// What the rounds say together, with the share of each that was gleaning. `cores`: for what it would be
    /// on a machine of one's own.
    pub(super) fn rate(&self, log_bytes_all: u64, gleaning: &[f64], cores: Option<usize>) -> Rate {
        let spans = || self.0.iter();
        let puts = Spread::of(spans().map(|span| span.puts as f64)).median;
        Rate {
            by_clock: Series::of(spans().map(|span| (span.mops(), span.mean_ns()))),
            undisturbed: cores.map(|cores| Series::of(spans().map(|span| span.undisturbed(cores)))),
            queued_share: Spread::of(spans().map(Span::queued_share)),
            gleaning_share: Spread::of(gleaning.iter().copied()),
            log_turns: puts * LOGGED_BYTES as f64 / log_bytes_all.max(1) as f64,
        }
    }

    fn gleaning(&self) -> Vec<f64> {
        self.0.iter().map(Span::gleaning_share).collect()
    }
}

/// Measures every curve at each share of writes and each number of workers.
pub(super) fn measure(stage: &Stage<'_>, telling: &mut Telling<'_>) -> Result<Vec<Line>, Error> {
    let settings = stage.settings;
    let curves: Vec<Curve> = settings
        .systems
        .iter()
        .flat_map(|system| {
            settings.log_bytes.iter().map(|log_bytes| Curve {
                system: *system,
                log_bytes: *log_bytes,
            })
        })
        .collect();
    let points = settings.threads.len() * settings.writes.len();
    let mut measured = vec![vec![Rounds::default(); points]; curves.len()];
    for round in 0..settings.rounds {
        for (curve, rounds) in curves.iter().zip(&mut measured) {
            telling.step(&format!("round {}: {}", round + 1, curve.name(settings)));
            let stand = stage.filled(curve.system, curve.log_bytes)?;
            take(stage, curve, &stand, rounds, telling)?;
        }
    }
    let mut lines = Vec::new();
    for (curve, rounds) in curves.iter().zip(&measured) {
        let places = settings.threads.iter().flat_map(|threads| {
            settings
                .writes
                .iter()
                .map(move |percent| (*threads, *percent))
        });
        for ((threads, percent), rounds) in places.zip(rounds) {
            let log_bytes_all = settings.logs() as u64 * curve.log_bytes;
            let rate = rounds.rate(log_bytes_all, &rounds.gleaning(), Some(telling.cores()));
            let mut line = telling.line(curve.system, Measured::Rate(rate));
            line.writes_percent = percent;
            line.threads = threads;
            line.conditions.log_bytes = curve.log_bytes;
            lines.push(line);
        }
    }
    Ok(lines)
}

impl Curve {
    fn name(&self, settings: &super::Settings) -> String {
        match settings.log_bytes.len() {
            1 => self.system.to_string(),
            _ => format!(
                "{}, logs of {}",
                self.system,
                super::line::mib(self.log_bytes)
            ),
        }
    }
}

/// One round of all points, over one store.
///
/// Each begins when what the one before left in the logs has been gleaned, and goes on until puts have filled
/// so much of them, with a pause or two between, that gleaning has its share.
fn take(
    stage: &Stage<'_>,
    curve: &Curve,
    stand: &Stand,
    rounds: &mut [Rounds],
    telling: &mut Telling<'_>,
) -> Result<(), Error> {
    let settings = stage.settings;
    let mut rounds = rounds.iter_mut();
    for threads in settings.threads.iter().copied() {
        let board = Board::new(threads, Writes::of_percent(settings.writes[0]));
        let duties = Asking::crew(&board, &stage.corpus, &stage.stream, threads);
        let (spans, _) = crew::run(&stand.store, &board, duties, || {
            let spans = settings.writes.iter().map(|percent| {
                telling.point();
                if has_dynamic_roles(curve.system) {
                    board.set_writes(Writes::of_percent(0.0));
                    board.settle();
                }
                board.set_writes(Writes::of_percent(*percent));
                board.sleep(settings.warm_up_seconds());
                let wanted = match has_logs(curve.system) && *percent > 0.0 {
                    true => settings.logs() as u64 * curve.log_bytes / LOGGED_BYTES,
                    false => 0,
                };
                board.span_of(0..threads, settings.seconds, wanted * 6 / 10)
            });
            Ok(spans.collect::<Vec<Span>>())
        })?;
        for (span, rounds) in spans.into_iter().zip(&mut rounds) {
            rounds.add(span);
        }
    }
    Ok(())
}
