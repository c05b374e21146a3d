//! The search of small models through all of their states.

use std::{fmt::Debug, hash::Hash};

use stateright::{Checker, HasDiscoveries, Model};

/// A state of a model that several threads search.
pub(crate) trait Searched: Clone + Debug + PartialEq + Hash + Send + Sync {}

impl<T: Clone + Debug + PartialEq + Hash + Send + Sync> Searched for T {}

/// All properties hold in every state, of which there are more than a few.
pub(crate) fn holds<M>(model: M)
where
    M: Model<State: Searched, Action: Clone + Debug + PartialEq + Send + Sync> + Debug + Send + Sync + 'static,
{
    let checker = model.checker().threads(2).spawn_dfs().join();
    let (states, model) = (checker.unique_state_count(), checker.model());
    eprintln!("{model:?}: {states} states");
    assert!(states > 100, "the model of {model:?} does nothing");
    checker.assert_properties();
}

/// A model with a bug has a state in which this property does not hold.
pub(crate) fn is_caught<M>(model: M, property: &'static str)
where
    M: Model<State: Searched, Action: Clone + Debug + PartialEq + Send + Sync> + Debug + Send + Sync + 'static,
{
    let checker = model.checker().finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let steps = checker.assert_any_discovery(property).into_actions();
    eprintln!("{:?} breaks {property:?} by {steps:?}", checker.model());
}
