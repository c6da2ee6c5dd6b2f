//! `everdram remote`: single calls to doors of a fabric, to try them and for scripts.

use crate::{Outcome, units};
use everdram_fabric::{ClientOptions, Cluster, ClusterClient, SLOTS, Server, Way, slot_of};
use hdrhistogram::Histogram;
use rand::RngExt;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Call a server over a fabric.
#[derive(clap::Args)]
#[command(
    long_about = "Calls the fabric door of a server (`everdram serve --fabric tcp://127.0.0.1:7700`). A put and a delete \
                  return once they are acknowledged; `hello` says what that means there. Short values travel with their \
                  request; for long ones the client writes into memory of the server, which then makes them durable \
                  (RDMP-SA). If the pool has a landing area (`--landing-bytes`) and the server trusts its peers \
                  (`--fabric-trust-peers`), clients can make values durable by themselves (`put --way cc`, \
                  RDMP-CC).\n\n\
                  Several servers, with a comma between their addresses, share the keys: each key is at one of them, \
                  which `where` names, whatever the order of the addresses. Nothing is replicated. All of them must be \
                  there, but those whose pool is named behind `#`, as `hello` prints it: then a server that is gone \
                  takes only its own keys with it. Who adds a server moves nothing by that: the keys of the slots that \
                  it takes over must be put again.\n\n\
                  Examples:\n  everdram remote tcp://127.0.0.1:7700 put name value\n  \
                  everdram remote tcp://127.0.0.1:7700,tcp://127.0.0.1:7701 where name",
    after_help = "Exit codes: 0 done; 1 failed, or no such key; 2 usage."
)]
pub(crate) struct Arguments {
    /// Address of the door, or of several: ADDRESS,ADDRESS; each may name its pool: ADDRESS#POOL
    #[arg(value_name = "ADDRESS[,ADDRESS]")]
    addresses: String,
    /// Password of the server
    #[arg(long, env = "EVERDRAM_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    #[command(subcommand)]
    call: Call,
}

#[derive(clap::Subcommand)]
enum Call {
    /// Connect, and print each server's pool and share of the keys, and what an acknowledgement means there
    Hello,
    /// Print which server has a key, whether it is there or not
    Where {
        /// The key
        key: String,
    },
    /// Print the value of a key, byte by byte
    Get {
        /// The key
        key: String,
    },
    /// Store a value; without one, what standard input has
    Put {
        /// The key
        key: String,
        /// The value
        value: Option<String>,
        /// Absolute expiry in Unix milliseconds; 0 = never
        #[arg(long, default_value_t = 0, value_name = "MS")]
        expires_at_ms: u64,
        #[command(flatten)]
        how: How,
    },
    /// Remove a key
    Delete {
        /// The key
        key: String,
    },
    /// Print length and expiry of a key's value
    Probe {
        /// The key
        key: String,
    },
    /// Load the servers for a while, and print what it did in a second and how long calls took
    Bench(Load),
}

/// How values travel.
#[derive(clap::Args)]
struct How {
    /// auto, inline (with the request), sa (RDMP-SA: the client writes, the server makes it durable), cc
    /// (RDMP-CC-ADP: the client makes it durable, and the server learns of it when somebody asks), cc-sa (as
    /// cc, and the server is asked to look), cc-imm (as cc-sa, asked by the write itself)
    #[arg(long, default_value = "auto", value_parser = way)]
    way: Way,
}

fn way(name: &str) -> Result<Way, String> {
    Ok(match name {
        "auto" => Way::Auto,
        "inline" => Way::Inline,
        "sa" => Way::ServerAssisted,
        "cc" => Way::ClientCentric,
        "cc-sa" => Way::ClientCentricAsked,
        "cc-imm" => Way::ClientCentricImmediate,
        _ => return Err("use auto, inline, sa, cc, cc-sa or cc-imm".into()),
    })
}

/// A load.
#[derive(clap::Args)]
struct Load {
    /// Clients, each with a thread of its own and a connection to each server
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Calls that each keeps under way, at most 16
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Bytes of a value
    #[arg(long, default_value_t = 200)]
    value_bytes: usize,
    /// Keys, of 16 bytes
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Share of gets; the others are puts
    #[arg(long, default_value_t = 0.0)]
    gets: f64,
    #[command(flatten)]
    how: How,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let options = ClientOptions {
        password: arguments.password.clone(),
        ..ClientOptions::default()
    };
    let addresses: Vec<&str> = arguments.addresses.split(',').collect();
    let cluster = Cluster::connect(&addresses, &options)?;
    let mut client = cluster.client();
    let begun = Instant::now();
    match &arguments.call {
        Call::Bench(load) => return load.run(&cluster),
        Call::Hello => return hello(&mut client),
        Call::Where { key } => {
            let slot = slot_of(key.as_bytes());
            println!("slot {slot}, {}", named(server_of(&cluster, key)));
        }
        Call::Get { key } => match client.get(key.as_bytes())? {
            Some(value) => std::io::stdout().write_all(&value)?,
            None => return absent(key),
        },
        Call::Put {
            key,
            value,
            expires_at_ms,
            how,
        } => {
            let value = match value {
                Some(value) => value.clone().into_bytes(),
                None => {
                    let mut value = Vec::new();
                    std::io::stdin().read_to_end(&mut value)?;
                    value
                }
            };
            let begun = Instant::now();
            let way = client.put_expiring(key.as_bytes(), &value, *expires_at_ms, how.way)?;
            let way = match way {
                Way::ServerAssisted => "written by the client",
                Way::ClientCentric => "made durable by the client",
                Way::ClientCentricAsked | Way::ClientCentricImmediate => {
                    "made durable by the client, and applied"
                }
                Way::Auto | Way::Inline => "with the request",
            };
            let (bytes, took) = (
                units::bytes(value.len() as u64),
                units::time(begun.elapsed()),
            );
            let at = match cluster.servers() {
                [_] => String::new(),
                _ => format!(", at {}", server_of(&cluster, key).address()),
            };
            println!("acknowledged after {took}: {bytes}, {way}{at}");
        }
        Call::Delete { key } => match client.delete(key.as_bytes())? {
            true => println!(
                "removed, acknowledged after {}",
                units::time(begun.elapsed())
            ),
            false => return absent(key),
        },
        Call::Probe { key } => match client.probe(key.as_bytes())? {
            Some(probed) => {
                let bytes = units::bytes(probed.value_bytes);
                match probed.expires_at_ms {
                    0 => println!("{bytes}, never expires"),
                    at => println!("{bytes}, expires at {at} (Unix ms)"),
                }
            }
            None => return absent(key),
        },
    }
    Ok(Outcome::Sound)
}

