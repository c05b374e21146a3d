//! Changes to the bytes between two nodes, where there is TLS.
#![no_main]

use std::sync::LazyLock;

use squall_fabric::net::{Identity, fuzz};

mod identities;

static IDENTITIES: LazyLock<[Identity; 2]> = LazyLock::new(identities::identities);

libfuzzer_sys::fuzz_target!(|script: &[u8]| fuzz::tls(IDENTITIES.each_ref(), script));
