//! A node's view log, and the carrier of its messages.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use squall_fabric::{NodeId, Waker};
use squall_membership::{EndReason, Incarnation, Layout, LayoutPolicy, Member, Parameters};
use squall_services::{Caller, MessageSender, Messenger};
use squall_view_log::{
    Contact, Directory, Failure, Inlet, Log, Settings, Start, StartError, StorageError, Timing, Transport,
};

use crate::{calls::clock::Now, config::Config};

/// The transport of a view log's messages, over control streams.
struct Streams(Arc<Messenger>);

impl Transport for Streams {
    fn send(&self, to: &Contact, message: Vec<u8>) {
        self.0.send(&squall_services::DialTarget { node: to.node, addresses: to.addresses.clone() }, message);
    }
}

/// The layout, with the application's say in it, and whatever else must be alike at all nodes.
type Agreed = (Layout, LayoutPolicy, Parameters);

/// Opens the directory in which the node keeps its part of the log, if it has one.
pub(crate) fn directory(config: &Config) -> Result<Option<Directory>, StorageError> {
    config.storage().map(|path| Directory::open(path, config.cluster(), config.id())).transpose()
}

/// Starts the log of the configured node, and the carrier of its messages. `waker` wakes the node's engine.
pub(crate) fn start(
    config: &Config,
    directory: Option<Directory>,
    agreed: Agreed,
    caller: Caller,
    waker: Waker,
) -> Result<(Log, Arc<Messenger>), StartError> {
    let inlet = Arc::new(OnceLock::<Inlet>::new());
    let messenger = {
        let inlet = Arc::clone(&inlet);
        // A message that comes before the log is there is lost, as messages may be.
        let deliver = move |from: MessageSender, message| {
            if let Some(inlet) = inlet.get() {
                inlet.incoming(from.node, from.only_votes, message);
            }
        };
        Arc::new(Messenger::new(caller, Box::new(deliver)))
    };
    let transport = Arc::new(Streams(Arc::clone(&messenger)));
    let wake = Arc::new(move || waker.wake());
    let log = Log::start(settings(config, agreed), directory, transport, wake)?;
    // It is set only here.
    let _ = inlet.set(log.inlet());
    Ok((log, messenger))
}

fn settings(config: &Config, (layout, policy, parameters): Agreed) -> Settings {
    let contact = |contact: squall_services::DialTarget| Contact { node: contact.node, addresses: contact.addresses };
    let of = |&node: &NodeId| contact(config.contact(node));
    let contacts = || config.members().iter().map(of).chain(config.join_contacts().into_iter().map(contact)).collect();
    let start = if config.is_witness() {
        Start::Witness { contacts: contacts() }
    } else if config.members().contains(&config.id()) {
        Start::List {
            members: config.members().iter().map(of).collect(),
            witnesses: config.witnesses().iter().map(of).collect(),
        }
    } else {
        Start::Join { contacts: contacts() }
    };
    // If the clock stands before 1970, the log raises the number above those that the cluster remembers.
    let me = Member::new(config.id(), Incarnation(Now::Boot.wall().0));
    Settings {
        cluster: config.cluster().to_owned(),
        me: Member { addresses: config.contact(config.id()).addresses, rack: config.rack().to_owned(), ..me },
        layout,
        policy,
        parameters,
        start,
        voters: config.voters().map(<[NodeId]>::to_vec),
        timing: Timing {
            formation: Some(config.formation_timeout()),
            // Longer than an election, and short enough that callers learn it within two seconds after a failure.
            no_quorum: (config.failure_timeout() * 3 / 2).max(Duration::from_secs(1)),
            ..Timing::default()
        },
    }
}

/// The place of a node's part of the log, in words.
pub(crate) fn storage(config: &Config) -> Option<String> {
    config.storage().map(|directory| directory.display().to_string())
}

/// The reason of the end of a node whose log has stopped.
pub(crate) fn end_reason(node: NodeId, failure: Failure) -> EndReason {
    match failure {
        Failure::NotFormed { waited_ms, missing } => EndReason::NotFormed {
            missing: missing.into_iter().map(|node| (node, None)).collect(),
            waited: Duration::from_millis(waited_ms),
        },
        Failure::Mismatch { with, why } => EndReason::Incompatible { node, why: format!("{with} refuses it: {why}") },
        other => EndReason::Incompatible { node, why: other.to_string() },
    }
}
