//! `check` of the log: every entry up to the settled end verifies, and the index leads to the last state of
//! each key that counts.

use super::Below;
use crate::concurrency::epoch::Slot;
use crate::error::Error;
use crate::stats::{CheckReport, Finding, Inspection};
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
        for number in self.log.numbers() {
            let outcome = self.log.replay(number, &mut |read| {
                report.records += 1;
                if let Some(location) = read.location
                    && read.value().is_some()
                    && viper.points_to(slot, viper.hash(read.key()), location)
                {
                    report.live += 1;
                }
                Ok(())
            });
            match outcome {
                Err(Error::Corrupt {
                    path, offset, what, ..
                }) => report.findings.push(Finding {
                    file: Some(path),
                    ..Finding::new(offset, what)
                }),
                other => other?,
            }
        }
        Ok(())
    }
}
