//! `check` of the log: every entry up to the settled end verifies, and the index leads to the last state of
//! each key that counts.

use super::Below;
use crate::aof::{Position, Read};
use crate::concurrency::epoch::Slot;
use crate::error::Error;
use crate::stats::{CheckReport, Inspection};
use crate::viper::Viper;

impl Below {
    /// Where the log is, and its files.
    pub(in crate::viper) fn describe(&self, inspection: &mut Inspection) {
        inspection.log_files = self.log.files();
        let first = inspection.log_files.first();
        if let Some(dir) = first.and_then(|file| file.path.parent()) {
            let field = ("log below".into(), dir.display().to_string());
            inspection.fields.push(field);
        }
    }

    /// Adds what it finds to the report.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub(in crate::viper) fn check(
        &self,
        viper: &Viper,
        slot: &Slot,
        report: &mut CheckReport,
    ) -> Result<(), Error> {
        let (bytes, ..) = self.log.use_of();
        report.bytes += bytes;
        // A salvage has noted the damage of the log when it read it.
        let is_noted = viper.damage.is_some();
        // What is behind the settled end may be taken back meanwhile. A salvage may not know that end.
        let settled = self.tail().line.known.settled;
        let parts = match is_noted {
            true => self.log.split_at(Position::default()).1,
            false => self.log.split_at(settled).0,
        };
        for part in parts {
            let live = |read: &Read<'_>| {
                let hash = viper.hash(read.key());
                let points_to = |location| viper.points_to(slot, hash, location);
                read.value().is_some() && read.location.is_some_and(points_to)
            };
            let (records, of_live) = (&mut report.records, &mut report.live);
            self.log.check_part(
                &part,
                &mut |read| {
                    *records += 1;
                    *of_live += u64::from(live(&read));
                    Ok(())
                },
                &mut |finding| {
                    if !is_noted {
                        report.findings.push(finding);
                    }
                },
            )?;
        }
        Ok(())
    }
}
