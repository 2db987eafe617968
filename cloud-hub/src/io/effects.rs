//! Carrying out what the core wants.

use super::driver::Driver;
use crate::clock::UnixTime;
use crate::logic::{Change, Connection, HubEffect, Note};
use crate::store::{CatalogueError, Db, StoreError};
use shared::ids::NodeId;
use shared::plan::{Layer, Plan};
use shared::request::Effect;
use shared::wire::Frame;
use shared::wire::frame::{Goodbye, Pulse};
use shared_net::link::Code;
use shared_net::openai::{Answer, KeySource};
use std::error::Error;
use std::sync::Arc;

/// What is to be written before anything else happens.
#[derive(Debug, Default)]
struct Unwritten {
    changes: Vec<Change>,
    plans: Vec<Plan>,
    cleared: Vec<(NodeId, Layer)>,
}

impl Unwritten {
    fn of(effects: &[HubEffect]) -> Self {
        let mut unwritten = Self::default();
        for effect in effects {
            match effect {
                HubEffect::Persist(change) => unwritten.changes.push(change.clone()),
                HubEffect::PublishPlan { plan, .. } => unwritten.plans.push(plan.clone()),
                HubEffect::ClearPlan { node, layer } => unwritten.cleared.push((node.clone(), *layer)),
                _ => {}
            }
        }
        unwritten
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.plans.is_empty() && self.cleared.is_empty()
    }
}

impl Driver {
    /// In order; what must be kept is written before what follows it happens.
    pub(super) async fn carry_out(&mut self, effects: Vec<HubEffect>) {
        // All of one step's writes go first, and in one go: earlier than asked for is as safe, and costs one wait.
        let unwritten = Unwritten::of(&effects);
        if !unwritten.is_empty() {
            self.write(unwritten).await;
        }
        for effect in effects {
            self.carry_out_one(effect);
        }
    }

    fn carry_out_one(&mut self, effect: HubEffect) {
        match effect {
            HubEffect::Persist(_) => {}
            HubEffect::Welcome { connection, welcome } => self.frame(connection, Frame::Welcome(welcome)),
            HubEffect::Ping { connection, number } | HubEffect::Challenge { connection, number } => {
                self.frame(connection, Frame::Ping(Pulse { number, ..Pulse::default() }));
            }
            HubEffect::Pong { connection, number } => self.frame(connection, Frame::Pong(Pulse { number, ..Pulse::default() })),
            HubEffect::CloseConnection { connection, goodbye } => self.frame(connection, Frame::Goodbye(goodbye)),
            HubEffect::PublishPlan { node, plan } => self.publisher.plan(node, plan),
            HubEffect::ClearPlan { node, layer } => self.publisher.clear_plan(node, layer),
            HubEffect::PublishView { node, view } => self.publisher.view(&node, &view),
            HubEffect::Keys(keys) => self.ring.set(KeySource::Fleet, keys),
            HubEffect::KickMqtt { node } => self.publisher.kick(&node),
            HubEffect::RelayOpen { stream, to } => {
                let link = self.links.get(&to).map(|linked| linked.link.clone());
                self.relays.open(stream, link);
            }
            HubEffect::RelayRefuse { stream, reason } => self.relays.refuse(stream, reason),
            HubEffect::RelayClose { stream } => self.relays.close(stream),
            HubEffect::Send { to, header } => {
                let link = self.links.get(&to).map(|linked| linked.link.clone());
                self.clients.send_header(header, link);
            }
            HubEffect::Request(effect) => self.request(effect),
            HubEffect::StoreRecord(record) => {
                if !self.store.keep_record(record, UnixTime::now(&self.wall)) {
                    self.metrics.record_dropped();
                }
            }
            HubEffect::Reply { token, reply } => {
                self.publisher.count();
                self.reply(token, reply);
            }
            HubEffect::Note(note) => {
                log(&note);
                self.metrics.note(&note);
            }
        }
    }

    fn request(&mut self, effect: Effect) {
        match effect {
            Effect::Decided(decision) => self.clients.tell(decision.attempt.request, Answer::Decided(decision)),
            Effect::Finish(request, finish, usage) => {
                tracing::info!(%request, output = usage.output.0, "a request was answered");
                self.metrics.request_ended("answered");
                self.clients.finish(request, Answer::Finish(finish, usage));
            }
            Effect::Fail(request, failure) => {
                tracing::info!(%request, code = failure.code(), "a request failed");
                self.metrics.request_ended(failure.code());
                self.clients.finish(request, Answer::Fail(failure));
            }
            Effect::SendBody(attempt) => self.clients.send_body(attempt),
            Effect::Reset(attempt) => self.clients.drop_attempt(attempt),
            // Looked at where the content came in.
            Effect::Deliver(_) => {}
            Effect::Send { .. }
            | Effect::Run(_)
            | Effect::Abort(_)
            | Effect::Accept(..)
            | Effect::Refuse(..)
            | Effect::Drop(..)
            | Effect::Record(_)
            | Effect::LoadChanged(..) => tracing::error!("the hub executes nothing, but its core wants it to"),
        }
    }

