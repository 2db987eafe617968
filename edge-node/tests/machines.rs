//! Machines that nobody here has, as trees of files made from public descriptions of kernel interfaces.

#![cfg(feature = "io")]

use edge_node::probe::hardware::{MachineReport, load, store};
use edge_node::probe::hardware::{Root, Sensed, Sensors, cores, look, power_mode, section};
use shared::fleet::{Hardware, Machine, Origin};
use shared::units::Cores;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// A tree of files with these texts.
fn machine(files: &[(&str, &str)]) -> (TempDir, Root) {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in files {
        write(folder.path(), path, text);
    }
    let root = Root::at(folder.path());
    (folder, root)
}

fn write(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    std::fs::create_dir_all(path.parent().expect("inside")).expect("made");
    std::fs::write(path, text).expect("written");
}

fn sensed(root: &Root) -> Sensed {
    Sensors::new(root.clone()).read()
}

const FOUR: (&str, &str) = ("proc/self/status", "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\nMems_allowed:\t1\n");

#[test]
fn half_a_core_by_version_2_is_half_a_core() {
    let (_kept, root) = machine(&[
        FOUR,
        ("proc/self/cgroup", "0::/box/inner\n"),
        ("sys/fs/cgroup/box/cpu.max", "50000 100000\n"),
        ("sys/fs/cgroup/box/inner/cpu.max", "max 100000\n"),
    ]);
    assert_eq!(cores::usable(&root), Some((Cores::new(0.5).expect("half"), "cgroup quota")));
    assert_eq!(look(&root).usable.map(|fact| (fact.value.get(), fact.origin)), Some((0.5, Origin::Reported)));
}

