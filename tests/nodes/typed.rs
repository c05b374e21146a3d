//! A service that `squall::service` makes of methods, and its typed calls: of a client, and of members.

use std::{collections::BTreeMap, io, thread, time::Duration};

use rkyv::{Archive, Deserialize, Serialize, rancor};
use squall::{
    Applied, Config, Group, Node, NodeId, ServeOptions, ServedGroup, Snapshot, SubmitError, ViewChange,
    client::{Client, ClientConfig, ClientError},
};

/// The reason for which nothing was moved.
#[derive(Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) enum TransferError {
    /// The account has this much.
    Lacks(u64),
}

/// A number that its own decoder takes only if it is even.
#[derive(Archive, Serialize)]
pub(crate) struct Even(u64);

#[derive(Debug)]
struct Odd;

impl std::fmt::Display for Odd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the number is odd")
    }
}

impl std::error::Error for Odd {}

impl<D: rancor::Fallible<Error: rancor::Source> + ?Sized> Deserialize<Even, D> for ArchivedEven {
    fn deserialize(&self, _: &mut D) -> Result<Even, D::Error> {
        let number = self.0.to_native();
        if number.is_multiple_of(2) { Ok(Even(number)) } else { Err(rancor::Source::new(Odd)) }
    }
}

/// Balances by account, the owners of accounts, and what else happened.
#[derive(Default)]
pub(crate) struct Bank {
    balances: BTreeMap<u64, u64>,
    owners: Vec<(String, u64)>,
    views: u64,
}

#[squall::service(schema = "test-bank", version = 1)]
impl Bank {
    /// Puts a sum into an account, and returns its balance.
    #[command]
    pub(crate) fn deposit(&mut self, account: u64, sum: u64) -> u64 {
        let balance = self.balances.entry(account).or_default();
        *balance += sum;
        *balance
    }

    /// Moves a sum from an account to another.
    #[command]
    fn transfer(&mut self, from: u64, to: u64, sum: u64) -> Result<(), TransferError> {
        let balance = self.balance(from).unwrap_or_default();
        let left = balance.checked_sub(sum).ok_or(TransferError::Lacks(balance))?;
        self.balances.insert(from, left);
        self.deposit(to, sum);
        Ok(())
    }

    /// Opens an account with a name, and returns the number of the account and the sender of the command.
    #[command]
    fn open(&mut self, archived: String, place: &Applied, at: u64, mut change: Vec<Option<u8>>) -> (u64, u32) {
        change.retain(Option::is_some);
        self.owners.push((archived, change.len() as u64 + at));
        (self.owners.len() as u64, place.sender.0)
    }

    /// Takes even numbers.
    #[command]
    fn halve(&mut self, number: Even) -> u64 {
        number.0 / 2
    }

    #[command]
    fn clear(&mut self) {
        self.balances.clear();
    }

    /// Returns the balance of an account.
    #[query]
    fn balance(&self, account: u64) -> Option<u64> {
        self.balances.get(&account).copied()
    }

    /// Returns all owners.
    #[query]
    fn owners(&self) -> Vec<(String, u64)> {
        self.owners.clone()
    }

    #[snapshot]
    fn snapshot(&self) -> Snapshot {
        Snapshot::of_bytes(self.views.to_le_bytes())
    }

    #[restore]
    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        self.views = u64::from_le_bytes(bytes);
        Ok(())
    }

    #[view_changed]
    fn see(&mut self, _change: &ViewChange) {
        self.views += 1;
    }
}

/// A service of commands alone.
struct Tally(u64);

#[squall::service]
impl Tally {
    #[command]
    fn add(&mut self, number: u64) -> u64 {
        self.0 += number;
        self.0
    }
}

fn cluster() -> String {
    format!("typed-{}", std::process::id())
}

