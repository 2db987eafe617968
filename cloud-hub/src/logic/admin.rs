//! What operators ask for, and the snapshots that they see.

use super::fleet::Member;
use super::rows::ReplicaRow;
use super::{AdminOperation, AdminReply, Change, Hub, HubEffect, NodeRow, PlanRow, TotalRow};
use shared::fleet::{Aged, Inventory, ReplicaReport};
use shared::ids::{NodeId, ServiceId};
use shared::plan::DispatchSetting;
use shared::policy::dispatch::Dispatcher;
use shared::units::{Micros, Moment};
use shared::work::{Capability, Service};
use std::collections::BTreeMap;

impl Hub {
    /// All nodes, in the order of their ids.
    #[must_use]
    pub fn nodes(&self, now: Moment) -> Vec<NodeRow> {
        self.fleet.members().map(|(node, _)| node.clone()).filter_map(|node| self.node(now, &node)).collect()
    }

    /// One node.
    #[must_use]
    pub fn node(&self, now: Moment, node: &NodeId) -> Option<NodeRow> {
        let member = self.fleet.member(node)?;
        let entry = self.fleet.view().node(node);
        let mut labels = member.inventory.as_ref().map(|inventory| inventory.labels.clone()).unwrap_or_default();
        labels.extend(member.labels.clone());
        Some(NodeRow {
            node: node.clone(),
            tier: member.inventory.as_ref().map(|inventory| inventory.tier),
            state: member.shown,
            draining: member.drained,
            revoked: member.is_revoked(),
            labels,
            inventory: member.inventory.clone().map(|inventory| aged(inventory, now.since(member.inventory_at))),
            session: member.session.as_ref().map(|live| live.epoch),
            instance: member.session.as_ref().map(|live| live.instance),
            heard_ago: member.heard.map(|heard| now.since(heard)),
            report_age: entry.and_then(|entry| entry.reported).map(|reported| now.since(reported)),
            telemetry: member.told.as_ref().map(|told| told.value.clone()),
            rtt: member.link().and_then(|link| link.rtt()),
            transport: member.link().and_then(|link| link.transport()),
            replicas: entry.into_iter().flat_map(|entry| entry.replicas.values()).map(|held| replica_row(now, held)).collect(),
            plans: self.rounds.rows_of(now, node),
            faults: member.faults.by_field.clone(),
            last_fault: member.faults.last.clone(),
            relays_open: self.relays.open_at(node),
        })
    }

    /// All services, in the order of their ids.
    #[must_use]
    pub fn services(&self) -> Vec<Service> {
        self.catalogue.iter().cloned().collect()
    }

    /// The plans in force, by node and layer.
    #[must_use]
    pub fn plans(&self, now: Moment) -> Vec<PlanRow> {
        self.rounds.rows(now)
    }

    /// What was done so far in this life of the hub, by service, node and outcome.
    #[must_use]
    pub fn totals(&self) -> &[TotalRow] {
        self.ledger.rows()
    }

