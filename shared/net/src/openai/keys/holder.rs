//! One key with what it has used, and the refusals that follow.

use super::account::{Account, Standing};
use crate::openai::error::{ApiError, PERMISSION, RATE};
use crate::tls::CertClock;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use shared::plan::Usage;
use shared::units::Tokens;
use shared::work::{ClientKey, KeyScope, Service};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A key that is known here.
#[derive(Debug)]
pub(in crate::openai) struct Holder {
    pub(super) key: ClientKey,
    pub(super) used: Arc<Mutex<Used>>,
    clock: CertClock,
}

/// What it used. Outlives the key's row: a key whose limits change keeps its past.
#[derive(Debug, Default)]
pub(super) struct Used {
    pub(super) account: Account,
    pub(super) requests: u64,
    pub(super) tokens: u64,
    /// By code: a small closed set.
    pub(super) refusals: BTreeMap<&'static str, u64>,
}

impl Holder {
    pub(super) const fn new(key: ClientKey, used: Arc<Mutex<Used>>, clock: CertClock) -> Self {
        Self { key, used, clock }
    }

    pub(super) fn used(&self) -> MutexGuard<'_, Used> {
        // A panic elsewhere leaves a count at worst one behind.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name, for logs.
    pub(in crate::openai) fn name(&self) -> &str {
        self.key.name.as_str()
    }

    pub(super) fn ended(&self) -> bool {
        self.key.ended(self.clock.secs())
    }

    /// Notes a refusal.
    pub(in crate::openai) fn refused(&self, code: &'static str) {
        *self.used().refusals.entry(code).or_default() += 1;
    }

    /// Whether it opens more than the OpenAI API.
    pub(in crate::openai) fn admin(&self) -> Result<(), ApiError> {
        if self.key.scope == KeyScope::Admin {
            return Ok(());
        }
        let message = format!("the key `{}` is for inference only: want one made with `--scope admin`", self.key.name);
        Err(ApiError::new(StatusCode::FORBIDDEN, PERMISSION, "key_scope", message))
    }

    /// One more request, before anything of it is read.
    pub(in crate::openai) fn request(&self) -> Result<(), ApiError> {
        let mut used = self.used();
        used.requests += 1;
        let Some(rate) = self.key.rate_per_minute else { return Ok(()) };
        used.account.request(Instant::now(), rate).map_err(|wait| {
            let message =
                format!("the key `{}` may send {rate} requests a minute: try again in {} s", self.key.name, seconds(wait));
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, RATE, "rate_limit_exceeded", message).retry_after(seconds(wait))
        })
    }

    /// Lets a request for this service in, and sets aside what it may use.
    pub(in crate::openai) fn admit(
        self: &Arc<Self>,
        service: &Service,
        prompt: Tokens,
        output: Tokens,
    ) -> Result<Charge, ApiError> {
        let allowed = |named: &shared::ids::ServiceId| *named == service.id || service.aliases.contains(named);
        if !self.key.services.is_empty() && !self.key.services.iter().any(allowed) {
            let message = format!("the key `{}` is not for the service `{}`", self.key.name, service.id);
            return Err(ApiError::new(StatusCode::FORBIDDEN, PERMISSION, "key_scope", message).at("model"));
        }
        let reserved = if let Some(budget) = self.key.tokens_per_day {
            let tokens = u64::from(prompt.0) + u64::from(output.0);
            self.used().account.reserve(self.clock.secs(), budget, tokens).map_err(|wait| {
                let message = format!(
                    "the key `{}` has used its {budget} tokens of today (UTC): the next day begins in {} s",
                    self.key.name,
                    seconds(wait)
                );
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, INVALID_QUOTA, "insufficient_quota", message)
                    .retry_after(seconds(wait))
            })?;
            tokens
        } else {
            0
        };
        Ok(Charge { holder: Arc::clone(self), reserved, prompt: u64::from(prompt.0), output: 0, began: false })
    }

    /// OpenAI's headers about limits, of those that the key has.
    pub(in crate::openai) fn headers(&self, headers: &mut HeaderMap) {
        let mut used = self.used();
        if let Some(rate) = self.key.rate_per_minute {
            let standing = used.account.requests(Instant::now(), rate);
            put(
                headers,
                ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
                rate.into(),
                standing,
            );
        }
        if let Some(budget) = self.key.tokens_per_day {
            let standing = used.account.tokens(self.clock.secs(), budget);
            put(
                headers,
                ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
                budget,
                standing,
            );
        }
    }
}

/// OpenAI's `type` of an error about a spent budget.
const INVALID_QUOTA: &str = "insufficient_quota";

fn put(headers: &mut HeaderMap, names: [&'static str; 3], limit: u64, standing: Standing) {
    let [limits, left, reset] = names.map(HeaderName::from_static);
    headers.insert(limits, HeaderValue::from(limit));
    headers.insert(left, HeaderValue::from(standing.left));
    if let Ok(span) = HeaderValue::from_str(&format!("{}s", seconds(standing.reset))) {
        headers.insert(reset, span);
    }
}

/// Whole seconds, rounded up: who comes back then finds it true.
fn seconds(wait: Duration) -> u32 {
    let whole = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    u32::try_from(whole).unwrap_or(u32::MAX)
}

/// What a request owes. However it ends, dropping this settles it.
#[derive(Debug)]
pub(in crate::openai) struct Charge {
    holder: Arc<Holder>,
    reserved: u64,
    /// Estimated, until the executor has counted.
    prompt: u64,
    output: u64,
    /// Whether anything was generated: a request that was refused everywhere costs nothing.
    began: bool,
}

impl Charge {
    /// Tokens went to the client.
    pub(in crate::openai) fn tokens(&mut self, count: u32) {
        self.began = true;
        self.output += u64::from(count);
    }

    /// The executor has counted.
    pub(in crate::openai) fn counted(&mut self, usage: Usage) {
        self.began = true;
        self.prompt = u64::from(usage.prompt.0);
        self.output = u64::from(usage.output.0);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let used = if self.began { self.prompt + self.output } else { 0 };
        let mut held = self.holder.used();
        held.tokens = held.tokens.saturating_add(used);
        held.account.settle(self.holder.clock.secs(), self.reserved, used);
    }
}
