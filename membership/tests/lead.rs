//! The lead rule on every pattern of dead members and broken links.
//!
//! A pattern says which members are alive, and which hear each other. Suspicion has run its course in it: a member
//! accuses all that it hears no more, and sees the rows of those that it hears. Other rows stand still, and may say
//! anything.

use squall_membership::{Accusations, staying, staying_with};

/// A set of members: a bit each.
type Set = u64;

fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..64).filter(move |member| set >> member & 1 == 1)
}

fn set(members: impl IntoIterator<Item = usize>) -> Set {
    members.into_iter().fold(0, |set, member| set | 1 << member)
}

fn is_half(set: Set, of: usize) -> bool {
    2 * set.count_ones() as usize >= of
}

#[derive(Debug)]
struct Pattern {
    alive: Set,
    /// By member, the members that it hears, itself among them.
    hears: Vec<Set>,
}

impl Pattern {
    fn members(&self) -> usize {
        self.hears.len()
    }

    /// All patterns of links that work in both directions or not at all.
    fn all(members: usize) -> impl Iterator<Item = Pattern> {
        let pairs = (0..members).flat_map(move |a| (a + 1..members).map(move |b| vec![(a, b), (b, a)]));
        Pattern::of_links(members, pairs.collect())
    }

    /// All patterns of links that may work in one direction only.
    fn all_directed(members: usize) -> impl Iterator<Item = Pattern> {
        let pairs = (0..members).flat_map(move |a| (0..members).filter(move |&b| b != a).map(move |b| vec![(a, b)]));
        Pattern::of_links(members, pairs.collect())
    }

    /// Every subset of the links, each a list of pairs (listener, heard), among every subset of the members.
    fn of_links(members: usize, links: Vec<Vec<(usize, usize)>>) -> impl Iterator<Item = Pattern> {
        (1..1 << members).flat_map(move |alive: Set| {
            let is_alive = |link: &&Vec<(usize, usize)>| link.iter().all(|(a, b)| alive >> a & alive >> b & 1 == 1);
            let links: Vec<_> = links.iter().filter(is_alive).cloned().collect();
            (0..1u32 << links.len()).map(move |working| {
                let mut hears: Vec<Set> = (0..members).map(|member| 1 << member).collect();
                for (link, pairs) in links.iter().enumerate() {
                    for &(a, b) in pairs {
                        hears[a] |= u64::from(working >> link & 1) << b;
                    }
                }
                Pattern { alive, hears }
            })
        })
    }

    /// The members that a member hears no more.
    fn lost(&self, member: usize) -> Set {
        ((1 << self.members()) - 1) & !self.hears[member]
    }

    fn is_connected(&self, set: Set) -> bool {
        set & !self.alive == 0 && members(set).all(|member| set & self.lost(member) == 0)
    }

    /// All members of some half that is alive and fully connected.
    fn in_a_half(&self) -> Set {
        let sets = (1..1 << self.members()).filter(|&set| is_half(set, self.members()) && self.is_connected(set));
        sets.fold(0, |all, set| all | set)
    }

    /// The accusations in a member's table, if `says` gives those in each member's row.
    fn seen_by(&self, me: usize, says: impl Fn(usize) -> Set) -> Accusations {
        let mut seen = Accusations::none(self.members());
        for by in 0..self.members() {
            for whom in members(says(by) & !(1 << by)) {
                seen.accuse(by, whom);
            }
        }
        for whom in members(self.lost(me)) {
            seen.accuse(me, whom);
        }
        seen
    }

    /// Fails if a member may not lead these. They must be half, with it among them, and all be heard by it, so that it
    /// sees them wedge.
    fn check(&self, me: usize, staying: Set) -> Result<(), String> {
        if is_half(staying, self.members()) && staying >> me & 1 == 1 && staying & self.lost(me) == 0 {
            return Ok(());
        }
        Err(format!("{me} would lead {staying:b} where {self:x?}"))
    }
}

fn every_member_of_a_half_finds_one_to_lead(patterns: impl Iterator<Item = Pattern>) {
    for pattern in patterns {
        for me in members(pattern.in_a_half()) {
            // A row that is not heard stood still before its member accused any other, or said anything before it did.
            for unheard in [0, !0 >> (64 - pattern.members())] {
                let says = |by| if pattern.hears[me] >> by & 1 == 1 { pattern.lost(by) } else { unheard };
                let staying = set(staying_with(&pattern.seen_by(me, says), me));
                assert_eq!(pattern.check(me, staying), Ok(()));
            }
        }
    }
}

#[test]
fn every_live_connected_half_of_up_to_six_gets_a_leader() {
    (1..=6).for_each(|members| every_member_of_a_half_finds_one_to_lead(Pattern::all(members)));
}

#[test]
fn every_live_connected_half_of_up_to_five_gets_a_leader_where_links_work_in_one_direction() {
    (1..=5).for_each(|members| every_member_of_a_half_finds_one_to_lead(Pattern::all_directed(members)));
}

