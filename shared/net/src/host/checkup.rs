//! What a `doctor` found: for each check what was seen, whether that is good, and what to do.

use serde::Serialize;
use std::fmt;

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and will not for long, or not for everybody.
    Warn,
    /// It does not work.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which.
    pub check: &'static str,
    /// How good it is.
    pub verdict: Verdict,
    /// What was seen.
    pub seen: String,
    /// What to do, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: &'static str, seen: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, seen: seen.into(), remedy: None }
    }

    /// It works, and will not for long, or not for everybody.
    pub fn warn(check: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warn, seen: seen.into(), remedy: Some(remedy.into()) }
    }

    /// It does not work.
    pub fn fail(check: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Fail, seen: seen.into(), remedy: Some(remedy.into()) }
    }
}

/// All checks, in the order in which they were made. Shown, each is a line, with the remedy below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checkup {
    /// The findings.
    pub checks: Vec<Finding>,
}

impl Checkup {
    /// Adds what was found.
    pub fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.checks.extend(findings);
    }

    /// How many checks failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.count(Verdict::Fail)
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|finding| finding.verdict == verdict).count()
    }
}

impl fmt::Display for Checkup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = self.checks.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
        for Finding { check, verdict, seen, remedy } in &self.checks {
            writeln!(f, "{verdict:<4}  {check:<wide$}  {seen}")?;
            if let Some(remedy) = remedy {
                writeln!(f, "      {:<wide$}  → {remedy}", "")?;
            }
        }
        write!(f, "{} checks: {} failed, {} warnings", self.checks.len(), self.failed(), self.count(Verdict::Warn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkup_shows_each_remedy_below_its_line() {
        let mut checkup = Checkup::default();
        checkup.add([Finding::ok("disk", "much"), Finding::fail("clock", "1970", "set it"), Finding::warn("hub", "far", "walk")]);
        let text = checkup.to_string();
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "ok    disk   much",
                "fail  clock  1970",
                "             → set it",
                "warn  hub    far",
                "             → walk",
                "3 checks: 1 failed, 1 warnings"
            ]
        );
        assert_eq!(checkup.failed(), 1);
    }
}
