//! Recorded listings, made by us from what users of such machines report, and what the probe must make of them. The rows are those of
//! the list of complaints about neighbouring systems.
#![cfg(feature = "io")]

use edge_node::probe::accelerator::{Listing, judge};
use shared::fleet::{Accelerator, AcceleratorKind, Backend, Origin, ProbeState, Survey};
use std::path::PathBuf;

const GIB: u64 = 1 << 30;

fn listing(name: &str) -> Listing {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/listings").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn survey(name: &str) -> Survey {
    let survey = judge(&listing(name));
    survey.validate().unwrap_or_else(|fault| panic!("{name}: {fault}"));
    let written = serde_json::to_string(&survey).expect("JSON");
    assert_eq!(serde_json::from_str::<Survey>(&written).expect("read again"), survey, "{name}");
    assert_eq!(survey.state, ProbeState::Done);
    survey
}

/// The one accelerator of a listing.
fn only(name: &str) -> Accelerator {
    let survey = survey(name);
    let [one] = &survey.accelerators[..] else { panic!("{name}: one accelerator, not {survey:?}") };
    one.clone()
}

fn budget(one: &Accelerator) -> u64 {
    one.memory.as_ref().expect("a budget").value.bytes().0
}

/// Within a twentieth.
fn near(bytes: u64, gib: f64) {
    let have = bytes as f64 / GIB as f64;
    assert!((have - gib).abs() <= 0.05 * gib, "{have:.2} GiB, want {gib}");
}

#[test]
fn row_1_unified_memory_counts_what_caches_would_give_back() {
    let one = only("unified_warm_cache");
    assert_eq!(one.kind, AcceleratorKind::Unified, "it says discrete, but its vendor knows no memory of its own");
    near(budget(&one), 116.0 - 119.7 / 16.0);
    assert!(one.memory.expect("known").by.contains("MemAvailable"));
    near(budget(&only("carve_out")), 112.0);
    let helps = only("igpu_that_helps");
    assert_eq!(helps.kind, AcceleratorKind::Integrated);
    near(budget(&helps), 16.0);
}

#[test]
fn row_2_what_a_vendors_tool_does_not_know_is_unknown_and_never_zero() {
    let one = only("tegra_and_llvmpipe");
    assert_eq!(one.kind, AcceleratorKind::Unified);
    let by = &one.memory.as_ref().expect("known").by;
    assert!(by.contains("Jetson Orin Nano") && by.contains("MemAvailable"), "{by}");
    assert_eq!(budget(&one), 6_000_000_000 - (512 << 20));
    // Zero bytes free, and a heap of "all ones": neither is believed, and the card's size is left.
    let card = only("vendor_zero");
    let memory = card.memory.expect("known");
    assert_eq!((memory.value.bytes().0, memory.by.as_str()), (10 * GIB, "NVML total memory"));
    let mut nobody = listing("vendor_zero");
    nobody.vendor.clear();
    assert_eq!(judge(&nobody).accelerators[0].memory, None, "absent, not zero");
}

#[test]
fn row_3_an_office_processors_graphics_are_no_accelerator_however_much_memory_they_share() {
    let survey = survey("office_igpu");
    assert!(survey.accelerators.is_empty());
    let [dropped] = &survey.dropped[..] else { panic!("{survey:?}") };
    assert!(dropped.reason.contains("slower than the CPU") && dropped.reason.contains("150.0 against 500.0"), "{dropped:?}");
}

#[test]
fn row_4_each_device_is_there_once_and_software_never() {
    let arc = only("arc_three_backends");
    assert_eq!(arc.backends, [Backend::Vulkan, Backend::Dx12, Backend::Gl]);
    assert_eq!((arc.kind, arc.id.as_str(), arc.vendor.as_str()), (AcceleratorKind::Discrete, "pci:0000:03:00.0", "Intel"));
    assert_eq!(budget(&arc), 15 * GIB);

    let tegra = survey("tegra_and_llvmpipe");
    assert_eq!(tegra.accelerators.len(), 1);
    assert_eq!(tegra.accelerators[0].backends, [Backend::Vulkan, Backend::Gl]);
    assert!(tegra.dropped[0].reason.contains("software rasteriser (llvmpipe)"), "{:?}", tegra.dropped);

    let hidden = survey("wsl2_hidden");
    assert!(hidden.accelerators.is_empty() && hidden.dropped.len() == 2, "{hidden:?}");
    assert!(hidden.hints.iter().any(|hint| hint.contains("/dev/dxg")), "{:?}", hidden.hints);
    let shown = survey("wsl2_shown");
    assert_eq!(shown.accelerators.len(), 1, "{shown:?}");
    assert_eq!(shown.accelerators[0].backends, [Backend::Vulkan, Backend::Gl]);
    assert!(shown.hints.is_empty(), "{:?}", shown.hints);
}

#[test]
fn two_equal_cards_are_two_and_the_second_may_borrow_the_rates_of_the_first() {
    let survey = survey("two_twins");
    let [first, second] = &survey.accelerators[..] else { panic!("{survey:?}") };
    assert_eq!((budget(first), budget(second)), (9 * GIB, 4 * GIB), "each has its own memory");
    let rate = |one: &Accelerator| one.rates.matmul_f32.clone().expect("known");
    assert_eq!((rate(first).origin, rate(second).origin), (Origin::Measured, Origin::Modelled));
    assert!(rate(second).confidence < rate(first).confidence);
}

#[test]
fn what_is_there_and_cannot_be_used_has_a_hint() {
    let survey = survey("no_driver");
    let hints = survey.hints.join("\n");
    assert!(hints.contains("NVIDIA device 2206 at 0000:01:00.0 has no kernel driver"), "{hints}");
    assert!(hints.contains("/dev/dri/renderD128") && hints.contains("group"), "{hints}");
    assert!(!hints.contains("1234"), "a virtual machine's console is nothing to mend: {hints}");
}

#[test]
fn wild_numbers_are_left_out_one_by_one() {
    let rates = only("wild_numbers").rates;
    let product = rates.matmul_f32.expect("four of five are good");
    assert!((1e12..=1.02e12).contains(&product.value.get()) && product.confidence.get() > 0.9);
    assert_eq!((rates.matmul_f16, rates.bandwidth, rates.fma, rates.launch), (None, None, None, None));
}

#[test]
fn a_device_that_computes_wrong_results_or_was_not_measured_is_none() {
    let mut wrong = listing("arc_three_backends");
    wrong.measured[0].fault = Some("it computes wrong results in matmul f32".to_owned());
    assert!(judge(&wrong).accelerators.is_empty());
    assert!(judge(&wrong).dropped[0].reason.contains("wrong results"));
    let mut late = listing("arc_three_backends");
    late.measured.clear();
    assert!(judge(&late).dropped[0].reason.contains("not measured"));
    let mut alone = listing("arc_three_backends");
    alone.cpu = None;
    assert!(judge(&alone).accelerators.is_empty(), "faster than what?");
}
