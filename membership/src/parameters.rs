//! The parameters that all members must have alike.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;
use squall_sst::Fingerprint;

/// The most differences that one sentence names.
const NAMED: usize = 4;

/// The parameters that all members must be configured or built with alike, by name, with values for people to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// Sets a parameter. Values must differ as text where they differ.
    pub fn set(&mut self, name: impl Into<String>, value: impl fmt::Display) {
        self.0.insert(name.into(), value.to_string());
    }

    /// A number that differs where any parameter does.
    pub fn fingerprint(&self) -> u64 {
        let mut all = Fingerprint::default();
        for (name, value) in &self.0 {
            all.text(name).text(value);
        }
        all.value()
    }

    /// The differences between these parameters, of the node `here`, and others, of the node `there`, in a sentence for
    /// both.
    pub fn difference(&self, here: NodeId, others: &Parameters, there: NodeId) -> Option<String> {
        let names = self.0.keys().chain(others.0.keys().filter(|name| !self.0.contains_key(*name)));
        let value = |of: &Parameters, name: &String| of.0.get(name).map_or("absent".to_owned(), String::clone);
        let differing = names.map(|name| (name, value(self, name), value(others, name)));
        let differing: Vec<String> = differing
            .filter(|(_, mine, theirs)| mine != theirs)
            .map(|(name, mine, theirs)| format!("{name} is {mine} at {here}, and {theirs} at {there}"))
            .collect();
        let more = match differing.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let named = differing[..differing.len().min(NAMED)].join("; ");
        (!differing.is_empty()).then(|| format!("{named}{more}: give all nodes the same configuration and program"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(given: &[(&str, u32)]) -> Parameters {
        let mut parameters = Parameters::default();
        given.iter().for_each(|(name, value)| parameters.set(*name, value));
        parameters
    }

    #[test]
    fn a_difference_is_named_with_both_values() {
        let mine = parameters(&[("a", 1), ("b", 2), ("c", 3)]);
        let others = parameters(&[("a", 1), ("b", 5), ("d", 4)]);
        let [here, there] = [1, 2].map(NodeId);
        let named = "b is 2 at node 1, and 5 at node 2; c is 3 at node 1, and absent at node 2; d is absent at node 1, and 4 \
                     at node 2: give all nodes the same configuration and program";
        assert_eq!(mine.difference(here, &others, there).as_deref(), Some(named));
        assert_eq!(mine.difference(here, &mine, there), None);
        assert_ne!(mine.fingerprint(), others.fingerprint());
        assert_ne!(parameters(&[("a", 12)]).fingerprint(), parameters(&[("a1", 2)]).fingerprint());
        let many = parameters(&[("1", 1), ("2", 1), ("3", 1), ("4", 1), ("5", 1), ("6", 1)]);
        let named = many.difference(here, &Parameters::default(), there).unwrap();
        assert!(named.contains("4 is 1") && !named.contains("5 is 1") && named.contains("and 2 more"), "{named}");
    }
}
