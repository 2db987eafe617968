//! Processors and memory that this process may use: affinity, and the limits of all its control groups, of both kinds.

use super::root::Root;
use shared::units::{Bytes, Cores};

/// How deep a control group may lie; deeper ones are not looked at.
const DEPTH_MAX: usize = 32;
/// Version 1 writes a number near the largest one where there is no limit.
const NO_LIMIT: u64 = 1 << 60;

/// Processors that may be used, and what says so.
#[must_use]
pub fn usable(root: &Root) -> Option<(Cores, &'static str)> {
    let allowed = affinity(root);
    let quota = quota(root);
    match (allowed, quota) {
        (Some(allowed), Some(quota)) if quota < allowed => Some((Cores::new(quota).ok()?, "cgroup quota")),
        (Some(allowed), _) => Some((Cores::new(allowed).ok()?, "affinity")),
        (None, Some(quota)) => Some((Cores::new(quota).ok()?, "cgroup quota")),
        (None, None) => None,
    }
}

/// Processors on which this process may run.
pub(super) fn affinity(root: &Root) -> Option<f64> {
    let status = root.text("proc/self/status")?;
    let list = field(&status, "Cpus_allowed_list")?;
    let mut count = 0_u32;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    (count > 0).then(|| f64::from(count))
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':')).map(str::trim)
}

/// The smallest quota of the control groups, in processors.
fn quota(root: &Root) -> Option<f64> {
    let two = folders(root, None).into_iter().filter_map(|folder| {
        let text = root.text(&format!("{folder}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        share(quota.parse().ok()?, period.trim().parse().ok()?)
    });
    let one = folders(root, Some("cpu")).into_iter().filter_map(|folder| {
        let read = |name: &str| root.text(&format!("{folder}/cpu.cfs_{name}_us"))?.parse::<f64>().ok();
        share(read("quota")?, read("period")?)
    });
    two.chain(one).min_by(f64::total_cmp)
}

fn share(quota: f64, period: f64) -> Option<f64> {
    // -1 is no limit.
    (quota > 0.0 && period > 0.0).then(|| quota / period).filter(|share| share.is_finite() && *share > 0.0)
}

/// Memory that could be had: what the machine says, and what the control groups leave.
#[must_use]
pub fn memory_available(root: &Root) -> Option<(Bytes, &'static str)> {
    let meminfo = root.text("proc/meminfo").unwrap_or_default();
    let machine = field(&meminfo, "MemAvailable").and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok());
    let machine = machine.and_then(|kilobytes| kilobytes.checked_mul(1024)).filter(|bytes| *bytes > 0);
    let groups = memory_left(root);
    match (machine, groups) {
        (Some(machine), Some(left)) if left < machine => Some((Bytes(left), "cgroup limit")),
        (Some(machine), _) => Some((Bytes(machine), "MemAvailable")),
        (None, Some(left)) => Some((Bytes(left), "cgroup limit")),
        (None, None) => None,
    }
}

/// The least that a control group leaves. What it uses includes page cache that goes when memory is wanted, so that inactive
/// files count as free.
fn memory_left(root: &Root) -> Option<u64> {
    let number = |folder: &str, name: &str| root.text(&format!("{folder}/{name}"))?.parse::<u64>().ok();
    let cache = |folder: &str, name: &str| {
        let stat = root.text(&format!("{folder}/memory.stat")).unwrap_or_default();
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        line.unwrap_or_default()
    };
    let left = |limit: u64, used: u64, cache: u64| limit.saturating_sub(used.saturating_sub(cache));
    let two = folders(root, None).into_iter().filter_map(|folder| {
        let limit = number(&folder, "memory.max")?;
        Some(left(limit, number(&folder, "memory.current")?, cache(&folder, "inactive_file ")))
    });
    let one = folders(root, Some("memory")).into_iter().filter_map(|folder| {
        let limit = number(&folder, "memory.limit_in_bytes").filter(|limit| *limit < NO_LIMIT)?;
        Some(left(limit, number(&folder, "memory.usage_in_bytes")?, cache(&folder, "total_inactive_file ")))
    });
    two.chain(one).min()
}

/// The folders of the process's control group and of those above it, innermost first: of version 2, or of a controller of version
/// 1. Inside a container the path of the host is not there, and only the top is looked at.
fn folders(root: &Root, controller: Option<&str>) -> Vec<String> {
    let groups = root.text("proc/self/cgroup").unwrap_or_default();
    let named = |list: &str| match controller {
        None => list.is_empty(),
        Some(controller) => list.split(',').any(|name| name == controller),
    };
    let group = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let list = parts.next()?;
        parts.next().filter(|_| named(list))
    });
    let Some(group) = group else { return Vec::new() };
    let tops: Vec<String> = match controller {
        None => vec!["sys/fs/cgroup".to_owned(), "sys/fs/cgroup/unified".to_owned()],
        Some(controller) => vec![format!("sys/fs/cgroup/{controller}"), "sys/fs/cgroup/cpu,cpuacct".to_owned()],
    };
    let mut folders = Vec::new();
    for top in tops {
        // Nobody climbs out of the tree.
        let mut parts: Vec<&str> = group.split('/').filter(|part| !part.is_empty() && *part != "..").take(DEPTH_MAX).collect();
        loop {
            let path = std::iter::once(top.as_str()).chain(parts.iter().copied()).collect::<Vec<_>>().join("/");
            folders.push(path);
            if parts.pop().is_none() {
                break;
            }
        }
    }
    folders
}
