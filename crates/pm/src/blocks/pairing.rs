//! Opening a data file, and only the right one.
//!
//! A pool and its data file are two files, perhaps on two disks, and each can be lost, exchanged or restored
//! from an older copy without the other. So both carry a *token*: a number that each open draws anew. The
//! pool has two words, `now` and `next`, and the data file belongs to it if its token is one of them.
//!
//! ```text
//!   now = the token found, next = a new token  ─▶  copy A, sync  ─▶  copy B, sync  ─▶  now = next
//! ```
//!
//! Each step is durable before the next one begins. So a crash between any two leaves a pair that fits, and
//! an older copy of either side does not fit the other. A token begins with the pool's incarnation, so that a
//! refusal can say which side is older.

use super::delay::DiskDelay;
use super::header::{COPIES_AT, COPY_BYTES, Found, HEADER_BYTES, Header};
use super::hint::Hint;
use super::{Blocks, BlocksOptions};
use crate::error::Error;
use crate::io::{Directory, File};
use crate::medium::MediumChoice;
use crate::memory::cpu::LINE;
use crate::memory::lane::Lane;
use crate::memory::preset::DiskPreset;
use crate::pool::{Pool, place};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;

/// Name of the data file in a pool's directory.
const DATA: &str = "data";
/// A new pool takes no file that has anything in so many bytes: it may be somebody else's.
const BLANK_BYTES: u64 = 1 << 20;
/// The random part of a token.
const RANDOM_BITS: u32 = 24;

/// The pool's two words.
struct Tokens<'a> {
    lane: Lane,
    pool: &'a Pool,
    at: u64,
}

impl Tokens<'_> {
    fn now(&self) -> u64 {
        self.pool.region().load_word(self.at)
    }

    fn next(&self) -> u64 {
        self.pool.region().load_word(self.at + 8)
    }

    /// Stores both words; they are durable on return. They lie in one line, where stores persist in their
    /// order, and the flush covers what a killed process left there in caches.
    #[cfg_attr(feature = "lab", track_caller)]
    fn set(&mut self, now: u64, next: u64) -> Result<(), Error> {
        let (at, lane) = (self.at, &mut self.lane);
        assert!(
            at % LINE <= LINE - 16,
            "the tokens of a pool are in two lines"
        );
        let _flushed_together =
            [(at, now), (at + 8, next)].map(|(at, word)| lane.store_word(at, word));
        let flushed = lane.flush_range(at, 16);
        let ordered = lane.fence(flushed);
        let log = self.pool.log();
        log.map_or(Ok(()), |log| log.make_durable(ordered.lsn()))
    }

    fn draw(&self) -> u64 {
        // The lab repeats its runs, so its tokens are not random.
        #[cfg(feature = "lab")]
        if self.pool.region().is_simulated() {
            return self.pool.incarnation() << RANDOM_BITS | 1;
        }
        let random: u64 = rand::random();
        self.pool.incarnation() << RANDOM_BITS | random >> (64 - RANDOM_BITS) | 1
    }
}

/// See [`Pool::open_blocks`].
pub(super) fn open(pool: &Arc<Pool>, options: &BlocksOptions) -> Result<Blocks, Error> {
    let delay = check(pool, options)?;
    let mut tokens = Tokens {
        lane: pool.lane(),
        pool,
        at: options.tokens_at,
    };
    let is_new = tokens.now() == 0;
    let hint = Hint {
        pool,
        at: options.path_at,
    };
    let file = open_file(pool, options, &hint, is_new)?;
    let bytes = file.length()?;
    let copies = read(pool, &file, bytes)?;
    let token = match is_new {
        true => check_blank(&file, &copies, pool.incarnation())?,
        false => Some(choose(
            &file,
            &copies,
            [tokens.now(), tokens.next()],
            options,
        )?),
    };
    if !pool.is_read_only() {
        // The fences of the pairing cover it.
        hint.write(&mut tokens.lane, options.path.as_deref());
        pair(pool, &mut tokens, &file, token, options)?;
    }
    let bytes = file.length()?;
    // The first data file of a pool is the only one.
    let _already = pool.data.set((file.path().to_path_buf(), delay));
    let delay = delay.map(DiskDelay::new);
    let direct = match options.reads_directly {
        true => file.open_direct()?,
        false => None,
    };
    Ok(Blocks::new(pool, (file, direct), options, bytes, delay))
}

