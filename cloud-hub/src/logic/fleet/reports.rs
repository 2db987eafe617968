//! What nodes tell: pongs with loads on their connection, and messages on MQTT. Each is judged before anything of it is
//! believed: an older session's is ignored, a broken one is dropped whole and counted.

use super::member::shortened;
use super::{Fleet, Link, Member};
use crate::logic::{Connection, HubEffect, Note};
use shared::fleet::{Aged, FleetDelta, Inventory, Load, PathReport, ReplicaReport, ReplicaState, ReportFault, Telemetry};
use shared::ids::{NodeId, VariantId};
use shared::units::{Micros, Moment};
use shared::wire::frame::Pulse;
use shared::wire::mqtt::{Session, Status};
use shared::work::LayerRange;
use std::collections::BTreeMap;

/// Labels and addresses in one inventory; more are a mistake of a script.
const ENTRIES_MAX: usize = 64;
/// Characters of one label, its value, or an address.
const TEXT_MAX: usize = 256;

impl Fleet {
    /// The agent answered a ping.
    pub(in crate::logic) fn pong(&mut self, now: Moment, connection: Connection, pulse: &Pulse, effects: &mut Vec<HubEffect>) {
        let Some((node, link)) = self.link_of(connection) else { return };
        link.ponged(now, pulse.number);
        if let Some(member) = self.members.get_mut(&node) {
            member.heard = Some(now);
            if let Some(live) = &mut member.session {
                live.goodbye = false;
            }
        }
        self.answered(now, &node, pulse.number, effects);
        self.path_changed(now, node.clone());
        self.take_loads(now, &node, &pulse.loads, effects);
        self.refresh(now, &node, effects);
    }

    /// The agent pinged: a sign of life too, but no proof that the hub's own pings arrive.
    pub(in crate::logic) fn pinged(&mut self, now: Moment, connection: Connection, pulse: &Pulse, effects: &mut Vec<HubEffect>) {
        let Some((node, _)) = self.link_of(connection) else { return };
        effects.push(HubEffect::Pong { connection, number: pulse.number });
        if let Some(member) = self.members.get_mut(&node) {
            member.heard = Some(now);
        }
        self.take_loads(now, &node, &pulse.loads, effects);
        self.refresh(now, &node, effects);
    }

    /// The transport measured a connection's path.
    pub(in crate::logic) fn path_measured(&mut self, now: Moment, connection: Connection, path: PathReport) {
        if let Some((node, link)) = self.link_of(connection) {
            link.measured = Some(path);
            self.path_changed(now, node);
        }
    }

    /// Makes what is known of a connection's path known, once the path has proved that it carries data.
    fn path_changed(&mut self, now: Moment, node: NodeId) {
        let link = self.members.get(&node).and_then(Member::link).filter(|link| link.heard.is_some());
        if let Some(path) = link.map(Link::path) {
            self.apply(now, FleetDelta::Path { node, path });
        }
    }

    /// Whether a message on MQTT belongs to the node's present session; if so it renews the lease. Before the first hello in
    /// this life of the hub there is no session to compare with, and messages are believed.
    pub(in crate::logic) fn is_current(
        &mut self,
        now: Moment,
        node: &NodeId,
        session: Session,
        kind: &str,
        effects: &mut Vec<HubEffect>,
    ) -> bool {
        let Some(member) = self.members.get_mut(node).filter(|member| !member.is_revoked()) else {
            effects.push(HubEffect::Note(Note::StaleMessage { node: node.clone(), kind: kind.to_owned() }));
            return false;
        };
        let Some(live) = &mut member.session else { return true };
        // A contender has no session yet; its instance, heard of on MQTT, is no second sign: only the challenge decides.
        if session.epoch < live.epoch || session.instance != live.instance {
            effects.push(HubEffect::Note(Note::StaleMessage { node: node.clone(), kind: kind.to_owned() }));
            return false;
        }
        live.mqtt_since.get_or_insert(now);
        true
    }

