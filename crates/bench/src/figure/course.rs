//! Throughput and gleaners over time while the share of writes changes (figure 7).

use super::Telling;
use super::board::Board;
use super::crew::{self, Asking};
use super::line::{Line, Measured, Moment};
use super::stand::Stage;
use super::stream::Writes;
use crate::subject::Error;

/// Measures all systems, one after another.
pub(super) fn measure(stage: &Stage<'_>, telling: &mut Telling<'_>) -> Result<Vec<Line>, Error> {
    let settings = stage.settings;
    let mut lines = Vec::new();
    for system in settings.systems.iter().copied() {
        telling.step(system.name());
        let stand = stage.filled(system, settings.log_bytes[0])?;
        let workers = settings.workers();
        let board = Board::new(workers, Writes::of_percent(settings.writes[0]));
        let duties = Asking::crew(&board, &stage.corpus, &stage.stream, workers);
        let (moments, _) = crew::run(&stand.store, &board, duties, || {
            Ok(course(stage, &board, telling))
        })?;
        let mut line = telling.line(system, Measured::Course { moments });
        line.threads = workers;
        lines.push(line);
    }
    Ok(lines)
}

fn course(stage: &Stage<'_>, board: &Board, telling: &mut Telling<'_>) -> Vec<Moment> {
    let settings = stage.settings;
    let (workers, cores) = (settings.workers(), telling.cores());
    let looks = (settings.seconds / settings.sample_seconds)
        .round()
        .max(1.0) as usize;
    let mut moments = Vec::with_capacity(looks * settings.writes.len());
    let mut second = 0.0;
    for (phase, percent) in settings.writes.iter().copied().enumerate() {
        telling.point();
        board.set_writes(Writes::of_percent(percent));
        for _ in 0..looks {
            let span = board.span(0..workers, settings.seconds / looks as f64);
            second += span.seconds;
            moments.push(Moment {
                second,
                phase,
                writes_percent: percent,
                mops: span.mops(),
                undisturbed_mops: span.undisturbed(cores).0,
                gleaners: board.gleaners(),
                gleaning_share: span.gleaning_share(),
            });
        }
    }
    moments
}
