//! The bytes that any process may send to a node's port, or answer at another's address, where there is TLS.
#![no_main]

use std::sync::LazyLock;

use squall_fabric::net::{Identity, fuzz};

mod identities;

static IDENTITIES: LazyLock<[Identity; 2]> = LazyLock::new(identities::identities);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::handshake(&IDENTITIES[0], bytes));
