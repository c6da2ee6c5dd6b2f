//! The crash lab: runs an engine, makes the images that a crash could leave, recovers each with the real
//! recovery code, and compares what is there with what callers had been told.
//!
//! A test that kills a process sees one crash: the one that its machine happens to produce. The lab crashes
//! nothing. It records every store, flush and fence of a run, and every write and sync of files, in their
//! order. From the rules of the medium it derives what a crash could leave at each moment. An image that
//! breaks a promise comes with the steps that made it.
//!
//! ```text
//!   seed ──► plan              calls of sessions, their values, a fault of the disk
//!             │
//!            run              the real engine on a pool; `everdram-pm` calls the recorder
//!             │
//!           trace             store store flush fence │ return │ store flush fence ...
//!             │               crash points: just before a fence, or a call
//!      ┌──────┴──────┐
//!    model        history     left: bytes that are certain, and what each line or sector may hold besides
//!      │             │        right: calls that had returned, and with which answers
//!    units        allowed     left: the places that a crash decides; right: the states that it may leave
//!      │             │
//!   explore          │        one choice for each unit
//!      │             │
//!    image           │        of all memory, and of all files
//!      │             │
//!      └──► judge ◄──┘        recover, compare, use, kill, recover; or crash the recovery, and judge that
//!             │
//!         violation ──► shrink ──► explain, and a plan file that replays it
//! ```
//!
//! # Reading order
//!
//! 1. *What runs.* [`call`] has the calls and their answers, [`profile`] the kinds of workloads, [`plan`]
//!    everything that decides a run, [`fault`] the faults of a disk, [`death`] a process that dies within a
//!    call. [`process`] is a process with an open pool and its engine.
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
//! - The engine, its recovery and the redo log of files are those that ship. Only memory and files are
//!   others, and every event is recorded.
//! - Images get fewer at fences and at syncs alone, and more states are allowed only when a call begins. So
//!   the moments just before these stand for all moments.
//! - A seed decides a run, so a violation can be repeated. Runs of threads repeat as long as the machine runs
//!   each thread in its turn.
//! - `tests/parts` tests the lab's own parts, each rule by itself. `examples/teeth.rs` and
//!   `tests/mutation.rs` show that it finds mistakes, and `tests/found.rs` has those that it found.
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
