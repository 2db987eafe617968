//! What is kept of looks between lives of the agent, and how many may fail before it is left alone. No clock is in here.

use serde::{Deserialize, Serialize};
use shared::fleet::{ProbeState, Survey};

/// Looks that may fail one after another: twice is bad luck, three times is a driver that is broken for this machine, and each try may
/// cost seconds of a hanging device.
const FAILURES_MAX: u32 = 3;

/// How many looks failed since one ended well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CrashBudget {
    /// In a row, with this hardware. One that is begun counts until it has ended well: it may take the whole machine with it.
    failures: u32,
    /// Which hardware.
    hardware: u64,
}

impl CrashBudget {
    /// Whether a look may be begun. Other hardware begins anew.
    #[must_use]
    pub fn allows(&self, hardware: u64) -> bool {
        self.hardware != hardware || self.failures < FAILURES_MAX
    }

    /// A look begins.
    pub fn begin(&mut self, hardware: u64) {
        let failures = if self.hardware == hardware { self.failures } else { 0 };
        *self = Self { failures: failures.saturating_add(1), hardware };
    }

    /// It ended well.
    pub fn succeed(&mut self) {
        self.failures = 0;
    }

    /// It was called off, by nobody's fault.
    pub fn called_off(&mut self) {
        self.failures = self.failures.saturating_sub(1);
    }

    /// An operator wants it tried again.
    pub fn forgive(&mut self) {
        self.failures = 0;
    }

    /// What is added to the reason of a failure when there will be no further try.
    #[must_use]
    pub fn verdict(&self) -> String {
        if self.failures < FAILURES_MAX {
            return format!("failure {} of {FAILURES_MAX}", self.failures);
        }
        format!("failed {} times; not tried again until the hardware changes or: edge-node probe --renew", self.failures)
    }
}

/// What the state folder keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// The last survey; its facts are as old as it.
    pub survey: Survey,
    /// When it was made, in seconds since the Unix epoch.
    pub at: u64,
    /// The agent that made it.
    pub version: String,
    /// The hardware that it is of.
    pub hardware: u64,
    /// How many looks failed.
    pub budget: CrashBudget,
}

impl Kept {
    /// The survey after a look that failed: what was known stays, and says that it could not be renewed.
    #[must_use]
    pub fn failed(&self, why: String) -> Survey {
        Survey { state: ProbeState::Failed(why), ..self.survey.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_are_enough_until_something_changes() {
        let mut budget = CrashBudget::default();
        for _ in 0..FAILURES_MAX {
            assert!(budget.allows(7));
            budget.begin(7);
        }
        assert!(!budget.allows(7) && budget.verdict().contains("--renew"));
        assert!(budget.allows(8), "another card");
        budget.begin(8);
        assert!(budget.allows(8) && budget.verdict().contains("1 of 3"));
        let mut tired = CrashBudget { failures: FAILURES_MAX, hardware: 7 };
        tired.forgive();
        assert!(tired.allows(7), "an operator asked");
    }

    #[test]
    fn a_machine_that_dies_in_a_look_has_failed_it() {
        let mut budget = CrashBudget::default();
        for _ in 0..FAILURES_MAX {
            budget.begin(7);
            let written = serde_json::to_string(&budget).expect("JSON");
            budget = serde_json::from_str(&written).expect("after the restart");
        }
        assert!(!budget.allows(7));
        let mut good = CrashBudget { failures: 2, hardware: 7 };
        good.begin(7);
        good.succeed();
        assert_eq!(good, CrashBudget { failures: 0, hardware: 7 });
    }
}
