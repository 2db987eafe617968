//! API keys of the fleet: which there are, and that everybody learns of each change. Secrets never come here, only their hashes.

use super::{AdminReply, Change, Hub, HubEffect};
use serde::{Deserialize, Serialize};
use shared::ids::KeyName;
use shared::units::Moment;
use shared::work::ClientKey;
use std::collections::BTreeMap;

/// The fleet's keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Keys(BTreeMap<KeyName, ClientKey>);

impl Keys {
    pub(super) fn new(keys: Vec<ClientKey>) -> Self {
        Self(keys.into_iter().map(|key| (key.name.clone(), key)).collect())
    }

    /// All of them, in the order of their names.
    pub(super) fn list(&self) -> Vec<ClientKey> {
        self.0.values().cloned().collect()
    }
}

impl Hub {
    pub(super) fn add_key(&mut self, now: Moment, key: ClientKey, effects: &mut Vec<HubEffect>) -> AdminReply {
        if let Err(why) = key.validate() {
            return AdminReply::Refused(why);
        }
        if self.keys.0.contains_key(&key.name) {
            return AdminReply::Refused(format!(
                "there is a key `{0}` already: revoke it first, or choose another name",
                key.name
            ));
        }
        if self.keys.0.len() >= ClientKey::KEYS_MAX {
            return AdminReply::Refused(format!("there are {} keys, as many as there may be: revoke some", ClientKey::KEYS_MAX));
        }
        effects.push(HubEffect::Persist(Change::Key(key.clone())));
        self.keys.0.insert(key.name.clone(), key);
        self.keys_changed(now, effects);
        AdminReply::Done
    }

    pub(super) fn revoke_key(&mut self, now: Moment, name: &KeyName, effects: &mut Vec<HubEffect>) -> AdminReply {
        if self.keys.0.remove(name).is_none() {
            return AdminReply::NotFound(format!("no key is called `{name}`"));
        }
        effects.push(HubEffect::Persist(Change::KeyRevoked(name.clone())));
        self.keys_changed(now, effects);
        AdminReply::Done
    }

    /// The hub's own API at once, the agents with their next views.
    fn keys_changed(&mut self, now: Moment, effects: &mut Vec<HubEffect>) {
        effects.push(HubEffect::Keys(self.keys.list()));
        self.catalogue_changed = now;
        self.views.all_urgent(&self.fleet);
    }
}