#[test]
fn half_a_core_by_version_1_is_half_a_core_and_minus_one_is_no_limit() {
    let files = [
        FOUR,
        ("proc/self/cgroup", "3:memory:/m\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n"),
        ("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n"),
    ];
    let (kept, root) = machine(&files);
    assert_eq!(cores::usable(&root).map(|(cores, _)| cores.get()), Some(0.5));
    write(kept.path(), "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "-1\n");
    assert_eq!(cores::usable(&root), Some((Cores::new(4.0).expect("four"), "affinity")));
}

#[test]
fn affinity_counts_ranges_and_nonsense_is_absent() {
    let (_kept, root) = machine(&[("proc/self/status", "Cpus_allowed_list:\t0-1,4,6-7\n")]);
    assert_eq!(cores::usable(&root).map(|(cores, _)| cores.get()), Some(5.0));
    for broken in ["Cpus_allowed_list:\t7-2\n", "Cpus_allowed_list:\tN/A\n", "Cpus_allowed_list:\n", "x\n"] {
        let (_kept, root) = machine(&[("proc/self/status", broken)]);
        assert_eq!(cores::usable(&root), None, "{broken:?}");
    }
}

#[test]
fn a_control_group_leaves_what_it_does_not_use_and_its_cache() {
    let (_kept, root) = machine(&[
        ("proc/meminfo", "MemTotal: 8000000 kB\nMemFree: 100000 kB\nMemAvailable:    4000000 kB\n"),
        ("proc/self/cgroup", "0::/box\n"),
        ("sys/fs/cgroup/box/memory.max", "1000000000"),
        ("sys/fs/cgroup/box/memory.current", "700000000"),
        ("sys/fs/cgroup/box/memory.stat", "anon 1\ninactive_file 200000000\n"),
    ]);
    assert_eq!(cores::memory_available(&root).map(|(bytes, by)| (bytes.0, by)), Some((500_000_000, "cgroup limit")));
    let (_kept, root) = machine(&[("proc/meminfo", "MemAvailable:    4000000 kB\n")]);
    assert_eq!(cores::memory_available(&root).map(|(bytes, by)| (bytes.0, by)), Some((4_096_000_000, "MemAvailable")));
}

#[test]
fn sentinels_are_no_temperatures_and_harm_no_other_sensor() {
    let (_kept, root) = machine(&[
        ("sys/class/thermal/thermal_zone0/temp", "-256000\n"),
        ("sys/class/thermal/thermal_zone1/temp", "-273150\n"),
        ("sys/class/thermal/thermal_zone2/temp", "N/A\n"),
        ("sys/class/thermal/thermal_zone3/temp", "NaN\n"),
        ("sys/class/thermal/thermal_zone4/temp", "255000\n"),
        ("sys/class/hwmon/hwmon0/name", "k10temp\n"),
        ("sys/class/hwmon/hwmon0/temp1_input", "61500\n"),
        ("sys/class/hwmon/hwmon0/temp2_input", "-32768\n"),
    ]);
    assert_eq!(sensed(&root).temperature.map(|one| one.get()), Some(61.5));
    let (_kept, root) = machine(&[("sys/class/thermal/thermal_zone0/temp", "-256000\n")]);
    assert_eq!(sensed(&root), Sensed::default(), "absent, not zero");
}

/// A board of the Jetson kind: three rails of an INA3221, a sum beside them, a power mode.
fn jetson(rails: [(&str, &str, &str); 3]) -> (TempDir, Root) {
    let hwmon = "sys/class/hwmon/hwmon2";
    let mut files = vec![
        (format!("{hwmon}/name"), "ina3221".to_owned()),
        (format!("{hwmon}/in4_label"), "sum of shunt voltages".to_owned()),
        (format!("{hwmon}/in4_input"), "5000".to_owned()),
        (format!("{hwmon}/curr4_input"), "9999".to_owned()),
        ("var/lib/nvpmodel/status".to_owned(), "pmode:0002".to_owned()),
        (
            "etc/nvpmodel.conf".to_owned(),
            "< POWER_MODEL ID=0 NAME=MAXN >\nCPU 1\n< POWER_MODEL ID=2 NAME=MODE_15W >\n".to_owned(),
        ),
        ("sys/class/thermal/cooling_device0/type".to_owned(), "cpufreq-cpu0".to_owned()),
        ("sys/class/thermal/cooling_device0/cur_state".to_owned(), "2".to_owned()),
    ];
    for (index, (label, millivolts, milliamperes)) in (1..).zip(rails) {
        files.push((format!("{hwmon}/in{index}_label"), label.to_owned()));
        files.push((format!("{hwmon}/in{index}_input"), millivolts.to_owned()));
        files.push((format!("{hwmon}/curr{index}_input"), milliamperes.to_owned()));
    }
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    machine(&files)
}

#[test]
fn a_board_is_as_its_input_rail_says() {
    let (_kept, root) = jetson([("VDD_IN", "5000", "2000"), ("VDD_CPU_GPU_CV", "5000", "800"), ("VDD_SOC", "5000", "400")]);
    let sensed = sensed(&root);
    let power = sensed.power.expect("known");
    assert!((power.value.get() - 10.0).abs() < 1e-9, "{power:?}");
    assert_eq!((power.origin, power.by.as_str()), (Origin::Measured, "rails"));
    assert_eq!(sensed.throttled, Some(true));
    assert_eq!(power_mode(&root), Some(("MODE_15W".to_owned(), "nvpmodel")));
}

#[test]
fn rails_without_an_input_are_summed_and_all_ones_is_no_current() {
    let (_kept, root) = jetson([("GPU", "5000", "2000"), ("CPU", "5000", "1000"), ("SOC", "5000", "65535")]);
    assert!(sensed(&root).power.is_some_and(|power| (power.value.get() - 15.0).abs() < 1e-9));
    let (_kept, root) = jetson([("GPU", "0", "0"), ("CPU", "65535", "65535"), ("SOC", "-32768", "1")]);
    assert_eq!(sensed(&root).power, None, "nothing is no zero");
}

#[test]
fn a_laptop_is_as_its_battery_says_but_only_while_it_gives() {
    let files = [
        ("sys/class/power_supply/AC/type", "Mains\n"),
        ("sys/class/power_supply/BAT0/type", "Battery\n"),
        ("sys/class/power_supply/BAT0/status", "Discharging\n"),
        ("sys/class/power_supply/BAT0/voltage_now", "12000000\n"),
        ("sys/class/power_supply/BAT0/current_now", "-1500000\n"),
        ("sys/firmware/acpi/platform_profile", "balanced\n"),
    ];
    let (kept, root) = machine(&files);
    assert!(sensed(&root).power.is_some_and(|power| power.by == "battery" && (power.value.get() - 18.0).abs() < 1e-9));
    assert_eq!(power_mode(&root), Some(("balanced".to_owned(), "platform profile")));
    write(kept.path(), "sys/class/power_supply/BAT0/status", "Charging\n");
    assert_eq!(sensed(&root).power, None);
}

#[test]
fn counters_of_energy_wrap_around() {
    let domain = "sys/class/powercap/intel-rapl:0";
    let file = |name: &str| format!("{domain}/{name}");
    let (counter, range, name) = (file("energy_uj"), file("max_energy_range_uj"), file("name"));
    let core = "sys/class/powercap/intel-rapl:0:0";
    let (kept, root) = machine(&[
        (&counter, "9000000"),
        (&range, "10000000"),
        (&name, "package-0"),
        (&format!("{core}/name"), "core"),
        (&format!("{core}/energy_uj"), "1"),
        (&format!("{core}/max_energy_range_uj"), "10000000"),
    ]);
    let mut sensors = Sensors::new(root);
    assert_eq!(sensors.read().energy, None, "one look is no difference");
    write(kept.path(), &counter, "9500000");
    assert!(sensors.read().energy.is_some_and(|joules| (joules.get() - 0.5).abs() < 1e-9));
    write(kept.path(), &counter, "250000");
    let sensed = sensors.read();
    assert!(
        sensed.energy.is_some_and(|joules| (joules.get() - 0.75).abs() < 1e-9),
        "half to the end, a quarter after: {sensed:?}"
    );
    assert!(sensed.power.is_some_and(|power| power.by == "rapl" && power.value.get() > 0.0));
    write(kept.path(), &counter, "N/A");
    assert_eq!(sensors.read().energy, None);
    write(kept.path(), &counter, "300000");
    assert_eq!(sensors.read().energy, None, "nobody knows what was between");
}

#[test]
fn a_sensor_that_is_a_pipe_does_not_hold_the_others_up() {
    let (kept, root) =
        machine(&[("sys/class/thermal/thermal_zone1/temp", "40000"), ("sys/class/thermal/thermal_zone0/type", "pipe")]);
    let pipe = kept.path().join("sys/class/thermal/thermal_zone0/temp");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    assert_eq!(sensed(&root).temperature.map(|one| one.get()), Some(40.0));
}

#[test]
fn a_machine_without_anything_is_unknown_everywhere() {
    let (_kept, root) = machine(&[]);
    assert_eq!(look(&root), Hardware::default());
    assert_eq!((sensed(&root), power_mode(&root)), (Sensed::default(), None));
    let page = section(&MachineReport::new(Machine::default(), Sensed::default()));
    assert_eq!(page.matches("not known").count(), 14, "{page}");
    assert!(!page.contains(" 0"), "{page}");
}

#[test]
fn a_measurement_is_kept_for_the_same_machine_and_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_kept, root) = machine(&[FOUR]);
    let hardware = look(&root);
    let usable = hardware.usable.as_ref().map(|fact| fact.value);
    store(folder.path(), Some("A"), &hardware).expect("kept");
    let month = Duration::from_secs(30 * 86_400);
    assert!(load(folder.path(), Some("A"), usable, month).is_some());
    assert_eq!(load(folder.path(), Some("B"), usable, month), None, "another processor");
    assert_eq!(load(folder.path(), Some("A"), Cores::new(2.0).ok(), month), None, "fewer cores");
    std::fs::write(folder.path().join("machine.json"), "{\"at\":99999999999}").expect("written");
    assert_eq!(load(folder.path(), Some("A"), usable, month), None, "broken");
}
