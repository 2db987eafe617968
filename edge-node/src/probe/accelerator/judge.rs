//! From a listing to a survey: which devices are accelerators, by what they did beside the CPU. Memory and names prove nothing.

use super::hints::hints;
use super::listing::{Listing, Measured, RawRates};
use super::memory::{budget, kind, reading};
use super::merge::{Device, backends, devices, maker, maker_name, pci, uuid};
use shared::fleet::{Accelerator, DeviceRates, Dropped, Fact, Origin, ProbeState, Survey};
use shared::units::{ByteRate, FlopRate, Fraction, Micros};

/// How much faster than the CPU something must be, in product or bandwidth, to be worth the way there. Two runs of the same kernel
/// differ by as much.
const MARGIN: f64 = 1.1;
/// Trust in what was measured on the twin of a device, as a share of the trust in the measurement itself.
const TWIN: f64 = 0.8;

/// Judges what a look brought.
#[must_use]
pub fn judge(listing: &Listing) -> Survey {
    let (found, mut dropped) = devices(listing);
    let cpu = listing.cpu.as_ref().map(|raw| rates(raw, "cpu"));
    let mut accelerators = Vec::new();
    for device in &found {
        match accelerator(listing, &found, device, cpu.as_ref()) {
            Ok(one) => accelerators.push(one),
            Err(reason) => dropped.extend(device.of(listing).take(1).map(|adapter| Dropped {
                name: adapter.name.clone(),
                backend: adapter.backend,
                reason: reason.clone(),
            })),
        }
    }
    let speed = |one: &Accelerator| one.rates.matmul_f32.as_ref().map_or(0.0, |fact| fact.value.get());
    accelerators.sort_by(|a, b| speed(b).total_cmp(&speed(a)).then_with(|| a.id.cmp(&b.id)));
    let hints = hints(&listing.signs, listing, &accelerators);
    bounded(Survey { state: ProbeState::Done, accelerators, dropped, hints })
}

/// The CPU's own rates, for the page.
#[must_use]
pub fn cpu(listing: &Listing) -> Option<DeviceRates> {
    listing.cpu.as_ref().map(|raw| rates(raw, "cpu"))
}

fn accelerator(listing: &Listing, all: &[Device], device: &Device, cpu: Option<&DeviceRates>) -> Result<Accelerator, String> {
    let rates = measured(listing, all, device)?;
    compare(&rates, cpu)?;
    let first = device.of(listing).next().ok_or("nobody lists it")?;
    let address = device.of(listing).find_map(|adapter| pci(&adapter.pci));
    let identity = device.of(listing).find_map(|adapter| uuid(adapter.uuid.as_deref()));
    let identity = identity.or_else(|| uuid(reading(listing, device)?.uuid.as_deref()));
    let kind = kind(listing, device);
    let maker = device.of(listing).map(maker).find(|id| *id != 0).unwrap_or_default();
    let id = match (&address, &identity) {
        (Some(address), _) => format!("pci:{address}"),
        (None, Some(identity)) => format!("uuid:{identity}"),
        (None, None) => format!("name:{}", first.name),
    };
    let memory = budget(listing, device, kind);
    let (vendor, backends) = (maker_name(maker).to_owned(), backends(device.of(listing)));
    Ok(Accelerator { id, name: first.name.clone(), vendor, kind, backends, pci: address, uuid: identity, memory, rates })
}

/// What was measured on a device, or on another of the same kind where time ran out.
fn measured(listing: &Listing, all: &[Device], device: &Device) -> Result<DeviceRates, String> {
    if let Some(own) = of(listing, device) {
        if let Some(fault) = &own.fault {
            return Err(fault.clone());
        }
        return Ok(rates(&own.rates, "wgsl"));
    }
    let model = |device: &Device| {
        let first = device.of(listing).next()?;
        (first.vendor != 0 && first.device != 0).then(|| (first.vendor, first.device, first.name.clone(), first.backend))
    };
    let twins = all.iter().filter(|other| model(other).is_some() && model(other) == model(device));
    let twin = twins.filter_map(|twin| of(listing, twin)).find(|twin| twin.fault.is_none());
    twin.map(|twin| lent(rates(&twin.rates, "wgsl"))).ok_or_else(|| "not measured: the probe's time was over before".to_owned())
}

fn of<'a>(listing: &'a Listing, device: &Device) -> Option<&'a Measured> {
    listing.measured.iter().find(|measured| device.has(measured.adapter))
}

