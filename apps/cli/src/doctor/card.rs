//! Settings of an RDMA card and its network that the fabric counts on, as far as this machine shows them: whether
//! packets keep their order, and whether they are lost where links are full.

use std::{fs, path::Path, process::Command};

use super::finding::Area;

/// Runs a program, and gives its output; None if it is not installed, or fails.
pub(super) type Run<'a> = &'a dyn Fn(&str, &[&str]) -> Option<String>;

/// Runs a program of this machine.
pub(super) fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Looks at a card's settings; `device` is its directory in the system's list, and `port` an active port of it.
pub(super) fn look(area: &mut Area, name: &str, device: &Path, port: &Path, run: Run<'_>) {
    if !device.join("device").exists() {
        area.good(format!("{name} is software, which keeps the order of packets"));
        return;
    }
    look_at_order(area, name, run);
    if text(&port.join("link_layer")) == "Ethernet" {
        look_at_pauses(area, name, device, run);
    } else {
        area.good(format!("{name}: InfiniBand loses no packets where links are full"));
    }
}

/// Adaptive routing, and what connections agree on besides (ECE): both may let a card place bytes out of order.
fn look_at_order(area: &mut Area, name: &str, run: Run<'_>) {
    let register = run("mlxreg", &["-d", name, "--reg_name", "ROCE_ACCL", "--get"]);
    match register.as_deref().and_then(adaptive_routing) {
        Some(true) => area.warn(
            format!("{name} forces adaptive routing, with which it may place bytes out of order"),
            "polled memory needs writes in order: clear adaptive_routing_forced_en of ROCE_ACCL with `mlxreg`",
        ),
        Some(false) => area.good(format!("{name} forces no adaptive routing")),
        None => area.warn(
            format!("{name}: adaptive routing could not be read"),
            "polled memory needs writes in order: see that neither the card nor the subnet manager has it on for this \
             service level (`mlxreg` of NVIDIA's tools shows the register ROCE_ACCL)",
        ),
    }
    area.warn(
        format!("{name}: what the card adds to connections by itself (ECE) could not be read"),
        "this fabric asks for nothing of that kind; see that the card's firmware does not force it",
    );
}

/// The register's value: whether the card uses adaptive routing where connections don't ask for it.
fn adaptive_routing(register: &str) -> Option<bool> {
    let line = register.lines().find(|line| line.trim_start().starts_with("adaptive_routing_forced_en"))?;
    let value = line.split('|').nth(1)?.trim();
    Some(u64::from_str_radix(value.trim_start_matches("0x"), 16).ok()? != 0)
}

/// Priority flow control, by which switches and cards pause a priority in place of losing its packets.
fn look_at_pauses(area: &mut Area, name: &str, device: &Path, run: Run<'_>) {
    let interfaces = fs::read_dir(device.join("device/net")).into_iter().flatten().flatten();
    let Some(interface) = interfaces.filter_map(|entry| entry.file_name().into_string().ok()).min() else {
        return area.warn(
            format!("{name}: its interface, and with it flow control (PFC), could not be read"),
            "see that the priority of its packets is lossless, at the card and at the switches",
        );
    };
    let by_dcb = run("dcb", &["pfc", "show", "dev", &interface]).as_deref().and_then(pauses_of_dcb);
    let pauses = by_dcb.or_else(|| run("mlnx_qos", &["-i", &interface]).as_deref().and_then(pauses_of_mlnx_qos));
    match pauses.as_deref() {
        Some([]) => area.warn(
            format!("{interface} of {name} has no lossless priority (PFC): packets are lost where links are full"),
            "turn it on for one priority, at the card (`dcb pfc set dev DEV prio-pfc 3:on`) and at the switches, and let \
             `fabric.verbs.traffic_class` choose that priority",
        ),
        Some(priorities) => {
            let priorities: Vec<String> = priorities.iter().map(u8::to_string).collect();
            area.good(format!("{interface} of {name} pauses priority {} (PFC)", priorities.join(", ")));
        }
        None => area.warn(
            format!("{interface} of {name}: flow control (PFC) could not be read"),
            "see that the priority of its packets is lossless, at the card and at the switches; `dcb` (Debian: apt \
             install iproute2) or `mlnx_qos` shows the card's part",
        ),
    }
}

