//! Stores with a door each, and clients of them, that take turns in the order of their clocks.

use super::crc::crc32c;
use super::{LANDING_BYTES, LEASE, POOL_BYTES, Route, set_back_end};
use crate::figure::settings::curve::{Curve, Site};
use crate::latency::Latencies;
use crate::pace::Timer;
use crate::process::Waiting;
use crate::subject::Error;
use crate::workload::corpus::{Corpus, Maker};
use crate::workload::distribution::Picker;
use anyhow::{Context, bail, ensure};
use everdram::{Medium, MediumChoice, Options, Store};
use everdram_fabric::{
    Client, ClientOptions, EndClock, Network, Outcome, Settings, Ticket, TurnedDoor,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a client may take to connect.
const CONNECTING: Duration = Duration::from_millis(1);

/// A store and its door.
struct Server {
    door: TurnedDoor,
    clock: EndClock,
    // After its door.
    _store: Store,
    _site: Site,
}

/// A client, and what it is doing.
struct Asker<'a> {
    client: Client,
    clock: EndClock,
    server: usize,
    maker: Maker<'a>,
    random: SmallRng,
    generation: u64,
    call: Option<Call>,
    timers: [Timer; 2],
}

/// A call under way.
struct Call {
    ticket: Ticket,
    begun_ns: u64,
    /// Of the record.
    number: u64,
    is_put: bool,
    /// Whether the server still has to sum up what is got.
    is_unsummed: bool,
}

/// All of them.
pub(in crate::figure) struct Cluster<'a> {
    // Clients end before doors, and doors before stores.
    askers: Vec<Asker<'a>>,
    servers: Vec<Server>,
    route: &'static Route,
    corpus: &'a Corpus,
    picker: Picker,
    /// What turns of doors took.
    served: Timer,
    /// As long as the longest value, for the server to sum up.
    scratch: Vec<u8>,
}

/// What came of asking for a while.
#[derive(Default)]
pub(in crate::figure) struct Asked {
    /// Of gets and of puts, by the clocks of the clients.
    pub(in crate::figure) latencies: [Latencies; 2],
    pub(in crate::figure) calls: u64,
    /// Calls a second of all clients, by their clocks.
    pub(in crate::figure) rate: f64,
    /// Nanoseconds that servers, and clients, worked for a call.
    pub(in crate::figure) server_ns: f64,
    pub(in crate::figure) client_ns: f64,
    /// The first, with turns that waited for a core: clocks between the steps of a put have those, too.
    #[cfg_attr(not(feature = "steps"), allow(dead_code, reason = "for steps alone"))]
    pub(in crate::figure) server_wall_ns: f64,
    /// Share of the time in which this thread had no core.
    pub(in crate::figure) queued_share: f64,
}

