//! From hello to welcome: version, certificate, identity. And the end of connections.
//!
//! A hello of a node that has a live connection already is either a restart whose old connection nobody has missed yet, or a
//! second machine with the same certificate. The old connection is challenged: silence proves the former, an answer the latter.

use super::Fleet;
use super::member::{CHALLENGE_WITHIN, Challenge, Contender, Link, Live, Member};
use crate::logic::epochs::Epochs;
use crate::logic::{Change, Connection, HubEffect, Note};
use shared::fleet::{NodeState, ReplicaReport};
use shared::ids::NodeId;
use shared::units::{Micros, Moment};
use shared::wire::frame::{Goodbye, Hello, Welcome};
use shared::wire::{VERSION_MAX, VERSION_MIN};

impl Fleet {
    /// Judges a hello.
    pub(in crate::logic) fn hello(
        &mut self,
        now: Moment,
        (connection, certified): (Connection, &NodeId),
        serial: &str,
        hello: Hello,
        epochs: &mut Epochs,
        effects: &mut Vec<HubEffect>,
    ) {
        let node = hello.node.clone();
        if let Err(goodbye) = self.may_enter((connection, certified), serial, &hello) {
            let certified = certified.clone();
            effects.push(HubEffect::Note(Note::HelloRefused { node: certified, why: goodbye.clone() }));
            effects.push(HubEffect::CloseConnection { connection, goodbye });
            return;
        }
        self.know(&node, serial, effects);
        self.connections.insert(connection, node.clone());
        let Some(member) = self.members.get_mut(&node) else { return };
        let earlier = member.contender.take();
        let rival = member.session.as_ref().and_then(|live| {
            let link = live.link.as_ref()?;
            Some((link.connection, live.instance != hello.instance))
        });
        if let Some(earlier) = earlier {
            // Of two that wait, the newer is the likelier to live; the other may come again.
            self.close(earlier.connection, Goodbye::Replaced, effects);
        }
        match rival {
            Some((_, true)) => self.challenge(now, Contender { connection, hello }, epochs, effects),
            // The same life of the process speaks on a newer connection, over another transport perhaps: what runs on the older
            // one ends there, with that connection.
            Some((_, false)) => {
                self.supersede(now, &node);
                self.admit(now, connection, &hello, epochs, effects);
            }
            None => self.admit(now, connection, &hello, epochs, effects),
        }
        self.refresh(now, &node, effects);
    }

    fn may_enter(&self, (connection, node): (Connection, &NodeId), serial: &str, hello: &Hello) -> Result<(), Goodbye> {
        if hello.node != *node {
            return Err(Goodbye::Protocol("the certificate names another node".to_owned()));
        }
        if self.connections.contains_key(&connection) {
            return Err(Goodbye::Protocol("a second hello on one connection: want one".to_owned()));
        }
        if *node == self.me {
            return Err(Goodbye::Protocol("this is the hub's own name".to_owned()));
        }
        if hello.version_min > VERSION_MAX || hello.version_max < VERSION_MIN || hello.version_min > hello.version_max {
            return Err(Goodbye::Version);
        }
        if self.members.get(node).is_some_and(|member| !member.accepts(serial)) {
            return Err(Goodbye::Revoked);
        }
        Ok(())
    }

    /// A good certificate that the store has forgotten is taken up again.
    fn know(&mut self, node: &NodeId, serial: &str, effects: &mut Vec<HubEffect>) {
        let fresh = || Member { shown: NodeState::Offline, ..Member::default() };
        let member = self.members.entry(node.clone()).or_insert_with(fresh);
        if member.serials.insert(serial.to_owned()) {
            effects.push(HubEffect::Persist(Change::Node(member.stored(node))));
        }
    }

    fn challenge(&mut self, now: Moment, contender: Contender, epochs: &mut Epochs, effects: &mut Vec<HubEffect>) {
        let node = contender.hello.node.clone();
        let Some(member) = self.members.get_mut(&node) else { return };
        member.contender = Some(contender);
        self.question(now, &node, effects);
        // An older challenge may have run out while nobody waited for it.
        self.settle_contender(now, &node, epochs, effects);
    }

    /// Asks the process behind the session's connection whether it lives, unless it is being asked already.
    pub(super) fn question(&mut self, now: Moment, node: &NodeId, effects: &mut Vec<HubEffect>) {
        let Some(member) = self.members.get_mut(node) else { return };
        let Some(connection) = member.link().map(|link| link.connection) else { return };
        if member.challenge.is_none() {
            self.pings += 1;
            member.challenge = Some(Challenge { number: self.pings, until: now + CHALLENGE_WITHIN });
            effects.push(HubEffect::Challenge { connection, number: self.pings });
        }
    }

