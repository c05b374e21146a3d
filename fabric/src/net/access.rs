//! The table of who may call what.

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    principal::{ClientRights, Principal, Role},
    service::ServiceId,
};
use crate::{
    NodeId,
    control::{LogLimit, and_more},
    share::{CallerNetwork, Holder},
    sync::Lock,
};

/// The spell of the limit on lines about calls that were denied.
const LOG_SPELL: Duration = Duration::from_secs(1);

/// A thing that a caller with a certificate may be permitted, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub enum Call {
    /// Links, and the endpoints that meet over them.
    #[display("links")]
    Link,
    /// Messages of the view log, votes among them.
    #[display("the view log")]
    ViewLog,
    /// A shard's state.
    #[display("state transfer")]
    State,
    /// Copies of files.
    #[display("copies of files")]
    Copy,
    /// A node's report.
    #[display("status")]
    Status,
    /// An order to a node: to leave, to suspect a member, to go on without a quorum, to read its keys again.
    #[display("orders")]
    Order,
    /// A command of a client.
    #[display("commands")]
    Command,
    /// A query of a client.
    #[display("queries")]
    Query,
    /// The log of a durable group.
    #[display("logs")]
    Log,
    /// A service of the program that has the port.
    #[display("services of the program")]
    Other,
}

/// The access that a role has to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// All calls of this kind.
    Granted,
    /// Calls to the process that has the same certificate.
    OwnNode,
    /// The calls that the certificate lists.
    AsCertified,
    /// No call.
    Denied,
}

impl Call {
    /// All calls.
    pub const ALL: [Call; 10] = [
        Call::Link,
        Call::ViewLog,
        Call::State,
        Call::Copy,
        Call::Status,
        Call::Order,
        Call::Command,
        Call::Query,
        Call::Log,
        Call::Other,
    ];

    /// The service by which the call is made; None for links, and for services that Squall does not know.
    pub fn service(self) -> Option<ServiceId> {
        match self {
            Call::Link | Call::Other => None,
            Call::ViewLog => Some(ServiceId::VIEW_LOG),
            Call::State => Some(ServiceId::STATE),
            Call::Copy => Some(ServiceId::COPIES),
            Call::Status | Call::Order => Some(ServiceId::ADMIN),
            Call::Command | Call::Query => Some(ServiceId::CLIENTS),
            Call::Log => Some(ServiceId::LOG),
        }
    }

    /// The table: the access of each role to each call, where the cluster has a CA.
    pub fn access(self, role: Role) -> Access {
        use Access::{AsCertified, Denied, Granted, OwnNode};
        // member, witness, client, operator
        let row = match self {
            Call::Link => [Granted, Denied, Denied, Denied],
            Call::ViewLog => [Granted, Granted, Denied, Denied],
            Call::State => [Granted, Denied, Denied, Denied],
            Call::Copy => [Granted, Denied, Denied, Denied],
            Call::Status => [Granted, Granted, Denied, Granted],
            // A process that has a node's key can do all this as that node.
            Call::Order => [OwnNode, OwnNode, Denied, Granted],
            Call::Command => [Granted, Denied, AsCertified, Denied],
            Call::Query => [Granted, Denied, AsCertified, Denied],
            Call::Log => [Granted, Denied, AsCertified, Granted],
            Call::Other => [Granted, Denied, Denied, Denied],
        };
        row[role as usize]
    }

    /// Whether a client with these rights may make the call to a group.
    fn is_certified(self, rights: &ClientRights, group: Option<&str>) -> bool {
        let covers = group.is_none_or(|group| rights.cover(group));
        covers
            && match self {
                Call::Command => rights.commands,
                Call::Query => true,
                Call::Log => rights.logs,
                _ => false,
            }
    }

    /// Whether a caller may make the call at node `at`, to a group if it is to one.
    fn permits(self, principal: &Principal, at: NodeId, group: Option<&str>) -> bool {
        match (self.access(principal.role()), principal) {
            (Access::Granted, _) => true,
            (Access::OwnNode, _) => principal.node() == Some(at),
            (Access::AsCertified, Principal::Client(_, rights)) => self.is_certified(rights, group),
            (Access::AsCertified | Access::Denied, _) => false,
        }
    }
}

