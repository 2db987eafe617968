//! Drawing the next token. The draw of output token `i` depends on the seed and `i` alone, so that a stream that is
//! continued elsewhere is the same stream.

use shared::plan::Failure;
use shared::wire::body::Sampling;
use std::collections::BTreeMap;

/// Draws the tokens of one request.
#[derive(Debug)]
pub(super) struct Sampler {
    temperature: f64,
    top_p: f64,
    seed: u64,
    frequency_penalty: f64,
    presence_penalty: f64,
    repetition_penalty: f64,
    /// How often each token was generated; zero for those seen in the prompt only.
    seen: BTreeMap<u32, u32>,
}

impl Sampler {
    /// # Errors
    /// [`Failure::BadRequest`] names the figure that cannot be.
    pub(super) fn new(sampling: &Sampling) -> Result<Self, Failure> {
        let figures = [
            ("temperature", sampling.temperature, 0.0..=100.0),
            ("top_p", sampling.top_p, f64::MIN_POSITIVE..=1.0),
            ("frequency_penalty", sampling.frequency_penalty, -100.0..=100.0),
            ("presence_penalty", sampling.presence_penalty, -100.0..=100.0),
            ("repetition_penalty", sampling.repetition_penalty, 0.01..=100.0),
        ];
        if let Some((name, _, range)) = figures.iter().find(|(_, value, range)| !range.contains(value)) {
            let message = format!("want a number from {} to {}", range.start().ceil(), range.end());
            return Err(Failure::BadRequest { param: Some((*name).to_owned()), message });
        }
        Ok(Self {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            seed: sampling.seed,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            repetition_penalty: sampling.repetition_penalty,
            seen: BTreeMap::new(),
        })
    }

    /// Takes note of the prompt.
    pub(super) fn prompted(&mut self, ids: &[u32]) {
        if self.penalises() {
            ids.iter().for_each(|id| _ = self.seen.entry(*id).or_default());
        }
    }

    /// Takes note of a generated token.
    pub(super) fn generated(&mut self, id: u32) {
        if self.penalises() {
            *self.seen.entry(id).or_default() += 1;
        }
    }

