//! Settings of `serve`: flags win over the environment, that over the TOML file, that over defaults.
//!
//! All layers have the same names. A name the file misspells is an error, not a setting that is ignored.

use crate::units::parse_bytes;
use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use everdram::options::{Loading, Policy, Promote};
use everdram::{Durability, EngineKind, MediumChoice, Options};
use serde::Deserialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The command line or a settings file asks for something that cannot be.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// A failure of usage, with its text.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(UsageError(text.into()))
}

/// Where the pool is if nothing says so.
pub(crate) const POOL_DEFAULT: &str = "everdram.pool";

/// One layer of settings; what is `None` is left to the next layer.
#[derive(clap::Args, Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Layer {
    /// The pool: a directory (made if missing), or a devdax device [default: everdram.pool]
    #[arg(long, env = "EVERDRAM_POOL", value_name = "PATH")]
    pub(crate) pool: Option<PathBuf>,
    /// Address to listen on, repeatable; others than loopback need a password [default: 127.0.0.1]
    #[arg(
        long,
        env = "EVERDRAM_BIND",
        value_name = "ADDRESS",
        value_delimiter = ','
    )]
    bind: Option<Vec<IpAddr>>,
    /// TCP port; 0 takes a free one [default: 6379]
    #[arg(long, env = "EVERDRAM_PORT")]
    port: Option<u16>,
    /// Also listen on this Unix socket, for this user only [default: none]
    #[arg(long, env = "EVERDRAM_UNIX_SOCKET", value_name = "PATH")]
    unix_socket: Option<PathBuf>,
    /// Also serve clients of a fabric (RDMA, or plain TCP by libfabric) on this address, such as
    /// tcp://127.0.0.1:7700. Needs libfabric, which Debian has as `libfabric1`. Whoever knows the password
    /// must be trusted with the memory of the server there [default: none]
    #[arg(long, env = "EVERDRAM_FABRIC", value_name = "ADDRESS")]
    fabric: Option<String>,
    /// Serve the fabric on an address that others can reach, although libfabric does not keep peers inside of
    /// the memory that they are given (`everdram doctor --fabric` tells): whoever knows the password can
    /// change the server then. Clients make values durable by themselves (RDMP-CC, --landing-bytes) with it
    /// alone, on any address
    #[arg(long, env = "EVERDRAM_FABRIC_TRUST_PEERS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    fabric_trust_peers: Option<bool>,
    /// Let clients of the fabric read long values where they lie, without a thread of the server. Each can
    /// read whatever any may, so it needs --fabric-trust-peers; engine viper on pmem or emulated
    #[arg(long, env = "EVERDRAM_FABRIC_READ_IN_PLACE", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    fabric_read_in_place: Option<bool>,
    /// Lend clients of the fabric up to so many bytes of free blocks, into which they write long values that
    /// then stay there, without a copy. Who breaks the protocol can change a value of its own after it is
    /// stored, so it needs --fabric-trust-peers; engine viper on pmem or emulated [default: 0]
    #[arg(long, env = "EVERDRAM_FABRIC_LEND_BYTES", value_name = "SIZE")]
    fabric_lend_bytes: Option<String>,
    /// Memory of the server that all clients of the fabric together may be given to write to, or have filled
    /// with what they read; each has 6 MiB of it at most [default: 1GiB]
    #[arg(long, env = "EVERDRAM_FABRIC_MEMORY", value_name = "SIZE")]
    fabric_memory: Option<String>,
    /// Event loops; 0 = one for each core [default: 0]
    #[arg(long, env = "EVERDRAM_THREADS")]
    threads: Option<usize>,
    /// Password that AUTH asks for; better kept in a file, since other users can see flags [default: none]
    #[arg(
        long,
        env = "EVERDRAM_PASSWORD",
        hide_env_values = true,
        conflicts_with = "password_file"
    )]
    password: Option<String>,
    /// File whose first line is the password [default: none]
    #[arg(long, env = "EVERDRAM_PASSWORD_FILE", value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Serve other addresses than loopback without a password: whoever reaches them owns the data [default:
    /// false]
    #[arg(long, env = "EVERDRAM_ALLOW_OPEN_NETWORK", num_args = 0..=1, default_missing_value = "true")]
    allow_open_network: Option<bool>,
    /// auto, pmem, file or emulated; auto never takes emulated [default: auto]
    #[arg(long, env = "EVERDRAM_MEDIUM")]
    medium: Option<String>,
    /// When a write on files is acknowledged: always (after fdatasync), everysec (a power loss may take the
    /// last second) or none [default: always]
    #[arg(long, env = "EVERDRAM_DURABILITY")]
    durability: Option<String>,
    /// Engine of a new pool; a pool that is there has its own, and another one is refused [default: viper]
    #[arg(long, env = "EVERDRAM_ENGINE", value_parser = engine_names())]
    engine: Option<String>,
    /// Delay model of the emulated medium, by the name of a preset [default: none]
    #[arg(long, env = "EVERDRAM_DELAY", value_name = "PRESET")]
    delay: Option<String>,
    /// Size the pool may grow to, such as 64GiB [default: 1TiB]
    #[arg(long, env = "EVERDRAM_MAX_BYTES", value_name = "SIZE")]
    max_bytes: Option<String>,
    /// Size of a new pool, and what every pool grows by each time [default: 64MiB]
    #[arg(long, env = "EVERDRAM_CHUNK_BYTES", value_name = "SIZE")]
    chunk_bytes: Option<String>,
    /// Redo log to keep ready on files; half of it starts a checkpoint [default: 64MiB]
    #[arg(long, env = "EVERDRAM_LOG_BYTES", value_name = "SIZE")]
    log_bytes: Option<String>,
    /// Persistent memory of the pool in which clients of a fabric make values durable by themselves
    /// (RDMP-CC); media `pmem` and `emulated`, and --fabric-trust-peers. A pool that has some keeps it
    /// [default: 0]
    #[arg(long, env = "EVERDRAM_LANDING_BYTES", value_name = "SIZE")]
    landing_bytes: Option<String>,
    /// Pool written, at least, between two checkpoints of the index, which a restart begins with; 0 = none
    /// [default: 64MiB]
    #[arg(long, env = "EVERDRAM_CHECKPOINT_BYTES", value_name = "SIZE")]
    checkpoint_bytes: Option<String>,
    /// Engine bullet: DRAM that its table in front may use, such as 4GiB, if it is not to hold all data; what
    /// is asked for seldom is read from the pool then. Writes go on if it is too little: what the table
    /// behind does not have yet stays in front, up to twice the logs, which have 64MiB [default: all that the
    /// data need]
    #[arg(long, env = "EVERDRAM_FRONT_BYTES", value_name = "SIZE")]
    front_bytes: Option<String>,
    /// Engine dstore: where the values are, a regular file (created for a new pool) or a block device; the
    /// pool remembers it. A new pool gets that engine then [default: the file `data` in the pool's
    /// directory]
    #[arg(long, env = "EVERDRAM_DATA", value_name = "PATH")]
    data: Option<PathBuf>,
    /// Engine dstore: the data file grows no further than this [default: 16TiB]
    #[arg(long, env = "EVERDRAM_MAX_DATA_BYTES", value_name = "SIZE")]
    max_data_bytes: Option<String>,
    /// Engine dstore: reads of the data file pass by the page cache, where its file system can do that
    #[arg(long, env = "EVERDRAM_DIRECT_READS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    direct_reads: Option<bool>,
    /// Engine dstore, emulated medium: delay model of the disk that the data file plays, by the name of a
    /// preset, such as p4800x [default: none]
    #[arg(long, env = "EVERDRAM_DATA_DELAY", value_name = "PRESET")]
    data_delay: Option<String>,
    /// Engine tiered: the directory of the log, on a disk, to which records go that the pool
    /// (`--max-bytes`) has no room for; the pool remembers it. A new pool gets that engine then. What is
    /// read of it stays in the page cache, which counts as the memory of a container [default: the
    /// directory `tier2` in the pool's]
    #[arg(long, env = "EVERDRAM_BELOW", value_name = "PATH")]
    below: Option<PathBuf>,
    /// Engine tiered: keys of the log come back to the pool when they are written (update), or also when they
    /// are read twice in a while, or once soon after they left (second-read) [default: second-read]
    #[arg(long, env = "EVERDRAM_TIER_PROMOTE", value_name = "WHEN")]
    tier_promote: Option<String>,
    /// Engine tiered: which records leave the pool first (s3fifo, clock, fifo); with lru, the paper's
    /// policy, a read may write [default: s3fifo]
    #[arg(long, env = "EVERDRAM_TIER_POLICY", value_name = "POLICY")]
    tier_policy: Option<String>,
    /// Connections at once [default: 10000]
    #[arg(long, env = "EVERDRAM_MAX_CLIENTS", value_name = "COUNT")]
    max_clients: Option<usize>,
    /// Seconds of silence after which a connection is closed; 0 = never [default: 0]
    #[arg(long, env = "EVERDRAM_TIMEOUT", value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Seconds a shutdown waits for clients to take their replies [default: 10]
    #[arg(long, env = "EVERDRAM_DRAIN_TIMEOUT", value_name = "SECONDS")]
    drain_timeout: Option<u64>,
}