/// The paused priorities in the output of `dcb pfc show`: `prio-pfc 0:off 1:off 3:on ..`.
fn pauses_of_dcb(output: &str) -> Option<Vec<u8>> {
    let (_, listed) = output.split_once("prio-pfc")?;
    let pairs = listed.split_whitespace().map_while(|word| word.split_once(':'));
    pairs.filter(|(_, state)| *state == "on").map(|(priority, _)| priority.parse().ok()).collect()
}

/// The paused priorities in the output of `mlnx_qos`: below `PFC configuration:` a line of flags, `enabled 0 0 0 1 ..`.
fn pauses_of_mlnx_qos(output: &str) -> Option<Vec<u8>> {
    let (_, below) = output.split_once("PFC configuration:")?;
    let flags = below.lines().find_map(|line| line.trim().strip_prefix("enabled"))?;
    Some((0..).zip(flags.split_whitespace()).filter(|(_, flag)| *flag == "1").map(|(priority, _)| priority).collect())
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DCB: &str = "eth0: pfc-cap 8 macsec-bypass off delay 0\n\
                       prio-pfc 0:off 1:off 2:off 3:on 4:off 5:on 6:off 7:off\n";
    const MLNX_QOS: &str = "DCBX mode: OS controlled\nPFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\
                            \tenabled     0   0   0   1   0   0   0   0\n\tbuffer      0   0   0   1   0   0   0   0\n";
    const REGISTER: &str = "Field Name                 | Data\n\
                            roce_adp_retrans_en        | 0x00000001\nadaptive_routing_forced_en | 0x00000000\n";

    #[test]
    fn outputs_of_tools_are_understood() {
        assert_eq!(pauses_of_dcb(DCB), Some(vec![3, 5]));
        assert_eq!(pauses_of_dcb(&DCB.replace(":on", ":off")), Some(vec![]));
        assert_eq!(pauses_of_dcb("Error"), None);
        assert_eq!(pauses_of_mlnx_qos(MLNX_QOS), Some(vec![3]));
        assert_eq!(pauses_of_mlnx_qos("PFC configuration:\n"), None);
        assert_eq!(adaptive_routing(REGISTER), Some(false));
        assert_eq!(adaptive_routing(&REGISTER.replace("_en | 0x00000000", "_en | 0x00000001")), Some(true));
        assert_eq!(adaptive_routing("-E- no such device"), None);
    }

    /// A card's directory, and what is said of it.
    fn said(layer: Option<&str>, run: Run<'_>) -> String {
        let card = tempfile::tempdir().unwrap();
        if let Some(layer) = layer {
            fs::create_dir_all(card.path().join("device/net/eth0")).unwrap();
            fs::create_dir_all(card.path().join("ports/1")).unwrap();
            fs::write(card.path().join("ports/1/link_layer"), layer).unwrap();
        }
        let mut area = Area::new("verbs", "");
        look(&mut area, "mlx5_0", card.path(), &card.path().join("ports/1"), run);
        assert!(area.usable(), "it warns, and forbids nothing");
        area.lines().join("\n")
    }

    #[test]
    fn what_can_t_be_read_is_said() {
        let blind = said(Some("Ethernet\n"), &|_, _| None);
        for what in ["adaptive routing could not be read", "(ECE) could not be read", "(PFC) could not be read"] {
            assert!(blind.contains(what), "{blind}");
        }
        assert!(said(Some("InfiniBand\n"), &|_, _| None).contains("InfiniBand loses no packets"));
        let software = said(None, &|_, _| panic!("nothing is asked of software"));
        assert!(software.contains("is software"), "{software}");
    }

    #[test]
    fn a_card_that_may_reorder_or_lose_packets_is_warned_of() {
        let bad = said(Some("Ethernet\n"), &|program, _| match program {
            "mlxreg" => Some(REGISTER.replace("_en | 0x00000000", "_en | 0x00000001")),
            "dcb" => Some(DCB.replace(":on", ":off")),
            _ => None,
        });
        assert!(bad.contains("forces adaptive routing") && bad.contains("no lossless priority"), "{bad}");
        let good = said(Some("Ethernet\n"), &|program, _| match program {
            "mlxreg" => Some(REGISTER.to_owned()),
            "mlnx_qos" => Some(MLNX_QOS.to_owned()),
            _ => None,
        });
        assert!(good.contains("forces no adaptive routing") && good.contains("pauses priority 3"), "{good}");
    }
}
