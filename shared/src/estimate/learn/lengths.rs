//! How long the answers of a service become, learned from those that ended, by the length of their prompts.
//!
//! An answer that its client's limit cut short says only that it would have been longer: such ones count as cut, in the way of
//! Kaplan and Meier, so that a service whose clients ask for 64 tokens at most is not taken for one that never says more.

use crate::units::{Fraction, Tokens};
use serde::{Deserialize, Serialize};

/// Bands of prompt lengths, by their upper ends; longer ones are the last band. Answers to one line differ from those to a page; finer
/// bands would each see too little.
const BANDS: [u32; 3] = [64, 512, 4_096];
/// Bins of lengths: four to each doubling, up to 64 Ki tokens, so that a length is known within a fifth.
const BINS: usize = 64;
/// An answer counts half after so many others in its band: services change with their clients, within days rather than minutes.
const HALF_LIFE: f64 = 200.0;
/// A band is believed by itself once so many answers count in it; until then all bands together are asked.
const ALONE_FROM: f64 = 12.0;
/// Fewer answers than this tell nothing.
const KNOWN_FROM: f64 = 3.0;
/// Weight of an answer in the reported errors.
const ERROR_WEIGHT: f64 = 0.02;

/// Discounted counts of one band.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Band {
    /// Answers that ended by themselves, by bin; as long as the highest bin seen.
    ended: Vec<f32>,
    /// Answers that were cut short there.
    cut: Vec<f32>,
}

/// What is known of one service's answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    bands: [Band; BANDS.len() + 1],
    report: LengthsReport,
}

/// How well lengths were foretold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LengthsReport {
    /// Answers that ended.
    pub answers: u64,
    /// Of these, foretold ones.
    pub foretold: u64,
    /// Foretold ones that were no longer than the length that half should not exceed.
    pub within_half: u64,
    /// The same for the length that nine in ten should not exceed.
    pub within_most: u64,
    /// Mean pinball loss of the former in tokens, the newest fifty counting: half of how far it was off.
    pub loss_half: f64,
    /// The same for the latter.
    pub loss_most: f64,
}

impl LengthsReport {
    /// Share of the foretold that stayed within the length that half should not exceed.
    #[must_use]
    pub fn share_half(&self) -> Option<Fraction> {
        share(self.within_half, self.foretold)
    }

    /// Share of the foretold that stayed within the length that nine in ten should not exceed.
    #[must_use]
    pub fn share_most(&self) -> Option<Fraction> {
        share(self.within_most, self.foretold)
    }
}

impl Lengths {
    /// The length that this share of the answers to such prompts does not exceed; absent while too little is known, and where that
    /// share was cut short.
    #[must_use]
    pub fn quantile(&self, prompt: Tokens, share: f64) -> Option<Tokens> {
        let own = self.bands.get(band_of(prompt))?;
        if own.mass() >= ALONE_FROM {
            return quantile(std::slice::from_ref(own), share);
        }
        let mass: f64 = self.bands.iter().map(Band::mass).sum();
        if mass < KNOWN_FROM { None } else { quantile(&self.bands, share) }
    }

    /// Takes in an answer of `length` tokens that ended by itself or was cut short there, and what had been foretold of it: the lengths
    /// that half and nine in ten should not exceed.
    pub fn observe(&mut self, prompt: Tokens, length: Tokens, cut: bool, foretold: (Option<Tokens>, Option<Tokens>)) {
        if let Some(band) = self.bands.get_mut(band_of(prompt)) {
            band.add(bin_of(length), cut);
        }
        self.report.answers = self.report.answers.saturating_add(1);
        let (Some(half), Some(most)) = foretold else { return };
        // Of one that was cut below what was foretold, nobody knows whether it would have kept within it.
        if cut && length < most {
            return;
        }
        let report = &mut self.report;
        report.foretold = report.foretold.saturating_add(1);
        report.within_half = report.within_half.saturating_add(u64::from(length <= half));
        report.within_most = report.within_most.saturating_add(u64::from(length <= most));
        report.loss_half += ERROR_WEIGHT * (pinball(length, half, 0.5) - report.loss_half);
        report.loss_most += ERROR_WEIGHT * (pinball(length, most, 0.9) - report.loss_most);
    }

    /// How well it foretells.
    #[must_use]
    pub const fn report(&self) -> &LengthsReport {
        &self.report
    }

    /// Whether it can be reckoned with: one that was read from a disk may not.
    #[must_use]
    pub fn sound(&self) -> bool {
        let good = |count: &f32| count.is_finite() && *count >= 0.0;
        let counts = self
            .bands
            .iter()
            .all(|band| band.ended.len() <= BINS && band.cut.len() <= BINS && band.ended.iter().chain(&band.cut).all(good));
        counts && self.report.loss_half.is_finite() && self.report.loss_most.is_finite()
    }
}

impl Band {
    fn mass(&self) -> f64 {
        self.ended.iter().chain(&self.cut).map(|count| f64::from(*count)).sum()
    }

    #[expect(clippy::cast_possible_truncation, reason = "a discount, not a quantity")]
    fn add(&mut self, bin: usize, cut: bool) {
        let keep = 0.5_f64.powf(1.0 / HALF_LIFE) as f32;
        for count in self.ended.iter_mut().chain(&mut self.cut) {
            *count *= keep;
        }
        let counts = if cut { &mut self.cut } else { &mut self.ended };
        if counts.len() <= bin {
            counts.resize(bin + 1, 0.0);
        }
        if let Some(count) = counts.get_mut(bin) {
            *count += 1.0;
        }
    }
}

