//! How much work a round may do, counted in steps: time would make the same input give another answer on a busier machine.

/// Steps that a round has left. One step is one look at one (node, variant) pair, or as much work as that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    left: u64,
}

impl Budget {
    /// Enough for an edge's targets in a fleet of a thousand nodes with a hundred replicas each: about a tenth of a second.
    /// A round that reaches it returns what it held for the rest, and says so by an empty budget.
    pub const ROUND_STEPS: u64 = 100_000;

    /// A budget of `steps`.
    #[must_use]
    pub const fn new(steps: u64) -> Self {
        Self { left: steps }
    }

    /// Takes `steps` out, or says false and takes out the rest: whoever cannot pay stops, and nobody after it may go on.
    pub const fn spend(&mut self, steps: u64) -> bool {
        let enough = steps <= self.left;
        self.left = if enough { self.left - steps } else { 0 };
        enough
    }

    /// Steps left; zero means that something may have been left out.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(Self::ROUND_STEPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overdrawn_budget_is_empty() {
        let mut budget = Budget::new(5);
        assert!(budget.spend(3));
        assert!(!budget.spend(3), "two are left");
        assert!(!budget.spend(1), "an overdrawn budget does not recover");
        assert_eq!(budget.left(), 0);
    }
}