/// A call that was denied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{principal} may not use {call}{}: {}", of_group(group.as_deref()), remedy(principal, *call))]
pub struct Denied {
    /// The caller.
    pub principal: Principal,
    /// The call.
    pub call: Call,
    /// The group that it was for, if it was for one.
    pub group: Option<String>,
}

fn of_group(group: Option<&str>) -> String {
    group.map_or_else(String::new, |group| format!(" of group {group:?}"))
}

/// The rule that denies a call.
fn remedy(principal: &Principal, call: Call) -> String {
    if let (Principal::Client(_, rights), Access::AsCertified) = (principal, call.access(principal.role())) {
        return format!("its certificate permits it to {rights}");
    }
    let has = |access: &[Access]| {
        let roles = Role::ALL.into_iter().filter(|&role| access.contains(&call.access(role)));
        roles.map(|role| format!("{role}s")).collect::<Vec<_>>().join(" and ")
    };
    let granted = has(&[Access::Granted, Access::AsCertified]);
    match call.access(principal.role()) {
        Access::OwnNode => format!("that is for {granted}, and for a node's own certificate at that node"),
        _ => format!("that is for {granted}"),
    }
}

/// The calls that a node has denied, by role and call.
#[derive(Default)]
pub(super) struct Denials(Lock<DenialsState>);

struct DenialsState {
    counts: BTreeMap<(Role, Call), u64>,
    log: LogLimit,
}

impl Default for DenialsState {
    fn default() -> DenialsState {
        DenialsState { counts: BTreeMap::new(), log: LogLimit::new(LOG_SPELL) }
    }
}

impl Denials {
    /// Counts a denied call, and logs it at a bounded rate.
    pub(super) fn count(&self, denied: &Denied) {
        let mut state = self.0.lock();
        *state.counts.entry((denied.principal.role(), denied.call)).or_default() += 1;
        if let Some(more) = state.log.permits(Instant::now()) {
            tracing::warn!("a call was denied: {denied}{}", and_more(more));
        }
    }

    pub(super) fn read(&self) -> Vec<(Role, Call, u64)> {
        self.0.lock().counts.iter().map(|(&(role, call), &count)| (role, call, count)).collect()
    }
}

/// The rights of the caller at the other end of a stream, and the party for which its shares count.
#[derive(Clone, Default)]
pub struct CallerAccess {
    certified: Option<Arc<Certified>>,
    holder: Holder,
}

/// A caller that has shown a certificate, at the node that it calls.
struct Certified {
    principal: Principal,
    at: NodeId,
    denials: Arc<Denials>,
}

impl CallerAccess {
    /// The rights of a process of this user, where there is no CA: all.
    pub fn unchecked() -> CallerAccess {
        CallerAccess::default()
    }

    /// The rights of a caller from any address, where there is no protection: all, but the shares of its network.
    pub(super) fn unprotected(from: IpAddr) -> CallerAccess {
        CallerAccess { certified: None, holder: Holder::Network(CallerNetwork::of(from)) }
    }

    pub(super) fn new(principal: Principal, at: NodeId, denials: Arc<Denials>) -> CallerAccess {
        let holder = principal.holder();
        CallerAccess { certified: Some(Arc::new(Certified { principal, at, denials })), holder }
    }

    /// The rights of a peer that this process has dialed.
    pub(super) fn of_peer(principal: Option<Principal>, at: NodeId) -> CallerAccess {
        principal.map_or_else(CallerAccess::unchecked, |principal| CallerAccess::new(principal, at, Arc::default()))
    }

    /// The owner of the caller's certificate, if the cluster has a CA.
    pub fn principal(&self) -> Option<&Principal> {
        self.certified.as_deref().map(|certified| &certified.principal)
    }

