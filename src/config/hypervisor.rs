//! The detection of a virtual machine, whose clock may stop while those of other hosts continue.

use std::{fs, path::Path};

/// Names in `/sys/class/dmi/id` that show a virtual machine, where the processor does not say so.
const VIRTUAL: [&str; 8] =
    ["QEMU", "KVM", "VMware", "VirtualBox", "innotek", "Xen", "Google Compute Engine", "Virtual Machine"];

/// Returns a sign that this host is a virtual machine, such as "the flag `hypervisor` in /proc/cpuinfo"; None if it
/// shows no such sign.
///
/// A virtual machine may be paused, or moved to another host, and resume with a clock that did not advance. Nothing
/// within the machine shows that.
pub fn hypervisor() -> Option<String> {
    sign_under(Path::new("/"))
}

/// Looks as [`hypervisor`] does at the system whose `proc` and `sys` are in this directory.
fn sign_under(root: &Path) -> Option<String> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    if read("proc/cpuinfo").is_some_and(|text| has_flag(&text)) {
        return Some("the flag `hypervisor` in /proc/cpuinfo".to_owned());
    }
    if let Some(kind) = read("sys/hypervisor/type").filter(|kind| !kind.trim().is_empty()) {
        return Some(format!("{:?} in /sys/hypervisor/type", kind.trim()));
    }
    if root.join("proc/device-tree/hypervisor").exists() {
        return Some("/proc/device-tree/hypervisor".to_owned());
    }
    ["sys_vendor", "product_name"].into_iter().find_map(|name| {
        let text = read(&format!("sys/class/dmi/id/{name}"))?;
        VIRTUAL.iter().any(|word| text.contains(word)).then(|| format!("{:?} in /sys/class/dmi/id/{name}", text.trim()))
    })
}

fn has_flag(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(files: &[(&str, &str)]) -> Option<String> {
        let root = tempfile::tempdir().expect("there is room");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it lies in a directory")).expect("it can be made");
            fs::write(path, text).expect("it can be written");
        }
        sign_under(root.path())
    }

    #[test]
    fn a_virtual_machine_shows_in_one_of_four_places() {
        let bare = ("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisors\n");
        assert_eq!(sign(&[]), None);
        assert_eq!(sign(&[bare, ("sys/class/dmi/id/sys_vendor", "Dell Inc.\n")]), None);
        let x86 = sign(&[("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n")]);
        assert!(x86.is_some_and(|sign| sign.contains("cpuinfo")));
        let xen = sign(&[bare, ("sys/hypervisor/type", "xen\n")]);
        assert!(xen.is_some_and(|sign| sign.contains("xen")));
        assert!(sign(&[("proc/device-tree/hypervisor/compatible", "linux,kvm")]).is_some());
        let arm = sign(&[("sys/class/dmi/id/sys_vendor", "Amazon EC2\n"), ("sys/class/dmi/id/product_name", "KVM\n")]);
        assert!(arm.is_some_and(|sign| sign.contains("product_name")));
    }
}
