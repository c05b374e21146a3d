//! Flags by which signals reach a command.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::CommandError;

/// A flag that Ctrl-C or SIGTERM sets; a second one ends the process at once.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>, CommandError> {
    let stop = Arc::new(AtomicBool::new(false));
    let register = |signal| {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))
    };
    let registered: io::Result<()> = [SIGINT, SIGTERM].into_iter().try_for_each(|signal| register(signal).map(drop));
    registered.map_err(|error| CommandError::Failed(format!("signals can't be handled: {error}")))?;
    Ok(stop)
}

/// A flag that SIGHUP sets, which then does not end the process: for commands that serve, and read their keys again.
pub fn note_hangups() -> Result<Arc<AtomicBool>, CommandError> {
    let came = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, Arc::clone(&came))
        .map_err(|error| CommandError::Failed(format!("signals can't be handled: {error}")))?;
    Ok(came)
}