/// Eligibility is earned at the kernels: faster than the CPU at products of matrices, or at reaching memory.
fn compare(device: &DeviceRates, cpu: Option<&DeviceRates>) -> Result<(), String> {
    let cpu = cpu.ok_or("the CPU was not measured beside it")?;
    let flops = |rates: &DeviceRates| rates.matmul_f32.as_ref().map(|fact| fact.value.get());
    let bytes = |rates: &DeviceRates| rates.bandwidth.as_ref().map(|fact| fact.value.get());
    let pairs = [(flops(device), flops(cpu), "FLOP/s"), (bytes(device), bytes(cpu), "B/s")];
    if pairs.iter().all(|(own, beside, _)| own.is_none() || beside.is_none()) {
        return Err("no kernel could be measured on it".to_owned());
    }
    if pairs.iter().any(|(own, beside, _)| own.zip(*beside).is_some_and(|(own, beside)| own > MARGIN * beside)) {
        return Ok(());
    }
    let told = pairs
        .iter()
        .filter_map(|(own, beside, unit)| Some(format!("{:.1} against {:.1} G{unit}", (*own)? / 1e9, (*beside)? / 1e9)));
    Err(format!("slower than the CPU at the same kernels: {}", told.collect::<Vec<_>>().join(", ")))
}

/// Repeated measurements as facts.
fn rates(raw: &RawRates, by: &str) -> DeviceRates {
    let flops = |samples: &[f64], kernel: &str| fact(samples, by, kernel, |value| FlopRate::new(value).ok());
    let bytes = |samples: &[f64], kernel: &str| fact(samples, by, kernel, |value| ByteRate::new(value).ok());
    DeviceRates {
        fma: flops(&raw.fma, "fma"),
        matmul_f32: flops(&raw.matmul_f32, "matmul f32"),
        matmul_f16: flops(&raw.matmul_f16, "matmul f16"),
        bandwidth: bytes(&raw.bandwidth, "triad"),
        upload: bytes(&raw.upload, "upload"),
        download: bytes(&raw.download, "download"),
        // Whole microseconds, and never none at all.
        launch: fact(&raw.launch, by, "launch", |value| {
            Some(Micros::from_secs_f64(value.max(1e-6))).filter(|span| span.0 < 60_000_000)
        }),
    }
}

/// The median, trusted as far as the repetitions agree. What is no positive number is left out, and where that is half of them, the
/// rest is worth nothing either.
fn fact<T>(samples: &[f64], by: &str, kernel: &str, value: impl Fn(f64) -> Option<T>) -> Option<Fact<T>> {
    let mut good: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite() && *sample > 0.0).collect();
    if good.len() * 2 <= samples.len() {
        return None;
    }
    good.sort_by(f64::total_cmp);
    let median = *good.get(good.len() / 2)?;
    let spread = (good.last()? - good.first()?) / median;
    let confidence = Fraction::new((1.0 - spread).clamp(0.0, 1.0)).ok()?;
    Some(Fact { value: value(median)?, origin: Origin::Measured, by: format!("{by} {kernel}"), age: Micros::ZERO, confidence })
}

/// The rates of a twin: likely, not measured.
fn lent(rates: DeviceRates) -> DeviceRates {
    fn lend<T>(fact: Option<Fact<T>>) -> Option<Fact<T>> {
        let fact = fact?;
        let confidence = Fraction::new(fact.confidence.get() * TWIN).ok()?;
        Some(Fact { origin: Origin::Modelled, by: format!("{} on its twin", fact.by), confidence, ..fact })
    }
    DeviceRates {
        fma: lend(rates.fma),
        matmul_f32: lend(rates.matmul_f32),
        matmul_f16: lend(rates.matmul_f16),
        bandwidth: lend(rates.bandwidth),
        upload: lend(rates.upload),
        download: lend(rates.download),
        launch: lend(rates.launch),
    }
}

/// A survey that may be sent, whatever drivers called their devices.
fn bounded(mut survey: Survey) -> Survey {
    survey.accelerators.truncate(Survey::ACCELERATORS_MAX);
    survey.dropped.truncate(Survey::DROPPED_MAX);
    survey.hints.truncate(Survey::HINTS_MAX);
    for one in &mut survey.accelerators {
        shorten(&mut one.id);
        shorten(&mut one.name);
        one.memory.iter_mut().for_each(|fact| shorten(&mut fact.by));
    }
    for one in &mut survey.dropped {
        shorten(&mut one.name);
        shorten(&mut one.reason);
    }
    survey.hints.iter_mut().for_each(shorten);
    survey
}

/// Cuts a text to what may be sent.
pub(super) fn shorten(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(Survey::TEXT_MAX) {
        text.truncate(end);
    }
}
