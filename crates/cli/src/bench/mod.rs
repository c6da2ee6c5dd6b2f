//! `everdram bench`: what the machine can do at most, and what stores on it do.
//!
//! The measuring is in `everdram-bench`; here are the command lines and the tables.

mod bars;
mod compare;
mod figure;
mod figures;
mod limits;
mod recovery;
mod report;
mod rows;
mod run;
mod servers;
mod store;

use crate::Outcome;

/// Measure this machine and the stores on it.
#[derive(clap::Args)]
#[command(
    long_about = "Measures this machine and the stores on it. Figures are of this machine, at this moment, on the \
                  medium that is named: compare those of one run with each other. Memory that plays persistent \
                  memory is called emulated.\n\n\
                  What the machine can do at most:  everdram bench limits --dir /dev/shm\n\
                  A store under a workload:         everdram bench run --workload ycsb-a\n\
                  Shares of the limits:             everdram bench bars --quick\n\
                  Servers over sockets:             everdram bench servers --dir .\n\
                  Everything, and a page of it:     everdram bench compare --quick --dir .\n\
                  A figure of Bullet's paper:       everdram bench figure bullet-5 --quick\n\
                  A figure of DStore's paper:       everdram bench figure dstore-8 --quick\n\
                  A figure of Viper's paper:        everdram bench figure viper-6 --quick\n\
                  All figures, and a page of them:  everdram bench figures --quick --data-dir .",
    after_help = "Exit codes: 0 measured; 1 it could not be measured, or a store answered wrongly; 2 usage."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Limits(limits::Arguments),
    Run(run::Arguments),
    Bars(bars::Arguments),
    #[command(hide = true)]
    Fill(recovery::Arguments),
    Servers(servers::Arguments),
    Compare(compare::Arguments),
    Report(report::Arguments),
    Figure(Box<figure::Arguments>),
    Figures(figures::Arguments),
    #[command(hide = true)]
    Turn(compare::TurnArguments),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    match &arguments.what {
        What::Limits(arguments) => limits::run(arguments),
        What::Run(arguments) => run::run(arguments),
        What::Bars(arguments) => bars::run(arguments),
        What::Fill(arguments) => recovery::run(arguments),
        What::Servers(arguments) => servers::run(arguments),
        What::Compare(arguments) => compare::run(arguments),
        What::Report(arguments) => report::run(arguments),
        What::Figure(arguments) => figure::run(arguments),
        What::Figures(arguments) => figures::run(arguments),
        What::Turn(arguments) => compare::turn(arguments),
    }
}
