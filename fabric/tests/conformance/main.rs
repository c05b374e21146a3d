//! The conformance suite: the guarantees G1–G7 of [`squall_fabric`], checked on every backend with the same code.
//!
//! A [scenario](scenarios) is a function of a [`Rig`](rig::Rig): three nodes whose every call and completion goes
//! through a [`Monitor`](monitor::Monitor), which knows the rules that hold of any endpoint at any time. A backend
//! joins the suite by carrying out [`Testbed`](testbed::Testbed); one whose memory is written by other threads,
//! processes or devices also runs the [races](concurrent).
//!
//! Each scenario runs from several seeds, on `sim` from many; `SQUALL_SEED=n` runs it from that one,
//! `SQUALL_SEEDS=FROM..TO` from others than usual. That the scenarios bite is shown by
//! [running them on networks that break one guarantee each](sim).

mod concurrent;
mod mixed;
mod monitor;
mod rig;
mod scenarios;
#[path = "../../../tests/support/seeds.rs"]
mod seeds;
mod shm;
mod sim;
mod tcp;
mod testbed;
#[cfg(feature = "verbs")]
mod verbs;

use self::seeds::seeds;