    /// The party for which the caller's shares count.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Checks that the caller may make a call, to a group if it is to one. Fails if the table or the certificate denies
    /// it; that is counted, and logged.
    pub fn check(&self, call: Call, group: Option<&str>) -> Result<(), Denied> {
        let Some(certified) = &self.certified else { return Ok(()) };
        if call.permits(&certified.principal, certified.at, group) {
            return Ok(());
        }
        let denied = Denied { principal: certified.principal.clone(), call, group: group.map(str::to_owned) };
        certified.denials.count(&denied);
        Err(denied)
    }

    /// Checks that the caller may make some call of a service. Fails as [`check`](CallerAccess::check) does.
    pub(super) fn check_service(&self, service: ServiceId) -> Result<(), Denied> {
        let Some(certified) = &self.certified else { return Ok(()) };
        let calls = || Call::ALL.into_iter().filter(|call| call.service() == Some(service));
        // Of a certified client the service learns more: the group, and the call.
        let may = |call: Call| {
            let access = call.access(certified.principal.role());
            access == Access::AsCertified || call.permits(&certified.principal, certified.at, None)
        };
        match calls().next() {
            None => self.check(Call::Other, None),
            Some(_) if calls().any(may) => Ok(()),
            Some(first) => self.check(first, None),
        }
    }
}

impl fmt::Debug for CallerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.principal() {
            Some(principal) => write!(f, "CallerAccess({principal})"),
            None => f.write_str("CallerAccess(unchecked)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeId = NodeId(1);

    fn access(principal: Principal) -> CallerAccess {
        CallerAccess::new(principal, ME, Arc::default())
    }

    #[test]
    fn each_role_may_do_what_the_table_says_and_denials_are_counted() {
        let owners = [
            Principal::Member(NodeId(2)),
            Principal::Witness(NodeId(3)),
            Principal::Client("web".into(), ClientRights::default()),
            Principal::Operator("alice".into()),
        ];
        for owner in owners {
            let (role, caller) = (owner.role(), access(owner));
            let mut denied = 0;
            for call in Call::ALL {
                let expected = match call.access(role) {
                    Access::Granted => true,
                    Access::OwnNode | Access::Denied => false,
                    Access::AsCertified => matches!(call, Call::Command | Call::Query),
                };
                denied += u64::from(!expected);
                let found = caller.check(call, Some("bank"));
                assert_eq!(found.is_ok(), expected, "{role} {call}");
                if let Err(error) = found {
                    let text = error.to_string();
                    assert!(text.contains(&call.to_string()) && text.contains("that is for") || role == Role::Client);
                }
            }
            let counted: u64 =
                caller.certified.expect("it has a certificate").denials.read().iter().map(|(.., n)| n).sum();
            assert_eq!(counted, denied, "{role}");
        }
        assert!(Call::ALL.into_iter().all(|call| CallerAccess::unchecked().check(call, None).is_ok()));
    }

    #[test]
    fn a_node_takes_orders_with_its_own_certificate() {
        assert!(access(Principal::Member(ME)).check(Call::Order, None).is_ok());
        assert!(access(Principal::Witness(ME)).check(Call::Order, None).is_ok());
        let denied = access(Principal::Member(NodeId(2))).check(Call::Order, None).unwrap_err().to_string();
        assert!(denied.contains("node 2 may not use orders: that is for operators"), "{denied}");
    }

    #[test]
    fn a_clients_certificate_limits_its_calls() {
        let groups = Some(["bank".to_owned()].into());
        let caller = access(Principal::Client("web".into(), ClientRights { groups, commands: false, logs: true }));
        assert!(caller.check(Call::Query, Some("bank")).is_ok() && caller.check(Call::Log, Some("bank")).is_ok());
        let denied = caller.check(Call::Query, Some("other")).unwrap_err().to_string();
        assert!(denied.contains("of group \"other\"") && denied.contains("queries and read logs of bank"), "{denied}");
        assert!(caller.check(Call::Command, Some("bank")).is_err());
        assert!(caller.check_service(ServiceId::CLIENTS).is_ok() && caller.check_service(ServiceId::LOG).is_ok());
        assert!(caller.check_service(ServiceId::STATE).is_err() && caller.check_service(ServiceId(77)).is_err());
    }
}
