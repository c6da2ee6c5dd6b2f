//! Remote clients that write into the landing area, and their network adapter.
//!
//! A client's bytes come as stores of actors of their own, in pieces of whole words, in an order that the
//! seed decides, between the events of everybody else. Nothing that arrives is durable before the client has
//! asked for that.
//!
//! A write that comes after its connection has ended can spoil what another client has written into the same
//! pages since then, and nobody promises that client anything else (R6). So it comes only while nobody has
//! them.
//!
//! Long values are mostly written into blocks that the engine lends. Such a put is acknowledged by the
//! server: its client writes all of it or a part, durably or not, and says so. It writes nothing later: its
//! memory is taken back before the server looks.

use super::caller::Caller;
use super::clients::Client;
use super::process::Numbers;
use crate::plan::call::{Call, Fate, Outcome};
use crate::plan::profile;
use everdram::Error;
use everdram::engine::{EngineSession, Loan, Said};
use everdram::landing::{Grant, Landing, slot};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::sync::Arc;

/// Most words of a piece.
const PIECE: usize = 12;
/// Cuts what a client writes, and shuffles it.
fn pieces(grant: &Grant, bytes: &[u8], random: &mut StdRng) -> Vec<(u64, Vec<u8>)> {
    let mut pieces = cut(grant.offset, bytes, random);
    pieces.shuffle(random);
    pieces
}

/// Cuts bytes that are written from an offset on.
fn cut(offset: u64, bytes: &[u8], random: &mut StdRng) -> Vec<(u64, Vec<u8>)> {
    let most = random.random_range(1..=PIECE);
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let end = bytes.len().min(at + 8 * random.random_range(1..=most));
        pieces.push((offset + at as u64, bytes[at..end].to_vec()));
        at = end;
    }
    pieces
}