/// What a server runs with.
pub(crate) struct Settings {
    pub(crate) pool: PathBuf,
    pub(crate) options: Options,
    pub(crate) server: everdram_resp::Settings,
    /// The address of the fabric door, if there is to be one.
    pub(crate) fabric: Option<String>,
    pub(crate) fabric_trusts_peers: bool,
    pub(crate) fabric_reads_in_place: bool,
    pub(crate) fabric_memory: Option<u64>,
}

impl Layer {
    /// The layer a TOML file holds.
    pub(crate) fn from_file(path: &Path) -> anyhow::Result<Layer> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("settings file {}", path.display()))?;
        toml::from_str(&text)
            .map_err(|error| usage(format!("settings file {}: {error}", path.display())))
    }

    /// This layer, with what it leaves open taken from `lower`. Of the two ways to give a password, the
    /// higher layer's wins.
    fn over(self, lower: Layer) -> Layer {
        let has_password = self.password.is_some() || self.password_file.is_some();
        let (password, password_file) = if has_password {
            (self.password, self.password_file)
        } else {
            (lower.password, lower.password_file)
        };
        Layer {
            pool: self.pool.or(lower.pool),
            bind: self.bind.or(lower.bind),
            port: self.port.or(lower.port),
            unix_socket: self.unix_socket.or(lower.unix_socket),
            fabric: self.fabric.or(lower.fabric),
            fabric_trust_peers: self.fabric_trust_peers.or(lower.fabric_trust_peers),
            fabric_read_in_place: self.fabric_read_in_place.or(lower.fabric_read_in_place),
            fabric_lend_bytes: self.fabric_lend_bytes.or(lower.fabric_lend_bytes),
            fabric_memory: self.fabric_memory.or(lower.fabric_memory),
            threads: self.threads.or(lower.threads),
            password,
            password_file,
            allow_open_network: self.allow_open_network.or(lower.allow_open_network),
            medium: self.medium.or(lower.medium),
            durability: self.durability.or(lower.durability),
            engine: self.engine.or(lower.engine),
            delay: self.delay.or(lower.delay),
            max_bytes: self.max_bytes.or(lower.max_bytes),
            chunk_bytes: self.chunk_bytes.or(lower.chunk_bytes),
            log_bytes: self.log_bytes.or(lower.log_bytes),
            landing_bytes: self.landing_bytes.or(lower.landing_bytes),
            checkpoint_bytes: self.checkpoint_bytes.or(lower.checkpoint_bytes),
            front_bytes: self.front_bytes.or(lower.front_bytes),
            data: self.data.or(lower.data),
            max_data_bytes: self.max_data_bytes.or(lower.max_data_bytes),
            data_delay: self.data_delay.or(lower.data_delay),
            direct_reads: self.direct_reads.or(lower.direct_reads),
            below: self.below.or(lower.below),
            tier_promote: self.tier_promote.or(lower.tier_promote),
            tier_policy: self.tier_policy.or(lower.tier_policy),
            max_clients: self.max_clients.or(lower.max_clients),
            timeout: self.timeout.or(lower.timeout),
            drain_timeout: self.drain_timeout.or(lower.drain_timeout),
        }
    }

    /// The settings that this layer over `file` and the defaults gives.
    pub(crate) fn resolve(self, file: Layer) -> anyhow::Result<Settings> {
        let layer = self.over(file);
        let password = layer.read_password()?;
        let mut options = layer.options()?;
        // Clients for Redis know the error, and one call must not hold up the others.
        options.tiered.loading = Loading::Refuse;
        let mut server = everdram_resp::Settings::default();
        set(&mut server.bind, layer.bind);
        set(&mut server.port, layer.port);
        set(&mut server.threads, layer.threads);
        set(&mut server.allow_open_network, layer.allow_open_network);
        set(&mut server.maxclients, layer.max_clients);
        set(&mut server.timeout, layer.timeout.map(Duration::from_secs));
        set(
            &mut server.drain_timeout,
            layer.drain_timeout.map(Duration::from_secs),
        );
        server.unix_socket = layer.unix_socket;
        server.password = password;
        let pool = layer.pool.unwrap_or_else(|| PathBuf::from(POOL_DEFAULT));
        Ok(Settings {
            pool,
            options,
            server,
            fabric_memory: size(layer.fabric_memory.as_deref())?,
            fabric: layer.fabric,
            fabric_trusts_peers: layer.fabric_trust_peers.unwrap_or(false),
            fabric_reads_in_place: layer.fabric_read_in_place.unwrap_or(false),
        })
    }

    fn options(&self) -> anyhow::Result<Options> {
        let mut options = Options::default();
        set(
            &mut options.medium,
            parse::<MediumChoice>(self.medium.as_deref())?,
        );
        set(
            &mut options.durability,
            parse::<Durability>(self.durability.as_deref())?,
        );
        options.engine = parse::<EngineKind>(self.engine.as_deref())?;
        set(&mut options.max_bytes, size(self.max_bytes.as_deref())?);
        set(&mut options.chunk_bytes, size(self.chunk_bytes.as_deref())?);
        set(&mut options.log_bytes, size(self.log_bytes.as_deref())?);
        set(
            &mut options.lend_bytes,
            size(self.fabric_lend_bytes.as_deref())?,
        );
        options.keep_room = self.fabric_read_in_place.unwrap_or(false) || options.lend_bytes > 0;
        set(
            &mut options.landing_bytes,
            size(self.landing_bytes.as_deref())?,
        );
        set(
            &mut options.checkpoint_bytes,
            size(self.checkpoint_bytes.as_deref())?,
        );
        set(
            &mut options.initial_bytes,
            size(self.chunk_bytes.as_deref())?,
        );
        options.initial_bytes = options.initial_bytes.min(options.max_bytes);
        options.bullet.front_bytes = size(self.front_bytes.as_deref())?;
        options.dstore.data.clone_from(&self.data);
        set(
            &mut options.dstore.data_bytes_max,
            size(self.max_data_bytes.as_deref())?,
        );
        options.dstore.data_delay.clone_from(&self.data_delay);
        set(&mut options.dstore.reads_directly, self.direct_reads);
        options.tiered.below.clone_from(&self.below);
        set(
            &mut options.tiered.promote,
            parse::<Promote>(self.tier_promote.as_deref())?,
        );
        set(
            &mut options.tiered.policy,
            parse::<Policy>(self.tier_policy.as_deref())?,
        );
        options.delay.clone_from(&self.delay);
        options
            .validate()
            .map_err(|error| usage(error.to_string()))?;
        Ok(options)
    }

    fn read_password(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.password_file else {
            return Ok(self.password.clone());
        };
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("password file {}", file.display()))?;
        match text.lines().next() {
            Some(line) if !line.is_empty() => Ok(Some(line.to_owned())),
            _ => Err(usage(format!(
                "password file {}: its first line is empty",
                file.display()
            ))),
        }
    }
}

