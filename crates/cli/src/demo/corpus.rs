//! What the demo loads: a directory tree (key = relative path, value = contents), a TSV file, or generated
//! data.
//!
//! The corpus is bounded in files and bytes. Its order depends on names only, so that a seed replays.

use crate::transfer::operation::Operation;
use crate::transfer::tsv;
use anyhow::Context;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashSet;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Most files a corpus takes.
const FILES_MAX: usize = 20_000;
/// Most bytes a corpus takes.
const BYTES_MAX: u64 = 256 << 20;
/// Larger files are skipped.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Deepest directory that is entered.
const DEPTH_MAX: usize = 32;
/// Keys of generated data.
const GENERATED_KEYS: usize = 10_000;

/// Keys and their first values.
pub struct Corpus {
    /// Where it comes from, in words.
    pub source: String,
    /// Key and value; no key twice.
    pub documents: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Corpus {
    /// Bytes of all values.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.documents
            .iter()
            .map(|(_, value)| value.len() as u64)
            .sum()
    }

    /// The tree or TSV file at `input`. Without `input`, the sources of this project and of its dependencies,
    /// or generated data on a machine without them.
    ///
    /// # Errors
    /// If `input` cannot be read, or has nothing to load.
    pub fn load(input: Option<&Path>, seed: u64) -> anyhow::Result<Corpus> {
        match input {
            Some(path) if path.is_dir() => {
                let mut corpus = Corpus {
                    source: path.display().to_string(),
                    documents: Vec::new(),
                };
                Walk::default().enter(path, b"", &mut corpus.documents);
                anyhow::ensure!(
                    !corpus.documents.is_empty(),
                    "{}: no files to load",
                    path.display()
                );
                Ok(corpus)
            }
            Some(path) => Corpus::from_tsv(path),
            None => {
                Ok(Corpus::sources().unwrap_or_else(|| Corpus::generated(GENERATED_KEYS, seed)))
            }
        }
    }

    fn from_tsv(path: &Path) -> anyhow::Result<Corpus> {
        let file =
            std::fs::File::open(path).with_context(|| format!("input {}", path.display()))?;
        let mut reader = tsv::Reader::new(BufReader::new(file));
        let mut documents = Vec::new();
        let mut seen = HashSet::new();
        let mut bytes = 0;
        while let Some(operation) = reader.next()? {
            let Operation::Put { key, value, .. } = operation else {
                continue;
            };
            bytes += value.len() as u64;
            if documents.len() == FILES_MAX || bytes > BYTES_MAX {
                break;
            }
            if seen.insert(key.clone()) {
                documents.push((key, value));
            }
        }
        anyhow::ensure!(!documents.is_empty(), "{}: no rows to load", path.display());
        Ok(Corpus {
            source: path.display().to_string(),
            documents,
        })
    }

    /// The project first, then its dependencies from cargo's registry.
    fn sources() -> Option<Corpus> {
        let mut walk = Walk::default();
        let mut documents = Vec::new();
        if let Some(workspace) = workspace() {
            walk.enter(&workspace, b"everdram", &mut documents);
        }
        for registry in registries() {
            walk.enter(&registry, b"dependencies", &mut documents);
        }
        let source = "the sources of everdram and of its dependencies".to_owned();
        (!documents.is_empty()).then_some(Corpus { source, documents })
    }

    /// `keys` generated documents of 100 bytes to 4 KiB.
    #[must_use]
    pub fn generated(keys: usize, seed: u64) -> Corpus {
        let mut random = StdRng::seed_from_u64(seed);
        let documents = (0..keys)
            .map(|index| {
                let mut value = vec![0; random.random_range(100..4096)];
                random.fill(&mut value[..]);
                (
                    format!("generated/{:02}/{index}", index % 64).into_bytes(),
                    value,
                )
            })
            .collect();
        Corpus {
            source: format!("generated data, seed {seed}"),
            documents,
        }
    }
}

/// The workspace of this program: above the executable, or where it was built.
fn workspace() -> Option<PathBuf> {
    let is_ours = |path: &Path| path.join("crates/kv/Cargo.toml").is_file();
    let executable = std::env::current_exe().ok();
    let above = executable
        .as_deref()
        .and_then(|path| path.ancestors().find(|path| is_ours(path)));
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .find(|path| is_ours(path));
    above.or(built_in).map(Path::to_path_buf)
}

fn registries() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| {
            let home = std::env::var_os("HOME")?;
            Some(Path::new(&home).join(".cargo"))
        });
    let sources = home.map(|home| home.join("registry/src"));
    let mut found: Vec<PathBuf> = sources
        .and_then(|path| std::fs::read_dir(path).ok())
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    found.sort();
    found
}

#[derive(Default)]
struct Walk {
    bytes: u64,
    depth: usize,
}

impl Walk {
    /// Adds the regular files under `directory`, ordered by name. Skips links, build results, version
    /// control, and everything unreadable.
    fn enter(&mut self, directory: &Path, prefix: &[u8], into: &mut Vec<(Vec<u8>, Vec<u8>)>) {
        let Ok(entries) = std::fs::read_dir(directory) else {
            return;
        };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let mut key = prefix.to_vec();
            if !key.is_empty() {
                key.push(b'/');
            }
            key.extend_from_slice(name.as_encoded_bytes());
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() {
                if self.depth < DEPTH_MAX && name != "target" && name != ".git" {
                    self.depth += 1;
                    self.enter(&entry.path(), &key, into);
                    self.depth -= 1;
                }
            } else if kind.is_file() {
                self.take(&entry, key, into);
            }
        }
    }

    fn take(
        &mut self,
        entry: &std::fs::DirEntry,
        key: Vec<u8>,
        into: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) {
        let length = entry.metadata().map_or(u64::MAX, |metadata| metadata.len());
        if length > FILE_BYTES_MAX || into.len() >= FILES_MAX || self.bytes + length > BYTES_MAX {
            return;
        }
        if let Ok(value) = std::fs::read(entry.path()) {
            self.bytes += value.len() as u64;
            into.push((key, value));
        }
    }
}
