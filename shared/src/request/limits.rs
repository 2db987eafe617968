//! Limits of the request core.

use crate::units::Micros;

/// Requests of clients that one ingress holds at once. At 8 KiB of state and records each this is 32 MiB, which a board can
/// spare; the next one is refused `queue_full`.
pub const REQUESTS_MAX: usize = 4_096;

/// Requests that may wait at one ingress without a candidate. Each change of the fleet looks at them again; more waiting would
/// only mean more that miss their time. The next one is refused `queue_full`.
pub const WAITING_MAX: usize = 512;

/// Waiting requests that are reconsidered at one event, most urgent first: bounds the time of an event.
pub const RECONSIDERED_MAX: usize = 16;

/// How long a request without a deadline may wait for a candidate. A model loads and a node restarts within this; afterwards the
/// client is better told than kept. It is then refused with the reason that it waited for.
pub const WAIT_MAX: Micros = Micros::from_secs(10);

/// How long a request may wait for nothing but a path. One that broke for a moment is dialled again within this; one that is
/// longer gone is no reason to keep a client waiting.
pub const PATH_WAIT_MAX: Micros = Micros::from_secs(2);

/// How often waiting requests are reconsidered although nothing happened: facts become stale and suspicions end silently.
pub const RECONSIDER_EVERY: Micros = Micros::from_secs(1);

/// How long an offered request may go unanswered, beside twice the path's round trip. The header is small and the answer
/// immediate, so that silence means a dead peer; the attempt is given up and made elsewhere.
pub const ACCEPT_MAX: Micros = Micros::from_secs(2);

/// How long an accepted attempt may show no sign of life. Executors report progress at least each second; five lost
/// reports mean a dead peer. The attempt is given up.
pub const SILENCE_MAX: Micros = Micros::from_secs(5);

/// The same for an engine of this node once it runs: it may be swapping or throttled, and nobody else knows better.
pub const LOCAL_SILENCE_MAX: Micros = Micros::from_secs(60);

/// How long an engine may take to confirm that it stopped an execution. After this its slot is given to the next: the engine's own
/// bounded inbox is then the last protection.
pub const ABORT_MAX: Micros = Micros::from_secs(5);

/// Attempts of one request, the first included. Whoever failed so often fails for a reason that another attempt does not mend.
pub const ATTEMPTS_MAX: u16 = 6;

/// Requests that may wait at a replica until an allocation says otherwise: two minutes of work for a slow board.
pub const QUEUE_MAX_DEFAULT: u32 = 16;

/// First time for which a replica that failed an attempt gets nothing more from this ingress; doubles with each further failure.
pub const SUSPECT_FIRST: Micros = Micros::from_secs(10);

/// Longest such time: a node that flaps for hours is tried again every five minutes.
pub const SUSPECT_LONGEST: Micros = Micros::from_secs(300);

/// Retries that are always there, in thousandths, so that a quiet ingress can retry at all.
pub const RETRY_CONSTANT_MILLI: u32 = 10_000;

/// Retries that each request earns, in thousandths: one in five may be repeated, so that a failing fleet gets at most 20 % more load.
pub const RETRY_EARNED_MILLI: u32 = 200;

/// Services of which an ingress learns something. A catalogue of more is unheard of; the requests of further ones are judged by what
/// their clients say.
pub const LEARNT_MAX: usize = 256;