    /// A message that shows that the node lives renews its lease.
    pub(in crate::logic) fn heard_on_mqtt(&mut self, now: Moment, node: &NodeId, effects: &mut Vec<HubEffect>) {
        if let Some(member) = self.members.get_mut(node) {
            member.heard = Some(now);
            if let Some(live) = member.session.as_mut().filter(|live| live.link.is_none()) {
                live.mqtt_after_loss = true;
                live.goodbye = false;
            }
        }
        self.refresh(now, node, effects);
    }

    /// Birth, last will or goodbye.
    pub(in crate::logic) fn status(&mut self, now: Moment, node: &NodeId, status: &Status, effects: &mut Vec<HubEffect>) {
        let Some(member) = self.members.get_mut(node) else { return };
        match &mut member.session {
            Some(live) if status.online => {
                live.mqtt_since = Some(now);
                return self.heard_on_mqtt(now, node, effects);
            }
            // Without a connection it is gone. With one, a question decides: the kernel closes the TCP of a dead process at once,
            // while its QUIC only falls silent.
            Some(live) => {
                live.goodbye = true;
                self.question(now, node, effects);
            }
            // Before the first hello a birth may be a retained one of days ago: no sign of life.
            None if status.online => {}
            None => member.heard = None,
        }
        self.refresh(now, node, effects);
    }

    /// What a node is.
    pub(in crate::logic) fn inventory(&mut self, now: Moment, node: &NodeId, inventory: Inventory, effects: &mut Vec<HubEffect>) {
        if let Err((field, why)) = sound_inventory(node, &inventory) {
            return self.fault(node, field, why, effects);
        }
        if let Err(fault) = inventory.machine.hardware.validate() {
            return self.report_fault(node, &fault, effects);
        }
        let before = self.members.get(node).and_then(|member| member.inventory.as_ref());
        self.generation += u64::from(before != Some(&inventory));
        self.apply(
            now,
            FleetDelta::Node {
                node: node.clone(),
                tier: inventory.tier,
                costs: inventory.costs.clone(),
                addresses: inventory.addresses.clone(),
            },
        );
        self.apply(now, FleetDelta::Machine { node: node.clone(), machine: inventory.machine.clone() });
        let Some(member) = self.members.get_mut(node) else { return };
        (member.inventory, member.inventory_at) = (Some(inventory), now);
        // Before the first hello it may be a retained one of days ago: no sign of life.
        if member.session.is_some() {
            self.heard_on_mqtt(now, node, effects);
        }
    }

    /// How a node is.
    pub(in crate::logic) fn telemetry(&mut self, now: Moment, node: &NodeId, telemetry: Telemetry, effects: &mut Vec<HubEffect>) {
        if telemetry.node != *node {
            return self.fault(node, "node", "another node's name: want the topic's", effects);
        }
        if let Err(fault) = telemetry.validate() {
            return self.report_fault(node, &fault, effects);
        }
        let told = telemetry.merged_into(&self.last_told(node));
        if let Err(fault) = told.validate() {
            return self.report_fault(node, &fault, effects);
        }
        let Telemetry { replicas, peers, .. } = told.clone();
        let telemetry = Telemetry { replicas: Vec::new(), peers: BTreeMap::new(), ..told };
        if let Some(member) = self.members.get_mut(node) {
            member.told = Some(Aged { value: telemetry.clone(), at: now });
        }
        self.take_replicas(now, node, replicas, Micros::ZERO);
        self.apply(now, FleetDelta::Peers { node: node.clone(), peers });
        // It freshens no path: only pongs prove that one carries data.
        if let Some(link) = self.members.get_mut(node).and_then(Member::link_mut) {
            link.told = telemetry.uplink;
        }
        self.heard_on_mqtt(now, node, effects);
    }