impl Caller<'_> {
    fn landing(&self) -> Option<Arc<Landing>> {
        self.process.opened.landing()
    }

    /// See [`Call::Remote`].
    pub(crate) fn remote(
        &self,
        session: &mut Option<Box<dyn EngineSession>>,
        call: &Call,
    ) -> Result<(), Error> {
        // Opening a session is not part of the call.
        let session = self.open(session)?;
        let (Some(landing), &Call::Remote(key, value, expires, fate)) = (self.landing(), call)
        else {
            return Ok(());
        };
        let name = self.clients.name(self.name);
        let number = self.recorder.invoke(name, call);
        let mut random = profile::random(self.seed, 1000 + u64::from(number));
        let (key, value) = (self.profile.key(key), self.recorder.bytes(value));
        if random.random_range(0..4) > 0
            && let Some(mut loan) = self.process.opened.engine().lend(&key, value.len() as u64)
        {
            let said = (&key[..], &value[..], expires);
            let outcome = self.lent(session, &mut loan, said, fate, &mut random)?;
            // The connection has ended: nothing of it arrives any more.
            self.process.opened.engine().take_back(loan);
            self.recorder.ret(number, outcome);
            return Ok(());
        }
        let Some((name, grant)) =
            self.granted(&landing, (name, &key, &value, expires), &mut random)?
        else {
            self.recorder.ret(number, Outcome::NoRoom);
            return Ok(());
        };
        let mut bytes = Vec::new();
        slot::encode(&mut bytes, &grant, &key, &value, expires);
        let mut client = Client {
            name,
            grant,
            pieces: pieces(&grant, &bytes, &mut random),
            arrived: 0,
            call: Some(number),
            is_connected: true,
            is_waiting: false,
            is_busy: true,
        };
        self.clients.enter(client.clone());
        if let Fate::Part(percent) = fate {
            let until = client.pieces.len() * usize::from(percent) / 100;
            client.deliver(&landing, until)?;
            self.clients.give_back(client);
            return Ok(());
        }
        client.persist(&landing)?;
        client.call = None;
        self.recorder.ret(number, Outcome::Done);
        if fate == Fate::Told {
            match landing.arrived(client.grant.number) {
                Ok(has_arrived) => assert!(has_arrived, "what is durable has not arrived"),
                Err(Error::NoSpace(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.clients.give_back(client);
        Ok(())
    }

    /// A client writes its value into blocks of the store, and says so unless it vanishes before.
    fn lent(
        &self,
        session: &mut dyn EngineSession,
        loan: &mut Loan,
        (key, value, expires): (&[u8], &[u8], u64),
        fate: Fate,
        random: &mut StdRng,
    ) -> Result<Outcome, Error> {
        let mut lane = self.process.pool.lane();
        let (mut pieces, mut from) = (Vec::new(), 0);
        for place in loan.places() {
            let end = from + place.bytes as usize;
            pieces.extend(cut(place.offset, &value[from..end], random));
            from = end;
        }
        pieces.shuffle(random);
        let (all, percent) = match fate {
            Fate::Part(percent) => (pieces.len(), usize::from(percent)),
            Fate::Durable | Fate::Told => (pieces.len(), 100),
        };
        for (offset, mut bytes) in pieces.into_iter().take(all * percent / 100) {
            // The rest of a last word is the loan's, too.
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            let _not_durable = lane.store(offset, &bytes);
        }
        let is_durable = percent == 100 && random.random();
        if is_durable {
            let mut flushed = None;
            for place in loan.places() {
                lane.flush_range(place.offset, place.bytes)
                    .join(&mut flushed);
            }
            let _durable = flushed.map(|flushed| lane.fence(flushed));
        }
        if percent < 100 && random.random() {
            return Ok(Outcome::Declined);
        }
        let said = Said {
            // Whoever lies is not believed.
            is_believed: percent == 100 && random.random(),
            ..Said::of(loan, value, random.random(), is_durable)
        };
        let put = session.put_lent(key, loan, &said, expires);
        let ticket = session.commit()?;
        session.wait(ticket)?;
        match put {
            Ok(true) => Ok(Outcome::Done),
            // What is missing may have been there before.
            Ok(false) if percent < 100 => Ok(Outcome::Declined),
            Ok(false) => panic!("what was written into a loan is not there"),
            Err(Error::NoSpace(_)) => Ok(Outcome::NoRoom),
            Err(error) => Err(error),
        }
    }

    /// A grant in a new slot, or in that of a client whose value was applied. Returns the client's name, too.
    fn granted(
        &self,
        landing: &Arc<Landing>,
        (name, key, value, expires): (u32, &[u8], &[u8], u64),
        random: &mut StdRng,
    ) -> Result<Option<(u32, Grant)>, Error> {
        let bytes = value.len() as u64;
        let mut granter = landing.granter();
        let mut before = None;
        if random.random() {
            before = self
                .clients
                .take(random.random(), |client| client.is_connected);
        }
        if let Some(old) = before {
            if granter.prepare_again(old.grant.number, key, bytes, expires)? {
                let grants = granter.commit()?;
                if let Some(call) = old.call {
                    self.recorder.ret(call, Outcome::Done);
                }
                return Ok(grants.first().map(|grant| (old.name, *grant)));
            }
            self.clients.give_back(old);
        }
        match granter.prepare(key, bytes, expires) {
            Err(Error::NoSpace(_)) => return Ok(None),
            other => other?,
        }
        let grants = granter.commit()?;
        Ok(grants.first().map(|grant| (name, *grant)))
    }

    /// See [`Call::Late`].
    pub(crate) fn late(&self, pick: u32) -> Result<(), Error> {
        let Some(landing) = self.landing() else {
            return Ok(());
        };
        let Some(mut client) = self.clients.take(pick, |_| true) else {
            return Ok(());
        };
        match client.call.take() {
            Some(call) => {
                client.persist(&landing)?;
                self.recorder.ret(call, Outcome::Done);
            }
            // Nobody else writes there meanwhile: whoever gets the pages writes all of them later.
            None => self.recorder.at_once(|| {
                if self.clients.has_others_in(&client, &landing) {
                    return Ok(());
                }
                client.arrived = 0;
                client.deliver(&landing, usize::MAX)
            })?,
        }
        self.clients.give_back(client);
        Ok(())
    }

    /// See [`Call::Hangup`].
    pub(crate) fn hangup(&self, pick: u32) -> Result<(), Error> {
        let Some(landing) = self.landing() else {
            return Ok(());
        };
        let Some(mut client) = self.clients.take(pick, |client| client.is_connected) else {
            return Ok(());
        };
        client.is_connected = false;
        let call = client.call.take();
        match (landing.release(client.grant.number), call) {
            (Ok(true), Some(call)) => self.recorder.ret(call, Outcome::Done),
            // Nothing has arrived, and nothing may arrive any more.
            (Ok(false), Some(call)) => self.recorder.ret(call, Outcome::Declined),
            (Ok(false), None) => panic!("what was durable has not been applied"),
            (Ok(true), None) => {}
            // It stays until there is room.
            (Err(Error::NoSpace(_)), _) => client.is_waiting = true,
            (Err(error), _) => return Err(error),
        }
        self.clients.give_back(client);
        Ok(())
    }
}