/// Takes the name of an engine; `--help` lists them, and says what each is.
fn engine_names() -> PossibleValuesParser {
    let named = |kind: &EngineKind| PossibleValue::new(kind.name()).help(kind.about());
    PossibleValuesParser::new(EngineKind::ALL.iter().map(named))
}

/// As [`engine_names`], for those who want the engine itself.
pub(crate) fn engine() -> impl TypedValueParser<Value = EngineKind> {
    engine_names().try_map(|name| name.parse::<EngineKind>())
}

fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

fn size(text: Option<&str>) -> anyhow::Result<Option<u64>> {
    text.map(parse_bytes).transpose().map_err(usage)
}

fn parse<T: FromStr<Err = String>>(text: Option<&str>) -> anyhow::Result<Option<T>> {
    text.map(str::parse).transpose().map_err(usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};

    fn flags(arguments: &[&str]) -> Layer {
        let matches = Layer::augment_args(Command::new("test"))
            .get_matches_from(["test"].iter().chain(arguments));
        Layer::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn flags_win_over_the_file_and_that_over_defaults() {
        let file: Layer = toml::from_str("port = 7000\nthreads = 3\npassword = 'file'").unwrap();
        let settings = flags(&[
            "--port",
            "7001",
            "--max-bytes",
            "1GiB",
            "--front-bytes",
            "16MiB",
        ])
        .resolve(file)
        .unwrap();
        assert_eq!(settings.server.port, 7001);
        assert_eq!(settings.server.threads, 3);
        assert_eq!(settings.server.maxclients, 10_000);
        assert_eq!(settings.server.password.as_deref(), Some("file"));
        assert_eq!(settings.options.max_bytes, 1 << 30);
        assert_eq!(settings.options.bullet.front_bytes, Some(16 << 20));
        assert_eq!(settings.pool, Path::new(POOL_DEFAULT));
    }

    #[test]
    fn nonsense_is_refused_as_usage() {
        for arguments in [
            ["--medium", "tape"],
            ["--durability", "sometimes"],
            ["--max-bytes", "lots"],
            ["--data-delay", "floppy"],
            // Not without `--medium emulated`.
            ["--data-delay", "p4800x"],
        ] {
            let error = flags(&arguments).resolve(Layer::default()).err().unwrap();
            assert!(error.is::<UsageError>(), "{arguments:?}");
        }
        let file: Layer = toml::from_str("engine = 'steam'").unwrap();
        let error = flags(&[]).resolve(file).err().unwrap();
        assert!(error.is::<UsageError>(), "{error}");
        assert!(toml::from_str::<Layer>("prot = 7000").is_err());
    }

    /// `--help` writes the defaults down a second time: here they are compared.
    #[test]
    fn help_tells_the_real_defaults() {
        let server = everdram_resp::Settings::default();
        let options = Options::default();
        let expected = [
            ("pool", POOL_DEFAULT.to_owned()),
            ("bind", server.bind[0].to_string()),
            ("port", server.port.to_string()),
            ("threads", server.threads.to_string()),
            ("allow_open_network", server.allow_open_network.to_string()),
            ("durability", options.durability.to_string()),
            ("engine", EngineKind::default().to_string()),
            ("max_clients", server.maxclients.to_string()),
            ("timeout", server.timeout.as_secs().to_string()),
            ("drain_timeout", server.drain_timeout.as_secs().to_string()),
        ];
        let command = Layer::augment_args(Command::new("test"));
        for (name, default) in expected {
            let argument = command
                .get_arguments()
                .find(|a| a.get_id() == name)
                .unwrap();
            let help = argument.get_help().unwrap().to_string();
            assert!(
                help.ends_with(&format!("[default: {default}]")),
                "{name}: {help}"
            );
        }
        assert_eq!(options.max_bytes, parse_bytes("1TiB").unwrap());
        for bytes in [
            options.initial_bytes,
            options.chunk_bytes,
            options.log_bytes,
        ] {
            assert_eq!(bytes, parse_bytes("64MiB").unwrap());
        }
        assert_eq!(options.medium, MediumChoice::Auto);
        assert_eq!(options.engine, None);
        assert_eq!(options.bullet.front_bytes, None);
        let logs = u64::from(options.bullet.logs) * options.bullet.log_bytes;
        assert_eq!(logs, parse_bytes("64MiB").unwrap());
    }
}