    /// What a delta is told upon. Replicas are those of the view, whose loads may be newer than the last report.
    fn last_told(&self, node: &NodeId) -> Telemetry {
        let told = self.members.get(node).and_then(|member| member.told.as_ref());
        let told = told.map_or_else(|| Telemetry::of(node.clone()), |told| told.value.clone());
        let Some(entry) = self.view.node(node) else { return told };
        let replicas = entry.replicas.values().map(|held| held.value.clone()).collect();
        Telemetry { replicas, peers: entry.peers.clone(), ..told }
    }

    /// Drops a report.
    pub(in crate::logic) fn fault(&mut self, node: &NodeId, field: &str, why: &str, effects: &mut Vec<HubEffect>) {
        let why = match self.members.get_mut(node) {
            Some(member) => member.faults.add(field, why),
            None => shortened(field, why),
        };
        effects.push(HubEffect::Note(Note::BadReport { node: node.clone(), field: field.to_owned(), why }));
    }

    pub(super) fn report_fault(&mut self, node: &NodeId, fault: &ReportFault, effects: &mut Vec<HubEffect>) {
        match fault {
            ReportFault::Value { field, why } => self.fault(node, field, why, effects),
            ReportFault::TooMany { field, .. } => self.fault(node, field, &fault.to_string(), effects),
        }
    }

    pub(super) fn take_replicas(&mut self, now: Moment, node: &NodeId, replicas: Vec<ReplicaReport>, age: Micros) {
        let before = self.make_up(node);
        self.apply(now, FleetDelta::Replicas { node: node.clone(), replicas, age });
        self.generation += u64::from(before != self.make_up(node));
    }

    /// What of a node's replicas plans depend on: not their loads.
    fn make_up(&self, node: &NodeId) -> Vec<(VariantId, ReplicaState, u32, bool, Option<LayerRange>)> {
        let replicas = self.view.node(node).into_iter().flat_map(|entry| entry.replicas.values());
        let parts = replicas.map(|replica| {
            let report = &replica.value;
            let layers = report.layers.map(|held| held.range);
            (report.variant.clone(), report.state.clone(), report.load.slots, report.profile.is_some(), layers)
        });
        parts.collect()
    }

    fn take_loads(&mut self, now: Moment, node: &NodeId, loads: &BTreeMap<String, Load>, effects: &mut Vec<HubEffect>) {
        if loads.len() > Telemetry::REPLICAS_MAX {
            return self.fault(node, "loads", "more replicas than a node may have", effects);
        }
        for (name, load) in loads {
            let broken = [load.slots, load.active, load.queued].into_iter().any(|count| count > ReplicaReport::COUNT_MAX);
            match VariantId::new(name) {
                Ok(variant) if !broken => {
                    self.apply(now, FleetDelta::Load { node: node.clone(), variant, load: *load });
                }
                _ => self.fault(node, "loads", "want variant names with at most 100000 slots, active and queued", effects),
            }
        }
    }
}

fn sound_inventory(node: &NodeId, inventory: &Inventory) -> Result<(), (&'static str, &'static str)> {
    let long = |text: &String| text.chars().nth(TEXT_MAX).is_some();
    if inventory.node != *node {
        return Err(("node", "another node's name: want the topic's"));
    }
    if inventory.labels.len() > ENTRIES_MAX || inventory.labels.iter().any(|(name, value)| long(name) || long(value)) {
        return Err(("labels", "want at most 64 of at most 256 characters"));
    }
    if inventory.addresses.len() > ENTRIES_MAX || inventory.addresses.iter().any(long) {
        return Err(("addresses", "want at most 64 of at most 256 characters"));
    }
    if long(&inventory.version) || [&inventory.machine.cpu, &inventory.machine.os].into_iter().flatten().any(long) {
        return Err(("machine", "want texts of at most 256 characters"));
    }
    let crowded = "want at most 16 accelerators, 32 dropped, 8 hints, and texts of at most 400 characters";
    inventory.survey.validate().map_err(|_| ("survey", crowded))
}
