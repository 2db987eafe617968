//! The dispatch policy that runs at an ingress.

use super::{Action, DispatchEvent, DispatchPolicy, Scene, TABLE};
use crate::plan::DispatchSetting;
use crate::policy::holder::{Answers, Holder, Kind};
use crate::policy::{BadPolicy, Row};

/// The dispatch layer.
#[derive(Debug)]
pub struct Dispatching;

impl Kind for Dispatching {
    const LAYER: &'static str = "dispatch";
    type Call<'a> = (&'a Scene<'a>, &'a DispatchEvent<'a>, &'a mut Vec<Action>);
    type Answer = ();
    fn table() -> &'static [Row<Self>] {
        TABLE
    }
}

impl<P: DispatchPolicy> Answers<Dispatching> for P {
    fn answer(config: &P::Config, state: &mut P::State, (scene, event, actions): <Dispatching as Kind>::Call<'_>) {
        P::on_event(config, state, scene, event, actions);
    }
}

/// A running dispatch policy with its configuration and state.
pub type Dispatcher = Holder<Dispatching>;

impl Holder<Dispatching> {
    /// The policy that a setting names, in its initial state.
    ///
    /// # Errors
    /// [`BadPolicy`] lists the known names, or says what is wrong with the configuration.
    pub fn new(setting: &DispatchSetting) -> Result<Self, BadPolicy> {
        Self::named(&setting.policy, setting.config.clone())
    }

    /// Takes in one event and says what shall be done.
    pub fn on_event(&mut self, scene: &Scene<'_>, event: &DispatchEvent<'_>, actions: &mut Vec<Action>) {
        self.ask((scene, event, actions));
    }
}
