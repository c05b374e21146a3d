//! The host of a process: what must agree for two processes to share memory, and nothing that depends on addresses.

use crate::{
    local_name::network_namespace,
    wire::{Malformed, Reader, Writer},
};

/// The host, network namespace and user of a process. Two processes that agree in it are asked to prove that they can
/// share memory: their mounts may still differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessHost {
    /// The number that the kernel drew when it started.
    boot: String,
    namespace: u64,
    user: u32,
}

impl ProcessHost {
    /// That of this process. None if the system does not tell.
    pub(super) fn own() -> Option<ProcessHost> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let namespace = network_namespace();
        let user = rustix::process::geteuid().as_raw();
        (!boot.is_empty() && namespace != 0).then_some(ProcessHost { boot, namespace, user })
    }
}

/// The message of a node to a peer: the networks that it has, and where its memory may be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Abilities {
    pub(super) has_verbs: bool,
    /// The process's host, and the number of its life that its socket there has to show.
    pub(super) memory: Option<(ProcessHost, u64)>,
}

/// The abilities, a bit each. Every node has TCP.
const TCP: u8 = 1;
const VERBS: u8 = 2;
const MEMORY: u8 = 4;

impl Abilities {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer(Vec::new());
        let networks = if self.has_verbs { TCP | VERBS } else { TCP };
        match &self.memory {
            None => to.u8(networks),
            Some((ProcessHost { boot, namespace, user }, life)) => {
                to.u8(networks | MEMORY).u64(*life).u64(*namespace).u32(*user).text(boot)
            }
        };
        to.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Abilities, Malformed> {
        let mut from = Reader(bytes);
        let bits = from.u8()?;
        let mut memory = None;
        if bits & MEMORY != 0 {
            let (life, namespace, user) = (from.u64()?, from.u64()?, from.u32()?);
            memory = Some((ProcessHost { boot: from.text()?, namespace, user }, life));
        }
        from.end()?;
        Ok(Abilities { has_verbs: bits & VERBS != 0, memory })
    }

    /// The life of the peer with which memory may be shared, if both are on one host as one user.
    pub(super) fn life_beside(&self, peer: &Abilities) -> Option<u64> {
        let ((own, _), (theirs, life)) = (self.memory.as_ref()?, peer.memory.as_ref()?);
        (own == theirs).then_some(*life)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_on_one_host_in_one_namespace_by_one_user() {
        let own = ProcessHost::own().expect("this system tells");
        let of = |host: &ProcessHost, life| Abilities { has_verbs: false, memory: Some((host.clone(), life)) };
        assert_eq!(of(&own, 1).life_beside(&of(&own, 2)), Some(2));
        let others = [
            ProcessHost { boot: "another".to_owned(), ..own.clone() },
            ProcessHost { namespace: own.namespace + 1, ..own.clone() },
            ProcessHost { user: own.user + 1, ..own.clone() },
        ];
        for other in others {
            assert_eq!(of(&own, 1).life_beside(&of(&other, 2)), None, "{other:?}");
        }
        let networks = Abilities { has_verbs: true, memory: None };
        assert_eq!((of(&own, 1).life_beside(&networks), networks.life_beside(&of(&own, 1))), (None, None));
    }

    #[test]
    fn what_a_node_says_of_itself_comes_out_as_it_went_in() {
        for has_verbs in [false, true] {
            for memory in [None, ProcessHost::own().map(|host| (host, 7))] {
                let abilities = Abilities { has_verbs, memory };
                let bytes = abilities.encode();
                assert_eq!(Abilities::decode(&bytes), Ok(abilities));
                for len in 0..bytes.len() {
                    assert!(Abilities::decode(&bytes[..len]).is_err());
                }
            }
        }
    }
}