fn server_of<'a>(cluster: &'a Cluster, key: &str) -> &'a Server {
    &cluster.servers()[cluster.server_of(key.as_bytes())]
}

/// The address of a server with its pool, as it may be given.
fn named(server: &Server) -> String {
    format!("{}#{}", server.address(), server.pool())
}

/// Says of each server what it is. One that does not answer is a failure, after all others.
fn hello(client: &mut ClusterClient) -> anyhow::Result<Outcome> {
    let cluster = client.cluster().clone();
    let mut failed = None;
    for (place, server) in cluster.servers().iter().enumerate() {
        println!(
            "{}: {} of {SLOTS} slots",
            named(server),
            cluster.slots_of(place)
        );
        match client.connection(place) {
            Ok(connection) => {
                println!("  {}", connection.acknowledgement());
                let cc = connection.takes_client_centric().then_some(", cc, cc-sa");
                let immediate = connection.takes_immediate().then_some(", cc-imm");
                let [cc, immediate] = [cc, immediate].map(Option::unwrap_or_default);
                println!("  ways: inline, sa{cc}{immediate}");
                if connection.reads_in_place() {
                    println!("  long values are read in place");
                }
                if connection.borrows() {
                    println!("  long values stay where they are written");
                }
            }
            Err(error) => {
                println!("  {error}");
                failed = Some(error);
            }
        }
    }
    failed.map_or(Ok(Outcome::Sound), |error| Err(error.into()))
}

fn absent(key: &str) -> anyhow::Result<Outcome> {
    anyhow::bail!("no key `{key}`")
}

impl Load {
    fn run(&self, cluster: &Cluster) -> anyhow::Result<Outcome> {
        let length = Duration::try_from_secs_f64(self.seconds)
            .map_err(|_| crate::settings::usage("--seconds: not a time"))?;
        let mut clients = Vec::new();
        for _ in 0..self.clients.max(1) {
            let mut client = cluster.client();
            for server in 0..cluster.servers().len() {
                client.connection(server)?;
            }
            clients.push(client);
        }
        let begun = Instant::now();
        let times = std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .into_iter()
                .map(|client| scope.spawn(move || self.calls(client, begun + length)))
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended
                .map(|ended| ended.map_err(|_| anyhow::anyhow!("a client panicked"))?)
                .collect::<anyhow::Result<Vec<_>>>()
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let mut all = Histogram::<u64>::new(3)?;
        for times in times {
            all.add(times)?;
        }
        let at = |share| units::time(Duration::from_nanos(all.value_at_quantile(share)));
        println!(
            "{} calls a second; p50 {}, p99 {}, p99.9 {}",
            units::count((all.len() as f64 / seconds) as u64),
            at(0.5),
            at(0.99),
            at(0.999)
        );
        Ok(Outcome::Sound)
    }

    /// The calls of one client; how long each took, in nanoseconds.
    fn calls(&self, mut client: ClusterClient, until: Instant) -> anyhow::Result<Histogram<u64>> {
        let mut random = rand::rng();
        let mut times = Histogram::new(3)?;
        let value = vec![0x5a; self.value_bytes];
        let mut under_way = HashMap::new();
        loop {
            let is_over = Instant::now() >= until;
            if is_over && under_way.is_empty() {
                return Ok(times);
            }
            while !is_over && under_way.len() < self.depth.clamp(1, 16) {
                let key = format!("key:{:012}", random.random_range(0..self.keys.max(1)));
                let begun = Instant::now();
                let ticket = match random.random_bool(self.gets.clamp(0.0, 1.0)) {
                    true => client.submit_get(key.as_bytes())?,
                    false => client.submit_put(key.as_bytes(), &value, 0, self.how.way)?,
                };
                under_way.insert(ticket, begun);
            }
            for done in client.poll(Duration::from_secs(1)) {
                done.outcome?;
                if let Some(begun) = under_way.remove(&done.ticket) {
                    times.record(begun.elapsed().as_nanos() as u64)?;
                }
            }
        }
    }
}