/// Starts two nodes with a bank that clients use and a tally that they don't.
fn start() -> Vec<(Node, ServedGroup<Bank>, Group<Tally>)> {
    let start = |id| {
        let config = Config::builder(cluster(), id).members([1, 2]).build().unwrap();
        let mut node = Node::builder(config);
        let bank = node.serve("bank", Bank::default(), ServeOptions::default());
        let tally = node.group("tally", Tally(0));
        (node.start().expect("the view is formed"), bank, tally)
    };
    thread::scope(|scope| {
        let starting: Vec<_> = [1, 2].map(|id| scope.spawn(move || start(id))).into_iter().collect();
        starting.into_iter().map(|node| node.join().expect("it starts")).collect()
    })
}

#[test]
fn clients_and_members_call_the_methods_of_a_service() {
    let nodes = start();
    let config = ClientConfig::on_host(cluster(), [1, 2].map(NodeId));
    let client: Client<Bank> = Client::connect(&config.with_timeout(Duration::from_secs(60)), "bank").unwrap();
    let (_, member, tally) = &nodes[1];

    assert_eq!(client.deposit(1, 100).wait(), Ok(100));
    assert_eq!(member.deposit(1, 5).wait(), Ok(105));
    assert_eq!(client.transfer(1, 2, 30).wait(), Ok(Ok(())));
    assert_eq!(client.transfer(1, 2, 80).wait(), Ok(Err(TransferError::Lacks(75))));
    let call = member.transfer(2, 1, 31).deadline(Duration::from_secs(60));
    assert_eq!(call.wait(), Ok(Err(TransferError::Lacks(30))));
    assert_eq!(client.open("Ada".to_owned(), 7, vec![None, Some(1)]).wait().unwrap().0, 1);
    assert_eq!(member.open("Bea".to_owned(), 0, Vec::new()).wait(), Ok((2, 2)));
    assert_eq!(client.balance(2).wait(), Ok(Some(30)));
    assert_eq!(client.balance(9).wait(), Ok(None));
    assert_eq!(client.owners().wait(), Ok(vec![("Ada".to_owned(), 8), ("Bea".to_owned(), 0)]));
    assert_eq!(member.read(|bank| (bank.balance(1), bank.views)).wait(), Ok((Some(75), 1)));
    let deposited = client.everywhere().deposit(3, 7).wait().unwrap();
    assert_eq!(deposited.members(), [1, 2].map(NodeId));
    assert_eq!(deposited.wait_agreed(), Ok(7));
    let transferred = member.anywhere().everywhere().transfer(3, 4, 9).wait().unwrap().wait_all();
    assert_eq!(transferred, [1, 2].map(|node| (NodeId(node), Ok(Err(TransferError::Lacks(7))))).into());
    assert_eq!(member.clear().wait(), Ok(()));
    assert_eq!(client.balance(2).wait(), Ok(None));

    let added = tally.add(4);
    assert_eq!((added.is_accepted(), added.wait()), (true, Ok(4)));
    assert_eq!(nodes[0].2.add(2).wait(), Ok(6));
}

#[test]
fn a_method_whose_arguments_cannot_be_decoded_is_not_called() {
    let config = Config::builder(format!("undecodable-{}", std::process::id()), 1).members([1]).build().unwrap();
    let contact = ClientConfig::on_host(config.cluster(), [NodeId(1)]).with_timeout(Duration::from_secs(60));
    let mut node = Node::builder(config);
    let member = node.serve("bank", Bank::default(), ServeOptions::default());
    let _node = node.start().unwrap();
    let client: Client<Bank> = Client::connect(&contact, "bank").unwrap();
    assert_eq!((client.halve(Even(6)).wait(), member.halve(Even(8)).wait()), (Ok(3), Ok(4)));
    assert_eq!(member.halve(Even(7)).wait(), Err(SubmitError::Invalid));
    let error = client.halve(Even(7)).wait().unwrap_err();
    assert!(matches!(&error, ClientError::Reply(why) if why.contains("no result")), "{error}");
    assert_eq!(client.deposit(1, 1).wait(), Ok(1), "the group goes on");
}
