//! The least of many numbers that change one at a time.

/// A tournament tree, which finds the least of its numbers, and the first place that has it, after O(log n) work per
/// change.
#[derive(Clone, Debug, Default)]
pub struct Tournament {
    /// Above the leaves (a power of two of them, the second half): the winner of each match, that of the whole
    /// tournament at 1.
    winners: Box<[u32]>,
    numbers: Box<[u64]>,
}

impl Tournament {
    /// A tournament of `places` places, each with `number`. Places count from 0, and there is at least one.
    pub fn new(places: usize, number: u64) -> Tournament {
        let leaves = places.next_power_of_two();
        // Places beyond the last lose to all before them.
        let mut numbers = vec![u64::MAX; leaves];
        numbers[..places].fill(number);
        let mut winners = vec![0; leaves];
        for node in (1..leaves).rev() {
            winners[node] = match 2 * node < leaves {
                true => winners[2 * node],
                false => (2 * node - leaves) as u32,
            };
        }
        Tournament { winners: winners.into(), numbers: numbers.into() }
    }

    /// The least number.
    #[inline]
    pub fn least(&self) -> u64 {
        self.numbers[self.first()]
    }

    /// The first place that has the least number.
    #[inline]
    pub fn first(&self) -> usize {
        // The only leaf of a tournament of one has played no match.
        self.winners.get(1).map_or(0, |&winner| winner as usize)
    }

    /// The least number of all places but the [first](Tournament::first), and the first of the places that have it; in
    /// a tournament of one, [`u64::MAX`] at no place.
    #[inline]
    pub fn second(&self) -> (u64, usize) {
        let (leaves, first) = (self.numbers.len(), self.first());
        let mut second = (u64::MAX, leaves);
        // The place that would win without the first has lost to the first alone.
        let mut node = leaves + first;
        while node > 1 {
            let sibling = node ^ 1;
            let loser = if sibling < leaves { self.winners[sibling] as usize } else { sibling - leaves };
            second = second.min((self.numbers[loser], loser));
            node /= 2;
        }
        second
    }

    /// The number at a place. Panics if there is no such place.
    #[inline]
    pub fn get(&self, place: usize) -> u64 {
        self.numbers[place]
    }

    /// Changes the number at a place. Panics if there is no such place.
    #[inline]
    pub fn set(&mut self, place: usize, number: u64) {
        self.numbers[place] = number;
        let leaves = self.numbers.len();
        let mut node = (leaves + place) / 2;
        while node > 0 {
            let [left, right] = match 2 * node < leaves {
                true => [self.winners[2 * node], self.winners[2 * node + 1]],
                false => [(2 * node - leaves) as u32, (2 * node - leaves) as u32 + 1],
            };
            // The left one comes first, so it wins a tie.
            let right_wins = self.numbers[right as usize] < self.numbers[left as usize];
            self.winners[node] = if right_wins { right } else { left };
            node /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_known_after_every_change() {
        let mut random = fastrand::Rng::with_seed(5);
        for places in 1..20 {
            let mut tournament = Tournament::new(places, 7);
            let mut numbers = vec![7; places];
            for _ in 0..300 {
                let least = numbers.iter().copied().min().expect("there is one");
                let first = numbers.iter().position(|&number| number == least);
                assert_eq!((tournament.least(), Some(tournament.first())), (least, first), "{numbers:?}");
                let others = (0..places).filter(|&place| Some(place) != first).map(|place| (numbers[place], place));
                let second = others.min().filter(|second| second.0 < u64::MAX);
                assert_eq!(Some(tournament.second()).filter(|second| second.0 < u64::MAX), second, "{numbers:?}");
                let (place, number) = (random.usize(..places), random.u64(..10));
                numbers[place] = if number == 9 { u64::MAX } else { number };
                tournament.set(place, numbers[place]);
                assert_eq!(tournament.get(place), numbers[place]);
            }
        }
    }
}
