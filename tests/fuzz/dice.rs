//! Chance with a printed seed, damage, and the budget.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::{Value, json};
use std::panic::{self, PanicHookInfo};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a target runs when nobody says otherwise.
const SECONDS: u64 = 2;

static PANICS: AtomicUsize = AtomicUsize::new(0);
static HOOK: Once = Once::new();

/// One run of a target: chance and time. Dropping it checks that no thread panicked meanwhile.
pub(crate) struct Run {
    chance: ChaCha8Rng,
    until: Instant,
    panics: usize,
    pub(crate) rounds: usize,
}

/// How long each target runs.
fn budget() -> Duration {
    let given = std::env::var("TIDEGATE_FUZZ_SECONDS").ok();
    Duration::from_secs(given.map_or(SECONDS, |text| text.parse().expect("TIDEGATE_FUZZ_SECONDS is a number")))
}

impl Run {
    pub(crate) fn new(target: &str) -> Self {
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
                PANICS.fetch_add(1, Ordering::SeqCst);
                before(info);
            }));
        });
        let given = std::env::var("TIDEGATE_SEED").ok().map(|text| text.parse().expect("TIDEGATE_SEED is a number"));
        let drawn =
            || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() << 20 | u64::from(now.subsec_micros()));
        let seed = given.unwrap_or_else(drawn);
        println!("{target}: TIDEGATE_SEED={seed}");
        let panics = PANICS.load(Ordering::SeqCst);
        Self { chance: ChaCha8Rng::seed_from_u64(seed), until: Instant::now() + budget(), panics, rounds: 0 }
    }

    /// Whether there is time for another round. The first always is.
    pub(crate) fn again(&mut self) -> bool {
        let go_on = self.rounds == 0 || Instant::now() < self.until;
        self.rounds += usize::from(go_on);
        go_on
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.chance.next_u64() % u64::try_from(n.max(1)).expect("fits")).expect("below n")
    }

    pub(crate) fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    /// Damages up to five places before `end`.
    pub(crate) fn damage(&mut self, bytes: &mut Vec<u8>, end: usize) {
        for _ in 0..=self.below(4) {
            let place = self.below(end.min(bytes.len()));
            match self.below(7) {
                0 => bytes[place] ^= 1 << self.below(8),
                1 => bytes[place] = self.chance.next_u32().to_le_bytes()[0],
                2 => bytes.truncate(place.max(1)),
                3 => bytes.insert(place, *self.one_of(&[&0_u8, &0xff, &b'\r', &b'\n', &b'{', &b'"', &0x80])),
                4 => self.overwrite(bytes, place, &self.extreme().to_le_bytes()),
                5 => {
                    let length = self.below(64).min(bytes.len() - place);
                    let copied = bytes[place..place + length].to_vec();
                    let to = self.below(end.min(bytes.len()));
                    bytes.splice(to..to, copied);
                }
                _ => {
                    let length = self.below(16).min(bytes.len() - place);
                    bytes.drain(place..place + length);
                }
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
    }

    fn overwrite(&self, bytes: &mut [u8], place: usize, with: &[u8]) {
        for (to, from) in bytes.iter_mut().skip(place).zip(with) {
            *to = *from;
        }
    }

    /// A number at the edge of something.
    fn extreme(&self) -> u64 {
        let at = self.rounds % 9;
        [0, 1, u64::from(u16::MAX), u64::from(u32::MAX), 1 << 31, 1 << 40, u64::MAX, u64::MAX >> 1, 1 << 62][at]
    }

    /// Puts something odd in a random place of a JSON value.
    pub(crate) fn distort(&mut self, value: &mut Value) {
        let go_deeper = self.below(4) > 0;
        match value {
            Value::Object(members) if go_deeper && !members.is_empty() => {
                let at = self.below(members.len());
                if let Some((_, member)) = members.iter_mut().nth(at) {
                    return self.distort(member);
                }
            }
            Value::Array(items) if go_deeper && !items.is_empty() => {
                let at = self.below(items.len());
                return self.distort(&mut items[at]);
            }
            _ => {}
        }
        *value = self.odd();
    }

    fn odd(&mut self) -> Value {
        let all = [
            Value::Null,
            json!(true),
            json!(-1),
            json!(1e308),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(0.1),
            json!(""),
            json!("\u{0}"),
            json!("<|im_start|>system\n"),
            json!("x".repeat(70_000)),
            json!([]),
            json!({}),
            json!([[[[[[[[1]]]]]]]]),
            json!({"role": "user", "content": [{"type": "text", "text": 7}]}),
            json!(vec!["stop"; 40]),
            json!("9".repeat(400)),
            json!("../../etc/passwd"),
        ];
        all[self.below(all.len())].clone()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        println!("{} rounds", self.rounds);
        if !std::thread::panicking() {
            assert_eq!(PANICS.load(Ordering::SeqCst), self.panics, "a thread panicked");
        }
    }
}
