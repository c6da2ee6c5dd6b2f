//! Opening by numbers of threads (section 5.3.9 of Viper's paper). The store was stopped in order; without
//! checkpoints of the index that is as good as a crash, and all blocks are read.

use super::restart;
use crate::figure::progress::Progress;
use crate::figure::store::{Data, For, Opening};
use crate::row::Row;
use crate::subject::Error;

/// A row for each number of threads, of one store that is opened again and again.
pub(super) fn measure(data: &Data<'_>, progress: &mut Progress<'_>) -> Result<Vec<Row>, Error> {
    let curve = progress.curve;
    let filled = data.filled(&curve, For::Room)?;
    let (mut opening, site) = (Opening::of(&curve, &filled.site, For::Room), filled.site);
    drop(filled.subject);
    let mut rows = Vec::new();
    for threads in curve.threads().iter().copied() {
        let plural = if threads == 1 { "" } else { "s" };
        let mut row = progress.row(&format!("{threads} thread{plural}"), 100.0, threads);
        opening.recovery_threads = threads;
        restart::reopen(data, &opening, site.dir(), &mut row)?;
        rows.push(row);
    }
    Ok(rows)
}