/// The length at which the share of answers that go on has fallen so far.
fn quantile(bands: &[Band], share: f64) -> Option<Tokens> {
    let sum = |pick: fn(&Band) -> &Vec<f32>, bin: usize| -> f64 {
        bands.iter().filter_map(|band| pick(band).get(bin)).map(|count| f64::from(*count)).sum()
    };
    let mut at_risk: f64 = bands.iter().map(Band::mass).sum();
    let mut going_on = 1.0;
    for bin in 0..BINS {
        let (ended, cut) = (sum(|band| &band.ended, bin), sum(|band| &band.cut, bin));
        if ended > 0.0 && at_risk > 0.0 {
            let after = going_on * (1.0 - (ended / at_risk).min(1.0));
            // Discounted counts do not sum up exactly.
            if after <= 1.0 - share + 1e-9 {
                let within = if going_on > after { (going_on - (1.0 - share)) / (going_on - after) } else { 1.0 };
                return Some(length_in(bin, within.clamp(0.0, 1.0)));
            }
            going_on = after;
        }
        at_risk -= ended + cut;
    }
    None
}

fn band_of(prompt: Tokens) -> usize {
    BANDS.iter().position(|end| prompt.0 <= *end).unwrap_or(BANDS.len())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 63")]
fn bin_of(length: Tokens) -> usize {
    ((4.0 * f64::from(length.0.max(1)).log2()) as usize).min(BINS - 1)
}

/// The length so far into a bin.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "from 1 to 2^16")]
fn length_in(bin: usize, within: f64) -> Tokens {
    Tokens(((bin as f64 + within) / 4.0).exp2().round().max(1.0) as u32)
}

/// Half of how far off a median was; of another quantile, the side that it should seldom err on costs more.
fn pinball(length: Tokens, foretold: Tokens, share: f64) -> f64 {
    let over = length.as_f64() - foretold.as_f64();
    if over > 0.0 { share * over } else { (share - 1.0) * over }
}

#[expect(clippy::cast_precision_loss, reason = "a share, not a count")]
fn share(part: u64, of: u64) -> Option<Fraction> {
    if of == 0 { None } else { Fraction::new(part as f64 / of as f64).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Tokens = Tokens(40);
    const LONG: Tokens = Tokens(2_000);

    /// Lengths from `least` up, each as likely as the other up to `most`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small positive number")]
    fn feed(lengths: &mut Lengths, prompt: Tokens, least: u32, most: u32, limit: u32, count: u32) {
        for number in 0..count {
            // Steps of a golden ratio fill a range evenly.
            let unit = (f64::from(number) * 0.618_033_988_749_895).fract();
            let wanted = least + (f64::from(most - least) * unit).round() as u32;
            let foretold = (lengths.quantile(prompt, 0.5), lengths.quantile(prompt, 0.9));
            lengths.observe(prompt, Tokens(wanted.min(limit)), wanted > limit, foretold);
        }
    }

    #[track_caller]
    fn about(actual: Option<Tokens>, wanted: u32) {
        let actual = actual.expect("known").as_f64();
        assert!((actual / f64::from(wanted) - 1.0).abs() < 0.2, "{actual} for {wanted}");
    }

    #[test]
    fn quantiles_are_found_and_their_errors_told() {
        let mut lengths = Lengths::default();
        assert_eq!(lengths.quantile(SHORT, 0.5), None, "unknown is not zero");
        feed(&mut lengths, SHORT, 100, 300, u32::MAX, 400);
        about(lengths.quantile(SHORT, 0.5), 200);
        about(lengths.quantile(SHORT, 0.9), 280);
        let report = lengths.report();
        assert!((0.4..0.6).contains(&report.share_half().expect("some").get()), "{report:?}");
        assert!((0.82..0.97).contains(&report.share_most().expect("some").get()), "{report:?}");
        // Uniform over 200 tokens: the best median is off by 50 on average, of which pinball counts half.
        assert!((18.0..35.0).contains(&report.loss_half), "{report:?}");
    }

    #[test]
    fn bands_are_told_apart_and_lend_to_each_other_while_new() {
        let mut lengths = Lengths::default();
        feed(&mut lengths, SHORT, 10, 30, u32::MAX, 100);
        about(lengths.quantile(LONG, 0.5), 20);
        feed(&mut lengths, LONG, 500, 700, u32::MAX, 100);
        about(lengths.quantile(SHORT, 0.5), 20);
        about(lengths.quantile(LONG, 0.5), 600);
    }

    #[test]
    fn what_limits_cut_short_is_not_taken_for_an_end() {
        let mut lengths = Lengths::default();
        // A third ends below 64; the others are cut there.
        feed(&mut lengths, SHORT, 1, 192, 64, 200);
        about(lengths.quantile(SHORT, 0.25), 48);
        assert_eq!(lengths.quantile(SHORT, 0.5), None, "nobody has seen where half of them end");
        // Some clients set no limit: now it shows.
        feed(&mut lengths, SHORT, 1, 192, u32::MAX, 200);
        about(lengths.quantile(SHORT, 0.5), 96);
    }

    #[test]
    fn new_habits_displace_old_ones_and_the_state_survives_writing() {
        let mut lengths = Lengths::default();
        feed(&mut lengths, SHORT, 20, 40, u32::MAX, 500);
        feed(&mut lengths, SHORT, 200, 400, u32::MAX, 500);
        about(lengths.quantile(SHORT, 0.5), 280);
        let text = serde_json::to_string(&lengths).expect("writes");
        let read: Lengths = serde_json::from_str(&text).expect("reads");
        assert_eq!(read.quantile(SHORT, 0.9), lengths.quantile(SHORT, 0.9));
        assert!(read.sound() && text.len() < 4_096, "{} bytes", text.len());
    }
}