/// Refuses what cannot be; returns the delay model.
fn check(pool: &Pool, options: &BlocksOptions) -> Result<Option<&'static DiskPreset>, Error> {
    let refused = |what| Error::Options {
        path: pool.path().into(),
        what,
    };
    let block = options.block_bytes;
    if !block.is_power_of_two() || !(512..=1 << 16).contains(&block) {
        return Err(refused(format!(
            "blocks of {block} bytes: give a power of two, 512 to 65536"
        )));
    }
    let name = options.delay.as_deref();
    name.map(|name| DiskPreset::by_name(name, MediumChoice::Only(pool.medium())).map_err(refused))
        .transpose()
}

fn unpaired(path: &Path, what: impl Into<String>) -> Error {
    Error::Unpaired {
        path: path.into(),
        what: what.into(),
    }
}

fn open_file(
    pool: &Pool,
    options: &BlocksOptions,
    hint: &Hint<'_>,
    is_new: bool,
) -> Result<File, Error> {
    let create = is_new && !pool.is_read_only();
    let path = options.path.clone().or_else(|| hint.read());
    let opened = match (&path, &pool.directory) {
        (Some(path), _) if pool.is_read_only() => File::open_to_read(path),
        (Some(path), _) => File::open_data(path, create),
        (None, Some(directory)) if pool.is_read_only() => directory.open_to_read(DATA),
        (None, Some(directory)) => directory.open(DATA, create),
        (None, None) => {
            return Err(Error::Options {
                path: pool.path().into(),
                what: "this pool is no directory, so its data file needs a path; name one".into(),
            });
        }
    };
    let file = match opened {
        Err(Error::Io {
            path,
            source: Errno::NOENT,
            ..
        }) => {
            let what =
                "the pool's data file is missing; put it back, or name the place where it is now";
            return Err(unpaired(&path, what));
        }
        Err(Error::Io {
            path,
            source: Errno::BUSY,
            ..
        }) => {
            let what = "this device or a part of it is mounted or open elsewhere; unmount it, or stop that process first";
            return Err(unpaired(&path, what));
        }
        other => other?,
    };
    if !file
        .lock(pool.is_read_only())
        .map_err(|source| file.error("locking the data file", source))?
    {
        return Err(Error::Locked {
            path: file.path().into(),
        });
    }
    if create {
        // The name of a file elsewhere is made durable, too.
        match (&path, &pool.directory) {
            (Some(path), _) => sync_parent(path)?,
            (None, Some(directory)) => directory.sync()?,
            (None, None) => {}
        }
    }
    Ok(file)
}

fn sync_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    Directory::from(parent.unwrap_or(Path::new("."))).sync()
}

/// Reads both copies.
fn read(pool: &Pool, file: &File, bytes: u64) -> Result<[Found; 2], Error> {
    let uuid = pool.header.get().uuid;
    let mut copies = [Found::Blank; 2];
    for (copy, at) in copies.iter_mut().zip(COPIES_AT) {
        let mut sector = [0; COPY_BYTES];
        if at + COPY_BYTES as u64 <= bytes {
            file.pread_exact(at, &mut sector)
                .map_err(|source| file.error("reading the data file's header", source))?;
        }
        *copy = Header::decode(pool.secret(), &uuid, at, &sector);
    }
    Ok(copies)
}

/// A pool that was never paired takes a file that was never used, or one that its own creation has begun,
/// perhaps several times.
fn check_blank(file: &File, copies: &[Found; 2], incarnation: u64) -> Result<Option<u64>, Error> {
    let is_ours = |found: &Found| match found {
        Found::Blank => true,
        Found::Header(header) => header.token >> RANDOM_BITS <= incarnation,
        Found::Foreign | Found::Damaged => false,
    };
    let is_blank = copies.iter().all(|found| matches!(found, Found::Blank));
    let is_free = match is_blank {
        // Nor does it hold anything else: file systems and volumes have their marks behind the header, too.
        true => begins_with_zeros(file)?,
        false => copies.iter().all(is_ours),
    };
    match is_free {
        true => Ok(None),
        false => Err(unpaired(
            file.path(),
            format!(
                "the pool is new, and this file is not empty; remove it (of a device that nobody needs, clear the \
                 first {} KiB), or name another file",
                BLANK_BYTES >> 10
            ),
        )),
    }
}

