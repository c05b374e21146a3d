//! A worker's end of the talk with its parent.

use std::{
    io::{self, Write},
    sync::mpsc::{self, Receiver},
    thread,
};

use serde::de::DeserializeOwned;

use super::job::WorkerReport;

/// A reason for which a worker did not finish.
pub(crate) enum Stopped {
    /// Its parent wants no more of it, or is gone.
    Told,
    Failed(String),
}

impl From<String> for Stopped {
    fn from(why: String) -> Stopped {
        Stopped::Failed(why)
    }
}

/// The parent's lines. Disconnected once the parent says nothing more.
pub(crate) fn listen<G: DeserializeOwned + Send + 'static>() -> Receiver<G> {
    let (hear, told) = mpsc::channel();
    thread::spawn(move || {
        let lines = io::stdin().lines().map_while(Result::ok);
        // The receiver is gone once the work is over.
        let _ = lines.map_while(|line| serde_json::from_str(&line).ok()).try_for_each(|go| hear.send(go));
    });
    told
}

pub(crate) fn say(said: &WorkerReport) {
    let line = serde_json::to_string(said).expect("plain data");
    // A parent that is gone does not listen; the end of the input will say so.
    let _ = writeln!(io::stdout().lock(), "{line}");
}