/// A member that would leave itself less than half stops accusing. Such members may stay with others that they don't
/// reach: then the next view must be able to go on.
#[test]
fn members_that_dare_not_accuse_hold_nobody_up() {
    for pattern in (2..=6).flat_map(Pattern::all) {
        let all = pattern.members();
        for me in members(pattern.in_a_half()) {
            for rows in rows_of_timid_members(&pattern, me) {
                let seen = pattern.seen_by(me, |by| rows[by]);
                let fallback = set(staying_with(&seen, me));
                assert_eq!(pattern.check(me, fallback), Ok(()), "rows {rows:x?}");
                let usual = set(staying(&seen));
                let leads = usual.trailing_zeros() as usize == me && is_half(usual, all);
                for next in [fallback].into_iter().chain(leads.then_some(usual)) {
                    let size = next.count_ones() as usize;
                    assert!(pattern.is_connected(next) || size < all, "{next:b} is what was, where {pattern:x?}");
                    let goes_on = |&half: &Set| half & !next == 0 && is_half(half, size) && pattern.is_connected(half);
                    assert!((1..1 << all).any(|half| goes_on(&half)), "none goes on in {next:b} where {pattern:x?}");
                }
            }
        }
    }
}

/// The possible contents of the rows that a member hears: all accusations of a member that keeps half; of any other,
/// those sets of accusations that keep half.
fn rows_of_timid_members(pattern: &Pattern, me: usize) -> Vec<Vec<Set>> {
    let all = pattern.members();
    let mut rows = vec![vec![0; all]];
    for by in members(pattern.hears[me]) {
        let lost = pattern.lost(by);
        let keeps_half = |accused: Set| 2 * (all - accused.count_ones() as usize) >= all;
        let may_say: Vec<Set> = match keeps_half(lost) {
            true => vec![lost],
            false => (0..1 << all).filter(|&accused| accused & !lost == 0 && keeps_half(accused)).collect(),
        };
        let with = |row: Vec<Set>| may_say.iter().map(move |&accused| (accused, row.clone())).collect::<Vec<_>>();
        rows = rows.into_iter().flat_map(with).map(|(accused, row)| put(row, by, accused)).collect();
    }
    rows
}

fn put(mut row: Vec<Set>, by: usize, accused: Set) -> Vec<Set> {
    row[by] = accused;
    row
}

/// With ten members, to drop the most accused one by one is not enough: no member's turn leads to half.
#[test]
fn where_dropping_the_worst_leaves_less_than_half_the_fewest_are_dropped() {
    let hears: Vec<Set> = [978, 693, 498, 1008, 847, 974, 317, 815, 765, 443].to_vec();
    let hears = hears.iter().enumerate().map(|(member, others)| others | 1 << member).collect();
    let pattern = Pattern { alive: (1 << 10) - 1, hears };
    let half = pattern.in_a_half();
    assert!(half.count_ones() >= 5);
    for me in 0..10 {
        let says = |by| if pattern.hears[me] >> by & 1 == 1 { pattern.lost(by) } else { 0 };
        let seen = pattern.seen_by(me, says);
        let mut around = Accusations::none(10);
        for by in members(pattern.hears[me]) {
            members(pattern.lost(by) & pattern.hears[me]).for_each(|whom| around.accuse(by, whom));
        }
        let one_by_one = set(staying(&around)) & pattern.hears[me];
        assert!(!is_half(one_by_one, 10), "{me} finds {one_by_one:b}");
        let staying = set(staying_with(&seen, me));
        assert_eq!(pattern.check(me, staying).is_ok(), half >> me & 1 == 1, "{me} finds {staying:b}");
    }
}

#[test]
fn every_live_connected_half_of_a_large_view_gets_a_leader() {
    let seed = std::env::var("SEED").map_or(6, |seed| seed.parse().expect("SEED is a number"));
    eprintln!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..3_000 {
        let all = random.usize(7..64);
        let mut order: Vec<usize> = (0..all).collect();
        random.shuffle(&mut order);
        let half = set(order[..all.div_ceil(2)].iter().copied());
        let chance = random.f64();
        let mut hears: Vec<Set> = (0..all).map(|member| 1 << member).collect();
        for a in 0..all {
            for b in 0..a {
                if half >> a & half >> b & 1 == 1 || random.f64() < chance {
                    hears[a] |= 1 << b;
                    hears[b] |= 1 << a;
                }
            }
        }
        let pattern = Pattern { alive: (1 << all) - 1, hears };
        let me = order[0];
        let says = |by| if pattern.hears[me] >> by & 1 == 1 { pattern.lost(by) } else { 0 };
        let staying = set(staying_with(&pattern.seen_by(me, says), me));
        assert_eq!(pattern.check(me, staying), Ok(()));
    }
}