/// Whether the first [`BLANK_BYTES`] of a file are zeros, as far as it has them.
fn begins_with_zeros(file: &File) -> Result<bool, Error> {
    let bytes = file.length()?.min(BLANK_BYTES);
    let mut beginning = vec![0; bytes as usize];
    file.pread_exact(0, &mut beginning)
        .map_err(|source| file.error("reading the beginning of the data file", source))?;
    Ok(beginning.iter().all(|byte| *byte == 0))
}

/// The token of a copy that fits the pool.
fn choose(
    file: &File,
    copies: &[Found; 2],
    fitting: [u64; 2],
    options: &BlocksOptions,
) -> Result<u64, Error> {
    let headers = || {
        copies.iter().filter_map(|found| match found {
            Found::Header(header) => Some(header),
            _ => None,
        })
    };
    // A copy with the next token may exist in caches only, if its sync failed; then the other one has the
    // present token. If both have the next, the first was synced before the second was written.
    let with = |token| headers().find(move |header| header.token == token);
    if let Some(header) = with(fitting[0]).or_else(|| with(fitting[1])) {
        if header.block_bytes != options.block_bytes {
            let what = format!(
                "its blocks have {} bytes, the pool's geometry says {}",
                header.block_bytes, options.block_bytes
            );
            return Err(unpaired(file.path(), what));
        }
        return Ok(header.token);
    }
    let opened = |token: u64| token >> RANDOM_BITS;
    Err(unpaired(
        file.path(),
        match headers().map(|header| header.token).max() {
            None if copies.contains(&Found::Foreign) => {
                "this is the data file of another pool; name the right one".into()
            }
            None => "this is no data file, or its header is damaged; restore it with the pool from one backup".into(),
            Some(token) => {
                let (data, pool) = (opened(token), opened(fitting[0]));
                let older = match data < pool {
                    true => "the data file is an older copy than the pool",
                    false => "the pool is an older copy than its data file",
                };
                format!(
                    "{older} (last used at open {data} of the pool, which says {pool}); restore both from one moment"
                )
            }
        },
    ))
}

/// Draws a new token and gives it to both sides. `found`: the data file's token.
fn pair(
    pool: &Pool,
    tokens: &mut Tokens<'_>,
    file: &File,
    found: Option<u64>,
    options: &BlocksOptions,
) -> Result<(), Error> {
    let token = tokens.draw();
    tokens.set(found.unwrap_or(tokens.now()), token)?;
    let bytes = file.length()?;
    match bytes < HEADER_BYTES {
        true => place::back(file, 0, HEADER_BYTES)
            .map_err(Error::io(file.path(), "create the data file"))?,
        false => renew_length(file, bytes)
            .map_err(|source| pool.header.poison().fail(file.path(), source))?,
    }
    let header = Header {
        block_bytes: options.block_bytes,
        uuid: pool.header.get().uuid,
        token,
    };
    let poisoned = |source| pool.header.poison().fail(file.path(), source);
    for copy in COPIES_AT {
        let bytes = header.encode(pool.secret(), copy);
        file.pwrite_all(copy, &bytes).map_err(poisoned)?;
        file.sync().map_err(poisoned)?;
    }
    // Without this, the file's copy from before this open would still fit (D11).
    tokens.set(token, token)
}

/// Makes the length of a file durable. After a sync that failed, it may exist in caches only, and the next
/// sync would not write what it takes for written. So the file gets another length in between. The sync of
/// the headers covers the last change.
fn renew_length(file: &File, bytes: u64) -> Result<(), Errno> {
    match file.set_len(bytes + COPY_BYTES as u64) {
        // The length of a device does not change.
        Err(Errno::INVAL) => return Ok(()),
        other => other?,
    }
    file.set_len(bytes)
}