    /// Closes the connection of a session whose last will came and whose process did not answer: what it relays and executes for
    /// others need not wait for the transport to find out.
    pub(super) fn bury(&mut self, now: Moment, node: &NodeId, effects: &mut Vec<HubEffect>) {
        let dead = self.members.get(node).is_some_and(|member| {
            let silent = member.challenge.is_some_and(|challenge| now >= challenge.until);
            silent && member.session.as_ref().is_some_and(|live| live.goodbye)
        });
        if dead && let Some(connection) = self.unlink(now, node) {
            self.close(connection, Goodbye::Protocol("no answer after the last will".to_owned()), effects);
        }
    }

    fn admit(&mut self, now: Moment, connection: Connection, hello: &Hello, epochs: &mut Epochs, effects: &mut Vec<HubEffect>) {
        let node = hello.node.clone();
        if let Some(old) = self.unlink(now, &node) {
            self.close(old, Goodbye::Replaced, effects);
        }
        // The counts stay; but what was wrong before is not what is wrong now.
        if let Some(member) = self.members.get_mut(&node) {
            member.faults.last = None;
        }
        if let Err(why) = epochs.seen(hello, effects) {
            self.fault(&node, "hello", &why, effects);
        }
        let epoch = epochs.session(hello, effects);
        let Some(member) = self.members.get_mut(&node) else { return };
        member.heard = Some(now);
        self.pings += 1;
        let mut link = Link::new(connection, now);
        link.pinged(now, self.pings);
        member.session = Some(Live {
            epoch,
            instance: hello.instance,
            link: Some(link),
            goodbye: false,
            mqtt_after_loss: false,
            mqtt_since: None,
        });
        let welcome = Welcome {
            version: hello.version_max.min(VERSION_MAX),
            node: self.me.clone(),
            session: epoch,
            heartbeat: self.heartbeat,
            broker: self.broker.clone(),
            replicas: Vec::new(),
        };
        effects.push(HubEffect::Welcome { connection, welcome });
        // The first pong proves that the path carries data; until then the node is not given work.
        effects.push(HubEffect::Ping { connection, number: self.pings });
        match hello.replicas.iter().try_for_each(ReplicaReport::validate) {
            Ok(()) => self.take_replicas(now, &node, hello.replicas.clone(), Micros::ZERO),
            Err(fault) => self.report_fault(&node, &fault, effects),
        }
    }

    /// The session's connection has answered a ping. If that was the challenge, both live: the newer is turned away, the identity
    /// flagged.
    pub(super) fn answered(&mut self, now: Moment, node: &NodeId, number: u64, effects: &mut Vec<HubEffect>) {
        let Some(member) = self.members.get_mut(node) else { return };
        // A later ping than the challenge tells as much.
        if member.challenge.take_if(|challenge| number >= challenge.number).is_none() {
            return;
        }
        if let Some(contender) = member.contender.take() {
            member.cloned = Some(now);
            effects.push(HubEffect::Note(Note::HelloRefused { node: node.clone(), why: Goodbye::Cloned }));
            self.close(contender.connection, Goodbye::Cloned, effects);
        }
    }

    /// Admits a contender whose rival is gone or has not answered in time.
    pub(super) fn settle_contender(&mut self, now: Moment, node: &NodeId, epochs: &mut Epochs, effects: &mut Vec<HubEffect>) {
        let Some(member) = self.members.get_mut(node) else { return };
        let alone = member.link().is_none() || member.challenge.is_none_or(|challenge| now >= challenge.until);
        if let Some(contender) = member.contender.take_if(|_| alone) {
            self.admit(now, contender.connection, &contender.hello, epochs, effects);
        }
    }

    /// A connection is gone.
    pub(in crate::logic) fn lost(
        &mut self,
        now: Moment,
        connection: Connection,
        epochs: &mut Epochs,
        effects: &mut Vec<HubEffect>,
    ) {
        let Some(node) = self.connections.remove(&connection) else { return };
        if self.connection_of(&node) == Some(connection) {
            self.unlink(now, &node);
            self.settle_contender(now, &node, epochs, effects);
        } else if let Some(member) = self.members.get_mut(&node)
            && member.contender.take_if(|contender| contender.connection == connection).is_none()
        {
            // A superseded one, on which streams may have run to the end.
            self.news.ended.push(connection);
        }
        self.refresh(now, &node, effects);
    }
}