    /// Whether what is drawn depends on the prompt's tokens.
    pub(super) fn needs_prompt(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    fn penalises(&self) -> bool {
        self.frequency_penalty != 0.0 || self.presence_penalty != 0.0 || self.repetition_penalty != 1.0
    }

    /// Output token number `index`. Nothing when no logit is a number.
    pub(super) fn draw(&self, logits: &mut [f32], index: u64) -> Option<u32> {
        self.penalise(logits);
        let best = likeliest(logits)?;
        if self.temperature == 0.0 {
            return Some(best.0);
        }
        let weights = self.weights(logits, f64::from(best.1));
        let kept = self.nucleus(&weights);
        let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
        let mut left = uniform(self.seed, index) * total;
        for (id, weight) in &kept {
            left -= weight;
            if left < 0.0 {
                return Some(*id);
            }
        }
        Some(kept.last().map_or(best.0, |(id, _)| *id))
    }

    fn penalise(&self, logits: &mut [f32]) {
        for (id, times) in &self.seen {
            let Some(logit) = logits.get_mut(*id as usize) else { continue };
            let mut value = f64::from(*logit);
            value = if value > 0.0 { value / self.repetition_penalty } else { value * self.repetition_penalty };
            if *times > 0 {
                value -= self.presence_penalty + self.frequency_penalty * f64::from(*times);
            }
            *logit = value as f32;
        }
    }

    /// Relative weights by id; the likeliest has 1.
    fn weights(&self, logits: &[f32], best: f64) -> Vec<(u32, f64)> {
        let weight = |logit: f32| ((f64::from(logit) - best) / self.temperature).exp();
        logits.iter().zip(0..).map(|(logit, id)| (id, weight(*logit))).filter(|(_, weight)| *weight > 0.0).collect()
    }

    /// The likeliest tokens that together have `top_p` of the mass, likeliest first, equals by id.
    fn nucleus(&self, weights: &[(u32, f64)]) -> Vec<(u32, f64)> {
        if self.top_p >= 1.0 {
            return weights.to_vec();
        }
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        // All tokens below this bound together have less than 1 - top_p: none of them can be needed, and sorting is short.
        let bound = (1.0 - self.top_p) * total / weights.len() as f64;
        let mut kept: Vec<(u32, f64)> = weights.iter().copied().filter(|(_, weight)| *weight >= bound).collect();
        kept.sort_by(|(a_id, a), (b_id, b)| b.total_cmp(a).then(a_id.cmp(b_id)));
        let mut mass = 0.0;
        let needed = kept.iter().take_while(|(_, weight)| {
            let wanted = mass < self.top_p * total;
            mass += weight;
            wanted
        });
        let needed = needed.count().max(1);
        kept.truncate(needed);
        kept
    }
}

/// The token with the largest logit, the first of equals.
fn likeliest(logits: &[f32]) -> Option<(u32, f32)> {
    let numbers = logits.iter().copied().zip(0_u32..).filter(|(logit, _)| logit.is_finite());
    numbers.fold(None, |best: Option<(u32, f32)>, (logit, id)| match best {
        Some((_, largest)) if logit <= largest => best,
        _ => Some((id, logit)),
    })
}

/// A number from 0 up to, but not including, 1 for output token `index`: splitmix64 over a counter.
fn uniform(seed: u64, index: u64) -> f64 {
    let mut z = mix(seed).wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = mix(z);
    (z >> 11) as f64 / (1_u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(change: impl FnOnce(&mut Sampling)) -> Sampler {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        Sampler::new(&sampling).expect("good")
    }

    #[test]
    fn draws_follow_the_distribution() {
        let sampler = sampler(|s| s.seed = 7);
        let mut counts = [0_u32; 3];
        for index in 0..20_000 {
            let id = sampler.draw(&mut [0.0, f32::ln(2.0), f32::ln(5.0)], index).expect("numbers");
            counts[id as usize] += 1;
        }
        for (count, expected) in counts.iter().zip([2_500.0, 5_000.0, 12_500.0]) {
            assert!((f64::from(*count) - expected).abs() < 300.0, "{counts:?}");
        }
    }

    #[test]
    fn top_p_keeps_the_nucleus_only() {
        let sampler = sampler(|s| s.top_p = 0.7);
        for index in 0..1_000 {
            let id = sampler.draw(&mut [0.0, f32::ln(2.0), f32::ln(5.0)], index).expect("numbers");
            assert!(id != 0, "0 and 1 have 7/8 of the mass: 0 is outside");
        }
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_survives_nan() {
        let greedy = sampler(|s| s.temperature = 0.0);
        assert_eq!(greedy.draw(&mut [f32::NAN, 1.0, 3.0, 3.0], 0), Some(2));
        assert_eq!(greedy.draw(&mut [f32::NAN, f32::NEG_INFINITY], 0), None);
    }

    #[test]
    fn penalties_push_down_what_was_said() {
        let mut greedy = sampler(|s| (s.temperature, s.frequency_penalty) = (0.0, 0.6));
        let draw = |greedy: &Sampler| greedy.draw(&mut [2.0, 1.0], 0);
        assert_eq!(draw(&greedy), Some(0));
        greedy.generated(0);
        assert_eq!(draw(&greedy), Some(0));
        greedy.generated(0);
        assert_eq!(draw(&greedy), Some(1));

        let mut greedy = sampler(|s| (s.temperature, s.repetition_penalty) = (0.0, 3.0));
        greedy.prompted(&[0]);
        assert_eq!(greedy.draw(&mut [2.0, 1.0], 0), Some(1), "the prompt counts for the repetition penalty");
    }

    #[test]
    fn absurd_figures_are_refused_by_name() {
        let bad = Sampling { top_p: f64::NAN, ..Sampling::default() };
        assert!(matches!(Sampler::new(&bad), Err(Failure::BadRequest { param: Some(name), .. }) if name == "top_p"));
    }
}