    /// Counters by name.
    #[must_use]
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters = self.counters.all();
        counters.insert("rounds_held".to_owned(), self.rounds.held());
        counters.insert("records_beyond_rows".to_owned(), self.ledger.beyond());
        counters
    }

    pub(super) fn operate(&mut self, now: Moment, operation: AdminOperation, effects: &mut Vec<HubEffect>) -> AdminReply {
        match operation {
            AdminOperation::Services => AdminReply::Services(self.services()),
            AdminOperation::PutService(service) => self.put_service(now, service, effects),
            AdminOperation::RemoveService(id) => self.remove_service(now, &id, effects),
            AdminOperation::Keys => AdminReply::Keys(self.keys.list()),
            AdminOperation::AddKey(key) => self.add_key(now, key, effects),
            AdminOperation::RevokeKey(name) => self.revoke_key(now, &name, effects),
            AdminOperation::Nodes => AdminReply::Nodes(self.nodes(now)),
            AdminOperation::Revoke(node) => self.revoke(now, &node, effects),
            AdminOperation::Drain { node, drain } => self.drain(now, &node, drain, effects),
            AdminOperation::Plans => AdminReply::Plans(self.plans(now)),
            AdminOperation::SetDispatch(setting) => self.set_dispatch(setting, effects),
            AdminOperation::Totals => AdminReply::Totals(self.totals().to_vec()),
            AdminOperation::Counters => AdminReply::Counters(self.counters()),
            AdminOperation::Ready => AdminReply::Count(self.ingress.core().replicas_ready()),
            AdminOperation::Capable(service, name) => {
                let capability = Capability::parse(&name);
                let have = capability.map(|capability| self.ingress.core().variants_with(&service, capability));
                AdminReply::Variants(have.unwrap_or_default())
            }
        }
    }

    fn put_service(&mut self, now: Moment, service: Service, effects: &mut Vec<HubEffect>) -> AdminReply {
        if let Err(contradiction) = self.catalogue.insert(service.clone()) {
            return AdminReply::Refused(contradiction.to_string());
        }
        effects.push(HubEffect::Persist(Change::Service(service)));
        self.catalogue_changed(now, effects);
        AdminReply::Done
    }

    fn remove_service(&mut self, now: Moment, id: &ServiceId, effects: &mut Vec<HubEffect>) -> AdminReply {
        if self.catalogue.remove(id).is_none() {
            return AdminReply::NotFound(format!("no service is called `{id}`"));
        }
        effects.push(HubEffect::Persist(Change::ServiceRemoved(id.clone())));
        self.catalogue_changed(now, effects);
        AdminReply::Done
    }

    fn revoke(&mut self, now: Moment, node: &NodeId, effects: &mut Vec<HubEffect>) -> AdminReply {
        let known = self.fleet.revoke(now, node, effects);
        if known {
            self.rounds.forget(node, effects);
            // Direct connections between agents end by their views.
            self.views.all_urgent(&self.fleet);
        }
        found(known, node)
    }

    fn drain(&mut self, now: Moment, node: &NodeId, drain: bool, effects: &mut Vec<HubEffect>) -> AdminReply {
        if self.fleet.member(node).is_some_and(Member::is_revoked) {
            return AdminReply::Refused(revoked(node));
        }
        found(self.fleet.drain(now, node, drain, effects), node)
    }

    fn set_dispatch(&mut self, setting: DispatchSetting, effects: &mut Vec<HubEffect>) -> AdminReply {
        if let Err(bad) = Dispatcher::new(&setting) {
            return AdminReply::Refused(bad.to_string());
        }
        effects.push(HubEffect::Persist(Change::Dispatch(setting.clone())));
        self.rounds.set_dispatch(setting);
        AdminReply::Done
    }
}

/// What a node said of itself so long ago.
fn aged(inventory: Inventory, passed: Micros) -> Inventory {
    Inventory { survey: inventory.survey.aged(passed), ..inventory }
}

/// Why a node that was thrown out cannot be drained, and what would be right.
pub(crate) fn revoked(node: &NodeId) -> String {
    format!(
        "`{node}` was revoked, so it gets no work anyway: let it join again with a token from `cloud-hub token`, then drain it"
    )
}

fn found(known: bool, node: &NodeId) -> AdminReply {
    if known { AdminReply::Done } else { AdminReply::NotFound(format!("no node is called `{node}`")) }
}

fn replica_row(now: Moment, held: &Aged<ReplicaReport>) -> ReplicaRow {
    let (report, profile) = (&held.value, held.value.profile.as_ref());
    ReplicaRow {
        variant: report.variant.clone(),
        state: report.state.clone(),
        load: report.load,
        layers: report.layers.map(|held| held.range),
        prompt_rate: profile.map(|profile| profile.prompt.get()),
        decode_rate: profile.map(|profile| profile.decode.get()),
        age: held.age(now),
    }
}
