//! The places of service streams at a node's port.

use std::{collections::BTreeMap, sync::Arc};

use super::service::ServiceId;
use crate::{
    share::{Holder, Shares},
    sync::Lock,
};

/// The streams of all services that are open.
#[derive(Default)]
pub(super) struct StreamPlaces(Lock<BTreeMap<ServiceId, Shares>>);

impl StreamPlaces {
    /// Takes a place of a service, unless the holder has its share, or there is none.
    pub(super) fn take(self: &Arc<StreamPlaces>, service: ServiceId, holder: &Holder) -> Option<StreamPlace> {
        let mut services = self.0.lock();
        let shares = services.entry(service).or_insert_with(|| Shares::new(service.limit()));
        shares.take(holder, 1).then(|| StreamPlace { places: Arc::clone(self), service, holder: holder.clone() })
    }
}

/// The place of one stream, until it is dropped.
#[derive(derive_more::Debug)]
#[debug("StreamPlace({service})")]
pub(super) struct StreamPlace {
    places: Arc<StreamPlaces>,
    service: ServiceId,
    holder: Holder,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        if let Some(shares) = self.places.0.lock().get_mut(&self.service) {
            shares.give_back(&self.holder, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_opens_streams_and_never_speaks_locks_nobody_out() {
        let places = Arc::new(StreamPlaces::default());
        let greedy = Holder::Client("greedy".into());
        let mut held: Vec<_> = (0..10_000).map_while(|_| places.take(ServiceId::CLIENTS, &greedy)).collect();
        assert!(held.len() < ServiceId::CLIENTS.limit() / 2);
        let web = places.take(ServiceId::CLIENTS, &Holder::Client("web".into()));
        let member = places.take(ServiceId::CLIENTS, &Holder::Trusted);
        let log = places.take(ServiceId::LOG, &greedy);
        assert!(web.is_some() && member.is_some() && log.is_some());
        assert!(places.take(ServiceId::CLIENTS, &greedy).is_none());
        held.truncate(100);
        assert!(places.take(ServiceId::CLIENTS, &greedy).is_some());
    }
}