impl<'a> Cluster<'a> {
    /// Opens and fills stores, and connects clients.
    pub(in crate::figure) fn open(
        curve: &Curve<'_>,
        route: &'static Route,
        corpus: &'a Corpus,
        (stores, clients, records): (usize, usize, u64),
        is_skewed: bool,
        seed: u64,
    ) -> Result<Cluster<'a>, Error> {
        let mut cluster = Cluster {
            askers: Vec::new(),
            servers: Vec::new(),
            route,
            corpus,
            picker: match is_skewed {
                true => Picker::zipfian(records, seed),
                false => Picker::uniform(records),
            },
            served: Timer::new(),
            scratch: vec![7; everdram_fabric::VALUE_BYTES_MAX],
        };
        let mut networks = Vec::new();
        for _ in 0..stores {
            let network = Network::with_delays(route.preset(), route.body_bytes);
            let site = curve.site()?;
            let store = Store::open(site.dir().join("pool"), &options(curve)?)?;
            let mut session = store.session()?;
            let mut maker = Maker::new(corpus);
            for number in 0..records {
                let (key, value) = maker.record(number, 0);
                session.put(key, value)?;
            }
            drop(session);
            let settings = Settings {
                trusts_peers: true,
                read_lease: route.in_place.then_some(LEASE),
                lends: store.engine().lender().is_some(),
                ..Settings::default()
            };
            let door = TurnedDoor::new(&store, &network, settings)?;
            let clock = door.clock().context("a network without clocks")?;
            cluster.servers.push(Server {
                door,
                clock,
                _store: store,
                _site: site,
            });
            networks.push(network);
        }
        for number in 0..clients {
            let server = number % stores;
            let client = connect(&mut cluster.servers[server].door, &networks[server])?;
            let clock = client.clock().context("a network without clocks")?;
            cluster.askers.push(Asker {
                client,
                clock,
                server,
                maker: Maker::new(corpus),
                random: SmallRng::seed_from_u64(seed + number as u64),
                generation: (number as u64 + 1) << 32,
                call: None,
                timers: [Timer::new(), Timer::new()],
            });
        }
        Ok(cluster)
    }

    /// Asks for so many seconds, by the clock of this machine; so many percent are puts.
    pub(in crate::figure) fn ask(&mut self, percent: f64, seconds: f64) -> Result<Asked, Error> {
        let begun = Instant::now();
        let waiting = Waiting::of_this_thread();
        let queued_before = waiting.queued_ns();
        let mut before = Vec::new();
        for asker in &mut self.askers {
            asker.timers = [Timer::new(), Timer::new()];
            before.push((asker.clock.now_ns(), asker.clock.busy_ns()));
        }
        self.served = Timer::new();
        let mut calls = vec![0_u64; self.askers.len()];
        loop {
            // However busy the machine, some calls end.
            let has_ended = calls.iter().any(|calls| *calls > 0);
            let is_over = has_ended && begun.elapsed().as_secs_f64() >= seconds;
            if !is_over {
                for number in 0..self.askers.len() {
                    if self.askers[number].call.is_none() {
                        self.begin(number, percent)?;
                    }
                }
            } else if self.askers.iter().all(|asker| asker.call.is_none()) {
                break;
            }
            if let Some(number) = self.turn()? {
                calls[number] += 1;
            }
        }
        let passed_ns = begun.elapsed().as_nanos() as f64;
        let queued_ns = waiting.queued_ns().saturating_sub(queued_before) as f64;
        let queued_share = (queued_ns / passed_ns.max(1.0)).clamp(0.0, 0.99);
        let all = calls.iter().sum::<u64>();
        let mut asked = Asked {
            calls: all,
            queued_share,
            server_ns: self.served_ns() / all as f64,
            server_wall_ns: {
                let turns = &self.served.latencies.all;
                turns.mean() * turns.len() as f64 / all as f64
            },
            ..Asked::default()
        };
        for ((asker, (at_ns, busy_ns)), calls) in self.askers.iter().zip(before).zip(calls) {
            for (all, timer) in asked.latencies.iter_mut().zip(&asker.timers) {
                all.add(&timer.latencies);
            }
            let took_ns = (asker.clock.now_ns() - at_ns).max(1) as f64;
            asked.rate += calls as f64 * 1e9 / took_ns;
            // The share of the time in which it had a core.
            let worked_ns = (asker.clock.busy_ns() - busy_ns) as f64 * (1.0 - queued_share);
            asked.client_ns += worked_ns / all as f64;
        }
        Ok(asked)
    }

    /// Nanoseconds that servers worked. A turn that waited for a core counts as those that did not.
    fn served_ns(&self) -> f64 {
        let Latencies { all, undisturbed } = &self.served.latencies;
        let had_core = if undisturbed.is_empty() {
            all
        } else {
            undisturbed
        };
        had_core.mean() * all.len() as f64
    }

    /// Submits the next call of a client.
    fn begin(&mut self, number: usize, percent: f64) -> Result<(), Error> {
        let (route, picker) = (self.route, &self.picker);
        let asker = &mut self.askers[number];
        let record = picker.pick(&mut asker.random);
        let is_put = asker.random.random::<f64>() * 100.0 < percent;
        asker.generation += 1;
        let (key, value) = asker.maker.record(record, asker.generation);
        let begun_ns = asker.clock.now_ns();
        asker.clock.run();
        let submitted = if is_put {
            if route.sums {
                black_box(crc32c(value));
            }
            asker.client.submit_put(key, value, 0, route.put)
        } else {
            asker.client.submit_get(key)
        };
        asker.clock.pause();
        asker.call = Some(Call {
            ticket: submitted?,
            begun_ns,
            number: record,
            is_put,
            is_unsummed: route.sums && !is_put,
        });
        Ok(())
    }

    /// Whoever comes next by its clock works; returns the client whose call has ended.
    fn turn(&mut self) -> Result<Option<usize>, Error> {
        let servers = self
            .servers
            .iter()
            .map(|server| match server.door.has_work() {
                true => Some(server.clock.now_ns()),
                false => server.clock.next_ns(),
            });
        let servers = servers
            .enumerate()
            .filter_map(|(number, at)| Some((at?, number)));
        let askers = self.askers.iter().map(|asker| asker.clock.next_ns());
        let askers = askers
            .enumerate()
            .filter_map(|(number, at)| Some((at?, number)));
        match (askers.min(), servers.min()) {
            (None, None) => bail!("nothing is under way"),
            (Some((at, number)), server) if server.is_none_or(|(other, _)| at < other) => {
                Ok(self.take_in(number)?.then_some(number))
            }
            (_, Some((_, number))) => {
                self.serve(number)?;
                Ok(None)
            }
            (Some(_), None) => unreachable!("a client that is before nobody"),
        }
    }

    fn serve(&mut self, number: usize) -> Result<(), Error> {
        let server = &mut self.servers[number];
        if !server.door.has_work() {
            server.clock.await_next();
        }
        let busy_ns = server.clock.busy_ns();
        server.clock.run();
        let turned = server.door.turn(Duration::ZERO);
        for asker in self
            .askers
            .iter_mut()
            .filter(|asker| asker.server == number)
        {
            if let Some(call) = asker.call.as_mut().filter(|call| call.is_unsummed) {
                call.is_unsummed = false;
                let length = self.corpus.length(call.number, 0);
                black_box(crc32c(&self.scratch[..length]));
            }
        }
        server.clock.pause();
        let worked_ns = server.clock.busy_ns() - busy_ns;
        self.served.record(Duration::from_nanos(worked_ns));
        Ok(turned?)
    }

    /// A client takes in what has arrived; `true`: its call has ended.
    fn take_in(&mut self, number: usize) -> Result<bool, Error> {
        let asker = &mut self.askers[number];
        asker.clock.await_next();
        asker.clock.run();
        let done = asker.client.poll(Duration::ZERO);
        asker.clock.pause();
        let ended_ns = asker.clock.now_ns();
        let Some(done) = done?.pop() else {
            return Ok(false);
        };
        let call = asker.call.take().context("the end of no call")?;
        ensure!(done.ticket == call.ticket, "the end of another call");
        match done.outcome? {
            Outcome::Stored(_) if call.is_put => {}
            Outcome::Found(value, _) if !call.is_put => self.corpus.check(call.number, &value)?,
            outcome => bail!("record {}: {outcome:?}", call.number),
        }
        let latency = Duration::from_nanos(ended_ns.saturating_sub(call.begun_ns));
        asker.timers[usize::from(call.is_put)].record(latency);
        Ok(true)
    }
}

fn options(curve: &Curve<'_>) -> Result<Options, Error> {
    let mut options = Options::default();
    set_back_end(&mut options, curve.back_end).map_err(Error::msg)?;
    options.medium = MediumChoice::Only(Medium::Emulated);
    options.delay = Some(curve.delays.to_owned());
    options.landing_bytes = LANDING_BYTES;
    options.initial_bytes = POOL_BYTES;
    options.prefault = true;
    options.keep_room = true;
    options.lend_bytes = LANDING_BYTES;
    Ok(options)
}

/// Connects a client, on a thread of its own: connecting waits for the door.
fn connect(door: &mut TurnedDoor, network: &Network) -> Result<Client, Error> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let options = ClientOptions {
                inline_bytes: usize::MAX,
                ..ClientOptions::default()
            };
            let client = Client::inside(network, &options);
            is_over.store(true, Ordering::Release);
            client
        });
        while !is_over.load(Ordering::Acquire) {
            door.hear(CONNECTING);
            door.turn(CONNECTING)?;
        }
        let client = client.join();
        Ok(client.map_err(|_| Error::msg("a client panicked while it connected"))??)
    })
}
