//! The crash lab: runs an engine, makes the images that a crash could leave, recovers each with the real
//! recovery code, and compares what is there with what callers had been told.
//!
//! A test that kills a process sees one crash, and the one that its machine happened to produce. The lab does
//! not crash anything. It writes down every store, flush and fence of a run (on files: every write and sync)
//! in the order in which they happened, and works out from the rules of the medium what could have been left
//! at each moment. An image that breaks a promise comes with the steps that made it.
//!
//! ```text
//!   seed ──► plan              calls of sessions, their values, a fault of the disk
//!             │
//!            run              the real engine on a pool; the recorder listens below `everdram-pm`
//!             │
//!           trace             store store flush fence │ return │ store flush fence ...
//!             │               crash points: just before a fence, or a call
//!      ┌──────┴──────┐
//!    model        history     left: bytes that are certain, and what each line or sector may hold besides
//!      │             │        right: calls that had returned, and with which answers
//!    units        allowed     left: the places that a crash decides; right: the states that it may leave
//!      │             │
//!   explore          │        picks one choice for each unit
//!      │             │
//!    image           │        of all memory, and of all files
//!      │             │
//!      └──► judge ◄──┘        recover, compare, use, kill, recover; or crash in recovery, and judge that
//!             │
//!         violation ──► shrink ──► explain, and a plan file that replays it
//! ```
//!
//! # Reading order
//!
//! 1. *What runs.* [`call`] has what can be asked and answered, [`profile`] kinds of workloads, [`plan`]
//!    everything that decides a run, [`fault`] what goes wrong with a disk, [`death`] a process that dies in
//!    the middle of a call. [`process`] is an open pool with its engine.
//! 2. *Recording.* [`run`](mod@run) makes the calls of a plan, `run::threads` those of several threads under
//!    the scheduler of [`schedule`]; [`recorder`] writes down a [`trace`].
//! 3. *What a crash leaves.* [`lines`] is the model of persistent memory, [`sectors`] that of a disk, and
//!    `medium::directory` that of its names: their module texts are the rules that everything rests on.
//!    [`model`] is their common face, for images that have the one, the other or both,
//!    [`unit`](mod@unit) a place whose contents a crash decides, [`image`](mod@image) the result.
//! 4. *What a crash may leave.* [`history`] is durable linearizability, [`linearize`] the search in it.
//! 5. *Looking.* [`examine`] walks a trace from crash point to crash point, and into recovery and the use
//!    that comes after it (`after_crash`); [`explore`] chooses images, [`lazy`] lets recovery's own reads
//!    choose; [`judge`](mod@judge) decides about one.
//! 6. *Many runs.* [`campaign`] goes on until time or images are enough; [`scenario`] has runs written by
//!    hand, [`found`] crashes that were found once.
//! 7. *Of what was found:* [`crash`] builds one particular image again, [`shrink`](mod@shrink) makes it
//!    small, [`explain`](mod@explain) says it in words, [`plan_text`] writes it down and
//!    [`replay`](mod@replay) does it again.
//! 8. *Does the lab see enough?* [`mutation`] takes out every flush, fence and sync in turn; [`lint`] says
//!    what is wasted, or trusted without reason. `xtask/mutants` plants bugs, the holes of the published
//!    designs among them.
//!
//! # What makes it true
//!
//! - The engine, its recovery and the file medium's redo log are those that ship. What differs is where
//!   memory and files are, and that somebody listens.
//! - Images get fewer at fences (on a disk: at syncs) alone, and more states are allowed only when a call
//!   begins, so the moments just before these stand for all moments.
//! - A seed decides a run, so a violation can be had again. Runs of threads repeat as long as the machine
//!   lets every thread run when it is its turn.
//! - Whether the lab's own parts are right is tested in `tests/parts`, each rule by itself; that it finds
//!   mistakes, in `examples/teeth.rs` and `tests/mutation.rs`; and what it did find is in `tests/found.rs`.
#![forbid(unsafe_code)]

pub mod explore;
pub mod judge;
pub mod medium;
pub mod plan;
pub mod run;

pub use explore::{campaign, crash, examine, lint, mutation, replay, shrink};
pub use judge::{explain, history, linearize};
pub use medium::{image, lazy, lines, model, outage, sectors, unit};
pub use plan::{call, fault, found, profile, scenario, text as plan_text};
pub use run::{death, process, recorder, schedule, trace};