    /// Never waits. An agent whose control stream is stuck is closed: it comes back when it can.
    fn frame(&self, connection: Connection, frame: Frame) {
        let Some(linked) = self.links.get(&connection) else { return };
        let code = goodbye_code(&frame);
        if linked.frames.try_send(frame).is_err() {
            linked.link.close(code.unwrap_or(Code::BUSY), "the control stream is stuck");
        }
    }

    /// A hub that cannot write goes on: its nodes remember the highest epochs, and serving matters more. It says so, and counts.
    async fn write(&self, unwritten: Unwritten) {
        for change in &unwritten.changes {
            if let Change::Node(node) = change {
                self.revocations.add(&node.revoked);
            }
        }
        let services = unwritten.changes.iter().any(|change| matches!(change, Change::Service(_) | Change::ServiceRemoved(_)));
        let now = UnixTime::now(&self.wall);
        let expires = now.plus(self.node_lifetime);
        let written = self.store.call(move |db| {
            for change in &unwritten.changes {
                write_change(db, change, expires, now)?;
            }
            if !unwritten.plans.is_empty() {
                db.put_plans(&unwritten.plans)?;
            }
            for (node, layer) in &unwritten.cleared {
                db.forget_plan(&node.scope(), *layer)?;
            }
            if services { db.catalogue().map(Some).map_err(CatalogueError::from) } else { Ok(None) }
        });
        match written.await {
            Ok(Some(catalogue)) => drop(self.catalogue.send_replace(Arc::new(catalogue))),
            Ok(None) => {}
            Err(error) => {
                self.metrics.write_failed();
                tracing::error!(error = &error as &dyn Error, cause = error.source(), "the hub's state could not be written");
            }
        }
    }
}

fn write_change(db: &mut Db, change: &Change, expires: UnixTime, now: UnixTime) -> Result<(), CatalogueError> {
    match change {
        Change::Incarnation(incarnation) => drop(db.update_meta(|meta| meta.incarnation = *incarnation)?),
        Change::SessionEpoch(epoch) => drop(db.update_meta(|meta| {
            meta.session_epoch = shared::ids::SessionEpoch(*epoch);
            meta.clock = now;
        })?),
        Change::Dispatch(setting) => drop(db.update_meta(|meta| meta.dispatch = Some(setting.clone()))?),
        Change::Key(key) => drop(db.add_key(key)?),
        Change::KeyRevoked(name) => drop(db.revoke_key(name)?),
        Change::Node(node) => db.put_node(node, expires, now)?,
        Change::Service(service) => drop(db.put_service(service)?),
        Change::ServiceRemoved(id) => {
            drop(db.remove_service(id).map_err(CatalogueError::from as fn(StoreError) -> CatalogueError)?)
        }
    }
    Ok(())
}

fn goodbye_code(frame: &Frame) -> Option<Code> {
    let Frame::Goodbye(goodbye) = frame else { return None };
    Some(close_code(goodbye))
}

/// How a connection is closed after a goodbye.
pub(super) const fn close_code(goodbye: &Goodbye) -> Code {
    match goodbye {
        Goodbye::Replaced => Code::REPLACED,
        Goodbye::Cloned | Goodbye::Revoked => Code::FORBIDDEN,
        Goodbye::Version | Goodbye::Protocol(_) => Code::PROTOCOL,
        Goodbye::Shutdown => Code::DONE,
    }
}

fn log(note: &Note) {
    match note {
        Note::State { node, from, to } => tracing::info!(%node, ?from, ?to, "a node's state changed"),
        Note::HelloRefused { node, why } => tracing::warn!(%node, ?why, "a hello was turned away"),
        Note::BadReport { node, field, why } => tracing::warn!(%node, field, why, "a report was dropped"),
        Note::StaleMessage { node, kind } => tracing::debug!(%node, kind, "a message of another session was ignored"),
        Note::FaultyPlan { node, layer, faults } => tracing::error!(%node, %layer, ?faults, "a faulty plan was not published"),
        Note::PlanRejected { node, layer, why } => tracing::warn!(%node, %layer, why, "a node did not apply a plan"),
        Note::SelfSuspicion { vanished, of } => tracing::warn!(vanished, of, "many nodes vanished at once: slow layers are held"),
        Note::EpochJump { node, incarnation } => {
            tracing::warn!(
                %node, incarnation,
                "a node has seen newer plans than this database: it is an older copy, and revocations, services and tokens since then \
                 are forgotten in it. Plans go on above what was seen; look at `cloud-hub nodes` and revoke again where needed"
            )
        }
        Note::RelayRefused { ingress, target, request, code } => {
            tracing::info!(%ingress, %target, %request, code, "a relay was refused");
        }
    }
}
