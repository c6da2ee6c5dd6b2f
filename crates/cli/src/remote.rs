//! `everdram remote`: single calls to a door of a fabric, to try it and for scripts.

use crate::{Outcome, units};
use anyhow::Context;
use everdram_fabric::{Client, ClientOptions, Way};
use std::io::{Read, Write};
use std::time::Instant;

/// Call a server over a fabric.
#[derive(clap::Args)]
#[command(
    long_about = "Calls the fabric door of a server (`everdram serve --fabric tcp://127.0.0.1:7700`). A put and a delete \
                  return once they are durable, as the server says with `hello`. Short values travel with their \
                  request; for long ones the client writes into memory of the server, which then makes them durable \
                  (RDMP-SA).\n\n\
                  Example: everdram remote tcp://127.0.0.1:7700 put name value",
    after_help = "Exit codes: 0 done; 1 failed, or no such key; 2 usage."
)]
pub(crate) struct Arguments {
    /// Address of the door
    address: String,
    /// Password of the server
    #[arg(long, env = "EVERDRAM_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    #[command(subcommand)]
    call: Call,
}

#[derive(clap::Subcommand)]
enum Call {
    /// Connect, and print what an acknowledgement means there
    Hello,
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
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let options = ClientOptions {
        password: arguments.password.clone(),
        ..ClientOptions::default()
    };
    let client = Client::connect(&arguments.address, &options);
    let mut client = client.with_context(|| arguments.address.clone())?;
    let begun = Instant::now();
    match &arguments.call {
        Call::Hello => println!("{}", client.acknowledgement()),
        Call::Get { key } => match client.get(key.as_bytes())? {
            Some(value) => std::io::stdout().write_all(&value)?,
            None => return absent(key),
        },
        Call::Put {
            key,
            value,
            expires_at_ms,
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
            let way = client.put_expiring(key.as_bytes(), &value, *expires_at_ms, Way::Auto)?;
            let way = match way {
                Way::ServerAssisted => "written by the client",
                Way::Auto | Way::Inline => "with the request",
            };
            let (bytes, took) = (
                units::bytes(value.len() as u64),
                units::time(begun.elapsed()),
            );
            println!("durable after {took}: {bytes}, {way}");
        }
        Call::Delete { key } => match client.delete(key.as_bytes())? {
            true => println!("removed, durable after {}", units::time(begun.elapsed())),
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

fn absent(key: &str) -> anyhow::Result<Outcome> {
    anyhow::bail!("no key `{key}`")
}
