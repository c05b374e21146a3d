//! The driver of a shard's calls, which runs from the first call on.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use squall_fabric::sync::Lock;
use squall_services::Caller;

use super::{
    call::{Call, Resolve},
    driver::Driver,
    effect::Ask,
    error::ClientError,
};
use crate::clients::{contacts::Contacts, query::Portable, wire::Members};

/// The way to the members of a shard. Its threads begin with the first call.
pub(crate) struct LazyDriver {
    /// The shard's [name](crate::clients::wire::ShardName).
    name: String,
    way: OnceLock<DriverWay>,
    state: Lock<LazyState>,
}

struct DriverWay {
    caller: Caller,
    contacts: Contacts,
    max_waiting: usize,
    silence: Result<Duration, ClientError>,
}

#[derive(Default)]
struct LazyState {
    driver: Option<Arc<Driver>>,
    /// The driver of commands for all, in a session of its own: until all members have answered, such a command holds
    /// its session's mark back, and with that the commands behind it.
    of_all: Option<Arc<Driver>>,
    /// The members of the newest view of this process' own node, if it has one.
    members: Members,
}

impl LazyDriver {
    /// Makes a way that can't be used before its [`start`](LazyDriver::start).
    pub(crate) fn new(name: String) -> LazyDriver {
        LazyDriver { name, way: OnceLock::new(), state: Lock::default() }
    }

    /// Gives it the nodes that can be called first, the number of calls that may wait, and the time of silence after
    /// which a connection is given up, or what is wrong with it.
    pub(crate) fn start(
        &self,
        caller: Caller,
        contacts: Contacts,
        max_waiting: usize,
        silence: Result<Duration, ClientError>,
    ) {
        let way = DriverWay { caller, contacts, max_waiting, silence };
        assert!(self.way.set(way).is_ok(), "it starts once");
    }

    /// Takes the members of a view that this process' own node has installed.
    pub(crate) fn learn(&self, members: Members) {
        let mut state = self.state.lock();
        state.driver.iter().chain(&state.of_all).for_each(|driver| driver.learn(members.clone()));
        state.members = members;
    }

    /// Returns the driver, whose threads run from now on.
    pub(crate) fn get(&self) -> Result<Arc<Driver>, ClientError> {
        self.started(|state| &mut state.driver)
    }

    fn started(&self, of: fn(&mut LazyState) -> &mut Option<Arc<Driver>>) -> Result<Arc<Driver>, ClientError> {
        if let Some(driver) = of(&mut self.state.lock()) {
            return Ok(Arc::clone(driver));
        }
        let Some(DriverWay { caller, contacts, max_waiting, silence }) = self.way.get() else {
            return Err(ClientError::Start("call `NodeBuilder::start` first".to_owned()));
        };
        // A node's engine takes the lock, so nothing that takes long happens under it.
        let started =
            Arc::new(Driver::start(&self.name, contacts.clone(), caller.clone(), *max_waiting, silence.clone()?)?);
        let mut state = self.state.lock();
        let driver = Arc::clone(of(&mut state).get_or_insert_with(|| Arc::clone(&started)));
        driver.learn(state.members.clone());
        drop(state);
        // Of two that were started at the same time, one ends here.
        drop(started);
        Ok(driver)
    }

    /// Makes a call.
    pub(crate) fn call<T: Portable>(&self, ask: Ask, limit: Duration) -> Call<T> {
        let (call, resolve) = Resolve::new();
        self.call_into(ask, limit, resolve);
        call
    }

    /// Makes a call whose result another waits for.
    pub(crate) fn call_into(&self, ask: Ask, limit: Duration, resolve: Resolve) {
        let driver = if ask.is_for_all() { self.started(|state| &mut state.of_all) } else { self.get() };
        match driver {
            Ok(driver) => driver.call_into(ask, limit, resolve),
            Err(error) => resolve.resolve(Err(error)),
        }
    }
}
