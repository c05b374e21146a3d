//! Conditions over a table, evaluated in the node's own thread.

use crate::{layout::ColumnSet, table::Table};

/// The occasions on which a predicate fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The first time that the condition holds, and never again.
    Once,
    /// A trigger each time that it is evaluated and holds.
    Always,
    /// A trigger each time that it holds and did not at its last evaluation.
    Becomes,
}

/// Conditions over a [`Table`], each with an action for when it holds.
///
/// They are evaluated in the order in which they were registered, each only if one of its columns changed since the
/// last evaluation. An action is a value that the caller acts on, so a predicate has no state and no effects of its
/// own.
#[derive(derive_more::Debug)]
#[debug("Predicates({})", entries.len())]
pub struct Predicates<A> {
    entries: Vec<RegisteredPredicate<A>>,
    /// The number registered since the last evaluation: these are due whatever changed.
    fresh: usize,
}

struct RegisteredPredicate<A> {
    columns: ColumnSet,
    when: When,
    held: bool,
    condition: Box<dyn Fn(&Table) -> bool + Send>,
    action: A,
}

impl<A> Default for Predicates<A> {
    fn default() -> Predicates<A> {
        Predicates { entries: Vec::new(), fresh: 0 }
    }
}

impl<A: Clone> Predicates<A> {
    /// Adds a predicate that depends on `columns` and nothing else.
    pub fn register(
        &mut self,
        columns: ColumnSet,
        when: When,
        action: A,
        condition: impl Fn(&Table) -> bool + Send + 'static,
    ) {
        self.entries.push(RegisteredPredicate { columns, when, held: false, condition: Box::new(condition), action });
        self.fresh += 1;
    }

    /// Evaluates the predicates that `changed` concerns, and appends to `out` the actions of those that fire.
    pub fn evaluate(&mut self, table: &Table, changed: ColumnSet, out: &mut Vec<A>) {
        if changed.is_empty() && self.fresh == 0 {
            return;
        }
        let old = self.entries.len() - self.fresh;
        self.fresh = 0;
        for (i, entry) in self.entries.iter_mut().enumerate() {
            if i < old && !entry.columns.intersects(changed) || entry.when == When::Once && entry.held {
                continue;
            }
            let holds = (entry.condition)(table);
            if holds && (entry.when == When::Always || !entry.held) {
                out.push(entry.action.clone());
            }
            entry.held = holds;
        }
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::{
        layout::{Counter, Layout},
        testing::HandFabric,
    };

    /// A member's table of one row, with counters to set.
    struct SingleRow {
        table: Table,
        a: Counter,
        b: Counter,
        predicates: Predicates<&'static str>,
    }

    impl SingleRow {
        fn new() -> SingleRow {
            let mut layout = Layout::builder();
            let (a, b) = (layout.counter("a"), layout.counter("b"));
            let layout = layout.build();
            let table = Table::register(&mut HandFabric::default(), layout, 1, 0).expect("memory");
            SingleRow { table, a, b, predicates: Predicates::default() }
        }

        fn register(
            &mut self,
            on: Counter,
            when: When,
            action: &'static str,
            holds: impl Fn(u64) -> bool + Send + 'static,
        ) {
            let columns = self.table.layout().counter_set(on);
            self.predicates.register(columns, when, action, move |table| holds(table.get(0, on)));
        }

        fn evaluate(&mut self) -> Vec<&'static str> {
            let mut out = Vec::new();
            let changed = self.table.take_changes();
            self.predicates.evaluate(&self.table, changed, &mut out);
            out
        }

        fn set(&mut self, counter: Counter, value: u64) -> Vec<&'static str> {
            self.table.set(counter, value);
            self.evaluate()
        }
    }

    #[test]
    fn once_always_and_becomes_differ_in_how_often_they_fire() {
        let mut world = SingleRow::new();
        let a = world.a;
        let even = |value: u64| value.is_multiple_of(2);
        world.register(a, When::Once, "once", even);
        world.register(a, When::Always, "always", even);
        world.register(a, When::Becomes, "becomes", even);
        assert_eq!(world.evaluate(), ["once", "always", "becomes"], "what is registered is evaluated at once");
        assert!(world.evaluate().is_empty(), "nothing changed");
        assert_eq!(world.set(a, 2), ["always"]);
        assert!(world.set(a, 3).is_empty());
        assert_eq!(world.set(a, 4), ["always", "becomes"]);
        assert_eq!(world.set(a, 6), ["always"]);
    }

    #[test]
    fn once_waits_for_its_first_time() {
        let mut world = SingleRow::new();
        let a = world.a;
        world.register(a, When::Once, "once", |value| value > 1);
        assert!(world.evaluate().is_empty());
        assert!(world.set(a, 1).is_empty());
        assert_eq!(world.set(a, 2), ["once"]);
        assert!(world.set(a, 3).is_empty());
    }

    #[test]
    fn a_predicate_is_evaluated_only_if_its_columns_changed() {
        let mut world = SingleRow::new();
        let (a, b) = (world.a, world.b);
        let evaluated = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&evaluated);
        world.register(a, When::Always, "a", move |_| count.fetch_add(1, Ordering::Relaxed) < usize::MAX);
        assert_eq!(world.evaluate(), ["a"]);
        assert!(world.set(b, 1).is_empty());
        assert!(world.set(a, 0).is_empty(), "the value is the same");
        assert_eq!(evaluated.load(Ordering::Relaxed), 1);
        assert_eq!(world.set(a, 1), ["a"]);
        world.register(b, When::Always, "late", |_| true);
        assert_eq!(world.evaluate(), ["late"], "the new one, and it alone");
        assert_eq!(evaluated.load(Ordering::Relaxed), 2);
    }
}
